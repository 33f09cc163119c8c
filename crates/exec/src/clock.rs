//! How long the parts of a step take: by the host's clock on a CPU, by the device's on a GPU, where a launch takes no time.

#![cfg_attr(
    not(feature = "cuda"),
    allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        clippy::needless_pass_by_value,
        reason = "as with the feature"
    )
)]

use std::time::{Duration, Instant};

use candle_core::{Device, Result};

/// What time is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Data,
    Forward,
    Backward,
    Optimizer,
}

/// Time spent on each.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Phases {
    pub data: Duration,
    pub forward: Duration,
    pub backward: Duration,
    pub optimizer: Duration,
}

impl Phases {
    fn add(&mut self, phase: Phase, time: Duration) {
        *match phase {
            Phase::Data => &mut self.data,
            Phase::Forward => &mut self.forward,
            Phase::Backward => &mut self.backward,
            Phase::Optimizer => &mut self.optimizer,
        } += time;
    }
}

/// A part of a step that has begun.
#[derive(Debug)]
pub(super) struct Lap {
    started: Instant,
    #[cfg(feature = "cuda")]
    moment: Option<runner_compute::gpu::Moment>,
}

/// Measures one rank.
#[derive(Debug)]
pub(super) struct Clock {
    #[cfg(feature = "cuda")]
    gpu: Option<std::sync::Arc<runner_compute::gpu::Gpu>>,
    phases: Phases,
    /// Laps that the GPU had not finished when they were last looked at.
    #[cfg(feature = "cuda")]
    running: Vec<(Phase, runner_compute::gpu::Moment, runner_compute::gpu::Moment)>,
}

impl Clock {
    #[cfg(not(feature = "cuda"))]
    pub(super) fn new(_: &Device) -> Result<Self> {
        Ok(Self { phases: Phases::default() })
    }

    #[cfg(feature = "cuda")]
    pub(super) fn new(device: &Device) -> Result<Self> {
        let gpu = if device.is_cuda() { Some(runner_compute::gpu::Gpu::of(device)?) } else { None };
        Ok(Self { gpu, phases: Phases::default(), running: Vec::new() })
    }

    pub(super) fn start(&self) -> Result<Lap> {
        Ok(Lap {
            started: Instant::now(),
            #[cfg(feature = "cuda")]
            moment: self.gpu.as_ref().map(|gpu| gpu.moment()).transpose()?,
        })
    }

    /// Counts what was done, or launched, since `lap` began. Data are the host's.
    pub(super) fn stop(&mut self, lap: Lap, phase: Phase) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let (Some(gpu), Some(moment)) = (&self.gpu, lap.moment)
            && phase != Phase::Data
        {
            self.running.push((phase, moment, gpu.moment()?));
            return Ok(());
        }
        self.phases.add(phase, lap.started.elapsed());
        Ok(())
    }

    /// What was counted since this was last asked. On a GPU the update of a step, for which nobody waits, is in the answer of the
    /// next one.
    pub(super) fn take(&mut self) -> Result<Phases> {
        #[cfg(feature = "cuda")]
        for (phase, from, to) in std::mem::take(&mut self.running) {
            match to.since(&from)? {
                Some(time) => self.phases.add(phase, time),
                None => self.running.push((phase, from, to)),
            }
        }
        Ok(std::mem::take(&mut self.phases))
    }
}
