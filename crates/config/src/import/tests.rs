//! Configurations of other trainers, and the experiment files that they become.

use std::path::Path;

use super::*;
use crate::{LoadOptions, from_str};

fn import_config(text: &str, path: &Path) -> Result<String, PlainError> {
    super::import_config(text, path, Path::new("")).map(|imported| imported.text)
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
fn nanogpts_shakespeare_char_is_imported() {
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
    let text = "batch_size = __import__('os').system('touch /tmp/x')\nmax_iters = 2 * 512\nn = 'a' * 10 ** 9\nblock_size = max_iters\n\
                eval_iters = [1] * 10 ** 9\nwarmup_iters = 10\n";
    let text = imported(text, "c.py", &["data/openwebtext/train.bin", "data/openwebtext/val.bin"]);
    assert!(text.contains("steps: 1024") && text.contains("context_length: 1024"), "{text}");
    assert_eq!(text.matches("not read: the file is not executed").count(), 3, "{text}");
}

/// The text and the warnings that the config.py `text` becomes.
fn python(text: &str) -> (String, Vec<String>) {
    let imported = super::import_config(text, Path::new("c.py"), Path::new("")).unwrap();
    (imported.text, imported.warnings)
}

#[test]
fn assignments_of_python_are_read() {
    let text = r#"
n_layer = 3
n_head = 2
block_size = 64 # comment
n_embd = 64 * n_head
max_iters = 10 * 100
batch_size = 4
warmup_iters = 10
weight_decay = 1e-2
grad_clip = .5
eval_iters = 20
eval_interval = 25
learning_rate = 1e-3
min_lr = learning_rate
lr_decay_iters = max_iters # n_layer = 9
"""
n_layer = 8
"""
"#;
    let (text, warnings) = python(text);
    for line in [
        "context_length: 64 ",
        "d_model: 128 ",
        "heads: 2 ",
        "layers: 3 ",
        "micro_batch: 4 ",
        "steps: 1000 ",
        "steps: 10 ",
        "weight_decay: 0.01 ",
        "clip_norm: 0.5 ",
        "rows: 80 ",
        "every: 25 ",
        "lr: 0.001 ",
        "final: 1.0 ",
        "steps: 990 ",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("not read: the") && warnings.is_empty(), "{warnings:?}\n{text}");
    assert!(text.contains("# n_layer\n") && text.contains("# dropout (nanoGPT's default)\n"), "{text}");
}

#[test]
fn lines_that_are_not_read_are_listed_with_a_warning() {
    for statement in [
        "n_head = f()",
        "n_head += f()",
        "n_head, x = f()",
        "n_head: int = f()",
        "n_head = -2 ** 2",
        "n_head = 1, 2",
        "n_head = 8 // 2",
        "n_head = (8)",
        "n_head = 10 ** 19",
        "n_head = 1e400",
        "n_head = 1 if x else 2",
        "if x: n_head = 3",
        "\tn_head = 3",
        "n_head = x = 3",
        "n_head = 3; n_layer = 3",
        "for n_head in [1, 2]: pass",
        "from x import n_head",
        "exec(open('x').read())",
        "globals()['n_head'] = 3",
        "(n_head := 3)",
        "= 3",
    ] {
        let (text, warnings) = python(&format!("n_layer = 2\n{statement}\n"));
        assert!(matches!(&warnings[..], [one] if one.contains("were not read")), "{statement}: {warnings:?}");
        let listed = format!("#   line 2: {}: not read: the file is not executed\n", statement.trim());
        assert!(text.contains(&listed), "{text}");
        assert!(text.contains("layers: 2 ") && text.contains("# n_head (nanoGPT's default)\n"), "{text}");
    }
    let (text, warnings) = python("dataset = 'openwebtext'\n# n_head = 3\nx = \"\"\"first\nn_head = 4\n\"\"\"\n");
    assert!(warnings.is_empty() && text.contains("# n_head (nanoGPT's default)\n"), "{warnings:?}");
    let (text, _) = python("\u{feff}n_layer = 3\r\nn_head = 4\r\n");
    assert!(
        text.contains("layers: 3 ") && text.contains("heads: 4 "),
        "a byte order mark, and lines of Windows: {text}"
    );
}

#[test]
fn files_of_the_other_trainer_have_their_whole_path_in_a_different_folder() {
    let import =
        |output: &str| super::import_config("dataset = 'x_char'\n", Path::new("c.py"), Path::new(output)).unwrap().text;
    assert!(import("").contains("files: [data/x_char/input.txt]"));
    let whole = std::env::current_dir().unwrap().join("data/x_char/input.txt");
    assert!(import("sub").contains(&whole.display().to_string()));
}

#[test]
fn hugging_faces_gpt2_and_llama_are_imported() {
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
fn dropouts_of_gpt2_are_one_number_or_left_out() {
    let sizes = r#""model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 8, "vocab_size": 9"#;
    for (keys, part) in [
        (r#", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1"#, "  dropout: 0.1 "),
        ("", "  dropout: 0.1 "),
        (
            r#", "resid_pdrop": 0.2, "embd_pdrop": 0.0"#,
            "#   resid_pdrop, embd_pdrop, attn_pdrop: `model.dropout` is one number for all three",
        ),
    ] {
        let text = import_config(&format!("{{{sizes}{keys}}}"), Path::new("config.json")).unwrap();
        assert!(text.contains(part), "{text}");
        assert_eq!(text.contains("  dropout: "), part.contains("  dropout: "), "{text}");
    }
}

#[test]
fn a_refused_model_is_refused_with_its_reason() {
    let config = r#"{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
        "intermediate_size": 128, "max_position_embeddings": 128, "vocab_size": 512, "mlp_bias": true}"#;
    let error = import_config(config, Path::new("config.json")).unwrap_err().to_string();
    assert!(
        error.starts_with("config.json: `mlp_bias: true` without `attention_bias: true` is not supported"),
        "{error}"
    );
}

#[test]
fn models_that_nanogpt_starts_from_have_their_sizes_and_weights() {
    for (name, preset) in
        [("gpt2", "gpt2-124m"), ("gpt2-medium", "gpt2-355m"), ("gpt2-large", "gpt2-774m"), ("gpt2-xl", "gpt2-1558m")]
    {
        let config = format!("init_from = '{name}'\nn_layer = 3\nblock_size = 512\nmax_iters = 20\n");
        let imported = super::import_config(&config, Path::new("c.py"), Path::new("")).unwrap();
        imported.check(Path::new("exp.yaml")).unwrap();
        let text = imported.text;
        for part in [
            &format!("preset: {preset} "),
            &format!("from: \"hub:{name}\" "),
            "context_length: 512 ",
            "n_layer = 3: nanoGPT takes it from the model",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        for part in ["layers:", "n_head", "bias", "pad_vocab_to"] {
            assert!(!text.contains(part), "{part}\n{text}");
        }
        assert!(imported.warnings.is_empty(), "{:?}", imported.warnings);
    }
    let (text, warnings) = python("init_from = 'resume'\n");
    assert!(text.contains("`runner resume RUN` resumes a run") && !text.contains("hub:gpt2"), "{text}");
    assert!(text.contains("layers: 12 ") && warnings.is_empty(), "{text}");
}

#[test]
fn other_files_are_refused() {
    for (name, text, message) in [
        ("c.py", "config = dict(n_layer=4)\n", "assign settings at the top level, not in a dict or a class"),
        ("c.json", "{}", "`model_type` is missing"),
        ("c.json", "{\"model_type\": \"bert\"}", "`olmo3` or `smollm3`, got \"bert\""),
        ("c.json", "{", "EOF"),
        ("c.yaml", "model_name: pythia-14m", "the name must end in .py or .json; supported files are"),
        ("c.py", " \n", "found no setting"),
        ("c.py", "# n_layer = 3\nimport x\ny = 3\n", "found no setting of nanoGPT, such as `batch_size`"),
        ("c.toml", "a", "the name must end in .py"),
    ] {
        let error = import_config(text, Path::new(name)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: ")) && error.contains(message), "{error}");
    }
}

#[test]
fn large_files_of_python_come_to_an_end() {
    for part in ["if x:", "a=", "a,", "a=1\n", "(", "'", "b\n", "#\n", "a:", "2*"] {
        let imported =
            import_config(&format!("n_layer = 2\n{}", part.repeat((1 << 20) / part.len())), Path::new("c.py"));
        assert!(imported.unwrap().contains("layers: 2 "), "{part}");
    }
}

#[test]
fn settings_of_another_form_are_translated_or_left_out_with_a_reason() {
    let text = import_config(
        "{\"model_type\": \"gpt2\", \"activation_function\": \"relu\", \"n_embd\": 8, \"n_head\": 1, \
        \"n_layer\": 1, \"n_positions\": 8, \"vocab_size\": 9}",
        Path::new("config.json"),
    )
    .unwrap_err()
    .to_string();
    assert!(text.contains("unsupported `activation_function` \"relu\""), "{text}");
    let text = import_config("max_iters = 500\nlearning_rate = 'auto'\nmin_lr = 1e-5\n", Path::new("c.py")).unwrap();
    assert!(text.contains("steps: 500"), "{text}");
    assert!(text.contains("# warmup_iters (nanoGPT's default), cut to the length of the run\n"), "{text}");
    assert!(text.contains("lr: auto ") && text.contains("#   min_lr = "), "{text}");
    let (text, _) = python("decay_lr = False\nwarmup_iters = 5\n");
    assert!(!text.contains("warmup") && !text.contains("schedule"), "{text}");
}
