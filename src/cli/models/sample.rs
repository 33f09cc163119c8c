//! `runner sample`: continues prompts with a checkpoint of a recorded run, or with weights of another program.

use std::time::Instant;

use clap::Args;

use crate::cli::args::model::ModelArgs;
use crate::cli::terminal::exit::{Exit, Result, refuse};
use crate::cli::terminal::output::{print_content, print_json, print_to_stderr};
use runner_executor::eval::generate;
use runner_report::Screen;
use runner_spec::experiment::Samples;
use runner_spec::format::printable;

#[derive(Debug, Clone, Args)]
pub(crate) struct SampleArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// A text to continue; may be given several times [default: the experiment's prompts]. For a model without a tokenizer: ids, such as "1 2 3".
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
    /// Draw only from the most likely tokens that together have the share P of the probability that --top-k leaves.
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

/// The most continuations of a prompt: each has a key-value cache while its batch is computed. The limit is that of
/// experiment files.
const MAX_COUNT: usize = 10_000;
/// The most tokens of a continuation.
const MAX_TOKENS: usize = 1_000_000;

impl SampleArgs {
    /// The experiment's settings with these flags over them.
    fn override_settings(&self, base: Option<Samples>) -> Result<Samples> {
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
            refuse!("there are no prompts; use `--prompt TEXT`");
        }
        if !(1..=MAX_COUNT).contains(&s.count) {
            refuse!("--count must be 1 to {MAX_COUNT}, got {}", s.count);
        }
        if !(1..=MAX_TOKENS).contains(&s.max_tokens) {
            refuse!("--max-tokens must be 1 to {MAX_TOKENS}, got {}", s.max_tokens);
        }
        if let Some(problem) = Samples::temperature_problem(s.temperature) {
            refuse!("--temperature {}: {problem}", s.temperature);
        }
        if let Some(p) = s.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            refuse!("--top-p must be above 0 and at most 1, got {p}");
        }
        Ok(s)
    }
}

/// # Errors
/// If there is no such run or checkpoint, its tokenizer is gone, or a prompt cannot be encoded.
pub(crate) fn run(args: &SampleArgs) -> Result<Exit> {
    let mut screen = Screen::on_standard_error();
    let opened = args.model.open(&mut screen)?;
    opened.check_mask("samples")?;
    let spec = args.override_settings(opened.run().and_then(|run| run.experiment.eval.samples.clone()))?;
    let device = args.model.choose_device(&opened)?;
    let pool = args.model.threads.pool()?;
    let tokenizer = args.model.read_tokenizer(&opened, &pool, &mut screen)?;
    for prompt in &spec.prompts {
        if let Some(warning) = tokenizer.cut_prompt(prompt, opened.spec.context_length)? {
            screen.warn(&printable(&warning));
        }
    }
    // A device can be used only by the thread that opens it.
    let (made, step, seconds) = pool.install(|| -> Result<_> {
        let (model, weights, step) = opened.load(device)?;
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
        print_content(&texts.join("---\n"))?;
        let step = step.map_or_else(String::new, |step| format!(", step {step}"));
        print_to_stderr(&format!("{tokens} tokens in {seconds:.2} s, {:.0} tokens/s{step}", tokens as f64 / seconds));
    }
    Ok(Exit::Done)
}
