//! Runs that are exported, and runs that start from what was exported.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use candle_core::Device;
use runner_weights::OpenedWeights;

use crate::sandbox::{RunFolder, Sandbox, names_in, read_json, repository_path};

const SINGLE: &str = "";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2, microbatches: 2}}\n";
const INTERLEAVED: &str =
    "parallel: {mode: pipeline, pipeline: {stages: 2, schedule: interleaved_1f1b, chunks: 2, microbatches: 2}}\n";
const GPT2: &str = "family: gpt2, layers: 4, heads: 2, d_model: 16, context_length: 16";
const LLAMA: &str = "family: llama, layers: 4, heads: 4, kv_heads: 2, d_model: 16, d_ff: 24, context_length: 16";

/// What two layouts of the same may differ by: f32 sums in another order, of a loss of about 5.
const ROUNDING: f64 = 1e-5;

/// A sandbox with a text to train on.
fn new_sandbox() -> Sandbox {
    Sandbox::new().with_numbers(1500)
}

/// Writes the experiment `name`: a model section, bytes for tokens, two steps.
fn write_experiment(sandbox: &Sandbox, name: &str, model: &str, more: &str) {
    let yaml = format!(
        "name: {name}\nmodel: {{{model}}}\n\
         data: {{tokenizer: {{bytes: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8}}\ntrain: {{steps: 2}}\noptimizer: {{adamw: {{lr: 1e-2}}}}\n\
         eval: {{every: 2, at_start: true, loss: {{batches: 1000}}}}\n{more}"
    );
    sandbox.write(&format!("{name}.yaml"), yaml);
}

/// Trains the experiment `name` to its end.
fn train(sandbox: &Sandbox, name: &str) -> RunFolder {
    sandbox.expect(0, &format!("apply {name}.yaml --threads 1 --quiet"));
    run_of(sandbox, name)
}

/// The first run of the experiment `name`.
fn run_of(sandbox: &Sandbox, name: &str) -> RunFolder {
    let prefix = format!("{name}-");
    sandbox.runs().into_iter().find(|(id, _)| id.starts_with(&prefix)).expect("a run").1
}

/// Unfinished files in the sandbox and in the folders in it.
fn unfinished_files(sandbox: &Sandbox) -> Vec<String> {
    let folders = fs::read_dir(sandbox.folder()).unwrap().map(|e| e.unwrap().path()).filter(|path| path.is_dir());
    let names = folders.chain([sandbox.folder().to_owned()]).flat_map(|folder| names_in(&folder));
    names.filter(|name| name.starts_with(".tmp-")).collect()
}

/// The validation loss of a run after `step`.
fn val_loss(run: &RunFolder, step: u64) -> f64 {
    let evaluation = run.metrics_of("eval").into_iter().rfind(|line| line["step"] == step).expect("evaluated");
    evaluation["val_loss"].as_f64().unwrap()
}

#[test]
fn a_run_starts_where_the_exported_one_ended() {
    for (i, (model, from, to)) in [
        (GPT2.to_owned(), SINGLE, MESH),
        (format!("{GPT2}, tie_embeddings: false, pad_vocab_to: 64, d_ff: 40"), MESH, INTERLEAVED),
        (LLAMA.to_owned(), INTERLEAVED, SINGLE),
        (format!("{LLAMA}, tie_embeddings: true, rope_theta: 500.0, norm_eps: 1e-6"), MESH, SINGLE),
    ]
    .into_iter()
    .enumerate()
    {
        let sandbox = new_sandbox();
        write_experiment(&sandbox, "first", &model, from);
        let first = train(&sandbox, "first");
        sandbox.stdout_of(&["export", "first", "--to", "hf", "out"]);
        sandbox.stdout_of(&["export", "first", "--to", "torch", "m.pt"]);
        sandbox.stdout_of(&["export", "first", "--to", "safetensors", "whole"]);

        let [opened, state_dict] = ["out", "m.pt"].map(|name| OpenedWeights::open(&sandbox.path(name)).unwrap());
        let tensors = candle_core::safetensors::load(sandbox.path("whole/model.safetensors"), &Device::Cpu).unwrap();
        for (name, tensor) in &tensors {
            let stored: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
            for weights in [&opened, &state_dict] {
                let mut values = vec![0.0; tensor.elem_count()];
                weights.read(name, tensor.dims(), &mut values).unwrap();
                assert!(values.iter().map(|v| v.to_bits()).eq(stored.iter().map(|v| v.to_bits())), "{i}: {name}");
            }
        }

        for (name, layout) in [("same", from), ("other", to)] {
            write_experiment(&sandbox, name, "init: {from: out}", layout);
            let second = train(&sandbox, name);
            let (was, is) = (val_loss(&first, 2), val_loss(&second, 0));
            let tolerance = if layout == from { 0.0 } else { ROUNDING };
            assert!((was - is).abs() <= tolerance, "{i}, {name}: {was} then {is}");
            assert!(val_loss(&second, 2) != is, "{i}: it goes on from there");
        }
    }
}

/// The folder of an export that was killed has the target in its name. What has another name, or something else in it, stays.
#[test]
fn the_next_export_removes_the_leftovers_of_a_killed_one() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", GPT2, SINGLE);
    train(&sandbox, "a");
    let own = [".tmp-out-x1Y2z3", "whole/.tmp-model.safetensors-x1Y2z3"];
    let others = [".tmp-out-m1M2m3", ".tmp-other-x1Y2z3", ".tmp-x1Y2z3"];
    for file in [
        ".tmp-out-x1Y2z3/model-00001-of-00004.safetensors",
        ".tmp-out-x1Y2z3/.tmp-a1B2c3",
        "whole/.tmp-model.safetensors-x1Y2z3",
        ".tmp-out-m1M2m3/notes.txt",
        ".tmp-other-x1Y2z3/model.safetensors",
        ".tmp-x1Y2z3/model.safetensors",
    ] {
        sandbox.write(file, "torn");
    }
    let export = |to: &str, name: &str| sandbox.stdout_of(&["export", "a", "--to", to, name, "--force"]);
    export("hf", "out");
    export("safetensors", "whole");
    assert!(own.iter().all(|path| sandbox.path(path).exists()), "perhaps another process has just created them");
    for path in own.iter().chain(&others) {
        let long_ago = SystemTime::now() - Duration::from_mins(1);
        fs::File::open(sandbox.path(path)).unwrap().set_modified(long_ago).unwrap();
    }
    export("hf", "out");
    export("safetensors", "whole");
    assert!(own.iter().all(|path| !sandbox.path(path).exists()));
    assert!(others.iter().all(|path| sandbox.path(path).is_dir()));
}

#[test]
fn types_shards_and_rows_of_the_vocabulary_are_chosen() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", &format!("{GPT2}, pad_vocab_to: 64"), SINGLE);
    train(&sandbox, "a");
    sandbox.stdout_of(&["export", "a", "--to", "hf", "out", "--shard-size", "20KB"]);
    let index = read_json(&sandbox.path("out/model.safetensors.index.json"));
    assert!(sandbox.path("out/model-00002-of-00004.safetensors").exists(), "{index}");
    assert!(index["weight_map"].as_object().unwrap().len() > 40);
    let whole = OpenedWeights::open(&sandbox.path("out")).unwrap();
    assert_eq!(whole.vocab_size(), 320);
    let name = "transformer.h.1.mlp.c_fc.weight";
    let mut a = vec![0.0; 64 * 16];
    whole.read(name, &[64, 16], &mut a).unwrap();

    sandbox.show(2, &["export", "a", "--to", "hf", "out"]);
    fs::write(sandbox.path("out/README.md"), "mine").unwrap();
    sandbox.show(2, &["export", "a", "--to", "hf", "out", "--force"]);
    for n in 1..=4 {
        fs::remove_file(sandbox.path(format!("out/model-0000{n}-of-00004.safetensors"))).unwrap();
    }
    fs::remove_file(sandbox.path("out/model.safetensors.index.json")).unwrap();
    let made = sandbox
        .stdout_of(&["export", "a", "--to", "hf", "out", "--force", "--dtype", "bf16", "--vocab", "trimmed", "--json"]);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!((made["step"].as_u64(), made["files"].as_array().unwrap().len()), (Some(2), 5));
    let names = || {
        let mut names: Vec<String> =
            fs::read_dir(sandbox.path("out")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let expected = [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names(), expected, "no shard of the other export is left");
    let config = read_json(&sandbox.path("out/config.json"));
    assert_eq!((config["vocab_size"].as_u64(), config["eos_token_id"].as_u64()), (Some(257), Some(256)));
    let trimmed = OpenedWeights::open(&sandbox.path("out")).unwrap();
    let mut b = vec![0.0; 64 * 16];
    trimmed.read(name, &[64, 16], &mut b).unwrap();
    assert!(a.iter().zip(&b).all(|(a, b)| half::bf16::from_f32(*a).to_f32().to_bits() == b.to_bits()));

    for flags in [
        vec!["--to", "safetensors", "x", "--dtype", "bf16"],
        vec!["--to", "hf", "input.txt"],
        vec!["--to", "hf", "x", "--shard-size", "0"],
    ] {
        sandbox.show(2, &[vec!["export", "a"], flags].concat());
    }
    assert!(!sandbox.path("x").exists() && unfinished_files(&sandbox).is_empty());
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn state_dicts_of_pytorch_close_the_loop() {
    for (model, heads) in [(format!("{GPT2}, pad_vocab_to: 64"), 2), (LLAMA.to_owned(), 4)] {
        let sandbox = new_sandbox();
        write_experiment(&sandbox, "a", &model, SINGLE);
        let first = val_loss(&train(&sandbox, "a"), 2);
        sandbox.stdout_of(&["export", "a", "--to", "hf", "hf"]);
        sandbox.stdout_of(&["export", "a", "--to", "torch", "m.pt"]);
        sandbox.stdout_of(&["export", "a", "--to", "torch", "bf16.pth", "--dtype", "bf16"]);
        sandbox.stdout_of(&["export", "a", "--to", "torch", "base.bin", "--base-model"]);
        let size = |path: &str| fs::metadata(sandbox.path(path)).unwrap().len();
        assert!(size("bf16.pth") < size("m.pt") * 2 / 3);
        // The heads are the experiment's, and for a Llama the context.
        write_experiment(&sandbox, "b", "init: {from: m.pt}", SINGLE);
        sandbox.show(2, &["validate", "b.yaml"]);
        let sizes = format!("heads: {heads}, context_length: 16");
        write_experiment(&sandbox, "b", &format!("init: {{from: m.pt}}, {sizes}"), MESH);
        let second = train(&sandbox, "b");
        assert!((first - val_loss(&second, 0)).abs() <= ROUNDING, "{}", val_loss(&second, 0));
        write_experiment(&sandbox, "wrong", &format!("init: {{from: m.pt}}, {sizes}, d_ff: 44"), SINGLE);
        sandbox.show(2, &["validate", "wrong.yaml"]);

        sandbox.show(2, &["eval", "--weights", "base.bin", "--text", "input.txt"]);

        // A run reads the embedding as its head, or draws a head.
        write_experiment(&sandbox, "tied", &format!("init: {{from: base.bin}}, tie_embeddings: true, {sizes}"), SINGLE);
        let tied = val_loss(&train(&sandbox, "tied"), 0);
        assert_eq!(tied == first, heads == 2, "{tied}");
        write_experiment(
            &sandbox,
            "drawn",
            &format!("init: {{from: base.bin}}, tie_embeddings: false, {sizes}"),
            SINGLE,
        );
        sandbox.show(0, &["plan", "drawn.yaml"]);
        train(&sandbox, "drawn");

        // Without an experiment, a description beside the file is needed.
        sandbox.show(2, &["eval", "--weights", "m.pt", "--text", "input.txt"]);
        fs::copy(sandbox.path("hf/config.json"), sandbox.path("config.json")).unwrap();
        let eval = |weights: &str| {
            let words = format!("eval --weights {weights} --tokenizer bytes --text input.txt --threads 1 --json");
            let mut value: serde_json::Value = serde_json::from_str(&sandbox.stdout_of(words.as_str())).unwrap();
            value["val_loss"].take()
        };
        assert_eq!(eval("m.pt"), eval("hf"));
        let folder = sandbox.path("hf");
        let beside = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        for name in beside.filter(|name| name.to_string_lossy().starts_with("tokenizer")) {
            fs::copy(folder.join(&name), sandbox.path("").join(&name)).unwrap();
        }
        sandbox.expect(0, "eval --weights m.pt --text input.txt --threads 1");
        assert!(eval("hf").is_number());
        sandbox.stdout_of("sample --weights m.pt --tokenizer bytes --prompt one --max-tokens 3 --threads 1");
        write_experiment(&sandbox, "c", "init: {from: m.pt}", SINGLE);
        assert_eq!(val_loss(&train(&sandbox, "c"), 0), first);

        for flags in [
            vec!["--to", "torch", "out"],
            vec!["--to", "torch", "m.pt"],
            vec!["--to", "hf", "out", "--base-model"],
            vec!["--to", "torch", "x.pt", "--vocab", "trimmed"],
        ] {
            sandbox.show(2, &[vec!["export", "a"], flags].concat());
        }
        assert_eq!(unfinished_files(&sandbox), Vec::<String>::new());
        insta::assert_snapshot!(sandbox.screens());
    }
}

/// Heads that share keys are in the shapes: an experiment gives the number of heads alone.
#[test]
fn heads_of_a_state_dict_fit_its_keys() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", LLAMA, SINGLE);
    train(&sandbox, "a");
    sandbox.stdout_of(&["export", "a", "--to", "torch", "m.pt"]);
    for (heads, code) in [("heads: 8", 0), ("heads: 8, kv_heads: 4", 0), ("heads: 8, kv_heads: 2", 2), ("heads: 1", 2)]
    {
        write_experiment(&sandbox, "b", &format!("init: {{from: m.pt}}, context_length: 16, {heads}"), "");
        sandbox.show(code, &["plan", "b.yaml"]);
    }
    insta::assert_snapshot!(sandbox.screens());
}

/// The shapes fit any tokenizer with few enough tokens, so that nothing else would show that the embedding has rows of other text.
#[test]
fn a_tokenizer_other_than_that_of_the_weights_is_reported() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", GPT2, SINGLE);
    train(&sandbox, "a");
    sandbox.stdout_of(&["export", "a", "--to", "hf", "out"]);
    write_experiment(&sandbox, "b", "init: {from: out}", SINGLE);
    let reported = |command: &str, more: &[&str]| {
        let arguments: Vec<&str> = command.split(' ').chain(more.iter().copied()).collect();
        let printed = sandbox.expect(0, &arguments);
        printed.lines().find(|line| line.contains("beside the weights")).map(str::to_owned)
    };
    assert_eq!(reported("plan b.yaml", &[]), None, "the same bytes");
    // The characters of the text have the ids 0, 1, …, which are control characters among the bytes.
    let chars = ["--set", "data.tokenizer={chars: {}}"];
    let text = fs::read_to_string(sandbox.folder().join("input.txt")).unwrap();
    let distinct = text.chars().collect::<BTreeSet<_>>().len();
    let warning = reported("plan b.yaml", &chars).unwrap();
    assert!(warning.contains(&format!("{distinct} of {distinct} ids")), "{warning}");
    assert!(warning.contains("`data.tokenizer`"), "{warning}");
    assert!(reported("apply b.yaml --quiet --threads 1", &chars).is_some());
    assert_eq!(reported("eval --weights out --text input.txt --threads 1", &[]), None);
    sandbox.stdout_of("tokenizer train input.txt --vocab-size 257 --out own.json");
    let warning = reported("eval --weights out --tokenizer own.json --text input.txt --threads 1", &[]).unwrap();
    assert!(warning.contains("`--tokenizer`"), "{warning}");
}

/// How a model is trained is free: in the file, for the weights that it starts from, and for what is written of it.
#[test]
fn what_concerns_training_alone_is_no_other_model() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", &format!("{GPT2}, mlp_dropout: 0.1, init: {{pytorch: {{}}}}"), SINGLE);
    let first = train(&sandbox, "a");
    sandbox.stdout_of(&["export", "a", "--to", "hf", "out"]);
    write_experiment(&sandbox, "b", "init: {from: out}, mlp_dropout: 0.1", SINGLE);
    sandbox.stdout_of(&["validate", "b.yaml"]);
    assert_eq!(val_loss(&train(&sandbox, "b"), 0), val_loss(&first, 2));

    write_experiment(&sandbox, "c", "init: {from: out}, norm: post", SINGLE);
    sandbox.show(2, &["validate", "c.yaml"]);
    write_experiment(&sandbox, "c", &format!("{GPT2}, norm: post"), SINGLE);
    train(&sandbox, "c");
    sandbox.show(2, &["export", "c", "--to", "hf", "other"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn files_of_the_user_are_never_removed() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", GPT2, SINGLE);
    train(&sandbox, "a");
    let names = [
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "added_tokens.json",
        "special_tokens_map.json",
    ];
    fs::create_dir(sandbox.path("out")).unwrap();
    for name in names {
        fs::write(sandbox.path("out").join(name), "mine").unwrap();
        let printed = sandbox.show(2, &["export", "a", "--to", "hf", "out"]);
        assert_eq!(sandbox.expect(2, &["export", "a", "--to", "hf", "out", "--force"]), printed);
        let names: Vec<_> = fs::read_dir(sandbox.path("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [name], "nothing was written or removed");
        fs::remove_file(sandbox.path("out").join(name)).unwrap();
    }
    // Beside the export, inside of it, and behind a link.
    sandbox.write("out/notes/a.txt", "mine");
    sandbox.write("elsewhere/model-00001-of-00002.safetensors", "mine");
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.path("out/linked")).unwrap();
    sandbox.stdout_of(&["export", "a", "--to", "hf", "out"]);
    sandbox.stdout_of(&["export", "a", "--to", "hf", "out", "--force"]);
    for name in ["out/notes/a.txt", "out/linked/model-00001-of-00002.safetensors"] {
        assert_eq!(sandbox.read(name), "mine", "{name}");
    }
    insta::assert_snapshot!(sandbox.screens());
}

/// Each of several exports at once is whole.
#[test]
fn exports_at_once_do_not_mix() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", GPT2, SINGLE);
    train(&sandbox, "a");
    for (to, place) in [("hf", "out"), ("torch", "m.pt"), ("safetensors", "whole")] {
        let codes = || -> Vec<i32> {
            let export = || sandbox.run(&["export", "a", "--to", to, place, "--force"]).code;
            std::thread::scope(|scope| {
                let running: Vec<_> = (0..4).map(|_| scope.spawn(export)).collect();
                running.into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        };
        assert_eq!(codes(), [0; 4], "{to}");
    }
    OpenedWeights::open(&sandbox.path("out")).unwrap();
    candle_core::safetensors::load(sandbox.path("whole/model.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(unfinished_files(&sandbox), Vec::<String>::new());
    let mode = |path: &str| fs::metadata(sandbox.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("m.pt"), mode("whole/model.safetensors")], [mode("a.yaml"); 2], "as the user's other files");
}

#[test]
fn contradictions_are_errors_at_their_key() {
    let sandbox = new_sandbox();
    let folder = fixture("gpt2");
    let from = format!("init: {{from: {}}}", folder.display());
    for keys in [
        "layers: 3",
        "preset: gpt2-nano",
        "family: llama",
        "norm_eps: 1e-6",
        "context_length: 17",
        "tie_embeddings: false",
        "vocab_size: 39",
        "dropout: 0.0",
    ] {
        write_experiment(&sandbox, "x", &format!("{keys}, {from}"), "");
        sandbox.show(2, &["plan", "x.yaml"]);
    }
    write_experiment(&sandbox, "x", "init: {from: nowhere}", "");
    sandbox.show(2, &["validate", "x.yaml"]);

    write_experiment(&sandbox, "x", &format!("vocab_size: 300, context_length: 8, dropout: 0.1, {from}"), "");
    sandbox.show(0, &["plan", "x.yaml"]);
    sandbox.show(0, &["validate", "--explain", "x.yaml"]);
    train(&sandbox, "x");
    insta::assert_snapshot!(sandbox.screens());
}

/// What is missing may come later; what is there and cannot be read does not.
#[test]
fn weights_that_cannot_be_read_are_not_missing() {
    let sandbox = Sandbox::new().with_numbers(1500);
    sandbox.write("quantized/config.json", r#"{"model_type": "gpt2", "quantization_config": {"bits": 4}}"#);
    fs::write(sandbox.path("old.pt"), b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.").unwrap();
    for (from, code) in [("quantized", 2), ("old.pt", 2), ("nowhere", 0)] {
        write_experiment(&sandbox, "x", &format!("{GPT2}, init: {{from: {from}}}"), "");
        // The training data is there, so a plan needs the weights too.
        for (command, code) in [("validate --explain x.yaml", code), ("plan x.yaml", 2)] {
            sandbox.show(code, command);
        }
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", GPT2, SINGLE);
    train(&sandbox, "a");
    sandbox.stdout_of(&["export", "a", "--to", "hf", "out"]);
    let file = sandbox.path("out/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    write_experiment(&sandbox, "x", "init: {from: out}", "");
    sandbox.show(1, "apply x.yaml --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn the_weights_belong_to_the_plan() {
    let sandbox = new_sandbox();
    write_experiment(&sandbox, "a", GPT2, SINGLE);
    train(&sandbox, "a");
    for folder in ["out", "again"] {
        sandbox.stdout_of(&["export", "a", "--to", "hf", folder]);
    }
    sandbox.stdout_of(&["export", "a", "--to", "hf", "bf16", "--dtype", "bf16"]);
    let hash = |folder: &str| {
        write_experiment(&sandbox, "x", &format!("init: {{from: {folder}}}"), "");
        let plan: serde_json::Value = serde_json::from_str(&sandbox.stdout_of(&["plan", "x.yaml", "--json"])).unwrap();
        plan["hash"].as_str().unwrap().to_owned()
    };
    assert_eq!(hash("out"), hash("again"), "the same weights elsewhere");
    assert_ne!(hash("out"), hash("bf16"));

    write_experiment(&sandbox, "b", "init: {from: out}", "checkpoint: {every: 1}\n");
    sandbox.stdout_of(&["apply", "b.yaml", "--threads", "1", "--quiet", "--until-step", "1"]);
    let b = run_of(&sandbox, "b").0.display().to_string();
    let b = b.as_str();
    sandbox.stdout_of(&["reproduce", b, "--threads", "1", "--quiet"]);
    sandbox.stdout_of(&[
        "fork",
        b,
        "--from",
        "start",
        "--set",
        "optimizer.adamw.lr=1e-3",
        "--name",
        "c",
        "--threads",
        "1",
        "--quiet",
    ]);
    let sweep = "sweep: {base: b.yaml, grid: {model.init.from: [out, bf16]}}\n";
    fs::write(sandbox.path("s.yaml"), sweep).unwrap();
    sandbox.show(0, &["sweep", "s.yaml", "--dry-run"]);

    // Other weights under the same name.
    fs::rename(sandbox.path("out"), sandbox.path("moved")).unwrap();
    fs::rename(sandbox.path("bf16"), sandbox.path("out")).unwrap();
    sandbox.show(2, &["reproduce", b]);
    sandbox.expect(3, &["reproduce", b, "--check"]);
    fs::remove_dir_all(sandbox.path("out")).unwrap();
    sandbox.show(2, &["reproduce", b]);
    // A checkpoint needs them no more.
    sandbox.stdout_of(&["resume", b, "--threads", "1", "--quiet"]);
    sandbox.stdout_of(&["eval", b]);
    sandbox.stdout_of(&["export", b, "--to", "hf", "end"]);
    insta::assert_snapshot!(sandbox.screens());
}

fn fixture(name: &str) -> PathBuf {
    repository_path("tests/fixtures/hf").join(name)
}
