//! How fast ranks sum a buffer: the code that a run sums gradients with.

use std::time::Instant;

use candle_core::{DType, Device, Error, Result, Tensor, bail};

use runner_comm::{Communicator as _, GroupOperation, LocalComm, Region};
use runner_spec::topology::{GroupId, Topology};
use runner_threads::threads;

/// Numbers of a buffer of 16 MiB: beyond the caches that a core has alone.
const BUFFER_LENGTH: usize = 4 << 20;

/// The most ranks that are measured together.
const MAX_RANKS: usize = 8;

/// Bytes/s of a sum over a rank on each of `cores` cores, counted as a ring would send them: 2(n − 1)/n of the buffer. The median of `times`
/// sums counts. `None` on one core.
///
/// # Errors
/// If memory or threads are short.
pub(super) fn bytes_per_second(cores: usize, times: usize) -> Result<Option<f64>> {
    let ranks = cores.min(MAX_RANKS);
    if ranks < 2 {
        return Ok(None);
    }
    let topology = Topology { world_size: ranks, groups: vec![(0..ranks).collect()], channels: Vec::new() };
    let region = Region::anonymous(&topology).map_err(Error::wrap)?;
    // A rank that failed to start would leave the others waiting for it.
    let ends = (0..ranks).map(|rank| {
        let comm = LocalComm::new(region.clone(), rank).map_err(Error::wrap)?;
        Ok((comm, Tensor::zeros(BUFFER_LENGTH, DType::F32, &Device::Cpu)?))
    });
    let sum = |(comm, buffer): (LocalComm, Tensor)| {
        move || -> Result<f64> {
            let mut seconds = Vec::new();
            // The first one warms up.
            for _ in 0..=times.max(1) {
                let started = Instant::now();
                comm.run(GroupId(0), GroupOperation::AllReduce, &buffer).map_err(Error::wrap)?;
                seconds.push(started.elapsed().as_secs_f64());
            }
            seconds.remove(0);
            seconds.sort_by(f64::total_cmp);
            Ok(seconds[seconds.len() / 2])
        }
    };
    let work = ends.collect::<Result<Vec<_>>>()?.into_iter().map(sum).collect();
    let seconds = threads::run_together("sum", work).map_err(Error::wrap)?;
    let mut slowest = 0.0_f64;
    for seconds in seconds {
        let Some(seconds) = seconds else { bail!("a rank of the measurement panicked") };
        slowest = slowest.max(seconds?);
    }
    let bytes = 2.0 * (ranks - 1) as f64 / ranks as f64 * (BUFFER_LENGTH * size_of::<f32>()) as f64;
    Ok(Some(bytes / slowest.max(1e-9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_several_ranks_are_measured() {
        assert_eq!(bytes_per_second(1, 1).expect("one core"), None);
        assert!(bytes_per_second(2, 1).expect("two cores").expect("a rate") > 0.0);
    }
}
