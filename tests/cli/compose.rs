//! Experiments of several files, as docs/compose.md has them: a folder of twenty that share one file, and a sweep over files.

use std::fs;

use crate::sandbox::{Sandbox, repository_path};
use crate::tutorial::blocks_of;

/// A folder `study` with the files of the page, whose names are in their first lines.
fn study() -> Sandbox {
    let page = fs::read_to_string(repository_path("docs/compose.md")).unwrap();
    let page = &page[page.find("## A folder of experiments").unwrap()..];
    let page = page.replace("train: {steps: 40}", "train: {steps: 10}");
    blocks_of(&page, "yaml").into_iter().fold(Sandbox::new(), |sandbox, block| {
        let name = block.lines().next().unwrap().trim_start_matches("# ").to_owned();
        sandbox.with(&format!("study/{name}"), block)
    })
}

#[test]
fn the_page_about_files_is_right() {
    let sandbox = study();
    sandbox.show(0, "validate study/deep-muon.yaml");
    let explained = sandbox.stdout_of("validate study/deep-muon.yaml --explain");
    for (key, source) in [
        ("name ", "default (name of the file)"),
        ("model.layers ", "study/models/deep.yaml:2:1"),
        ("train.steps ", "study/base.yaml:5:9"),
        ("optimizer.muon.lr ", "study/optimizers/muon.yaml:2:8"),
        ("schedule.warmup.steps ", "study/deep-muon.yaml:3:12"),
    ] {
        let row = explained.lines().find(|row| row.starts_with(key)).unwrap_or_else(|| panic!("no {key}"));
        assert!(row.ends_with(source), "{row}");
    }
    sandbox.show(0, "sweep study/models-and-optimizers.yaml --dry-run --threads 1");
    sandbox.show(0, "sweep study/models-and-optimizers.yaml --threads 1 --quiet");
    // A sweep that was started needs none of its files.
    for name in ["models/deep.yaml", "models/wide.yaml", "optimizers/muon.yaml", "base.yaml"] {
        fs::remove_file(sandbox.path(format!("study/{name}"))).unwrap();
    }
    let again = sandbox.expect(0, "sweep models-and-optimizers --threads 1 --quiet");
    assert!(again.contains("models/deep.yaml") && again.contains("its points stay as they were"), "{again}");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn twenty_experiments_share_a_file() {
    let sandbox = study();
    let mut count = 0;
    for model in ["deep", "wide"] {
        for optimizer in ["adamw", "muon"] {
            for warmup in 0..5 {
                let text = format!(
                    "extends: [base.yaml, {{model: models/{model}.yaml, optimizer: optimizers/{optimizer}.yaml}}]\n\
                     schedule: {{warmup: {warmup}}}\ntrain: {{steps: 5}}\n"
                );
                let name = format!("study/{model}-{optimizer}-{warmup}.yaml");
                sandbox.write(&name, text);
                sandbox.expect(0, &format!("validate {name}"));
                count += 1;
            }
        }
    }
    assert_eq!(count, 20);
    sandbox.expect(0, "apply study/deep-muon-3.yaml --quiet --threads 1");
    let run = sandbox.only_run();
    let files = run.manifest()["files"].clone();
    let names: Vec<&str> = files.as_array().unwrap().iter().map(|file| file["file"].as_str().unwrap()).collect();
    assert_eq!(names, ["study/base.yaml", "study/models/deep.yaml", "study/optimizers/muon.yaml"]);
    assert_eq!(files[1]["key"], "model");
    insta::assert_snapshot!("merged", run.read("merged-files.yaml"));
    // A file below that changes makes another run, and the message says where the change is.
    sandbox.expect(0, "apply study/deep-muon-3.yaml --quiet --threads 1");
    sandbox.edit("study/base.yaml", "batch: {sequences: 16}", "batch: {sequences: 8}");
    sandbox.show(0, "apply study/deep-muon-3.yaml --until-step 1 --threads 1");
    assert_eq!(sandbox.runs().len(), 2);
    // The run needs none of its files.
    fs::remove_dir_all(sandbox.path("study")).unwrap();
    sandbox.expect(0, &format!("reproduce {} --quiet --threads 1", run.id()));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn files_of_the_command_line_are_above_the_experiment() {
    let sandbox = study().with("fast.yaml", "train: {steps: 1}\n").with("one.yaml", "seeds: null\n");
    sandbox.show(0, "apply study/base.yaml fast.yaml --set-file model=study/models/wide.yaml --quiet --threads 1");
    let run = sandbox.only_run();
    let above: Vec<bool> =
        run.manifest()["files"].as_array().unwrap().iter().map(|file| file["is_above"].as_bool().unwrap()).collect();
    assert_eq!(above, [true, true]);
    sandbox.edit("study/base.yaml", "batch:", "seeds: 2\nbatch:");
    sandbox.show(0, "apply study/base.yaml fast.yaml --quiet --threads 1");
    sandbox.show(0, "apply study/base.yaml fast.yaml one.yaml --quiet --threads 1");
    sandbox.write("one.yaml", "seeds: 3\n");
    for arguments in [
        "apply study/base.yaml one.yaml",
        "plan study/deep-muon.yaml lost.yaml",
        "plan study/deep-muon.yaml --set-file model=fast.yaml",
        "plan study/deep-muon.yaml --set-file modle=fast.yaml",
        "plan study/deep-muon.yaml --set-file model",
        "plan study/deep-muon.yaml --set extends=fast.yaml",
    ] {
        sandbox.show(2, arguments);
    }
    insta::assert_snapshot!(sandbox.screens());
}
