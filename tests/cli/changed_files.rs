//! `apply` of a file that has changed since its last run: it names the keys that make it a new run, and how to continue the earlier one.

use crate::sandbox::Sandbox;

/// A sandbox whose experiment has a run of four steps; and the run's id.
fn sandbox_with_run(until: Option<u64>) -> (Sandbox, String) {
    let yaml = "name: lab\nmodel: {family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 32}\n\
                data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
                batch: {sequences: 8, micro_batch: 4}\ntrain: {steps: 4}\noptimizer: {adamw: {lr: 1e-3}}\n\
                eval: {every: 4}\ncheckpoint: {every: 2}\n";
    let sandbox = Sandbox::new().with_numbers(3000).with("exp.yaml", yaml);
    let until = until.map_or_else(String::new, |step| format!(" --until-step {step}"));
    sandbox.expect(0, &format!("apply exp.yaml --threads 1 --quiet{until}"));
    let id = sandbox.only_run().id();
    (sandbox, id)
}

/// The command in backquotes after `words` in `text`.
#[track_caller]
fn command_after(text: &str, words: &str) -> String {
    let found = text.split_once(words).unwrap_or_else(|| panic!("no {words:?} in {text}")).1;
    found.split('`').nth(1).unwrap().strip_prefix("runner ").unwrap().to_owned()
}

#[test]
fn a_longer_run_names_the_shorter_one() {
    let (sandbox, id) = sandbox_with_run(None);
    sandbox.edit("exp.yaml", "steps: 4", "steps: 6");
    sandbox.show(0, "apply exp.yaml --threads 1");
    sandbox.expect(0, &format!("fork {id} --from latest --set train.steps=6 --threads 1 --quiet"));
    // There is no step to continue to; and the run with the fewest changes is the one that is named.
    sandbox.show(0, "apply exp.yaml --threads 1 --set train.steps=3");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn the_changed_keys_are_named_and_the_command_continues_with_them() {
    let (sandbox, id) = sandbox_with_run(Some(2));
    sandbox.edit("exp.yaml", "lr: 1e-3", "lr: 5e-4, betas: [0.9, 0.98]");
    // Nothing is computed by these keys.
    sandbox.edit("exp.yaml", "checkpoint: {every: 2}", "checkpoint: {every: 1}\nlog: {every: 2}");
    let printed = sandbox.show(0, "apply exp.yaml --threads 1");
    assert_eq!(command_after(&printed, "to continue it unchanged: "), format!("resume {id}"));
    let fork = command_after(&printed, "from step 2 instead: ");
    assert!(fork.contains("'optimizer.adamw.betas=[0.9,0.98]'"), "{fork}");
    let arguments: Vec<String> = fork.split(' ').map(|word| word.trim_matches('\'').to_owned()).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--threads", "1"]);
    sandbox.show(0, &arguments[..]);
    // The same file again is the run that it started.
    sandbox.show(0, "apply exp.yaml --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_key_that_forbids_to_continue_is_named() {
    let (sandbox, id) = sandbox_with_run(Some(2));
    let printed = sandbox.expect(0, "apply exp.yaml --threads 1 --set model.d_model=32");
    assert!(printed.contains("model.d_model is 32 (--set model.d_model=32), was 16\n"), "{printed}");
    assert!(
        printed.contains(&format!("{id} cannot continue with this file: the model's shapes differ (")),
        "{printed}"
    );
    assert!(!printed.contains("runner fork"), "{printed}");
}

#[test]
fn changed_data_and_a_fork_of_the_same_settings_are_named() {
    let (sandbox, id) = sandbox_with_run(Some(2));
    sandbox.expect(0, &format!("fork {id} --from latest --set seed=7 --until-step 3 --threads 1 --quiet"));
    let fork = sandbox.runs().into_keys().find(|other| *other != id).unwrap();
    let printed = sandbox.show(0, "apply exp.yaml --threads 1 --set seed=7");
    assert_eq!(command_after(&printed, "to continue it instead: "), format!("resume {fork}"));
    sandbox.expect(0, &format!("fork {id} --from latest --set seed=8 --name other --threads 1 --quiet"));
    sandbox.show(0, "apply exp.yaml --threads 1 --set seed=8");
    let text = sandbox.read("input.txt");
    sandbox.write("input.txt", text + "more ");
    sandbox.show(0, "apply exp.yaml --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn sweeps_new_runs_and_quiet_commands_show_no_comparison() {
    let (sandbox, _) = sandbox_with_run(None);
    sandbox.write("s.yaml", "sweep: {base: exp.yaml, grid: {seed: [1, 2]}}\n");
    sandbox.show(0, "sweep s.yaml --threads 1");
    for flags in ["--new --set seed=3", "--quiet --set seed=4"] {
        sandbox.show(0, &format!("apply exp.yaml --threads 1 {flags}"));
    }
    // The points of the sweep are not runs of the file, though they share more with this one.
    sandbox.show(0, "apply exp.yaml --threads 1 --set seed=1 --set train.steps=5");
    let output = sandbox.run("apply exp.yaml --threads 1 --json --set seed=6");
    output.json_lines();
    insta::assert_snapshot!(sandbox.screens());
}
