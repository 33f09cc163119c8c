//! `resume --parallel`: the same run continues under other layouts, on the same rows.

#![cfg(unix)]

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::sandbox::{RunFolder, Sandbox, read_json};

/// A signal is heeded up to 50 ms later, in which these models train some 25 steps.
const STEPS: u64 = 400;

/// Losses of layouts differ by the order of sums in f32, which training amplifies: by 6e-8 at most in 20 runs, whose learning rate is
/// low for this reason.
const TOLERANCE: f64 = 1e-6;

fn sandbox(name: &str, parallel: &str) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: {name}\nmodel: {{family: gpt2, layers: 4, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 12, micro_batch: 3}}\ntrain: {{steps: {STEPS}}}\noptimizer: {{adamw: {{lr: 1e-4}}}}\n\
         eval: {{every: 30, loss: {{rows: 24}}}}\ncheckpoint: {{every: 7, keep: 3}}\n{parallel}"
    );
    Sandbox::new().with_squares(3000).with("exp.yaml", yaml)
}

fn train_lines(run: &RunFolder) -> Vec<(u64, f64, f64)> {
    let number = |line: &Value, key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key}: {line}"));
    let lines = run.metrics_of("train");
    lines.iter().map(|line| (line["step"].as_u64().unwrap(), number(line, "epoch"), number(line, "loss"))).collect()
}

fn position(run: &RunFolder) -> Value {
    read_json(&run.checkpoint(STEPS).join("state.json"))["position"].clone()
}

#[test]
fn a_run_moves_through_layouts_and_visits_every_row_once() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    eprintln!("seed {seed}");
    let reference = sandbox("lab", "");
    reference.expect(0, "apply exp.yaml --threads 2 --quiet");
    let reference = reference.only_run();
    let moved = sandbox("lab", "parallel: {mode: ddp, replicas: 4}\n");
    let sections =
        ["{mode: ddp, replicas: 3}", "{mode: single}", "{mode: pipeline, pipeline: {stages: 2, microbatches: 4}}"];
    let mut id = String::new();
    for stop in 0..=sections.len() {
        let arguments: Vec<&str> = match stop {
            0 => vec!["apply", "exp.yaml", "--threads", "2"],
            _ => vec!["resume", &id, "--threads", "2", "--parallel", sections[stop - 1]],
        };
        if stop == sections.len() {
            // A later session keeps the newest layout.
            moved.expect(0, &[&arguments[..], &["--until-step", "380"]].concat()[..]);
            moved.expect(0, &["resume", &id, "--threads", "2", "--quiet"]);
            break;
        }
        // Somewhere after the session's first checkpoint, killed or stopped.
        let steps = 9 + u64::from(seed >> (5 * stop)) % 16;
        let start_of = moved.new_session_start();
        let mut process = moved.spawn_until(&arguments[..], |run| {
            // A checkpoint is committed while later steps run.
            start_of(run).is_some_and(|from| {
                run.has_step((from + steps) as usize) && (from + 1..=STEPS).any(|step| run.checkpoint(step).exists())
            })
        });
        if (seed >> (20 + stop)).is_multiple_of(2) {
            process.kill();
        } else {
            process.signal("USR1");
            assert_eq!(process.wait(), Some(75));
        }
        id = moved.only_run().id();
    }
    let run = moved.only_run();
    let (lines, expected) = (train_lines(&run), train_lines(&reference));
    let steps: Vec<u64> = lines.iter().map(|line| line.0).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>(), "each step is recorded once");
    for ((step, epoch, loss), (_, same_epoch, same_loss)) in lines.iter().zip(&expected) {
        assert_eq!(epoch, same_epoch, "step {step}");
        assert!((loss - same_loss).abs() < TOLERANCE * same_loss, "step {step}: {loss}, not {same_loss}");
    }
    assert_eq!(position(&run), position(&reference));
    let val_loss = |run: &RunFolder| run.metrics_of("eval").pop().unwrap()["val_loss"].as_f64().unwrap();
    let (own, other) = (val_loss(&run), val_loss(&reference));
    assert!((own - other).abs() < TOLERANCE * other, "{own}, not {other}");

    let manifest = run.manifest();
    let layouts: Vec<Value> = manifest["sessions"].as_array().unwrap().iter().map(|s| s["layout"].clone()).collect();
    let modes: Vec<Value> =
        layouts.iter().map(|layout| json!([layout["parallel"]["mode"], layout["micro_batch"]])).collect();
    let expected = [("ddp", 3), ("ddp", 2), ("single", 3), ("pipeline", 3), ("pipeline", 3)];
    assert_eq!(modes, expected.map(|(mode, rows)| json!([mode, rows])));
    // Its file finds it under the name with which it started.
    assert!(moved.expect(0, "apply exp.yaml --threads 2").contains("up to date"));
    let shown = moved.expect(0, &["runs", "show", &id]);
    assert!(shown.contains("ddp of 3 replicas, micro-batches of 2 rows"), "{shown}");
    let printed = moved.expect(3, &["reproduce", &id, "--check"]);
    assert!(
        printed.contains("drift  layout           changed  ddp of 4 replicas, micro-batches of 3 rows, was ddp of 4"),
        "{printed}"
    );
    let printed = moved.expect(0, &["reproduce", &id, "--threads", "2", "--quiet"]);
    assert!(printed.contains("within tolerance: "), "{printed}");
    let printed = moved.expect(0, &["diff", &id, "exp.yaml"]);
    let words = "layout: a later session of A has single, micro-batches of 3 rows, the one before ddp of 3 replicas";
    assert!(printed.contains(words), "{printed}");
}

#[test]
fn a_section_that_does_not_fit_changes_nothing() {
    let sandbox = sandbox("lab", "");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 7");
    let (id, before) = (sandbox.only_run().id(), sandbox.only_run().manifest());
    let refused = |section: &str| sandbox.show(2, &["resume", &id, "--parallel", section]);
    refused("{mode: ddp, replicas: 5}");
    refused("{mode: ddq}");
    refused("{mode: pipeline}");
    refused("ddp");
    assert_eq!(sandbox.only_run().manifest(), before);
    // A changed file names the command.
    sandbox.show(0, &["apply", "exp.yaml", "--threads", "1", "--set", "parallel={mode: dp, replicas: 2}"]);
    sandbox.show(0, &["resume", &id, "--parallel", r#"{"mode":"dp","replicas":2}"#, "--threads", "2"]);
    // Also where nothing is left to do.
    refused("{mode: ddq}");
    sandbox.show(0, &["resume", &id, "--parallel", "{mode: single}"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn sessions_show_what_replicas_divide() {
    let sandbox = sandbox("lab", "parallel: {mode: ddp, replicas: 2}\n");
    sandbox.expect(0, "apply exp.yaml --threads 2 --quiet --until-step 7");
    let id = sandbox.only_run().id();
    let section = "{mode: ddp, replicas: 2, shard: gradients}";
    sandbox.show(0, &["resume", &id, "--threads", "2", "--until-step", "9", "--parallel", section]);
    sandbox.show(0, &["runs", "show", &id]);
    insta::assert_snapshot!(sandbox.screens());
}

/// `eval.loss.batches` counts micro-batches, which have other numbers of rows in another layout.
#[test]
fn another_layout_is_evaluated_on_the_same_rows() {
    let sandbox = sandbox("lab", "");
    sandbox.edit("exp.yaml", "{rows: 24}", "{batches: 4}");
    sandbox.edit("exp.yaml", &format!("steps: {STEPS}"), "steps: 60");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 31");
    let id = sandbox.only_run().id();
    sandbox
        .expect(0, &["resume", &id, "--threads", "2", "--until-step", "40", "--parallel", "{mode: dp, replicas: 6}"]);
    sandbox.expect(0, &["resume", &id, "--threads", "2"]);
    let run = sandbox.only_run();
    let manifest = run.manifest();
    let sessions = manifest["sessions"].as_array().unwrap();
    let layouts: Vec<Value> = sessions.iter().map(|session| session["layout"]["micro_batch"].clone()).collect();
    assert_eq!(layouts, [3, 2, 2]);
    let rows: Vec<Value> = run.metrics_of("eval").iter().map(|line| line["val_rows"].clone()).collect();
    assert_eq!(rows, [12; 2], "4 micro-batches of 3 rows, after steps 30 and 60");
    let verdict = sandbox.expect(0, &["reproduce", &id, "--threads", "1", "--quiet"]);
    assert!(!verdict.contains("diverged"), "{verdict}");
}

#[test]
fn a_point_of_a_sweep_keeps_its_newest_layout() {
    let sandbox = sandbox("lab", "").with("s.yaml", "sweep:\n  base: exp.yaml\n  grid: {seed: [1]}\n");
    sandbox.edit("exp.yaml", &format!("steps: {STEPS}"), "steps: 1000");
    let mut sweep = sandbox.spawn_until("sweep s.yaml --threads 2", |run| run.has_step(9));
    sweep.signal("INT");
    assert_eq!(sweep.wait(), Some(130));
    let id = sandbox.only_run().id();
    let stop = sandbox.only_run().summary()["steps"].as_u64().unwrap() + 5;
    let stop = stop.to_string();
    let section = "{mode: dp, replicas: 2}";
    sandbox.expect(0, &["resume", &id, "--threads", "2", "--until-step", &stop, "--parallel", section]);
    sandbox.expect(0, "sweep s.yaml --threads 2");
    let manifest = sandbox.only_run().manifest();
    assert_eq!(manifest["status"], "done");
    let sessions = manifest["sessions"].as_array().unwrap();
    let modes: Vec<&Value> = sessions.iter().map(|session| &session["layout"]["parallel"]["mode"]).collect();
    assert_eq!(modes, ["single", "dp", "dp"]);
}
