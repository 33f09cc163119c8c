//! `examples/embed.rs`: the engine as a library.

use std::process::Command;

use crate::sandbox::{Sandbox, runner_binary};

#[test]
fn the_engine_trains_for_a_program_that_embeds_it() {
    let yaml = "version: 1\nname: embedded\nmodel: {family: gpt2, layers: 1, heads: 1, d_model: 8, context_length: 8}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}}\nbatch: {sequences: 4}\ntrain: {steps: 7}\n";
    let sandbox = Sandbox::new().with_numbers(500).with("exp.yaml", yaml);
    let example = runner_binary().with_file_name("examples").join("embed");
    if !example.exists() {
        // `cargo test --test cli` alone builds no examples.
        let release: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--example", "embed"]).args(release);
        assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    }
    let output =
        Command::new(example).args(["exp.yaml", "runs", "cache"]).current_dir(sandbox.folder()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("embedded-") && text.contains(": 7 steps, 7 losses, last Some("), "{text}");
}
