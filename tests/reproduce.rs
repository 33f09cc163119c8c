//! Runs stopped at a step, resumed from their folders, done again, and made from one another.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const STEPS: u64 = 12;

const SINGLE: &str = "";
const DP: &str = "parallel: {mode: dp, replicas: 2}\n";
const DDP: &str = "parallel: {mode: ddp, replicas: 2}\n";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2}}\n";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2}}\n";

/// A folder with an experiment of a tiny model.
struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(parallel: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let yaml = format!(
            "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1}}\n\
             data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
             batch: {{sequences: 4, micro_batch: 1}}\ntrain: {{steps: {STEPS}}}\n\
             eval: {{every: 4, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
             checkpoint: {{every: 4, keep: 9}}\n{parallel}"
        );
        fs::write(dir.path().join("exp.yaml"), yaml).unwrap();
        let lab = Self { dir };
        lab.data("");
        lab
    }

    /// Writes the training text, `more` at its beginning.
    fn data(&self, more: &str) {
        let numbers = (0..2000u32).flat_map(|i| [(i * (i % 4093) % 997).to_string(), " ".to_owned()]);
        fs::write(self.dir.path().join("input.txt"), more.to_owned() + &numbers.collect::<String>()).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", self.dir.path().join("cache"));
        command.output().unwrap()
    }

    /// Runs the words of `line`, which must end with `code`; what was said.
    fn says(&self, code: i32, line: &str) -> String {
        let output = self.run(&line.split(' ').collect::<Vec<_>>());
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        said
    }

    /// The runs there are, by id.
    fn runs(&self) -> BTreeMap<String, PathBuf> {
        let Ok(entries) = fs::read_dir(self.dir.path().join("runs")) else { return BTreeMap::new() };
        let named = entries.map(|e| e.unwrap()).map(|e| (e.file_name().into_string().unwrap(), e.path()));
        named.filter(|(name, _)| !name.starts_with('.')).collect()
    }

    /// The only run there is.
    fn only(&self) -> (String, PathBuf) {
        let mut runs = self.runs();
        assert_eq!(runs.len(), 1, "{runs:?}");
        runs.pop_first().unwrap()
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// What must not depend on how often a run stopped: its record without times, and the hash of its end.
fn numbers(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let keys = ["kind", "step", "loss", "lr", "grad_norm", "tokens", "val_loss", "val_perplexity"];
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        keys.map(|key| line[key].to_string()).join(" ")
    };
    let end = json(&run.join("summary.json"))["final_hash"].to_string();
    text.lines().map(line).chain([fs::read_to_string(run.join("samples.jsonl")).unwrap(), end]).collect()
}

#[test]
fn a_run_stops_after_the_step_asked_for_and_goes_on_to_the_same_bits() {
    for (layout, name) in [(SINGLE, "single"), (DP, "dp"), (DDP, "ddp"), (PIPELINE, "pipeline"), (MESH, "mesh")] {
        let (whole, broken) = (Lab::new(layout), Lab::new(layout));
        whole.says(0, "apply exp.yaml --threads 1 --quiet");
        // Between checkpoints, at one, and at what is there already.
        for step in [3, 8] {
            let said = broken.says(0, &format!("apply exp.yaml --threads 1 --until-step {step}"));
            assert!(said.contains(&format!("stopped after step {step} as asked")), "{name}: {said}");
            let (_, path) = broken.only();
            let summary = json(&path.join("summary.json"));
            assert_eq!((summary["status"].as_str(), summary["steps"].as_u64()), (Some("interrupted"), Some(step)));
            assert!(path.join(format!("checkpoints/step-{step:08}")).is_dir(), "{name}");
        }
        let said = broken.says(0, "apply exp.yaml --threads 1 --until-step 5");
        assert!(said.contains("the run has 8 steps already"), "{name}: {said}");
        broken.says(0, "apply exp.yaml --threads 1 --quiet --until-step 12");
        assert_eq!(numbers(&broken.only().1), numbers(&whole.only().1), "{name}");
        let said = broken.says(0, "apply exp.yaml --threads 1 --until-step 5");
        assert!(said.contains("up to date"), "{name}: {said}");
    }
}

#[test]
fn a_run_is_resumed_from_its_folder() {
    let (whole, broken) = (Lab::new(DP), Lab::new(DP));
    whole.says(0, "apply exp.yaml --threads 1 --quiet");
    broken.says(0, "apply exp.yaml --threads 1 --quiet --until-step 5");
    fs::remove_file(broken.dir.path().join("exp.yaml")).unwrap();
    let (id, path) = broken.only();
    let said = broken.says(0, &format!("resume {id} --threads 1"));
    assert!(said.contains("resuming from step 5 of 12"), "{said}");
    assert_eq!(numbers(&path), numbers(&whole.only().1));
    assert!(broken.says(0, "resume lab").contains("up to date"));
    // What is no longer the same is not resumed.
    let other = Lab::new(SINGLE);
    other.says(0, "apply exp.yaml --threads 1 --quiet --until-step 5");
    other.data("7 ");
    let said = other.says(2, "resume lab --threads 1");
    assert!(said.contains("its data has changed") && said.contains("runner fork"), "{said}");
    fs::remove_file(other.dir.path().join("input.txt")).unwrap();
    assert!(other.says(2, "resume lab --threads 1").contains("input.txt"));
}

#[test]
fn nothing_is_begun_of_another_plan_than_expected() {
    let lab = Lab::new(SINGLE);
    let said = lab.says(2, "apply exp.yaml --threads 1 --expect-plan 0123456789abcdef");
    assert!(said.contains("not 0123456789abcdef") && said.contains("Nothing was begun"), "{said}");
    assert!(!lab.dir.path().join("runs").exists());
    lab.says(0, "apply exp.yaml --threads 1 --quiet --sweep-point lr-abc:3");
    let (_, path) = lab.only();
    let manifest = json(&path.join("manifest.json"));
    assert_eq!((manifest["sweep"]["id"].as_str(), manifest["sweep"]["point"].as_u64()), (Some("lr-abc"), Some(3)));
    let hash = manifest["plan_hash"].as_str().unwrap();
    assert!(lab.says(0, &format!("apply exp.yaml --threads 1 --expect-plan {hash}")).contains("up to date"));
    // What differs is told where a run of the plan shows it.
    let said = lab.says(2, &format!("apply exp.yaml --threads 1 --set seed=7 --expect-plan {hash}"));
    assert!(said.contains("what differs is: seed"), "{said}");
    lab.data("7 ");
    let said = lab.says(2, &format!("apply exp.yaml --threads 1 --expect-plan {hash}"));
    assert!(said.contains("what differs is: data"), "{said}");
    assert_eq!(lab.runs().len(), 1);
}

/// The run that is not `first`.
fn other(lab: &Lab, first: &str) -> (String, PathBuf) {
    lab.runs().into_iter().find(|(id, _)| id != first).unwrap()
}

#[test]
fn a_run_of_each_mode_is_reproduced_bit_for_bit() {
    for (layout, name) in [(SINGLE, "single"), (DP, "dp"), (DDP, "ddp"), (PIPELINE, "pipeline"), (MESH, "mesh")] {
        let lab = Lab::new(layout);
        lab.says(0, "apply exp.yaml --threads 1 --quiet --trace");
        // File and defaults do not matter any more.
        fs::write(lab.dir.path().join("exp.yaml"), "version: 1\n").unwrap();
        let (id, path) = lab.only();
        let said = lab.says(0, &format!("reproduce {id} --threads 2 --trace"));
        assert!(said.contains("bitwise: ") && said.contains("12 steps, 3 evaluations"), "{name}: {said}");
        assert!(said.contains("the weights after step 12"), "{name}: {said}");
        let (_, again) = other(&lab, &id);
        assert_eq!(numbers(&again), numbers(&path), "{name}");
        let verdict = json(&again.join("verdict.json"));
        assert_eq!((verdict["verdict"].as_str(), verdict["traced"].as_bool()), (Some("bitwise"), Some(true)), "{name}");
        let origin = &json(&again.join("manifest.json"))["origin"]["reproduction"];
        assert_eq!(origin["id"].as_str(), Some(id.as_str()), "{name}");
        // The reproduction is not the run of its plan.
        assert!(lab.says(0, &format!("resume {id}")).contains("up to date"), "{name}");
        assert!(!path.join("verdict.json").exists(), "{name}");
    }
}

#[test]
fn another_number_of_threads_is_the_same() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet");
    let said = lab.says(0, "reproduce lab --threads 3");
    assert!(said.contains("threads          other    3, was 1") && said.contains("bitwise: "), "{said}");
    lab.says(0, &format!("reproduce {} --check --threads 3", lab.runs().keys().next().unwrap()));
}

#[test]
fn changed_data_is_named_and_diverges() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet");
    let (id, _) = lab.only();
    let said = lab.says(0, &format!("reproduce {id} --threads 1 --check"));
    assert!(said.contains("training data    same") && !said.contains("changed"), "{said}");
    lab.data("7 8 9 ");
    let said = lab.says(3, &format!("reproduce {id} --threads 1 --check"));
    assert!(said.contains("training data    changed") && said.contains("plan             same"), "{said}");
    assert_eq!(lab.runs().len(), 1, "only looked at");
    let said = lab.says(3, &format!("reproduce {id} --threads 1"));
    assert!(said.contains("diverged at step 1: loss ") && said.contains("changed     training data: "), "{said}");
    assert!(said.contains("the first that differs: transformer.wte.weight, in the checkpoint of step 4"), "{said}");
    assert!(said.contains("`runner apply --new --trace`"), "{said}");
    let verdict = json(&other(&lab, &id).1.join("verdict.json"));
    assert_eq!((verdict["verdict"].as_str(), verdict["diverged"]["step"].as_u64()), (Some("diverged"), Some(1)));
    fs::remove_file(lab.dir.path().join("input.txt")).unwrap();
    assert!(lab.says(2, &format!("reproduce {id} --threads 1")).contains("input.txt"));
}

#[test]
fn a_changed_seed_in_the_stored_settings_is_named_and_diverges() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet --trace");
    let (id, path) = lab.only();
    let resolved = fs::read_to_string(path.join("resolved.yaml")).unwrap();
    assert!(resolved.contains("\nseed: 1337\n"), "{resolved}");
    fs::write(path.join("resolved.yaml"), resolved.replace("seed: 1337", "seed: 7")).unwrap();
    let said = lab.says(3, &format!("reproduce {id} --threads 1 --trace"));
    assert!(
        said.contains("resolved.yaml makes another one: seed; in the program seed 7, was 1337)")
            && said.contains("diverged at step 1"),
        "{said}"
    );
    assert!(said.contains("the first that differs: output of the embedding of step 1"), "{said}");
    // Another learning rate: the same outputs and gradients, other weights after them.
    fs::write(path.join("resolved.yaml"), resolved.replace("lr: 0.0006", "lr: 0.0005")).unwrap();
    let said = lab.says(3, &format!("reproduce {id} --threads 1 --trace --json --quiet"));
    let verdict: Value = serde_json::from_str(said.lines().next_back().unwrap()).unwrap();
    assert_eq!(verdict["kind"], "verdict", "{said}");
    let first = &verdict["verdict"]["first_tensor"];
    assert_eq!((first["step"].as_u64(), first["traced"].as_str()), (Some(1), Some("parameter")), "{said}");
    // A wide tolerance.
    let said = lab.says(0, &format!("reproduce {id} --threads 1 --tolerance 1"));
    assert!(said.contains("within tolerance: ") && said.contains("weights     differ after step 12"), "{said}");
}

#[test]
fn what_an_interrupted_run_has_is_reproduced() {
    for layout in [SINGLE, DDP] {
        let lab = Lab::new(layout);
        lab.says(0, "apply exp.yaml --threads 1 --quiet --until-step 3");
        lab.says(0, "apply exp.yaml --threads 1 --quiet --until-step 6");
        let (id, _) = lab.only();
        let said = lab.says(0, &format!("reproduce {id} --threads 1"));
        assert!(said.contains("recorded 6 of 12 steps") && said.contains("the weights after step 6"), "{said}");
        assert!(said.contains("bitwise: ") && said.contains("6 steps, 1 evaluation "), "{said}");
        // A second one is another run, as the first has its verdict.
        lab.says(0, &format!("reproduce {id} --threads 1 --quiet"));
        assert_eq!(lab.runs().len(), 3);
        // One that was stopped goes on.
        let (copy, path) = lab.runs().pop_last().unwrap();
        fs::remove_file(path.join("verdict.json")).unwrap();
        let said = lab.says(0, &format!("reproduce {id} --threads 1"));
        assert!(said.contains(&format!("goes on with {copy}")) && said.contains("bitwise: "), "{said}");
        assert_eq!(lab.runs().len(), 3);
    }
}

#[test]
fn a_trace_has_no_step_twice() {
    let (whole, broken) = (Lab::new(PIPELINE), Lab::new(PIPELINE));
    whole.says(0, "apply exp.yaml --threads 1 --quiet --trace");
    broken.says(0, "apply exp.yaml --threads 1 --quiet --trace --until-step 7");
    let path = broken.only().1;
    // Lines of steps that are done again, as a killed process leaves them.
    let mut text = fs::read_to_string(path.join("trace.jsonl")).unwrap();
    text += &text.lines().last().unwrap().replace("\"step\":7", "\"step\":8");
    fs::write(path.join("trace.jsonl"), text + "\n").unwrap();
    broken.says(0, "apply exp.yaml --threads 1 --quiet");
    let lines = |lab: &Lab| {
        let text = fs::read_to_string(lab.only().1.join("trace.jsonl")).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        // Stages tell theirs in any order.
        lines.sort();
        lines
    };
    assert_eq!(lines(&broken), lines(&whole));
    // 4 outputs; of 2 layers' 12 parameters each, and 5 others with the tied copy, gradient and value.
    assert_eq!(lines(&whole).len(), 12 * (4 + 2 * (2 * 12 + 5)));
}

#[test]
fn runs_of_earlier_versions_are_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/runs");
    for format in ["format-1", "format-2"] {
        let lab = Lab::new(SINGLE);
        fs::create_dir(lab.dir.path().join("runs")).unwrap();
        for run in fs::read_dir(fixtures.join(format)).unwrap().map(|e| e.unwrap()) {
            let copied = Command::new("cp").arg("-r").arg(run.path()).arg(lab.dir.path().join("runs")).status();
            assert!(copied.unwrap().success());
        }
        let (id, path) = lab.only();
        assert!(lab.says(0, "runs").contains("done"), "{format}");
        assert!(lab.says(0, &format!("runs show {id}")).contains("8 of 8"), "{format}");
        let evaluated: Value = serde_json::from_str(
            &lab.run(&["eval", &id, "--json", "--threads", "1"]).stdout.iter().map(|&b| b as char).collect::<String>(),
        )
        .unwrap();
        let recorded = json(&path.join("summary.json"))["last_eval"]["val_loss"].as_f64().unwrap();
        // Another processor may round otherwise: as between layouts.
        assert!((evaluated["val_loss"].as_f64().unwrap() - recorded).abs() < 1e-4 * recorded, "{format}: {evaluated}");
        lab.says(0, &format!("sample {id} --threads 1 --max-tokens 4 --prompt Once"));
        // The processor was made neutral in the record. The hashes of the first format were made otherwise.
        let plan = if format == "format-1" { "unknown" } else { "same" };
        let said = lab.says(3, &format!("reproduce {id} --threads 1 --check"));
        assert!(
            said.contains(&format!("plan             {plan}")) && said.contains("tokenizer        same"),
            "{format}: {said}"
        );
        assert!(
            said.contains("training data    same") && said.contains("processor        changed"),
            "{format}: {said}"
        );
        let said = lab.says(0, &format!("reproduce {id} --threads 1"));
        assert!(said.contains("bitwise: ") || said.contains("within tolerance: "), "{format}: {said}");
        let said = lab.says(0, &format!("fork {id} --threads 1 --from latest --set train.steps=10"));
        assert!(said.contains(&format!("continuing {id} from step 8 of 10")), "{format}: {said}");
        // What was edited since shows in what both formats have; where hashes can be compared, as a key of the file.
        let eval = if format == "format-1" { "periodic [" } else { "another one: eval" };
        let resolved = fs::read_to_string(path.join("resolved.yaml")).unwrap();
        for (was, is, what) in [("seed: 3", "seed: 4", "seed 4, was 3"), ("\n  every: 4", "\n  every: 2", eval)] {
            assert!(resolved.contains(was), "{resolved}");
            fs::write(path.join("resolved.yaml"), resolved.replace(was, is)).unwrap();
            let said = lab.says(3, &format!("reproduce {id} --threads 1 --check"));
            assert!(said.contains("plan             changed") && said.contains(what), "{format}: {said}");
        }
    }
}

#[test]
fn a_fork_begins_with_other_settings() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet");
    let (id, path) = lab.only();
    let fork = format!("fork {id} --threads 1 --set optimizer.adamw.lr=1e-4 --name other");
    let said = lab.says(0, &format!("{fork} --until-step 5"));
    assert!(said.contains("stopped after step 5 as asked"), "{said}");
    let said = lab.says(0, &fork);
    assert!(said.contains("resuming from step 5 of 12"), "{said}");
    assert!(lab.says(0, &fork).contains("up to date"));
    let (copy, again) = other(&lab, &id);
    assert!(copy.starts_with("other-"), "{copy}");
    let manifest = json(&again.join("manifest.json"));
    let origin = &manifest["origin"]["fork"];
    assert_eq!((origin["id"].as_str(), origin["step"].as_u64()), (Some(id.as_str()), None));
    assert!(manifest["continued_from"].is_null());
    // The file with those settings would do the same: it finds the fork.
    let said = lab.says(0, "apply exp.yaml --threads 1 --set optimizer.adamw.lr=1e-4 --set name=other");
    assert!(said.contains(&format!("up to date: {copy}")), "{said}");
    lab.says(0, &format!("{fork} --new --quiet"));
    assert_eq!(lab.runs().len(), 3);
    assert!(lab.says(2, &format!("fork {id}")).contains("nothing differs from"));
    assert!(lab.says(2, &format!("fork {id} --set optimizer.adamw.lrr=1")).contains("lr"));
    assert!(lab.says(0, &format!("runs show {copy}")).contains(&format!("fork of {id}")));
    assert_eq!(numbers(&path).len(), 12 + 3 + 2);
}

#[test]
fn a_fork_begins_with_a_checkpoint() {
    for (layout, name) in [(SINGLE, "single"), (PIPELINE, "pipeline")] {
        let lab = Lab::new(layout);
        lab.says(0, "apply exp.yaml --threads 1 --quiet");
        let (id, path) = lab.only();
        let fork = format!("fork {id} --threads 1 --from 8 --set train.steps=16 --set optimizer.adamw.lr=2e-4");
        let said = lab.says(0, &format!("{fork} --until-step 10"));
        assert!(said.contains(&format!("continuing {id} from step 8 of 16")), "{name}: {said}");
        let (copy, again) = other(&lab, &id);
        assert!(lab.says(0, &format!("resume {copy} --threads 1")).contains("resuming from step 10"), "{name}");
        assert!(lab.says(0, &fork).contains("up to date"), "{name}");
        let lines = |run: &Path| -> Vec<Value> {
            let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let steps: Vec<u64> =
            lines(&again).iter().filter(|l| l["kind"] == "train").map(|l| l["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (1..=16).collect::<Vec<u64>>(), "{name}");
        let at = |run: &Path, step: u64| lines(run).into_iter().find(|l| l["step"] == step).unwrap();
        assert_eq!(at(&again, 8), at(&path, 8), "{name}: taken over");
        // The first step of its own has the old weights under another learning rate.
        assert_eq!(at(&again, 9)["loss"], at(&path, 9)["loss"], "{name}");
        assert_ne!(at(&again, 9)["lr"], at(&path, 9)["lr"], "{name}");
        // The best is of its own evaluations.
        let best = json(&again.join("summary.json"))["best_eval"]["step"].as_u64().unwrap();
        assert!(best > 8, "{name}: {best}");
        let manifest = json(&again.join("manifest.json"));
        assert_eq!(
            (manifest["origin"]["fork"]["step"].as_u64(), manifest["continued_from"]["step"].as_u64()),
            (Some(8), Some(8))
        );
        let said = lab.says(0, &format!("runs show {copy}"));
        assert!(said.contains(&format!("fork of {id} after step 8")), "{name}: {said}");
        // A fork of the fork, and both reproduced.
        let said = lab.says(0, &format!("fork {copy} --threads 1 --from latest --set train.steps=18 --name third"));
        assert!(said.contains("from step 16 of 18"), "{name}: {said}");
        let said = lab.says(0, "runs show third");
        assert!(
            said.contains(&format!("fork of {copy} after step 16"))
                && said.contains(&format!("fork of {id} after step 8"))
        );
        let said = lab.says(0, &format!("reproduce {copy} --threads 1"));
        assert!(
            said.contains("repeat ") && said.contains("bitwise: ") && said.contains("8 steps, 2 evaluations"),
            "{name}: {said}"
        );
        // Where the beginning is gone it cannot be done again; the fork keeps the checkpoint that it began with, as it may.
        fs::remove_dir_all(&path).unwrap();
        assert!(lab.says(0, "runs show third").contains("(which is gone)"), "{name}");
        lab.says(0, &format!("reproduce {copy} --threads 1 --quiet"));
        fs::remove_dir_all(again.join("checkpoints/step-00000008")).unwrap();
        let said = lab.says(2, &format!("reproduce {copy} --threads 1"));
        assert!(
            said.contains(&format!("the checkpoint of {id} after step 8, which neither of them has any more\n")),
            "{name}: {said}"
        );
    }
}

#[test]
fn a_fork_that_cannot_begin_is_refused() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet");
    let (id, _) = lab.only();
    let refused = |changes: &str| lab.says(2, &format!("fork {id} --threads 1 --from latest {changes}"));
    assert!(refused("--set seed=3").contains("train.steps is 12, and 12 are done: --set train.steps=24"));
    assert!(
        refused("--set train.steps=20 --set model.d_model=32").contains("other shapes (transformer.wte.weight was [")
    );
    assert!(refused("--set train.steps=20 --set model.layers=3").contains("other shapes"));
    let said = refused("--set train.steps=20 --set optimizer={\"sgd\":{\"lr\":0.1,\"momentum\":0.9}}");
    assert!(said.contains("2 moments of adamw, and sgd as set needs 1"), "{said}");
    assert!(refused("--set train.steps=20 --set data.tokenizer={\"bytes\":{}}").contains("tokenizer is another one"));
    let said = lab.says(2, &format!("fork {id} --threads 1 --from 5 --set train.steps=20"));
    assert!(said.contains("no checkpoint of step 5; there are: 4, 8, 12"), "{said}");
    assert_eq!(lab.runs().len(), 1);
    // Without moments it goes on.
    let sgd = "--set train.steps=14 --set optimizer={\"sgd\":{\"lr\":0.1,\"momentum\":0}}";
    lab.says(0, &format!("fork {id} --threads 1 --quiet --from latest {sgd}"));
}

#[test]
fn a_run_can_be_sampled_from_without_its_data() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet");
    let (id, path) = lab.only();
    let sample = || {
        let output = lab.run(&["sample", &id, "--threads", "1", "--prompt", "1 2", "--max-tokens", "8", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let kept = sample();
    let tokenizer = fs::read(path.join("tokenizer.json")).unwrap();
    // One that was altered is not used.
    fs::write(path.join("tokenizer.json"), "{}").unwrap();
    assert_eq!(sample(), kept);
    fs::write(path.join("tokenizer.json"), tokenizer).unwrap();
    fs::remove_file(lab.dir.path().join("input.txt")).unwrap();
    fs::remove_dir_all(lab.dir.path().join("cache")).unwrap();
    assert_eq!(sample(), kept);
}

#[test]
fn a_reproduction_that_was_killed_goes_on() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet --set train.steps=400");
    let (id, _) = lab.only();
    let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
    command.args(["reproduce", &id, "--threads", "1"]).current_dir(lab.dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", lab.dir.path().join("cache"));
    let mut child = command.spawn().unwrap();
    // Until a checkpoint of its own is there, and some steps after it.
    let copy = loop {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        let copy = lab.runs().into_iter().find(|(other, _)| *other != id);
        let lines = |path: &Path| fs::read_to_string(path.join("metrics.jsonl")).unwrap_or_default().lines().count();
        match copy {
            Some((copy, path)) if lines(&path) > 20 => break copy,
            _ => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    };
    // A second one waits for it to be done: there is no other to begin.
    let said = lab.says(2, &format!("reproduce {id} --threads 1"));
    let locked = said.contains(&format!("{copy}, which does {id} again, is being worked on by another process"));
    assert!(locked && !said.contains("--new"), "{said}");
    // SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();
    let path = lab.dir.path().join("runs").join(&copy);
    assert_eq!(json(&path.join("manifest.json"))["status"], "running");
    let said = lab.says(0, &format!("reproduce {id} --threads 1"));
    assert!(said.contains(&format!("goes on with {copy}")) && said.contains("resuming from step "), "{said}");
    assert!(said.contains("bitwise: ") && said.contains("400 steps, 100 evaluations"), "{said}");
    assert_eq!(lab.runs().len(), 2);
}

#[test]
fn what_is_missing_on_one_side_is_no_bitwise_reproduction() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet");
    let (id, path) = lab.only();
    let resolved = fs::read_to_string(path.join("resolved.yaml")).unwrap();
    let metrics = fs::read_to_string(path.join("metrics.jsonl")).unwrap();
    // Fewer steps than the run has.
    assert!(resolved.contains("steps: 12"), "{resolved}");
    fs::write(path.join("resolved.yaml"), resolved.replace("steps: 12", "steps: 3")).unwrap();
    let said = lab.says(3, &format!("reproduce {id} --threads 1"));
    // The shorter one evaluates at its end; of steps it has three.
    assert!(said.contains(&format!("incomplete: {id} has no record of the evaluation after step 3")), "{said}");
    assert!(said.contains("compared were 3 steps") && !said.contains("bitwise"), "{said}");
    fs::write(path.join("resolved.yaml"), &resolved).unwrap();
    // Lines that are gone from the run's record.
    let kept: Vec<&str> = metrics.lines().filter(|line| !line.contains("\"step\":7,")).collect();
    fs::write(path.join("metrics.jsonl"), kept.join("\n") + "\n").unwrap();
    let said = lab.says(3, &format!("reproduce {id} --threads 1"));
    assert!(said.contains(&format!("incomplete: {id} has no record of step 7, which {id}")), "{said}");
    // Neither checkpoints nor the hash of the end.
    fs::write(path.join("metrics.jsonl"), &metrics).unwrap();
    fs::remove_dir_all(path.join("checkpoints")).unwrap();
    fs::remove_file(path.join("summary.json")).unwrap();
    let said = lab.says(0, &format!("reproduce {id} --threads 1"));
    assert!(said.contains("bitwise, weights not compared: ") && said.contains("12 steps, 3 evaluations;"), "{said}");
    // No record at all.
    fs::remove_file(path.join("metrics.jsonl")).unwrap();
    assert!(lab.says(1, &format!("reproduce {id} --threads 1")).contains("metrics.jsonl"));
}

#[test]
fn a_run_that_is_removed_while_it_is_done_again_is_compared_all_the_same() {
    let lab = Lab::new(SINGLE);
    lab.says(0, "apply exp.yaml --threads 1 --quiet --set train.steps=400");
    let (id, path) = lab.only();
    let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
    command.args(["reproduce", &id, "--threads", "1"]).current_dir(lab.dir.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", lab.dir.path().join("cache"));
    let mut child = command.spawn().unwrap();
    while lab.runs().len() < 2 {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    lab.says(0, &format!("runs rm {id} --yes"));
    assert!(child.try_wait().unwrap().is_none() && !path.exists(), "it was removed before the end");
    let output = child.wait_with_output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("bitwise: ") && said.contains("400 steps, 100 evaluations and the weights after step 400"));
}
