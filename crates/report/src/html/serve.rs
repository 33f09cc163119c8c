//! The report of runs in progress, on loopback only: the page at `/`, and at `/data.json` what the page asks for every two
//! seconds.

use std::io::Cursor;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tiny_http::{Header, Method, Response, Server};

use super::data::{PageData, Reader, Request};
use super::error::ReportError;
use super::page::Page;

/// Data is read anew when it is asked for and older than this.
const FRESH: Duration = Duration::from_secs(1);

/// Answers under way at a time: a client that does not read what it asked for holds one, not all.
const ANSWERING: usize = 8;

/// A report that is being served.
pub struct Live {
    server: Server,
    address: SocketAddr,
    source: Mutex<Source>,
}

/// Where answers come from.
struct Source {
    request: Request,
    reader: Reader,
    latest: Option<Latest>,
}

/// The data as last read.
struct Latest {
    data: PageData,
    json: Vec<u8>,
    /// Of all but the time at which it was read.
    tag: String,
    read: Instant,
}

/// What is answered.
struct Answer {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
    headers: Vec<(&'static str, String)>,
}

impl Live {
    /// Listens on 127.0.0.1; `port` 0 takes a free one.
    ///
    /// # Errors
    /// If the port is taken, or what is asked for cannot be read.
    pub fn bind(port: u16, request: Request) -> Result<Self, ReportError> {
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let server = Server::http(wanted).map_err(|source| ReportError::Listen { port, source })?;
        let address = server.server_addr().to_ip().unwrap_or(wanted);
        let mut source = Source { request, reader: Reader::default(), latest: None };
        source.refresh()?;
        Ok(Self { server, address, source: Mutex::new(source) })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests for as long as the process lives.
    ///
    /// # Errors
    /// If no more requests can be accepted.
    pub fn serve(&self) -> Result<(), ReportError> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..ANSWERING).map(|_| scope.spawn(|| self.answer_all())).collect();
            let ended = threads.into_iter().filter_map(|thread| thread.join().ok());
            ended.collect::<Result<Vec<()>, _>>().map(|_| ())
        })
    }

    fn answer_all(&self) -> Result<(), ReportError> {
        loop {
            let request = self.server.recv().map_err(ReportError::Serve)?;
            let header = |name: &'static str| {
                let found = request.headers().iter().find(|h| h.field.equiv(name));
                found.map(|h| h.value.as_str().to_owned())
            };
            let (host, known) = (header("Host"), header("If-None-Match"));
            let get = matches!(request.method(), Method::Get | Method::Head);
            let url = request.url().to_owned();
            let answer = {
                // What a reading that panicked left is read anew.
                let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
                source.answer(get, &url, host.as_deref(), known.as_deref())
            };
            // A reader that went away is no error.
            let _ = request.respond(answer.response());
        }
    }
}

impl Source {
    fn answer(&mut self, get: bool, url: &str, host: Option<&str>, known: Option<&str>) -> Answer {
        if !host.is_some_and(is_loopback) {
            return Answer::text(403, "this report answers to localhost alone\n");
        }
        if !get {
            let mut answer = Answer::text(405, "GET and HEAD alone\n");
            answer.headers.push(("Allow", "GET, HEAD".to_owned()));
            return answer;
        }
        match url.split(['?', '#']).next() {
            Some("/") => self.page(),
            Some("/data.json") => self.data(known),
            _ => Answer::text(404, "no such page: the report is at /\n"),
        }
    }

    fn page(&mut self) -> Answer {
        let page = self.refresh().and_then(|latest| Page::new(&latest.data, true));
        page.map_or_else(
            |error| Answer::text(500, &format!("{error}\n")),
            |page| {
                let mut answer = Answer::new(200, "text/html; charset=utf-8", page.html.into_bytes());
                answer.headers.push(("Content-Security-Policy", page.policy + "; frame-ancestors 'none'"));
                answer
            },
        )
    }

    fn data(&mut self, known: Option<&str>) -> Answer {
        match self.refresh() {
            Err(error) => Answer::text(500, &format!("{error}\n")),
            Ok(latest) => {
                let same = known == Some(latest.tag.as_str());
                let body = if same { Vec::new() } else { latest.json.clone() };
                let mut answer = Answer::new(if same { 304 } else { 200 }, "application/json", body);
                answer.headers.push(("ETag", latest.tag.clone()));
                answer
            }
        }
    }

    fn refresh(&mut self) -> Result<&Latest, ReportError> {
        let latest = match self.latest.take() {
            Some(latest) if latest.read.elapsed() < FRESH => latest,
            _ => Latest::new(self.reader.read(&self.request)?)?,
        };
        Ok(self.latest.insert(latest))
    }
}

impl Latest {
    fn new(mut data: PageData) -> Result<Self, ReportError> {
        let made = std::mem::take(&mut data.made);
        let tag = format!("\"{}\"", &blake3::hash(&serde_json::to_vec(&data)?).to_hex()[..32]);
        data.made = made;
        let json = serde_json::to_vec(&data)?;
        Ok(Self { data, json, tag, read: Instant::now() })
    }
}

impl Answer {
    fn new(status: u16, kind: &'static str, body: Vec<u8>) -> Self {
        Self { status, kind, body, headers: Vec::new() }
    }

    fn text(status: u16, text: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", text.as_bytes().to_vec())
    }

    fn response(self) -> Response<Cursor<Vec<u8>>> {
        let always = [
            ("Content-Type", self.kind),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ];
        let length = self.body.len();
        let empty = Response::new(self.status.into(), Vec::new(), Cursor::new(self.body), Some(length), None);
        let own = self.headers.iter().map(|(name, value)| (*name, value.as_str()));
        let headers = always.into_iter().chain(own).filter_map(|(name, value)| Header::from_bytes(name, value).ok());
        headers.fold(empty, Response::with_header)
    }
}

/// Whether a request's `Host` is this machine by a name that nobody else can give it: another name may be a page elsewhere
/// whose name was pointed here to read what is served.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return address == "::1" && (port.is_empty() || is_port(port.strip_prefix(':')));
        }
        None => match host.split_once(':') {
            Some((name, port)) if is_port(Some(port)) => name,
            Some(_) => return false,
            None => host,
        },
    };
    name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1"
}

fn is_port(text: Option<&str>) -> bool {
    text.is_some_and(|t| t.bytes().all(|b| b.is_ascii_digit()) && t.parse::<u16>().is_ok())
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
        let live = Live::bind(0, Request::default()).unwrap();
        assert!(live.address().ip().is_loopback());
        let mut live = live.source.into_inner().unwrap();
        let host = Some("localhost");
        assert_eq!(live.answer(true, "/", None, None).status, 403);
        assert_eq!(live.answer(true, "/", Some("evil.example"), None).status, 403);
        assert_eq!(live.answer(false, "/", host, None).status, 405);
        assert_eq!(live.answer(true, "/../Cargo.toml", host, None).status, 404);
        assert_eq!(live.answer(true, "/?x#y", host, None).status, 200);
        let first = live.answer(true, "/data.json", host, None);
        let tag = first.headers[0].1.clone();
        assert_eq!((first.status, live.answer(true, "/data.json", host, Some(&tag)).status), (200, 304));
        live.latest = None;
        assert_eq!(live.answer(true, "/data.json", host, Some(&tag)).status, 304, "the time alone is no change");
    }
}
