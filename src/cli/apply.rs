//! `runner apply`: makes an experiment's run be done, starting it, resuming it, or finding that it is.

use std::collections::BTreeMap;

use anyhow::Context;
use clap::Args;

use super::common::{self, ExperimentArgs, RootArgs, ThreadArgs};
use super::continued::{ContinueArgs, Source};
use super::exit::{Exit, is_busy, render};
use super::expect;
use super::interrupt::Interrupt;
use super::job::{Call, Job};
use super::output::complain;
use super::ready::Ready;
use super::world::{Joined, LauncherArgs, see_through};
use runner_config::Loaded;
use runner_engine::launch::{Faults, World};
use runner_report::summary::up_to_date_message;
use runner_report::{JsonEvent, OutputMode, Screen};
use runner_spec::plan::Plan;
use runner_store::manifest::{Manifest, RunStatus, SweepPoint, TemplateUse};
use runner_store::run_dir;
use runner_store::run_dir::{ContinueFrom, RunDir, RunFiles};
use runner_store::{RunLock, time};

#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub experiment: ExperimentArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub launcher: LauncherArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// Start another run, even if this experiment has one.
    #[arg(long)]
    pub new: bool,
    #[command(flatten)]
    pub continued: ContinueArgs,
    /// Stop after step N with a checkpoint; the same command without this goes on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_step: Option<u64>,
    /// Record hashes of what each step computes, which `runner reproduce --trace` compares.
    #[arg(long)]
    pub trace: bool,
    /// Do nothing unless the plan's hash is HASH, or begins with it (8 digits at least).
    #[arg(long, value_name = "HASH", value_parser = expect::plan_hash)]
    pub expect_plan: Option<String>,
    /// The point of a sweep that this is.
    #[arg(long, hide = true, value_name = "ID:N", value_parser = sweep_point)]
    pub sweep_point: Option<SweepPoint>,
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
pub(crate) fn run(args: &ApplyArgs) -> anyhow::Result<Exit> {
    // A sweep's points end with it, and are nobody's ranks.
    if args.sweep_point.is_none()
        && let Some(seat) = args.launcher.seat()?
    {
        let interrupt = Interrupt::install_as_rank(seat.rank == 0)?;
        return see_through(seat, args.test_faults.as_ref(), |world| apply(args, &interrupt, Some(world)));
    }
    let interrupt = if args.sweep_point.is_some() { Interrupt::install_as_child()? } else { Interrupt::install()? };
    match apply(args, &interrupt, None) {
        Err(error) if args.sweep_point.is_some() && is_busy(&error) => {
            complain(&render(&error, console::colors_enabled_stderr()));
            Ok(Exit::Busy)
        }
        other => other,
    }
}

/// `world`: of ranks that a launcher started.
fn apply(args: &ApplyArgs, interrupt: &Interrupt, world: Option<&World>) -> anyhow::Result<Exit> {
    let leads = world.is_none_or(World::leads);
    let mut screen = Screen::new(if leads { OutputMode::detect(args.json, args.quiet) } else { OutputMode::Quiet });
    let mut loaded = args.experiment.load()?;
    common::pin(&mut loaded.experiment, &mut screen)?;
    if leads {
        args.continued.look(&args.root.root())?;
    }
    let threads = args.threads.among(world);
    let ready = Ready::new(&loaded.experiment, threads, world, &mut screen)?;
    if let Some(hash) = &args.expect_plan {
        expect::same_plan(hash, &ready.plan, &args.root.root())?;
    }
    let joined = world.map(|world| Joined::new(world, &ready.plan)).transpose()?;
    // This machine's memory says nothing of that of others.
    if world.is_none_or(|world| world.machines() == 1) {
        ready.refuse_what_cannot_fit()?;
    }
    if let Some(joined) = joined.as_ref().filter(|_| !leads) {
        return joined.follow(&loaded.experiment, &ready, interrupt, args.test_faults.as_ref());
    }
    let source = args.continued.source(&args.root.root(), &ready.plan)?;
    let run = open_or_create(args, &loaded, &ready.plan, source.as_ref(), &mut screen)?;
    let Some(run) = run else { return Ok(Exit::Done) };
    let call = Call {
        threads: threads.count(),
        overrides: args.experiment.set.clone(),
        environment: environment(&loaded),
        until: args.until_step,
        trace: args.trace,
        elsewhere: args.root.runs.is_some(),
        faults: args.test_faults.clone(),
    };
    let (experiment, joined) = (&loaded.experiment, joined.as_ref());
    Job { call: &call, experiment, ready: &ready, interrupt, joined }.carry_out(run, screen)
}

/// `ID:N`, with N from 1.
fn sweep_point(text: &str) -> Result<SweepPoint, String> {
    let wrong = || format!("{text:?} is no ID:N, such as lr-0a1b2c3d:4");
    let (id, point) = text.rsplit_once(':').ok_or_else(wrong)?;
    match point.parse() {
        Ok(point) if point > 0 && !id.is_empty() => Ok(SweepPoint { id: id.to_owned(), point }),
        _ => Err(wrong()),
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
    let mut found = run_dir::find_run(&root, plan);
    // Two calls at once must not both find nothing. Of a finished run nothing is written, no lock either.
    let finished = found.run.as_ref().is_some_and(|(_, manifest)| manifest.status == RunStatus::Done);
    let _turn = if args.new || !finished {
        let turn = RunLock::take_name(&root, &run_dir::base_id(&plan.experiment_name, &plan.hash))?;
        found = run_dir::find_run(&root, plan);
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
        let summary = run_dir::read_summary(&path)?;
        screen.json(&JsonEvent::Summary { run: &path, up_to_date: true, summary: summary.as_ref() });
        screen.result_line(&up_to_date_message(&manifest.id, summary.as_ref()));
        screen.json_result().context("standard output")?;
        return Ok(None);
    }
    let mut manifest = Manifest::new(plan, args.experiment.file.clone(), args.experiment.set.clone(), time::now());
    manifest.environment = environment(loaded);
    manifest.sweep.clone_from(&args.sweep_point);
    let template = loaded.template.as_ref();
    manifest.template = template.map(|t| TemplateUse { file: args.experiment.file.clone(), vars: t.vars.clone() });
    let resolved = runner_config::to_yaml(&loaded.experiment);
    let files = RunFiles {
        experiment: &loaded.text,
        resolved: &resolved,
        template: template.and_then(|t| t.files.first()).map(|file| file.text.as_str()),
        plan,
        manifest,
    };
    Ok(Some(match source {
        Some(source) => {
            let from = ContinueFrom { path: &source.path, plan: &source.plan, which: source.which };
            RunDir::create_continued(&root, files, &from)?
        }
        None => RunDir::create(&root, files)?,
    }))
}

/// Of the environment, what this call read.
fn environment(loaded: &Loaded) -> BTreeMap<String, String> {
    loaded.env_read.iter().cloned().chain(common::own_environment()).collect()
}
