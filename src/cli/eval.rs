//! `runner eval`: evaluates a checkpoint of a recorded run.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use super::checkpoint_args::RecordedRunArgs;
use super::common::host_without_runs;
use super::exit::{Exit, refuse};
use super::output::print_result;
use super::screen_observer::PreparationObserver;
use super::text_source::printable_path;
use runner_exec::eval::{Batches, ChoiceBatches, LossBatches, evaluate, run_all_batches};
use runner_report::Screen;
use runner_spec::event::EvalMetrics;
use runner_spec::experiment::{Corpus, EvalLoss, Experiment, HELLASWAG_FILE_ADVICE, HellaSwag};

#[derive(Debug, Clone, Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub recorded: RecordedRunArgs,
    /// Read only the first N rows of the validation split [default: the experiment's setting, else all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "batches")]
    pub rows: Option<u64>,
    /// Read only the first N micro-batches of the validation split; the experiment's micro-batch counts. Prefer --rows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batches: Option<u32>,
    /// Score this HellaSwag file instead of the experiment's.
    #[arg(long, value_name = "FILE", conflicts_with = "builtin")]
    pub hellaswag: Option<PathBuf>,
    /// Score the built-in multiple-choice set instead of the experiment's.
    #[arg(long)]
    pub builtin: bool,
    /// Score only the first N multiple-choice items.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl EvalArgs {
    /// The experiment with the multiple-choice set that these flags ask for.
    fn apply_to(&self, experiment: &mut Experiment) -> anyhow::Result<()> {
        let set = &mut experiment.eval.hellaswag;
        if let Some(file) = &self.hellaswag {
            if !file.exists() {
                refuse!(
                    "--hellaswag: there is no file {}; {HELLASWAG_FILE_ADVICE}, and --builtin needs no file",
                    printable_path(file)
                );
            }
            *set = Some(HellaSwag { file: Some(std::path::absolute(file)?), builtin: None, limit: None });
        } else if self.builtin {
            *set = Some(HellaSwag { file: None, builtin: Some(Corpus::Stories), limit: None });
        }
        match (set, self.limit) {
            (Some(set), Some(limit)) => set.limit = Some(limit as usize),
            (None, Some(_)) => {
                refuse!("--limit needs --hellaswag or --builtin: the run has no multiple-choice set")
            }
            (_, None) => {}
        }
        Ok(())
    }
}

/// # Errors
/// If there is no such run or checkpoint, its data is gone, or nothing is left to evaluate.
pub(crate) fn run(args: &EvalArgs) -> anyhow::Result<Exit> {
    let opened = args.recorded.open()?;
    let mut experiment = opened.experiment.clone();
    args.apply_to(&mut experiment)?;
    let device = args.recorded.choose_device(&opened)?;
    let pool = args.recorded.threads.pool()?;
    let mut screen = Screen::on_standard_error();
    let prepared = opened.prepare_data(
        &experiment,
        &pool,
        &host_without_runs(args.recorded.threads)?,
        &mut PreparationObserver::new(&mut screen),
    )?;
    let started = Instant::now();
    let metrics = pool.install(|| -> anyhow::Result<EvalMetrics> {
        let (model, weights, step) = opened.model(args.recorded.checkpoint.which(), device)?;
        let batch = &opened.program()?.batch;
        let asked = args.rows.map(EvalLoss::Rows).or(args.batches.map(|n| EvalLoss::Batches(n as usize)));
        let rows = asked.or(opened.experiment.eval.loss).map_or(u64::MAX, |loss| loss.rows(batch.micro_batch));
        let validation = prepared.dataset.validation.as_ref();
        let loss = validation.map(|split| LossBatches::new(split, rows, batch.micro_batch, batch.mask_padding));
        let choice = prepared.choice.as_deref().map(|items| ChoiceBatches::new(items, model.spec.context_length));
        let run = |batches: &dyn Batches| run_all_batches(batches, &model, &weights);
        Ok(evaluate(step, loss, choice, run)?)
    })?;
    if metrics.val_loss.is_none() && metrics.hellaswag_n.is_none() {
        refuse!("nothing to evaluate: the run has no validation split; give --hellaswag or --builtin");
    }
    let metrics = EvalMetrics { eval_ms: started.elapsed().as_secs_f64() * 1e3, ..metrics };
    print_result(args.json, &metrics, || metrics_text(&metrics))
}

fn metrics_text(m: &EvalMetrics) -> String {
    let mut lines = vec![format!("step        {}", m.step)];
    if let (Some(loss), Some(perplexity)) = (m.val_loss, m.val_perplexity) {
        lines.push(format!("val loss    {loss:.4}"));
        lines.push(format!("perplexity  {perplexity:.2}"));
        lines.extend(m.val_bits_per_byte.map(|bits| format!("bits/byte   {bits:.4}")));
    }
    if let (Some(acc), Some(norm), Some(n)) = (m.hellaswag_acc, m.hellaswag_acc_norm, m.hellaswag_n) {
        lines.push(format!("hellaswag   acc {:.2}%  acc_norm {:.2}%  of {n} items", acc * 100.0, norm * 100.0));
    }
    lines.push(format!("time        {:.1} s\n", m.eval_ms / 1e3));
    lines.join("\n")
}
