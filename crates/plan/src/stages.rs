//! Plans of many ranks as text: what the run has in common, then one block per stage; and what a plan is predicted to take.

use crate::render::{
    Page, bytes, count, estimated, model_line, optimizer_line, plural, program_lines, recompute_line, schedule_line,
    short, si,
};
use crate::timeline::timeline;
use runner_spec::forecast::{Basis, Forecast};
use runner_spec::mesh::Mode;
use runner_spec::plan::{MemoryCategory, MemoryEstimate, Plan, RankPlan};
use runner_spec::precision;
use runner_spec::program::Device;

/// Stages whose programs are shown in short; of more only the first and the last.
const FEW_STAGES: usize = 4;

/// Ranks that the text does not tell apart: of one stage, on devices of one name, all updating weights or not.
struct Alike<'a> {
    ranks: Vec<&'a RankPlan>,
}

/// The blocks of a plan of several ranks; with `full`, every instruction of each stage's program.
pub(super) fn stages(plan: &Plan, full: bool, out: &mut Page) {
    let Some(first) = plan.ranks.first() else { return };
    common(plan, first, out);
    let alike = alike(plan);
    out.blank();
    for group in &alike {
        group.line(out);
    }
    out.blank();
    memory_table(&alike, out);
    for (stage, rank) in (0..plan.mesh.stages).map(|s| (s, &plan.ranks[plan.mesh.rank(s, 0)])) {
        if full || plan.mesh.stages <= FEW_STAGES || stage == 0 || stage + 1 == plan.mesh.stages {
            out.blank();
            if plan.mesh.stages > 1 {
                out.line(&format!("stage {stage}"), "");
            }
            program_lines(&rank.program, full, out);
        }
    }
    if plan.mesh.stages > FEW_STAGES && !full {
        out.more("--program shows the other stages' programs");
    }
}

fn common(plan: &Plan, first: &RankPlan, out: &mut Page) {
    let mesh = plan.mesh;
    let shape = match (mesh.mode, mesh.stages, mesh.replicas) {
        (Mode::Pipeline, stages, 1) => format!("pipeline of {stages} stages"),
        (Mode::Pipeline, stages, replicas) => {
            format!("{} replicas of a pipeline of {stages} stages", count(replicas as u64))
        }
        (Mode::Dp, _, replicas) => format!("dp, {} replicas; rank 0 updates the weights", count(replicas as u64)),
        (_, _, replicas) => format!("ddp, {} replicas", count(replicas as u64)),
    };
    let nodes = plan.ranks.iter().map(|r| r.hardware.node).max().unwrap_or(0) + 1;
    let nodes = if nodes > 1 { format!(", on {} nodes", count(nodes as u64)) } else { String::new() };
    out.line("ranks", &format!("{}: {shape}{nodes}", count(plan.world_size as u64)));
    out.line("model", &model_line(&first.program));
    let f = &plan.totals;
    out.line("parameters", &count(f.parameters));
    out.line("FLOPs a step", &format!("{} for MFU, all ranks", si(f.flops_per_step, "FLOP")));
    out.more(&first.flops.convention);
    recompute_line(&first.program, plan.ranks.iter().map(|r| r.flops.recomputed).sum(), out);
    match first.program.peak_flops {
        Some(peak) => {
            let estimated = estimated(&first.hardware);
            out.more(&format!("MFU against {}, all devices{estimated}", si(peak, "FLOP/s")));
        }
        None => out.more("MFU is not reported: the devices' peak FLOP/s is not known"),
    }
    out.line("precision", &first.precision);
    out.line("optimizer", &optimizer_line(&first.program));
    out.line("learning rate", &schedule_line(&first.program.schedule));
}

/// In the order of ranks.
fn alike(plan: &Plan) -> Vec<Alike<'_>> {
    let mut out: Vec<Alike<'_>> = Vec::new();
    for rank in &plan.ranks {
        let key = |r: &RankPlan| (r.stage, r.hardware.threads, r.program.owns_optimizer());
        match out.last_mut() {
            Some(last) if key(last.ranks[0]) == key(rank) && last.ranks[0].hardware.name == rank.hardware.name => {
                last.ranks.push(rank);
            }
            _ => out.push(Alike { ranks: vec![rank] }),
        }
    }
    out
}

/// Step time and rates, where they are known; with `price` per device-hour, the cost.
pub(super) fn forecast_lines(plan: &Plan, price: Option<f64>, out: &mut Page) {
    match &plan.forecast {
        Some(forecast) => predicted(plan, forecast, price, out),
        None => out.line("forecast", &why_no_forecast(plan)),
    }
    if plan.mesh.stages < 2 {
        return;
    }
    let Some(timeline) = timeline(plan) else { return };
    let unit = if timeline.in_seconds { "" } else { ", in units of time: F 1, B 2, I and W 1" };
    out.blank();
    out.line("timeline", &format!("a row per stage{unit}; at its end the bubble"));
    for line in timeline.grid() {
        out.raw(&line);
    }
}

fn why_no_forecast(plan: &Plan) -> String {
    let first = plan.ranks.first().filter(|r| r.device != Device::Cpu);
    first.map_or_else(
        || "none: runner calibrate would let it predict the time on this machine".to_owned(),
        |rank| {
            let (name, precision) = (&rank.hardware.name, precision::name(rank.program.precision));
            format!("none: of {name} too little is known for {precision}; give device.peak_flops.{precision} and links")
        },
    )
}

fn predicted(plan: &Plan, f: &Forecast, price: Option<f64>, out: &mut Page) {
    let mfu = f.mfu.map_or_else(String::new, |mfu| format!(", MFU {:.1}%", 100.0 * mfu));
    let each =
        if f.devices > 1 { format!(", {} per device", rate(f.tokens_per_second_per_device)) } else { String::new() };
    out.line(
        "forecast",
        &format!("{} a step, {} tokens/s{each}{mfu}", seconds(f.step_seconds), rate(f.tokens_per_second)),
    );
    out.more(match f.basis {
        Basis::Measured => "from what runner calibrate measured",
        Basis::Assumed => "from data sheets and assumed efficiencies",
    });
    if plan.ranks.first().is_some_and(|r| r.program.model.dropout > 0.0 || r.program.model.variant.mlp_dropout > 0.0) {
        out.more("without dropout, which is not modelled and may take as long as the rest on a CPU");
    }
    let device = if f.devices == 1 { "device" } else { "devices" };
    let hours = if f.device_hours < 0.01 {
        format!("{} device-seconds", short(3600.0 * f.device_hours))
    } else {
        format!("{} device-hours", short(f.device_hours))
    };
    let cost =
        price.map_or_else(String::new, |p| format!(": {:.2} at {} per device-hour", p * f.device_hours, short(p)));
    out.more(&format!(
        "{} steps in {} without evaluations, {hours} on {} {device}{cost}",
        count(plan.totals.steps),
        seconds(f.run_seconds),
        count(f.devices as u64)
    ));
    if plan.ranks.len() > 1 {
        out.more(&format!("{:<10}{:>12}{:>10}{:>16}", "", "computes", "bubble", "communication"));
        for s in &f.stages {
            out.more(&format!(
                "{:<10}{:>12}{:>10}{:>16}",
                format!("stage {}", s.stage),
                seconds(s.compute_seconds),
                format!("{:.1}%", 100.0 * s.bubble),
                seconds(s.communication_seconds)
            ));
        }
    }
}

impl Alike<'_> {
    fn name(&self) -> String {
        let (first, last) = (self.ranks[0].rank, self.ranks[self.ranks.len() - 1].rank);
        if first == last {
            format!("rank {first}")
        } else {
            format!("ranks {} … {}", count(first as u64), count(last as u64))
        }
    }

    fn line(&self, out: &mut Page) {
        let rank = self.ranks[0];
        let last = rank.program.model.layers + 1;
        let blocks: Vec<String> = rank
            .chunks
            .iter()
            .map(|c| {
                let layers = c.range().filter(|&b| b > 0 && b < last).count();
                let embedding = if c.contains(0) { "embedding, " } else { "" };
                let head = if c.contains(last) { ", head" } else { "" };
                format!("{embedding}{layers} layer{}{head}", plural(layers))
            })
            .collect();
        let buckets = match rank.program.buckets.len() {
            0 => String::new(),
            n => format!(", {n} bucket{}", plural(n)),
        };
        let h = &rank.hardware;
        let memory = h.memory_bytes.map_or_else(String::new, |m| format!(" of {}", bytes(m)));
        let threads = if h.threads > 1 { format!(", {} threads", h.threads) } else { String::new() };
        out.line(&format!("stage {}", rank.stage), &format!("{} on {}{memory}{threads}", self.name(), h.name));
        out.more(&format!(
            "{}: {} parameters{buckets}; {} micro-batch{} in flight; forward {}, backward {}",
            blocks.join(" | "),
            count(rank.params.total),
            rank.in_flight,
            if rank.in_flight == 1 { "" } else { "es" },
            si(rank.flops.forward, "FLOP"),
            si(rank.flops.backward, "FLOP")
        ));
        if !rank.program.owns_optimizer() {
            out.more("no optimizer state: rank 0 updates");
        }
    }
}

fn memory_table(alike: &[Alike<'_>], out: &mut Page) {
    // What a plan has none of has no column.
    let shown = |of: MemoryCategory| {
        let sum =
            |a: &Alike<'_>| a.ranks[0].memory.categories().into_iter().find(|(c, _)| *c == of).map_or(0, |(_, b)| b);
        of != MemoryCategory::Context || alike.iter().any(|a| sum(a) > 0)
    };
    let columns = |memory: &MemoryEstimate| memory.categories().into_iter().filter(|(of, _)| shown(*of));
    let row = |cells: Vec<String>| cells.iter().map(|c| format!("{c:>13}")).collect::<Vec<_>>().concat();
    let width = alike.iter().map(|a| a.name().chars().count()).max().unwrap_or(0);
    let Some(first) = alike.first() else { return };
    let mut names: Vec<String> = columns(&first.ranks[0].memory).map(|(of, _)| of.name().to_owned()).collect();
    names.push("total".to_owned());
    out.line("memory", &format!("{:<width$}{}", "per rank", row(names)));
    for group in alike {
        let memory = &group.ranks[0].memory;
        let mut cells: Vec<String> = columns(memory).map(|(_, sum)| bytes(sum)).collect();
        cells.push(bytes(memory.total()));
        out.more(&format!("{:<width$}{}", group.name(), row(cells)));
    }
}

/// With three digits, in the unit that a person takes.
fn seconds(s: f64) -> String {
    let digits = |x: f64| match x {
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    };
    match s {
        s if s < 1e-3 => format!("{} µs", digits(s * 1e6)),
        s if s < 1.0 => format!("{} ms", digits(s * 1e3)),
        s if s < 120.0 => format!("{} s", digits(s)),
        s if s < 7200.0 => format!("{} min", digits(s / 60.0)),
        s if s < 48.0 * 3600.0 => format!("{} h", digits(s / 3600.0)),
        s => format!("{} days", digits(s / 86_400.0)),
    }
}

fn rate(x: f64) -> String {
    count(x.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let cases = [3.2e-6, 0.0456, 1.5, 119.0, 600.0, 9000.0, 1e6].map(seconds);
        assert_eq!(cases, ["3.20 µs", "45.6 ms", "1.50 s", "119 s", "10.0 min", "2.50 h", "11.6 days"]);
    }
}
