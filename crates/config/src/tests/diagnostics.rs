//! Messages about each kind of mistake, word for word.

use std::path::Path;

use crate::{LoadOptions, from_str};

/// Renders the mistakes of `text` as an experiment in a folder that has an `input.txt`.
pub(crate) fn render_mistakes(text: &str, sets: &[&str], env: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("input.txt"), "once upon a time").unwrap();
    let options = LoadOptions {
        sets: sets.iter().map(|&s| s.to_owned()).collect(),
        env: env.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
        ..LoadOptions::default()
    };
    let error = from_str(text, &folder.path().join("exp.yaml"), &options).unwrap_err();
    error.to_string().replace(folder.path().to_str().unwrap(), "DIR")
}

/// A good experiment, with `lines` added.
pub(crate) fn with(lines: &str) -> String {
    format!("model: {{preset: gpt2-micro}}\ndata:\n  train: {{text: {{files: [input.txt]}}}}\n{lines}")
}

/// A model with these values and sums.
fn with_sums(values: &str, sums: &str) -> String {
    format!(
        "model:\n  preset: llama-micro\n  values: {values}\n  sums: {sums}\ndata: {{train: {{text: {{files: [input.txt]}}}}}}\n"
    )
}

macro_rules! says {
    ($($name:ident: $text:expr;)*) => {$(
        #[test]
        fn $name() {
            insta::assert_snapshot!(render_mistakes(&$text, &[], &[]));
        }
    )*};
}
pub(super) use says;

says! {
    typo_in_a_key: with("batch:\n  sequences: 32\n  micro_bach: 4\n");
    micro_batch_larger_than_the_batch: with("batch: {sequences: 4, micro_batch: 16}\n");
    batch_tokens_not_rows: with("batch: {tokens: 1000}\n");
    two_batch_sizes: with("batch:\n  sequences: 8\n  tokens: 1024\n");
    heads_do_not_divide: "model:\n  preset: gpt2-micro\n  heads: 5\ndata: {train: {text: {files: [input.txt]}}}\n";
    kv_heads_do_not_divide: "model:\n  preset: llama-micro\n  kv_heads: 3\ndata: {train: {text: {files: [input.txt]}}}\n";
    odd_head_width: "model: {family: llama, layers: 1, heads: 4, d_model: 12, context_length: 8}\ndata: {train: {text: {files: [input.txt]}}}\n";
    sequence_longer_than_the_context: "model: {preset: gpt2-micro}\ndata:\n  train: {text: {files: [input.txt]}}\n  layout:\n    packed: {length: 1024}\n";
    preset_that_does_not_exist: "model:\n  preset: gpt2-123m\ndata: {train: {text: {files: [input.txt]}}}\n";
    preset_of_another_family: "model: {family: llama, preset: gpt2-124m}\ndata: {train: {text: {files: [input.txt]}}}\n";
    neither_preset_nor_sizes: "model: {layers: 2, heads: 2}\ndata: {train: {text: {files: [input.txt]}}}\n";
    keys_of_the_other_family: "model:\n  preset: gpt2-micro\n  rope_theta: 5e5\n  kv_heads: 2\ndata: {train: {text: {files: [input.txt]}}}\n";
    variants_are_gpt2s: "model:\n  preset: llama-micro\n  norm: post\n  activation: relu\n  positions: sinusoidal\n  embedding_scale: true\n  head_bias: true\n  final_norm: false\n  mlp_dropout: 0.1\ndata: {train: {text: {files: [input.txt]}}}\n";
    evaluations_of_a_model_that_sees_all_words: "model: {preset: gpt2-micro, causal: false}\ndata: {train: {text: {files: [input.txt]}}}\neval:\n  hellaswag: {builtin: stories}\n  samples: {prompts: [a]}\n";
    initial_weights_by_an_unknown_word: "model:\n  preset: llama-micro\n  init: {pytorch: {embedding: uniform}}\ndata: {train: {text: {files: [input.txt]}}}\n";
    a_warmup_without_a_length: with("schedule:\n  warmup: {from: 0.1}\n");
    cautious_decay_without_a_decay: with("optimizer: {muon: {cautious_decay: true}}\n");
    a_schedule_from_a_fork_in_a_run_that_is_not_a_fork: with("schedule:\n  start: fork\n");
    a_schedule_from_an_unknown_word: with("schedule:\n  start: best\n");
    a_schedule_that_starts_after_the_run: with("train: {steps: 100}\nschedule:\n  start: 90\n  warmup: {steps: 20}\n");
    groups_that_match_nothing: with("train:\n  groups:\n    - {match: 'transformer.wte.wieght', lr_scale: 2}\n    - {match: '*.gain', weight_decay: 0}\n    - {match: '*.bias'}\n");
    weight_decay_of_an_optimizer_without_it: with("train: {groups: [{match: '*', weight_decay: 0.1}]}\noptimizer: {sgd: {lr: 1}}\n");
    sums_that_cannot_be_read: with_sums("{first: {embedding: {}}, g: {gate: {channels: 4}}}", "{layer: ['x + / first'], value: ['v +'], attended: ['g * z'], head: ['prevous(x)']}");
    sums_of_wrong_terms: with_sums("{first: {embedding: {}}, g: {gate: {channels: 4}}, s: {scalar: {initial: 1, initial_of_last: 2}}, late: {output: {layers: [5]}}}", "{embedding: ['x + first', 's * x', 'g * previous(x)'], layer: ['x * first', 'x + late', 'g * x', '0 * x'], value: ['norm(v)', 'v + previous(v)'], head: ['x + x + x + x + x']}");
    values_that_do_not_fit: with_sums("{x: {embedding: {}}, g: {gate: {channels: 4000}}, t: {table: {in: [9]}}, u: {table: {in: [1, 0], shared: [0]}}, o: {output: {layers: [0, 1]}}, w: {table: {in: [0, 1], shared: [0, 2]}}}", "{layer: ['g * x + t + u + o']}");
    values_without_what_they_need: with_sums("{g: {gate: {}}, s: {scalar: {initial: null}}, k: {scaler: {initial: 1}}, n: null}", "{layer: ['g * x']}");
    values_that_nothing_reads: with_sums("{first: {embedding: {}}, mix: {scalar: {initial: 1}}}", "{layer: ['x + first']}");
    settings_of_muon: with("optimizer: {muon: {lr: 0, momentum: 1, iterations: 0, scale: rms, adamw: {betas: [0.9, 1.0]}}}\n");
    transfer_without_rules: with("train: {transfer: {d_model: 32}}\noptimizer: {sgd: {lr: 1}}\n");
    transfer_from_nothing: with("train: {transfer: {layers: 0, depth_exponent: 2}}\n");
    no_masters_under_fp32: with("master_weights: false\n");
    no_masters_under_tf32: with("precision: tf32\nmaster_weights: false\n");
    mlp_dropout_of_all: "model: {preset: gpt2-micro, norm: last, mlp_dropout: 1}\ndata: {train: {text: {files: [input.txt]}}}\n";
    absurd_sizes: "model:\n  layers: 1e12\n  heads: 10000\n  d_model: 1_000_000\n  context_length: 99999999999999999999999\ndata: {train: {text: {files: [input.txt]}}}\n";
    too_many_parameters: "model:\n  layers: 10000\n  heads: 1000\n  d_model: 1_000_000\n  context_length: 64\ndata: {train: {text: {files: [input.txt]}}}\n";
    missing_file: "model: {preset: gpt2-micro}\ndata:\n  tokenizer: {gpt2: {vocab: gpt2/vocab.json, merges: input.txt}}\n  train:\n    text:\n      files:\n        - inptu.txt\n        - '*.md'\n";
    no_sections: "seed: 3\n";
    no_training_source: "model: {preset: gpt2-micro}\ndata: {tokenizer: {bytes: {}}}\n";
    duplicate_keys: with("seed: 1\ntrain:\n  steps: 1\n  steps: 2\nseed: 2\n");
    tabs: "model:\n\tpreset: gpt2-micro\ndata:\n  \ttrain: {}\n";
    not_yaml: with("batch: {sequences: 4\ntrain: {steps: 3}\n");
    value_with_a_colon: with("name: a: b\n");
    two_documents: with("---\nseed: 1\n");
    empty: "# nothing\n";
    not_a_mapping: "- model\n- data\n";
    a_word_for_a_choice: with("schedule: {decay: cosine}\n");
    a_setting_beside_its_choice: with("optimizer:\n  adamw:\n  lr: 1e-3\n");
    a_setting_without_its_choice: with("optimizer: {lr: 1e-3}\n");
    two_choices: with("optimizer:\n  adamw: {lr: 1e-3}\n  sgd: {lr: 1}\n");
    unknown_choice: with("optimizer: {adam: {lr: 1e-3}}\n");
    unknown_word: with("precision: fp16\n");
    key_in_the_wrong_section: with("lr: 1e-3\nweight_decay: 0.1\n");
    required_setting_of_a_choice: with("optimizer: {sgd: {momentum: 0.9}}\n");
    wrong_types: with("seed: '7'\nbatch: 32\ntrain: {steps: many, clip_norm: yes}\neval: {every: 2.5, samples: {prompts: Hello}}\n");
    temperature_near_zero: with("eval: {samples: {prompts: [a], temperature: 1e-40}}\n");
    hellaswag_that_is_missing: with("eval: {hellaswag: {file: hs.jsonl}}\n");
    out_of_range: with("version: 2\ntrain: {steps: 0, clip_norm: .inf}\noptimizer: {adamw: {lr: 0, betas: [0.9, 1.0], eps: -1e-8}}\neval: {samples: {prompts: [], temperature: -1, top_p: 0}}\ncheckpoint: {keep: 0}\n");
    betas_of_three: with("optimizer:\n  adamw: {betas: [0.9, 0.95, 0.99]}\n");
    fraction_of_all: "model: {preset: gpt2-micro}\ndata:\n  train: {text: {files: [input.txt]}}\n  validation: {fraction: 1}\n";
    loss_without_validation: "model: {preset: gpt2-micro}\ndata:\n  train: {text: {files: [input.txt]}}\n  validation: null\neval: {loss: {batches: 3}}\n";
    hellaswag_of_nothing: with("eval: {hellaswag: {limit: 3}}\n");
    hellaswag_text_of_builtin_items: with("eval: {hellaswag: {builtin: stories, text: lm_eval}}\n");
    hellaswag_of_two: with("eval: {hellaswag: {file: input.txt, builtin: stories}}\n");
    warmup_longer_than_the_run: with("train: {steps: 5}\nschedule: {warmup: {steps: 10}}\n");
    name_not_for_a_folder: with("name: ../evil\n");
    special_token_that_is_not_there: "model: {preset: gpt2-micro}\ndata:\n  tokenizer: {bpe: {vocab_size: 300, special_tokens: ['[BOT]', '[EOT]']}}\n  train: {text: {files: [input.txt]}}\n  layout: {padded: {bos: '[BOT]', eos: '[EOT]', pad: '[PAD]'}}\n";
    a_preset_for_the_model: "model: gpt2-124m\ndata: {train: {text: {files: [input.txt]}}, validation: 0.1}\n";
    a_tag: with("optimizer: !adamw {lr: 1e-3}\n");
    warmups_of_other_trainers: with("train: {warmup_ratio: 0.1}\nschedule: {warmup_steps: 10, warmup: {ratio: 0.1}, cooldown: {share: 0}}\nlr_warmup: 5\nwarmup_tokens: 1e6\ncooldown_frac: 0.2\n");
    two_lengths_of_a_warmup: with("schedule:\n  warmup:\n    steps: 10\n    share: 0.1\n");
    inverse_square_roots_that_start_too_early: with("train: {steps: 100}\nschedule:\n  warmup: {share: 0.5}\n  decay: {inverse_sqrt: {steps: 40}}\n");
    points_of_a_schedule_in_the_wrong_place: with("train: {steps: 100}\nschedule:\n  warmup: {steps: 10}\n  decay:\n    piecewise:\n      - {at: {share: 0.5}, factor: 1, shape: flat}\n      - {at: 0.6, factor: 2}\n");
    points_of_a_schedule_out_of_order: with("train: {steps: 100}\nschedule:\n  warmup: {steps: 10}\n  decay:\n    piecewise:\n      - {at: {share: 0.5}, factor: 1}\n      - {at: {steps: 40}, factor: 0.5}\n");
    a_point_of_a_schedule_after_the_run: with("train: {steps: 100}\nschedule: {decay: {piecewise: [{at: {steps: 101}, factor: 0}]}}\n");
    decays_that_overlap: with("train: {steps: 100}\nschedule:\n  warmup: {steps: 10}\n  decay: {sqrt: {}}\n  cooldown:\n    share: 0.2\n    at: [{steps: 40}, {share: 0.55}]\n");
    a_cooldown_without_a_length: with("schedule: {decay: {sqrt: {}}, cooldown: {at: [{steps: 40}]}}\n");
    a_cooldown_of_points: with("schedule: {decay: {piecewise: [{at: {share: 1}, factor: 0}]}, cooldown: {steps: 10}}\n");
    an_inverse_square_root_without_steps: with("schedule:\n  decay: {inverse_sqrt: {}}\n");
    a_cooldown_longer_than_the_rest_of_the_run: with("train: {steps: 100}\nschedule:\n  warmup: {share: 0.5}\n  decay: {linear: {}}\n  cooldown: {share: 0.6}\n");
    keys_of_other_sections_that_are_like_one_here: with("mode: ddp\nd_model: 64\nbatches: 3\ntrain: {step: 10}\n");
    dotted_keys: with("train.steps: 10\nmodel.n_layer: 4\noptimizer:\n  adamw.lr: 1e-3\nschedule: {warmup.stpes: 10}\neval.samples: {prompts: [a]}\n");
    a_template_that_is_not_named_as_one: with("optimizer:\n  adamw: {lr: {{ lr }}}\ntrain: {steps: 10}\n");
    a_value_of_a_template: with("train:\n  steps: {{ steps }}\n");
    a_list_of_values_of_a_template: "model: {preset: gpt2-micro}\ndata:\n  train: {text: {files: [data/{{ name }}.txt]}}\n";
    a_statement_of_a_template: "{% include \"conf/\" ~ arch ~ \".yaml\" %}\ndata: {train: {text: {files: [input.txt]}}}\n";
    a_quoted_value_of_a_template: with("name: run-{{ seed }}\ntrain:\n  steps: \"{{ steps }}\"\n");
    variables_of_hydra: with("name: run-${seed}\ntrain: {steps: 10, clip_norm: \"${oc.env:CLIP}\"}\noptimizer:\n  adamw:\n    lr: ${lr}\ndefaults: [a]\n");
    a_variable_in_braces: with("optimizer: {adamw: {lr: ${lr}}}\n");
    a_path_of_a_variable: "model: {preset: gpt2-micro}\ndata:\n  train:\n    text:\n      files: ['${DATA}/input.txt', 'data/{{ x }}.txt', “input.txt”]\n";
    letters_of_other_scripts: with("tr\u{430}in: {steps: 10}\nprecision: b\u{FF46}16\nbatch: {sequences: 1\u{41E}, micro_batch: \u{2212}1}\noptimizer:\n  \u{430}damw: {}\n");
    spaces_of_other_kinds: with("train:\n\u{A0}\u{A0}steps: 10\nlog:\n  every:\u{A0}10\nse\u{200B}ed: 3\n");
    spaces_that_join_lines: with("train:\n  steps:\u{A0}10\n  clip_norm: 1\n");
    a_colon_of_full_width: with("train:\n  steps\u{FF1A}10\n");
    quotes_of_a_word_processor: with("name: \u{201C}run\u{201D}\nprecision: \u{2018}bf16\u{2019}\n");
    a_dash_of_a_word_processor: "model: {preset: gpt2-micro}\ndata:\n  train:\n    text:\n      files:\n        \u{2013} input.txt\n";
    a_tab_after_spaces: with("train:\n  \tsteps: 10\n");
    a_path_of_windows: with("name: \"C:\\Users\\me\"\n");
    a_path_of_windows_with_letters_of_escapes: "model: {preset: gpt2-micro}\ndata:\n  train: {text: {files: [\"C:\\temp\\new.txt\"]}}\n";
    an_unknown_escape: with("name: \"C:\\models\"\n");
    several_mistakes_at_once: "version: 1\nname: bad name\nmodel:\n  preset: gpt2-micro\n  heads: 5\n  dropuot: 0.1\ndata:\n  train: {text: {files: [nope.txt]}}\n  layout: {packed: {length: 4096}}\nbatch:\n  sequences: 10\n  micro_batch: 14\noptimizer: {adamw: {lr: fast}}\nprecision: bf8\n";
}

#[test]
fn mistakes_in_the_layers_above_the_file_are_named() {
    let text = with("batch: {sequences: 8, micro_batch: 4}\n");
    let sets = ["batch.sequences=3", "train.stpes=5", "seed", "optimizer={sgd: {lr: fast}}", "optimizer={sgd: {", "=3"];
    let env = [("RUNNER_TRAIN__STEPS", "ten"), ("RUNNER_SEDE", "3"), ("RUNNER_OS", "Linux"), ("RUNNER_LOG_LEVEL", "x")];
    insta::assert_snapshot!(render_mistakes(&text, &sets, &env));
}

#[test]
fn null_takes_away_the_number_of_a_preset() {
    let text = render_mistakes(&with(""), &["model.layers=null"], &[]);
    assert!(text.contains("`layers` is missing in `model`") && text.contains("--> --set:1:1"), "{text}");
}

#[test]
fn a_mistake_is_shown_in_colour() {
    let error = from_str("sede: 1\n", Path::new("exp.yaml"), &LoadOptions::default()).unwrap_err();
    insta::assert_snapshot!(error.render(true).replace('\x1b', "ESC"));
}

/// A folder with the two files of GPT-2's tokenizer, as `tokenizer.file` names them.
#[test]
fn the_same_slips_in_layers_above_the_file_are_named() {
    let sets = [
        "name=run-${SEED}",
        "train.steps={{ steps }}",
        "tr\u{430}in.clip_norm=1",
        "optimizer={adamw.lr: 1e-3}",
        "schedule.warmup_ratio=0.1",
        "data.tokenizer.file=\"C:\\Users\\t.json\"",
    ];
    insta::assert_snapshot!(render_mistakes(&with(""), &sets, &[("RUNNER_SEED", "\u{FF11}2")]));
}

#[test]
fn a_hub_dataset_is_named_by_its_name() {
    for (short, long) in [
        ("{hub: roneneldan/TinyStories}", "{hub: {dataset: roneneldan/TinyStories, split: train}}"),
        ("{hub: gpt}", "{hub: {dataset: gpt}}"),
    ] {
        let load = |source: &str| {
            let text = format!(
                "model: {{preset: gpt2-micro}}\ndata:\n  train: {source}\n  validation: {source}\neval: {{test: {source}}}\n"
            );
            from_str(&text, Path::new("exp.yaml"), &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
        };
        assert_eq!(load(short).experiment, load(long).experiment);
        let origins = load(short).origins;
        let origin = |key: &str| origins.iter().find(|origin| origin.key == key).unwrap().source.clone();
        assert_eq!(origin("data.train.hub.dataset"), "exp.yaml:3:11");
        assert_eq!(origin("eval.test.hub.dataset"), "exp.yaml:5:15");
    }
}
