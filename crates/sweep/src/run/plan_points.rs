//! Plans the points of a sweep: each one is rendered, checked, its data prepared, and compiled.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use rayon::ThreadPool;
use rayon::prelude::*;
use serde::Serialize;
use serde_json::json;

use crate::progress::{SweepProgress, find_seen_seeds};
use crate::record::sweep_dir::absolute_path;
use crate::record::{FORMAT, PlannedPoint, SweepRecord};
use crate::spec::measurement_interval;
use crate::{
    AshaSettings, ExpandedPoint, Goal, MeasurementChoice, MilestoneUnit, Objective, RunLength, SweepSpec, expand,
    load_options, rungs,
};
use runner_batch_jobs::JobNeeds;
use runner_config::{ExperimentFile, LoadOptions, Loaded};
use runner_data::ModelTokenizer;
use runner_inputs::{
    Host, RunEvent, RunObserver, check_prompts, has_private_text, local_devices, model_fetcher, pin_hub_commits,
    prepare_inputs, settle_micro_batch,
};
use runner_machine::local_cluster::without_memory_limit;
use runner_plan::MeasurementBasis;
use runner_plan::Trajectory;
use runner_plan::forecast::cost::ModelSize;
use runner_record::time;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::diagnostic::ConfigError;
use runner_spec::error::{CommandError, ErrorKind, PlainError, Result};
use runner_spec::experiment::Experiment;
use runner_spec::forecast::ForecastBasis;
use runner_spec::format::json_bytes;
use runner_spec::measure::Measure;

use super::overridden_settings::report_overridden;
use super::point_checks::{check_comparable, check_same_rungs, choose_objective, explain_unjudged, explain_unmeasured};
use super::point_length::{apply_budget, overridden_flag, plan_figures};
use super::point_problems::PointProblems;
use super::point_sources::hash_sources;
use super::request::SweepRequest;
use super::trunks::find_trunks;

/// A sweep that can start.
#[derive(Debug)]
pub(super) struct PlannedSweep {
    pub record: SweepRecord,
    /// The resolved experiment of each point.
    pub experiments: Vec<String>,
    /// True if only their owner may read the experiments.
    pub is_private: bool,
}

/// Loads the experiments of `points`, which are those of `spec`.
///
/// # Errors
/// All mistakes of all points, each reported once; among them values that others replace.
pub(super) fn load_points<'a>(
    spec: &SweepSpec,
    points: &'a [ExpandedPoint],
    options: &LoadOptions<'_>,
    pool: &ThreadPool,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Vec<(&'a ExpandedPoint, Loaded)>> {
    if let Some(missing) = &spec.missing_base {
        return Err(ConfigError::new(vec![(**missing).clone()]).into());
    }
    let fetch = model_fetcher(host, observer);
    let mut base = LoadOptions { fetch_model: Some(&fetch), ..options.clone() };
    if spec.has_template() {
        // A variable that varies and is not used is a mistake.
        let is_variable = |name: &&str| spec.seeds_axis() != Some(name);
        base.template.named = spec.names().into_iter().filter(is_variable).map(str::to_owned).collect();
    }
    let file = ExperimentFile::read(&spec.base);
    let load = |point: &ExpandedPoint| file.as_ref().map_err(Clone::clone)?.load(&load_options(spec, point, &base));
    let all: Vec<_> = pool.install(|| points.par_iter().map(load).collect());
    let mut problems = PointProblems::new(points.len());
    let mut loaded: Vec<(&ExpandedPoint, Loaded)> = Vec::new();
    for (point, result) in points.iter().zip(all) {
        match result {
            Ok(experiment) => loaded.push((point, experiment)),
            Err(error) => problems.add_config(point, spec.locate_mistakes(error)),
        }
    }
    problems.into_result()?;
    let mut problems = PointProblems::new(points.len());
    report_overridden(spec, &loaded, &options.sets, &mut problems);
    problems.into_result()?;
    Ok(loaded)
}

/// Plans all points of the request's sweep.
///
/// # Errors
/// All mistakes of all points, each reported once.
#[expect(clippy::too_many_lines, reason = "the steps from a file to a planned sweep")]
pub(super) fn plan_points(
    request: &SweepRequest<'_>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<PlannedSweep> {
    let spec = request.spec;
    let pool = host.pool()?;
    let expanded = expand(spec)?;
    if let Some(mistake) = spec.budget.and_then(|budget| overridden_flag(budget, &request.options.sets)) {
        return Err(mistake.into());
    }
    let points = load_points(spec, &expanded.points, &request.options, &pool, host, observer)?;
    let mut points: Vec<(ExpandedPoint, Loaded)> =
        points.into_iter().map(|(point, loaded)| (point.clone(), loaded)).collect();
    let mut problems = PointProblems::new(expanded.points.len());
    for (point, loaded) in &mut points {
        if let Err(error) = pin_hub_commits(&mut loaded.experiment, None, host, observer) {
            problems.add(point, error.into_plain());
        }
    }
    problems.into_result()?;
    let mut problems = PointProblems::new(expanded.points.len());
    let cluster = local_devices(&Host { threads: request.threads, ..host.clone() });
    let cluster = if request.slurm.is_some() { without_memory_limit(cluster) } else { cluster };
    let mut data = PreparedData::default();
    let mut preparable = Vec::new();
    for (point, loaded) in &mut points {
        match data.facts(&loaded.experiment, &pool, host, observer)? {
            Ok(facts) => match complete_point(request, point, loaded, &facts, &cluster, host, observer) {
                Ok(()) => preparable.push((&*point, &*loaded, facts)),
                Err(error) => match error.cause::<ConfigError>() {
                    Some(mistakes) => problems.add_config(point, mistakes.clone()),
                    None => problems.add(point, error.into_plain()),
                },
            },
            Err(error) => problems.add(point, error),
        }
    }
    let objective = choose_objective(spec, preparable.iter().map(|(.., facts)| facts));
    let plan = |(point, loaded, facts): &(&ExpandedPoint, &Loaded, DataFacts)| {
        plan_point(spec, &objective, point, &loaded.experiment, facts, &cluster)
    };
    let plans: Vec<_> = pool.install(|| preparable.par_iter().map(plan).collect());
    let mut points_of_record: Vec<PlannedPoint> = Vec::new();
    let (mut trajectories, mut bases, mut warnings) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut first_of_plan: BTreeMap<String, usize> = BTreeMap::new();
    for ((point, ..), plan) in preparable.iter().zip(plans) {
        match plan {
            Ok(plan) => {
                let CompiledPoint { mut planned, basis, trajectory, warnings: own_warnings } = plan;
                warnings.extend(own_warnings);
                bases.push((format!("point {}", planned.index), basis));
                let first = *first_of_plan.entry(planned.plan_hash.clone()).or_insert(point.index);
                planned.same_as = (first != point.index).then_some(first);
                if planned.same_as.is_none() {
                    trajectories.push((planned.index, trajectory));
                }
                points_of_record.push(planned);
            }
            Err(mistakes) => mistakes.into_iter().for_each(|mistake| problems.add(point, mistake)),
        }
    }
    problems.into_result()?;
    let sources = hash_sources(points.iter().map(|(_, loaded)| loaded))?;
    for warning in &warnings {
        observer.observe(&RunEvent::Warning(warning));
    }
    check_same_rungs(&points_of_record, spec.early_stop)?;
    if objective.metric == Measure::TOKENS_PER_SECOND && request.parallel > 1 {
        let text = "tokens_per_second of points that train at the same time is not comparable with that of points \
            that train alone, because they share this machine; use `parallel: 1`";
        observer.observe(&RunEvent::Warning(text));
    }
    check_comparable(&bases, &objective, spec.early_stop.is_some(), observer)?;
    if points_of_record.len() > 1 && points_of_record.iter().skip(1).all(|point| point.same_as == Some(1)) {
        let text = "all points are the same run: what varies changes no number of the training";
        return Err(CommandError::request(text.to_owned()));
    }
    // A job of Slurm would have to wait for a different job, early stopping compares runs step by step, a speed is that of all steps, and a test
    // is of the best checkpoint among those that a run has saved.
    let has_test = points.iter().any(|(_, loaded)| loaded.experiment.eval.test.is_some());
    let shares = !has_test && spec.early_stop.is_none() && request.slurm.is_none();
    if shares && objective.metric != Measure::TOKENS_PER_SECOND {
        let mut distinct: Vec<&mut PlannedPoint> =
            points_of_record.iter_mut().filter(|point| point.same_as.is_none()).collect();
        for (point, trunk) in distinct.iter_mut().zip(find_trunks(&trajectories)) {
            point.trunk = trunk;
        }
    }
    let is_seed = |name: &&str| name.split('.').next() == Some("seed");
    let variables = points.iter().flat_map(|(_, loaded)| loaded.env_read.iter().cloned());
    let mut record = SweepRecord {
        format: FORMAT,
        id: sweep_id(spec, &objective, &points_of_record),
        name: spec.name.clone(),
        created: time::now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        file: absolute_path(&spec.path),
        sources,
        overrides: request.options.sets.clone(),
        environment: variables.chain(host.recorded_environment.clone()).collect(),
        objective,
        early_stop: spec.early_stop,
        budget: spec.budget,
        is_ladder: spec.is_ladder,
        workers: request.parallel,
        excluded: expanded.excluded.len(),
        seeds: spec.names().into_iter().filter(is_seed).map(str::to_owned).collect(),
        drawn: spec.drawn_names().map(str::to_owned).collect(),
        seen: Vec::new(),
        points: points_of_record,
    };
    record.seen = find_seen_seeds(&host.runs, &record);
    let progress = SweepProgress::read(&host.runs, &record);
    drop_passed_trunks(&mut record, &progress);
    let trained = progress.points.iter().flatten().count();
    if record.objective.metric == Measure::TOKENS_PER_SECOND && trained > 0 {
        let runs = if trained == 1 { "1 point has a run" } else { &format!("{trained} points have runs") };
        let text = format!(
            "{runs} of earlier commands, whose speed is that of their threads and of the machine's load at that time; remove them with \
             `runner runs rm` to measure them again"
        );
        observer.observe(&RunEvent::Warning(&text));
    }
    let experiments = points.iter().map(|(_, loaded)| runner_config::to_yaml(&loaded.experiment)).collect();
    let is_private = points.iter().any(|(_, loaded)| has_private_text(loaded));
    Ok(PlannedSweep { record, experiments, is_private })
}

/// Removes the trunks that can serve no point, because their runs have trained further.
fn drop_passed_trunks(record: &mut SweepRecord, progress: &SweepProgress) {
    let saved: BTreeMap<usize, u64> = (record.points.iter().zip(&progress.points))
        .filter_map(|(point, run)| Some((point.index, run.as_ref()?.checkpoint()?)))
        .collect();
    for point in &mut record.points {
        point.trunk = point.trunk.filter(|trunk| saved.get(&trunk.point).is_none_or(|saved| *saved <= trunk.steps));
    }
}

/// Gives a point the values of the rules that need its plan, each with the rules before it, the micro-batch that fits, and the steps that
/// `budget` pays for.
fn complete_point(
    request: &SweepRequest<'_>,
    point: &mut ExpandedPoint,
    loaded: &mut Loaded,
    facts: &DataFacts,
    cluster: &ClusterFacts,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<()> {
    let settle = |loaded: &mut Loaded| {
        // The file of the point names the micro-batch.
        settle_micro_batch(loaded, facts, cluster)?;
        match request.spec.budget {
            Some(budget) => Ok::<_, CommandError>(apply_budget(&mut loaded.experiment, budget, facts, cluster)?),
            None => Ok(()),
        }
    };
    settle(loaded)?;
    for rule in request.spec.rules.iter().filter(|rule| rule.needs_plan) {
        let figures = plan_figures(&loaded.experiment, facts, cluster)?;
        let value = rule.value(request.spec, point, Some(figures))?;
        point.values.push((rule.key.clone(), value));
        let file = ExperimentFile::read(&request.spec.base)?;
        let reloaded = {
            let fetch = model_fetcher(host, observer);
            let base = LoadOptions { fetch_model: Some(&fetch), ..request.options.clone() };
            file.load(&load_options(request.spec, point, &base))
        };
        *loaded = reloaded.map_err(|error| request.spec.locate_mistakes(error))?;
        pin_hub_commits(&mut loaded.experiment, None, host, observer)?;
        settle(loaded)?;
    }
    Ok(())
}

/// `<name>-<8 digits>`; the digits are a hash of what the sweep is.
fn sweep_id(spec: &SweepSpec, objective: &Objective, points: &[PlannedPoint]) -> String {
    #[derive(Serialize)]
    struct Judged<'a> {
        metric: &'a Measure,
        goal: Goal,
        at: MeasurementChoice,
        #[serde(skip_serializing_if = "Option::is_none")]
        smallest_difference: Option<f64>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        counts_layers: bool,
    }
    let runs: Vec<(&str, &str)> = points.iter().map(|p| (p.name.as_str(), p.plan_hash.as_str())).collect();
    let Objective { metric, at, smallest_difference } = objective;
    let (goal, smallest_difference) = (objective.goal(), *smallest_difference);
    let judged = Judged { metric, goal, at: *at, smallest_difference, counts_layers: spec.counts_layers };
    let early_stop = spec.early_stop.map(|AshaSettings { unit, first, reduction }| {
        let first = if unit == MilestoneUnit::Flops { json!(first) } else { json!(first as u64) };
        json!({(unit.key()): first, "reduction": reduction})
    });
    let hash = blake3::hash(&json_bytes(&(runs, judged, early_stop))).to_hex();
    format!("{}-{}", spec.name, &hash[..8])
}

/// The data of points by the settings that it depends on, and why data could not be prepared.
#[derive(Default)]
struct PreparedData {
    prepared: BTreeMap<Vec<u8>, Result<(DataFacts, ModelTokenizer), PlainError>>,
}

impl PreparedData {
    /// The facts about the data of `experiment`, or its mistake.
    ///
    /// # Errors
    /// If the machine fails, such as a full disk.
    fn facts(
        &mut self,
        experiment: &Experiment,
        pool: &ThreadPool,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<Result<DataFacts, PlainError>> {
        // Preparation does not depend on the seed.
        let (model, eval) = (&experiment.model, &experiment.eval);
        let tasks: Vec<_> = eval.tasks().collect();
        let key = json_bytes(&(&experiment.data, tasks, &eval.test, model.vocab_size, &model.init));
        let prepared = match self.prepared.entry(key) {
            Entry::Occupied(prepared) => prepared.into_mut(),
            Entry::Vacant(missing) => {
                // The data does not depend on prompts.
                let mut without_prompts = experiment.clone();
                without_prompts.eval.samples = None;
                missing.insert(match prepare_inputs(&without_prompts, pool, host, observer) {
                    Ok(prepared) => Ok((prepared.facts, prepared.tokenizer)),
                    Err(error) if error.kind() != ErrorKind::Failure => Err(error.into_plain()),
                    Err(error) => return Err(error),
                })
            }
        };
        Ok(prepared.as_ref().map_err(Clone::clone).and_then(|(facts, tokenizer)| {
            check_prompts(experiment, tokenizer).map_err(CommandError::into_plain)?;
            Ok(facts.clone())
        }))
    }
}

/// A point that was planned.
struct CompiledPoint {
    planned: PlannedPoint,
    basis: MeasurementBasis,
    trajectory: Trajectory,
    warnings: Vec<String>,
}

/// Plans one point.
///
/// # Errors
/// The mistakes of the point.
fn plan_point(
    spec: &SweepSpec,
    objective: &Objective,
    point: &ExpandedPoint,
    experiment: &Experiment,
    facts: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<CompiledPoint, Vec<PlainError>> {
    let plan = runner_plan::compile(experiment, facts, cluster)
        .map_err(|error| vec![CommandError::from(error).into_plain()])?;
    if let Some(shortage) = &plan.shortage {
        return Err(vec![PlainError::request(shortage.clone())]);
    }
    let metric = &objective.metric;
    let mut mistakes = Vec::new();
    mistakes.extend(plan.ranks.first().and_then(|rank| explain_unmeasured(metric, &rank.program.eval)));
    let knows_bytes = plan.data.validation.as_ref().is_none_or(|split| split.text.is_some());
    if *metric == Measure::BITS_PER_BYTE && mistakes.is_empty() && !knows_bytes {
        let why = if spec.names_metric { "" } else { ", by which points with different tokenizers are compared," };
        mistakes.push(format!(
            "{}{why} is unknown, because the tokens of the validation data do not determine the \
             bytes of its text; use text and a tokenizer of bytes, characters or byte-level BPE, or a different \
             objective.metric",
            metric.key()
        ));
    }
    let steps = plan.totals.steps;
    // A metric that is not measured, which is a mistake above, would be by default when the loss is.
    let every = plan.ranks.first().and_then(|rank| measurement_interval(metric, &rank.program));
    let every = every.unwrap_or(experiment.eval.every);
    let run = RunLength { steps, pace: &plan.totals.pace, every };
    let judged_after = spec.early_stop.map_or_else(|| vec![steps], |asha| rungs(&asha, run));
    mistakes.extend(spec.early_stop.and_then(|asha| explain_unjudged(&asha, &judged_after, run)));
    if !mistakes.is_empty() {
        return Err(mistakes.into_iter().map(PlainError::request).collect());
    }
    let needs = JobNeeds::of_plan(&plan);
    let (basis, trajectory) = (MeasurementBasis::of_plan(&plan), Trajectory::of(&plan));
    let planned = PlannedPoint {
        index: point.index,
        values: point.values.clone(),
        name: experiment.name.clone(),
        same_as: None,
        trunk: None,
        steps,
        rungs: judged_after,
        parameters: plan.totals.parameters,
        epochs: plan.totals.epochs,
        layers: spec.counts_layers.then(|| ModelSize::of_layers(&plan)).flatten(),
        memory_bytes: needs.memory_bytes,
        rank_memory_bytes: needs.rank_memory_bytes,
        step_seconds: plan.forecast.as_ref().map(|f| f.run_seconds / steps.max(1) as f64),
        pace: plan.totals.pace.clone(),
        is_prediction_disturbed: plan.forecast.as_ref().is_some_and(|f| f.basis == ForecastBasis::Disturbed),
        ranks: plan.ranks.len(),
        cuda_devices: needs.cuda_devices,
        plan_hash: plan.hash,
    };
    Ok(CompiledPoint { planned, basis, trajectory, warnings: plan.warnings })
}
