//! Run directories: how they are created, found and skipped.

use super::*;
use crate::manifest::RunOrigin;
use runner_plan::testing::{compiled, experiment};

fn create(root: &Path, plan: &Plan) -> RunDir {
    let manifest = Manifest::new(plan, "exp.yaml".into(), vec![], time::now());
    RunDir::create(
        root,
        RunFiles {
            experiment: "a: 1\n",
            resolved: "b: 2\n",
            template: None,
            merged: None,
            is_private: false,
            plan,
            manifest,
        },
        None,
    )
    .unwrap()
}

#[test]
fn a_new_run_has_its_files_and_is_found() {
    let root = tempfile::tempdir().unwrap();
    let plan = compiled(&experiment());
    assert!(find_run(root.path(), &plan).run.is_none());
    let run = create(root.path(), &plan);
    assert_eq!(run.id(), format!("{}-{}", plan.experiment_name, &plan.hash[..8]));
    assert_eq!(fs::read_to_string(run.path().join(EXPERIMENT)).unwrap(), "a: 1\n");
    assert_eq!(fs::read_to_string(run.path().join(RESOLVED)).unwrap(), "b: 2\n");
    assert_eq!(crate::files::read_json::<Plan>(&run.path().join(PLAN)).unwrap(), plan);
    let (path, manifest) = find_run(root.path(), &plan).run.unwrap();
    assert_eq!((path.as_path(), &manifest), (run.path(), run.manifest()));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing temporary stays");
    assert!(matches!(RunDir::open(run.path()), Err(RecordError::Locked { .. })));
    let path = run.path().to_owned();
    drop(run);
    assert_eq!(RunDir::open(&path).unwrap().manifest(), &manifest);
}

#[test]
fn more_runs_of_a_plan_are_numbered_and_the_newest_counts() {
    let root = tempfile::tempdir().unwrap();
    let plan = compiled(&experiment());
    let ids: Vec<String> = (0..12).map(|_| create(root.path(), &plan).id()).collect();
    assert!(ids[1].ends_with("-2") && ids[11].ends_with("-12"), "{ids:?}");
    assert_eq!(find_run(root.path(), &plan).run.unwrap().1.id, ids[11]);
}

#[test]
fn a_different_plan_with_the_same_digits_is_a_separate_run() {
    let root = tempfile::tempdir().unwrap();
    let plan = compiled(&experiment());
    let mut twin = plan.clone();
    twin.hash = format!("{}{}", &plan.hash[..8], "0".repeat(56));
    create(root.path(), &twin);
    assert!(find_run(root.path(), &plan).run.is_none());
    assert!(create(root.path(), &plan).id().ends_with("-2"));
    assert_eq!(find_run(root.path(), &twin).run.unwrap().1.plan_hash, twin.hash);
}

#[test]
fn what_was_made_from_another_run_is_not_the_run_of_its_plan() {
    let root = tempfile::tempdir().unwrap();
    let plan = compiled(&experiment());
    let (id, plan_hash) = ("other".to_owned(), "f".repeat(64));
    let fork = |step| RunOrigin::Fork { id: id.clone(), step, plan_hash: plan_hash.clone() };
    let reproduction = RunOrigin::Reproduction { id: id.clone(), plan_hash: plan_hash.clone(), state_hash: None };
    // A fork from the start does what a file with its settings would do.
    for (origin, stands) in [(fork(Some(3)), false), (reproduction, false), (fork(None), true)] {
        let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], time::now());
        let manifest = Manifest { origin: Some(origin), ..manifest };
        let files = RunFiles {
            experiment: "",
            resolved: "",
            template: None,
            merged: None,
            is_private: false,
            plan: &plan,
            manifest,
        };
        RunDir::create(root.path(), files, None).unwrap();
        assert_eq!(find_run(root.path(), &plan).run.is_some(), stands);
    }
}

#[test]
fn broken_folders_are_skipped_and_reported() {
    let root = tempfile::tempdir().unwrap();
    let plan = compiled(&experiment());
    fs::create_dir(root.path().join(base_id(&plan.experiment_name, &plan.hash))).unwrap();
    let found = find_run(root.path(), &plan);
    assert!(found.run.is_none() && found.broken[0].contains("manifest.json"), "{:?}", found.broken);
    let second = create(root.path(), &plan);
    assert!(second.id().ends_with("-2"));
    // A whole manifest with one digit changed.
    let path = second.path().join(MANIFEST);
    let digit = if plan.hash.ends_with('0') { "1" } else { "0" };
    let changed = format!("{}{digit}", &plan.hash[..63]);
    let text = fs::read_to_string(&path).unwrap().replace(&plan.hash, &changed);
    fs::write(&path, crate::files::resealed(&text)).unwrap();
    let found = find_run(root.path(), &plan);
    assert!(found.run.is_none() && found.broken[1].contains("the manifest was changed"), "{:?}", found.broken);
}

#[test]
fn a_kill_while_creating_confuses_nobody() {
    let root = tempfile::tempdir().unwrap();
    let plan = compiled(&experiment());
    let left = root.path().join(format!("{CREATING}x-12345678-a1B2c3"));
    fs::create_dir(&left).unwrap();
    assert!(find_run(root.path(), &plan).run.is_none());
    create(root.path(), &plan);
    assert!(left.exists(), "too young to distinguish from one that is being created");
    let old = std::time::SystemTime::now() - Duration::from_mins(1);
    fs::File::open(&left).unwrap().set_modified(old).unwrap();
    create(root.path(), &plan);
    assert!(!left.exists());
}

#[test]
fn two_processes_creating_at_once_get_two_folders() {
    let root = tempfile::tempdir().unwrap();
    let plan = compiled(&experiment());
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| create(root.path(), &plan));
        }
    });
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 6);
    for (n, path) in RunsSnapshot::read(root.path()).siblings(&base_id(&plan.experiment_name, &plan.hash)) {
        let id = read_manifest(&path).unwrap().id;
        assert_eq!(id, path.file_name().unwrap().to_string_lossy(), "run {n}");
    }
}

#[test]
fn manifests_from_before_continued_runs_load() {
    let root = tempfile::tempdir().unwrap();
    let run = create(root.path(), &compiled(&experiment()));
    let text = fs::read_to_string(run.path().join(MANIFEST)).unwrap();
    assert!(!text.contains("continued_from"));
    assert_eq!(read_manifest(run.path()).unwrap().continued_from, None);
}

#[test]
fn an_unwritable_root_is_named() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("runs"), "").unwrap();
    let plan = compiled(&experiment());
    let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], time::now());
    let files = RunFiles {
        experiment: "",
        resolved: "",
        template: None,
        merged: None,
        is_private: false,
        plan: &plan,
        manifest,
    };
    let error = RunDir::create(&root.path().join("runs"), files, None).unwrap_err().to_string();
    assert!(error.starts_with("creating ") && error.contains("/runs"), "{error}");
}
