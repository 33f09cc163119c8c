//! One fuzzing program for all targets; `RUNNER_FUZZ_TARGET` names one. An input must end in a value or an error: a panic, a hang, and
//! more memory than the limit are defects.

#![no_main]

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use runner_config::LoadOptions;
use runner_record::catalog::ListedStatus;
use runner_spec::experiment::{Data, FILE_FORMATS, Source, Tokenizer};
use tempfile::TempDir;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 8] = [
    ("experiment", read_experiment),
    ("template", render_template),
    ("sweep", read_sweep),
    ("import", import_configuration),
    ("documents", read_documents),
    ("tokens", read_tokens),
    ("weights", open_weights),
    ("record", read_record),
];

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("RUNNER_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    let names = TARGETS.map(|(name, _)| name).join(", ");
    found.unwrap_or_else(|| panic!("RUNNER_FUZZ_TARGET: `{wanted}` is none of {names}")).1
});

/// The folder of the file that is read now.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir_in("/dev/shm").expect("a folder in memory"));

fuzz_target!(init: pass_over_caught_panics(), |input: &[u8]| TARGET(input));

/// Panics of foreign parsers that the program turns into errors do not count as defects. All others end this process.
fn pass_over_caught_panics() {
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !runner_spec::panics::is_caught() {
            abort(panic);
        }
    }));
}

/// The first byte of the input, as a number below `choices`, and the rest of it.
fn split_choice(input: &[u8], choices: u8) -> Option<(u8, &[u8])> {
    let (first, rest) = input.split_first()?;
    Some((first % choices, rest))
}

fn write(name: &str, content: &[u8]) -> PathBuf {
    let path = FOLDER.path().join(name);
    fs::write(&path, content).expect("room in memory");
    path
}

fn read_experiment(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let options = LoadOptions { allows_absent_files: true, ..LoadOptions::default() };
    match runner_config::from_str(text, Path::new("/dev/shm/fuzz.yaml"), &options) {
        Err(mistakes) => drop(mistakes.to_string()),
        Ok(loaded) => {
            let text = runner_config::to_yaml(&loaded.experiment);
            let again = runner_config::from_str(&text, Path::new("/dev/shm/fuzz.yaml"), &options);
            assert_eq!(again.expect("the resolved file is valid").experiment, loaded.experiment);
        }
    }
}

fn render_template(input: &[u8]) {
    let Some((is_record, rest)) = split_choice(input, 2) else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    if is_record == 0 {
        let _ = runner_template::render(text, Path::new("/dev/shm/fuzz.yaml.j2"), &runner_template::Inputs::default())
            .map_err(|mistakes| mistakes.to_string());
    } else if let Ok(template) = runner_template::RecordTemplate::new(text) {
        let record = serde_json::json!({"text": "a b", "n": 1, "list": [1, "x"], "map": {"k": null}});
        let serde_json::Value::Object(fields) = record else { unreachable!("an object") };
        let _ = template.render(&fields);
    }
}

fn read_sweep(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match runner_sweep::from_str(text, Path::new("/dev/shm/fuzz.yaml")) {
        Ok(spec) => drop(runner_sweep::expand(&spec).map(|expanded| expanded.points.len())),
        Err(mistakes) => drop(mistakes.to_string()),
    }
}

fn import_configuration(input: &[u8]) {
    let Some((kind, rest)) = split_choice(input, 2) else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let name = ["config.py", "config.json"][usize::from(kind)];
    let _ = runner_config::import_config(text, Path::new(name), Path::new("/dev/shm")).map_err(|error| error.to_string());
    let _ = runner_machine::cluster_description::cluster_from_yaml(text).map_err(|error| error.to_string());
}

/// A tokenizer.json, or documents in each format of files.
fn read_documents(input: &[u8]) {
    let Some((kind, rest)) = split_choice(input, 1 + FILE_FORMATS.len() as u8) else { return };
    let path = write("documents", rest);
    let Some(format) = usize::from(kind).checked_sub(1).map(|kind| &FILE_FORMATS[kind]) else {
        if let Ok(tokenizer) = runner_data::load_tokenizer(&Tokenizer::File(path)) {
            let _ = tokenizer.encode_document("once upon a time").map(|ids| tokenizer.decode(&ids));
        }
        return;
    };
    let data = Data::of_text(Tokenizer::Bytes {}, format.source(vec![path], None, None));
    let cache = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    // One merge beyond the bytes: every document is read.
    let _ = runner_data::train_tokenizer(&data, 257, &[], cache.path(), &|_| {}).map_err(|error| error.to_string());
}

/// Shards of llm.c, nanoGPT and build-nanogpt.
fn read_tokens(input: &[u8]) {
    let Some((kind, rest)) = split_choice(input, 2) else { return };
    let path = write(["tokens.bin", "tokens.npy"][usize::from(kind)], rest);
    let data = Data::of_text(Tokenizer::Ids {}, Source::Tokens { files: vec![path], dtype: None });
    let cache = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let request = runner_data::DataRequest {
        data: &data,
        tasks: &[],
        test: None,
        cache_dir: cache.path(),
        vocab_size: Some(1000),
        recorded_tokenizer: None,
    };
    let _ = runner_data::prepare(&request, &|_| {}).map_err(|error| error.to_string());
}

/// A file of PyTorch; the header of a safetensors file; config.json; the pickle of a file of PyTorch.
fn open_weights(input: &[u8]) {
    let Some((kind, rest)) = split_choice(input, 4) else { return };
    let config = br#"{"model_type": "gpt2", "vocab_size": 8, "n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 1}"#;
    let path = match kind {
        0 => write("model.bin", rest),
        3 => {
            let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
            for (name, bytes) in [("x/data.pkl", rest), ("x/data/0", &[0; 256])] {
                archive.start_file(name, zip::write::SimpleFileOptions::default()).expect("room in memory");
                archive.write_all(bytes).expect("room in memory");
            }
            write("model.bin", &archive.finish().expect("room in memory").into_inner())
        }
        _ => {
            let folder = FOLDER.path().join("model");
            fs::create_dir_all(&folder).expect("room in memory");
            let (config, tensors) = if kind == 1 { (&config[..], rest) } else { (rest, &b"\x02\0\0\0\0\0\0\0{}"[..]) };
            fs::write(folder.join("config.json"), config).expect("room in memory");
            fs::write(folder.join("model.safetensors"), tensors).expect("room in memory");
            folder
        }
    };
    let _ = runner_weights::OpenedWeights::open(&path).map_err(|error| error.to_string());
}

/// A run directory in which the input replaces one file.
fn read_record(input: &[u8]) {
    const FILES: [&str; 8] = [
        "manifest.json",
        "metrics.jsonl",
        "summary.json",
        "plan.json",
        "resolved.yaml",
        "samples.jsonl",
        "timeline.json",
        "rows.jsonl",
    ];
    static RUN: LazyLock<PathBuf> = LazyLock::new(|| {
        let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("run");
        let run = FOLDER.path().join("tiny");
        fs::create_dir_all(&run).expect("room in memory");
        for entry in fs::read_dir(original).expect("a fixture").flatten() {
            if entry.path().is_file() {
                fs::copy(entry.path(), run.join(entry.file_name())).expect("room in memory");
            }
        }
        run
    });
    let Some((file, rest)) = split_choice(input, FILES.len() as u8) else { return };
    let path = RUN.join(FILES[usize::from(file)]);
    let before = fs::read(&path).ok();
    fs::write(&path, rest).expect("room in memory");
    let listed = runner_record::catalog::describe(&RUN);
    drop(listed);
    let request = runner_report::html::ReportRequest { runs: vec![RUN.clone()], ..Default::default() };
    let _ = runner_report::html::read_page_data(&request);
    let _ = runner_compare::run_record::RunRecord::read(&RUN, ListedStatus::Done).map(|record| record.figures());
    let _ = runner_record::rows::read_rows(&RUN, 8);
    let _ = runner_compare::stored_plan::read(&RUN).map(|plan| runner_report::plan::render(&plan, &Default::default()));
    match before {
        Some(before) => fs::write(&path, before).expect("room in memory"),
        None => fs::remove_file(&path).expect("the file was written"),
    }
}
