//! Points that begin alike: one of them trains the first steps, and the others begin with its checkpoint after them.
//!
//! The run of the first, the trunk, pauses after those steps until the other runs, its branches, were created from its checkpoint. That changes
//! no number of any run. If the trunk has already trained further, or the branch cannot be created, a point trains all its steps.

use std::collections::BTreeMap;

use crate::record::{SharedTrunk, SweepRecord};
use crate::schedule::SweepTasks;
use runner_plan::Trajectory;

/// A point shares its beginning only if that is more than this fraction of its steps: a pause costs the start of a process.
const MIN_SHARE: f64 = 0.05;

/// The beginning that each of `points` shares with an earlier one. A point is its number and its trajectory.
pub(super) fn find_trunks(points: &[(usize, Trajectory)]) -> Vec<Option<SharedTrunk>> {
    let find = |(position, (_, own)): (usize, &(usize, Trajectory))| {
        let shared =
            |(point, other): &(usize, Trajectory)| SharedTrunk { point: *point, steps: own.shared_steps(other) };
        // Of equal ones the first.
        let longest = points[..position].iter().map(shared).reduce(|a, b| if b.steps > a.steps { b } else { a })?;
        (longest.steps as f64 > MIN_SHARE * own.steps() as f64).then_some(longest)
    };
    points.iter().enumerate().map(find).collect()
}

/// A task that begins with the checkpoint of a different task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Branch {
    pub task: usize,
    /// The task that trains the first steps.
    pub trunk: usize,
    /// The number of those steps.
    pub steps: u64,
}

/// The branches of the sweep of `record` by their tasks.
pub(super) fn branches(record: &SweepRecord, tasks: &SweepTasks) -> BTreeMap<usize, Branch> {
    let task_of = |point: usize| tasks.points.iter().position(|position| record.points[*position].index == point);
    let branch = |(task, position): (usize, &usize)| {
        let SharedTrunk { point, steps } = record.points[*position].trunk?;
        Some((task, Branch { task, trunk: task_of(point)?, steps }))
    };
    tasks.points.iter().enumerate().filter_map(branch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_spec::experiment::ScheduleLength;
    use runner_spec::schedule::{Decay, DecayTarget};

    /// A run of `steps` steps whose rate falls in the last `decay` of them.
    fn trajectory(steps: u64, decay: u64, seed: u64) -> Trajectory {
        let mut experiment = experiment();
        experiment.seed.data = seed;
        experiment.train.steps = Some(steps);
        experiment.schedule.decay = Decay::Linear(DecayTarget { last: 0.0, length: None });
        experiment.schedule.cooldown = Some(ScheduleLength::Steps(decay).into());
        Trajectory::of(&compiled(&experiment))
    }

    #[test]
    fn each_point_begins_with_the_longest_beginning_that_an_earlier_one_has() {
        let points = [(1, 100, 20, 1), (2, 200, 40, 1), (3, 400, 80, 1), (4, 400, 80, 2), (5, 10_000, 9_980, 1)];
        let points = points.map(|(point, steps, decay, seed)| (point, trajectory(steps, decay, seed)));
        let trunk = |point, steps| Some(SharedTrunk { point, steps });
        // The rate of the decay's first step is still the peak. The last point shares too little.
        assert_eq!(find_trunks(&points), [None, trunk(1, 81), trunk(2, 161), None, None]);
    }

    #[test]
    fn tasks_are_points_without_duplicates() {
        let mut record = crate::testing::sweep();
        record.points.swap(1, 2);
        record.points[2].trunk = Some(SharedTrunk { point: 1, steps: 10 });
        let branch = Branch { task: 1, trunk: 0, steps: 10 };
        assert_eq!(branches(&record, &record.tasks()), BTreeMap::from([(1, branch)]));
    }
}
