//! Damaged and incomplete records: what is lost is named, and nothing uncertain counts without a word.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::sandbox::{Finished, RunFolder, Sandbox, names_in, wait_until};

const STEPS: u64 = 30;

/// A sandbox with an experiment that trains in a moment, and a sweep `s.yaml` of two learning rates with these further lines. The first
/// one is worse.
fn new_sandbox(sweep: &[&str]) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 8}}\ntrain: {{steps: {STEPS}}}\n\
         eval: {{every: 10, loss: {{batches: 1}}}}\ncheckpoint: {{every: 10, keep: 1}}\n"
    );
    let lines = ["base: exp.yaml", "grid: {optimizer.adamw.lr: [1e-4, 1e-3]}"].into_iter().chain(sweep.iter().copied());
    let sweep = format!("sweep:\n  {}\n", lines.collect::<Vec<_>>().join("\n  "));
    Sandbox::new().with_numbers(2000).with("exp.yaml", yaml).with("s.yaml", sweep)
}

const EARLY_STOP: &str = "early_stop: {asha: {min_steps: 10, reduction: 2}}";

/// The run of the sweep's point `point`.
fn run_of_point(sandbox: &Sandbox, point: u64) -> RunFolder {
    let is_point = |run: &RunFolder| run.json("manifest.json")["sweep"]["point"] == point;
    sandbox.runs().into_values().find(is_point).unwrap()
}

/// Replaces the line of `kind` after `step` in the run's metrics; with nothing, removes it.
fn replace_line(run: &RunFolder, kind: &str, step: u64, by: &str) {
    let path = run.path("metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let is_meant = |line: &str| line.starts_with(&format!("{{\"kind\":\"{kind}\",\"step\":{step},"));
    assert_eq!(text.lines().filter(|line| is_meant(line)).count(), 1, "{text}");
    let lines = text.lines().map(|line| if is_meant(line) { by.to_owned() } else { format!("{line}\n") });
    fs::write(path, lines.collect::<String>()).unwrap();
}

fn results(sandbox: &Sandbox) -> (Value, String) {
    let finished = sandbox.run("sweep results --json").expect_code(0);
    (finished.json(), finished.stderr)
}

#[test]
fn a_lost_last_evaluation_is_taken_from_the_summary() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    let (whole, stderr) = results(&sandbox);
    assert_eq!((whole["results"]["rows"][0]["point"].as_u64(), stderr.as_str()), (Some(2), ""));
    let (run, other) = (run_of_point(&sandbox, 2), run_of_point(&sandbox, 1));
    let text = fs::read(run.path("metrics.jsonl")).unwrap();
    for by in ["", "{\"kind\":\"eval\",\n", "{\"kind\":\"eval\",\"step\":30,\"val_loss\":9.0}\n"] {
        replace_line(&run, "eval", STEPS, by);
        let (damaged, stderr) = results(&sandbox);
        assert_eq!(damaged["results"]["rows"][0]["objective"], whole["results"]["rows"][0]["objective"], "{by}");
        let lost = "the evaluation after step 30 is missing or differs from summary.json, which is used instead";
        assert!(stderr.contains("point 2: ") && stderr.contains(lost), "{by}: {stderr}");
        let compared = sandbox.json_of(&["compare", &other.id(), &run.id(), "--json"]);
        assert_eq!(compared["runs"][1]["outcomes"]["val_loss"], whole["results"]["rows"][0]["objective"], "{by}");
        for command in ["compare", "diff"] {
            sandbox.show(0, &[command, &other.id(), &run.id()]);
        }
        fs::write(run.path("metrics.jsonl"), &text).unwrap();
    }
    // No earlier value counts as the last.
    replace_line(&run, "eval", STEPS, "");
    fs::remove_file(run.path("summary.json")).unwrap();
    let (damaged, stderr) = results(&sandbox);
    assert_eq!(damaged["results"]["rows"][0]["point"], 1);
    assert!(stderr.contains("lacks the val_loss after step 30"), "{stderr}");
    sandbox.show(1, "sweep s.yaml --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn early_stopping_does_not_decide_without_the_value_of_a_rung() {
    let sandbox = new_sandbox(&[EARLY_STOP]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    let (whole, _) = results(&sandbox);
    // Point 2 was promoted.
    let run = run_of_point(&sandbox, 2);
    replace_line(&run, "eval", 10, "");
    sandbox.show(1, "sweep s.yaml --threads 1");
    // The way out that the message names.
    sandbox.expect(0, &["runs", "rm", &run.id(), "--force", "--yes"]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    assert_eq!(results(&sandbox).0["results"]["rows"][0]["objective"], whole["results"]["rows"][0]["objective"]);
}

#[test]
fn diff_reports_losses_that_contradict_equal_plans() {
    let sandbox = new_sandbox(&[]);
    for _ in 0..2 {
        sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --new");
    }
    let ids: Vec<String> = sandbox.runs().into_keys().collect();
    let diff = ["diff", &ids[0], &ids[1], "--exit-code"];
    sandbox.show(0, &diff);
    let run = sandbox.runs().remove(&ids[1]).unwrap();
    let mut line = run.metrics_of("train")[6].clone();
    line["loss"] = serde_json::json!(9.5);
    replace_line(&run, "train", 7, &format!("{line}\n"));
    assert!(sandbox.show(3, &diff).contains("losses first differ at step 7"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn reports_deleted_checkpoints_and_a_missing_manifest() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    let show = ["runs", "show", &run.id()];
    fs::remove_dir_all(run.path("checkpoints")).unwrap();
    sandbox.show(0, &show);
    fs::remove_file(run.path("manifest.json")).unwrap();
    sandbox.keep(sandbox.run(&show));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn lost_steps_count_and_are_named() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --until-step 15");
    let run = sandbox.only_run();
    let text = fs::read_to_string(run.path("metrics.jsonl")).unwrap();
    fs::write(run.path("metrics.jsonl"), text.split_inclusive('\n').take(5).collect::<String>()).unwrap();
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let summary = run.json("summary.json");
    assert_eq!((summary["steps"].as_u64(), summary["tokens"].as_u64()), (Some(STEPS), Some(STEPS * 8 * 32)));
    let lost = "only 20 of 30 steps are recorded; the first missing step is 6";
    sandbox.show(0, &["runs", "show", &run.id()]);
    sandbox.expect(0, &["report", &run.id(), "-o", "r.html"]);
    assert!(sandbox.read("r.html").contains(lost));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn gc_keeps_the_checkpoint_from_which_a_fork_is_reproduced() {
    let sandbox = new_sandbox(&[]);
    sandbox.edit("exp.yaml", "keep: 1", "keep: 9");
    sandbox.expect(0, "apply exp.yaml --threads 1");
    let origin = sandbox.only_run().id();
    sandbox.expect(0, &["fork", &origin, "--from", "10", "--set", "optimizer.adamw.lr=2e-3", "--threads", "1"]);
    sandbox.expect(0, &["runs", "rm", &origin, "--yes"]);
    sandbox.expect(0, "gc --checkpoints --yes");
    let fork = sandbox.only_run();
    assert_eq!(names_in(&fork.path("checkpoints")), ["step-00000010", "step-00000030"]);
    sandbox.show(0, &["reproduce", &fork.id(), "--threads", "1"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn damaged_files_of_points_are_named() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    let run = run_of_point(&sandbox, 2);
    fs::write(run.path("manifest.json"), "{").unwrap();
    let lost = format!("point 2: runs/{}/manifest.json: ", run.id());
    let (_, stderr) = results(&sandbox);
    assert!(stderr.contains(&lost) && stderr.contains("counts as missing"), "{stderr}");
    sandbox.show(0, "sweep s.yaml --threads 1");
    // A part of a point's file that is legal YAML.
    fs::remove_dir_all(run.path("")).unwrap();
    fs::remove_dir_all(run_of_point(&sandbox, 2).path("")).unwrap();
    let sweeps = sandbox.path("runs/sweeps");
    let ids: Vec<String> = names_in(&sweeps).into_iter().filter(|name| !name.starts_with('.')).collect();
    let file: PathBuf = sweeps.join(&ids[0]).join("points/0002.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, &text[..text.find("optimizer:").unwrap()]).unwrap();
    sandbox.show(1, "sweep s.yaml --threads 1");
    sandbox.show(1, "sweep s.yaml --threads 1 --quiet");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn an_unfinished_sweep_resumes_with_its_own_flags_alone() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    fs::remove_dir_all(run_of_point(&sandbox, 2).path("")).unwrap();
    let printed = sandbox.expect(2, "sweep s.yaml --threads 1 --set optimizer.adamw.lr=3");
    assert!(printed.contains("the --set flags changed from [] to [\"optimizer.adamw.lr=3\"]"), "{printed}");
}

/// Every command that reads the metrics reports damage of them, whatever its kind.
#[test]
fn damaged_metrics_are_reported_by_every_command() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    let id = run.id();
    let text = run.read("metrics.jsonl");
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let commands = || {
        [
            "apply exp.yaml --threads 1".to_owned(),
            format!("resume {id} --threads 1"),
            format!("export-metrics {id} --csv out.csv --force"),
            format!("runs show {id}"),
            format!("compare {id} {id}"),
        ]
    };
    for command in commands() {
        sandbox.show(0, &command);
    }
    let hole = [&lines[..4], &lines[6..]].concat().concat();
    let edited = text.replacen("\"loss\":", "\"loss\":1", 1);
    let damages = [lines[..lines.len() / 2].concat(), hole, format!("{text}{text}"), edited];
    for damaged in &damages {
        run.write("metrics.jsonl", damaged);
        for command in commands() {
            sandbox.show(0, &command);
        }
        let fork = format!("fork {id} --from latest --new --name forked --set train.steps=32 --threads 1 --quiet");
        sandbox.show(0, &fork);
    }
    sandbox.show(2, &["runs", "rm", &id, "--keep-record", "--yes"]);
    assert!(run.checkpoint(STEPS).exists());
    fs::remove_file(run.path("metrics.jsonl")).unwrap();
    for command in &commands()[..2] {
        sandbox.show(0, command);
    }
}

/// A run that trains, was killed, or has a summary without the hash of its metrics is not called damaged.
#[test]
fn whole_records_are_not_called_damaged() {
    let sandbox = new_sandbox(&[]);
    sandbox.edit("exp.yaml", "every: 10, loss", "every: 7, at_start: true, loss");
    for until in ["--until-step 3", "--until-step 14", "--until-step 25", ""] {
        sandbox.show(0, &format!("apply exp.yaml --threads 1 {until}"));
        let run = sandbox.only_run();
        let check = |what: &str| {
            let printed = sandbox.expect(0, &["runs", "show", &run.id()]);
            assert!(!printed.contains("warning"), "{until} {what}: {printed}");
        };
        check("as it is");
        let (manifest, mut summary) = (run.read("manifest.json"), run.summary());
        summary.as_object_mut().unwrap().remove("metrics");
        let sealed = run.read("summary.json");
        run.write_sealed("summary.json", summary);
        check("without the hash of its metrics");
        run.write("summary.json", sealed);
        let mut killed = run.manifest();
        killed["status"] = "running".into();
        run.write_sealed("manifest.json", killed);
        check("killed");
        run.write("manifest.json", manifest);
    }
    insta::assert_snapshot!(sandbox.screens());
}

/// Half of the metrics of a run that is done are gone. The summary and the checkpoint say that there were more.
#[test]
fn a_reproduction_of_half_a_record_is_incomplete() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    let text = run.read("metrics.jsonl");
    let half: Vec<&str> = text.split_inclusive('\n').take(15).collect();
    run.write("metrics.jsonl", half.concat());
    sandbox.show(3, &["reproduce", &run.id(), "--threads", "1"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn an_edited_state_file_is_refused_and_a_resume_falls_back() {
    let sandbox = new_sandbox(&[]);
    sandbox.edit("exp.yaml", "keep: 1", "keep: 9");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 20");
    let run = sandbox.only_run();
    let state = "checkpoints/step-00000020/state.json";
    let text = run.read(state);
    let best = |step: u64| run.json(&format!("checkpoints/step-{step:08}/state.json"))["val_loss"].as_f64().unwrap();
    assert!(best(20) < best(10), "the newest is the best");
    run.write(state, "{");
    sandbox.show(1, &["sample", &run.id(), "--best", "--prompt", "1"]);
    // One edit, which reads well.
    run.write(state, text.replace("\"moments\": 2", "\"moments\": 1"));
    sandbox.show(0, "apply exp.yaml --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn gc_keeps_the_last_good_checkpoint_and_names_the_damaged_one() {
    let sandbox = new_sandbox(&[]);
    sandbox.edit("exp.yaml", "keep: 1", "keep: 9");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    let file = run.checkpoint(STEPS).join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, &bytes).unwrap();
    sandbox.show(0, "gc --checkpoints --yes");
    assert_eq!(names_in(&run.path("checkpoints")), ["step-00000020", "step-00000030"]);
    sandbox.expect(0, &["sample", &run.id(), "--step", "20", "--prompt", "1"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn an_edited_experiment_of_a_run_is_not_used() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    let id = run.id();
    let resolved = run.read("resolved.yaml");
    assert!(resolved.contains("batches: 1\n"), "{resolved}");
    let commands = [
        format!("eval {id} --threads 1"),
        format!("sample {id} --prompt 1 --threads 1"),
        format!("fork {id} --from latest --set train.steps=40 --threads 1"),
        format!("resume {id} --threads 1"),
    ];
    run.write("resolved.yaml", resolved.replace("batches: 1\n", "batches: 2\n"));
    for command in &commands {
        sandbox.show(1, command);
    }
    let views = [
        format!("runs show {id}"),
        format!("compare {id} {id}"),
        format!("diff {id} exp.yaml"),
        format!("report {id} -o page.html"),
        format!("export-metrics {id} --csv metrics.csv --force"),
    ];
    let warns_of = |view: &String, file: &str| {
        let mut printed = sandbox.run(view).text();
        if view.starts_with("report") {
            printed += &fs::read_to_string(sandbox.path("page.html")).unwrap();
        }
        printed.contains(&format!("{file} changed since the run started, so the settings shown may differ"))
    };
    assert!(views.iter().all(|view| warns_of(view, "resolved.yaml")));
    run.write("resolved.yaml", &resolved);
    assert!(!views.iter().any(|view| warns_of(view, "resolved.yaml")));
    let plan = run.read("plan.json");
    assert!(plan.contains("\"precision\": \"fp32\""), "{plan}");
    run.write("plan.json", plan.replace("\"precision\": \"fp32\"", "\"precision\": \"bf16\""));
    for command in &commands {
        let printed = sandbox.expect(1, command);
        assert!(printed.contains("plan.json: it was changed after the run started"), "{printed}");
    }
    assert!(views.iter().all(|view| warns_of(view, "plan.json")));
    // What does not change the plan may change.
    run.write("resolved.yaml", format!("# moved\n{resolved}"));
    run.write("plan.json", format!("{plan}\n"));
    for command in &commands {
        sandbox.expect(0, command);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_changed_manifest_does_not_start_a_second_run() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 10");
    let run = sandbox.only_run();
    let text = run.read("manifest.json");
    let hash = run.manifest()["plan_hash"].as_str().unwrap().to_owned();
    let changed = format!("{}{}", &hash[..63], if hash.ends_with('0') { '1' } else { '0' });
    run.write("manifest.json", text.replace(&hash, &changed));
    sandbox.show(1, "apply exp.yaml --threads 1");
    // The manifest is whole, with a different plan.
    let mut manifest = run.manifest();
    manifest["plan_hash"] = changed.into();
    run.write_sealed("manifest.json", manifest);
    sandbox.show(1, "apply exp.yaml --threads 1");
    assert_eq!(sandbox.runs().len(), 1);
    run.write("manifest.json", text);
    sandbox.show(0, "apply exp.yaml --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

/// Makes `run` look as if its process had been killed while it wrote its summary.
fn kill_before_summary(run: &RunFolder) {
    let mut manifest = run.manifest();
    manifest["status"] = "running".into();
    manifest["sessions"].as_array_mut().unwrap().last_mut().unwrap()["to_step"] = Value::Null;
    run.write_sealed("manifest.json", manifest);
    fs::remove_file(run.path("summary.json")).unwrap();
    run.write(".tmp-a1B2c3", "{");
}

#[test]
fn a_run_that_was_killed_while_it_wrote_its_summary_keeps_its_result() {
    let sandbox = new_sandbox(&[EARLY_STOP]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 10");
    let run = sandbox.only_run();
    kill_before_summary(&run);
    sandbox.show(0, "apply exp.yaml --threads 1 --until-step 10");
    // The point that early stopping ended.
    sandbox.expect(0, "sweep s.yaml --threads 1");
    let (whole, _) = results(&sandbox);
    let run = run_of_point(&sandbox, 1);
    assert_eq!(run.summary()["steps"], 10);
    kill_before_summary(&run);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    let objectives = |results: &Value| -> Vec<Value> {
        results["results"]["rows"].as_array().unwrap().iter().map(|row| row["objective"].clone()).collect()
    };
    assert_eq!(objectives(&results(&sandbox).0), objectives(&whole));
    insta::assert_snapshot!(sandbox.screens());
}

/// Runs are read without a cache, so no folder for one need be known.
#[test]
fn runs_are_read_without_a_home_folder() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    let homeless = |arguments: &str| {
        let mut command = sandbox.command(arguments);
        Finished::of(command.env_remove("HOME").env_remove("XDG_CACHE_HOME").env_remove("RUNNER_CACHE"))
    };
    for arguments in
        [format!("diff {id} {id}"), format!("sample {id} --prompt 1 --threads 1"), format!("export {id} --to hf out")]
    {
        let finished = homeless(&arguments);
        assert_eq!(finished.code, 0, "{arguments}: {}", finished.text());
    }
    let finished = homeless("apply exp.yaml --new --threads 1");
    assert!(
        finished.code == 2 && finished.text().contains("no home folder; set `RUNNER_CACHE`"),
        "{}",
        finished.text()
    );
}

/// The files in `folder` and below.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Opening a pipe waits for a writer, which never comes.
#[test]
fn no_command_waits_for_a_pipe_in_place_of_a_file_of_a_run() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --set log.tensorboard=true");
    let run = sandbox.only_run();
    let id = run.id();
    let aside = sandbox.path("aside");
    for file in files_below(&run.path("")) {
        fs::rename(&file, &aside).unwrap();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        for command in [
            "runs",
            "gc",
            &format!("runs show {id}"),
            &format!("resume {id} --threads 1"),
            &format!("fork {id} --from 20 --new --threads 1 --until-step 21"),
            &format!("reproduce {id} --check --threads 1"),
            &format!("sample {id} --prompt 1 --threads 1"),
            &format!("eval {id} --threads 1"),
            &format!("report {id} -o report.html --force"),
            &format!("compare {id} {id}"),
            &format!("diff {id} exp.yaml --threads 1"),
            &format!("export {id} --to safetensors weights --force"),
            &format!("export-metrics {id} --csv metrics.csv --force"),
            &format!("runs tag {id} --add seen"),
        ] {
            let mut process = sandbox.spawn(command);
            wait_until(&format!("`{command}` ends beside the pipe {}", file.display()), || process.has_ended());
        }
        fs::remove_file(&file).unwrap();
        fs::rename(&aside, &file).unwrap();
    }
}

#[test]
fn nothing_is_written_through_a_link_out_of_a_run() {
    let sandbox = new_sandbox(&[]);
    for name in ["tensorboard", "checkpoints", "ranks", "metrics.jsonl", "log.txt", "lock"] {
        // Only ranks that are processes have logs.
        let layout = "--set parallel.mode=ddp --set parallel.replicas=2 --set batch.micro_batch=4";
        let layout = if name == "ranks" { layout } else { "" };
        sandbox.expect(
            0,
            &format!("apply exp.yaml --threads 1 --set log.tensorboard=true {layout} --quiet --until-step 10"),
        );
        let run = sandbox.only_run();
        let (path, outside) = (run.path(name), sandbox.path("outside"));
        fs::create_dir(&outside).unwrap();
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap();
            symlink(&outside, &path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
            symlink(outside.join(name), &path).unwrap();
        }
        let finished = sandbox.run(&format!("resume {} --threads 1", run.id()));
        let text = finished.text();
        assert!(text.contains("this is a symbolic link"), "{name}: {text}");
        // The event file is for other programs: the run continues without it.
        assert_eq!(finished.code, i32::from(name != "tensorboard"), "{name}: {text}");
        assert_eq!(names_in(&outside), Vec::<String>::new(), "{name}: {text}");
        fs::remove_dir(&outside).unwrap();
        fs::remove_dir_all(run.path("")).unwrap();
    }
}
