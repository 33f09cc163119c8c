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

use std::path::Path;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// Ten minutes: no test takes longer.
const MAX_MILLISECONDS: u64 = 600_000;

/// With a shorter timeout, two heartbeats could be late on a busy machine.
const MIN_TIMEOUT_MILLISECONDS: u64 = 500;

/// The faults that a test injects into a run; by default none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    heartbeat_timeout: Option<u64>,
    step_timeout: Option<u64>,
    operation_timeout: Option<u64>,
    start_delay: Option<u64>,
    hang: Option<(u64, u64)>,
    panic: Option<(u64, u64)>,
    save_delay: Option<(u64, u64)>,
    full_disk: Option<(u64, u64)>,
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for word in text.split(',') {
            let wrong = || format!("{word:?} is no KEY=NUMBER[@STEP] that tests know");
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            let (value, step) = value.split_once('@').map_or((value, None), |(value, step)| (value, Some(step)));
            let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
            let (value, step) = (number(value)?, step.map(number).transpose()?);
            let milliseconds = |shortest: u64| match value {
                ms if (shortest..=MAX_MILLISECONDS).contains(&ms) => Ok(ms),
                ms => Err(format!("{word:?}: {ms} is not between {shortest} and {MAX_MILLISECONDS} ms")),
            };
            match (key, step) {
                ("heartbeat-timeout", None) => faults.heartbeat_timeout = Some(milliseconds(MIN_TIMEOUT_MILLISECONDS)?),
                ("step-timeout", None) => faults.step_timeout = Some(milliseconds(MIN_TIMEOUT_MILLISECONDS)?),
                ("operation-timeout", None) => faults.operation_timeout = Some(milliseconds(MIN_TIMEOUT_MILLISECONDS)?),
                ("start-delay", None) => faults.start_delay = Some(milliseconds(0)?),
                ("save-delay", Some(step)) => faults.save_delay = Some((milliseconds(0)?, step)),
                ("hang", Some(step)) => faults.hang = Some((value, step)),
                ("panic", Some(step)) => faults.panic = Some((value, step)),
                ("full-disk", Some(step)) => faults.full_disk = Some((value, step)),
                _ => return Err(wrong()),
            }
        }
        Ok(faults)
    }
}

impl Faults {
    /// True unless a test injects a fault.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn heartbeat_timeout(&self) -> Option<Duration> {
        self.heartbeat_timeout.map(Duration::from_millis)
    }

    pub(super) fn step_timeout(&self) -> Option<Duration> {
        self.step_timeout.map(Duration::from_millis)
    }

    /// The timeout of operations between ranks, and of the rendezvous.
    pub(crate) fn operation_timeout(&self) -> Option<Duration> {
        self.operation_timeout.map(Duration::from_millis)
    }

    /// Called by a rank before it reads its data.
    pub(crate) fn before_data(&self) {
        if let Some(ms) = self.start_delay {
            sleep(Duration::from_millis(ms));
        }
    }

    /// Called by a rank that has written its part of the checkpoint of `step`.
    pub(super) fn after_part(&self, step: u64) {
        if let Some((ms, _)) = self.save_delay.filter(|(_, when)| *when == step) {
            sleep(Duration::from_millis(ms));
        }
    }

    /// Creates a file of the part of `rank` of the checkpoint of `step`.
    pub(super) fn create(&self, rank: usize, step: u64, path: &Path) -> io::Result<fs::File> {
        if self.full_disk == Some((rank as u64, step)) {
            return fs::OpenOptions::new().write(true).open("/dev/full");
        }
        fs::File::create_new(path)
    }

    /// Called by `rank` at the first instruction of `step`, counting from 1.
    pub(super) fn begin_step(&self, rank: usize, step: u64) {
        let current = Some((rank as u64, step));
        assert!(self.panic != current, "a panic in step {step}, as asked for");
        if self.hang == current {
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
        let expected = Faults {
            heartbeat_timeout: Some(2000),
            hang: Some((1, 15)),
            save_delay: Some((0, 40)),
            ..Faults::default()
        };
        assert_eq!(faults, expected);
        let timeouts = ["step-timeout", "step-timeout=0", "step-timeout=600001", "operation-timeout=900@3"];
        for wrong in timeouts.into_iter().chain(["", "hang=1", "sleep=1000", "hang=1@x"]) {
            let error = wrong.parse::<Faults>().unwrap_err();
            assert!(error.contains(wrong), "{wrong}: {error}");
        }
    }
}
