//! Messages about slips of a new user: each names the correction.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::sandbox::{Finished, RunningProcess, Sandbox};

fn new_sandbox() -> Sandbox {
    let yaml = "model: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}}\n\
                batch: {sequences: 8, micro_batch: 8}\ntrain: {steps: 3}\n";
    Sandbox::new().with_numbers(500).with("exp.yaml", yaml)
}

#[test]
fn variables_and_flags_that_set_nothing_are_refused() {
    let sandbox = new_sandbox();
    for variable in ["RUNNER_TRAIN_STEPS", "RUNNER_OPTIMIZER_LR", "RUNNER_EVAL_LOSS_BATCHES"] {
        sandbox.keep(Finished::of(sandbox.command("validate exp.yaml").env(variable, "5"))).expect_code(2);
    }
    sandbox.keep(Finished::of(sandbox.command("validate exp.yaml").env("RUNNER_BF16_PRODUCT", "f32"))).expect_code(2);
    for variable in ["RUNNER_LOG_LEVEL", "RUNNER_TOOL_CACHE", "RUNNER_TEMP"] {
        Finished::of(sandbox.command("validate exp.yaml").env(variable, "5")).expect_code(0);
    }
    for set in ["train.steps=", "train.steps: 5", "optimizer.adamw.betas=0.9"] {
        sandbox.show(2, &["validate", "exp.yaml", "--set", set]);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn distinguishes_configurations_of_other_trainers_from_experiments() {
    let litgpt = "model_name: pythia\ntrain: {max_steps: 3, micro_batch_size: 4}\n";
    let sandbox = new_sandbox().with("config.py", "n_layer = 2\n").with("litgpt.yaml", litgpt);
    let printed = sandbox.expect(2, "import config nowhere.py");
    assert!(printed.contains("name the configuration of another trainer"), "{printed}");
    let printed = sandbox.expect(2, "import config exp.yaml");
    assert!(printed.contains("if it is an experiment, `runner validate` checks it"), "{printed}");
    let printed = sandbox.expect(2, "apply config.py");
    assert!(printed.contains("`runner import config config.py`"), "{printed}");
    // Keys of other trainers are answered one by one.
    let printed = sandbox.expect(2, "apply litgpt.yaml");
    for part in ["`max_steps` is `train.steps` here", "`micro_batch_size` is `batch.micro_batch` here"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}

#[test]
fn folders_and_files_that_cannot_be_used_are_named() {
    let sandbox = new_sandbox();
    sandbox.keep(Finished::of(sandbox.command("apply exp.yaml").env("RUNNER_CACHE", "exp.yaml"))).expect_code(1);
    for command in ["runs --runs exp.yaml", "apply exp.yaml --runs exp.yaml"] {
        sandbox.show(2, command);
    }
    for command in ["runs", "apply exp.yaml"] {
        sandbox.keep(Finished::of(sandbox.command(command).env("RUNNER_RUNS", "exp.yaml"))).expect_code(1);
    }
    sandbox.expect(0, "apply exp.yaml --threads 1");
    let run = sandbox.only_run();
    let printed = sandbox.expect(2, &["sample", &run.id(), "--prompt", "1", "--temperature", "-1"]);
    assert!(
        printed.contains("--temperature -1: use 0 to always take the most likely token, or at least 1e-6"),
        "{printed}"
    );
    for target in ["safetensors", "hf"] {
        let printed = sandbox.expect(2, &["export", &run.id(), "--to", target, "exp.yaml/sub"]);
        assert!(printed.contains("exp.yaml is a file; name a folder"), "{printed}");
    }
    fs::remove_file(run.path("resolved.yaml")).unwrap();
    for command in ["reproduce", "compare"] {
        let finished = sandbox.keep(sandbox.run(&[command, &run.id()]));
        assert!(finished.code > 0, "{}", finished.stderr);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_quiet_command_shows_warnings() {
    let sandbox = new_sandbox();
    let finished = sandbox.keep(sandbox.run("apply exp.yaml --quiet --set model.vocab_size=5000")).expect_code(0);
    assert_eq!(finished.stdout.lines().count(), 1, "{}", finished.stdout);
    let finished = sandbox.keep(sandbox.run("apply exp.yaml --quiet")).expect_code(0);
    assert_eq!(finished.stderr, "");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn unknown_characters_and_missing_files_have_a_place_and_advice() {
    let sandbox = new_sandbox().with("other.txt", "1 2 3\n4 5 x 6\n".repeat(50));
    sandbox.show(2, "apply exp.yaml --set data.validation.text.files=[other.txt]");
    sandbox.expect(0, "apply exp.yaml --quiet");
    let run = sandbox.only_run().id();
    sandbox.show(2, &["sample", &run, "--prompt", "1 2x"]);
    sandbox.show(2, &["eval", &run, "--hellaswag", "hs.jsonl"]);
    insta::assert_snapshot!(sandbox.screens());
}

/// The reader of standard output begins to read after the command has failed.
#[test]
fn a_line_that_precedes_an_error_is_not_lost() {
    let yaml = "model: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32, vocab_size: 60}\n\
                data: {train: {tokens: {files: [train.bin]}}, validation: {fraction: 0.1}}\n\
                batch: {sequences: 4}\ntrain: {steps: 2}\neval: {every: 2}\n";
    let sandbox = Sandbox::new().with("exp.yaml", yaml).with("train.bin", [1, 0].repeat(2000));
    let (mut reader, mut filler) = io::pipe().unwrap();
    let mut command = sandbox.command("apply exp.yaml --expect-plan 00000000");
    command.stdout(filler.try_clone().unwrap()).stderr(Stdio::piped());
    // A pipe holds less than this.
    let filling = thread::spawn(move || filler.write_all(&vec![b'\n'; 2 << 20]));
    let child = RunningProcess(command.spawn().unwrap());
    drop(command);
    thread::sleep(Duration::from_secs(2));
    let mut printed = String::new();
    reader.read_to_string(&mut printed).unwrap();
    filling.join().unwrap().unwrap();
    let (code, error) = child.finish();
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("not 00000000"), "{error}");
    assert!(printed.contains("bits per byte are unknown"), "{}", printed.trim_start());
}

#[test]
fn a_link_stays_where_its_target_is_written() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    fs::create_dir(sandbox.path("elsewhere")).unwrap();
    for (arguments, file) in [
        ("export-metrics exp --csv", "a.csv"),
        ("report exp -o", "a.html"),
        ("export exp --to torch", "a.bin"),
        ("export exp --to safetensors", "model.safetensors"),
        ("tokenizer train input.txt --vocab-size 260 --out", "a.json"),
    ] {
        let target = format!("elsewhere/{file}");
        sandbox.write(&target, "old");
        symlink(&target, sandbox.path(file)).unwrap();
        let output = if file == "model.safetensors" { "." } else { file };
        sandbox.expect(0, &format!("{arguments} {output} --force"));
        assert_eq!(fs::read_link(sandbox.path(file)).unwrap(), Path::new(&target), "{arguments}");
        assert_ne!(fs::read(sandbox.path(&target)).unwrap(), b"old", "{arguments}");
    }
    assert_eq!(sandbox.names_in("elsewhere").len(), 5, "nothing temporary stays");
}

#[test]
fn foreign_text_does_not_steer_the_terminal() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    // Clears the screen, sets the title, hides text, and reverses it; one sequence has the one character C1 in place of ESC [.
    let evil = "\u{1b}[2J\u{1b}]0;x\u{7}\u{1b}[8m\u{9b}2J\u{202e}\u{2066}\u{200b}\r";
    let file = format!("{evil}.yaml");
    sandbox.write(&file, format!("{evil}: 1\n"));
    sandbox.write("bad.json", format!("{{\"{evil}\": 1}}"));
    let plan = sandbox.read(run.path("plan.json"));
    let variant = serde_json::to_string(&format!("gpt2{evil}")).unwrap();
    for (title, damaged) in [
        ("variant", plan.replace("\"gpt2\"", &variant)),
        ("field", plan.replacen('{', &format!("{{{}: 1,", serde_json::to_string(evil).unwrap()), 1)),
        ("name", plan.clone()),
        ("status", plan),
    ] {
        sandbox.write(run.path("plan.json").to_str().unwrap(), damaged);
        if title == "name" || title == "status" {
            let mut manifest = run.manifest();
            manifest[title] = format!("{}{evil}", manifest[title].as_str().unwrap()).into();
            run.write_sealed("manifest.json", manifest);
        }
        for arguments in [
            vec!["plan", &file],
            vec!["plan", &format!("none{file}")],
            vec!["validate", &file],
            vec!["apply", "exp.yaml", evil],
            vec!["apply", "exp.yaml", "--set", &format!("{evil}=1")],
            vec![evil],
            vec!["render", &format!("{file}.j2")],
            vec!["runs", "show", evil],
            vec!["runs", "show", "exp"],
            vec!["runs"],
            vec!["runs", "--json"],
            vec!["sample", "exp", "--prompt", evil, "--threads", "1"],
            vec!["sample", "exp", "--prompt", "1", "--threads", "1", "--json"],
            vec!["eval", "exp", "--weights", evil],
            vec!["report", "exp", "-o", "r.html", "--force"],
            vec!["diff", "exp", &file],
            vec!["compare", "exp", "exp"],
            vec!["export", "exp", "--to", "safetensors", evil],
            vec!["import", "config", "bad.json"],
            vec!["data", "prepare", &file, "--tokenizer", "bytes", "--to", "nanogpt", evil, "--threads", "1"],
            vec!["tokenizer", "encode", "--tokenizer", "bytes", evil],
        ] {
            let finished = sandbox.run(&arguments);
            let text = finished.text();
            let is_bad = |c: char| (c.is_control() && c != '\n' && c != '\t') || "\u{202e}\u{2066}\u{200b}".contains(c);
            assert!(!text.contains(is_bad), "{title}, {arguments:?}: {text:?}");
            if arguments.contains(&"--json") && finished.code == 0 {
                finished.json();
            }
        }
    }
}

#[test]
fn a_plan_that_does_not_fit_says_so_first_and_fails() {
    let sandbox = Sandbox::new().with_numbers(4000).with(
        "exp.yaml",
        "model: {family: gpt2, layers: 100, heads: 512, d_model: 65536, context_length: 32, vocab_size: 300}\n\
         data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}}\nbatch: {sequences: 4}\ntrain: {steps: 2}\n",
    );
    for command in
        ["plan exp.yaml --threads 1", "plan exp.yaml --rows 100", "plan exp.yaml --rows 100 --cluster 1x1xH100"]
    {
        sandbox.keep(sandbox.run(command)).expect_code(1);
    }
    let plan = sandbox.run("plan exp.yaml --rows 100 --json").expect_code(1).json();
    assert!(plan["shortage"].as_str().unwrap().starts_with("memory: "), "{plan}");
    // Nothing would be started.
    sandbox.expect(2, "apply exp.yaml --threads 1");
    sandbox.write("s.yaml", "sweep: {base: exp.yaml, grid: {seed: [1, 2]}}");
    sandbox.show(2, "sweep s.yaml --dry-run");
    insta::assert_snapshot!(sandbox.screens());
}
