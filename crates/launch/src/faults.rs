//! Faults that tests inject with the hidden `runner apply --test-faults KEY=NUMBER[@STEP],…`. Steps count from 1, as in messages. The
//! log of such a run names its faults.
//!
//! - `heartbeat-timeout=MS`, `step-timeout=MS`: the time after which a rank is lost, and (if nothing took that long before) hung.
//! - `operation-timeout=MS`: the time that a rank waits for another before it fails.
//! - `hang=RANK@STEP`, `panic=RANK@STEP`: at the first instruction of the step.
//! - `start-delay=MS`: the time that ranks sleep before they read their data.
//! - `save-delay=MS@STEP`: the time that ranks sleep after they have written their parts of that checkpoint, before they report it.
//! - `full-disk=RANK@STEP`: the rank's disk is full when it writes its part of that checkpoint.
//!
//! Ranks that are threads write no parts of checkpoints, and read no data of their own: they ignore the delays and the full disk.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// Milliseconds. Ten minutes: no test takes longer.
const DELAY: RangeInclusive<u64> = 0..=600_000;
/// Milliseconds. With a shorter timeout, two heartbeats could be late on a busy machine.
const TIMEOUT: RangeInclusive<u64> = 500..=600_000;
const RANK: RangeInclusive<u64> = 0..=u64::MAX;

/// The key of each fault, the numbers that it takes, and whether it is of a step.
const KNOWN_FAULTS: [(&str, RangeInclusive<u64>, bool); 8] = [
    ("heartbeat-timeout", TIMEOUT, false),
    ("step-timeout", TIMEOUT, false),
    ("operation-timeout", TIMEOUT, false),
    ("start-delay", DELAY, false),
    ("save-delay", DELAY, true),
    ("hang", RANK, true),
    ("panic", RANK, true),
    ("full-disk", RANK, true),
];

/// The faults that a test injects into a run, by key: the number and the step of each. By default there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults(BTreeMap<String, (u64, Option<u64>)>);

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = BTreeMap::new();
        for word in text.split(',') {
            let wrong = || format!("{word:?} is no KEY=NUMBER[@STEP] that tests know");
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            let (number, step) = value.split_once('@').map_or((value, None), |(number, step)| (number, Some(step)));
            let parse = |text: &str| text.parse::<u64>().map_err(|_| wrong());
            let (number, step) = (parse(number)?, step.map(parse).transpose()?);
            let mut known =
                KNOWN_FAULTS.iter().filter(|(name, _, has_step)| (*name, *has_step) == (key, step.is_some()));
            let (_, range, _) = known.next().ok_or_else(wrong)?;
            if !range.contains(&number) {
                return Err(format!("{word:?}: {number} is not between {} and {} ms", range.start(), range.end()));
            }
            faults.insert(key.to_owned(), (number, step));
        }
        Ok(Self(faults))
    }
}

impl Faults {
    /// True if no test injects a fault.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn milliseconds(&self, key: &str) -> Option<Duration> {
        self.0.get(key).map(|(number, _)| Duration::from_millis(*number))
    }

    /// True if the fault `key` is of `rank` and `step`.
    fn concerns(&self, key: &str, rank: usize, step: u64) -> bool {
        self.0.get(key) == Some(&(rank as u64, Some(step)))
    }

    pub(super) fn heartbeat_timeout(&self) -> Option<Duration> {
        self.milliseconds("heartbeat-timeout")
    }

    pub(super) fn step_timeout(&self) -> Option<Duration> {
        self.milliseconds("step-timeout")
    }

    /// The timeout of operations between ranks, and of the rendezvous.
    pub fn operation_timeout(&self) -> Option<Duration> {
        self.milliseconds("operation-timeout")
    }

    /// Called by a rank before it reads its data.
    pub fn before_data(&self) {
        if let Some(delay) = self.milliseconds("start-delay") {
            sleep(delay);
        }
    }

    /// Called by a rank that has written its part of the checkpoint of `step`.
    pub(super) fn after_part(&self, step: u64) {
        if let Some((milliseconds, _)) = self.0.get("save-delay").filter(|(_, of_step)| *of_step == Some(step)) {
            sleep(Duration::from_millis(*milliseconds));
        }
    }

    /// Creates a file of the part of `rank` of the checkpoint of `step`.
    pub(super) fn create(&self, rank: usize, step: u64, path: &Path) -> io::Result<fs::File> {
        if self.concerns("full-disk", rank, step) {
            return fs::OpenOptions::new().write(true).open("/dev/full");
        }
        fs::File::create_new(path)
    }

    /// Called by `rank` at the first instruction of `step`, counting from 1.
    pub(super) fn begin_step(&self, rank: usize, step: u64) {
        assert!(!self.concerns("panic", rank, step), "a panic in step {step}, as asked for");
        if self.concerns("hang", rank, step) {
            sleep(Duration::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_faults_are_read() {
        let faults: Faults = "heartbeat-timeout=2000,hang=1@15,save-delay=0@40".parse().unwrap();
        assert_eq!(faults.heartbeat_timeout(), Some(Duration::from_secs(2)));
        assert!(faults.concerns("hang", 1, 15) && !faults.concerns("hang", 1, 14) && !faults.concerns("panic", 1, 15));
        assert_eq!(faults.0.get("save-delay"), Some(&(0, Some(40))));
        assert_eq!(faults.step_timeout(), None);
        let timeouts = ["step-timeout", "step-timeout=0", "step-timeout=600001", "operation-timeout=900@3"];
        for wrong in timeouts.into_iter().chain(["", "hang=1", "sleep=1000", "hang=1@x"]) {
            let error = wrong.parse::<Faults>().unwrap_err();
            assert!(error.contains(wrong), "{wrong}: {error}");
        }
    }
}
