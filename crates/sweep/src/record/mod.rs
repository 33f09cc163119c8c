//! `sweep.json`: the definition of a sweep, fixed when it starts. Its progress is in the run directories of its points.

pub(crate) mod file_changes;
mod seen_seeds;
pub mod sweep_dir;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::points::{PointValues, names_of, ordered, value_text};
use crate::spec::{AshaSettings, Budget, Objective};
use runner_compare::run_names::shortest_name;
use runner_plan::forecast::cost::ModelSize;
use runner_spec::format::json_bytes;
use runner_spec::plan::Pace;

pub use self::seen_seeds::{SeenSeed, SeenSeeds};

/// Version of the file.
pub const FORMAT: u32 = 1;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRecord {
    pub format: u32,
    /// The name of the sweep's folder.
    pub id: String,
    pub name: String,
    /// RFC 3339, UTC.
    pub created: String,
    /// The version of the program that planned the sweep.
    pub version: String,
    /// The absolute path of the sweep file. A copy of its text is in the sweep's folder.
    pub file: PathBuf,
    /// The other files that the points were made from: the experiment, or the template and its includes.
    pub sources: Vec<SourceHash>,
    /// The `--set` flags of the command.
    pub overrides: Vec<String>,
    /// The environment variables that were read.
    pub environment: BTreeMap<String, String>,
    pub objective: Objective,
    pub early_stop: Option<AshaSettings>,
    /// What each point may cost, if the file says so. The points' steps follow from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// True if the points are the rungs of a ladder.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ladder: bool,
    /// The number of workers in the simulation of ASHA, on which promotions depend.
    pub workers: usize,
    /// The number of points that `exclude` left out.
    pub excluded: usize,
    /// The names of what varies that change nothing but the seed.
    pub seeds: Vec<String>,
    /// The names whose values were drawn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drawn: Vec<String>,
    /// The seeds that earlier sweeps in the folder of runs had shown when this sweep started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seen: Vec<SeenSeeds>,
    pub points: Vec<PlannedPoint>,
}

/// The content hash of a file that points were made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceHash {
    pub path: PathBuf,
    pub blake3: String,
}

/// A point and the figures of its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedPoint {
    /// The number of the point, from 1.
    pub index: usize,
    #[serde(with = "ordered")]
    pub values: PointValues,
    /// The name of the point's experiment.
    pub name: String,
    pub plan_hash: String,
    /// The number of the earlier point that is the same run.
    pub same_as: Option<usize>,
    /// The beginning that the point shares with an earlier point, which trains it for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<SharedTrunk>,
    pub steps: u64,
    /// The steps after which the point is judged, ascending. The last one is `steps`.
    pub rungs: Vec<u64>,
    #[serde(flatten)]
    pub pace: Pace,
    pub parameters: u64,
    /// Epochs of the training data; 0 if an earlier version planned the point.
    #[serde(default)]
    pub epochs: f64,
    /// The size of the layers, if the law of a ladder counts only them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<ModelSize>,
    /// Planned host memory of all ranks.
    pub memory_bytes: u64,
    /// Planned host memory of the rank that needs the most.
    pub rank_memory_bytes: u64,
    /// Predicted seconds of a step, in the mean; `None` if the machine was not calibrated.
    pub step_seconds: Option<f64>,
    /// True if the prediction comes from a calibration while other programs computed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_prediction_disturbed: bool,
    pub ranks: usize,
    /// The number of CUDA devices that the run's processes must see.
    pub cuda_devices: usize,
}

/// The first steps of a point, which an earlier point computes to the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedTrunk {
    /// The number of the earlier point.
    pub point: usize,
    /// The last step that both share. The run of this point begins with the other run's checkpoint after it.
    pub steps: u64,
}

impl PlannedPoint {
    /// The tokens of all steps.
    #[must_use]
    pub fn tokens(&self) -> f64 {
        self.pace.tokens_after(self.steps)
    }

    /// The FLOPs of all steps, as counted for MFU.
    #[must_use]
    pub fn flops(&self) -> f64 {
        self.pace.flops_after(self.steps)
    }

    /// The size that the law of a ladder counts: the whole model, or only its layers.
    #[must_use]
    pub fn counted_size(&self) -> ModelSize {
        let flops_per_step = self.flops() / self.steps.max(1) as f64;
        self.layers.unwrap_or(ModelSize { parameters: self.parameters, flops_per_step })
    }

    /// `point 3 (lr=0.001 layers=2)`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("point {} ({})", self.index, describe_values(&self.values))
    }
}

/// `lr=0.001 layers=2`, without control characters.
#[must_use]
pub fn describe_values(values: &PointValues) -> String {
    let pair = |(name, value): &(String, serde_json::Value)| format!("{name}={}", value_text(value));
    runner_spec::format::printable(&values.iter().map(pair).collect::<Vec<_>>().join(" ")).replace('\n', " ")
}

/// The points that differ in nothing but their seed.
#[derive(Debug, Clone, PartialEq)]
pub struct PointSetting {
    /// The name in sentences.
    pub name: String,
    /// What they have in common of what varies.
    pub values: PointValues,
    pub points: Vec<SeedPoint>,
}

/// A point of a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct SeedPoint {
    /// The number of the point.
    pub point: usize,
    /// The names of seeds with their values, by which points of different settings are paired.
    pub seed: PointValues,
}

/// Names `settings` by what differs between them: `lr=0.01`; a setting with one point is `point 3 (lr=0.01)`.
fn name_settings(settings: &mut [PointSetting]) {
    let names: BTreeSet<String> =
        names_of(settings.iter().map(|setting| &setting.values)).into_iter().map(str::to_owned).collect();
    let value = |setting: &PointSetting, name: &str| setting.values.iter().find(|(own, _)| own == name).cloned();
    let differs = |name: &&String| settings.iter().any(|setting| value(setting, name) != value(&settings[0], name));
    let varying: BTreeSet<String> = names.iter().filter(differs).cloned().collect();
    let shown = |(name, value): &(String, serde_json::Value)| {
        let is_shown = varying.is_empty() || varying.contains(name);
        is_shown.then(|| (shortest_name(name, &names, &["steps"]), value.clone()))
    };
    let named: Vec<String> = settings
        .iter()
        .map(|setting| name_of_setting(setting, &describe_values(&setting.values.iter().filter_map(shown).collect())))
        .collect();
    settings.iter_mut().zip(named).for_each(|(setting, name)| setting.name = name);
}

fn name_of_setting(setting: &PointSetting, values: &str) -> String {
    match setting.points.as_slice() {
        [one] => format!("point {} ({values})", one.point),
        _ if values.is_empty() => "this setting".to_owned(),
        _ => values.to_owned(),
    }
}

impl SweepRecord {
    /// The number of workers: with ASHA the recorded one, on which decisions depend, else `parallel`.
    #[must_use]
    pub fn workers(&self, parallel: usize) -> usize {
        if self.early_stop.is_some() { self.workers } else { parallel }.max(1)
    }

    /// The settings of the sweep, in the order of their first points. Duplicates belong to none.
    #[must_use]
    pub fn settings(&self) -> Vec<PointSetting> {
        let mut settings: Vec<PointSetting> = Vec::new();
        let mut known: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for point in self.points.iter().filter(|point| point.same_as.is_none()) {
            let (own, values): (PointValues, PointValues) =
                point.values.iter().cloned().partition(|(name, _)| self.seeds.contains(name));
            let member = SeedPoint { point: point.index, seed: own };
            let at = *known.entry(json_bytes(&values)).or_insert_with(|| {
                settings.push(PointSetting { name: String::new(), values, points: Vec::new() });
                settings.len() - 1
            });
            settings[at].points.push(member);
        }
        name_settings(&mut settings);
        settings
    }

    /// True if the law of a ladder counts only the layers of its models.
    #[must_use]
    pub fn counts_layers(&self) -> bool {
        self.points.iter().any(|point| point.layers.is_some())
    }

    /// The point with this number.
    #[must_use]
    pub fn point(&self, index: usize) -> Option<&PlannedPoint> {
        self.points.iter().find(|p| p.index == index)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::sweep;

    #[test]
    fn early_stopping_goes_on_with_what_it_began_with() {
        let mut record = sweep();
        assert_eq!(record.workers(8), 2);
        record.early_stop = None;
        assert_eq!((record.workers(8), record.workers(0)), (8, 1));
    }

    #[test]
    fn values_are_described() {
        assert_eq!(describe_values(&sweep().points[1].values), "lr=0.01 layers=2");
        assert_eq!(describe_values(&vec![("a".to_owned(), json!("x\u{1b}[2J"))]), "a=x\u{fffd}[2J");
    }
}
