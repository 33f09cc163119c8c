//! `runner sweep FILE`: makes a sweep be done, starting it, going on with it, or finding that it is.

use std::path::{Path, PathBuf};

use super::args::{Launcher, RunArgs};
use super::closing::{self, Closing};
use super::drive::{Drive, Driver};
use super::events::Outcome;
use super::prepare::{self, Ready, With};
use super::preview::{How, preview};
use super::{changed, find, slurm};
use crate::cli::common;
use crate::cli::exit::{Exit, RequestError};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::print_json;
use runner_lab::sweep;
use runner_lab::sweep::SweepSpec;
use runner_lab::sweep::frozen::SweepRecord;
use runner_lab::sweep::standing::{is_finished, read_all};
use runner_lab::sweep_dir;
use runner_lab::sweep_dir::{SweepDir, SweepFiles};
use runner_report::{OutputMode, Screen};
use runner_store::RunLock;
use runner_store::StoreError;
use runner_store::catalog::SWEEPS;

/// # Errors
/// A wrong request, with all mistakes of all points; a machine that refuses.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::install()?;
    let screen = Screen::new(OutputMode::detect(args.json, args.quiet));
    let file = args.file.clone().ok_or_else(|| RequestError("which sweep file?".to_owned()))?;
    let spec = sweep::load(&file)?;
    if args.launcher == Launcher::Slurm {
        slurm::check(spec.early_stop.is_some(), &args.slurm_option)?;
    }
    let root = args.root.root();
    let parallel = args.parallel.map_or(spec.parallel, usize::from).max(1);
    let threads = match (args.launcher, args.threads.threads) {
        // Each job has its own processors.
        (Launcher::Slurm, Some(threads)) => usize::from(threads),
        _ => (args.threads.count() / parallel).max(1),
    };
    Call { args, spec, root, how: How { parallel, threads, all: args.dry_run } }.go(screen, &interrupt)
}

/// One call of the command.
struct Call<'a> {
    args: &'a RunArgs,
    spec: SweepSpec,
    root: PathBuf,
    how: How,
}

impl Call<'_> {
    fn go(self, mut screen: Screen, interrupt: &Interrupt) -> anyhow::Result<Exit> {
        if let Some((path, frozen)) = self.known(&screen)? {
            return self.go_on(&path, &frozen, screen, interrupt);
        }
        let set = &self.args.set;
        let with = With { set, threads: self.how.threads, own: self.args.threads, parallel: self.how.parallel };
        let Ready { frozen, experiments } = prepare::prepare(&self.spec, &with, &mut screen)?;
        if self.args.launcher == Launcher::Slurm {
            slurm::check_numbers(&frozen)?;
        }
        if self.args.dry_run {
            return self.show(&frozen, &screen);
        }
        // Two calls at once must not both find nothing.
        let turn = RunLock::take_name(&self.root.join(SWEEPS), &self.spec.name)?;
        if let Some((path, frozen)) = self.known(&screen)? {
            drop(turn);
            return self.go_on(&path, &frozen, screen, interrupt);
        }
        let files = SweepFiles { frozen, text: &self.spec.text, experiments: &experiments };
        let sweep = SweepDir::create(&self.root, files)?;
        drop(turn);
        screen.line(&preview(sweep.frozen(), self.how));
        self.drive(&sweep, screen, interrupt)
    }

    /// The sweep of this file that is there, unless another one is to begin.
    ///
    /// # Errors
    /// If it has begun with another version of the file, and is not finished.
    fn known(&self, screen: &Screen) -> anyhow::Result<Option<(PathBuf, SweepRecord)>> {
        if self.args.new {
            return Ok(None);
        }
        let Some((path, frozen)) = find::of_file(&self.root, &self.spec) else { return Ok(None) };
        let mut what = changed::between(&sweep_dir::text(&path)?, &self.spec.text);
        if frozen.overrides != self.args.set {
            what.push(format!("the --set flags were {:?}, are {:?}", frozen.overrides, self.args.set));
        }
        if what.is_empty() {
            return Ok(Some((path, frozen)));
        }
        let what = what.join("; ");
        if self.args.dry_run {
            screen.warn(&format!("{} began with another version of this file: {what}", frozen.id));
            return Ok(None);
        }
        if is_finished(&self.root, &frozen) {
            screen.line(&format!("sweep    {} is done; since then, {what}: another one begins", frozen.id));
            return Ok(None);
        }
        Err(RequestError(format!(
            "sweep {} is not finished, and {} has changed since it began: {what}. Its points are fixed: take the file back \
             to what it was ({} has it) to go on, or begin another sweep with --new, in which runs that are done are not \
             run again",
            frozen.id,
            self.spec.path.display(),
            path.join(sweep_dir::SWEEP).display()
        ))
        .into())
    }

    /// Goes on with the sweep in `path`, or finds it done.
    fn go_on(&self, path: &Path, frozen: &SweepRecord, screen: Screen, interrupt: &Interrupt) -> anyhow::Result<Exit> {
        let changed = changed::sources(&frozen.sources);
        if !changed.is_empty() {
            let files: Vec<String> = changed.iter().map(|path| path.display().to_string()).collect();
            screen.warn(&format!(
                "{} changed since {} began; its points stay what they were then (--new begins another sweep)",
                files.join(", "),
                frozen.id
            ));
        }
        let now = |name: &str| std::env::var(name).ok();
        let variables = changed::environment(&frozen.environment, &common::experiment_environment(), &now);
        let variables: Vec<String> = variables.into_iter().filter(|name| !common::is_own(name)).collect();
        if !variables.is_empty() {
            screen.warn(&format!(
                "{} is not what it was when {} began, and has no effect",
                variables.join(", "),
                frozen.id
            ));
        }
        if self.args.dry_run {
            return self.show(frozen, &screen);
        }
        if is_finished(&self.root, frozen) {
            let standings = read_all(&self.root, frozen);
            let closing = Closing::new(path, frozen, &standings, self.args.root.runs.as_deref());
            closing::print(&closing, Outcome::Done, true, &screen);
            return Ok(Exit::Done);
        }
        let sweep = SweepDir::open(path).map_err(|error| match error {
            StoreError::Locked { id, holder } => {
                let message =
                    format!("sweep {id} is being run by another process{holder}: runner sweep status {id} shows it");
                RequestError(message).into()
            }
            other => anyhow::Error::from(other),
        })?;
        self.drive(&sweep, screen, interrupt)
    }

    /// What would be run.
    fn show(&self, frozen: &SweepRecord, screen: &Screen) -> anyhow::Result<Exit> {
        if self.args.json {
            print_json(frozen)?;
        } else {
            screen.result_line(&preview(frozen, self.how));
        }
        Ok(Exit::Done)
    }

    fn drive(&self, sweep: &SweepDir, screen: Screen, interrupt: &Interrupt) -> anyhow::Result<Exit> {
        match self.args.launcher {
            Launcher::Local => Ok(Driver::new(Drive {
                sweep,
                root: &self.root,
                runs: self.args.root.runs.as_deref(),
                parallel: self.how.parallel,
                threads: self.how.threads,
                retries: self.spec.retries,
                interrupt,
            })?
            .run(screen)),
            Launcher::Slurm => {
                let (How { parallel, threads, .. }, options) = (self.how, &self.args.slurm_option);
                slurm::submit(sweep, &self.root, slurm::How { parallel, threads, options }, &screen)
            }
        }
    }
}
