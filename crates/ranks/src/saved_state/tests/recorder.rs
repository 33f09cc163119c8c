//! The record of runs that are killed and resumed.

use std::fs;
use std::io::Write as _;

use super::super::*;
use runner_checkpoint::{Checkpoints, PartSpec, pending_folder, write_part};
use runner_compute::testing::{layout, random_state, values};
use runner_record::run_dir::{CHECKPOINTS, METRICS, SAMPLES};
use runner_record::{OpenedRecorder, Recorder};
use runner_spec::event::{Evaluation, Event, SampleText, StepMetrics};

/// Opens the record in `run`, of the plan `plan_hash`, after its newest usable checkpoint.
pub(super) fn open(run: &Path, plan_hash: &str) -> OpenedRecorder {
    let checkpoints = Checkpoints::open(&run.join(CHECKPOINTS), plan_hash, 2).unwrap();
    let resumed = checkpoints.choose().unwrap();
    Recorder::resume(run, checkpoints, resumed).unwrap()
}

/// Records a checkpoint of `state` in the run directory `run`.
fn save(run: &Path, recorder: &mut Recorder, state: &TrainState) {
    let folder = pending_folder(&run.join(CHECKPOINTS), state.step);
    let all: Vec<usize> = (0..state.layout.entries.len()).collect();
    let create = |path: &Path| fs::File::create_new(path);
    let part = write_part(&folder, PartSpec::WHOLE, &state_reader(state), &all, &create).unwrap();
    recorder.commit(state.step, state.tokens, state.best, vec![part]).unwrap();
}

/// A training in the run directory `run` that is a pure function of the step.
fn train(run: &Path, recorder: &mut Recorder, from: u64, through: u64) -> TrainState {
    let mut state = random_state(from, 2);
    for step in from + 1..=through {
        state = random_state(step, 2);
        let loss = 5.0 / step as f64;
        let metrics = StepMetrics {
            step,
            loss,
            lr: 1e-3 / step as f64,
            grad_norm: loss / 3.0,
            tokens: 96,
            tokens_per_second: 1.0,
            step_ms: 1.0,
            ..StepMetrics::default()
        };
        recorder.record(&Event::Step(metrics)).unwrap();
        if step.is_multiple_of(2) {
            let eval = Evaluation::of_loss(step, loss);
            recorder.record(&Event::Eval(eval)).unwrap();
            let sample = SampleText { step, prompt: "p".into(), index: 0, text: format!("at {step}") };
            recorder.record(&Event::Sample(sample)).unwrap();
        }
        if step.is_multiple_of(4) {
            save(run, recorder, &state);
        }
    }
    state
}

fn text(run: &Path, name: &str) -> String {
    fs::read_to_string(run.join(name)).unwrap()
}

#[test]
fn a_killed_and_resumed_record_equals_an_uninterrupted_one() {
    let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(whole.path(), &mut open(whole.path(), "abc").recorder, 0, 16);
    let run = broken.path();
    for killed_at in [3, 4, 7, 11, 16] {
        let OpenedRecorder { mut recorder, resumed, .. } = open(run, "abc");
        let from = resumed.map_or(0, |chosen| {
            let state = load_state(&chosen.path, Some("abc"), &layout(), 2, DType::F32).unwrap();
            assert_eq!(values(&state), values(&random_state(chosen.step, 2)));
            chosen.step
        });
        assert_eq!(from, if killed_at == 3 { 0 } else { (from / 4) * 4 });
        train(run, &mut recorder, from, killed_at);
        // The kill: a torn line, a checkpoint half written, a rewrite half done.
        fs::OpenOptions::new().append(true).open(run.join(METRICS)).unwrap().write_all(b"{\"kind\":\"tr").unwrap();
        fs::create_dir(run.join(CHECKPOINTS).join(".tmp-step-00000012")).unwrap();
        fs::write(run.join(".tmp-a1B2c3"), "half").unwrap();
    }
    let OpenedRecorder { resumed, .. } = open(run, "abc");
    assert_eq!(resumed.unwrap().step, 16);
    for name in [METRICS, SAMPLES] {
        assert_eq!(text(run, name), text(whole.path(), name), "{name}");
    }
    let hash = |dir: &Path| open(dir, "abc").recorder.newest_checkpoint().unwrap().clone();
    assert_eq!(hash(run), hash(whole.path()));
}

#[test]
fn a_damaged_checkpoint_cuts_the_record_back_further() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), &mut open(dir.path(), "abc").recorder, 0, 9);
    fs::write(dir.path().join(CHECKPOINTS).join("step-00000008/model.safetensors"), "x").unwrap();
    let opened = open(dir.path(), "abc");
    assert_eq!(opened.resumed.unwrap().step, 4);
    assert_eq!(text(dir.path(), METRICS).lines().count(), 4 + 2);
    assert_eq!(text(dir.path(), SAMPLES).lines().count(), 2);
    assert!(opened.warnings.iter().any(|w| w.contains("falling back to step-00000004")), "{:?}", opened.warnings);
    assert!(opened.warnings.iter().any(|w| w.contains("is done again")), "{:?}", opened.warnings);
}

#[test]
fn the_best_by_validation_loss_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = open(dir.path(), "abc").recorder;
    for (step, loss) in [(1, 2.0), (2, 1.0), (3, 3.0), (4, 4.0), (5, 5.0)] {
        let eval = Evaluation::of_loss(step, loss);
        recorder.record(&Event::Eval(eval)).unwrap();
        save(dir.path(), &mut recorder, &random_state(step, 2));
    }
    // Old checkpoints are removed by a thread.
    drop(recorder);
    let folder = dir.path().join(CHECKPOINTS);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
    assert_eq!(load_weights(&folder, CheckpointChoice::Best, &layout(), &Device::Cpu).unwrap().1, 2);
}

#[test]
fn a_run_with_several_ranks_is_recorded_alike() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = open(dir.path(), "abc").recorder;
    let eval = Evaluation::of_loss(4, 0.25);
    recorder.record(&Event::Eval(eval)).unwrap();
    let folder = pending_folder(&dir.path().join(CHECKPOINTS), 4);
    let state = random_state(4, 2);
    let half = state.layout.entries.len() / 2;
    let owned = [(0..half).collect::<Vec<_>>(), (half..state.layout.entries.len()).collect()];
    let parts = owned.iter().enumerate().map(|(index, owned)| {
        write_part(&folder, PartSpec { index, count: 2 }, &state_reader(&state), owned, &|path| {
            fs::File::create_new(path)
        })
        .unwrap()
    });
    recorder.commit(4, state.tokens, state.best, parts.collect()).unwrap();
    let saved = recorder.newest_checkpoint().unwrap().clone();
    drop(recorder);
    let state_file = fs::read_to_string(dir.path().join(CHECKPOINTS).join("step-00000004/state.json")).unwrap();
    assert!(state_file.contains("\"val_loss\": 0.25"), "{state_file}");

    let later = "{\"kind\":\"eval\",\"step\":5}\n";
    fs::OpenOptions::new().append(true).open(dir.path().join(METRICS)).unwrap().write_all(later.as_bytes()).unwrap();
    let OpenedRecorder { recorder, resumed, warnings } = open(dir.path(), "abc");
    let chosen = resumed.unwrap();
    assert_eq!((chosen.step, &chosen.hash), (4, &saved.1));
    assert_eq!(recorder.newest_checkpoint(), Some(&saved));
    assert!(
        warnings.iter().any(|w| w.starts_with("dropped 1 line of the record: what was done after step 4 ")),
        "{warnings:?}"
    );
    let back = load_state(&chosen.path, Some("abc"), &layout(), 2, DType::F32).unwrap();
    assert_eq!(values(&back), values(&state));
}

#[test]
fn reports_lost_lines() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), &mut open(dir.path(), "abc").recorder, 0, 4);
    let whole = text(dir.path(), METRICS);
    let without = whole.lines().filter(|line| !line.contains("\"train\",\"step\":2,"));
    let without: String = without.flat_map(|line| [line, "\n"]).collect();
    assert_eq!(without.lines().count() + 1, whole.lines().count());
    fs::write(dir.path().join(METRICS), without).unwrap();
    assert_eq!(open(dir.path(), "abc").warnings, ["metrics.jsonl has only 3 of 4 steps; the others are lost"]);
}
