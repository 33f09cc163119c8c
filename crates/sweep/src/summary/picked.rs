//! Settings that were picked from sweeps. The results of a sweep tempt to compare only its best settings, and then all settings of the sweep
//! were candidates: a p-value must count them, and the sweep itself may have shown nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use runner_record::manifest::SweepPoint;
use runner_spec::format::{counted, printable};
use serde::Serialize;

use crate::progress::SweepProgress;
use crate::record::{SweepRecord, sweep_dir};
use crate::summary::SweepSummary;
use crate::verdict::{Conclusion, SettingOrigin, SettingResult};

/// A sweep that trained some of the compared runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PickedFrom {
    pub sweep: String,
    /// The number of its settings that have a result, and the number of those that are compared here; `None` if the sweep cannot be read.
    pub settings: Option<usize>,
    pub compared: Option<usize>,
    /// What the sweep compares its settings by, such as `val_loss (at: best)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<String>,
    /// What the sweep itself shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<Conclusion>,
    /// The same in words.
    pub words: Vec<String>,
}

/// The sweeps of the compared runs.
#[derive(Debug, Clone, Default)]
pub struct PickedSettings {
    pub from: Vec<PickedFrom>,
    pub origin: SettingOrigin,
}

impl PickedSettings {
    /// Finds the sweeps of `points`, each with the folder of runs, and what they compared apart from `points` and from the settings of these
    /// `mathematics`. A setting of several sweeps counts once.
    #[must_use]
    pub fn find(points: &[(PathBuf, SweepPoint)], mathematics: &BTreeSet<String>) -> Self {
        let mut found = Self::default();
        let mut others: BTreeSet<String> = BTreeSet::new();
        let sweeps: BTreeSet<(&Path, &str)> =
            points.iter().map(|(root, point)| (root.as_path(), point.id.as_str())).collect();
        for (root, id) in sweeps {
            let own = points.iter().filter(|(other, point)| other == root && point.id == id);
            let own: Vec<usize> = own.map(|(_, point)| point.point).collect();
            let Some((record, summary)) = read(root, id) else {
                found.from.push(PickedFrom {
                    sweep: id.to_owned(),
                    settings: None,
                    compared: None,
                    objective: None,
                    conclusion: None,
                    words: Vec::new(),
                });
                continue;
            };
            let verdict = summary.verdict;
            let identity = |setting: &SettingResult| {
                let planned = setting.points.first().and_then(|point| record.point(*point));
                let of_plan = planned.and_then(|point| point.mathematics.clone());
                of_plan.unwrap_or_else(|| format!("{id}: {}", setting.name))
            };
            let is_compared = |setting: &&SettingResult| {
                own.iter().any(|point| setting.has_point(*point)) || mathematics.contains(&identity(setting))
            };
            let measured = || verdict.settings.iter().filter(|setting| setting.sample.is_some());
            let compared = measured().filter(is_compared).count();
            others.extend(measured().filter(|setting| !is_compared(setting)).map(identity));
            if record.is_ladder && compared > 1 {
                found.origin.ladders.push(id.to_owned());
            }
            found.from.push(PickedFrom {
                sweep: id.to_owned(),
                settings: Some(measured().count()),
                compared: Some(compared),
                objective: Some(record.objective.label()),
                conclusion: Some(verdict.conclusion),
                words: verdict.words,
            });
        }
        found.origin.others = others.len();
        found
    }

    /// True if the points are of at most one setting of a single sweep.
    #[must_use]
    pub fn is_one_setting(&self) -> bool {
        matches!(self.from.as_slice(), [one] if one.compared.is_some_and(|compared| compared < 2))
    }

    /// What a reader must know of it, a sentence each. Nothing if all settings of the sweeps are compared.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let note = |PickedFrom { sweep, settings, compared, words, .. }: &PickedFrom| {
            let sweep = printable(sweep);
            let (Some(settings), Some(compared)) = (settings, compared) else {
                return Some(format!(
                    "the sweep {sweep}, which trained some of these runs, cannot be read, so the number of settings that it compared \
                     is unknown: if these were picked by their results, a p-value of them is too small"
                ));
            };
            let conclusion = words.first().filter(|_| (1..*settings).contains(compared))?;
            let which = counted(*compared as u64, "setting");
            Some(format!(
                "picked: {which} of the {settings} that the sweep {sweep} compared; the sweep itself says: {}",
                printable(conclusion)
            ))
        };
        self.from.iter().filter_map(note).collect()
    }

    /// The same, and what it means for p-values.
    #[must_use]
    pub fn notes_on_p_values(&self) -> Vec<String> {
        let mut notes = self.notes();
        if self.origin.others > 0 && self.origin.ladders.is_empty() {
            let others = counted(self.origin.others as u64, "setting");
            notes.push(format!("p-values are also corrected for {others} of these sweeps not compared here"));
        }
        notes
    }
}

fn read(root: &Path, id: &str) -> Option<(SweepRecord, SweepSummary)> {
    let folder = sweep_dir::folder_of_id(root, id)?;
    let record = sweep_dir::read_record(&folder).ok()?;
    let summary = SweepSummary::new(&folder, &record, &SweepProgress::read(root, &record));
    Some((record, summary))
}
