//! From a sweep file to points that are fixed: each one rendered, checked, its data prepared, planned.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;

use super::changed::hash;
use super::find::absolute;
use crate::cli::common;
use crate::cli::common::{TemplateArgs, ThreadArgs, host_without_runs};
use crate::cli::exit::RequestError;
use crate::cli::screen_observer::PreparationObserver;
use runner_config::{LoadOptions, Loaded};
use runner_data::TextTokenizer;
use runner_engine::error::error_text;
use runner_engine::prepare::{Host, check_prompts, local_devices, pin_hub_commits, prepare_inputs};
use runner_lab::sweep::frozen::{FORMAT, PlannedPoint, SourceHash, SweepRecord};
use runner_lab::sweep::problems::PointProblems;
use runner_lab::sweep::{AshaSettings, ExpandedPoint, ObjectiveMetric, SweepBase, SweepSpec, expand, options, rungs};
use runner_report::Screen;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::Experiment;
use runner_spec::plan::Plan;
use runner_spec::program::{Device, EvalSpec};
use runner_store::time;

/// A sweep that can start.
#[derive(Debug)]
pub(super) struct Ready {
    pub frozen: SweepRecord,
    /// The resolved experiment of each point.
    pub experiments: Vec<String>,
}

/// What a sweep is prepared with besides its file.
#[derive(Debug)]
pub(super) struct With<'a> {
    /// `--set` flags.
    pub set: &'a [String],
    /// Threads of each point, and of this process.
    pub threads: usize,
    pub own: ThreadArgs,
    pub parallel: usize,
}

/// A mistake that makes the request wrong, in words for a person.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Wrong(String);

/// Makes, checks and plans all points of `spec`.
///
/// # Errors
/// All mistakes of all points, each said once.
pub(super) fn prepare(spec: &SweepSpec, with: &With<'_>, screen: &mut Screen) -> anyhow::Result<Ready> {
    let expanded = expand(spec)?;
    let mut base = LoadOptions {
        sets: with.set.to_vec(),
        env: common::experiment_environment(),
        ..TemplateArgs::default().over(LoadOptions::default())?
    };
    if matches!(spec.base, SweepBase::Template(_)) {
        // A variable that varies and is not used is a mistake.
        base.named_vars = spec.names().into_iter().map(str::to_owned).collect();
    }
    let (pool, host) = (with.own.pool()?, host_without_runs(with.own)?);
    let load = |point: &ExpandedPoint| runner_config::load(spec.base.path(), &options(spec, point, &base));
    let loaded: Vec<Result<Loaded, ConfigError>> = pool.install(|| expanded.points.par_iter().map(load).collect());
    let mut problems = PointProblems::default();
    let color = console::colors_enabled_stderr();
    let mut good: Vec<(&ExpandedPoint, Loaded)> = Vec::new();
    for (point, loaded) in expanded.points.iter().zip(loaded) {
        match loaded {
            Ok(loaded) => good.push((point, loaded)),
            Err(error) => problems.add_config(point.index, &error, color),
        }
    }
    for (point, loaded) in &mut good {
        if let Err(error) = pin_hub_commits(&mut loaded.experiment, &host, &mut PreparationObserver::new(screen)) {
            problems.add(point.index, &error_text(&error));
        }
    }
    if !problems.is_empty() {
        let values = |index: usize| expanded.points.iter().find(|p| p.index == index);
        let words =
            |index: usize| values(index).map_or_else(String::new, |p| runner_lab::sweep::frozen::words(&p.values));
        return Err(Mistakes(problems.render(expanded.points.len(), words)).into());
    }
    let cluster = local_devices(&Host { threads: with.threads, ..host.clone() });
    let mut data = Cache::default();
    let mut facts = Vec::new();
    for (point, loaded) in &good {
        match data.facts(&loaded.experiment, &pool, &host, screen) {
            Ok(found) => facts.push(Some(found)),
            Err(error) => {
                problems.add(point.index, &error.0);
                facts.push(None);
            }
        }
    }
    let plan = |((_, loaded), facts): (&(&ExpandedPoint, Loaded), &Option<DataFacts>)| {
        facts.as_ref().map(|facts| plan_point(&loaded.experiment, facts, &cluster))
    };
    let plans: Vec<Option<_>> = pool.install(|| good.par_iter().zip(&facts).map(plan).collect());
    let mut points = Vec::new();
    let mut first: BTreeMap<String, usize> = BTreeMap::new();
    for ((point, loaded), plan) in good.iter().zip(plans) {
        let Some(plan) = plan else { continue };
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                problems.add(point.index, &error.0);
                continue;
            }
        };
        match freeze(spec, point, &loaded.experiment, &plan) {
            Ok(mut frozen) => {
                let earlier = *first.entry(frozen.plan_hash.clone()).or_insert(point.index);
                frozen.same_as = (earlier != point.index).then_some(earlier);
                points.push(frozen);
            }
            Err(mistakes) => mistakes.iter().for_each(|m| problems.add(point.index, m)),
        }
    }
    if !problems.is_empty() {
        let values = |index: usize| expanded.points.iter().find(|p| p.index == index);
        let words =
            |index: usize| values(index).map_or_else(String::new, |p| runner_lab::sweep::frozen::words(&p.values));
        return Err(Mistakes(problems.render(expanded.points.len(), words)).into());
    }
    let sources = sources(good.iter().map(|(_, loaded)| loaded))?;
    same_rungs(&points)?;
    let environment =
        good.iter().flat_map(|(_, loaded)| loaded.env_read.iter().cloned()).chain(common::own_environment()).collect();
    let frozen = SweepRecord {
        format: FORMAT,
        id: id(spec, &points)?,
        name: spec.name.clone(),
        created: time::now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        file: absolute(&spec.path),
        sources,
        overrides: with.set.to_vec(),
        environment,
        objective: spec.objective,
        early_stop: spec.early_stop,
        workers: with.parallel,
        excluded: expanded.excluded.len(),
        points,
    };
    let experiments = good.iter().map(|(_, loaded)| runner_config::to_yaml(&loaded.experiment)).collect();
    Ok(Ready { frozen, experiments })
}

/// All that is wrong with a sweep's points, as it is shown.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::cli) struct Mistakes(String);

/// The files that the points were made of, as each point read them.
///
/// # Errors
/// If a file was not the same for all points.
fn sources<'a>(loaded: impl Iterator<Item = &'a Loaded>) -> Result<Vec<SourceHash>, RequestError> {
    let mut files: BTreeMap<&Path, &str> = BTreeMap::new();
    for loaded in loaded {
        let own = loaded.template.is_none().then_some((loaded.path.as_path(), loaded.text.as_str()));
        let read = loaded.template.iter().flat_map(|t| &t.files).map(|f| (f.path.as_path(), f.text.as_str()));
        for (path, text) in read.chain(own) {
            if *files.entry(path).or_insert(text) != text {
                let message = format!("{} changed while it was read: run the same command again", path.display());
                return Err(RequestError(message));
            }
        }
    }
    let file = |(path, text): (&Path, &str)| SourceHash {
        path: absolute(path),
        blake3: hash(text.strip_prefix('\u{FEFF}').unwrap_or(text).as_bytes()),
    };
    let mut out: Vec<SourceHash> = files.into_iter().map(file).collect();
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out.dedup();
    Ok(out)
}

/// What early stopping compares must be results after the same steps.
///
/// # Errors
/// If two points are judged after different ones before their end.
fn same_rungs(points: &[PlannedPoint]) -> Result<(), RequestError> {
    let below = |p: &PlannedPoint| p.rungs.split_last().map_or(Vec::new(), |(_, below)| below.to_vec());
    let Some(first) = points.first() else { return Ok(()) };
    let Some(other) = points.iter().find(|p| below(p) != below(first)) else { return Ok(()) };
    let words = |p: &PlannedPoint| {
        let steps: Vec<String> = below(p).iter().map(u64::to_string).collect();
        format!("point {} ({}) after {} of {} steps", p.index, p.words(), steps.join(", "), p.steps)
    };
    Err(RequestError(format!(
        "early_stop compares points after the same numbers of steps, but {} is judged and {}: leave train.steps and \
         eval.every the same for all points, or early_stop out",
        words(first),
        words(other)
    )))
}

/// `<name>-<8 digits>` over what the sweep is.
fn id(spec: &SweepSpec, points: &[PlannedPoint]) -> anyhow::Result<String> {
    let runs: Vec<(&str, &str)> = points.iter().map(|p| (p.name.as_str(), p.plan_hash.as_str())).collect();
    let text = serde_json::to_string(&(runs, spec.objective, spec.early_stop))?;
    let hash = blake3::hash(text.as_bytes()).to_hex();
    Ok(format!("{}-{}", spec.name, &hash[..8]))
}

/// Data that was prepared, by what it was made of; mistakes, too, which are not made twice.
#[derive(Default)]
struct Cache {
    all: BTreeMap<String, Result<(DataFacts, TextTokenizer), String>>,
}

impl Cache {
    fn facts(
        &mut self,
        experiment: &Experiment,
        pool: &rayon::ThreadPool,
        host: &Host,
        screen: &mut Screen,
    ) -> Result<DataFacts, Wrong> {
        // Preparing does not depend on the seed.
        let model = &experiment.model;
        let eval = &experiment.eval;
        let key = (&experiment.data, &eval.hellaswag, &eval.test, model.vocab_size, &model.init);
        let key = serde_json::to_string(&key).map_err(|e| Wrong(e.to_string()))?;
        if !self.all.contains_key(&key) {
            // Prompts are no part of the data.
            let mut bare = experiment.clone();
            bare.eval.samples = None;
            let prepared = prepare_inputs(&bare, pool, host, &mut PreparationObserver::new(screen));
            let prepared = prepared.map(|p| (p.facts, p.tokenizer)).map_err(|error| error_text(&error));
            self.all.insert(key.clone(), prepared);
        }
        let (facts, tokenizer) = match self.all.get(&key) {
            Some(Ok(known)) => known,
            Some(Err(error)) => return Err(Wrong(error.clone())),
            None => return Err(Wrong("the data was not prepared".to_owned())),
        };
        check_prompts(experiment, tokenizer).map_err(|error| Wrong(error_text(&error)))?;
        Ok(facts.clone())
    }
}

fn plan_point(experiment: &Experiment, facts: &DataFacts, cluster: &ClusterFacts) -> Result<Plan, Wrong> {
    let plan = runner_plan::compile(experiment, facts, cluster).map_err(|error| Wrong(error.to_string()))?;
    match plan.shortage {
        Some(shortage) => Err(Wrong(shortage)),
        None => Ok(plan),
    }
}

/// What is kept of a point's plan.
fn freeze(
    spec: &SweepSpec,
    point: &ExpandedPoint,
    experiment: &Experiment,
    plan: &Plan,
) -> Result<PlannedPoint, Vec<String>> {
    let program = plan.ranks.first().map(|rank| &rank.program);
    let mut mistakes = Vec::new();
    if let Some(program) = program {
        mistakes.extend(unmeasured(spec.objective.metric, &program.eval));
    }
    let steps = plan.totals.steps;
    // Losses and speeds of steps are there after each.
    let every = if is_evaluated(spec.objective.metric) { experiment.eval.every } else { 1 };
    let judged = match &spec.early_stop {
        Some(asha) => {
            let judged = rungs(asha, steps, every);
            mistakes.extend(unjudged(asha, &judged, steps, every));
            judged
        }
        None => vec![steps],
    };
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let host = |rank: &&runner_spec::plan::RankPlan| matches!(rank.device, Device::Cpu);
    let cuda = plan.ranks.iter().filter_map(|rank| match rank.device {
        Device::Cuda(index) => Some(index + 1),
        Device::Cpu => None,
    });
    Ok(PlannedPoint {
        index: point.index,
        values: point.values.clone(),
        name: experiment.name.clone(),
        plan_hash: plan.hash.clone(),
        same_as: None,
        steps,
        rungs: judged,
        tokens_per_step: plan.totals.tokens_per_step,
        parameters: plan.totals.parameters,
        memory_bytes: plan.ranks.iter().filter(host).map(|r| r.memory.total()).fold(0, u64::saturating_add),
        flops_per_step: plan.totals.flops_per_step,
        step_seconds: plan.forecast.as_ref().map(|f| f.step_seconds),
        ranks: plan.ranks.len(),
        cuda_devices: cuda.max().unwrap_or(0),
    })
}

/// Whether a metric comes from evaluations.
fn is_evaluated(metric: ObjectiveMetric) -> bool {
    !matches!(metric, ObjectiveMetric::TrainLoss | ObjectiveMetric::TokensPerSecond)
}

/// Why the objective would never be measured.
fn unmeasured(metric: ObjectiveMetric, eval: &EvalSpec) -> Option<String> {
    let (there, what) = match metric {
        ObjectiveMetric::ValLoss | ObjectiveMetric::ValPerplexity => {
            (eval.loss.is_some(), "data.validation and eval.loss")
        }
        ObjectiveMetric::HellaswagAcc | ObjectiveMetric::HellaswagAccNorm => {
            (eval.choice_items.is_some(), "eval.hellaswag")
        }
        ObjectiveMetric::TrainLoss | ObjectiveMetric::TokensPerSecond => (true, ""),
    };
    (!there).then(|| format!("objective.metric is {metric}, which the experiment does not measure: it needs {what}"))
}

/// Why early stopping would never judge the point.
fn unjudged(asha: &AshaSettings, judged: &[u64], steps: u64, every: u64) -> Option<String> {
    (judged.len() < 2).then(|| {
        format!(
            "early_stop.asha.min_steps is {}, but the run has {steps} steps and evaluates every {every}, so that it is \
             never judged before its end: take fewer min_steps, a smaller eval.every, or no early_stop",
            asha.min_steps
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::experiment::EvalLoss;

    #[test]
    fn an_objective_must_be_measured() {
        let none = EvalSpec { loss: None, choice_items: None, samples: None };
        let loss = EvalSpec { loss: Some(EvalLoss { batches: 1 }), ..none.clone() };
        assert!(unmeasured(ObjectiveMetric::ValLoss, &none).unwrap().contains("data.validation"));
        assert!(unmeasured(ObjectiveMetric::ValPerplexity, &loss).is_none());
        assert!(unmeasured(ObjectiveMetric::HellaswagAcc, &loss).unwrap().contains("eval.hellaswag"));
        assert!(unmeasured(ObjectiveMetric::TrainLoss, &none).is_none());
    }

    #[test]
    fn a_file_is_the_same_for_all_points() {
        let dir = tempfile::tempdir().unwrap();
        let (template, part) = (dir.path().join("a.yaml.j2"), dir.path().join("part.yaml"));
        let text = "model: {preset: gpt2-micro}\ndata: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}}\n";
        std::fs::write(&template, "{% include 'part.yaml' %}\n").unwrap();
        let load = |more: &str| {
            std::fs::write(&part, format!("{text}{more}")).unwrap();
            runner_config::load(&template, &LoadOptions::default()).unwrap()
        };
        let (one, same, other) = (load(""), load(""), load("\n# other\n"));
        let found = sources([&one, &same].into_iter()).unwrap();
        assert_eq!(found.len(), 2);
        load("");
        assert!(super::super::changed::sources(&found).is_empty(), "as it is on disk");
        let error = sources([&one, &other].into_iter()).unwrap_err().to_string();
        assert!(error.contains("part.yaml changed while"), "{error}");
    }

    #[test]
    fn early_stopping_compares_after_the_same_steps() {
        let mut points = runner_lab::testing::sweep().points;
        points[1].rungs = vec![10, 20, 60];
        assert!(same_rungs(&points).is_ok(), "the end is judged by nobody");
        points[1].rungs = vec![10, 30, 40];
        let error = same_rungs(&points).unwrap_err().to_string();
        for part in ["point 1 (lr=0.001 layers=2) after 10, 20 of 40", "point 2 (lr=0.01 layers=2) after 10, 30 of 40"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn early_stopping_must_judge() {
        let asha = AshaSettings { min_steps: 100, reduction: 3 };
        let text = unjudged(&asha, &rungs(&asha, 120, 80), 120, 80).unwrap();
        assert!(text.contains("120 steps") && text.contains("every 80"), "{text}");
        assert!(unjudged(&asha, &[100, 300], 300, 100).is_none());
    }
}
