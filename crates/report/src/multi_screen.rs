//! Several items in progress on one terminal: a bar for each item and one for the total, with plain lines above.

use std::collections::BTreeMap;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use serde::Serialize;

use super::screen::{OutputMode, Screen, labelled_warning, progress_bar};

/// A screen with a bar for each of several items. Without a terminal it shows what its [`Screen`] shows.
#[derive(Debug)]
pub struct MultiScreen {
    screen: Screen,
    bars: Option<Bars>,
}

#[derive(Debug)]
struct Bars {
    multi: MultiProgress,
    total: ProgressBar,
    items: BTreeMap<usize, ProgressBar>,
}

impl MultiScreen {
    /// Takes over from `screen`, whose own bar is removed.
    pub fn new(mut screen: Screen) -> Self {
        screen.clear();
        let bars = (screen.mode() == OutputMode::Bar).then(|| {
            let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            let total = multi.add(hidden_bar(0, "{bar:12.green} {wide_msg}"));
            Bars { multi, total, items: BTreeMap::new() }
        });
        Self { screen, bars }
    }

    /// True if the bars are visible.
    pub fn is_live(&self) -> bool {
        self.bars.is_some()
    }

    /// Shows `text` to a person, above the bars.
    pub fn line(&self, text: &str) {
        match &self.bars {
            Some(bars) => bars.print(text.trim_end_matches('\n')),
            None => self.screen.line(text),
        }
    }

    /// Shows a warning, above the bars.
    pub fn warn(&self, text: &str) {
        match &self.bars {
            Some(bars) => bars.print(&labelled_warning(text)),
            None => self.screen.warn(text),
        }
    }

    /// Writes `event` as a JSON line; does nothing without `--json`.
    pub fn json(&self, event: &impl Serialize) {
        self.screen.json(event);
    }

    /// Shows the item `id` at `position` of `length`, with `text`.
    pub fn show_item(&mut self, id: usize, position: u64, length: u64, text: String) {
        let Some(Bars { multi, total, items }) = &mut self.bars else { return };
        let bar = items
            .entry(id)
            .or_insert_with(|| multi.insert_before(total, hidden_bar(length, "{bar:12.cyan} {wide_msg}")));
        update(bar, position, length, text);
    }

    /// Removes the bar of the item `id`.
    pub fn remove_item(&mut self, id: usize) {
        if let Some(bar) = self.bars.as_mut().and_then(|bars| bars.items.remove(&id)) {
            bar.finish_and_clear();
        }
    }

    /// Shows the total at `position` of `length`, with `text`.
    pub fn show_total(&self, position: u64, length: u64, text: String) {
        if let Some(bars) = &self.bars {
            update(&bars.total, position, length, text);
        }
    }

    /// Removes the bars and returns the plain screen.
    pub fn finish(mut self) -> Screen {
        if let Some(bars) = self.bars.take() {
            bars.items.values().for_each(ProgressBar::finish_and_clear);
            bars.total.finish_and_clear();
        }
        self.screen
    }
}

impl Bars {
    fn print(&self, text: &str) {
        // A terminal that went away is no reason to stop.
        let _ = self.multi.println(text);
    }
}

/// A bar that becomes visible when a `MultiProgress` takes it.
fn hidden_bar(length: u64, template: &str) -> ProgressBar {
    progress_bar(Some(length), template, ProgressDrawTarget::hidden())
}

fn update(bar: &ProgressBar, position: u64, length: u64, text: String) {
    bar.set_length(length);
    bar.set_position(position);
    bar.set_message(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_gets_bars() {
        for mode in [OutputMode::Plain, OutputMode::Quiet, OutputMode::Json { quiet: true }] {
            let mut screen = MultiScreen::new(Screen::new(mode));
            screen.show_item(1, 2, 3, "x".into());
            screen.show_total(1, 2, "y".into());
            assert!(!screen.is_live());
            assert_eq!(screen.finish().mode(), mode);
        }
    }
}
