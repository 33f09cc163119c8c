//! Where lines go: above a progress bar, to a pipe, as JSON, or nowhere. The only place that draws.

use std::io::{self, Write};
use std::sync::OnceLock;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::json::JsonEvent;

/// How a command speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A terminal: lines above a progress bar.
    Bar,
    /// Lines on standard output.
    Plain,
    /// Only errors and the last line.
    Quiet,
    /// JSON lines on standard output; lines for people on standard error, unless quiet.
    Json { quiet: bool },
}

impl Mode {
    /// From the flags, and whether a person is looking.
    #[must_use]
    pub fn choose(json: bool, quiet: bool, terminal: bool) -> Self {
        match (json, quiet) {
            (true, quiet) => Self::Json { quiet },
            (false, true) => Self::Quiet,
            (false, false) if terminal => Self::Bar,
            (false, false) => Self::Plain,
        }
    }

    /// From the flags and this process's standard streams.
    #[must_use]
    pub fn detect(json: bool, quiet: bool) -> Self {
        Self::choose(json, quiet, console::user_attended() && console::user_attended_stderr())
    }
}

/// The output of a command. Writing never fails: a reader that went away must not stop a training. Whether all JSON lines were
/// written can be asked at the end.
#[derive(Debug)]
pub struct Screen {
    mode: Mode,
    bar: Option<ProgressBar>,
    /// Why the first JSON line that could not be written could not.
    unwritten: OnceLock<io::Error>,
}

impl Screen {
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self { mode, bar: None, unwritten: OnceLock::new() }
    }

    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// A line for people; it may have several lines of its own.
    pub fn line(&self, text: &str) {
        match (self.mode, &self.bar) {
            (Mode::Quiet | Mode::Json { quiet: true }, _) => {}
            (Mode::Json { .. }, _) => put(&mut io::stderr(), text),
            (_, Some(bar)) => bar.println(text),
            (_, None) => put(&mut io::stdout(), text),
        }
    }

    /// A warning, on standard error.
    pub fn warn(&self, text: &str) {
        let text = format!("{} {text}", console::style("warning:").for_stderr().yellow().bold());
        match (self.mode, &self.bar) {
            (Mode::Quiet | Mode::Json { quiet: true }, _) => {}
            (_, Some(bar)) => bar.println(text),
            (_, None) => put(&mut io::stderr(), &text),
        }
    }

    /// A line that even a quiet command says.
    pub fn last(&self, text: &str) {
        match self.mode {
            Mode::Json { quiet: true } => {}
            Mode::Json { .. } => put(&mut io::stderr(), text),
            _ => put(&mut io::stdout(), text),
        }
    }

    /// An event for programs; nothing unless they asked.
    pub fn json(&self, event: &JsonEvent<'_>) {
        if matches!(self.mode, Mode::Json { .. }) {
            self.json_line(&event.to_json());
        }
    }

    /// An event for programs that is JSON already.
    pub fn json_line(&self, line: &str) {
        if matches!(self.mode, Mode::Json { .. })
            && let Err(error) = try_put(&mut io::stdout(), line)
        {
            let _ = self.unwritten.set(error);
        }
    }

    /// Whether what programs read was written.
    ///
    /// # Errors
    /// Why not; that its reader went away is no error.
    pub fn written(&self) -> io::Result<()> {
        match self.unwritten.get() {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(io::Error::new(error.kind(), error.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Starts a progress bar at `from` of `steps`.
    pub fn start_bar(&mut self, from: u64, steps: u64) {
        if self.mode == Mode::Bar {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            let template = "{bar:12.cyan} {pos}/{len}  {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.set_position(from);
            self.bar = Some(bar);
        }
    }

    /// Moves the bar.
    pub fn step(&self, step: u64, numbers: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
            bar.set_message(numbers());
        }
    }

    /// Shows work of unknown length, unless something is shown already.
    pub fn spinner(&mut self) {
        if self.mode == Mode::Bar && self.bar.is_none() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
    }

    /// What the spinner or bar says.
    pub fn message(&self, text: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(text);
            bar.tick();
        }
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

fn put(out: &mut dyn Write, text: &str) {
    // Whoever was reading may be gone; the run's own record has everything.
    let _ = try_put(out, text);
}

fn try_put(out: &mut dyn Write, text: &str) -> io::Result<()> {
    let mut line = text.trim_end_matches('\n').to_owned();
    line.push('\n');
    out.write_all(line.as_bytes()).and_then(|()| out.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_terminal() {
        assert_eq!(Mode::choose(false, false, true), Mode::Bar);
        assert_eq!(Mode::choose(false, false, false), Mode::Plain);
        assert_eq!(Mode::choose(false, true, true), Mode::Quiet);
        assert_eq!(Mode::choose(true, false, true), Mode::Json { quiet: false });
        assert_eq!(Mode::choose(true, true, false), Mode::Json { quiet: true });
    }

    #[test]
    fn only_a_terminal_gets_a_bar() {
        for mode in [Mode::Plain, Mode::Quiet, Mode::Json { quiet: false }] {
            let mut screen = Screen::new(mode);
            screen.start_bar(0, 10);
            screen.spinner();
            assert!(screen.bar.is_none());
        }
    }
}
