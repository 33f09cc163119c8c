//! Datasets that are well known, with the files that they have on the hub.

use std::fs;
use std::sync::Arc;

use super::super::{DataSources, lower};
use super::server::{Asked, COMMIT, CONVERTED, Files, Here, Server, data, hub, local, source};
use runner_spec::experiment::{HELLASWAG, HubChoice, Source, Task};

const WIKITEXT_CARD: &str = "---\nconfigs:\n- config_name: wikitext-103-raw-v1\n  data_files:\n  - split: train\n    path: wikitext-103-raw-v1/train-*\n- config_name: wikitext-2-raw-v1\n  data_files:\n  - split: test\n    path: wikitext-2-raw-v1/test-*\n  - split: train\n    path: wikitext-2-raw-v1/train-*\n  - split: validation\n    path: wikitext-2-raw-v1/validation-*\n---\n# WikiText\n";

fn part(split: &str) -> Vec<u8> {
    format!("PAR1 {split}").into_bytes()
}

#[test]
fn wikitext_is_found_by_its_card() {
    let files: Files = vec![(
        "datasets/Salesforce/wikitext",
        COMMIT,
        vec![
            ("README.md", WIKITEXT_CARD.into()),
            ("wikitext-103-raw-v1/train-00000-of-00002.parquet", part("large")),
            ("wikitext-2-raw-v1/test-00000-of-00001.parquet", part("test")),
            ("wikitext-2-raw-v1/train-00000-of-00001.parquet", part("train")),
            ("wikitext-2-raw-v1/validation-00000-of-00001.parquet", part("validation")),
        ],
    )];
    let server = Server::start(hub(files, None));
    let here = Here::new(&server.address);
    for split in ["train", "validation", "test"] {
        let wanted = data(source("Salesforce/wikitext", Some("wikitext-2-raw-v1"), split));
        let paths = local(&here.lower(&wanted).unwrap());
        assert_eq!(fs::read(&paths[0]).unwrap(), part(split));
        assert_eq!(paths.len(), 1);
    }
    let message = here.lower(&data(source("Salesforce/wikitext", None, "train"))).unwrap_err();
    assert!(message.contains("several configurations") && message.contains("`wikitext-2-raw-v1`"), "{message}");
}

/// The repository has a script, which is not run; the hub has converted what the script makes.
#[test]
fn tiny_shakespeare_is_read_as_the_hub_converted_it() {
    let own = vec![
        ("README.md", b"---\nlicense: other\ndataset_info:\n  splits:\n  - name: train\n---\n".to_vec()),
        ("dataset_infos.json", b"{}".to_vec()),
        ("tiny_shakespeare.py", b"import datasets".to_vec()),
    ];
    let converted = vec![
        ("default/test/0000.parquet", part("test")),
        ("default/train/0000.parquet", part("train")),
        ("default/validation/0000.parquet", part("validation")),
    ];
    let name = "datasets/karpathy/tiny_shakespeare";
    let server = Server::start(hub(vec![(name, COMMIT, own), (name, CONVERTED, converted)], None));
    let here = Here::new(&server.address);
    for split in ["train", "validation", "test"] {
        let lowered = here.lower(&data(source("karpathy/tiny_shakespeare", None, split))).unwrap();
        assert_eq!(fs::read(&local(&lowered)[0]).unwrap(), part(split));
        let Source::Hub(pinned) = &lowered.pinned.data.train else { panic!() };
        assert_eq!(pinned.revision, CONVERTED);
    }
}

#[test]
fn text_files_are_documents() {
    let files: Files = vec![(
        "datasets/own/books",
        COMMIT,
        vec![("b.txt", b"two".to_vec()), ("a.txt", b"one".to_vec()), ("notes.md", b"no data".to_vec())],
    )];
    let server = Server::start(hub(files, None));
    let here = Here::new(&server.address);
    let lowered = here.lower(&data(source("own/books", None, "train"))).unwrap();
    let Source::Text { files } = &lowered.local.data.train else { panic!("{lowered:?}") };
    let texts: Vec<_> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    assert_eq!(texts, ["one", "two"]);
}

#[test]
fn a_multiple_choice_set_is_one_file_of_its_split() {
    let layouts: [Files; 2] = [
        vec![(
            "datasets/Rowan/hellaswag",
            COMMIT,
            vec![
                ("README.md", b"---\nlanguage: en\n---\n".to_vec()),
                ("data/train-00000-of-00001.parquet", part("train")),
                ("data/validation-00000-of-00001.parquet", part("validation")),
            ],
        )],
        vec![
            ("datasets/Rowan/hellaswag", COMMIT, vec![("README.md", Vec::new()), ("hellaswag.py", Vec::new())]),
            ("datasets/Rowan/hellaswag", CONVERTED, vec![("default/validation/0000.parquet", part("validation"))]),
        ],
    ];
    let named = HubChoice::new("Rowan/hellaswag".to_owned(), "main".to_owned());
    let set = Task { hub: Some(named), limit: Some(7), ..Task::default() };
    let plain = data(source("own/fine", None, "train"));
    let tokens = runner_spec::experiment::Data { train: Source::Tokens { files: Vec::new(), dtype: None }, ..plain };
    let with_task = |set: &Task| {
        let tasks = vec![(HELLASWAG.to_owned(), set.clone())];
        DataSources { data: tokens.clone(), test: None, tasks }
    };
    for (files, commit) in layouts.into_iter().zip([COMMIT, CONVERTED]) {
        let server = Server::start(hub(files, None));
        let here = Here::new(&server.address);
        let lower = |set: &Task| lower(&with_task(set), &here.settings, &|_| ());
        let mut lowered = lower(&set).unwrap();
        let [local, pinned] = [&mut lowered.local, &mut lowered.pinned].map(|sources| sources.tasks.remove(0).1);
        assert_eq!(fs::read(local.file.unwrap()).unwrap(), part("validation"));
        assert_eq!((local.hub, local.limit), (None, Some(7)));
        assert_eq!(pinned.hub.as_ref().unwrap().revision, commit);
        // The record reads the same file again.
        let before = server.count();
        assert_eq!(lower(&pinned).unwrap().pinned.tasks[0].1, pinned);
        assert_eq!(server.count(), before);
    }
    // A split that cannot be such a set is refused before it is downloaded.
    let several: Files = vec![(
        "datasets/Rowan/hellaswag",
        COMMIT,
        vec![
            ("data/validation-00000-of-00002.parquet", part("a")),
            ("data/validation-00001-of-00002.parquet", part("b")),
        ],
    )];
    let text: Files = vec![("datasets/Rowan/hellaswag", COMMIT, vec![("data/validation.txt", b"text".to_vec())])];
    let array: Files = vec![("datasets/Rowan/hellaswag", COMMIT, vec![("data/validation.json", b"[{}]".to_vec())])];
    for (files, is, downloads) in
        [(several, "has 2 files", 0), (text, "is plain text", 0), (array, "is one JSON array", 1)]
    {
        let server = Server::start(hub(files, None));
        let here = Here::new(&server.address);
        let error = lower(&with_task(&set), &here.settings, &|_| ());
        assert_eq!(
            error.unwrap_err().to_string(),
            format!(
                "eval.hellaswag.hub: split `validation` {is}; a multiple-choice set must be one parquet or JSON Lines file"
            )
        );
        let is_content = |asked: &&Asked| asked.method == "GET" && asked.path.contains("/resolve/");
        assert_eq!(server.asked().iter().filter(is_content).count(), downloads);
    }
    let refusing = Server::start(Arc::new(|_: &Asked, _| super::server::Reply::new(404, "{}")));
    let here = Here::new(&refusing.address);
    let error = lower(&with_task(&set), &here.settings, &|_| ());
    assert!(error.unwrap_err().to_string().starts_with("eval.hellaswag.hub: there is no dataset Rowan/hellaswag"));
}
