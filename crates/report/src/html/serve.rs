//! The report of runs in progress, served on loopback only: the page at `/`, and its data at `/data.json`, which the page asks
//! for every two seconds.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request};

use super::data::{PageData, ReportRequest, RunReader};
use super::page::Page;
use runner_spec::error::CommandError;

/// Data that is older than this is read again when it is asked for.
const MAX_DATA_AGE: Duration = Duration::from_secs(1);

/// Limits for one client, so that none can block the server or fill its memory: the size of a request's head, and durations.
const MAX_HEAD_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 100;
const TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(10), connection: Duration::from_mins(2) };

/// If this number of connections is open, a new one takes the place of the one whose client has been silent for longest.
const MAX_CONNECTIONS: usize = 64;

/// A thread may still wait for data after its client was disconnected. If this number of threads work, a new client is refused.
const MAX_THREADS: usize = 2 * MAX_CONNECTIONS;

/// The pause after a connection that could not be accepted, for example because too many files are open.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A report that is being served.
#[derive(Debug)]
pub struct LiveReport {
    listener: TcpListener,
    address: SocketAddr,
    source: AnswerSource,
    timeouts: Timeouts,
}

/// The longest duration of a request's head, and of a connection, which ends after one answer.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    head: Duration,
    connection: Duration,
}

/// The connection to a client.
#[derive(Debug)]
struct Client {
    stream: TcpStream,
    opened: Instant,
    /// The time at which the client last read or wrote.
    last_active: Mutex<Instant>,
    timeouts: Timeouts,
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

/// An answer with the headers that only it has.
#[derive(Debug)]
struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    /// `None` if the client already has the body.
    body: Option<Vec<u8>>,
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
        Ok(Self { listener, address, source, timeouts: TIMEOUTS })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the process ends, each client in a separate thread.
    pub fn serve(self) -> ! {
        let source = Arc::new(Mutex::new(self.source));
        let mut open: Vec<Weak<Client>> = Vec::new();
        let threads = Arc::new(());
        loop {
            open.retain(|client| client.strong_count() > 0);
            let Ok((stream, _)) = self.listener.accept() else {
                thread::sleep(ACCEPT_RETRY_INTERVAL);
                continue;
            };
            if Arc::strong_count(&threads) > MAX_THREADS {
                continue;
            }
            let clients = open.iter().filter_map(Weak::upgrade);
            if open.len() >= MAX_CONNECTIONS
                && let Some(idlest) = clients.min_by_key(|client| *lock(&client.last_active))
            {
                let _ = idlest.stream.shutdown(Shutdown::Both);
                open.retain(|client| !std::ptr::eq(client.as_ptr(), Arc::as_ptr(&idlest)));
            }
            let now = Instant::now();
            let client = Client { stream, opened: now, last_active: Mutex::new(now), timeouts: self.timeouts };
            let (client, source) = (Arc::new(client), Arc::clone(&source));
            open.push(Arc::downgrade(&client));
            // A client may disconnect at any time, and is disconnected if it takes too long or if there is no thread for it.
            let thread = Arc::clone(&threads);
            let _ = thread::Builder::new().spawn(move || {
                let answered = client.serve(&source);
                drop(thread);
                answered
            });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Answers one request.
    fn serve(&self, source: &Mutex<AnswerSource>) -> io::Result<()> {
        let mut head = Vec::new();
        let answer = loop {
            let mut piece = [0; 1 << 10];
            let length = self.transfer(self.timeouts.head, |mut stream| stream.read(&mut piece))?;
            head.extend_from_slice(&piece[..length]);
            let mut headers = [EMPTY_HEADER; MAX_HEADERS];
            let mut request = Request::new(&mut headers);
            match request.parse(&head) {
                Ok(status) if status.is_complete() => {
                    let is_head = request.method == Some("HEAD");
                    break lock(source).answer(&request).bytes(!is_head);
                }
                Ok(_) if head.len() < MAX_HEAD_BYTES => {}
                Ok(_) => {
                    break text_answer("431 Request Header Fields Too Large", "the request is too long\n").bytes(true);
                }
                Err(error) => break text_answer("400 Bad Request", &format!("{error}\n")).bytes(true),
            }
        };
        let mut rest = answer.as_slice();
        while !rest.is_empty() {
            let written = self.transfer(self.timeouts.connection, |mut stream| stream.write(rest))?;
            rest = &rest[written..];
        }
        Ok(())
    }

    /// Reads or writes some bytes with `transfer`, at most until the connection has been open for `limit`. Returns their number.
    fn transfer(
        &self,
        limit: Duration,
        mut transfer: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let length = loop {
            let left = limit.saturating_sub(self.opened.elapsed());
            // Zero, which would be no limit, is refused.
            self.stream.set_read_timeout(Some(left))?;
            self.stream.set_write_timeout(Some(left))?;
            match transfer(&self.stream) {
                // The process was stopped and continues.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *lock(&self.last_active) = Instant::now();
        Ok(length)
    }
}

impl AnswerSource {
    fn answer(&mut self, request: &Request<'_, '_>) -> Answer {
        let header = |name: &str| {
            let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
            str::from_utf8(found.value).ok()
        };
        if !header("host").is_some_and(is_loopback) {
            return text_answer("403 Forbidden", "this report is served to localhost only\n");
        }
        if !matches!(request.method, Some("GET" | "HEAD")) {
            let answer = text_answer("405 Method Not Allowed", "only GET and HEAD are allowed\n");
            return answer.with("allow", "GET, HEAD");
        }
        let answer = match path(request.path.unwrap_or_default()) {
            "/" => self.page(),
            "/data.json" => self.data(header("if-none-match")),
            _ => Ok(text_answer("404 Not Found", "no such page: the report is at /\n")),
        };
        answer.unwrap_or_else(|error| text_answer("500 Internal Server Error", &format!("{error}\n")))
    }

    fn page(&mut self) -> Result<Answer, CommandError> {
        let Page { html, policy } = Page::new(&self.refresh()?.data, true)?;
        let page = Answer { status: "200 OK", headers: Vec::new(), body: Some(html.into_bytes()) };
        let policy = format!("{policy}; frame-ancestors 'none'");
        Ok(page.with("content-type", "text/html; charset=utf-8").with("content-security-policy", policy))
    }

    fn data(&mut self, known_tag: Option<&str>) -> Result<Answer, CommandError> {
        let latest = self.refresh()?;
        let is_known = known_tag == Some(latest.tag.as_str());
        let (status, body) = if is_known { ("304 Not Modified", None) } else { ("200 OK", Some(latest.json.clone())) };
        let data = Answer { status, headers: Vec::new(), body };
        Ok(data.with("content-type", "application/json").with("etag", &latest.tag))
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

/// The path of a request's target, which may be a whole address, without its query.
fn path(target: &str) -> &str {
    let origin_form = |rest: &str| rest.find(['/', '?']).map_or(rest.len(), |at| at);
    let target = target.strip_prefix("http://").map_or(target, |rest| &rest[origin_form(rest)..]);
    match target.split_once('?').map_or(target, |(path, _)| path) {
        "" => "/",
        path => path,
    }
}

fn text_answer(status: &'static str, text: &str) -> Answer {
    let answer = Answer { status, headers: Vec::new(), body: Some(text.as_bytes().to_vec()) };
    answer.with("content-type", "text/plain; charset=utf-8")
}

impl Answer {
    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The answer as it is sent, with the headers that all answers have.
    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let mut head = format!(
            "HTTP/1.1 {}\r\nconnection: close\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n\
             referrer-policy: no-referrer\r\ncross-origin-resource-policy: same-origin\r\n",
            self.status
        );
        let length = self.body.as_ref().map(|body| ("content-length", body.len().to_string()));
        head.extend(self.headers.iter().chain(&length).map(|(name, value)| format!("{name}: {value}\r\n")));
        let body = self.body.as_ref().filter(|_| with_body);
        [head.as_bytes(), b"\r\n", body.map_or(&[][..], Vec::as_slice)].concat()
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
    fn silent_clients_do_not_keep_others_waiting() {
        let mut live = LiveReport::bind(0, ReportRequest::default()).unwrap();
        // However slow this machine is, no client is disconnected for its own time.
        live.timeouts = Timeouts { head: Duration::from_hours(1), connection: Duration::from_hours(1) };
        let address = live.address();
        thread::spawn(move || live.serve());
        let silent: Vec<_> = (0..3 * MAX_CONNECTIONS)
            .map(|_| {
                let mut client = TcpStream::connect(address).unwrap();
                client.write_all(b"GET / HTTP/1.1\r\nx: ").unwrap();
                client
            })
            .collect();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let answer = io::read_to_string(&mut client).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        // It did not wait for the others to be disconnected: as many as the limit allows are still connected.
        let is_open = |client: &TcpStream| {
            client.set_nonblocking(true).unwrap();
            client.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        let open = silent.iter().filter(|client| is_open(client)).count();
        assert_eq!(open, MAX_CONNECTIONS - 1, "the answered client took a place");
    }

    #[test]
    fn answers() {
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
            let tag = answer.headers.into_iter().find(|(name, _)| *name == "etag").map(|(_, value)| value);
            (answer.status[..3].parse::<u16>().unwrap(), tag)
        };
        let host = Some("localhost");
        assert_eq!(ask("GET", "/", None, None).0, 403);
        assert_eq!(ask("GET", "/", Some("evil.example"), None).0, 403);
        assert_eq!(ask("POST", "/", host, None).0, 405);
        assert_eq!(ask("GET", "/../Cargo.toml", host, None).0, 404);
        assert_eq!(ask("HEAD", "/", host, None).0, 200);
        for target in ["/?a=/b", "http://localhost", "http://localhost:80/", "http://localhost?a"] {
            assert_eq!(ask("GET", target, host, None).0, 200, "{target}");
        }
        let (status, tag) = ask("GET", "/data.json", host, None);
        assert_eq!((status, ask("GET", "/data.json", host, tag.as_deref()).0), (200, 304));
    }
}
