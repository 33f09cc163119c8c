//! The report of runs in progress, served on loopback only: the page at `/`, and its data at `/data.json`, which the page asks
//! for every two seconds.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderName, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::data::{PageData, ReportRequest, RunReader};
use super::error::ReportError;
use super::page::Page;

/// Data that is older than this is read again when it is asked for.
const MAX_DATA_AGE: Duration = Duration::from_secs(1);

/// Limits for one client, so that none can block the server or fill its memory: bytes of a request's head, and durations.
const MAX_HEAD_BYTES: usize = 16 << 10;
const TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(10), connection: Duration::from_mins(2) };

/// If this number of connections is open, a new one takes the place of the one whose client has been silent for longest.
const MAX_CONNECTIONS: usize = 64;

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

/// Makes the answers.
#[derive(Debug)]
struct AnswerSource {
    request: ReportRequest,
    reader: RunReader,
    latest: Option<ReadData>,
}

/// A connection that is being served.
#[derive(Debug)]
struct OpenConnection {
    task: JoinHandle<()>,
    last_active: Rc<Cell<Instant>>,
}

/// A connection that notes when its client last read or wrote.
#[derive(Debug)]
struct ActiveStream {
    stream: TokioIo<TcpStream>,
    last_active: Rc<Cell<Instant>>,
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

type Answer = Response<Full<Bytes>>;

impl LiveReport {
    /// Listens on 127.0.0.1; `port` 0 takes a free one.
    ///
    /// # Errors
    /// If the port is taken, or the runs cannot be read.
    pub fn bind(port: u16, request: ReportRequest) -> Result<Self, ReportError> {
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listen().map_err(|source| ReportError::Listen { port, source })?;
        let mut source = AnswerSource { request, reader: RunReader::default(), latest: None };
        source.refresh()?;
        Ok(Self { listener, address, source, timeouts: TIMEOUTS })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the process ends.
    ///
    /// # Errors
    /// If the system refuses an event loop.
    pub fn serve(self) -> Result<Infallible, ReportError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ReportError::Serve)?;
        LocalSet::new().block_on(&runtime, self.answer_requests())
    }

    async fn answer_requests(self) -> Result<Infallible, ReportError> {
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(ReportError::Serve)?;
        let (source, timeouts) = (Rc::new(RefCell::new(self.source)), self.timeouts);
        let mut open: Vec<OpenConnection> = Vec::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            };
            open.retain(|connection| !connection.task.is_finished());
            if open.len() >= MAX_CONNECTIONS
                && let Some(idlest) = (0..open.len()).min_by_key(|i| open[*i].last_active.get())
            {
                open.swap_remove(idlest).task.abort();
            }
            let last_active = Rc::new(Cell::new(Instant::now()));
            let stream = ActiveStream { stream: TokioIo::new(stream), last_active: Rc::clone(&last_active) };
            let source = Rc::clone(&source);
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = source.borrow_mut().answer(request.method(), request.uri().path(), request.headers());
                async { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .keep_alive(false)
                .max_buf_size(MAX_HEAD_BYTES)
                .timer(TokioTimer::new())
                .header_read_timeout(timeouts.head)
                .serve_connection(stream, service);
            let task = spawn_local(async move {
                // A client may disconnect at any time, and is disconnected if it takes too long.
                let _ = tokio::time::timeout(timeouts.connection, connection).await;
            });
            open.push(OpenConnection { task, last_active });
        }
    }
}

impl ActiveStream {
    /// Notes the time at which the client read or wrote.
    fn note<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(polled, Poll::Ready(Ok(_))) {
            self.last_active.set(Instant::now());
        }
        polled
    }
}

impl Read for ActiveStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(polled)
    }
}

impl Write for ActiveStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AnswerSource {
    fn answer(&mut self, method: &Method, path: &str, headers: &HeaderMap) -> Answer {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if !header(HOST).is_some_and(is_loopback) {
            return text_answer(StatusCode::FORBIDDEN, "this report is served to localhost only\n");
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let answer = text_answer(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
            return with_header(answer, ALLOW, "GET, HEAD");
        }
        let answer = match path {
            "/" => self.page(),
            "/data.json" => self.data(header(IF_NONE_MATCH)),
            _ => Ok(text_answer(StatusCode::NOT_FOUND, "no such page: the report is at /\n")),
        };
        answer.unwrap_or_else(|error| text_answer(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")))
    }

    fn page(&mut self) -> Result<Answer, ReportError> {
        let Page { html, policy } = Page::new(&self.refresh()?.data, true)?;
        let policy = format!("{policy}; frame-ancestors 'none'");
        let page = answer(StatusCode::OK, "text/html; charset=utf-8", html.into_bytes());
        Ok(with_header(page, CONTENT_SECURITY_POLICY, &policy))
    }

    fn data(&mut self, known_tag: Option<&str>) -> Result<Answer, ReportError> {
        let latest = self.refresh()?;
        let is_known = known_tag == Some(latest.tag.as_str());
        let (status, body) =
            if is_known { (StatusCode::NOT_MODIFIED, Vec::new()) } else { (StatusCode::OK, latest.json.clone()) };
        Ok(with_header(answer(status, "application/json", body), ETAG, &latest.tag))
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

fn text_answer(status: StatusCode, text: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", text.as_bytes().to_vec())
}

/// An answer with the headers that all answers have.
fn answer(status: StatusCode, content_type: &str, body: Vec<u8>) -> Answer {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ]
    .into_iter()
    .fold(answer, |answer, (name, value)| with_header(answer, name, value))
}

#[expect(clippy::expect_used, reason = "values are ASCII that this program wrote")]
fn with_header(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_str(value).expect("a valid header"));
    answer
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
        std::thread::spawn(move || live.serve());
        let silent: Vec<_> = (0..3 * MAX_CONNECTIONS)
            .map(|_| {
                let mut client = std::net::TcpStream::connect(address).unwrap();
                io::Write::write_all(&mut client, b"GET / HTTP/1.1\r\nx: ").unwrap();
                client
            })
            .collect();
        let mut client = std::net::TcpStream::connect(address).unwrap();
        io::Write::write_all(&mut client, b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let answer = io::read_to_string(&mut client).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        // It did not wait for the others to be disconnected: those that came last are still connected.
        let is_open = |client: &std::net::TcpStream| {
            client.set_nonblocking(true).unwrap();
            client.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        let open: Vec<bool> = silent.iter().map(is_open).collect();
        assert!(open[2 * MAX_CONNECTIONS + 8..].iter().all(|is_open| *is_open), "{open:?}");
        assert!(open[..MAX_CONNECTIONS].iter().all(|is_open| !is_open), "{open:?}");
    }

    #[test]
    fn answers() {
        let live = LiveReport::bind(0, ReportRequest::default()).unwrap();
        assert!(live.address().ip().is_loopback());
        let mut live = live.source;
        let mut ask = |method: &Method, path: &str, host: Option<&str>, known_tag: Option<&str>| {
            let given = [(HOST, host), (IF_NONE_MATCH, known_tag)].into_iter();
            let headers = given.filter_map(|(name, value)| Some((name, value?.parse().unwrap()))).collect();
            let answer = live.answer(method, path, &headers);
            // The age of the data alone is no change.
            live.latest = None;
            let tag = answer.headers().get(ETAG).map(|tag| tag.to_str().unwrap().to_owned());
            (answer.status().as_u16(), tag)
        };
        let host = Some("localhost");
        assert_eq!(ask(&Method::GET, "/", None, None).0, 403);
        assert_eq!(ask(&Method::GET, "/", Some("evil.example"), None).0, 403);
        assert_eq!(ask(&Method::POST, "/", host, None).0, 405);
        assert_eq!(ask(&Method::GET, "/../Cargo.toml", host, None).0, 404);
        assert_eq!(ask(&Method::HEAD, "/", host, None).0, 200);
        let (status, tag) = ask(&Method::GET, "/data.json", host, None);
        assert_eq!((status, ask(&Method::GET, "/data.json", host, tag.as_deref()).0), (200, 304));
    }
}
