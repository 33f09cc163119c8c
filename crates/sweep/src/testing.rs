//! A sweep for the tests of this crate and of others.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::record::{FORMAT, PlannedPoint, SweepRecord};
use crate::{AshaSettings, MeasurementChoice, MilestoneUnit, Objective, PointStatus, ResultsRow, SweepResults};
use runner_spec::measure::Measure;
use runner_spec::plan::Pace;

/// Three points, the last the same as the first; rungs at 10, 20 and 40 steps.
pub fn sweep() -> SweepRecord {
    let point = |index: usize, lr: f64| PlannedPoint {
        index,
        values: vec![("lr".to_owned(), json!(lr)), ("layers".to_owned(), json!(2))],
        name: "p".to_owned(),
        plan_hash: format!("{:064x}", lr.to_bits()),
        same_as: (index == 3).then_some(1),
        trunk: None,
        steps: 40,
        rungs: vec![10, 20, 40],
        pace: Pace { tokens_per_step: 64, flops_per_step: 1e6, ..Pace::default() },
        parameters: 1000,
        epochs: 1.0,
        layers: None,
        memory_bytes: 1 << 20,
        rank_memory_bytes: 0,
        step_seconds: None,
        is_prediction_disturbed: false,
        ranks: 1,
        cuda_devices: 0,
    };
    SweepRecord {
        format: FORMAT,
        id: "s-12345678".to_owned(),
        name: "s".to_owned(),
        created: "2026-01-01T00:00:00Z".to_owned(),
        version: "0".to_owned(),
        file: PathBuf::from("/s.yaml"),
        sources: Vec::new(),
        overrides: Vec::new(),
        environment: BTreeMap::new(),
        objective: Objective::new(Measure::VAL_LOSS, MeasurementChoice::Last),
        early_stop: Some(AshaSettings { unit: MilestoneUnit::Steps, first: 10.0, reduction: 2 }),
        budget: None,
        is_ladder: false,
        workers: 2,
        excluded: 0,
        seeds: vec!["seed".to_owned()],
        drawn: Vec::new(),
        seen: Vec::new(),
        points: vec![point(1, 1e-3), point(2, 1e-2), point(3, 1e-3)],
    }
}

/// A finished sweep: the points have these rates, seeds and results, and NaN stands for divergence.
pub fn finished(points: &[(Value, u64, f64)]) -> (SweepRecord, SweepResults) {
    let mut record = sweep();
    record.early_stop = None;
    let template = record.points[0].clone();
    let values =
        |(lr, seed, _): &(Value, u64, f64)| vec![("lr".to_owned(), lr.clone()), ("seed".to_owned(), json!(seed))];
    let numbered = || points.iter().enumerate().map(|(i, point)| (i + 1, point));
    record.points = numbered()
        .map(|(index, point)| PlannedPoint { index, values: values(point), same_as: None, ..template.clone() })
        .collect();
    let rows = numbered().map(|(index, point)| {
        let diverged = point.2.is_nan();
        let status = if diverged { PointStatus::Failed } else { PointStatus::Done };
        ResultsRow {
            steps: 40,
            objective: (!diverged).then_some(point.2),
            diverged,
            run: Some(index.to_string()),
            ..ResultsRow::new(index, values(point), status)
        }
    });
    let results = SweepResults::new(record.objective.clone(), rows.collect(), None);
    (record, results)
}
