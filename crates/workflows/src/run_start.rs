//! How a run starts. Each command that trains makes a [`RunStart`], and [`RunStart::open`] finds or creates its run.

use std::path::{Path, PathBuf};

use runner_config::Loaded;
use runner_inputs::{RunEvent, RunObserver};
use runner_ranks::World;
use runner_record::manifest::{Manifest, RunOrigin, RunStatus, SweepPoint};
use runner_record::run_dir::{self, BeginningCheckpoint, CHECKPOINTS, RunLookup, VERDICT};
use runner_record::{CheckpointChoice, RunLock, catalog};
use runner_spec::error::{CommandError, Result};
use runner_spec::plan::Plan;

use crate::continuation::check_shared_steps;
use crate::launched::check_memory;
use crate::opened_run::check_description;
use crate::outcome::RunReport;
use crate::recorded_summary::find_damage;
use crate::resume::check_same_plan;
use crate::run_opening::{FoundRun, create_run, open_unless_done};
use crate::session::RunSession;

/// A run that has a record.
#[derive(Debug)]
pub(crate) struct RecordedRun {
    pub(crate) path: PathBuf,
    pub(crate) manifest: Manifest,
}

/// How a run starts.
#[derive(Clone, Copy)]
pub(crate) struct RunStart<'a> {
    /// The settings, as the run records them.
    pub(crate) loaded: &'a Loaded,
    /// The plan and the options of this process's work.
    pub(crate) session: &'a RunSession<'a>,
    pub(crate) beginning: Beginning<'a>,
    pub(crate) claim: Claim,
    pub(crate) purpose: Purpose<'a>,
    /// The run whose settings a fork changes, or whose steps are repeated.
    pub(crate) parent: Option<&'a Manifest>,
    /// The point of a sweep that the run is.
    pub(crate) sweep: Option<&'a SweepPoint>,
    /// True to create a run even if there is one that started like this.
    pub(crate) is_new: bool,
}

/// Where the training begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Beginning<'a> {
    /// At step 0.
    Scratch,
    /// With a checkpoint of another run, which has this plan.
    Checkpoint { run: &'a RecordedRun, plan: &'a Plan, which: CheckpointChoice },
    /// Where this run stopped.
    Resumed(&'a RecordedRun),
}

/// What the plan is in comparison with the plan of the run that did the steps up to the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It computes these steps to the same bits.
    SamePlan,
    /// It computes the same up to rounding, because its layout differs.
    SameNumbers,
    /// It may compute something else.
    Different,
}

/// What the run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose<'a> {
    Train,
    /// To compare its steps with those of the parent. The hash is that of the parent's checkpoint that it begins with, if it does.
    Repeat {
        state_hash: Option<&'a str>,
    },
}

/// Tells a person about the run that is opened: the existing one, or `None` before a run is created, which an error prevents.
pub(crate) type Announce<'a> = dyn Fn(Option<&Manifest>, &mut dyn RunObserver) -> Result<()> + 'a;

impl RecordedRun {
    /// Finds the run that `wanted` names in `runs`: a folder, an id, or the unique prefix of an id.
    ///
    /// # Errors
    /// If there is no such run, or its settings were changed.
    pub(crate) fn find(runs: &Path, wanted: &str) -> Result<Self> {
        let path = catalog::resolve(runs, wanted)?;
        let manifest = run_dir::read_manifest(&path)?;
        check_description(&path, &manifest)?;
        Ok(Self { path, manifest })
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }
}

impl<'a> RunStart<'a> {
    /// The run of a file, from its first step.
    pub(crate) fn new(loaded: &'a Loaded, session: &'a RunSession<'a>) -> Self {
        Self {
            loaded,
            session,
            beginning: Beginning::Scratch,
            claim: Claim::SamePlan,
            purpose: Purpose::Train,
            parent: None,
            sweep: None,
            is_new: false,
        }
    }

    /// Opens the run and trains it, or finds it done.
    ///
    /// # Errors
    /// Those of [`Self::open`]; if the plan needs more memory than the machines of `world`, or of this process, have; if training fails.
    pub(crate) fn train(
        &self,
        world: Option<&World>,
        announce: &Announce<'_>,
        observer: &mut dyn RunObserver,
    ) -> Result<RunReport> {
        check_memory(&self.session.ready.plan, world)?;
        match self.open(announce, observer)? {
            FoundRun::Unfinished(run) => self.session.work(run, observer),
            FoundRun::Done(path) => Ok(RunReport::up_to_date(path)),
        }
    }

    /// Finds the run that started like this, or creates it.
    ///
    /// # Errors
    /// If the claim is wrong, the run cannot be read or created, or another process works on it.
    pub(crate) fn open(&self, announce: &Announce<'_>, observer: &mut dyn RunObserver) -> Result<FoundRun> {
        let RunSession { host, options, ready, .. } = *self.session;
        let (root, plan) = (&host.runs, &ready.plan);
        if let Beginning::Resumed(run) = self.beginning {
            check_same_plan(&run.manifest, plan, &run.path, self.claim)?;
            return open_unless_done(run.path.clone(), &options.name_of(&run.path, host), &run.manifest, observer);
        }
        let mut found = self.find(root);
        // Two calls at once must not both find nothing. Nothing is written for a finished run, not even a lock.
        let is_finished = |(_, manifest): &(PathBuf, Manifest)| manifest.status == RunStatus::Done;
        let _turn = if found.run.as_ref().is_some_and(is_finished) {
            None
        } else {
            let turn = RunLock::take_name(root, &run_dir::base_id(&plan.experiment_name, &plan.hash))?;
            found = self.find(root);
            Some(turn)
        };
        self.report_broken(&found, observer)?;
        if let Some((path, manifest)) = found.run {
            self.check_began(&manifest)?;
            announce(Some(&manifest), observer)?;
            if self.purpose != Purpose::Train && manifest.status == RunStatus::Done {
                return Ok(FoundRun::Done(path));
            }
            return open_unless_done(path.clone(), &options.name_of(&path, host), &manifest, observer);
        }
        let beginning = self.beginning_checkpoint()?;
        if let (Beginning::Checkpoint { run, .. }, Purpose::Train) = (self.beginning, self.purpose)
            && let Some(damage) = find_damage(&run.path, &run.manifest)?
        {
            observer.observe(&RunEvent::Warning(&format!("{damage}; the new run inherits these metrics as they are")));
        }
        announce(None, observer)?;
        let identify = |manifest: &mut Manifest| {
            manifest.origin = self.origin();
            manifest.sweep = self.sweep.cloned();
        };
        Ok(FoundRun::Unfinished(create_run(self.session, self.loaded, identify, beginning.as_ref())?))
    }

    /// The newest run in `root` that started like this, and the folders that cannot be read.
    fn find(&self, root: &Path) -> RunLookup {
        run_dir::find_run_where(root, &self.session.ready.plan, |path, manifest| {
            !self.is_new && self.started_like(manifest, path.join(VERDICT).exists())
        })
    }

    /// True if the run with this `manifest`, which has the same plan, started like this. A repetition with a verdict is not continued.
    fn started_like(&self, manifest: &Manifest, has_verdict: bool) -> bool {
        match self.origin() {
            None => manifest.stands_for_its_plan(),
            origin => manifest.origin == origin && (self.purpose == Purpose::Train || !has_verdict),
        }
    }

    /// The run that the new run was made from, as its manifest records it.
    fn origin(&self) -> Option<RunOrigin> {
        let Manifest { id, plan_hash, .. } = self.parent?;
        let (id, plan_hash) = (id.clone(), plan_hash.clone());
        let step = match self.beginning {
            Beginning::Checkpoint { which: CheckpointChoice::Step(step), .. } => Some(step),
            _ => None,
        };
        match (self.purpose, self.claim) {
            (Purpose::Repeat { state_hash }, _) => {
                Some(RunOrigin::Reproduction { id, plan_hash, state_hash: state_hash.map(str::to_owned) })
            }
            (Purpose::Train, Claim::Different) => Some(RunOrigin::Fork { id, step, plan_hash }),
            (Purpose::Train, _) => None,
        }
    }

    /// True if the plan computes the inherited steps to the same bits, so they count as the run's own.
    fn is_same_computation(&self) -> bool {
        self.claim == Claim::SamePlan && self.purpose == Purpose::Train
    }

    /// The checkpoint that a new run begins with; `None`: it begins at step 0.
    ///
    /// # Errors
    /// If the claim is wrong; if the settings give a position in the data at which the run does not begin.
    fn beginning_checkpoint(&self) -> Result<Option<BeginningCheckpoint<'_>>> {
        let Beginning::Checkpoint { run, plan, which } = self.beginning else {
            let position = self.loaded.experiment.data.position.filter(|position| position.step > 0);
            return position.filter(|_| self.parent.is_none()).map_or(Ok(None), |position| {
                Err(CommandError::request(format!(
                    "data.position is the position of a fork after step {}, but this run starts at step 0; delete it, or \
                     continue the fork with `--continue`",
                    position.step
                )))
            });
        };
        let is_same_computation = self.is_same_computation();
        let ours = &self.session.ready.plan;
        let which = if is_same_computation { check_shared_steps(run, plan, ours, which)? } else { which };
        Ok(Some(BeginningCheckpoint { path: &run.path, plan, which, is_same_computation }))
    }

    /// Checks that the run with this `manifest`, which stands for its plan, began with the checkpoint of this start, if it has one.
    ///
    /// # Errors
    /// If it began otherwise.
    fn check_began(&self, manifest: &Manifest) -> Result<()> {
        let Beginning::Checkpoint { run, which, .. } = self.beginning else { return Ok(()) };
        let began = manifest.continued_from.as_ref();
        let same = began.is_some_and(|began| {
            (&began.id, &began.plan_hash) == (&run.manifest.id, &run.manifest.plan_hash)
                && !matches!(which, CheckpointChoice::Step(step) if step != began.step)
        });
        // The origin of a fork or a repetition names the checkpoint.
        if same || self.parent.is_some() {
            return Ok(());
        }
        let how = began.map_or_else(
            || "from scratch".to_owned(),
            |began| format!("from the checkpoint of {} after step {}", began.id, began.step),
        );
        Err(CommandError::request(format!(
            "{} is a run of this file that started {how}; omit `--continue` to resume it, or use `--new` to start a \
             new run",
            manifest.id
        )))
    }

    /// Reports the folders of `found` that cannot be read. One of them may be the run of the plan.
    ///
    /// # Errors
    /// If another run would start in its place.
    fn report_broken(&self, found: &RunLookup, observer: &mut dyn RunObserver) -> Result<()> {
        // A fork and a repetition stand beside the runs of their plan.
        if self.parent.is_some() {
            return Ok(());
        }
        // A sweep has already reported that it trains the point again.
        let starts_again = self.is_new || self.sweep.is_some();
        if let (Some(broken), None, false) = (found.broken.first(), &found.run, starts_again) {
            return Err(CommandError::failure(format!(
                "this experiment has a run that cannot be read: {broken}; repair or remove its folder, or start a new \
                 run with `--new`"
            )));
        }
        for broken in &found.broken {
            observer.observe(&RunEvent::Warning(&format!("skipped: {broken}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
