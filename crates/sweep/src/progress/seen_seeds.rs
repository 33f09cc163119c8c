//! Finds the seeds of a new sweep that earlier sweeps have judged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{PointProgress, SweepProgress};
use crate::points::PointValues;
use crate::record::{SeenSeeds, SweepRecord, describe_values, sweep_dir};
use runner_record::manifest::RunStatus;

/// The seeds of the sweep `record`, which is about to start in the folder of runs `runs`, that earlier sweeps there have shown: with them, at
/// least two of its settings were trained.
#[must_use]
pub(crate) fn find_seen_seeds(runs: &Path, record: &SweepRecord) -> Vec<SeenSeeds> {
    if record.is_ladder {
        return Vec::new();
    }
    let settings = record.settings();
    let seen_by = |path: PathBuf| {
        let other = sweep_dir::read_record(&path).ok().filter(|other| !other.is_ladder)?;
        let known: BTreeSet<&str> = other.points.iter().map(|point| point.plan_hash.as_str()).collect();
        if !record.points.iter().any(|point| known.contains(point.plan_hash.as_str())) {
            return None;
        }
        let progress = SweepProgress::read(runs, &other);
        let points = other.points.iter().zip(&progress.points);
        let is_done = |run: &PointProgress| run.status == RunStatus::Done;
        let shown = points.filter(|(_, run)| run.as_ref().is_some_and(is_done));
        let shown: BTreeSet<&str> = shown.map(|(point, _)| point.plan_hash.as_str()).collect();
        let mut times: BTreeMap<String, (usize, PointValues)> = BTreeMap::new();
        for member in settings.iter().flat_map(|setting| &setting.points) {
            let hash = record.point(member.point).map(|point| point.plan_hash.as_str());
            if hash.is_some_and(|hash| shown.contains(hash)) {
                let (count, _) = times.entry(describe_values(&member.seed)).or_insert((0, member.seed.clone()));
                *count += 1;
            }
        }
        let seeds: Vec<PointValues> =
            times.into_values().filter(|(count, _)| *count > 1).map(|(_, seed)| seed).collect();
        (!seeds.is_empty()).then(|| SeenSeeds { sweep: other.id.clone(), settings: other.settings().len(), seeds })
    };
    sweep_dir::folders(runs).into_iter().filter_map(seen_by).collect()
}
