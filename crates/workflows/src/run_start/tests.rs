//! What each command starts, as a table, and how a start finds or creates its run.

use std::cell::RefCell;
use std::fs;

use runner_config::LoadOptions;
use runner_inputs::{Host, IgnoreEvents, PreparedRun, local_devices};
use runner_record::run_dir::MANIFEST;
use runner_spec::cluster::KernelWorkspace;
use runner_spec::program::DataPosition;
use runner_threads::stop::StopSwitch;

use super::*;
use crate::session::SessionOptions;

/// A planned experiment, in a folder of its own.
struct Planned {
    host: Host,
    loaded: Loaded,
    ready: PreparedRun,
    options: SessionOptions,
    stop: StopSwitch,
    _folder: tempfile::TempDir,
}

impl Planned {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::new(folder.path().join("runs"), folder.path().join("cache"), KernelWorkspace::default());
        let text = "name: t\nmodel: {preset: gpt2-nano}\ntrain: {steps: 8}\n\
            data: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}}\n";
        let loaded = runner_config::from_str(text, Path::new("t.yaml"), &LoadOptions::default()).unwrap();
        let cluster = local_devices(&host);
        let ready = PreparedRun::new(&loaded.experiment, None, 0, cluster, &host, &mut IgnoreEvents).unwrap();
        let (options, stop) = (SessionOptions::default(), StopSwitch::default());
        Self { host, loaded, ready, options, stop, _folder: folder }
    }

    fn session(&self) -> RunSession<'_> {
        let Self { host, loaded, ready, options, stop, .. } = self;
        RunSession { options, host, experiment: &loaded.experiment, ready, stop, launched: None }
    }
}

/// The run whose checkpoints other runs begin with.
fn parent() -> RecordedRun {
    let manifest = Manifest { id: "p-01234567".to_owned(), plan_hash: "ab".repeat(32), ..Manifest::default() };
    RecordedRun { path: PathBuf::from("runs/p-01234567"), manifest }
}

#[test]
fn each_command_starts_its_own_kind_of_run() {
    let (planned, parent) = (Planned::new(), parent());
    let (session, plan) = (planned.session(), &planned.ready.plan);
    let file = RunStart::new(&planned.loaded, &session);
    let checkpoint = |which| Beginning::Checkpoint { run: &parent, plan, which };
    let (latest, fourth) = (checkpoint(CheckpointChoice::Latest), checkpoint(CheckpointChoice::Step(4)));
    let fork = RunStart { claim: Claim::Different, parent: Some(&parent.manifest), ..file };
    let repeat =
        |state_hash| RunStart { purpose: Purpose::Repeat { state_hash }, parent: Some(&parent.manifest), ..file };
    let Manifest { id, plan_hash, .. } = &parent.manifest;
    let forked = |step| RunOrigin::Fork { id: id.clone(), step, plan_hash: plan_hash.clone() };
    let copied = |hash: Option<&str>| RunOrigin::Reproduction {
        id: id.clone(),
        plan_hash: plan_hash.clone(),
        state_hash: hash.map(str::to_owned),
    };
    let of_another = RunOrigin::Fork { id: "q-89abcdef".to_owned(), step: Some(4), plan_hash: plan_hash.clone() };
    // The runs of the plan that exist already, by what made them.
    let origins = [
        None,
        Some(forked(None)),
        Some(forked(Some(4))),
        Some(of_another),
        Some(copied(None)),
        Some(copied(Some("ff"))),
    ];
    let table = [
        // The command, its start, the origin that its run records, whether inherited steps count as its own, and which runs it continues.
        ("apply, submit", file, 0, true, "++----"),
        (
            "apply --continue, layout",
            RunStart { beginning: latest, claim: Claim::SameNumbers, ..file },
            0,
            false,
            "++----",
        ),
        ("apply --continue, end", RunStart { beginning: latest, ..file }, 0, true, "++----"),
        ("apply --new", RunStart { is_new: true, ..file }, 0, true, "++----"),
        ("fork --from start", fork, 1, false, "-+----"),
        ("fork --from 4", RunStart { beginning: fourth, ..fork }, 2, false, "--+---"),
        ("reproduce", repeat(None), 4, false, "----+-"),
        ("reproduce, of a fork", RunStart { beginning: fourth, ..repeat(None) }, 4, false, "----+-"),
        ("reproduce --steps", RunStart { beginning: fourth, ..repeat(Some("ff")) }, 5, false, "-----+"),
    ];
    for (command, start, origin, is_same_computation, continued) in table {
        assert_eq!(start.origin(), origins[origin], "{command}");
        assert_eq!(start.is_same_computation(), is_same_computation, "{command}");
        let manifests = origins.iter().map(|origin| Manifest { origin: origin.clone(), ..Manifest::default() });
        let found: String = manifests.map(|run| if start.started_like(&run, false) { '+' } else { '-' }).collect();
        assert_eq!(found, continued, "{command}");
        let own = Manifest { origin: start.origin(), ..Manifest::default() };
        assert_eq!(start.started_like(&own, true), start.purpose == Purpose::Train, "{command} with a verdict");
    }
}

#[test]
fn a_start_finds_the_run_that_it_created() {
    let (planned, parent) = (Planned::new(), parent());
    let session = planned.session();
    let file = RunStart::new(&planned.loaded, &session);
    let fork = RunStart { claim: Claim::Different, parent: Some(&parent.manifest), ..file };
    let announced = RefCell::new(Vec::new());
    let open = |start: &RunStart<'_>| {
        let announce = |existing: Option<&Manifest>, _: &mut dyn RunObserver| {
            announced.borrow_mut().push(existing.is_some());
            Ok(())
        };
        match start.open(&announce, &mut IgnoreEvents).unwrap() {
            FoundRun::Unfinished(run) => run.id(),
            FoundRun::Done(path) => panic!("{} is done", path.display()),
        }
    };
    let base = run_dir::base_id("t", &planned.ready.plan.hash);
    let [second, third] = [2, 3].map(|n| format!("{base}-{n}"));
    assert_eq!(
        [open(&file), open(&file), open(&fork), open(&fork)],
        [&base, &base, &second, &second].map(String::clone)
    );
    assert_eq!(open(&RunStart { is_new: true, ..file }), third);
    assert_eq!(announced.take(), [false, true, false, true, false]);
    // The newest run that stands for the plan.
    assert_eq!(open(&file), third);
}

#[test]
fn what_a_start_claims_is_checked() {
    let (planned, parent) = (Planned::new(), parent());
    let (session, plan) = (planned.session(), &planned.ready.plan);
    let file = RunStart::new(&planned.loaded, &session);
    let refuse = |start: &RunStart<'_>| match start.open(&|_, _| Ok(()), &mut IgnoreEvents) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    };
    // A run that starts at step 0 cannot read on where another stopped.
    let mut loaded = planned.loaded.clone();
    loaded.experiment.data.position = Some(DataPosition { step: 4, epoch: 0, row: 8, rows: 8, tokens: 64 });
    let error = refuse(&RunStart { loaded: &loaded, ..file });
    assert!(error.contains("the position of a fork after step 4, but this run starts at step 0"), "{error}");
    // A run continues only the one that it began with.
    let FoundRun::Unfinished(run) = file.open(&|_, _| Ok(()), &mut IgnoreEvents).unwrap() else { panic!("it is done") };
    let (path, manifest) = (run.path().to_owned(), run.manifest().clone());
    drop(run);
    let beginning = Beginning::Checkpoint { run: &parent, plan, which: CheckpointChoice::Latest };
    let error = refuse(&RunStart { beginning, claim: Claim::SameNumbers, ..file });
    assert!(error.contains("a run of this file that started from scratch"), "{error}");
    // A run is resumed with the plan that it has.
    let changed = RecordedRun { path: path.clone(), manifest: Manifest { plan_hash: "cd".repeat(32), ..manifest } };
    for claim in [Claim::SamePlan, Claim::SameNumbers] {
        let error = refuse(&RunStart { beginning: Beginning::Resumed(&changed), claim, ..file });
        assert!(error.contains("cannot resume"), "{error}");
    }
    // A folder that cannot be read may be the run of the file; a point of a sweep is trained again.
    fs::write(path.join(MANIFEST), "{").unwrap();
    let error = refuse(&file);
    assert!(error.contains("this experiment has a run that cannot be read"), "{error}");
    let point = SweepPoint { id: "s-01234567".to_owned(), point: 1 };
    let again = RunStart { sweep: Some(&point), ..file };
    let Ok(FoundRun::Unfinished(run)) = again.open(&|_, _| Ok(()), &mut IgnoreEvents) else { panic!("not created") };
    assert_eq!(run.manifest().sweep.as_ref(), Some(&point));
}
