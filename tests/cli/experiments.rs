//! Experiments of every kind, from the file to the finished run: what must not change a bit, what must learn, and the commands that
//! evaluate and sample a finished run.

use std::fs;

use serde_json::{Value, json};

use crate::sandbox::{Arguments, Finished, Sandbox, repository_path};

const EXPERIMENT: &str = "
version: 1
name: tiny
model: {family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1}
data: {tokenizer: {chars: {}}, train: {text: {files: [text.txt]}}}
batch: {sequences: 8, micro_batch: 4}
train: {steps: 60}
optimizer: {adamw: {lr: 1e-2}}
schedule: {warmup: {steps: 5}, decay: {cosine: {final: 0.1}}}
eval: {every: 20, at_start: true, loss: {batches: 2}, samples: {prompts: ['the '], max_tokens: 8}}
checkpoint: {every: 7, keep: 2}
";

/// A sandbox with an experiment and a text to train on.
fn new_sandbox(experiment: &str) -> Sandbox {
    let words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "another", "dog"];
    let text: Vec<&str> = (0..3000_usize).map(|i| words[(i * i + i / 7) % words.len()]).collect();
    Sandbox::new().with("exp.yaml", experiment).with("text.txt", text.join(" "))
}

/// Runs a command that must succeed, with `runs` for the folder of runs.
#[track_caller]
fn run_in(sandbox: &Sandbox, runs: &str, arguments: &(impl Arguments + ?Sized)) {
    Finished::of(sandbox.command(arguments).env("RUNNER_RUNS", sandbox.path(runs))).expect_code(0);
}

/// The resolved experiment alone, from another folder, is the same run.
#[test]
fn a_resolved_experiment_is_the_same_run() {
    let sandbox = new_sandbox(EXPERIMENT);
    sandbox.expect(0, "apply exp.yaml --quiet");
    let resolved = sandbox.only_run().path("resolved.yaml");
    run_in(&sandbox, "other", &["apply", resolved.to_str().unwrap(), "--quiet"]);
    assert_eq!(sandbox.only_run().final_hash(), sandbox.only_run_in("other").final_hash());
    assert_eq!(sandbox.only_run().id(), sandbox.only_run_in("other").id());
}

/// A number is three equal seeds. Each of the three changes the numbers that it is for, and no others.
#[test]
fn separate_seeds_change_what_they_are_for() {
    let sandbox = new_sandbox(&EXPERIMENT.replace("{steps: 60}", "{steps: 8}"));
    let losses = |runs: &str, sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        run_in(&sandbox, runs, &["apply", "exp.yaml", "--quiet"].into_iter().chain(sets).collect::<Vec<_>>());
        let run = sandbox.only_run_in(runs);
        let first = |kind: &str, key: &str| run.metrics_of(kind)[0][key].as_f64().unwrap().to_bits();
        (first("eval", "val_loss"), first("train", "loss"))
    };
    let plain = losses("plain", &["seed=5"]);
    assert_eq!(losses("three", &["seed={data: 5, init: 5, dropout: 5}"]), plain);
    let (one, three) = (sandbox.only_run_in("plain"), sandbox.only_run_in("three"));
    assert_eq!((one.id(), one.final_hash()), (three.id(), three.final_hash()));
    let (start, first) = losses("data", &["seed=5", "seed.data=6"]);
    assert!(start == plain.0 && first != plain.1, "the order of rows");
    let (start, first) = losses("dropout", &["seed=5", "seed.dropout=6"]);
    assert!(start == plain.0 && first != plain.1, "the dropout masks");
    let (start, first) = losses("init", &["seed=5", "seed.init=6"]);
    assert!(start != plain.0 && first != plain.1, "the initial weights");
    let without = losses("without", &["seed=5", "model.dropout=0", "data.shuffle=false"]);
    let idle = ["seed=5", "model.dropout=0", "data.shuffle=false", "seed.data=6", "seed.dropout=7"];
    assert_eq!(losses("idle", &idle), without, "neither order nor masks are random");
}

#[test]
fn threads_do_not_change_a_bit() {
    let sandbox = new_sandbox(EXPERIMENT);
    for threads in ["1", "2", "3"] {
        run_in(&sandbox, threads, &["apply", "exp.yaml", "--quiet", "--threads", threads]);
    }
    assert_eq!(sandbox.only_run_in("1").final_hash(), sandbox.only_run_in("2").final_hash());
    assert_eq!(sandbox.only_run_in("1").final_hash(), sandbox.only_run_in("3").final_hash());
}

#[test]
fn both_families_every_precision_and_padded_rows_train() {
    let llama = EXPERIMENT
        .replace("gpt2, layers: 2, heads: 2", "llama, layers: 2, heads: 2, kv_heads: 1")
        .replace(", dropout: 0.1", "");
    let padded =
        llama.replace("{chars: {}}", "{bpe: {vocab_size: 300, special_tokens: ['[BOT]', '[EOT]', '[PAD]']}}").replace(
            "{text: {files: [text.txt]}}",
            "{jsonl: {files: [rows.jsonl], field: text}}, layout: {padded: {bos: '[BOT]', eos: '[EOT]', pad: '[PAD]'}}",
        );
    for (name, experiment) in [
        ("llama", llama.clone()),
        ("bf16", format!("{EXPERIMENT}\nprecision: bf16")),
        ("tf32", format!("{llama}\nprecision: tf32")),
        ("sgd", EXPERIMENT.replace("{adamw: {lr: 1e-2}}", "{sgd: {lr: 0.5, momentum: 0.9}}")),
        ("padded", padded),
    ] {
        let sandbox = new_sandbox(&experiment);
        let rows: Vec<String> = (0..200)
            .map(|i| format!("{{\"text\": \"the cat number {} sat on a mat{}\"}}", i % 10, " again".repeat(i % 5)))
            .collect();
        sandbox.write("rows.jsonl", rows.join("\n"));
        sandbox.expect(0, "apply exp.yaml --quiet");
        let losses = sandbox.only_run().metrics_of("train");
        let loss = |step: usize| losses[step]["loss"].as_f64().unwrap();
        assert!(loss(59) < loss(0) - 0.3, "{name}: {} to {}", loss(0), loss(59));
    }
}

#[test]
fn evaluation_and_samples_work_on_their_own() {
    let sandbox = new_sandbox(EXPERIMENT);
    sandbox.expect(0, "apply exp.yaml --quiet");
    let report = sandbox.json_of("eval tiny --json");
    let recorded = sandbox.only_run().metrics_of("eval");
    assert_eq!(recorded.iter().map(|e| e["step"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 20, 40, 60]);
    assert_eq!(report["val_loss"], recorded[3]["val_loss"]);
    if !cfg!(feature = "cuda") {
        assert!(sandbox.expect(2, "eval tiny --device cuda").contains("built without CUDA"));
    }
    assert!(recorded[3]["val_loss"].as_f64() < recorded[0]["val_loss"].as_f64());
    let sample = || sandbox.stdout_of(&["sample", "tiny", "--prompt", "the cat", "--max-tokens", "50", "--seed", "7"]);
    let sampled = sample();
    assert_eq!(sampled, sample());
    assert!(sampled.contains("the cat"), "{sampled}");
    // '%' is not among the characters that the tokenizer saw.
    let printed = sandbox.expect(2, "sample tiny --prompt 100%");
    assert!(printed.contains('%'), "{printed}");
}

/// Files of a fresh clone name data that is not there yet. They explain themselves and can be planned; only training needs the data.
#[test]
fn full_size_files_are_explained_and_planned_before_their_data_exists() {
    let names =
        ["gpt2-alpaca", "gpt2-fineweb", "gpt2-fineweb-start", "gpt2-124m", "llama-dp", "llama-ddp", "llama-pipeline"];
    for name in names.into_iter().chain(["transformer-ddp-pipeline"]) {
        let file = fs::read_to_string(shipped(name)).unwrap();
        let sandbox = Sandbox::new().with("exp.yaml", file);
        let run = |line: &str| {
            let mut command = sandbox.command(line);
            Finished::of(command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", sandbox.path("hub")))
        };
        let explained = run("validate exp.yaml --explain").expect_code(0);
        assert!(explained.stdout.contains("model.layers"), "{name}: {}", explained.text());
        let planned = run("plan exp.yaml --cluster 1x8xA100").expect_code(0);
        let (said, page) = (&planned.stderr, &planned.stdout);
        assert!(said.starts_with("warning: "), "{name}: {said}");
        let reads = if page.contains("an epoch reads") { "of which an epoch reads" } else { "which determine" };
        for part in ["no hash, because the data is assumed", "; assumed 1,000,000 training rows, ", reads, "`--rows N`"]
        {
            assert!(page.contains(part), "{name}: {part}: {page}");
        }
        // `validate` refuses missing files, and does not look for names on the hub.
        run("validate exp.yaml").expect_code(if explained.stderr.is_empty() { 0 } else { 2 });
        let refused = run("apply exp.yaml");
        assert!(refused.code != 0 && sandbox.runs().is_empty(), "{name}: {}", refused.text());
    }
}

#[test]
fn missing_files_are_shown_at_their_place() {
    let sandbox = Sandbox::new().with("exp.yaml", EXPERIMENT);
    sandbox.keep(Finished::of(&mut sandbox.command("validate exp.yaml --explain"))).expect_code(0);
    // The characters of the text are the vocabulary.
    sandbox.show(2, "plan exp.yaml");
    sandbox.show(0, "plan exp.yaml --set model.vocab_size=64");
    // The size of a byte tokenizer is known.
    let bytes = "data.tokenizer={bytes: {}}";
    sandbox.expect(2, &["plan", "exp.yaml", "--set", bytes, "--set", "model.vocab_size=64"]);
    // The training data is there, so its rows are not assumed because another file is missing.
    sandbox.write("text.txt", "the cat sat on a mat ".repeat(200));
    let hellaswag = "eval.hellaswag={file: absent.jsonl}";
    sandbox.show(2, &["plan", "exp.yaml", "--set", hellaswag]);
    insta::assert_snapshot!(sandbox.screens());
}

/// Whoever plans a recorded run again after its data is gone gets the plan that the run had.
#[test]
fn a_run_without_its_data_is_planned_from_its_record() {
    let sandbox = new_sandbox(EXPERIMENT);
    sandbox.expect(0, "apply exp.yaml --quiet --set train.steps=8");
    let before = sandbox.json_of("plan tiny --json");
    fs::remove_file(sandbox.path("text.txt")).unwrap();
    let after = sandbox.json_of("plan tiny --json");
    assert_eq!(after["hash"], before["hash"]);
    let warnings = after["warnings"].to_string();
    assert!(warnings.contains("the plan uses the sizes that the run recorded"), "{warnings}");
    assert_ne!(before["warnings"], after["warnings"]);
}

/// The path of an experiment of the repository.
fn shipped(name: &str) -> String {
    repository_path(&format!("experiments/{name}.yaml")).display().to_string()
}

/// The parallel systems at their real size are planned without their data or machines, and no rank of a pipeline holds the
/// whole model.
#[test]
fn shipped_systems_can_be_planned() {
    let sandbox = new_sandbox(EXPERIMENT);
    for (name, ranks, parameters) in [
        ("llama-dp", 4, 179_448_576_u64),
        ("llama-ddp", 4, 179_448_576),
        ("llama-pipeline", 3, 179_448_576),
        ("transformer-ddp-pipeline", 4, 1_041_453_167),
        ("gpt2-fineweb", 8, 124_475_904),
        ("gpt2-alpaca", 1, 124_439_808),
        ("gpt2-fineweb-start", 1, 124_439_808),
    ] {
        let plan = sandbox.json_of(&["plan", &shipped(name), "--rows", "100000", "--cluster", "1x8xA100", "--json"]);
        assert_eq!(plan["totals"]["parameters"], parameters, "{name}");
        assert_eq!(plan["ranks"].as_array().unwrap().len(), ranks, "{name}");
        assert!(plan["forecast"]["step_seconds"].as_f64().unwrap() > 0.0, "{name}");
        if name.ends_with("pipeline") {
            let part = |rank: &Value| rank["params"]["total"].as_u64().unwrap();
            let largest = plan["ranks"].as_array().unwrap().iter().map(part).max().unwrap();
            assert!(largest < parameters * 2 / 3, "{name}: {largest} of {parameters}");
        }
    }
}

/// Their small variants run, and the three Llamas are one run up to rounding: a few f32 steps apart by the order of sums.
#[test]
fn shipped_variants_train_alike() {
    let sandbox = new_sandbox(EXPERIMENT);
    let losses = |name: &str| {
        let steps = ["--set", "train.steps=3", "--set", "schedule.warmup.steps=2", "--set", "eval.hellaswag=null"];
        run_in(&sandbox, name, &[&["apply", &shipped(name), "--quiet"][..], &steps].concat());
        let losses = sandbox.only_run_in(name).metrics_of("train");
        losses.iter().map(|l| l["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let dp = losses("llama-dp-tiny");
    for other in ["llama-ddp-tiny", "llama-pipeline-tiny"] {
        for (a, b) in losses(other).iter().zip(&dp) {
            assert!((a - b).abs() < 1e-4 * b, "{other}: {a} and {b}");
        }
    }
    for name in ["transformer-ddp-pipeline-tiny", "gpt2-alpaca-tiny", "gpt2-fineweb-tiny"] {
        let got = losses(name);
        assert!(got.len() == 3 && got[2] < got[0], "{name}: {got:?}");
    }
}

/// Encoder layers in bf16 without master weights: a run that was stopped and taken up again ends in the bits of one that was
/// not; the checkpoint holds bf16 tensors, evaluates to what the run recorded, and is sampled from.
#[test]
fn encoder_layers_in_bf16_resume_to_the_same_bits() {
    let model = "model: {family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1, norm: post, \
                 activation: relu, positions: sinusoidal, embedding_scale: true, head_bias: true, final_norm: false, \
                 tie_embeddings: false, mlp_dropout: 0.1, init: {pytorch: {embedding: 0.1}}}";
    let line = EXPERIMENT.lines().find(|l| l.starts_with("model:")).unwrap();
    let sandbox = new_sandbox(&(EXPERIMENT.replace(line, model) + "precision: bf16\nmaster_weights: false\n"));
    sandbox.expect(0, "apply exp.yaml --quiet");
    run_in(&sandbox, "parts", &["apply", "exp.yaml", "--quiet", "--until-step", "33"]);
    run_in(&sandbox, "parts", &["apply", "exp.yaml", "--quiet"]);
    assert_eq!(sandbox.only_run_in("parts").final_hash(), sandbox.only_run().final_hash());
    let losses = sandbox.only_run().train_losses();
    assert!(losses[59] < 0.8 * losses[0], "it learns: {losses:?}");

    let run = sandbox.only_run();
    let saved = run.checkpoint(60);
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let tensors = candle_core::safetensors::load(saved.join(file), &candle_core::Device::Cpu).unwrap();
        assert!(!tensors.is_empty());
        assert!(tensors.values().all(|tensor| tensor.dtype() == candle_core::DType::BF16), "{file}");
    }
    let evaluated = sandbox.json_of(&["eval", &run.id(), "--json"]);
    let printed = sandbox.only_run().metrics_of("eval");
    assert_eq!(evaluated["val_loss"], printed.last().unwrap()["val_loss"]);
    sandbox.expect(0, &["sample", &run.id(), "--prompt", "the ", "--max-tokens", "4"]);
    // A fork with master weights continues from the bf16 numbers, and one without them from its rounded f32 numbers.
    let first = run.id();
    sandbox.expect(0, &["fork", &first, "--from", "latest", "--set", "train.steps=63", "--set", "master_weights=true"]);
    let masters = sandbox.runs().into_keys().find(|id| *id != first).unwrap();
    sandbox
        .expect(0, &["fork", &masters, "--from", "latest", "--set", "train.steps=66", "--set", "master_weights=false"]);
    for (id, fork) in sandbox.runs().into_iter().filter(|(id, _)| *id != first) {
        // A fork's record has the steps before it, too.
        let went_on = fork.train_losses().split_off(60);
        assert!(!went_on.is_empty() && went_on.iter().all(|loss| *loss < 0.8 * losses[0]), "{id}: {went_on:?}");
    }
}

/// At step 1 the embedding's output has the size of the initial weights, which does not depend on the width. Nothing is recorded.
#[test]
fn coordinates_of_models_of_several_sizes() {
    let sandbox = new_sandbox(EXPERIMENT);
    for (flag, key, values, rows) in
        [("--widths", "model.d_model", [16, 32, 48], 4), ("--layers", "model.layers", [1, 2, 4], 3)]
    {
        let list = values.map(|value| value.to_string()).join(",");
        let found = sandbox.json_of(&["coordinates", "exp.yaml", flag, &list, "--steps", "1", "--json"]);
        assert_eq!((&found["key"], &found["values"], &found["steps"]), (&json!(key), &json!(values), &json!(1)));
        let outputs = found["outputs"].as_array().unwrap();
        assert_eq!(outputs.len(), rows, "{outputs:?}");
        for output in outputs {
            let rms = output["rms"].as_array().unwrap();
            assert!(rms.len() == 3 && rms.iter().all(|rms| rms.as_f64().unwrap() > 0.0), "{output}");
        }
        assert!(outputs[0]["slope"].as_f64().unwrap().abs() < 0.2, "{}", outputs[0]);
    }
    assert!(sandbox.runs().is_empty());
    let text = sandbox.stdout_of("coordinates exp.yaml --widths 16,32 --steps 1");
    assert!(text.starts_with("root mean square in step 1, after 0 updates\nmodel.d_model"), "{text}");
    for (arguments, message) in [
        ("--widths 16", "give at least two different values above 0"),
        ("--widths 16,20", "`heads: 2` of a width of 16 cannot be scaled to a width of 20"),
        ("--widths 16,32 --steps 100", "--steps 100 is more than the 60 steps of the run; use at most 60"),
        ("--layers 1,100000000 --steps 1", "`model.layers` must be"),
        ("", "give `--widths`, several values of model.d_model, or `--layers`"),
    ] {
        let line = format!("coordinates exp.yaml {arguments}");
        let finished = sandbox.run(&line);
        assert!(finished.stderr.contains(message), "{arguments}: {}", finished.stderr);
    }
}

/// Muon, in parts and in one go, as a whole and with one owner for each matrix. The matrices of layers have one moment. No other optimizer
/// continues with its moments.
#[test]
fn muon_resumes_to_the_same_bits() {
    let line = EXPERIMENT.lines().find(|l| l.starts_with("optimizer:")).unwrap();
    let muon = "optimizer: {muon: {lr: 0.02, weight_decay: 0.1, adamw: {lr: 3e-3}}}";
    let sandbox = new_sandbox(&EXPERIMENT.replace(line, muon));
    sandbox.expect(0, "apply exp.yaml --quiet");
    let run = sandbox.only_run();
    let ranks = ["--set", "parallel={mode: ddp, replicas: 2, shard: parameters}"];
    run_in(&sandbox, "ranks", &[&["apply", "exp.yaml", "--quiet"][..], &ranks].concat());
    for (folder, more) in [("parts", &[][..]), ("parts of ranks", &ranks[..])] {
        run_in(&sandbox, folder, &[&["apply", "exp.yaml", "--quiet", "--until-step", "33"][..], more].concat());
        run_in(&sandbox, folder, &[&["apply", "exp.yaml", "--quiet"][..], more].concat());
    }
    assert_eq!(sandbox.only_run_in("parts").final_hash(), run.final_hash());
    assert_eq!(sandbox.only_run_in("parts of ranks").final_hash(), sandbox.only_run_in("ranks").final_hash());
    let losses = run.train_losses();
    assert!(losses[59] < 0.8 * losses[0], "it learns: {losses:?}");
    let rates = &run.metrics_of("train")[10];
    assert_eq!(rates["lr_by_group"]["muon"], rates["lr"]);
    let ratio = rates["lr_by_group"]["adamw"].as_f64().unwrap() / rates["lr"].as_f64().unwrap();
    assert!((ratio - 0.15).abs() < 1e-12, "{rates}");

    let optimizer = run.checkpoint(60).join("optimizer.safetensors");
    let moments = candle_core::safetensors::load(optimizer, &candle_core::Device::Cpu).unwrap();
    let without: Vec<_> = moments
        .keys()
        .filter_map(|name| name.strip_suffix(".m"))
        .filter(|name| !moments.contains_key(&format!("{name}.v")))
        .collect();
    assert!(
        !without.is_empty() && without.iter().all(|name| name.contains(".h.") && name.ends_with(".weight")),
        "{without:?}"
    );
    let adamw = sandbox.run(&["fork", &run.id(), "--from", "latest", "--set", "optimizer={adamw: {}}"]).expect_code(2);
    assert!(
        adamw.stderr.contains("the checkpoint has the moments of muon, and adamw cannot use them"),
        "{}",
        adamw.stderr
    );
}

/// The language model of PyTorch's tutorial on pipelines with data parallelism has exactly this many parameters.
#[test]
fn the_plan_of_an_encoder_has_its_billion_parameters() {
    let sandbox = new_sandbox(
        "model: {family: gpt2, vocab_size: 28783, layers: 8, heads: 16, d_model: 4096, d_ff: 4096, context_length: 35, \
         dropout: 0.2, mlp_dropout: 0.2, norm: post, activation: relu, positions: sinusoidal, embedding_scale: true, \
         head_bias: true, final_norm: false, tie_embeddings: false, init: {pytorch: {embedding: 0.1}}}\n\
         data: {train: {text: {files: [text.txt]}}}\nbatch: {sequences: 16}\n\
         optimizer: {sgd: {lr: 5.0}}\ntrain: {steps: 10, clip_norm: 0.5}\n\
         parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2, microbatches: 8}}\n",
    );
    let plan = sandbox.json_of("plan exp.yaml --cluster 1x4xA100 --rows 100000 --json");
    assert_eq!(plan["totals"]["parameters"], 1_041_453_167_u64);
}

/// The run tests its best checkpoint after its last step. A run that was stopped and resumed tests it too. The text must be in no
/// other split.
#[test]
fn the_best_checkpoint_is_tested_once() {
    let sandbox = new_sandbox(EXPERIMENT);
    let words: Vec<&str> = (0..900_usize).map(|i| ["the", "dog", "saw", "a", "mat"][(i * 7 + i / 5) % 5]).collect();
    sandbox.write("test.txt", words.join(" "));
    let with = |file: &str| format!("eval.test={{text: {{files: [{file}]}}}}");
    let often = ["--set", "checkpoint.every=20"];
    sandbox.expect(0, &[&["apply", "exp.yaml", "--quiet", "--set", &with("test.txt")][..], &often].concat());
    let summary = sandbox.only_run().summary();
    let best = summary["best_eval"]["step"].as_u64().unwrap();
    assert_eq!(summary["test"]["step"].as_u64(), Some(best));
    sandbox.expect(0, "eval tiny --best --json");
    assert!(summary["test"]["loss"].as_f64().unwrap() > 0.0 && summary["test"]["tokens"].as_u64().unwrap() > 1000);

    let whole = summary["test"].clone();
    let stopped = ["--set", &with("test.txt"), "--until-step", "40"];
    run_in(&sandbox, "two", &[&["apply", "exp.yaml", "--quiet"][..], &stopped, &often].concat());
    assert!(sandbox.only_run_in("two").summary()["test"].is_null(), "it is not over");
    run_in(&sandbox, "two", &[&["apply", "exp.yaml", "--quiet", "--set", &with("test.txt")][..], &often].concat());
    assert_eq!(sandbox.only_run_in("two").summary()["test"], whole);

    let part = ["--set", &with("test.txt"), "--set", "eval.test_rows=3"];
    run_in(&sandbox, "part", &[&["apply", "exp.yaml", "--quiet"][..], &part, &often].concat());
    let part = sandbox.only_run_in("part").summary();
    assert_eq!(part["test"]["tokens"].as_u64(), Some(3 * 16), "three rows of the context length");
    assert_eq!(
        (&part["test"]["step"], &part["final_train_loss"]),
        (&summary["test"]["step"], &summary["final_train_loss"])
    );

    let part_run = sandbox.only_run_in("part").path("");
    let compared = sandbox.json_of(&["compare", "tiny", part_run.to_str().unwrap(), "--json"]);
    assert_eq!(compared["runs"][0]["outcomes"]["test_loss"], summary["test"]["loss"]);
    let incomparable = compared["incomparable"].to_string();
    assert!(incomparable.contains("test_loss") && incomparable.contains("test rows"), "{incomparable}");
    sandbox.show(2, &["apply", "exp.yaml", "--set", &with("text.txt")]);
    insta::assert_snapshot!(sandbox.screens());
}
