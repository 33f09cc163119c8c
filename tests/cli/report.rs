//! `runner report`: the contents of a page, the files that it replaces, and the requests that its server answers.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::sandbox::{RunningProcess, Sandbox, wait_until};

const STEPS: usize = 12;
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2, schedule: gpipe, microbatches: 2}}";
const HOSTILE: &str = "</script><img src=x onerror=alert(1)>";

/// A sandbox with the run of a tiny experiment.
fn trained_sandbox(parallel: &str) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 4, micro_batch: 2}}\ntrain: {{steps: {STEPS}}}\n{parallel}\n\
         eval: {{every: 6, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n"
    );
    let sandbox = Sandbox::new().with_numbers(2000).with("exp.yaml", yaml);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    sandbox
}

/// The page of the run, and the data in it.
fn page(sandbox: &Sandbox) -> (String, Value) {
    sandbox.expect(0, "report lab -o page.html");
    let page = sandbox.read("page.html");
    let data = data(&page);
    (page, data)
}

/// The data in a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"data\">").expect("data");
    let (json, _) = rest.split_once("</script>").expect("an end");
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_page_has_all_of_its_run_and_its_text_is_text() {
    let sandbox = trained_sandbox("");
    let samples = sandbox.only_run().path("samples.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(samples).unwrap();
    writeln!(file, "{}", serde_json::json!({"step": STEPS, "prompt": "1", "index": 1, "text": HOSTILE})).unwrap();
    let (page, data) = page(&sandbox);
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
fn damaged_lines_of_metrics_are_reported() {
    let sandbox = trained_sandbox("");
    let run = sandbox.only_run();
    let metrics = run.path("metrics.jsonl");
    let lines = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, format!("rubbish\n{lines}")).unwrap();
    let problem = "metrics.jsonl: 1 torn or damaged line left out";
    let (_, data) = page(&sandbox);
    assert!(data["runs"][0]["problems"][0].as_str().unwrap().ends_with(problem), "{data}");
    for command in ["compare lab", "diff lab lab", "runs show lab", "export-metrics lab --csv m.csv"] {
        let printed = sandbox.expect(0, command);
        assert_eq!(printed.matches(problem).count(), 1, "{command}: {printed}");
    }
}

#[test]
fn a_pipelines_page_has_its_ranks() {
    let sandbox = trained_sandbox(PIPELINE);
    let (_, data) = page(&sandbox);
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
    let sandbox = trained_sandbox("");
    sandbox.expect(0, &["report", "lab", "-o", "new/page.html"]);
    sandbox.expect(0, &["report", "lab", "-o", "new/page.html", "--title", "again"]);
    assert!(sandbox.read("new/page.html").contains("<h1>again</h1>"));
    sandbox.show(2, "report lab -o exp.yaml");
    assert!(sandbox.read("exp.yaml").starts_with("version: 1"));
    sandbox.expect(0, &["report", "lab", "-o", "exp.yaml", "--force"]);
    assert!(sandbox.read("exp.yaml").starts_with("<!doctype html>"));
    sandbox.expect(2, &["report", "nothing", "-o", "x.html"]);
    sandbox.expect(2, &["report", "nothing", "-o", "x.html"]);
    sandbox.expect(2, &["report", "lab"]);
    let printed = sandbox.stdout_of("report lab lab -o -");
    assert_eq!(data(&printed)["runs"].as_array().unwrap().len(), 1, "a run once");
    let json = sandbox.json_of("report lab -o page.html --json");
    assert_eq!(json["bytes"].as_u64().unwrap(), fs::metadata(sandbox.path("page.html")).unwrap().len());
    insta::assert_snapshot!(sandbox.screens());
}

/// Sends a request, and returns the whole answer. Fails if none comes.
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
    let sandbox = trained_sandbox("");
    let mut command = sandbox.command("report lab --serve --port 0");
    let mut server = RunningProcess(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut url = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{url}");
    let host = format!("Host: {address}\r\n");
    let status = |answer: &str| answer.split(' ').nth(1).unwrap().to_owned();

    let page = ask(&address, "GET", "/", &host);
    assert_eq!(status(&page), "200");
    assert!(page.contains("content-security-policy: default-src 'none'") && page.contains("data-served"));
    let fresh = ask(&address, "GET", "/data.json", &host);
    let tag = fresh.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag").to_owned();
    let known = format!("{host}If-None-Match: {tag}\r\n");
    assert_eq!(status(&ask(&address, "GET", "/data.json", &known)), "304");
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

    let metrics = sandbox.only_run().path("metrics.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(metrics).unwrap();
    writeln!(file, "{{\"kind\":\"eval\",\"step\":99,\"val_loss\":1.25}}").unwrap();
    // Clients that send requests and do not read; meanwhile the second passes in which data is not read again.
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET / HTTP/1.1\r\n{host}\r\n").unwrap();
        idle.push(stream);
    }
    std::thread::sleep(Duration::from_millis(300));
    wait_until("new data is served", || ask(&address, "GET", "/data.json", &known).contains("\"val_loss\":1.25"));
    drop(idle);
    server.signal("INT");
    assert_eq!(server.wait(), Some(130));
}
