//! The protocol between the ranks of a run and its recorder, the process that keeps the record: the parent of ranks that are local
//! processes, or rank 0 of ranks that a launcher started. Messages are JSON.

use std::io::{self, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use runner_checkpoint::PartRecord;
use runner_executor::{RunControls, StopRequest};
use runner_plan::ranks::topology::topology;
use runner_spec::data::DataFacts;
use runner_spec::event::{BestValidation, Event, TraceLine};
use runner_spec::experiment::Experiment;
use runner_spec::format::json_bytes;
use runner_spec::program::Program;
use runner_spec::topology::Topology;
use runner_threads::stop::StopReason;

/// A message from the recorder to a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToRank {
    /// The first message to a process that the recorder has started.
    Start(Box<RankStart>),
    /// The first message to a rank that a launcher started. `marker` is a file in the run directory that exists now.
    Begin { run: PathBuf, marker: String, training: TrainingStart },
    /// Every launched rank is ready. `share_state` is true if only the first replica of each stage reads the checkpoint.
    Train { share_state: bool },
    /// The checkpoint of `step` is committed.
    Committed { step: u64 },
    /// Nothing is left to do. All launched ranks exit with `code`.
    Exit { code: u8 },
}

/// A message from a rank to the recorder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromRank {
    /// The launched rank can begin. `sees_run` is true if it sees the run directory.
    Ready { sees_run: bool },
    /// An event. Only rank 0 sends events, because all ranks have the same ones.
    Event(Event),
    /// Hashes of what the rank computed in one step.
    Trace(Vec<TraceLine>),
    /// The rank's part of a checkpoint is on the disk. The rank waits for [`ToRank::Committed`].
    Part(CheckpointPart),
    /// The last message of a rank that reached its end.
    Done(RankCompletion),
    /// The last message of a local process that did not. A launched rank aborts its mesh instead.
    Failed(ReportedFailure),
}

/// The beginning and the end of training. They are the same for all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingStart {
    /// The checkpoint to resume from; `None`: training begins at step 0.
    pub checkpoint: Option<PathBuf>,
    /// The step after which all ranks stop, if it comes before the last.
    pub until_step: Option<u64>,
    /// True if ranks report hashes of what they compute.
    pub trace: bool,
}

impl TrainingStart {
    /// The controls of a rank that `stop` asks to stop.
    pub fn controls<'a>(&self, stop: &'a dyn StopRequest) -> RunControls<'a> {
        RunControls { stop, until: self.until_step, trace: self.trace }
    }
}

/// All that a process needs to work as a rank. The run directory is not read for it: settings outside the plan's hash (paths,
/// threads, when to save) may differ between sessions, and the directory holds those of the first session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStart {
    pub program: Program,
    /// The number of messages that a channel holds.
    pub channel_slots: usize,
    pub experiment: Experiment,
    /// The facts that the prepared data must have.
    pub data: DataFacts,
    pub threads: usize,
    pub training: TrainingStart,
}

impl RankStart {
    /// The topology of the shared memory, which the rank and its parent must agree on. Activations are sent as f32,
    /// or as bf16, which is smaller.
    pub(super) fn topology(&self) -> Topology {
        topology(&self.program, self.channel_slots, size_of::<f32>())
    }
}

/// A rank's part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CheckpointPart {
    pub step: u64,
    pub tokens: u64,
    pub best: Option<BestValidation>,
    /// `None` if other ranks write everything that this one holds.
    pub record: Option<PartRecord>,
}

/// The end of a rank that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankCompletion {
    /// True if the rank stopped on request, before the last step.
    pub interrupted: bool,
    /// The reason for which this rank itself was asked to stop. Local processes leave Ctrl-C and hangups to their parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    pub peak_rss_bytes: Option<u64>,
}

/// A failure as the rank itself reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedFailure {
    pub kind: FailureKind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The rank was aborted because another rank failed.
    Aborted,
    /// The rank waited too long for `peer`, which is to blame.
    TimedOut {
        peer: usize,
        seconds: u64,
    },
    /// A number is not finite.
    NotFinite,
    /// The request is wrong, such as data that does not fit the model.
    Request,
    Other,
}

/// The reason why the bytes `line` are not a message, with the beginning of the line.
pub(super) fn describe_invalid_line(line: &[u8]) -> String {
    let beginning: String = String::from_utf8_lossy(line).chars().take(200).collect();
    format!("{beginning:?} is not a message of the protocol")
}

/// Writes `message` as one line, and flushes it.
///
/// # Errors
/// If the reader has closed its end.
pub(super) fn write_line(out: &mut dyn Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = json_bytes(message);
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_spec::event::SampleText;

    fn sent<T: Serialize + for<'a> Deserialize<'a>>(message: &T) -> T {
        let mut bytes = Vec::new();
        write_line(&mut bytes, message).unwrap();
        assert_eq!(bytes.split(|&b| b == b'\n').count(), 2, "one line");
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn messages_survive_their_transport() {
        let plan = compiled(&experiment());
        let training = TrainingStart {
            checkpoint: Some("/runs/a/checkpoints/step-00000003".into()),
            until_step: Some(7),
            trace: true,
        };
        let start = ToRank::Start(Box::new(RankStart {
            program: plan.ranks[0].program.clone(),
            channel_slots: 3,
            experiment: experiment(),
            data: plan.data.clone(),
            threads: 2,
            training: training.clone(),
        }));
        let begin = ToRank::Begin { run: "/runs/a".into(), marker: ".tmp-ranks-1".to_owned(), training };
        for message in [start, begin, ToRank::Committed { step: 3 }] {
            assert_eq!(sent(&message), message);
        }
        let best = Some(BestValidation { step: 2, val_loss: 0.1 + 0.2 });
        let failed = |kind| FromRank::Failed(ReportedFailure { kind, text: "x".into() });
        let sample = SampleText { step: 1, prompt: "a\n".into(), index: 0, text: "\u{1b}b".into() };
        for message in [
            FromRank::Event(Event::Start { step: 0, steps: 9 }),
            FromRank::Event(Event::Sample(sample)),
            FromRank::Part(CheckpointPart { step: 3, tokens: 9, best, record: None }),
            failed(FailureKind::NotFinite),
            failed(FailureKind::TimedOut { peer: 1, seconds: 2 }),
        ] {
            assert_eq!(sent(&message), message);
        }
    }
}
