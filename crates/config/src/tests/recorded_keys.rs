//! Every key of the schema is recorded in `resolved.yaml` and shown by `validate --explain`, with its value.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::schema::schema_ref;
use crate::{LoadOptions, Loaded, from_str, to_yaml};

/// Each kind of source, `NAME` standing for what train, validation and test must not share.
const SOURCES: [&str; 16] = [
    "{text: {files: [NAME.txt]}}",
    "{parquet: {files: [NAME.parquet]}}",
    "{parquet: {files: [NAME.parquet], template: '{{ text }}'}}",
    "{jsonl: {files: [NAME.jsonl]}}",
    "{jsonl: {files: [NAME.jsonl], template: '{{ text }}'}}",
    "{json: {files: [NAME.json]}}",
    "{json: {files: [NAME.json], template: '{{ text }}'}}",
    "{hub: {dataset: a/NAME}}",
    "{hub: {dataset: a/NAME, template: '{{ text }}'}}",
    "{tokens: {files: [NAME.bin]}}",
    "{builtin: {corpus: stories}}",
    "{builtin: {corpus: stories}}",
    "{tokens: {files: [NAME.bin]}}",
    "{csv: {files: [NAME.csv]}}",
    "{text: {files: [NAME.txt]}}",
    "{csv: {files: [NAME.tsv], template: '{{ text }}', separator: tab}}",
];

/// Files that use every alternative except the kinds of sources, which come from `SOURCES`. A new alternative, such as an optimizer, is
/// added to one of them.
const FILES: [&str; 16] = [
    "model: {preset: gpt2-micro}\ndata: {DATA, tokenizer: {bytes: {}}, layout: {packed: {}}}\nbatch: {tokens: 8192, warmup: {from: 16, until: {steps: 20}}}\n\
     schedule: {warmup: {tokens: 8192}, decay: {linear: {}}, cooldown: {tokens: 8192}}\neval: {EVAL}\n\
     log: {mlflow: {uri: 'http://localhost:5000'}}",
    "model: {preset: llama-micro}\ndata: {DATA, tokenizer: {chars: {}}, layout: {columns: {}}}\ntrain: {epochs: 2}\n\
     schedule: {warmup: {share: 0.1}, decay: {inverse_sqrt: {tokens: 9000}}}\neval: {EVAL}",
    "model: {preset: gpt2-nano, init: {pytorch: {}}}\ndata: {DATA, tokenizer: {words: {special_tokens: ['<bos>', '<eos>', '<pad>']}}, \
     layout: {padded: {bos: '<bos>', eos: '<eos>', pad: '<pad>'}}}\ntrain: {tokens: 1000000}\neval: {EVAL, loss: {batches: 2}}\n\
     schedule: {start: {tokens: 9000}, decay: {linear: {tokens: 9000}}}",
    "model: {preset: gpt2-nano}\ndata: {DATA, tokenizer: {bpe: {vocab_size: 300}}}\noptimizer: {sgd: {lr: 0.1}}\n\
     batch: {warmup: {from: 4, increment: 2, until: {tokens: 10000}}}\ntrain: {flops: 1e15}\neval: {EVAL}\n\
     schedule: {start: {share: 0.1}, decay: {linear: {share: 0.5}}}",
    "model: {preset: gpt2-nano}\ndata: {DATA, tokenizer: {gpt2: {vocab: v.json, merges: m.txt}}}\n\
     schedule: {decay: {cosine: {}}, cooldown: {steps: 20, at: [{share: 0.5}, {tokens: 1000000}]}}\ntrain: {tokens_per_parameter: 20}\neval: {EVAL, hellaswag: {file: h.jsonl}}",
    "model: {preset: gpt2-nano}\ndata: {DATA, tokenizer: {file: t.json}}\nschedule: {decay: {sqrt: {}}, cooldown: {share: 0.2}}\neval: {EVAL, samples: {prompts: [a]}, tasks: {quiz: {file: q.jsonl, context: '{{ q }}', choices: [c], answer: a, labels: [A, B]}}}",
    "model: {preset: gpt2-nano}\ndata: {DATA, tokenizer: {hub: gpt2}}\nschedule: {decay: {step: {every: {share: 0.1}, gamma: 0.5}}}\n\
     optimizer: {lion: {}}\nbatch: {warmup: {from: 4, until: {share: 0.5}}}\neval: {EVAL, hellaswag: {hub: a/h}}",
    "seed: {data: 1, init: 2, dropout: 3}\nmodel: {preset: gpt2-nano}\ndata: {DATA}\n\
     schedule: {decay: {step: {epochs: 1, gamma: 0.5}}}\neval: {EVAL}",
    "model: {preset: gpt2-nano, init: {from: weights}}\ndata: {DATA}\neval: {EVAL}\nschedule: {decay: {cosine: {tokens: 9000}}}",
    "model: {preset: gpt2-nano, vocab_size: 50257}\ndata: {DATA, tokenizer: {hub: gpt2}}\neval: {EVAL}\n\
     schedule: {decay: {cosine: {share: 0.5}}}",
    "model: {preset: gpt2-mini, values: {first: {embedding: {}}, gate: {gate: {channels: 2}}}, sums: {embedding: ['2 * x'], \
     layer: ['x + 0.1 * first'], value: ['0.5 * v'], attended: ['gate * y'], head: ['x - first']}}\ndata: {TRAIN, validation: {fraction: 0.1}}\nparallel: {mode: pipeline, pipeline: {stages: 2}}\n\
     eval: {EVAL, hellaswag: {builtin: stories}}\nschedule: {decay: {sqrt: {tokens: 9000}}}",
    "model: {preset: gpt2-nano}\ndata: {DATA, position: {step: 2, epoch: 0, row: 3, rows: 3, tokens: 24}}\n\
     schedule: {start: 2, decay: {piecewise: [{at: {share: 0.5}, factor: 0.5}, {at: {steps: 900}, factor: 0, shape: cosine}]}}\neval: {EVAL}",
    "model: {preset: gpt2-nano, vocab_size: 1000}\ndata: {DATA, tokenizer: {ids: {}}}\neval: {EVAL}\nschedule: {decay: {sqrt: {share: 0.5}}}",
    "model: {preset: llama-nano, rope_scaling: {yarn: {factor: 4, original_context: 16, attention_factor: 1.1}}}\ndata: {DATA}\neval: {EVAL}",
    "model: {preset: llama-nano, rope_scaling: {linear: {factor: 4}}, window: 8, tie_embeddings: false}\ndata: {DATA}\neval: {EVAL}\n\
     schedule: {decay: {inverse_sqrt: {share: 0.5}}}\n\
     optimizer: {muon: {}}\ntrain: {transfer: {d_model: 32, layers: 1, tokens: 100000}, groups: [{match: '*', lr_scale: 0.5, weight_decay: 0}], \
     stages: [{until: {tokens: 9000}, sequences: 16, micro_batch: 4, length: 8, windows: [4]}]}",
    "model: {preset: llama-3.2-1b}\ndata: {DATA}\neval: {EVAL}\nschedule: {decay: {step: {every: {tokens: 9000}, gamma: 0.5}}}",
];

/// Keys whose values are recorded under other keys.
const RECORDED_ELSEWHERE: [(&str, &str); 4] =
    [("extends", "model"), ("model.preset", "model.layers"), ("batch.tokens", "batch.sequences"), ("seeds", "seed")];

/// Keys that only models of the other family have.
fn is_of_other_family(path: &str, family: &Value) -> bool {
    let of_gpt2 = ["positions", "head_bias", "final_norm", "mlp_dropout"];
    match path.strip_prefix("model.") {
        Some("rope_theta" | "rope_scaling" | "rope_fraction") => family == "gpt2",
        Some(key) => family == "llama" && of_gpt2.contains(&key),
        None => false,
    }
}

fn load(text: &str) -> Loaded {
    let options = LoadOptions { allows_absent_files: true, ..LoadOptions::default() };
    from_str(text, Path::new("/x/e.yaml"), &options).unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}"))
}

/// The files, each with another kind of source.
fn loaded_files() -> impl Iterator<Item = Loaded> {
    SOURCES.iter().zip(FILES).map(|(source, file)| {
        let of = |name: &str| source.replace("NAME", name);
        let (train, validation) = (format!("train: {}", of("t")), format!("validation: {}", of("v")));
        let file = file.replace("DATA", &format!("TRAIN, {validation}")).replace("TRAIN", &train);
        load(&file.replace("EVAL", &format!("test: {}", of("e"))))
    })
}

/// The objects that `schema` allows, each with its properties.
fn object_alternatives(schema: &'static Value) -> Vec<&'static Value> {
    let mut out = Vec::new();
    if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
        out.extend(object_alternatives(&schema_ref()["definitions"][name]));
    }
    // A number alone is recorded for the choice that it stands for.
    let is_number = |choice: &&Value| {
        schema["x-short"].as_str().is_some_and(|short| choice["properties"][short]["type"] == "integer")
    };
    for alternatives in ["anyOf", "oneOf", "allOf"] {
        let choices = schema[alternatives].as_array().into_iter().flatten().filter(|choice| !is_number(choice));
        out.extend(choices.flat_map(object_alternatives));
    }
    if schema["properties"].is_object() {
        out.push(schema);
    }
    out
}

fn properties(schema: &'static Value) -> impl Iterator<Item = (&'static String, &'static Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Adds the path of each key below `path` that `schema` has in any alternative.
fn add_schema_paths(schema: &'static Value, path: &str, out: &mut BTreeSet<String>) {
    for (key, inner) in object_alternatives(schema).into_iter().flat_map(properties) {
        let path = joined(path, key);
        add_schema_paths(inner, &path, out);
        out.insert(path);
    }
}

/// Adds to `recorded` the path of each key of `document`, and to `missing` those of the keys that the alternative of `schema` has which
/// the document takes, and that the document lacks.
fn visit(
    schema: &'static Value,
    document: &Value,
    path: &str,
    recorded: &mut BTreeSet<String>,
    missing: &mut Vec<String>,
) {
    let Some(map) = document.as_object().filter(|map| !map.is_empty() || !object_alternatives(schema).is_empty())
    else {
        return;
    };
    // The file chooses the names, such as the names of tasks.
    if schema["additionalProperties"].is_object() {
        return;
    }
    let takes = |alternative: &&Value| map.keys().all(|key| !alternative["properties"][key].is_null());
    let Some(taken) = object_alternatives(schema).into_iter().find(takes) else {
        missing.push(format!("{path}, which the schema allows with {:?}", map.keys()));
        return;
    };
    let exclusive: Vec<&str> =
        taken["x-exclusive"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let has_one = exclusive.iter().any(|key| map.contains_key(*key));
    for (key, inner) in properties(taken) {
        let path = joined(path, key);
        match map.get(key) {
            Some(value) => visit(inner, value, &path, recorded, missing),
            None if has_one && exclusive.contains(&key.as_str()) => continue,
            None => {
                missing.push(path);
                continue;
            }
        }
        recorded.insert(path);
    }
}

#[test]
fn every_key_of_the_schema_is_recorded_and_explained() {
    let (mut all, mut recorded) = (BTreeSet::new(), BTreeSet::new());
    add_schema_paths(schema_ref(), "", &mut all);
    for loaded in loaded_files() {
        let yaml = to_yaml(&loaded.experiment);
        let document: Value = runner_yaml::document::from_str(&yaml).unwrap();
        let mut missing = Vec::new();
        visit(schema_ref(), &document, "", &mut recorded, &mut missing);
        missing.retain(|path| {
            RECORDED_ELSEWHERE.iter().all(|(key, _)| key != path)
                && !is_of_other_family(path, &document["model"]["family"])
        });
        assert!(missing.is_empty(), "resolved.yaml lacks {missing:?}:\n{yaml}");
        assert_eq!(load(&yaml).experiment, loaded.experiment, "{yaml}");
        // `--explain` has a row for each value.
        let explained: BTreeSet<&str> = loaded.origins.iter().map(|origin| origin.key.as_str()).collect();
        let is_explained = |path: &str| {
            let value = path.split('.').fold(&document, |value, key| &value[key]);
            explained.contains(path) || value.as_object().is_some_and(|map| !map.is_empty())
        };
        let mut here = BTreeSet::new();
        visit(schema_ref(), &document, "", &mut here, &mut Vec::new());
        let unexplained: Vec<_> = here.iter().filter(|path| !is_explained(path)).collect();
        assert!(unexplained.is_empty(), "--explain lacks {unexplained:?}");
    }
    for (key, elsewhere) in RECORDED_ELSEWHERE {
        assert!(all.contains(key) && recorded.contains(elsewhere) && !recorded.contains(key), "{key}");
        recorded.insert(key.to_owned());
    }
    let unused: Vec<_> = all.difference(&recorded).collect();
    assert!(unused.is_empty(), "no file of this test uses {unused:?}: add them to FILES or SOURCES");
}
