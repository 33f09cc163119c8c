//! Several things in progress on one screen: a line for each and one for the whole, plain lines above.

use std::collections::BTreeMap;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::screen::{Mode, Screen};

/// A screen with a line for each of several things. Where there is no terminal it is a `Screen`.
#[derive(Debug)]
pub struct Many {
    screen: Screen,
    lines: Option<Lines>,
}

#[derive(Debug)]
struct Lines {
    multi: MultiProgress,
    whole: ProgressBar,
    each: BTreeMap<usize, ProgressBar>,
}

impl Many {
    /// Takes over from `screen`, which shows no bar.
    #[must_use]
    pub fn new(mut screen: Screen) -> Self {
        screen.clear();
        let lines = (screen.mode() == Mode::Bar).then(|| {
            let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            let whole = multi.add(styled(0, "{bar:12.green} {wide_msg}"));
            Lines { multi, whole, each: BTreeMap::new() }
        });
        Self { screen, lines }
    }

    #[must_use]
    pub fn mode(&self) -> Mode {
        self.screen.mode()
    }

    /// Whether someone sees the lines in progress.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.lines.is_some()
    }

    /// A line for people, above those in progress.
    pub fn line(&self, text: &str) {
        match &self.lines {
            Some(lines) => drop(lines.multi.println(text.trim_end_matches('\n'))),
            None => self.screen.line(text),
        }
    }

    /// A warning.
    pub fn warn(&self, text: &str) {
        match &self.lines {
            Some(lines) => {
                let label = console::style("warning:").for_stderr().yellow().bold();
                drop(lines.multi.println(format!("{label} {text}")));
            }
            None => self.screen.warn(text),
        }
    }

    /// An event for programs; nothing unless they asked.
    pub fn json(&self, event: &impl serde::Serialize) {
        if let (Mode::Json { .. }, Ok(line)) = (self.mode(), serde_json::to_string(event)) {
            self.screen.json_line(&line);
        }
    }

    /// Shows `id` at `at` of `of`, with `text`.
    pub fn show(&mut self, id: usize, at: u64, of: u64, text: String) {
        let Some(lines) = &mut self.lines else { return };
        let bar = lines
            .each
            .entry(id)
            .or_insert_with(|| lines.multi.insert_before(&lines.whole, styled(of, "{bar:12.cyan} {wide_msg}")));
        bar.set_length(of);
        bar.set_position(at);
        bar.set_message(text);
    }

    /// `id` is no longer in progress.
    pub fn forget(&mut self, id: usize) {
        if let Some(bar) = self.lines.as_mut().and_then(|lines| lines.each.remove(&id)) {
            bar.finish_and_clear();
        }
    }

    /// Shows the whole at `at` of `of`, with `text`.
    pub fn whole(&self, at: u64, of: u64, text: String) {
        if let Some(lines) = &self.lines {
            lines.whole.set_length(of);
            lines.whole.set_position(at);
            lines.whole.set_message(text);
        }
    }

    /// The plain screen, with the lines in progress gone.
    #[must_use]
    pub fn finish(mut self) -> Screen {
        if let Some(lines) = self.lines.take() {
            lines.each.values().for_each(ProgressBar::finish_and_clear);
            lines.whole.finish_and_clear();
        }
        self.screen
    }
}

fn styled(of: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(of), ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸─"));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_gets_lines_in_progress() {
        for mode in [Mode::Plain, Mode::Quiet, Mode::Json { quiet: true }] {
            let mut many = Many::new(Screen::new(mode));
            many.show(1, 2, 3, "x".into());
            many.whole(1, 2, "y".into());
            assert!(!many.is_live());
            assert_eq!(many.finish().mode(), mode);
        }
    }
}
