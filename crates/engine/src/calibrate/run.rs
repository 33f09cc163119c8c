//! The sizes and loads at which this machine is measured.

use candle_core::Result;

use super::blocks::{self, MeasuredShape};
use super::clock::Repetitions;
use super::copies;
use super::sums;
use runner_prepare::calibration::{Calibration, VERSION};
use runner_spec::experiment::Family;
use runner_spec::format::counted;
use runner_spec::rates::{ConcurrentLoad, DeviceRates, Link, Links, MeasuredRates, Rates};

/// The duration of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Full,
    /// Fewer widths, fewer repetitions.
    Quick,
}

/// Seconds until a rank sees what another wrote: an assumption, not measured.
const LATENCY: f64 = 20e-6;

/// Lengths of short and long rows: the difference shows how a layer's time depends on the length.
const SHORT: usize = 64;
const LONG: usize = 256;

/// The measurement of a machine.
#[derive(Debug)]
pub struct Measurement {
    pub calibration: Calibration,
    /// The share by which the slowest repetition of one piece of work took longer than the fastest, over the whole measurement. It is
    /// small unless another program computed at the same time.
    pub spread: f64,
}

/// Measures this machine, called `device`, with `cores` cores. `progress` receives the name of each measurement.
///
/// # Errors
/// If memory or threads are short.
pub fn calibrate(device: &str, cores: usize, effort: Effort, progress: &dyn Fn(&str)) -> Result<Measurement> {
    let quick = effort == Effort::Quick;
    let widths: &[usize] = if quick { &[128, 512] } else { &[64, 128, 256, 512, 768] };
    let repetitions = if quick {
        Repetitions { least: 2, most: 5, seconds: 0.02 }
    } else {
        Repetitions { least: 3, most: 15, seconds: 0.06 }
    };
    let mut rates = MeasuredRates {
        cores,
        layers: Vec::new(),
        heads: Vec::new(),
        embeddings: Vec::new(),
        updates: Vec::new(),
        bf16_factor: 1.0,
        disturbance: None,
    };
    let all = ConcurrentLoad { ranks: 1, threads: cores };
    let shape = MeasuredShape { d_model: 256, positions: 512, length: SHORT };
    let seconds = |bf16| -> Result<f64> {
        let point = blocks::layer(all, Family::default(), shape, bf16, repetitions)?;
        Ok(point.forward + point.backward)
    };
    let mut probes = Vec::new();
    for busy in loads_to_measure(cores) {
        probes.push(seconds(false)?);
        progress(&format!("{} with {}", counted(busy.ranks as u64, "rank"), counted(busy.threads as u64, "thread")));
        for &d_model in widths {
            // The layers of all families take similar times, so all but the first are measured at fewer widths. The planner interpolates.
            let families = if [64, 512].contains(&d_model) && !quick { 1 } else { Family::ALL.len() };
            for family in Family::ALL.into_iter().take(families) {
                for (positions, length) in positions_and_lengths(d_model) {
                    let shape = MeasuredShape { d_model, positions, length };
                    rates.layers.push(blocks::layer(busy, family, shape, false, repetitions)?);
                }
            }
            let shape = |positions| MeasuredShape { d_model, positions, length: SHORT };
            for vocab in [1024, if d_model > 256 { 4096 } else { 8192 }] {
                for positions in positions(most_positions(d_model)) {
                    rates.heads.push(blocks::head(busy, vocab, shape(positions), repetitions)?);
                }
            }
        }
        for d_model in [128, 768] {
            let shape = MeasuredShape { d_model, positions: 1024, length: SHORT };
            rates.embeddings.push(blocks::embedding(busy, shape, repetitions)?);
        }
        for parameters in if quick { vec![1 << 18, 1 << 22] } else { vec![1 << 16, 1 << 20, 1 << 23] } {
            rates.updates.push(blocks::update(busy, parameters, repetitions)?);
        }
    }
    progress("bf16");
    let in_f32 = seconds(false)?;
    rates.bf16_factor = seconds(true)? / in_f32;
    probes.push(in_f32);
    progress("copies");
    let link = Link {
        bytes_per_second: copies::bytes_per_second(if quick { 5 } else { 20 })?,
        latency: LATENCY,
        copied_by_ranks: true,
        sum_bytes_per_second: sums::bytes_per_second(cores, if quick { 5 } else { 15 })?,
    };
    let links = Some(Links { within: link, between: Link { sum_bytes_per_second: None, ..link } });
    let rates = Rates { devices: [(device.to_owned(), DeviceRates::Measured(rates))].into(), links, gpu_links: None };
    probes.push(seconds(false)?);
    let calibration = Calibration { version: VERSION.to_owned(), device: device.to_owned(), cores, rates };
    Ok(Measurement { calibration, spread: spread_of(&probes) })
}

/// The share by which the largest of `seconds` exceeds the smallest.
fn spread_of(seconds: &[f64]) -> f64 {
    let (least, most) = seconds.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), &s| (least.min(s), most.max(s)));
    if least > 0.0 && least.is_finite() { most / least - 1.0 } else { f64::INFINITY }
}

/// A rank alone on a core, a rank on each core, and a rank on all cores.
fn loads_to_measure(cores: usize) -> Vec<ConcurrentLoad> {
    let mut all = vec![
        ConcurrentLoad { ranks: 1, threads: 1 },
        ConcurrentLoad { ranks: cores, threads: 1 },
        ConcurrentLoad { ranks: 1, threads: cores },
    ];
    all.dedup();
    all
}

/// The number of positions whose measurement takes a fraction of a second at this width.
fn most_positions(d_model: usize) -> usize {
    match d_model {
        0..=128 => 2048,
        _ => 1024,
    }
}

/// (positions, length) of a layer's measurements: from few to many positions, because the time per position is least where a micro-batch
/// fits a core's caches, and many in longer rows.
fn positions_and_lengths(d_model: usize) -> Vec<(usize, usize)> {
    let most = most_positions(d_model);
    let short = positions(most).into_iter().map(|positions| (positions, SHORT));
    short.chain([(most, LONG)]).collect()
}

/// Numbers of positions from `SHORT` to `most`, each twice the one before.
fn positions(most: usize) -> Vec<usize> {
    std::iter::successors(Some(SHORT), |positions| Some(2 * positions))
        .take_while(|positions| *positions <= most)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_the_slowest() {
        assert_eq!(spread_of(&[2.0, 3.0, 2.5]), 0.5);
        assert_eq!(spread_of(&[2.0]), 0.0);
        assert!(spread_of(&[]).is_infinite() && spread_of(&[0.0, 1.0]).is_infinite());
    }

    #[test]
    fn one_core_is_busy_in_one_way() {
        assert_eq!(loads_to_measure(1).len(), 1);
        assert_eq!(loads_to_measure(8).len(), 3);
    }
}
