//! Measures how long the phases of a step take: by the host's clock on a CPU, by the device's on a GPU, where a launch takes no time.

use std::time::{Duration, Instant};

use candle_core::{Device, Result};
use runner_spec::program::Instruction;

/// A part of a step whose time is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Data,
    Forward,
    Backward,
    Optimizer,
}

impl Phase {
    /// The phase to which an instruction's time counts, if any.
    pub(super) fn of_instruction(instruction: Instruction) -> Option<Self> {
        use Instruction as I;
        match instruction {
            I::Load { .. } => Some(Self::Data),
            I::Forward { .. } => Some(Self::Forward),
            I::Backward { .. } | I::BackwardInput { .. } | I::BackwardWeight { .. } => Some(Self::Backward),
            I::ClipNorm { .. } | I::OptimizerStep => Some(Self::Optimizer),
            _ => None,
        }
    }
}

/// Time spent on each phase, in the order of [`Phase`].
pub(super) type PhaseTimes = [Duration; 4];

/// The beginning of a measurement.
#[derive(Debug)]
pub(super) struct Lap {
    started: Instant,
    #[cfg(feature = "cuda")]
    moment: Option<runner_compute::gpu::GpuTimestamp>,
}

#[derive(Debug)]
pub(super) struct PhaseClock {
    #[cfg(feature = "cuda")]
    gpu: Option<std::sync::Arc<runner_compute::gpu::Gpu>>,
    times: PhaseTimes,
    /// Measurements that the GPU had not finished when they were last read.
    #[cfg(feature = "cuda")]
    running: Vec<(Phase, runner_compute::gpu::GpuTimestamp, runner_compute::gpu::GpuTimestamp)>,
}

impl PhaseClock {
    #[cfg(not(feature = "cuda"))]
    pub(super) fn new(_: &Device) -> Result<Self> {
        Ok(Self { times: PhaseTimes::default() })
    }

    #[cfg(feature = "cuda")]
    pub(super) fn new(device: &Device) -> Result<Self> {
        let gpu = if device.is_cuda() { Some(runner_compute::gpu::Gpu::of_device(device)?) } else { None };
        Ok(Self { gpu, times: PhaseTimes::default(), running: Vec::new() })
    }

    pub(super) fn start(&self) -> Result<Lap> {
        Ok(Lap {
            started: Instant::now(),
            #[cfg(feature = "cuda")]
            moment: self.gpu.as_ref().map(|gpu| gpu.record_timestamp()).transpose()?,
        })
    }

    /// Counts the time since `lap` to `phase`. Data is read by the host, everything else is timed by the device.
    pub(super) fn stop(&mut self, lap: Lap, phase: Phase) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let (Some(gpu), Some(moment)) = (&self.gpu, lap.moment)
            && phase != Phase::Data
        {
            self.running.push((phase, moment, gpu.record_timestamp()?));
            return Ok(());
        }
        self.times[phase as usize] += lap.started.elapsed();
        Ok(())
    }

    /// Returns the times since the last call. Nothing waits for a GPU's update, so the time of a step's update is in the next step's times.
    pub(super) fn take(&mut self) -> Result<PhaseTimes> {
        #[cfg(feature = "cuda")]
        for (phase, from, to) in std::mem::take(&mut self.running) {
            match to.elapsed_since(&from)? {
                Some(time) => self.times[phase as usize] += time,
                None => self.running.push((phase, from, to)),
            }
        }
        Ok(std::mem::take(&mut self.times))
    }
}
