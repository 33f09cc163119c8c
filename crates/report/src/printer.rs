//! The screen on a separate thread. A reader that does not read (`runner apply | less`, a stopped terminal) delays neither the
//! record nor the supervision of ranks.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::{io, panic};

use runner_data::Progress;
use runner_spec::line_part::LinePart;
use runner_threads::threads;

use crate::data_progress::show_data_progress;
use crate::{JsonEvent, OutputMode, Screen};

/// One piece of output: a call of a method of the screen.
type Call = Box<dyn FnOnce(&mut Screen) + Send>;

/// A [`Screen`] behind a queue of calls, which a thread makes in order. The queue has no limit: a day of lines is a few megabytes.
#[derive(Debug)]
pub struct Printer {
    to: Sender<Call>,
    thread: JoinHandle<Screen>,
    mode: OutputMode,
}

impl Printer {
    /// A printer with an empty screen.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn new(mode: OutputMode) -> io::Result<Self> {
        let (to, calls) = channel::<Call>();
        let mut screen = Screen::new(mode);
        let work = move || {
            for call in calls {
                call(&mut screen);
            }
            screen
        };
        Ok(Self { to, thread: threads::spawn("screen", work)?, mode })
    }

    pub fn mode(&self) -> OutputMode {
        self.mode
    }

    /// Writes an event for programs; nothing unless they asked.
    pub fn json(&self, event: &JsonEvent<'_>) {
        if matches!(self.mode, OutputMode::Json { .. }) {
            self.show(Screen::json_line, event.to_json());
        }
    }

    /// Gives `text` to `method`, such as [`Screen::line`].
    pub fn show(&self, method: fn(&Screen, &str), text: impl Into<String>) {
        let text = text.into();
        self.push(move |screen| method(screen, &text));
    }

    /// Shows the progress of data preparation, beside a spinner.
    pub fn preparing(&self, progress: Progress) {
        self.push(move |screen| {
            screen.spinner();
            show_data_progress(screen, progress);
        });
    }

    /// Starts a progress bar after `step` of `steps`.
    pub fn start_bar(&self, step: u64, steps: u64) {
        self.push(move |screen| screen.start_bar(step, steps));
    }

    /// Moves the bar, if there is one.
    pub fn step(&self, step: u64, numbers: impl FnOnce() -> Vec<LinePart>) {
        if self.mode == OutputMode::Bar {
            let numbers = numbers();
            self.push(move |screen| screen.step(step, &numbers));
        }
    }

    /// Removes the bar or spinner.
    pub fn clear(&self) {
        self.push(Screen::clear);
    }

    fn push(&self, call: impl FnOnce(&mut Screen) + Send + 'static) {
        // A thread that panicked receives nothing more; `finish` passes its panic on.
        let _ = self.to.send(Box::new(call));
    }

    /// The screen, once everything is written, which may need a reader.
    pub fn finish(self) -> Screen {
        drop(self.to);
        self.thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_writer_does_not_wait_for_its_reader() {
        let (read, gate) = channel::<()>();
        let printer = Printer::new(OutputMode::Quiet).unwrap();
        printer.push(move |_| _ = gate.recv());
        let (shown, all) = channel();
        // The first call does not end: this would not either if the writer waited.
        (0..1000).for_each(|i| {
            let shown = shown.clone();
            printer.push(move |_| _ = shown.send(i));
        });
        drop((read, shown));
        printer.finish();
        assert_eq!(all.iter().collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>(), "in order");
    }
}
