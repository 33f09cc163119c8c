//! The runs that commands work on are chosen in one way: names, patterns, sweeps, and filters over settings and results.

use crate::sandbox::Sandbox;

const EXPERIMENT: &str = "model: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}
data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}
batch: {sequences: 8}
train: {steps: 4}
eval: {every: 4, loss: {rows: 16}}
";

/// Runs of several settings, some of them points of a sweep.
fn new_sandbox() -> Sandbox {
    let sandbox = Sandbox::new()
        .with_numbers(3000)
        .with("wide.yaml", EXPERIMENT)
        .with("s.yaml", "sweep: {base: wide.yaml, set: {name: point}, grid: {model.layers: [1, 2]}}\n");
    sandbox.expect(0, "apply wide.yaml --threads 1 --quiet");
    let muon = "apply wide.yaml --threads 1 --quiet --set name=muon --set optimizer.muon.lr";
    sandbox.expect(0, &format!("{muon}=0.03"));
    sandbox.expect(0, &format!("{muon}=0.01 --until-step 2"));
    sandbox.expect(0, "sweep s.yaml --threads 1 --quiet");
    sandbox
}

/// The names and statuses of the runs that `runs` lists, with their numbers of layers.
fn listed(sandbox: &Sandbox, arguments: &[&str]) -> Vec<String> {
    let runs = sandbox.json_of(&[&["runs", "--json"], arguments].concat());
    let mut names: Vec<String> = runs
        .as_array()
        .unwrap()
        .iter()
        .map(|run| format!("{} {}", run["name"].as_str().unwrap(), run["status"].as_str().unwrap()))
        .collect();
    names.sort();
    names
}

#[test]
fn names_patterns_sweeps_and_expressions_choose_runs() {
    let sandbox = new_sandbox();
    let sweep = sandbox.names_in("runs/sweeps").into_iter().find(|name| name.starts_with("s-")).unwrap();
    for (arguments, expected) in [
        (&["mu*"][..], &["muon done", "muon interrupted"][..]),
        (&["wide", "mu*"], &["muon done", "muon interrupted", "wide done"]),
        (&["s"], &["point done", "point done"]),
        (&["s", "--where", "model.layers > 1"], &["point done"]),
        (&["--where", "optimizer.muon.lr > 0.02"], &["muon done"]),
        (&["--where", "optimizer.muon is none and status == 'done'"], &["point done", "point done", "wide done"]),
        (&["--where", "optimizer.muon.lr > 0 and val_loss > 0"], &["muon done"]),
        (&["--where", "model.layers == 2 or name == 'wide'"], &["point done", "wide done"]),
        (&["--status", "interrupted"], &["muon interrupted"]),
        (&["wide", "--status", "interrupted"], &[]),
    ] {
        assert_eq!(listed(&sandbox, arguments), expected, "{arguments:?}");
    }
    let tagged = sandbox.json_of(&["runs", "tag", "--where", "model.layers == 2", "--add", "deep", "--json"]);
    assert_eq!(tagged.as_array().unwrap().len(), 1);
    assert_eq!(listed(&sandbox, &["--tag", "deep"]), ["point done"]);
    let compared = sandbox.json_of(&["compare", "mu*", "wide", "--where", "val_loss > 0", "--json"]);
    assert_eq!(compared["runs"].as_array().unwrap().len(), 2);
    let report = sandbox.json_of(&["report", "--where", "name == 'muon'", "-o", "r.html", "--json"]);
    assert_eq!(report["runs"].as_array().unwrap().len(), 2);
    sandbox.expect(0, &["export-metrics", "--where", "model.layers == 2", "--csv", "deep.csv"]);
    sandbox.show(0, &["gc", "--where", "model.layers == 2"]);
    let removed = sandbox.json_of(&["runs", "rm", "--status", "interrupted", "--yes", "--json"]);
    assert_eq!(removed["removed"].as_array().unwrap().len(), 1);
    assert_eq!(sandbox.runs().len(), 4);
    // Without the sweep's folder, its runs still name it.
    std::fs::remove_dir_all(sandbox.path("runs/sweeps")).unwrap();
    assert_eq!(listed(&sandbox, &[&sweep]), ["point done", "point done"]);
    for arguments in [
        &["runs", "rm", "--yes"][..],
        &["runs", "nothing"],
        &["runs", "rm", "nothing-*", "--yes"],
        &["compare", "--where", "model.layers > 7"],
        &["report", "--where", "model.leyers > 7", "-o", "x.html"],
        &["runs", "--where", "val_los < 3"],
        &["runs", "--where", "val_loss.x < 3"],
        &["gc", "--cache", "--where", "val_loss < 3"],
    ] {
        sandbox.show(2, arguments);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn runs_are_watched_in_lines_where_there_is_no_terminal() {
    let sandbox = new_sandbox();
    sandbox.show(0, "watch mu*");
    sandbox.show(0, &["watch", "--plain", "--where", "model.layers == 2"]);
    sandbox.show(2, "watch nothing");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_sweep_stands_for_the_run_of_its_best_point() {
    let sandbox = new_sandbox();
    let results = sandbox.json_of("sweep results s --json");
    let best = results["results"]["rows"][0]["run"].as_str().unwrap().to_owned();
    let of_sweep = sandbox.run("sample s --prompt 1 --max-tokens 4").expect_code(0);
    assert!(of_sweep.stderr.contains(&format!(": {best}")), "{}", of_sweep.stderr);
    assert_eq!(of_sweep.stdout, sandbox.run(&["sample", &best, "--prompt", "1", "--max-tokens", "4"]).stdout);
    sandbox.expect(0, "export s --to hf model");
    sandbox.expect(0, "eval s");
    sandbox.expect(0, "sweep s.yaml --set train.steps=3 --dry-run");
    sandbox.write(
        "l.yaml",
        "sweep: {base: wide.yaml, set: {name: point}, grid: {data.validation.fraction: [0.1, 0.2]}}\n",
    );
    sandbox.expect(0, "sweep l.yaml --threads 1 --quiet");
    sandbox.show(2, "sample l --prompt 1");
    insta::assert_snapshot!(sandbox.screens());
}
