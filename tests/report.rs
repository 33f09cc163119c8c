//! `runner report` from outside: what is on a page, which files it replaces, and whom it answers when it serves.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const STEPS: usize = 12;
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2, schedule: gpipe, microbatches: 2}}";
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>";

/// A folder with the run of a tiny experiment.
struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(parallel: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..2000u32).flat_map(|i| [(i * i % 997).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        let yaml = format!(
            "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16}}\n\
             data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
             batch: {{sequences: 4, micro_batch: 2}}\ntrain: {{steps: {STEPS}}}\n{parallel}\n\
             eval: {{every: 6, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n"
        );
        fs::write(dir.path().join("exp.yaml"), yaml).unwrap();
        let lab = Self { dir };
        let output = lab.run(&["apply", "exp.yaml", "--threads", "1", "--quiet"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        lab
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", self.dir.path().join("cache"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn code(&self, arguments: &[&str]) -> i32 {
        self.run(arguments).status.code().expect("an exit code")
    }

    /// The run's folder.
    fn path(&self) -> PathBuf {
        let mut runs = fs::read_dir(self.dir.path().join("runs")).unwrap().map(|e| e.unwrap().path());
        runs.find(|path| path.join("manifest.json").is_file()).expect("a run")
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap()
    }

    /// The page of the run, and its data.
    fn page(&self) -> (String, Value) {
        let output = self.run(&["report", "lab", "-o", "page.html"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let page = self.text("page.html");
        let data = data(&page);
        (page, data)
    }
}

/// The data in a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").expect("data");
    let (json, _) = rest.split_once("</script>").expect("an end");
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_page_has_all_of_its_run_and_its_text_is_text() {
    let lab = Lab::new("");
    let samples = lab.path().join("samples.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(samples).unwrap();
    writeln!(file, "{}", serde_json::json!({"step": STEPS, "prompt": "1", "index": 1, "text": HOSTILE})).unwrap();
    let (page, data) = lab.page();
    assert!(page.starts_with("<!doctype html>") && !page.contains("<img"));
    let run = &data["runs"][0];
    assert_eq!(run["status"], "done");
    assert_eq!(run["problems"], Value::Array(vec![]));
    for curve in ["loss", "lr", "grad_norm", "tokens_per_second"] {
        assert_eq!(run["curves"][curve]["y"].as_array().unwrap().len(), STEPS, "{curve}");
    }
    assert_eq!(run["curves"]["evals"].as_array().unwrap().len(), 2);
    assert_eq!(run["samples"]["items"].as_array().unwrap().last().unwrap()["text"], HOSTILE);
    assert_eq!(run["memory"]["ranks"].as_array().unwrap().len(), 1);
    assert!(run["plan"]["timeline"]["rows"][0]["bars"].as_array().unwrap().len() > 2);
    assert!(run["yaml"].as_str().unwrap().contains("d_model: 16"));
    assert!(run["checkpoints"][0]["bytes"].as_u64().unwrap() > 1000);
}

#[test]
fn a_pipelines_page_has_its_ranks() {
    let lab = Lab::new(PIPELINE);
    let (_, data) = lab.page();
    let run = &data["runs"][0];
    let count = |value: &Value| value.as_array().unwrap().len();
    assert_eq!(count(&run["memory"]["ranks"]), 2);
    assert!(run["memory"]["ranks"][1]["peak_rss"].as_u64().unwrap() > 1 << 20);
    assert_eq!(count(&run["plan"]["timeline"]["rows"]), 2);
    assert_eq!(count(&run["measured_timeline"]["rows"]), 2);
    let forwards = |row: &Value| row["bars"].as_array().unwrap().iter().filter(|b| b["what"] == "forward").count();
    assert_eq!(forwards(&run["plan"]["timeline"]["rows"][1]), forwards(&run["measured_timeline"]["rows"][1]));
    assert!(run["curves"]["medians"]["communication"].is_number());
}

#[test]
fn only_reports_are_replaced() {
    let lab = Lab::new("");
    assert_eq!(lab.code(&["report", "lab", "-o", "new/page.html"]), 0);
    assert_eq!(lab.code(&["report", "lab", "-o", "new/page.html", "--title", "again"]), 0);
    assert!(lab.text("new/page.html").contains("<h1>again</h1>"));
    let refused = lab.run(&["report", "lab", "-o", "exp.yaml"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--force"));
    assert!(lab.text("exp.yaml").starts_with("version: 1"));
    assert_eq!(lab.code(&["report", "lab", "-o", "exp.yaml", "--force"]), 0);
    assert!(lab.text("exp.yaml").starts_with("<!doctype html>"));
    assert_eq!(lab.code(&["report", "nothing", "-o", "x.html"]), 2);
    assert_eq!(lab.code(&["report", "--sweep", "nothing", "-o", "x.html"]), 2);
    assert_eq!(lab.code(&["report", "lab"]), 2, "no place to write to");
    let printed = lab.run(&["report", "lab", "lab", "-o", "-"]).stdout;
    assert_eq!(data(&String::from_utf8(printed).unwrap())["runs"].as_array().unwrap().len(), 1, "a run once");
    let json = lab.run(&["report", "lab", "-o", "page.html", "--json"]).stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["bytes"].as_u64().unwrap(), fs::metadata(lab.dir.path().join("page.html")).unwrap().len());
}

/// A process that is killed when it goes out of scope, if it has not ended by then.
struct Live(Child);

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `address` answers, whole; a server that does not answer fails.
fn ask(address: &str, method: &str, path: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\n{more}Connection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_served_report_answers_this_machine_alone() {
    let lab = Lab::new("");
    let mut command = lab.command(&["report", "lab", "--serve", "--port", "0"]);
    let mut live = Live(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut url = String::new();
    BufReader::new(live.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{url}");
    let host = format!("Host: {address}\r\n");
    let status = |answer: &str| answer.split(' ').nth(1).unwrap().to_owned();

    let page = ask(&address, "GET", "/", &host);
    assert_eq!(status(&page), "200");
    assert!(page.contains("Content-Security-Policy: default-src 'none'") && page.contains("data-served"));
    let fresh = ask(&address, "GET", "/data.json", &host);
    let tag = fresh.lines().find_map(|line| line.strip_prefix("ETag: ")).expect("a tag").to_owned();
    let known = format!("{host}If-None-Match: {tag}\r\n");
    assert_eq!(status(&ask(&address, "GET", "/data.json", &known)), "304");
    let head = ask(&address, "HEAD", "/", &host);
    assert!(status(&head) == "200" && head.ends_with("\r\n\r\n"), "no body: {head}");
    for (method, path, headers, code) in [
        ("GET", "/", "Host: evil.example\r\n", "403"),
        ("GET", "/data.json", "Host: 127.0.0.1.evil.example\r\n", "403"),
        ("GET", "/", "", "403"),
        ("GET", "/../Cargo.toml", host.as_str(), "404"),
        ("GET", "/runs/", host.as_str(), "404"),
        ("POST", "/", host.as_str(), "405"),
        ("DELETE", "/data.json", host.as_str(), "405"),
    ] {
        assert_eq!(status(&ask(&address, method, path, headers)), code, "{method} {path} {headers}");
    }

    let metrics = lab.path().join("metrics.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(metrics).unwrap();
    writeln!(file, "{{\"kind\":\"eval\",\"step\":99,\"val_loss\":1.25}}").unwrap();
    // Data is read anew a second after it was read last.
    // Clients that ask and do not read.
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET / HTTP/1.1\r\n{host}\r\n").unwrap();
        idle.push(stream);
    }
    std::thread::sleep(Duration::from_millis(300));
    let started = Instant::now();
    while !ask(&address, "GET", "/data.json", &known).contains("\"val_loss\":1.25") {
        assert!(started.elapsed() < Duration::from_mins(1), "what is new is never served");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(idle);
    let sent = Command::new("kill").args(["-INT", &live.0.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(live.0.wait().unwrap().code(), Some(130));
}
