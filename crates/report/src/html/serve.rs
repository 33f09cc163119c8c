//! The report of runs in progress, served on loopback only: the page at `/`, and its data at `/data.json`, which the page asks
//! for every two seconds.

use std::io::Cursor;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tiny_http::{Header, Method, Response, Server};

use super::data::{PageData, ReportRequest, RunReader};
use super::error::ReportError;
use super::page::Page;

/// Data that is older than this is read again when it is asked for.
const MAX_DATA_AGE: Duration = Duration::from_secs(1);

/// The number of answers that are sent at the same time. A client that does not read its answer blocks one of them.
const ANSWER_THREADS: usize = 8;

/// A report that is being served.
pub struct LiveReport {
    server: Server,
    address: SocketAddr,
    source: Mutex<AnswerSource>,
}

/// Makes the answers.
struct AnswerSource {
    request: ReportRequest,
    reader: RunReader,
    latest: Option<ReadData>,
}

/// The data that was read last.
struct ReadData {
    data: PageData,
    json: Vec<u8>,
    /// The ETag: a hash of everything but the time of reading.
    tag: String,
    read: Instant,
}

type Answer = Response<Cursor<Vec<u8>>>;

impl LiveReport {
    /// Listens on 127.0.0.1; `port` 0 takes a free one.
    ///
    /// # Errors
    /// If the port is taken, or the runs cannot be read.
    pub fn bind(port: u16, request: ReportRequest) -> Result<Self, ReportError> {
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let server = Server::http(wanted).map_err(|source| ReportError::Listen { port, source })?;
        let address = server.server_addr().to_ip().unwrap_or(wanted);
        let mut source = AnswerSource { request, reader: RunReader::default(), latest: None };
        source.refresh()?;
        Ok(Self { server, address, source: Mutex::new(source) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the process ends.
    ///
    /// # Errors
    /// If no more requests can be accepted.
    pub fn serve(&self) -> Result<(), ReportError> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..ANSWER_THREADS).map(|_| scope.spawn(|| self.answer_requests())).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        })
    }

    fn answer_requests(&self) -> Result<(), ReportError> {
        loop {
            let request = self.server.recv().map_err(ReportError::Serve)?;
            let header = |name: &'static str| {
                let found = request.headers().iter().find(|h| h.field.equiv(name));
                found.map(|h| h.value.as_str())
            };
            let is_read = matches!(request.method(), Method::Get | Method::Head);
            let answer = {
                // A thread that panicked while reading leaves no data behind, so that it is read again.
                let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
                source.answer(is_read, request.url(), header("Host"), header("If-None-Match"))
            };
            // A client may go away at any time.
            let _ = request.respond(answer);
        }
    }
}

impl AnswerSource {
    fn answer(&mut self, is_read: bool, url: &str, host: Option<&str>, known_tag: Option<&str>) -> Answer {
        if !host.is_some_and(is_loopback) {
            return text_answer(403, "this report is served to localhost only\n");
        }
        if !is_read {
            return text_answer(405, "only GET and HEAD are allowed\n").with_header(header("Allow", "GET, HEAD"));
        }
        let answer = match url.split(['?', '#']).next() {
            Some("/") => self.page(),
            Some("/data.json") => self.data(known_tag),
            _ => Ok(text_answer(404, "no such page: the report is at /\n")),
        };
        answer.unwrap_or_else(|error| text_answer(500, &format!("{error}\n")))
    }

    fn page(&mut self) -> Result<Answer, ReportError> {
        let Page { html, policy } = Page::new(&self.refresh()?.data, true)?;
        let policy = header("Content-Security-Policy", &format!("{policy}; frame-ancestors 'none'"));
        Ok(answer(200, "text/html; charset=utf-8", html.into_bytes()).with_header(policy))
    }

    fn data(&mut self, known_tag: Option<&str>) -> Result<Answer, ReportError> {
        let latest = self.refresh()?;
        let is_known = known_tag == Some(latest.tag.as_str());
        let (status, body) = if is_known { (304, Vec::new()) } else { (200, latest.json.clone()) };
        Ok(answer(status, "application/json", body).with_header(header("ETag", &latest.tag)))
    }

    fn refresh(&mut self) -> Result<&ReadData, ReportError> {
        let latest = match self.latest.take() {
            Some(latest) if latest.read.elapsed() < MAX_DATA_AGE => latest,
            _ => ReadData::new(self.reader.read(&self.request)?)?,
        };
        Ok(self.latest.insert(latest))
    }
}

impl ReadData {
    fn new(mut data: PageData) -> Result<Self, ReportError> {
        let made = std::mem::take(&mut data.made);
        let tag = format!("\"{}\"", &blake3::hash(&serde_json::to_vec(&data)?).to_hex()[..32]);
        data.made = made;
        let json = serde_json::to_vec(&data)?;
        Ok(Self { data, json, tag, read: Instant::now() })
    }
}

fn text_answer(status: u16, text: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", text.as_bytes().to_vec())
}

/// An answer with the headers that all answers have.
fn answer(status: u16, content_type: &str, body: Vec<u8>) -> Answer {
    let headers = [
        ("Content-Type", content_type),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
    ];
    let empty = Response::from_data(body).with_status_code(status);
    headers.into_iter().fold(empty, |answer, (name, value)| answer.with_header(header(name, value)))
}

#[expect(clippy::expect_used, reason = "names are constants, and values are ASCII that this program wrote")]
fn header(name: &str, value: &str) -> Header {
    Header::from_bytes(name, value).expect("a valid header")
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
    fn answers() {
        let live = LiveReport::bind(0, ReportRequest::default()).unwrap();
        assert!(live.address().ip().is_loopback());
        let mut live = live.source.into_inner().unwrap();
        let host = Some("localhost");
        assert_eq!(live.answer(true, "/", None, None).status_code().0, 403);
        assert_eq!(live.answer(true, "/", Some("evil.example"), None).status_code().0, 403);
        assert_eq!(live.answer(false, "/", host, None).status_code().0, 405);
        assert_eq!(live.answer(true, "/../Cargo.toml", host, None).status_code().0, 404);
        assert_eq!(live.answer(true, "/?x#y", host, None).status_code().0, 200);
        let first = live.answer(true, "/data.json", host, None);
        let tag = first.headers().iter().find(|h| h.field.equiv("ETag")).unwrap().value.to_string();
        assert_eq!(
            (first.status_code().0, live.answer(true, "/data.json", host, Some(&tag)).status_code().0),
            (200, 304)
        );
        live.latest = None;
        assert_eq!(
            live.answer(true, "/data.json", host, Some(&tag)).status_code().0,
            304,
            "the time alone is no change"
        );
    }
}
