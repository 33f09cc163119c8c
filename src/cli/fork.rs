//! `runner fork`: a new run from another one's settings, changed, from the start or from one of its checkpoints.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;

use super::common::{self, RootArgs, ThreadArgs};
use super::exit::{Exit, RequestError};
use super::interrupt::Interrupt;
use super::job::{Call, Job};
use super::ready::Ready;
use runner_config::{LoadOptions, Loaded};
use runner_engine::launch::Faults;
use runner_report::summary::up_to_date_message;
use runner_report::{JsonEvent, OutputMode, Screen};
use runner_spec::model::parameters;
use runner_spec::plan::Plan;
use runner_spec::program::{OptimizerSpec, Program};
use runner_store::manifest::{Manifest, RunOrigin, RunStatus};
use runner_store::run_dir;
use runner_store::run_dir::{CHECKPOINTS, ContinueFrom, RESOLVED, RunDir, RunFiles};
use runner_store::{CheckpointChoice, RunLock, catalog, checkpoint, time};

#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct ForkArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    /// Change a key of its settings, such as `optimizer.adamw.lr=1e-4`; may be given several times. Paths in values are relative
    /// to the current folder.
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// Begin with the weights and the optimizer's state of its checkpoint after STEP, `latest` or `best` [default: from the start].
    #[arg(long, value_name = "STEP")]
    pub from: Option<Checkpoint>,
    /// Call the new run so, as `name` in an experiment.
    #[arg(long)]
    pub name: Option<String>,
    /// Start another fork, even if there is one made so.
    #[arg(long)]
    pub new: bool,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// Stop after step N with a checkpoint; the same command without this goes on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_step: Option<u64>,
    /// Record hashes of what each step computes, which `runner reproduce --trace` compares.
    #[arg(long)]
    pub trace: bool,
    /// Print only errors and the last line.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
    /// For the tests of this program.
    #[arg(long, hide = true, value_name = "KEY=NUMBER")]
    pub test_faults: Option<Faults>,
}

/// A checkpoint, in words or by its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint(CheckpointChoice);

impl FromStr for Checkpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("latest", _) => Ok(Self(CheckpointChoice::Latest)),
            ("best", _) => Ok(Self(CheckpointChoice::Best)),
            (_, Ok(step)) => Ok(Self(CheckpointChoice::Step(step))),
            _ => Err("take a step, `latest` or `best`".to_owned()),
        }
    }
}

/// The run that is forked, and where from.
struct Parent {
    path: PathBuf,
    manifest: Manifest,
    /// The step of the checkpoint to begin with.
    step: Option<u64>,
}

/// # Errors
/// If there is no such run or checkpoint, the changes do not fit it, or the new run failed (which its record then says too).
pub(crate) fn run(args: &ForkArgs) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mut screen = Screen::new(OutputMode::detect(args.json, args.quiet));
    let root = args.root.root();
    let path = catalog::resolve(&root, &args.run)?;
    let manifest = run_dir::read_manifest(&path)?;
    let step =
        args.from.map(|Checkpoint(which)| checkpoint::chosen_step(&path.join(CHECKPOINTS), which)).transpose()?;
    let parent = Parent { path, manifest, step };
    let mut loaded = load(args, &parent)?;
    common::pin(&mut loaded.experiment, &mut screen)?;
    let ready = Ready::new(&loaded.experiment, args.threads, None, &mut screen)?;
    ready.refuse_what_cannot_fit()?;
    parent.refuse_what_cannot_begin(&ready.plan)?;
    let Some(run) = parent.open_or_create(args, &loaded, &ready.plan, &mut screen)? else { return Ok(Exit::Done) };
    let call = Call {
        threads: args.threads.count(),
        overrides: args.set.clone(),
        environment: common::own_environment().into_iter().collect(),
        until: args.until_step,
        trace: args.trace,
        elsewhere: args.root.runs.is_some(),
        faults: args.test_faults.clone(),
    };
    Job { call: &call, experiment: &loaded.experiment, ready: &ready, interrupt: &interrupt, joined: None }
        .carry_out(run, screen)
}

/// The parent's settings under the changes. What the environment says of experiments does not matter here.
fn load(args: &ForkArgs, parent: &Parent) -> anyhow::Result<Loaded> {
    let file = parent.path.join(RESOLVED);
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let mut sets = args.set.clone();
    if let Some(name) = &args.name {
        sets.push(format!("name={}", serde_json::to_string(name)?));
    }
    let options = LoadOptions { sets, ..LoadOptions::default() };
    // Paths in it are absolute; those in the changes start from here.
    let loaded = runner_config::from_str(&text, Path::new(RESOLVED), &options)?;
    Ok(Loaded { path: file, ..loaded })
}

impl Parent {
    fn origin(&self) -> RunOrigin {
        let Manifest { id, plan_hash, .. } = self.manifest.clone();
        RunOrigin::Fork { id, step: self.step, plan_hash }
    }

    /// # Errors
    /// If a run of `plan` cannot begin with this run's checkpoint, or would be this run once more.
    fn refuse_what_cannot_begin(&self, plan: &Plan) -> anyhow::Result<()> {
        let id = &self.manifest.id;
        let Some(step) = self.step else {
            let same = (&plan.hash, &plan.experiment_name) == (&self.manifest.plan_hash, &self.manifest.name);
            if same {
                let message = format!(
                    "nothing differs from {id}: --set KEY=VALUE changes something, --from STEP begins with a checkpoint, \
                     `runner reproduce {id}` does it again"
                );
                bail!(RequestError(message));
            }
            return Ok(());
        };
        let theirs = runner_lab::stored_plan::read(&self.path)?;
        let (Some(old), Some(new)) = (theirs.ranks.first(), plan.ranks.first()) else { return Ok(()) };
        let mut wrong = vec![shapes(&old.program, &new.program), moments(&old.program, &new.program)];
        if self.manifest.data.tokenizer != plan.data.tokenizer_hash {
            let message = "the tokenizer is another one, so its embedding means other tokens; keep data.tokenizer and what it \
                           was made from";
            wrong.push(Some(message.to_owned()));
        }
        if step >= plan.totals.steps {
            let steps = plan.totals.steps;
            wrong
                .push(Some(format!("train.steps is {steps}, and {step} are done: --set train.steps={}", step + steps)));
        }
        let wrong: Vec<String> = wrong.into_iter().flatten().collect();
        if wrong.is_empty() {
            return Ok(());
        }
        bail!(RequestError(format!("{id} cannot be forked from step {step} like this: {}", wrong.join("; "))))
    }

    /// The run directory to work in; `None` if the fork is done.
    fn open_or_create(
        &self,
        args: &ForkArgs,
        loaded: &Loaded,
        plan: &Plan,
        screen: &mut Screen,
    ) -> anyhow::Result<Option<RunDir>> {
        let root = args.root.root();
        let _turn = RunLock::take_name(&root, &run_dir::base_id(&plan.experiment_name, &plan.hash))?;
        let origin = Some(self.origin());
        let made = run_dir::runs_of_plan(&root, plan).into_iter().rev().find(|(_, manifest)| manifest.origin == origin);
        if let Some((path, manifest)) = made.filter(|_| !args.new) {
            if manifest.status != RunStatus::Done {
                return Ok(Some(RunDir::open(&path)?));
            }
            let summary = run_dir::read_summary(&path)?;
            screen.json(&JsonEvent::Summary { run: &path, up_to_date: true, summary: summary.as_ref() });
            screen.result_line(&up_to_date_message(&manifest.id, summary.as_ref()));
            return Ok(None);
        }
        let mut manifest = Manifest::new(plan, loaded.path.clone(), args.set.clone(), time::now());
        manifest.origin = origin;
        manifest.environment = common::own_environment().into_iter().collect();
        let resolved = runner_config::to_yaml(&loaded.experiment);
        let files = RunFiles { experiment: &loaded.text, resolved: &resolved, plan, template: None, manifest };
        Ok(Some(match self.step {
            Some(step) => {
                let theirs = runner_lab::stored_plan::read(&self.path)?;
                let from = ContinueFrom { path: &self.path, plan: &theirs, which: CheckpointChoice::Step(step) };
                RunDir::create_continued(&root, files, &from)?
            }
            None => RunDir::create(&root, files)?,
        }))
    }
}

/// The first parameter that the two models do not have alike.
fn shapes(old: &Program, new: &Program) -> Option<String> {
    let (old, new) = (parameters(&old.model), parameters(&new.model));
    let mut pairs = old.iter().zip(&new);
    let apart = pairs.find(|(a, b)| (&a.name, &a.shape) != (&b.name, &b.shape));
    let what = match apart {
        Some((a, b)) if a.name == b.name => format!("{} was {:?}, would be {:?}", a.name, a.shape, b.shape),
        Some((a, b)) => format!("it has {}, where the new model has {}", a.name, b.name),
        None if old.len() == new.len() => return None,
        None => format!("it has {} parameters, the new model {}", old.len(), new.len()),
    };
    Some(format!("the model has other shapes ({what}); without --from it starts anew"))
}

/// Whether the new optimizer can go on with the old one's moments.
fn moments(old: &Program, new: &Program) -> Option<String> {
    let (had, needs) = (old.optimizer.moments(), new.optimizer.moments());
    if needs == 0 || had == needs {
        return None;
    }
    let name = |optimizer: &OptimizerSpec| match optimizer {
        OptimizerSpec::AdamW { .. } => "adamw",
        OptimizerSpec::Sgd { .. } => "sgd",
    };
    let (old, new) = (name(&old.optimizer), name(&new.optimizer));
    Some(format!(
        "the checkpoint has {had} moments of {old}, and {new} as set needs {needs}: keep {old}, take sgd with momentum 0, or start \
         anew without --from"
    ))
}
