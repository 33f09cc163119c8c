//! Accepts connections, and passes on those of ranks that prove that they know the token.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::handshake::{Handshake, HandshakeError, Introduction, MAX_INTRODUCTION_BYTES, RankToken};
use runner_threads::threads;

/// The number of connections whose handshake may be awaited at once, besides those of the ranks.
const MAX_PENDING_HANDSHAKES: usize = 64;

/// The time between two checks for new connections.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(5);

/// A rank that connected and proved that it knows the token, or where a connection that was refused came from, and why.
pub(super) type Arrival = Result<(Introduction, Handshake), String>;

/// A thread that accepts connections until this is dropped. Handshakes are received concurrently.
pub(super) struct HandshakeListener {
    pub(super) arrived: Receiver<Arrival>,
    is_closed: Arc<AtomicBool>,
}

impl HandshakeListener {
    /// Listens as the rank `own`. A handshake may take as long as `timeout`.
    pub(super) fn open(
        listener: TcpListener,
        token: RankToken,
        own: Introduction,
        timeout: Duration,
    ) -> io::Result<Self> {
        let (sender, arrived) = channel();
        let is_closed = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&is_closed);
        listener.set_nonblocking(true)?;
        let max_pending = own.world_size.saturating_add(MAX_PENDING_HANDSHAKES);
        // Each connection whose handshake is awaited holds a clone, which is dropped however the wait ends.
        let own = Arc::new(own);
        let accept = move || {
            while !has_ended.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((stream, from)) if Arc::strong_count(&own) <= max_pending => {
                        let (refused, sender, own) = (sender.clone(), sender.clone(), Arc::clone(&own));
                        let describe = move |why: HandshakeError| format!("from {}: {why}", from.ip());
                        let receive = move || {
                            let _ = sender.send(receive_rank(stream, token, &own, timeout).map_err(describe));
                        };
                        if let Err(error) = threads::spawn("handshake", receive) {
                            let _ = refused.send(Err(describe(error.into())));
                        }
                    }
                    Ok(_) => {}
                    Err(_) => thread::sleep(ACCEPT_INTERVAL),
                }
            }
        };
        threads::spawn("listener", accept)?;
        Ok(Self { arrived, is_closed })
    }
}

impl Drop for HandshakeListener {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }
}

fn receive_rank(
    stream: TcpStream,
    token: RankToken,
    own: &Introduction,
    timeout: Duration,
) -> Result<(Introduction, Handshake), HandshakeError> {
    stream.set_nonblocking(false)?;
    let mut handshake = Handshake::accept(stream, token, timeout)?;
    let theirs = handshake.receive(MAX_INTRODUCTION_BYTES, timeout)?;
    // Only a rank that has proved itself receives a proof.
    handshake.send(own)?;
    Ok((theirs, handshake))
}
