//! The learning rate of each step: a pure function of the schedule and the step.

use std::f64::consts::PI;

use runner_spec::program::{LrDecay, LrSchedule};

/// The learning rate of `step`, counting from 0.
///
/// Warmup covers steps 0 … `warmup_steps` - 1. Without `warmup_from` it is peak·(step+1)/`warmup_steps`, so the peak is
/// reached by its last step; with it, linear from `warmup_from`·peak at step 0 to the peak at step `warmup_steps`. Decay
/// counts from the end of the warmup, and stays at its final value once it is over.
pub fn lr_at(schedule: &LrSchedule, step: u64) -> f64 {
    let peak = schedule.peak;
    if step < schedule.warmup_steps {
        let warmup = schedule.warmup_steps as f64;
        return match schedule.warmup_from {
            None => peak * (step + 1) as f64 / warmup,
            Some(from) => peak * (from + (1.0 - from) * step as f64 / warmup),
        };
    }
    let since = step - schedule.warmup_steps;
    match schedule.decay {
        LrDecay::Constant => peak,
        LrDecay::Cosine { last, steps } => {
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
        LrSchedule { peak: 6e-4, warmup_steps, warmup_from, decay }
    }

    /// Within a few units in the last place: the expected values are computed by hand, in another order.
    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-15 * 6e-4_f64.max(want.abs()), "{got:e} is not {want:e}");
    }

    #[test]
    fn warmup_then_cosine() {
        let s = schedule(10, None, LrDecay::Cosine { last: 0.1, steps: 40 });
        close(lr_at(&s, 0), 6e-5);
        close(lr_at(&s, 4), 3e-4);
        close(lr_at(&s, 9), 6e-4);
        close(lr_at(&s, 10), 6e-4);
        // Half-way the cosine is 0: the mean of 6e-4 and 6e-5.
        close(lr_at(&s, 30), 3.3e-4);
        // 6e-5 + 0.5·(1 + cos(π·39/40))·5.4e-4, with cos(π·39/40) = -0.996917333733128.
        close(lr_at(&s, 49), 6e-5 + 0.5 * (1.0 - 0.996_917_333_733_128) * 5.4e-4);
        assert_eq!(lr_at(&s, 50), 0.1 * 6e-4);
        assert_eq!(lr_at(&s, u64::MAX), 0.1 * 6e-4);
    }

    #[test]
    fn warmup_from_a_fraction_reaches_the_peak_one_step_later() {
        let s = schedule(20, Some(0.1), LrDecay::Constant);
        close(lr_at(&s, 0), 6e-5);
        close(lr_at(&s, 10), 3.3e-4);
        // 0.1 + 0.9·19/20 = 0.955.
        close(lr_at(&s, 19), 5.73e-4);
        assert_eq!(lr_at(&s, 20), 6e-4);
        assert_eq!(lr_at(&s, 1_000_000), 6e-4);
    }

    #[test]
    fn linear_decay() {
        let s = schedule(0, None, LrDecay::Linear { last: 0.0, steps: 4 });
        let got: Vec<f64> = (0..6).map(|step| lr_at(&s, step)).collect();
        for (got, want) in got.iter().zip([6e-4, 4.5e-4, 3e-4, 1.5e-4, 0.0, 0.0]) {
            close(*got, want);
        }
    }

    #[test]
    fn step_decay_counts_from_the_end_of_the_warmup() {
        let s = schedule(3, None, LrDecay::Step { every: 5, gamma: 0.5 });
        assert_eq!(lr_at(&s, 7), 6e-4);
        assert_eq!(lr_at(&s, 8), 3e-4);
        assert_eq!(lr_at(&s, 13), 1.5e-4);
        assert_eq!(lr_at(&s, u64::MAX), 0.0);
    }

    /// 14 rows in steps of 8: epochs end within steps 1, 3, 5 …; 40 of them make 70 steps, whose last one is in epoch 39.
    #[test]
    fn epochs_that_are_no_whole_steps_do_not_add_up() {
        let s = schedule(0, None, LrDecay::Rows { rows: 14, sequences: 8, gamma: 0.5 });
        let drops: Vec<i32> = (0..9).map(|step| (lr_at(&s, step) / 6e-4).log2().round() as i32).collect();
        assert_eq!(drops, [0, 0, -1, -1, -2, -2, -3, -4, -4]);
        close(lr_at(&s, 69), 6e-4 * 0.5_f64.powi(39));
    }

    #[test]
    fn a_decay_of_no_steps_is_over_at_once() {
        assert_eq!(lr_at(&schedule(0, None, LrDecay::Cosine { last: 0.5, steps: 0 }), 0), 3e-4);
        assert_eq!(lr_at(&schedule(0, None, LrDecay::Step { every: 0, gamma: 0.5 }), 9), 6e-4);
    }
}
