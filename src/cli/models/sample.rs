//! `runner sample`: continues prompts with a checkpoint of a recorded run, or with weights of another program.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::Instant;

use clap::Args;

use crate::cli::args::model::ModelArgs;
use crate::cli::terminal::exit::{Context as _, Exit, Result, refuse};
use crate::cli::terminal::output::{print_json, print_to_stderr};
use runner_executor::eval::{Continuation, Drawn, generate};
use runner_report::{Screen, is_reader_gone};
use runner_spec::experiment::Samples;
use runner_spec::format::printable;

#[derive(Debug, Clone, Args)]
pub(crate) struct SampleArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// A text to continue; may be given several times [default: the experiment's prompts]. For a model
    /// without a tokenizer: ids, such as "1 2 3".
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

/// Writes each prompt and its first continuation to `out` while tokens are sampled, then the other continuations.
struct SampleWriter<'a> {
    out: &'a mut dyn Write,
    /// A terminal gets texts without characters that steer it.
    is_terminal: bool,
    written: io::Result<()>,
    has_texts: bool,
}

impl<'a> SampleWriter<'a> {
    fn new(out: &'a mut dyn Write, is_terminal: bool) -> Self {
        Self { out, is_terminal, written: Ok(()), has_texts: false }
    }

    /// Writes `drawn`. Ends the sampling if it cannot be written.
    fn write(&mut self, drawn: &Drawn<'_>) -> ControlFlow<()> {
        let separator = if self.has_texts { "---\n" } else { "" };
        let text = match drawn {
            Drawn::Prompt(prompt) => format!("{separator}{prompt}"),
            Drawn::Text(text) => (*text).to_owned(),
            Drawn::Continuations(all) => {
                self.has_texts = true;
                let line = |c: &Continuation| format!("---\n{}{}\n", c.prompt, c.text);
                let others: String = all.iter().skip(1).map(line).collect();
                format!("\n{others}")
            }
        };
        let text = if self.is_terminal { printable(&text) } else { text };
        self.written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        if self.written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// # Errors
    /// If a text could not be written. A closed pipe is not an error.
    fn finish(self) -> Result<()> {
        match self.written {
            Err(error) if !is_reader_gone(&error) => Err(error).context("standard output"),
            _ => Ok(()),
        }
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
        if let Some(warning) = tokenizer.cut_prompt(prompt, opened.spec().context_length)? {
            screen.warn(&printable(&warning));
        }
    }
    // A device can be used only by the thread that opens it.
    let (made, step, seconds) = pool.install(|| -> Result<_> {
        let (model, weights, step) = opened.load(device)?;
        let started = Instant::now();
        let mut stdout = io::stdout();
        let mut writer = SampleWriter::new(&mut stdout, console::user_attended());
        let made = generate(&model, &weights, &tokenizer, &spec, &mut |drawn| {
            if args.json { ControlFlow::Continue(()) } else { writer.write(&drawn) }
        })?;
        writer.finish()?;
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
        let step = step.map_or_else(String::new, |step| format!(", step {step}"));
        print_to_stderr(&format!("{tokens} tokens in {seconds:.2} s, {:.0} tokens/s{step}", tokens as f64 / seconds));
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn continuation(index: usize, text: &str) -> Continuation {
        Continuation { prompt: "Once".to_owned(), index, text: text.to_owned(), tokens: 1 }
    }

    #[test]
    fn texts_are_written_while_they_are_sampled() {
        let mut out = Vec::new();
        let mut writer = SampleWriter::new(&mut out, false);
        let all = [continuation(0, " upon"), continuation(1, " more")];
        for drawn in [Drawn::Prompt("Once"), Drawn::Text(" up"), Drawn::Text("on"), Drawn::Continuations(&all)] {
            assert!(writer.write(&drawn).is_continue());
        }
        assert!(writer.write(&Drawn::Prompt("Twice")).is_continue());
        writer.finish().unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "Once upon\n---\nOnce more\n---\nTwice");
        let mut shown = Vec::new();
        let mut writer = SampleWriter::new(&mut shown, true);
        assert!(writer.write(&Drawn::Text("a\x1b]0;title\x07\u{202e}\u{9b}2Jb\n")).is_continue());
        assert_eq!(String::from_utf8(shown).unwrap(), "a�]0;title���2Jb\n");
    }

    #[test]
    fn a_closed_pipe_ends_the_sampling() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut closed = Closed;
        let mut writer = SampleWriter::new(&mut closed, false);
        assert!(writer.write(&Drawn::Text("a")).is_break());
        writer.finish().unwrap();
    }
}
