//! The sizes and loads at which this machine is measured.

use candle_core::Result;

use super::blocks::{self, MeasuredShape};
use super::clock::Repetitions;
use super::copies;
use super::sums;
use runner_inputs::calibration::{CalibrationParts, MeasuredPart, PartRates};
use runner_spec::experiment::Family;
use runner_spec::format::counted;
use runner_spec::rates::{ConcurrentLoad, Link};

/// Seconds until a rank sees what another wrote: an assumption, not measured.
const LATENCY: f64 = 20e-6;

/// Lengths of short and long rows: the difference shows how a layer's time depends on the length.
const SHORT: usize = 64;
const LONG: usize = 256;

/// A part of the measurement.
struct Part {
    name: String,
    measure: Box<dyn Fn() -> Result<PartRates>>,
}

/// Measures the parts that `known` lacks, or that were disturbed. `progress` receives the name of each part.
///
/// # Errors
/// If memory or threads are short.
pub fn measure_parts(known: &mut CalibrationParts, progress: &dyn Fn(&str)) -> Result<()> {
    let pending: Vec<Part> =
        parts(known.cores, known.quick).into_iter().filter(|part| !known.has_quiet(&part.name)).collect();
    let probe = || probe_seconds(known.cores, false, Repetitions::of(known.quick));
    let mut before = probe()?;
    let mut measured = Vec::new();
    for Part { name, measure } in pending {
        progress(&name);
        let rates = measure()?;
        let after = probe()?;
        measured.push(MeasuredPart { name, rates, probe_seconds: before.max(after) });
        before = after;
    }
    for part in measured {
        known.add(part);
    }
    Ok(())
}

/// The number of parts of a calibration.
pub fn part_count(cores: usize, quick: bool) -> usize {
    parts(cores, quick).len()
}

/// Seconds of a forward and a backward of a layer, with all cores: the same work whenever it is measured.
fn probe_seconds(cores: usize, bf16: bool, repetitions: Repetitions) -> Result<f64> {
    let all = ConcurrentLoad { ranks: 1, threads: cores };
    let shape = MeasuredShape { d_model: 256, positions: 512, length: SHORT };
    let point = blocks::layer(all, Family::default(), shape, bf16, repetitions)?;
    Ok(point.forward + point.backward)
}

fn parts(cores: usize, quick: bool) -> Vec<Part> {
    let repetitions = Repetitions::of(quick);
    let widths: &[usize] = if quick { &[128, 512] } else { &[64, 128, 256, 512, 768] };
    let part = |name: String, measure: Box<dyn Fn() -> Result<PartRates>>| Part { name, measure };
    let mut parts = Vec::new();
    for busy in loads_to_measure(cores) {
        let load = format!("{} with {}", counted(busy.ranks as u64, "rank"), counted(busy.threads as u64, "thread"));
        for &d_model in widths {
            let measure = move || layers_and_heads(busy, d_model, quick);
            parts.push(part(format!("{load}, width {d_model}"), Box::new(measure)));
        }
        parts
            .push(part(format!("{load}, embedding and update"), Box::new(move || embeddings_and_updates(busy, quick))));
    }
    let bf16_factor = move || {
        let [in_f32, in_bf16] = [false, true].map(|bf16| probe_seconds(cores, bf16, repetitions));
        Ok(PartRates { bf16_factor: Some(in_bf16? / in_f32?), ..PartRates::default() })
    };
    parts.push(part("bf16".to_owned(), Box::new(bf16_factor)));
    let copies = move || {
        let link = Link {
            bytes_per_second: copies::bytes_per_second(if quick { 5 } else { 20 })?,
            latency: LATENCY,
            copied_by_ranks: true,
            sum_bytes_per_second: sums::bytes_per_second(cores, if quick { 5 } else { 15 })?,
        };
        Ok(PartRates { link: Some(link), ..PartRates::default() })
    };
    parts.push(part("copies".to_owned(), Box::new(copies)));
    parts
}

fn layers_and_heads(busy: ConcurrentLoad, d_model: usize, quick: bool) -> Result<PartRates> {
    let (mut rates, repetitions) = (PartRates::default(), Repetitions::of(quick));
    // The layers of all families take similar times, so all but the first are measured at fewer widths. The planner interpolates.
    let families = if [64, 512].contains(&d_model) && !quick { 1 } else { Family::ALL.len() };
    for family in Family::ALL.into_iter().take(families) {
        for (positions, length) in positions_and_lengths(d_model) {
            let shape = MeasuredShape { d_model, positions, length };
            rates.layers.push(blocks::layer(busy, family, shape, false, repetitions)?);
        }
    }
    for vocab in [1024, if d_model > 256 { 4096 } else { 8192 }] {
        for positions in positions(most_positions(d_model)) {
            let shape = MeasuredShape { d_model, positions, length: SHORT };
            rates.heads.push(blocks::head(busy, vocab, shape, repetitions)?);
        }
    }
    Ok(rates)
}

fn embeddings_and_updates(busy: ConcurrentLoad, quick: bool) -> Result<PartRates> {
    let (mut rates, repetitions) = (PartRates::default(), Repetitions::of(quick));
    for d_model in [128, 768] {
        let shape = MeasuredShape { d_model, positions: 1024, length: SHORT };
        rates.embeddings.push(blocks::embedding(busy, shape, repetitions)?);
    }
    let parameters: &[usize] = if quick { &[1 << 18, 1 << 22] } else { &[1 << 16, 1 << 20, 1 << 23] };
    for &parameters in parameters {
        rates.updates.push(blocks::update(busy, parameters, repetitions)?);
    }
    Ok(rates)
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_part_has_a_name_of_its_own() {
        for (cores, quick, count) in [(1, false, 8), (2, false, 20), (8, true, 11)] {
            let names: BTreeSet<String> = parts(cores, quick).into_iter().map(|part| part.name).collect();
            assert_eq!((names.len(), part_count(cores, quick)), (count, count), "{names:?}");
        }
    }

    #[test]
    fn one_core_is_busy_in_one_way() {
        assert_eq!(loads_to_measure(1).len(), 1);
        assert_eq!(loads_to_measure(8).len(), 3);
    }
}
