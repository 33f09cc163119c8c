//! Several items in progress on one screen: a bar for each item and one for the total, with plain lines above.

use std::collections::BTreeMap;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};

use super::screen::{OutputMode, Screen, progress_bar};

/// The bars of items. The bar of the screen itself shows the total.
#[derive(Debug)]
pub(crate) struct ItemBars {
    multi: MultiProgress,
    pub(crate) bars: BTreeMap<usize, ProgressBar>,
}

impl Screen {
    /// Shows a bar for each of several items from here on, and one for the total. Without a terminal there are no bars.
    pub fn start_items(&mut self) {
        self.clear();
        if self.mode() == OutputMode::Bar {
            let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            self.bar = Some(multi.add(hidden_bar(0, "{bar:12.green} {wide_msg}")));
            self.items = Some(ItemBars { multi, bars: BTreeMap::new() });
        }
    }

    /// True if a bar or a spinner is visible.
    pub fn is_live(&self) -> bool {
        self.bar.is_some()
    }

    /// Shows the item `id` at `position` of `length`, with `text`.
    pub fn show_item(&mut self, id: usize, position: u64, length: u64, text: String) {
        let (Some(total), Some(ItemBars { multi, bars })) = (&self.bar, &mut self.items) else { return };
        let new_bar = || multi.insert_before(total, hidden_bar(length, "{bar:12.cyan} {wide_msg}"));
        update(bars.entry(id).or_insert_with(new_bar), position, length, text);
    }

    /// Removes the bar of the item `id`.
    pub fn remove_item(&mut self, id: usize) {
        if let Some(bar) = self.items.as_mut().and_then(|items| items.bars.remove(&id)) {
            bar.finish_and_clear();
        }
    }

    /// Shows the total at `position` of `length`, with `text`.
    pub fn show_total(&self, position: u64, length: u64, text: String) {
        if let Some(total) = &self.bar {
            update(total, position, length, text);
        }
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
            let mut screen = Screen::new(mode);
            screen.start_items();
            screen.show_item(1, 2, 3, "x".into());
            screen.show_total(1, 2, "y".into());
            assert!(!screen.is_live());
        }
    }
}
