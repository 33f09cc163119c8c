//! The executor's errors.

use super::memory_shortage::{DriverMemory, MemoryShortage};
use runner_comm::CommError;
use runner_compute::kernels::out_of_memory::{failed_computation, is_out_of_memory};
use runner_data::DataError;
use runner_spec::error::{Classified, ErrorKind};
use runner_spec::event::ObserveError;
use runner_spec::program::{Instruction, Program};

/// The reason why a rank stopped.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    Kernel(#[from] candle_core::Error),
    #[error("{0}")]
    OutOfMemory(Box<MemoryShortage>),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Observer(#[from] ObserveError),
    /// A number that is infinite or not a number; `first` is where it appeared first.
    #[error("step {step}: the {what} is not finite; first bad value: {first}")]
    NotFinite { step: u64, what: &'static str, first: String },
    /// The result of an evaluation is infinite or not a number.
    #[error("the {0} is not finite")]
    ResultNotFinite(&'static str),
    /// What was asked for is impossible.
    #[error("{0}")]
    Request(String),
    /// Another rank, or the connection to it, failed.
    #[error(transparent)]
    Peer(#[from] CommError),
    /// Ranks that must hold the same numbers do not.
    #[error(
        "after step {step}, the {what} differ between ranks that must hold the same values, so memory or a \
        device is faulty"
    )]
    ReplicasDiffer { step: u64, what: &'static str },
    /// The weights that training starts from.
    #[error("the initial weights: {0}")]
    InitialWeights(Box<dyn std::error::Error + Send + Sync>),
    #[error("the program cannot run: {0}")]
    Program(String),
}

impl ExecError {
    /// True if the end of another rank caused this error: that rank's own error has the details.
    pub fn is_aborted(&self) -> bool {
        match self {
            Self::Peer(error) => error.is_aborted(),
            Self::Observer(error) => matches!(error, ObserveError::Aborted(_)),
            _ => false,
        }
    }
}

/// Turns an out-of-memory error of a kernel or of NCCL into a `MemoryShortage`, and returns other errors unchanged.
/// `instruction` is the one that failed, in step `step`, which counts from 0; without one, the rank was starting.
pub(super) fn explain_out_of_memory(
    error: ExecError,
    program: &Program,
    step: u64,
    instruction: Option<Instruction>,
    memory: impl FnOnce() -> Option<DriverMemory>,
) -> ExecError {
    let inside = match &error {
        ExecError::Kernel(kernel) | ExecError::Peer(CommError::Tensor(kernel)) if is_out_of_memory(kernel) => {
            failed_computation(kernel)
        }
        // NCCL has no separate code for a failed allocation: it quotes the failed call of CUDA.
        ExecError::Peer(CommError::Device { what, .. }) if what.contains("NCCL") && what.contains("out of memory") => {
            None
        }
        _ => return error,
    };
    ExecError::OutOfMemory(Box::new(MemoryShortage::new(program, step, instruction, inside, memory())))
}

/// The kind of an error outside a run. Inside one, it is a failure of the run, whatever its cause.
impl Classified for ExecError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(error) => error.kind(),
            Self::Request(_) => ErrorKind::Request,
            _ => ErrorKind::Failure,
        }
    }
}
