//! The first steps that runs of two plans compute alike.

use runner_spec::plan::Plan;
use runner_spec::program::{Instruction, Periodic, Program};
use runner_spec::schedule::{Decay, LrSchedule};

use crate::hash::plan_hash;

/// The computation of a run: a hash of its plan without schedule and number of steps, the schedule, and the number of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Trajectory {
    hash: String,
    schedule: Option<LrSchedule>,
    steps: u64,
    /// The intervals of evaluations and samples, which also follow the last step.
    intervals: Vec<u64>,
}

impl Trajectory {
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let endless = LrSchedule {
            warmup_steps: 0,
            start: 0,
            peak: 0.0,
            warmup_from: None,
            hold_steps: 0,
            later_decays: Vec::new(),
            decay: Decay::Constant {},
        };
        let without_end = |program: &Program| Program { schedule: endless.clone(), steps: 0, ..program.clone() };
        let programs: Vec<Program> = plan.ranks.iter().map(|rank| without_end(&rank.program)).collect();
        // A plan whose hash has another meaning today was computed by other rules.
        let is_current =
            plan_hash(&plan.data, &plan.ranks.iter().map(|rank| rank.program.clone()).collect::<Vec<_>>()) == plan.hash;
        Self {
            hash: if is_current { plan_hash(&plan.data, &programs) } else { plan.hash.clone() },
            schedule: plan.ranks.first().map(|rank| rank.program.schedule.clone()),
            steps: plan.totals.steps,
            intervals: plan.ranks.first().map_or_else(Vec::new, |rank| {
                let measured = rank.program.periodic.iter().filter(|due| due.instruction != Instruction::Checkpoint);
                measured.flat_map(Periodic::intervals).collect()
            }),
        }
    }

    /// The number of steps of the run.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The number of first steps that runs of both plans compute to the same bits, evaluations and samples included. The last step of the
    /// shorter run is one of them only if the longer one is evaluated after it, too.
    #[must_use]
    pub fn shared_steps(&self, other: &Self) -> u64 {
        let (Some(a), Some(b)) = (&self.schedule, &other.schedule) else { return 0 };
        if self.hash != other.hash {
            return 0;
        }
        let end = self.steps.min(other.steps);
        let is_evaluated = self.steps != other.steps && self.intervals.iter().all(|every| end.is_multiple_of(*every));
        let most = if is_evaluated { end } else { end.saturating_sub(1) };
        // Up to its decay a rate depends on nothing but these.
        let rise = |schedule: &LrSchedule| LrSchedule {
            hold_steps: 0,
            later_decays: Vec::new(),
            decay: Decay::Constant {},
            ..schedule.clone()
        };
        let first = match (a == b, rise(a) == rise(b)) {
            (true, _) => most,
            (false, true) => a.decay_start().min(b.decay_start()).min(most),
            (false, false) => 0,
        };
        (first..most).find(|step| a.rate(*step).to_bits() != b.rate(*step).to_bits()).unwrap_or(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{compiled, experiment};
    use runner_spec::experiment::{Experiment, ScheduleLength};
    use runner_spec::schedule::DecayTarget;

    /// The trajectory of a run of `steps` steps whose rate decays over the last `decay` of them.
    fn trajectory(steps: u64, decay: u64, change: impl FnOnce(&mut Experiment)) -> Trajectory {
        let mut experiment = experiment();
        experiment.train.steps = Some(steps);
        experiment.schedule.decay = Decay::Linear(DecayTarget { last: 0.0, length: None });
        experiment.schedule.cooldown = Some(ScheduleLength::Steps(decay).into());
        change(&mut experiment);
        Trajectory::of(&compiled(&experiment))
    }

    #[test]
    fn runs_with_other_ends_share_their_beginning() {
        let [short, long] = [trajectory(100, 20, |_| {}), trajectory(400, 80, |_| {})];
        // The rate falls for the first time after the first step of the decay, which still has the peak.
        assert_eq!((short.shared_steps(&long), long.shared_steps(&short)), (81, 81));
        let same_end = trajectory(400, 350, |_| {});
        assert_eq!((same_end.shared_steps(&long), same_end.shared_steps(&short)), (51, 51));
        assert_eq!(short.shared_steps(&short), 99, "their ends are the same, and nothing follows");
        let constant = |steps| {
            trajectory(steps, 1, |experiment| {
                (experiment.schedule.decay, experiment.schedule.cooldown) = (Decay::Constant {}, None);
            })
        };
        assert_eq!(constant(100).shared_steps(&constant(200)), 100, "both are evaluated after step 100");
        assert_eq!(constant(110).shared_steps(&constant(200)), 109, "only one is evaluated after step 110");
    }

    /// Both decay over the last 20 steps before step 100; the longer run continues from the peak.
    #[test]
    fn a_run_that_continues_after_a_decay_shares_it() {
        let long = trajectory(400, 20, |experiment| {
            experiment.schedule.cooldown.iter_mut().for_each(|cooldown| cooldown.at = vec![ScheduleLength::Steps(100)]);
        });
        assert_eq!(long.shared_steps(&trajectory(100, 20, |_| {})), 100);
        assert_eq!(long.shared_steps(&trajectory(400, 20, |_| {})), 81);
    }

    #[test]
    fn runs_that_compute_something_else_share_nothing() {
        let base = trajectory(100, 20, |_| {});
        let changes: [fn(&mut Experiment); 3] = [
            |experiment| experiment.seed.data += 1,
            |experiment| experiment.train.clip_norm = Some(0.123),
            |experiment| experiment.eval.every += 1,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(base.shared_steps(&trajectory(100, 20, change)), 0, "change {number}");
        }
    }
}
