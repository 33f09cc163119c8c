//! Runs whose data has moved since they were trained.

use std::fs;

use crate::sandbox::{Sandbox, read_json};

const EXPERIMENT: &str = "version: 1\nname: lab\n\
    model: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}\n\
    data: {tokenizer: {bytes: {}}, train: {text: {files: [\"data/*.txt\"]}}, validation: {text: {files: [held/out.txt]}}}\n\
    batch: {sequences: 4}\ntrain: {steps: 4}\neval: {loss: {batches: 2}}\n";

fn text(seed: u32) -> String {
    let numbers: Vec<String> = (0..600).map(|n| (n * seed % 977).to_string()).collect();
    numbers.join(" ")
}

/// A sandbox with a run whose data was moved to `new`, where the files have other names.
fn moved() -> Sandbox {
    let sandbox = Sandbox::new()
        .with("exp.yaml", EXPERIMENT)
        .with("data/a.txt", text(3))
        .with("data/b.txt", text(5))
        .with("held/out.txt", text(7));
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    fs::create_dir_all(sandbox.path("new/deep")).unwrap();
    for (old, new) in [("data/a.txt", "new/zz.txt"), ("data/b.txt", "new/deep/aa.txt"), ("held/out.txt", "new/out.txt")]
    {
        fs::rename(sandbox.path(old), sandbox.path(new)).unwrap();
    }
    sandbox
}

#[test]
fn the_record_names_each_file_with_its_hash() {
    let sandbox = moved();
    let run = sandbox.only_run();
    let files = read_json(&run.path("data.json"))["files"].clone();
    let named: Vec<_> = files
        .as_array()
        .unwrap()
        .iter()
        .map(|file| {
            let name = file["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            (file["part"].as_str().unwrap().to_owned(), name)
        })
        .collect();
    let expected = [("train", "a.txt"), ("train", "b.txt"), ("validation", "out.txt")];
    assert_eq!(named, expected.map(|(part, name)| (part.to_owned(), name.to_owned())));
    let hash = blake3::hash(sandbox.read("new/zz.txt").as_bytes()).to_hex().to_string();
    assert_eq!(files[0]["hash"].as_str(), Some(hash.as_str()));
}

#[test]
fn missing_data_has_its_hash_and_an_advice() {
    let sandbox = moved();
    let id = sandbox.only_run().id();
    for command in [format!("reproduce {id} --threads 1"), format!("eval {id}")] {
        let printed = sandbox.expect(2, &command);
        assert!(
            printed.contains("`--data OLD=NEW`") && printed.contains("a.txt (training data, "),
            "{command}: {printed}"
        );
    }
    let renames = "--data data/a.txt=new/zz.txt --data data/b.txt=new/deep/aa.txt --data held=new";
    sandbox.expect(0, &format!("reproduce {id} --threads 1 {renames}"));
    // The reproduction records where the data is now, so it needs no flag.
    let copy = sandbox.runs().into_keys().find(|run| *run != id).unwrap();
    let printed = sandbox.expect(0, &format!("reproduce {copy} --threads 1"));
    assert!(printed.contains("bitwise: "), "{printed}");
}

#[test]
fn paths_are_replaced_and_the_content_is_checked() {
    let sandbox = moved();
    let id = sandbox.only_run().id();
    fs::create_dir(sandbox.path("train")).unwrap();
    fs::rename(sandbox.path("new/zz.txt"), sandbox.path("train/a.txt")).unwrap();
    fs::rename(sandbox.path("new/deep/aa.txt"), sandbox.path("train/b.txt")).unwrap();
    let printed = sandbox.expect(0, &format!("eval {id} --data data=train --data held/out.txt=new/out.txt --json"));
    assert!(printed.contains("val_loss"), "{printed}");
    let printed = sandbox.expect(2, &format!("eval {id} --data data=train --data held=new --data nowhere=new"));
    assert!(printed.contains("nowhere=…: the run read nothing there; it read "), "{printed}");
    assert!(sandbox.expect(2, &format!("eval {id} --data data=absent")).contains("there is no absent"));
    assert!(sandbox.expect(2, &format!("eval {id} --data absent")).contains("must be OLD=NEW"));
    // The files of the other content.
    let swapped = format!("eval {id} --data data/a.txt=train/b.txt --data data/b.txt=train/a.txt --data held=new");
    let printed = sandbox.expect(2, &swapped);
    assert!(printed.contains("train/b.txt is not the file that the run read"), "{printed}");
}

#[test]
fn a_run_is_resumed_on_data_that_has_moved() {
    let sandbox = Sandbox::new().with("exp.yaml", EXPERIMENT).with("data/a.txt", text(3)).with("held/out.txt", text(7));
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 2");
    fs::rename(sandbox.path("data"), sandbox.path("moved")).unwrap();
    assert!(sandbox.expect(2, "resume lab --threads 1").contains("`--data OLD=NEW`"));
    let printed = sandbox.expect(0, "resume lab --threads 1 --data data=moved");
    assert!(printed.contains("resuming from step 2 of 4"), "{printed}");
}

/// The rename of the longer folder counts, whatever their order, and names may contain `=`.
#[test]
fn renames_may_lie_in_each_other() {
    let sandbox = Sandbox::new()
        .with("exp.yaml", EXPERIMENT.replace("held/out.txt", "data/held=1/out.txt"))
        .with("data/a.txt", text(3))
        .with("data/held=1/out.txt", text(7));
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    fs::rename(sandbox.path("data/held=1"), sandbox.path("validation")).unwrap();
    fs::rename(sandbox.path("data"), sandbox.path("train")).unwrap();
    for renames in
        ["--data data=train --data data/held=1=validation", "--data data/held=1=validation --data data=train"]
    {
        let printed = sandbox.expect(0, &format!("reproduce {id} --threads 1 {renames}"));
        assert!(printed.contains("bitwise: "), "{printed}");
    }
}
