//! The output of a command: lines above a progress bar, lines to a pipe, JSON lines, or nothing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use runner_spec::line_part::{LinePart, fit_line};
use runner_spec::safe_text::{safe_json, terminal_text};

/// Without a progress bar, lines about progress are at least this far apart.
const PROGRESS_LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The number of columns of a progress bar.
const BAR_WIDTH: usize = 12;
/// The steps of a bar that shows a share.
const SHARES: u64 = 1000;

/// The form of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// A terminal: lines above a progress bar.
    Bar,
    /// Lines on standard output.
    Plain,
    /// Only errors and the last line.
    Quiet,
    /// JSON lines on standard output; lines for people on standard error, unless quiet.
    Json { quiet: bool },
}

impl OutputMode {
    /// The mode for these flags; `terminal` says whether a person sees both output streams.
    pub fn choose(json: bool, quiet: bool, terminal: bool) -> Self {
        match (json, quiet) {
            (true, quiet) => Self::Json { quiet },
            (false, true) => Self::Quiet,
            (false, false) if terminal => Self::Bar,
            (false, false) => Self::Plain,
        }
    }

    /// The mode for these flags and this process's standard streams.
    pub fn detect(json: bool, quiet: bool) -> Self {
        Self::choose(json, quiet, console::user_attended() && console::user_attended_stderr())
    }
}

/// The output of a command. Writing never fails, because a closed pipe must not stop a training run;
/// [`Screen::output_result`] reports at the end whether all output was written.
#[derive(Debug)]
pub struct Screen {
    mode: OutputMode,
    bar: Option<ProgressBar>,
    last_progress_line: Mutex<Instant>,
    /// The first error in writing to standard output.
    output_error: OnceLock<io::Error>,
}

impl Screen {
    pub fn new(mode: OutputMode) -> Self {
        let last_progress_line = Mutex::new(Instant::now());
        Self { mode, bar: None, last_progress_line, output_error: OnceLock::new() }
    }

    /// A screen for a command whose output goes to standard output at the end: progress goes to standard error, and only if a
    /// person sees it.
    pub fn on_standard_error() -> Self {
        Self::new(OutputMode::Json { quiet: !console::user_attended_stderr() })
    }

    pub fn mode(&self) -> OutputMode {
        self.mode
    }

    /// Shows `text`, of one or more lines, to a person.
    pub fn line(&self, text: &str) {
        match (self.mode, &self.bar) {
            (OutputMode::Quiet | OutputMode::Json { quiet: true }, _) => {}
            (OutputMode::Json { .. }, _) => write_to_stderr(text),
            (_, Some(bar)) => bar.println(terminal_text(text)),
            (_, None) => self.write_output(&terminal_text(text)),
        }
    }

    /// Shows a warning on standard error, also of a quiet command.
    pub fn warn(&self, text: &str) {
        let text = labelled_warning(text);
        match &self.bar {
            Some(bar) => bar.println(terminal_text(&text)),
            None => write_to_stderr(&text),
        }
    }

    /// Shows the result of the command, which a quiet command shows too.
    pub fn result_line(&self, text: &str) {
        match self.mode {
            OutputMode::Json { quiet: true } => {}
            OutputMode::Json { .. } => write_to_stderr(text),
            _ => self.write_output(&terminal_text(text)),
        }
    }

    /// Writes `event` as a JSON line; does nothing without `--json`.
    pub fn json(&self, event: &impl Serialize) {
        match serde_json::to_string(event) {
            Ok(line) => self.json_line(&line),
            Err(error) => self.keep_output_error(error.into()),
        }
    }

    /// Writes `line`, an event that is JSON already; does nothing without `--json`.
    pub fn json_line(&self, line: &str) {
        if matches!(self.mode, OutputMode::Json { .. }) {
            self.write_output(&safe_json(line));
        }
    }

    fn write_output(&self, text: &str) {
        if let Err(error) = write_line(&mut io::stdout(), text) {
            self.keep_output_error(error);
        }
    }

    fn keep_output_error(&self, error: io::Error) {
        // Later errors are ignored.
        let _ = self.output_error.set(error);
    }

    /// Returns an error if standard output did not take everything.
    ///
    /// # Errors
    /// The first error in writing. A reader that has gone is not an error.
    pub fn output_result(&self) -> io::Result<()> {
        match self.output_error.get() {
            Some(error) if !is_reader_gone(error) => Err(io::Error::new(error.kind(), error.to_string())),
            _ => Ok(()),
        }
    }

    /// Starts a progress bar at step `from` of `steps`.
    pub fn start_bar(&mut self, from: u64, steps: u64) {
        self.add_bar(&format!("{{bar:{BAR_WIDTH}.cyan}} {{pos}}/{{len}}  {{wide_msg}}"), from, steps);
    }

    /// Starts a progress bar for a share of work.
    pub fn start_share_bar(&mut self) {
        self.add_bar(&format!("{{bar:{BAR_WIDTH}.green}} {{wide_msg}}"), 0, SHARES);
    }

    fn add_bar(&mut self, template: &str, from: u64, length: u64) {
        if self.mode == OutputMode::Bar {
            let bar = progress_bar(Some(length), template);
            bar.set_position(from);
            self.bar = Some(bar);
        }
    }

    /// Moves the bar of a share to `share`, with those of `parts` for which the terminal is wide enough.
    pub fn show_share(&self, share: f64, parts: &[LinePart]) {
        if let Some(bar) = &self.bar {
            bar.set_position((share * SHARES as f64) as u64);
            set_message(bar, &fit_line(parts, width_beside_bar()));
        }
    }

    /// Moves the bar to `step`, with those of `numbers` for which the terminal is wide enough.
    pub fn step(&self, step: u64, numbers: &[LinePart]) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
            let digits = step.to_string().len() + bar.length().unwrap_or(0).to_string().len();
            set_message(bar, &fit_line(numbers, width_beside_bar().saturating_sub(digits + 3)));
        }
    }

    /// Shows a spinner for work of unknown length, unless there is a bar or a spinner already.
    pub fn spinner(&mut self) {
        if self.mode == OutputMode::Bar && self.bar.is_none() {
            self.bar = Some(progress_bar(None, "{spinner} {wide_msg}"));
        }
    }

    /// Shows progress: the text of `message` beside the spinner, or `line` now and then where there is no bar.
    pub fn progress(&self, line: &str, message: impl FnOnce() -> String) {
        if self.mode == OutputMode::Bar {
            if let Some(bar) = &self.bar {
                set_message(bar, &message());
                bar.tick();
            }
            return;
        }
        let mut last = self.last_progress_line.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= PROGRESS_LINE_INTERVAL {
            *last = Instant::now();
            self.line(line);
        }
    }

    /// Removes the bar or the spinner.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// True if `error`, of a write to standard output, means that its pipe or its terminal was closed.
pub fn is_reader_gone(error: &io::Error) -> bool {
    // Writes to a terminal that was closed fail as writes to a broken disk do.
    const EIO: i32 = 5;
    let is_terminal = || -> io::Result<bool> {
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(output.metadata()?.file_type().is_char_device())
    };
    error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(EIO) && is_terminal().is_ok_and(|is| is)
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The number of columns beside a bar on the terminal.
fn width_beside_bar() -> usize {
    usize::from(console::Term::stderr().size().1).saturating_sub(BAR_WIDTH + 1)
}

/// `text` after the coloured word `warning:`.
fn labelled_warning(text: &str) -> String {
    format!("{} {text}", console::style("warning:").for_stderr().yellow().bold())
}

/// A bar of `length` steps, or a spinner without a length.
#[expect(clippy::expect_used, reason = "templates are constants, which every use of a screen parses")]
fn progress_bar(length: Option<u64>, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a valid template").progress_chars("━╸─");
    ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr()).with_style(style)
}

/// Shows `message` beside `bar`.
fn set_message(bar: &ProgressBar, message: &str) {
    bar.set_message(terminal_text(message).into_owned());
}

fn write_to_stderr(text: &str) {
    // A failure of standard error cannot be reported; the run's record has everything.
    let _ = write_line(&mut io::stderr(), &terminal_text(text));
}

fn write_line(out: &mut dyn Write, text: &str) -> io::Result<()> {
    let line = format!("{}\n", text.trim_end_matches('\n'));
    out.write_all(line.as_bytes()).and_then(|()| out.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_terminal() {
        assert_eq!(OutputMode::choose(false, false, true), OutputMode::Bar);
        assert_eq!(OutputMode::choose(false, false, false), OutputMode::Plain);
        assert_eq!(OutputMode::choose(false, true, true), OutputMode::Quiet);
        assert_eq!(OutputMode::choose(true, false, true), OutputMode::Json { quiet: false });
        assert_eq!(OutputMode::choose(true, true, false), OutputMode::Json { quiet: true });
    }

    #[test]
    fn only_a_terminal_gets_a_bar() {
        for mode in [OutputMode::Plain, OutputMode::Quiet, OutputMode::Json { quiet: false }] {
            let mut screen = Screen::new(mode);
            screen.start_bar(0, 10);
            screen.spinner();
            assert!(screen.bar.is_none());
        }
    }
}
