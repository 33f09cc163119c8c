//! Checkpoints against kills, damage, foreign files and full disks.

use std::fs::{self, File};
use std::io;

use safetensors::SafeTensors;

use super::*;
use runner_checkpoint::{
    CheckpointChoice, MODEL, OPTIMIZER, STATE, export_weights, hash_state, is_checkpoint_folder, save_failed,
};
use runner_compute::kernels::storage::converted;

#[test]
fn a_state_comes_back_bit_for_bit() {
    for moments in 0..=2 {
        let fixture = Fixture::new();
        let state = random_state(7, moments);
        let saved = fixture.open(3).save(&state_reader(&state), Some(0.5)).unwrap();
        let chosen = fixture.choose().unwrap().unwrap();
        let back = load_state(&chosen.path, Some(PLAN), &layout(), moments, DType::F32).unwrap();
        assert_eq!(values(&back), values(&state));
        assert_eq!((back.step, back.tokens, back.best), (7, state.tokens, state.best));
        assert_eq!((chosen.step, chosen.hash), (7, saved.hash));
        assert!(chosen.warnings.is_empty());
    }
}

/// A bf16 state takes half the bytes of an f32 state, and each reads the other's checkpoint.
#[test]
fn a_bf16_state_comes_back_bit_for_bit() {
    let state = random_state(7, 2);
    let stored = |state: &TrainState| TrainState {
        buffer: converted(&state.buffer).unwrap(),
        layout: state.layout.clone(),
        ..*state
    };
    let (fixture, half) = (Fixture::new(), stored(&state));
    let saved = fixture.open(3).save(&state_reader(&half), None).unwrap();
    let chosen = fixture.choose().unwrap().unwrap();
    assert_eq!((&chosen.hash, &saved.hash), (&hash_state(&state_reader(&half)).unwrap(), &chosen.hash));
    let load = |dtype| load_state(&chosen.path, Some(PLAN), &layout(), 2, dtype).unwrap();
    let numbers = |state: &TrainState| state.buffer.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
    let (back, wide) = (load(DType::BF16), load(DType::F32));
    assert_eq!((back.buffer.dtype(), wide.buffer.dtype()), (DType::BF16, DType::F32));
    assert_eq!((numbers(&back), numbers(&wide)), (numbers(&half), numbers(&half)));
    assert_eq!(hash_state(&state_reader(&back)).unwrap(), saved.hash);
    // The weights for evaluation and export are f32.
    let (weights, _) = load_weights(&fixture.folder, CheckpointChoice::Latest, &layout(), &Device::Cpu).unwrap();
    assert_eq!(weights.to_vec1::<f32>().unwrap(), numbers(&half)[..half.layout.total]);
    let exported = tempfile::tempdir().unwrap();
    export_weights(&fixture.folder, CheckpointChoice::Latest, &layout(), exported.path()).unwrap();
    let plain = Fixture::new();
    plain.open(3).save(&state_reader(&stored(&half)), None).unwrap();
    assert_eq!(fs::read(exported.path().join(MODEL)).unwrap(), fs::read(plain.file(7, MODEL)).unwrap());
    let bytes = |fixture: &Fixture, name| fs::metadata(fixture.file(7, name)).unwrap().len() as usize;
    let saved_bytes = bytes(&plain, OPTIMIZER) - bytes(&fixture, OPTIMIZER);
    // The names of the types and of offsets differ in length, too.
    assert!(saved_bytes.abs_diff(2 * 2 * state.layout.total) < 10 * 2 * state.layout.entries.len(), "{saved_bytes}");
    // An f32 checkpoint gives a bf16 state its numbers rounded.
    plain.open(3).save(&state_reader(&TrainState { step: 9, ..random_state(7, 2) }), None).unwrap();
    let rounded = load_state(&plain.folder.join(dir_name(9)), Some(PLAN), &layout(), 2, DType::BF16).unwrap();
    assert_eq!(numbers(&rounded), numbers(&half));
}

#[test]
fn files_are_safetensors_under_the_documented_names() {
    let fixture = Fixture::with(&[2]);
    let state = random_state(2, 2);
    let flat: Vec<f32> = state.buffer.to_vec1().unwrap();
    let model = fs::read(fixture.file(2, MODEL)).unwrap();
    let optimizer = fs::read(fixture.file(2, OPTIMIZER)).unwrap();
    let (model, optimizer) = (SafeTensors::deserialize(&model).unwrap(), SafeTensors::deserialize(&optimizer).unwrap());
    assert_eq!(model.len(), state.layout.entries.len());
    assert_eq!(optimizer.len(), 2 * state.layout.entries.len());
    for entry in &state.layout.entries {
        let name = &entry.spec.name;
        for (section, view) in [
            (0, model.tensor(name)),
            (1, optimizer.tensor(&format!("{name}.m"))),
            (2, optimizer.tensor(&format!("{name}.v"))),
        ] {
            let view = view.unwrap();
            assert_eq!(view.shape(), entry.spec.shape);
            let range = entry.range();
            let base = section * state.layout.total;
            let want: Vec<u8> =
                flat[base + range.start..base + range.end].iter().flat_map(|v| v.to_le_bytes()).collect();
            assert_eq!(view.data(), want, "{name}, section {section}");
        }
    }
}

#[test]
fn the_newest_and_the_best_are_kept() {
    let fixture = Fixture::new();
    let losses = [(1, Some(3.0)), (2, Some(1.0)), (3, None), (4, Some(f64::NAN)), (5, Some(2.0)), (6, Some(1.0))];
    for (step, loss) in losses {
        fixture.open(2).save(&state_reader(&random_state(step, 2)), loss).unwrap();
    }
    assert_eq!(fixture.steps(), [2, 5, 6]);
    let weights = |which| load_weights(&fixture.folder, which, &layout(), &Device::Cpu);
    assert_eq!(weights(CheckpointChoice::Latest).unwrap().1, 6);
    assert_eq!(weights(CheckpointChoice::Best).unwrap().1, 2);
    let (flat, step) = weights(CheckpointChoice::Step(5)).unwrap();
    let want = random_state(5, 2).weights().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!((flat.to_vec1::<f32>().unwrap(), step), (want, 5));
    let missing = weights(CheckpointChoice::Step(3)).unwrap_err().to_string();
    assert!(missing.contains("no checkpoint of step 3; there are: 2, 5, 6"), "{missing}");
}

/// Changes a bit of the last number in a file of the checkpoint of `step`.
fn flip_last_bit(fixture: &Fixture, step: u64, name: &str) {
    let path = fixture.file(step, name);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn old_checkpoints_are_removed_only_if_good_ones_stay() {
    let saved_with = |losses: &[f64]| {
        let fixture = Fixture::new();
        for (step, loss) in (1..).zip(losses) {
            fixture.open(10).save(&state_reader(&random_state(step, 2)), Some(*loss)).unwrap();
        }
        fixture
    };
    // The best is damaged: the next best stays too, and so does the best, which may be restored.
    let fixture = saved_with(&[1.0, 3.0, 2.0, 4.0]);
    flip_last_bit(&fixture, 1, MODEL);
    fixture.open(1).save(&state_reader(&random_state(5, 2)), Some(5.0)).unwrap();
    assert_eq!(fixture.steps(), [1, 3, 5]);
    // The newest but one is damaged, and two are to be kept.
    let fixture = saved_with(&[1.0, 3.0, 2.0, 4.0]);
    flip_last_bit(&fixture, 4, OPTIMIZER);
    let checkpoints = fixture.open(2);
    checkpoints.save(&state_reader(&random_state(5, 2)), None).unwrap();
    assert_eq!(fixture.steps(), [1, 3, 4, 5]);
    checkpoints.save(&state_reader(&random_state(6, 2)), None).unwrap();
    assert_eq!(fixture.steps(), [1, 5, 6], "two good ones are newer");
    // A checkpoint whose loss cannot be read may be the best.
    let fixture = saved_with(&[2.0, 3.0, 1.0]);
    fs::write(fixture.file(2, STATE), "{").unwrap();
    fixture.open(1).save(&state_reader(&random_state(4, 2)), None).unwrap();
    assert_eq!(fixture.steps(), [2, 3, 4]);
}

/// They are read when training resumes: damage that comes later is not seen by a save, because the save reads none of them.
#[test]
fn saves_after_a_resume_read_no_other_checkpoint() {
    let fixture = Fixture::new();
    for (step, loss) in [(1, 9.0), (2, 1.0), (3, 8.0), (4, 7.0), (5, 6.0)] {
        fixture.open(10).save(&state_reader(&random_state(step, 2)), Some(loss)).unwrap();
    }
    let checkpoints = fixture.open(3);
    assert_eq!(checkpoints.choose().unwrap().unwrap().step, 5);
    checkpoints.check_retained();
    for step in [2, 4, 5] {
        flip_last_bit(&fixture, step, MODEL);
    }
    checkpoints.save(&state_reader(&random_state(6, 2)), Some(5.0)).unwrap();
    assert_eq!(fixture.steps(), [2, 4, 5, 6]);
    checkpoints.save(&state_reader(&random_state(7, 2)), Some(4.0)).unwrap();
    assert_eq!(fixture.steps(), [2, 5, 6, 7]);
    // The next session finds the damage.
    fixture.open(3).save(&state_reader(&random_state(8, 2)), Some(3.0)).unwrap();
    assert_eq!(fixture.steps(), [2, 6, 7, 8]);
}

#[test]
fn the_best_is_unknown_if_a_loss_cannot_be_read() {
    let fixture = Fixture::new();
    for (step, loss) in [(1, 2.0), (2, 1.0), (3, 3.0)] {
        fixture.open(10).save(&state_reader(&random_state(step, 2)), Some(loss)).unwrap();
    }
    let best = || load_weights(&fixture.folder, CheckpointChoice::Best, &layout(), &Device::Cpu);
    assert_eq!(best().unwrap().1, 2);
    // An edit that reads well.
    let text = fs::read_to_string(fixture.file(2, STATE)).unwrap();
    fs::write(fixture.file(2, STATE), text.replace("\"val_loss\": 1.0", "\"val_loss\": 9.0")).unwrap();
    let error = best().unwrap_err().to_string();
    assert!(error.contains("step-00000002: state.json: it was changed after it was written"), "{error}");
    assert!(error.ends_with("the lowest validation loss is unknown; name a step: 1, 2, 3"), "{error}");
}

#[test]
fn a_new_run_needs_no_checkpoint() {
    let fixture = Fixture::new();
    assert!(fixture.choose().unwrap().is_none());
}

#[test]
fn a_kill_in_the_middle_of_a_save_leaves_the_last_one() {
    let fixture = Fixture::with(&[1, 2]);
    let temporary = fixture.folder.join(".tmp-step-00000003");
    fs::create_dir(&temporary).unwrap();
    fs::write(temporary.join(MODEL), "half").unwrap();
    assert_eq!(fixture.choose().unwrap().unwrap().step, 2);
    assert!(!temporary.exists(), "removed on start");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_leaves_the_last_good_one() {
    fn create(path: &Path, full: &str) -> io::Result<File> {
        if path.ends_with(full) { File::options().write(true).open("/dev/full") } else { File::create_new(path) }
    }
    let full: [fn(&Path) -> io::Result<File>; 3] =
        [|path| create(path, MODEL), |path| create(path, OPTIMIZER), |path| create(path, STATE)];
    for create in full {
        let fixture = Fixture::with(&[1]);
        let checkpoints = fixture.open(1).with_create(create);
        let error = checkpoints.save(&state_reader(&random_state(2, 2)), None).unwrap_err().to_string();
        assert!(error.contains("the disk is full"), "{error}");
        assert!(error.contains("step-00000002") && error.contains("last good checkpoint is step-00000001"), "{error}");
        assert_eq!(fs::read_dir(&fixture.folder).unwrap().count(), 1, "the temporary folder is gone");
        assert_eq!(fixture.choose().unwrap().unwrap().step, 1);
    }
}

#[test]
fn a_failed_save_names_an_earlier_checkpoint_as_the_last_good_one() {
    let fixture = Fixture::with(&[1, 2]);
    let cause = RecordError::damaged(&fixture.folder, "not synced");
    let error = save_failed(&fixture.folder, 2, cause).to_string();
    assert!(error.contains("step-00000002") && error.ends_with("the last good checkpoint is step-00000001"), "{error}");
    let error = save_failed(&Fixture::with(&[2]).folder, 2, RecordError::Refused(String::new())).to_string();
    assert!(error.ends_with("there is no earlier checkpoint"), "{error}");
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error() {
    let fixture = Fixture::new();
    assert!(fixture.steps().is_empty(), "a missing folder has no checkpoints");
    fs::write(&fixture.folder, "").unwrap();
    assert!(saved_steps(&fixture.folder).unwrap_err().to_string().starts_with("reading "));
}

#[test]
fn the_same_step_again_replaces_the_first() {
    let fixture = Fixture::with(&[1, 2]);
    fs::write(fixture.file(2, MODEL), "short").unwrap();
    fixture.open(9).save(&state_reader(&random_state(2, 2)), None).unwrap();
    assert_eq!(fixture.choose().unwrap().unwrap().step, 2);
    assert_eq!(fs::read_dir(&fixture.folder).unwrap().count(), 2);
}

#[test]
fn files_of_the_user_among_checkpoints_stay() {
    let fixture = Fixture::with(&[1, 2, 3]);
    let elsewhere = tempfile::tempdir().unwrap();
    let notes = |folder: &str| fixture.folder.join(folder).join("notes.txt");
    let unfinished = [".tmp-step-00000003", ".tmp-old-step-00000007"];
    for folder in ["step-00000001", "step-00000003", "mine", ".tmp-mine", ".tmp-step-x"].into_iter().chain(unfinished) {
        fs::create_dir_all(fixture.folder.join(folder)).unwrap();
        fs::write(notes(folder), folder).unwrap();
    }
    fs::write(elsewhere.path().join("notes.txt"), "mine").unwrap();
    for link in [".tmp-step-00000009", "step-00000000"] {
        std::os::unix::fs::symlink(elsewhere.path(), fixture.folder.join(link)).unwrap();
    }
    // Step 3 comes again, and only it and the best would be kept.
    let checkpoints = fixture.open(1);
    checkpoints.save(&state_reader(&random_state(3, 2)), Some(1.0)).unwrap();
    checkpoints.abandon_all();
    assert!(!fixture.file(2, STATE).exists(), "nothing keeps it");
    for (folder, text) in [
        ("step-00000001", "step-00000001"),
        ("step-00000003.kept-1", "step-00000003"),
        ("mine", "mine"),
        (".tmp-mine", ".tmp-mine"),
        (".tmp-step-x", ".tmp-step-x"),
        (".tmp-step-00000003.kept-1", ".tmp-step-00000003"),
        (".tmp-old-step-00000007", ".tmp-old-step-00000007"),
        (".tmp-step-00000009", "mine"),
        ("step-00000000", "mine"),
    ] {
        assert_eq!(fs::read_to_string(notes(folder)).unwrap(), text, "{folder}");
    }
    assert_eq!(fixture.load(3).unwrap().step, 3);
    assert!(!notes("step-00000003").exists());
    assert!(
        is_checkpoint_folder("step-00000003.kept-1"),
        "a run that the user has taken the file out of can be removed"
    );
}

#[test]
fn reports_an_unwritable_folder() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let error = Checkpoints::open(&dir.path().join("file/checkpoints"), PLAN, 1).unwrap_err().to_string();
    assert!(error.starts_with("creating "), "{error}");
}
