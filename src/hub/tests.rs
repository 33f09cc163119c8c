//! Against a server on loopback that answers as the hub does, and one on another port that files are redirected to.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::*;
use crate::config::experiment::{Data, HubSource, Layout, Source, Tokenizer, Validation};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CONVERTED: &str = "89abcdef0123456789abcdef0123456789abcdef";

#[derive(Debug, Clone)]
struct Asked {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// The connection ends after so many bytes of the body.
    cut: Option<usize>,
}

impl Reply {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// What a broken server makes of a request and of the content that is asked for.
type Broken = fn(&Asked, &[u8]) -> Reply;
type Answering = dyn Fn(&Asked, usize) -> Reply + Send + Sync;

/// A server, and what it was asked.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// `answer` also hears how often it was called before.
    fn start(answer: Arc<Answering>) -> Self {
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

    fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn asked(&self) -> Vec<Asked> {
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
    let mut head =
        format!("HTTP/1.1 {} x\r\nconnection: close\r\ncontent-length: {}\r\n", reply.status, reply.body.len());
    for (name, value) in &reply.headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    stream.write_all((head + "\r\n").as_bytes()).ok()?;
    if asked.method != "HEAD" {
        stream.write_all(&reply.body[..reply.cut.unwrap_or(reply.body.len())]).ok()?;
    }
    stream.flush().ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    // Until the other side has it: closing at once could take it back.
    let _ = reader.read(&mut [0; 64]);
    Some(())
}

/// `content`, or the part that is asked for.
fn ranged(asked: &Asked, content: &[u8]) -> Reply {
    let from =
        asked.headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        None => Reply::new(200, content),
        Some(from) if from >= content.len() => Reply::new(416, ""),
        Some(from) => Reply::new(206, &content[from..])
            .with("content-range", format!("bytes {from}-{}/{}", content.len() - 1, content.len())),
    }
}

fn etag(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

/// What the server has: repository, commit and files.
type Files = Vec<(&'static str, &'static str, Vec<(&'static str, Vec<u8>)>)>;

/// A hub of `files` that redirects to `cdn` what ends in .parquet.
fn hub(files: Files, cdn: Option<String>) -> Arc<Answering> {
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

struct Here {
    folder: tempfile::TempDir,
    settings: Settings,
}

impl Here {
    fn new(endpoint: &str) -> Self {
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

    fn lower(&self, data: &Data) -> Result<Lowered, String> {
        lower(data, None, &self.settings, &self.folder.path().join("memos"), &|_| ()).map_err(|error| {
            assert!(!format!("{error:?}").contains("hf_secret"));
            error.to_string()
        })
    }

    fn repo(&self, name: &str) -> PathBuf {
        self.settings.cache.join(name)
    }
}

fn source(dataset: &str, config: Option<&str>, split: &str) -> HubSource {
    HubSource {
        dataset: dataset.to_owned(),
        config: config.map(str::to_owned),
        split: split.to_owned(),
        column: Some("text".to_owned()),
        template: None,
        revision: "main".to_owned(),
    }
}

fn data(train: HubSource) -> Data {
    Data {
        tokenizer: Tokenizer::Bytes {},
        train: Source::Hub(train),
        validation: None,
        layout: Layout::Packed { length: 8 },
        shuffle: true,
        drop_last: false,
    }
}

fn local(lowered: &Lowered) -> Vec<PathBuf> {
    match &lowered.local.train {
        Source::Parquet(from) => from.files.clone(),
        Source::Jsonl(from) | Source::Json(from) => from.files.clone(),
        other => panic!("{other:?}"),
    }
}

fn read(lowered: &Lowered) -> Vec<Vec<u8>> {
    local(lowered).iter().map(|path| fs::read(path).unwrap()).collect()
}

const REFS: &str = r#"{"branches": [{"name": "man", "ref": "refs/heads/man"}], "converts": [], "tags": []}"#;
const CARD: &str = "---\nconfigs:\n- config_name: small\n  data_files:\n  - split: train\n    path: sample/*.parquet\n  - split: test\n    path: test.jsonl\n---\n";

fn fine() -> Files {
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
fn pair() -> (Server, Server) {
    let contents: Vec<Vec<u8>> = fine()[0].2.iter().map(|(_, content)| content.clone()).collect();
    let cdn = Server::start(Arc::new(move |asked, _| {
        let found = contents.iter().find(|c| asked.path == format!("/blob/{}?secret=1", etag(c)));
        found.map_or(Reply::new(404, ""), |content| ranged(asked, content))
    }));
    let hub = Server::start(hub(fine(), Some(cdn.address.clone())));
    (hub, cdn)
}

#[test]
fn a_split_is_downloaded_once_and_the_token_stays_with_the_hub() {
    let (hub, cdn) = pair();
    let mut here = Here::new(&hub.address);
    let mut wanted = data(source("own/fine", Some("small"), "train"));
    wanted.validation = Some(Validation::Hub(source("own/fine", Some("small"), "test")));
    let lowered = here.lower(&wanted).unwrap();
    let contents: Vec<Vec<u8>> = fine()[0].2[1..3].iter().map(|(_, content)| content.clone()).collect();
    assert!(read(&lowered) == contents);
    assert!(
        matches!(&lowered.local.validation, Some(Validation::Jsonl(from)) if from.files[0].ends_with("test.jsonl"))
    );
    let Source::Hub(pinned) = &lowered.pinned.train else { panic!() };
    assert_eq!(*pinned, HubSource { revision: COMMIT.to_owned(), ..source("own/fine", Some("small"), "train") });

    assert!(hub.asked().iter().all(|asked| asked.headers["authorization"] == "Bearer hf_secret"));
    assert_eq!(cdn.count(), 2);
    assert!(cdn.asked().iter().all(|asked| !asked.headers.contains_key("authorization")));
    assert!(!hub.asked().iter().any(|asked| asked.path.contains("other/")));

    // As huggingface_hub lays it out.
    let repo = here.repo("datasets--own--fine");
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let pointer = repo.join("snapshots").join(COMMIT).join("sample/000.parquet");
    assert_eq!(fs::read_link(pointer).unwrap(), Path::new("../../../blobs").join(etag(&contents[0])));
    assert!(
        fs::read_dir(repo.join("blobs")).unwrap().all(|e| !e.unwrap().path().to_string_lossy().contains("incomplete"))
    );

    // Everything is there: nobody is asked, whether that is allowed or not, and by commit as by branch.
    let before = (hub.count(), cdn.count());
    assert_eq!(here.lower(&wanted).unwrap(), lowered);
    assert_eq!(here.lower(&lowered.pinned).unwrap(), lowered);
    here.settings.offline = true;
    assert_eq!(here.lower(&wanted).unwrap(), lowered);
    assert_eq!((hub.count(), cdn.count()), before);
    let other = here.lower(&data(source("own/fine", Some("smal"), "train"))).unwrap_err();
    assert!(other.contains("no configuration `smal`: did you mean `small`?"), "{other}");
    let other = here.lower(&data(source("own/other", None, "train"))).unwrap_err();
    assert!(
        other.contains("dataset own/other (main) is not in the cache") && other.ends_with("HF_HUB_OFFLINE is set"),
        "{other}"
    );
    assert_eq!((hub.count(), cdn.count()), before);
}

#[test]
fn a_broken_download_goes_on_where_it_broke() {
    let large = fine()[0].2[1].1.clone();
    let content = large.clone();
    // Every answer breaks off after 250,000 bytes.
    let cdn = Server::start(Arc::new(move |asked, _| {
        let reply = ranged(asked, &content);
        Reply { cut: Some(reply.body.len().min(250_000)), ..reply }
    }));
    let mut files = fine();
    files[0].2.truncate(2);
    let hub = Server::start(hub(files, Some(cdn.address.clone())));
    let here = Here::new(&hub.address);
    assert!(read(&here.lower(&data(source("own/fine", Some("small"), "train"))).unwrap()) == [large.clone()]);
    let ranges: Vec<_> = cdn.asked().iter().map(|asked| asked.headers.get("range").cloned()).collect();
    assert_eq!(ranges.len(), 3);
    assert_eq!((ranges[0].clone(), ranges[2].as_deref()), (None, Some("bytes=500000-")));

    // One that was begun by huggingface_hub goes on, too; what is longer than the file is none of it.
    for begun in [&large[..400_000], &vec![0; 700_000][..]] {
        let here = Here::new(&hub.address);
        let blobs = here.repo("datasets--own--fine").join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.incomplete", etag(&large))), begun).unwrap();
        assert!(read(&here.lower(&data(source("own/fine", Some("small"), "train"))).unwrap()) == [large.clone()]);
    }
}

#[test]
fn a_server_that_never_sends_all_is_given_up() {
    let large = fine()[0].2[1].1.clone();
    let cases: [(Broken, &str); 4] = [
        // Always from the beginning, always cut.
        (|_, all| Reply { cut: Some(1000), ..Reply::new(200, all) }, "after 1000 of 600000 bytes"),
        (|_, all| Reply::new(200, &all[..5]), "after 5 of 600000 bytes"),
        (|_, all| Reply::new(200, [all, all].concat()), "it goes on behind its end"),
        (|_, _| Reply::new(503, "busy"), "status 503"),
    ];
    for (answer, expected) in cases {
        let content = large.clone();
        let cdn = Server::start(Arc::new(move |asked, _| answer(asked, &content)));
        let hub = Server::start(hub(fine(), Some(cdn.address.clone())));
        let here = Here::new(&hub.address);
        let message = here.lower(&data(source("own/fine", Some("small"), "train"))).unwrap_err();
        assert!(
            message.contains("`sample/000.parquet` of dataset own/fine") && message.contains(expected),
            "{message}"
        );
        assert!(cdn.count() <= 6, "{}", cdn.count());
        let snapshot = here.repo("datasets--own--fine").join("snapshots").join(COMMIT).join("sample");
        assert!(!snapshot.exists());
    }
}

#[test]
fn refusals_say_what_to_do() {
    let refused = |status: u16, code: &'static str, extra: &'static [(&'static str, &'static str)]| {
        let server = Server::start(Arc::new(move |asked: &Asked, _| {
            for (path, body) in extra {
                if asked.path.starts_with(path) {
                    return Reply::new(200, *body);
                }
            }
            Reply::new(status, "{\"error\": \"x\"}").with("x-error-code", code).with("x-error-message", "said so")
        }));
        let here = Here::new(&server.address);
        let message = here.lower(&data(source("own/fine", None, "train"))).unwrap_err();
        (message.replace(&server.address, "HUB"), server.count())
    };
    assert_eq!(
        refused(401, "RepoNotFound", &[]).0,
        "data.train.hub: dataset own/fine is not there, or not for everybody: the token has no right to it (the hub says: said so)"
    );
    let gated = refused(403, "GatedRepo", &[]).0;
    assert!(gated.contains("is gated: accept its terms at HUB/datasets/own/fine, and set HF_TOKEN"), "{gated}");
    let found = refused(404, "RepoNotFound", &[("/api/datasets?search=fine", r#"[{"id": "owner/fine"}]"#)]).0;
    assert_eq!(found, "data.train.hub: there is no dataset own/fine at HUB: did you mean `owner/fine`?");
    let found = refused(404, "RevisionNotFound", &[("/api/datasets/own/fine/refs", REFS)]).0;
    assert_eq!(found, "data.train.hub: dataset own/fine has no revision `main`: did you mean `man`? there is `man`");
    for status in [429, 500] {
        let (message, count) = refused(status, "", &[]);
        assert!(message.contains(&format!("status {status}")) && message.contains("not in the cache"), "{message}");
        assert_eq!(count, 5);
    }
    // Nobody there.
    let message = Here::new("http://127.0.0.1:1").lower(&data(source("own/fine", None, "train"))).unwrap_err();
    assert!(message.contains("is not in the cache") && message.contains("127.0.0.1:1 cannot be read"), "{message}");
    let mut nobody = Here::new("http://127.0.0.1:1");
    nobody.settings.token = None;
    assert!(nobody.lower(&data(source("own/fine", None, "train"))).is_err());
}

#[test]
fn answers_that_mean_harm_are_refused() {
    let info = |sha: &str, file: &str| serde_json::json!({"sha": sha, "siblings": [{"rfilename": file}]}).to_string();
    let bodies = [
        info(COMMIT, "../../x.parquet"),
        info(COMMIT, "/etc/x.parquet"),
        info("../../etc", "train.parquet"),
        "{".to_owned(),
        "[]".to_owned(),
        "{\"sha\": 3}".to_owned(),
        "[".repeat(100_000),
    ];
    for body in bodies {
        let shown = body[..60.min(body.len())].to_owned();
        let server = Server::start(Arc::new(move |_, _| Reply::new(200, body.as_str())));
        let here = Here::new(&server.address);
        let message = here.lower(&data(source("own/fine", None, "train"))).unwrap_err();
        assert!(message.contains("answer"), "{shown}: {message}");
        assert!(!here.settings.cache.exists(), "{shown}");
    }
    for (name, value) in
        [("etag", "\"../../../x\""), ("x-repo-commit", CONVERTED), ("x-linked-size", "-1"), ("location", "ftp://x")]
    {
        let listing = info(COMMIT, "train.parquet");
        let server = Server::start(Arc::new(move |asked: &Asked, _| {
            if asked.path.starts_with("/api") {
                return Reply::new(200, listing.as_str());
            }
            let status = if name == "location" { 302 } else { 200 };
            let mut reply = Reply::new(status, "abc").with(name, value);
            for (other, usual) in [("etag", "\"abc\""), ("x-repo-commit", COMMIT)] {
                if other != name {
                    reply = reply.with(other, usual);
                }
            }
            reply
        }));
        let here = Here::new(&server.address);
        let message = here.lower(&data(source("own/fine", None, "train"))).unwrap_err();
        assert!(message.contains("hub") && !here.folder.path().join("x").exists(), "{name}: {message}");
        assert!(!here.repo("datasets--own--fine").join("snapshots").exists(), "{name}");
    }
    // Redirects in a circle.
    let server = Server::start(Arc::new(|asked: &Asked, _| Reply::new(307, "").with("location", asked.path.clone())));
    assert!(Here::new(&server.address).lower(&data(source("a/b", None, "train"))).unwrap_err().contains("without end"));
}

#[test]
fn what_huggingface_hub_cached_is_used() {
    let mut here = Here::new("http://127.0.0.1:1");
    here.settings.offline = true;
    let repo = here.repo("datasets--tatsu-lab--alpaca");
    for folder in ["blobs", "refs"] {
        fs::create_dir_all(repo.join(folder)).unwrap();
    }
    let data_folder = repo.join("snapshots").join(COMMIT).join("data");
    fs::create_dir_all(&data_folder).unwrap();
    fs::write(repo.join("refs/main"), COMMIT).unwrap();
    fs::write(repo.join("blobs/abc123"), "PAR1").unwrap();
    let name = "train-00000-of-00001-a09b74b3ef9c3b56.parquet";
    std::os::unix::fs::symlink("../../../blobs/abc123", data_folder.join(name)).unwrap();
    let wanted = data(source("tatsu-lab/alpaca", None, "train"));
    let lowered = here.lower(&wanted).unwrap();
    assert_eq!(local(&lowered), [data_folder.join(name)]);
    // One of two is not all.
    fs::rename(data_folder.join(name), data_folder.join("train-00000-of-00002.parquet")).unwrap();
    let message = here.lower(&wanted).unwrap_err();
    assert!(message.contains("the cache has 1 of the 2 files"), "{message}");
    // A link to nowhere is no file.
    fs::remove_file(repo.join("blobs/abc123")).unwrap();
    assert!(here.lower(&wanted).unwrap_err().contains("is not in the cache"));
}

#[test]
fn what_the_hub_converted_is_read_where_there_is_nothing_else() {
    let files: Files = vec![
        ("datasets/own/plain", COMMIT, vec![("README.md", b"# plain".to_vec()), ("input.txt", b"x".to_vec())]),
        ("datasets/own/plain", CONVERTED, vec![("default/train/0000.parquet", b"PAR1".to_vec())]),
    ];
    let server = Server::start(hub(files, None));
    let here = Here::new(&server.address);
    let lowered = here.lower(&data(source("own/plain", None, "train"))).unwrap();
    assert!(local(&lowered)[0].ends_with(format!("{CONVERTED}/default/train/0000.parquet")));
    let Source::Hub(pinned) = &lowered.pinned.train else { panic!() };
    assert_eq!(pinned.revision, CONVERTED);
    let count = server.count();
    assert_eq!(here.lower(&lowered.pinned).unwrap(), lowered);
    assert_eq!(here.lower(&data(source("own/plain", None, "train"))).unwrap(), lowered);
    assert_eq!(server.count(), count);
    let message = here.lower(&data(source("own/plain", None, "test"))).unwrap_err();
    assert!(message.contains("no parquet or JSON files"), "{message}");
}

#[test]
fn tokenizers_are_one_file_or_two() {
    let both = vec![("vocab.json", b"{}".to_vec()), ("merges.txt", b"#".to_vec()), ("config.json", b"{}".to_vec())];
    let files: Files = vec![
        ("models/gpt2", COMMIT, vec![("tokenizer.json", b"{}".to_vec()), ("vocab.json", b"{}".to_vec())]),
        ("models/own/pair", COMMIT, both),
        ("models/own/none", COMMIT, vec![("config.json", b"{}".to_vec())]),
    ];
    let server = Server::start(hub(files, None));
    let here = Here::new(&server.address);
    let tokenizer = |name: &str| {
        let train = Source::Text { files: Vec::new() };
        let tokenizer = Tokenizer::Hub { name: name.to_owned(), revision: "main".to_owned() };
        here.lower(&Data {
            tokenizer,
            train,
            validation: None,
            layout: Layout::Packed { length: 8 },
            shuffle: true,
            drop_last: false,
        })
    };
    let one = tokenizer("gpt2").unwrap();
    assert!(matches!(&one.local.tokenizer, Tokenizer::File(path) if fs::read(path).unwrap() == b"{}"));
    assert_eq!(one.pinned.tokenizer, Tokenizer::Hub { name: "gpt2".to_owned(), revision: COMMIT.to_owned() });
    let two = tokenizer("own/pair").unwrap();
    assert!(matches!(&two.local.tokenizer, Tokenizer::Gpt2 { vocab, merges } if vocab.is_file() && merges.is_file()));
    let none = tokenizer("own/none").unwrap_err();
    assert!(none.contains("data.tokenizer.hub: model own/none (main) has neither tokenizer.json nor"), "{none}");
}
