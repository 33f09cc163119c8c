//! For tests: a server on loopback, which records requests and can cut an answer short.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// The connection ends after so many bytes of the body.
    pub(super) cut: Option<usize>,
    /// In chunks, without a length.
    pub(super) chunked: bool,
    /// Until the connection ends.
    pub(super) endless: bool,
}

impl Reply {
    pub(super) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// The reply of a broken server to a request for this content.
pub(super) type Broken = fn(&Asked, &[u8]) -> Reply;
pub(super) type Answering = dyn Fn(&Asked, usize) -> Reply + Send + Sync;

/// A server, and what it was asked.
pub(super) struct Server {
    pub(super) address: String,
    pub(super) asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// `answer` also gets the number of earlier calls.
    pub(super) fn start(answer: Arc<Answering>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, log) = (answer.clone(), log.clone());
                thread::spawn(move || serve(stream, &*answer, &log));
            }
        });
        Self { address, asked }
    }

    pub(super) fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, answer: &Answering, log: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let asked = Asked { method, path, headers };
    let before = {
        let mut log = log.lock().unwrap();
        log.push(asked.clone());
        log.len() - 1
    };
    let reply = answer(&asked, before);
    let length = if reply.chunked {
        "transfer-encoding: chunked\r\n".to_owned()
    } else if reply.endless {
        String::new()
    } else {
        format!("content-length: {}\r\n", reply.body.len())
    };
    let mut head = format!("HTTP/1.1 {} x\r\nconnection: close\r\n{length}", reply.status);
    for (name, value) in &reply.headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    stream.write_all((head + "\r\n").as_bytes()).ok()?;
    if asked.method != "HEAD" {
        let sent = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
        for chunk in sent.chunks(1000) {
            let framed = if reply.chunked {
                [&format!("{:x}\r\n", chunk.len()).into_bytes(), chunk, b"\r\n"].concat()
            } else {
                chunk.to_vec()
            };
            stream.write_all(&framed).ok()?;
        }
        if reply.chunked && reply.cut.is_none() {
            stream.write_all(b"0\r\n\r\n").ok()?;
        }
    }
    stream.flush().ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    // Until the other side has it: closing at once could take it back.
    let _ = reader.read(&mut [0; 64]);
    Some(())
}

/// `content`, or the part that is asked for.
pub(super) fn ranged(asked: &Asked, content: &[u8]) -> Reply {
    let from =
        asked.headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        None => Reply::new(200, content),
        Some(from) if from >= content.len() => Reply::new(416, ""),
        Some(from) => Reply::new(206, &content[from..])
            .with("content-range", format!("bytes {from}-{}/{}", content.len() - 1, content.len())),
    }
}
