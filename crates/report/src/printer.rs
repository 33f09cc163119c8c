//! The screen on a thread of its own: a reader that stands still (`runner apply | less`, a stopped terminal) holds up neither
//! the record nor those who watch the ranks.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::{io, panic};

use runner_data::Progress;

use crate::data_progress::show_data_progress;
use crate::{JsonEvent, OutputMode, Screen};

/// Lines that wait for the reader before further ones are left out: hours of most runs.
const MAX_QUEUED_LINES: usize = 1 << 16;

/// What the screen is told.
#[derive(Debug, Clone, PartialEq)]
enum ScreenLine {
    Json(String),
    Line(String),
    Warning(String),
    /// A line that even a quiet command prints.
    Last(String),
    Preparing(Progress),
    /// The progress bar begins at a step, of so many.
    StartBar(u64, u64),
    /// The progress bar's step and numbers.
    Step(u64, String),
    ClearBar,
}

/// Lines for a `T` on a thread of its own, which writes them in order.
#[derive(Debug)]
struct Queue<T> {
    to: SyncSender<ScreenLine>,
    thread: JoinHandle<T>,
    /// Lines left out since the last one that was not.
    lost: u64,
}

impl<T: Send + 'static> Queue<T> {
    /// `show` writes one line to `screen`; at most `capacity` lines wait.
    ///
    /// # Errors
    /// If there is no thread.
    fn new(
        mut screen: T,
        capacity: usize,
        mut show: impl FnMut(&mut T, ScreenLine) + Send + 'static,
    ) -> io::Result<Self> {
        let (to, lines): (SyncSender<ScreenLine>, Receiver<ScreenLine>) = sync_channel(capacity);
        let work = move || {
            for line in lines {
                show(&mut screen, line);
            }
            screen
        };
        let thread = thread::Builder::new().name("screen".to_owned()).spawn(work)?;
        Ok(Self { to, thread, lost: 0 })
    }

    /// Queues `line`, or leaves it out if the queue is full; `lost_note` says how many were left out.
    fn try_push(&mut self, line: ScreenLine, lost_note: impl Fn(u64) -> ScreenLine) {
        if self.lost > 0 && self.to.try_send(lost_note(self.lost)).is_ok() {
            self.lost = 0;
        }
        // The bar's next step says everything that this one does.
        let counts = !matches!(line, ScreenLine::Step(..));
        if self.lost > 0 || matches!(self.to.try_send(line), Err(TrySendError::Full(_))) {
            self.lost += u64::from(counts);
        }
    }

    /// Waits until everything is written, which may need a reader.
    fn finish(self, lost_note: impl Fn(u64) -> ScreenLine) -> T {
        let Self { to, thread, lost } = self;
        if lost > 0 {
            // The thread ends only when this sender does, so it still receives.
            let _ = to.send(lost_note(lost));
        }
        drop(to);
        thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause))
    }
}

/// A [`Screen`] behind a queue.
#[derive(Debug)]
pub struct Printer {
    queue: Queue<Screen>,
    mode: OutputMode,
}

impl Printer {
    /// # Errors
    /// If there is no thread.
    pub fn new(mode: OutputMode) -> io::Result<Self> {
        let mut has_spinner = false;
        let show = move |screen: &mut Screen, line: ScreenLine| match line {
            ScreenLine::Json(line) => screen.json_line(&line),
            ScreenLine::Line(text) => screen.line(&text),
            ScreenLine::Warning(text) => screen.warn(&text),
            ScreenLine::Last(text) => screen.result_line(&text),
            ScreenLine::Preparing(progress) => {
                if !std::mem::replace(&mut has_spinner, true) {
                    screen.spinner();
                }
                show_data_progress(screen, progress);
            }
            ScreenLine::StartBar(step, steps) => screen.start_bar(step, steps),
            ScreenLine::Step(step, numbers) => screen.step(step, || numbers),
            ScreenLine::ClearBar => {
                has_spinner = false;
                screen.clear();
            }
        };
        Ok(Self { queue: Queue::new(Screen::new(mode), MAX_QUEUED_LINES, show)?, mode })
    }

    #[must_use]
    pub fn mode(&self) -> OutputMode {
        self.mode
    }

    /// An event for programs; nothing unless they asked.
    pub fn json(&mut self, event: &JsonEvent<'_>) {
        if matches!(self.mode, OutputMode::Json { .. }) {
            self.push(ScreenLine::Json(event.to_json()));
        }
    }

    /// An event for programs that is JSON already.
    pub fn json_line(&mut self, line: String) {
        self.push(ScreenLine::Json(line));
    }

    pub fn line(&mut self, text: &str) {
        self.push(ScreenLine::Line(text.to_owned()));
    }

    pub fn warn(&mut self, text: &str) {
        self.push(ScreenLine::Warning(text.to_owned()));
    }

    /// A line that even a quiet command prints.
    pub fn result_line(&mut self, text: &str) {
        self.push(ScreenLine::Last(text.to_owned()));
    }

    /// Shows how far the preparation of data is.
    pub fn preparing(&mut self, progress: Progress) {
        self.push(ScreenLine::Preparing(progress));
    }

    /// Starts a progress bar after `step` of `steps`.
    pub fn start_bar(&mut self, step: u64, steps: u64) {
        self.push(ScreenLine::StartBar(step, steps));
    }

    /// Moves the bar, if there is one.
    pub fn step(&mut self, step: u64, numbers: impl FnOnce() -> String) {
        if self.mode == OutputMode::Bar {
            self.push(ScreenLine::Step(step, numbers()));
        }
    }

    /// Removes the bar or spinner.
    pub fn clear(&mut self) {
        self.push(ScreenLine::ClearBar);
    }

    fn push(&mut self, line: ScreenLine) {
        self.queue.try_push(line, lost_note(self.mode));
    }

    /// The screen, once everything is written, which may need a reader.
    #[must_use]
    pub fn finish(self) -> Screen {
        self.queue.finish(lost_note(self.mode))
    }
}

/// What is said of lines that were left out.
fn lost_note(mode: OutputMode) -> impl Fn(u64) -> ScreenLine {
    move |lost| {
        let message = format!("{lost} lines were left out here, as nobody read them; the run directory has them all");
        match mode {
            OutputMode::Json { .. } => ScreenLine::Json(JsonEvent::Warning { message: &message }.to_json()),
            _ => ScreenLine::Warning(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_writer_does_not_wait_for_its_reader() {
        let ((taken, first), (read, gate)) = (channel(), channel::<()>());
        let line = |i: u64| ScreenLine::Line(i.to_string());
        let lost = |n: u64| ScreenLine::Warning(n.to_string());
        let show = move |shown: &mut Vec<ScreenLine>, line: ScreenLine| {
            let _ = (taken.send(()), gate.recv());
            shown.push(line);
        };
        let mut queue = Queue::new(Vec::new(), 4, show).unwrap();
        queue.try_push(line(0), lost);
        first.recv().unwrap();
        // The reader stands still: this would not end if the writer waited.
        (1..100).for_each(|i| queue.try_push(line(i), lost));
        drop(read);
        let shown = queue.finish(lost);
        let expected: Vec<ScreenLine> = (0..5).map(line).chain([lost(95)]).collect();
        assert_eq!(shown, expected, "in order, and what is missing is told");
    }

    #[test]
    fn nothing_is_lost_while_the_reader_reads() {
        let show = |shown: &mut Vec<ScreenLine>, line: ScreenLine| shown.push(line);
        let mut queue = Queue::new(Vec::new(), 1000, show).unwrap();
        (0..1000).for_each(|i| queue.try_push(ScreenLine::Line(i.to_string()), |_| ScreenLine::Warning(String::new())));
        assert_eq!(queue.finish(|_| ScreenLine::Warning(String::new())).len(), 1000);
    }
}
