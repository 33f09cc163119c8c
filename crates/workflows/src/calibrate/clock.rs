//! Seconds of a piece of work on one rank or on several at once, each with its own threads.

use std::sync::Barrier;
use std::time::Instant;

use candle_core::{Result, bail};

use runner_spec::rates::ConcurrentLoad;
use runner_threads::threads;

/// Repetitions after the first, and the seconds after which they end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repetitions {
    pub least: usize,
    pub most: usize,
    pub seconds: f64,
}

impl Repetitions {
    /// The repetitions of each measurement of a quick or a full calibration.
    pub(super) fn of(quick: bool) -> Self {
        if quick { Self { least: 2, most: 5, seconds: 0.02 } } else { Self { least: 3, most: 15, seconds: 0.06 } }
    }
}

/// Runs the work that `make` returns on `busy.ranks` ranks at the same time. Each repetition measures `N` durations. Returns their medians
/// over the repetitions, averaged over the ranks: a run, too, reports the median of its steps.
pub(super) fn timed<const N: usize, W>(
    busy: ConcurrentLoad,
    repetitions: Repetitions,
    make: impl Fn() -> Result<W> + Sync,
) -> Result<[f64; N]>
where
    W: FnMut() -> Result<[f64; N]> + Send,
{
    let start = Barrier::new(busy.ranks);
    let one = || -> Result<[f64; N]> {
        let pool = threads::thread_pool(busy.threads);
        // A rank whose work cannot be made also comes to the barrier: the others wait for it.
        let made = pool.map_err(candle_core::Error::wrap).and_then(|pool| Ok((pool.install(&make)?, pool)));
        start.wait();
        let (mut work, pool) = made?;
        pool.install(|| repeat(repetitions, &mut work))
    };
    let results = threads::run_together("rank", vec![&one; busy.ranks]).map_err(candle_core::Error::wrap)?;
    let mut sum = [0.0; N];
    for result in results {
        let Some(result) = result else { bail!("a rank of the measurement panicked") };
        for (sum, seconds) in sum.iter_mut().zip(result?) {
            *sum += seconds / busy.ranks as f64;
        }
    }
    Ok(sum)
}

/// The median over the repetitions; the first, which warms up, does not count.
fn repeat<const N: usize>(repetitions: Repetitions, work: &mut impl FnMut() -> Result<[f64; N]>) -> Result<[f64; N]> {
    work()?;
    let started = Instant::now();
    let mut times: Vec<[f64; N]> = Vec::new();
    while times.len() < repetitions.least
        || (times.len() < repetitions.most && started.elapsed().as_secs_f64() < repetitions.seconds)
    {
        times.push(work()?);
    }
    Ok(std::array::from_fn(|n| {
        let mut column: Vec<f64> = times.iter().map(|t| t[n]).collect();
        column.sort_by(f64::total_cmp);
        column[column.len() / 2]
    }))
}

/// Seconds of `work`, and its result.
pub(super) fn stopwatch<T>(work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let started = Instant::now();
    let value = work()?;
    Ok((started.elapsed().as_secs_f64(), value))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_median_of_all_ranks_leaves_out_the_first_repetition() {
        let made = AtomicUsize::new(0);
        let busy = ConcurrentLoad { ranks: 2, threads: 1 };
        let repetitions = Repetitions { least: 5, most: 5, seconds: 0.0 };
        let [a, b] = timed(busy, repetitions, || {
            made.fetch_add(1, Ordering::Relaxed);
            let mut call = 0.0;
            Ok(move || {
                call += 1.0;
                Ok([call, -call])
            })
        })
        .expect("measures");
        // Calls 2 to 6 count.
        assert_eq!((a, b), (4.0, -4.0));
        assert_eq!(made.into_inner(), 2);
    }
}
