//! The plan as text, for people. Numbers carry their unit; the exact ones are in `plan.json`.

mod forecast;
mod page;
mod plot;
mod rank;
mod search;
mod stages;
#[cfg(test)]
mod tests;

use runner_plan::quantity::three_decimals;
pub use search::render_search;

use page::Page;
use runner_spec::data::ASSUMED_HASH;
use runner_spec::format::{count, counted, rate};
use runner_spec::plan::{Pace, Plan};
use runner_spec::program::{DataPosition, EarlierStage, Program};

/// Settings for the text of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RenderOptions {
    /// Shows the memory table line by line, and every instruction.
    pub full: bool,
    /// Shows one rank in full, instead of one block per stage.
    pub rank: Option<usize>,
    /// The price of a device-hour.
    pub price: Option<f64>,
    /// Draws the learning rate over the steps.
    pub plot: bool,
}

/// The plan as text. By default it fits on one screen: the program is folded. The first line of a plan that does not fit says so.
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
    run_lines(plan, &mut page);
    let shown_rank = options.rank.or((plan.ranks.len() == 1).then_some(0)).and_then(|rank| plan.ranks.get(rank));
    match shown_rank {
        Some(rank) => {
            page.blank();
            rank::rank_lines(rank, options.full, &mut page);
        }
        None => stages::stage_lines(plan, options.full, &mut page),
    }
    if let Some(program) = plan.ranks.first().map(|rank| &rank.program).filter(|_| options.plot) {
        for (name, lines) in plot::drawings(program) {
            page.blank();
            for (index, line) in lines.into_iter().enumerate() {
                if index == 0 { page.line(&name, line) } else { page.more(line) }
            }
        }
    }
    page.blank();
    forecast::forecast_lines(plan, options.price, &mut page);
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

fn run_lines(plan: &Plan, page: &mut Page) {
    let t = &plan.totals;
    let padding = if t.has_padding { " with padding" } else { "" };
    let (steps, tokens, epochs) = (count(t.steps), count(t.tokens), three_decimals(t.epochs));
    page.line("steps", format!("{steps}, {tokens} tokens{padding}, {epochs} epochs"));
    if let Some(program) = plan.ranks.first().map(|r| &r.program) {
        let b = &program.batch;
        if let Some(DataPosition { step, rows, tokens, epoch, row }) = program.first_position() {
            let (step, rows, tokens) = (counted(step, "step"), counted(rows, "row"), count(tokens));
            page.more(format!(
                "{step}, {rows} and {tokens} tokens of these totals come from before the fork, which continues at row {} of epoch {}",
                count(row + 1),
                count(epoch + 1)
            ));
        }
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
