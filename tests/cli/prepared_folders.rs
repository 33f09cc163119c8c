//! The folder that `runner data prepare` writes to: what is refused before anything is written, what stays, and damaged shards.

use std::fs;

use serde_json::Value;

use crate::data::{write_documents, write_three_documents};
use crate::sandbox::Sandbox;

#[test]
fn mistakes_are_reported_before_anything_is_written() {
    let sandbox = Sandbox::new();
    write_three_documents(&sandbox);
    sandbox.show(2, "data prepare docs.jsonl --tokenizer bytes --to llmc d");
    assert_eq!(sandbox.names_in("d"), [""; 0]);
    sandbox.show(2, "data prepare docs.jsonl --tokenizer bytes --to nanogpt d --validation 0.000001");
    assert_eq!(sandbox.names_in("d"), [""; 0]);
    sandbox.show(2, "data prepare docs.jsonl --tokenizer bytes --to nanogp d");
    sandbox.show(2, "data prepare docs.jsonl --tokenizer bytes --field body --to npy d --validation none");
    sandbox.write("bad.txt", b"good \xff bad");
    sandbox.show(2, "data prepare bad.txt --tokenizer bytes --to npy d --validation none");
    assert_eq!(sandbox.names_in("d"), [""; 0]);
    sandbox.write("empty.txt", "");
    sandbox.show(2, "data prepare empty.txt --tokenizer bytes --to npy d");
    // A vocabulary that 16 bits do not hold.
    let vocabulary: serde_json::Map<_, _> = (0..70_000).map(|i| (format!("w{i}"), Value::from(i))).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    });
    sandbox.write("large.json", json.to_string());
    for format in ["llmc", "npy", "nanogpt"] {
        sandbox.show(2, &format!("data prepare docs.jsonl --tokenizer large.json --to {format} d"));
    }
    sandbox.stdout_of("data prepare docs.jsonl --tokenizer large.json --to llmc-u32 large --validation none");
    // What someone else put there is not replaced.
    sandbox.write("other/train.bin", "mine");
    let text = sandbox.show(2, "data prepare docs.jsonl --tokenizer bytes --to nanogpt other --validation none");
    let forced = "data prepare docs.jsonl --tokenizer bytes --to nanogpt other --validation none --force";
    assert_eq!(sandbox.expect(2, forced), text);
    assert_eq!(sandbox.names_in("other"), ["train.bin"]);
    assert_eq!(sandbox.read("other/train.bin"), "mine");
}

#[test]
fn files_that_a_preparation_did_not_write_stay() {
    let sandbox = Sandbox::new();
    sandbox.write("a.txt", "the cat sat on the mat, the cat sat on the mat. ".repeat(40));
    fs::create_dir(sandbox.path("d")).unwrap();
    sandbox.stdout_of("tokenizer train a.txt --vocab-size 280 --out d/tokenizer.json");
    // The same tokenizer with other white space: the file stays as it is.
    let json: Value = serde_json::from_slice(&fs::read(sandbox.path("d/tokenizer.json")).unwrap()).unwrap();
    let mine = format!("{json}\n\n");
    sandbox.write("d/tokenizer.json", &mine);
    for force in ["", " --force"] {
        sandbox.show(2, &format!("data prepare a.txt --tokenizer bytes --to nanogpt d{force}"));
        sandbox.stdout_of(&format!("data prepare a.txt --tokenizer d/tokenizer.json --to nanogpt d{force}"));
        assert_eq!(sandbox.read("d/tokenizer.json"), mine);
    }
    sandbox.show(2, "data prepare a.txt --tokenizer bytes --to nanogpt d --force");
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
        sandbox.show(2, &format!("data prepare a.txt --tokenizer chars --to nanogpt e{force}"));
        assert_eq!(sandbox.names_in("e"), [".movie.mkv.partial", ".train.bin.partial", "meta.pkl"]);
        assert_eq!(sandbox.read("e/.train.bin.partial") + &sandbox.read("e/meta.pkl"), "minemine");
    }
    // A description of something else.
    sandbox.write("f/dataset.json", "{}");
    sandbox.show(2, "data prepare a.txt --tokenizer bytes --to nanogpt f --force");
    assert_eq!(sandbox.read("f/dataset.json"), "{}");
    insta::assert_snapshot!(sandbox.screens());
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
    sandbox.show(2, &prepare(2000, " --force"));
    let with_link = sandbox.names_in("d");
    assert_eq!((with_link.len(), sandbox.read("elsewhere/x_train_000099.npy")), (left.len() + 1, "mine".to_owned()));
    fs::remove_file(sandbox.path("d/x_train_000098.npy")).unwrap();
    sandbox.stdout_of(&prepare(2000, " --force"));
    insta::assert_snapshot!(sandbox.screens());
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
        sandbox.show(0, &command);
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
            sandbox.show(2, &command);
        }
        fs::write(&path, &whole[..whole.len() - 2]).unwrap();
        sandbox.show(2, &command);
        sandbox.stdout_of(&format!("{command} --force"));
        assert_eq!(fs::read(&path).unwrap(), whole);
        let tokenizer = sandbox.path(format).join("tokenizer.json");
        let json = fs::read(&tokenizer).unwrap();
        fs::write(&tokenizer, [&json[..json.len() - 1], b" "].concat()).unwrap();
        sandbox.show(2, &command);
    }
    insta::assert_snapshot!(sandbox.screens());
}
