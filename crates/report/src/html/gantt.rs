//! The activities of each stage or rank in one step, as planned and as measured.

use std::collections::BTreeMap;

use serde::Serialize;

use runner_plan::forecast::timeline::timeline;
use runner_spec::event::WatchedStep;
use runner_spec::forecast::Activity;
use runner_spec::plan::Plan;
use runner_spec::serde_defaults::is_default;

/// The largest number of bars in a picture; more cannot be distinguished.
const MAX_BARS: usize = 4000;
/// Rows of a picture at most.
const MAX_ROWS: usize = 64;

/// One picture, with a row per stage or rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Gantt {
    /// True if times are seconds; otherwise they are multiples of the forward of a chunk.
    pub(super) in_seconds: bool,
    /// The length of the step.
    pub(super) end: f64,
    /// The part of the step that is shown.
    pub(super) shown: f64,
    pub(super) rows: Vec<GanttRow>,
    /// The number of rows that are not shown.
    pub(super) rows_left_out: usize,
    /// The number of the measured step.
    pub(super) step: Option<u64>,
}

/// A stage or a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct GanttRow {
    pub(super) stage: Option<usize>,
    pub(super) rank: Option<usize>,
    pub(super) replica: Option<usize>,
    /// The share of the step without computation: the pipeline's bubble, and waiting for messages.
    pub(super) idle: Option<f64>,
    pub(super) bars: Vec<GanttBar>,
}

/// One activity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct GanttBar {
    pub(super) start: f64,
    pub(super) end: f64,
    /// `None` for sending or receiving, most of which is waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) what: Option<Activity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mb: Option<usize>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) chunk: usize,
}

/// The timeline of the plan; `None` if the plan has none, or one with too many parts.
pub(super) fn planned_gantt(plan: &Plan) -> Option<Gantt> {
    // The plan of a damaged file may have fewer ranks than its mesh.
    if plan.mesh.stages == 0 || plan.mesh.replicas == 0 || plan.ranks.len() != plan.mesh.world_size() {
        return None;
    }
    let timeline = timeline(plan)?;
    let mut rows: BTreeMap<usize, Vec<GanttBar>> =
        (0..timeline.bubbles.len()).map(|stage| (stage, Vec::new())).collect();
    for span in &timeline.spans {
        let bar = GanttBar { start: span.start, end: span.end, what: Some(span.what), mb: span.mb, chunk: span.chunk };
        rows.entry(span.stage).or_default().push(bar);
    }
    let row = |(stage, bars): (usize, Vec<GanttBar>)| GanttRow {
        stage: Some(stage),
        rank: None,
        replica: None,
        idle: timeline.bubbles.get(stage).copied().filter(|b| b.is_finite()),
        bars,
    };
    Some(gantt(timeline.in_seconds, timeline.end, rows.into_iter().map(row).collect(), None))
}

/// A measured step of a run of `plan`; `None` if nothing in it can be drawn.
pub(super) fn measured_gantt(step: &WatchedStep, plan: Option<&Plan>) -> Option<Gantt> {
    let mut rows: BTreeMap<usize, Vec<GanttBar>> = BTreeMap::new();
    for span in step.spans.iter().filter(|s| s.start.is_finite() && s.end.is_finite() && s.end >= s.start) {
        let bar = GanttBar { start: span.start, end: span.end, what: span.what, mb: span.mb, chunk: span.chunk };
        rows.entry(span.rank).or_default().push(bar);
    }
    if rows.is_empty() || !step.end.is_finite() || step.end <= 0.0 {
        return None;
    }
    let place =
        |rank: usize| plan.map(|p| p.mesh).filter(|mesh| mesh.replicas > 0).map(|mesh| mesh.stage_and_replica(rank));
    let row = |(rank, bars): (usize, Vec<GanttBar>)| GanttRow {
        stage: place(rank).map(|p| p.0),
        rank: Some(rank),
        replica: place(rank).map(|p| p.1),
        idle: Some((1.0 - computing_time(&bars) / step.end).clamp(0.0, 1.0)),
        bars,
    };
    Some(gantt(true, step.end, rows.into_iter().map(row).collect(), Some(step.step)))
}

/// The time in which something is computed. Messages and collectives do not count, because most of their time is waiting.
fn computing_time(bars: &[GanttBar]) -> f64 {
    let computes = |bar: &&GanttBar| !matches!(bar.what, None | Some(Activity::Reduce | Activity::Collective));
    let mut work: Vec<(f64, f64)> = bars.iter().filter(computes).map(|b| (b.start, b.end)).collect();
    work.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for (start, end) in work {
        sum += (end - start.max(until)).max(0.0);
        until = until.max(end);
    }
    sum
}

/// The picture of `rows`. Rows beyond the limit are left out; then the picture ends where the limit of bars is reached.
fn gantt(in_seconds: bool, end: f64, mut rows: Vec<GanttRow>, step: Option<u64>) -> Gantt {
    let rows_left_out = rows.len().saturating_sub(MAX_ROWS);
    rows.truncate(MAX_ROWS);
    let mut shown = end;
    let mut ends: Vec<f64> = rows.iter().flat_map(|row| row.bars.iter().map(|bar| bar.end)).collect();
    if ends.len() > MAX_BARS {
        ends.sort_by(f64::total_cmp);
        shown = ends[MAX_BARS];
        for row in &mut rows {
            row.bars.retain(|bar| bar.end <= shown);
        }
    }
    Gantt { in_seconds, end, shown, rows, rows_left_out, step }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_spec::event::WatchedSpan as MeasuredSpan;

    fn span(rank: usize, what: Option<Activity>, start: f64, end: f64) -> MeasuredSpan {
        MeasuredSpan { rank, what, mb: Some(0), chunk: 0, start, end }
    }

    #[test]
    fn the_plan_has_a_row_a_stage() {
        let gantt = planned_gantt(&compiled(&experiment())).unwrap();
        assert_eq!((gantt.rows.len(), gantt.rows[0].stage, gantt.in_seconds), (1, Some(0), false));
        assert!(gantt.rows[0].bars.iter().any(|b| b.what == Some(Activity::Backward)));
    }

    #[test]
    fn a_plan_without_its_ranks_has_no_timeline() {
        let mut plan = compiled(&experiment());
        plan.ranks.clear();
        assert_eq!(planned_gantt(&plan), None);
        plan.mesh.stages = 0;
        assert_eq!(planned_gantt(&plan), None);
    }

    #[test]
    fn waiting_is_idle_and_time_counts_once() {
        let spans = vec![
            span(1, Some(Activity::Forward), 0.0, 4.0),
            span(1, Some(Activity::Update), 3.0, 5.0),
            span(1, Some(Activity::Reduce), 2.0, 6.0),
            span(1, None, 5.0, 10.0),
            span(0, Some(Activity::Forward), f64::NAN, 1.0),
        ];
        let gantt = measured_gantt(&WatchedStep { step: 7, end: 10.0, spans, memory: vec![] }, None).unwrap();
        assert_eq!((gantt.rows.len(), gantt.rows[0].rank, gantt.rows[0].idle), (1, Some(1), Some(0.5)));
        assert_eq!(gantt.step, Some(7));
        assert_eq!(measured_gantt(&WatchedStep { step: 1, end: 0.0, spans: vec![], memory: vec![] }, None), None);
    }

    #[test]
    fn a_picture_has_limits() {
        let spans = (0..100_000).map(|i| {
            let start = f64::from(i / 100);
            span((i % 100) as usize, Some(Activity::Forward), start, start + 1.0)
        });
        let step = WatchedStep { step: 1, end: 1000.0, spans: spans.collect(), memory: vec![] };
        let gantt = measured_gantt(&step, None).unwrap();
        assert_eq!((gantt.rows.len(), gantt.rows_left_out), (MAX_ROWS, 36));
        assert!(gantt.shown < 70.0 && gantt.rows[0].bars.len() > 50);
    }
}
