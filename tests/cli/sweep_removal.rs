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
    sandbox.show(0, "sweep list");
    sandbox.expect(0, "sweep first.yaml --threads 1 --quiet");
    sandbox.expect(0, "sweep second.yaml --threads 1 --quiet");
    let sweeps = sandbox.json_of("sweep list --json");
    let [first, second] = sweeps.as_array().unwrap().as_slice() else { panic!("{sweeps}") };
    assert_eq!((&first["points"], &first["done"], &first["failed"]), (&4.into(), &4.into(), &0.into()), "{first}");
    assert_eq!((&second["points"], &second["queued"], &second["status"]), (&2.into(), &0.into(), &"done".into()));
    assert!(first["best"].is_null() && first["conclusion"].as_str().unwrap().starts_with("val_loss "), "{first}");
    let text = sandbox.stdout_of("sweep list");
    assert!(text.lines().count() == 3 && text.contains("val_loss "), "{text}");
    sandbox.write("runs/sweeps/odd/sweep.json", "{");
    let printed = sandbox.keep(sandbox.run("sweep list")).expect_code(0);
    assert!(printed.stdout == text, "{}", printed.stderr);
    insta::assert_snapshot!(sandbox.screens());
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
    sandbox.expect(0, &["runs", "tag", &run_of("1"), "--add", "good"]);
    sandbox.expect(0, &["fork", &run_of("2"), "--from", "latest", "--set", "train.steps=12", "--quiet"]);
    sandbox.show(2, "sweep rm first");
    let printed = sandbox.keep(sandbox.run("sweep rm first --with-runs --yes")).expect_code(0);
    assert_eq!(seeds(&sandbox), ["1", "2", "2", "4", "5"], "{}", printed.text());
    assert_eq!(sandbox.json_of("sweep list --json").as_array().unwrap().len(), 1);
    // Without the flag all runs stay.
    sandbox.expect(0, "sweep rm second --yes");
    assert_eq!(seeds(&sandbox).len(), 5);
    sandbox.show(2, "sweep rm second --yes");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn foreign_files_in_a_sweep_and_its_runs_stay() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "sweep second.yaml --threads 1 --quiet");
    let sweep = sandbox.json_of("sweep list --json")[0]["id"].as_str().unwrap().to_owned();
    let run = run_of_point(&sandbox, &sweep, 1);
    sandbox.write("elsewhere/0001.yaml", "mine");
    for name in [".notes/a.txt".to_owned(), format!(".{sweep}-notes/a.txt")] {
        sandbox.write(&format!("runs/sweeps/{name}"), "mine");
    }
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("runs/sweeps/.linked")).unwrap();
    sandbox.write(&format!("runs/{run}/notes.txt"), "mine");
    for name in ["notes.txt", "points/notes.txt", "points/mine/0001.yaml"] {
        let path = format!("runs/sweeps/{sweep}/{name}");
        sandbox.write(&path, "mine");
        sandbox.show(2, &["sweep", "rm", &sweep, "--with-runs", "--yes"]);
        assert_eq!(sandbox.runs().len(), 2, "nothing is removed");
        std::fs::remove_file(sandbox.path(&path)).unwrap();
        let _ = std::fs::remove_dir(sandbox.path(&path).parent().unwrap());
    }
    let linked = sandbox.path("runs/sweeps").join(&sweep).join("points/linked");
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), &linked).unwrap();
    sandbox.expect(2, &["sweep", "rm", &sweep, "--yes"]);
    std::fs::remove_file(&linked).unwrap();
    sandbox.show(0, &["sweep", "rm", &sweep, "--with-runs", "--yes"]);
    assert_eq!(sandbox.read(format!("runs/{run}/notes.txt")), "mine");
    assert_eq!(sandbox.runs().keys().collect::<Vec<_>>(), [&run]);
    assert_eq!(sandbox.read("elsewhere/0001.yaml") + &sandbox.read("runs/sweeps/.notes/a.txt"), "minemine");
    assert_eq!(sandbox.read(format!("runs/sweeps/.{sweep}-notes/a.txt")), "mine");
    insta::assert_snapshot!(sandbox.screens());
}

/// The id of the run of the sweep's point `point`.
fn run_of_point(sandbox: &Sandbox, sweep: &str, point: usize) -> String {
    let results = sandbox.json_of(&["sweep", "results", sweep, "--json"]);
    let rows = results["results"]["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["point"] == point).unwrap();
    row["run"].as_str().unwrap().to_owned()
}

#[test]
fn a_removed_run_of_a_finished_sweep_is_trained_again() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "sweep first.yaml --threads 1 --quiet");
    sandbox.expect(0, "sweep second.yaml --threads 1 --quiet");
    // The run of both sweeps.
    let shared = run_of_point(&sandbox, "second", 1);
    assert_eq!(shared, run_of_point(&sandbox, "first", 4));
    sandbox.show(0, &["runs", "rm", &shared, "--yes"]);
    let listed = sandbox.json_of("sweep list --json");
    assert_eq!((&listed[0]["done"], &listed[0]["queued"]), (&3.into(), &1.into()));
    let text = sandbox.stdout_of("sweep status first");
    assert!(text.contains("3 done, 1 queued"), "{text}");
    // The first sweep needs a point, so it is not finished and keeps its other runs.
    let other = run_of_point(&sandbox, "first", 1);
    let printed = sandbox.expect(2, &["runs", "rm", &other, "--yes"]);
    assert!(printed.contains("which is not finished and needs it; use `--force`"), "{printed}");
    let printed = sandbox.expect(0, "sweep first --threads 1");
    assert!(printed.contains("4 points: 4 done"), "{printed}");
    assert_eq!(sandbox.json_of("sweep list --json")[0]["queued"], 0);
}

#[test]
fn list_and_status_count_alike() {
    let sandbox = new_sandbox();
    let sweep = "sweep:\n  base: exp.yaml\n  grid: {optimizer.adamw.lr: [1e-4, 1e-3, 1e-2], log.every: [5, 10]}\n  \
                 early_stop: {asha: {min_steps: 5, reduction: 2}}\n  set: {eval.every: 5}\n";
    sandbox.write("asha.yaml", sweep);
    sandbox.expect(0, "sweep asha.yaml --threads 1 --quiet");
    let listed = sandbox.json_of("sweep list --json");
    let status = sandbox.stdout_of("sweep status");
    let counts = ["done", "stopped", "failed", "running", "interrupted", "queued", "judged", "duplicate"]
        .map(|name| (name, listed[0][name].as_u64().unwrap()));
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 6, "{counts:?}");
    let [(_, done), (_, stopped), ..] = counts;
    assert!(stopped > 0 && counts[7].1 == 3, "{counts:?}");
    let text = format!("6 points, {done} done, {stopped} stopped early, 3 the same as another");
    assert!(status.contains(&text), "{text}: {status}");
}
