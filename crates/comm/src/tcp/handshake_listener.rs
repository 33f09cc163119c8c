//! Accepts connections, and passes on those whose handshake holds the token. Other connections get no answer.

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::frame::read_message;
use super::handshake::{Handshake, MAGIC, MAX_HANDSHAKE_BYTES};

/// The time that a connection may take to send its handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of connections whose handshake may be awaited at once, besides those of the ranks.
const MAX_PENDING_HANDSHAKES: usize = 64;

/// The time between two checks for new connections.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(5);

/// A thread that accepts connections until this is dropped. Handshakes are received beside each other.
pub(super) struct HandshakeListener {
    pub(super) arrived: Receiver<(Handshake, TcpStream)>,
    is_closed: Arc<AtomicBool>,
}

impl HandshakeListener {
    pub(super) fn open(listener: TcpListener, token: [u8; 32], world_size: usize) -> io::Result<Self> {
        let (sender, arrived) = channel();
        let is_closed = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&is_closed);
        listener.set_nonblocking(true)?;
        let accept = move || {
            // Each connection whose handshake is awaited holds a clone, which is dropped however the wait ends.
            let pending = Arc::new(());
            while !has_ended.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((stream, _)) if Arc::strong_count(&pending) <= world_size + MAX_PENDING_HANDSHAKES => {
                        let (sender, pending) = (sender.clone(), Arc::clone(&pending));
                        let receive = move || {
                            let _ = receive_handshake(stream, token, &sender);
                            drop(pending);
                        };
                        let _ = thread::Builder::new().name("handshake".to_owned()).spawn(receive);
                    }
                    Ok(_) => {}
                    Err(_) => thread::sleep(ACCEPT_INTERVAL),
                }
            }
        };
        thread::Builder::new().name("listener".to_owned()).spawn(accept)?;
        Ok(Self { arrived, is_closed })
    }
}

impl Drop for HandshakeListener {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }
}

fn receive_handshake(stream: TcpStream, token: [u8; 32], sender: &Sender<(Handshake, TcpStream)>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let (mut reading, mut writing) = (&stream, &stream);
    let handshake: Option<Handshake> = read_message(&mut reading, MAX_HANDSHAKE_BYTES)?;
    // A process that does not know the token is not told that there is one.
    let Some(handshake) = handshake.filter(|handshake| handshake.token == token) else { return Ok(()) };
    writing.write_all(&MAGIC)?;
    let _ = sender.send((handshake, stream));
    Ok(())
}
