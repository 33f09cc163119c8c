//! The screen on a thread of its own: a reader that stands still (`runner apply | less`, a stopped terminal) holds up neither
//! the record nor those who watch the ranks.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::{io, panic};

use runner_report::{JsonEvent, OutputMode, Screen};

/// Lines that wait to be read before further ones are left out: hours of most runs.
const UNREAD: usize = 1 << 16;

/// What goes to the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Say {
    Json(String),
    Line(String),
    Warn(String),
    /// The progress bar's step and numbers.
    Step(u64, String),
}

/// Writes to `T` what it is given, in that order; never waits for it.
#[derive(Debug)]
pub(super) struct Queue<T> {
    to: SyncSender<Say>,
    thread: JoinHandle<T>,
    /// Lines left out since the last one that was not.
    lost: u64,
}

impl<T: Send + 'static> Queue<T> {
    /// `show` writes one line to `screen`; `room` is how many may wait.
    ///
    /// # Errors
    /// If there is no thread.
    fn new(mut screen: T, room: usize, show: impl Fn(&mut T, Say) + Send + 'static) -> io::Result<Self> {
        let (to, lines): (SyncSender<Say>, Receiver<Say>) = sync_channel(room);
        let work = move || {
            for line in lines {
                show(&mut screen, line);
            }
            screen
        };
        let thread = thread::Builder::new().name("screen".to_owned()).spawn(work)?;
        Ok(Self { to, thread, lost: 0 })
    }

    fn say(&mut self, line: Say, note: impl Fn(u64) -> Say) {
        if self.lost > 0 && self.to.try_send(note(self.lost)).is_ok() {
            self.lost = 0;
        }
        // The bar's next step says all that this one does.
        let counts = !matches!(line, Say::Step(..));
        if self.lost > 0 || matches!(self.to.try_send(line), Err(TrySendError::Full(_))) {
            self.lost += u64::from(counts);
        }
    }

    /// Waits until all is written, which may need a reader.
    fn finish(self, note: impl Fn(u64) -> Say) -> T {
        let Self { to, thread, lost } = self;
        if lost > 0 {
            let _ = to.send(note(lost));
        }
        drop(to);
        thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause))
    }
}

/// A `Screen` behind a queue.
#[derive(Debug)]
pub(super) struct Printer {
    queue: Queue<Screen>,
    mode: OutputMode,
}

impl Printer {
    /// # Errors
    /// If there is no thread.
    pub(super) fn new(screen: Screen) -> io::Result<Self> {
        let mode = screen.mode();
        let show = |screen: &mut Screen, say: Say| match say {
            Say::Json(line) => screen.json_line(&line),
            Say::Line(text) => screen.line(&text),
            Say::Warn(text) => screen.warn(&text),
            Say::Step(step, numbers) => screen.step(step, || numbers),
        };
        Ok(Self { queue: Queue::new(screen, UNREAD, show)?, mode })
    }

    pub(super) fn mode(&self) -> OutputMode {
        self.mode
    }

    pub(super) fn json(&mut self, event: &JsonEvent<'_>) {
        if let (OutputMode::Json { .. }, Ok(line)) = (self.mode, serde_json::to_string(event)) {
            self.say(Say::Json(line));
        }
    }

    pub(super) fn line(&mut self, text: &str) {
        self.say(Say::Line(text.to_owned()));
    }

    pub(super) fn warn(&mut self, text: &str) {
        self.say(Say::Warn(text.to_owned()));
    }

    /// Moves the bar, if there is one.
    pub(super) fn step(&mut self, step: u64, numbers: impl FnOnce() -> String) {
        if self.mode == OutputMode::Bar {
            self.say(Say::Step(step, numbers()));
        }
    }

    fn say(&mut self, line: Say) {
        self.queue.say(line, note(self.mode));
    }

    /// The screen, once all is written, which may need a reader.
    pub(super) fn finish(self) -> Screen {
        self.queue.finish(note(self.mode))
    }
}

/// What is said of lines that were left out.
fn note(mode: OutputMode) -> impl Fn(u64) -> Say {
    move |lost| {
        let message = format!("{lost} lines were left out here, as nobody read them; the run directory has them all");
        match mode {
            OutputMode::Json { .. } => {
                Say::Json(serde_json::to_string(&JsonEvent::Warning { message: &message }).unwrap_or_default())
            }
            _ => Say::Warn(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_speaks_does_not_wait_for_who_reads() {
        let ((taken, first), (read, gate)) = (channel(), channel::<()>());
        let line = |i: u64| Say::Line(i.to_string());
        let lost = |n: u64| Say::Warn(n.to_string());
        let show = move |shown: &mut Vec<Say>, say: Say| {
            let _ = (taken.send(()), gate.recv());
            shown.push(say);
        };
        let mut queue = Queue::new(Vec::new(), 4, show).unwrap();
        queue.say(line(0), lost);
        first.recv().unwrap();
        // With that one nobody goes on: this would not come to its end if it waited.
        (1..100).for_each(|i| queue.say(line(i), lost));
        drop(read);
        let shown = queue.finish(lost);
        let expected: Vec<Say> = (0..5).map(line).chain([lost(95)]).collect();
        assert_eq!(shown, expected, "in order, and what is missing is told");
    }

    #[test]
    fn nothing_is_lost_on_a_reader_who_reads() {
        let show = |shown: &mut Vec<Say>, say: Say| shown.push(say);
        let mut queue = Queue::new(Vec::new(), 1000, show).unwrap();
        (0..1000).for_each(|i| queue.say(Say::Line(i.to_string()), |_| Say::Warn(String::new())));
        assert_eq!(queue.finish(|_| Say::Warn(String::new())).len(), 1000);
    }
}
