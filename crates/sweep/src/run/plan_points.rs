//! Plans the points of a sweep: each one is rendered, checked, its data prepared, and compiled.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use rayon::ThreadPool;
use rayon::prelude::*;

use crate::race::check_same_seeds;
use crate::record::{FORMAT, PlannedPoint, SourceHash, SweepRecord};
use crate::sweep_dir::absolute_path;
use crate::{AshaSettings, Budget, ExpandedPoint, Objective, ObjectiveMetric, SweepSpec, expand, load_options, rungs};
use runner_compare::comparability::{MeasurementBasis, find_incomparable};
use runner_config::{ExperimentFile, LoadOptions, Loaded};
use runner_data::ModelTokenizer;
use runner_files::{read_regular, without_byte_order_mark};
use runner_jobs::JobNeeds;
use runner_plan::search::settle_micro_batch;
use runner_prepare::{
    Host, RunEvent, RunObserver, check_prompts, has_private_text, local_devices, model_fetcher, pin_hub_commits,
    prepare_inputs,
};
use runner_record::time;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::diagnostic::ConfigError;
use runner_spec::error::{CommandError, ErrorKind, PlainError, Result};
use runner_spec::experiment::Experiment;
use runner_spec::forecast::ForecastBasis;
use runner_spec::format::json_bytes;
use runner_spec::program::EvalSpec;

use super::axis_effects::{AxisEffect, find_effects, report_ineffective_axes, report_overridden};
use super::point_length::{apply_budget, overridden_flag, plan_figures};
use super::point_problems::PointProblems;
use super::request::SweepRequest;

/// A sweep that can start.
#[derive(Debug)]
pub(super) struct PlannedSweep {
    pub record: SweepRecord,
    /// The resolved experiment of each point.
    pub experiments: Vec<String>,
    /// True if only their owner may read the experiments.
    pub is_private: bool,
}

/// The experiments of a sweep's points.
pub(super) struct LoadedPoints<'a> {
    pub points: Vec<(&'a ExpandedPoint, Loaded)>,
    /// The names of what varies that change nothing but the seed.
    seeds: Vec<String>,
}

/// Loads the experiments of `points`, which are those of `spec`. A varied name that does not change the run causes a warning.
///
/// # Errors
/// All mistakes of all points, each reported once; among them values that have no effect.
pub(super) fn load_points<'a>(
    spec: &SweepSpec,
    points: &'a [ExpandedPoint],
    options: &LoadOptions<'_>,
    pool: &ThreadPool,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<LoadedPoints<'a>> {
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
    let mut problems = PointProblems::new(points.len());
    let effects = find_effects(spec, &loaded, &load);
    report_ineffective_axes(spec, &loaded, &effects, &mut problems);
    problems.into_result()?;
    drop(base);
    drop(fetch);
    let names_of =
        |effect: AxisEffect| effects.iter().filter(move |(_, found)| *found == effect).map(|(names, _)| names);
    for names in names_of(AxisEffect::Record) {
        let names = names.join(", ");
        let text = format!(
            "{names} does not change the numbers of a run, so points that differ in nothing else are \
            the same run"
        );
        observer.observe(&RunEvent::Warning(&text));
    }
    let mut seeds: Vec<String> = names_of(AxisEffect::Seed).flatten().map(|name| (*name).to_owned()).collect();
    // A list of one seed varies nothing.
    seeds.extend(spec.seeds_axis().filter(|name| !seeds.iter().any(|seed| seed == name)).map(str::to_owned));
    Ok(LoadedPoints { points: loaded, seeds })
}

/// Plans all points of the request's sweep.
///
/// # Errors
/// All mistakes of all points, each reported once.
pub(super) fn plan_points(
    request: &SweepRequest<'_>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<PlannedSweep> {
    let spec = request.spec;
    let pool = host.pool()?;
    let expanded = expand(spec)?;
    let budget = spec.budget.map(|budget| Budget { price: request.price, ..budget });
    if let Some(mistake) = budget.and_then(|budget| overridden_flag(budget, &request.options.sets)) {
        return Err(mistake.into());
    }
    let LoadedPoints { points, seeds } = load_points(spec, &expanded.points, &request.options, &pool, host, observer)?;
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
    let mut data = PreparedData::default();
    let mut preparable = Vec::new();
    for (point, loaded) in &mut points {
        match data.facts(&loaded.experiment, &pool, host, observer)? {
            Ok(facts) => match complete_point(request, budget, point, loaded, &facts, &cluster, host, observer) {
                Ok(()) => {
                    // The file of the point names the micro-batch. What cannot be planned is reported below.
                    if let Ok((settled, Some(_))) = settle_micro_batch(&loaded.experiment, &facts, &cluster) {
                        loaded.experiment = settled.into_owned();
                    }
                    preparable.push((&*point, &*loaded, facts));
                }
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
        plan_point(spec, objective, point, &loaded.experiment, facts, &cluster)
    };
    let plans: Vec<_> = pool.install(|| preparable.par_iter().map(plan).collect());
    let mut planned: Vec<PlannedPoint> = Vec::new();
    let mut bases: Vec<(String, MeasurementBasis)> = Vec::new();
    let mut warnings: Vec<String> = Vec::new();
    let mut first_of_plan: BTreeMap<String, usize> = BTreeMap::new();
    for ((point, ..), plan) in preparable.iter().zip(plans) {
        match plan {
            Ok((mut plan, basis, own_warnings)) => {
                warnings.extend(own_warnings);
                bases.push((format!("point {}", plan.index), basis));
                let first = *first_of_plan.entry(plan.plan_hash.clone()).or_insert(point.index);
                plan.same_as = (first != point.index).then_some(first);
                planned.push(plan);
            }
            Err(mistakes) => mistakes.into_iter().for_each(|mistake| problems.add(point, mistake)),
        }
    }
    problems.into_result()?;
    let sources = hash_sources(points.iter().map(|(_, loaded)| loaded))?;
    warnings.sort();
    warnings.dedup();
    for warning in &warnings {
        observer.observe(&RunEvent::Warning(warning));
    }
    check_same_rungs(&planned)?;
    if objective.metric == ObjectiveMetric::TokensPerSecond && request.parallel > 1 {
        let text = "tokens_per_second of points that train at the same time is not comparable with that of points \
            that train alone, because they share this machine; use `parallel: 1`";
        observer.observe(&RunEvent::Warning(text));
    }
    check_comparable(&bases, objective, spec.early_stop.is_some() || spec.race.is_some(), observer)?;
    let variables = points.iter().flat_map(|(_, loaded)| loaded.env_read.iter().cloned());
    let own_variables = host.recorded_environment.iter().map(|(name, value)| (name.clone(), value.clone()));
    let record = SweepRecord {
        format: FORMAT,
        id: sweep_id(spec, objective, &planned),
        name: spec.name.clone(),
        created: time::now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        file: absolute_path(&spec.path),
        sources,
        overrides: request.options.sets.clone(),
        environment: variables.chain(own_variables).collect(),
        objective,
        early_stop: spec.early_stop,
        race: spec.race,
        judges_settings: spec.early_stop.is_some() && spec.seeds_axis().is_some(),
        budget,
        is_ladder: spec.is_ladder,
        workers: request.parallel,
        excluded: expanded.excluded.len(),
        seeds: Some(seeds),
        points: planned,
    };
    if record.race.is_some() {
        check_same_seeds(&record).map_err(CommandError::from)?;
    }
    let experiments = points.iter().map(|(_, loaded)| runner_config::to_yaml(&loaded.experiment)).collect();
    let is_private = points.iter().any(|(_, loaded)| has_private_text(loaded));
    Ok(PlannedSweep { record, experiments, is_private })
}

/// Gives a point the values of the rules that need its plan, each with the rules before it, and the steps that `budget` pays for.
#[expect(clippy::too_many_arguments, reason = "a point is completed once")]
fn complete_point(
    request: &SweepRequest<'_>,
    budget: Option<Budget>,
    point: &mut ExpandedPoint,
    loaded: &mut Loaded,
    facts: &DataFacts,
    cluster: &ClusterFacts,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<()> {
    let apply = |experiment: &mut Experiment| match budget {
        Some(budget) => apply_budget(experiment, budget, facts, cluster),
        None => Ok(()),
    };
    apply(&mut loaded.experiment)?;
    for rule in request.spec.rules.iter().filter(|rule| rule.needs_plan) {
        let figures = plan_figures(&loaded.experiment, facts, cluster)?;
        let value = rule.value(request.spec, point, Some(figures))?;
        point.values.push((rule.key.clone(), value));
        let fetch = model_fetcher(host, observer);
        let base = LoadOptions { fetch_model: Some(&fetch), ..request.options.clone() };
        let file = ExperimentFile::read(&request.spec.base)?;
        let reloaded = file.load(&load_options(request.spec, point, &base));
        *loaded = reloaded.map_err(|error| request.spec.locate_mistakes(error))?;
        drop(base);
        drop(fetch);
        pin_hub_commits(&mut loaded.experiment, None, host, observer)?;
        apply(&mut loaded.experiment)?;
    }
    Ok(())
}

/// The content hash of a source, without a byte order mark.
fn hash_source(content: &[u8]) -> String {
    blake3::hash(without_byte_order_mark(content)).to_hex().to_string()
}

/// True if the file exists and has the recorded content.
pub(super) fn is_unchanged(source: &SourceHash) -> bool {
    read_regular(&source.path).is_ok_and(|content| hash_source(&content) == source.blake3)
}

/// The content hashes of the files that the points were made from.
///
/// # Errors
/// If a file was not the same for all points.
fn hash_sources<'a>(loaded: impl Iterator<Item = &'a Loaded>) -> Result<Vec<SourceHash>> {
    let mut files: BTreeMap<&Path, &str> = BTreeMap::new();
    for loaded in loaded {
        let own = loaded.template.is_none().then_some((loaded.path.as_path(), loaded.text.as_str()));
        let read = loaded.template.iter().flat_map(|t| &t.files).map(|f| (f.path.as_path(), f.text.as_str()));
        for (path, text) in read.chain(own) {
            if *files.entry(path).or_insert(text) != text {
                let message = format!("{} changed while it was being read; run the same command again", path.display());
                return Err(CommandError::request(message));
            }
        }
    }
    let hash =
        |(path, text): (&Path, &str)| SourceHash { path: absolute_path(path), blake3: hash_source(text.as_bytes()) };
    let mut sources: Vec<SourceHash> = files.into_iter().map(hash).collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources.dedup();
    Ok(sources)
}

/// Early stopping compares results after the same steps only.
///
/// # Errors
/// If two points are judged after different steps before their end.
fn check_same_rungs(points: &[PlannedPoint]) -> Result<()> {
    let below = |p: &PlannedPoint| p.rungs.split_last().map_or(Vec::new(), |(_, below)| below.to_vec());
    let Some(first) = points.first() else { return Ok(()) };
    let Some(other) = points.iter().find(|p| below(p) != below(first)) else { return Ok(()) };
    let describe = |p: &PlannedPoint| {
        let steps: Vec<String> = below(p).iter().map(u64::to_string).collect();
        format!("{} after {} of {} steps", p.describe(), steps.join(", "), p.steps)
    };
    Err(CommandError::request(format!(
        "early_stop compares points after the same numbers of steps, but {} is judged and {}: use the same \
         train.steps and eval.every for all points, or remove early_stop",
        describe(first),
        describe(other)
    )))
}

/// The objective of the file. If the file names no metric, points with different tokenizers are compared by bits per byte, because
/// losses per token of different tokens do not compare.
fn choose_objective<'a>(spec: &SweepSpec, mut facts: impl Iterator<Item = &'a DataFacts>) -> Objective {
    let first = facts.next().map(|facts| &facts.tokenizer_hash);
    let has_one_tokenizer = facts.all(|facts| Some(&facts.tokenizer_hash) == first);
    let metric =
        if spec.names_metric || has_one_tokenizer { spec.objective.metric } else { ObjectiveMetric::ValBitsPerByte };
    Objective { metric, ..spec.objective }
}

/// Checks that the objectives of the points can be compared. If they cannot, `observer` receives a warning.
///
/// # Errors
/// If early stopping would compare them.
fn check_comparable(
    bases: &[(String, MeasurementBasis)],
    objective: Objective,
    stops_early: bool,
    observer: &mut dyn RunObserver,
) -> Result<()> {
    let Some(quantity) = objective.metric.quantity() else { return Ok(()) };
    let bases = bases.iter().map(|(name, basis)| (name.clone(), basis));
    let Some(reason) = find_incomparable(bases, quantity) else { return Ok(()) };
    let metric = objective.metric.name();
    if stops_early {
        let message = format!("early_stop would compare points whose {metric} is not comparable: {reason}");
        return Err(CommandError::request(message));
    }
    let text = format!("{metric} is not comparable between all points, so none will be the best: {reason}");
    observer.observe(&RunEvent::Warning(&text));
    Ok(())
}

/// `<name>-<8 digits>`; the digits are a hash of what the sweep is.
fn sweep_id(spec: &SweepSpec, objective: Objective, points: &[PlannedPoint]) -> String {
    let runs: Vec<(&str, &str)> = points.iter().map(|p| (p.name.as_str(), p.plan_hash.as_str())).collect();
    let bytes = match spec.race {
        None => json_bytes(&(runs, objective, spec.early_stop)),
        Some(race) => json_bytes(&(runs, objective, race)),
    };
    let hash = blake3::hash(&bytes).to_hex();
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
        let key = json_bytes(&(&experiment.data, &eval.hellaswag, &eval.test, model.vocab_size, &model.init));
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

/// Plans one point.
///
/// # Errors
/// The mistakes of the point.
fn plan_point(
    spec: &SweepSpec,
    objective: Objective,
    point: &ExpandedPoint,
    experiment: &Experiment,
    facts: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<(PlannedPoint, MeasurementBasis, Vec<String>), Vec<PlainError>> {
    let plan = runner_plan::compile(experiment, facts, cluster)
        .map_err(|error| vec![CommandError::from(error).into_plain()])?;
    if let Some(shortage) = &plan.shortage {
        return Err(vec![PlainError::request(shortage.clone())]);
    }
    let metric = objective.metric;
    let mut mistakes = Vec::new();
    mistakes.extend(plan.ranks.first().and_then(|rank| explain_unmeasured(metric, &rank.program.eval)));
    let knows_bytes = plan.data.validation.as_ref().is_none_or(|split| split.text.is_some());
    if metric == ObjectiveMetric::ValBitsPerByte && mistakes.is_empty() && !knows_bytes {
        let why = if spec.names_metric { "" } else { ", by which points with different tokenizers are compared," };
        mistakes.push(format!(
            "val_bits_per_byte{why} is unknown, because the tokens of the validation data do not determine the \
             bytes of its text; use text and a tokenizer of bytes, characters or byte-level BPE, or a different \
             objective.metric"
        ));
    }
    let steps = plan.totals.steps;
    let every = if metric.is_evaluated() { experiment.eval.every } else { 1 };
    let judged_after = spec.early_stop.map_or_else(|| vec![steps], |asha| rungs(&asha, steps, every));
    mistakes.extend(spec.early_stop.and_then(|asha| explain_unjudged(&asha, &judged_after, steps, every)));
    if !mistakes.is_empty() {
        return Err(mistakes.into_iter().map(PlainError::request).collect());
    }
    let needs = JobNeeds::of_plan(&plan);
    let basis = MeasurementBasis::of_plan(&plan);
    let planned = PlannedPoint {
        index: point.index,
        values: point.values.clone(),
        name: experiment.name.clone(),
        same_as: None,
        steps,
        rungs: judged_after,
        tokens_per_step: plan.totals.tokens_per_step,
        parameters: plan.totals.parameters,
        memory_bytes: needs.memory_bytes,
        rank_memory_bytes: Some(needs.rank_memory_bytes),
        flops_per_step: plan.totals.flops_per_step,
        step_seconds: plan.forecast.as_ref().map(|f| f.step_seconds),
        is_prediction_disturbed: plan.forecast.as_ref().is_some_and(|f| f.basis == ForecastBasis::Disturbed),
        ranks: plan.ranks.len(),
        cuda_devices: needs.cuda_devices,
        plan_hash: plan.hash,
    };
    Ok((planned, basis, plan.warnings))
}

/// Why a run never measures the objective, if it does not.
fn explain_unmeasured(metric: ObjectiveMetric, eval: &EvalSpec) -> Option<String> {
    let (is_measured, needed) = match metric {
        ObjectiveMetric::HellaswagAcc | ObjectiveMetric::HellaswagAccNorm | ObjectiveMetric::HellaswagAccNormChars => {
            (eval.choice_items.is_some(), "eval.hellaswag")
        }
        _ => (!metric.is_evaluated() || eval.loss.is_some(), "data.validation and eval.loss"),
    };
    let metric = metric.name();
    (!is_measured)
        .then(|| format!("objective.metric is {metric}, which the experiment does not measure: it needs {needed}"))
}

/// Why early stopping never judges a run before its end, if it does not.
fn explain_unjudged(asha: &AshaSettings, rungs: &[u64], steps: u64, every: u64) -> Option<String> {
    (rungs.len() < 2).then(|| {
        format!(
            "early_stop.asha.min_steps is {}, but the run has {steps} steps and evaluates every {every}, so it is \
             never judged before its end; use a smaller min_steps or eval.every, or remove early_stop",
            asha.min_steps
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use runner_config::LoadOptions;
    use runner_spec::experiment::EvalLoss;

    #[test]
    fn an_objective_must_be_measured() {
        let none = EvalSpec { loss: None, choice_items: None, samples: None, test_rows: None };
        let loss = EvalSpec { loss: Some(EvalLoss::Rows(1)), ..none.clone() };
        let explain = explain_unmeasured;
        assert!(explain(ObjectiveMetric::ValLoss, &none).unwrap().contains("data.validation"));
        assert!(explain(ObjectiveMetric::ValPerplexity, &loss).is_none());
        assert!(explain(ObjectiveMetric::HellaswagAcc, &loss).unwrap().contains("eval.hellaswag"));
        assert!(explain(ObjectiveMetric::TrainLoss, &none).is_none());
    }

    #[test]
    fn a_file_is_the_same_for_all_points() {
        let dir = tempfile::tempdir().unwrap();
        let (template, part) = (dir.path().join("a.yaml.j2"), dir.path().join("part.yaml"));
        let text = "model: {preset: gpt2-micro}\ndata: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}}\n";
        fs::write(&template, "{% include 'part.yaml' %}\n").unwrap();
        let load = |more: &str| {
            fs::write(&part, format!("{text}{more}")).unwrap();
            runner_config::load(&template, &LoadOptions::default()).unwrap()
        };
        let (one, same, other) = (load(""), load(""), load("\n# other\n"));
        let sources = hash_sources([&one, &same].into_iter()).unwrap();
        assert_eq!(sources.len(), 2);
        assert!(!sources.iter().all(is_unchanged), "the part is a different one");
        load("");
        assert!(sources.iter().all(is_unchanged), "as it is on disk");
        fs::remove_file(&part).unwrap();
        assert_eq!(sources.iter().filter(|source| is_unchanged(source)).count(), 1);
        let error = hash_sources([&one, &other].into_iter()).unwrap_err().to_string();
        assert!(error.contains("part.yaml changed while"), "{error}");
    }

    #[test]
    fn early_stopping_compares_after_the_same_steps() {
        let mut points = crate::testing::sweep().points;
        points[1].rungs = vec![10, 20, 60];
        assert!(check_same_rungs(&points).is_ok(), "nothing compares the ends");
        points[1].rungs = vec![10, 30, 40];
        let error = check_same_rungs(&points).unwrap_err().to_string();
        for part in ["point 1 (lr=0.001 layers=2) after 10, 20 of 40", "point 2 (lr=0.01 layers=2) after 10, 30 of 40"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn early_stopping_must_judge() {
        let asha = AshaSettings { min_steps: 100, reduction: 3 };
        let text = explain_unjudged(&asha, &rungs(&asha, 120, 80), 120, 80).unwrap();
        assert!(text.contains("120 steps") && text.contains("every 80"), "{text}");
        assert!(explain_unjudged(&asha, &[100, 300], 300, 100).is_none());
    }
}
