//! Groups of runs that differ in their seed alone: experiments with `seeds`, and what `compare` says of them.

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
    sandbox.show(0, "validate g.yaml");
    sandbox.show(0, "plan g.yaml --threads 1");
    sandbox.show(0, "apply g.yaml --threads 1");
    assert_eq!(groups(&sandbox).len(), 1);
    sandbox.show(0, "apply g.yaml --threads 1");
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
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn what_a_group_cannot_be_is_refused() {
    let sandbox = new_sandbox();
    for arguments in ["apply g.yaml --trace", "apply g.yaml --until-step 3", "diff g.yaml g.yaml"] {
        sandbox.show(2, arguments);
    }
    sandbox.edit("g.yaml", "seeds: 3", "seeds: 3\nseed: 7");
    sandbox.show(2, "apply g.yaml");
    sandbox.edit("g.yaml", "seeds: 3\nseed: 7", "seeds: [1, 1]");
    sandbox.show(2, "validate g.yaml");
    insta::assert_snapshot!(sandbox.screens());
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
    let compared = sandbox.json_of("compare g gb --json");
    assert_eq!(compared["runs"].as_array().unwrap().len(), 7, "{compared}");
    // What removes or lists runs does not guess.
    for command in ["sweep rm g --yes", "sweep results nothing"] {
        sandbox.show(2, command);
    }
    insta::assert_snapshot!(sandbox.screens());
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
    // With a single run of a third setting, nothing is claimed of it.
    let everything: Vec<&str> = std::iter::once("compare").chain(runs.iter().map(String::as_str)).collect();
    let all = sandbox.run(&everything).text();
    assert!(all.contains("one seed"), "{all}");
    let singles: Vec<&str> =
        both["groups"]["runs"].as_array().unwrap().iter().map(|ids| ids[0].as_str().unwrap()).collect();
    sandbox.keep(sandbox.run(&["compare", singles[0], singles[1]]));
    insta::assert_snapshot!(sandbox.screens());
}

/// A seed that is zipped with a setting makes pairs of runs, which are not copies that only rounding distinguishes.
#[test]
fn seeds_in_a_zip_are_seeds() {
    let base = EXPERIMENT.replace("seeds: 3\n", "");
    let sweep = "sweep:\n  base: e.yaml\n  zip: {optimizer.adamw.lr: [1e-3, 1e-3, 2e-3, 2e-3], seed: [1, 2, 1, 2]}\n";
    let sandbox = Sandbox::new().with_numbers(3000).with("e.yaml", base).with("z.yaml", sweep);
    sandbox.expect(0, "sweep z.yaml --threads 1");
    let verdict = &sandbox.json_of("sweep results z --json")["verdict"];
    let samples = verdict["settings"].as_array().unwrap().iter().map(|setting| setting["sample"]["n"].as_u64());
    assert_eq!(samples.collect::<Vec<_>>(), [Some(2), Some(2)], "{verdict}");
    assert_eq!(verdict["settings"][1]["comparison"]["n"], 2, "{verdict}");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn settings_that_were_picked_from_a_sweep_are_named_as_some_of_all() {
    let base = EXPERIMENT.replace("seeds: 3\n", "");
    let sweep = "sweep:\n  base: e.yaml\n  grid: {optimizer.adamw.lr: [1e-3, 2e-3, 5e-3]}\n  seeds: 3\n";
    let sandbox = Sandbox::new().with_numbers(3000).with("e.yaml", base).with("p.yaml", sweep);
    sandbox.expect(0, "sweep p.yaml --threads 1");
    let own = sandbox.json_of("sweep results p --json");
    let runs = |lr: f64| -> Vec<String> {
        let rows = own["results"]["rows"].as_array().unwrap().iter();
        let rows = rows.filter(|row| row["values"]["optimizer.adamw.lr"] == lr);
        rows.map(|row| row["run"].as_str().unwrap().to_owned()).collect()
    };
    let compare = |runs: Vec<String>| {
        let arguments: Vec<&str> = std::iter::once("compare").chain(runs.iter().map(String::as_str)).collect();
        sandbox.run(&arguments).text()
    };
    let picked = "picked: 2 settings of the 3 that the sweep p-";
    let text = compare([runs(2e-3), runs(5e-3)].concat());
    assert!(text.contains(picked) && text.contains("compares all of them"), "{text}");
    let page = "report ".to_owned() + &runs(2e-3)[0] + " " + &runs(5e-3)[0] + " -o picked.html";
    sandbox.expect(0, page.as_str());
    assert!(sandbox.read("picked.html").contains(picked), "the page says it, too");
    // A run that differs from one of them only in rounding is of the same setting.
    let set = "--set optimizer.adamw.lr=1e-3 --set seed=1 --set batch.micro_batch=4";
    sandbox.expect(0, format!("apply e.yaml --threads 1 --quiet {set}").as_str());
    let known: Vec<String> = [1e-3, 2e-3, 5e-3].into_iter().flat_map(runs).collect();
    let is_new = |name: &String| name.starts_with("g-") && !known.contains(name);
    let other = sandbox.names_in("runs").into_iter().find(is_new).unwrap();
    let text = compare(vec![runs(1e-3)[0].clone(), other]);
    assert!(text.contains(", up to rounding; only "), "{text}");
    // Comparing all settings picks none, and one setting is not compared.
    for runs in [known.clone(), runs(1e-3)] {
        let text = compare(runs);
        assert!(!text.contains("picked:"), "{text}");
    }
    // Without the sweep's folder, how many settings it compared is unknown.
    std::fs::remove_dir_all(sandbox.path("runs/sweeps")).unwrap();
    let text = compare([runs(2e-3), runs(5e-3)].concat());
    assert!(text.contains("the number of settings that it compared is unknown"), "{text}");
}

#[test]
fn what_chose_a_setting_is_named() {
    let base = EXPERIMENT.replace("seeds: 3\n", "").replace(
        "eval: {every: 6, loss: {rows: 16}}",
        "eval: {every: 6, loss: {rows: 16}, test: {text: {files: [t.txt]}}}",
    );
    let sweep = "sweep:\n  base: e.yaml\n  grid: {optimizer.adamw.lr: [1e-3, 5e-3]}\n  \
        objective: {metric: val_loss, at: best}\n";
    let sandbox = Sandbox::new().with_numbers(3000).with("e.yaml", base).with("q.yaml", sweep);
    sandbox.write("t.txt", "a text that was not trained on. ".repeat(20));
    sandbox.show(0, "sweep q.yaml --threads 1");
    sandbox.show(0, "sweep list");
    let compared = sandbox.json_of("compare q --json");
    sandbox.expect(0, "report q -o q.html");
    let page = sandbox.read("q.html");
    for part in ["val_loss (at: best)", "\"test\":{\"step\":"] {
        assert!(page.contains(part), "{part}");
    }
    // Without one of its runs, the sweep is unfinished.
    let run = compared["runs"][0]["id"].as_str().unwrap();
    std::fs::remove_dir_all(sandbox.path("runs").join(run)).unwrap();
    sandbox.show(0, "sweep results q");
    sandbox.show(0, "sweep list");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn the_training_loss_decides_nothing() {
    let base = EXPERIMENT
        .replace("seeds: 3\n", "")
        .replace(", validation: {fraction: 0.1}", "")
        .replace("eval: {every: 6, loss: {rows: 16}}", "eval: {loss: null}");
    let sandbox = Sandbox::new().with_numbers(3000).with("g.yaml", base);
    for (seed, lr) in [(1, "1e-3"), (2, "1e-3"), (1, "2e-2"), (2, "2e-2")] {
        let set = format!("--set seed={seed} --set optimizer.adamw.lr={lr}");
        sandbox.expect(0, format!("apply g.yaml --threads 1 --quiet {set}").as_str());
    }
    let runs: Vec<String> = sandbox.names_in("runs").into_iter().filter(|name| name.starts_with("g-")).collect();
    assert_eq!(runs.len(), 4);
    let arguments: Vec<&str> = std::iter::once("compare").chain(runs.iter().map(String::as_str)).collect();
    let found = sandbox.run(&[&arguments[..], &["--json"]].concat()).json();
    assert_eq!(found["groups"], Value::Null, "{found}");
    assert!(found["runs"][0]["outcomes"]["train_loss"].is_number(), "{found}");
    sandbox.keep(sandbox.run(&arguments));
    insta::assert_snapshot!(sandbox.screens());
}
