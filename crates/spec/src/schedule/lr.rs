//! The learning rate of each step: a pure function of the schedule and the step.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::decay::{Decay, in_plan};
use crate::serde_defaults::is_default;

/// The learning rate over the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LrSchedule {
    pub peak: f64,
    /// The step, from 0, with which the warmup begins. Steps before it have the peak rate.
    #[serde(default, skip_serializing_if = "is_default")]
    pub start: u64,
    pub warmup_steps: u64,
    pub warmup_from: Option<f64>,
    /// Steps at the peak between warmup and decay.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hold_steps: u64,
    /// The steps, from 0, at which the decay starts again. Between a decay and the next one the rate is the peak.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later_decays: Vec<u64>,
    /// With all lengths filled in.
    #[serde(with = "in_plan")]
    pub decay: Decay,
}

impl LrSchedule {
    /// The learning rate of `step`, counting from 0.
    ///
    /// Warmup covers steps `start` … `start` + `warmup_steps` - 1. Without `warmup_from` it is peak·(n+1)/`warmup_steps` for its n-th step
    /// from 0, so the peak is reached by its last step; with it, linear from `warmup_from`·peak at `start` to the peak at `start` +
    /// `warmup_steps`. Then come `hold_steps` steps at the peak, and the decay, which starts again from the peak at each of
    /// `later_decays`. Once the last decay is over the rate stays at its final value, apart from a cosine that repeats.
    pub fn rate(&self, step: u64) -> f64 {
        let peak = self.peak;
        let Some(warmed) = step.checked_sub(self.start) else { return peak };
        if warmed < self.warmup_steps {
            let warmup = self.warmup_steps as f64;
            return match self.warmup_from {
                None => peak * (warmed + 1) as f64 / warmup,
                Some(from) => peak * (from + (1.0 - from) * warmed as f64 / warmup),
            };
        }
        let Some(since) = (warmed - self.warmup_steps).checked_sub(self.hold_steps) else { return peak };
        let later = self.later_decays.partition_point(|start| *start <= step);
        let since = later.checked_sub(1).map_or(since, |index| step - self.later_decays[index]);
        if later < self.later_decays.len() && self.decay.steps().is_some_and(|steps| since >= steps) {
            return peak;
        }
        self.decay.rate(peak, since)
    }

    /// The first step of the first decay, from 0.
    pub fn decay_start(&self) -> u64 {
        self.start.saturating_add(self.warmup_steps).saturating_add(self.hold_steps)
    }

    /// The steps, from 0, at which the rate may bend or jump. The turns of a decay that repeats are left out.
    pub fn corners(&self) -> Vec<u64> {
        let lengths = self.decay.corners();
        let decays = self.later_decays.iter().copied().chain([self.decay_start()]);
        let of_decay = |start: u64| lengths.iter().map(move |length| start.saturating_add(*length)).chain([start]);
        decays.flat_map(of_decay).chain([self.start, self.start.saturating_add(self.warmup_steps)]).collect()
    }

    /// The steps, from 0, of a run of `steps` steps whose rate is 0: the first one of the warmup, and those from some step to the last. Single
    /// steps between which the rate rises again are left out.
    pub fn zero_rate_steps(&self, steps: u64) -> Vec<Range<u64>> {
        let is_zero = |step: u64| self.rate(step) == 0.0;
        let mut zero = Vec::new();
        if self.warmup_steps > 0 && self.start < steps && is_zero(self.start) {
            zero.push(self.start..self.start + 1);
        }
        if self.decay.repeats() {
            return zero;
        }
        // A decay never rises, if it does not repeat.
        let (mut low, mut high) = (self.decay_start().min(steps), steps);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_zero(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        if low < steps {
            zero.push(low..steps);
        }
        zero
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{
        CosineDecay, CosineRepeat, DecayTarget, InverseSqrtDecay, PointShape, RowDecay, ScheduleLength, SchedulePoint,
        StepDecay,
    };

    fn schedule(warmup_steps: u64, warmup_from: Option<f64>, decay: Decay) -> LrSchedule {
        LrSchedule { peak: 6e-4, start: 0, warmup_steps, warmup_from, hold_steps: 0, later_decays: Vec::new(), decay }
    }

    fn cosine(last: f64, steps: u64) -> Decay {
        Decay::Cosine(CosineDecay { last, length: Some(ScheduleLength::Steps(steps)), ..CosineDecay::default() })
    }

    fn linear(steps: u64) -> Decay {
        Decay::Linear(DecayTarget { last: 0.0, length: Some(ScheduleLength::Steps(steps)) })
    }

    fn drops(every: u64, gamma: f64) -> Decay {
        Decay::Step(StepDecay { every: Some(ScheduleLength::Steps(every)), epochs: None, gamma })
    }

    #[test]
    fn the_peak_is_held_until_the_decay() {
        let held = LrSchedule { hold_steps: 5, ..schedule(2, None, linear(4)) };
        let rates = [3e-4, 6e-4, 6e-4, 6e-4, 6e-4, 6e-4, 6e-4, 6e-4, 4.5e-4, 3e-4, 1.5e-4, 0.0, 0.0];
        for (step, rate) in rates.into_iter().enumerate() {
            assert!((held.rate(step as u64) - rate).abs() < 1e-12, "step {step}: {}", held.rate(step as u64));
        }
        assert_eq!((held.decay_start(), held.zero_rate_steps(13).first()), (7, Some(&(11..13))));
    }

    /// WSD-S: decays over the last 4 steps before steps 10, 20 and 30, each followed by the peak.
    #[test]
    fn decays_continue_from_the_peak() {
        let once = LrSchedule { hold_steps: 4, ..schedule(2, None, linear(4)) };
        let again = LrSchedule { later_decays: vec![16, 26], ..once.clone() };
        for step in 0..10 {
            assert_eq!(again.rate(step), once.rate(step), "{step}");
        }
        let later: Vec<f64> = (10..20).map(|step| again.rate(step) / 6e-4).collect();
        let expected = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25];
        assert!(later.iter().zip(expected).all(|(got, want)| (got - want).abs() < 1e-12), "{later:?}");
        for step in 20..30 {
            assert_eq!(again.rate(step), again.rate(step - 10), "{step}");
        }
        assert_eq!(
            (again.rate(30), again.rate(99), again.decay_start(), again.zero_rate_steps(30)),
            (0.0, 0.0, 6, vec![])
        );
    }

    #[test]
    fn a_cosine_repeats_mirrored_or_from_the_peak() {
        let repeating = |repeat, period_factor| {
            schedule(
                2,
                None,
                Decay::Cosine(CosineDecay {
                    length: Some(ScheduleLength::Steps(10)),
                    repeat,
                    period_factor,
                    ..CosineDecay::default()
                }),
            )
        };
        let once = schedule(2, None, cosine(0.1, 10));
        // Falls over steps 2 to 12, rises to step 22, falls to step 32.
        let mirror = repeating(CosineRepeat::Mirror, 1);
        for step in 0..=10 {
            for same in [2 + step, 22 - step, 22 + step, 42 - step] {
                assert_eq!(mirror.rate(same), once.rate(2 + step), "{same}");
            }
        }
        // Periods of 10, 20 and 40 steps; halfway through each the rate is the mean of both ends.
        let restart = repeating(CosineRepeat::Restart, 2);
        for (start, period) in [(2, 10), (12, 20), (32, 40), (72, 80)] {
            close(restart.rate(start), 6e-4);
            close(restart.rate(start + period / 2), 3.3e-4);
            assert!(restart.rate(start + period - 1) < restart.rate(start + period - 2));
        }
        let restart = repeating(CosineRepeat::Restart, 1);
        for peak in [2, 12, 22, 1_000_002] {
            close(restart.rate(peak), 6e-4);
        }
        for decay in [mirror, restart, repeating(CosineRepeat::Restart, 1_000_000)] {
            assert!(decay.rate(u64::MAX) > 0.0);
        }
    }

    /// Within a few units in the last place: the expected values are computed by hand, in a different order.
    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-15 * 6e-4_f64.max(want.abs()), "{got:e} is not {want:e}");
    }

    #[test]
    fn a_cosine_follows_the_warmup() {
        let s = schedule(10, None, cosine(0.1, 40));
        close(s.rate(0), 6e-5);
        close(s.rate(4), 3e-4);
        close(s.rate(9), 6e-4);
        close(s.rate(10), 6e-4);
        // Half-way the cosine is 0: the mean of 6e-4 and 6e-5.
        close(s.rate(30), 3.3e-4);
        // 6e-5 + 0.5·(1 + cos(π·39/40))·5.4e-4, with cos(π·39/40) = -0.996917333733128.
        close(s.rate(49), 6e-5 + 0.5 * (1.0 - 0.996_917_333_733_128) * 5.4e-4);
        assert_eq!(s.rate(50), 0.1 * 6e-4);
        assert_eq!(s.rate(u64::MAX), 0.1 * 6e-4);
    }

    #[test]
    fn warmup_from_a_fraction_reaches_the_peak_one_step_later() {
        let s = schedule(20, Some(0.1), Decay::Constant {});
        close(s.rate(0), 6e-5);
        close(s.rate(10), 3.3e-4);
        // 0.1 + 0.9·19/20 = 0.955.
        close(s.rate(19), 5.73e-4);
        assert_eq!(s.rate(20), 6e-4);
        assert_eq!(s.rate(1_000_000), 6e-4);
    }

    #[test]
    fn a_linear_decay_falls_by_equal_steps() {
        let s = schedule(0, None, linear(4));
        let got: Vec<f64> = (0..6).map(|step| s.rate(step)).collect();
        for (got, want) in got.iter().zip([6e-4, 4.5e-4, 3e-4, 1.5e-4, 0.0, 0.0]) {
            close(*got, want);
        }
    }

    /// peak · (1 − √(n/16)) n steps after the start of a cooldown of 16 steps (Hägele et al. 2024): its roots are exact.
    #[test]
    fn a_square_root_decay_falls_as_published() {
        let sqrt = |share| Decay::Sqrt(DecayTarget { last: share, length: Some(ScheduleLength::Steps(16)) });
        let s = LrSchedule { hold_steps: 10, ..schedule(2, None, sqrt(0.0)) };
        let got = [11, 12, 13, 16, 21, 27, 28, 99].map(|step| s.rate(step) / 6e-4);
        for (got, want) in got.into_iter().zip([1.0, 1.0, 0.75, 0.5, 0.25, 1.0 - 15.0_f64.sqrt() / 4.0, 0.0, 0.0]) {
            assert!((got - want).abs() < 1e-15, "{got} is not {want}");
        }
        assert_eq!(s.zero_rate_steps(40).first(), Some(&(28..40)));
        // With a floor of a fifth, four fifths of the peak fall along the curve.
        close(schedule(0, None, sqrt(0.2)).rate(4), 6e-4 * (0.2 + 0.8 * 0.5));
    }

    /// fairseq's inverse_sqrt: a warmup from `warmup_init_lr`, then the peak times √(warmup / update) (Vaswani et al. 2017).
    #[test]
    fn an_inverse_square_root_falls_as_published() {
        let inverse_sqrt = |steps, hold_steps| LrSchedule {
            hold_steps,
            ..schedule(
                4,
                Some(0.25),
                Decay::InverseSqrt(InverseSqrtDecay { length: Some(ScheduleLength::Steps(steps)) }),
            )
        };
        let fairseq = |update: u64| match update {
            0..4 => 1.5e-4 + update as f64 * (6e-4 - 1.5e-4) / 4.0,
            _ => 6e-4 * 4.0_f64.sqrt() * (update as f64).powf(-0.5),
        };
        for step in 0..100 {
            close(inverse_sqrt(4, 0).rate(step), fairseq(step));
        }
        // T5 holds the peak for its first steps.
        for step in 4..100 {
            close(inverse_sqrt(16, 12).rate(step), 6e-4 * (16.0 / step.max(16) as f64).sqrt());
        }
        assert_eq!([16, 64, 256].map(|step| inverse_sqrt(16, 12).rate(step)), [6e-4, 3e-4, 1.5e-4]);
        assert_eq!(inverse_sqrt(4, 0).zero_rate_steps(u64::MAX), []);
    }

    #[test]
    fn a_piecewise_schedule_follows_its_points() {
        let point = |at, factor, shape| SchedulePoint { at: ScheduleLength::Steps(at), factor, shape };
        let falling = vec![
            point(4, 1.0, PointShape::Linear),
            point(8, 0.5, PointShape::Linear),
            point(12, 0.25, PointShape::Hold),
            point(28, 0.0, PointShape::Sqrt),
        ];
        let s = schedule(2, None, Decay::Piecewise(falling));
        let factors =
            [(0, 0.5), (2, 1.0), (5, 1.0), (6, 1.0), (8, 0.75), (10, 0.5), (13, 0.5), (14, 0.25), (18, 0.125)];
        for (step, factor) in factors.into_iter().chain([(23, 0.0625), (30, 0.0), (u64::MAX, 0.0)]) {
            close(s.rate(step), factor * 6e-4);
        }
        assert_eq!(s.zero_rate_steps(40).first(), Some(&(30..40)));
        // Two points are a decay with an end; the shapes are those of decays.
        let two = |shape| schedule(2, None, Decay::Piecewise(vec![point(10, 0.1, shape)]));
        let sqrt = Decay::Sqrt(DecayTarget { last: 0.1, length: Some(ScheduleLength::Steps(10)) });
        for (shape, decay) in [(PointShape::Cosine, cosine(0.1, 10)), (PointShape::Sqrt, sqrt)] {
            for step in 0..20 {
                close(two(shape).rate(step), schedule(2, None, decay.clone()).rate(step));
            }
        }
        // A point may raise the rate, and one at the end of the warmup sets it.
        let rising = vec![
            point(0, 0.5, PointShape::Linear),
            point(4, 0.0, PointShape::Linear),
            point(8, 1.0, PointShape::Linear),
        ];
        let s = schedule(2, None, Decay::Piecewise(rising));
        for (step, factor) in [(1, 1.0), (2, 0.5), (4, 0.25), (6, 0.0), (8, 0.5), (10, 1.0), (99, 1.0)] {
            close(s.rate(step), factor * 6e-4);
        }
        assert_eq!(s.zero_rate_steps(40), []);
    }

    #[test]
    fn step_decay_counts_from_the_end_of_the_warmup() {
        let s = schedule(3, None, drops(5, 0.5));
        assert_eq!(s.rate(7), 6e-4);
        assert_eq!(s.rate(8), 3e-4);
        assert_eq!(s.rate(13), 1.5e-4);
        assert_eq!(s.rate(u64::MAX), 0.0);
    }

    /// 14 rows in steps of 8: epochs end within steps 1, 3, 5 …; 40 of them make 70 steps, whose last one is in epoch 39.
    #[test]
    fn epochs_that_are_not_whole_steps_do_not_add_up() {
        let s = schedule(0, None, Decay::Rows(RowDecay { rows: 14, sequences: 8, gamma: 0.5 }));
        let drops: Vec<i32> = (0..9).map(|step| (s.rate(step) / 6e-4).log2().round() as i32).collect();
        assert_eq!(drops, [0, 0, -1, -1, -2, -2, -3, -4, -4]);
        close(s.rate(69), 6e-4 * 0.5_f64.powi(39));
    }

    #[test]
    fn a_decay_of_no_steps_is_over_at_once() {
        assert_eq!(schedule(0, None, cosine(0.5, 0)).rate(0), 3e-4);
        assert_eq!(schedule(0, None, drops(0, 0.5)).rate(9), 6e-4);
    }

    #[test]
    fn a_schedule_counts_from_its_start() {
        let s = LrSchedule { start: 300, ..schedule(0, None, linear(4)) };
        let got = [0, 299, 300, 301, 303, 304].map(|step| s.rate(step));
        for (got, want) in got.into_iter().zip([6e-4, 6e-4, 6e-4, 4.5e-4, 1.5e-4, 0.0]) {
            close(got, want);
        }
        // A warmup of 4 steps from step 10 on, then the decay.
        let s = LrSchedule { start: 10, ..schedule(4, None, linear(4)) };
        let got: Vec<f64> = (9..18).map(|step| s.rate(step)).collect();
        for (got, want) in got.iter().zip([6e-4, 1.5e-4, 3e-4, 4.5e-4, 6e-4, 6e-4, 4.5e-4, 3e-4, 1.5e-4]) {
            close(*got, want);
        }
    }

    #[test]
    fn steps_with_a_rate_of_zero_are_found() {
        let zero = |schedule: LrSchedule, steps| -> Vec<(u64, u64)> {
            schedule.zero_rate_steps(steps).iter().map(|zero| (zero.start, zero.end)).collect()
        };
        // Decays to 0 over the first 100 steps of 400.
        assert_eq!(zero(schedule(0, None, linear(100)), 400), [(100, 400)]);
        assert_eq!(zero(schedule(20, Some(0.0), linear(100)), 400), [(0, 1), (120, 400)]);
        assert_eq!(zero(schedule(20, None, linear(380)), 400), []);
        assert_eq!(zero(LrSchedule { start: 300, ..schedule(0, None, linear(100)) }, 400), []);
        assert_eq!(zero(LrSchedule { start: 290, ..schedule(0, None, linear(100)) }, 400), [(390, 400)]);
        assert_eq!(zero(schedule(0, None, Decay::Constant {}), u64::MAX), []);
        // 6e-4 times a tenth n times: below the smallest number of f64, 4.9e-324, from n = 321 on.
        let tenths = schedule(0, None, drops(2, 0.1));
        let found = zero(tenths.clone(), 1000);
        let first = found[0].0;
        assert_eq!((found.len(), found[0].1, tenths.rate(first), tenths.rate(first - 1) > 0.0), (1, 1000, 0.0, true));
        assert!((638..=644).contains(&first), "{first}");
    }
}
