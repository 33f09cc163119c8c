//! Metrics while a run trains: epochs, TensorBoard's event file, and an MLflow server that goes away and comes back.

pub mod mlflow_server;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::sandbox::{RunFolder, RunningProcess, Sandbox, files_in, wait_until};
use mlflow_server::MlflowServer;

/// A sandbox with an experiment that trains in about a second. An epoch has a few dozen steps.
fn new_sandbox(log: &str) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 8}}\ntrain: {{steps: 120}}\n\
         eval: {{every: 15, at_start: true, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: 10, keep: 2}}\nlog: {log}\n"
    );
    Sandbox::new().with_numbers(2000).with("exp.yaml", yaml)
}

/// Starts `apply` on a run that does not end on its own, kills it at the given moment, and returns its last recorded step.
fn kill_when(sandbox: &Sandbox, is_at: impl Fn(&RunFolder) -> bool) -> u64 {
    let mut child = sandbox.spawn_until("apply exp.yaml --threads 1", is_at);
    child.kill();
    let steps = sandbox.only_run().metrics_of("train");
    steps.last().unwrap()["step"].as_u64().unwrap()
}

#[test]
fn a_resumed_run_counts_epochs_as_an_uninterrupted_one() {
    let whole = new_sandbox("{every: 50}");
    let printed = whole.stdout_of("apply exp.yaml");
    let step = printed.lines().find(|line| line.starts_with("step   100/120")).unwrap();
    for part in ["  epoch ", "  mean ", "  perplexity ", " ms  "] {
        assert!(step.contains(part), "{step}");
    }
    let parts = new_sandbox("{every: 50}");
    for until in ["--until-step 7", "--until-step 40", "--until-step 77", ""] {
        parts.expect(0, format!("apply exp.yaml {until}").trim_end());
    }
    let of = |sandbox: &Sandbox| -> Vec<Value> {
        sandbox.only_run().metrics_of("train").iter().map(|line| line["epoch"].clone()).collect()
    };
    assert_eq!(of(&parts), of(&whole));
    // An epoch is counted in rows: the plan has as many.
    let plan = whole.json_of("plan exp.yaml --json");
    assert_eq!(of(&whole)[119], plan["totals"]["epochs"]);
    let events = new_sandbox("{every: 50}").run("apply exp.yaml --json").json_lines();
    let steps: Vec<&Value> = events.iter().filter(|event| event["kind"] == "train").collect();
    assert!(!steps.is_empty());
    for step in steps {
        assert_eq!(step["perplexity"].as_f64().unwrap(), step["loss"].as_f64().unwrap().exp());
    }
}

#[test]
fn an_event_file_grows_with_the_run_and_has_no_gaps_and_no_doubles_after_a_kill() {
    let sandbox = new_sandbox("{every: 5, tensorboard: true}");
    sandbox.edit("exp.yaml", "steps: 120", "steps: 10000000");
    let event_file = |run: &RunFolder| {
        let path = run.path("tensorboard");
        let mut files = if path.exists() { files_in(&path) } else { Vec::new() };
        assert!(files.len() <= 1, "{files:?}");
        files.pop().unwrap_or_default()
    };
    let last = kill_when(&sandbox, |run| run.has_step(33) && event_file(run).1.len() > 10_000);
    let last = kill_when(&sandbox, |run| run.has_step(last as usize + 25));
    sandbox.expect(0, &format!("apply exp.yaml --until-step {}", last + 7));
    sandbox.expect(0, &format!("apply exp.yaml --until-step {}", last + 14));
    sandbox.stdout_of("export-metrics lab --tensorboard logs");
    let run = sandbox.only_run();
    let exported = files_in(&sandbox.path("logs").join(run.id()));
    let (name, bytes) = event_file(&run);
    assert_eq!((name, bytes.len()), (exported[0].0.clone(), exported[0].1.len()));
    assert!(bytes == exported[0].1, "the event file has other events than the record");
    assert_eq!(run.metrics_of("train").len() as u64, last + 14);
}

#[test]
fn an_event_file_that_cannot_be_written_does_not_stop_the_run() {
    let sandbox = new_sandbox("{tensorboard: true}");
    sandbox.expect(0, "apply exp.yaml --until-step 5");
    let folder = sandbox.only_run().path("tensorboard");
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "in the way").unwrap();
    let printed = sandbox.expect(0, "apply exp.yaml");
    assert_eq!(printed.matches("cannot write TensorBoard's event file: ").count(), 1, "{printed}");
    assert_eq!(sandbox.only_run().summary()["status"], "done");
}

#[test]
fn an_mlflow_server_gets_every_step_once_although_both_sides_end_in_between() {
    let mut server = MlflowServer::start();
    let log = format!("{{every: 50, mlflow: {{uri: \"{}/\", experiment: My runs}}}}", server.uri());
    let sandbox = new_sandbox(&log);
    sandbox.edit("exp.yaml", "steps: 120", "steps: 10000000");
    let apply_until = |step: u64| {
        let mut command = sandbox.command(&format!("apply exp.yaml --until-step {step}"));
        command.env("MLFLOW_TRACKING_TOKEN", "hidden-token").env("MLFLOW_TRACKING_URI", server.uri());
        crate::sandbox::Finished::of(&mut command).expect_code(0).text()
    };
    let last_sent = || server.runs().first().and_then(|run| run.steps("train/loss").last().copied()).unwrap_or(0);
    // The run is killed after the server got steps that are not in a checkpoint, perhaps.
    let last = kill_when(&sandbox, |_| last_sent() > 20);
    assert!(last >= 20);
    let printed = apply_until(last + 25);
    assert!(!printed.contains("MLflow"), "{printed}");
    let run = server.run();
    assert_eq!(run.steps("train/loss"), (1..=last + 25).collect::<Vec<_>>());
    assert_eq!((run.status.as_str(), server.authorization().as_str()), ("KILLED", "Bearer hidden-token"));

    // The server goes away during a session, which ends without it.
    server.go_away();
    let output = sandbox.path("printed.txt");
    let file = fs::File::create(&output).unwrap();
    let mut command = sandbox.command(&format!("apply exp.yaml --until-step {}", last + 30));
    assert!(command.stdout(file.try_clone().unwrap()).stderr(file).status().unwrap().success());
    let printed = fs::read_to_string(output).unwrap();
    let id = sandbox.only_run().id();
    let hint = format!("`runner export-metrics {id} --mlflow {}/` sends what is missing", server.uri());
    assert!(printed.contains(&hint), "{printed}");
    let end = printed.find("interrupted: ").unwrap();
    assert!(end < printed.find(&hint).unwrap(), "the end is shown before the wait for the server: {printed}");
    let warnings = printed.matches("did not accept the metrics").count();
    assert!((1..=2).contains(&warnings), "one while it trains, if there is time for it, and one at the end: {printed}");
    assert!(sandbox.only_run().read("log.txt").contains(&hint));
    server.come_back();
    let sent = sandbox.json_of(&format!("export-metrics lab --mlflow {} --json", server.uri()));
    assert!(sent[0]["rows"].as_u64() >= Some(5), "{sent}");
    let sent = sandbox.json_of(&format!("export-metrics lab --mlflow {} --json", server.uri()));
    assert_eq!(sent[0]["rows"], 0, "everything is there");
    // Another value of a bookkeeping key is not sent, because the server would refuse it.
    let printed = sandbox.expect(0, &format!("apply exp.yaml --until-step {} --set log.every=20", last + 40));
    assert!(!printed.contains("MLflow"), "{printed}");

    let (run, recorded) = (server.run(), sandbox.only_run());
    let steps: Vec<u64> = (1..=last + 40).collect();
    for key in ["train/loss", "train/perplexity", "train/epoch", "time/step_ms"] {
        assert_eq!(run.steps(key), steps, "{key}");
    }
    let losses: Vec<f64> = run.metrics["train/loss"].values().map(|values| values[0]).collect();
    assert_eq!(losses, recorded.train_losses());
    let evals: Vec<u64> = recorded.metrics_of("eval").iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(run.steps("eval/val_loss"), evals);
    assert_eq!((run.name.as_str(), server.experiments()), (id.as_str(), vec!["My runs".to_owned()]));
    assert_eq!((run.parameters["model.d_model"].as_str(), run.parameters["log.every"].as_str()), ("16", "50"));
    assert_eq!(run.parameters["log.mlflow.experiment"], "My runs");
    assert_eq!(run.tags["runner.plan_hash"], recorded.manifest()["plan_hash"].as_str().unwrap());
    // The secret is nowhere in the record.
    for (name, content) in files_in_all(&recorded) {
        assert!(!String::from_utf8_lossy(&content).contains("hidden-token"), "{name}");
    }
    // Neither key is part of the plan.
    let hash = |arguments: &str| sandbox.json_of(&format!("plan exp.yaml --json {arguments}"))["hash"].clone();
    assert_eq!(hash(""), hash("--set log.mlflow=null"));
}

/// Names and contents of the files of the run's folder itself.
fn files_in_all(run: &RunFolder) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(&run.0).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    entries.map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

#[test]
fn a_server_that_comes_back_while_the_run_trains_gets_what_it_missed() {
    let mut server = MlflowServer::start();
    server.go_away();
    let sandbox = new_sandbox(&format!("{{mlflow: {{uri: \"{}\"}}}}", server.uri()));
    sandbox.edit("exp.yaml", "steps: 120", "steps: 10000000");
    let mut child = sandbox.spawn_until("apply exp.yaml --threads 1", |run| {
        run.has_step(20) && fs::read_to_string(run.path("log.txt")).unwrap_or_default().contains("MLflow at http")
    });
    server.come_back();
    wait_until("the server has steps", || server.runs().first().is_some_and(|run| run.steps("train/loss").len() > 20));
    child.signal("INT");
    assert_eq!(child.wait(), Some(130));
    let recorded = sandbox.only_run();
    assert_eq!(server.run().steps("train/loss").len(), recorded.metrics_of("train").len());
    assert_eq!(server.experiments(), ["lab"]);
    assert_eq!(recorded.read("log.txt").matches("warning: ").count(), 1);
}

#[test]
fn the_settings_of_a_private_run_stay_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = MlflowServer::start();
    let sandbox = new_sandbox(&format!("{{mlflow: {{uri: \"{}\"}}}}", server.uri()));
    fs::set_permissions(sandbox.path("exp.yaml"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = sandbox.command("apply exp.yaml --until-step 15");
    command.env("MLFLOW_TRACKING_TOKEN", "hidden-token").env("MLFLOW_TRACKING_URI", "http://127.0.0.1:1");
    let printed = crate::sandbox::Finished::of(&mut command).expect_code(0).text();
    assert_eq!(server.authorization(), "", "a server that only the file names gets no password");
    assert_eq!(printed.matches("gets no parameters").count(), 1, "{printed}");
    let run = server.run();
    assert_eq!((run.steps("train/loss").len(), run.parameters.len()), (15, 0));
}

#[test]
fn a_wrong_address_is_refused() {
    let sandbox = new_sandbox("{mlflow: {uri: \"localhost:5000\"}}");
    let printed = sandbox.expect(2, "validate exp.yaml");
    assert!(printed.contains("exp.yaml:9:") && printed.contains("must start with http://"), "{printed}");
    sandbox.edit("exp.yaml", "localhost:5000", "http://me:pw@localhost:5000");
    assert!(sandbox.expect(2, "validate exp.yaml").contains("must not contain a user or a password"));
    let printed = sandbox.expect(2, "export-metrics lab --mlflow localhost:5000");
    assert!(printed.contains("must start with http://"), "{printed}");
}

#[test]
fn an_interrupt_ends_the_wait_for_a_server() {
    // Connections to it are accepted, and no request is answered.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let sandbox = new_sandbox(&format!("{{mlflow: {{uri: \"{uri}\"}}}}"));
    let mut command = sandbox.command("apply exp.yaml --threads 1");
    let mut child = RunningProcess(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let announced = format!("mlflow: the session has ended; still sending its record to {uri}; Ctrl-C ends this wait");
    assert!(lines.any(|line| line.contains(&announced)), "{}", child.finish().1);
    assert_eq!(sandbox.only_run().manifest()["status"], "done");
    let interrupted = Instant::now();
    child.signal("INT");
    let (code, text) = child.finish();
    assert_eq!(code, Some(0), "{text}");
    assert!(interrupted.elapsed() < Duration::from_secs(5), "{text}");
    let id = sandbox.only_run().id();
    let advice = format!("was interrupted; `runner export-metrics {id} --mlflow {uri}` sends what is missing");
    assert!(text.contains(&advice), "{text}");
    assert!(!text.contains("finishing the step"), "{text}");
}
