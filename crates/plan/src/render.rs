//! The plan as text, for people. Numbers carry their unit; the exact ones are in `plan.json`.

use std::fmt::Write as _;

use crate::stages::{forecast_lines, stages};
use runner_spec::cluster::DeviceFacts;
use runner_spec::experiment::{Decays, Recompute};
use runner_spec::plan::{MemoryCategory, MemoryEstimate, ParamCounts, Plan, RankPlan};
use runner_spec::precision;
use runner_spec::program::text::fold;
use runner_spec::program::{LrDecay, LrSchedule, OptimizerSpec, Program};

/// Width of the label column.
const LABEL: usize = 14;

/// What a plan's text says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shown {
    /// The memory table line by line, and every instruction.
    pub full: bool,
    /// One rank in full, instead of one block per stage.
    pub rank: Option<usize>,
    /// Per device-hour.
    pub price: Option<f64>,
}

/// Everything on one screen, the program folded.
#[must_use]
pub fn render(plan: &Plan) -> String {
    render_as(plan, &Shown::default())
}

/// As `render`; with `full`, the memory table line by line and every instruction of the program.
#[must_use]
pub fn render_with(plan: &Plan, full: bool) -> String {
    render_as(plan, &Shown { full, ..Shown::default() })
}

/// What `shown` asks for.
#[must_use]
pub fn render_as(plan: &Plan, shown: &Shown) -> String {
    let mut out = Page::default();
    out.line("plan", &format!("{}  {}", plan.experiment_name, plan.hash.get(..8).unwrap_or(&plan.hash)));
    run(plan, &mut out);
    let one = shown.rank.or((plan.ranks.len() == 1).then_some(0)).and_then(|rank| plan.ranks.get(rank));
    match one {
        Some(rank) => {
            out.blank();
            render_rank(rank, &mut out, shown.full);
        }
        None => stages(plan, shown.full, &mut out),
    }
    out.blank();
    forecast_lines(plan, shown.price, &mut out);
    let notes: Vec<&String> = plan.notes.iter().chain(&plan.shortage).collect();
    if !notes.is_empty() {
        out.blank();
        for note in notes {
            out.line("note", note);
        }
    }
    out.text
}

fn run(plan: &Plan, out: &mut Page) {
    let t = &plan.totals;
    out.line("steps", &format!("{}, {} tokens, {} epochs", count(t.steps), count(t.tokens), short(t.epochs)));
    if let Some(program) = plan.ranks.first().map(|r| &r.program) {
        let b = &program.batch;
        let last = match b.sequences % b.micro_batch {
            0 => String::new(),
            rest => format!(" (the last of {rest})"),
        };
        out.line(
            "batch",
            &format!(
                "{} sequences of {} = {} tokens a step; micro-batches of {}{last}, {} accumulation step{}",
                b.sequences,
                b.length,
                count(t.tokens_per_step),
                b.micro_batch,
                t.accumulation_steps,
                if t.accumulation_steps == 1 { "" } else { "s" }
            ),
        );
    }
    let d = &plan.data;
    let split = |s: &runner_spec::data::SplitFacts| {
        // A part that is held out of one long text has no beginning of a document in it.
        let documents = match s.documents {
            0 => "part of a document".to_owned(),
            1 => "1 document".to_owned(),
            n => format!("{} documents", count(n)),
        };
        format!("{} rows, {} tokens, {documents}", count(s.rows), count(s.tokens))
    };
    out.line("data", &format!("train: {}", split(&d.train)));
    match &d.validation {
        Some(validation) => out.more(&format!("validation: {}", split(validation))),
        None => out.more("validation: none"),
    }
    if let Some(choice) = &d.choice {
        out.more(&format!("multiple choice: {} items", count(choice.items as u64)));
    }
    out.more(&format!("tokenizer: {} ids", count(d.tokenizer_vocab as u64)));
}

fn render_rank(rank: &RankPlan, out: &mut Page, full: bool) {
    let hardware = &rank.hardware;
    let threads = hardware.threads;
    let memory = hardware.memory_bytes.map_or_else(|| "memory unknown".to_owned(), bytes);
    out.line(
        &format!("rank {}", rank.rank),
        &format!("{}: {}, {threads} thread{}, {memory}", rank.device, hardware.name, plural(threads)),
    );
    out.line("model", &model_line(&rank.program));
    let decays = match rank.program.optimizer {
        OptimizerSpec::AdamW { decays, .. } => decays,
        OptimizerSpec::Sgd { .. } => Decays::Matrices,
    };
    params_lines(&rank.params, decays, out);
    memory_lines(&rank.memory, full, out);
    let f = &rank.flops;
    out.line("FLOPs a step", &format!("{} for MFU", si(f.step, "FLOP")));
    out.more(&f.convention);
    out.more(&format!("matrix products alone: forward {}, backward {}", si(f.forward, "FLOP"), si(f.backward, "FLOP")));
    recompute_line(&rank.program, f.recomputed, out);
    match rank.program.peak_flops {
        Some(peak) => out.more(&format!("MFU against {}{}", si(peak, "FLOP/s"), estimated(hardware))),
        None => out.more("MFU is not reported: the device's peak FLOP/s is not known"),
    }
    out.line("precision", &rank.precision);
    out.line("optimizer", &optimizer_line(&rank.program));
    out.line("learning rate", &schedule_line(&rank.program.schedule));
    program_lines(&rank.program, full, out);
}

/// Said of a peak that is from no data sheet.
pub(super) fn estimated(device: &DeviceFacts) -> &'static str {
    if device.estimated { " (estimated from multiprocessors and clock)" } else { "" }
}

/// What is computed again, where something is: `flops` in a step.
pub(super) fn recompute_line(program: &Program, flops: f64, out: &mut Page) {
    let what = match program.recompute {
        Recompute::None => return,
        Recompute::Attention => "attention, from each layer's first norm on",
        Recompute::Block => "each layer, from its input",
    };
    out.more(&format!("computed again in the backward: {what}, {}; not in the MFU", si(flops, "FLOP")));
}

pub(super) fn model_line(program: &Program) -> String {
    let m = &program.model;
    let family = match m.family {
        runner_spec::experiment::Family::Gpt2 => "gpt2",
        runner_spec::experiment::Family::Llama => "llama",
    };
    let kv = if m.kv_heads == m.heads { String::new() } else { format!(" ({} for keys and values)", m.kv_heads) };
    format!(
        "{family}: {} layers, {} heads{kv}, {} wide, d_ff {}, vocabulary {}, context {}, {} embeddings{}",
        m.layers,
        m.heads,
        m.d_model,
        m.d_ff,
        count(m.vocab_size as u64),
        m.context_length,
        if m.tie_embeddings { "tied" } else { "untied" },
        m.variant.words()
    )
}

fn params_lines(p: &ParamCounts, decays: Decays, out: &mut Page) {
    out.line("parameters", &count(p.total));
    let [matrices, others] = match decays {
        Decays::Matrices => ["decayed", "not decayed"],
        Decays::All => ["matrices", "others"],
    };
    out.more(&format!("{matrices}: {} tensors, {}", p.decayed_tensors, count(p.decayed)));
    out.more(&format!("{others}: {} tensors, {}", p.other_tensors, count(p.other)));
}

fn memory_lines(memory: &MemoryEstimate, full: bool, out: &mut Page) {
    use MemoryCategory as Of;
    out.line("memory", &format!("{} at the peak (estimate)", bytes(memory.total())));
    for (category, sum) in
        memory.categories().into_iter().filter(|(of, sum)| !matches!(of, Of::Communication | Of::Context) || *sum > 0)
    {
        out.more(&format!("{:<12}{:>12}", category.name(), bytes(sum)));
        for item in memory.items.iter().filter(|i| full && i.category == category) {
            out.more(&format!("  {:>12} × {:<6}{}", bytes(item.bytes), item.count, item.what));
        }
    }
}

pub(super) fn optimizer_line(program: &Program) -> String {
    let clip = program.step.iter().find_map(|i| match i {
        runner_spec::program::Instruction::ClipNorm { max } => Some(*max),
        _ => None,
    });
    let clip = clip.flatten().map_or_else(|| "no clipping".to_owned(), |max| format!("global norm clipped to {max}"));
    match program.optimizer {
        OptimizerSpec::AdamW { beta1, beta2, eps, weight_decay, decays } => {
            let all = if decays == Decays::All { " of all parameters" } else { "" };
            format!("adamw, betas {beta1} and {beta2}, eps {}, weight decay {weight_decay}{all}; {clip}", sci(eps))
        }
        OptimizerSpec::Sgd { momentum } => format!("sgd, momentum {momentum}; {clip}"),
    }
}

/// The schedule in a line: what each phase does, and at which step it ends.
pub(super) fn schedule_line(s: &LrSchedule) -> String {
    let mut phases = vec![format!("peak {}", sci(s.peak))];
    let warmup = s.warmup_steps;
    match s.warmup_from {
        _ if warmup == 0 => {}
        None => phases.push(format!("warmup lr·(step+1)/{warmup}")),
        Some(from) => phases.push(format!("warmup from {} to the peak at step {warmup}", sci(from * s.peak))),
    }
    let until = |name: &str, last: f64, steps: u64| {
        format!("{name} to {} at step {}, constant after", sci(last * s.peak), count(warmup.saturating_add(steps)))
    };
    phases.push(match s.decay {
        LrDecay::Cosine { last, steps } => until("cosine", last, steps),
        LrDecay::Linear { last, steps } => until("linear", last, steps),
        LrDecay::Step { every, gamma } => format!("times {gamma} every {} steps", count(every)),
        LrDecay::Rows { rows, sequences, gamma } => {
            let steps = rows as f64 / sequences.max(1) as f64;
            format!("times {gamma} every {} rows ({steps:.1} steps)", count(rows))
        }
        LrDecay::Constant => "constant".to_owned(),
    });
    phases.join("; ")
}

pub(super) fn program_lines(program: &Program, full: bool, out: &mut Page) {
    let lines = if full { program.step.iter().map(ToString::to_string).collect() } else { fold(&program.step) };
    out.line(
        "program",
        &format!("{} instructions a step, {} steps", count(program.step.len() as u64), count(program.steps)),
    );
    for line in lines {
        out.more(&format!("  {line}"));
    }
    if !program.start.is_empty() {
        let names: Vec<String> = program.start.iter().map(ToString::to_string).collect();
        out.more(&format!("before the first step: {}", names.join(", ")));
    }
    if !program.periodic.is_empty() {
        out.more("then, when due");
        for periodic in &program.periodic {
            out.more(&format!("  {periodic}"));
        }
    }
    let e = &program.eval;
    let mut evaluated = Vec::new();
    if let Some(loss) = e.loss {
        let rows = (loss.batches as u64).saturating_mul(program.batch.micro_batch as u64);
        let batches = count(loss.batches as u64);
        evaluated.push(format!("validation loss over {batches} micro-batches, {} rows at most", count(rows)));
    }
    if let Some(items) = e.choice_items {
        evaluated.push(format!("{} multiple-choice items", count(items as u64)));
    }
    if let Some(samples) = &e.samples {
        let prompts = samples.prompts.len();
        evaluated.push(format!(
            "{} sample{} of {prompts} prompt{}, {} tokens each",
            samples.count,
            plural(samples.count),
            plural(prompts),
            samples.max_tokens
        ));
    }
    if !evaluated.is_empty() {
        out.line("evaluation", &evaluated.join("; "));
    }
}

/// Lines of a label column and a text column.
#[derive(Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    pub(super) fn line(&mut self, label: &str, text: &str) {
        // Writing into a String cannot fail.
        let line = format!("{label:<LABEL$}{text}");
        let _ = writeln!(self.text, "{}", line.trim_end());
    }

    /// Another line under the same label.
    pub(super) fn more(&mut self, text: &str) {
        self.line("", text);
    }

    /// A line as it is.
    pub(super) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    pub(super) fn blank(&mut self) {
        self.text.push('\n');
    }
}

pub(super) fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// 124439808 as 124,439,808.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// At most three decimals.
pub(super) fn short(x: f64) -> String {
    let text = format!("{x:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Small numbers in the file's own spelling, free of the last digits' rounding: 6e-5.
fn sci(x: f64) -> String {
    let rounded: f64 = format!("{x:.6e}").parse().unwrap_or(x);
    if rounded != 0.0 && (rounded.abs() < 1e-2 || rounded.abs() >= 1e6) {
        format!("{rounded:e}")
    } else {
        rounded.to_string()
    }
}

pub fn bytes(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

pub(super) fn si(x: f64, unit: &str) -> String {
    let text = scaled(x, 1000.0, &["", "k", "M", "G", "T", "P", "E", "Z"]);
    format!("{text}{unit}")
}

fn scaled(x: f64, base: f64, units: &[&str]) -> String {
    let (mut x, mut unit) = (x, 0);
    while x >= base && unit + 1 < units.len() {
        x /= base;
        unit += 1;
    }
    let decimals = if unit == 0 { 0 } else { 2 };
    format!("{x:.decimals$} {}", units[unit])
}

/// One line for logs and the start of a run.
/// `124,439,808 parameters, 2,000 steps of 65,536 tokens, about 3.2 GiB, fp32 on cpu`.
#[must_use]
pub fn summary_line(plan: &Plan) -> String {
    let t = &plan.totals;
    let most = plan.ranks.iter().map(|r| r.memory.total()).max().unwrap_or(0);
    let place = plan
        .ranks
        .first()
        .map_or_else(String::new, |r| format!(", {} on {}", precision::name(r.program.precision), r.device));
    format!(
        "{} parameters, {} steps of {} tokens, about {}{place}",
        count(t.parameters),
        count(t.steps),
        count(t.tokens_per_step),
        bytes(most)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!([count(0), count(999), count(1_000), count(124_439_808)], ["0", "999", "1,000", "124,439,808"]);
        assert_eq!([bytes(12), bytes(1536), bytes(3 << 30)], ["12 B", "1.50 KiB", "3.00 GiB"]);
        assert_eq!(si(8.76e11, "FLOP"), "876.00 GFLOP");
        assert_eq!([sci(6e-4 * 0.1), sci(1.0), sci(0.0), sci(1e-8)], ["6e-5", "1", "0", "1e-8"]);
        assert_eq!([short(2.0), short(0.125), short(1.23456)], ["2", "0.125", "1.235"]);
    }

    #[test]
    fn schedules_in_a_line() {
        let line = |warmup_steps, warmup_from, decay| {
            schedule_line(&LrSchedule { peak: 6e-4, warmup_steps, warmup_from, decay })
        };
        insta::assert_snapshot!(line(10, None, LrDecay::Cosine { last: 0.1, steps: 40 }), @"peak 6e-4; warmup lr·(step+1)/10; cosine to 6e-5 at step 50, constant after");
        insta::assert_snapshot!(line(20, Some(0.1), LrDecay::Linear { last: 0.0, steps: 80 }), @"peak 6e-4; warmup from 6e-5 to the peak at step 20; linear to 0 at step 100, constant after");
        insta::assert_snapshot!(line(0, None, LrDecay::Step { every: 1_000, gamma: 0.95 }), @"peak 6e-4; times 0.95 every 1,000 steps");
    }
}
