//! The queue of frames for one peer. Operations fill it, and a thread of the mesh writes its frames to the connection.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::frame::{Frame, FrameTag};
use crate::waiting::MAX_SLEEP;

/// The number of bytes that may be queued for one peer before senders wait. Heartbeats and control messages do not wait.
const MAX_QUEUED_BYTES_PER_PEER: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct SendQueue {
    state: Mutex<QueuedFrames>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueuedFrames {
    frames: VecDeque<Frame>,
    bytes: usize,
    is_closed: bool,
    /// True while the thread that writes frames has one.
    is_writing: bool,
}

impl QueuedFrames {
    fn take(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.bytes.len();
        Some(frame)
    }
}

impl SendQueue {
    /// Queues a frame without waiting for space.
    pub(super) fn push(&self, tag: FrameTag, bytes: Vec<u8>) {
        let mut queue = self.state.lock();
        if !queue.is_closed {
            queue.bytes += bytes.len();
            queue.frames.push_back(Frame::new(tag, bytes));
            self.changed.notify_all();
        }
    }

    /// Waits for the next frame; `None` if the queue is closed and empty. The frame before counts as written.
    pub(super) fn next(&self) -> Option<Frame> {
        let mut queue = self.state.lock();
        queue.is_writing = false;
        self.changed.notify_all();
        loop {
            if let Some(frame) = queue.take() {
                queue.is_writing = true;
                self.changed.notify_all();
                return Some(frame);
            }
            if queue.is_closed {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }

    /// Closes the queue. The frames in it are still sent.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Closes the queue with the frames `last` in place of those in it.
    pub(super) fn close_with(&self, last: impl IntoIterator<Item = (FrameTag, Vec<u8>)>) {
        let mut queue = self.state.lock();
        queue.frames = last.into_iter().map(|(tag, bytes)| Frame::new(tag, bytes)).collect();
        queue.bytes = queue.frames.iter().map(|frame| frame.bytes.len()).sum();
        queue.is_closed = true;
        self.changed.notify_all();
    }

    /// Empties and closes the queue of a connection that takes no more frames.
    pub(super) fn give_up(&self) {
        *self.state.lock() = QueuedFrames { is_closed: true, ..QueuedFrames::default() };
        self.changed.notify_all();
    }

    /// Waits until the frames in the queue are written, or until `deadline`.
    pub(super) fn wait_until_written(&self, deadline: Instant) {
        let is_pending = |queue: &mut QueuedFrames| queue.is_writing || !queue.frames.is_empty();
        self.changed.wait_while_until(&mut self.state.lock(), is_pending, deadline);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().frames.is_empty()
    }

    /// Waits a moment for space in the queue, and returns true if there is some.
    pub(super) fn wait_for_space(&self) -> bool {
        let mut queue = self.state.lock();
        let is_full = |queue: &mut QueuedFrames| queue.bytes > MAX_QUEUED_BYTES_PER_PEER && !queue.is_closed;
        self.changed.wait_while_for(&mut queue, is_full, MAX_SLEEP);
        !is_full(&mut queue)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_frame_is_awaited_until_it_is_written() {
        let queue = SendQueue::default();
        let is_written = |queue: &SendQueue, within: Duration| {
            let deadline = Instant::now() + within;
            queue.wait_until_written(deadline);
            Instant::now() < deadline
        };
        let [short, long] = [Duration::from_millis(20), Duration::from_mins(1)];
        assert!(is_written(&queue, long), "nothing was queued");
        queue.push(FrameTag::Control, vec![1]);
        assert!(!is_written(&queue, short), "nobody writes");
        assert!(queue.next().is_some());
        assert!(!is_written(&queue, short), "the writer has the frame");
        thread::scope(|scope| {
            scope.spawn(|| assert!(queue.next().is_none()));
            assert!(is_written(&queue, long), "the writer asks for the next");
            queue.close();
        });
        let queue = SendQueue::default();
        queue.push(FrameTag::Control, vec![1]);
        queue.give_up();
        assert!(is_written(&queue, long), "the frame is given up");
        assert!(queue.next().is_none());
    }
}
