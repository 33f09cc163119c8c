//! Settings that were picked from sweeps. The results of a sweep tempt to compare only its best settings, and then all settings of the sweep
//! were candidates, which a p-value of the picked ones does not count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use runner_record::manifest::Manifest;
use runner_spec::format::{counted, printable};

use crate::record::{SeedPoint, SeenSeeds, SweepRecord, sweep_dir};

/// What must be known of runs that are points of sweeps.
#[derive(Debug, Clone, Default)]
pub struct PickedSettings {
    /// A sentence for each sweep that compared more settings than these.
    pub notes: Vec<String>,
    /// The ladders of which several of the settings are rungs.
    pub ladders: Vec<String>,
    /// The number of settings that these sweeps compared and that are not among the settings.
    pub left_out: usize,
    /// The seeds that were judged before these sweeps started.
    pub seen: Vec<SeenSeeds>,
}

/// A run that a sweep trained first.
#[derive(Debug, Clone)]
pub struct SweptRun {
    /// The folder of runs.
    pub root: PathBuf,
    pub sweep: String,
    pub plan_hash: String,
}

impl SweptRun {
    /// The run in `path`, if a sweep trained it.
    #[must_use]
    pub fn of_manifest(path: &Path, manifest: &Manifest) -> Option<Self> {
        let (sweep, plan_hash) = (manifest.sweep.as_ref()?.id.clone(), manifest.plan_hash.clone());
        Some(Self { root: path.parent()?.to_owned(), sweep, plan_hash })
    }
}

impl PickedSettings {
    /// Finds the sweeps of `runs`. `has_others`: they are compared with runs of no sweep.
    #[must_use]
    pub fn find(runs: &[SweptRun], has_others: bool) -> Self {
        let sweeps: BTreeSet<(&Path, &str)> = runs.iter().map(|run| (run.root.as_path(), run.sweep.as_str())).collect();
        let is_alone = sweeps.len() == 1 && !has_others;
        let mut found = Self::default();
        let mut read: Vec<(SweepRecord, BTreeSet<&str>)> = Vec::new();
        for (root, id) in sweeps {
            let Some(record) = sweep_dir::record_of_id(root, id) else {
                found.notes.push(format!(
                    "the sweep {}, which trained some of these runs, cannot be read, so the number of settings that it compared is \
                     unknown: if these were picked by their results, a p-value of them is too small",
                    printable(id)
                ));
                continue;
            };
            // A run that an earlier sweep trained is a point of this one, too.
            let here = runs.iter().filter(|run| run.root == root).map(|run| run.plan_hash.as_str());
            let own = here.filter(|hash| record.points.iter().any(|point| point.plan_hash == *hash)).collect();
            read.push((record, own));
        }
        let compared = |(record, own): &(SweepRecord, BTreeSet<&str>)| {
            let is_own = |member: &SeedPoint| {
                record.point(member.point).is_some_and(|point| own.contains(point.plan_hash.as_str()))
            };
            let settings = record.settings();
            (settings.iter().filter(|setting| setting.points.iter().any(is_own)).count(), settings.len())
        };
        let is_whole = |sweep: &&(SweepRecord, BTreeSet<&str>)| {
            let (compared, all) = compared(sweep);
            compared == all && all > 1
        };
        let whole: BTreeSet<&str> = read.iter().filter(is_whole).flat_map(|(_, own)| own.iter().copied()).collect();
        for sweep in &read {
            let (record, own) = sweep;
            let (compared, all) = compared(sweep);
            // An earlier sweep's settings are counted once, where it compared these.
            found.seen.extend(record.seen.iter().map(|seen| SeenSeeds { other_settings: 0, ..seen.clone() }));
            if record.is_ladder {
                found.ladders.extend((compared > 1).then(|| record.id.clone()));
            } else if compared < all && !(is_alone && compared < 2) && !own.is_subset(&whole) {
                let (which, id) = (counted(compared as u64, "setting"), printable(&record.id));
                found.left_out += all - compared;
                found.notes.push(format!(
                    "picked: {which} of the {all} that the sweep {id} compared; `runner sweep results {id}` compares all of them"
                ));
            }
        }
        found
    }
}
