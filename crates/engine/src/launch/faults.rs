//! Faults that tests ask for with the hidden `runner apply --test-faults KEY=NUMBER[@STEP],…`: what a healthy machine does
//! not do when a test needs it. Steps count from 1, as messages count them. A run that was given any says so in its log.
//!
//! - `silence=MS`, `patience=MS`: after how long a rank counts as stopped, and (if none was that slow before) as hung.
//! - `wait=MS`: how long a rank waits for another before it gives up.
//! - `hang=RANK@STEP`, `panic=RANK@STEP`: at the step's first instruction.
//! - `start=MS`: how long ranks sleep before they look at their data.
//! - `save=MS@STEP`: how long ranks sleep after writing their parts of that checkpoint, before they say so.
//! - `full=RANK@STEP`: the rank's disk is full when it writes its part of that checkpoint.

use std::path::Path;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::threads::OnBoard;
use runner_exec::{InstructionList, ProgressMonitor};

/// Ten minutes: no test is longer.
const LONGEST: u64 = 600_000;

/// Less than two signs of life may be late on a busy machine.
const SHORTEST: u64 = 500;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    silence: Option<u64>,
    patience: Option<u64>,
    wait: Option<u64>,
    start: Option<u64>,
    hang: Option<(u64, u64)>,
    panic: Option<(u64, u64)>,
    save: Option<(u64, u64)>,
    full: Option<(u64, u64)>,
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
            let time = |shortest: u64| match value {
                ms if (shortest..=LONGEST).contains(&ms) => Ok(ms),
                ms => Err(format!("{word:?}: {ms} is not between {shortest} and {LONGEST} ms")),
            };
            match (key, step) {
                ("silence", None) => faults.silence = Some(time(SHORTEST)?),
                ("patience", None) => faults.patience = Some(time(SHORTEST)?),
                ("wait", None) => faults.wait = Some(time(SHORTEST)?),
                ("start", None) => faults.start = Some(time(0)?),
                ("save", Some(step)) => faults.save = Some((time(0)?, step)),
                ("hang", Some(step)) => faults.hang = Some((value, step)),
                ("panic", Some(step)) => faults.panic = Some((value, step)),
                ("full", Some(step)) => faults.full = Some((value, step)),
                _ => return Err(wrong()),
            }
        }
        Ok(faults)
    }
}

impl Faults {
    pub(super) fn silence(&self) -> Option<Duration> {
        self.silence.map(Duration::from_millis)
    }

    pub(super) fn patience(&self) -> Option<Duration> {
        self.patience.map(Duration::from_millis)
    }

    pub fn wait(&self) -> Option<Duration> {
        self.wait.map(Duration::from_millis)
    }

    /// Called by a rank before it looks at its data.
    pub fn before_data(&self) {
        if let Some(ms) = self.start {
            sleep(Duration::from_millis(ms));
        }
    }

    /// Called by a rank that wrote its part of the checkpoint of `step`.
    pub(super) fn after_part(&self, step: u64) {
        if let Some((ms, _)) = self.save.filter(|(_, at)| *at == step) {
            sleep(Duration::from_millis(ms));
        }
    }

    /// Makes a file of `rank`'s part of the checkpoint of `step`.
    pub(super) fn create(&self, rank: usize, step: u64, path: &Path) -> io::Result<fs::File> {
        if self.full == Some((rank as u64, step)) {
            return fs::OpenOptions::new().write(true).open("/dev/full");
        }
        fs::File::create_new(path)
    }

    fn strike(&self, rank: usize, step: u64) {
        let here = Some((rank as u64, step));
        assert!(self.panic != here, "a panic in step {step}, as asked for");
        if self.hang == here {
            sleep(Duration::MAX);
        }
    }
}

/// Writes on the board, and strikes.
#[derive(Debug)]
pub(super) struct Striking<'a> {
    pub board: OnBoard<'a>,
    pub rank: usize,
    pub faults: &'a Faults,
}

impl ProgressMonitor for Striking<'_> {
    fn enter_instruction(&self, step: u64, list: InstructionList, index: usize) {
        self.board.enter_instruction(step, list, index);
        if (list, index) == (InstructionList::Step, 0) {
            self.faults.strike(self.rank, step + 1);
        }
    }

    fn heartbeat(&self) {
        self.board.heartbeat();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_test_can_mean_is_taken() {
        let faults: Faults = "silence=2000,hang=1@15,save=0@40".parse().unwrap();
        let expected = Faults { silence: Some(2000), hang: Some((1, 15)), save: Some((0, 40)), ..Faults::default() };
        assert_eq!(faults, expected);
        for wrong in ["", "silence", "silence=0", "patience=600001", "hang=1", "wait=900@3", "sleep=1000", "hang=1@x"] {
            let error = wrong.parse::<Faults>().unwrap_err();
            assert!(error.contains(wrong), "{wrong}: {error}");
        }
    }
}
