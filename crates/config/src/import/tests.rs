//! Configurations of other trainers, and the experiment files that they become.

use std::path::Path;

use super::*;
use crate::{LoadOptions, from_str};

fn import_config(text: &str, path: &Path) -> Result<String, ImportError> {
    super::import_config(text, path).map(|imported| imported.text)
}

/// The experiment file that `text` becomes, which is loaded too. `files` are made in its folder.
fn imported(text: &str, name: &str, files: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "once upon a time").unwrap();
    }
    let text = import_config(text, Path::new(name)).unwrap();
    let loaded = from_str(&text, &folder.path().join("exp.yaml"), &LoadOptions::default());
    loaded.unwrap_or_else(|error| panic!("{text}\n{error}"));
    text
}

#[test]
fn nanogpt_shakespeare_char() {
    let text = "# train a miniature character-level shakespeare model\nimport time\n\nout_dir = 'out-shakespeare-char'\n\
                eval_interval = 250 # keep frequent because we'll overfit\neval_iters = 200\nlog_interval = 10\n\
                always_save_checkpoint = False\nwandb_log = False # override via command line if you like\n\
                dataset = 'shakespeare_char'\ngradient_accumulation_steps = 1\nbatch_size = 64\nblock_size = 256\n\
                n_layer = 6\nn_head = 6\nn_embd = 384\ndropout = 0.2\nlearning_rate = 1e-3\nmax_iters = 5000\n\
                lr_decay_iters = max_iters\nmin_lr = 1e-4\nbeta2 = 0.99\nwarmup_iters = 100\ndevice = 'cpu'\n\
                stamp = str(time.time())\n";
    insta::assert_snapshot!(imported(text, "train_shakespeare_char.py", &["data/shakespeare_char/input.txt"]));
}

#[test]
fn nanogpt_gpt2_has_its_defaults_and_its_arithmetic() {
    let text = "batch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 5 * 8\nmax_iters = 600_000\nweight_decay = 1e-1\n";
    let text = imported(text, "train_gpt2.py", &["data/openwebtext/train.bin", "data/openwebtext/val.bin"]);
    for line in ["sequences: 480", "steps: 600000", "steps: 598000", "final: 0.1", "precision: bf16", "layers: 12"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn expressions_of_python_are_not_executed() {
    let text = "batch_size = __import__('os').system('touch /tmp/x')\nmax_iters = 2 ** 10\nn = 'a' * 10 ** 9\nblock_size = max_iters // 4\n\
                eval_iters = [1] * 10 ** 9\nwarmup_iters = 10\n";
    let text = imported(text, "c.py", &["data/openwebtext/train.bin", "data/openwebtext/val.bin"]);
    assert!(text.contains("steps: 1024") && text.contains("context_length: 256"), "{text}");
    assert_eq!(text.matches("not read: the file is not executed").count(), 3, "{text}");
}

#[test]
fn litgpt() {
    let text = "model_name: tiny\nmodel_config: {n_layer: 4, n_head: 8, n_embd: 128, block_size: 256, padded_vocab_size: 512, \
                norm_class_name: RMSNorm, n_query_groups: 4, intermediate_size: 512}\nout_dir: out/pretrain\nprecision: bf16-mixed\n\
                data: TinyStories\ntrain:\n  save_interval: 1000\n  log_interval: 1\n  global_batch_size: 512\n  micro_batch_size: 4\n  \
                lr_warmup_steps: 2000\n  epochs:\n  max_tokens: 3000000000\n  max_norm: 1.0\n  min_lr: 4.0e-05\neval:\n  interval: 500\n  \
                max_iters: 100\n  initial_validation: false\noptimizer:\n  class_path: torch.optim.AdamW\n  init_args:\n    lr: 4e-4\n    \
                weight_decay: 0.1\n    betas: [0.9, 0.95]\ndevices: auto\nnum_nodes: 1\nseed: 42\n";
    insta::assert_snapshot!(imported(text, "pretrain.yaml", &["input.txt"]));
}

#[test]
fn axolotl() {
    let text = "base_model: my-llama\nmodel_type: LlamaForCausalLM\ndatasets:\n  - path: texts.jsonl\n    type: completion\n\
                val_set_size: 0.05\nsequence_len: 4096\nsample_packing: true\ngradient_accumulation_steps: 4\nmicro_batch_size: 2\n\
                num_epochs: 4\noptimizer: adamw_bnb_8bit\nlr_scheduler: cosine\nlearning_rate: 0.0002\nbf16: auto\nwarmup_steps: 10\n\
                adapter: lora\n";
    // Its weights are a folder, which is not there: the text is not loaded.
    insta::assert_snapshot!(import_config(text, Path::new("axolotl.yml")).unwrap());
}

#[test]
fn hugging_face_gpt2_and_llama() {
    let gpt2 = r#"{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 128, "vocab_size": 512,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-05, "bos_token_id": 1, "use_cache": true}"#;
    let text = imported(gpt2, "config.json", &["input.txt", "tokenizer.json"]);
    assert!(text.contains("layers: 2") && text.contains("dropout: 0.1") && !text.contains("bos_token_id"), "{text}");
    let llama = r#"{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 128, "vocab_size": 512, "rms_norm_eps": 1e-06,
        "rope_theta": 500000.0, "tie_word_embeddings": false, "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;
    let text = imported(llama, "config.json", &["input.txt", "tokenizer.json"]);
    for line in ["family: llama", "kv_heads: 2", "d_ff: 128", "rope_theta: 500000.0", "tie_embeddings: false"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn other_files_are_refused() {
    for (name, text, message) in [
        ("c.json", "{}", "`model_type` is missing"),
        ("c.json", "{\"model_type\": \"bert\"}", "`gpt2` and `llama` are read"),
        ("c.json", "{", "EOF"),
        ("c.yaml", "a: 1", "no YAML file of litgpt"),
        ("c.yaml", "- a: [", "c.yaml: "),
        ("c.toml", "", "a config.py of nanoGPT"),
    ] {
        let error = import_config(text, Path::new(name)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: ")) && error.contains(message), "{error}");
    }
}

/// The text that a litgpt file with `lines` becomes.
fn litgpt_with(lines: &str) -> String {
    import_config(&format!("model_name: tiny\n{lines}"), Path::new("c.yaml")).unwrap()
}

#[test]
fn what_has_another_form_is_translated_or_left_out_with_a_reason() {
    let text = litgpt_with("precision: bf16-true\noptimizer: AdamW\ntrain: {min_lr: 4e-5}\n");
    assert!(text.contains("master_weights: false") && text.contains("`final` is a share of the peak"), "{text}");
    let text = litgpt_with("optimizer: AdamW\ntrain: {max_norm: null}\n");
    assert!(text.contains("clip_norm: null") && text.contains("torch's defaults hold there"), "{text}");
    let text = import_config("learning_rate = 1e400\n", Path::new("c.py")).unwrap();
    assert!(text.contains("learning_rate = 1e400: not read"), "{text}");
    let text = import_config("if True:\n    dropout = 0.3\n", Path::new("c.py")).unwrap();
    assert!(text.contains("dropout = 0.3: not read"), "{text}");
    let text = litgpt_with("optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1, momentum: 0.9}}\n");
    assert!(
        text.contains("  sgd:\n    lr: 0.1") && text.contains("momentum: 0.9") && !text.contains("adamw"),
        "{text}"
    );
    let text = litgpt_with("data: {class_path: litgpt.data.TinyStories, init_args: {seed: 7}}\nseed: 42\n");
    assert!(text.contains("seed: 42") && text.contains("data.init_args.seed = 7"), "{text}");
    let text = import_config(
        "{\"model_type\": \"gpt2\", \"activation_function\": \"relu\", \"n_embd\": 8, \"n_head\": 1, \
        \"n_layer\": 1, \"n_positions\": 8, \"vocab_size\": 9}",
        Path::new("config.json"),
    )
    .unwrap_err()
    .to_string();
    assert!(text.contains("activation_function is \"relu\""), "{text}");
    let text = import_config(
        "max_iters = 500\nbatch_size = 12\nbatch_size = f()\n\"\"\"\nn_layer = 3\n\"\"\"\n",
        Path::new("c.py"),
    );
    let text = text.unwrap();
    assert!(
        text.contains("steps: 500") && text.contains("warmup_iters = 2000.0: cut to the length of the run"),
        "{text}"
    );
    assert!(text.contains("batch_size = f(): not read") && text.contains("layers: 12"), "{text}");
    let text = import_config(
        "base_model: x\n\"a\\nb.batch_size\": 3\ngradient_checkpointing: true\nlearning_rate: 1e-4\n",
        Path::new("a.yml"),
    );
    let text = text.unwrap();
    assert!(
        text.contains("recompute: block") && text.contains("final: 0.0") && text.contains("# a b.batch_size"),
        "{text}"
    );
}
