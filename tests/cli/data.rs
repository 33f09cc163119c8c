//! `runner data` and `runner tokenizer`: the bytes of other programs' formats, kills, and training on the files that they write.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::sandbox::{Sandbox, repository_path};

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

/// Writes enough documents for some shards.
fn write_documents(sandbox: &Sandbox, count: usize) {
    let line = |i: usize| format!("{{\"text\": \"document {i}: {}\"}}\n", "some words 7 ".repeat(i % 37));
    sandbox.write("docs.jsonl", (0..count).map(line).collect::<String>());
}

/// Writes three documents, as bytes "ab", "cde", "f" with the end of text 256.
fn write_three_documents(sandbox: &Sandbox) {
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
        let found = sandbox.json_of(&format!("data inspect some/{name} --json"));
        found["documents"]["count"].as_u64().unwrap()
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
        sandbox.stdout_of(&format!(
            "data prepare docs.jsonl --tokenizer bpe:400 --to llmc {folder} --name x --shard-tokens 30000 --threads {threads}"
        ))
    };
    prepare("one", 1);
    prepare("three", 3);
    assert!(sandbox.names_in("one").len() > 5);
    assert_eq!(sandbox.files_in("one"), sandbox.files_in("three"));
    assert!(prepare("one", 1).contains("up to date"));
    // Any difference is reported, and changes nothing.
    let before = sandbox.files_in("one");
    let refused = |line: &str| sandbox.expect(2, &format!("data prepare docs.jsonl {line} --to llmc one --name x"));
    assert!(refused("--tokenizer bpe:400 --shard-tokens 20000").contains("30000 tokens"));
    assert!(refused("--tokenizer bytes --shard-tokens 30000").contains("its tokenizer is another"));
    write_documents(&sandbox, 2000);
    assert!(refused("--tokenizer bpe:400 --shard-tokens 30000").contains("its source has other content"));
    assert_eq!(sandbox.files_in("one"), before);
    // The shards of a longer set do not stay behind.
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer bytes --to llmc one --name x --shard-tokens 400000 --force");
    let shards: Vec<_> =
        sandbox.names_in("one").into_iter().filter(|name| name.contains("_train_") || name.contains("_val_")).collect();
    assert_eq!(shards, ["x_train_000001.bin", "x_val_000000.bin"]);
}

/// Killed again and again, each time after some more shards, until it is done: the same bytes as in one go.
#[test]
fn killed_at_any_moment_and_gone_on_with_equals_uninterrupted() {
    let sandbox = Sandbox::new();
    write_documents(&sandbox, 60_000);
    for (format, end) in [("npy", ".npy"), ("nanogpt", ".bin")] {
        let line = |folder: &str| {
            format!(
                "data prepare docs.jsonl --tokenizer bytes --to {format} {folder} --name x --shard-tokens 700000 --validation {}",
                if format == "npy" { "first-shard" } else { "0.1" }
            )
        };
        let whole = format!("{format}-whole");
        sandbox.stdout_of(&line(&whole));
        let (folder, mut kills) = (format!("{format}-killed"), 0);
        let state = sandbox.path(&folder).join(".prepare.json");
        let progress = || fs::read_to_string(&state).unwrap_or_default();
        let counts = |state: &str| {
            let state: Value = serde_json::from_str(state).unwrap_or_default();
            ["shards", "open"].iter().any(|key| state[key].as_array().is_some_and(|list| !list.is_empty()))
        };
        loop {
            let before = progress();
            let mut child = sandbox.spawn(&line(&folder));
            let started = Instant::now();
            let ended = loop {
                if let Some(status) = child.0.try_wait().unwrap() {
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
            child.kill();
            kills += 1;
            // What an earlier process wrote is read again before it is continued.
            let state: Value = serde_json::from_str(&progress()).unwrap();
            let listed = |key: &str| Some(state[key].as_array()?.first()?["file"].as_str()?.to_owned());
            let written = listed("shards").or_else(|| listed("open").map(|name| format!(".{name}.partial"))).unwrap();
            let path = sandbox.path(&folder).join(&written);
            let bytes = fs::read(&path).unwrap();
            let mut damaged = bytes.clone();
            damaged[bytes.len() / 4] ^= 1;
            fs::write(&path, damaged).unwrap();
            let text = sandbox.expect(2, &line(&folder));
            assert!(text.contains(&written) && text.contains("was damaged or changed after it was written"), "{text}");
            fs::write(&path, bytes).unwrap();
            // Nothing half-written has a final name.
            let sizes = sandbox.files_in(&folder).into_iter().filter(|(name, _)| name.ends_with(end));
            for (name, content) in sizes {
                assert_eq!(content, fs::read(sandbox.path(&whole).join(&name)).unwrap(), "{name} after kill {kills}");
            }
        }
        assert!(kills > 1, "{format}: {kills} kills");
        assert_eq!(sandbox.files_in(&whole), sandbox.files_in(&folder), "{format}");
    }
}

#[test]
fn mistakes_are_reported_before_anything_is_written() {
    let sandbox = Sandbox::new();
    write_three_documents(&sandbox);
    let text = sandbox.expect(2, "data prepare docs.jsonl --tokenizer bytes --to llmc d");
    assert!(text.contains("--shard-tokens: the first shard is validation, and all 9 tokens are in it"), "{text}");
    assert_eq!(sandbox.names_in("d"), [""; 0]);
    let text = sandbox.expect(2, "data prepare docs.jsonl --tokenizer bytes --to nanogpt d --validation 0.000001");
    assert!(text.contains("a fraction of 0.000001 of 3 documents is less than one document"), "{text}");
    assert_eq!(sandbox.names_in("d"), [""; 0]);
    let text = sandbox.expect(2, "data prepare docs.jsonl --tokenizer bytes --to nanogp d");
    assert!(text.contains("did you mean `nanogpt`?"), "{text}");
    let text = sandbox.expect(2, "data prepare docs.jsonl --tokenizer bytes --field body --to npy d --validation none");
    assert!(text.contains("line 1: no field `body`; the fields are `text`"), "{text}");
    sandbox.write("bad.txt", b"good \xff bad");
    let text = sandbox.expect(2, "data prepare bad.txt --tokenizer bytes --to npy d --validation none");
    assert!(text.contains("not UTF-8 text: the first bad byte is at offset 5"), "{text}");
    assert_eq!(sandbox.names_in("d"), [""; 0]);
    sandbox.write("empty.txt", "");
    assert!(
        sandbox.expect(2, "data prepare empty.txt --tokenizer bytes --to npy d").contains("the files: no text at all")
    );
    // A vocabulary that 16 bits do not hold.
    let vocabulary: serde_json::Map<_, _> = (0..70_000).map(|i| (format!("w{i}"), Value::from(i))).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    });
    sandbox.write("large.json", json.to_string());
    for format in ["llmc", "npy", "nanogpt"] {
        let text = sandbox.expect(2, &format!("data prepare docs.jsonl --tokenizer large.json --to {format} d"));
        assert!(text.contains("70000 ids") && text.contains("--to: ") && text.contains("llmc-u32"), "{text}");
    }
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer large.json --to llmc-u32 large --validation none");
    // What someone else put there is not replaced.
    sandbox.write("other/train.bin", "mine");
    let text = sandbox.expect(2, "data prepare docs.jsonl --tokenizer bytes --to nanogpt other --validation none");
    assert!(text.contains("holds train.bin, which no dataset.json lists; move it away"), "{text}");
    let forced = "data prepare docs.jsonl --tokenizer bytes --to nanogpt other --validation none --force";
    assert_eq!(sandbox.expect(2, forced), text);
    assert_eq!(sandbox.names_in("other"), ["train.bin"]);
    assert_eq!(sandbox.read("other/train.bin"), "mine");
    let text = sandbox.expect(2, "tokenizer encode --tokenizer chars a");
    assert!(text.contains("--tokenizer: made from text, of which there is none here"), "{text}");
}

#[test]
fn what_a_preparation_did_not_write_stays() {
    let sandbox = Sandbox::new();
    sandbox.write("a.txt", "the cat sat on the mat, the cat sat on the mat. ".repeat(40));
    fs::create_dir(sandbox.path("d")).unwrap();
    sandbox.stdout_of("tokenizer train a.txt --vocab-size 280 --out d/tokenizer.json");
    // The same tokenizer with other white space: the file stays as it is.
    let json: Value = serde_json::from_slice(&fs::read(sandbox.path("d/tokenizer.json")).unwrap()).unwrap();
    let mine = format!("{json}\n\n");
    sandbox.write("d/tokenizer.json", &mine);
    for force in ["", " --force"] {
        let text = sandbox.expect(2, &format!("data prepare a.txt --tokenizer bytes --to nanogpt d{force}"));
        assert!(text.contains("holds a different tokenizer.json; move it away, or name another folder"), "{text}");
        sandbox.stdout_of(&format!("data prepare a.txt --tokenizer d/tokenizer.json --to nanogpt d{force}"));
        assert_eq!(sandbox.read("d/tokenizer.json"), mine);
    }
    let text = sandbox.expect(2, "data prepare a.txt --tokenizer bytes --to nanogpt d --force");
    assert!(text.contains("holds a different tokenizer.json"), "{text}");
    assert_eq!(sandbox.read("d/tokenizer.json"), mine);
    // One that a preparation wrote is replaced.
    sandbox.stdout_of("data prepare a.txt --tokenizer bytes --to nanogpt own");
    let bytes = sandbox.read("own/tokenizer.json");
    sandbox.stdout_of("data prepare a.txt --tokenizer chars --to nanogpt own --force");
    assert_ne!(sandbox.read("own/tokenizer.json"), bytes);
    assert!(sandbox.path("own/meta.pkl").exists());
    sandbox.stdout_of("data prepare a.txt --tokenizer bytes --to nanogpt own --force");
    assert_eq!(sandbox.read("own/tokenizer.json"), bytes);
    assert!(!sandbox.path("own/meta.pkl").exists(), "nanoGPT would decode by it");

    sandbox.write("e/meta.pkl", "mine");
    sandbox.write("e/.movie.mkv.partial", "mine");
    sandbox.write("e/.train.bin.partial", "mine");
    for force in ["", " --force"] {
        let text = sandbox.expect(2, &format!("data prepare a.txt --tokenizer chars --to nanogpt e{force}"));
        assert!(text.contains("holds a different meta.pkl"), "{text}");
        assert_eq!(sandbox.names_in("e"), [".movie.mkv.partial", ".train.bin.partial", "meta.pkl"]);
        assert_eq!(sandbox.read("e/.train.bin.partial") + &sandbox.read("e/meta.pkl"), "minemine");
    }
    // A description of something else.
    sandbox.write("f/dataset.json", "{}");
    let text = sandbox.expect(2, "data prepare a.txt --tokenizer bytes --to nanogpt f --force");
    assert!(text.contains("holds a dataset.json of something else; move it away"), "{text}");
    assert_eq!(sandbox.read("f/dataset.json"), "{}");
}

#[test]
fn forced_preparation_removes_only_listed_shards() {
    let sandbox = Sandbox::new();
    write_documents(&sandbox, 300);
    let prepare = |tokens: u32, force: &str| {
        format!("data prepare docs.jsonl --tokenizer bytes --to npy d --name x --shard-tokens {tokens}{force}")
    };
    sandbox.stdout_of(&prepare(2000, ""));
    let own = sandbox.names_in("d");
    assert!(own.len() > 5, "{own:?}");
    // Beside, inside, and behind links: shards of another set and of another program, a folder and links.
    sandbox.write("elsewhere/x_train_000099.npy", "mine");
    for name in ["d/y_train_000001.npy", "d/notes.txt", "d/train.bin", "d/sub/x_train_000001.npy"] {
        sandbox.write(name, "mine");
    }
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("d/linked")).unwrap();
    sandbox.stdout_of(&prepare(4000, " --force"));
    let left = sandbox.names_in("d");
    assert!(
        left.iter().filter(|name| name.starts_with("x_")).count() < own.iter().filter(|n| n.starts_with("x_")).count()
    );
    for name in [
        "d/y_train_000001.npy",
        "d/notes.txt",
        "d/train.bin",
        "d/sub/x_train_000001.npy",
        "d/linked/x_train_000099.npy",
    ] {
        assert_eq!(sandbox.read(name), "mine", "{name}");
    }
    // A shard of the set's name that the card does not list, as a link and as a file.
    std::os::unix::fs::symlink(sandbox.path("elsewhere/x_train_000099.npy"), sandbox.path("d/x_train_000098.npy"))
        .unwrap();
    let text = sandbox.expect(2, &prepare(2000, " --force"));
    assert!(text.contains("holds x_train_000098.npy, which no dataset.json lists"), "{text}");
    let with_link = sandbox.names_in("d");
    assert_eq!((with_link.len(), sandbox.read("elsewhere/x_train_000099.npy")), (left.len() + 1, "mine".to_owned()));
    fs::remove_file(sandbox.path("d/x_train_000098.npy")).unwrap();
    sandbox.stdout_of(&prepare(2000, " --force"));
}

#[test]
fn damaged_shards_are_not_up_to_date() {
    let sandbox = Sandbox::new();
    write_documents(&sandbox, 300);
    for (format, header) in [("npy", 128), ("llmc", 1024), ("nanogpt", 0)] {
        let command = format!(
            "data prepare docs.jsonl --tokenizer bytes --to {format} {format} --name x --shard-tokens 4000 --validation 0.1"
        );
        sandbox.stdout_of(&command);
        assert!(sandbox.stdout_of(&command).contains("up to date"));
        let name = if format == "nanogpt" {
            "train.bin".to_owned()
        } else {
            sandbox.names_in(format).into_iter().find(|name| name.starts_with("x_train_000001")).unwrap()
        };
        let path = sandbox.path(format).join(&name);
        let whole = fs::read(&path).unwrap();
        // One bit of the header, of the first token, and of the last one.
        let places = [header / 2, header, whole.len() - 1];
        for place in &places[usize::from(header == 0)..] {
            let mut damaged = whole.clone();
            damaged[*place] ^= 4;
            fs::write(&path, damaged).unwrap();
            let text = sandbox.expect(2, &command);
            assert!(
                text.contains(&format!("{name} was damaged or changed after it was written; use --force")),
                "{text}"
            );
        }
        fs::write(&path, &whole[..whole.len() - 2]).unwrap();
        let text = sandbox.expect(2, &command);
        assert!(text.contains(&format!("{name} has {} bytes, and was written with", whole.len() - 2)), "{text}");
        sandbox.stdout_of(&format!("{command} --force"));
        assert_eq!(fs::read(&path).unwrap(), whole);
        let tokenizer = sandbox.path(format).join("tokenizer.json");
        let json = fs::read(&tokenizer).unwrap();
        fs::write(&tokenizer, [&json[..json.len() - 1], b" "].concat()).unwrap();
        let text = sandbox.expect(2, &command);
        assert!(text.contains("tokenizer.json is missing, or is not what was written with the shards"), "{text}");
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

#[test]
fn files_say_what_they_hold() {
    let sandbox = Sandbox::new();
    write_three_documents(&sandbox);
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer bytes --to npy set --name x --shard-tokens 4");
    // The whole folder, with the tokenizer that lies in it.
    let found = sandbox.json_of("data inspect set --json");
    assert_eq!((&found["tokens"], &found["documents"]["count"]), (&9.into(), &3.into()));
    assert_eq!(found["documents"]["longest"], serde_json::json!([1, 3]));
    assert_eq!(found["vocabulary"]["used"], 7);
    let texts: Vec<_> = found["texts"].as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["ab", "cde", "f"]);
    let page = sandbox.stdout_of("data inspect set/x_train_000001.npy --texts 1");
    assert!(page.contains("x_train_000001.npy  npy") && page.contains("document 0, 3 tokens\n  cde"), "{page}");
    // Text, with a column that is guessed.
    sandbox.write(
        "odd.jsonl",
        "{\"id\": 1, \"body\": \"long text here\", \"url\": \"x\"}\n{\"id\": 2, \"body\": \"b\", \"url\": \"y\"}\n",
    );
    let found = sandbox.json_of("data inspect odd.jsonl --tokenizer bytes --json");
    assert_eq!((&found["text"]["column"], &found["tokens"]), (&"body".into(), &15.into()));
    assert_eq!(found["documents"]["shortest"], serde_json::json!([1, 1]));
    sandbox.write("odd.json", "[{\"content\": \"a b\", \"id\": 1},\n {\"content\": \"c\", \"id\": null}]");
    let found = sandbox.json_of("data inspect odd.json --json");
    assert_eq!((&found["text"]["column"], &found["documents"]["count"]), (&"content".into(), &2.into()));
    assert_eq!(found["text"]["columns"][1], serde_json::json!({"name": "id", "kind": "number or null", "bytes": 0}));
    // A wrong header is reported with its numbers.
    sandbox.write("short.bin", llmc(20_240_520, 1, 7, &[1, 0]));
    let text = sandbox.expect(2, "data inspect short.bin");
    assert!(
        text.contains("short.bin: llm.c header says 7 tokens, which is not the file's size (1026 bytes)"),
        "{text}"
    );
    sandbox.write("huge.npy", [&npy(&[])[..10], &[b' '; 118]].concat());
    assert!(sandbox.expect(2, "data inspect huge.npy").contains("names no type"));
    // Ids that no vocabulary has take no memory.
    sandbox.write("absurd.bin", llmc(20_240_801, 7, 2, &[0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]));
    assert_eq!(sandbox.json_of("data inspect absurd.bin --json")["vocabulary"]["absurd"], 1);
}

#[test]
fn a_trained_tokenizer_encodes_and_decodes() {
    let sandbox = Sandbox::new();
    sandbox.write("a.txt", "the cat sat on the mat, the cat sat on the mat. ".repeat(40));
    sandbox.stdout_of(
        "tokenizer train a.txt --vocab-size 280 --special-token <|endoftext|> --special-token [PAD] --out t.json",
    );
    let shown = sandbox.json_of("tokenizer encode --tokenizer t.json --json the<|endoftext|>");
    assert!(shown["ids"].as_array().unwrap().len() > 3, "as text: {shown}");
    let special = sandbox.json_of("tokenizer encode --tokenizer t.json --special --json the<|endoftext|>");
    assert_eq!(special["ids"].as_array().unwrap().last().unwrap(), 0);
    let ids = sandbox.stdout_of("tokenizer encode --tokenizer t.json --ids cat,mat");
    assert_eq!(sandbox.stdout_of(&format!("tokenizer decode --tokenizer t.json {ids}")), "cat,mat\n");
    assert!(sandbox.expect(2, "tokenizer train a.txt --vocab-size 280 --out t.json").contains("--force"));
    assert!(sandbox.expect(2, "tokenizer train a.txt --vocab-size 256 --out u.json").contains("between 257"));
    assert!(sandbox.expect(2, "tokenizer decode --tokenizer t.json 99999").contains("beyond the tokenizer's"));
}

/// The experiment names the tokenizer's file, which the command makes of the experiment's own text.
#[test]
fn a_tokenizer_is_trained_on_the_text_of_an_experiment() {
    let sandbox = Sandbox::new();
    sandbox.write("a.jsonl", "{\"body\": \"the cat sat on the mat, the cat sat on the mat.\"}\n".repeat(40));
    let text = "model: {preset: llama-nano}\n\
         data: {tokenizer: {file: t.json}, train: {jsonl: {files: [a.jsonl], field: body}}, validation: null}\n\
         batch: {sequences: 4}\ntrain: {steps: 1}\n";
    sandbox.write("exp.yaml", text);
    sandbox.stdout_of("tokenizer train --from exp.yaml --vocab-size 280 --special-token [PAD] --out t.json");
    sandbox.stdout_of("tokenizer train a.jsonl --field body --vocab-size 280 --special-token [PAD] --out u.json");
    assert_eq!(fs::read(sandbox.path("t.json")).unwrap(), fs::read(sandbox.path("u.json")).unwrap());
    sandbox.stdout_of("plan exp.yaml");
    // The end of the text, which is held out, has words that the tokenizer must not learn.
    let learned = |from: &str| {
        sandbox.stdout_of(&format!(
            "tokenizer train --from {from} --vocab-size 290 --special-token [PAD] --out v.json --force"
        ));
        let tokenizer = sandbox.read("v.json");
        fs::remove_file(sandbox.path("v.json")).unwrap();
        (tokenizer.contains("zebra"), tokenizer.contains("mat"))
    };
    let line = |word: &str| format!("{{\"body\": \"{}\"}}\n", format!("{word} ").repeat(8));
    sandbox.write("a.jsonl", line("mat").repeat(54) + &line("zebra").repeat(6));
    assert_eq!(learned("exp.yaml"), (true, true));
    sandbox.write("held_out.yaml", text.replace("validation: null", "validation: {fraction: 0.2}"));
    assert_eq!(learned("held_out.yaml"), (false, true));
    assert!(sandbox.expect(2, "tokenizer train --from none.yaml --vocab-size 280").contains("none.yaml"));
    sandbox.write("absent.yaml", text.replace("a.jsonl", "absent.jsonl"));
    let printed = sandbox.expect(2, "tokenizer train --from absent.yaml --vocab-size 280 --out w.json");
    assert!(printed.contains("absent.jsonl"), "{printed}");
    sandbox.write("a.npy", npy(&[1, 2, 3, 4]));
    sandbox
        .write("shards.yaml", text.replace("{jsonl: {files: [a.jsonl], field: body}}", "{tokens: {files: [a.npy]}}"));
    let printed = sandbox.expect(2, "tokenizer train --from shards.yaml --vocab-size 280 --out w.json");
    assert!(printed.contains("data.train") && printed.contains("token shards hold none"), "{printed}");
}

/// What Python's `tokenizers` makes of hostile text with a tokenizer that it trained (tests/golden/tokenizers_compare.py).
#[test]
fn ids_are_those_of_python() {
    let folder = repository_path("tests/fixtures/tokenizer");
    let file = runner_spec::experiment::Tokenizer::File(folder.join("tokenizer.json"));
    let tokenizer = runner_data::load_tokenizer(&file).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(folder.join("cases.json")).unwrap()).unwrap();
    assert!(cases.len() > 120);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode_document(text).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected), text);
    }
}

/// A limit that cuts the first document: what was written counts, and its bytes are those of the tokens.
#[test]
fn a_limit_may_cut_the_first_document() {
    let sandbox = Sandbox::new().with("big.txt", "once upon a time ".repeat(3000));
    let command = "data prepare big.txt --tokenizer bytes --to llmc shards --shard-tokens 1000 --max-tokens 10000";
    sandbox.expect(0, command);
    let card: Value = serde_json::from_str(&sandbox.read("shards/dataset.json")).unwrap();
    assert_eq!((&card["documents"], &card["text_bytes"], &card["tokens"]), (&1.into(), &9999.into(), &10_000.into()));
    assert!(sandbox.expect(0, command).contains("up to date"));
    let printed = sandbox.expect(2, "data prepare big.txt --tokenizer bytes --to nanogpt gpt --max-tokens 1000");
    assert!(printed.contains("the limit comes before any text that is held out"), "{printed}");
}
