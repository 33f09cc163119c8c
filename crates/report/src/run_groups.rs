//! Runs that differ in nothing but their seed, compared as the settings of a sweep are.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::run_to_compare::RunToCompare;
use crate::sweep_results::settings_table;
use runner_compare::run_names::{RunSettings, distinguishing_keys, shortest_name};
use runner_compare::run_record::RunFigures;
use runner_compare::settings::SettingGroup;
use runner_plan::comparability::find_incomparable;
use runner_record::catalog::ListedStatus;
use runner_record::metrics::MetricLine;
use runner_spec::event::Evaluation;
use runner_spec::format::printable;
use runner_spec::measure::Measure;
use runner_sweep::record::{PointSetting, SeedPoint, describe_values};
use runner_sweep::verdict::{Background, SweepVerdict};
use runner_sweep::{
    MeasurementChoice, Objective, PickedSettings, PointStatus, PointValues, ResultsRow, SweepResults, rows_of,
};

/// What the runs show of their settings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunGroups {
    /// The metric by which the settings are compared.
    pub metric: Measure,
    /// The ids of the runs of each setting, in the order of `verdict.settings`.
    pub runs: Vec<Vec<String>>,
    pub verdict: SweepVerdict,
    #[serde(skip)]
    objective: Objective,
}

/// The measures by which settings may be compared, the preferred one first.
const MEASURES: [Measure; 2] = [Measure::VAL_LOSS, Measure::BITS_PER_BYTE];

/// Groups `runs`, which have these settings, by what they have in common besides their seed, and compares the groups by the first metric
/// that all finished runs have and that compares between them. `None` if fewer than two runs are finished, or no metric compares; adds to
/// `notes` why runs are not compared. `picked`: the sweeps from which runs were picked.
#[must_use]
pub fn group_runs(
    runs: &[RunToCompare],
    settings: &[RunSettings],
    picked: &PickedSettings,
    notes: &mut Vec<String>,
) -> Option<RunGroups> {
    let figures: Vec<RunFigures> = runs.iter().map(|run| run.record.figures()).collect();
    let is_finished = |run: &RunToCompare| run.record.status == ListedStatus::Done;
    let is_training = |run: &RunToCompare| run.record.status == ListedStatus::Running;
    let finished: Vec<usize> = (0..runs.len()).filter(|&i| is_finished(&runs[i])).collect();
    if finished.len() < 2 {
        return None;
    }
    let metric = MEASURES.into_iter().find(|measure| {
        let bases = finished.iter().map(|&i| (runs[i].record.manifest.id.clone(), &runs[i].basis));
        finished.iter().all(|&i| figures[i].evaluated.get(measure).is_some())
            && find_incomparable(bases, &measure.quantity()).is_none()
    });
    let Some(metric) = metric else {
        notes.push(
            "the runs have no validation loss that compares, so none is the best; the training loss does not decide that".to_owned(),
        );
        return None;
    };
    let recorded = settings_of(runs, settings, notes);
    let objective = Objective::new(metric.clone(), MeasurementChoice::Last);
    let row = |(i, run): (usize, &RunToCompare)| {
        let evaluated = &figures[i].evaluated;
        let objective = evaluated.get(&metric);
        let status = if is_finished(run) { PointStatus::Done } else { PointStatus::Interrupted };
        ResultsRow {
            steps: figures[i].steps,
            tokens: figures[i].tokens,
            diverged: objective.is_some_and(|value| !value.is_finite())
                || run.record.summary.as_ref().is_some_and(|summary| summary.not_finite),
            objective,
            run: Some(run.record.manifest.id.clone()),
            seconds: figures[i].wall_seconds,
            own_seconds: figures[i].own_wall_seconds,
            rows: last_evaluation(run, &metric).and_then(|last| rows_of(&run.record.path, last, &metric)),
            measured_on: metric
                .error_factor(evaluated.val_loss(), objective)
                .and_then(|factor| Some(evaluated.val_sample()?.scaled(factor))),
            ..ResultsRow::new(i + 1, Vec::new(), status)
        }
    };
    let results = SweepResults::new(objective.clone(), runs.iter().enumerate().map(row).collect(), None);
    let (ladders, seen) = (picked.ladders.clone(), picked.seen.clone());
    let background = Background { ladders, seen, left_out: picked.left_out, ..Background::default() };
    let verdict = SweepVerdict::of_settings(&recorded, &results, !runs.iter().any(is_training), &background);
    if verdict.settings.len() < 2 && !verdict.has_seeds() {
        return None;
    }
    let ids = |points: &[usize]| points.iter().map(|point| runs[point - 1].record.manifest.id.clone()).collect();
    let runs = verdict.settings.iter().map(|setting| ids(&setting.points)).collect();
    Some(RunGroups { metric, runs, verdict, objective })
}

/// The last evaluation of `run` that has `metric`.
fn last_evaluation<'a>(run: &'a RunToCompare, metric: &Measure) -> Option<&'a Evaluation> {
    run.record.lines.iter().rev().find_map(|line| match line {
        MetricLine::Eval(evaluation) => evaluation.measured.get(metric).map(|_| evaluation),
        MetricLine::Train(_) => None,
    })
}

/// The settings of `runs`, in the order of their first runs. Runs whose settings differ only in rounding are of one setting. A second run of
/// a setting with the same seed counts for nothing, which `notes` say.
fn settings_of(runs: &[RunToCompare], settings: &[RunSettings], notes: &mut Vec<String>) -> Vec<PointSetting> {
    let without_seed = |settings: &RunSettings| -> RunSettings {
        // How a run is evaluated is compared by what its figures measure.
        let is_training = |key: &str| {
            !matches!(
                SettingGroup::of_key(key),
                SettingGroup::Seed | SettingGroup::Evaluation | SettingGroup::Bookkeeping
            )
        };
        settings.iter().filter(|(key, _)| is_training(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let common: Vec<RunSettings> = settings.iter().map(without_seed).collect();
    let is_same = |a: usize, b: usize| {
        let began = |run: &RunToCompare| {
            let from = run.record.manifest.continued_from.as_ref().filter(|from| !from.is_same_computation)?;
            Some((from.id.clone(), from.step))
        };
        let has_same_mathematics = runs[a].mathematics.is_some() && runs[a].mathematics == runs[b].mathematics;
        (common[a] == common[b] || has_same_mathematics)
            && runs[a].basis.has_same_training_data(&runs[b].basis)
            && began(&runs[a]) == began(&runs[b])
    };
    let all = common.iter().flat_map(BTreeMap::keys).cloned().collect();
    let mut groups: Vec<(usize, Vec<SeedPoint>)> = Vec::new();
    for i in 0..runs.len() {
        let seed = settings[i].get("seed").cloned().unwrap_or(Value::Null);
        let member = SeedPoint { point: i + 1, seed: vec![("seed".to_owned(), seed)] };
        match groups.iter_mut().find(|(first, _)| is_same(*first, i)) {
            Some((_, members)) => match members.iter().find(|other| other.seed == member.seed) {
                Some(other) => {
                    let [id, counted] = [i, other.point - 1].map(|i| printable(&runs[i].record.manifest.id));
                    let alone = if common[i] == common[other.point - 1] { "" } else { ", up to rounding" };
                    notes
                        .push(format!("{id} has the settings and the seed of {counted}{alone}; only {counted} counts"));
                }
                None => members.push(member),
            },
            None => groups.push((i, vec![member])),
        }
    }
    let firsts: Vec<&RunSettings> = groups.iter().map(|(first, _)| &common[*first]).collect();
    let keys = distinguishing_keys(&firsts);
    let named = |(first, points): (usize, Vec<SeedPoint>)| {
        let value = |key: &String| {
            let value = common[first].get(key).cloned().unwrap_or(Value::Null);
            (shortest_name(key, &all, &[]), value)
        };
        let values: PointValues = keys.iter().map(value).collect();
        let name = match describe_values(&values) {
            text if text.is_empty() => runs[first].record.manifest.id.clone(),
            text => text,
        };
        PointSetting { name, values, points }
    };
    let mut found: Vec<PointSetting> = groups.into_iter().map(named).collect();
    // Equal names would not distinguish the settings.
    let repeated: Vec<bool> =
        found.iter().map(|group| found.iter().filter(|other| other.name == group.name).count() > 1).collect();
    for (group, _) in found.iter_mut().zip(repeated).filter(|(_, repeated)| *repeated) {
        if let Some(first) = group.points.first() {
            group.name = format!("{} ({})", group.name, runs[first.point - 1].record.manifest.id);
        }
    }
    found
}

impl RunGroups {
    /// A row for each setting if one has several seeds, and what the runs show, in words.
    pub fn text(&self, width: Option<usize>) -> String {
        let table = if self.verdict.has_seeds() {
            settings_table(&self.verdict, &self.objective, width)
        } else {
            String::new()
        };
        let words = self.verdict.words.iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n");
        format!("{table}{words}\n")
    }
}
