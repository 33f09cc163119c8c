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
    for command in ["compare g gb", "report g -o page.html"] {
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
    // With a single run of a third setting, nothing is claimed of it.
    let everything: Vec<&str> = std::iter::once("compare").chain(runs.iter().map(String::as_str)).collect();
    let all = sandbox.run(&everything).text();
    assert!(all.contains("one seed") && all.contains("noise: the 3 seeds of "), "{all}");
    let singles: Vec<&str> =
        both["groups"]["runs"].as_array().unwrap().iter().map(|ids| ids[0].as_str().unwrap()).collect();
    let two = sandbox.run(&["compare", singles[0], singles[1]]).text();
    assert!(two.contains("one seed does not show whether it is better than the others"), "{two}");
}

/// A seed that is zipped with a setting makes pairs of runs, which are not copies that only rounding distinguishes.
#[test]
fn seeds_in_a_zip_are_seeds() {
    let base = EXPERIMENT.replace("seeds: 3\n", "");
    let sweep = "sweep:\n  base: e.yaml\n  zip: {optimizer.adamw.lr: [1e-3, 1e-3, 2e-3, 2e-3], seed: [1, 2, 1, 2]}\n";
    let sandbox = Sandbox::new().with_numbers(3000).with("e.yaml", base).with("z.yaml", sweep);
    let done = sandbox.expect(0, "sweep z.yaml --threads 1");
    assert!(!done.contains("rounding"), "{done}");
    let verdict = &sandbox.json_of("sweep results z --json")["verdict"];
    let samples = verdict["settings"].as_array().unwrap().iter().map(|setting| setting["sample"]["n"].as_u64());
    assert_eq!(samples.collect::<Vec<_>>(), [Some(2), Some(2)], "{verdict}");
    assert_eq!(verdict["settings"][1]["comparison"]["n"], 2, "{verdict}");
}

/// Four settings, of which two are compared, and a fifth that differs from one of them only in rounding.
#[test]
fn settings_that_were_picked_from_a_sweep_are_compared_as_some_of_all() {
    let base = EXPERIMENT.replace("seeds: 3\n", "");
    let sweep = "sweep:\n  base: e.yaml\n  grid: {optimizer.adamw.lr: [1e-3, 2e-3, 5e-3], batch.micro_batch: [4, 8]}\n  \
        exclude: [\"batch.micro_batch == 4 and optimizer.adamw.lr > 1e-3\"]\n  seeds: 3\n";
    let sandbox = Sandbox::new().with_numbers(3000).with("e.yaml", base).with("p.yaml", sweep);
    let done = sandbox.expect(0, "sweep p.yaml --threads 1");
    assert!(
        done.contains("differ only in rounding") && done.contains("the results count such points as one setting"),
        "{done}"
    );
    let own = sandbox.json_of("sweep results p --json");
    let settings = own["verdict"]["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 3, "{own}");
    assert!(settings.iter().any(|setting| setting["rounding_variants"].as_array().is_some_and(|all| all.len() == 3)));
    assert_eq!(settings[1]["comparison"]["pairs"], 3);
    let runs = |lr: f64, micro_batch: u64| -> Vec<String> {
        let rows = own["results"]["rows"].as_array().unwrap().iter();
        let rows = rows.filter(|row| {
            row["values"]["optimizer.adamw.lr"] == lr && row["values"]["batch.micro_batch"] == micro_batch
        });
        rows.map(|row| row["run"].as_str().unwrap().to_owned()).collect()
    };
    let compare = |runs: Vec<String>| {
        let arguments: Vec<&str> = std::iter::once("compare").chain(runs.iter().map(String::as_str)).collect();
        let json = sandbox.run(&[&arguments[..], &["--json"]].concat()).json();
        (sandbox.run(&arguments).text(), json)
    };
    let (text, picked) = compare([runs(2e-3, 8), runs(5e-3, 8)].concat());
    let verdict = &picked["groups"]["verdict"];
    assert_eq!(verdict["settings"][1]["comparison"]["pairs"], 3, "{verdict}");
    let from = &picked["picked_from"][0];
    assert_eq!((&from["settings"], &from["compared"]), (&3.into(), &2.into()), "{picked}");
    assert_eq!(from["words"][0], own["verdict"]["words"][0]);
    assert!(
        text.contains("picked: 2 settings of the 3 that the sweep p-") && text.contains("the sweep itself says: "),
        "{text}"
    );
    let page = "report ".to_owned() + &runs(2e-3, 8)[0] + " " + &runs(5e-3, 8)[0] + " -o picked.html";
    sandbox.expect(0, page.as_str());
    assert!(sandbox.read("picked.html").contains("the sweep itself says: "), "the page says it, too");
    // Runs that differ only in rounding are of one setting.
    let (text, same) = compare([runs(1e-3, 4), runs(1e-3, 8)].concat());
    assert_eq!(same["groups"]["verdict"]["conclusion"]["kind"], "one_setting", "{same}");
    assert!(text.contains(", up to rounding; only "), "{text}");
    // Comparing all settings picks none.
    let (text, all) = compare([runs(1e-3, 8), runs(2e-3, 8), runs(5e-3, 8)].concat());
    assert!(!text.contains("picked:") && all["groups"]["verdict"]["settings"][1]["comparison"]["pairs"] == 3, "{text}");
    // Without the sweep's folder, how many settings it compared is unknown.
    std::fs::remove_dir_all(sandbox.path("runs/sweeps")).unwrap();
    let (text, gone) = compare([runs(2e-3, 8), runs(5e-3, 8)].concat());
    assert!(text.contains("the number of settings that it compared is unknown"), "{text}");
    assert_eq!(gone["picked_from"][0]["settings"], Value::Null);
}

/// The sweep chooses by the best evaluation, `compare` by the last one.
#[test]
fn what_chose_a_setting_is_named_wherever_it_is_shown() {
    let base = EXPERIMENT.replace("seeds: 3\n", "").replace(
        "eval: {every: 6, loss: {rows: 16}}",
        "eval: {every: 6, loss: {rows: 16}, test: {text: {files: [t.txt]}}}",
    );
    let sweep = "sweep:\n  base: e.yaml\n  grid: {optimizer.adamw.lr: [1e-3, 5e-3]}\n  \
        objective: {metric: val_loss, at: best}\n";
    let sandbox = Sandbox::new().with_numbers(3000).with("e.yaml", base).with("q.yaml", sweep);
    sandbox.write("t.txt", "a text that was not trained on. ".repeat(20));
    let done = sandbox.expect(0, "sweep q.yaml --threads 1");
    assert!(done.contains("lowest val_loss (at: best): ") && done.contains(": add `seeds: 3`"), "{done}");
    assert!(!sandbox.stdout_of("sweep list").contains(" so far"));
    let compared = sandbox.json_of("compare q --json");
    assert_eq!(compared["picked_from"][0]["objective"], "val_loss (at: best)", "{compared}");
    let text = sandbox.stdout_of("compare q");
    assert!(
        text.contains("compares its settings by val_loss (at: best); here they are compared by the last"),
        "{text}"
    );
    // The unfinished folder of a killed process does not count.
    let run = sandbox.path("runs").join(compared["runs"][0]["id"].as_str().unwrap());
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg("-r").arg(&run).arg(sandbox.path("runs/.creating-x")).status().unwrap().success());
    sandbox.expect(0, "report q -o q.html");
    let page = sandbox.read("q.html");
    for part in
        ["2 settings have been compared on this validation set: 2 runs", "val_loss (at: best)", "\"test\":{\"step\":"]
    {
        assert!(page.contains(part), "{part}");
    }
    // The page of one run of a sweep says what it was one of.
    let run = compared["runs"][0]["id"].as_str().unwrap().to_owned();
    sandbox.expect(0, format!("report {run} -o one.html").as_str());
    assert!(sandbox.read("one.html").contains("picked: 1 setting of the 2 that the sweep q-"));
    // Without this run, the sweep is unfinished.
    std::fs::remove_dir_all(sandbox.path("runs").join(run)).unwrap();
    let left = sandbox.stdout_of("sweep results q");
    assert!(left.contains("val_loss (at: best) so far: ") && left.contains("once the sweep is finished"), "{left}");
    assert!(sandbox.stdout_of("sweep list").contains(" so far"));
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
    let text = sandbox.run(&arguments).text();
    assert!(text.contains("train loss") && text.contains("the training loss does not decide that"), "{text}");
    let lowest = found["runs"].as_array().unwrap().iter().map(|run| run["outcomes"]["train_loss"].as_f64().unwrap());
    let lowest = format!("{:.4}", lowest.fold(f64::INFINITY, f64::min));
    assert!(text.contains(&lowest) && !text.contains(&format!("*{lowest}")), "{text}");
}
