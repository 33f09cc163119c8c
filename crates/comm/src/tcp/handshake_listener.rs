//! Accepts connections, and passes on those whose handshake holds the token. Other connections get no answer.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::handshake::{HANDSHAKE_BYTES, Handshake, MAGIC};

/// How long a connection may take to say who it is.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that may be about to say who they are, besides the ranks.
const MAX_PENDING_HANDSHAKES: usize = 64;

/// Lets in who knows the token. Each connection has a moment to show it, beside the others.
pub(super) struct HandshakeListener {
    pub(super) arrived: Receiver<(Handshake, TcpStream)>,
    closed: Arc<AtomicBool>,
    at: Option<SocketAddr>,
}

impl HandshakeListener {
    pub(super) fn open(listener: TcpListener, token: [u8; 32], world_size: usize) -> io::Result<Self> {
        let (say, arrived) = channel();
        let closed = Arc::new(AtomicBool::new(false));
        let (seen, waiting) = (Arc::clone(&closed), Arc::new(AtomicUsize::new(0)));
        let at = listener.local_addr().ok();
        listener.set_nonblocking(true)?;
        let work = move || {
            while !seen.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((stream, _)) if waiting.load(Ordering::SeqCst) < world_size + MAX_PENDING_HANDSHAKES => {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        let (say, waiting) = (say.clone(), Arc::clone(&waiting));
                        let ask = move || {
                            let _ = let_in(stream, token, &say);
                            waiting.fetch_sub(1, Ordering::SeqCst);
                        };
                        let _ = thread::Builder::new().name("handshake".to_owned()).spawn(ask);
                    }
                    Ok(_) => {}
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        };
        thread::Builder::new().name("listener".to_owned()).spawn(work)?;
        Ok(Self { arrived, closed, at })
    }
}

impl Drop for HandshakeListener {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
    }
}

impl fmt::Debug for HandshakeListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandshakeListener").field("at", &self.at).finish_non_exhaustive()
    }
}

fn let_in(stream: TcpStream, token: [u8; 32], say: &Sender<(Handshake, TcpStream)>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let (mut reading, mut writing) = (&stream, &stream);
    let mut bytes = [0; HANDSHAKE_BYTES];
    reading.read_exact(&mut bytes)?;
    // Who does not know the token is not told that there is one.
    let Some(handshake) = Handshake::decode(&bytes).filter(|handshake| handshake.token == token) else { return Ok(()) };
    writing.write_all(&MAGIC)?;
    let _ = say.send((handshake, stream));
    Ok(())
}
