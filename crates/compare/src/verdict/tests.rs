//! Verdicts: what is the same, what differs first, what is missing.

use std::fmt::Write as _;

use super::*;
use runner_plan::testing::{compiled, experiment};
use runner_record::checkpoint::Checkpoints;
use runner_record::manifest::ContinuedFrom;
use runner_record::testing::save_checkpoint;

/// A run directory with these losses, and checkpoints of step 2 and of the last step whose first weight is off by `weight`.
fn run(losses: &[f64], weight: f32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut text = "{\"kind\":\"eval\",\"step\":0,\"val_loss\":9.0}\n".to_owned();
    for (step, loss) in (1..).zip(losses) {
        let _ =
            writeln!(text, "{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss:?},\"grad_norm\":1.0,\"tokens\":8}}");
    }
    fs::write(dir.path().join(METRICS), text).unwrap();
    let plan = compiled(&experiment());
    let checkpoints = Checkpoints::open(&dir.path().join(CHECKPOINTS), "abc", 9).unwrap();
    for step in [2, losses.len() as u64].into_iter().filter(|step| *step <= losses.len() as u64) {
        save_checkpoint(&checkpoints, &plan, step, weight, None);
    }
    dir
}

/// The manifest of a run whose steps after `from` are its own. If it is done, its last step is that of its newest checkpoint.
fn manifest(path: &Path, from: u64, done: bool) -> Manifest {
    let last = checkpoint::saved_steps(&path.join(CHECKPOINTS)).unwrap().last().copied();
    let began = ContinuedFrom { id: "parent-12345678".into(), step: from, ..ContinuedFrom::default() };
    Manifest {
        status: if done { RunStatus::Done } else { RunStatus::Running },
        steps: last.unwrap_or(2),
        continued_from: (from > 0).then_some(began),
        ..Manifest::default()
    }
}

fn original(path: &Path, from: u64, done: bool) -> OriginalRun {
    OriginalRun::read(path, &manifest(path, from, done), None).unwrap()
}

fn compared(original: &OriginalRun, copy: &Path) -> ReproductionVerdict {
    compare(original, copy, &manifest(copy, original.from, true), 1e-4).unwrap()
}

fn judged(a: &tempfile::TempDir, b: &tempfile::TempDir, from: u64) -> ReproductionVerdict {
    compared(&original(a.path(), from, true), b.path())
}

#[test]
fn equal_bits_are_bitwise() {
    let (a, b) = (run(&[4.0, 3.0, 2.0, 1.0], 0.0), run(&[4.0, 3.0, 2.0, 1.0], 0.0));
    let verdict = judged(&a, &b, 0);
    assert_eq!((verdict.verdict, verdict.steps, verdict.evaluations), (Verdict::Bitwise, 4, 1));
    assert_eq!(verdict.weights, Some(WeightComparison { step: 4, equal: true }));
    assert_eq!((verdict.largest, verdict.first_bits, verdict.first_tensor), (None, None, None));
}

#[test]
fn equal_losses_of_other_weights_are_not_bitwise() {
    let (a, b) = (run(&[4.0, 3.0], 0.0), run(&[4.0, 3.0], 1.0));
    let verdict = judged(&a, &b, 0);
    assert_eq!(verdict.verdict, Verdict::WithinTolerance);
    let first = verdict.first_tensor.unwrap();
    assert_eq!((first.step, first.traced), (2, None));
    assert!(first.name.contains("wte"), "{}", first.name);
}

#[test]
fn differences_are_measured_and_placed() {
    let (a, b) = (run(&[4.0, 3.0, 2.0, 1.0], 0.0), run(&[4.0, 3.0, 2.0 + 1e-5, 1.0 + 1e-6], 0.0));
    let verdict = judged(&a, &b, 0);
    assert_eq!(verdict.verdict, Verdict::WithinTolerance);
    assert_eq!((verdict.first_bits.unwrap().step, verdict.largest.as_ref().unwrap().step), (3, 3));
    assert!((verdict.largest.unwrap().relative.unwrap() - 5e-6).abs() < 1e-9);
    let c = run(&[4.0, 3.0, 2.0 + 1e-5, 1.1], 0.0);
    let verdict = judged(&a, &c, 0);
    assert_eq!((verdict.verdict, verdict.diverged.unwrap().step), (Verdict::Diverged, 4));
    assert_eq!(verdict.first_bits.unwrap().step, 3);
    // Steps of the run that a copy continues are not compared.
    assert_eq!(judged(&run(&[1.0, 3.0], 0.0), &run(&[2.0, 3.0], 0.0), 1).verdict, Verdict::Bitwise);
}

/// Without the lines that contain `what`.
fn without(dir: &tempfile::TempDir, what: &str) {
    let path = dir.path().join(METRICS);
    let text = fs::read_to_string(&path).unwrap();
    let kept: Vec<&str> = text.lines().filter(|line| !line.contains(what)).collect();
    fs::write(&path, kept.join("\n") + "\n").unwrap();
}

#[test]
fn numbers_of_only_one_side_are_missing() {
    let losses = [4.0, 3.0, 2.0, 1.0];
    for (what, expected) in [("\"step\":3", (3, "step")), ("eval", (0, "evaluation"))] {
        for is_missing_in_original in [true, false] {
            let (a, b) = (run(&losses, 0.0), run(&losses, 0.0));
            without(if is_missing_in_original { &a } else { &b }, what);
            let verdict = judged(&a, &b, 0);
            let first = verdict.first_missing.unwrap();
            assert_eq!((verdict.verdict, verdict.missing), (Verdict::Incomplete, 1), "{what}");
            assert_eq!(
                (first.step, first.what.as_str(), first.is_missing_in_original),
                (expected.0, expected.1, is_missing_in_original)
            );
        }
    }
    // Fewer steps than the original; more of them are none of its.
    assert_eq!(judged(&run(&losses, 0.0), &run(&losses[..3], 0.0), 0).first_missing.unwrap().step, 4);
    assert_eq!(judged(&run(&losses[..3], 0.0), &run(&losses, 0.0), 0).verdict, Verdict::Bitwise);
}

#[test]
fn a_damaged_record_is_not_bitwise() {
    // Half of the metrics of a run that is done are lost, and the copy agrees with the rest.
    let losses = [4.0, 3.0, 2.0, 1.0];
    let (a, b) = (run(&losses, 0.0), run(&losses, 0.0));
    let text = fs::read_to_string(a.path().join(METRICS)).unwrap();
    fs::write(a.path().join(METRICS), text.split_inclusive('\n').take(3).collect::<String>()).unwrap();
    let original = original(a.path(), 0, true);
    assert_eq!(original.last_step(), 4, "the run is done");
    let verdict = compared(&original, b.path());
    assert_eq!((verdict.verdict, verdict.steps, verdict.missing), (Verdict::Incomplete, 2, 2));
    assert!(verdict.record_damage[0].contains("2 of 4 steps are recorded"), "{:?}", verdict.record_damage);
    // All lines are there, and some of them twice.
    fs::write(a.path().join(METRICS), format!("{text}{text}")).unwrap();
    let verdict = judged(&a, &b, 0);
    assert_eq!((verdict.verdict, verdict.steps, verdict.missing), (Verdict::Incomplete, 4, 0));
    assert!(verdict.record_damage[0].contains("5 lines of steps that an earlier line records"), "{verdict:?}");
}

#[test]
fn an_evaluation_that_a_killed_run_did_not_reach_is_not_missing() {
    let (a, b) = (run(&[4.0], 0.0), run(&[4.0], 0.0));
    let path = b.path().join(METRICS);
    let text = fs::read_to_string(&path).unwrap() + "{\"kind\":\"eval\",\"step\":1,\"val_loss\":9.0}\n";
    fs::write(path, text).unwrap();
    let judged = |done| compared(&original(a.path(), 0, done), b.path()).verdict;
    assert_eq!((judged(false), judged(true)), (Verdict::Bitwise, Verdict::Incomplete));
}

#[test]
fn without_weights_the_numbers_alone_are_bitwise() {
    let (a, b) = (run(&[4.0, 3.0], 0.0), run(&[4.0, 3.0], 0.0));
    fs::remove_dir_all(a.path().join(CHECKPOINTS)).unwrap();
    let verdict = judged(&a, &b, 0);
    assert_eq!((verdict.verdict, verdict.weights), (Verdict::BitwiseNumbers, None));
    assert!(verdict.weights_not_compared.unwrap().contains("neither a checkpoint"));
}

#[test]
fn a_record_that_is_removed_meanwhile_still_counts() {
    let (a, b, c) = (run(&[4.0, 3.0], 0.0), run(&[4.0, 3.0], 0.0), run(&[4.0, 2.0], 1.0));
    let original = original(a.path(), 0, true);
    fs::remove_dir_all(a.path()).unwrap();
    assert_eq!(compared(&original, b.path()).verdict, Verdict::Bitwise);
    let verdict = compared(&original, c.path());
    assert_eq!((verdict.verdict, verdict.first_tensor), (Verdict::Diverged, None));
    assert!(OriginalRun::read(a.path(), &Manifest::default(), None).unwrap_err().to_string().contains(METRICS));
    // Nothing to compare is not equal.
    fs::remove_file(b.path().join(METRICS)).unwrap();
    assert_eq!(compared(&original, b.path()).verdict, Verdict::Incomplete);
    let empty = run(&[], 0.0);
    assert_eq!(judged(&empty, &empty, 0).verdict, Verdict::Incomplete);
}

#[test]
fn the_earlier_of_trace_and_checkpoint_has_the_first_tensor() {
    let (a, b) = (run(&[4.0, 3.0, 2.0, 1.0], 0.0), run(&[4.0, 3.0, 2.5, 1.0], 1.0));
    let trace = |dir: &tempfile::TempDir, steps: &[u64], hash: &str| {
        let line = |step: &u64| {
            format!("{{\"step\":{step},\"kind\":\"output\",\"block\":0,\"name\":\"x\",\"hash\":\"{hash}\"}}\n")
        };
        fs::write(dir.path().join(TRACE), steps.iter().map(line).collect::<String>()).unwrap();
    };
    // The checkpoints of step 2 differ.
    for (steps, expected) in [(&[3, 4][..], 2), (&[2, 3, 4], 2), (&[1, 2], 1)] {
        trace(&a, steps, "1");
        trace(&b, steps, "2");
        let verdict = judged(&a, &b, 0);
        let first = verdict.first_tensor.unwrap();
        assert_eq!((first.step, first.traced.is_none()), (expected, steps[0] == 3), "{steps:?}");
        assert_eq!((verdict.traced, verdict.traced_from), (true, Some(steps[0])));
    }
}

#[test]
fn a_nan_loss_is_beyond_any_tolerance() {
    let (a, b) = (run(&[4.0, 3.0], 0.0), run(&[4.0, 3.0], 0.0));
    let text = fs::read_to_string(b.path().join(METRICS)).unwrap().replace("3.0", "null");
    fs::write(b.path().join(METRICS), text).unwrap();
    let verdict = judged(&a, &b, 0);
    let first = verdict.diverged.unwrap();
    assert_eq!(
        (verdict.verdict, first.original, first.copy, first.relative),
        (Verdict::Diverged, Some(3.0), None, None)
    );
}
