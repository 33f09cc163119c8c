//! Requests to the server and its answers.

use std::fmt;
use std::io::Read as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use runner_record::RecordError;
use runner_spec::error::{Classified, ErrorKind};
use runner_spec::format::quoted_line;
use runner_spec::panics::catch_panic;
use runner_threads::threads::explain_panic;
use serde_json::{Map, Value};
use ureq::http::{Request, Uri};
use ureq::{Agent, AsSendBody};

/// A request that takes longer has failed.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// A longer answer is an error.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// The characters that an address cannot have in a part of its path or in a parameter.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The reason why something was not sent.
#[derive(Debug, thiserror::Error)]
pub enum MlflowError {
    /// The server cannot be reached, or does not work.
    #[error("{0}")]
    Unreachable(String),
    /// The server refuses the request.
    #[error("{0}")]
    Refused(String),
    /// The record cannot be read.
    #[error(transparent)]
    Store(#[from] RecordError),
}

impl Classified for MlflowError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable(_) | Self::Refused(_) => ErrorKind::Failure,
            Self::Store(error) => error.kind(),
        }
    }
}

/// The value of the header by which the server knows the user.
#[derive(Clone, Default)]
pub struct Credentials {
    authorization: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.authorization.is_some() { "Credentials(…)" } else { "Credentials(none)" })
    }
}

impl Credentials {
    /// Reads the environment variables, which `variable` gives, as MLflow's own client does: a user and a password win over a token.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let user = given("MLFLOW_TRACKING_USERNAME").zip(given("MLFLOW_TRACKING_PASSWORD"));
        let basic = user.map(|(user, password)| format!("Basic {}", BASE64.encode(format!("{user}:{password}"))));
        let token = given("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        Self { authorization: basic.or(token) }
    }

    /// The credentials for the server at `uri`, which a file names. Without `MLFLOW_TRACKING_URI`, or if it names a different server, there
    /// are none: the file may be a stranger's.
    pub fn for_server(uri: &str, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let named = variable("MLFLOW_TRACKING_URI").and_then(|named| server_of(&named));
        if named.is_some() && named == server_of(uri) { Self::from_environment(variable) } else { Self::default() }
    }
}

/// The protocol, the name and the port of the server at `uri`.
fn server_of(uri: &str) -> Option<(String, String, u16)> {
    let uri: Uri = uri.trim().parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

/// The answer to a request that the server understood.
#[derive(Debug)]
pub(crate) enum ServerAnswer {
    /// A JSON object.
    Done(Value),
    /// The thing that the request names does not exist.
    Missing,
    /// The thing that the request creates exists already.
    Exists,
}

/// Sends requests to one server.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    uri: String,
    credentials: Credentials,
}

impl Client {
    pub(crate) fn new(uri: &str, credentials: Credentials) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect would carry the user's password to another address.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("runner/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(5)))
            .build();
        Self { agent: config.into(), uri: uri.trim_end_matches('/').to_owned(), credentials }
    }

    /// Asks for `path` of the interface with one parameter.
    ///
    /// # Errors
    /// If the server does not answer or refuses.
    pub(crate) fn get(&self, path: &str, name: &str, value: &str) -> Result<ServerAnswer, MlflowError> {
        self.send("GET", &format!("2.0/mlflow/{path}?{name}={}", percent_encoded(value)), ())
    }

    /// Sends `body` to `path` of the interface.
    ///
    /// # Errors
    /// If the server does not answer or refuses.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<ServerAnswer, MlflowError> {
        self.send("POST", &format!("2.0/mlflow/{path}"), body.to_string().as_bytes())
    }

    fn send(&self, method: &str, path: &str, body: impl AsSendBody) -> Result<ServerAnswer, MlflowError> {
        let unreachable = |why: &dyn fmt::Display| MlflowError::Unreachable(quoted_line(&why.to_string()));
        let refused = |why: &dyn fmt::Display| MlflowError::Refused(quoted_line(&why.to_string()));
        let mut request = Request::builder().method(method).uri(format!("{}/api/{path}", self.uri));
        request = request.header("content-type", "application/json");
        if let Some(authorization) = &self.credentials.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.body(body).map_err(|error| refused(&error))?;
        let request = self.agent.configure_request(request).timeout_global(Some(REQUEST_TIMEOUT)).build();
        // The client starts a thread that resolves the name, and panics if the system refuses it.
        let answered = catch_panic(|| self.agent.run(request).map_err(|error| error.to_string()));
        let answered = answered.map_err(explain_panic).flatten();
        let response = answered.map_err(|error| unreachable(&error))?;
        let status = response.status().as_u16();
        let mut bytes = Vec::new();
        let reader = response.into_body().into_with_config().limit(MAX_ANSWER_BYTES + 2).reader();
        reader.take(MAX_ANSWER_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreachable(&error))?;
        let path = path.split('?').next().unwrap_or(path);
        if bytes.len() as u64 > MAX_ANSWER_BYTES {
            return Err(refused(&format!("its answer to {path} is longer than {MAX_ANSWER_BYTES} bytes")));
        }
        let answer = serde_json::from_slice::<Map<String, Value>>(&bytes).map(Value::Object);
        if status == 200 {
            return answer.map(ServerAnswer::Done).map_err(|error| {
                refused(&format!("its answer to {path} is not a JSON object ({error}); is it an MLflow server?"))
            });
        }
        let error_text = |key: &str| answer.as_ref().ok().and_then(|answer| answer[key].as_str());
        match (status, error_text("error_code")) {
            (404, Some("RESOURCE_DOES_NOT_EXIST")) => Ok(ServerAnswer::Missing),
            (400, Some("RESOURCE_ALREADY_EXISTS")) => Ok(ServerAnswer::Exists),
            (408 | 425 | 429 | 500..=599, _) => Err(unreachable(&format!("it answers with status {status}"))),
            (401 | 403, _) => Err(refused(&format!(
                "it answers with status {status}; set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and \
                 MLFLOW_TRACKING_PASSWORD, and MLFLOW_TRACKING_URI if only a file names this server"
            ))),
            (_, code) => {
                let (code, message) = (code.unwrap_or("no reason"), error_text("message").unwrap_or_default());
                Err(refused(&format!("it refuses {path} with status {status}: {code} {message}")))
            }
        }
    }
}

/// `text` as a part of an address.
fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestServer;

    #[test]
    fn credentials_are_those_of_mlflow_s_client_and_are_not_shown() {
        let read = |given: &[(&str, &str)]| {
            let find = |name: &str| given.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            Credentials::from_environment(&find)
        };
        let token = ("MLFLOW_TRACKING_TOKEN", "abc");
        let user = [("MLFLOW_TRACKING_USERNAME", "me"), ("MLFLOW_TRACKING_PASSWORD", "pw"), token];
        assert_eq!(read(&[]).authorization, None);
        assert_eq!(read(&[token]).authorization.as_deref(), Some("Bearer abc"));
        assert_eq!(read(&user).authorization.as_deref(), Some("Basic bWU6cHc="));
        assert_eq!(read(&user[..1]).authorization, None, "a user without a password");
        assert!(!format!("{:?}", read(&user)).contains("bWU6"));
        let sent = |named: &str, uri: &str| {
            let given = [token, ("MLFLOW_TRACKING_URI", named)];
            let find = |name: &str| given.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            Credentials::for_server(uri, &find).authorization.is_some()
        };
        for (named, uri) in [
            ("http://localhost:5000", "http://localhost:5000/"),
            ("https://Host.example/mlflow/", "https://host.example:443"),
        ] {
            assert!(sent(named, uri), "{uri}");
        }
        for uri in [
            "http://host.example",
            "https://host.example:8443",
            "https://host.example.evil.example",
            "https://host.example@evil.example",
            "https://evil.example/host.example",
        ] {
            assert!(!sent("https://host.example", uri), "{uri}");
        }
        assert!(!sent("", "") && !sent("mlruns", "mlruns"), "no addresses");
    }

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(percent_encoded("a b/ü?"), "a%20b%2F%C3%BC%3F");
    }

    #[test]
    fn only_a_json_object_is_a_success() {
        let answered = |status: u16, body: &str| {
            let body = body.to_owned();
            let server = TestServer::start(move |_| (status, body.clone()));
            let answer = Client::new(&server.uri, Credentials::default()).post("runs/log-batch", &Value::Null);
            assert_eq!(server.requests(), ["POST /api/2.0/mlflow/runs/log-batch"]);
            answer
        };
        assert!(matches!(answered(200, "{\"a\": 1}"), Ok(ServerAnswer::Done(answer)) if answer["a"] == 1));
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(MAX_ANSWER_BYTES as usize));
        for (body, message) in [
            ("<html>Log in</html>", "is it an MLflow server?"),
            ("", "is not a JSON object"),
            ("[1]", "is not a JSON object"),
            (&long, "is longer than 1048576 bytes"),
        ] {
            let error = answered(200, body).unwrap_err();
            assert!(matches!(&error, MlflowError::Refused(text) if text.contains(message)), "{error}");
        }
        assert!(matches!(answered(503, "busy"), Err(MlflowError::Unreachable(_))));
        let error = answered(401, "no").unwrap_err().to_string();
        assert!(error.contains("MLFLOW_TRACKING_TOKEN"), "{error}");
        assert!(matches!(answered(404, "{\"error_code\": \"RESOURCE_DOES_NOT_EXIST\"}"), Ok(ServerAnswer::Missing)));
    }
}
