//! The sizes and loads at which this machine is measured.

use candle_core::Result;

use super::blocks::{self, Shape};
use super::cache::{Calibration, VERSION};
use super::clock::Repetitions;
use super::copies;
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

/// Measures this machine, called `device`, with `cores` cores. `progress` receives the name of each measurement.
///
/// # Errors
/// If memory or threads are short.
pub fn calibrate(device: &str, cores: usize, effort: Effort, progress: &dyn Fn(&str)) -> Result<Calibration> {
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
    };
    for busy in busy(cores) {
        progress(&format!("{} with {}", counted(busy.ranks as u64, "rank"), counted(busy.threads as u64, "thread")));
        for &d_model in widths {
            // Their layers differ by little: between and beyond its widths Llama's go as at the nearest.
            let families = if [64, 512].contains(&d_model) && !quick { 1 } else { 2 };
            for family in [Family::Gpt2, Family::Llama].into_iter().take(families) {
                for (positions, length) in sizes(d_model) {
                    let shape = Shape { d_model, positions, length };
                    rates.layers.push(blocks::layer(busy, family, shape, false, repetitions)?);
                }
            }
            let shape = |positions| Shape { d_model, positions, length: SHORT };
            let most = most_positions(d_model).min(512);
            rates.heads.push(blocks::head(busy, 1024, shape(most / 4), repetitions)?);
            rates.heads.push(blocks::head(busy, if d_model > 256 { 4096 } else { 8192 }, shape(most), repetitions)?);
        }
        for d_model in [128, 768] {
            let shape = Shape { d_model, positions: 1024, length: SHORT };
            rates.embeddings.push(blocks::embedding(busy, shape, repetitions)?);
        }
        for parameters in if quick { vec![1 << 18, 1 << 22] } else { vec![1 << 16, 1 << 20, 1 << 23] } {
            rates.updates.push(blocks::update(busy, parameters, repetitions)?);
        }
    }
    progress("bf16");
    let shape = Shape { d_model: 256, positions: 512, length: SHORT };
    let all = ConcurrentLoad { ranks: 1, threads: cores };
    let seconds = |bf16| -> Result<f64> {
        let point = blocks::layer(all, Family::Gpt2, shape, bf16, repetitions)?;
        Ok(point.forward + point.backward)
    };
    rates.bf16_factor = seconds(true)? / seconds(false)?;
    progress("copies");
    let link = Link {
        bytes_per_second: copies::bytes_per_second(if quick { 5 } else { 20 }),
        latency: LATENCY,
        copied_by_ranks: true,
    };
    let links = Some(Links { within: link, between: link });
    let rates = Rates { devices: [(device.to_owned(), DeviceRates::Measured(rates))].into(), links, gpu_links: None };
    Ok(Calibration { version: VERSION.to_owned(), device: device.to_owned(), cores, rates })
}

/// A rank alone on a core, a rank on each core, and a rank on all cores.
fn busy(cores: usize) -> Vec<ConcurrentLoad> {
    let mut all = vec![
        ConcurrentLoad { ranks: 1, threads: 1 },
        ConcurrentLoad { ranks: cores, threads: 1 },
        ConcurrentLoad { ranks: 1, threads: cores },
    ];
    all.dedup();
    all
}

/// Positions that take a moment at this width.
fn most_positions(d_model: usize) -> usize {
    match d_model {
        0..=128 => 2048,
        129..=256 => 1024,
        _ => 512,
    }
}

/// (positions, length) of a layer's measurements: few and many positions, and many in longer rows.
fn sizes(d_model: usize) -> [(usize, usize); 3] {
    let most = most_positions(d_model);
    [(SHORT, SHORT), (most, SHORT), (most, LONG)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_busy_in_one_way() {
        assert_eq!(busy(1).len(), 1);
        assert_eq!(busy(8).len(), 3);
    }
}
