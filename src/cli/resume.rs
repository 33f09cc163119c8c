//! `runner resume`: goes on with a run from its own folder, whatever became of its file.

use anyhow::bail;
use clap::Args;

use super::common::{self, RootArgs, ThreadArgs};
use super::exit::{Exit, RequestError};
use super::interrupt::Interrupt;
use super::job::{Call, Job};
use super::opened;
use super::ready::Ready;
use super::world::{Joined, LauncherArgs, see_through};
use runner_engine::launch::World;
use runner_report::summary::up_to_date_message;
use runner_report::{JsonEvent, OutputMode, Screen};
use runner_spec::plan::Plan;
use runner_store::manifest::{DataHashes, Manifest, RunStatus};
use runner_store::run_dir;
use runner_store::run_dir::{CHECKPOINTS, RunDir};
use runner_store::{catalog, checkpoint};

#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub launcher: LauncherArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// Stop after step N with a checkpoint; the same command without this goes on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_step: Option<u64>,
    /// Print only errors and the last line.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run, it cannot be gone on with here, or it failed (which its record then says too).
pub(crate) fn run(args: &ResumeArgs) -> anyhow::Result<Exit> {
    match args.launcher.seat()? {
        None => resume(args, &Interrupt::install()?, None),
        Some(seat) => {
            let interrupt = Interrupt::install_as_rank(seat.rank == 0)?;
            see_through(seat, None, |world| resume(args, &interrupt, Some(world)))
        }
    }
}

/// `world`: of ranks that a launcher started.
fn resume(args: &ResumeArgs, interrupt: &Interrupt, world: Option<&World>) -> anyhow::Result<Exit> {
    let leads = world.is_none_or(World::leads);
    let mut screen = Screen::new(if leads { OutputMode::detect(args.json, args.quiet) } else { OutputMode::Quiet });
    let path = catalog::resolve(&args.root.root(), &args.run)?;
    // Of a finished run nothing is written, no lock either.
    if run_dir::read_manifest(&path)?.status == RunStatus::Done {
        let summary = run_dir::read_summary(&path)?;
        let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        screen.json(&JsonEvent::Summary { run: &path, up_to_date: true, summary: summary.as_ref() });
        screen.result_line(&up_to_date_message(&id, summary.as_ref()));
        return Ok(Exit::Done);
    }
    // The lock is for who keeps the record.
    let run = if leads { Some(RunDir::open(&path)?) } else { None };
    let experiment = opened::resolved(&path)?;
    let threads = args.threads.among(world);
    let ready = if checkpoint::saved_steps(&path.join(CHECKPOINTS)).is_empty() {
        Ready::new(&experiment, threads, world, &mut screen)?
    } else {
        Ready::going_on(&experiment, runner_lab::stored_plan::read(&path)?.data.weights, threads, world, &mut screen)?
    };
    let joined = world.map(|world| Joined::new(world, &ready.plan)).transpose()?;
    let Some(run) = run else {
        return match &joined {
            Some(joined) => joined.follow(&experiment, &ready, interrupt, None),
            None => Ok(Exit::Done),
        };
    };
    refuse_another(run.manifest(), &ready.plan)?;
    if world.is_none_or(|world| world.machines() == 1) {
        ready.refuse_what_cannot_fit()?;
    }
    let call = Call {
        threads: threads.count(),
        environment: common::own_environment().into_iter().collect(),
        until: args.until_step,
        elsewhere: args.root.runs.is_some(),
        ..Call::default()
    };
    let joined = joined.as_ref();
    Job { call: &call, experiment: &experiment, ready: &ready, interrupt, joined }.carry_out(run, screen)
}

/// # Errors
/// If what would be computed is no longer what the run began with.
pub(super) fn refuse_another(manifest: &Manifest, plan: &Plan) -> anyhow::Result<()> {
    if manifest.plan_hash == plan.hash {
        return Ok(());
    }
    let (id, version) = (&manifest.id, &manifest.version);
    let now = DataHashes::from(&plan.data);
    let why = if manifest.data.tokenizer != now.tokenizer {
        "its tokenizer, or the text it was made from, has changed".to_owned()
    } else if manifest.data.weights != now.weights {
        "the weights that it started from have changed".to_owned()
    } else if manifest.data != now {
        "its data has changed".to_owned()
    } else {
        format!("its resolved.yaml has changed, or it was begun by a program (version {version}) that plans otherwise")
    };
    bail!(RequestError(format!(
        "{id} cannot be resumed: {why}; `runner fork {id} --from latest` makes a new run of it"
    )))
}
