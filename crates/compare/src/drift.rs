//! Drift: the changes since a run was made, in its own files, its data, the program and the machine.

use std::path::Path;

use serde::Serialize;

use super::facts::NONE;
use super::plan_facts::device_kinds;
use super::plan_files::{PlanDifference, RebuiltPlan, rebuild_plan};
use super::session_facts::bit_facts;
use runner_machine::host::Git;
use runner_record::RecordError;
use runner_record::manifest::{DataHashes, Manifest, Session};
use runner_record::run_dir::{PLAN, RESOLVED};
use runner_spec::data::DataPart;
use runner_spec::format::{printable, short_hash};
use runner_spec::plan::Plan;

/// The result of one comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum DriftState {
    Same,
    Changed,
    /// The record does not contain it.
    Unknown,
}

/// One thing that was compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriftItem {
    what: &'static str,
    state: DriftState,
    /// True if a change may change numbers.
    #[serde(rename = "counts")]
    affects_numbers: bool,
    was: String,
    is: String,
    /// The consequence of a change for the bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    meaning: Option<&'static str>,
}

/// The changes since a run was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    items: Vec<DriftItem>,
}

impl Drift {
    /// Compares the run in `path` with a reproduction, which would be a run of the plan `new` by the session `here`, in a working folder of the
    /// state `git`.
    ///
    /// # Errors
    /// If the run's own plan cannot be read or made again.
    pub fn detect(
        path: &Path,
        manifest: &Manifest,
        new: &Plan,
        here: &Session,
        git: Option<&Git>,
    ) -> Result<Self, RecordError> {
        let mut items = vec![compare_plan(path, manifest, new)?];
        let (was, is) = (&manifest.data, DataHashes::from(&new.data));
        let short = |hash: &str| short_hash(hash).to_owned();
        for part in DataPart::ALL {
            let (was, is) = (was.of(part), is.of(part));
            // Most runs have neither test data nor weights to start from.
            let is_rare = matches!(part, DataPart::Test | DataPart::Weights);
            if !is_rare || was.or(is).is_some() {
                let hash = |hash: Option<&str>| hash.map_or_else(|| "none".to_owned(), short);
                items.push(DriftItem::new(part.name(), true, hash(was), hash(is)));
            }
        }
        // The facts about all sessions that did steps are compared, not only about the newest.
        let recorded = manifest.described_sessions();
        let sessions = sessions_in_record(&recorded);
        for fact in bit_facts() {
            let was = describe_by_steps(&sessions, |session| fact.text_beside(session, here));
            let is = fact.text(here);
            if [&was, &is].into_iter().flatten().all(|text| text == NONE) {
                continue;
            }
            let changed = sessions.iter().find_map(|(session, _)| fact.change(session, here));
            let state = match changed {
                Some(_) => DriftState::Changed,
                None if was.is_none() || is.is_none() => DriftState::Unknown,
                None => DriftState::Same,
            };
            let is = changed.map(|change| change.is).or(is);
            let [was, is] = [was, is].map(|text| text.unwrap_or_else(|| "not recorded".to_owned()));
            let meaning = fact.meaning.of_bits();
            items.push(DriftItem { what: fact.name, state, affects_numbers: true, was, is, meaning });
        }
        let devices: Vec<String> = new.ranks.iter().map(|rank| rank.device.to_string()).collect();
        // The index of a device on its machine changes no number.
        let other_kinds = device_kinds(&manifest.devices) != device_kinds(&devices);
        items.push(DriftItem::new("devices", other_kinds, manifest.devices.join(" "), devices.join(" ")));
        // Any number of threads gives the same bits; the folder's commit is that of the experiments, not of the program.
        items.push(DriftItem::new("threads", false, manifest.threads.to_string(), here.threads.to_string()));
        let describe = |git: Option<&Git>| match git {
            Some(git) if git.dirty => format!("{}, with changes", short_hash(&git.commit)),
            Some(git) => short(&git.commit),
            None => "no repository".to_owned(),
        };
        items.push(DriftItem::new("git", false, describe(manifest.git.as_ref()), describe(git)));
        Ok(Self { items })
    }

    /// True if something changed that may change numbers.
    pub fn may_change_numbers(&self) -> bool {
        self.items.iter().any(DriftItem::may_change_numbers)
    }

    /// The changes that may change numbers, one line each.
    pub fn changes(&self) -> Vec<String> {
        let changed = self.items.iter().filter(|item| item.may_change_numbers());
        changed.map(|item| format!("{}: {}, was {}", item.what, item.is, item.was)).collect()
    }

    /// One line for each thing that was compared.
    pub fn lines(&self) -> Vec<String> {
        let line = |item: &DriftItem| {
            let (what, is, was) = (item.what, printable(&item.is), printable(&item.was));
            let rest = match (item.state, item.affects_numbers) {
                (DriftState::Same, _) => format!("same     {is}"),
                (DriftState::Unknown, _) => format!("unknown  {is}, was {was}"),
                (DriftState::Changed, true) => {
                    let meaning = item.meaning.map_or_else(String::new, |meaning| format!(": {meaning}"));
                    format!("changed  {is}, was {was}{meaning}")
                }
                (DriftState::Changed, false) => format!("differs  {is}, was {was} (no number depends on it)"),
            };
            format!("drift  {what:16} {rest}")
        };
        self.items.iter().map(line).collect()
    }
}

impl DriftItem {
    /// The comparison of two texts about `what`; `affects_numbers` is true if a change may change numbers.
    fn new(what: &'static str, affects_numbers: bool, was: String, is: String) -> Self {
        let state = if was == is { DriftState::Same } else { DriftState::Changed };
        Self { what, state, affects_numbers, was, is, meaning: None }
    }

    /// True if it changed, and the change may change numbers.
    fn may_change_numbers(&self) -> bool {
        self.state == DriftState::Changed && self.affects_numbers
    }
}

/// The sessions whose steps are still in the record, in order, each with the last of these steps (`None`: it is the last step of the record).
/// A session that resumes from an earlier step replaces the steps after it.
fn sessions_in_record(sessions: &[Session]) -> Vec<(&Session, Option<u64>)> {
    let mut out = Vec::new();
    let mut next: Option<u64> = None;
    for session in sessions.iter().rev() {
        let last = session.to_step.into_iter().chain(next).min();
        if last.is_none_or(|last| last > session.from_step) {
            out.push((session, last));
        }
        next = next.into_iter().chain([session.from_step]).min();
    }
    out.reverse();
    out
}

/// The value that `value_of` returns for each session, with the steps if the values differ. `None` if it returns none for all.
fn describe_by_steps(
    sessions: &[(&Session, Option<u64>)],
    value_of: impl Fn(&Session) -> Option<String>,
) -> Option<String> {
    let mut parts: Vec<(String, u64, Option<u64>)> = Vec::new();
    for (session, last) in sessions {
        let Some(said) = value_of(session) else { continue };
        match parts.last_mut() {
            Some((same, _, end)) if *same == said => *end = *last,
            _ => parts.push((said, session.from_step.saturating_add(1), *last)),
        }
    }
    match parts.as_slice() {
        [] => None,
        [(said, ..)] => Some(said.clone()),
        parts => {
            let one = |(said, first, last): &(String, u64, Option<u64>)| match last {
                Some(last) => format!("{said} (steps {first} to {last})"),
                None => format!("{said} (from step {first} on)"),
            };
            Some(parts.iter().map(one).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Compares the plan of the run with the one that its `resolved.yaml` makes now, and with the plan of the reproduction.
fn compare_plan(path: &Path, manifest: &Manifest, new: &Plan) -> Result<DriftItem, RecordError> {
    let RebuiltPlan { plan: rebuilt, difference } = rebuild_plan(path, manifest)?;
    let was = short_hash(&manifest.plan_hash).to_owned();
    let (hash, why) = match difference {
        PlanDifference::None if new.hash == manifest.plan_hash => {
            return Ok(DriftItem::new("plan", true, was.clone(), was));
        }
        PlanDifference::None => {
            let why = "is unchanged; the data, the weights or the devices changed: see the lines below";
            (&new.hash, format!("{RESOLVED} {why}"))
        }
        PlanDifference::Edited => (&rebuilt.hash, format!("{PLAN} was edited")),
        PlanDifference::Other(keys) if keys.is_empty() => {
            let why = "gives a different plan: this version of runner plans it differently";
            (&rebuilt.hash, format!("{RESOLVED} {why}"))
        }
        PlanDifference::Other(keys) => {
            (&rebuilt.hash, format!("{RESOLVED} gives a different plan: {}", keys.join(", ")))
        }
    };
    // The reason makes the texts differ, so the plan counts as changed.
    Ok(DriftItem::new("plan", true, was, format!("{} ({why})", short_hash(hash))))
}

#[cfg(test)]
mod tests {
    use runner_record::manifest::RunStatus;

    use super::*;

    fn session(from_step: u64, to_step: Option<u64>, version: &str) -> Session {
        let session = serde_json::json!({
            "started": "", "ended": null, "from_step": from_step, "to_step": to_step, "version": version,
            "commit": null, "threads": 1, "text_reading_rule": 2,
        });
        serde_json::from_value(session).unwrap()
    }

    #[test]
    fn every_session_counts_of_which_steps_are_left() {
        let sessions = [
            // Killed, and gone back to the start.
            session(0, None, "0"),
            session(0, Some(8), "1"),
            // Done again from step 6 on.
            session(8, Some(9), "2"),
            session(6, Some(10), "3"),
            session(10, Some(12), "3"),
        ];
        let mut manifest = Manifest { status: RunStatus::Done, steps: 12, ..Manifest::default() };
        let described = |manifest: &Manifest| {
            let sessions = manifest.described_sessions();
            describe_by_steps(&sessions_in_record(&sessions), |session| Some(session.version.clone())).unwrap()
        };
        manifest.sessions = sessions.to_vec();
        assert_eq!(described(&manifest), "1 (steps 1 to 6), 3 (steps 7 to 12)");
        manifest.sessions.truncate(1);
        assert_eq!(described(&manifest), "0");
        manifest.sessions = vec![session(0, Some(3), "a"), session(3, None, "b")];
        assert_eq!(described(&manifest), "a (steps 1 to 3), b (from step 4 on)");
    }
}
