//! The items that are removed and those that stay: of runs that are done, running, interrupted, forked from, and in a sweep.

use super::*;
use crate::remove;
use crate::remove::descendants;
use runner_plan::testing::{compiled, experiment};
use runner_record::checkpoint::Checkpoints;
use runner_record::files::write_sealed_json;
use runner_record::lock::{NO_LOCKS, RunLock};
use runner_record::manifest::{ContinuedFrom, Manifest, RunStatus, SweepPoint};
use runner_record::run_dir::{MANIFEST, METRICS, RunDir, RunFiles};
use runner_record::testing::save_checkpoint;
use runner_spec::error::{Classified as _, ErrorKind};

/// A run with checkpoints after steps 1 to 5, the second the best; it ended long ago.
fn run(root: &Path, name: &str, change: impl FnOnce(&mut Manifest)) -> PathBuf {
    let mut plan = compiled(&experiment());
    name.clone_into(&mut plan.experiment_name);
    let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], "2026-01-01T00:00:00.000Z".into());
    let run = RunDir::create(
        root,
        RunFiles {
            experiment: "",
            resolved: "",
            plan: &plan,
            manifest,
            template: None,
            merged: None,
            is_private: false,
        },
        None,
    )
    .unwrap();
    let path = run.path().to_owned();
    let checkpoints = Checkpoints::open(&path.join(CHECKPOINTS), &plan.hash, 9).unwrap();
    for step in 1..=5 {
        save_checkpoint(&checkpoints, &plan, step, 0.0, Some(if step == 2 { 1.0 } else { 2.0 }));
    }
    let mut manifest = run.manifest().clone();
    manifest.status = RunStatus::Done;
    change(&mut manifest);
    write_sealed_json(&path.join(MANIFEST), &manifest).unwrap();
    path
}

fn names(root: &Path, older_than: Option<Duration>) -> Vec<String> {
    let found = survey(root, older_than).unwrap();
    found.unneeded.iter().map(|item| item.path.strip_prefix(root).unwrap().display().to_string()).collect()
}

fn id(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn a_finished_run_keeps_the_newest_and_the_best() {
    let root = tempfile::tempdir().unwrap();
    let done = run(root.path(), "a", |_| ());
    run(root.path(), "b", |m| m.status = RunStatus::Interrupted);
    run(root.path(), "c", |m| m.status = RunStatus::Failed);
    let held = run(root.path(), "d", |_| ());
    let _lock = RunLock::take(&held).unwrap();
    let at = |step: u64| format!("{}/checkpoints/{}", id(&done), checkpoint::dir_name(step));
    assert_eq!(names(root.path(), None), [at(1), at(3), at(4)]);
    let century = Duration::from_hours(24 * 36_500);
    assert!(names(root.path(), Some(century)).is_empty());
    assert_eq!(names(root.path(), Some(Duration::ZERO)).len(), 3);
    let found = survey(root.path(), None).unwrap();
    assert!(found.unneeded.iter().all(|item| item.kind == UnneededKind::Checkpoint && item.bytes > 0));
    assert_eq!(free(root.path(), &found, None).unwrap(), found.unneeded);
    assert_eq!(checkpoint::saved_steps(&done.join(CHECKPOINTS)).unwrap(), [2, 5]);
    assert_eq!(checkpoint::saved_steps(&held.join(CHECKPOINTS)).unwrap(), [1, 2, 3, 4, 5]);
    assert!(names(root.path(), None).is_empty());
}

/// Damages the checkpoint of `step`.
fn flip(run: &Path, step: u64) {
    let path = run.join(CHECKPOINTS).join(checkpoint::dir_name(step)).join(checkpoint::MODEL);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Damage that comes after the survey shows that the files are not read again.
#[test]
fn checkpoints_are_read_once_unless_others_were_saved_meanwhile() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = (run(root.path(), "a", |_| ()), run(root.path(), "b", |_| ()));
    let found = survey(root.path(), None).unwrap();
    assert_eq!(found.unneeded.len(), 6);
    flip(&first, 5);
    let checkpoints = Checkpoints::open(&second.join(CHECKPOINTS), "abc", 9).unwrap();
    save_checkpoint(&checkpoints, &compiled(&experiment()), 6, 0.0, None);
    free(root.path(), &found, None).unwrap();
    assert_eq!(checkpoint::saved_steps(&first.join(CHECKPOINTS)).unwrap(), [2, 5]);
    assert_eq!(checkpoint::saved_steps(&second.join(CHECKPOINTS)).unwrap(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn the_last_good_checkpoint_stays() {
    let root = tempfile::tempdir().unwrap();
    // The newest and the best are damaged; then all are.
    let done = run(root.path(), "a", |_| ());
    flip(&done, 5);
    flip(&done, 2);
    let found = survey(root.path(), None).unwrap();
    let problems = found.problems.join("\n");
    for (step, good) in [(5, 4), (2, 4)] {
        let damaged = format!("{}: model.safetensors: its content does not match", checkpoint::dir_name(step));
        let other = format!("the next good one is {}; the damaged one stays too", checkpoint::dir_name(good));
        assert!(problems.contains(&damaged) && problems.contains(&other), "{problems}");
    }
    free(root.path(), &found, None).unwrap();
    // The losses of 1, 3, 4 and 5 are equal, and the earliest of equal ones counts.
    assert_eq!(checkpoint::saved_steps(&done.join(CHECKPOINTS)).unwrap(), [1, 2, 4, 5]);
    for step in [1, 4] {
        flip(&done, step);
    }
    assert!(names(root.path(), None).is_empty());
}

#[test]
fn checkpoints_that_a_run_may_start_from_stay() {
    let root = tempfile::tempdir().unwrap();
    let parent = run(root.path(), "a", |_| ());
    let fork = RunOrigin::Fork { id: id(&parent), step: Some(3), plan_hash: String::new() };
    run(root.path(), "b", |m| (m.status, m.origin) = (RunStatus::Interrupted, Some(fork)));
    run(root.path(), "c", |m| m.sweep = Some(SweepPoint { id: "lr".into(), point: 1 }));
    fs::create_dir_all(root.path().join("sweeps/lr")).unwrap();
    let found = survey(root.path(), None).unwrap();
    let steps: Vec<String> = found.unneeded.iter().map(|item| id(&item.path)).collect();
    assert_eq!(steps, ["step-00000001", "step-00000004"], "the fork's stays, and all of a sweep that is not finished");
    // `apply --continue`, and a reproduction of such.
    for (name, step, origin) in [
        ("e", 1, None),
        (
            "f",
            4,
            Some(RunOrigin::Reproduction { id: "gone-12345678".into(), plan_hash: String::new(), state_hash: None }),
        ),
    ] {
        let from = ContinuedFrom { id: id(&parent), step, ..ContinuedFrom::default() };
        let path = run(root.path(), name, |m| {
            (m.status, m.origin, m.continued_from) = (RunStatus::Interrupted, origin, Some(from));
        });
        let left = survey(root.path(), None).unwrap().unneeded;
        let dir = checkpoint::dir_name(step);
        assert!(!left.iter().any(|item| id(&item.path) == dir), "what {name} resumes from stays: {left:?}");
        fs::remove_dir_all(path).unwrap();
    }
    // A sweep without open points.
    let over = runner_sweep::record::SweepRecord { points: Vec::new(), ..runner_sweep::testing::sweep() };
    fs::write(root.path().join("sweeps/lr/sweep.json"), serde_json::to_string(&over).unwrap()).unwrap();
    assert_eq!(survey(root.path(), None).unwrap().unneeded.len(), 5);
    // A fork that came after the survey, and a session.
    let late = RunOrigin::Fork { id: id(&parent), step: Some(4), plan_hash: String::new() };
    run(root.path(), "d", |m| (m.status, m.origin) = (RunStatus::Interrupted, Some(late)));
    let gone = free(root.path(), &found, None).unwrap();
    assert_eq!(gone.iter().map(|item| id(&item.path)).collect::<Vec<_>>(), ["step-00000001"]);
    let _lock = RunLock::take(&parent).unwrap();
    assert!(free(root.path(), &found, None).unwrap().is_empty());
}

#[test]
fn the_checkpoint_that_a_run_started_from_stays() {
    let root = tempfile::tempdir().unwrap();
    let from = ContinuedFrom { id: "gone-12345678".into(), step: 3, ..ContinuedFrom::default() };
    let origin = RunOrigin::Fork { id: from.id.clone(), step: Some(3), plan_hash: String::new() };
    run(root.path(), "a", |m| (m.origin, m.continued_from) = (Some(origin), Some(from)));
    let found = survey(root.path(), None).unwrap();
    let steps: Vec<String> = found.unneeded.iter().map(|item| id(&item.path)).collect();
    assert_eq!(steps, ["step-00000001", "step-00000004"]);
}

#[test]
fn leftovers_of_kills_are_removed_and_links_are_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = run(root.path(), "a", |m| m.status = RunStatus::Interrupted);
    fs::create_dir(path.join("checkpoints/.tmp-old-step-00000008")).unwrap();
    fs::write(path.join(".tmp-a1B2c3"), "{").unwrap();
    let long_ago = SystemTime::now() - Duration::from_mins(1);
    for name in [".creating-x-12345678-a1B2c3", ".removing-x-12345678-2-1"] {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::File::open(root.path().join(name)).unwrap().set_modified(long_ago).unwrap();
    }
    drop(RunLock::take_name(root.path(), "a-12345678").unwrap());
    let held = RunLock::take_name(root.path(), "b-12345678").unwrap();
    let linked = run(elsewhere.path(), "z", |_| ());
    std::os::unix::fs::symlink(&linked, root.path().join("z-link")).unwrap();
    let found = survey(root.path(), None).unwrap();
    let mut kinds: Vec<UnneededKind> = found.unneeded.iter().map(|item| item.kind).collect();
    kinds.sort();
    let expected = [
        UnneededKind::Leftover,
        UnneededKind::Leftover,
        UnneededKind::Leftover,
        UnneededKind::Leftover,
        UnneededKind::Lock,
    ];
    assert_eq!(kinds, expected, "{found:?}");
    assert_eq!(free(root.path(), &found, None).unwrap().len(), expected.len());
    assert!(survey(root.path(), None).unwrap().unneeded.is_empty());
    assert_eq!(checkpoint::saved_steps(&path.join(CHECKPOINTS)).unwrap().len(), 5);
    assert_eq!(checkpoint::saved_steps(&linked.join(CHECKPOINTS)).unwrap().len(), 5);
    assert!(root.path().join(".b-12345678.lock").exists());
    drop(held);
}

#[test]
fn damaged_checkpoints_are_removed_like_others() {
    let root = tempfile::tempdir().unwrap();
    let paths =
        [("a", RunStatus::Done), ("b", RunStatus::Interrupted), ("c", RunStatus::Failed), ("d", RunStatus::Done)].map(
            |(name, status)| {
                run(root.path(), name, |m| {
                    m.status = status;
                    m.sweep = (name == "d").then(|| SweepPoint { id: "lr".into(), point: 1 });
                })
            },
        );
    fs::create_dir_all(root.path().join("sweeps/lr")).unwrap();
    for path in &paths {
        fs::create_dir(path.join("checkpoints/step-00000009.damaged")).unwrap();
    }
    let damaged = |older_than| {
        let found = survey(root.path(), older_than).unwrap();
        found
            .unneeded
            .into_iter()
            .filter(|item| item.kind == UnneededKind::Damaged)
            .filter_map(|item| item.run)
            .collect::<Vec<_>>()
    };
    assert_eq!(damaged(None), [paths[0].clone()], "of others it may hold the only weights");
    assert!(damaged(Some(Duration::from_hours(24 * 36_500))).is_empty());
    let found = survey(root.path(), None).unwrap();
    assert_eq!(free(root.path(), &found, None).unwrap().len(), 4);
    assert!(damaged(None).is_empty());
}

#[test]
fn files_with_several_names_are_removed_and_count_once() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = (run(root.path(), "a", |_| ()), run(root.path(), "b", |_| ()));
    let alone: u64 = survey(root.path(), None).unwrap().unneeded.iter().map(|item| item.bytes).sum();
    // As a run that began with another's checkpoints has them.
    for step in [1, 3, 5] {
        let folder = |run: &Path| run.join(CHECKPOINTS).join(checkpoint::dir_name(step));
        for file in children(&folder(&first)) {
            let other = folder(&second).join(file.file_name().unwrap());
            fs::remove_file(&other).unwrap();
            fs::hard_link(&file, other).unwrap();
        }
    }
    let found = survey(root.path(), None).unwrap();
    let total: u64 = found.unneeded.iter().map(|item| item.bytes).sum();
    let one = bytes_freed(&first.join(CHECKPOINTS).join(checkpoint::dir_name(4)));
    assert!(
        found.unneeded.len() == 6 && total.abs_diff(alone - 2 * one) < 64,
        "1 and 3 take room once: {alone} {one} {total}"
    );
    assert_eq!(free(root.path(), &found, None).unwrap(), found.unneeded);
    assert_eq!(bytes_freed(&first.join(CHECKPOINTS).join(checkpoint::dir_name(5))), 0);
    let mut both = FreedBytes::default();
    assert!(both.add(&first) < both.add(&second), "the last name counts");
}

#[test]
fn without_locks_nothing_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let path = run(root.path(), "a", |m| m.status = RunStatus::Running);
    let found = {
        fs::create_dir(path.join("checkpoints/.tmp-step-00000006")).unwrap();
        survey(root.path(), None).unwrap()
    };
    assert_eq!(found.unneeded.len(), 1);
    let _training = RunLock::take(&path).unwrap();
    fs::write(path.join(NO_LOCKS), "").unwrap();
    assert!(survey(root.path(), None).unwrap().unneeded.is_empty());
    assert!(free(root.path(), &found, None).unwrap().is_empty());
    assert!(remove::remove(root.path(), &path).unwrap_err().to_string().contains("without locks"));
    assert!(path.join("checkpoints/.tmp-step-00000006").exists());
}

#[test]
fn runs_are_removed_whole_and_nothing_else_is() {
    let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = run(root.path(), "a", |_| ());
    let fork = RunOrigin::Fork { id: id(&first), step: Some(3), plan_hash: String::new() };
    let second = run(root.path(), "b", |m| (m.origin, m.steps) = (Some(fork), 5));
    let other = run(elsewhere.path(), "c", |_| ());
    let link = root.path().join("c-link");
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let notes = root.path().join("notes");
    fs::create_dir(&notes).unwrap();
    for path in [&link, &other, &notes] {
        let error = remove::remove(root.path(), path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Request, "{}: {error}", path.display());
    }
    let lock = RunLock::take(&first).unwrap();
    assert!(matches!(remove::remove(root.path(), &first), Err(RecordError::Locked { .. })));
    drop(lock);
    let all = catalog::list(root.path()).unwrap();
    assert_eq!(descendants(&all, &id(&first)).iter().map(|r| &r.id).collect::<Vec<_>>(), [&id(&second)]);
    // A link is not the run's.
    fs::write(elsewhere.path().join("precious"), "1").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), first.join("out")).unwrap();
    let error = remove::remove(root.path(), &first).unwrap_err();
    assert!(error.to_string().contains("it contains `out`"), "{error}");
    fs::remove_file(first.join("out")).unwrap();
    assert!(bytes_freed(&first) > 0);
    remove::remove(root.path(), &first).unwrap();
    assert!(!first.exists() && elsewhere.path().join("precious").exists() && other.exists());
    // A run without its metrics has nothing but its checkpoints.
    let error = remove::remove_checkpoints(root.path(), &second).unwrap_err();
    assert!(error.kind() == ErrorKind::Request && error.to_string().contains("0 of 5 steps are recorded"), "{error}");
    let line = |kind: &str, step: u64| format!("{{\"kind\":\"{kind}\",\"step\":{step},\"tokens\":1}}\n");
    let lines: String = (1..=5).map(|step| line("train", step) + &line("eval", step)).collect();
    fs::write(second.join(METRICS), lines).unwrap();
    remove::remove_checkpoints(root.path(), &second).unwrap();
    assert!(checkpoint::saved_steps(&second.join(CHECKPOINTS)).unwrap().is_empty() && second.join(MANIFEST).exists());
    let left: Vec<String> = children(root.path()).iter().map(|path| id(path)).collect();
    assert_eq!(left, [id(&second), "c-link".to_owned(), "notes".to_owned()]);
}
