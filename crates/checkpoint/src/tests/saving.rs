//! Checkpoints against kills, damage, foreign files and full disks.

use std::io::{Seek, SeekFrom, Write};

use safetensors::SafeTensors;

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use super::super::*;
use runner_compute::kernels::storage::converted;
use runner_compute::testing::{layout, random_state, values};
use runner_record::checkpoint::{
    CheckpointChoice, Checkpoints, ChosenCheckpoint, MODEL, OPTIMIZER, STATE, dir_name, export_weights, hash_state,
    is_checkpoint_folder, save_failed, saved_steps,
};
use runner_record::files::unsealed;

const PLAN: &str = "aaaaaaaabbbbbbbb";

struct Fixture {
    _dir: tempfile::TempDir,
    folder: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("checkpoints");
        Self { _dir: dir, folder }
    }

    fn open(&self, keep: usize) -> Checkpoints {
        Checkpoints::open(&self.folder, PLAN, keep).unwrap()
    }

    /// Saves `steps`, the last of which is the newest.
    fn with(steps: &[u64]) -> Self {
        let fixture = Self::new();
        for &step in steps {
            fixture.open(10).save(&state_bytes(&random_state(step, 2)), None).unwrap();
        }
        fixture
    }

    fn file(&self, step: u64, name: &str) -> PathBuf {
        self.folder.join(dir_name(step)).join(name)
    }

    fn steps(&self) -> Vec<u64> {
        saved_steps(&self.folder).unwrap()
    }

    fn choose(&self) -> Result<Option<ChosenCheckpoint>, RecordError> {
        self.open(10).choose()
    }

    /// Reads the checkpoint of `step` with two moments into the layout of the tests.
    fn load(&self, step: u64) -> Result<TrainState, RecordError> {
        load_state(&self.folder.join(dir_name(step)), Some(PLAN), &layout(), 2, DType::F32)
    }

    /// Resumes from step 1 with a warning that holds `text`, or fails with it if step 2 is the only one.
    fn falls_back(&self, text: &str) {
        let resumed = self.choose().unwrap().unwrap();
        assert_eq!(resumed.step, 1, "falls back");
        assert_eq!(values(&self.load(1).unwrap()), values(&random_state(1, 2)));
        let warning = resumed.warnings.join("\n");
        assert!(warning.contains(text) && warning.contains("falling back to step-00000001"), "{warning}");
        assert_eq!(self.steps(), [1]);
        assert!(self.folder.join("step-00000002.damaged").is_dir());
    }
}

#[test]
fn a_state_comes_back_bit_for_bit() {
    for moments in 0..=2 {
        let fixture = Fixture::new();
        let state = random_state(7, moments);
        let saved = fixture.open(3).save(&state_bytes(&state), Some(0.5)).unwrap();
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
    let saved = fixture.open(3).save(&state_bytes(&half), None).unwrap();
    let chosen = fixture.choose().unwrap().unwrap();
    assert_eq!((&chosen.hash, &saved.hash), (&hash_state(&state_bytes(&half)).unwrap(), &chosen.hash));
    let load = |dtype| load_state(&chosen.path, Some(PLAN), &layout(), 2, dtype).unwrap();
    let numbers = |state: &TrainState| state.buffer.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
    let (back, wide) = (load(DType::BF16), load(DType::F32));
    assert_eq!((back.buffer.dtype(), wide.buffer.dtype()), (DType::BF16, DType::F32));
    assert_eq!((numbers(&back), numbers(&wide)), (numbers(&half), numbers(&half)));
    assert_eq!(hash_state(&state_bytes(&back)).unwrap(), saved.hash);
    // The weights for evaluation and export are f32.
    let (weights, _) = load_weights(&fixture.folder, CheckpointChoice::Latest, &layout(), &Device::Cpu).unwrap();
    assert_eq!(weights.to_vec1::<f32>().unwrap(), numbers(&half)[..half.layout.total]);
    let exported = tempfile::tempdir().unwrap();
    export_weights(&fixture.folder, CheckpointChoice::Latest, &layout(), exported.path()).unwrap();
    let plain = Fixture::new();
    plain.open(3).save(&state_bytes(&stored(&half)), None).unwrap();
    assert_eq!(fs::read(exported.path().join(MODEL)).unwrap(), fs::read(plain.file(7, MODEL)).unwrap());
    let bytes = |fixture: &Fixture, name| fs::metadata(fixture.file(7, name)).unwrap().len() as usize;
    let saved_bytes = bytes(&plain, OPTIMIZER) - bytes(&fixture, OPTIMIZER);
    // The names of the types and of offsets differ in length, too.
    assert!(saved_bytes.abs_diff(2 * 2 * state.layout.total) < 10 * 2 * state.layout.entries.len(), "{saved_bytes}");
    // An f32 checkpoint gives a bf16 state its numbers rounded.
    plain.open(3).save(&state_bytes(&TrainState { step: 9, ..random_state(7, 2) }), None).unwrap();
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
        fixture.open(2).save(&state_bytes(&random_state(step, 2)), loss).unwrap();
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
            fixture.open(10).save(&state_bytes(&random_state(step, 2)), Some(*loss)).unwrap();
        }
        fixture
    };
    // The best is damaged: the next best stays too, and so does the best, which may be restored.
    let fixture = saved_with(&[1.0, 3.0, 2.0, 4.0]);
    flip_last_bit(&fixture, 1, MODEL);
    fixture.open(1).save(&state_bytes(&random_state(5, 2)), Some(5.0)).unwrap();
    assert_eq!(fixture.steps(), [1, 3, 5]);
    // The newest but one is damaged, and two are to be kept.
    let fixture = saved_with(&[1.0, 3.0, 2.0, 4.0]);
    flip_last_bit(&fixture, 4, OPTIMIZER);
    let checkpoints = fixture.open(2);
    checkpoints.save(&state_bytes(&random_state(5, 2)), None).unwrap();
    assert_eq!(fixture.steps(), [1, 3, 4, 5]);
    checkpoints.save(&state_bytes(&random_state(6, 2)), None).unwrap();
    assert_eq!(fixture.steps(), [1, 5, 6], "two good ones are newer");
    // A checkpoint whose loss cannot be read may be the best.
    let fixture = saved_with(&[2.0, 3.0, 1.0]);
    fs::write(fixture.file(2, STATE), "{").unwrap();
    fixture.open(1).save(&state_bytes(&random_state(4, 2)), None).unwrap();
    assert_eq!(fixture.steps(), [2, 3, 4]);
}

/// They are read when training resumes: damage that comes later is not seen by a save, because the save reads none of them.
#[test]
fn saves_after_a_resume_read_no_other_checkpoint() {
    let fixture = Fixture::new();
    for (step, loss) in [(1, 9.0), (2, 1.0), (3, 8.0), (4, 7.0), (5, 6.0)] {
        fixture.open(10).save(&state_bytes(&random_state(step, 2)), Some(loss)).unwrap();
    }
    let checkpoints = fixture.open(3);
    assert_eq!(checkpoints.choose().unwrap().unwrap().step, 5);
    checkpoints.check_retained();
    for step in [2, 4, 5] {
        flip_last_bit(&fixture, step, MODEL);
    }
    checkpoints.save(&state_bytes(&random_state(6, 2)), Some(5.0)).unwrap();
    assert_eq!(fixture.steps(), [2, 4, 5, 6]);
    checkpoints.save(&state_bytes(&random_state(7, 2)), Some(4.0)).unwrap();
    assert_eq!(fixture.steps(), [2, 5, 6, 7]);
    // The next session finds the damage.
    fixture.open(3).save(&state_bytes(&random_state(8, 2)), Some(3.0)).unwrap();
    assert_eq!(fixture.steps(), [2, 6, 7, 8]);
}

#[test]
fn the_best_is_unknown_if_a_loss_cannot_be_read() {
    let fixture = Fixture::new();
    for (step, loss) in [(1, 2.0), (2, 1.0), (3, 3.0)] {
        fixture.open(10).save(&state_bytes(&random_state(step, 2)), Some(loss)).unwrap();
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

/// Every field of `state.json` is covered: after an edit, a resume falls back. Without the hash, as earlier versions wrote the file, the number
/// of tensors still shows an edit of `moments`.
#[test]
fn an_edit_of_the_state_file_falls_back() {
    for (field, by) in
        [("\"moments\": 2", "\"moments\": 1"), ("\"best\": null", "\"best\": {\"step\": 1, \"val_loss\": 0.5}")]
    {
        for sealed in [true, false] {
            let fixture = Fixture::with(&[1, 2]);
            let text = fs::read_to_string(fixture.file(2, STATE)).unwrap();
            let field = if text.contains(field) { field.to_owned() } else { best_field(&text) };
            let mut edited = text.replace(&field, by);
            assert_ne!(edited, text);
            if !sealed {
                edited = unsealed(&edited);
            }
            fs::write(fixture.file(2, STATE), edited).unwrap();
            match (sealed, by.contains("moments")) {
                (true, _) => fixture.falls_back("state.json: it was changed after it was written"),
                (false, true) => fixture.falls_back("state.json says 1 moments"),
                // An earlier version covered neither `best` nor `val_loss`.
                (false, false) => assert_eq!(fixture.choose().unwrap().unwrap().step, 2),
            }
        }
    }
}

/// The field `best` of a state file, which spans several lines.
fn best_field(text: &str) -> String {
    let from = text.find("\"best\"").unwrap();
    text[from..=from + text[from..].find('}').unwrap()].to_owned()
}

#[test]
fn nothing_there_is_no_error_for_a_new_run() {
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
fn truncated_files_fall_back() {
    for name in [MODEL, OPTIMIZER] {
        let fixture = Fixture::with(&[1, 2]);
        let file = File::options().write(true).open(fixture.file(2, name)).unwrap();
        file.set_len(file.metadata().unwrap().len() - 3).unwrap();
        fixture.falls_back(&format!("{name} is cut short"));
    }
    let fixture = Fixture::with(&[1, 2]);
    fs::write(fixture.file(2, STATE), "{\"format\": 1, \"st").unwrap();
    fixture.falls_back("state.json: ");
}

#[test]
fn missing_and_altered_files_fall_back() {
    let fixture = Fixture::with(&[1, 2]);
    fs::remove_file(fixture.file(2, OPTIMIZER)).unwrap();
    fixture.falls_back("optimizer.safetensors is missing");

    let fixture = Fixture::with(&[1, 2]);
    let mut file = File::options().write(true).open(fixture.file(2, MODEL)).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[0xAA]).unwrap();
    fixture.falls_back("does not match the hash");

    let fixture = Fixture::with(&[1, 2]);
    let path = fixture.file(2, STATE);
    let text = fs::read_to_string(&path).unwrap().replace("\"tokens\": 192", "\"tokens\": 193");
    fs::write(&path, text).unwrap();
    fixture.falls_back("state.json: it was changed after it was written");
}

#[test]
fn a_header_cannot_make_us_allocate() {
    for length in [u64::MAX, 1 << 40, 0] {
        let fixture = Fixture::with(&[1, 2]);
        let mut file = File::options().write(true).open(fixture.file(2, MODEL)).unwrap();
        file.write_all(&length.to_le_bytes()).unwrap();
        fixture.falls_back(&format!("a header of {length} bytes"));
    }
}

#[test]
fn foreign_checkpoints_are_told() {
    let fixture = Fixture::with(&[1]);
    Checkpoints::open(&fixture.folder, "ccccccccdddddddd", 9)
        .unwrap()
        .save(&state_bytes(&random_state(2, 2)), None)
        .unwrap();
    fixture.falls_back("of another plan (ccccccccdddd; this run's is aaaaaaaabbbb)");

    let fixture = Fixture::with(&[1]);
    fixture.open(9).save(&state_bytes(&random_state(2, 1)), None).unwrap();
    let error = fixture.load(2).unwrap_err().to_string();
    assert!(error.contains("holds 1 optimizer moments"), "{error}");

    let fixture = Fixture::with(&[1]);
    fs::rename(fixture.folder.join(dir_name(1)), fixture.folder.join(dir_name(2))).unwrap();
    fixture.open(9).save(&state_bytes(&random_state(1, 2)), None).unwrap();
    fixture.falls_back("its state is that of step 1");
}

#[test]
fn another_models_tensors_are_told() {
    let mut spec = runner_compute::testing::spec();
    spec.d_ff = 8;
    let other = Arc::new(ParamLayout::new(runner_spec::model::parameters(&spec)));
    let fixture = Fixture::with(&[1]);
    let path = fixture.folder.join(dir_name(1));
    let error = load_state(&path, Some(PLAN), &other, 2, DType::F32).unwrap_err().to_string();
    assert!(
        error.contains("step-00000001") && error.contains("c_fc.weight is [16, 4], this model's is [8, 4]"),
        "{error}"
    );
}

#[test]
fn the_only_checkpoint_stays_when_it_is_bad() {
    let fixture = Fixture::with(&[1]);
    fs::write(fixture.file(1, MODEL), "short").unwrap();
    let error = fixture.choose().unwrap_err().to_string();
    assert!(error.contains("model.safetensors is cut short: 5 bytes") && error.contains("--new"), "{error}");
    assert_eq!(fixture.steps(), [1]);
    let error =
        load_weights(&fixture.folder, CheckpointChoice::Latest, &layout(), &Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("cut short"), "{error}");
}

#[test]
fn two_altered_checkpoints_are_both_told_and_stay() {
    let fixture = Fixture::with(&[1, 2]);
    for (step, name) in [(1, OPTIMIZER), (2, MODEL)] {
        let mut file = File::options().write(true).open(fixture.file(step, name)).unwrap();
        file.seek(SeekFrom::End(-1)).unwrap();
        file.write_all(&[0xAA]).unwrap();
    }
    let error = fixture.choose().unwrap_err().to_string();
    let newest = "step-00000002: model.safetensors: its content does not match the hash in state.json; ";
    let older = "step-00000001: optimizer.safetensors: its content does not match the hash in state.json; ";
    assert!(error.contains(&format!("{newest}{older}there is no other good checkpoint")), "{error}");
    assert_eq!(fixture.steps(), [1, 2], "nothing is set aside for nothing");
}

#[test]
fn reading_weights_names_the_next_good_one() {
    let fixture = Fixture::with(&[1, 2]);
    fs::write(fixture.file(2, MODEL), "short").unwrap();
    let error =
        load_weights(&fixture.folder, CheckpointChoice::Latest, &layout(), &Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("the next good one is step-00000001"), "{error}");
    assert_eq!(fixture.steps(), [1, 2], "reading changes nothing");
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
        let error = checkpoints.save(&state_bytes(&random_state(2, 2)), None).unwrap_err().to_string();
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
    fixture.open(9).save(&state_bytes(&random_state(2, 2)), None).unwrap();
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
    checkpoints.save(&state_bytes(&random_state(3, 2)), Some(1.0)).unwrap();
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
fn an_unwritable_folder_is_said() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let error = Checkpoints::open(&dir.path().join("file/checkpoints"), PLAN, 1).unwrap_err().to_string();
    assert!(error.starts_with("creating "), "{error}");
}
