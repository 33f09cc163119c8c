//! Flags of commands that read a recorded run: which checkpoint, and on what to compute.

use runner_engine::opened_run::{OpenedRun, open_run};
use runner_spec::experiment::DeviceChoice;
use runner_spec::program::Device;
use runner_store::CheckpointChoice;

use super::common::{RunsFolderArgs, ThreadArgs};
use super::completions::runs_completer;
use super::output::print_to_stderr;

/// The device to compute on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReadingDevice {
    /// A GPU if the run was trained on one and there is one here, else the CPU.
    #[default]
    Auto,
    Cpu,
    Cuda,
}

/// A recorded run whose model computes something.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RecordedRunArgs {
    /// The run: its directory, its id, or the beginning of its id.
    #[arg(add = runs_completer())]
    pub run: String,
    #[command(flatten)]
    pub checkpoint: CheckpointArgs,
    /// The device to compute on.
    #[arg(long, value_enum, default_value_t, value_name = "DEVICE")]
    pub device: ReadingDevice,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
}

impl RecordedRunArgs {
    /// Opens the run.
    ///
    /// # Errors
    /// If there is no such run, or it cannot be read.
    pub(crate) fn open(&self) -> anyhow::Result<OpenedRun> {
        Ok(open_run(&self.root.root(), &self.run)?)
    }

    /// The device to read `run` on; notes about the choice go to standard error.
    ///
    /// # Errors
    /// If there is no such device.
    pub(crate) fn choose_device(&self, run: &OpenedRun) -> anyhow::Result<Device> {
        let choice = match self.device {
            ReadingDevice::Auto => DeviceChoice::Auto,
            ReadingDevice::Cpu => DeviceChoice::Cpu,
            ReadingDevice::Cuda => DeviceChoice::Cuda,
        };
        let mut notes = Vec::new();
        let device = run.device(choice, self.threads.count(), &mut notes)?;
        for note in &notes {
            print_to_stderr(note);
        }
        Ok(device)
    }
}

/// The checkpoint of a run, on the command line.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// The checkpoint after this many steps [default: the newest].
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// The checkpoint with the lowest validation loss.
    #[arg(long, conflicts_with = "step")]
    pub best: bool,
}

impl CheckpointArgs {
    #[must_use]
    pub(crate) fn which(self) -> CheckpointChoice {
        match self.step {
            Some(step) => CheckpointChoice::Step(step),
            None if self.best => CheckpointChoice::Best,
            None => CheckpointChoice::Latest,
        }
    }
}
