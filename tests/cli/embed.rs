//! `examples/embed.rs`: the engine as a library, which cargo builds beside the tests.

use std::process::Command;

use crate::sandbox::{Sandbox, runner_binary};

#[test]
fn the_engine_trains_for_a_program_that_embeds_it() {
    let yaml = "version: 1\nname: embedded\nmodel: {family: gpt2, layers: 1, heads: 1, d_model: 8, context_length: 8}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}}\nbatch: {sequences: 4}\ntrain: {steps: 7}\n";
    let sandbox = Sandbox::new().with_numbers(500).with("exp.yaml", yaml);
    let example = runner_binary().with_file_name("examples").join("embed");
    let output =
        Command::new(example).args(["exp.yaml", "runs", "cache"]).current_dir(sandbox.folder()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("embedded-") && text.contains(": 7 steps, 7 losses, last Some("), "{text}");
}
