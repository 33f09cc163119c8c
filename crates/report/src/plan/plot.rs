//! The learning rate over the steps of a run, drawn with characters.

use runner_spec::format::{count, scientific};
use runner_spec::schedule::LrSchedule;

/// Characters of the drawing.
const WIDTH: u64 = 64;
const HEIGHT: usize = 8;
/// Steps of a part whose rates are computed, at most.
const SAMPLES: u64 = 64;
/// Eighths of a character, from below.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Lines with a bar for each part of `steps` steps, as high as its largest learning rate, with a scale from 0 to the peak. A bar is light
/// above the smallest rate of a part in which the rate rises and falls.
pub(super) fn plot(schedule: &LrSchedule, steps: u64) -> Vec<String> {
    let columns = WIDTH.min(steps);
    let range = |column: u64| {
        let (start, end) = (part_start(column, steps, columns), part_start(column + 1, steps, columns));
        let samples = (end - start).min(SAMPLES);
        let rates: Vec<f64> =
            (0..samples).map(|i| schedule.rate(start + part_start(i, end - start, samples))).collect();
        let [low, high] = rates.iter().fold([f64::INFINITY, 0.0], |[low, high], &rate| [rate.min(low), rate.max(high)]);
        let rises = rates.windows(2).any(|pair| pair[1] > pair[0]);
        let falls = rates.windows(2).any(|pair| pair[1] < pair[0]);
        if rises && falls { [low, high] } else { [high; 2] }
    };
    let ranges: Vec<[f64; 2]> = (0..columns).map(range).collect();
    let top = ranges.iter().map(|[_, high]| *high).fold(0.0, f64::max);
    if top <= 0.0 {
        return Vec::new();
    }
    let eighths = |rate: f64| (rate / top * (8 * HEIGHT) as f64).round() as usize;
    let label = scientific(top);
    let margin = label.chars().count();
    let row = |row: usize| {
        let below = 8 * (HEIGHT - 1 - row);
        let label = if row == 0 { label.as_str() } else { "" };
        let bar = |[low, high]: &[f64; 2]| {
            let [low, high] = [low, high].map(|rate| eighths(*rate));
            let in_row = |height: usize| height.saturating_sub(below).min(8);
            if in_row(high) > in_row(low) { '░' } else { BARS[in_row(high)] }
        };
        let bars: String = ranges.iter().map(bar).collect();
        format!("{label:>margin$} ┤{}", bars.trim_end())
    };
    let mut lines: Vec<String> = (0..HEIGHT).map(row).collect();
    lines.push(format!("{:>margin$} └{}", 0, "─".repeat(columns as usize)));
    let last = if steps > 1 { count(steps) } else { String::new() };
    let gap = (columns as usize).saturating_sub(1).max(last.len() + 1);
    lines.push(format!("{:margin$}  1{last:>gap$}", ""));
    lines
}

/// The first of `steps` steps in part `index` of `parts`.
fn part_start(index: u64, steps: u64, parts: u64) -> u64 {
    (u128::from(index) * u128::from(steps) / u128::from(parts.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::schedule::{CosineDecay, CosineRepeat, Decay, DecayTarget};

    fn schedule(warmup_steps: u64, hold_steps: u64, steps: u64) -> LrSchedule {
        let decay = Decay::Linear(DecayTarget { share: 0.0, steps: Some(steps) });
        let (start, warmup_from, later_decays) = (0, None, Vec::new());
        LrSchedule { peak: 6e-4, start, warmup_steps, warmup_from, hold_steps, later_decays, decay }
    }

    #[test]
    fn a_warmup_a_plateau_and_a_decay() {
        insta::assert_snapshot!(plot(&schedule(1000, 5000, 4000), 10_000).join("\n"));
    }

    #[test]
    fn rates_that_change_within_a_part_are_light() {
        let cosine =
            CosineDecay { share: 0.25, steps: Some(10), repeat: CosineRepeat::Restart, ..CosineDecay::default() };
        let schedule = LrSchedule { decay: Decay::Cosine(cosine), ..schedule(200, 300, 1) };
        insta::assert_snapshot!(plot(&schedule, 1000).join("\n"));
    }

    #[test]
    fn runs_of_few_steps_have_a_bar_for_each() {
        insta::assert_snapshot!(plot(&schedule(2, 0, 3), 5).join("\n"));
        assert!(plot(&schedule(0, 0, 1), 0).is_empty(), "no steps");
    }
}
