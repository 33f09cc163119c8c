//! The learning rate of each step: a pure function of the schedule and the step.

use std::f64::consts::PI;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::experiment::CosineRepeat;
use crate::serde_defaults::{is_default, is_one, one};

/// The learning rate over the steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
    pub decay: LrDecay,
}

/// `last` is the final fraction of the peak; `steps` counts from the start of the decay.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrDecay {
    /// Half a period of the cosine, and what follows it. With restarts, each period has `period_factor` times the steps of the one before.
    Cosine {
        last: f64,
        steps: u64,
        #[serde(default, skip_serializing_if = "is_default")]
        repeat: CosineRepeat,
        #[serde(default = "one", skip_serializing_if = "is_one")]
        period_factor: u64,
    },
    /// A straight line.
    Linear { last: f64, steps: u64 },
    /// Times `gamma` after every `every` steps.
    Step { every: u64, gamma: f64 },
    /// Times `gamma` at the first step that begins `rows` rows, or a multiple of them, after the warmup; a step has `sequences` rows.
    Rows { rows: u64, sequences: u64, gamma: f64 },
    /// The peak throughout.
    Constant,
}

impl LrSchedule {
    /// The learning rate of `step`, counting from 0.
    ///
    /// Warmup covers steps `start` … `start` + `warmup_steps` - 1. Without `warmup_from` it is peak·(n+1)/`warmup_steps` for its n-th step
    /// from 0, so the peak is reached by its last step; with it, linear from `warmup_from`·peak at `start` to the peak at `start` +
    /// `warmup_steps`. Then come `hold_steps` steps at the peak, and the decay. Once that is over the rate stays at its final
    /// value, apart from a cosine that repeats.
    pub fn rate(&self, step: u64) -> f64 {
        let peak = self.peak;
        let Some(step) = step.checked_sub(self.start) else { return peak };
        if step < self.warmup_steps {
            let warmup = self.warmup_steps as f64;
            return match self.warmup_from {
                None => peak * (step + 1) as f64 / warmup,
                Some(from) => peak * (from + (1.0 - from) * step as f64 / warmup),
            };
        }
        let Some(since) = (step - self.warmup_steps).checked_sub(self.hold_steps) else { return peak };
        match self.decay {
            LrDecay::Constant => peak,
            LrDecay::Cosine { last, steps, repeat, period_factor } => {
                let (since, steps) = match repeat {
                    CosineRepeat::Never => (since, steps),
                    CosineRepeat::Mirror => (mirrored(since, steps), steps),
                    CosineRepeat::Restart => restarted(since, steps, period_factor),
                };
                decay_to(last * peak, peak, since, steps, |ratio| 0.5 * (1.0 + (PI * ratio).cos()))
            }
            LrDecay::Linear { last, steps } => decay_to(last * peak, peak, since, steps, |ratio| 1.0 - ratio),
            LrDecay::Step { every, gamma } => after_drops(peak, gamma, since.checked_div(every).unwrap_or(0)),
            LrDecay::Rows { rows, sequences, gamma } => {
                let seen = u128::from(since) * u128::from(sequences);
                let times = seen.checked_div(u128::from(rows)).map_or(0, |n| n.min(u128::from(u64::MAX)) as u64);
                after_drops(peak, gamma, times)
            }
        }
    }

    /// The first step of the decay, from 0.
    pub fn decay_start(&self) -> u64 {
        self.start.saturating_add(self.warmup_steps).saturating_add(self.hold_steps)
    }

    /// The steps, from 0, of a run of `steps` steps whose rate is 0: the first one of the warmup, and those from some step to the last. Single
    /// steps between which the rate rises again are left out.
    pub fn zero_rate_steps(&self, steps: u64) -> Vec<Range<u64>> {
        let is_zero = |step: u64| self.rate(step) == 0.0;
        let mut zero = Vec::new();
        if self.warmup_steps > 0 && self.start < steps && is_zero(self.start) {
            zero.push(self.start..self.start + 1);
        }
        if matches!(self.decay, LrDecay::Cosine { repeat: CosineRepeat::Mirror | CosineRepeat::Restart, .. }) {
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

/// The step of a decay over `steps` steps that has the rate of step `since` of one that rises and falls again.
fn mirrored(since: u64, steps: u64) -> u64 {
    let phase = since.checked_rem(steps.saturating_mul(2)).unwrap_or(since);
    phase.min(steps.saturating_mul(2) - phase.min(steps.saturating_mul(2)))
}

/// The step within its period, and the steps of this period, of step `since`; the first period has `steps` steps, and each one `factor` times
/// as many as the one before.
fn restarted(since: u64, steps: u64, factor: u64) -> (u64, u64) {
    if factor <= 1 {
        return (since.checked_rem(steps).unwrap_or(since), steps);
    }
    let (mut since, mut period) = (since, steps.max(1));
    while since >= period {
        since -= period;
        period = period.saturating_mul(factor);
    }
    (since, period)
}

/// `peak` after `times` drops. A power of a gamma below 1 is 0 in f64 long before the exponent saturates.
fn after_drops(peak: f64, gamma: f64, times: u64) -> f64 {
    peak * gamma.powi(i32::try_from(times).unwrap_or(i32::MAX))
}

/// A decay from `max` to `min` over `steps` steps; `share` maps the part of the steps that is over to the share of `max` - `min` that is
/// left.
fn decay_to(min: f64, max: f64, since: u64, steps: u64, share: impl Fn(f64) -> f64) -> f64 {
    if since < steps { min + share(since as f64 / steps as f64) * (max - min) } else { min }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(warmup_steps: u64, warmup_from: Option<f64>, decay: LrDecay) -> LrSchedule {
        LrSchedule { peak: 6e-4, start: 0, warmup_steps, warmup_from, hold_steps: 0, decay }
    }

    fn cosine(last: f64, steps: u64) -> LrDecay {
        LrDecay::Cosine { last, steps, repeat: CosineRepeat::Never, period_factor: 1 }
    }

    #[test]
    fn the_peak_is_held_until_the_decay() {
        let held = LrSchedule { hold_steps: 5, ..schedule(2, None, LrDecay::Linear { last: 0.0, steps: 4 }) };
        let rates = [3e-4, 6e-4, 6e-4, 6e-4, 6e-4, 6e-4, 6e-4, 6e-4, 4.5e-4, 3e-4, 1.5e-4, 0.0, 0.0];
        for (step, rate) in rates.into_iter().enumerate() {
            assert!((held.rate(step as u64) - rate).abs() < 1e-12, "step {step}: {}", held.rate(step as u64));
        }
        assert_eq!((held.decay_start(), held.zero_rate_steps(13).first()), (7, Some(&(11..13))));
    }

    #[test]
    fn a_cosine_that_repeats() {
        let repeating =
            |repeat, period_factor| schedule(2, None, LrDecay::Cosine { last: 0.1, steps: 10, repeat, period_factor });
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
    fn warmup_then_cosine() {
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
        let s = schedule(20, Some(0.1), LrDecay::Constant);
        close(s.rate(0), 6e-5);
        close(s.rate(10), 3.3e-4);
        // 0.1 + 0.9·19/20 = 0.955.
        close(s.rate(19), 5.73e-4);
        assert_eq!(s.rate(20), 6e-4);
        assert_eq!(s.rate(1_000_000), 6e-4);
    }

    #[test]
    fn linear_decay() {
        let s = schedule(0, None, LrDecay::Linear { last: 0.0, steps: 4 });
        let got: Vec<f64> = (0..6).map(|step| s.rate(step)).collect();
        for (got, want) in got.iter().zip([6e-4, 4.5e-4, 3e-4, 1.5e-4, 0.0, 0.0]) {
            close(*got, want);
        }
    }

    #[test]
    fn step_decay_counts_from_the_end_of_the_warmup() {
        let s = schedule(3, None, LrDecay::Step { every: 5, gamma: 0.5 });
        assert_eq!(s.rate(7), 6e-4);
        assert_eq!(s.rate(8), 3e-4);
        assert_eq!(s.rate(13), 1.5e-4);
        assert_eq!(s.rate(u64::MAX), 0.0);
    }

    /// 14 rows in steps of 8: epochs end within steps 1, 3, 5 …; 40 of them make 70 steps, whose last one is in epoch 39.
    #[test]
    fn epochs_that_are_not_whole_steps_do_not_add_up() {
        let s = schedule(0, None, LrDecay::Rows { rows: 14, sequences: 8, gamma: 0.5 });
        let drops: Vec<i32> = (0..9).map(|step| (s.rate(step) / 6e-4).log2().round() as i32).collect();
        assert_eq!(drops, [0, 0, -1, -1, -2, -2, -3, -4, -4]);
        close(s.rate(69), 6e-4 * 0.5_f64.powi(39));
    }

    #[test]
    fn a_decay_of_no_steps_is_over_at_once() {
        assert_eq!(schedule(0, None, cosine(0.5, 0)).rate(0), 3e-4);
        assert_eq!(schedule(0, None, LrDecay::Step { every: 0, gamma: 0.5 }).rate(9), 6e-4);
    }

    #[test]
    fn a_schedule_counts_from_its_start() {
        let linear = LrDecay::Linear { last: 0.0, steps: 4 };
        let s = LrSchedule { start: 300, ..schedule(0, None, linear) };
        let got = [0, 299, 300, 301, 303, 304].map(|step| s.rate(step));
        for (got, want) in got.into_iter().zip([6e-4, 6e-4, 6e-4, 4.5e-4, 1.5e-4, 0.0]) {
            close(got, want);
        }
        // A warmup of 4 steps from step 10 on, then the decay.
        let s = LrSchedule { start: 10, ..schedule(4, None, linear) };
        let got: Vec<f64> = (9..18).map(|step| s.rate(step)).collect();
        for (got, want) in got.iter().zip([6e-4, 1.5e-4, 3e-4, 4.5e-4, 6e-4, 6e-4, 4.5e-4, 3e-4, 1.5e-4]) {
            close(*got, want);
        }
    }

    #[test]
    fn steps_with_a_rate_of_zero_are_found() {
        let linear = |steps| LrDecay::Linear { last: 0.0, steps };
        let zero = |schedule: LrSchedule, steps| -> Vec<(u64, u64)> {
            schedule.zero_rate_steps(steps).iter().map(|zero| (zero.start, zero.end)).collect()
        };
        // Decays to 0 over the first 100 steps of 400.
        assert_eq!(zero(schedule(0, None, linear(100)), 400), [(100, 400)]);
        assert_eq!(zero(schedule(20, Some(0.0), linear(100)), 400), [(0, 1), (120, 400)]);
        assert_eq!(zero(schedule(20, None, linear(380)), 400), []);
        assert_eq!(zero(LrSchedule { start: 300, ..schedule(0, None, linear(100)) }, 400), []);
        assert_eq!(zero(LrSchedule { start: 290, ..schedule(0, None, linear(100)) }, 400), [(390, 400)]);
        assert_eq!(zero(schedule(0, None, LrDecay::Constant), u64::MAX), []);
        // 6e-4 times a tenth n times: below the smallest number of f64, 4.9e-324, from n = 321 on.
        let drops = schedule(0, None, LrDecay::Step { every: 2, gamma: 0.1 });
        let found = zero(drops, 1000);
        let first = found[0].0;
        assert_eq!((found.len(), found[0].1, drops.rate(first), drops.rate(first - 1) > 0.0), (1, 1000, 0.0, true));
        assert!((638..=644).contains(&first), "{first}");
    }
}
