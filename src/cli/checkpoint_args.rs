//! Flags of commands that read a recorded run: which checkpoint, and on what to compute.

use runner_engine::opened_run::OpenedRun;
use runner_spec::experiment::DeviceChoice;
use runner_spec::program::Device;
use runner_store::CheckpointChoice;

use super::output::complain;

/// The device to compute on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReadingDevice {
    /// A GPU if the run was trained on one and there is one here, else the CPU.
    #[default]
    Auto,
    Cpu,
    Cuda,
}

#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct DeviceArgs {
    /// The device to compute on.
    #[arg(long, value_enum, default_value_t, value_name = "DEVICE")]
    pub device: ReadingDevice,
}

impl DeviceArgs {
    /// The device to read `run` on; notes about the choice go to standard error.
    ///
    /// # Errors
    /// If there is no such device.
    pub(crate) fn choose(self, run: &OpenedRun, threads: usize) -> anyhow::Result<Device> {
        let choice = match self.device {
            ReadingDevice::Auto => DeviceChoice::Auto,
            ReadingDevice::Cpu => DeviceChoice::Cpu,
            ReadingDevice::Cuda => DeviceChoice::Cuda,
        };
        let mut notes = Vec::new();
        let device = run.device(choice, threads, &mut notes)?;
        for note in &notes {
            complain(note);
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
