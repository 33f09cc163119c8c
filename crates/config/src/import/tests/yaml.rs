//! Numbers and shares of a run in YAML files, and the check of the experiment that is written.

use std::path::Path;

use super::{import_config, litgpt_with};
use crate::import;

/// The experiment that an axolotl file with `lines` becomes, and its warnings.
fn axolotl_with(lines: &str) -> (String, Vec<String>) {
    let text =
        format!("base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 1\ndatasets: [{{path: x/y}}]\n{lines}\n");
    let imported = import::import_config(&text, Path::new("a.yml"), Path::new("")).unwrap();
    imported.check(Path::new("exp.yaml")).unwrap_or_else(|mistakes| panic!("{}\n{mistakes}", imported.text));
    (imported.text, imported.warnings)
}

#[test]
fn numbers_of_other_yaml_are_numbers() {
    let (text, _) = axolotl_with(
        "learning_rate: \"2e-4\"\nseed: \"1_234\"\nmax_steps: 1_000\nadam_beta1: '0.9'\nadam_beta2: 95e-2\nval_set_size: '0.05'\n\
         gradient_accumulation_steps: '4'\ngradient_checkpointing: yes\nweight_decay: 1e-1\nsave_steps: 5_0",
    );
    for part in [
        "lr: 0.0002 ",
        "seed: 1234 ",
        "  steps: 1000 ",
        "betas: [0.9, 0.95] ",
        "fraction: 0.05 ",
        "sequences: 4 ",
        "recompute: block ",
        "weight_decay: 0.1 ",
        "every: 50 ",
        // 3% of 1000 steps.
        "steps: 30 ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let model = "model_config: {n_layer: \"2\", n_head: 2, n_embd: 1_6, block_size: 6_4, padded_vocab_size: 512}\n";
    let text = litgpt_with(&format!("{model}train: {{max_norm: '0.5', tie_embeddings: on}}\n"));
    for part in ["layers: 2 ", "d_model: 16 ", "context_length: 64 ", "clip_norm: 0.5 ", "tie_embeddings: true "] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn shares_of_a_run_are_steps() {
    let lines = "learning_rate: 1e-3\nmax_steps: 250\nwarmup_steps: 0.1\neval_steps: 0.25\nsave_steps: 0.5\nlogging_steps: 0.01";
    let (text, warnings) = axolotl_with(lines);
    // 0.25 · 250 is 62.5, which transformers rounds up; so is 0.01 · 250.
    for part in ["warmup:\n    steps: 25 ", "eval:\n  every: 63 ", "checkpoint:\n  every: 125 ", "log:\n  every: 3 "] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!warnings.iter().any(|warning| warning.contains("fraction")), "{warnings:?}");
    // axolotl rounds the steps of a ratio down: 0.03 · 250 is 7.5.
    let (text, _) = axolotl_with("max_steps: 250\nwarmup_ratio: 0.03");
    assert!(text.contains("steps: 7 ") && text.contains("# warmup_ratio · max_steps"), "{text}");
    let (text, _) = axolotl_with("max_steps: 250\nwarmup_ratio: 0.5\nwarmup_steps: 9");
    assert!(
        text.contains("steps: 9 ") && text.contains("warmup_ratio = 0.5: `warmup_steps` takes precedence"),
        "{text}"
    );
    let (text, _) = axolotl_with("max_steps: 250\nwarmup_ratio: 0");
    assert!(!text.contains("warmup:") && text.contains("less than a step"), "{text}");
    let (text, _) = axolotl_with("learning_rate: 1e-3\nmax_steps: 250\ncosine_min_lr_ratio: 0.1");
    assert!(text.contains("final: 0.1 ") && !text.contains("cosine_min_lr_ratio ="), "{text}");
    // Without the number of steps a warmup stays a fraction, and other fractions are left out with a warning.
    for line in ["warmup_steps: 0.1", "warmup_ratio: 0.1"] {
        let (text, warnings) = axolotl_with(&format!("num_epochs: 1\nlearning_rate: 1e-3\n{line}"));
        let key = line.split(':').next().unwrap();
        assert!(text.contains("warmup:\n    share: 0.1 ") && text.contains(&format!("# {key}\n")), "{text}");
        assert!(!warnings.iter().any(|w| w.contains("warmup")), "{warnings:?}");
    }
    let (text, warnings) = axolotl_with("num_epochs: 1\nlearning_rate: 1e-3\neval_steps: 0.1");
    assert!(text.contains("eval_steps = 0.1: it is a fraction of the run's steps"), "{text}");
    assert!(warnings.iter().any(|w| w.starts_with("eval_steps = 0.1 is a fraction")), "{warnings:?}");
    let (_, warnings) = axolotl_with("num_epochs: 1");
    assert!(warnings.iter().any(|warning| warning.contains("leaves out the warmup")), "{warnings:?}");
    let imported =
        import::import_config("model_name: x\ntrain: {lr_warmup_fraction: 0.1}\n", Path::new("c.yaml"), Path::new(""));
    let warnings = imported.unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("lr_warmup_fraction = 0.1 is a fraction")), "{warnings:?}");
}

#[test]
fn each_trainer_decays_its_own_parameters() {
    let litgpt = litgpt_with("optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1e-3}}\n");
    assert!(litgpt.contains("decays: all "), "{litgpt}");
    // The others leave out gains and biases, as is the default here.
    let sgd = litgpt_with("optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}\n");
    for text in [sgd, axolotl_with("learning_rate: 1e-3").0, import_config("n_layer = 2\n", Path::new("c.py")).unwrap()]
    {
        assert!(!text.contains("decays"), "{text}");
    }
}

#[test]
fn invalid_values_are_reported_at_their_keys() {
    for (lines, message) in [
        ("micro_batch_size: 0", "`batch.micro_batch` must be at least 1"),
        ("learning_rate: auto", "`optimizer.adamw.lr` must be a number"),
        ("num_epochs: -1", "`train.epochs` must be"),
        ("seed: 1.5", "`seed` must be a whole number"),
    ] {
        let text = format!("base_model: gpt2\nsequence_len: 512\n{lines}\n");
        let imported = import::import_config(&text, Path::new("a.yml"), Path::new("")).unwrap();
        let mistakes = imported.check(Path::new("exp.yaml")).expect_err(&imported.text).to_string();
        assert!(mistakes.contains(message) && mistakes.contains("exp.yaml:"), "{mistakes}");
    }
}
