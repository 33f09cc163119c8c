//! `runner data`: the bytes of other programs' formats, kills, and training on the files that it writes.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::sandbox::Sandbox;

fn u16s(tokens: &[u16]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// `struct.pack("<256i", …)` and the tokens, as llm.c's scripts write them.
fn llmc(magic: i32, version: i32, count: i32, body: &[u8]) -> Vec<u8> {
    let mut words = [0_i32; 256];
    words[..3].copy_from_slice(&[magic, version, count]);
    [words.iter().flat_map(|word| word.to_le_bytes()).collect(), body.to_vec()].concat()
}

/// `numpy.save` of one-dimensional uint16.
pub fn npy(tokens: &[u16]) -> Vec<u8> {
    let header = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({},), }}", tokens.len());
    [b"\x93NUMPY\x01\x00\x76\x00", format!("{header:117}\n").as_bytes(), &u16s(tokens)].concat()
}

/// Writes enough documents for some shards.
pub fn write_documents(sandbox: &Sandbox, count: usize) {
    let line = |i: usize| format!("{{\"text\": \"document {i}: {}\"}}\n", "some words 7 ".repeat(i % 37));
    sandbox.write("docs.jsonl", (0..count).map(line).collect::<String>());
}

/// Writes three documents, as bytes "ab", "cde", "f" with the end of text 256.
pub fn write_three_documents(sandbox: &Sandbox) {
    sandbox.write("docs.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cde\"}\n{\"text\": \"f\"}\n");
}

#[test]
fn llmc_and_npy_shards_have_the_peers_bytes() {
    let sandbox = Sandbox::new();
    write_three_documents(&sandbox);
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer bytes --to llmc c --name x --shard-tokens 4");
    // Documents begin with the end of text, and cross the borders of shards.
    let stream: [&[u16]; 3] = [&[256, 97, 98, 256], &[99, 100, 101, 256], &[102]];
    let expect = |prefix: &str, end: &str, make: &dyn Fn(&[u16]) -> Vec<u8>| -> Vec<(String, Vec<u8>)> {
        let names = ["val_000000", "train_000001", "train_000002"];
        names.into_iter().zip(stream).map(|(n, tokens)| (format!("{prefix}_{n}.{end}"), make(tokens))).collect()
    };
    let shards = |folder: &str, end: &str| {
        let mut files = sandbox.files_in(folder);
        files.retain(|(name, _)| name.ends_with(end));
        files.sort_by_key(|(name, _)| name.contains("train"));
        files
    };
    let c = |tokens: &[u16]| llmc(20_240_520, 1, tokens.len() as i32, &u16s(tokens));
    assert_eq!(shards("c", ".bin"), expect("x", "bin", &c));
    // The folder's name serves where none is given.
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer bytes --to npy edufineweb --shard-tokens 4");
    assert_eq!(shards("edufineweb", ".npy"), expect("edufineweb", "npy", &npy));
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer bytes --to llmc-u32 w --validation none");
    let wide: Vec<u8> = stream.concat().iter().flat_map(|&token| u32::from(token).to_le_bytes()).collect();
    assert_eq!(shards("w", ".bin"), [("w_train_000000.bin".to_owned(), llmc(20_240_801, 7, 9, &wide))]);
    assert_eq!(
        sandbox.names_in("c"),
        ["dataset.json", "tokenizer.json", "x_train_000001.bin", "x_train_000002.bin", "x_val_000000.bin"]
    );
}

#[test]
fn nanogpt_files_have_the_peers_bytes() {
    let sandbox = Sandbox::new();
    write_three_documents(&sandbox);
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer bytes --to nanogpt all --validation none");
    assert_eq!(fs::read(sandbox.path("all/train.bin")).unwrap(), u16s(&[97, 98, 256, 99, 100, 101, 256, 102, 256]));
    // One text: int(n · 0.9) characters, not bytes, for training, and nothing between.
    sandbox.write("one.txt", "é123456789日234567890");
    sandbox.stdout_of("data prepare one.txt --tokenizer bytes --to nanogpt one");
    let bytes = |text: &str| u16s(&text.bytes().map(u16::from).collect::<Vec<_>>());
    assert_eq!(fs::read(sandbox.path("one/train.bin")).unwrap(), bytes("é123456789日2345678"));
    assert_eq!(fs::read(sandbox.path("one/val.bin")).unwrap(), bytes("90"));
    // Of several documents some are drawn, each in one of the files.
    write_documents(&sandbox, 500);
    let made = sandbox.json_of("data prepare docs.jsonl --tokenizer bytes --to nanogpt some --validation 0.1 --json");
    let ends = |name: &str| {
        let bytes = fs::read(sandbox.path("some").join(name)).unwrap();
        bytes.chunks(2).filter(|token| **token == 256_u16.to_le_bytes()).count()
    };
    let (train, val) = (ends("train.bin"), ends("val.bin"));
    assert!(train + val == 500 && (20..=90).contains(&val), "{val}");
    assert_eq!(made["card"]["documents"], 500);
}

#[test]
fn threads_do_not_change_a_byte_and_finished_work_stays() {
    let sandbox = Sandbox::new();
    write_documents(&sandbox, 3000);
    let prepare = |folder: &str, threads: usize| {
        sandbox.show(0, &format!(
            "data prepare docs.jsonl --tokenizer bpe:400 --to llmc {folder} --name x --shard-tokens 30000 --threads {threads}"
        ))
    };
    prepare("one", 1);
    prepare("three", 3);
    assert!(sandbox.names_in("one").len() > 5);
    assert_eq!(sandbox.files_in("one"), sandbox.files_in("three"));
    prepare("one", 1);
    // Any difference is reported, and changes nothing.
    let before = sandbox.files_in("one");
    let refused = |line: &str| sandbox.show(2, &format!("data prepare docs.jsonl {line} --to llmc one --name x"));
    refused("--tokenizer bpe:400 --shard-tokens 20000");
    refused("--tokenizer bytes --shard-tokens 30000");
    write_documents(&sandbox, 2000);
    refused("--tokenizer bpe:400 --shard-tokens 30000");
    assert_eq!(sandbox.files_in("one"), before);
    // The shards of a longer set do not stay behind.
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer bytes --to llmc one --name x --shard-tokens 400000 --force");
    let shards: Vec<_> =
        sandbox.names_in("one").into_iter().filter(|name| name.contains("_train_") || name.contains("_val_")).collect();
    assert_eq!(shards, ["x_train_000001.bin", "x_val_000000.bin"]);
    insta::assert_snapshot!(sandbox.screens());
}

/// Killed at several moments, and run again: the same bytes as in one go, and nothing else.
#[test]
fn a_killed_preparation_is_made_again() {
    let sandbox = Sandbox::new();
    write_documents(&sandbox, 60_000);
    for format in ["npy", "nanogpt"] {
        let line = |folder: &str| {
            format!(
                "data prepare docs.jsonl --tokenizer bytes --to {format} {folder} --name x --shard-tokens 700000 --validation 0.1"
            )
        };
        let (whole, killed) = (format!("{format}-whole"), format!("{format}-killed"));
        sandbox.stdout_of(&line(&whole));
        for moment in [0, 20, 60] {
            let mut child = sandbox.spawn(&line(&killed));
            let has_begun = || fs::read_dir(sandbox.path(&killed)).is_ok_and(|mut entries| entries.next().is_some());
            while !has_begun() && child.0.try_wait().unwrap().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(moment));
            child.kill();
        }
        sandbox.stdout_of(&line(&killed));
        assert_eq!(sandbox.files_in(&whole), sandbox.files_in(&killed), "{format}");
        assert_eq!(sandbox.names_in(&whole), sandbox.names_in(&killed), "{format}");
    }
}

/// Losses of a few steps on `data`.
fn losses(sandbox: &Sandbox, name: &str, data: &str) -> Vec<String> {
    let yaml = format!(
        "version: 1\nname: {name}\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16, vocab_size: 257}}\n\
         data: {data}\nbatch: {{sequences: 4}}\ntrain: {{steps: 4}}\neval: {{every: 4, loss: {{batches: 2}}}}\n"
    );
    sandbox.write(&format!("{name}.yaml"), yaml);
    let out = sandbox.stdout_of(&format!("apply {name}.yaml --threads 1 --json --quiet --runs runs"));
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter(|line| line["kind"] == "train" || line["kind"] == "eval")
        .map(|line| format!("{} {}", line["loss"], line["val_loss"]))
        .collect()
}

/// The ids of shards mean nothing in another tokenizer of the same size, and nothing else would show it.
#[test]
fn shards_of_another_tokenizer_are_reported() {
    let words: Vec<String> = (0..2000_u32).map(|i| format!("{:x}", i * i)).collect();
    let sandbox = Sandbox::new().with("other.txt", words.join(" "));
    write_documents(&sandbox, 300);
    sandbox.stdout_of("tokenizer train docs.jsonl --vocab-size 280 --out own.json");
    sandbox.stdout_of("tokenizer train other.txt --vocab-size 280 --out other.json");
    let reported = |tokenizer: &str| {
        let experiment = format!(
            "model: {{family: gpt2, layers: 1, heads: 2, d_model: 8, context_length: 16}}\n\
             data: {{tokenizer: {{{tokenizer}}}, train: {{tokens: {{files: ['d/*train*']}}}}, validation: null}}\n\
             batch: {{sequences: 4}}\ntrain: {{steps: 1}}\n"
        );
        sandbox.write("exp.yaml", experiment);
        let printed = sandbox.expect(0, "plan exp.yaml --set model.vocab_size=280");
        printed.lines().find(|line| line.contains("that made the shards")).map(str::to_owned)
    };
    for format in ["npy", "llmc"] {
        let prepare =
            format!("data prepare docs.jsonl --tokenizer own.json --to {format} d --name x --shard-tokens 3000");
        sandbox.stdout_of(&format!("{prepare} --force"));
        let warning = reported("file: other.json").unwrap();
        // The end of text and 256 bytes have the same ids; the 23 merges are different ones.
        assert!(warning.contains("23 of 280 ids stand for different text (257 is "), "{warning}");
        assert!(warning.ends_with("d/tokenizer.json"), "{warning}");
        for same in ["file: own.json", "file: d/tokenizer.json", "ids: {}"] {
            assert_eq!(reported(same), None, "{same}");
        }
        fs::remove_file(sandbox.path("d/dataset.json")).unwrap();
        assert_eq!(reported("file: other.json"), None, "nothing says which tokenizer made them");
        fs::remove_dir_all(sandbox.path("d")).unwrap();
    }
}

#[test]
fn training_on_each_format_is_training_on_the_text() {
    let sandbox = Sandbox::new();
    // Documents in front of which the end of text stands, as this program has it too.
    let source =
        "tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}, validation: {builtin: {corpus: stories}}";
    let text = losses(&sandbox, "text", &format!("{{{source}}}"));
    assert!(text.len() >= 5, "{text:?}");
    for (format, end) in [("llmc", "bin"), ("llmc-u32", "bin"), ("npy", "npy")] {
        sandbox
            .stdout_of(&format!("data prepare --from text.yaml --to {format} {format} --name x --shard-tokens 300000"));
        let files = |split: &str| format!("{{tokens: {{files: [\"{format}/x_{split}_*.{end}\"]}}}}");
        let data = format!("{{tokenizer: {{bytes: {{}}}}, train: {}, validation: {}}}", files("train"), files("val"));
        assert!(sandbox.names_in(format).len() > 4, "several shards");
        assert_eq!(losses(&sandbox, &format!("from-{format}"), &data), text, "{format}");
    }
    // One text, of which a tenth is held out: nanoGPT's files, and the same of the text.
    let line = |i: u32| format!("line {i}, {}\n", i * i % 997);
    sandbox.write("one.txt", (0..2000).map(line).collect::<String>());
    let text = losses(
        &sandbox,
        "one",
        "{tokenizer: {bytes: {}}, train: {text: {files: [one.txt]}}, validation: {fraction: 0.1}}",
    );
    sandbox.stdout_of("data prepare one.txt --tokenizer bytes --to nanogpt nano");
    let data = "{tokenizer: {file: nano/tokenizer.json}, train: {tokens: {files: [nano/train.bin]}}, validation: {tokens: {files: [nano/val.bin]}}}";
    assert_eq!(losses(&sandbox, "nano", data), text);
}

/// A limit that cuts the first document: what was written counts, and its bytes are those of the tokens.
#[test]
fn a_limit_may_cut_the_first_document() {
    let sandbox = Sandbox::new().with("big.txt", "once upon a time ".repeat(3000));
    let command = "data prepare big.txt --tokenizer bytes --to llmc shards --shard-tokens 1000 --max-tokens 10000";
    sandbox.expect(0, command);
    let card: Value = serde_json::from_str(&sandbox.read("shards/dataset.json")).unwrap();
    assert_eq!((&card["documents"], &card["text_bytes"], &card["tokens"]), (&1.into(), &9999.into(), &10_000.into()));
    sandbox.show(0, command);
    sandbox.show(2, "data prepare big.txt --tokenizer bytes --to nanogpt gpt --max-tokens 1000");
    insta::assert_snapshot!(sandbox.screens());
}
