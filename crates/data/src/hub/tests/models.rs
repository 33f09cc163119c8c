//! Tokenizers and weights of models.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::super::{Settings, fetch_model_folder};
use super::server::{Asked, COMMIT, Files, Here, Reply, Server, hub};
use runner_spec::experiment::{Data, HubModel, Layout, Source, Tokenizer};

#[test]
fn tokenizers_are_one_file_or_two() {
    let both = vec![("vocab.json", b"{}".to_vec()), ("merges.txt", b"#".to_vec()), ("config.json", b"{}".to_vec())];
    let named = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json", "vocab.json"];
    let files: Files = vec![
        ("models/gpt2", COMMIT, vec![("tokenizer.json", b"{}".to_vec()), ("vocab.json", b"{}".to_vec())]),
        ("models/own/pair", COMMIT, both),
        ("models/own/none", COMMIT, vec![("config.json", b"{}".to_vec())]),
        ("models/own/named", COMMIT, named.map(|name| (name, b"{}".to_vec())).to_vec()),
    ];
    let server = Server::start(hub(files, None));
    let here = Here::new(&server.address);
    let tokenizer = |name: &str| {
        let train = Source::Text { files: Vec::new() };
        let tokenizer = Tokenizer::Hub(HubModel { name: name.to_owned(), revision: "main".to_owned() });
        here.lower(&Data {
            tokenizer,
            train,
            validation: None,
            layout: Layout::packed(8),
            shuffle: true,
            drop_last: false,
            epoch_rows: None,
            position: None,
        })
    };
    let one = tokenizer("gpt2").unwrap();
    assert!(matches!(&one.local.data.tokenizer, Tokenizer::File(path) if fs::read(path).unwrap() == b"{}"));
    assert_eq!(
        one.pinned.data.tokenizer,
        Tokenizer::Hub(HubModel { name: "gpt2".to_owned(), revision: COMMIT.to_owned() })
    );
    let two = tokenizer("own/pair").unwrap();
    assert!(
        matches!(&two.local.data.tokenizer, Tokenizer::Gpt2 { vocab, merges } if vocab.is_file() && merges.is_file())
    );
    // The files that name special tokens come with a tokenizer, and are not asked for once it is here.
    let Tokenizer::File(path) = tokenizer("own/named").unwrap().local.data.tokenizer else { panic!() };
    let folder = path.parent().unwrap();
    assert!(named[..4].iter().all(|name| folder.join(name).is_file()) && !folder.join("vocab.json").exists());
    fs::remove_file(folder.join("config.json")).unwrap();
    let before = server.count();
    tokenizer("own/named").unwrap();
    assert_eq!(server.count(), before);
    let none = tokenizer("own/none").unwrap_err();
    assert!(none.contains("data.tokenizer.hub: model own/none (main) has neither tokenizer.json nor"), "{none}");
}

#[test]
fn a_model_is_a_folder_of_the_cache() {
    let index = br#"{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}"#;
    let outside = br#"{"weight_map": {"a": "../model-1.safetensors"}}"#;
    let config = || ("config.json", b"{}".to_vec());
    let files: Files = vec![
        (
            "models/own/one",
            COMMIT,
            vec![
                config(),
                ("model.safetensors", b"w".to_vec()),
                ("tokenizer.json", b"{}".to_vec()),
                ("x.bin", b"".to_vec()),
            ],
        ),
        (
            "models/own/many",
            COMMIT,
            vec![
                config(),
                ("model.safetensors.index.json", index.to_vec()),
                ("model-1.safetensors", b"1".to_vec()),
                ("model-2.safetensors", b"2".to_vec()),
                ("model-3.safetensors", b"3".to_vec()),
            ],
        ),
        ("models/own/outside", COMMIT, vec![config(), ("model.safetensors.index.json", outside.to_vec())]),
        ("models/own/pickle", COMMIT, vec![config(), ("pytorch_model.bin", b"".to_vec())]),
        ("models/own/none", COMMIT, vec![("model.safetensors", b"w".to_vec())]),
    ];
    let server = Server::start(hub(files, None));
    let here = Here::new(&server.address);
    let fetch =
        |name: &str| fetch_model_folder(name, "main", &here.settings, &|_| ()).map_err(|error| error.to_string());
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    };
    let one = fetch("own/one").unwrap();
    assert_eq!((one.commit.as_str(), &one.path), (COMMIT, &here.repo("models--own--one/snapshots").join(COMMIT)));
    assert_eq!(names(&one.path), ["config.json", "model.safetensors", "tokenizer.json"]);
    let before = server.count();
    assert_eq!((fetch("own/one").unwrap(), server.count()), (one, before));
    let many = fetch("own/many").unwrap();
    let parts = ["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"];
    assert_eq!(names(&many.path), [&["config.json"][..], &parts[..]].concat());
    // A part is gone, and nothing on this machine says which parts the model has, so the model is not reported as defective.
    fs::remove_file(many.path.join("model-2.safetensors")).unwrap();
    fs::remove_dir_all(here.folder.path().join("memos")).unwrap();
    let fetch_without_hub = |offline: bool| {
        let settings = Settings { endpoint: "http://127.0.0.1:1".to_owned(), offline, ..here.settings.clone() };
        fetch_model_folder("own/many", "main", &settings, &|_| ()).unwrap_err()
    };
    let expected = "it names `model-2.safetensors`, which the cache does not have; the list of files of model own/many";
    for error in [fetch_without_hub(true), fetch_without_hub(false)] {
        assert!(error.is_unreachable() && error.to_string().contains(expected), "{error:?}");
    }
    assert!(fetch("own/outside").unwrap_err().contains("which the model does not have"));
    assert!(fetch("own/pickle").unwrap_err().contains("model own/pickle (main) has no model.safetensors"));
    assert!(fetch("own/none").unwrap_err().ends_with("has no config.json"));
}

#[test]
fn a_model_that_does_not_fit_on_the_disk_is_refused() {
    let files: Files =
        vec![("models/own/large", COMMIT, vec![("config.json", b"{}".to_vec()), ("model.safetensors", b"w".to_vec())])];
    let inner = hub(files, None);
    let server = Server::start(Arc::new(move |asked: &Asked, before| {
        if asked.path.ends_with("?blobs=true") {
            let file = |name: &str| serde_json::json!({"rfilename": name, "size": 1_u64 << 60, "blobId": "0123"});
            let siblings = [file("config.json"), file("model.safetensors")];
            return Reply::new(200, serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string());
        }
        inner(asked, before)
    }));
    let here = Here::new(&server.address);
    let error = fetch_model_folder("own/large", "main", &here.settings, &|_| ()).unwrap_err().to_string();
    assert!(error.contains(&format!("the downloads need {} bytes", 1_u64 << 61)), "{error}");
    assert!(!server.asked().iter().any(|asked| asked.method == "GET" && asked.path.contains("/resolve/")));
}
