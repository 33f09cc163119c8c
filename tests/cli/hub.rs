//! Data and weights by their names on the hub, against a hub on loopback.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{Asked, Reply, Server, ranged};
use super::models::with_trained_model;
use super::sandbox::{Finished, RunningProcess, Sandbox};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FILES: usize = 8;

pub const EXPERIMENT: &str = "model: {preset: gpt2-nano}
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

/// The files of a repository, by their paths.
type Files = Vec<(String, Vec<u8>)>;

/// A hub with the `repositories`, such as `models/own/small`, each at the branch `main` and the tag `v1`. It takes `delay` for each request of
/// content.
fn serve(repositories: Vec<(&'static str, Files)>, delay: Duration) -> Server {
    Server::start(Arc::new(move |asked: &Asked, _| {
        let url = asked.path.split('?').next().unwrap();
        let missing = |code: &'static str| Reply::new(404, "{}").with("x-error-code", code);
        for (repository, files) in &repositories {
            if let Some(revision) = url.strip_prefix(&format!("/api/{repository}/revision/")) {
                if !["main", "v1", COMMIT].contains(&revision) {
                    return missing("RevisionNotFound");
                }
                let file = |(number, (path, content)): (usize, &(String, Vec<u8>))| json!({"rfilename": path, "size": content.len(), "blobId": blob(number)});
                let siblings: Vec<Value> = files.iter().enumerate().map(file).collect();
                return Reply::new(200, json!({"sha": COMMIT, "siblings": siblings}).to_string());
            }
            let prefix = format!("/{}/resolve/{COMMIT}/", repository.strip_prefix("models/").unwrap_or(repository));
            let Some(wanted) = url.strip_prefix(&prefix) else { continue };
            let Some(number) = files.iter().position(|(path, _)| path == wanted) else {
                return missing("EntryNotFound");
            };
            if asked.method == "GET" {
                thread::sleep(delay);
            }
            let etag = format!("\"{}\"", blob(number));
            return ranged(asked, &files[number].1).with("etag", etag).with("x-repo-commit", COMMIT);
        }
        if url.contains("/gated/") {
            return Reply::new(403, "{}").with("x-error-code", "GatedRepo");
        }
        missing("RepoNotFound")
    }))
}

/// A hub with one dataset, which takes `delay` for each request of content.
pub fn serve_lines(delay: Duration) -> Server {
    serve(vec![("datasets/own/lines", (0..FILES).map(|file| (path(file), content(file))).collect())], delay)
}

fn blob(file: usize) -> String {
    format!("{:040x}", file + 1)
}

fn line(folder: &str, more: &str) -> String {
    format!("data prepare --from exp.yaml --to npy {folder} --name x --shard-tokens 50000 --quiet {more}")
}

fn command(sandbox: &Sandbox, server: &Server, line: &str) -> Command {
    let mut command = sandbox.command(line);
    command.env("HF_ENDPOINT", &server.address).env("HF_HOME", sandbox.path("hf"));
    command
}

fn run(sandbox: &Sandbox, server: &Server, line: &str) -> Finished {
    Finished::of(&mut command(sandbox, server, line))
}

/// Runs `line` again and again until it succeeds, and kills it up to `most_kills` times, each a little later after `state` has changed. So
/// every kill leaves something behind: part of a download, a shard or a checkpoint.
fn run_with_kills(sandbox: &Sandbox, server: &Server, line: &str, most_kills: u64, state: impl Fn() -> String) {
    let initial = state();
    let (mut kills, mut kills_after_progress, mut before) = (0, 0, initial.clone());
    loop {
        let mut command = command(sandbox, server, line);
        let mut child = RunningProcess(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let started = Instant::now();
        let ended = loop {
            if let Some(status) = child.0.try_wait().unwrap() {
                break Some(status);
            }
            let now = state();
            if now != before && kills < most_kills {
                before = now;
                thread::sleep(Duration::from_millis(10 * kills));
                break None;
            }
            assert!(started.elapsed() < Duration::from_mins(2), "it neither ends nor makes progress");
            thread::sleep(Duration::from_millis(1));
        };
        if let Some(status) = ended {
            assert!(status.success());
            break;
        }
        child.kill();
        kills += 1;
        kills_after_progress += u64::from(state() != initial);
    }
    assert!(kills_after_progress > 0, "it was never killed after it had done something");
}

/// The files of the dataset in the cache.
fn blobs(sandbox: &Sandbox) -> usize {
    fs::read_dir(sandbox.path("hf/hub/datasets--own--lines/blobs")).map_or(0, Iterator::count)
}

/// Killed again and again, each time after some more downloads: the same bytes as in one go.
#[test]
fn a_killed_preparation_ends_with_the_same_shards() {
    let server = serve_lines(Duration::from_millis(40));
    let whole = Sandbox::new().with("exp.yaml", EXPERIMENT);
    run(&whole, &server, &line("out", "")).expect_code(0);
    let expected = whole.files_in("out");
    assert!(expected.len() > 8, "{}", expected.len());
    let sandbox = Sandbox::new().with("exp.yaml", EXPERIMENT);
    let state = || blobs(&sandbox).to_string();
    run_with_kills(&sandbox, &server, &line("out", ""), 4, state);
    assert!(sandbox.files_in("out") == expected);
    assert_eq!(blobs(&sandbox), FILES);
}

#[test]
fn limits_and_their_mistakes_have_the_names_of_flags() {
    let server = serve_lines(Duration::ZERO);
    let sandbox = Sandbox::new().with("exp.yaml", EXPERIMENT);
    let printed = run(&sandbox, &server, &line("out", "--max-tokens 60_000 --json")).expect_code(0);
    let card = &printed.json()["card"];
    assert_eq!(card["tokens"], 60_000);
    assert_eq!(card["settings"]["max_tokens"], 60_000);
    assert_eq!(card["sources"][0]["hub"]["revision"], COMMIT);
    assert_eq!(card["sources"][0]["files"][0]["etag"], blob(0));
    sandbox.keep(run(&sandbox, &server, &line("out", "--max-tokens 70_000")).expect_code(2));
    sandbox.keep(run(&sandbox, &server, &line("other", "--max-rows 0")).expect_code(2));
    insta::assert_snapshot!(sandbox.screens());
}

/// Configurations, splits and files whose names clear the screen and reverse text.
#[test]
fn names_of_a_dataset_do_not_steer_the_terminal() {
    let evil = "\u{1b}[2J\u{1b}]0;x\u{7}\u{9b}2J\u{202e}";
    // The same in YAML, which may hold such characters only as escapes.
    let written = r"\e[2J\e]0;x\a\u009b2J\u202e";
    let config = |name: &str, split: &str, path: &str| {
        format!("- config_name: \"{name}\"\n  data_files:\n  - split: \"{split}\"\n    path: {path}\n")
    };
    let files = |split: &str, more: &str, file: &str| -> Files {
        let configs = [config(written, split, "a/*"), config(&format!("b{written}"), split, "b.jsonl")].concat();
        let card = format!("---\nconfigs:\n{configs}{more}---\n").into_bytes();
        let lines = ["a/a.jsonl", file].map(|path| (path.to_owned(), content(0)));
        [("README.md".to_owned(), card)].into_iter().chain(lines).collect()
    };
    let repositories = vec![
        ("datasets/own/names", files("train", "", "b.jsonl")),
        ("datasets/own/broken", files("train", "- [\"\\e[2J", "b.jsonl")),
        ("datasets/own/splits", files(written, "", "b.jsonl")),
        ("datasets/own/files", files("train", "", evil)),
    ];
    let server = serve(repositories, Duration::ZERO);
    for dataset in ["names", "broken", "splits", "files"] {
        for settings in
            [json!({}), json!({"config": evil}), json!({"config": "b"}), json!({"config": evil, "split": evil})]
        {
            let mut source = json!({"dataset": format!("own/{dataset}")});
            source.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
            let data = json!({"tokenizer": {"bytes": {}}, "train": {"hub": source}, "validation": null});
            let experiment = json!({"model": {"preset": "gpt2-nano"}, "data": data});
            let sandbox = Sandbox::new().with("exp.yaml", experiment.to_string());
            for command in ["plan exp.yaml", "validate exp.yaml --explain", "data prepare --from exp.yaml --to npy out"]
            {
                let text = run(&sandbox, &server, command).text();
                let is_bad = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
                assert!(!text.contains(is_bad), "{dataset}, {settings}, {command}: {text:?}");
                if (dataset, command) == ("names", "plan exp.yaml") && settings == json!({"config": "b"}) {
                    assert!(text.contains("b\u{fffd}[2J"), "the names are shown: {text:?}");
                }
            }
        }
    }
}

/// Starts from the model that [`small_model`] serves; the tokenizer is the model's, too.
const FROM_HUB: &str = "model: {init: {from: hub:own/small}}
data: {train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}
batch: {sequences: 8}
train: {steps: 4}
checkpoint: {every: 1}
eval: {every: 2}
";

/// A sandbox with a trained model in `out` and the experiment `b.yaml`, and a hub that has the model.
fn small_model(delay: Duration) -> (Sandbox, Server) {
    let sandbox = with_trained_model();
    fs::remove_dir_all(sandbox.path("runs")).unwrap();
    sandbox.write("b.yaml", FROM_HUB);
    sandbox.write("folder.yaml", FROM_HUB.replace("hub:own/small", "out"));
    let pickle = ["config.json", "pytorch_model.bin"].map(|name| (name.to_owned(), b"{}".to_vec())).to_vec();
    let server = serve(vec![("models/own/small", sandbox.files_in("out")), ("models/own/pickle", pickle)], delay);
    (sandbox, server)
}

/// Removes what was downloaded, and the lists of files.
fn remove_downloads(sandbox: &Sandbox) {
    fs::remove_dir_all(sandbox.path("hf")).unwrap();
    fs::remove_dir_all(sandbox.path("cache/hub")).unwrap();
}

#[test]
fn a_run_starts_from_a_model_of_the_hub_at_its_commit() {
    let (sandbox, server) = small_model(Duration::ZERO);
    let online = |line: &str| run(&sandbox, &server, line);
    let offline = |line: &str| Finished::of(command(&sandbox, &server, line).env("HF_HUB_OFFLINE", "1"));

    sandbox.keep(online("validate b.yaml --explain").expect_code(0));
    let downloads = server.count();
    assert!(downloads > 0);
    let plan_hash = |file: &str| online(&format!("plan {file} --json")).expect_code(0).json()["hash"].clone();
    assert_eq!(plan_hash("b.yaml"), plan_hash("folder.yaml"), "the same weights make the same run");
    online("apply b.yaml --threads 1 --quiet --until-step 2").expect_code(0);
    let begun = sandbox.only_run();
    let resolved = begun.read("resolved.yaml");
    assert!(resolved.contains(&format!("from: hub:own/small@{COMMIT}")), "{resolved}");
    assert_eq!(resolved.matches(COMMIT).count(), 2, "the tokenizer has the commit, too: {resolved}");
    assert!(!resolved.contains("snapshots"), "no path of this machine: {resolved}");
    let difference = online("diff b.yaml b --json").expect_code(0).json();
    assert_eq!(difference["class"], "same_run", "{difference}");
    sandbox.keep(online("diff b.yaml folder.yaml").expect_code(0));
    sandbox.write("s.yaml", "sweep: {base: b.yaml, grid: {model.init.from: [\"hub:own/small\", out], seed: [1, 2]}}\n");
    online("validate s.yaml").expect_code(0);
    online("sweep s.yaml --dry-run").expect_code(0);
    online("fork b --from start --name start --set train.steps=1 --threads 1 --quiet").expect_code(0);
    assert_eq!(server.count(), downloads, "everything is in the cache");

    // A checkpoint and the record replace the weights and their tokenizer.
    remove_downloads(&sandbox);
    offline("fork b --from 2 --name gone --set train.steps=5 --threads 1 --quiet").expect_code(0);
    sandbox.keep(offline("apply b.yaml --set model.init.from=hub:own/small@v1 --quiet").expect_code(2));
    offline("resume b --threads 1 --quiet --until-step 3").expect_code(0);
    offline("fork b --from 2 --name drawn --set model.init=null --set train.steps=5 --threads 1 --quiet")
        .expect_code(0);
    sandbox.keep(offline("fork b --from start --name lost --set seed=5").expect_code(2));
    sandbox.keep(offline("apply b.yaml --new --threads 1 --quiet").expect_code(2));
    let (tokenizer, text) = (begun.path("tokenizer.json"), begun.read("tokenizer.json"));
    fs::write(&tokenizer, &text[..text.len() / 2]).unwrap();
    for line in ["fork b --from 2 --name bad --threads 1", "resume b --threads 1"] {
        sandbox.keep(offline(line).expect_code(2));
    }
    fs::write(&tokenizer, text).unwrap();
    online("resume b --threads 1 --quiet").expect_code(0);
    assert_eq!((begun.summary()["steps"].as_u64(), server.count()), (Some(4), downloads));
    sandbox.keep(offline("reproduce b --threads 1").expect_code(2));
    online("reproduce b --threads 1 --quiet").expect_code(0);
    let asked = server.asked().split_off(downloads);
    assert!(!asked.is_empty() && asked.iter().all(|asked| asked.path.contains(COMMIT)), "{asked:?}");
    // The hub is there, and does not know this revision: the record does not replace it.
    sandbox.keep(online("apply b.yaml --set model.init.from=hub:own/small@v9 --quiet").expect_code(2));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_run_that_is_killed_while_it_downloads_and_trains_ends_as_from_a_folder() {
    let (sandbox, server) = small_model(Duration::from_millis(40));
    sandbox.expect(0, "apply folder.yaml --threads 1 --quiet --runs expected");
    let names = |folder: PathBuf| fs::read_dir(folder).map_or(0, Iterator::count);
    let state = || {
        let checkpoints = sandbox.runs().into_values().next().map_or(0, |run| names(run.path("checkpoints")));
        format!("{} {checkpoints}", names(sandbox.path("hf/hub/models--own--small/blobs")))
    };
    run_with_kills(&sandbox, &server, "apply b.yaml --threads 1 --quiet", 5, state);
    assert_eq!(sandbox.only_run().final_hash(), sandbox.only_run_in("expected").final_hash());
}

#[test]
fn mistakes_in_names_of_models_stand_at_the_key() {
    let (sandbox, server) = small_model(Duration::ZERO);
    for from in
        ["hub:own/smal", "hub:own/small@v9", "hub:own/small@", "hub:own//small", "hub:own/pickle", "hub:gated/model"]
    {
        sandbox.write("c.yaml", FROM_HUB.replace("hub:own/small", from));
        sandbox.keep(run(&sandbox, &server, "validate c.yaml").expect_code(2));
    }
    sandbox.keep(run(&sandbox, &server, "plan b.yaml --rows 100 --set model.init.from=hub:own/smal").expect_code(2));
    sandbox.write("s.yaml", "sweep: {base: b.yaml, grid: {model.init.from: [\"hub:own/smal\"], seed: [1, 2]}}\n");
    sandbox.keep(run(&sandbox, &server, "sweep s.yaml").expect_code(2));
    // Nobody listens there.
    let unreachable = Server { address: "http://127.0.0.1:1".to_owned(), ..server };
    sandbox.keep(run(&sandbox, &unreachable, "validate b.yaml").expect_code(2));
    insta::assert_snapshot!(sandbox.screens());
    // A path that begins like a name of the hub.
    fs::rename(sandbox.path("out"), sandbox.path("hub:out")).unwrap();
    sandbox.write("c.yaml", FROM_HUB.replace("hub:own/small", "./hub:out"));
    run(&sandbox, &unreachable, "validate c.yaml").expect_code(0);
}
