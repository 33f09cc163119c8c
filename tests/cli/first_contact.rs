//! A new user's first commands: starter files, configurations of other trainers, and commands and flags of other programs.

use std::io::Write as _;

use crate::sandbox::{Finished, Sandbox};

#[test]
fn a_starter_file_trains_at_once_in_every_layout() {
    let sandbox = Sandbox::new();
    for (name, flags) in [
        ("single", "--model llama"),
        ("dp", "--parallel dp"),
        ("ddp", "--parallel ddp --model llama"),
        ("pipeline", "--parallel pipeline"),
    ] {
        sandbox.show(0, &format!("init {name} {flags}"));
        let valid = sandbox.stdout_of(&format!("validate {name}.yaml"));
        assert_eq!(valid, format!("{name}.yaml: `{name}` is a valid experiment\n"));
        sandbox.expect(
            0,
            &format!(
                "apply {name}.yaml --set train.steps=2 --set schedule=null --set eval=null --set device=cpu --quiet"
            ),
        );
    }
    assert_eq!(sandbox.runs().len(), 4);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_starter_file_replaces_no_file_and_needs_a_text_that_exists() {
    let sandbox = Sandbox::new().with("input.txt", "once upon a time ".repeat(100)).with("taken.yaml", "mine");
    sandbox.show(2, "init taken");
    assert_eq!(sandbox.read("taken.yaml"), "mine");
    sandbox.expect(0, "init taken.yaml --force --text input.txt");
    assert!(sandbox.read("taken.yaml").contains("{text: {files: [input.txt]}}"));
    let said = sandbox.expect(2, "init other --text missing.txt");
    assert!(said.contains("missing.txt"), "{said}");
    sandbox.write("x.jsonl", "{}");
    let said = sandbox.expect(2, "init other --text x.jsonl");
    assert!(said.contains("is JSON lines; name a file of plain text"), "{said}");
    std::fs::remove_file(sandbox.path("x.jsonl")).unwrap();
    for name in ["a b", "", "../up", ".hidden"] {
        sandbox.show(2, &["init", name]);
    }
    assert_eq!(sandbox.names_in("."), ["input.txt", "taken.yaml"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn refuses_pipes_and_devices_but_reads_standard_input() {
    let yaml = "model: {preset: gpt2-nano}\ndata: {train: {text: {files: [input.txt]}}}\n";
    let sandbox = Sandbox::new().with("exp.yaml", yaml).with("input.txt", "once upon a time ".repeat(100));
    assert!(std::process::Command::new("mkfifo").arg(sandbox.path("pipe")).status().unwrap().success());
    for command in [
        "validate pipe",
        "validate exp.yaml --set data.train.text.files=[pipe]",
        "validate exp.yaml --set data.tokenizer.file=pipe",
        "validate exp.yaml --set model.init.from=pipe",
        "import config pipe",
        "sweep pipe",
        "init other --text pipe",
    ] {
        let said = sandbox.expect(2, command);
        assert!(said.contains("is a pipe"), "{command}: {said}");
    }
    std::os::unix::fs::symlink("nowhere", sandbox.path("link")).unwrap();
    for (file, help) in [
        ("link", "it is a link to nowhere, which does not exist"),
        ("~/x.txt", "`~` is not expanded in a file"),
        ("https://host/x.txt", "download it first"),
    ] {
        let said = sandbox.expect(2, &format!("validate exp.yaml --set data.train.text.files=[{file}]"));
        assert!(said.contains(help), "{said}");
    }
}

/// A pipe can be read only once: a second read of the file would find it empty.
#[test]
fn an_experiment_file_is_read_once() {
    let experiment = "model: {preset: gpt2-nano}\ndata: {train: {builtin: {corpus: stories}}}\nbatch: {sequences: 2}\n\
                      train: {steps: 1}\neval: {loss: {rows: 2}}\ndevice: cpu\n";
    let sweep = "sweep: {base: /dev/stdin, grid: {seed: [1, 2, 3]}}\n";
    let sandbox = Sandbox::new().with("exp.yaml", experiment).with("s.yaml", sweep);
    for (command, text) in [
        ("validate /dev/stdin", experiment),
        ("validate --explain /dev/stdin", experiment),
        ("plan /dev/stdin", experiment),
        ("apply /dev/stdin", experiment),
        ("diff /dev/stdin exp.yaml", experiment),
        ("diff /dev/stdin exp.yaml", &experiment.replace("builtin: {corpus: stories}", "text: {files: [gone]}")),
        ("validate s.yaml", experiment),
        ("sweep --dry-run s.yaml", experiment),
    ] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        drop(writer);
        sandbox.keep(Finished::of(sandbox.command(command).stdin(reader))).expect_code(0);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn tokens_without_a_tokenizer_need_a_vocabulary() {
    let yaml = "model: {preset: gpt2-nano, context_length: 16}\ndata: {train: {tokens: {files: [train.bin]}}}\n\
                batch: {sequences: 2}\ntrain: {steps: 1}\ndevice: cpu\n";
    let sandbox = Sandbox::new().with("exp.yaml", yaml).with("train.bin", [1, 0].repeat(200));
    for command in ["validate exp.yaml", "plan exp.yaml", "apply exp.yaml --quiet"] {
        sandbox.show(2, command);
        sandbox.keep(sandbox.run(&format!("{command} --set data.tokenizer.bytes={{}}"))).expect_code(0);
        sandbox.expect(0, &format!("{command} --set model.vocab_size=9"));
    }
    sandbox.write("tokenizer.json", "{}");
    sandbox.show(2, "validate exp.yaml");
    std::fs::remove_file(sandbox.path("tokenizer.json")).unwrap();
    sandbox.write("meta.pkl", "");
    sandbox.show(2, "validate exp.yaml");
    sandbox.show(2, "validate exp.yaml --set data.tokenizer.ids={}");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_config_of_nanogpt_trains_after_its_import() {
    let config = "out_dir = 'out'\ndataset = 'tiny_char'\nbatch_size = 4\nblock_size = 16\nn_layer = 1\nn_head = 2\nn_embd = 16\n\
                  gradient_accumulation_steps = 2\nmax_iters = 4\nwarmup_iters = 1\nlr_decay_iters = max_iters\neval_iters = 2\n\
                  device = 'cpu'\n";
    let sandbox =
        Sandbox::new().with("tiny.py", config).with("data/tiny_char/input.txt", "once upon a time ".repeat(100));
    sandbox.expect(0, "import config tiny.py -o sub/tiny.yaml");
    sandbox.expect(0, "validate sub/tiny.yaml");
    sandbox.expect(0, "import config tiny.py -o tiny.yaml");
    sandbox.expect(0, "apply tiny.yaml --quiet");
    assert_eq!(sandbox.only_run().metrics_of("train").len(), 4);
    let said = sandbox.expect(2, "import config tiny.py -o ./tiny.py --force");
    assert!(said.contains("tiny.py is the configuration itself"), "{said}");
    let said = sandbox.expect(2, "import config tiny.py -o tiny.yaml");
    assert!(said.contains("tiny.yaml already exists; use `--force` to replace it"), "{said}");
    assert_eq!(sandbox.stdout_of("import config tiny.py"), sandbox.read("tiny.yaml"));
}

#[test]
fn commands_of_other_programs_are_answered_with_this_programs() {
    let sandbox = Sandbox::new();
    for given in ["run exp.yaml", "train exp.yaml", "list", "generate", "new"] {
        sandbox.show(2, given);
    }
    for near_an_internal_one in ["ran", "rnk", "logit"] {
        sandbox.show(2, near_an_internal_one);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn keys_given_as_arguments_are_answered_with_set() {
    let sandbox = Sandbox::new();
    for given in ["apply exp.yaml train.steps=5", "apply exp.yaml --train.steps=5", "plan exp.yaml --train.steps 5"] {
        let said = sandbox.expect(2, given);
        assert!(said.contains("a key of the experiment is set with `--set KEY=VALUE`"), "{said}");
    }
    let said = sandbox.expect(2, "apply exp.yaml --quite");
    assert!(said.contains("'--quiet'"), "{said}");
}

#[test]
fn the_version_names_how_the_program_was_built() {
    let sandbox = Sandbox::new();
    let short = format!("runner {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(sandbox.stdout_of("-V"), format!("{short}\n"));
    let long = sandbox.stdout_of("--version");
    let lines: Vec<&str> = long.lines().collect();
    let [program, sources, target, features, instructions] = lines.as_slice() else { panic!("{long}") };
    assert!(program.starts_with(&short), "{long}");
    let hash = sources.strip_prefix("sources: ").unwrap();
    assert!(hash.len() == 12 && hash.chars().all(|digit| digit.is_ascii_hexdigit()), "{long}");
    assert!(target.starts_with("target: ") && target.contains(std::env::consts::ARCH), "{long}");
    assert_eq!(*features == "features: none", !cfg!(feature = "cuda"), "{long}");
    assert!(instructions.starts_with("instructions: ") && instructions.contains(", matrix products "), "{long}");
}

#[test]
fn a_shell_completes_commands_runs_and_sweeps() {
    let yaml = "model: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}}\n\
                batch: {sequences: 8, micro_batch: 8}\ntrain: {steps: 3}\n";
    let sandbox = Sandbox::new().with("input.txt", "once upon a time ".repeat(100)).with("exp.yaml", yaml);
    sandbox.expect(0, "apply exp.yaml --quiet");
    let id = sandbox.only_run().id();
    // This is what the script of fish asks.
    let candidates = |words: &str| {
        let mut command = sandbox.command(&format!("-- runner {words}"));
        Finished::of(command.env("COMPLETE", "fish")).expect_code(0).stdout
    };
    assert_eq!(candidates("resume ex"), format!("{id}\tdone\n"));
    assert!(candidates("apply ex").contains("exp.yaml"));
    assert!(candidates("sweep li").starts_with("list\t") && candidates("calib").starts_with("calibrate\t"));
    for (shell, part) in [("bash", "complete "), ("zsh", "#compdef runner"), ("fish", "complete ")] {
        let script = Finished::of(sandbox.command("").env("COMPLETE", shell)).expect_code(0).stdout;
        assert!(script.contains(part) && script.contains("COMPLETE"), "{script}");
    }
}
