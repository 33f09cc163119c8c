//! What a rank's process and the one that started it tell each other: JSON, one message a line.

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::faults::Faults;
use runner_plan::topology::topology;
use runner_spec::data::DataFacts;
use runner_spec::event::{BestValidation, EvalMetrics, SampleText, StepMetrics, TraceLine, WatchedStep};
use runner_spec::experiment::Experiment;
use runner_spec::program::Program;
use runner_spec::topology::Topology;
use runner_store::PartRecord;

/// To a rank, on its standard input. Its end is the end of the parent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToRank {
    /// The first message.
    Start(Box<Start>),
    /// The checkpoint of `step` is in place.
    Committed { step: u64 },
}

/// All that a rank needs. It is handed over, not read from the run directory: what does not belong to the plan's hash (paths,
/// threads, when to save) may differ between two sessions of a run, and there it stands as of the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub program: Program,
    pub plan_hash: String,
    /// Messages that a channel holds.
    pub channel_slots: usize,
    pub experiment: Experiment,
    /// What the data must turn out to be.
    pub data: DataFacts,
    /// Threads to compute with.
    pub threads: usize,
    /// The checkpoint to go on from; `None`: from the start.
    pub checkpoint: Option<PathBuf>,
    /// The step after which all ranks stop, if that is before the last.
    pub until: Option<u64>,
    /// Whether to tell the hashes of what is computed.
    pub trace: bool,
    pub faults: Faults,
}

impl Start {
    /// What the ranks share, of which a rank and its parent must think alike. Activations are sent as f32.
    #[must_use]
    pub fn topology(&self) -> Topology {
        topology(&self.program, self.channel_slots, size_of::<f32>())
    }
}

/// From a rank, on its standard output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToParent {
    /// It has its data and state, and begins.
    Ready,
    /// Of rank 0 only, as all ranks have the same ones: steps, evaluations, samples, warnings.
    Step(StepMetrics),
    Eval(EvalMetrics),
    Sample(SampleText),
    Warning(String),
    Watched(WatchedStep),
    /// Of a step, the hashes of what the rank computed.
    Trace(Vec<TraceLine>),
    /// What the rank owns of the checkpoint of `step` is on the disk; now it waits for `Committed`.
    Part(Part),
    /// The last message of a rank that came to its end.
    Done(Done),
    /// The last message of one that did not.
    Error(Failure),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub step: u64,
    pub tokens: u64,
    pub best: Option<BestValidation>,
    /// `None` if other ranks hold all that this one does.
    pub record: Option<PartRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Stopped on request, before the last step.
    pub interrupted: bool,
    pub peak_rss_bytes: Option<u64>,
}

/// Why a rank gave up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Another rank ended; that one's end is what matters.
    Followed,
    /// Another rank let it wait for too long; that one is to blame.
    TimedOut {
        peer: usize,
        seconds: u64,
    },
    /// A number that is not finite.
    NotFinite,
    Other,
}

/// Writes `message` as one line and sends it off.
///
/// # Errors
/// If nobody reads it any more.
pub fn write(out: &mut dyn Write, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn messages_survive_the_way() {
        let plan = compiled(&experiment());
        let start = ToRank::Start(Box::new(Start {
            program: plan.ranks[0].program.clone(),
            plan_hash: plan.hash.clone(),
            channel_slots: 3,
            experiment: experiment(),
            data: plan.data.clone(),
            threads: 2,
            checkpoint: Some("/runs/a/checkpoints/step-00000003".into()),
            until: Some(7),
            trace: true,
            faults: "hang=1@15".parse().unwrap(),
        }));
        let mut bytes = Vec::new();
        write(&mut bytes, &start).unwrap();
        assert_eq!(bytes.split(|&b| b == b'\n').count(), 2, "one line");
        assert_eq!(serde_json::from_slice::<ToRank>(&bytes).unwrap(), start);
        let said = [
            ToParent::Ready,
            ToParent::Sample(SampleText { step: 1, prompt: "a\n".into(), index: 0, text: "\u{1b}b".into() }),
            ToParent::Part(Part {
                step: 3,
                tokens: 9,
                best: Some(BestValidation { step: 2, val_loss: 0.1 + 0.2 }),
                record: None,
            }),
            ToParent::Error(Failure { kind: FailureKind::NotFinite, text: "x".into() }),
            ToParent::Error(Failure { kind: FailureKind::TimedOut { peer: 1, seconds: 2 }, text: "x".into() }),
        ];
        for message in said {
            let mut bytes = Vec::new();
            write(&mut bytes, &message).unwrap();
            assert_eq!(serde_json::from_slice::<ToParent>(&bytes).unwrap(), message);
        }
    }
}
