//! `runner apply`: makes an experiment's run be done, starting it, resuming it, or finding that it is.

use std::collections::BTreeMap;

use anyhow::Context;
use clap::Args;

use super::common::{self, ExperimentArgs, RootArgs, ThreadArgs};
use super::continued::{ContinueArgs, Source};
use super::exit::{Exit, RequestError};
use super::interrupt::Interrupt;
use super::job::Job;
use super::plan::local;
use crate::config::{self, Loaded};
use crate::launch::Faults;
use crate::plan::{self, Plan};
use crate::report::summary::up_to_date;
use crate::report::{JsonEvent, Mode, Screen};
use crate::store::manifest::{Manifest, RunStatus};
use crate::store::run_dir::{self, RunDir, RunFiles};
use crate::store::{lock, time};

#[derive(Debug, Clone, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub experiment: ExperimentArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// Start another run, even if this experiment has one.
    #[arg(long)]
    pub new: bool,
    #[command(flatten)]
    pub continued: ContinueArgs,
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

/// # Errors
/// A wrong request, a machine that refuses, or a run that failed (which its record then says too).
pub fn run(args: &ApplyArgs) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mut screen = Screen::new(Mode::detect(args.json, args.quiet));
    let loaded = args.experiment.load()?;
    args.continued.look(&args.root.root())?;
    let pool = args.threads.pool()?;
    let prepared = common::prepare_data(&loaded.experiment, &pool, &mut screen)?;
    let cluster = local(args.threads.count())?;
    let plan = plan::compile(&loaded.experiment, &prepared.facts, &cluster)?;
    for note in &plan.notes {
        screen.line(&format!("plan   {note}"));
    }
    refuse_what_cannot_fit(&plan)?;
    let source = args.continued.source(&args.root.root(), &plan)?;
    let Some(run) = open_or_create(args, &loaded, &plan, source.as_ref(), &mut screen)? else { return Ok(Exit::Done) };
    let job = Job { args, loaded: &loaded, plan: &plan, prepared: &prepared, interrupt: &interrupt, pool: &pool };
    job.work(run, screen)
}

/// # Errors
/// If the plan needs more memory than its device has: the run would end in the middle of a step.
fn refuse_what_cannot_fit(plan: &Plan) -> anyhow::Result<()> {
    match &plan.shortage {
        Some(shortage) => Err(RequestError(shortage.clone()).into()),
        None => Ok(()),
    }
}

/// The run directory to work in; `None` if the run is done.
fn open_or_create(
    args: &ApplyArgs,
    loaded: &Loaded,
    plan: &Plan,
    source: Option<&Source>,
    screen: &mut Screen,
) -> anyhow::Result<Option<RunDir>> {
    let root = args.root.root();
    let mut found = run_dir::find(&root, plan);
    // Two calls at once must not both find nothing. Of a finished run nothing is written, no lock either.
    let finished = found.run.as_ref().is_some_and(|(_, manifest)| manifest.status == RunStatus::Done);
    let _turn = if args.new || !finished {
        let turn = lock::turn(&root, &run_dir::base_id(&plan.experiment_name, &plan.hash))?;
        found = run_dir::find(&root, plan);
        Some(turn)
    } else {
        None
    };
    for broken in &found.broken {
        screen.warn(&format!("passed over: {broken}"));
    }
    if let Some((path, manifest)) = found.run.filter(|_| !args.new) {
        source.map_or(Ok(()), |source| source.is_where_it_began(&manifest))?;
        // Done is looked at before the lock: nothing is written then.
        if manifest.status != RunStatus::Done {
            let run = RunDir::open(&path)?;
            // Another process may have finished it in between.
            if run.manifest().status != RunStatus::Done {
                return Ok(Some(run));
            }
        }
        let summary = run_dir::summary(&path)?;
        screen.json(&JsonEvent::Summary { run: &path, up_to_date: true, summary: summary.as_ref() });
        screen.last(&up_to_date(&manifest.id, summary.as_ref()));
        screen.written().context("standard output")?;
        return Ok(None);
    }
    let mut manifest = Manifest::new(plan, args.experiment.file.clone(), args.experiment.set.clone(), time::now());
    manifest.environment = environment(loaded);
    let resolved = config::to_yaml(&loaded.experiment);
    let files = RunFiles { experiment: &loaded.text, resolved: &resolved, plan, manifest };
    Ok(Some(match source {
        Some(source) => RunDir::create_continued(&root, files, &source.path, source.which)?,
        None => RunDir::create(&root, files)?,
    }))
}

/// Of the environment, what this call read.
pub(super) fn environment(loaded: &Loaded) -> BTreeMap<String, String> {
    loaded.env_read.iter().cloned().chain(common::own_environment()).collect()
}
