//! What each stage or rank does when, in one step: as planned, and as measured in a step that was watched.

use std::collections::BTreeMap;

use serde::Serialize;

use runner_plan::timeline::timeline;
use runner_spec::forecast::Activity;
use runner_spec::plan::Plan;
use runner_store::timeline::MeasuredStep;

/// Bars that a picture has at most; more than this cannot be told apart.
const MOST_BARS: usize = 4000;
/// Rows that a picture has at most.
const MOST_ROWS: usize = 64;

/// One picture: a row per stage or rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gantt {
    /// Whether times are seconds; else units of a chunk's forward.
    pub in_seconds: bool,
    /// Length of the step, and how much of it is shown.
    pub end: f64,
    pub shown: f64,
    pub rows: Vec<Row>,
    /// Rows that are not shown.
    pub rows_left_out: usize,
    /// Which step it was, if it was one.
    pub step: Option<u64>,
}

/// A stage or a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub stage: Option<usize>,
    pub rank: Option<usize>,
    pub replica: Option<usize>,
    /// Share of the step in which it does nothing: the pipeline's bubble, and waiting for messages.
    pub idle: Option<f64>,
    pub bars: Vec<Bar>,
}

/// One thing that is done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bar {
    pub start: f64,
    pub end: f64,
    /// `None`: sending or receiving, which is waiting for the most part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<Activity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mb: Option<usize>,
    #[serde(skip_serializing_if = "is_zero")]
    pub chunk: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// The plan's timeline; `None` if it has none, or too many parts.
#[must_use]
pub fn planned(plan: &Plan) -> Option<Gantt> {
    // A plan from a damaged file must not lead beyond its own ranks.
    if plan.mesh.stages == 0 || plan.mesh.replicas == 0 || plan.ranks.len() != plan.mesh.world_size() {
        return None;
    }
    let timeline = timeline(plan)?;
    let mut rows: BTreeMap<usize, Vec<Bar>> = (0..timeline.bubbles.len()).map(|stage| (stage, Vec::new())).collect();
    for span in &timeline.spans {
        let bar = Bar { start: span.start, end: span.end, what: Some(span.what), mb: span.mb, chunk: span.chunk };
        rows.entry(span.stage).or_default().push(bar);
    }
    let row = |(stage, bars): (usize, Vec<Bar>)| Row {
        stage: Some(stage),
        rank: None,
        replica: None,
        idle: timeline.bubbles.get(stage).copied().filter(|b| b.is_finite()),
        bars,
    };
    Some(limited(Gantt {
        in_seconds: timeline.in_seconds,
        end: timeline.end,
        shown: timeline.end,
        rows: rows.into_iter().map(row).collect(),
        rows_left_out: 0,
        step: None,
    }))
}

/// A step that was watched, of a run of `plan`.
#[must_use]
pub fn measured(step: &MeasuredStep, plan: Option<&Plan>) -> Option<Gantt> {
    let mut rows: BTreeMap<usize, Vec<Bar>> = BTreeMap::new();
    for span in step.spans.iter().filter(|s| s.start.is_finite() && s.end.is_finite() && s.end >= s.start) {
        let bar = Bar { start: span.start, end: span.end, what: span.what, mb: span.mb, chunk: span.chunk };
        rows.entry(span.rank).or_default().push(bar);
    }
    if rows.is_empty() || !step.end.is_finite() || step.end <= 0.0 {
        return None;
    }
    let place = |rank: usize| plan.map(|p| p.mesh).filter(|mesh| mesh.replicas > 0).map(|mesh| mesh.place(rank));
    let row = |(rank, bars): (usize, Vec<Bar>)| Row {
        stage: place(rank).map(|p| p.0),
        rank: Some(rank),
        replica: place(rank).map(|p| p.1),
        idle: Some((1.0 - busy(&bars) / step.end).clamp(0.0, 1.0)),
        bars,
    };
    Some(limited(Gantt {
        in_seconds: true,
        end: step.end,
        shown: step.end,
        rows: rows.into_iter().map(row).collect(),
        rows_left_out: 0,
        step: Some(step.step),
    }))
}

/// Seconds in which something is computed: messages and collectives are waiting for the most part.
fn busy(bars: &[Bar]) -> f64 {
    let computes = |bar: &&Bar| !matches!(bar.what, None | Some(Activity::Reduce | Activity::Collective));
    let mut work: Vec<(f64, f64)> = bars.iter().filter(computes).map(|b| (b.start, b.end)).collect();
    work.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for (start, end) in work {
        sum += (end - start.max(until)).max(0.0);
        until = until.max(end);
    }
    sum
}

/// Leaves out rows beyond the first ones, then cuts the step where it has had as many bars as a picture can show.
fn limited(mut gantt: Gantt) -> Gantt {
    gantt.rows_left_out = gantt.rows.len().saturating_sub(MOST_ROWS);
    gantt.rows.truncate(MOST_ROWS);
    let mut ends: Vec<f64> = gantt.rows.iter().flat_map(|row| row.bars.iter().map(|bar| bar.end)).collect();
    if ends.len() > MOST_BARS {
        ends.sort_by(f64::total_cmp);
        gantt.shown = ends[MOST_BARS];
        for row in &mut gantt.rows {
            row.bars.retain(|bar| bar.end <= gantt.shown);
        }
    }
    gantt
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_spec::event::WatchedSpan as MeasuredSpan;
    use runner_store::timeline::FORMAT;

    fn span(rank: usize, what: Option<Activity>, start: f64, end: f64) -> MeasuredSpan {
        MeasuredSpan { rank, what, mb: Some(0), chunk: 0, start, end }
    }

    #[test]
    fn the_plan_has_a_row_a_stage() {
        let gantt = planned(&compiled(&experiment())).unwrap();
        assert_eq!((gantt.rows.len(), gantt.rows[0].stage, gantt.in_seconds), (1, Some(0), false));
        assert!(gantt.rows[0].bars.iter().any(|b| b.what == Some(Activity::Backward)));
    }

    #[test]
    fn a_plan_without_its_ranks_has_no_timeline() {
        let mut plan = compiled(&experiment());
        plan.ranks.clear();
        assert_eq!(planned(&plan), None);
        plan.mesh.stages = 0;
        assert_eq!(planned(&plan), None);
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
        let gantt =
            measured(&MeasuredStep { format: FORMAT, step: 7, end: 10.0, spans, memory: vec![] }, None).unwrap();
        assert_eq!((gantt.rows.len(), gantt.rows[0].rank, gantt.rows[0].idle), (1, Some(1), Some(0.5)));
        assert_eq!(gantt.step, Some(7));
        assert_eq!(
            measured(&MeasuredStep { format: FORMAT, step: 1, end: 0.0, spans: vec![], memory: vec![] }, None),
            None
        );
    }

    #[test]
    fn a_picture_has_limits() {
        let spans = (0..100_000).map(|i| {
            let start = f64::from(i / 100);
            span((i % 100) as usize, Some(Activity::Forward), start, start + 1.0)
        });
        let step = MeasuredStep { format: FORMAT, step: 1, end: 1000.0, spans: spans.collect(), memory: vec![] };
        let gantt = measured(&step, None).unwrap();
        assert_eq!((gantt.rows.len(), gantt.rows_left_out), (MOST_ROWS, 36));
        assert!(gantt.shown < 70.0 && gantt.rows[0].bars.len() > 50);
    }
}
