//! Groups of runs that differ in their seed alone: experiments with `seeds`, and what `compare` and `diff` say of them.

use serde_json::Value;

use crate::sandbox::Sandbox;

const EXPERIMENT: &str = "name: g
seeds: 3
model: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}
data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}
batch: {sequences: 8}
train: {steps: 12}
eval: {every: 6, loss: {rows: 16}}
";

fn new_sandbox() -> Sandbox {
    Sandbox::new().with_numbers(3000).with("g.yaml", EXPERIMENT)
}

/// The ids of the sweeps.
fn groups(sandbox: &Sandbox) -> Vec<String> {
    sandbox.names_in("runs/sweeps").into_iter().filter(|name| name.starts_with("g-")).collect()
}

#[test]
fn an_experiment_with_seeds_is_a_group() {
    let sandbox = new_sandbox();
    let valid = sandbox.expect(0, "validate g.yaml");
    assert!(valid.contains("a group of 3 runs"), "{valid}");
    let plan = sandbox.expect(0, "plan g.yaml --threads 1");
    assert!(plan.contains("the file makes a group of 3 runs with this plan, apart from the seed"), "{plan}");
    let done = sandbox.expect(0, "apply g.yaml --threads 1");
    assert!(done.contains("result: val_loss") && done.contains("(3 seeds)"), "{done}");
    assert_eq!(groups(&sandbox).len(), 1);
    let again = sandbox.expect(0, "apply g.yaml --threads 1");
    assert!(again.contains("up to date") && again.contains("(3 seeds)"), "{again}");
    // A changed experiment is another group.
    sandbox.edit("g.yaml", "steps: 12", "steps: 13");
    sandbox.expect(0, "apply g.yaml --threads 1 --quiet");
    assert_eq!(groups(&sandbox).len(), 2);
    // Without `seeds` it is one run.
    sandbox.expect(0, "apply g.yaml --threads 1 --quiet --set seeds=null --set train.steps=5");
    let compared = sandbox.run(&["compare", &groups(&sandbox)[0], "--json"]).json();
    assert_eq!(compared["runs"].as_array().unwrap().len(), 3);
    assert_eq!(compared["groups"]["verdict"]["conclusion"]["kind"], "one_setting");
    let seeds: Vec<u64> =
        compared["runs"].as_array().unwrap().iter().map(|run| run["settings"]["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [1, 2, 3]);
}

#[test]
fn what_a_group_cannot_be_is_refused() {
    let sandbox = new_sandbox();
    for (arguments, message) in [
        ("apply g.yaml --trace", "--trace is for one run"),
        ("apply g.yaml --until-step 3", "--until-step is for one run"),
        ("diff g.yaml g.yaml", "`seeds` makes a group of runs, and one run is needed here"),
    ] {
        let refused = sandbox.expect(2, arguments);
        assert!(refused.contains(message), "{arguments}: {refused}");
    }
    sandbox.edit("g.yaml", "seeds: 3", "seeds: 3\nseed: 7");
    let refused = sandbox.expect(2, "apply g.yaml");
    assert!(refused.contains("the file cannot have `seed`, too"), "{refused}");
    sandbox.edit("g.yaml", "seeds: 3\nseed: 7", "seeds: [1, 1]");
    let refused = sandbox.expect(2, "validate g.yaml");
    assert!(refused.contains("listed twice"), "{refused}");
}

#[test]
fn the_name_of_a_group_whose_file_was_changed_stands_for_the_newest() {
    let sandbox = new_sandbox();
    sandbox.write("gb.yaml", EXPERIMENT.replace("name: g\n", "name: gb\noptimizer: {adamw: {lr: 2e-2}}\n"));
    for file in ["g.yaml", "gb.yaml"] {
        sandbox.expect(0, &format!("apply {file} --threads 1 --quiet"));
    }
    sandbox.edit("g.yaml", "seeds: 3", "seeds: 4");
    sandbox.expect(0, "apply g.yaml --threads 1 --quiet");
    let newest = sandbox.expect(0, "sweep status g");
    assert!(newest.contains("4 points"), "{newest}");
    for command in ["compare g gb", "diff g gb", "report g -o page.html"] {
        let printed = sandbox.expect(0, command);
        assert!(printed.contains("note: g stands for g-") && printed.contains("the newest of its file"), "{printed}");
    }
    let compared = sandbox.json_of("compare g gb --json");
    assert_eq!(compared["runs"].as_array().unwrap().len(), 7, "{compared}");
    // What removes or lists runs does not guess.
    for command in ["sweep rm g --yes", "runs --sweep g"] {
        let refused = sandbox.expect(2, command);
        assert!(refused.contains("g matches several sweeps: g-"), "{refused}");
    }
}

#[test]
fn groups_are_compared_over_their_seeds() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply g.yaml --threads 1 --quiet");
    sandbox.edit("g.yaml", "train: {steps: 12}", "train: {steps: 12}\noptimizer: {adamw: {lr: 2e-2}}");
    sandbox.expect(0, "apply g.yaml --threads 1 --quiet");
    sandbox.expect(0, "apply g.yaml --threads 1 --quiet --set seeds=null --set optimizer.adamw.lr=1e-2 --set seed=2");
    let runs: Vec<String> = sandbox.names_in("runs").into_iter().filter(|name| name.starts_with("g-")).collect();
    let [a, b] = &groups(&sandbox)[..] else { panic!("two groups") };
    let both = sandbox.run(&["compare", a, b, "--json"]).json();
    let verdict = &both["groups"]["verdict"];
    assert_eq!(verdict["conclusion"]["kind"], "best", "{verdict}");
    let settings = verdict["settings"].as_array().unwrap();
    assert_eq!((&settings[0]["name"], &settings[0]["sample"]["n"]), (&Value::from("lr=0.02"), &Value::from(3)));
    assert_eq!(settings[1]["comparison"]["n"], 3, "paired by seed");
    assert_eq!(both["groups"]["runs"][0].as_array().unwrap().len(), 3);
    assert!(both["runs"][0]["name"].as_str().unwrap().starts_with("lr "), "{}", both["runs"][0]["name"]);
    let differ = sandbox.run(&["diff", a, b]).text();
    assert!(differ.contains("best: lr=0.02, val_loss") && !differ.contains("~ seed"), "{differ}");
    // With a single run of a third setting, nothing is claimed of it.
    let everything: Vec<&str> = std::iter::once("compare").chain(runs.iter().map(String::as_str)).collect();
    let all = sandbox.run(&everything).text();
    assert!(all.contains("one seed") && all.contains("noise: the 3 seeds of "), "{all}");
    let singles: Vec<&str> =
        both["groups"]["runs"].as_array().unwrap().iter().map(|ids| ids[0].as_str().unwrap()).collect();
    let two = sandbox.run(&["compare", singles[0], singles[1]]).text();
    assert!(two.contains("one seed does not show whether it is better than the others"), "{two}");
}
