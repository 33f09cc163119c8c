//! The activities of each stage over the time of one step: as data, and as a grid of text.

use crate::forecast::simulate::{UnitCosts, simulate};
use runner_spec::forecast::{Activity, ForecastSpan, MAX_SPANS};
use runner_spec::plan::Plan;

/// Columns that a line may have for times.
const SHOWN_COLUMNS: usize = 146;

/// Columns of a whole step, of which the middle is cut out.
const MAX_COLUMNS: f64 = 10_000.0;

/// One step of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// True if times are seconds. If not, they are units of a chunk's forward (a whole backward takes two).
    pub in_seconds: bool,
    pub end: f64,
    pub spans: Vec<ForecastSpan>,
    /// Per stage, the share of the step in which it waits for others.
    pub bubbles: Vec<f64>,
}

/// The plan's forecast as a timeline; in units if the speed of its devices is unknown. `None` if it has too many
/// parts.
pub fn timeline(plan: &Plan) -> Option<Timeline> {
    if let Some(forecast) = plan.forecast.as_ref() {
        if forecast.spans.is_empty() {
            return None;
        }
        let bubbles = forecast.stages.iter().map(|s| s.bubble).collect();
        return Some(Timeline { in_seconds: true, end: forecast.step_seconds, spans: forecast.spans.clone(), bubbles });
    }
    let first = |stage| Some(&plan.ranks.get(plan.mesh.rank(stage, 0))?.program);
    let programs = (0..plan.mesh.stages).map(first).collect::<Option<Vec<_>>>()?;
    if programs.iter().map(|program| program.step.len()).sum::<usize>() > MAX_SPANS {
        return None;
    }
    let trace = simulate(&programs, plan.channel_slots, &UnitCosts)?;
    let bubbles = trace.stages.iter().map(|s| s.waiting / trace.seconds.max(f64::MIN_POSITIVE)).collect();
    Some(Timeline { in_seconds: false, end: trace.seconds, spans: trace.spans, bubbles })
}

impl Timeline {
    /// One line per stage, its bubble at the end; more than fits is cut out of the middle.
    pub fn grid(&self) -> Vec<String> {
        let works = || self.spans.iter().filter(|s| symbol(s.what).is_some());
        let widest = works().map(|s| label(s).chars().count()).max().unwrap_or(1) + 1;
        let shortest = works()
            .filter(|s| matches!(s.what, Activity::Forward | Activity::Input | Activity::Weight))
            .map(|s| s.end - s.start)
            .fold(f64::INFINITY, f64::min);
        if !shortest.is_finite() || self.end <= 0.0 {
            return Vec::new();
        }
        // A stage that is much faster than the others does not make the picture endless.
        let scale = (widest as f64 / shortest).min(MAX_COLUMNS / self.end);
        let columns = (self.end * scale).round() as usize;
        let half = (SHOWN_COLUMNS - 3) / 2;
        let cut = columns > SHOWN_COLUMNS;
        let stages = self.bubbles.len();
        let name = |stage: usize| format!("{stage:>width$}  ", width = (stages - 1).to_string().len());
        let mut lines: Vec<String> = Vec::new();
        for stage in 0..stages {
            let mut row = vec![' '; columns];
            for span in works().filter(|s| s.stage == stage) {
                let (from, to) = ((span.start * scale).round() as usize, (span.end * scale).round() as usize);
                write(&mut row, from, to.min(columns), &label(span));
            }
            let text: String = if cut {
                let last = row[columns - half..].iter();
                row[..half].iter().chain(&[' ', '…', ' ']).chain(last).collect()
            } else {
                row.into_iter().collect()
            };
            lines.push(format!("{}{text}  {:.1}%", name(stage), 100.0 * self.bubbles[stage]));
        }
        if cut {
            let percent = 100.0 * half as f64 / columns as f64;
            lines.push(format!("the first and the last {percent:.0}% of the step are shown"));
        }
        lines
    }
}

/// Writes `label` from column `from` on, then dashes for as long as it takes; the last column stays free.
fn write(row: &mut [char], from: usize, to: usize, label: &str) {
    let end = if to > from + 1 { to - 1 } else { to };
    for (cell, c) in row.iter_mut().take(end).skip(from).zip(label.chars().chain(std::iter::repeat('-'))) {
        *cell = c;
    }
}

/// `F3`, on the second chunk `F3'`, from the fourth on `F3:3`.
fn label(span: &ForecastSpan) -> String {
    let chunk = match span.chunk {
        0 => String::new(),
        1 | 2 => "'".repeat(span.chunk),
        n => format!(":{n}"),
    };
    let mb = span.mb.map_or_else(String::new, |mb| mb.to_string());
    format!("{}{mb}{chunk}", symbol(span.what).unwrap_or(' '))
}

/// The grid's symbol of an activity. Communication runs beside the computation and has none.
fn symbol(what: Activity) -> Option<char> {
    match what {
        Activity::Forward => Some('F'),
        Activity::Backward => Some('B'),
        Activity::Input => Some('I'),
        Activity::Weight => Some('W'),
        Activity::Update => Some('U'),
        Activity::Reduce | Activity::Collective => None,
    }
}
