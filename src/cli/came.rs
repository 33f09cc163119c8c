//! How a process's work on a run ended: how far it came, or why not.

use super::exit::Exit;
use runner_engine::launch::{MemberError, ProcessError, RankError};
use runner_exec::ExecError;
use runner_report::{OutputMode, Screen};
use runner_store::StoreError;

/// How far a process came with a run that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    Done,
    /// Stopped on request.
    Interrupted,
    /// To the step after which it was to stop.
    Until(u64),
    /// There were as many steps already: nothing was done.
    Already(u64),
}

impl Came {
    pub(super) fn exit(self) -> Exit {
        match self {
            Self::Done | Self::Until(_) | Self::Already(_) => Exit::Done,
            Self::Interrupted => Exit::Interrupted,
        }
    }

    /// What commands with `--until-step` say of it.
    pub(super) fn tell(self, mode: OutputMode) {
        let next = "the same command without --until-step goes on";
        match self {
            Self::Done | Self::Interrupted => {}
            Self::Until(step) => Screen::new(mode).line(&format!("stopped after step {step} as asked; {next}")),
            Self::Already(step) => {
                Screen::new(mode)
                    .result_line(&format!("the run has {step} steps already, as many as asked for or more; {next}"));
            }
        }
    }
}

/// Why a run did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error(transparent)]
    Alone(Box<ExecError>),
    #[error(transparent)]
    Thread(Box<RankError>),
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Of ranks that a launcher started.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// As often as it may, it would come again.
    #[error("{0}; twice in a row the ranks came no further and saved nothing, so they are not started once more")]
    Repeats(ProcessError),
    /// The best checkpoint could not be tested.
    #[error("eval.test: {0:#}")]
    Test(anyhow::Error),
    /// The record could not be opened again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<ExecError> for RunError {
    fn from(error: ExecError) -> Self {
        Self::Alone(Box::new(error))
    }
}

impl From<RankError> for RunError {
    fn from(error: RankError) -> Self {
        Self::Thread(Box::new(error))
    }
}

impl RunError {
    /// The error of a rank in this process.
    fn of_a_rank(&self) -> Option<&ExecError> {
        match self {
            Self::Alone(error) => Some(error),
            Self::Thread(error) => Some(&error.source),
            Self::Process(_) | Self::Member(_) | Self::Repeats(_) | Self::Store(_) | Self::Test(_) => None,
        }
    }

    pub(super) fn not_finite(&self) -> bool {
        match self {
            Self::Process(error) => error.not_finite(),
            Self::Member(error) => error.not_finite(),
            _ => matches!(self.of_a_rank(), Some(ExecError::NotFinite { .. })),
        }
    }

    /// Whether the record could not be kept.
    pub(super) fn is_of_the_record(&self) -> bool {
        match self {
            Self::Process(error) => matches!(error, ProcessError::Record(_)),
            Self::Member(error) => matches!(error, MemberError::Record(_)),
            Self::Store(_) => true,
            _ => matches!(self.of_a_rank(), Some(ExecError::Observer(_))),
        }
    }

    /// The error inside: exit codes go by what it is.
    pub(super) fn into_anyhow(self) -> anyhow::Error {
        match self {
            Self::Alone(error) => (*error).into(),
            Self::Thread(error) => (*error).into(),
            Self::Process(error) | Self::Repeats(error) => error.into(),
            Self::Member(error) => error.into(),
            Self::Store(error) => error.into(),
            Self::Test(error) => error,
        }
    }
}
