//! The frames of operations that MPI carries in place of the connections.

use std::thread::Thread;

use super::frame::{Frame, FrameTag};
use super::send_queue::SendQueue;

/// A queue of frames for each rank, and the thread that sends them.
#[derive(Debug)]
pub(crate) struct DataQueues {
    pub(super) queues: Vec<SendQueue>,
    sender: Thread,
}

impl DataQueues {
    pub(super) fn new(world_size: usize, sender: Thread) -> Self {
        Self { queues: (0..world_size).map(|_| SendQueue::default()).collect(), sender }
    }

    /// Queues a frame without waiting for space.
    pub(super) fn push(&self, to: usize, tag: FrameTag, bytes: Vec<u8>) {
        self.queues[to].push(tag, bytes);
        self.sender.unpark();
    }

    /// Takes the next frame for `to`, if there is one.
    pub(crate) fn take(&self, to: usize) -> Option<Frame> {
        self.queues[to].take()
    }
}
