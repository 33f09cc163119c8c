//! Listing, tagging, removing and exporting runs, and freeing disk space.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::sandbox::{Finished, RunningProcess, Sandbox, names_in, wait_until};

/// A sandbox with an experiment that trains in a moment.
fn new_sandbox() -> Sandbox {
    let yaml = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
                batch: {sequences: 4}\ntrain: {steps: 20}\n\
                eval: {every: 10, loss: {batches: 2}, samples: {prompts: [\"1\"], count: 1, max_tokens: 4}}\n\
                checkpoint: {every: 4, keep: 9}\n";
    Sandbox::new().with_numbers(3000).with("exp.yaml", yaml)
}

/// Trains with `seed`, and returns the run's id.
fn train(sandbox: &Sandbox, seed: u32) -> String {
    let before = run_ids(sandbox, &[]);
    sandbox.expect(0, &format!("apply exp.yaml --set seed={seed} --threads 1 --quiet"));
    run_ids(sandbox, &[]).into_iter().find(|id| !before.contains(id)).unwrap()
}

/// The ids that `runner runs` lists with these flags.
fn run_ids(sandbox: &Sandbox, flags: &[&str]) -> Vec<String> {
    let rows = sandbox.json_of(&[&["runs", "--json"], flags].concat());
    rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

fn run_path(sandbox: &Sandbox, id: &str) -> PathBuf {
    sandbox.path("runs").join(id)
}

/// The steps of which the run keeps a checkpoint.
fn checkpoint_steps(sandbox: &Sandbox, id: &str) -> Vec<u64> {
    let shown = sandbox.json_of(&["runs", "show", id, "--json"]);
    shown["checkpoints"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// Starts a run that does not end on its own, and waits until it trains. Returns the process and the run's id.
fn start_endless_run(sandbox: &Sandbox) -> (RunningProcess, String) {
    let process = sandbox.spawn("apply exp.yaml --set train.steps=10000000 --threads 1");
    let mut id = None;
    wait_until("the run trains", || {
        let has_begun =
            |id: &String| fs::metadata(run_path(sandbox, id).join("metrics.jsonl")).is_ok_and(|m| m.len() > 0);
        id = run_ids(sandbox, &["--status", "running"]).into_iter().find(has_begun);
        id.is_some()
    });
    (process, id.unwrap())
}

#[test]
fn runs_are_chosen_ordered_and_tagged() {
    let sandbox = new_sandbox();
    let (first, second) = (train(&sandbox, 1), train(&sandbox, 2));
    let both = vec![first.clone(), second.clone()];
    assert_eq!(run_ids(&sandbox, &[]), both);
    assert_eq!(
        sandbox.stdout_of(&["runs", "tag", &first, "--add", "good", "--add", "draft"]),
        format!("{first}  draft good\n")
    );
    assert_eq!(
        sandbox.stdout_of(&["runs", "tag", &first, "--remove", "draft", "--add", "paper"]),
        format!("{first}  good paper\n")
    );
    assert_eq!(run_ids(&sandbox, &["--tag", "good", "--tag", "paper"]), *std::slice::from_ref(&first));
    assert!(run_ids(&sandbox, &["--tag", "draft"]).is_empty());
    assert_eq!(run_ids(&sandbox, &["la*", "--status", "done,failed", "--since", "1d"]), both);
    assert!(run_ids(&sandbox, &["--status", "failed"]).is_empty());
    assert!(run_ids(&sandbox, &["--since", "2100-01-01"]).is_empty());
    assert_eq!(run_ids(&sandbox, &["--where", "step >= 20 and 'good' not in tags"]), *std::slice::from_ref(&second));
    assert_eq!(run_ids(&sandbox, &["--sort", "-started", "--limit", "1"]), *std::slice::from_ref(&second));
    assert_eq!(run_ids(&sandbox, &["--limit", "1"]), [second], "the newest");
    let table = sandbox.stdout_of("runs");
    assert!(table.lines().next().unwrap().ends_with("started              tags"), "{table}");
    for arguments in [
        vec!["runs", "--status", "don"],
        vec!["runs", "--where", "val_los < 3"],
        vec!["runs", "--sort", "los"],
        vec!["runs", "--since", "yesterday"],
        vec!["runs", "[a"],
        vec!["runs", "tag", &first, "--add", "a b"],
        vec!["runs", "tag", &first, "nothing", "--add", "late"],
    ] {
        sandbox.show(2, &arguments);
    }
    assert!(run_ids(&sandbox, &["--tag", "late"]).is_empty(), "with a mistake in one name nothing is tagged");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_run_at_work_is_tagged_but_not_removed() {
    let sandbox = new_sandbox();
    let (live, id) = start_endless_run(&sandbox);
    sandbox.stdout_of(&["runs", "tag", &id, "--add", "live"]);
    let printed = sandbox.expect(2, &["runs", "rm", &id, "--yes"]);
    assert!(printed.contains("another process") && printed.contains("is working on run"), "{printed}");
    let freed = sandbox.json_of("gc --yes --cache --json");
    assert_eq!(freed["items"], Value::Array(vec![]), "its data is in use");
    drop(live);
    assert_eq!(run_ids(&sandbox, &["--status", "interrupted", "--tag", "live"]), *std::slice::from_ref(&id));
    sandbox.show(2, &["runs", "rm", &id]);
    assert!(run_path(&sandbox, &id).exists());
    sandbox.show(0, &["runs", "rm", &id, "--yes"]);
    assert!(run_ids(&sandbox, &[]).is_empty() && !run_path(&sandbox, &id).exists());
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn removing_touches_runs_only() {
    let sandbox = new_sandbox();
    let (first, second) = (train(&sandbox, 1), train(&sandbox, 2));
    let elsewhere = sandbox.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(run_path(&sandbox, &second), elsewhere.join(&second)).unwrap();
    std::os::unix::fs::symlink(elsewhere.join(&second), run_path(&sandbox, &second)).unwrap();
    fs::create_dir(run_path(&sandbox, "notes")).unwrap();
    let linked = elsewhere.join(&second).display().to_string();
    for wanted in [second.as_str(), "notes", linked.as_str()] {
        sandbox.show(2, &["runs", "rm", &first, wanted, "--yes"]);
    }
    assert!(run_path(&sandbox, &first).exists(), "with one that is refused nothing is removed");
    let third = train(&sandbox, 3);
    let printed = sandbox.show(0, &["runs", "rm", &third, &format!("./runs/{third}"), "--yes"]);
    assert_eq!(printed.lines().count(), 1, "two spellings, one run: {printed}");
    sandbox.stdout_of(&["runs", "rm", &first, "--yes", "--keep-record"]);
    assert!(checkpoint_steps(&sandbox, &first).is_empty() && run_path(&sandbox, &first).join("metrics.jsonl").exists());
    sandbox.show(0, "apply exp.yaml --set seed=1 --threads 1");
    sandbox.stdout_of(&["runs", "rm", &first, "--yes"]);
    assert_eq!(names_in(&sandbox.path("runs")).iter().filter(|n| !n.starts_with('.')).count(), 2);
    assert!(elsewhere.join(&second).join("manifest.json").exists());
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn gc_frees_what_it_showed() {
    let sandbox = new_sandbox();
    let (kept, gone) = (train(&sandbox, 1), train(&sandbox, 2));
    let text = fs::read(sandbox.path("input.txt")).unwrap();
    fs::write(sandbox.path("input.txt"), "another text of 0123456789, long enough for some rows. ".repeat(100))
        .unwrap();
    let other = train(&sandbox, 3);
    let tokens = sandbox.path("cache/tokens");
    assert_eq!((checkpoint_steps(&sandbox, &kept).len(), names_in(&tokens).len()), (5, 2));
    sandbox.stdout_of(&["runs", "rm", &gone, &other, "--yes"]);
    let shown = sandbox.json_of("gc --json");
    assert_eq!(shown["freed"], false);
    assert_eq!(checkpoint_steps(&sandbox, &kept).len(), 5, "only shown");
    sandbox.show(0, "gc --older-than 1d --checkpoints");
    assert!(sandbox.stdout_of("gc").trim_end().ends_with("use `--yes` to remove them"));
    let freed = sandbox.json_of("gc --yes --json");
    assert_eq!((&freed["items"], &freed["bytes"]), (&shown["items"], &shown["bytes"]));
    let kinds: Vec<&str> = freed["items"].as_array().unwrap().iter().map(|i| i["kind"].as_str().unwrap()).collect();
    let count = |kind: &str| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!(
        (count("data"), names_in(&tokens).len()),
        (2, 1),
        "tokens and characters of the removed runs: {kinds:?}"
    );
    let steps = checkpoint_steps(&sandbox, &kept);
    assert!(steps.contains(&20) && steps.len() + count("checkpoint") == 5, "{steps:?} {kinds:?}");
    assert_eq!(sandbox.stdout_of("gc"), "nothing to free\n");
    // The rest is enough to resume the run.
    fs::write(sandbox.path("input.txt"), text).unwrap();
    sandbox.stdout_of(&["sample", &kept, "--max-tokens", "2", "--best", "--threads", "1"]);
    fs::create_dir(sandbox.path("empty")).unwrap();
    sandbox.keep(sandbox.run("gc --runs empty --yes"));
    assert_eq!(names_in(&tokens).len(), 1, "an empty folder of runs does not empty the cache");
    sandbox.keep(sandbox.run("gc --runs empty --cache"));
    sandbox.show(2, &["gc", "--runs", "nowhere"]);
    sandbox.show(2, &["gc", "--older-than", "soon"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn metrics_are_exported_whole_or_not_at_all() {
    let sandbox = new_sandbox();
    let (first, second) = (train(&sandbox, 1), train(&sandbox, 2));
    let every = ["--tensorboard", "logs", "--csv", "m.csv"];
    let made = sandbox.json_of(&[&["export-metrics", &first, &second, "--json"], every.as_slice()].concat());
    let rows: Vec<u64> = made.as_array().unwrap().iter().map(|f| f["rows"].as_u64().unwrap()).collect();
    // Two evaluations in 20 steps; and the version.
    assert_eq!(rows, [23, 23, 44]);
    assert_eq!(names_in(&sandbox.path("logs")).len(), 2);
    let csv = sandbox.read("m.csv");
    let mut lines = csv.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!(header[..5], ["run", "kind", "step", "wall_time", "tokens"]);
    // The numbers are those of the record, digit for digit.
    let metrics = fs::read_to_string(run_path(&sandbox, &first).join("metrics.jsonl")).unwrap();
    let record: Value = serde_json::from_str(metrics.lines().next().unwrap()).unwrap();
    let cells: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!((cells[0], cells[1], cells[2]), (first.as_str(), "train", "1"));
    let loss = header.iter().position(|name| *name == "loss").unwrap();
    assert_eq!(cells[loss].parse::<f64>().unwrap(), record["loss"].as_f64().unwrap());
    for flag in every.chunks(2) {
        sandbox.show(2, &[&["export-metrics", &first], flag].concat());
        sandbox.stdout_of(&[&["export-metrics", &first, "--force"], flag].concat());
    }
    assert_eq!(sandbox.read("m.csv").lines().count(), 23, "replaced");
    let printed = sandbox.expect(2, &["export-metrics", &first]);
    assert!(printed.contains("--tensorboard DIR"), "{printed}");
    let printed = sandbox.expect(1, &["export-metrics", &first, "--csv", "no/such/folder/m.csv"]);
    assert!(printed.contains("no/such/folder/m.csv"), "{printed}");
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_the_run_is_recorded() {
    let sandbox = new_sandbox();
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let expect_error = |arguments: &str| {
        sandbox.keep(Finished::of(sandbox.command(arguments).stdout(full()))).expect_code(1);
    };
    for form in ["--json", "--quiet", ""] {
        let apply = format!("apply exp.yaml --threads 1 {form}");
        for arguments in [format!("{apply} --new"), apply] {
            expect_error(&arguments);
        }
    }
    assert_eq!(run_ids(&sandbox, &["--status", "done"]).len(), 3);
    for arguments in ["--help", "apply --help", "--version"] {
        expect_error(arguments);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_run_whose_name_is_not_text_hides_no_other() {
    use std::os::unix::ffi::OsStrExt as _;
    let sandbox = new_sandbox();
    let id = train(&sandbox, 1);
    let odd = sandbox.path("runs").join(std::ffi::OsStr::from_bytes(b"lab-\xff"));
    fs::create_dir(&odd).unwrap();
    fs::copy(run_path(&sandbox, &id).join("manifest.json"), odd.join("manifest.json")).unwrap();
    let mut ids = run_ids(&sandbox, &[]);
    ids.sort();
    assert_eq!(ids, [id, "lab-\u{fffd}".to_owned()]);
    sandbox.expect(0, "runs rm lab-\u{fffd} --yes --json");
    assert!(!odd.exists());
}

#[test]
fn distinguishes_names_and_paths_of_runs() {
    let sandbox = new_sandbox();
    let id = train(&sandbox, 1);
    sandbox.expect(0, "apply exp.yaml --set name=lab-b --threads 1 --quiet --until-step 8");
    let longer = run_ids(&sandbox, &["--status", "interrupted"]).remove(0);
    sandbox.write("s.yaml", "sweep: {base: exp.yaml, grid: {seed: [2, 3]}}\n");
    sandbox.expect(0, "sweep s.yaml --threads 1 --quiet");
    // `lab` is the run of that name, not one of a longer name, and no point of a sweep.
    sandbox.show(0, "runs show lab");
    let sweep = names_in(&sandbox.path("runs/sweeps")).into_iter().find(|name| name.starts_with("s-")).unwrap();
    let points = run_ids(&sandbox, &["s"]);
    assert_eq!((points.len(), run_ids(&sandbox, &[&format!("runs/sweeps/{sweep}")])), (2, points.clone()));
    sandbox.show(0, &["runs", "show", &points[0]]);
    sandbox.show(2, "runs show la");
    // A path that is not a run is named as what it is.
    for name in [sweep.as_str(), "runs", "exp.yaml", &format!("runs/{id}/plan.json"), "nowhere/lab"] {
        sandbox.show(2, &["runs", "show", name]);
    }
    for arguments in [
        "runs other",
        "runs --limit 0",
        &format!("runs --runs runs/{id}"),
        &format!("report {id} -o runs"),
        &format!("report {id} -o r.html --port 3"),
        "sweep s.yaml --job-option=--x",
        &format!("diff {id} {longer} --set seed=3"),
    ] {
        sandbox.show(2, arguments);
    }
    assert!(run_ids(&sandbox, &["--status", "stopped,done"]).contains(&id));
    sandbox.show(0, "sweep status s.yaml");
    sandbox.show(0, "report s -o r.html");
    // A run in another folder is named by its path, which finds it.
    fs::create_dir(sandbox.path("moved")).unwrap();
    fs::rename(run_path(&sandbox, &longer), sandbox.path("moved").join(&longer)).unwrap();
    let printed = sandbox.show(0, &["resume", &format!("moved/{longer}"), "--threads", "1"]);
    assert!(printed.contains(&format!("runner runs show moved/{longer}\n")), "{printed}");
    sandbox.show(2, &["runs", "rm", &format!("moved/{longer}"), "--yes"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_lost_plan_is_explained_and_can_be_written_again() {
    let sandbox = new_sandbox();
    let id = train(&sandbox, 1);
    let (plan, resolved) = (format!("runs/{id}/plan.json"), format!("runs/{id}/resolved.yaml"));
    let whole = sandbox.read(&plan);
    let sample = ["sample", &id, "--prompt", "1", "--max-tokens", "2"];
    fs::remove_file(sandbox.path(&plan)).unwrap();
    sandbox.show(1, &sample);
    sandbox.write(&plan, "{");
    for command in [&sample[..], &["diff", &id, &id], &["compare", &id], &["reproduce", &id], &["eval", &id]] {
        sandbox.show(1, command);
    }
    let again = sandbox.stdout_of(&["plan", &resolved, "--json", "--threads", "1"]);
    assert_eq!(again, whole);
    sandbox.write(&plan, again);
    sandbox.expect(0, &sample);
    insta::assert_snapshot!(sandbox.screens());
}

/// The content of all files below `folder`, and the targets of links, which are not followed.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(contents(&path));
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
            found.insert(path, target);
        } else {
            let content = fs::read(&path).unwrap();
            found.insert(path, content);
        }
    }
    found
}

#[test]
fn a_cache_folder_that_holds_something_else_is_refused_and_stays_unchanged() {
    let sandbox = new_sandbox();
    sandbox.write("home/tmp/project/a.txt", "mine");
    sandbox.write("home/tmp/notes.txt", "mine");
    sandbox.write("home/tokens/models/weights.bin", "mine");
    sandbox.write("home/notes.txt", "mine");
    let home = sandbox.path("home");
    let long_ago = SystemTime::now() - Duration::from_hours(24);
    fs::File::options().write(true).open(home.join("tmp/notes.txt")).unwrap().set_modified(long_ago).unwrap();
    std::os::unix::fs::symlink(home.join("tmp"), home.join("linked")).unwrap();
    let before = contents(&home);
    train(&sandbox, 1);
    for arguments in [
        "plan exp.yaml",
        "apply exp.yaml --new",
        "gc --yes",
        "gc",
        "data prepare input.txt --tokenizer bytes --to npy d --validation none",
        "tokenizer train --from exp.yaml --vocab-size 270 --out t.json",
        "calibrate --quick --force",
    ] {
        let refused = Finished::of(sandbox.command(arguments).env("RUNNER_CACHE", &home));
        let text = refused.text();
        assert_eq!(refused.code, 2, "{arguments}: {text}");
        assert!(text.contains("not a cache of runner") && text.contains("set RUNNER_CACHE"), "{text}");
        assert_eq!(contents(&home), before, "{arguments}");
    }
}

#[test]
fn foreign_files_in_the_cache_survive_every_command() {
    let sandbox = new_sandbox();
    train(&sandbox, 1);
    let tokens = names_in(&sandbox.path("cache/tokens"));
    let hash = "0".repeat(64);
    sandbox.write("elsewhere/tokens.bin", "mine");
    for name in ["tmp/project/a.txt", "tmp/stage-models/a.txt", "tmp/notes.txt", "tokens/mine/a.txt", "corpora/b/a.txt"]
    {
        sandbox.write(&format!("cache/{name}"), "mine");
    }
    sandbox.write(&format!("cache/tokens/{hash}/a.txt"), "mine");
    sandbox.write(&format!("cache/tokens/{}/notes.txt", tokens[0]), "mine");
    let long_ago = SystemTime::now() - Duration::from_hours(24);
    let note = fs::File::options().write(true).open(sandbox.path("cache/tmp/notes.txt")).unwrap();
    note.set_modified(long_ago).unwrap();
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("cache/tokens").join("1".repeat(64))).unwrap();
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("cache/tmp/stage-a1B2c3")).unwrap();
    let is_foreign = |path: &PathBuf| path.ends_with("a.txt") || path.ends_with("notes.txt") || path.is_symlink();
    let foreign = || {
        let mut found = contents(&sandbox.path("cache"));
        found.retain(|path, _| is_foreign(path));
        (found, sandbox.read("elsewhere/tokens.bin"))
    };
    let before = foreign();
    assert_eq!(before.0.len(), 9);
    let id = train(&sandbox, 2);
    sandbox.stdout_of(&["runs", "rm", &id, "--yes"]);
    sandbox.stdout_of(&["runs", "rm", "lab", "--yes"]);
    let freed = sandbox.json_of("gc --yes --cache --json");
    let paths: Vec<&str> = freed["items"].as_array().unwrap().iter().map(|i| i["path"].as_str().unwrap()).collect();
    assert!(paths.len() == 1 && paths[0].contains("tokenizers/"), "the entry with a note stays: {paths:?}");
    assert_eq!(foreign(), before);
    assert!(sandbox.path("cache/tokens").join(&tokens[0]).join("tokens.bin").exists());
}

#[test]
fn foreign_files_among_runs_survive_every_command() {
    let sandbox = new_sandbox();
    let (first, second) = (train(&sandbox, 1), train(&sandbox, 2));
    sandbox.write("elsewhere/model.safetensors", "mine");
    // Beside runs, under names that resemble those of the program.
    let beside = [
        ".removing-notes/a.txt",
        ".creating-lab-12345678-a1B2c3/a.txt",
        ".removing-lab-12345678-7/a.txt",
        "notes/a.txt",
    ];
    for name in beside.into_iter().chain([".notes.lock", ".mine-12345678.lock", "sweeps/notes/a.txt"]) {
        sandbox.write(&format!("runs/{name}"), "mine");
    }
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("runs/.removing-lab-12345678-8")).unwrap();
    // Inside of a run.
    let inside = ["notes.txt", ".tmp-notes/a.txt", "checkpoints/mine/a.txt", "checkpoints/.tmp-mine/a.txt"];
    for name in inside.into_iter().chain(["checkpoints/step-00000004/notes.txt"]) {
        sandbox.write(&format!("runs/{first}/{name}"), "mine");
    }
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), run_path(&sandbox, &first).join("checkpoints/step-00000001"))
        .unwrap();
    // Names that the program removes count only if they are old enough.
    let long_ago = SystemTime::now() - Duration::from_hours(24);
    for name in beside {
        let folder = sandbox.path("runs").join(name.split('/').next().unwrap());
        fs::File::open(folder).unwrap().set_modified(long_ago).unwrap();
    }
    let is_foreign = |path: &PathBuf| fs::read(path).is_ok_and(|text| text == b"mine") || path.is_symlink();
    let foreign = || {
        let mut found = contents(&sandbox.path("runs"));
        found.retain(|path, _| is_foreign(path));
        (found, sandbox.read("elsewhere/model.safetensors"))
    };
    let before = foreign();
    assert_eq!(before.0.len(), 14);
    sandbox.expect(0, "gc --yes");
    assert_eq!(foreign(), before);
    assert!(checkpoint_steps(&sandbox, &first).contains(&4), "it has a note: {:?}", checkpoint_steps(&sandbox, &first));
    // Refused, with what is in the way, and without a change to other runs.
    let printed = sandbox.expect(2, &["runs", "rm", &first, &second, "--yes"]);
    assert!(
        printed.contains("cannot remove ")
            && printed.contains(": it contains `")
            && printed.contains(
                "move \
        that away first"
            ),
        "{printed}"
    );
    assert!(run_path(&sandbox, &second).exists());
    sandbox.expect(2, &["runs", "rm", &first, "--keep-record", "--yes"]);
    sandbox.expect(0, &["resume", &first]);
    sandbox.expect(0, "apply exp.yaml --set seed=1 --set train.steps=24 --threads 1 --quiet");
    assert_eq!(foreign(), before);
    sandbox.expect(0, &["runs", "rm", &second, "--yes"]);
    assert_eq!(foreign(), before);
}
