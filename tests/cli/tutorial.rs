//! The commands of docs/tutorial.md work as they are written there, in a fresh folder. Only the trainings are shorter.

use std::env;
use std::fs;
use std::process::Command;

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

use crate::sandbox::{Finished, Sandbox, repository_path, runner_binary};

/// Replacements that make the trainings short: texts of the page, and the texts that the test puts in their place.
const SHORTER: &[(&str, &str)] = &[
    ("train: {steps: 200}", "train: {steps: 4}"),
    ("warmup: {steps: 20}", "warmup: {steps: 1}"),
    ("  every: 100\n", "  every: 100\n  loss: {rows: 16}\n"),
    ("train.steps: 90, eval.every: 30", "train.steps: 4, eval.every: 2"),
    ("min_steps: 30", "min_steps: 2"),
    ("train.steps=600", "train.steps=6"),
    ("--best --builtin", "--best --builtin --limit 20"),
];

/// The fenced blocks of `page` that are marked as `language`.
pub fn blocks_of(page: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for event in Parser::new(page) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) if &*info == language => {
                block = Some(String::new());
            }
            Event::Text(text) => {
                if let Some(block) = &mut block {
                    block.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => blocks.extend(block.take()),
            _ => {}
        }
    }
    blocks
}

#[test]
fn the_commands_of_the_tutorial_work() {
    let mut page = fs::read_to_string(repository_path("docs/tutorial.md")).unwrap();
    for (long, short) in SHORTER {
        assert!(page.contains(long), "the tutorial has no {long:?}: change what shortens it");
        page = page.replace(long, short);
    }
    let sandbox = Sandbox::new();
    let program = runner_binary();
    let inherited = env::var_os("PATH").unwrap_or_default();
    let path =
        env::join_paths(program.parent().map(Into::into).into_iter().chain(env::split_paths(&inherited))).unwrap();
    let run = |script: &str| {
        let mut command = Command::new("sh");
        sandbox.prepare(&mut command).env("PATH", &path).args(["-e", "-c", script]);
        Finished::of(&mut command).expect_code(0)
    };
    let outputs: Vec<String> = blocks_of(&page, "sh").iter().map(|block| run(block).stdout).collect();

    let runs = sandbox.runs();
    let id = runs.keys().find(|id| id.starts_with("final-")).expect("the final run");
    let hash = id.rsplit('-').next().unwrap();
    // The page promises that the resolved file is the same run.
    assert!(outputs.iter().any(|output| output.starts_with(&format!("plan          final  {hash}"))), "{outputs:?}");
    assert_eq!(runs.keys().filter(|id| id.starts_with("search-")).count(), 6);
    for file in ["report.html", "search.html", "model/config.json", "model/model.safetensors", "shards/dataset.json"] {
        assert!(sandbox.path(file).exists(), "{file}");
    }
}
