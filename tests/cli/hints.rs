//! Commands that messages propose: each is run as it is written.

use std::process::Command;

use crate::sandbox::{Finished, Sandbox, runner_binary};

const EXPERIMENT: &str = "name: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}\n\
    data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}, validation: null}\n\
    batch: {sequences: 4}\ntrain: {steps: 6}\noptimizer: {adamw: {lr: 1e-3}}\neval: {loss: null}\ncheckpoint: {every: 2}\n";

/// A sandbox with a run that was stopped after step 4.
fn interrupted(experiment: &str) -> Sandbox {
    let sandbox = Sandbox::new().with_numbers(1000).with("exp.yaml", experiment);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 4");
    sandbox
}

/// The commands in backquotes in `text`, except for those with a word in capitals, which the reader must replace.
fn proposed_commands(text: &str) -> Vec<String> {
    let is_placeholder = |word: &str| !word.is_empty() && word.chars().all(char::is_uppercase);
    let quoted =
        text.split('`').skip(1).step_by(2).map(|quoted| quoted.split_whitespace().collect::<Vec<_>>().join(" "));
    quoted.filter(|quoted| quoted.starts_with("runner ") && !quoted.split(['=', ' ']).any(is_placeholder)).collect()
}

/// Runs the only command that `text` proposes, in a shell, with one thread. It must succeed.
#[track_caller]
fn follow(sandbox: &Sandbox, text: &str) -> String {
    let commands = proposed_commands(text);
    let [command] = &commands[..] else { panic!("one command, but {commands:?} in {text}") };
    let line = format!("{} {} --threads 1", runner_binary().display(), command.strip_prefix("runner ").unwrap());
    let printed = Finished::of(sandbox.prepare(Command::new("sh").args(["-c", &line]))).expect_code(0).text();
    format!("{command}\n{printed}")
}

#[test]
fn a_run_whose_data_was_edited_can_be_forked_as_proposed() {
    // The tokenizer is made from the text. With other characters or words it is a different one.
    let mut screens = String::new();
    for (tokenizer, added, from) in [
        ("bytes: {}", "more", "latest"),
        ("chars: {}", "1", "latest"),
        ("chars: {}", "more", "start"),
        ("words: {}", "more ", "start"),
        ("bpe: {vocab_size: 300}", "more ", "start"),
    ] {
        let sandbox = interrupted(&EXPERIMENT.replace("bytes: {}", tokenizer));
        sandbox.write("input.txt", sandbox.read("input.txt") + &added.repeat(500));
        let refused = sandbox.show(2, "resume lab --threads 1");
        let followed = follow(&sandbox, &refused);
        assert!(
            followed.contains(&format!("--from {from}\n")) && followed.contains("done: "),
            "{tokenizer}: {followed}"
        );
        screens += &sandbox.screens();
    }
    insta::assert_snapshot!(screens);
}

#[test]
fn a_run_that_is_longer_than_its_edited_data_asks_for_starts_again() {
    let sandbox = interrupted(&EXPERIMENT.replace("steps: 6", "epochs: 0.2"));
    let text = sandbox.read("input.txt");
    sandbox.write("input.txt", &text[..text.len() / 8]);
    let refused = sandbox.show(2, "resume lab --threads 1");
    follow(&sandbox, &refused);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_run_without_checkpoint_and_one_in_another_folder_can_be_forked_as_proposed() {
    let sandbox = interrupted(EXPERIMENT);
    std::fs::rename(sandbox.path("runs"), sandbox.path("my runs")).unwrap();
    let run = sandbox.only_run_in("my runs");
    sandbox.write("input.txt", sandbox.read("input.txt") + "more");
    let resume = ["resume", "lab", "--threads", "1", "--runs", "my runs"];
    let followed = follow(&sandbox, &sandbox.expect(2, &resume));
    assert!(followed.starts_with(&format!("runner fork 'my runs/{}' --from latest\n", run.id())), "{followed}");
    std::fs::remove_dir_all(run.path("checkpoints")).unwrap();
    let followed = follow(&sandbox, &sandbox.expect(2, &resume));
    assert!(followed.contains("--from start\n"), "{followed}");
}

#[test]
fn a_changed_file_proposes_commands_that_work() {
    // With a changed setting, the run can be resumed and forked.
    let sandbox = interrupted(EXPERIMENT);
    let printed = sandbox.show(0, "apply exp.yaml --threads 1 --set seed=7");
    let commands = proposed_commands(&printed);
    assert_eq!(commands.len(), 2, "{printed}");
    for command in &commands {
        follow(&sandbox, &format!("`{command}`"));
    }
    insta::assert_snapshot!(sandbox.screens());
    // With changed data, it cannot be resumed.
    let sandbox = interrupted(EXPERIMENT);
    sandbox.write("input.txt", sandbox.read("input.txt") + "more");
    let printed = sandbox.show(0, "apply exp.yaml --threads 1");
    follow(&sandbox, &printed);
    insta::assert_snapshot!(sandbox.screens());
    let sandbox = interrupted(&EXPERIMENT.replace("bytes: {}", "chars: {}"));
    sandbox.write("input.txt", sandbox.read("input.txt") + "more");
    let printed = sandbox.show(0, "apply exp.yaml --threads 1");
    assert_eq!(proposed_commands(&printed), [""; 0], "{printed}");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn refused_continuations_and_forks_propose_commands_that_work() {
    let sandbox = interrupted(EXPERIMENT);
    std::fs::rename(sandbox.path("runs"), sandbox.path("other")).unwrap();
    let run = sandbox.only_run_in("other");
    let apply = "apply exp.yaml --threads 1 --runs other --new --continue lab";
    follow(&sandbox, &sandbox.expect(2, apply));
    let refused = sandbox.show(2, "fork lab --from start --threads 1 --runs other");
    follow(&sandbox, &refused);
    sandbox.show(2, "fork lab --from latest --threads 1 --runs other");
    sandbox.expect(0, "fork lab --from latest --threads 1 --runs other --set train.steps=12 --quiet");
    std::fs::remove_file(run.path("metrics.jsonl")).unwrap();
    follow(&sandbox, &sandbox.expect(1, &format!("reproduce other/{} --threads 1", run.id())));
    insta::assert_snapshot!(sandbox.screens());
}
