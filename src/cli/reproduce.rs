//! `runner reproduce`: does a recorded run again from its own folder, and says whether the same came out.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;

use super::came::Came;
use super::common::{self, RootArgs, ThreadArgs};
use super::drift::Drift;
use super::exit::{Exit, RequestError};
use super::interrupt::Interrupt;
use super::job::{Call, Job};
use super::opened;
use super::ready::Ready;
use runner_report::verdict::describe_verdict;
use runner_report::{OutputMode, Screen};
use runner_spec::experiment::Experiment;
use runner_spec::experiment::Precision;
use runner_spec::experiment::WeightInit;
use runner_store::manifest::{ContinuedFrom, DataHashes, Manifest, RunOrigin, RunStatus};
use runner_store::run_dir;
use runner_store::run_dir::{CHECKPOINTS, ContinueFrom, RESOLVED, RunDir, RunFiles};
use runner_store::verdict;
use runner_store::verdict::{Judgement, ReproductionVerdict, VERDICT};
use runner_store::{CheckpointChoice, RunLock, StoreError, catalog, checkpoint, time};

#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct ReproduceArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// How far a loss may be off, relatively [default: 1e-4, in bf16 1e-2].
    #[arg(long, value_name = "X", value_parser = tolerance)]
    pub tolerance: Option<f64>,
    /// Only report what has changed; exit code 3 if something did that numbers may depend on.
    #[arg(long)]
    pub check: bool,
    /// Record hashes of what each step computes; where the run has them too, the first tensor that differs is named.
    #[arg(long)]
    pub trace: bool,
    /// Print only errors and the last lines.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() && x >= 0.0 => Ok(x),
        _ => Err("take a number from 0 on, such as 1e-4".to_owned()),
    }
}

/// How far losses of the same experiment drift apart by rounding alone: see `docs/reproduce.md`.
fn default_tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 | Precision::Tf32 => 1e-4,
        Precision::Bf16 => 1e-2,
    }
}

/// The run that is done again.
struct Original {
    path: PathBuf,
    manifest: Manifest,
    /// From its `resolved.yaml`.
    experiment: Experiment,
    text: String,
    /// What it recorded, read before anything is trained: the run may be removed meanwhile.
    known: verdict::OriginalRun,
    /// The last step that it recorded.
    last: u64,
}

/// # Errors
/// If there is no such run, its data or its beginning is gone, or the reproduction failed (which its record then says too).
pub(crate) fn run(args: &ReproduceArgs) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mut screen = Screen::new(OutputMode::detect(args.json, args.quiet));
    let mode = screen.mode();
    let root = args.root.root();
    let original = Original::open(&root, &args.run)?;
    let ready = Ready::new(&original.experiment, args.threads, None, &mut screen)?;
    let drift = Drift::of(&original.path, &original.manifest, &ready, args.threads.count())?;
    for line in drift.lines() {
        if args.check { screen.result_line(&line) } else { screen.line(&line) }
    }
    screen.json_line(&serde_json::json!({"kind": "drift", "run": original.path, "drift": drift}).to_string());
    if args.check {
        return Ok(if drift.counts() { Exit::Differ } else { Exit::Done });
    }
    original.refuse_other_weights(&ready)?;
    ready.refuse_what_cannot_fit()?;
    let began = original.manifest.continued_from.as_ref();
    let from = began.map_or(0, |began| began.step);
    if original.last <= from {
        bail!(RequestError(format!("{} has no steps of its own that could be compared", original.manifest.id)));
    }
    let steps = ready.plan.totals.steps;
    if original.last < steps {
        screen.line(&format!(
            "repeat {} recorded {} of {steps} steps: so many are done again",
            original.manifest.id, original.last
        ));
    }
    let (path, run) = original.open_or_create(&root, &ready, &mut screen)?;
    if let Some(run) = run {
        let call = Call {
            threads: args.threads.count(),
            environment: common::own_environment().into_iter().collect(),
            until: (original.last < steps).then_some(original.last),
            trace: args.trace,
            elsewhere: args.root.runs.is_some(),
            ..Call::default()
        };
        let job =
            Job { call: &call, experiment: &original.experiment, ready: &ready, interrupt: &interrupt, joined: None };
        if job.work(run, screen)? == Came::Interrupted {
            return Ok(Exit::Interrupted);
        }
    } else {
        drop(screen);
    }
    let tolerance = args.tolerance.unwrap_or_else(|| default_tolerance(original.experiment.precision));
    let verdict = verdict::compare(&original.known, &path, tolerance)?;
    let verdict = ReproductionVerdict { drift: drift.changes(), ..verdict };
    original.lock(&path)?.write_json(VERDICT, &verdict)?;
    let screen = Screen::new(mode);
    screen.json_line(&serde_json::json!({"kind": "verdict", "run": path, "verdict": verdict}).to_string());
    screen.result_line(&describe_verdict(&verdict));
    Ok(match verdict.verdict {
        Judgement::Diverged | Judgement::Incomplete => Exit::Differ,
        Judgement::Bitwise | Judgement::BitwiseNumbers | Judgement::WithinTolerance => Exit::Done,
    })
}

impl Original {
    fn open(root: &Path, wanted: &str) -> anyhow::Result<Self> {
        let path = catalog::resolve(root, wanted)?;
        let manifest = run_dir::read_manifest(&path)?;
        let experiment = opened::resolved(&path)?;
        let from = manifest.continued_from.as_ref().map_or(0, |began| began.step);
        let known = verdict::OriginalRun::read(&path, from, manifest.status == RunStatus::Done)?;
        let last = known.last_step().unwrap_or(0);
        let text = runner_config::to_yaml(&experiment);
        Ok(Self { path, manifest, experiment, text, known, last })
    }

    /// The reproduction in `path`, for this process alone.
    fn lock(&self, path: &Path) -> anyhow::Result<RunDir> {
        RunDir::open(path).map_err(|error| match error {
            StoreError::Locked { id, holder } => RequestError(format!(
                "{id}, which does {} again, is being worked on by another process{holder}; wait for it",
                self.manifest.id
            ))
            .into(),
            other => other.into(),
        })
    }

    /// # Errors
    /// If the weights that it started from are others now: what began elsewhere is no reproduction.
    fn refuse_other_weights(&self, ready: &Ready) -> anyhow::Result<()> {
        let (was, is) = (&self.manifest.data.weights, DataHashes::from(&ready.prepared.facts).weights);
        if *was == is {
            return Ok(());
        }
        let short = |hash: &Option<String>| hash.as_ref().map_or("none".to_owned(), |h| h.chars().take(16).collect());
        let place = match &self.experiment.model.init {
            Some(WeightInit::From(path)) => format!(" ({})", path.display()),
            _ => String::new(),
        };
        bail!(RequestError(format!(
            "{} cannot be reproduced: the weights that it started from{place} have changed: {}, was {}",
            self.manifest.id,
            short(&is),
            short(was)
        )))
    }

    fn origin(&self) -> RunOrigin {
        RunOrigin::Reproduction { id: self.manifest.id.clone(), plan_hash: self.manifest.plan_hash.clone() }
    }

    /// The folder of the reproduction, and the run to work on; `None` if only its verdict is missing.
    fn open_or_create(
        &self,
        root: &Path,
        ready: &Ready,
        screen: &mut Screen,
    ) -> anyhow::Result<(PathBuf, Option<RunDir>)> {
        let plan = &ready.plan;
        let _turn = RunLock::take_name(root, &run_dir::base_id(&plan.experiment_name, &plan.hash))?;
        let of_this = |manifest: &Manifest| manifest.origin.as_ref() == Some(&self.origin());
        let unfinished = run_dir::runs_of_plan(root, plan)
            .into_iter()
            .rev()
            .find(|(path, manifest)| of_this(manifest) && !path.join(VERDICT).exists());
        if let Some((path, manifest)) = unfinished {
            screen.line(&format!("repeat {} goes on with {}", self.manifest.id, manifest.id));
            let run = if manifest.status == RunStatus::Done { None } else { Some(self.lock(&path)?) };
            return Ok((path, run));
        }
        let file = self.path.join(RESOLVED);
        let mut manifest = Manifest::new(plan, file, Vec::new(), time::now());
        manifest.origin = Some(self.origin());
        manifest.environment = common::own_environment().into_iter().collect();
        let files = RunFiles { experiment: &self.text, resolved: &self.text, plan, template: None, manifest };
        let run = match &self.manifest.continued_from {
            None => RunDir::create(root, files)?,
            Some(began) => {
                let from = self.beginning(began)?;
                screen.line(&format!("repeat {} from step {} of {}", self.manifest.id, began.step, from.display()));
                let theirs = runner_lab::stored_plan::read(&from)?;
                let from = ContinueFrom { path: &from, plan: &theirs, which: CheckpointChoice::Step(began.step) };
                RunDir::create_continued(root, files, &from)?
            }
        };
        Ok((run.path().to_owned(), Some(run)))
    }

    /// The folder of a run that still has the checkpoint that this one began with: that run, or this one.
    fn beginning(&self, began: &ContinuedFrom) -> anyhow::Result<PathBuf> {
        let parent = self.path.parent().unwrap_or(Path::new(".")).join(&began.id);
        let same = run_dir::read_manifest(&parent).is_ok_and(|manifest| manifest.plan_hash == began.plan_hash);
        let found = same
            .then_some(parent)
            .into_iter()
            .chain([self.path.clone()])
            .find(|run| checkpoint::saved_steps(&run.join(CHECKPOINTS)).contains(&began.step));
        found.ok_or_else(|| {
            let (id, other, step) = (&self.manifest.id, &began.id, began.step);
            RequestError(format!(
                "{id} began with the checkpoint of {other} after step {step}, which neither of them has any more"
            ))
            .into()
        })
    }
}
