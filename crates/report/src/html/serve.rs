//! The report of runs in progress, served on loopback only: the page at `/`, and its data at `/data.json`, which the page asks
//! for every two seconds.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request};

use super::data::{PageData, ReportRequest, RunReader};
use super::page::Page;
use runner_spec::error::CommandError;

/// Data that is older than this is read again when it is asked for.
const MAX_DATA_AGE: Duration = Duration::from_secs(1);

/// The limits of one request: the size of its head, and the longest wait for its client.
const MAX_HEAD_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a connection that could not be accepted, for example because too many files are open.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A report that is being served.
#[derive(Debug)]
pub struct LiveReport {
    listener: TcpListener,
    address: SocketAddr,
    source: AnswerSource,
}

/// Makes the answers.
#[derive(Debug)]
struct AnswerSource {
    request: ReportRequest,
    reader: RunReader,
    latest: Option<ReadData>,
}

/// The data that was read last.
#[derive(Debug)]
struct ReadData {
    data: PageData,
    json: Vec<u8>,
    /// The ETag: a hash of everything but the time of reading.
    tag: String,
    read: Instant,
}

/// An answer with the lines of its head that only it has.
#[derive(Debug)]
struct Answer {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
}

impl LiveReport {
    /// Listens on 127.0.0.1; `port` 0 takes a free one.
    ///
    /// # Errors
    /// If the port is taken, or the runs cannot be read.
    pub fn bind(port: u16, request: ReportRequest) -> Result<Self, CommandError> {
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let refused = |error: io::Error| {
            CommandError::request(format!(
                "cannot listen on 127.0.0.1:{port}: {error}; use `--port` to choose a \
                different port"
            ))
        };
        let (listener, address) = listen().map_err(refused)?;
        let mut source = AnswerSource { request, reader: RunReader::default(), latest: None };
        source.refresh()?;
        Ok(Self { listener, address, source })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the process ends, each in a separate thread.
    pub fn serve(self) -> ! {
        let source = Arc::new(Mutex::new(self.source));
        loop {
            let Ok((stream, _)) = self.listener.accept() else {
                thread::sleep(ACCEPT_RETRY_INTERVAL);
                continue;
            };
            let source = Arc::clone(&source);
            // A client may disconnect at any time, and is disconnected if it takes too long or if there is no thread for it.
            let _ = thread::Builder::new().spawn(move || answer_client(&stream, &source));
        }
    }
}

/// Answers one request.
fn answer_client(mut stream: &TcpStream, source: &Mutex<AnswerSource>) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut head = Vec::new();
    let answer = loop {
        let mut piece = [0; 1 << 10];
        let length = stream.read(&mut piece)?;
        head.extend_from_slice(&piece[..length]);
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut request = Request::new(&mut headers);
        match request.parse(&head) {
            Ok(status) if status.is_complete() => {
                break source.lock().unwrap_or_else(PoisonError::into_inner).answer(&request);
            }
            Ok(_) if length > 0 && head.len() < MAX_HEAD_BYTES => {}
            _ => break Answer::text("400 Bad Request", "this is not an HTTP request\n"),
        }
    };
    stream.write_all(&answer.bytes())
}

impl AnswerSource {
    fn answer(&mut self, request: &Request<'_, '_>) -> Answer {
        let header = |name: &str| {
            let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
            str::from_utf8(found.value).ok()
        };
        if !header("host").is_some_and(is_loopback) {
            return Answer::text("403 Forbidden", "this report is served to localhost only\n");
        }
        if request.method != Some("GET") {
            return Answer::text("405 Method Not Allowed", "only GET is allowed\n");
        }
        let answer = match request.path {
            Some("/") => self.page(),
            Some("/data.json") => self.data(header("if-none-match")),
            _ => Ok(Answer::text("404 Not Found", "no such page: the report is at /\n")),
        };
        answer.unwrap_or_else(|error| Answer::text("500 Internal Server Error", &format!("{error}\n")))
    }

    fn page(&mut self) -> Result<Answer, CommandError> {
        let Page { html, policy } = Page::new(&self.refresh()?.data, true)?;
        let headers = format!(
            "content-type: text/html; charset=utf-8\r\ncontent-security-policy: {policy}; frame-ancestors 'none'\r\n"
        );
        Ok(Answer { status: "200 OK", headers, body: html.into_bytes() })
    }

    fn data(&mut self, known_tag: Option<&str>) -> Result<Answer, CommandError> {
        let latest = self.refresh()?;
        let headers = format!("content-type: application/json\r\netag: {}\r\n", latest.tag);
        if known_tag == Some(latest.tag.as_str()) {
            return Ok(Answer { status: "304 Not Modified", headers, body: Vec::new() });
        }
        Ok(Answer { status: "200 OK", headers, body: latest.json.clone() })
    }

    fn refresh(&mut self) -> Result<&ReadData, CommandError> {
        let latest = match self.latest.take() {
            Some(latest) if latest.read.elapsed() < MAX_DATA_AGE => latest,
            _ => ReadData::new(self.reader.read(&self.request)?)?,
        };
        Ok(self.latest.insert(latest))
    }
}

impl ReadData {
    fn new(mut data: PageData) -> Result<Self, CommandError> {
        let made = std::mem::take(&mut data.made);
        let tag = format!("\"{}\"", &blake3::hash(&serde_json::to_vec(&data)?).to_hex()[..32]);
        data.made = made;
        let json = serde_json::to_vec(&data)?;
        Ok(Self { data, json, tag, read: Instant::now() })
    }
}

impl Answer {
    fn text(status: &'static str, text: &str) -> Self {
        let headers = "content-type: text/plain; charset=utf-8\r\n".to_owned();
        Self { status, headers, body: text.as_bytes().to_vec() }
    }

    /// The answer as it is sent, with the headers that all answers have.
    fn bytes(&self) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 {}\r\nconnection: close\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n\
             referrer-policy: no-referrer\r\ncross-origin-resource-policy: same-origin\r\n{}content-length: {}\r\n\r\n",
            self.status,
            self.headers,
            self.body.len()
        );
        [head.as_bytes(), &self.body].concat()
    }
}

/// True if a request's `Host` is a name of this machine that nobody else can take. Another name may be that of a foreign page whose
/// name was pointed at this machine (DNS rebinding).
fn is_loopback(host: &str) -> bool {
    let is_port = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok();
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "[::1]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_answered() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "127.0.0.1", "[::1]", "[::1]:9"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "127.0.0.2", "localhost:x"]
                .into_iter()
                .chain(["[::1", "[::1]x", "[::2]", "localhost:80:80", "evil@localhost", "localhost:+80"])
        {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn the_server_answers_what_it_knows_and_refuses_the_rest() {
        let live = LiveReport::bind(0, ReportRequest::default()).unwrap();
        assert!(live.address().ip().is_loopback());
        let mut live = live.source;
        let mut ask = |method: &str, path: &str, host: Option<&str>, known_tag: Option<&str>| {
            let given = [("Host", host), ("If-None-Match", known_tag)];
            let lines = given.map(|(name, value)| value.map_or(String::new(), |value| format!("{name}: {value}\r\n")));
            let mut headers = [EMPTY_HEADER; 2];
            let mut request = Request::new(&mut headers);
            let text = format!("{method} {path} HTTP/1.1\r\n{}\r\n", lines.concat());
            assert!(request.parse(text.as_bytes()).unwrap().is_complete());
            let answer = live.answer(&request);
            // The age of the data alone does not count as a change.
            live.latest = None;
            let tag = answer.headers.lines().find_map(|line| line.strip_prefix("etag: ").map(str::to_owned));
            (answer.status[..3].parse::<u16>().unwrap(), tag)
        };
        let host = Some("localhost");
        assert_eq!(ask("GET", "/", None, None).0, 403);
        assert_eq!(ask("GET", "/", Some("evil.example"), None).0, 403);
        assert_eq!(ask("POST", "/", host, None).0, 405);
        assert_eq!(ask("GET", "/../Cargo.toml", host, None).0, 404);
        assert_eq!(ask("GET", "/", host, None).0, 200);
        let (status, tag) = ask("GET", "/data.json", host, None);
        assert_eq!((status, ask("GET", "/data.json", host, tag.as_deref()).0), (200, 304));
    }
}
