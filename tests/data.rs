//! `runner data` and `runner tokenizer` from outside: bytes of the peers' formats, kills, training on what was written.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A folder to work in.
struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(line.split_whitespace()).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", self.path("cache"));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    fn good(&self, line: &str) -> String {
        let output = self.run(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Standard error of a command that must be refused.
    fn refused(&self, line: &str) -> String {
        let output = self.run(line);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
        errors
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.good(line)).unwrap()
    }

    /// Names and contents of what is in a folder, hidden files too.
    fn files(&self, folder: &str) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(self.path(folder)).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
            .collect();
        files.sort();
        files
    }

    fn names(&self, folder: &str) -> Vec<String> {
        self.files(folder).into_iter().map(|(name, _)| name).collect()
    }

    /// Documents enough for some shards.
    fn documents(&self, count: usize) {
        let line = |i: usize| format!("{{\"text\": \"document {i}: {}\"}}\n", "some words 7 ".repeat(i % 37));
        self.write("docs.jsonl", (0..count).map(line).collect::<String>());
    }
}

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
fn npy(tokens: &[u16]) -> Vec<u8> {
    let header = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({},), }}", tokens.len());
    [b"\x93NUMPY\x01\x00\x76\x00", format!("{header:117}\n").as_bytes(), &u16s(tokens)].concat()
}

/// Three documents, as bytes "ab", "cde", "f" with the end of text 256.
fn three(lab: &Lab) {
    lab.write("docs.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cde\"}\n{\"text\": \"f\"}\n");
}

#[test]
fn llmc_and_npy_shards_have_the_peers_bytes() {
    let lab = Lab::new();
    three(&lab);
    lab.good("data prepare docs.jsonl --tokenizer bytes --to llmc c --name x --shard-tokens 4");
    // Documents begin with the end of text, and cross the borders of shards.
    let stream: [&[u16]; 3] = [&[256, 97, 98, 256], &[99, 100, 101, 256], &[102]];
    let expect = |prefix: &str, end: &str, make: &dyn Fn(&[u16]) -> Vec<u8>| -> Vec<(String, Vec<u8>)> {
        let names = ["val_000000", "train_000001", "train_000002"];
        names.into_iter().zip(stream).map(|(n, tokens)| (format!("{prefix}_{n}.{end}"), make(tokens))).collect()
    };
    let shards = |folder: &str, end: &str| {
        let mut files = lab.files(folder);
        files.retain(|(name, _)| name.ends_with(end));
        files.sort_by_key(|(name, _)| name.contains("train"));
        files
    };
    let c = |tokens: &[u16]| llmc(20_240_520, 1, tokens.len() as i32, &u16s(tokens));
    assert_eq!(shards("c", ".bin"), expect("x", "bin", &c));
    // The folder's name serves where none is given.
    lab.good("data prepare docs.jsonl --tokenizer bytes --to npy edufineweb --shard-tokens 4");
    assert_eq!(shards("edufineweb", ".npy"), expect("edufineweb", "npy", &npy));
    lab.good("data prepare docs.jsonl --tokenizer bytes --to llmc-u32 w --validation none");
    let wide: Vec<u8> = stream.concat().iter().flat_map(|&token| u32::from(token).to_le_bytes()).collect();
    assert_eq!(shards("w", ".bin"), [("w_train_000000.bin".to_owned(), llmc(20_240_801, 7, 9, &wide))]);
    assert_eq!(
        lab.names("c"),
        ["dataset.json", "tokenizer.json", "x_train_000001.bin", "x_train_000002.bin", "x_val_000000.bin"]
    );
}

#[test]
fn nanogpt_files_have_the_peers_bytes() {
    let lab = Lab::new();
    three(&lab);
    lab.good("data prepare docs.jsonl --tokenizer bytes --to nanogpt all --validation none");
    assert_eq!(fs::read(lab.path("all/train.bin")).unwrap(), u16s(&[97, 98, 256, 99, 100, 101, 256, 102, 256]));
    // One text: int(n · 0.9) characters, not bytes, for training, and nothing between.
    lab.write("one.txt", "é123456789日234567890");
    lab.good("data prepare one.txt --tokenizer bytes --to nanogpt one");
    let bytes = |text: &str| u16s(&text.bytes().map(u16::from).collect::<Vec<_>>());
    assert_eq!(fs::read(lab.path("one/train.bin")).unwrap(), bytes("é123456789日2345678"));
    assert_eq!(fs::read(lab.path("one/val.bin")).unwrap(), bytes("90"));
    // Of several documents some are drawn, each in one of the files.
    lab.documents(500);
    let made = lab.json("data prepare docs.jsonl --tokenizer bytes --to nanogpt some --validation 0.1 --json");
    let ends = |name: &str| {
        let found = lab.json(&format!("data inspect some/{name} --json"));
        found["documents"]["count"].as_u64().unwrap()
    };
    let (train, val) = (ends("train.bin"), ends("val.bin"));
    assert!(train + val == 500 && (20..=90).contains(&val), "{val}");
    assert_eq!(made["card"]["documents"], 500);
}

#[test]
fn threads_do_not_change_a_byte_and_finished_work_stays() {
    let lab = Lab::new();
    lab.documents(3000);
    let prepare = |folder: &str, threads: usize| {
        lab.good(&format!(
            "data prepare docs.jsonl --tokenizer bpe:400 --to llmc {folder} --name x --shard-tokens 30000 --threads {threads}"
        ))
    };
    prepare("one", 1);
    prepare("three", 3);
    assert!(lab.names("one").len() > 5);
    assert_eq!(lab.files("one"), lab.files("three"));
    assert!(prepare("one", 1).contains("up to date"));
    // Whatever differs is told, and changes nothing.
    let before = lab.files("one");
    let refused = |line: &str| lab.refused(&format!("data prepare docs.jsonl {line} --to llmc one --name x"));
    assert!(refused("--tokenizer bpe:400 --shard-tokens 20000").contains("30000 tokens"));
    assert!(refused("--tokenizer bytes --shard-tokens 30000").contains("its tokenizer is another"));
    lab.documents(2000);
    assert!(refused("--tokenizer bpe:400 --shard-tokens 30000").contains("its source has other content"));
    assert_eq!(lab.files("one"), before);
    // The shards of a longer set do not stay behind.
    lab.good("data prepare docs.jsonl --tokenizer bytes --to llmc one --name x --shard-tokens 400000 --force");
    let shards: Vec<_> =
        lab.names("one").into_iter().filter(|name| name.contains("_train_") || name.contains("_val_")).collect();
    assert_eq!(shards, ["x_train_000001.bin", "x_val_000000.bin"]);
}

/// Killed again and again, each time after some more shards, until it is done: the same bytes as in one go.
#[test]
fn killed_at_any_moment_and_gone_on_with_equals_uninterrupted() {
    let lab = Lab::new();
    lab.documents(60_000);
    for (format, end) in [("npy", ".npy"), ("nanogpt", ".bin")] {
        let line = |folder: &str| {
            format!(
                "data prepare docs.jsonl --tokenizer bytes --to {format} {folder} --name x --shard-tokens 700000 --validation {}",
                if format == "npy" { "first-shard" } else { "0.1" }
            )
        };
        let whole = format!("{format}-whole");
        lab.good(&line(&whole));
        let (folder, mut kills) = (format!("{format}-killed"), 0);
        let state = lab.path(&folder).join(".prepare.json");
        let progress = || fs::read_to_string(&state).unwrap_or_default();
        let counts = |state: &str| {
            let state: Value = serde_json::from_str(state).unwrap_or_default();
            ["shards", "open"].iter().any(|key| state[key].as_array().is_some_and(|list| !list.is_empty()))
        };
        loop {
            let before = progress();
            let mut child = lab.command(&line(&folder)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let started = Instant::now();
            let ended = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break Some(status);
                }
                // Something was made safe since: a moment later, so that it is in the middle of more.
                let now = progress();
                if now != before && counts(&now) && kills < 4 {
                    thread::sleep(Duration::from_millis(3 * kills));
                    break None;
                }
                assert!(started.elapsed() < Duration::from_mins(2), "it neither ends nor goes on");
                thread::sleep(Duration::from_millis(1));
            };
            if let Some(status) = ended {
                assert!(status.success());
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
            // Nothing half-written has a final name.
            let sizes = lab.files(&folder).into_iter().filter(|(name, _)| name.ends_with(end));
            for (name, content) in sizes {
                assert_eq!(content, fs::read(lab.path(&whole).join(&name)).unwrap(), "{name} after kill {kills}");
            }
        }
        assert!(kills > 1, "{format}: {kills} kills");
        assert_eq!(lab.files(&whole), lab.files(&folder), "{format}");
    }
}

#[test]
fn mistakes_are_told_before_anything_is_written() {
    let lab = Lab::new();
    three(&lab);
    let text = lab.refused("data prepare docs.jsonl --tokenizer bytes --to llmc d");
    assert!(text.contains("--shard-tokens: the first shard is validation, and all 9 tokens are in it"), "{text}");
    assert_eq!(lab.names("d"), [""; 0]);
    let text = lab.refused("data prepare docs.jsonl --tokenizer bytes --to nanogpt d --validation 0.000001");
    assert!(text.contains("of 3 documents a fraction of 0.000001 is none"), "{text}");
    assert_eq!(lab.names("d"), [""; 0]);
    let text = lab.refused("data prepare docs.jsonl --tokenizer bytes --to nanogp d");
    assert!(text.contains("did you mean `nanogpt`?"), "{text}");
    let text = lab.refused("data prepare docs.jsonl --tokenizer bytes --field body --to npy d --validation none");
    assert!(text.contains("line 1: no field `body`; the fields are `text`"), "{text}");
    lab.write("bad.txt", b"good \xff bad");
    let text = lab.refused("data prepare bad.txt --tokenizer bytes --to npy d --validation none");
    assert!(text.contains("not UTF-8 text: the first bad byte is at offset 5"), "{text}");
    assert_eq!(lab.names("d"), [""; 0]);
    lab.write("empty.txt", "");
    assert!(lab.refused("data prepare empty.txt --tokenizer bytes --to npy d").contains("the files: no text at all"));
    // A vocabulary that 16 bits do not hold.
    let vocabulary: serde_json::Map<_, _> = (0..70_000).map(|i| (format!("w{i}"), Value::from(i))).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    });
    lab.write("large.json", json.to_string());
    for format in ["llmc", "npy", "nanogpt"] {
        let text = lab.refused(&format!("data prepare docs.jsonl --tokenizer large.json --to {format} d"));
        assert!(text.contains("70000 ids") && text.contains("--to: ") && text.contains("llmc-u32"), "{text}");
    }
    lab.good("data prepare docs.jsonl --tokenizer large.json --to llmc-u32 large --validation none");
    // What someone else put there is not replaced.
    fs::create_dir_all(lab.path("other")).unwrap();
    lab.write("other/train.bin", "mine");
    let text = lab.refused("data prepare docs.jsonl --tokenizer bytes --to nanogpt other --validation none");
    assert!(text.contains("holds train.bin already; --force"), "{text}");
    assert_eq!(fs::read(lab.path("other/train.bin")).unwrap(), b"mine");
    let text = lab.refused("tokenizer encode --tokenizer chars a");
    assert!(text.contains("--tokenizer: made from text, of which there is none here"), "{text}");
}

#[test]
fn what_lies_beside_shards_is_replaced_on_demand_only() {
    let lab = Lab::new();
    lab.write("a.txt", "the cat sat on the mat, the cat sat on the mat. ".repeat(40));
    fs::create_dir_all(lab.path("d")).unwrap();
    lab.good("tokenizer train a.txt --vocab-size 280 --out d/tokenizer.json");
    // The same tokenizer with other white space: the file stays as it is.
    let json: Value = serde_json::from_slice(&fs::read(lab.path("d/tokenizer.json")).unwrap()).unwrap();
    let mine = format!("{json}\n\n");
    lab.write("d/tokenizer.json", &mine);
    let text = lab.refused("data prepare a.txt --tokenizer bytes --to nanogpt d");
    assert!(text.contains("holds another tokenizer.json already; --force replaces it"), "{text}");
    lab.good("data prepare a.txt --tokenizer d/tokenizer.json --to nanogpt d");
    assert_eq!(fs::read(lab.path("d/tokenizer.json")).unwrap(), mine.as_bytes());
    lab.good("data prepare a.txt --tokenizer d/tokenizer.json --to nanogpt d --force");
    assert_eq!(fs::read(lab.path("d/tokenizer.json")).unwrap(), mine.as_bytes());
    lab.good("data prepare a.txt --tokenizer bytes --to nanogpt d --force");
    assert_ne!(fs::read(lab.path("d/tokenizer.json")).unwrap(), mine.as_bytes());
    fs::create_dir_all(lab.path("e")).unwrap();
    lab.write("e/meta.pkl", "mine");
    lab.write("e/.movie.mkv.partial", "mine");
    let text = lab.refused("data prepare a.txt --tokenizer chars --to nanogpt e");
    assert!(text.contains("holds another meta.pkl already"), "{text}");
    assert_eq!(lab.names("e"), [".movie.mkv.partial", "meta.pkl"]);
    lab.good("data prepare a.txt --tokenizer chars --to nanogpt e --force");
    assert_eq!(fs::read(lab.path("e/.movie.mkv.partial")).unwrap(), b"mine");
}

/// Losses of a few steps on `data`.
fn losses(lab: &Lab, name: &str, data: &str) -> Vec<String> {
    let yaml = format!(
        "version: 1\nname: {name}\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16, vocab_size: 257}}\n\
         data: {data}\nbatch: {{sequences: 4}}\ntrain: {{steps: 4}}\neval: {{every: 4, loss: {{batches: 2}}}}\n"
    );
    lab.write(&format!("{name}.yaml"), yaml);
    let out = lab.good(&format!("apply {name}.yaml --threads 1 --json --quiet --runs runs"));
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter(|line| line["kind"] == "train" || line["kind"] == "eval")
        .map(|line| format!("{} {}", line["loss"], line["val_loss"]))
        .collect()
}

#[test]
fn training_on_each_format_is_training_on_the_text() {
    let lab = Lab::new();
    // Documents in front of which the end of text stands, as this program has it too.
    let source =
        "tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}, validation: {builtin: {corpus: stories}}";
    let text = losses(&lab, "text", &format!("{{{source}}}"));
    assert!(text.len() >= 5, "{text:?}");
    for (format, end) in [("llmc", "bin"), ("llmc-u32", "bin"), ("npy", "npy")] {
        lab.good(&format!("data prepare --from text.yaml --to {format} {format} --name x --shard-tokens 300000"));
        let files = |split: &str| format!("{{tokens: {{files: [\"{format}/x_{split}_*.{end}\"]}}}}");
        let data = format!("{{tokenizer: {{bytes: {{}}}}, train: {}, validation: {}}}", files("train"), files("val"));
        assert!(lab.names(format).len() > 4, "several shards");
        assert_eq!(losses(&lab, &format!("from-{format}"), &data), text, "{format}");
    }
    // One text, of which a tenth is held out: nanoGPT's files, and the same of the text.
    let line = |i: u32| format!("line {i}, {}\n", i * i % 997);
    lab.write("one.txt", (0..2000).map(line).collect::<String>());
    let text =
        losses(&lab, "one", "{tokenizer: {bytes: {}}, train: {text: {files: [one.txt]}}, validation: {fraction: 0.1}}");
    lab.good("data prepare one.txt --tokenizer bytes --to nanogpt nano");
    let data = "{tokenizer: {file: nano/tokenizer.json}, train: {tokens: {files: [nano/train.bin]}}, validation: {tokens: {files: [nano/val.bin]}}}";
    assert_eq!(losses(&lab, "nano", data), text);
}

#[test]
fn files_say_what_they_hold() {
    let lab = Lab::new();
    three(&lab);
    lab.good("data prepare docs.jsonl --tokenizer bytes --to npy set --name x --shard-tokens 4");
    // The whole folder, with the tokenizer that lies in it.
    let found = lab.json("data inspect set --json");
    assert_eq!((&found["tokens"], &found["documents"]["count"]), (&9.into(), &3.into()));
    assert_eq!(found["documents"]["longest"], serde_json::json!([1, 3]));
    assert_eq!(found["vocabulary"]["used"], 7);
    let texts: Vec<_> = found["texts"].as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["ab", "cde", "f"]);
    let page = lab.good("data inspect set/x_train_000001.npy --texts 1");
    assert!(page.contains("x_train_000001.npy  npy") && page.contains("document 0, 3 tokens\n  cde"), "{page}");
    // Text, with a column that is guessed.
    lab.write(
        "odd.jsonl",
        "{\"id\": 1, \"body\": \"long text here\", \"url\": \"x\"}\n{\"id\": 2, \"body\": \"b\", \"url\": \"y\"}\n",
    );
    let found = lab.json("data inspect odd.jsonl --tokenizer bytes --json");
    assert_eq!((&found["text"]["column"], &found["tokens"]), (&"body".into(), &15.into()));
    assert_eq!(found["documents"]["shortest"], serde_json::json!([1, 1]));
    lab.write("odd.json", "[{\"content\": \"a b\", \"id\": 1},\n {\"content\": \"c\", \"id\": null}]");
    let found = lab.json("data inspect odd.json --json");
    assert_eq!((&found["text"]["column"], &found["documents"]["count"]), (&"content".into(), &2.into()));
    assert_eq!(found["text"]["columns"][1], serde_json::json!({"name": "id", "kind": "number or null", "bytes": 0}));
    // Lies are told with their numbers.
    lab.write("short.bin", llmc(20_240_520, 1, 7, &[1, 0]));
    let text = lab.refused("data inspect short.bin");
    assert!(
        text.contains("short.bin: llm.c header says 7 tokens, which is not the file's size (1026 bytes)"),
        "{text}"
    );
    lab.write("huge.npy", [&npy(&[])[..10], &[b' '; 118]].concat());
    assert!(lab.refused("data inspect huge.npy").contains("names no type"));
    // Ids that no vocabulary has take no memory.
    lab.write("absurd.bin", llmc(20_240_801, 7, 2, &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]));
    assert_eq!(lab.json("data inspect absurd.bin --json")["vocabulary"]["absurd"], 1);
}

#[test]
fn a_trained_tokenizer_encodes_and_decodes() {
    let lab = Lab::new();
    lab.write("a.txt", "the cat sat on the mat, the cat sat on the mat. ".repeat(40));
    lab.good("tokenizer train a.txt --vocab-size 280 --special-token <|endoftext|> --special-token [PAD] --out t.json");
    let shown = lab.json("tokenizer encode --tokenizer t.json --json the<|endoftext|>");
    assert!(shown["ids"].as_array().unwrap().len() > 3, "as text: {shown}");
    let special = lab.json("tokenizer encode --tokenizer t.json --special --json the<|endoftext|>");
    assert_eq!(special["ids"].as_array().unwrap().last().unwrap(), 0);
    let ids = lab.good("tokenizer encode --tokenizer t.json --ids cat,mat");
    assert_eq!(lab.good(&format!("tokenizer decode --tokenizer t.json {ids}")), "cat,mat\n");
    assert!(lab.refused("tokenizer train a.txt --vocab-size 280 --out t.json").contains("--force"));
    assert!(lab.refused("tokenizer train a.txt --vocab-size 256 --out u.json").contains("between 257"));
    assert!(lab.refused("tokenizer decode --tokenizer t.json 99999").contains("beyond the tokenizer's"));
}

/// What Python's `tokenizers` makes of hostile text with a tokenizer that it trained (tests/golden/tokenizers_compare.py).
#[test]
fn ids_are_those_of_python() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
    let cache = tempfile::tempdir().unwrap();
    let file = runner_spec::experiment::Tokenizer::File(folder.join("tokenizer.json"));
    let tokenizer = runner_data::load_tokenizer(&file, cache.path(), &|_| ()).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(folder.join("cases.json")).unwrap()).unwrap();
    assert!(cases.len() > 120);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode_text(text).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected), text);
    }
}
