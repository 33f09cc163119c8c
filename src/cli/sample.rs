//! `runner sample`: continues prompts with a checkpoint of a recorded run.

use std::time::Instant;

use clap::Args;

use super::checkpoint_args::RecordedRunArgs;
use super::common::host_without_runs;
use super::exit::{Exit, RequestError, refuse};
use super::output::{print, print_json, print_to_stderr};
use super::screen_observer::PreparationObserver;
use runner_exec::eval::generate;
use runner_report::Screen;
use runner_spec::experiment::Samples;

#[derive(Debug, Clone, Args)]
pub(crate) struct SampleArgs {
    #[command(flatten)]
    pub recorded: RecordedRunArgs,
    /// A text to continue; may be given several times [default: the experiment's prompts].
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// The number of continuations of each prompt.
    #[arg(long, value_name = "N")]
    pub count: Option<usize>,
    /// The most tokens of a continuation.
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Draw only from the K most likely tokens; 0 draws from all.
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Draw only from the most likely tokens whose probabilities add up to P.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Divide the logits by T; 0 always takes the most likely token.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// The seed of the random numbers.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The most continuations of a prompt: they are computed in one batch, each with a key-value cache. The limit is that of
/// experiment files.
const MAX_COUNT: usize = 10_000;
/// The most tokens of a continuation.
const MAX_TOKENS: usize = 1_000_000;

impl SampleArgs {
    /// The experiment's settings with these flags over them.
    fn override_settings(&self, base: Option<Samples>) -> Result<Samples, RequestError> {
        let mut s = base.unwrap_or_default();
        if !self.prompt.is_empty() {
            s.prompts.clone_from(&self.prompt);
        }
        s.count = self.count.unwrap_or(s.count);
        s.max_tokens = self.max_tokens.unwrap_or(s.max_tokens);
        s.temperature = self.temperature.unwrap_or(s.temperature);
        s.seed = self.seed.unwrap_or(s.seed);
        s.top_p = self.top_p.or(s.top_p);
        if let Some(k) = self.top_k {
            s.top_k = (k > 0).then_some(k);
        }
        if s.prompts.is_empty() {
            refuse!("the experiment has no prompts: give --prompt TEXT");
        }
        if !(1..=MAX_COUNT).contains(&s.count) {
            refuse!("--count {}: take 1 to {MAX_COUNT}", s.count);
        }
        if !(1..=MAX_TOKENS).contains(&s.max_tokens) {
            refuse!("--max-tokens {}: take 1 to {MAX_TOKENS}", s.max_tokens);
        }
        if !(s.temperature.is_finite() && s.temperature >= 0.0) {
            refuse!("--temperature {}: take 0 or more", s.temperature);
        }
        if let Some(p) = s.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            refuse!("--top-p {p}: take more than 0, at most 1");
        }
        Ok(s)
    }
}

/// # Errors
/// If there is no such run or checkpoint, its tokenizer is gone, or a prompt cannot be encoded.
pub(crate) fn run(args: &SampleArgs) -> anyhow::Result<Exit> {
    let opened = args.recorded.open()?;
    let spec = args.override_settings(opened.experiment.eval.samples.clone())?;
    let device = args.recorded.choose_device(&opened)?;
    let pool = args.recorded.threads.pool()?;
    let mut screen = Screen::on_standard_error();
    let host = host_without_runs(args.recorded.threads)?;
    let tokenizer = opened.tokenizer(&pool, &host, &mut PreparationObserver::new(&mut screen))?;
    // A device can be used only by the thread that opens it.
    let (made, step, seconds) = pool.install(|| -> anyhow::Result<_> {
        let (model, weights, step) = opened.model(args.recorded.checkpoint.which(), device)?;
        let started = Instant::now();
        let made = generate(&model, &weights, &tokenizer, &spec)?;
        Ok((made, step, started.elapsed().as_secs_f64()))
    })?;
    let tokens: usize = made.iter().map(|c| c.tokens).sum();
    if args.json {
        let lines: Vec<_> = made
            .iter()
            .map(|c| serde_json::json!({"step": step, "prompt": c.prompt, "index": c.index, "text": c.text}))
            .collect();
        print_json(&lines)?;
    } else {
        let texts: Vec<String> = made.iter().map(|c| format!("{}{}\n", c.prompt, c.text)).collect();
        print(&texts.join("---\n"))?;
        print_to_stderr(&format!(
            "{tokens} tokens in {seconds:.2} s, {:.0} tokens/s, step {step}",
            tokens as f64 / seconds
        ));
    }
    Ok(Exit::Done)
}
