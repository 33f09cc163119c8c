//! Runs that are exported, and runs that start from what was exported.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use candle_core::Device;
use runner_weights::{Opened, describe};

use crate::lab::{INTERLEAVED, Lab, MESH, SINGLE, json, val_loss};
use crate::read::fixture;

const GPT2: &str = "family: gpt2, layers: 4, heads: 2, d_model: 16, context_length: 16";
const LLAMA: &str = "family: llama, layers: 4, heads: 4, kv_heads: 2, d_model: 16, d_ff: 24, context_length: 16";

/// What two layouts of the same may differ by: f32 sums in another order, of a loss of about 5.
const ROUNDING: f64 = 1e-5;

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
        let lab = Lab::new();
        lab.experiment("first", &model, from);
        let first = lab.apply("first");
        lab.ok(&["export", "first", "--to", "hf", "out"]);
        lab.ok(&["export", "first", "--to", "safetensors", "whole"]);

        let opened = Opened::open(&lab.path("out")).unwrap();
        let tensors = candle_core::safetensors::load(lab.path("whole/model.safetensors"), &Device::Cpu).unwrap();
        for (name, tensor) in &tensors {
            let mut values = vec![0.0; tensor.elem_count()];
            opened.read(name, tensor.dims(), &mut values).unwrap();
            let stored: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
            assert!(values.iter().map(|v| v.to_bits()).eq(stored.iter().map(|v| v.to_bits())), "{i}: {name}");
        }

        for (name, layout) in [("same", from), ("other", to)] {
            lab.experiment(name, "init: {from: out}", layout);
            let second = lab.apply(name);
            let (was, is) = (val_loss(&first, 2), val_loss(&second, 0));
            let tolerance = if layout == from { 0.0 } else { ROUNDING };
            assert!((was - is).abs() <= tolerance, "{i}, {name}: {was} then {is}");
            assert!(val_loss(&second, 2) != is, "{i}: it goes on from there");
        }
    }
}

#[test]
fn types_shards_and_rows_of_the_vocabulary_are_chosen() {
    let lab = Lab::new();
    lab.experiment("a", &format!("{GPT2}, pad_vocab_to: 64"), SINGLE);
    lab.apply("a");
    lab.ok(&["export", "a", "--to", "hf", "out", "--shard-size", "20KB"]);
    let index = json(&lab.path("out/model.safetensors.index.json"));
    assert!(lab.path("out/model-00002-of-00004.safetensors").exists(), "{index}");
    assert!(index["weight_map"].as_object().unwrap().len() > 40);
    let whole = Opened::open(&lab.path("out")).unwrap();
    assert_eq!(whole.vocab_size(), 320);
    let name = "transformer.h.1.mlp.c_fc.weight";
    let mut a = vec![0.0; 64 * 16];
    whole.read(name, &[64, 16], &mut a).unwrap();

    let said = lab.refused(&["export", "a", "--to", "hf", "out"]);
    assert!(said.contains("is there already: --force replaces it"), "{said}");
    fs::write(lab.path("out/README.md"), "mine").unwrap();
    let made =
        lab.ok(&["export", "a", "--to", "hf", "out", "--force", "--dtype", "bf16", "--vocab", "trimmed", "--json"]);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!((made["step"].as_u64(), made["files"].as_array().unwrap().len()), (Some(2), 5));
    let names = || {
        let mut names: Vec<String> =
            fs::read_dir(lab.path("out")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
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
    let config = json(&lab.path("out/config.json"));
    assert_eq!((config["vocab_size"].as_u64(), config["eos_token_id"].as_u64()), (Some(257), Some(256)));
    let trimmed = Opened::open(&lab.path("out")).unwrap();
    let mut b = vec![0.0; 64 * 16];
    trimmed.read(name, &[64, 16], &mut b).unwrap();
    assert!(a.iter().zip(&b).all(|(a, b)| half::bf16::from_f32(*a).to_f32().to_bits() == b.to_bits()));

    for (flags, words) in [
        (vec!["--to", "safetensors", "x", "--dtype", "bf16"], "--dtype is for"),
        (vec!["--to", "llmc", "x", "--vocab", "trimmed"], "--vocab is for --to hf"),
        (vec!["--to", "llmc", "x.bin", "--dtype", "f16"], "f32 or bf16"),
        (vec!["--to", "hf", "input.txt"], "is not a folder"),
        (vec!["--to", "hf", "x", "--shard-size", "0"], "a size is meant"),
    ] {
        let said = lab.refused(&[vec!["export", "a"], flags].concat());
        assert!(said.contains(words), "{said}");
    }
    assert!(!lab.path("x").exists() && lab.leftovers().is_empty());
}

#[test]
fn llmc_files_close_the_loop() {
    let lab = Lab::new();
    lab.experiment("a", &format!("{GPT2}, pad_vocab_to: 64"), MESH);
    let first = lab.apply("a");
    lab.ok(&["export", "a", "--to", "llmc", "m.bin"]);
    lab.ok(&["export", "a", "--to", "llmc", "folder", "--dtype", "bf16"]);
    let described = describe(&lab.path("m.bin")).unwrap();
    assert_eq!((described.vocab_size, described.layers, described.context_length), (257, 4, 16));
    assert_eq!(Opened::open(&lab.path("m.bin")).unwrap().vocab_size(), 384);
    let size = |path: &str| fs::metadata(lab.path(path)).unwrap().len();
    assert_eq!(size("m.bin") - 1024, 2 * (size("folder/model.bin") - 1024));
    // The file has the run's padding; rows beyond the run's own are not taken.
    lab.experiment("b", "vocab_size: 320, init: {from: m.bin}", MESH);
    let second = lab.apply("b");
    assert_eq!(val_loss(&first, 2), val_loss(&second, 0));

    // A name with a dot is a folder's, but for .bin.
    lab.ok(&["export", "a", "--to", "llmc", "weights.v1"]);
    assert!(lab.path("weights.v1/model.bin").is_file());
    assert!(lab.refused(&["export", "a", "--to", "llmc", "input.txt"]).contains("input.txt is not a folder"));

    lab.experiment("llama", LLAMA, SINGLE);
    lab.apply("llama");
    assert!(lab.refused(&["export", "llama", "--to", "llmc", "l.bin"]).contains("--to hf writes it"));
    lab.experiment("untied", &format!("{GPT2}, tie_embeddings: false"), SINGLE);
    lab.apply("untied");
    assert!(lab.refused(&["export", "untied", "--to", "llmc", "l.bin"]).contains("tie_embeddings"));
}

/// Padding takes no part in the softmax unless it is asked for.
#[test]
fn both_formats_of_a_run_start_with_the_same_loss() {
    let lab = Lab::new();
    lab.experiment("a", GPT2, SINGLE);
    let first = val_loss(&lab.apply("a"), 2);
    lab.ok(&["export", "a", "--to", "hf", "out"]);
    lab.ok(&["export", "a", "--to", "llmc", "m.bin"]);
    for (name, keys) in [("hf", "init: {from: out}"), ("llmc", "init: {from: m.bin}")] {
        lab.experiment(name, keys, SINGLE);
        assert_eq!(val_loss(&lab.apply(name), 0), first, "{name}");
    }
    let plan = lab.ok(&["plan", "llmc.yaml"]);
    assert!(plan.contains("rows 257 to 383 of the weights' vocabulary are left out"), "{plan}");
    lab.experiment("padded", "pad_vocab_to: 128, init: {from: m.bin}", SINGLE);
    let padded = val_loss(&lab.apply("padded"), 0);
    assert!(padded > first + 0.1, "127 rows of zeros take a share: {padded} after {first}");
}

/// How a model is trained is free: in the file, for the weights that it starts from, and for what is written of it.
#[test]
fn what_concerns_training_alone_is_no_other_model() {
    let lab = Lab::new();
    lab.experiment("a", &format!("{GPT2}, mlp_dropout: 0.1, init: {{pytorch: {{}}}}"), SINGLE);
    let first = lab.apply("a");
    lab.ok(&["export", "a", "--to", "hf", "out"]);
    lab.experiment("b", "init: {from: out}, mlp_dropout: 0.1", SINGLE);
    lab.ok(&["validate", "b.yaml"]);
    assert_eq!(val_loss(&lab.apply("b"), 0), val_loss(&first, 2));

    lab.experiment("c", "init: {from: out}, norm: post", SINGLE);
    let said = lab.refused(&["validate", "c.yaml"]);
    assert!(said.contains("`model.norm` makes another model"), "{said}");
    lab.experiment("c", &format!("{GPT2}, norm: post"), SINGLE);
    lab.apply("c");
    let said = lab.refused(&["export", "c", "--to", "hf", "other"]);
    assert!(said.contains(r#"model.norm is "post", which a Hugging Face folder has not"#), "{said}");
}

#[test]
fn files_of_the_user_stay_without_force() {
    let lab = Lab::new();
    lab.experiment("a", GPT2, SINGLE);
    lab.apply("a");
    let own = ["model-00001-of-00002.safetensors", "model.safetensors.index.json"];
    fs::create_dir(lab.path("out")).unwrap();
    for name in own {
        fs::write(lab.path("out").join(name), "mine").unwrap();
        let said = lab.refused(&["export", "a", "--to", "hf", "out"]);
        assert!(said.contains(&format!("{name} is there already")) && said.contains("--force removes it"), "{said}");
        let names: Vec<_> = fs::read_dir(lab.path("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [name], "nothing was written or removed");
        fs::remove_file(lab.path("out").join(name)).unwrap();
    }
    fs::write(lab.path("out").join(own[0]), "mine").unwrap();
    lab.ok(&["export", "a", "--to", "hf", "out", "--force"]);
    assert!(!lab.path("out").join(own[0]).exists());
}

/// Each of several exports at once is whole.
#[test]
fn exports_at_once_do_not_mix() {
    let lab = Lab::new();
    lab.experiment("a", GPT2, SINGLE);
    lab.apply("a");
    for (to, place) in [("hf", "out"), ("llmc", "m.bin"), ("safetensors", "whole")] {
        let codes = || -> Vec<Option<i32>> {
            let export = || lab.run(&["export", "a", "--to", to, place, "--force"]).status.code();
            std::thread::scope(|scope| {
                let running: Vec<_> = (0..4).map(|_| scope.spawn(export)).collect();
                running.into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        };
        assert_eq!(codes(), [Some(0); 4], "{to}");
    }
    Opened::open(&lab.path("out")).unwrap();
    Opened::open(&lab.path("m.bin")).unwrap();
    candle_core::safetensors::load(lab.path("whole/model.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(lab.leftovers(), Vec::<String>::new());
    let mode = |path: &str| fs::metadata(lab.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("m.bin"), mode("whole/model.safetensors")], [mode("a.yaml"); 2], "as the user's other files");
}

#[test]
fn contradictions_are_errors_at_their_key() {
    let lab = Lab::new();
    let folder = fixture("gpt2");
    let from = format!("init: {{from: {}}}", folder.display());
    for (keys, words) in [
        ("layers: 3", "`model.layers` is 3, and the weights of `model.init.from` have 2"),
        ("preset: gpt2-nano", "`model.layers` is 3, and the weights"),
        ("family: llama", "`model.family` is llama, and the weights of `model.init.from` have gpt2"),
        ("norm_eps: 1e-6", "`model.norm_eps` is"),
        ("context_length: 17", "`model.context_length` is 17, and the weights of `model.init.from` have 16"),
        ("tie_embeddings: false", "`model.tie_embeddings` is false"),
        ("vocab_size: 39", "beyond the vocabulary of 39"),
        ("dropout: 0.0", "the weights of model.init.from have 40 tokens"),
    ] {
        lab.experiment("x", &format!("{keys}, {from}"), "");
        let said = lab.refused(&["plan", "x.yaml"]);
        assert!(said.contains(words), "{keys}: {said}");
        if said.contains("-->") {
            assert!(said.contains("x.yaml:2:"), "at the key: {said}");
        }
    }
    lab.experiment("x", "init: {from: nowhere}", "");
    let said = lab.refused(&["validate", "x.yaml"]);
    assert!(said.contains("x.yaml:2:22") && said.contains("nowhere") && said.contains("1 mistake"), "{said}");

    lab.experiment("x", &format!("vocab_size: 300, context_length: 8, dropout: 0.1, {from}"), "");
    let plan = lab.ok(&["plan", "x.yaml"]);
    assert!(plan.contains("rows 40 to 299 of the vocabulary are not in the weights and are drawn"), "{plan}");
    let explained = lab.ok(&["validate", "--explain", "x.yaml"]);
    assert!(explained.contains("gpt2/config.json"), "{explained}");
    lab.apply("x");
}

#[test]
fn the_weights_belong_to_the_plan() {
    let lab = Lab::new();
    lab.experiment("a", GPT2, SINGLE);
    lab.apply("a");
    for folder in ["out", "again"] {
        lab.ok(&["export", "a", "--to", "hf", folder]);
    }
    lab.ok(&["export", "a", "--to", "hf", "bf16", "--dtype", "bf16"]);
    let hash = |folder: &str| {
        lab.experiment("x", &format!("init: {{from: {folder}}}"), "");
        let plan: serde_json::Value = serde_json::from_str(&lab.ok(&["plan", "x.yaml", "--json"])).unwrap();
        plan["hash"].as_str().unwrap().to_owned()
    };
    assert_eq!(hash("out"), hash("again"), "the same weights elsewhere");
    assert_ne!(hash("out"), hash("bf16"));

    lab.experiment("b", "init: {from: out}", "checkpoint: {every: 1}\n");
    lab.ok(&["apply", "b.yaml", "--threads", "1", "--quiet", "--until-step", "1"]);
    let run = lab.folder("b");
    let b = run.to_str().unwrap();
    lab.ok(&["reproduce", b, "--threads", "1", "--quiet"]);
    lab.ok(&["fork", b, "--set", "optimizer.adamw.lr=1e-3", "--name", "c", "--threads", "1", "--quiet"]);
    let sweep = "sweep: {base: b.yaml, grid: {model.init.from: [out, bf16]}}\n";
    fs::write(lab.path("s.yaml"), sweep).unwrap();
    let said = lab.ok(&["sweep", "s.yaml", "--dry-run"]);
    assert!(said.contains("bf16"), "{said}");

    // Other weights under the same name.
    fs::rename(lab.path("out"), lab.path("moved")).unwrap();
    fs::rename(lab.path("bf16"), lab.path("out")).unwrap();
    let said = lab.refused(&["reproduce", b]);
    assert!(said.contains("the weights that it started from") && said.contains("have changed"), "{said}");
    let output = lab.run(&["reproduce", b, "--check"]);
    assert_eq!(output.status.code(), Some(3));
    fs::remove_dir_all(lab.path("out")).unwrap();
    let said = lab.refused(&["reproduce", b]);
    assert!(said.contains("the weights of model.init.from are gone"), "{said}");
    // A checkpoint needs them no more.
    lab.ok(&["resume", b, "--threads", "1", "--quiet"]);
    lab.ok(&["eval", b]);
    lab.ok(&["export", b, "--to", "hf", "end"]);
}
