//! Requests to the server and its answers.

use std::fmt;
use std::io::Read as _;
use std::time::Duration;

use runner_store::StoreError;
use serde_json::Value;
use ureq::Agent;
use ureq::http::Request;

/// A request that takes longer has failed.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// The reason why something was not sent.
#[derive(Debug, thiserror::Error)]
pub enum MlflowError {
    /// The server cannot be reached, or does not work.
    #[error("{0}")]
    Unreachable(String),
    /// The server refuses the request.
    #[error("{0}")]
    Refused(String),
    /// The record cannot be read, or the position in it not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
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
        let basic = user.map(|(user, password)| format!("Basic {}", base64(format!("{user}:{password}").as_bytes())));
        let token = given("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        Self { authorization: basic.or(token) }
    }
}

/// `bytes` in the alphabet of RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0_usize, |bits, i| bits << 8 | usize::from(group.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let digit = ALPHABET[bits >> (18 - 6 * i) & 63];
            text.push(if i <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The answer to a request that the server understood.
#[derive(Debug)]
pub(crate) enum Answer {
    Done(Value),
    /// What the request names does not exist.
    Missing,
    /// What the request creates exists.
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
            .timeout_global(Some(REQUEST_TIMEOUT))
            .build();
        Self { agent: config.into(), uri: uri.trim_end_matches('/').to_owned(), credentials }
    }

    /// Asks for `path` of the interface with one parameter.
    ///
    /// # Errors
    /// If the server does not answer or refuses.
    pub(crate) fn get(&self, path: &str, name: &str, value: &str) -> Result<Answer, MlflowError> {
        self.send("GET", &format!("2.0/mlflow/{path}?{name}={}", percent_encoded(value)), &[])
    }

    /// Sends `body` to `path` of the interface.
    ///
    /// # Errors
    /// If the server does not answer or refuses.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Answer, MlflowError> {
        self.send("POST", &format!("2.0/mlflow/{path}"), body.to_string().as_bytes())
    }

    /// Stores the file `path` where the server keeps files.
    ///
    /// # Errors
    /// If the server does not answer or refuses.
    pub(crate) fn put_file(&self, path: &str, bytes: &[u8]) -> Result<Answer, MlflowError> {
        let path: Vec<String> = path.split('/').map(percent_encoded).collect();
        self.send("PUT", &format!("2.0/mlflow-artifacts/artifacts/{}", path.join("/")), bytes)
    }

    fn send(&self, method: &str, path: &str, body: &[u8]) -> Result<Answer, MlflowError> {
        let unreachable = |why: &dyn fmt::Display| MlflowError::Unreachable(one_line(&why.to_string()));
        let kind = if method == "PUT" { "application/octet-stream" } else { "application/json" };
        let mut request = Request::builder().method(method).uri(format!("{}/api/{path}", self.uri));
        request = request.header("content-type", kind);
        if let Some(authorization) = &self.credentials.authorization {
            request = request.header("authorization", authorization);
        }
        let refused = |why: String| MlflowError::Refused(one_line(&why));
        let response = if method == "GET" {
            self.agent.run(request.body(()).map_err(|error| refused(error.to_string()))?)
        } else {
            self.agent.run(request.body(body).map_err(|error| refused(error.to_string()))?)
        };
        let response = response.map_err(|error| unreachable(&error))?;
        let status = response.status().as_u16();
        let mut text = String::new();
        let reader = response.into_body().into_with_config().limit(MAX_ANSWER_BYTES + 1).reader();
        reader.take(MAX_ANSWER_BYTES).read_to_string(&mut text).map_err(|error| unreachable(&error))?;
        let answer: Value = serde_json::from_str(&text).unwrap_or_default();
        match (status, answer["error_code"].as_str()) {
            (200, _) => Ok(Answer::Done(answer)),
            (404, Some("RESOURCE_DOES_NOT_EXIST")) => Ok(Answer::Missing),
            (400, Some("RESOURCE_ALREADY_EXISTS")) => Ok(Answer::Exists),
            (408 | 425 | 429 | 500..=599, _) => Err(unreachable(&format!("it answers with status {status}"))),
            (401 | 403, _) => Err(refused(format!(
                "it answers with status {status}: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and \
                 MLFLOW_TRACKING_PASSWORD, give what it asks for"
            ))),
            (_, code) => {
                let what = code.unwrap_or("no reason").to_owned();
                let message = answer["message"].as_str().unwrap_or_default();
                Err(refused(format!("it refuses {} with status {status}: {what} {message}", path_of(path))))
            }
        }
    }
}

/// `path` without its parameters.
fn path_of(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

/// Foreign text for a message: one line of limited length, without control characters.
fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    plain.trim().to_owned()
}

/// `text` as a part of an address.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (text, encoded) in cases {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
    }

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
    }

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(percent_encoded("a b/ü?"), "a%20b%2F%C3%BC%3F");
    }
}
