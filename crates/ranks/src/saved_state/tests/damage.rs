//! Checkpoints whose files are cut, altered, missing, or of something else.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};

use super::*;
use runner_checkpoint::files::resealed;
use runner_checkpoint::{CheckpointChoice, MODEL, OPTIMIZER, STATE};

#[test]
fn an_edit_of_the_state_file_falls_back() {
    for (field, by) in
        [("\"moments\": 2", "\"moments\": 1"), ("\"best\": null", "\"best\": {\"step\": 1, \"val_loss\": 0.5}")]
    {
        for with_old_hash in [true, false] {
            let fixture = Fixture::with(&[1, 2]);
            let text = fs::read_to_string(fixture.file(2, STATE)).unwrap();
            let field = if text.contains(field) { field.to_owned() } else { best_field(&text) };
            let mut edited = text.replace(&field, by);
            assert_ne!(edited, text);
            if !with_old_hash {
                edited = resealed(&edited);
            }
            fs::write(fixture.file(2, STATE), edited).unwrap();
            match (with_old_hash, by.contains("moments")) {
                (true, _) => fixture.falls_back("state.json: it was changed after it was written"),
                (false, true) => fixture.falls_back("but state.json records 1 moments"),
                // The hash of the weights covers neither `best` nor `val_loss`.
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
        fixture.falls_back(&format!("its header should have {length}"));
    }
}

#[test]
fn reports_foreign_checkpoints() {
    let fixture = Fixture::with(&[1]);
    Checkpoints::open(&fixture.folder, "ccccccccdddddddd", 9)
        .unwrap()
        .save(&state_reader(&random_state(2, 2)), None)
        .unwrap();
    fixture.falls_back("belongs to a different plan (ccccccccdddd; this run's is aaaaaaaabbbb)");

    let fixture = Fixture::with(&[1]);
    fixture.open(9).save(&state_reader(&random_state(2, 1)), None).unwrap();
    let error = fixture.load(2).unwrap_err().to_string();
    assert!(error.contains("has 1 optimizer moments"), "{error}");

    let fixture = Fixture::with(&[1]);
    fs::rename(fixture.folder.join(dir_name(1)), fixture.folder.join(dir_name(2))).unwrap();
    fixture.open(9).save(&state_reader(&random_state(1, 2)), None).unwrap();
    fixture.falls_back("its state is from step 1");
}

#[test]
fn reports_tensors_of_a_different_model() {
    let mut spec = runner_compute::testing::spec();
    spec.d_ff = 8;
    let other = Arc::new(ParamLayout::new(runner_spec::model::parameters(&spec)));
    let fixture = Fixture::with(&[1]);
    let path = fixture.folder.join(dir_name(1));
    let error = load_state(&path, Some(PLAN), &other, 2, DType::F32).unwrap_err().to_string();
    assert!(
        error.contains("step-00000001") && error.contains("c_fc.weight must have the shape [8, 4], found [16, 4]"),
        "{error}"
    );
}

#[test]
fn the_only_checkpoint_stays_when_it_is_bad() {
    let fixture = Fixture::with(&[1]);
    fs::write(fixture.file(1, MODEL), "short").unwrap();
    let error = fixture.choose().unwrap_err().to_string();
    assert!(error.contains("model.safetensors is cut short: it has 5 bytes") && error.contains("--new"), "{error}");
    assert_eq!(fixture.steps(), [1]);
    let error =
        load_weights(&fixture.folder, CheckpointChoice::Latest, &layout(), &Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("cut short"), "{error}");
}

#[test]
fn reports_and_keeps_two_altered_checkpoints() {
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
