//! The list of sweeps, and their removal with the runs that nothing else needs.

use crate::sandbox::Sandbox;

/// A sandbox with an experiment that trains in a moment, and two sweeps that share a point.
fn new_sandbox() -> Sandbox {
    let yaml = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
                batch: {sequences: 8, micro_batch: 8}\ntrain: {steps: 10}\neval: {every: 10, loss: {batches: 1}}\n";
    let sweep = |seeds: &str| format!("sweep:\n  base: exp.yaml\n  grid: {{seed: [{seeds}]}}\n");
    let sandbox = Sandbox::new().with_numbers(4000).with("exp.yaml", yaml);
    sandbox.with("first.yaml", sweep("1, 2, 3, 4")).with("second.yaml", sweep("4, 5"))
}

#[test]
fn sweeps_are_listed_with_their_points_and_the_best() {
    let sandbox = new_sandbox();
    assert!(sandbox.stdout_of("sweep list").contains("no sweeps in runs yet"));
    sandbox.expect(0, "sweep first.yaml --threads 1 --quiet");
    sandbox.expect(0, "sweep second.yaml --threads 1 --quiet");
    let sweeps = sandbox.json_of("sweep list --json");
    let [first, second] = sweeps.as_array().unwrap().as_slice() else { panic!("{sweeps}") };
    assert_eq!((&first["points"], &first["done"], &first["failed"]), (&4.into(), &4.into(), &0.into()), "{first}");
    assert_eq!((&second["points"], &second["queued"], &second["status"]), (&2.into(), &0.into(), &"done".into()));
    let results = sandbox.json_of(&["sweep", "results", first["id"].as_str().unwrap(), "--json"]);
    assert_eq!(first["best"], results["best"]);
    let text = sandbox.stdout_of("sweep list");
    assert!(text.lines().count() == 3 && text.contains("val_loss "), "{text}");
    sandbox.write("runs/sweeps/odd/sweep.json", "{");
    let printed = sandbox.run("sweep list").expect_code(0);
    assert!(printed.stdout == text && printed.stderr.contains("odd/sweep.json"), "{}", printed.stderr);
}

#[test]
fn a_sweep_goes_with_the_runs_that_nothing_else_needs() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "sweep first.yaml --threads 1 --quiet");
    sandbox.expect(0, "sweep second.yaml --threads 1 --quiet");
    let seeds = |sandbox: &Sandbox| {
        let mut seeds: Vec<String> = sandbox
            .runs()
            .values()
            .map(|run| {
                let text = run.read("resolved.yaml");
                text.lines().find_map(|line| line.strip_prefix("seed: ")).unwrap().to_owned()
            })
            .collect();
        seeds.sort();
        seeds
    };
    assert_eq!(seeds(&sandbox), ["1", "2", "3", "4", "5"]);
    let run_of = |seed: &str| {
        let runs = sandbox.runs();
        runs.into_iter().find(|(_, run)| run.read("resolved.yaml").contains(&format!("\nseed: {seed}\n"))).unwrap().0
    };
    sandbox.expect(0, &["runs", "tag", &run_of("1"), "+good"]);
    sandbox.expect(0, &["fork", &run_of("2"), "--from", "latest", "--set", "train.steps=12", "--quiet"]);
    assert!(sandbox.expect(2, "sweep rm first").contains("give --yes"), "nobody can confirm");
    let printed = sandbox.run("sweep rm first --with-runs --yes").expect_code(0);
    for reason in ["it has the tag good", "was made from it", "counts it among its points"] {
        assert!(printed.stderr.contains(reason), "{reason}: {}", printed.stderr);
    }
    assert_eq!(seeds(&sandbox), ["1", "2", "2", "4", "5"], "{}", printed.text());
    assert_eq!(sandbox.json_of("sweep list --json").as_array().unwrap().len(), 1);
    // Without the flag all runs stay.
    sandbox.expect(0, "sweep rm second --yes");
    assert_eq!(seeds(&sandbox).len(), 5);
    assert!(sandbox.expect(2, "sweep rm second --yes").contains("no sweep"), "it is gone");
}
