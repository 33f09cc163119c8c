//! A server on the loopback interface that gives the answers of a function.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

/// One request: its method and path, and its body if that is JSON.
type SeenRequest = (String, Value);

/// A server that records its requests.
pub(crate) struct TestServer {
    pub(crate) uri: String,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
}

impl TestServer {
    /// `answer` gets the method and the path of a request and returns the status and the body.
    pub(crate) fn start(mut answer: impl FnMut(&str) -> (u16, String) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<SeenRequest>>> = Arc::default();
        let requests = seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut first, mut length) = (String::new(), 0);
                reader.read_line(&mut first).unwrap();
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    let line = line.trim().to_lowercase();
                    if let Some(bytes) = line.strip_prefix("content-length:") {
                        length = bytes.trim().parse().unwrap();
                    }
                    if line.is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let request = first.rsplit_once(' ').unwrap().0.to_owned();
                let (status, answer) = answer(&request);
                requests.lock().unwrap().push((request, serde_json::from_slice(&body).unwrap_or_default()));
                let length = answer.len();
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                // A client may refuse the rest of a long answer.
                let _ = stream.write_all((head + &answer).as_bytes());
            }
        });
        Self { uri, seen }
    }

    /// Method and path of each request.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(request, _)| request.clone()).collect()
    }

    /// The JSON of each request to `path`.
    pub(crate) fn bodies(&self, path: &str) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(request, _)| request.ends_with(path)).map(|(_, body)| body.clone()).collect()
    }
}
