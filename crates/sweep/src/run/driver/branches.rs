//! The part of the driver for points that begin with the checkpoint of a different point.

use super::{Driver, RunningSegment};
use crate::TrainingSegment;
use crate::progress::PointProgress;
use crate::run::trunks::Branch;

/// How a task without a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    /// At step 0.
    Alone,
    /// With the checkpoint of its trunk.
    Branch(Branch),
    /// Later: its trunk is not there yet.
    Waits,
}

impl Driver<'_> {
    /// How `task` begins now. If its trunk has trained further, or has ended, it trains all of its steps itself from now on.
    pub(super) fn beginning(&mut self, task: usize) -> Beginning {
        let Some(branch) = self.branches.get(&task).copied().filter(|_| self.progress_of(task).is_none()) else {
            return Beginning::Alone;
        };
        let trunk = branch.trunk;
        let saved = self.progress_of(trunk).and_then(PointProgress::checkpoint).unwrap_or(0);
        if saved == branch.steps {
            return Beginning::Branch(branch);
        }
        let last_rung = self.point(trunk).rungs.len().saturating_sub(1);
        let has_ended = self.failed.contains(&trunk) || self.result(trunk, last_rung).is_some();
        if saved < branch.steps && !has_ended {
            return Beginning::Waits;
        }
        self.branches.remove(&task);
        Beginning::Alone
    }

    /// The branches of `task` whose runs do not exist yet.
    fn open_branches(&self, task: usize) -> Vec<Branch> {
        let is_open = |branch: &Branch| {
            branch.trunk == task && self.progress_of(branch.task).is_none() && !self.failed.contains(&branch.task)
        };
        self.branches.values().copied().filter(is_open).collect()
    }

    /// True if runs that begin with the newest checkpoint of `task` do not exist yet: until they do, it trains no further.
    pub(super) fn waits_for_branches(&mut self, task: usize) -> bool {
        let saved = self.progress_of(task).and_then(PointProgress::checkpoint);
        let due: Vec<Branch> =
            self.open_branches(task).into_iter().filter(|branch| Some(branch.steps) == saved).collect();
        for branch in &due {
            // Its process may have created the run since.
            if self.running.contains_key(&branch.task) {
                self.update_progress(branch.task);
            }
        }
        due.iter().any(|branch| self.progress_of(branch.task).is_none())
    }

    /// The step after which the run of `segment`, which has done `from` steps, pauses for the next branches, or that of its end.
    pub(super) fn next_pause(&self, segment: TrainingSegment, from: u64) -> u64 {
        let branches = self.open_branches(segment.task);
        let pauses = branches.iter().map(|branch| branch.steps).filter(|step| *step > from);
        pauses.min().unwrap_or(segment.until).min(segment.until)
    }

    /// Reports that the run of a branch could not be created, because of `error`. From now on its task trains all steps itself.
    pub(super) fn give_branch_up(&mut self, branch: Branch, error: &str) {
        let (point, trunk) = (self.point(branch.task).index, self.point(branch.trunk).index);
        self.progress.problems.push(format!(
            "point {point} trains all its steps, because its run could not be created from the checkpoint of point {trunk} after step {}: \
             {error}",
            branch.steps
        ));
        self.report_problems();
        self.branches.remove(&branch.task);
    }

    /// True if the worker of `running` was to create the run of a branch, and did not, which is then reported.
    pub(super) fn has_failed_to_branch(&mut self, running: &RunningSegment) -> bool {
        let Some(branch) = running.branch.filter(|branch| self.progress_of(branch.task).is_none()) else {
            return false;
        };
        if !running.was_asked_to_stop {
            let error = self.segment_workers.last_error(&running.worker);
            self.give_branch_up(branch, error.as_deref().unwrap_or("its process ended early"));
        }
        true
    }
}
