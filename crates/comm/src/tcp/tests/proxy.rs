//! A TCP proxy between two ranks. It damages the bytes of one direction once, at one place. Tests of other crates include this
//! file, too.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The damage that a connection takes at a byte.
#[derive(Debug, Clone, Copy)]
pub(super) enum Damage {
    /// This bit of the byte is changed.
    FlipBit(u32),
    /// So many bytes are lost.
    Drop(u64),
    /// So many bytes are sent twice, or fewer if fewer have arrived.
    Repeat(usize),
    /// Nothing passes for this long.
    Delay(Duration),
    /// The connection is closed.
    Cut,
}

/// A direction of the connections through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToTarget,
    FromTarget,
}

/// A damage, and where it happens. Bytes count from 0 in each direction, over all connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) direction: Direction,
    pub(super) at: u64,
    pub(super) damage: Damage,
}

/// A proxy, which accepts connections until it is dropped.
pub(super) struct Proxy {
    pub(super) port: u16,
    passed: Arc<[AtomicU64; 2]>,
    is_closed: Arc<AtomicBool>,
}

impl Proxy {
    /// A proxy for the listener at `target`, a port of this machine. Nobody needs to listen there yet.
    pub(super) fn start(target: u16, fault: Option<Fault>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = Self { port, passed: Arc::default(), is_closed: Arc::default() };
        let (passed, is_closed) = (Arc::clone(&proxy.passed), Arc::clone(&proxy.is_closed));
        thread::spawn(move || {
            while !is_closed.load(Ordering::SeqCst) {
                let Ok((client, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(2));
                    continue;
                };
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else { continue };
                client.set_nonblocking(false).unwrap();
                for direction in [Direction::ToTarget, Direction::FromTarget] {
                    let (client, server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                    let (from, to) = if direction == Direction::ToTarget { (client, server) } else { (server, client) };
                    let fault = fault.filter(|fault| fault.direction == direction);
                    let passed = Arc::clone(&passed);
                    thread::spawn(move || forward(&from, &to, fault, &passed[direction as usize]));
                }
            }
        });
        proxy
    }

    /// The number of bytes that have arrived in a direction.
    pub(super) fn passed(&self, direction: Direction) -> u64 {
        self.passed[direction as usize].load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }
}

/// Forwards bytes until one side closes its connection.
fn forward(mut from: &TcpStream, mut to: &TcpStream, fault: Option<Fault>, passed: &AtomicU64) {
    let _ = to.set_nodelay(true);
    let mut buffer = vec![0; 16 << 10];
    let mut lost = 0;
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer) else {
            let _ = to.shutdown(Shutdown::Write);
            return;
        };
        let start = passed.fetch_add(count as u64, Ordering::SeqCst);
        let mut bytes = buffer[..count].to_vec();
        if let Some(Fault { at, damage, .. }) = fault.filter(|fault| (start..start + count as u64).contains(&fault.at))
        {
            let at = (at - start) as usize;
            match damage {
                Damage::FlipBit(bit) => bytes[at] ^= 1 << bit,
                Damage::Drop(count) => {
                    let end = bytes.len().min(at.saturating_add(count as usize));
                    lost = count - bytes.drain(at..end).count() as u64;
                }
                Damage::Repeat(count) => {
                    let end = bytes.len().min(at + count);
                    let repeated = bytes[at..end].to_vec();
                    bytes.splice(end..end, repeated);
                }
                Damage::Delay(duration) => thread::sleep(duration),
                Damage::Cut => {
                    let _ = to.write_all(&bytes[..at]);
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                    return;
                }
            }
        } else if lost > 0 {
            let gone = bytes.len().min(lost as usize);
            bytes.drain(..gone);
            lost -= gone as u64;
        }
        if to.write_all(&bytes).is_err() {
            let _ = from.shutdown(Shutdown::Read);
            return;
        }
    }
}
