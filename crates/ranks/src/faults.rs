//! Faults that tests inject with the variable `TEST_FAULTS_OF_RUNNER=KEY=NUMBER[@STEP],…`, which processes of ranks inherit. Only a build
//! with the feature `testing` reads it: that of `cargo test`. Steps count from 1, as in messages.
//!
//! - `heartbeat-timeout=MS`, `step-timeout=MS`: the time after which a rank is lost, and (if nothing took that long before) hung.
//! - `operation-timeout=MS`: the time that a rank waits for another before it fails.
//! - `hang=RANK@STEP`, `panic=RANK@STEP`: at the first instruction of the step.
//! - `start-delay=MS`: the time that ranks sleep before they read their data.
//! - `save-delay=MS@STEP`: the time that ranks sleep after they have written their parts of that checkpoint, before they report it.
//! - `full-disk=RANK@STEP`: the rank's disk is full when it writes its part of that checkpoint.
//!
//! Ranks that are threads write no parts of checkpoints, and do not read data themselves: they ignore the delays and the full disk. Ranks
//! that a launcher starts ignore `start-delay`.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;
use std::{fs, io};

/// The number of the fault `key` of a run, or of `step`; `None` if no test injects it.
#[cfg(not(feature = "testing"))]
fn fault(_key: &str, _step: Option<u64>) -> Option<u64> {
    None
}

/// The faults that there are.
#[cfg(feature = "testing")]
const KEYS: [&str; 8] = [
    "heartbeat-timeout",
    "step-timeout",
    "operation-timeout",
    "hang",
    "panic",
    "start-delay",
    "save-delay",
    "full-disk",
];

#[cfg(feature = "testing")]
fn fault(key: &str, step: Option<u64>) -> Option<u64> {
    let text = std::env::var("TEST_FAULTS_OF_RUNNER").ok()?;
    let faults = text.split(',').map(|word| {
        let (key, value) = word.split_once('=').filter(|(key, _)| KEYS.contains(key))?;
        let (number, step) = value.split_once('@').map_or((value, None), |(number, step)| (number, Some(step)));
        Some((key, number.parse().ok()?, step.map(str::parse).transpose().ok()?))
    });
    let faults: Option<Vec<(&str, u64, Option<u64>)>> = faults.collect();
    assert!(faults.is_some(), "{text:?} is not a list of faults, which are {KEYS:?}");
    let found = faults?.into_iter().find(|(name, _, of_step)| (*name, *of_step) == (key, step));
    found.map(|(_, number, _)| number)
}

/// The time that the fault `key` sets.
pub(super) fn milliseconds(key: &str) -> Option<Duration> {
    fault(key, None).map(Duration::from_millis)
}

/// True if the fault `key` is of `rank` and `step`.
fn concerns(key: &str, rank: usize, step: u64) -> bool {
    fault(key, Some(step)) == Some(rank as u64)
}

/// Called by a rank before it reads its data.
pub(super) fn before_data() {
    if let Some(delay) = milliseconds("start-delay") {
        sleep(delay);
    }
}

/// Called by a rank that has written its part of the checkpoint of `step`.
pub(super) fn after_part(step: u64) {
    if let Some(milliseconds) = fault("save-delay", Some(step)) {
        sleep(Duration::from_millis(milliseconds));
    }
}

/// Creates a file of the part of `rank` of the checkpoint of `step`.
pub(super) fn create_part_file(rank: usize, step: u64, path: &Path) -> io::Result<fs::File> {
    if concerns("full-disk", rank, step) {
        return fs::OpenOptions::new().write(true).open("/dev/full");
    }
    fs::File::create_new(path)
}

/// Called by `rank` at the first instruction of `step`, counting from 1.
pub(super) fn begin_step(rank: usize, step: u64) {
    assert!(!concerns("panic", rank, step), "a panic in step {step}, as asked for");
    if concerns("hang", rank, step) {
        sleep(Duration::MAX);
    }
}
