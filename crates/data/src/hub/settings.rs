//! The settings of the hub, from the environment variables that Python's huggingface_hub reads.

use std::path::PathBuf;
use std::time::Duration;

use super::error::{HubError, Result};
use runner_files::read_regular_text;

const ENDPOINT: &str = "https://huggingface.co";

/// The hub's address, the cache of its files, and the access token.
#[derive(Clone)]
pub struct Settings {
    /// Without a slash at its end.
    pub endpoint: String,
    /// The folder of repositories, as huggingface_hub lays it out.
    pub cache: PathBuf,
    /// The folder for lists of the files of commits.
    pub memos: PathBuf,
    /// Sent to the endpoint, and to no other host.
    pub token: Option<String>,
    /// True if no requests may be sent.
    pub offline: bool,
    /// The wait before the second attempt; it doubles before each further one.
    pub wait: Duration,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "…");
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("token", &token)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads the environment variables, which `variable` gives: `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`. `memos` is a folder for lists of files.
    ///
    /// # Errors
    /// If a variable has an illegal value, or there is no folder for the cache.
    pub fn new(variable: &dyn Fn(&str) -> Option<String>, memos: PathBuf) -> Result<Self> {
        let given = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let wrong = |message: String| Err(HubError::Request(message));
        let endpoint = given("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
        if host.is_none_or(|host| {
            host.is_empty() || host.contains(|c: char| c.is_whitespace() || matches!(c, '?' | '#' | '@'))
        }) {
            return wrong(format!("HF_ENDPOINT must be an address such as {ENDPOINT}, got {endpoint:?}"));
        }
        let home = given("HF_HOME").map(PathBuf::from).or_else(|| {
            let caches = given("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| Some(PathBuf::from(given("HOME")?).join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let cache = given("HF_HUB_CACHE").or_else(|| given("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
        let Some(cache) = cache.or_else(|| Some(home.as_ref()?.join("hub"))) else {
            return wrong("no folder for files of the hub: set HF_HOME".to_owned());
        };
        let cache = std::path::absolute(&cache).map_err(HubError::io(&cache))?;
        let file = given("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("token")));
        let token = given("HF_TOKEN").or_else(|| given("HUGGING_FACE_HUB_TOKEN"));
        let token = token.or_else(|| read_regular_text(&file?).ok());
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| token.contains(|c: char| !c.is_ascii_graphic())) {
            return wrong("HF_TOKEN must not contain blanks or characters beyond ASCII".to_owned());
        }
        let yes = |value: String| matches!(value.trim().to_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
        let offline = given("HF_HUB_OFFLINE").is_some_and(yes);
        Ok(Self { endpoint, cache, memos, token, offline, wait: Duration::from_millis(400) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(given: &[(&str, &str)]) -> Result<Settings> {
        let variable = |name: &str| given.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Settings::new(&variable, PathBuf::new())
    }

    #[test]
    fn variables_are_those_of_huggingface_hub() {
        let plain = settings(&[("HOME", "/home/me")]).unwrap();
        assert_eq!((plain.endpoint.as_str(), plain.offline, plain.token), (ENDPOINT, false, None));
        assert_eq!(plain.cache, PathBuf::from("/home/me/.cache/huggingface/hub"));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "hf_abc\n").unwrap();
        let home = dir.path().to_str().unwrap();
        let all = [("HF_HOME", home), ("HF_ENDPOINT", "http://localhost:80/"), ("HF_HUB_OFFLINE", "yes")];
        let set = settings(&all).unwrap();
        assert_eq!(
            (set.endpoint.as_str(), set.offline, set.token.as_deref()),
            ("http://localhost:80", true, Some("hf_abc"))
        );
        assert_eq!(set.cache, dir.path().join("hub"));
        assert!(!format!("{set:?}").contains("abc"));
        let set = settings(&[("HF_HOME", home), ("HF_TOKEN", "hf_x"), ("HF_HUB_CACHE", "/c")]).unwrap();
        assert_eq!((set.token.as_deref(), set.cache), (Some("hf_x"), PathBuf::from("/c")));
        for wrong in
            [("HF_ENDPOINT", "localhost"), ("HF_ENDPOINT", "http://"), ("HF_TOKEN", "a b"), ("HF_TOKEN", "a\nb")]
        {
            assert!(settings(&[("HOME", "/h"), wrong]).is_err(), "{wrong:?}");
        }
        assert!(settings(&[]).unwrap_err().to_string().contains("set HF_HOME"));
    }
}
