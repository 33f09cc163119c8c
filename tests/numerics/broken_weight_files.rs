//! Folders that are broken, mistyped or hostile: each gives a precise error and never a panic.

use std::fs;
use std::path::Path;

use runner_spec::error::{Classified as _, ErrorKind};
use runner_weights::OpenedWeights;

use crate::weight_files::{fixture, params};

/// A copy of a fixture.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn error(path: &Path) -> String {
    let error = OpenedWeights::open(path).expect_err("broken");
    assert!(error.kind() == ErrorKind::Request, "{error}");
    error.to_string()
}

/// Writes a safetensors file with this header, a stated header length of `said`, and `data` zeros.
fn write(path: &Path, header: &str, said: Option<u64>, data: usize) {
    let mut bytes = said.unwrap_or(header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(path, bytes).unwrap();
}

/// The error of the GPT-2 fixture with one piece of its configuration changed.
fn with_config(name: &str, from: &str, to: &str) -> String {
    let dir = copy(name);
    let file = dir.path().join("config.json");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(&file, text.replace(from, to)).unwrap();
    error(dir.path())
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn impossible_configurations_are_explained() {
    for (from, to, words) in [
        ("\"n_layer\": 2", "\"n_layer\": 3", "tensor transformer.h.2."),
        ("\"n_layer\": 2", "\"n_layer\": 1", "unexpected tensor"),
        ("\"n_layer\": 2", "\"n_layer\": 9000", "lists 9000 layers, but the file has only 28 tensors"),
        ("\"n_layer\": 2", "\"n_layer\": 1e30", "`n_layer` must be a whole number, got a number (1e+30)"),
        ("\"n_layer\": 2", "\"n_layer\": -2", "must be a whole number"),
        ("\"n_layer\": 2", "\"n_layer\": 0", "the number of layers must be 1 to 10000, got 0"),
        ("\"n_layer\": 2", "\"n_layer\": 999999999999", "must be 1 to 10000, got 999999999999"),
        ("\"n_layer\": 2,", "", "`n_layer` is missing"),
        ("\"n_head\": 2", "\"n_head\": 3", "the width, 16, must be a multiple of the 3 heads"),
        ("\"vocab_size\": 40", "\"vocab_size\": 41", "transformer.wte.weight must have the shape [41, 16] (from"),
        ("\"n_inner\": 40", "\"n_inner\": null", "mlp.c_fc.weight must have the shape [16, 64] (from"),
        ("gelu_new", "relu", "unsupported `activation_function` \"relu\"; only `gelu_new`"),
        (
            "\"model_type\": \"gpt2\"",
            "\"model_type\": \"phi3\"",
            "`model_type` must be `gpt2`, `llama`, `mistral`, `qwen2`, `qwen3`, `gemma3_text`, `olmo2`, `olmo3` or `smollm3`, got \"phi3\"",
        ),
        ("\"model_type\": \"gpt2\",", "", "`model_type` is missing"),
        (
            "\"scale_attn_weights\": true",
            "\"scale_attn_weights\": false",
            "`scale_attn_weights: false` is not supported",
        ),
        ("\"n_layer\": 2", "\"n_layer\": 2, \"n_layer\": 2", "duplicate key \"n_layer\""),
        ("\"n_layer\": 2", "\"n_layer\": 2, \"quantization_config\": {}", "quantized"),
        ("{", "", "invalid JSON"),
        ("\"layer_norm_epsilon\": 1e-05", "\"layer_norm_epsilon\": 0", "epsilon must be above 0 and at most 1, got 0"),
        (
            "\"layer_norm_epsilon\": 1e-05",
            "\"layer_norm_epsilon\": NaN",
            "`layer_norm_epsilon` must be a number, got NaN",
        ),
        ("\"resid_pdrop\": 0.0", "\"resid_pdrop\": \"x\"", "`resid_pdrop` must be a number, got a string"),
    ] {
        let error = with_config("gpt2", from, to);
        assert!(error.contains(words), "{to}: {error}");
    }
    for (from, to, words) in [
        (
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"dynamic\"",
            "unsupported rope type \"dynamic\" in `rope_parameters`",
        ),
        ("\"rope_type\": \"default\"", "\"rope_type\": \"llama3\"", "`rope_parameters.factor` is missing"),
        (
            "\"rope_type\": \"default\"",
            "\"partial_rotary_factor\": 0.5",
            "partial_rotary_factor` must be 1, got a number (0.5)",
        ),
        (
            "\"rope_theta\": 500.0",
            "\"rope_theta\": Infinity",
            "`rope_parameters.rope_theta` must be a number, got Infinity",
        ),
        ("\"rope_theta\": 500.0", "\"rope_theta\": {}", "llama has one rotary setting for all layers"),
        (
            "\"vocab_size\"",
            "\"rope_theta\": 7.0, \"vocab_size\"",
            "`rope_theta` gives a rope_theta of 7, but `rope_parameters.rope_theta` is 500",
        ),
        (
            "\"vocab_size\"",
            "\"rope_scaling\": {\"type\": \"longrope\", \"factor\": 2}, \"vocab_size\"",
            "unsupported rope type \"longrope\"",
        ),
        ("\"head_dim\": 4", "\"head_dim\": 8", "q_proj.weight must have the shape [32, 16]"),
        ("\"attention_bias\": false", "\"attention_bias\": true", "tensor model.layers.0.self_attn.q_proj.bias"),
        (
            "\"mlp_bias\": false",
            "\"mlp_bias\": true",
            "`mlp_bias: true` without `attention_bias: true` is not supported",
        ),
        ("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "unsupported `hidden_act` \"gelu\""),
        ("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "must be a multiple of the 3 key-value heads"),
        ("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "set `tie_word_embeddings` to false there"),
        ("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", "`attention_dropout` must be 0, got 0.1"),
    ] {
        let error = with_config("llama", from, to);
        assert!(error.contains(words), "{to}: {error}");
    }
    for (text, words) in [("[]", "it must be a JSON object, got an array"), ("7", "got a number"), ("", "invalid JSON")]
    {
        let dir = copy("gpt2");
        fs::write(dir.path().join("config.json"), text).unwrap();
        assert!(error(dir.path()).contains(words), "{text}");
    }
    let dir = copy("gpt2");
    fs::write(dir.path().join("config.json"), "[".repeat(1 << 19)).unwrap();
    assert!(error(dir.path()).contains("recursion limit"));
    fs::write(dir.path().join("config.json"), " ".repeat(2 << 20)).unwrap();
    assert!(error(dir.path()).contains("at most 1048576 bytes"));
}

#[test]
fn headers_with_false_sizes_are_refused() {
    let dir = copy("gpt2");
    let file = dir.path().join("model.safetensors");
    let one = |shape: &str, begin: u64, end: u64| {
        format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}}}")
    };
    let twice = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    let overlap = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}";
    let huge = u64::MAX;
    for (header, said, data, words) in [
        (String::new(), Some(huge), 0, "cut short"),
        (String::new(), Some(u64::MAX - 7), 100, "cut short"),
        ("{}".into(), Some(200_000_000), 10, "cut short"),
        ("x".repeat(100_000_001), None, 0, "its header must have at most 100000000"),
        ("{\"a\":1}".into(), None, 0, "tensor \"a\""),
        ("[]".into(), None, 0, "an object of tensors"),
        ("{\"a\":".to_owned() + &"[".repeat(100_000), None, 0, "its header is invalid"),
        (one("[1]", 0, 4), None, 3, "cut short, or its header is invalid"),
        (one("[1]", 0, 4), None, 5, "its tensors end at byte 4 instead of 5"),
        (one("[1]", 4, 8), None, 8, "leaves a gap"),
        (one("[2]", 0, 4), None, 4, "has 4 bytes, which do not match the shape [2] of F32"),
        (one("[1]", 4, 0), None, 4, "its header is invalid"),
        (one(&format!("[{huge},{huge}]"), 0, 4), None, 4, "do not match the shape"),
        (one(&format!("[{huge}]"), 0, huge), None, 4, "its header is invalid"),
        (one("[-1]", 0, 4), None, 4, "tensor \"a\""),
        (twice.into(), None, 8, "duplicate key \"a\""),
        (overlap.into(), None, 12, "overlaps the one before"),
        (one("[1]", 0, 4), None, 4, "2 layers, but the file has only 1 tensor"),
        ("{}".into(), None, 0, "2 layers, but the file has only 0 tensors"),
        (
            "{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}".into(),
            None,
            8,
            "has type I64; only f32, f16 and bf16 are supported",
        ),
    ] {
        write(&file, &header, said, data);
        let error = error(dir.path());
        assert!(error.contains(words), "{}: {error}", header.chars().take(80).collect::<String>());
    }
    for bytes in [&b""[..], b"1234567"] {
        fs::write(&file, bytes).unwrap();
        assert!(error(dir.path()).contains("not a safetensors file"));
    }
}

#[test]
fn an_index_is_checked_against_its_shards() {
    let index = "model.safetensors.index.json";
    let shard = "model-00002-of-00003.safetensors";
    let changed = |change: &dyn Fn(String) -> String| {
        let dir = copy("gpt2-sharded");
        let file = dir.path().join(index);
        fs::write(&file, change(fs::read_to_string(&file).unwrap())).unwrap();
        error(dir.path())
    };
    for (to, words) in [
        ("model-00009-of-00003.safetensors", "it lists model-00009-of-00003.safetensors, which is missing"),
        ("../x.safetensors", "must be in the same folder as the index"),
        ("/etc/passwd", "must be in the same folder as the index"),
        ("..", "must be in the same folder as the index"),
        ("pytorch_model.bin", "must end in `.safetensors`"),
    ] {
        let error = changed(&|text| text.replacen(shard, to, 1));
        assert!(error.contains(words), "{to}: {error}");
    }
    let error = changed(&|text| text.replacen("\"h.0.attn.c_attn.bias\"", "\"h.0.attn.c_attn.other\"", 1));
    assert!(error.contains("contains tensor h.0.attn.c_attn.bias, which the index does not list"), "{error}");
    let error = changed(&|text| {
        text.replacen("\"weight_map\": {", "\"weight_map\": {\"more\": \"model-00001-of-00003.safetensors\",", 1)
    });
    assert!(error.contains("the index places more in model-00001-of-00003.safetensors"), "{error}");
    for text in ["{}", "{\"weight_map\": []}", "{\"weight_map\": {}}", "{\"weight_map\": {\"a\": 1}}"] {
        assert!(changed(&|_| text.to_owned()).contains(index), "{text}");
    }
    // The same tensor in two shards.
    let dir = copy("gpt2-sharded");
    let [one, two] = ["model-00001-of-00003.safetensors", shard].map(|name| dir.path().join(name));
    fs::copy(one, two).unwrap();
    let message = error_of(&dir);
    assert!(message.contains("is in model-00001-of-00003.safetensors and in model-00002"), "{message}");
}

fn error_of(dir: &tempfile::TempDir) -> String {
    error(dir.path())
}

#[test]
fn the_error_of_a_foreign_file_gives_advice() {
    let dir = copy("gpt2");
    fs::rename(dir.path().join("model.safetensors"), dir.path().join("pytorch_model.bin")).unwrap();
    assert!(error(dir.path()).contains("pytorch_model.bin: unknown format"));
    fs::write(dir.path().join("pytorch_model.bin"), b"\x80\x02\x8a\nl").unwrap();
    assert!(error(dir.path()).contains("a bare pickle") && error(dir.path()).contains("python -c"));
    fs::rename(dir.path().join("pytorch_model.bin"), dir.path().join("model.pt")).unwrap();
    let named = error(dir.path());
    assert!(named.contains("to read model.pt, use") && named.contains("/model.pt"), "{named}");
    fs::remove_file(dir.path().join("model.pt")).unwrap();
    fs::remove_file(dir.path().join("expected.safetensors")).unwrap();
    assert!(error(dir.path()).contains("no weights here"));
    fs::write(dir.path().join("model-00001-of-00002.safetensors"), "").unwrap();
    assert!(error(dir.path()).contains("neither model.safetensors nor"));
    assert!(error(&dir.path().join("config.json")).contains("unknown format"));
    fs::remove_file(dir.path().join("config.json")).unwrap();
    fs::write(dir.path().join("x.bin"), b"PK\x03\x04 zip").unwrap();
    assert!(error(&dir.path().join("x.bin")).contains("damaged or incomplete zip archive"));
    assert!(error(tempfile::tempdir().unwrap().path()).contains("no config.json in this folder"));
    assert!(error(Path::new("/nowhere/at/all")).contains("/nowhere/at/all"));
}

/// Truncations in and after the header, and changed bytes: what opens can be read whole; nothing panics. The fuzz target `weights` tries more.
#[test]
fn no_bytes_make_it_panic() {
    const CHANGES: usize = 150;
    const CUTS: usize = 100;
    for (name, file) in [
        ("llama-tied", "model.safetensors"),
        ("llama-tied", "config.json"),
        ("gpt2-sharded", "model.safetensors.index.json"),
        ("gpt2-sharded", "model-00001-of-00003.safetensors"),
    ] {
        let dir = copy(name);
        let path = dir.path().join(file);
        let whole = fs::read(&path).unwrap();
        let header = if file.ends_with("json") {
            whole.len()
        } else {
            8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize
        };
        let mut opened = 0;
        let mut attempt = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            if let Ok(weights) = OpenedWeights::open(dir.path()) {
                params(&weights);
                opened += 1;
            }
        };
        for cut in (0..header).step_by(header / CUTS).chain([header, header + 1, whole.len() - 1]) {
            attempt(&whole[..cut.min(whole.len() - 1)]);
        }
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for _ in 0..CHANGES {
            let mut bytes = whole.clone();
            for _ in 0..=random() % 3 {
                let at = random() % header;
                bytes[at] = if random() % 2 == 0 { random() as u8 } else { bytes[at] ^ (1 << (random() % 8)) };
            }
            attempt(&bytes);
        }
        assert!(opened < CHANGES, "{name}/{file}: {opened} of the broken ones were taken");
    }
}
