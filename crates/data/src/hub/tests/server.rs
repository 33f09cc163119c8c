//! For tests: a server on loopback, which notes what it is asked, and breaks off where it is told to; a hub of it; and who asks it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ring::digest::{SHA256, digest};

use super::super::fetch::hex;
use super::super::{LoweredData, Settings, lower};
use runner_spec::experiment::{Data, HubSource, Layout, Source, Tokenizer};

#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// The connection ends after so many bytes of the body.
    pub(super) cut: Option<usize>,
    /// In chunks, so that nothing tells its length.
    pub(super) chunked: bool,
    /// Until the connection ends.
    pub(super) endless: bool,
}

impl Reply {
    pub(super) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// The reply of a broken server to a request for this content.
pub(super) type Broken = fn(&Asked, &[u8]) -> Reply;
pub(super) type Answering = dyn Fn(&Asked, usize) -> Reply + Send + Sync;

/// A server, and what it was asked.
pub(super) struct Server {
    pub(super) address: String,
    pub(super) asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// `answer` also hears how often it was called before.
    pub(super) fn start(answer: Arc<Answering>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, log) = (answer.clone(), log.clone());
                thread::spawn(move || serve(stream, &*answer, &log));
            }
        });
        Self { address, asked }
    }

    pub(super) fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, answer: &Answering, log: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let asked = Asked { method, path, headers };
    let before = {
        let mut log = log.lock().unwrap();
        log.push(asked.clone());
        log.len() - 1
    };
    let reply = answer(&asked, before);
    let length = if reply.chunked {
        "transfer-encoding: chunked\r\n".to_owned()
    } else if reply.endless {
        String::new()
    } else {
        format!("content-length: {}\r\n", reply.body.len())
    };
    let mut head = format!("HTTP/1.1 {} x\r\nconnection: close\r\n{length}", reply.status);
    for (name, value) in &reply.headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    stream.write_all((head + "\r\n").as_bytes()).ok()?;
    if asked.method != "HEAD" {
        let sent = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
        for chunk in sent.chunks(1000) {
            let framed = if reply.chunked {
                [&format!("{:x}\r\n", chunk.len()).into_bytes(), chunk, b"\r\n"].concat()
            } else {
                chunk.to_vec()
            };
            stream.write_all(&framed).ok()?;
        }
        if reply.chunked && reply.cut.is_none() {
            stream.write_all(b"0\r\n\r\n").ok()?;
        }
    }
    stream.flush().ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    // Until the other side has it: closing at once could take it back.
    let _ = reader.read(&mut [0; 64]);
    Some(())
}

/// `content`, or the part that is asked for.
pub(super) fn ranged(asked: &Asked, content: &[u8]) -> Reply {
    let from =
        asked.headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        None => Reply::new(200, content),
        Some(from) if from >= content.len() => Reply::new(416, ""),
        Some(from) => Reply::new(206, &content[from..])
            .with("content-range", format!("bytes {from}-{}/{}", content.len() - 1, content.len())),
    }
}

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(super) const CONVERTED: &str = "89abcdef0123456789abcdef0123456789abcdef";

pub(super) fn etag(content: &[u8]) -> String {
    hex(digest(&SHA256, content).as_ref())
}

/// The content of the server: repository, commit and files.
pub(super) type Files = Vec<(&'static str, &'static str, Vec<(&'static str, Vec<u8>)>)>;

/// A hub of `files` that redirects to `cdn` what ends in .parquet.
pub(super) fn hub(files: Files, cdn: Option<String>) -> Arc<Answering> {
    Arc::new(move |asked, _| {
        let path = asked.path.as_str();
        for (name, commit, files) in &files {
            let revisions = [*commit, if *commit == CONVERTED { "refs%2Fconvert%2Fparquet" } else { "main" }];
            for revision in revisions {
                if path == format!("/api/{name}/revision/{revision}") {
                    let siblings: Vec<_> = files.iter().map(|(f, _)| serde_json::json!({"rfilename": f})).collect();
                    let info = serde_json::json!({"id": name, "sha": commit, "siblings": siblings, "tags": []});
                    return Reply::new(200, info.to_string());
                }
            }
            let place = name.strip_prefix("models/").unwrap_or(name);
            let Some(file) = path.strip_prefix(&format!("/{place}/resolve/{commit}/")) else { continue };
            let Some((_, content)) = files.iter().find(|(f, _)| *f == file) else { continue };
            let tag = format!("\"{}\"", etag(content));
            if let Some(cdn) = cdn.as_ref().filter(|_| file.ends_with(".parquet")) {
                return Reply::new(302, "moved")
                    .with("location", format!("{cdn}/blob/{}?secret=1", etag(content)))
                    .with("etag", "\"of-the-redirect\"")
                    .with("x-linked-etag", tag)
                    .with("x-linked-size", content.len().to_string())
                    .with("x-repo-commit", *commit);
            }
            return ranged(asked, content).with("etag", tag).with("x-repo-commit", *commit);
        }
        Reply::new(404, "{}").with("x-error-code", "RepoNotFound")
    })
}

pub(super) struct Here {
    pub(super) folder: tempfile::TempDir,
    pub(super) settings: Settings,
}

impl Here {
    pub(super) fn new(endpoint: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            endpoint: endpoint.to_owned(),
            cache: folder.path().join("hub"),
            token: Some("hf_secret".to_owned()),
            offline: false,
            wait: Duration::from_millis(1),
        };
        Self { folder, settings }
    }

    pub(super) fn lower(&self, data: &Data) -> Result<LoweredData, String> {
        lower(data, None, &self.settings, &self.folder.path().join("memos"), &|_| ()).map_err(|error| {
            assert!(!format!("{error:?}").contains("hf_secret"));
            error.to_string()
        })
    }

    pub(super) fn repo(&self, name: &str) -> PathBuf {
        self.settings.cache.join(name)
    }
}

pub(super) fn source(dataset: &str, config: Option<&str>, split: &str) -> HubSource {
    HubSource {
        dataset: dataset.to_owned(),
        config: config.map(str::to_owned),
        split: split.to_owned(),
        column: Some("text".to_owned()),
        template: None,
        revision: "main".to_owned(),
    }
}

pub(super) fn data(train: HubSource) -> Data {
    Data {
        tokenizer: Tokenizer::Bytes {},
        train: Source::Hub(train),
        validation: None,
        layout: Layout::Packed { length: 8 },
        shuffle: true,
        drop_last: false,
    }
}

pub(super) fn local(lowered: &LoweredData) -> Vec<PathBuf> {
    match &lowered.local.train {
        Source::Parquet(from) => from.files.clone(),
        Source::Jsonl(from) | Source::Json(from) => from.files.clone(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn read(lowered: &LoweredData) -> Vec<Vec<u8>> {
    local(lowered).iter().map(|path| fs::read(path).unwrap()).collect()
}

pub(super) const REFS: &str = r#"{"branches": [{"name": "man", "ref": "refs/heads/man"}], "converts": [], "tags": []}"#;
pub(super) const CARD: &str = "---\nconfigs:\n- config_name: small\n  data_files:\n  - split: train\n    path: sample/*.parquet\n  - split: test\n    path: test.jsonl\n---\n";

pub(super) fn fine() -> Files {
    let large: Vec<u8> = (0..600_000_u32).map(|i| (i % 251) as u8).collect();
    vec![(
        "datasets/own/fine",
        COMMIT,
        vec![
            ("README.md", CARD.into()),
            ("sample/000.parquet", large),
            ("sample/001.parquet", b"PAR1 second".to_vec()),
            ("test.jsonl", b"{\"text\": \"a\"}\n".to_vec()),
            ("other/x.parquet", b"never asked for".to_vec()),
        ],
    )]
}

/// A server of blobs, and a hub that redirects to it.
pub(super) fn pair() -> (Server, Server) {
    let contents: Vec<Vec<u8>> = fine()[0].2.iter().map(|(_, content)| content.clone()).collect();
    let cdn = Server::start(Arc::new(move |asked, _| {
        let found = contents.iter().find(|c| asked.path == format!("/blob/{}?secret=1", etag(c)));
        found.map_or(Reply::new(404, ""), |content| ranged(asked, content))
    }));
    let hub = Server::start(hub(fine(), Some(cdn.address.clone())));
    (hub, cdn)
}
