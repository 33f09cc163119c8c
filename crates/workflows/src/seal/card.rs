//! The model card of a sealed run: a page that is made of the record alone.

use std::fmt::Write as _;
use std::path::Path;

use runner_files::read_regular_text;
use runner_record::MetricLine;
use runner_record::data_files::read_data_files;
use runner_record::files::file_name;
use runner_record::manifest::Session;
use runner_record::metrics::TrainLine;
use runner_record::record_check::for_each_checked_metric;
use runner_record::run_dir::{self, RESOLVED};
use runner_spec::data::DataPart;
use runner_spec::error::{CommandError, Result};
use runner_spec::event::Evaluation;
use runner_spec::format::{bytes, choice_name, count, counted, loss, printable, quoted_line, seconds};
use runner_spec::measure::LossSample;

use super::create::last_step;
use super::manifest::{RUN, SealManifest};
use crate::opened_run::open_run;

/// The card of the run in `folder`, which `seal` describes.
///
/// # Errors
/// If the record cannot be read.
#[expect(clippy::too_many_lines, reason = "one text")]
pub(super) fn model_card(folder: &Path, seal: &SealManifest) -> Result<String> {
    let run = folder.join(RUN);
    let opened = open_run(folder, &run.display().to_string())?;
    let manifest = run_dir::read_manifest(&run)?;
    let summary = run_dir::read_summary(&run)?;
    let steps = last_step(folder)?;
    let (mut training, mut evaluation): (Option<TrainLine>, Option<Evaluation>) = (None, None);
    for_each_checked_metric(&run, &manifest, summary.as_ref(), &mut |line| match line {
        MetricLine::Train(line) if line.step == seal.weights_step => training = Some(line),
        MetricLine::Eval(line) if line.step == seal.weights_step => evaluation = Some(line),
        _ => {}
    })?;
    let (model, totals) = (&opened.experiment.model, &opened.plan.totals);
    let mut out = String::from("---\n");
    if seal.is_hugging_face() {
        out += "library_name: transformers\n";
    }
    if !model.options.mask.sees_ahead() {
        out += "pipeline_tag: text-generation\n";
    }
    let name = plain(&manifest.name);
    let _ = write!(
        out,
        "---\n\n# {name}\n\nA model of the family `{}` with {} parameters, trained by runner {} for {} of {} steps. The weights are those after \
         step {}.\n\nThis card was made from the record in `{RUN}/`. `manifest.json` has the BLAKE3 hash of each file.\n\n",
        choice_name(&model.family),
        count(totals.parameters),
        plain(&seal.version),
        count(steps),
        count(totals.steps),
        count(seal.weights_step),
    );
    out += "| | |\n|---|---|\n";
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "| {name} | {value} |");
    };
    row("run", format!("{}, {}", code(&seal.run), choice_name(&manifest.status)));
    row("plan", code(&manifest.plan_hash));
    if let Some(hash) = summary.as_ref().and_then(|summary| summary.final_hash.as_ref()) {
        // A failed run has the hash of its newest checkpoint.
        let is_last = summary.as_ref().is_some_and(|summary| summary.error.is_none());
        let name = if is_last { format!("state after step {}", count(steps)) } else { "newest state".to_owned() };
        row(&name, code(hash));
    }
    if let Some(from) = &manifest.continued_from {
        let same = if from.is_same_computation { ", which this plan computes to the same bits" } else { "" };
        row("inherited", format!("the first {} from {}{same}", counted(from.step, "step"), code(&from.id)));
    }
    if let Some(summary) = &summary {
        let amount = |tokens: u64, time: f64| format!("{} in {}", count(tokens), seconds(time));
        let own = summary.own();
        let of_run = if own.steps == summary.steps {
            String::new()
        } else {
            format!("; in {}: {}", code(&seal.run), amount(own.tokens, own.wall_seconds))
        };
        row("tokens", amount(summary.tokens, summary.wall_seconds) + &of_run);
    }
    let mut machines: Vec<String> = manifest.described_sessions().iter().map(describe_machine).collect();
    machines.dedup();
    row("hardware", machines.join("; "));
    out += "\n## Losses\n\nAs recorded while the run trained. Losses are means per token, in nats.\n\n| | | where |\n|---|---|---|\n";
    let mut row = |name: &str, value: String, place: String| {
        let _ = writeln!(out, "| {name} | {value} | {place} |");
    };
    let of_weights = format!("step {}", count(seal.weights_step));
    if let Some(value) = training.and_then(|line| line.loss) {
        row("training loss", loss(value), format!("the batch of {of_weights}"));
    }
    if let Some(line) = evaluation {
        describe_evaluation(&line, &of_weights, &mut row);
    } else {
        row("validation loss", "not measured".to_owned(), format!("these weights, after {of_weights}"));
    }
    if let Some((best, value)) =
        summary.as_ref().and_then(|s| s.best_eval.as_ref()).and_then(|e| Some((e, e.val_loss()?)))
        && best.step != seal.weights_step
    {
        row("lowest validation loss", loss(value), format!("other weights, after step {}", count(best.step)));
    }
    if let Some(test) = summary.as_ref().and_then(|summary| summary.test.as_ref()) {
        let place = format!("{}, after step {}", with_sample("test data", test.sample()), count(test.step));
        row("test loss", loss(test.loss), place);
    }
    for warning in opened.plan.data.overlap_warnings() {
        let _ = writeln!(out, "\n**{}**", plain(&warning));
    }
    out += "\n## Data\n\n| part | file | size | BLAKE3 |\n|---|---|---|---|\n";
    let files = read_data_files(&run)?.unwrap_or_default();
    for file in &files {
        // The whole path is in the record.
        let (path, hash) = (code(&file_name(&file.path)), code(&file.hash));
        let _ = writeln!(out, "| {} | {path} | {} | {hash} |", file.part.name(), bytes(file.bytes));
    }
    out += "\n| part | content hash: files, tokenizer and layout |\n|---|---|\n";
    for part in DataPart::ALL {
        if let Some(hash) = manifest.data.of(part) {
            let _ = writeln!(out, "| {} | {} |", part.name(), code(hash));
        }
    }
    // The program makes or downloads the others itself.
    let is_of_files = !opened.experiment.data.train.files().is_empty();
    let data = if is_of_files { " --data FOLDER" } else { "" };
    out += "\n## Verify\n\n```sh\n";
    if let Some(own) = seal.default_steps(steps) {
        let (from, to) = (own.start(), own.end());
        let _ = writeln!(
            out,
            "runner verify . --steps {from}..{to}{data}   # trains these steps again, from the sealed state"
        );
    }
    let foreign = manifest.foreign_steps();
    // A fork begins with a checkpoint of another run.
    if foreign == 0 || seal.state().is_some_and(|(step, _)| step == foreign) {
        let first = foreign + 1;
        let _ = writeln!(out, "runner verify . --steps {first}..{steps}{data}   # trains the whole run again");
    }
    out += "runner verify . --only-files   # compares every byte with manifest.json\n```\n\n";
    if is_of_files {
        out += "`FOLDER` holds the files of the data, which are found by their hashes. ";
    }
    out += "Steps that are not trained again are not verified.\n";
    let resolved = run.join(RESOLVED);
    let settings = read_regular_text(&resolved).map_err(CommandError::io(format!("reading {}", resolved.display())))?;
    let settings = printable(settings.trim_end());
    let fence = fence_of(&settings);
    let _ = write!(out, "\n## Settings\n\n{fence}yaml\n{settings}\n{fence}\n");
    Ok(out)
}

/// The rows about the evaluation `line`, of the weights of the step that `of_weights` names.
fn describe_evaluation(evaluation: &Evaluation, of_weights: &str, row: &mut dyn FnMut(&str, String, String)) {
    let (measured, place) = (&evaluation.measured, |data: &str| format!("{data}, these weights, after {of_weights}"));
    if let Some(value) = measured.val_loss() {
        let bits = measured.bits_per_byte().map_or_else(String::new, |bits| format!(" ({bits:.4} bits per byte)"));
        row("validation loss", loss(value) + &bits, place(&with_sample("validation data", measured.val_sample())));
    }
    for scores in measured.tasks() {
        let items = scores.items.map_or_else(String::new, |items| format!(" of {}", counted(items, "item")));
        for (name, share) in &scores.shares {
            row(&format!("{}, {name}", scores.task), format!("{share:.4}{items}"), place("multiple choice"));
        }
    }
}

/// The name of the data, followed by the tokens and rows that a loss was measured on.
fn with_sample(data: &str, sample: Option<LossSample>) -> String {
    sample.map_or_else(|| data.to_owned(), |sample| format!("{data} ({sample})"))
}

/// The machine of `session`.
fn describe_machine(session: &Session) -> String {
    let cpu = session.machine.cpu.as_ref().unwrap_or(&session.machine.arch);
    let mut text = format!("{} ({} in use)", plain(cpu), counted(session.threads as u64, "thread"));
    for gpu in session.platform.iter().flat_map(|platform| &platform.gpus) {
        let _ = write!(text, ", {}", plain(&gpu.name));
    }
    text
}

/// `text` of the record on one line, at most its first 300 characters, with Markdown and HTML escaped.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for c in quoted_line(text).chars() {
        match c {
            '<' => out += "&lt;",
            '&' => out += "&amp;",
            _ => {
                out.extend("\\`*_[]>|#~$!".contains(c).then_some('\\'));
                out.push(c);
            }
        }
    }
    out
}

/// `text` of the record as code in a line or in a cell of a table. `|` and backticks become `�`, because they cannot be escaped there.
fn code(text: &str) -> String {
    format!("`{}`", quoted_line(text).replace(['`', '|'], "�"))
}

/// A fence for a block of code: longer than any run of backticks at the start of a line of `text`.
fn fence_of(text: &str) -> String {
    let backticks = |line: &str| line.trim_start().chars().take_while(|c| *c == '`').count();
    "`".repeat(text.lines().map(backticks).max().unwrap_or(0).max(2) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_record_are_no_markup() {
        assert_eq!(plain("gpt2 on 5% (a.b, c-d)"), "gpt2 on 5% (a.b, c-d)");
        assert_eq!(plain("<img src=x> & [a](b) *c* | `d`\n# e"), r"&lt;img src=x\> &amp; \[a\](b) \*c\* \| \`d\` \# e");
        assert_eq!(code("a`<b>|\u{1b}[2J"), "`a�<b>� [2J`");
        assert_eq!((fence_of("a: b"), fence_of("a: |\n  ```\n  <script>")), ("```".to_owned(), "````".to_owned()));
    }
}
