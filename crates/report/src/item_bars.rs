//! Several items in progress on one screen: a bar for each item and one for the total, with plain lines above.

use std::collections::BTreeMap;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};

use super::screen::{BAR_WIDTH, ItemBars, OutputMode, Screen, progress_bar, set_message, width_beside_bar};
use runner_spec::line_part::{LinePart, fit_line};

impl Screen {
    /// Shows a bar for each of several items from here on, and one for the total. Without a terminal there are no bars.
    pub fn start_items(&mut self) {
        self.clear();
        if self.mode() == OutputMode::Bar {
            let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            self.bar = Some(multi.add(hidden_bar(0, "green")));
            self.items = Some(ItemBars { multi, bars: BTreeMap::new() });
        }
    }

    /// True if a bar or a spinner is visible.
    pub fn is_live(&self) -> bool {
        self.bar.is_some()
    }

    /// Shows the item `id` at `position` of `length`, with those of `parts` for which the terminal is wide enough.
    pub fn show_item(&mut self, id: usize, position: u64, length: u64, parts: &[LinePart]) {
        let (Some(total), Some(ItemBars { multi, bars })) = (&self.bar, &mut self.items) else { return };
        let new_bar = || multi.insert_before(total, hidden_bar(length, "cyan"));
        update(bars.entry(id).or_insert_with(new_bar), position, length, parts);
    }

    /// Removes the bar of the item `id`.
    pub fn remove_item(&mut self, id: usize) {
        if let Some(bar) = self.items.as_mut().and_then(|items| items.bars.remove(&id)) {
            bar.finish_and_clear();
        }
    }

    /// Shows the total at `position` of `length`, with those of `parts` for which the terminal is wide enough.
    pub fn show_total(&self, position: u64, length: u64, parts: &[LinePart]) {
        if let Some(total) = &self.bar {
            update(total, position, length, parts);
        }
    }
}

/// A bar of the colour `colour`, which becomes visible when a `MultiProgress` takes it.
fn hidden_bar(length: u64, colour: &str) -> ProgressBar {
    let template = format!("{{bar:{BAR_WIDTH}.{colour}}} {{wide_msg}}");
    progress_bar(Some(length), &template, ProgressDrawTarget::hidden())
}

fn update(bar: &ProgressBar, position: u64, length: u64, parts: &[LinePart]) {
    bar.set_length(length);
    bar.set_position(position);
    set_message(bar, &fit_line(parts, width_beside_bar()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_gets_bars() {
        for mode in [OutputMode::Plain, OutputMode::Quiet, OutputMode::Json { quiet: true }] {
            let mut screen = Screen::new(mode);
            screen.start_items();
            screen.show_item(1, 2, 3, &[]);
            screen.show_total(1, 2, &[]);
            assert!(!screen.is_live());
        }
    }
}
