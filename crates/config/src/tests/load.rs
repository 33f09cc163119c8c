//! Good files: what they load to, and which layer wins.

use std::path::Path;

use crate::{LoadOptions, Loaded, explain, from_str, load, to_yaml};
use runner_spec::data::SpecialTokens;
use runner_spec::error::PlainError;
use runner_spec::experiment::{
    AutoOr, Batch, DeviceChoice, EvalLoss, Experiment, Family, Layout, Optimizer, Parallel, ParallelMode,
    ParquetSource, Pipeline, PipelineSchedule, Seeds, Source, Tokenizer, Validation,
};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{ModelSpec, parameters};
use runner_spec::optimizer::{AdamW, Decays, Sgd};
use runner_spec::program::Device;
use runner_spec::schedule::{CosineDecay, Decay, ScheduleLength};
use runner_weights::{Dtype, HfExport};

/// Every key.
pub(super) const FULL: &str = r#"version: 1
name: shakespeare-chars
seed: 1337
device: auto
model:
  family: llama
  preset: llama-micro
  vocab_size: 50304
  pad_vocab_to: 64
  context_length: 1024
  layers: 12
  heads: 12
  kv_heads: 3
  d_model: 768
  d_ff: 3072
  dropout: 0.0
  tie_embeddings: true
  norm_eps: 1e-5
  rope_theta: 10000.0
data:
  tokenizer: {gpt2: {vocab: vocab.json, merges: merges.txt}}
  train: {parquet: {files: ["*.parquet"], column: text}}
  validation: {fraction: 0.1}
  layout: {packed: {length: 1024}}
batch:
  sequences: 64
  micro_batch: 16
train:
  steps: 2000
  clip_norm: 1.0
optimizer: {adamw: {lr: 6e-4, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}}
schedule:
  warmup: {steps: 10, from: 0.1}
  decay: {cosine: {final: 0.1, steps: 40}}
precision: fp32
parallel:
  mode: pipeline
  replicas: 2
  bucket_mb: 12.5
  pipeline: {stages: 3, partition: [5, 4, 3], schedule: 1f1b, chunks: 1, microbatches: 2}
  devices: [cpu, cpu, cpu, cpu, cpu, cpu]
  max_restarts: 3
eval:
  every: 250
  loss: {batches: 20}
  hellaswag: {file: hellaswag_val.jsonl, limit: 200}
  samples: {prompts: ["Hello, I'm a language model,", "null", "5_000", "a\n\tb"], count: 4, max_tokens: 32, top_k: 50, temperature: 1.0, top_p: null, seed: 42}
checkpoint: {every: 500, keep: 3}
log: {every: 10}
"#;

pub(super) const SHORT: &str = "model: {preset: gpt2-micro}\ndata: {train: {text: {files: [input.txt]}}}\n";

/// The files that the experiments here name.
pub(super) fn fill(folder: &Path) {
    for name in ["vocab.json", "merges.txt", "a.parquet", "hellaswag_val.jsonl", "input.txt", "t.bin"] {
        std::fs::write(folder.join(name), "x").unwrap();
    }
}

fn options(sets: &[&str], env: &[(&str, &str)]) -> LoadOptions<'static> {
    LoadOptions {
        sets: sets.iter().map(|&s| s.to_owned()).collect(),
        env: env.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
        ..LoadOptions::default()
    }
}

pub(super) fn loaded(text: &str, sets: &[&str], env: &[(&str, &str)]) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let mut loaded =
        from_str(text, &folder.path().join("exp.yaml"), &options(sets, env)).unwrap_or_else(|e| panic!("{e}"));
    for origin in &mut loaded.origins {
        for field in [&mut origin.source, &mut origin.value] {
            *field = field.replace(&format!("{}/", folder.path().display()), "");
        }
    }
    loaded
}

pub(super) fn experiment(text: &str, sets: &[&str]) -> Experiment {
    loaded(text, sets, &[]).experiment
}

#[test]
fn a_short_file_suffices() {
    let e = experiment(SHORT, &[]);
    assert_eq!((e.name.as_str(), e.seed, e.device), ("exp", 1337.into(), DeviceChoice::Auto));
    assert_eq!((e.model.layers, e.model.heads, e.model.d_ff, e.model.tie_embeddings), (4, 4, 512, true));
    assert_eq!(e.model.vocab_size, None);
    assert_eq!(e.data.tokenizer, Tokenizer::Bytes {});
    assert_eq!(e.data.validation, Some(Validation::Fraction(0.1)));
    assert_eq!(e.data.layout, Layout::packed(128));
    assert_eq!(e.batch, Batch { sequences: 32, micro_batch: 8, warmup: None });
    assert_eq!((e.train.steps, e.train.clip_norm), (Some(1000), Some(1.0)));
    assert_eq!(
        e.optimizer,
        Optimizer::Adamw(AdamW {
            lr: 6e-4,
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.1,
            decays: Decays::Matrices
        })
    );
    assert_eq!(e.schedule.decay, Decay::Constant {});
    assert_eq!(e.eval.loss, Some(EvalLoss::Rows(160)));
    assert!(e.eval.hellaswag.is_none() && e.eval.samples.is_none());
}

#[test]
fn resolved_yaml_loads_to_the_same_experiment() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let path = folder.path().join("exp.yaml");
    let tokens = "model: {preset: llama-nano}\ndata: {tokenizer: {bpe: {vocab_size: 300, special_tokens: ['[A]', '~']}}, train: {tokens: {files: [t.bin]}}, layout: {padded: {bos: '[A]', eos: '~', pad: '[A]'}}}\ntrain: {tokens: 10e9, clip_norm: null}\noptimizer: {sgd: {lr: 5}}\nschedule: {decay: {step: {every: 10, gamma: 0.95}}}\neval: {hellaswag: {builtin: stories}, loss: null}\n";
    let other = "model: {preset: gpt2-nano, dropout: 0.1}\ndata: {tokenizer: {file: input.txt}, train: {builtin: {corpus: stories}}, validation: {jsonl: {files: ['*.jsonl']}}}\ntrain: {epochs: 0.5}\nbatch: {tokens: 2048}\nseed: 18446744073709551615\nschedule: {decay: {linear: {}}}\n";
    for text in [FULL, SHORT, tokens, other] {
        let first = from_str(text, &path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}")).experiment;
        let yaml = to_yaml(&first);
        // From another folder: paths in it are absolute.
        let second = from_str(&yaml, Path::new("/resolved.yaml"), &LoadOptions::default())
            .unwrap_or_else(|e| panic!("{e}\n{yaml}"));
        assert_eq!(second.experiment, first, "{yaml}");
        assert!(!yaml.contains('!'), "{yaml}");
    }
}

#[test]
fn a_number_alone_is_a_length_in_steps() {
    let with = |schedule: &str| experiment(&format!("{SHORT}schedule: {schedule}\n"), &[]).schedule;
    let decay = "decay: {linear: {}}";
    assert_eq!(
        with(&format!("{{warmup: 5, cooldown: 20, {decay}}}")),
        with(&format!("{{warmup: {{steps: 5}}, cooldown: {{steps: 20}}, {decay}}}"))
    );
    assert_eq!(with("{warmup: 0}"), with("{}"));
    let given =
        [("schedule.warmup.from", "0.5"), ("schedule.warmup", "7")].map(|(key, value)| format!("{key}={value}"));
    let warmup = experiment(SHORT, &given.each_ref().map(String::as_str)).schedule.warmup;
    assert_eq!((warmup.length, warmup.from), (Some(ScheduleLength::Steps(7)), Some(0.5)));
}

#[test]
fn every_key_is_read() {
    let e = experiment(FULL, &[]);
    assert_eq!(e.model.family, Family::Llama);
    assert_eq!((e.model.vocab_size, e.model.pad_vocab_to, e.model.kv_heads), (Some(50304), Some(64), 3));
    assert_eq!(
        e.schedule.decay,
        Decay::Cosine(CosineDecay { last: 0.1, length: Some(ScheduleLength::Steps(40)), ..CosineDecay::default() })
    );
    assert_eq!((e.schedule.warmup.length, e.schedule.warmup.from), (Some(ScheduleLength::Steps(10)), Some(0.1)));
    let samples = e.eval.samples.unwrap();
    assert_eq!(samples.prompts, ["Hello, I'm a language model,", "null", "5_000", "a\n\tb"]);
    assert_eq!((samples.count, samples.top_p, samples.top_k), (4, None, Some(50)));
    let stages = Pipeline {
        stages: 3,
        partition: AutoOr::Given(vec![5, 4, 3]),
        schedule: PipelineSchedule::OneFOneB,
        chunks: 1,
        microbatches: 2,
    };
    let parallel = Parallel {
        mode: ParallelMode::Pipeline,
        replicas: 2,
        bucket_mb: 12.5,
        shard: None,
        pipeline: Some(stages),
        devices: AutoOr::Given(vec![Device::Cpu; 6]),
        max_restarts: 3,
    };
    assert_eq!(e.parallel, parallel);
    let Source::Parquet(ParquetSource { files, column, .. }) = e.data.train else { panic!() };
    assert!(files[0].is_absolute() && files[0].ends_with("*.parquet") && column.as_deref() == Some("text"));
}

#[test]
fn numbers_are_read_in_every_spelling() {
    for (spelled, steps) in
        [("5_000", 5000), ("10e9", 10_000_000_000), ("1E+3", 1000), ("0x10", 16), ("1.5e3", 1500), ("+7", 7)]
    {
        assert_eq!(experiment(SHORT, &[&format!("train.steps={spelled}")]).train.steps, Some(steps), "{spelled}");
    }
    for (spelled, lr) in [("1e-4", 1e-4), (".5", 0.5), ("3", 3.0), ("1_0.5", 10.5), ("6E-4", 6e-4)] {
        assert_eq!(experiment(SHORT, &[&format!("optimizer.adamw.lr={spelled}")]).optimizer.lr(), lr, "{spelled}");
    }
    assert_eq!(experiment(&format!("{SHORT}name: 1e4\n"), &[]).name, "1e4");
    assert_eq!(experiment(&format!("{SHORT}seed: 18446744073709551615\n"), &[]).seed, u64::MAX.into());
}

#[test]
fn a_seed_is_one_number_or_three() {
    let seeds = |data, init, dropout| Seeds { data, init, dropout };
    let all = [
        ("seed: 7", "", seeds(7, 7, 7)),
        ("seed: {data: 1, init: 2, dropout: 3}", "", seeds(1, 2, 3)),
        ("seed: {init: 2}", "", seeds(1337, 2, 1337)),
        ("seed: {}", "", seeds(1337, 1337, 1337)),
        ("seed: 7", "seed.init=5", seeds(7, 5, 7)),
        ("seed: {data: 1, init: 2}", "seed=9", seeds(9, 9, 9)),
        ("seed: {data: 1, init: 2}", "seed={dropout: 4}", seeds(1, 2, 4)),
    ];
    for (text, set, expected) in all {
        let sets: Vec<&str> = Some(set).into_iter().filter(|set| !set.is_empty()).collect();
        let loaded = loaded(&format!("{SHORT}{text}\n"), &sets, &[]);
        assert_eq!(loaded.experiment.seed, expected, "{text} {set}");
        let options = LoadOptions { allows_absent_files: true, ..LoadOptions::default() };
        let again = from_str(&to_yaml(&loaded.experiment), Path::new("exp.yaml"), &options).unwrap();
        assert_eq!(again.experiment, loaded.experiment);
    }
    let explained = explain(&loaded(&format!("{SHORT}seed: 7\n"), &["seed.init=5"], &[]).origins);
    let seeds: Vec<&str> = explained.lines().filter(|line| line.starts_with("seed")).collect();
    insta::assert_snapshot!(seeds.join("\n"));
}

#[test]
fn a_higher_layer_wins() {
    let text = "model:\n  preset: gpt2-124m\n  layers: 2\n  context_length: 64\ndata: {train: {text: {files: [input.txt]}}}\nseed: 1\ntrain: {steps: 5}\n";
    let env = [
        ("RUNNER_SEED", "2"),
        ("RUNNER_MODEL__LAYERS", "3"),
        ("RUNNER_BATCH__MICRO_BATCH", "4"),
        ("RUNNER_OS", "x"),
        ("RUNNER_TRAIN__STEPS", ""),
    ];
    let l = loaded(text, &["seed=3", "seed=4"], &env);
    let e = &l.experiment;
    assert_eq!(
        (e.seed, e.model.layers, e.model.heads, e.model.context_length, e.batch.micro_batch),
        (4.into(), 3, 12, 64, 4)
    );
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    assert_eq!(
        l.env_read,
        [pair("RUNNER_BATCH__MICRO_BATCH", "4"), pair("RUNNER_MODEL__LAYERS", "3"), pair("RUNNER_SEED", "2")]
    );
    insta::assert_snapshot!(explain(&l.origins));
}

#[test]
fn a_different_choice_replaces_the_lower_one() {
    let text = format!(
        "{SHORT}optimizer: {{adamw: {{lr: 1e-3}}}}\ntrain: {{steps: 5}}\nbatch: {{sequences: 4}}\nschedule: {{decay: {{cosine: {{final: 0}}}}}}\n"
    );
    let sets = [
        "optimizer={sgd: {lr: 5.0}}",
        "train.epochs=3",
        "batch.tokens=1024",
        "schedule.decay.constant={}",
        "data.train={builtin: {corpus: stories}}",
    ];
    let e = experiment(&text, &sets);
    assert_eq!(e.optimizer, Optimizer::Sgd(Sgd { lr: 5.0, momentum: 0.0 }));
    assert_eq!((e.train.steps, e.train.epochs), (None, Some(3.0)));
    assert_eq!(e.batch.sequences, 8);
    assert_eq!(e.schedule.decay, Decay::Constant {});
    assert!(matches!(e.data.train, Source::Builtin { .. }));
    // The same choice is merged into.
    let e = experiment(&text, &["optimizer.adamw.weight_decay=0"]);
    assert_eq!(e.optimizer, Optimizer::Adamw(AdamW { lr: 1e-3, weight_decay: 0.0, ..AdamW::default() }));
}

#[test]
fn null_is_none_or_the_default() {
    let text = format!("{SHORT}seed: null\nbatch:\ntrain: {{steps: 7, clip_norm: null}}\neval: {{loss: ~}}\n");
    let e = experiment(&text, &["train.steps=null"]);
    assert_eq!((e.seed, e.batch.sequences, e.train.steps, e.train.clip_norm), (1337.into(), 32, Some(1000), None));
    assert!(e.eval.loss.is_none());
    assert_eq!(experiment(SHORT, &["data.validation=null"]).data.validation, None);
}

#[test]
fn presets_are_the_published_models() {
    let sizes = |preset: &str| {
        let m = experiment(&SHORT.replace("gpt2-micro", preset), &[]).model;
        (m.vocab_size, m.context_length, m.layers, m.heads, m.kv_heads, m.d_model, m.d_ff, m.tie_embeddings)
    };
    assert_eq!(sizes("gpt2-124m"), (Some(50257), 1024, 12, 12, 12, 768, 3072, true));
    assert_eq!(sizes("gpt2-355m"), (Some(50257), 1024, 24, 16, 16, 1024, 4096, true));
    assert_eq!(sizes("gpt2-774m"), (Some(50257), 1024, 36, 20, 20, 1280, 5120, true));
    assert_eq!(sizes("gpt2-1558m"), (Some(50257), 1024, 48, 25, 25, 1600, 6400, true));
    assert_eq!(sizes("llama-179m"), (Some(50_000), 512, 12, 12, 3, 768, 3072, false));
    for preset in crate::presets::names() {
        sizes(preset);
    }
}

/// The numbers of parameters that `transformers` counts in the published models.
#[test]
fn presets_have_the_parameters_of_the_published_models() {
    for (preset, parameters) in [
        ("gpt2-124m", 124_439_808),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen3-0.6b", 596_049_920),
        ("gemma3-1b", 999_885_952),
        ("olmo2-1b", 1_484_916_736),
        ("olmo3-7b", 7_298_011_136),
        ("smollm3-3b", 3_075_098_624_usize),
    ] {
        let model = experiment(&SHORT.replace("gpt2-micro", preset), &[]).model;
        let spec = model.spec(model.vocab_size.unwrap());
        let counted: usize = spec.decoder().parameters().iter().map(|parameter| parameter.spec.len()).sum();
        assert_eq!(counted, parameters, "{preset}");
    }
}

#[test]
fn small_presets_are_exported_as_the_class_of_their_name() {
    for (preset, model_type) in [
        ("gpt2-nano", "gpt2"),
        ("llama-nano", "llama"),
        ("mistral-nano", "mistral"),
        ("qwen2-nano", "qwen2"),
        ("qwen3-nano", "qwen3"),
        ("gemma3-nano", "gemma3_text"),
        ("olmo2-nano", "olmo2"),
        ("olmo3-nano", "olmo3"),
        ("smollm3-nano", "smollm3"),
    ] {
        let spec = experiment(&SHORT.replace("gpt2-micro", preset), &[]).model.spec(256);
        let (described, config) = exported(&spec).unwrap();
        assert_eq!(described, spec, "{preset}");
        assert_eq!(config["model_type"], model_type, "{preset}: {config}");
    }
}

/// What a folder for `transformers` of a model of the shape `spec` describes, and its `config.json`.
fn exported(spec: &ModelSpec) -> Result<(ModelSpec, serde_json::Value), String> {
    let layout = ParamLayout::new(parameters(spec));
    let export = HfExport {
        spec,
        layout: &layout,
        dtype: Dtype::F32,
        shard_bytes: u64::MAX,
        vocab_size: 256,
        tokenizer: Err(PlainError::request("none")),
        special: SpecialTokens::default(),
    };
    let folder = tempfile::tempdir().unwrap();
    let zeros = vec![0; layout.total * 4];
    let mut source = |write: &mut dyn FnMut(u64, &[u8]) -> _| {
        write(0, &zeros)?;
        Ok(1)
    };
    export.write(folder.path(), true, &mut source, &mut |_| Ok(None)).map_err(|error| error.to_string())?;
    let config = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
    Ok((runner_weights::describe(folder.path()).unwrap().spec, serde_json::from_str(&config).unwrap()))
}

/// `transformers` cannot compute Gemma 3 with `sliding_window: null`, even if no layer has a window, or read a scale that is not 1/√ of a whole
/// number.
#[test]
fn folders_of_gemma_have_whole_numbers() {
    let mut spec = experiment(&SHORT.replace("gpt2-micro", "gemma3-nano"), &[]).model.spec(256);
    spec.options.pattern.clear();
    for scalar in [1, 7, 168, 256, 99_991] {
        spec.options.attention_scale = Some(1.0 / f64::from(scalar).sqrt());
        let (described, config) = exported(&spec).unwrap();
        assert_eq!(described.options.attention_scale, spec.options.attention_scale);
        assert_eq!(
            (&config["query_pre_attn_scalar"], &config["sliding_window"]),
            (&scalar.into(), &spec.context_length.into())
        );
        assert!(described.options.windows().is_empty());
    }
    spec.options.attention_scale = Some(0.11);
    let error = exported(&spec).unwrap_err();
    assert!(error.contains("`attention_scale: 0.11`"), "{error}");
}

#[test]
fn a_file_with_a_byte_order_mark_and_windows_lines_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let sub = folder.path().join("run [1]");
    std::fs::create_dir(&sub).unwrap();
    fill(&sub);
    let text = format!("\u{FEFF}{}", SHORT.replace('\n', "\r\n").replace("input.txt", "'*.txt'"));
    std::fs::write(sub.join("my exp.yaml"), &text).unwrap();
    let l = load(&sub.join("my exp.yaml"), &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((l.experiment.name.as_str(), l.text), ("my-exp", text));
    // The folder's own brackets do not become part of the pattern, nor those of a file that is named as it is.
    let matched = |e: &Experiment| {
        let Source::Text { files } = &e.data.train else { panic!() };
        glob::glob(files[0].to_str().unwrap()).unwrap().count()
    };
    assert_eq!(matched(&l.experiment), 2);
    let plain = from_str(SHORT, &sub.join("e.yaml"), &LoadOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(matched(&plain.experiment), 1);
    let again = from_str(&to_yaml(&plain.experiment), Path::new("/r.yaml"), &LoadOptions::default());
    assert_eq!(again.unwrap_or_else(|e| panic!("{e}")).experiment, plain.experiment);
}

#[test]
fn the_name_of_a_github_actions_machine_is_not_an_experiment_name() {
    let env = [
        ("RUNNER_OS", "Linux"),
        ("RUNNER_TOOL_CACHE", "/opt"),
        ("RUNNER_NAME", "GitHub Actions 12"),
        ("RUNNER_SEED", "5"),
    ];
    let e = loaded(SHORT, &[], &env).experiment;
    assert_eq!((e.name.as_str(), e.seed), ("exp", 5.into()));
}

/// A number alone is `steps`, and a higher layer's length replaces a lower layer's of another kind.
#[test]
fn lengths_are_numbers_or_choices() {
    use runner_spec::experiment::{ScheduleLength, ScheduleStart};
    let start = |sets: &[&str]| loaded(SHORT, sets, &[]).experiment.schedule.start;
    for (sets, length) in [
        (&["schedule.start=5"][..], ScheduleLength::Steps(5)),
        (&["schedule.start={steps: 5}"], ScheduleLength::Steps(5)),
        (&["schedule.start=5", "schedule.start={share: 0.5}"], ScheduleLength::Share(0.5)),
        (&["schedule.start={share: 0.5}", "schedule.start={tokens: 7}"], ScheduleLength::Tokens(7)),
        (&["schedule.start=fork", "schedule.start=0"], ScheduleLength::Steps(0)),
    ] {
        assert_eq!(start(sets), ScheduleStart::At(length), "{sets:?}");
    }
}

/// Paths of all keys in the schema.
fn keys(slot: crate::shape::KeyShape, path: &str, out: &mut Vec<String>) {
    use crate::shape::{Shape, variants};
    let inner = match slot.shape {
        Shape::Keys(keys) => keys.names().into_iter().filter_map(|name| Some((name, keys.get(name)?))).collect(),
        Shape::Variants(of) => variants(of),
        _ => Vec::new(),
    };
    for (name, slot) in inner {
        let at = crate::shape::join(path, name);
        out.push(at.clone());
        keys(slot, &at, out);
    }
}

#[test]
fn the_reference_names_every_key_and_preset_and_its_examples_load() {
    let page = include_str!("../../../../docs/experiment.md");
    let mut all = Vec::new();
    keys(crate::shape::root(), "", &mut all);
    // Sources are described once, under `data.train`.
    let again = |key: &str| key.starts_with("data.validation.") || key.starts_with("eval.test.");
    all.retain(|key| !again(key) || key.ends_with("fraction"));
    all.extend(crate::presets::names().into_iter().map(str::to_owned));
    assert!(all.len() > 80);
    let missing: Vec<&String> = all.iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let examples: Vec<&str> = page.split("```yaml").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 3);
    let modes = examples.iter().map(|example| experiment(example, &[]).parallel.mode);
    assert_eq!(modes.collect::<Vec<_>>(), [ParallelMode::Single, ParallelMode::Ddp, ParallelMode::Pipeline]);
}

/// Sections that `{}` does not stand for, and why.
const NOT_EMPTY: [(&str, &str); 11] = [
    ("batch.warmup.until", "is empty"),
    ("data.train", "is empty"),
    // Its default depends on the training source.
    ("data.validation", "is empty"),
    // The default is none.
    ("eval.test", "is empty"),
    ("model.init", "is empty"),
    ("model.rope_scaling.none", "is not a key of the family `gpt2`"),
    ("schedule.cooldown", "needs `steps`"),
    ("schedule.decay.step.every", "is empty"),
    ("schedule.decay.inverse_sqrt", "needs a warmup"),
    ("eval.hellaswag", "names no items"),
    // It does not fit the texts of this experiment.
    ("data.tokenizer.ids", "cannot turn text into tokens"),
];

#[test]
fn an_empty_section_has_its_defaults() {
    use crate::shape::join;
    use crate::shape::{KeyShape, Shape, root, variants};
    /// The paths of sections whose keys all have defaults, and whether they are a choice or in one.
    fn visit(slot: KeyShape, path: &str, in_choice: bool, out: &mut Vec<(String, bool)>) {
        let inner = match slot.shape {
            Shape::Keys(keys) => {
                if keys.required().is_empty() {
                    out.push((path.to_owned(), in_choice));
                }
                keys.names().into_iter().filter_map(|name| Some((name, keys.get(name)?, in_choice))).collect()
            }
            Shape::Variants(of) => {
                out.push((path.to_owned(), in_choice));
                variants(of).into_iter().map(|(name, slot)| (name, slot, true)).collect()
            }
            _ => Vec::new(),
        };
        for (name, slot, in_choice) in inner {
            visit(slot, &join(path, name), in_choice, out);
        }
    }
    let mut paths = Vec::new();
    visit(root(), "", false, &mut paths);
    let base = "data: {train: {builtin: {corpus: stories}}}\n";
    let load = |sets: &[&str]| {
        let sets = sets.iter().chain(&["model.preset=gpt2-micro"]).map(|set| (*set).to_owned()).collect();
        from_str(base, Path::new("exp.yaml"), &LoadOptions { sets, ..LoadOptions::default() })
            .map(|loaded| loaded.experiment)
            .map_err(|mistakes| mistakes.to_string())
    };
    let default = load(&[]).unwrap();
    let mut checked = 0;
    for (path, in_choice) in &paths {
        let (empty, null) = (load(&[&format!("{path}={{}}")]), load(&[&format!("{path}=null")]));
        if let Some((_, message)) = NOT_EMPTY.iter().find(|(section, _)| section == path) {
            assert!(empty.as_ref().is_err_and(|error| error.contains(message)), "{path}: {empty:?}");
        } else if *in_choice {
            assert!(empty.is_ok(), "{path}: {empty:?}");
            assert_eq!(empty, null.or_else(|_| empty.clone()), "{path}");
        } else {
            assert_eq!(empty.as_ref(), Ok(&default), "{path}");
        }
        checked += 1;
    }
    assert!(checked > 20, "{paths:?}");
}

#[test]
fn an_empty_choice_is_the_default_in_every_layer() {
    use runner_spec::experiment::EvalLoss;
    let loss = |text: &str, sets: &[&str]| experiment(&format!("{SHORT}{text}"), sets).eval.loss;
    assert_eq!(loss("eval: {loss: {}}\n", &[]), Some(EvalLoss::Rows(160)));
    assert_eq!(loss("eval: {loss: null}\n", &["eval.loss={}"]), Some(EvalLoss::Rows(160)));
    // Like any other empty mapping, it takes away nothing.
    assert_eq!(loss("eval: {loss: {rows: 8}}\n", &["eval.loss={}"]), Some(EvalLoss::Rows(8)));
    assert_eq!(loss("eval: {loss: {}}\n", &["eval.loss.batches=2"]), Some(EvalLoss::Batches(2)));
    assert_eq!(loss("eval: {loss: {}}\n", &["eval.loss=null"]), None);
    let text = "model: {preset: gpt2-micro}\ndata: {train: {builtin: {corpus: stories}}, validation: null}\neval: {loss: {}}\n";
    let error = from_str(text, Path::new("exp.yaml"), &options(&[], &[])).expect_err("nothing to measure").to_string();
    assert!(error.contains("`eval.loss` needs validation data"), "{error}");
}
