//! The plan as text, for people. Numbers carry their unit; the exact ones are in `plan.json`.

mod forecast;
mod page;
mod plot;
mod rank;
mod search;
mod stages;
#[cfg(test)]
mod tests;

use runner_plan::quantity::{bytes, three_decimals};
pub use search::render_search;

use page::Page;
use runner_spec::data::ASSUMED_HASH;
use runner_spec::format::{choice_name, count, counted, rate};
use runner_spec::plan::{Pace, Plan, RankPlan};
use runner_spec::program::{DataPosition, EarlierStage, Program};

/// Settings for the text of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RenderOptions {
    /// Shows the instructions of each stage, folded where they repeat.
    pub instructions: bool,
    /// Shows the memory table line by line.
    pub memory: bool,
    /// Shows one rank in full, instead of one block per stage.
    pub rank: Option<usize>,
    /// The price of a device-hour.
    pub price: Option<f64>,
    /// Draws the learning rate over the steps.
    pub plot: bool,
}

/// The plan as text: first whether it fits, how long it takes and what it costs, then the details. The first line of a plan that does not fit
/// says so.
pub fn render(plan: &Plan, options: &RenderOptions) -> String {
    let mut page = Page::default();
    if let Some(shortage) = &plan.shortage {
        page.raw(&format!("error: this plan does not fit: {shortage}"));
        page.blank();
    }
    // The hash of assumed data is not that of a run.
    let hash = match plan.data.train.hash.as_str() {
        ASSUMED_HASH => "no hash, because the data is assumed",
        _ => plan.hash.get(..8).unwrap_or(&plan.hash),
    };
    page.line("plan", format!("{}  {hash}", plan.experiment_name));
    summary_lines(plan, options.price, &mut page);
    page.blank();
    run_lines(plan, &mut page);
    let shown_rank = options.rank.or((plan.ranks.len() == 1).then_some(0)).and_then(|rank| plan.ranks.get(rank));
    match shown_rank {
        Some(rank) => {
            page.blank();
            rank::rank_lines(rank, options, &mut page);
        }
        None => stages::stage_lines(plan, options, &mut page),
    }
    if let Some(program) = plan.ranks.first().map(|rank| &rank.program).filter(|_| options.plot) {
        for (name, lines) in plot::drawings(program) {
            page.blank();
            for (index, line) in lines.into_iter().enumerate() {
                if index == 0 { page.line(&name, line) } else { page.more(line) }
            }
        }
    }
    forecast::stage_lines(plan, &mut page);
    if !(plan.notes.is_empty() && plan.warnings.is_empty()) {
        page.blank();
    }
    for warning in &plan.warnings {
        page.line("warning", warning);
    }
    for note in &plan.notes {
        page.line("note", note);
    }
    page.text
}

/// The batch of an earlier stage of `program`, and the stage's windows if they differ.
fn describe_stage(stage: &EarlierStage, program: &Program, pace: &Pace) -> String {
    let b = &stage.batch;
    let tokens = count((b.sequences * b.length) as u64);
    let windows = stage.model.as_ref().map_or_else(String::new, |model| {
        // In the order of the model's own windows.
        let windows = plot::stage_windows(&program.model, model);
        let windows: Vec<String> = windows.into_values().map(|window| count(window.into())).collect();
        format!(", windows of {}", windows.join(", "))
    });
    let of_stage = pace.earlier_stages.iter().find(|of| of.until == stage.until);
    let time = of_stage
        .and_then(|of| of.step_seconds)
        .map_or_else(String::new, |seconds| format!(", {} ms", rate(seconds * 1e3)));
    format!(
        "to step {}: {} of {} = {tokens} tokens a step; micro-batches of {}{windows}{time}",
        count(stage.until),
        counted(b.sequences as u64, "sequence"),
        b.length,
        b.micro_batch
    )
}

/// The answers to what a person asks first: does it fit, how long does it take, and what is trained on what?
fn summary_lines(plan: &Plan, price: Option<f64>, page: &mut Page) {
    let t = &plan.totals;
    page.line(if plan.shortage.is_some() { "does not fit" } else { "fits" }, fit_line(plan));
    forecast::time_lines(plan, price, page);
    let padding = if t.has_padding { " with padding" } else { "" };
    let (steps, tokens, epochs) = (count(t.steps), count(t.tokens), three_decimals(t.epochs));
    page.line("steps", format!("{steps}, {tokens} tokens{padding}, {epochs} epochs"));
    let program = plan.ranks.first().map(|rank| &rank.program);
    if let Some(DataPosition { step, rows, tokens, epoch, row }) = program.and_then(Program::first_position) {
        let (step, rows, tokens) = (counted(step, "step"), counted(rows, "row"), count(tokens));
        page.more(format!(
            "{step}, {rows} and {tokens} tokens of these totals come from before the fork, which continues at row {} of epoch {}",
            count(row + 1),
            count(epoch + 1)
        ));
    }
    if let Some(first) = plan.ranks.first() {
        let model = &first.program.model;
        let parameters = count(stages::whole_model(&first.program).total);
        page.line(
            "model",
            format!(
                "{}, {parameters} parameters, {}",
                choice_name(&model.family),
                choice_name(&first.program.precision)
            ),
        );
        page.line("ranks", stages::layout_line(plan, first));
    }
}

/// The memory of the rank that needs the largest part of its device's.
fn fit_line(plan: &Plan) -> String {
    let part = |rank: &&RankPlan| {
        let limit = rank.hardware.memory_bytes.unwrap_or(u64::MAX) as f64;
        rank.memory.total() as f64 / limit
    };
    let Some(rank) = plan.ranks.iter().rev().max_by(|a, b| part(a).total_cmp(&part(b))) else { return String::new() };
    let on = if plan.ranks.len() > 1 { format!(" on rank {}", rank.rank) } else { String::new() };
    let limit = match rank.hardware.memory_bytes {
        Some(limit) => format!(" of {}", bytes(limit)),
        None => ", but the memory of the device is unknown".to_owned(),
    };
    format!("{}{limit}{on} (estimate)", bytes(rank.memory.total()))
}

fn run_lines(plan: &Plan, page: &mut Page) {
    let t = &plan.totals;
    let padding = if t.has_padding { " with padding" } else { "" };
    if let Some(program) = plan.ranks.first().map(|r| &r.program) {
        let b = &program.batch;
        let last = match b.slice.1 % b.micro_batch {
            0 => String::new(),
            rest => format!(" (the last of {rest})"),
        };
        let (tokens, accumulation) = (t.pace.tokens_per_step, t.accumulation_steps as u64);
        let step = format!("{} sequences of {} = {} tokens{padding} a step", b.sequences, b.length, count(tokens));
        let accumulation = counted(accumulation, "accumulation step");
        let mut lines: Vec<String> =
            program.earlier.iter().map(|stage| describe_stage(stage, program, &plan.totals.pace)).collect();
        lines.push(format!("{step}; micro-batches of {}{last}, {accumulation}", b.micro_batch));
        let last = lines.len() - 1;
        for (index, line) in lines.into_iter().enumerate() {
            match index {
                0 => page.line("batch", line),
                _ if index == last => page.more(format!("then {line}")),
                _ => page.more(line),
            }
        }
    }
    let d = &plan.data;
    let split = |s: &runner_spec::data::SplitFacts| {
        // A part that is held out of one long text contains no beginning of a document.
        let documents = match s.documents {
            0 if s.hash == ASSUMED_HASH => "assumed".to_owned(),
            0 => "part of a document".to_owned(),
            n => counted(n, "document"),
        };
        format!("{} rows, {} tokens, {documents}", count(s.rows), count(s.tokens))
    };
    let program = plan.ranks.first().map(|rank| &rank.program);
    let epoch_rows = program.and_then(|program| program.batch.order.epoch_rows);
    let epoch = epoch_rows.map_or_else(String::new, |rows| format!("; an epoch reads {} rows", count(rows)));
    page.line("data", format!("train: {}{epoch}", split(&d.train)));
    page.more(format!("validation: {}", d.validation.as_ref().map_or_else(|| "none".to_owned(), split)));
    if let Some(test) = &d.test {
        let rows = program.and_then(|program| program.eval.test_rows);
        let read = rows.map_or_else(String::new, |rows| format!("; at most {} rows are read", count(rows)));
        page.more(format!("test: {}{read}", split(test)));
    }
    if let Some(choice) = &d.choice {
        page.more(format!("multiple choice: {} items{}", count(choice.items as u64), mark_assumed(&choice.hash)));
    }
    page.more(format!("tokenizer: {} ids{}", count(d.tokenizer_vocab as u64), mark_assumed(&d.tokenizer_hash)));
}

/// The end of a fact about data with this hash.
fn mark_assumed(hash: &str) -> &'static str {
    if hash == ASSUMED_HASH { ", assumed" } else { "" }
}
