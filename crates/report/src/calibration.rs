//! The measurements of `runner calibrate` as tables.

use std::fmt::Write as _;

use crate::table::{Align, table};
use runner_spec::format::printable;
use runner_spec::rates::{DeviceRates, MeasuredRates, Rates};

/// The measured rates of a machine whose processor is `device`.
pub fn calibration_text(device: &str, cores: usize, rates: &Rates) -> String {
    let mut out = format!("{device}, {cores} cores\n");
    for rates in rates.devices.values() {
        if let DeviceRates::Measured(measured) = rates {
            out += &measured_table(measured);
        }
    }
    if let Some(links) = rates.links {
        let speed = links.within.bytes_per_second / 1e9;
        let _ = writeln!(out, "copies through memory: {speed:.1} GB/s for each of two threads");
        if let Some(sums) = links.within.sum_bytes_per_second {
            let _ = writeln!(out, "sums over ranks: {:.1} GB/s, counted as a ring would send them", sums / 1e9);
        }
    }
    out
}

fn measured_table(rates: &MeasuredRates) -> String {
    let heads = ["ranks", "threads", "d_model", "positions", "length", "forward ns/pos", "backward"];
    let columns: Vec<_> = [("layer", Align::Left)].into_iter().chain(heads.map(|head| (head, Align::Right))).collect();
    let row = |name: String, busy, d_model: usize, positions: usize, length: String, seconds: [f64; 2]| {
        let runner_spec::rates::ConcurrentLoad { ranks, threads } = busy;
        let mut row = vec![name];
        row.extend([ranks, threads, d_model, positions].map(|n| n.to_string()));
        row.push(length);
        row.extend(seconds.map(|seconds| format!("{:.0}", 1e9 * seconds / positions as f64)));
        row
    };
    let layers = rates.layers.iter().map(|p| {
        let family = format!("{:?}", p.family).to_lowercase();
        row(family, p.busy, p.d_model, p.positions, p.length.to_string(), [p.forward, p.backward])
    });
    let heads = rates.heads.iter().map(|p| {
        row("head".to_owned(), p.busy, p.d_model, p.positions, format!("V {}", p.vocab), [p.forward, p.backward])
    });
    let mut out = table(&columns, &layers.chain(heads).collect::<Vec<_>>());
    for p in &rates.updates {
        let _ = writeln!(
            out,
            "update of {:.1} M parameters, {} ranks with {} threads: {:.2} GB/s at 36 bytes per parameter",
            p.parameters as f64 / 1e6,
            p.busy.ranks,
            p.busy.threads,
            36e-9 * p.parameters as f64 / p.seconds
        );
    }
    if let Some(disturbance) = &rates.disturbance {
        let _ = writeln!(
            out,
            "measured with --force on a busy machine, so predictions may be wrong: {}",
            printable(disturbance)
        );
    }
    let _ = writeln!(out, "a layer under bf16 takes {:.2} times as long as under fp32", rates.bf16_factor);
    out
}
