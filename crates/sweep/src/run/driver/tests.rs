//! Tests of the driver.

use super::*;
use crate::from_str;
use crate::run::point_process::PointProcess;
use runner_config::LoadOptions;

struct IgnoreEvents;

impl SweepObserver for IgnoreEvents {
    fn observe(&mut self, _: &SweepEvent<'_>) {}
}

#[test]
fn each_rung_of_a_point_has_its_own_retries() {
    let root = tempfile::tempdir().unwrap();
    let experiments = ["a: 1\n".to_owned(), "a: 2\n".to_owned(), "a: 3\n".to_owned()];
    let sweep = SweepDir::create(root.path(), crate::testing::sweep(), "", &experiments, false).unwrap();
    let spec = from_str("sweep: {base: e.yaml, grid: {seed: [1, 2]}, retries: 1}", Path::new("s.yaml")).unwrap();
    let request = SweepRequest {
        spec: &spec,
        started: None,
        options: LoadOptions::default(),
        own_variables: &[],
        start_new: false,
        dry_run: false,
        parallel: 1,
        threads: 1,
        slurm: None,
    };
    let host = Host::new(root.path().into(), root.path().into(), runner_spec::cluster::KernelWorkspace::default());
    let mut ignored = IgnoreEvents;
    let mut driver = Driver::new(&sweep, &request, &host, &mut ignored).unwrap();
    let log = root.path().join("log");
    let mut is_retried = |rung: usize| {
        // Any process will do: this one lists tests.
        let process = PointProcess::start(&["--list".into()], log.clone(), &[], &[]).unwrap();
        let segment = TrainingSegment { task: 0, rung, until: 10 };
        let worker = SegmentWorker::Process(process);
        let running = RunningSegment { worker, segment, from: 0, until: 10, branch: None, was_asked_to_stop: false };
        matches!(driver.outcome(SegmentEnd::Killed(9), &running), SegmentOutcome::Failed { is_retried: true, .. })
    };
    assert_eq!([0, 0, 1, 1].map(&mut is_retried), [true, false, true, false]);
}
