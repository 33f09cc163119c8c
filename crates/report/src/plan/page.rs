//! The layout of a plan's text.

use std::fmt::Display;

/// Width of the label column.
const LABEL_WIDTH: usize = 14;

/// Lines of a label column and a text column.
#[derive(Default)]
pub(super) struct Page {
    pub(super) text: String,
}

impl Page {
    pub(super) fn line(&mut self, label: &str, text: impl Display) {
        self.raw(format!("{label:<LABEL_WIDTH$}{text}").trim_end());
    }

    /// Adds another line under the same label.
    pub(super) fn more(&mut self, text: impl Display) {
        self.line("", text);
    }

    /// Adds a line without columns.
    pub(super) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    pub(super) fn blank(&mut self) {
        self.text.push('\n');
    }
}
