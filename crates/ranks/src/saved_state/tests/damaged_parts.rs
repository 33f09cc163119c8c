//! Damaged parts of checkpoints: the newest whole checkpoint is used instead.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};

use super::super::*;
use super::parts::*;
use runner_checkpoint::STATE;
use runner_checkpoint::files::resealed;

#[test]
fn damaged_parts_fall_back() {
    let name = "optimizer-00002-of-00002.safetensors";
    let fixture = Fixture::new();
    let file = File::options().write(true).open(fixture.file(2, name)).unwrap();
    file.set_len(file.metadata().unwrap().len() - 4).unwrap();
    fixture.falls_back(&format!("{name} is cut short"));

    let fixture = Fixture::new();
    fs::remove_file(fixture.file(2, name)).unwrap();
    fixture.falls_back(&format!("{name} is missing"));

    let fixture = Fixture::new();
    let mut file = File::options().write(true).open(fixture.file(2, name)).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[0xAA]).unwrap();
    fixture.falls_back(&format!("{name}: its content does not match the hash"));

    let fixture = Fixture::new();
    fs::copy(fixture.file(1, name), fixture.file(2, name)).unwrap();
    fixture.falls_back(&format!("{name} is from step 1, but state.json is from step 2"));

    let fixture = Fixture::new();
    let mut file = File::options().write(true).open(fixture.file(2, name)).unwrap();
    file.write_all(&u64::MAX.to_le_bytes()).unwrap();
    fixture.falls_back("its header should have 18446744073709551615");
}

#[test]
fn an_altered_state_file_falls_back() {
    for (from, to, text) in [
        ("\"tokens\": 192", "\"tokens\": 193", "state.json was altered"),
        ("\"index\": 1", "\"index\": 0", "part 2 of 2 is missing"),
        ("\"count\": 2", "\"count\": 18446744073709551615", "part 1 of 18446744073709551615 does not"),
        ("\"model-00002", "\"../model-00002", "part 2 of 2 does not describe model-00002-of-00002.safetensors"),
        ("\"format\": 2", "\"format\": 3", "has format 3"),
        ("\"format\": 2", "\"format\": 1", "does not describe model.safetensors"),
    ] {
        let fixture = Fixture::new();
        let path = fixture.file(2, STATE);
        let old = fs::read_to_string(&path).unwrap();
        assert!(old.contains(from), "{from}");
        fs::write(&path, old.replacen(from, to, 1)).unwrap();
        fixture.falls_back("state.json: it was changed after it was written");
        // With the hash of its content.
        let fixture = Fixture::new();
        fs::write(fixture.file(2, STATE), resealed(&old.replacen(from, to, 1))).unwrap();
        fixture.falls_back(text);
    }
}

/// Alters the header of a file of step 2 in place and makes `state.json` agree with the file again.
fn forge(fixture: &Fixture, name: &str, from: &str, to: &str) {
    let path = fixture.file(2, name);
    let before = fs::read(&path).unwrap();
    let length = 8 + u64::from_le_bytes(before[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(before[8..length].to_vec()).unwrap();
    assert!(header.contains(from), "{header}");
    let altered = header.replacen(from, to, 1);
    assert_eq!(altered.len(), header.len());
    let after = [&before[..8], altered.as_bytes(), &before[length..]].concat();
    fs::write(&path, &after).unwrap();
    let state = fixture.file(2, STATE);
    let [old, new] = [&before, &after].map(|bytes| blake3::hash(bytes).to_hex().to_string());
    fs::write(&state, resealed(&fs::read_to_string(&state).unwrap().replace(&old, &new))).unwrap();
}

#[test]
fn headers_with_false_sizes_fall_back() {
    let (d, vocab) = (4, 11);
    let name = "model-00001-of-00002.safetensors";
    let whole = 4 * d * vocab;
    let offsets = format!("\"shape\":[{vocab},{d}],\"data_offsets\":[0,{whole}]");
    for (from, to, text) in [
        (
            offsets.clone(),
            offsets.replace("[0,", "[4,"),
            "transformer.wte.weight has 172 bytes, which do not match \
            the shape [11, 4]",
        ),
        (
            offsets.clone(),
            offsets.replace("[11,4]", "[12,4]"),
            "transformer.wte.weight has 176 bytes, which do not \
            match",
        ),
        (offsets, format!("\"shape\":[{vocab},{d}],\"data_offsets\":[9,{whole}]"), "which do not match the shape"),
        ("\"dtype\":\"F32\"".into(), "\"dtype\":\"I32\"".into(), "must be F32 or BF16, found I32"),
        ("transformer.wpe.weight".into(), "transformer.wte.weight".into(), "duplicate key \"transformer.wte.weight\""),
        ("{".into(), "[".into(), "its header is invalid"),
    ] {
        let fixture = Fixture::new();
        forge(&fixture, name, &from, &to);
        fixture.falls_back(text);
    }
}

#[test]
fn reports_a_tensor_in_two_parts_or_in_none() {
    let mut fixture = Fixture::new();
    // The last stage writes its copy of the embeddings, too.
    fixture.ranks[1].owned = (0..fixture.ranks[1].layout.entries.len()).collect();
    save(&fixture.open(), &fixture.ranks, 2);
    fixture.falls_back(
        "tensor transformer.wte.weight is in both model-00001-of-00002.safetensors and model-00002-of-00002.safetensors",
    );

    let mut fixture = Fixture::new();
    fixture.ranks[0].owned.remove(0);
    let saved = save(&fixture.open(), &fixture.ranks, 2);
    for rank in &fixture.ranks {
        let error = load_state(&saved.path, Some(PLAN), &rank.layout, 2, DType::F32).unwrap_err().to_string();
        assert!(error.contains("none of its parts has tensor transformer.wte.weight"), "{error}");
    }
}
