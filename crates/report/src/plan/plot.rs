//! What changes over the steps of a run, drawn with characters: the learning rate; the batch, the length of its sequences and the windows, if the
//! run has stages.

use std::collections::{BTreeMap, BTreeSet};

use runner_spec::format::{count, scientific};
use runner_spec::model::ModelSpec;
use runner_spec::program::Program;

/// Characters of a drawing.
const WIDTH: u64 = 64;
/// Lines of the drawing of the learning rate, and of others.
const RATE_HEIGHT: usize = 8;
const HEIGHT: usize = 3;
/// Steps of a part whose values are computed, at most.
const SAMPLES: u64 = 64;
/// Eighths of a character, from below.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Above the smallest value of a bar.
const LIGHT: char = '░';

/// The drawings of `program`, each with its name.
pub(super) fn drawings(program: &Program) -> Vec<(String, Vec<String>)> {
    let steps = program.steps;
    let corners: Vec<u64> =
        program.schedule.corners().into_iter().chain(program.earlier.iter().map(|stage| stage.until)).collect();
    let rate = plot(|step| program.schedule.rate(step), steps, &corners, RATE_HEIGHT, scientific);
    let mut drawings = vec![("rate by step".to_owned(), rate)];
    let of_stages = |value: &dyn Fn(u64) -> usize| {
        let changes = program.earlier.iter().any(|stage| value(stage.until) != value(0));
        let count = |value: f64| count(value as u64);
        if changes { plot(|step| value(step) as f64, steps, &corners, HEIGHT, count) } else { Vec::new() }
    };
    drawings.push(("sequences".to_owned(), of_stages(&|step| program.batch_at(step).sequences)));
    drawings.push(("length".to_owned(), of_stages(&|step| program.batch_at(step).length)));
    for own in program.model.options.windows() {
        let window = |step| stage_windows(&program.model, program.model_at(step)).get(&own).copied().unwrap_or(own);
        drawings.push((format!("window {own}"), of_stages(&|step| window(step) as usize)));
    }
    drawings.retain(|(_, lines)| !lines.is_empty());
    drawings
}

/// Each window of `own`, the model after the last stage, with the window that the model of a stage has in its place.
pub(super) fn stage_windows(own: &ModelSpec, of_stage: &ModelSpec) -> BTreeMap<u32, u32> {
    let of = |model: &ModelSpec| -> Vec<u32> {
        let options = &model.options;
        options.window.into_iter().chain(options.pattern.iter().filter_map(|layer| layer.window)).collect()
    };
    of(own).into_iter().zip(of(of_stage)).collect()
}

/// Lines with a bar for each part of `steps` steps, as high as its largest value, with a scale from 0 to the largest of all. A bar is light above
/// the smallest value of a part in which the value rises and falls; a last line then says so. The value may bend or jump at `corners`.
fn plot(
    value: impl Fn(u64) -> f64,
    steps: u64,
    corners: &[u64],
    height: usize,
    label: impl Fn(f64) -> String,
) -> Vec<String> {
    let columns = WIDTH.min(steps);
    let range = |column: u64| {
        let (start, end) = (part_start(column, steps, columns), part_start(column + 1, steps, columns));
        let samples = (end - start).min(SAMPLES);
        let evenly = (0..samples).map(|i| start + part_start(i, end - start, samples));
        let around = corners.iter().flat_map(|corner| [corner.saturating_sub(1), *corner]);
        let sampled: BTreeSet<u64> = evenly.chain(around).filter(|step| (start..end).contains(step)).collect();
        let values: Vec<f64> = sampled.into_iter().map(&value).collect();
        let [low, high] =
            values.iter().fold([f64::INFINITY, 0.0], |[low, high], &value| [value.min(low), value.max(high)]);
        let rises = values.windows(2).any(|pair| pair[1] > pair[0]);
        let falls = values.windows(2).any(|pair| pair[1] < pair[0]);
        if rises && falls { [low, high] } else { [high; 2] }
    };
    let ranges: Vec<[f64; 2]> = (0..columns).map(range).collect();
    let top = ranges.iter().map(|[_, high]| *high).fold(0.0, f64::max);
    if top <= 0.0 {
        return Vec::new();
    }
    let eighths = |value: f64| ((value / top * (8 * height) as f64).round() as usize).max(usize::from(value > 0.0));
    let label = label(top);
    let margin = label.chars().count();
    let row = |row: usize| {
        let below = 8 * (height - 1 - row);
        let label = if row == 0 { label.as_str() } else { "" };
        let bar = |[low, high]: &[f64; 2]| {
            let [low, high] = [low, high].map(|value| eighths(*value));
            let in_row = |height: usize| height.saturating_sub(below).min(8);
            if in_row(high) > in_row(low) { LIGHT } else { BARS[in_row(high)] }
        };
        let bars: String = ranges.iter().map(bar).collect();
        format!("{label:>margin$} ┤{}", bars.trim_end())
    };
    let mut lines: Vec<String> = (0..height).map(row).collect();
    lines.push(format!("{:>margin$} └{}", 0, "─".repeat(columns as usize)));
    let last = if steps > 1 { count(steps) } else { String::new() };
    let gap = (columns as usize).saturating_sub(1).max(last.len() + 1);
    lines.push(format!("{:margin$}  1{last:>gap$}", ""));
    if lines.iter().any(|line| line.contains(LIGHT)) {
        lines.push(format!("{:margin$}  {LIGHT} between the lowest and the highest value of the steps of a bar", ""));
    }
    lines
}

/// The first of `steps` steps in part `index` of `parts`.
fn part_start(index: u64, steps: u64, parts: u64) -> u64 {
    (u128::from(index) * u128::from(steps) / u128::from(parts.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::schedule::{CosineDecay, CosineRepeat, Decay, DecayTarget, LrSchedule, ScheduleLength};

    fn rates(schedule: &LrSchedule, steps: u64) -> Vec<String> {
        plot(|step| schedule.rate(step), steps, &schedule.corners(), RATE_HEIGHT, scientific)
    }

    fn schedule(warmup_steps: u64, hold_steps: u64, steps: u64) -> LrSchedule {
        let decay = Decay::Linear(DecayTarget { last: 0.0, length: Some(ScheduleLength::Steps(steps)) });
        let (start, warmup_from, later_decays) = (0, None, Vec::new());
        LrSchedule { peak: 6e-4, start, warmup_steps, warmup_from, hold_steps, later_decays, decay }
    }

    #[test]
    fn a_warmup_a_plateau_and_a_decay() {
        insta::assert_snapshot!(rates(&schedule(1000, 5000, 4000), 10_000).join("\n"));
    }

    #[test]
    fn rates_that_change_within_a_part_are_light() {
        let cosine = CosineDecay {
            last: 0.25,
            length: Some(ScheduleLength::Steps(10)),
            repeat: CosineRepeat::Restart,
            ..CosineDecay::default()
        };
        let schedule = LrSchedule { decay: Decay::Cosine(cosine), ..schedule(200, 300, 1) };
        insta::assert_snapshot!(rates(&schedule, 1000).join("\n"));
    }

    #[test]
    fn runs_of_few_steps_have_a_bar_for_each() {
        insta::assert_snapshot!(rates(&schedule(2, 0, 3), 5).join("\n"));
        assert!(rates(&schedule(0, 0, 1), 0).is_empty(), "no steps");
    }

    /// One step of 100,000 has another value, and one has a small one.
    #[test]
    fn what_is_shorter_than_a_sample_is_drawn() {
        let value = |step| match step {
            0 => 0.001,
            50_000 => 4.0,
            _ => 1.0,
        };
        let lines = plot(value, 100_000, &[1, 50_000, 50_001], HEIGHT, scientific);
        insta::assert_snapshot!(lines.join("\n"));
        assert!(!plot(|_| 1.0, 100, &[], HEIGHT, scientific).join("\n").contains(LIGHT), "no legend without need");
        let tiny = plot(|step| if step < 32 { 1e-9 } else { 1.0 }, 64, &[], HEIGHT, scientific);
        assert!(tiny[HEIGHT - 1].contains('▁'), "{tiny:?}");
    }
}
