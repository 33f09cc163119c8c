//! Data by its name on the hub, against a hub on loopback.

use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{Asked, Reply, Server, ranged};
use super::sandbox::{Finished, RunningProcess, Sandbox};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FILES: usize = 8;

const EXPERIMENT: &str = "model: {preset: gpt2-nano}
data: {tokenizer: {bytes: {}}, train: {hub: {dataset: own/lines}}, validation: null}
";

/// JSON lines.
fn content(file: usize) -> Vec<u8> {
    let document =
        |i: usize| format!("{}\n", json!({"text": format!("file {file}, document {i}. ").repeat(1 + i % 17)}));
    (0..400).map(document).collect::<String>().into_bytes()
}

fn path(file: usize) -> String {
    format!("data/train-{file:05}-of-{FILES:05}.jsonl")
}

/// A hub with one dataset, which takes `delay` for each request of content.
fn hub(delay: Duration) -> Server {
    Server::start(Arc::new(move |asked: &Asked, _| {
        let url = asked.path.split('?').next().unwrap();
        if url.starts_with("/api/datasets/own/lines/revision/") {
            let file =
                |file: usize| json!({"rfilename": path(file), "size": content(file).len(), "blobId": blob(file)});
            let siblings: Vec<Value> = (0..FILES).map(file).collect();
            return Reply::new(200, json!({"sha": COMMIT, "siblings": siblings}).to_string());
        }
        let prefix = format!("/datasets/own/lines/resolve/{COMMIT}/");
        let file = (0..FILES).find(|file| url.strip_prefix(&prefix) == Some(&path(*file)));
        let Some(file) = file else { return Reply::new(404, "{}").with("x-error-code", "RepoNotFound") };
        if asked.method == "GET" {
            thread::sleep(delay);
        }
        ranged(asked, &content(file)).with("etag", format!("\"{}\"", blob(file))).with("x-repo-commit", COMMIT)
    }))
}

fn blob(file: usize) -> String {
    format!("{:040x}", file + 1)
}

fn line(folder: &str, more: &str) -> String {
    format!("data prepare --from exp.yaml --to npy {folder} --name x --shard-tokens 50000 --quiet {more}")
}

fn run(sandbox: &Sandbox, server: &Server, line: &str) -> Finished {
    let mut command = sandbox.command(line);
    Finished::of(command.env("HF_ENDPOINT", &server.address).env("HF_HOME", sandbox.path("hf")))
}

/// The files of the dataset in the cache.
fn blobs(sandbox: &Sandbox) -> usize {
    fs::read_dir(sandbox.path("hf/hub/datasets--own--lines/blobs")).map_or(0, Iterator::count)
}

/// Killed again and again, each time after some more shards: the same bytes as in one go, with and without removal of files.
#[test]
fn a_killed_preparation_goes_on_with_the_same_shards() {
    let server = hub(Duration::from_millis(40));
    let whole = Sandbox::new().with("exp.yaml", EXPERIMENT);
    run(&whole, &server, &line("out", "")).expect_code(0);
    let expected = whole.files_in("out");
    assert!(expected.len() > 8, "{}", expected.len());
    for removal in ["", "--remove-downloads"] {
        let sandbox = Sandbox::new().with("exp.yaml", EXPERIMENT);
        let state = sandbox.path("out/.prepare.json");
        let (mut kills, mut before) = (0, String::new());
        loop {
            let mut command = sandbox.command(&line("out", removal));
            command.env("HF_ENDPOINT", &server.address).env("HF_HOME", sandbox.path("hf"));
            let mut child = RunningProcess(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
            let started = Instant::now();
            let ended = loop {
                if let Some(status) = child.0.try_wait().unwrap() {
                    break Some(status);
                }
                let now = fs::read_to_string(&state).unwrap_or_default();
                if now != before && kills < 4 {
                    before = now;
                    thread::sleep(Duration::from_millis(10 * kills));
                    break None;
                }
                assert!(started.elapsed() < Duration::from_mins(2), "it neither ends nor goes on");
                thread::sleep(Duration::from_millis(1));
            };
            if let Some(status) = ended {
                assert!(status.success());
                break;
            }
            child.kill();
            kills += 1;
        }
        assert!(kills > 0, "it was never killed");
        assert!(sandbox.files_in("out") == expected, "{removal}");
        assert_eq!(blobs(&sandbox), if removal.is_empty() { FILES } else { 0 });
    }
}

#[test]
fn limits_and_their_mistakes_have_the_names_of_flags() {
    let server = hub(Duration::ZERO);
    let sandbox = Sandbox::new().with("exp.yaml", EXPERIMENT);
    let printed = run(&sandbox, &server, &line("out", "--max-tokens 60_000 --remove-downloads --json")).expect_code(0);
    let card = &printed.json()["card"];
    assert_eq!(card["tokens"], 60_000);
    assert_eq!(card["settings"]["max_tokens"], 60_000);
    assert_eq!(card["sources"][0]["hub"]["revision"], COMMIT);
    assert_eq!(card["sources"][0]["files"][0]["etag"], blob(0));
    let refused = run(&sandbox, &server, &line("out", "--max-tokens 70_000")).expect_code(2).text();
    assert!(refused.contains("its max_tokens is 60000"), "{refused}");
    let refused = run(&sandbox, &server, &line("other", "--max-rows 0")).expect_code(2).text();
    assert!(refused.contains("--max-rows: a limit of 0"), "{refused}");
}
