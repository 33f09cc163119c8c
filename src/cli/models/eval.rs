//! `runner eval`: evaluates a checkpoint of a recorded run, or weights of another program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use clap::builder::PossibleValue;
use serde::Serialize;

use crate::cli::args::model::ModelArgs;
use crate::cli::common::{MovedDataArgs, cache_dir, host_without_runs, word_parser};
use crate::cli::models::text_source::{
    SourceArgs, files_help, parse_hub_name, printable_path, reword_for_flags, text_help,
};
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::{check_replaceable, print_result, write_file};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_data::{EvaluationData, EvaluationRequest, Split};
use runner_executor::eval::{ChoiceBatches, ChoiceScore, LossBatches, ScoredItem, ValidationLoss, run_all_batches};
use runner_inputs::{MovedData, local_tasks, prepare_evaluation};
use runner_report::Screen;
use runner_spec::data::ChoiceItem;
use runner_spec::experiment::{
    ChoiceText, Corpus, Eval, EvalLoss, HELLASWAG, HELLASWAG_FILE_ADVICE, HubChoice, Layout, Task,
};
use runner_spec::format::{counted, printable};
use runner_spec::measure::{Estimate, Measure, Measured, serialize_with_nulls};
use runner_spec::program::EVAL_TOKENS_PER_FORWARD;
use runner_workflows::evaluated_model::EvaluatedModel;

#[derive(Debug, Clone, Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub data: MovedDataArgs,
    #[arg(
        long,
        value_name = "FILE",
        num_args = 1..,
        help = files_help("Measure the loss on these files of text instead of the run's validation split")
    )]
    pub text: Vec<PathBuf>,
    #[arg(long, value_name = "NAME", requires = "text", help = text_help("column"))]
    pub column: Option<String>,
    #[arg(long, value_name = "NAME", requires = "text", help = text_help("field"))]
    pub field: Option<String>,
    /// With --text: the tokens of a row [default: those of the run's rows; the model's context for --weights].
    #[arg(long, value_name = "N", requires = "text")]
    pub length: Option<usize>,
    /// Read only the first N rows of the text or the validation split [default: the experiment's setting, else all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: Option<u64>,
    /// Score this HellaSwag file, or the validation split of a dataset of the hub (hub:Rowan/hellaswag), instead of the experiment's.
    #[arg(long, value_name = "FILE|hub:NAME", conflicts_with = "builtin")]
    pub hellaswag: Option<PathBuf>,
    /// Score the built-in multiple-choice set instead of the experiment's.
    #[arg(long)]
    pub builtin: bool,
    /// How the text of multiple-choice items is prepared: as in the file, or as lm-eval prepares it [default: the experiment's setting,
    /// else raw].
    #[arg(long, value_name = "TEXT", value_parser = word_parser::<ChoiceText>([
        PossibleValue::new("raw").help("`ctx` and `endings` as they are in the file, as in build-nanogpt"),
        PossibleValue::new("lm_eval").help(
            "As lm-eval's task `hellaswag`: `activity_label`, `ctx_a` and `ctx_b` make the context, and marks in brackets are removed",
        ),
    ]))]
    pub hellaswag_text: Option<ChoiceText>,
    /// Score only the first N multiple-choice items.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Write the result of each multiple-choice item to this file, one JSON object a line.
    #[arg(long, value_name = "FILE.jsonl")]
    pub items: Option<PathBuf>,
    /// Replace the --items file if it exists.
    #[arg(long, requires = "items")]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The result, as `--json` prints it.
#[derive(Debug, Default, Serialize)]
struct Evaluation {
    /// The step of the checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    /// The files that `val_loss` was measured on; none for the run's validation data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    text: Vec<String>,
    #[serde(flatten, serialize_with = "serialize_with_nulls")]
    measured: Measured,
    /// The rows that it is over, and their form.
    #[serde(skip)]
    rows: Option<String>,
    /// For each task `TASK_text`, how the text of its items was prepared, and `TASK_prefix`, the special tokens that each context was put after.
    #[serde(flatten)]
    texts: BTreeMap<String, Option<String>>,
    eval_ms: f64,
}

/// The settings for reading rows and items.
struct ReadingSettings {
    /// The first rows that are read.
    rows: u64,
    /// Rows in one forward.
    micro_batch: usize,
    mask_padding: bool,
    /// How the text of each task's items is prepared.
    choice_texts: Vec<ChoiceText>,
    /// The text of the tokens in front of each context.
    prefix: String,
}

impl EvalArgs {
    /// The task that these flags ask for, or else those of the experiment `eval`.
    fn tasks(&self, eval: Option<&Eval>) -> Result<Vec<(String, Task)>> {
        let mut set = None;
        if let Some(name) = self.hellaswag.as_deref().and_then(Path::to_str).and_then(|text| text.strip_prefix("hub:"))
        {
            let (name, revision) = parse_hub_name("--hellaswag", name)?;
            set = Some(Task { hub: Some(HubChoice::new(name, revision)), ..Task::default() });
        } else if let Some(file) = &self.hellaswag {
            if !file.exists() {
                refuse!(
                    "--hellaswag: there is no file {}; {HELLASWAG_FILE_ADVICE}, or use `--builtin`, which needs no file",
                    printable_path(file)
                );
            }
            set = Some(Task { file: Some(std::path::absolute(file)?), ..Task::default() });
        } else if self.builtin {
            set = Some(Task { builtin: Some(Corpus::Stories), ..Task::default() });
        }
        let mut tasks: Vec<(String, Task)> = match set {
            Some(set) => vec![(HELLASWAG.to_owned(), set)],
            None => {
                eval.iter().flat_map(|eval| eval.tasks()).map(|(name, task)| (name.to_owned(), task.clone())).collect()
            }
        };
        if tasks.is_empty() {
            let needs = [
                ("--limit", self.limit.is_some()),
                ("--items", self.items.is_some()),
                ("--hellaswag-text", self.hellaswag_text.is_some()),
            ];
            if let Some((flag, _)) = needs.iter().find(|(_, is_given)| *is_given) {
                refuse!("{flag} needs --hellaswag or --builtin: there is no multiple-choice set");
            }
        }
        for (name, task) in &mut tasks {
            task.limit = self.limit.map(|limit| limit as usize).or(task.limit);
            if name == HELLASWAG {
                task.text = self.hellaswag_text.unwrap_or(task.text);
            }
        }
        Ok(tasks)
    }

    /// The rows that `--text` is cut into: those that the run was trained on, or packed rows.
    fn rows_of_text(&self, model: &EvaluatedModel) -> Result<Layout> {
        let context = model.spec.context_length;
        let trained = model.run().map(|run| &run.experiment.data.layout);
        let rows = match self.length {
            Some(length) if length == 0 || length > context => {
                refuse!("--length must be 1 to {context}, the model's context, got {length}")
            }
            length => length.or(trained.map(Layout::length)).unwrap_or(context),
        };
        Ok(match trained {
            Some(Layout::Padded { bos, eos, pad, mask, .. }) if !self.model.no_bos => {
                let [bos, eos, pad] = [bos, eos, pad].map(Clone::clone);
                Layout::Padded { length: rows, bos, eos, pad, mask: *mask }
            }
            _ => Layout::Packed { length: rows, separator: trained.and_then(Layout::separator).unwrap_or_default() },
        })
    }

    /// The data, and how its rows are read: the run's own, or what the flags name.
    fn prepare(
        &self,
        model: &EvaluatedModel,
        pool: &rayon::ThreadPool,
        screen: &mut Screen,
    ) -> Result<(EvaluationData, ReadingSettings)> {
        let host = host_without_runs(self.model.threads)?;
        if let (Some(run), true) = (model.run(), self.text.is_empty() && self.model.tokenizer.is_none()) {
            let mut experiment = run.experiment.clone();
            if self.hellaswag.is_some() || self.builtin {
                experiment.eval.set_tasks([]);
            }
            MovedData::parse(&self.data.data)?.place(&run.path, &mut experiment)?;
            let tasks = self.tasks(Some(&experiment.eval))?;
            experiment.eval.set_tasks(tasks);
            let choice_texts = experiment.eval.tasks().map(|(_, task)| task.text).collect();
            let batch = &run.program()?.batch;
            let rows = self
                .rows
                .map(EvalLoss::Rows)
                .or(experiment.eval.loss)
                .map_or(u64::MAX, |loss| loss.rows(batch.micro_batch));
            let mut prepared = run.prepare_data(&experiment, pool, &host, &mut PreparationObserver::new(screen))?;
            if self.model.no_bos {
                prepared.remove_prefix();
            }
            let settings = ReadingSettings {
                rows,
                micro_batch: batch.micro_batch,
                mask_padding: batch.mask_padding,
                choice_texts,
                prefix: prepared.tokenizer.prefix_text(),
            };
            return Ok((prepared.into(), settings));
        }
        if !self.data.data.is_empty() {
            refuse!("--data is for the data of a run, which this evaluation does not read");
        }
        let tasks = local_tasks(self.tasks(None)?, &host, &mut PreparationObserver::new(screen))?;
        let layout = self.rows_of_text(model)?;
        let (files, column, field) = (self.text.clone(), self.column.clone(), self.field.clone());
        let text = if files.is_empty() { None } else { Some(SourceArgs { files, column, field }.source()?) };
        if text.is_none() && tasks.is_empty() {
            refuse!("nothing to evaluate; use `--text FILE`, `--hellaswag FILE` or `--builtin`");
        }
        let tokenizer = self.model.read_tokenizer(model, pool, screen)?;
        let request = EvaluationRequest {
            tokenizer: &tokenizer,
            text: text.as_ref(),
            layout: &layout,
            tasks: &tasks,
            cache_dir: &cache_dir()?,
            vocab_size: model.spec.vocab_size,
        };
        let data = prepare_evaluation(&request, pool, &mut PreparationObserver::new(screen));
        let data = data.map_err(|error| reword_for_flags(error, true))?;
        let settings = ReadingSettings {
            rows: self.rows.unwrap_or(u64::MAX),
            micro_batch: (EVAL_TOKENS_PER_FORWARD / layout.length().max(1)).max(1),
            mask_padding: layout.masks_padding(model.spec.options.mask),
            choice_texts: tasks.iter().map(|(_, task)| task.text).collect(),
            prefix: tokenizer.prefix_text(),
        };
        Ok((data, settings))
    }
}

/// # Errors
/// If there is no such model, its data is gone, or nothing is left to evaluate.
pub(crate) fn run(args: &EvalArgs) -> Result<Exit> {
    if let Some(file) = &args.items {
        check_replaceable(file, args.force)?;
        let absolute = file.canonicalize().ok();
        let mut inputs = args.text.iter().chain(&args.hellaswag);
        if absolute.is_some() && inputs.any(|input| input.canonicalize().ok() == absolute) {
            refuse!("--items: {} is also an input; name a different file", printable_path(file));
        }
    }
    let mut screen = Screen::on_standard_error();
    let model = args.model.open(&mut screen)?;
    let device = args.model.choose_device(&model)?;
    let pool = args.model.threads.pool()?;
    let (data, settings) = args.prepare(&model, &pool, &mut screen)?;
    if !data.tasks.is_empty() {
        model.check_mask("multiple choice")?;
    }
    if data.rows.is_none() && data.tasks.is_empty() {
        refuse!("nothing to evaluate: the run has no validation split; use `--text`, `--hellaswag` or `--builtin`");
    }
    if let Some(warning) = &data.clipped {
        screen.warn(warning);
    }
    let started = Instant::now();
    // A device can be used only by the thread that opens it.
    let ModelLosses { step, loss, items } = pool.install(|| measure(&model, device, &data, &settings))?;
    if let Some(file) = &args.items {
        write_items(file, &items)?;
    }
    let mut measured = Measured::default();
    if let Some(loss) = loss {
        loss.add_to(&mut measured);
    }
    let mut texts = BTreeMap::from([(format!("{HELLASWAG}_text"), None)]);
    for ((task, items), text) in items.iter().zip(&settings.choice_texts) {
        let score = ChoiceScore::new(items);
        score.add_to(&mut measured, task);
        measured.extend(Measure::of_key(&format!("{task}_cut")).map(|measure| (measure, score.cut as f64)));
        texts.insert(format!("{task}_text"), Some(text.name().to_owned()));
        if !settings.prefix.is_empty() {
            texts.insert(format!("{task}_prefix"), Some(settings.prefix.clone()));
        }
    }
    let result = Evaluation {
        step,
        measured,
        text: args.text.iter().map(|file| file.display().to_string()).collect(),
        rows: data.rows.as_ref().map(|split| describe_rows(split, settings.rows)),
        texts,
        eval_ms: started.elapsed().as_secs_f64() * 1e3,
    };
    print_result(args.json, &result, || result.text())
}

/// The losses of a model's rows and items, and the step of its checkpoint.
struct ModelLosses {
    step: Option<u64>,
    loss: Option<ValidationLoss>,
    /// The items of each task.
    items: Vec<(String, Vec<ScoredItem>)>,
}

/// Loads `model`, and computes the losses of the rows and items of `data`.
fn measure(
    model: &EvaluatedModel,
    device: runner_spec::program::Device,
    data: &EvaluationData,
    settings: &ReadingSettings,
) -> Result<ModelLosses> {
    let (model, weights, step) = model.load(device)?;
    let loss = data.rows.as_ref().map(|split| {
        let batches = LossBatches::new(split, settings.rows, settings.micro_batch, settings.mask_padding);
        batches.finish(&run_all_batches(&batches, &model, &weights)?)
    });
    let score = |(task, items): &(String, Vec<ChoiceItem>)| -> Result<_> {
        let batches = ChoiceBatches::new(items, model.spec.context_length);
        Ok((task.clone(), batches.scored_items(&run_all_batches(&batches, &model, &weights)?)?))
    };
    let items = data.tasks.iter().map(score).collect::<Result<_>>()?;
    Ok(ModelLosses { step, loss: loss.transpose()?, items })
}

/// The rows of `split` that were read, at most `limit`: ` in 8 of 50 padded rows of 32`.
fn describe_rows(split: &Split, limit: u64) -> String {
    let (all, read) = (split.rows(), split.rows().min(limit));
    let of = if read < all { format!("{read} of ") } else { String::new() };
    let form = if split.is_padded() { "padded row" } else { "row" };
    format!(" in {of}{} of {}", counted(all, form), split.length())
}

/// Writes `items` to `file`, one JSON object a line.
fn write_items(file: &Path, tasks: &[(String, Vec<ScoredItem>)]) -> Result<()> {
    /// An item with its task, where there are several.
    #[derive(Serialize)]
    struct TaskItem<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        task: Option<&'a str>,
        #[serde(flatten)]
        item: &'a ScoredItem,
    }
    let mut text = String::new();
    for (task, items) in tasks {
        let task = (tasks.len() > 1).then_some(task.as_str());
        for item in items {
            text += &serde_json::to_string(&TaskItem { task, item })?;
            text.push('\n');
        }
    }
    // The file was checked before the items were scored.
    write_file(file, text.as_bytes(), true)
}

impl Evaluation {
    fn text(&self) -> String {
        let mut lines: Vec<String> = self.step.iter().map(|step| format!("step        {step}")).collect();
        for Estimate { measure, value, standard_error } in self.measured.losses() {
            let error = standard_error.map(|error| format!("  standard error {}", measure.error_text(error)));
            let error = error.unwrap_or_default();
            let is_text = *measure == Measure::VAL_LOSS && !self.text.is_empty();
            let name = if is_text { "text loss" } else { measure.label() };
            lines.push(format!("{name:11} {}{error}", measure.text(value)));
        }
        if let Some(sample) = self.measured.val_sample() {
            lines.push(format!("tokens      {}{}", sample.tokens, self.rows.as_deref().unwrap_or_default()));
        }
        for scores in self.measured.tasks() {
            let share = |of: &Estimate<'_>| {
                let error = of.standard_error.map(|error| format!(" (SE {})", of.measure.error_text(error)));
                format!("{} {:.2}%{}", of.measure.label(), of.value * 100.0, error.unwrap_or_default())
            };
            let shares = scores.shares.iter().map(share).collect::<Vec<_>>().join("  ");
            lines.push(format!("{:11} {shares}  of {} items", scores.task, scores.items.unwrap_or_default()));
            lines.push(
                "            acc_norm: loss per token; acc_norm_chars: loss per character, lm-eval's acc_norm"
                    .to_owned(),
            );
            if let Some(cut) = scores.cut.filter(|&cut| cut > 0) {
                lines.push(format!("            {cut} of them are longer than the context, and lost their beginning"));
            }
            let text = |end: &str| self.texts.get(&format!("{}_{end}", scores.task)).and_then(Option::as_deref);
            let prefix = text("prefix");
            let prefix = prefix.map_or_else(String::new, |prefix| format!("; contexts after {}", printable(prefix)));
            lines.push(format!("            text: {}{prefix}", text("text").unwrap_or_default()));
        }
        lines.push(format!("time        {:.1} s\n", self.eval_ms / 1e3));
        lines.join("\n")
    }
}
