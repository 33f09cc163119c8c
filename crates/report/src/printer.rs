//! The screen on a separate thread. A reader that does not read (`runner apply | less`, a stopped terminal) delays neither the
//! record nor the supervision of ranks.

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::{io, panic};

use runner_data::Progress;
use runner_spec::line_part::LinePart;
use runner_threads::threads;

use crate::data_progress::show_data_progress;
use crate::{JsonEvent, OutputMode, Screen};

/// The number of lines that wait for the reader before further ones are left out: hours of most runs.
const MAX_QUEUED_LINES: usize = 1 << 16;

/// One piece of output: a call of a method of the screen `T`.
type Call<T> = Box<dyn FnOnce(&mut T) + Send>;

/// Calls for a `T` on a separate thread, which makes them in order.
#[derive(Debug)]
struct Queue<T> {
    to: SyncSender<Call<T>>,
    thread: JoinHandle<T>,
    /// Lines left out since the last one that was not.
    lost: u64,
}

impl<T: Send + 'static> Queue<T> {
    /// A queue for `screen`, in which at most `capacity` calls wait.
    ///
    /// # Errors
    /// If there is no thread.
    fn new(mut screen: T, capacity: usize) -> io::Result<Self> {
        let (to, calls) = sync_channel::<Call<T>>(capacity);
        let work = move || {
            for call in calls {
                call(&mut screen);
            }
            screen
        };
        let thread = threads::spawn("screen", work)?;
        Ok(Self { to, thread, lost: 0 })
    }

    /// Queues `call`, or leaves it out if the queue is full. `lost_note` reports how many lines were left out; `counts` is false if a
    /// later call shows all that this one shows.
    fn try_push(&mut self, call: Call<T>, counts: bool, lost_note: impl Fn(u64) -> Call<T>) {
        if self.lost > 0 && self.to.try_send(lost_note(self.lost)).is_ok() {
            self.lost = 0;
        }
        if self.lost > 0 || matches!(self.to.try_send(call), Err(TrySendError::Full(_))) {
            self.lost += u64::from(counts);
        }
    }

    /// Waits until everything is written, which may need a reader.
    fn finish(self, lost_note: impl Fn(u64) -> Call<T>) -> T {
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
    /// A printer with an empty screen.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn new(mode: OutputMode) -> io::Result<Self> {
        Ok(Self { queue: Queue::new(Screen::new(mode), MAX_QUEUED_LINES)?, mode })
    }

    pub fn mode(&self) -> OutputMode {
        self.mode
    }

    /// Writes an event for programs; nothing unless they asked.
    pub fn json(&mut self, event: &JsonEvent<'_>) {
        if matches!(self.mode, OutputMode::Json { .. }) {
            self.show(Screen::json_line, event.to_json());
        }
    }

    /// Gives `text` to `method`, such as [`Screen::line`].
    pub fn show(&mut self, method: fn(&Screen, &str), text: impl Into<String>) {
        let text = text.into();
        self.push(move |screen| method(screen, &text));
    }

    /// Shows the progress of data preparation, beside a spinner.
    pub fn preparing(&mut self, progress: Progress) {
        self.push(move |screen| {
            screen.spinner();
            show_data_progress(screen, progress);
        });
    }

    /// Starts a progress bar after `step` of `steps`.
    pub fn start_bar(&mut self, step: u64, steps: u64) {
        self.push(move |screen| screen.start_bar(step, steps));
    }

    /// Moves the bar, if there is one.
    pub fn step(&mut self, step: u64, numbers: impl FnOnce() -> Vec<LinePart>) {
        if self.mode == OutputMode::Bar {
            let numbers = numbers();
            let call = Box::new(move |screen: &mut Screen| screen.step(step, &numbers));
            self.queue.try_push(call, false, lost_note(self.mode));
        }
    }

    /// Removes the bar or spinner.
    pub fn clear(&mut self) {
        self.push(Screen::clear);
    }

    fn push(&mut self, call: impl FnOnce(&mut Screen) + Send + 'static) {
        self.queue.try_push(Box::new(call), true, lost_note(self.mode));
    }

    /// The screen, once everything is written, which may need a reader.
    pub fn finish(self) -> Screen {
        self.queue.finish(lost_note(self.mode))
    }
}

/// Makes the call that reports how many lines were left out.
fn lost_note(mode: OutputMode) -> impl Fn(u64) -> Call<Screen> {
    move |lost| {
        let message = format!(
            "dropped {lost} lines because the output was not being read; the run directory has \
            all of them"
        );
        Box::new(move |screen| match mode {
            OutputMode::Json { .. } => screen.json(&JsonEvent::Warning { message: &message }),
            _ => screen.warn(&message),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    type Shown = Vec<String>;

    fn line(text: u64) -> Call<Shown> {
        Box::new(move |shown: &mut Shown| shown.push(text.to_string()))
    }

    fn lost(count: u64) -> Call<Shown> {
        Box::new(move |shown: &mut Shown| shown.push(format!("lost {count}")))
    }

    #[test]
    fn a_writer_does_not_wait_for_its_reader() {
        let ((taken, first), (read, gate)) = (channel(), channel::<()>());
        let mut queue = Queue::new(Shown::new(), 4).unwrap();
        let wait = move |shown: &mut Shown| {
            let _ = (taken.send(()), gate.recv());
            shown.push("0".to_owned());
        };
        queue.try_push(Box::new(wait), true, lost);
        first.recv().unwrap();
        // The reader does not read: this would not end if the writer waited.
        (1..100).for_each(|i| queue.try_push(line(i), true, lost));
        drop(read);
        let shown = queue.finish(lost);
        assert_eq!(shown, ["0", "1", "2", "3", "4", "lost 95"], "in order, and the missing lines are reported");
    }

    #[test]
    fn nothing_is_lost_while_the_reader_reads() {
        let mut queue = Queue::new(Shown::new(), 1000).unwrap();
        (0..1000).for_each(|i| queue.try_push(line(i), true, lost));
        assert_eq!(queue.finish(lost).len(), 1000);
    }
}
