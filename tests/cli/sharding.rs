//! Runs whose replicas divide training state: the numbers and checkpoints of ddp.

#![cfg(target_os = "linux")]

use std::fs;

use crate::sandbox::{RunFolder, Sandbox, names_in};

const STEPS: u64 = 40;

fn yaml(family: &str, replicas: usize, shard: &str, more: &str) -> String {
    format!(
        "version: 1\nname: lab\nmodel: {{{family}, layers: 4, heads: 2, d_model: 32, context_length: 32}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 12, micro_batch: 1}}\ntrain: {{steps: {STEPS}, clip_norm: 0.5, recompute: attention}}\n\
         eval: {{every: 20, at_start: true, loss: {{rows: 9}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: 20, keep: 2}}\nparallel: {{mode: ddp, replicas: {replicas}{shard}}}\n{more}"
    )
}

fn shard(state: &str) -> String {
    format!(", shard: {state}")
}

/// The one file with the last weights of the run.
fn exported(sandbox: &Sandbox, run: &RunFolder) -> Vec<u8> {
    let (id, out) = (run.id(), format!("out-{}", run.id()));
    sandbox.expect(0, &["export", &id, "--to", "safetensors", "--force", &out]);
    let path = sandbox.path(&out);
    if path.is_file() { fs::read(path).unwrap() } else { fs::read(path.join("model.safetensors")).unwrap() }
}

/// Trains with `state` whole and divided.
fn both(family: &str, replicas: usize, state: &str, more: &str) -> [Sandbox; 2] {
    [String::new(), shard(state)].map(|shard| {
        let sandbox = Sandbox::new().with_numbers(4000).with("exp.yaml", yaml(family, replicas, &shard, more));
        sandbox.expect(0, "apply exp.yaml --threads 2");
        sandbox
    })
}

#[test]
fn processes_compute_what_ddp_does() {
    let cases = [
        ("family: gpt2, dropout: 0.1", 2, "parameters", ""),
        ("family: gpt2, dropout: 0.1", 3, "gradients", "precision: bf16\n"),
        ("family: llama", 4, "optimizer", ""),
        ("family: llama", 2, "parameters", "precision: bf16\nmaster_weights: false\n"),
    ];
    for (family, replicas, state, more) in cases {
        let [plain, sharded] = both(family, replicas, state, more);
        let [a, b] = [plain.only_run(), sharded.only_run()];
        assert_eq!(b.numbers_and_samples(), a.numbers_and_samples(), "{family}, {replicas}, {more}");
        assert!(exported(&sharded, &b) == exported(&plain, &a), "{family}, {replicas}, {more}: weights differ");
        let names = names_in(&b.checkpoint(STEPS));
        assert_eq!(names.iter().filter(|name| name.starts_with("optimizer")).count(), replicas, "{names:?}");
    }
}

#[test]
fn checkpoints_go_both_ways() {
    let [plain, sharded] = both("family: gpt2", 3, "parameters", "");
    let expected = plain.only_run();
    for (from, to) in [(&plain, shard("parameters")), (&sharded, String::new())] {
        let first = from.only_run().id();
        from.write("to.yaml", yaml("family: gpt2", 3, &to, ""));
        let go_on = ["apply", "to.yaml", "--continue", &first, "--continue-step", "20", "--threads", "2"];
        from.expect(0, &go_on);
        let second = from.runs().into_iter().find(|(id, _)| *id != first).unwrap().1;
        assert_eq!(second.numbers_and_samples(), expected.numbers_and_samples(), "to {to:?}");
        assert!(exported(from, &second) == exported(&plain, &expected), "to {to:?}");
        let compared = from.expect(0, &["diff", &first, &second.id()]);
        assert!(compared.contains("divided differently"), "{compared}");
        let set = if to.is_empty() { "parallel.shard=null" } else { "parallel.shard=gradients" };
        from.expect(0, &["fork", &first, "--from", "20", "--set", set, "--threads", "2"]);
        let forked = from.runs().into_iter().find(|(id, _)| *id != first && *id != second.id()).unwrap().1;
        assert!(exported(from, &forked) == exported(&plain, &expected), "forked to {to:?}");
        // Others read it, too.
        let evaluated = from.run(&["eval", &second.id(), "--json"]).expect_code(0).json();
        let recorded = second.metrics().pop().unwrap();
        assert_eq!(evaluated["val_loss"], recorded["val_loss"], "{evaluated}");
        from.expect(0, &["sample", &second.id(), "--prompt", "1", "--json"]);
    }
}

#[test]
fn mistakes_are_reported_at_the_key() {
    let sandbox = Sandbox::new().with_numbers(400);
    let of = |parallel: &str| {
        let yaml = yaml("family: gpt2", 2, &shard("optimizer"), "")
            .replace("mode: ddp, replicas: 2, shard: optimizer", parallel);
        sandbox.write("exp.yaml", yaml);
        sandbox.expect(2, "validate exp.yaml")
    };
    let pipeline = of("mode: pipeline, shard: gradients, pipeline: {stages: 2}");
    assert!(pipeline.contains("`parallel.shard: gradients` does not go with mode `pipeline`"), "{pipeline}");
    sandbox.write("exp.yaml", yaml("family: gpt2", 2, &shard("parameters"), ""));
    sandbox.expect(0, "validate exp.yaml --set parallel.mode=single");
    let unknown = of("mode: ddp, replicas: 2, shard: everything");
    assert!(unknown.contains("parallel.shard") && unknown.contains("parameters"), "{unknown}");
}
