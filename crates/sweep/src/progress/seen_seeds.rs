//! Finds the seeds of a new sweep that earlier sweeps have judged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{PointProgress, SweepProgress};
use crate::points::PointValues;
use crate::record::{SeedPoint, SeenSeed, SeenSeeds, SweepRecord, describe_values, sweep_dir};
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
        let is_shown = |member: &SeedPoint| {
            record.point(member.point).is_some_and(|point| shown.contains(point.plan_hash.as_str()))
        };
        let members = || settings.iter().flat_map(|setting| &setting.points).filter(|member| is_shown(member));
        let times = |seed: &PointValues| members().filter(|member| member.seed == *seed).count();
        let mut seeds: Vec<SeenSeed> = Vec::new();
        for member in members().filter(|member| times(&member.seed) > 1) {
            let seed = SeenSeed(member.seed.clone());
            if !seeds.contains(&seed) {
                seeds.push(seed);
            }
        }
        let own = settings.iter().filter(|setting| setting.points.iter().any(is_shown)).count();
        let other_settings = other.settings().len().saturating_sub(own);
        let all: BTreeSet<String> =
            other.settings().iter().flat_map(|s| &s.points).map(|p| describe_values(&p.seed)).collect();
        let (sweep, seed_count) = (other.id.clone(), all.len());
        (!seeds.is_empty()).then_some(SeenSeeds { sweep, other_settings, seed_count, seeds })
    };
    sweep_dir::folders(runs).into_iter().filter_map(seen_by).collect()
}
