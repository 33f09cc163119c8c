//! Settings that were picked from sweeps. The results of a sweep tempt to compare only its best settings, and then all settings of the sweep
//! were candidates, which a p-value of the picked ones does not count.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use runner_record::manifest::SweepPoint;
use runner_spec::format::{counted, printable};

use crate::record::{PointSetting, sweep_dir};

/// What must be known of runs that are points of sweeps.
#[derive(Debug, Clone, Default)]
pub struct PickedSettings {
    /// A sentence for each sweep that compared more settings than these.
    pub notes: Vec<String>,
    /// The ladders of which several of the settings are rungs.
    pub ladders: Vec<String>,
    /// The number of settings that these sweeps compared and that are not among the settings.
    pub left_out: usize,
}

impl PickedSettings {
    /// Finds the sweeps of `points`, each with the folder of runs. `has_others`: they are compared with runs of no sweep.
    #[must_use]
    pub fn find(points: &[(PathBuf, SweepPoint)], has_others: bool) -> Self {
        let sweeps: BTreeSet<(&Path, &str)> =
            points.iter().map(|(root, point)| (root.as_path(), point.id.as_str())).collect();
        let is_alone = sweeps.len() == 1 && !has_others;
        let mut found = Self::default();
        for (root, id) in sweeps {
            let sweep = printable(id);
            let Some(record) = sweep_dir::record_of_id(root, id) else {
                found.notes.push(format!(
                    "the sweep {sweep}, which trained some of these runs, cannot be read, so the number of settings that it compared \
                     is unknown: if these were picked by their results, a p-value of them is too small"
                ));
                continue;
            };
            let own = points.iter().filter(|(other, point)| other == root && point.id == id);
            let own: BTreeSet<usize> = own.map(|(_, point)| point.point).collect();
            let settings = record.settings();
            let is_compared = |setting: &&PointSetting| setting.points.iter().any(|member| own.contains(&member.point));
            let compared = settings.iter().filter(is_compared).count();
            if record.is_ladder {
                found.ladders.extend((compared > 1).then(|| id.to_owned()));
            } else if compared < settings.len() && !(is_alone && compared < 2) {
                let (which, all) = (counted(compared as u64, "setting"), settings.len());
                found.left_out += all - compared;
                found.notes.push(format!(
                    "picked: {which} of the {all} that the sweep {sweep} compared; `runner sweep results {sweep}` compares all of them"
                ));
            }
        }
        found
    }
}
