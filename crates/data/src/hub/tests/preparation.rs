//! Shards of a dataset whose files are downloaded while others are tokenized: the same tokens whatever the hub does.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::server::{Answering, Asked, COMMIT, Files, Here, Reply, Server, data, etag, hub, source};
use crate::{HeldOut, ShardFormat, ShardRequest, WrittenShards, write_shards};
use runner_spec::experiment::{Data, JsonSource, Source, Validation};

const FILES: usize = 6;
const DOCUMENTS: usize = 150;
const SHARD_TOKENS: u64 = 20_000;

/// JSON lines of documents of different lengths.
fn content(file: usize) -> Vec<u8> {
    let document = |i: usize| {
        let text = format!("file {file} document {i} ").repeat(1 + (i * 7 + file) % 23);
        format!("{}\n", serde_json::json!({ "text": text }))
    };
    (0..DOCUMENTS).map(document).collect::<String>().into_bytes()
}

fn path(file: usize) -> String {
    format!("data/train-{file:05}-of-{FILES:05}.jsonl")
}

fn dataset() -> Files {
    const PATHS: [&str; FILES] = [
        "data/train-00000-of-00006.jsonl",
        "data/train-00001-of-00006.jsonl",
        "data/train-00002-of-00006.jsonl",
        "data/train-00003-of-00006.jsonl",
        "data/train-00004-of-00006.jsonl",
        "data/train-00005-of-00006.jsonl",
    ];
    vec![("datasets/own/lines", COMMIT, PATHS.iter().enumerate().map(|(file, path)| (*path, content(file))).collect())]
}

/// A hub that lists contents, as the real one does; `size` is what it says of each file's.
fn listing(inner: Arc<Answering>, size: fn(u64) -> u64) -> Arc<Answering> {
    Arc::new(move |asked, before| {
        if !asked.path.ends_with("?blobs=true") {
            return inner(asked, before);
        }
        let file = |file: usize| {
            let content = content(file);
            let size = size(content.len() as u64);
            serde_json::json!({"rfilename": path(file), "size": size, "blobId": "0123", "lfs": {"sha256": etag(&content), "size": size}})
        };
        let siblings: Vec<_> = (0..FILES).map(file).collect();
        Reply::new(200, serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string())
    })
}

fn plain_hub() -> Arc<Answering> {
    listing(hub(dataset(), None), |size| size)
}

/// True if `asked` asks for the content of a file.
fn is_content(asked: &Asked) -> bool {
    asked.method == "GET" && asked.path.contains("/resolve/")
}

#[derive(Clone, Copy, Default)]
struct Options {
    max_tokens: Option<u64>,
    max_rows: Option<u64>,
}

fn prepare(here: &Here, data: &Data, folder: &str, options: Options) -> Result<WrittenShards, String> {
    let cache = here.folder.path().join("cache");
    let request = ShardRequest {
        data,
        cache_dir: &cache,
        format: ShardFormat::Npy,
        folder: &here.folder.path().join(folder),
        name: "x",
        shard_tokens: SHARD_TOKENS,
        held_out: data.validation.is_none().then_some(HeldOut::FirstShard),
        max_tokens: options.max_tokens,
        max_rows: options.max_rows,
        hub: Some(&here.settings),
        force: false,
    };
    write_shards(&request, &|_| ()).map_err(|error| error.to_string())
}

fn prepare_hub(here: &Here, folder: &str, options: Options) -> Result<WrittenShards, String> {
    prepare(here, &data(source("own/lines", None, "train")), folder, options)
}

/// The shards in `folder` by name.
fn shards(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let shards = paths.filter(|path| path.extension().is_some_and(|ending| ending == "npy"));
    shards.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

/// The shards of the same text in files of this machine.
fn expected(options: Options) -> BTreeMap<String, Vec<u8>> {
    let here = Here::new("http://127.0.0.1:1");
    let files: Vec<_> = (0..FILES)
        .map(|file| {
            let path = here.folder.path().join(format!("{file}.jsonl"));
            fs::write(&path, content(file)).unwrap();
            path
        })
        .collect();
    let train = Source::Jsonl(JsonSource { files, field: Some("text".to_owned()), template: None });
    let data = Data { train, ..data(source("own/lines", None, "train")) };
    prepare(&here, &data, "out", options).unwrap();
    shards(&here.folder.path().join("out"))
}

/// Names of the files of the dataset in the cache.
fn blobs(here: &Here) -> Vec<String> {
    let Ok(entries) = fs::read_dir(here.repo("datasets--own--lines/blobs")) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn shards_are_those_of_the_same_text_in_local_files() {
    let whole = expected(Options::default());
    assert!(whole.len() > 6, "{}", whole.len());
    let server = Server::start(plain_hub());
    let here = Here::new(&server.address);
    let written = prepare_hub(&here, "out", Options::default()).unwrap();
    assert!(shards(&here.folder.path().join("out")) == whole);
    assert_eq!(blobs(&here).len(), FILES, "{:?}", blobs(&here));
    let files = &written.card.sources[0].files;
    assert_eq!(files[2].etag.as_deref(), Some(etag(&content(2)).as_str()));
    assert_eq!(written.card.sources[0].hub.as_ref().unwrap().revision, COMMIT);
    // Nothing is left to do, and nothing is downloaded for it.
    let contents = || server.asked().iter().filter(|asked| is_content(asked)).count();
    let before = contents();
    assert!(prepare_hub(&here, "out", Options::default()).unwrap().up_to_date);
    assert_eq!(contents(), before);
}

#[test]
fn a_preparation_ends_at_its_limit_and_downloads_no_more_than_is_near() {
    let whole = expected(Options::default());
    let stream = |shards: &BTreeMap<String, Vec<u8>>| {
        shards.values().flat_map(|shard| shard[128..].to_vec()).collect::<Vec<u8>>()
    };
    let order = |shards: BTreeMap<String, Vec<u8>>| {
        // The validation shard comes first in the text.
        let (train, validation): (Vec<_>, Vec<_>) = shards.into_iter().partition(|(name, _)| name.contains("train"));
        validation.into_iter().chain(train).enumerate().map(|(i, (_, shard))| (format!("{i:03}"), shard)).collect()
    };
    let whole = stream(&order(whole));
    let limits = [
        Options { max_tokens: Some(30_001), ..Options::default() },
        Options { max_tokens: Some(25_000), ..Options::default() },
        Options { max_rows: Some(DOCUMENTS as u64 - 10), ..Options::default() },
    ];
    for options in limits {
        let server = Server::start(plain_hub());
        let here = Here::new(&server.address);
        let written = prepare_hub(&here, "out", options).unwrap();
        let found = shards(&here.folder.path().join("out"));
        assert!(found == expected(options));
        let found = stream(&order(found));
        assert!(whole.starts_with(&found));
        if let Some(tokens) = options.max_tokens {
            assert_eq!((written.card.tokens, found.len() as u64), (tokens, 2 * tokens));
        }
        if let Some(rows) = options.max_rows {
            assert_eq!(written.card.documents, rows);
        }
        assert!(!server.asked().iter().any(|asked| asked.path.contains(&path(5))));
    }
}

/// A change of the reply to a request for content, which also gets the number of earlier requests for the same file.
type Fault = fn(&Asked, Reply, usize) -> Reply;

/// A hub whose first answers to each request for content are changed by `fault`.
fn faulty(fault: Fault) -> Arc<Answering> {
    let (inner, counts) = (plain_hub(), Mutex::new(HashMap::<String, usize>::new()));
    Arc::new(move |asked, before| {
        let reply = inner(asked, before);
        if !is_content(asked) {
            return reply;
        }
        let count = {
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(asked.path.clone()).or_default();
            *count += 1;
            *count - 1
        };
        fault(asked, reply, count)
    })
}

#[test]
fn a_hub_that_fails_for_a_while_gives_the_same_tokens() {
    let whole = expected(Options::default());
    let faults: [(&str, Fault); 7] = [
        ("slow", |_, reply, _| {
            thread::sleep(Duration::from_millis(50));
            reply
        }),
        ("cut", |_, reply, _| Reply { cut: Some(reply.body.len().min(9000)), ..reply }),
        ("429", |_, reply, count| if count < 3 { Reply::new(429, "").with("retry-after", "0") } else { reply }),
        ("5xx", |_, reply, count| if count < 3 { Reply::new([500, 502, 503][count], "") } else { reply }),
        ("no range, and cut once", |asked, reply, count| {
            let Some(file) = (0..FILES).find(|file| asked.path.ends_with(&path(*file))) else { return reply };
            let whole = Reply { headers: Vec::new(), ..Reply::new(200, content(file)) };
            Reply { cut: (count == 0).then_some(5000), ..whole }
        }),
        ("shorter at first", |_, reply, count| {
            let kept = if count == 0 { reply.body.len() / 2 } else { reply.body.len() };
            Reply { body: reply.body[..kept].to_vec(), ..reply }
        }),
        ("other bytes at first", |_, mut reply, count| {
            if count == 0 {
                reply.body.reverse();
            }
            reply
        }),
    ];
    for (name, fault) in faults {
        let server = Server::start(faulty(fault));
        let here = Here::new(&server.address);
        let result = prepare_hub(&here, "out", Options::default());
        assert!(result.is_ok(), "{name}: {result:?}");
        assert!(shards(&here.folder.path().join("out")) == whole, "{name}");
    }
}

#[test]
fn errors_that_a_retry_does_not_mend_say_what_to_do() {
    let faults: [(&str, Fault); 4] = [
        ("SHA-256", |_, mut reply, _| {
            reply.body.reverse();
            reply
        }),
        ("status 429", |_, _, _| Reply::new(429, "")),
        ("it did not end after", |_, reply, _| Reply::new(200, [&*reply.body, &*reply.body].concat())),
        ("is gated", |_, _, _| Reply::new(403, "").with("x-error-code", "GatedRepo")),
    ];
    for (expected, fault) in faults {
        let server = Server::start(faulty(fault));
        let here = Here::new(&server.address);
        let message = prepare_hub(&here, "out", Options::default()).unwrap_err();
        assert!(message.contains(expected), "{message}");
        assert!(shards(&here.folder.path().join("out")).is_empty());
    }
    let server = Server::start(listing(hub(dataset(), None), |_| 1 << 60));
    let message = prepare_hub(&Here::new(&server.address), "out", Options::default()).unwrap_err();
    let said = ["the downloads need", &format!("{} bytes", FILES as u64 * (1 << 60)), "HF_HOME", "--max-tokens"];
    assert!(said.iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn the_free_space_is_compared_before_the_first_download() {
    let server = Server::start(listing(hub(dataset(), None), |_| 1 << 60));
    let here = Here::new(&server.address);
    let plain = data(source("own/lines", None, "train"));
    let refused = |data: &Data, options: Options| prepare(&here, data, "out", options).unwrap_err();
    let needs = |files: u64| format!("the downloads need {} bytes", files << 60);
    // All sources together, in a preparation and in a run.
    let validation = Some(Validation::Source(plain.train.clone()));
    let both = Data { validation, ..plain };
    let message = refused(&both, Options::default());
    assert!(message.contains(&needs(12)), "{message}");
    let message = here.lower(&both).unwrap_err();
    assert!(message.contains(&needs(12)), "{message}");
    assert!(!server.asked().iter().any(is_content));
}

#[test]
fn json_is_looked_into_only_if_the_disk_has_room() {
    let body = br#"[{"text": "one"}, {"text": "two and three"}]"#.to_vec();
    let files: Files = vec![("datasets/own/array", COMMIT, vec![("data/train.json", body)])];
    let wanted = data(source("own/array", None, "train"));
    let inner = hub(files.clone(), None);
    let server = Server::start(Arc::new(move |asked: &Asked, before| {
        if asked.path.ends_with("?blobs=true") {
            let file = serde_json::json!({"rfilename": "data/train.json", "size": 1_u64 << 60, "blobId": "0123"});
            return Reply::new(200, serde_json::json!({"sha": COMMIT, "siblings": [file]}).to_string());
        }
        inner(asked, before)
    }));
    let message = prepare(&Here::new(&server.address), &wanted, "out", Options::default()).unwrap_err();
    assert!(message.contains("the downloads need"), "{message}");
    assert!(!server.asked().iter().any(is_content));
    let server = Server::start(hub(files, None));
    let options = Options { max_tokens: Some(2), ..Options::default() };
    let message = prepare(&Here::new(&server.address), &wanted, "out", options).unwrap_err();
    // The array is read, and has no more tokens than the first shard.
    assert!(message.contains("all 2 tokens"), "{message}");
}

/// The network is lost before each file in turn; each time the same command continues with the files that it has.
#[test]
fn a_lost_network_and_a_second_try_give_the_same_tokens() {
    let whole = expected(Options::default());
    let reachable = Arc::new(AtomicUsize::new(0));
    let (inner, limit) = (plain_hub(), reachable.clone());
    let server = Server::start(Arc::new(move |asked: &Asked, before| {
        let file = (0..FILES).find(|file| asked.path.ends_with(&path(*file)));
        if file.is_some_and(|file| file >= limit.load(Ordering::SeqCst)) {
            return Reply::new(503, "");
        }
        inner(asked, before)
    }));
    let here = Here::new(&server.address);
    let options = Options::default();
    for file in 0..FILES {
        reachable.store(file, Ordering::SeqCst);
        let message = prepare_hub(&here, "out", options).unwrap_err();
        assert!(message.contains("503"), "{message}");
    }
    reachable.store(FILES, Ordering::SeqCst);
    prepare_hub(&here, "out", options).unwrap();
    assert!(shards(&here.folder.path().join("out")) == whole);
    // A file is downloaded once, after the attempts that failed.
    let downloads = |file: usize| {
        let asked = server.asked();
        asked.iter().filter(|asked| is_content(asked) && asked.path.ends_with(&path(file))).count()
    };
    assert!((0..FILES).all(|file| downloads(file) <= 6), "{:?}", (0..FILES).map(downloads).collect::<Vec<_>>());
    assert_eq!(blobs(&here).len(), FILES);
}
