//! Events of a run as plain lines, for a log, a pipe, and the space above a progress bar.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use runner_spec::event::{Evaluation, Event, SampleText, StepMetrics};
use runner_spec::experiment::Log;
use runner_spec::format::{count, duration, percent, phase_times, printable, rate};
use runner_spec::line_part::{LinePart, fit_line};
use runner_spec::program::RowSequence;

/// Turns the events of one session into lines, and estimates the time that is left.
#[derive(Debug, Clone)]
pub struct EventLines {
    /// One step in this many gets a line.
    log_interval: u64,
    /// True if lines show the times of a step's phases.
    shows_phases: bool,
    /// The rows that each step reads.
    rows: Option<RowSequence>,
    /// Steps of the whole run.
    steps: u64,
    /// The step after which this session began, and when.
    first_step: u64,
    started: Instant,
    /// The summed loss and the tokens of the steps since the last step that every run shows: the first one, and one in `log_interval`.
    since_line: (f64, u64),
    /// The last step in these sums.
    counted_step: u64,
    /// The last step.
    last_step: Option<StepMetrics>,
}

impl EventLines {
    /// Lines as `log` asks for them. Without `rows` they do not show which batch of an epoch a step reads.
    pub fn new(log: &Log, rows: Option<RowSequence>) -> Self {
        Self {
            log_interval: log.every.max(1),
            shows_phases: log.phases,
            rows,
            steps: 0,
            first_step: 0,
            started: Instant::now(),
            since_line: (0.0, 0),
            counted_step: 0,
            last_step: None,
        }
    }

    /// Adds a step to the sums since the last line.
    fn count(&mut self, step: u64, loss: f64, tokens: u64) {
        if self.counted_step == 1 || self.counted_step.is_multiple_of(self.log_interval) {
            self.since_line = (0.0, 0);
        }
        self.since_line.0 += loss * tokens as f64;
        self.since_line.1 += tokens;
        self.counted_step = step;
    }

    /// The line for `event`; `None` if it gets none.
    pub fn line(&mut self, event: &Event) -> Option<String> {
        match event {
            Event::Start { step, steps } => {
                (self.steps, self.first_step, self.started) = (*steps, *step, Instant::now());
                (self.last_step, self.since_line, self.counted_step) = (None, (0.0, 0), *step);
                None
            }
            Event::Step(m) => {
                let due =
                    m.step.is_multiple_of(self.log_interval) || m.step == self.steps || m.step == self.first_step + 1;
                self.count(m.step, m.loss, m.tokens);
                self.last_step = Some(m.clone());
                due.then(|| self.step_line(m))
            }
            Event::Eval(m) => {
                if m.step == self.first_step {
                    // The evaluation before the first step happens once and would distort the pace.
                    self.started = Instant::now();
                }
                Some(self.eval_line(m))
            }
            Event::Sample(s) => Some(self.sample_lines(s)),
            Event::Saved { step } => Some(format!("{}  saved", self.label("save", *step))),
            Event::Rows(_) | Event::Watched(_) => None,
            Event::Warning(message) => Some(format!("warning: {}", printable(message))),
        }
    }

    /// The time left after `step` at the pace of this session, evaluations and checkpoints included.
    fn time_left(&self, step: u64) -> Option<Duration> {
        let done = step.checked_sub(self.first_step).filter(|&d| d > 0)?;
        let left = self.steps.saturating_sub(step);
        Duration::try_from_secs_f64(self.started.elapsed().as_secs_f64() / done as f64 * left as f64).ok()
    }

    /// The numbers of the last step that [`line`](Self::line) got, without the step's own number; none before the first step.
    pub fn numbers(&self) -> Vec<LinePart> {
        let Some(m) = &self.last_step else { return Vec::new() };
        let (loss, tokens) = self.since_line;
        let place = self.rows.as_ref().map(|rows| rows.epoch_batch(m.step.saturating_sub(1)));
        let place = place.map(|place| format!("epoch {}, batch {}/{}", place.epoch + 1, place.batch, place.batches));
        let mut parts: Vec<LinePart> = place.into_iter().map(|place| LinePart::new(7, place)).collect();
        parts.extend([
            LinePart::new(8, format!("loss {:.4}", m.loss)),
            LinePart::new(3, format!("mean {:.4}", loss / tokens.max(1) as f64)),
            LinePart::new(4, format!("perplexity {:.2}", m.loss.exp())),
            LinePart::new(1, format!("norm {:.3}", m.grad_norm)),
            LinePart::new(0, format!("lr {:.2e}", m.lr)),
            LinePart::new(5, format!("{} ms", rate(m.step_ms))),
            LinePart::new(6, format!("{} tok/s", rate(m.tokens_per_second))),
        ]);
        parts.extend(m.mfu.map(|mfu| LinePart::new(2, format!("mfu {}", percent(mfu)))));
        if self.shows_phases {
            let times = [m.data_ms, m.forward_ms, m.backward_ms, m.optimizer_ms];
            parts.push(LinePart::new(5, phase_times(times, m.comm_ms)));
        }
        let left = self.time_left(m.step).filter(|_| m.step < self.steps);
        parts.extend(left.map(|left| LinePart::new(9, format!("{} left", duration(left)))));
        parts
    }

    fn label(&self, what: &str, step: u64) -> String {
        let width = self.steps.to_string().len();
        format!("{what:6} {step:>width$}")
    }

    fn step_line(&self, m: &StepMetrics) -> String {
        let numbers = fit_line(&self.numbers(), usize::MAX);
        format!("{}/{}  {numbers}", self.label("step", m.step), self.steps)
    }

    fn eval_line(&self, evaluation: &Evaluation) -> String {
        let measured = &evaluation.measured;
        let mut out = self.label("eval", evaluation.step);
        for loss in measured.losses() {
            let _ = write!(out, "  {} {}", loss.measure.label(), loss.measure.text(loss.value));
        }
        if let Some(sample) = measured.val_sample() {
            let _ = write!(out, "  ({sample})");
        }
        for scores in measured.tasks() {
            let _ = write!(out, "  {} {}", printable(scores.task), scores.shares_text(" "));
            if let Some(n) = scores.items {
                let _ = write!(out, " of {}", count(n));
            }
            if let Some(cut) = scores.cut {
                let _ = write!(out, " ({} cut)", count(cut));
            }
        }
        out
    }

    fn sample_lines(&self, s: &SampleText) -> String {
        let text = printable(&s.text);
        let text: Vec<&str> = text.lines().collect();
        format!("{}  {}|{}", self.label("sample", s.step), printable(&s.prompt), text.join("\n         "))
    }
}

#[cfg(test)]
mod tests {
    use runner_spec::measure::{Measure, Measured};
    use runner_spec::program::RowOrder;

    use super::*;

    fn step(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            epoch: step as f64 / 20.0,
            loss: 2.123_45,
            lr: 6e-4,
            grad_norm: 0.5,
            tokens: 768,
            tokens_per_second: 12_345.6,
            step_ms: 62.21,
            ..StepMetrics::default()
        }
    }

    /// Lines of a run with 20 batches in each epoch.
    fn new_lines(phases: bool) -> EventLines {
        let rows = RowSequence::new(4, 8, RowOrder::default(), None, 80);
        EventLines::new(&Log { every: 10, phases, ..Log::default() }, Some(rows))
    }

    fn started(from: u64) -> EventLines {
        let mut lines = new_lines(false);
        assert_eq!(lines.line(&Event::Start { step: from, steps: 25 }), None);
        lines
    }

    #[test]
    fn steps_are_shown_when_due() {
        let mut lines = started(3);
        let shown: Vec<u64> = (4..=25).filter(|&s| lines.line(&Event::Step(step(s))).is_some()).collect();
        assert_eq!(shown, [4, 10, 20, 25], "the first of the session, every tenth, the last");
        let line = lines.line(&Event::Step(step(25))).unwrap();
        assert_eq!(
            line,
            "step   25/25  epoch 2, batch 5/20  loss 2.1235  mean 2.1235  perplexity 8.36  norm 0.500  lr 6.00e-4  62.2 ms  12,346 tok/s"
        );
        assert!(lines.line(&Event::Step(step(20))).unwrap().ends_with(" left"));
        let known = StepMetrics { mfu: Some(0.423), ..step(25) };
        assert!(lines.line(&Event::Step(known)).unwrap().ends_with("mfu 42.3%"));
    }

    #[test]
    fn the_mean_is_over_the_tokens_since_the_last_line() {
        let mut lines = started(8);
        let mut mean = |n: u64, loss: f64, tokens: u64| {
            let metrics = StepMetrics { loss, tokens, ..step(n) };
            let line = lines.line(&Event::Step(metrics));
            let numbers = fit_line(&lines.numbers(), usize::MAX);
            (numbers.split("mean ").nth(1).unwrap()[..6].to_owned(), line.is_some())
        };
        assert_eq!(mean(9, 5.0, 1), ("5.0000".to_owned(), true), "the first of the session");
        assert_eq!(mean(10, 4.0, 1), ("4.5000".to_owned(), true));
        assert_eq!(mean(11, 1.0, 1), ("1.0000".to_owned(), false));
        assert_eq!(mean(12, 3.0, 3), ("2.5000".to_owned(), false));
        (13..20).for_each(|n| _ = mean(n, 2.5, 4));
        assert_eq!(mean(20, 2.5, 1), ("2.5000".to_owned(), true));
        assert_eq!(mean(21, 7.0, 1), ("7.0000".to_owned(), false));
    }

    #[test]
    fn phases_are_shown_if_asked_for() {
        let mut lines = new_lines(true);
        lines.line(&Event::Start { step: 0, steps: 25 });
        let times = StepMetrics { data_ms: 0.04, forward_ms: 20.0, backward_ms: 40.13, optimizer_ms: 2.0, ..step(25) };
        let line = lines.line(&Event::Step(times.clone())).unwrap();
        assert!(line.ends_with("12,346 tok/s  data 0.0  forward 20.0  backward 40.1  optimizer 2.0 ms"), "{line}");
        let line = lines.line(&Event::Step(StepMetrics { comm_ms: Some(1.5), ..times })).unwrap();
        assert!(line.ends_with("optimizer 2.0  communication 1.5 ms"), "{line}");
    }

    #[test]
    fn a_step_fits_beside_the_bar_of_a_terminal_of_80_columns() {
        let mut lines = started(0);
        let metrics = StepMetrics { mfu: Some(0.4), step_ms: 1234.5, ..step(7) };
        assert_eq!(lines.line(&Event::Step(metrics)), None);
        let width = 80 - 12 - "  7/25  ".len();
        let numbers = fit_line(&lines.numbers(), width);
        assert!(numbers.starts_with("epoch 1, batch 7/20  loss 2.1235  ") && numbers.ends_with(" left"), "{numbers}");
        assert!(numbers.chars().count() <= width, "{numbers}");
    }

    #[test]
    fn evaluations_show_what_there_is() {
        let mut lines = started(0);
        let mut measured = Measured::default().with(Measure::VAL_LOSS, 1.5).with(Measure::VAL_PERPLEXITY, 4.48);
        let mut shown = |measured: &Measured| {
            lines.line(&Event::Eval(Evaluation { measured: measured.clone(), ..Evaluation::new(5) })).unwrap()
        };
        assert_eq!(shown(&measured), "eval    5  val loss 1.5000  perplexity 4.48");
        measured.set(Measure::BITS_PER_BYTE, 2.164_04);
        assert!(shown(&measured).ends_with("perplexity 4.48  bits/byte 2.1640"));
        for (measure, value) in Measure::all_of_task("hellaswag").zip([0.25, 0.3, 0.28, 1000.0]) {
            measured.set(measure, value);
        }
        let scores = "hellaswag acc 25.0% (SE 1.4%) acc_norm 30.0% (SE 1.4%) acc_norm_chars 28.0% (SE 1.4%) of 1,000";
        assert!(shown(&measured).ends_with(scores));
        measured.set(Measure::of_key("hellaswag_cut").unwrap(), 12.0);
        assert!(shown(&measured).ends_with(&format!("{scores} (12 cut)")));
    }

    #[test]
    fn samples_keep_their_lines_and_lose_their_escapes() {
        let sample = SampleText { step: 5, prompt: "Once".into(), index: 0, text: " upon\na\x1b[2J time".into() };
        let line = started(0).line(&Event::Sample(sample)).unwrap();
        assert_eq!(line, "sample  5  Once| upon\n         a�[2J time");
    }
}
