//! One rank of a plan as text: its model, memory, computation and program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::RenderOptions;
use super::page::Page;
use runner_plan::quantity::{bytes, si};
use runner_spec::experiment::Recompute;
use runner_spec::format::{choice_name, count, counted, scientific};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parameters;
use runner_spec::optimizer::Optimizer;
use runner_spec::plan::{MemoryCategory, MemoryEstimate, ParamCounts, Plan, RankPlan};
use runner_spec::program::text::fold;
use runner_spec::program::{Instruction, Program};
use runner_spec::schedule::LrSchedule;

/// All lines of one rank.
pub(super) fn rank_lines(rank: &RankPlan, options: &RenderOptions, page: &mut Page) {
    let hardware = &rank.hardware;
    let threads = counted(hardware.threads as u64, "thread");
    let memory =
        hardware.memory_bytes.map_or_else(|| "memory unknown".to_owned(), bytes) + &hardware.memory_limit_note();
    page.line(&format!("rank {}", rank.rank), format!("{}: {}, {threads}, {memory}", rank.device, hardware.name));
    model_lines(&rank.program, page);
    parameter_lines(&rank.params, &rank.program, page);
    memory_lines(&rank.memory, options.memory, page);
    computation_lines(rank, None, page);
    if options.instructions {
        program_lines(&rank.program, page);
    }
    evaluation_lines(&rank.program, page);
}

/// FLOPs, precision, optimizer and learning rate: of `rank` alone, or of all ranks of `plan`.
pub(super) fn computation_lines(rank: &RankPlan, plan: Option<&Plan>, page: &mut Page) {
    let (program, flops) = (&rank.program, &rank.flops);
    let (step, all_ranks, all_devices, whose) = match plan {
        Some(plan) => (plan.totals.pace.flops_per_step, ", all ranks", ", all devices", "devices'"),
        None => (flops.step, "", "", "device's"),
    };
    page.line("FLOPs a step", format!("{} for MFU{all_ranks}{}", si(step, "FLOP"), last_stage(program)));
    page.more(&flops.convention);
    if plan.is_none() {
        let (forward, backward) = (si(flops.forward, "FLOP"), si(flops.backward, "FLOP"));
        page.more(format!("matrix products alone: forward {forward}, backward {backward}"));
    }
    let recomputed = plan.map_or(flops.recomputed, |plan| plan.ranks.iter().map(|r| r.flops.recomputed).sum());
    let recomputed_part = match program.recompute {
        Recompute::None => None,
        Recompute::Attention => Some("attention, from each layer's first norm on"),
        Recompute::Block => Some("each layer, from its input"),
    };
    if let Some(part) = recomputed_part {
        page.more(format!("recomputed in the backward: {part}, {}; not in the MFU", si(recomputed, "FLOP")));
    }
    match program.peak_flops {
        Some(peak) => {
            let estimated = if rank.hardware.estimated { " (estimated from multiprocessors and clock)" } else { "" };
            page.more(format!("MFU against {}{all_devices}{estimated}", si(peak, "FLOP/s")));
        }
        None => page.more(format!("MFU is not reported: the {whose} peak FLOP/s are unknown")),
    }
    page.line("precision", &rank.precision);
    page.line("optimizer", optimizer_line(program));
    page.line("learning rate", schedule_line(&program.schedule));
    for line in rate_table(&program.schedule, program.steps) {
        page.more(line);
    }
    for (group, scale) in program.lr_scales() {
        page.more(format!("peak for {group}: {}", scientific(rounded_to_digits(scale * program.schedule.peak))));
    }
}

/// The model's family, sizes and options.
pub(super) fn model_lines(program: &Program, page: &mut Page) {
    let m = &program.model;
    let family = choice_name(&m.family);
    let kv = if m.kv_heads == m.heads { String::new() } else { format!(" ({} for keys and values)", m.kv_heads) };
    let line = format!(
        "{family}: {}, {}{kv}, {} wide, d_ff {}, vocabulary {}, context {}, {} embeddings{}",
        counted(m.layers as u64, "layer"),
        counted(m.heads as u64, "head"),
        m.d_model,
        m.d_ff,
        count(m.vocab_size as u64),
        m.context_length,
        if m.tie_embeddings { "tied" } else { "untied" },
        m.options.describe()
    );
    page.line("model", line);
    for line in m.options.sums.lines(&m.options.values) {
        page.more(line);
    }
}

/// Counts of parameters: of a rank, or of the whole model that `program` trains a part of.
pub(super) fn parameter_lines(p: &ParamCounts, program: &Program, page: &mut Page) {
    page.line("parameters", count(p.total));
    if !program.lr_scales().is_empty() || !program.groups.is_empty() {
        let own = program.parameter_layout();
        let whole = || ParamLayout::new(parameters(&program.model));
        for line in group_lines(program, &if own.total as u64 == p.total { own } else { whole() }) {
            page.more(line);
        }
        return;
    }
    let [matrices, others] = program.optimizer.description().decays().group_names();
    page.more(format!("{matrices}: {} tensors, {}", p.decayed_tensors, count(p.decayed)));
    page.more(format!("{others}: {} tensors, {}", p.other_tensors, count(p.other)));
}

/// A line for each group of the parameters in `layout`: its tensors and elements, and its weight decay.
fn group_lines(program: &Program, layout: &ParamLayout) -> impl Iterator<Item = String> + use<> {
    let mut groups: BTreeMap<(String, Option<String>), (u64, usize)> = BTreeMap::new();
    for group in program.parameter_groups(layout) {
        let decay = group.optimizer.description().weight_decay().map(|decay| {
            let decay = format!(", weight decay {}", scientific(rounded_to_digits(decay)));
            match group.optimizer {
                Optimizer::Adamw(adamw) if program.transfer.is_some() => {
                    format!("{decay}, eps {}", scientific(rounded_to_digits(adamw.eps)))
                }
                _ => decay,
            }
        });
        let entries = layout.entries.iter().filter(|entry| group.elements.contains(&entry.offset));
        let (tensors, elements) = groups.entry((group.name, decay)).or_default();
        *tensors += entries.count() as u64;
        *elements += group.elements.len();
    }
    groups.into_iter().map(|((name, decay), (tensors, elements))| {
        let settings = decay.unwrap_or_default();
        format!("{name}: {}, {}{settings}", counted(tensors, "tensor"), count(elements as u64))
    })
}

fn memory_lines(memory: &MemoryEstimate, full: bool, page: &mut Page) {
    page.line("memory", format!("{} at the peak (estimate)", bytes(memory.total())));
    let is_optional = |category| {
        matches!(category, MemoryCategory::Communication | MemoryCategory::Checkpoint | MemoryCategory::Context)
    };
    for (category, sum) in memory.categories().into_iter().filter(|(c, sum)| !is_optional(*c) || *sum > 0) {
        page.more(format!("{:<12}{:>12}", category.name(), bytes(sum)));
        for item in memory.items.iter().filter(|i| full && i.category == category) {
            page.more(format!("  {:>12} × {:<6}{}", bytes(item.bytes), item.count, item.what));
        }
    }
}

fn optimizer_line(program: &Program) -> String {
    let clip =
        program.clip_norm().map_or_else(|| "no clipping".to_owned(), |max| format!("global norm clipped to {max}"));
    let mut line = format!("{}, {}; {clip}", program.optimizer.name(), program.optimizer.description().describe());
    let flops = program.orthogonalization_flops();
    if flops > 0.0 {
        let here = if program.world_size() > 1 { format!(" on rank {}", program.rank) } else { String::new() };
        line.extend(["; orthogonalization: ", &si(flops, "FLOP"), " a step", &here]);
    }
    line
}

/// The learning-rate schedule in one line: what each phase does, and the step after which it ends. Steps count from 1.
fn schedule_line(s: &LrSchedule) -> String {
    let mut phases = vec![format!("peak {}", scientific(s.peak))];
    if s.start > 0 {
        phases.push(format!("constant to step {}", count(s.start)));
    }
    let end = count(s.start.saturating_add(s.warmup_steps));
    match s.warmup_from {
        _ if s.warmup_steps == 0 => {}
        None => phases.push(format!("warmup from 0 to the peak at step {end}")),
        Some(from) => phases.push(format!("warmup from {} to the peak after step {end}", scientific(from * s.peak))),
    }
    if s.hold_steps > 0 {
        phases.push(format!("constant to step {}", count(s.decay_start())));
    }
    if let Some((last, earlier)) = s.later_decays.split_last() {
        let starts: Vec<String> = [s.decay_start()].iter().chain(earlier).map(|start| count(*start)).collect();
        let steps = if earlier.is_empty() { "decay from step" } else { "decays from steps" };
        phases.push(format!("{steps} {}, then the peak again to step {}", starts.join(" and "), count(*last)));
    }
    phases.push(s.decay.describe(s.peak, s.later_decays.last().copied().unwrap_or_else(|| s.decay_start())));
    phases.join("; ")
}

/// The rates of the first step, the first one at the peak, those that divide the rest of the run into quarters, and the last: a line of
/// steps, counted from 1, and a line of rates. Empty if the rate is constant.
fn rate_table(s: &LrSchedule, steps: u64) -> Vec<String> {
    let Some(last) = steps.checked_sub(1) else { return Vec::new() };
    // Without `warmup_from`, the last step of the warmup has the peak rate.
    let to_peak = if s.warmup_from.is_none() { s.warmup_steps.saturating_sub(1) } else { s.warmup_steps };
    let peak = s.start.saturating_add(to_peak).min(last);
    let quarter = |n: u64| peak + ((last - peak) as f64 * n as f64 / 4.0).round() as u64;
    let shown: BTreeSet<u64> = [0, peak, quarter(1), quarter(2), quarter(3), last].into();
    let rates: Vec<(String, String)> =
        shown.into_iter().map(|step| (count(step + 1), scientific(rounded_to_digits(s.rate(step))))).collect();
    if rates.iter().all(|(_, rate)| *rate == rates[0].1) {
        return Vec::new();
    }
    let mut lines = ["step".to_owned(), "rate".to_owned()];
    for (step, rate) in rates {
        let width = step.len().max(rate.len()) + 2;
        for (line, cell) in lines.iter_mut().zip([step, rate]) {
            let _ = write!(line, "{cell:>width$}");
        }
    }
    lines.into()
}

/// Three significant digits.
#[expect(clippy::expect_used, reason = "what was printed as a number is read as one")]
fn rounded_to_digits(rate: f64) -> f64 {
    format!("{rate:.2e}").parse().expect("a printed number can be read")
}

/// The first step that `program` describes apart from its earlier stages: nothing, or such as `, from step 37 on`.
pub(super) fn last_stage(program: &Program) -> String {
    program.earlier.last().map_or_else(String::new, |stage| format!(", from step {} on", count(stage.until + 1)))
}

/// The program of a step, folded where it repeats.
pub(super) fn program_lines(program: &Program, page: &mut Page) {
    let instructions = |step: &[Instruction]| format!("{} a step", counted(step.len() as u64, "instruction"));
    let (last, steps) = (last_stage(program), counted(program.steps, "step"));
    page.line("program", format!("{}{last}, {steps}", instructions(&program.step)));
    for line in fold(&program.step) {
        page.more(format!("  {line}"));
    }
    for stage in program.earlier.iter().filter(|stage| stage.step != program.step) {
        page.more(format!("to step {}: {}", count(stage.until), instructions(&stage.step)));
        for line in fold(&stage.step) {
            page.more(format!("  {line}"));
        }
    }
}

/// What evaluations measure, and what is done between steps.
pub(super) fn evaluation_lines(program: &Program, page: &mut Page) {
    let e = &program.eval;
    let mut evaluated = Vec::new();
    if let Some(loss) = e.loss {
        let rows = loss.rows(program.batch.micro_batch);
        evaluated.push(format!("validation loss over {} rows at most", count(rows)));
    }
    if let Some(items) = e.choice_items {
        let names: Vec<&str> = e.tasks.iter().map(|task| task.name.as_str()).collect();
        let of = if names.is_empty() { String::new() } else { format!(" of {}", names.join(", ")) };
        evaluated.push(format!("{} multiple-choice items{of}", count(items as u64)));
    }
    if let Some(samples) = &e.samples {
        evaluated.push(format!(
            "{} of {}, {} tokens each",
            counted(samples.count as u64, "sample"),
            counted(samples.prompts.len() as u64, "prompt"),
            samples.max_tokens
        ));
    }
    if !evaluated.is_empty() {
        page.line("evaluation", evaluated.join("; "));
    }
    let start: Vec<String> = program.start.iter().map(ToString::to_string).collect();
    let first = (!start.is_empty()).then(|| format!("{} before the first step", start.join(", ")));
    let due = first.into_iter().chain(program.periodic.iter().map(ToString::to_string));
    for (index, line) in due.enumerate() {
        page.line(if index == 0 { "when due" } else { "" }, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::schedule::{
        CosineDecay, Decay, DecayTarget, InverseSqrtDecay, PointShape, ScheduleLength, SchedulePoint, StepDecay,
    };

    #[test]
    fn schedules_in_a_line() {
        let linear = |steps| Decay::Linear(DecayTarget { last: 0.0, length: Some(ScheduleLength::Steps(steps)) });
        let schedule = |warmup_steps, warmup_from, decay| LrSchedule {
            peak: 6e-4,
            start: 0,
            warmup_steps,
            warmup_from,
            hold_steps: 0,
            later_decays: Vec::new(),
            decay,
        };
        let line = |warmup_steps, warmup_from, decay| schedule_line(&schedule(warmup_steps, warmup_from, decay));
        insta::assert_snapshot!(line(10, None, Decay::Cosine(CosineDecay { length: Some(ScheduleLength::Steps(40)), ..CosineDecay::default() })), @"peak 6e-4; warmup from 0 to the peak at step 10; cosine to 6e-5 after step 50, then constant");
        insta::assert_snapshot!(line(20, Some(0.1), linear(80)), @"peak 6e-4; warmup from 6e-5 to the peak after step 20; linear to 0 after step 100, then constant");
        insta::assert_snapshot!(line(0, None, Decay::Step(StepDecay { every: Some(ScheduleLength::Steps(1_000)), epochs: None, gamma: 0.95 })), @"peak 6e-4; times 0.95 every 1,000 steps");
        let stable = LrSchedule { hold_steps: 70, ..schedule(10, None, linear(20)) };
        insta::assert_snapshot!(schedule_line(&stable), @"peak 6e-4; warmup from 0 to the peak at step 10; constant to step 80; linear to 0 after step 100, then constant");
        let cooldown = LrSchedule { start: 1_300, ..schedule(0, None, linear(100)) };
        insta::assert_snapshot!(schedule_line(&cooldown), @"peak 6e-4; constant to step 1,300; linear to 0 after step 1,400, then constant");
        let repeated =
            |later_decays| schedule_line(&LrSchedule { hold_steps: 80, later_decays, ..schedule(0, None, linear(20)) });
        insta::assert_snapshot!(repeated(vec![180]), @"peak 6e-4; constant to step 80; decay from step 80, then the peak again to step 180; linear to 0 after step 200, then constant");
        insta::assert_snapshot!(repeated(vec![180, 1_280]), @"peak 6e-4; constant to step 80; decays from steps 80 and 180, then the peak again to step 1,280; linear to 0 after step 1,300, then constant");
        let sqrt = Decay::Sqrt(DecayTarget { last: 0.0, length: Some(ScheduleLength::Steps(20)) });
        let stable = LrSchedule { hold_steps: 80, ..schedule(0, None, sqrt) };
        insta::assert_snapshot!(schedule_line(&stable), @"peak 6e-4; constant to step 80; sqrt to 0 after step 100, then constant");
        let inverse = |start, hold_steps| {
            let decay = Decay::InverseSqrt(InverseSqrtDecay { length: Some(ScheduleLength::Steps(40)) });
            schedule_line(&LrSchedule { start, hold_steps, ..schedule(10, None, decay) })
        };
        insta::assert_snapshot!(inverse(0, 30), @"peak 6e-4; warmup from 0 to the peak at step 10; constant to step 40; inverse_sqrt lr·√(40/(step-1))");
        insta::assert_snapshot!(inverse(300, 30), @"peak 6e-4; constant to step 300; warmup from 0 to the peak at step 310; constant to step 340; inverse_sqrt lr·√(40/(step-301))");
        let point = |at, factor, shape| SchedulePoint { at: ScheduleLength::Steps(at), factor, shape };
        let points = vec![
            point(40, 1.0, PointShape::Linear),
            point(60, 0.5, PointShape::Cosine),
            point(70, 0.2, PointShape::Hold),
            point(90, 0.0, PointShape::Sqrt),
        ];
        insta::assert_snapshot!(line(10, None, Decay::Piecewise(points)), @"peak 6e-4; warmup from 0 to the peak at step 10; constant to step 50; cosine to 3e-4 after step 70; constant to step 80, then 1.2e-4; sqrt to 0 after step 100, then constant");
        let warmed_up = LrSchedule { start: 300, ..schedule(20, None, Decay::Constant {}) };
        insta::assert_snapshot!(schedule_line(&warmed_up), @"peak 6e-4; constant to step 300; warmup from 0 to the peak at step 320; constant");
    }
}
