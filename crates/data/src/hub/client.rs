//! Sends requests: only the endpoint gets the token, some redirects are followed, and failed requests are retried.
//!
//! The client of the crate hf-hub sends the token to every host that a file is redirected to, takes a part of a file for the whole, and
//! reports a refusal by its number alone. So this program sends requests itself, and uses the crate's addresses, answers and folders.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ureq::http::Response;
use ureq::{Agent, Body};

use super::error::{HubError, Result, quoted};
use super::settings::Settings;
use runner_spec::panics::catch_panic;
use runner_threads::threads::explain_panic;

const MAX_REDIRECTS: usize = 10;
/// Attempts at one request that receive nothing.
const MAX_ATTEMPTS: u32 = 5;
/// A server that asks for a longer wait is not waited for.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Bytes of an answer other than a file.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// The progress of downloads: of one file, or of several together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Downloading {
    /// The number of the file that is waited for, from 1.
    pub file: usize,
    pub files: usize,
    /// Bytes of this file, or of all files that are downloaded together.
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub bytes_per_second: f64,
}

/// Receives progress, up to once per block.
pub type Report<'a> = dyn Fn(Downloading) + Sync + 'a;

pub(super) struct Client<'a> {
    pub(super) settings: &'a Settings,
    pub(super) report: &'a Report<'a>,
    agent: Agent,
    /// Set by another thread when the answers are no longer needed.
    stopped: Option<Arc<AtomicBool>>,
}

/// The reason why an attempt failed.
pub(super) enum Failure {
    /// The request may be retried; `moved` is true if this attempt received bytes.
    Retry {
        message: String,
        after: Option<Duration>,
        moved: bool,
    },
    Final(HubError),
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

impl Failure {
    pub(super) fn retry(message: impl Into<String>) -> Self {
        Self::Retry { message: message.into(), after: None, moved: false }
    }
}

/// An answer that is final: no redirect to follow, and no reason to retry.
pub(super) struct HubAnswer {
    pub(super) status: u16,
    response: Response<Body>,
}

impl HubAnswer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    pub(super) fn into_body(self) -> impl std::io::Read {
        self.response.into_body().into_with_config().limit(u64::MAX).reader()
    }
}

impl<'a> Client<'a> {
    pub(super) fn new(settings: &'a Settings, report: &'a Report<'a>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .accept_encoding("identity")
            .user_agent(concat!("runner/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(Duration::from_mins(1)))
            .timeout_per_read(Some(Duration::from_mins(1)))
            .build();
        Self { settings, report, agent: config.into(), stopped: None }
    }

    /// A client whose requests end with an error once `stopped` is set.
    pub(super) fn stopped_by(self, stopped: Arc<AtomicBool>) -> Self {
        Self { stopped: Some(stopped), ..self }
    }

    /// # Errors
    /// If the answers are no longer needed.
    pub(super) fn check_not_stopped(&self) -> Result<()> {
        match &self.stopped {
            Some(stopped) if stopped.load(Ordering::SeqCst) => {
                Err(HubError::Other("the download was stopped".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn sleep(&self, time: Duration) -> Result<()> {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()) {
            self.check_not_stopped()?;
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
        Ok(())
    }

    /// One attempt at `url`, from byte `from` on.
    pub(super) fn request(&self, url: &str, from: u64) -> Result<HubAnswer, Failure> {
        let mut url = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let mut request = self.agent.get(&url);
            if let Some(token) = &self.settings.token
                && origin(&url) == origin(&self.settings.endpoint)
            {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header("range", format!("bytes={from}-"));
            }
            // The client starts a thread that resolves the name, and panics if the system refuses it.
            let called = catch_panic(|| request.call().map_err(|error| error.to_string()));
            let called = called.map_err(explain_panic).flatten();
            let response = called.map_err(|error| Failure::retry(quoted(&error)))?;
            let answer = HubAnswer { status: response.status().as_u16(), response };
            match answer.status {
                301 | 302 | 303 | 307 | 308 => {
                    let target = answer.header("location").and_then(|to| absolute(&url, to));
                    let Some(target) = target else { return Err(wrong(&url, "its redirect has no address").into()) };
                    if url.starts_with("https:") && !target.starts_with("https:") {
                        return Err(wrong(&url, "it redirects to an unencrypted address").into());
                    }
                    url = target;
                }
                408 | 425 | 429 | 500..=599 => {
                    let after =
                        answer.header("retry-after").and_then(|s| s.trim().parse().ok()).map(Duration::from_secs);
                    let why = if answer.status == 429 { "too many requests: " } else { "" };
                    let message = format!("{why}it answered with status {}", answer.status);
                    return Err(Failure::Retry { message, after, moved: false });
                }
                _ => return Ok(answer),
            }
        }
        Err(wrong(&url, "too many redirects").into())
    }

    /// Retries `attempt` until it succeeds, fails for good, or has received nothing [`MAX_ATTEMPTS`] times in a row.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub(super) fn with_retries<T>(&self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        let mut failed = 0;
        loop {
            let (message, after, moved) = match attempt() {
                Ok(done) => return Ok(done),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Retry { message, after, moved }) => (message, after, moved),
            };
            failed = if moved { 1 } else { failed + 1 };
            let wait = after.unwrap_or(self.settings.wait * 2_u32.pow(failed - 1));
            if failed >= MAX_ATTEMPTS || wait > MAX_WAIT {
                let endpoint = &self.settings.endpoint;
                return Err(HubError::Unreachable(format!("cannot read from the hub at {endpoint}: {message}")));
            }
            self.sleep(wait)?;
        }
    }

    /// The JSON at `url`; `refused` makes the error for a status other than success.
    pub(super) fn json<T: serde::de::DeserializeOwned>(
        &self,
        url: &str,
        refused: &dyn Fn(&HubAnswer) -> HubError,
    ) -> Result<T> {
        let bytes = self.with_retries(|| {
            let answer = self.request(url, 0)?;
            if answer.status != 200 {
                return Err(refused(&answer).into());
            }
            let mut bytes = Vec::new();
            let read = answer.into_body().take(MAX_ANSWER_BYTES + 1).read_to_end(&mut bytes);
            read.map_err(|error| Failure::retry(quoted(&error.to_string())))?;
            Ok(bytes)
        })?;
        if bytes.len() as u64 > MAX_ANSWER_BYTES {
            return Err(wrong(url, "its answer is too long"));
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| wrong(url, &format!("unexpected answer: {}", quoted(&error.to_string()))))
    }
}

/// Scheme, host and port of an address.
fn origin(url: &str) -> Option<(String, String, u16)> {
    let uri: ureq::http::Uri = url.parse().ok()?;
    let scheme = uri.scheme_str()?.to_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_lowercase(), port))
}

/// The address that a redirect from `from` to `to` leads to.
fn absolute(from: &str, to: &str) -> Option<String> {
    if to.starts_with("http://") || to.starts_with("https://") {
        return Some(to.to_owned());
    }
    let scheme = from.find("://")? + 3;
    if let Some(other) = to.strip_prefix("//") {
        return Some(format!("{}{other}", &from[..scheme]));
    }
    let host = from[scheme..].find('/').map_or(from.len(), |at| scheme + at);
    to.starts_with('/').then(|| format!("{}{to}", &from[..host]))
}

/// The error of an answer of `url`. The message does not have the address's query, which may be secret.
fn wrong(url: &str, message: &str) -> HubError {
    HubError::Other(format!("{}: {message}", quoted(url.split('?').next().unwrap_or(url))))
}
