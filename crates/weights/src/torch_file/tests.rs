use std::io::Write as _;

use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::OpenedWeights;
use crate::export_torch::{add_tensor, int, text};
use runner_spec::model::{Family, ModelSpec};

const DICT: &[u8] = b"\x80\x02ccollections\nOrderedDict\n)R(";

/// Writes an archive with these entries, which are in the folder `x`.
fn write(path: &Path, entries: &[(&str, &[u8])]) {
    let mut zip = ZipWriter::new(File::create(path).unwrap());
    for (name, bytes) in entries {
        zip.start_file(format!("x/{name}"), SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// The numbers of tensor `number`, which has `elements`.
fn numbers(number: usize, elements: usize) -> Vec<f32> {
    (0..elements).map(|i| (100 * number + i) as f32).collect()
}

/// Writes the state dict of a GPT-2 of width 4 and one layer, as nanoGPT does: matrices are [out, in], the head is the embedding.
fn write_nanogpt(path: &Path, model_args: Option<usize>, has_biases: bool) -> Vec<(String, Vec<f32>)> {
    write_wrapped(path, model_args, has_biases, &|name| format!("_orig_mod.{name}"))
}

/// [`write_nanogpt`] with the names that `wrap` makes of the model's own.
fn write_wrapped(
    path: &Path,
    model_args: Option<usize>,
    has_biases: bool,
    wrap: &dyn Fn(&str) -> String,
) -> Vec<(String, Vec<f32>)> {
    let spec = ModelSpec::with_defaults(Family::Gpt2, [8, 6, 1, 2, 4]);
    let mut pickle = b"\x80\x02}(".to_vec();
    text(&mut pickle, "model");
    pickle.extend(&DICT[2..]);
    let mut storages = Vec::new();
    let mut expected = Vec::new();
    let parameters = spec.decoder().parameters().into_iter();
    let parameters =
        parameters.filter(|parameter| has_biases || parameter.spec.name.rsplit('.').next() != Some("bias"));
    for (number, parameter) in parameters.enumerate() {
        let name = wrap(&parameter.spec.name);
        add_tensor(&mut pickle, Dtype::F32, &name, number, &parameter.spec.shape);
        let values = numbers(number, parameter.spec.len());
        storages
            .push((format!("data/{number}"), values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()));
        expected.push((parameter.spec.name, values));
    }
    add_tensor(&mut pickle, Dtype::F32, &wrap("lm_head.weight"), 0, &[8, 4]);
    pickle.push(b'u');
    if let Some(heads) = model_args {
        text(&mut pickle, "model_args");
        pickle.extend(b"}(");
        text(&mut pickle, "n_head");
        int(&mut pickle, heads);
        text(&mut pickle, "bias");
        pickle.extend(b"\x88u");
    }
    text(&mut pickle, "best_val_loss");
    pickle.extend(b"G@\x09\x21\xfb\x54\x44\x2d\x18u.");
    let entries = storages.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    write(path, &[("data.pkl", pickle.as_slice())].into_iter().chain(entries).collect::<Vec<_>>());
    expected
}

#[test]
fn a_checkpoint_of_nanogpt_is_read_with_its_heads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ckpt.pt");
    let expected = write_nanogpt(&path, Some(2), true);
    let opened = OpenedWeights::open(&path).unwrap();
    let spec = &opened.described.spec;
    assert_eq!((spec.vocab_size, spec.context_length, spec.layers, spec.heads, spec.d_model), (8, 6, 1, 2, 4));
    assert_eq!((spec.d_ff, spec.tie_embeddings, opened.described.gives("heads")), (16, true, true));
    for (parameter, (name, values)) in spec.decoder().parameters().iter().zip(expected) {
        let mut read = vec![0.0; values.len()];
        opened.read(&name, &parameter.spec.shape, &mut read).unwrap();
        assert_eq!(read, values, "{name}");
    }
    write_nanogpt(&path, None, true);
    let described = OpenedWeights::open(&path).unwrap().described;
    assert!(!described.gives("heads") && !described.gives("norm_eps") && described.gives("d_ff"));
}

#[test]
fn names_of_wrapped_models_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ckpt.pt");
    let wrap: [&dyn Fn(&str) -> String; 5] = [
        // Lightning, DDP around torch.compile, and a class with the model and its head.
        &|name| format!("model.{name}"),
        &|name| format!("module._orig_mod.{name}"),
        &|name| format!("net.gpt.{name}").replace("net.gpt.lm_head", "net.lm_head"),
        // FSDP, which wraps each layer too, and the recomputation of activations.
        &|name| format!("_fsdp_wrapped_module.{name}").replace("h.0.", "h.0._fsdp_wrapped_module."),
        &|name| name.replace("h.0.", "h.0._checkpoint_wrapped_module."),
    ];
    for wrap in wrap {
        let expected = write_wrapped(&path, Some(2), true, wrap);
        let opened = OpenedWeights::open(&path).unwrap();
        for (parameter, (name, values)) in opened.described.spec.decoder().parameters().iter().zip(expected) {
            let mut read = vec![0.0; values.len()];
            opened.read(&name, &parameter.spec.shape, &mut read).unwrap();
            assert_eq!(read, values, "{name}");
        }
    }
    // The average of the weights beside them.
    write_wrapped(&path, Some(2), true, &|name| {
        let owner = if name.starts_with("lm_head") { "ema" } else { "model" };
        format!("{owner}.{}", name.replace("lm_head", "transformer.wte"))
    });
    let error = OpenedWeights::open(&path).unwrap_err().to_string();
    assert!(error.contains("the tensors of two models, at `model` and at `ema`; save one of them"), "{error}");
}

/// nanoGPT trains without biases by default.
#[test]
fn a_gpt2_without_biases_has_zeros_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ckpt.pt");
    let stored: std::collections::BTreeMap<_, _> = write_nanogpt(&path, Some(2), false).into_iter().collect();
    let opened = OpenedWeights::open(&path).unwrap();
    assert_eq!(opened.described.spec.d_ff, 16);
    let parameters = opened.described.spec.decoder().parameters();
    assert!(parameters.len() > stored.len());
    for parameter in parameters {
        let mut read = vec![f32::NAN; parameter.spec.len()];
        opened.read(&parameter.spec.name, &parameter.spec.shape, &mut read).unwrap();
        let zeros = vec![0.0; read.len()];
        assert_eq!(&read, stored.get(&parameter.spec.name).unwrap_or(&zeros), "{}", parameter.spec.name);
    }
}

#[test]
fn only_a_description_of_a_model_beside_a_state_dict_counts() {
    let dir = tempfile::tempdir().unwrap();
    let (path, config) = (dir.path().join("ckpt.pt"), dir.path().join("config.json"));
    write_nanogpt(&path, Some(2), true);
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    std::fs::write(&config, r#"{"port": 80}"#).unwrap();
    let own = OpenedWeights::open(&path).unwrap().described;
    assert_eq!((&own.file, own.tokenizer()), (&path, None));
    let assumed = own.assumptions(|_| false).unwrap();
    assert!(assumed.ends_with("assumed: activation `gelu_new`, `norm_eps` 1e-5"), "{assumed}");
    assert!(!own.assumptions(|key| key == "norm_eps").unwrap().contains("norm_eps"));

    std::fs::write(&config, r#"{"model_type": "bert"}"#).unwrap();
    let error = OpenedWeights::open(&path).unwrap_err().to_string();
    assert!(error.contains("(it describes ckpt.pt beside it)"), "{error}");
    let keys = r#""vocab_size": 8, "n_positions": 6, "n_layer": 1, "n_head": 2, "n_embd": 4"#;
    std::fs::write(&config, format!(r#"{{"model_type": "gpt2", {keys}}}"#)).unwrap();
    let described = OpenedWeights::open(&path).unwrap().described;
    assert!(described.tokenizer().is_some() && described.assumptions(|_| false).is_none());
}

/// The error of a state dict with one tensor, made by replacing bytes of its pickle.
fn error_with(shape: &[usize], change: impl Fn(&mut Vec<u8>)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pt");
    let mut pickle = DICT.to_vec();
    add_tensor(&mut pickle, Dtype::F32, "wte.weight", 0, shape);
    pickle.extend(b"u.");
    change(&mut pickle);
    write(&path, &[("data.pkl", &pickle), ("data/0", &[0; 24])]);
    TorchFile::open(0, &path).expect_err("a hostile file").to_string()
}

/// Replaces the first bytes `from` of `pickle`, of which there are as many as of `to`.
fn replace(pickle: &mut [u8], from: &[u8], to: &[u8]) {
    let at = pickle.windows(from.len()).position(|window| window == from).unwrap();
    pickle[at..at + to.len()].copy_from_slice(to);
}

/// A whole number as `int` writes it.
fn long(value: i64) -> Vec<u8> {
    b"\x8a\x08".iter().copied().chain(value.to_le_bytes()).collect()
}

/// `torch.save` stores the flags of a lazy view in a seventh argument.
#[test]
fn lazy_views_are_refused_by_name() {
    let flagged = |name: &str| {
        error_with(&[2, 3], |pickle| {
            let mut flags = b"}".to_vec();
            text(&mut flags, name);
            flags.extend(b"\x88s");
            let end = pickle.len() - b"tRu.".len();
            pickle.splice(end..end, flags);
        })
    };
    for flag in ["neg", "conj"] {
        let error = flagged(flag);
        let words =
            format!("tensor wte.weight: its numbers are a lazy view with the flag `{flag}`, which is not supported");
        assert!(error.contains(&words), "{error}");
    }
}

#[test]
fn a_file_with_two_state_dicts_names_both() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pt");
    let dict = |pickle: &mut Vec<u8>, number: usize, name: &str| {
        pickle.extend(b"}(");
        add_tensor(pickle, Dtype::F32, name, number, &[2, 3]);
        pickle.push(b'u');
    };
    let read = |keys: &[(&str, &str)]| {
        let mut pickle = b"\x80\x02}(".to_vec();
        for (number, (key, name)) in keys.iter().enumerate() {
            if key.is_empty() {
                add_tensor(&mut pickle, Dtype::F32, name, number, &[2, 3]);
            } else {
                text(&mut pickle, key);
                dict(&mut pickle, number, name);
            }
        }
        pickle.extend(b"u.");
        write(&path, &[("data.pkl", &pickle), ("data/0", &[0; 24]), ("data/1", &[0; 24])]);
        TorchFile::open(0, &path).map(|file| file.tensors[0].name.clone()).map_err(|error| error.to_string())
    };
    let both = |first: &str, second: &str| {
        let error = read(&[(first, "wte.weight"), (second, "wte.weight")]).unwrap_err();
        assert!(error.contains("torch.save(checkpoint['model'], 'model.pt')"), "{error}");
        error
    };
    assert!(both("model", "ema").contains("two state dicts, in `model` and in `ema`"));
    assert!(both("state_dict", "model").contains("two state dicts, in `state_dict` and in `model`"));
    assert!(both("", "ema").contains("two state dicts, in its top level and in `ema`"));
    // Tensors that are no weights: averages of an optimizer, states of random numbers.
    for other in ["exp_avg", "cuda"] {
        assert_eq!(read(&[("model", "wte.weight"), ("other", other)]).unwrap(), "wte.weight");
    }
}

#[test]
fn tensors_beyond_their_storages_are_refused() {
    let same = |_: &mut Vec<u8>| {};
    for (error, words) in [
        (error_with(&[2, 4], same), "[2, 4] from element 0 on does not fit its storage `0` of 24 bytes"),
        (
            error_with(&[2, 3], |p| replace(p, &[b"(", &*long(2)].concat(), &[b"(", &*long(i64::MAX)].concat())),
            "does not fit",
        ),
        // The offset, after the storage.
        (
            error_with(&[2, 3], |p| replace(p, &[b"tQ", &*long(0)].concat(), &[b"tQ", &*long(1)].concat())),
            "from element 1 on",
        ),
        (
            error_with(&[2, 3], |p| replace(p, &[b"tQ", &*long(0)].concat(), &[b"tQ", &*long(i64::MAX)].concat())),
            "from element 9223372036854775807 on",
        ),
        (
            error_with(&[2, 3], |p| replace(p, &[b"tQ", &*long(0)].concat(), &[b"tQ", &*long(-1)].concat())),
            "its shape, strides or offset are invalid",
        ),
        (
            error_with(&[2, 3], |p| replace(p, &[b"(", &*long(2)].concat(), &[b"(", &*long(-2)].concat())),
            "its shape, strides or offset are invalid",
        ),
        (
            error_with(&[2, 3], |p| replace(p, &[b"(", &*long(3)].concat(), &[b"(", &*long(7)].concat())),
            "with strides [7, 1] is not supported",
        ),
        (error_with(&[2, 3], |p| replace(p, b"storage", b"Storage")), "its shape, strides or offset are invalid"),
        (error_with(&[1; 9], same), "its shape, strides or offset are invalid"),
        (error_with(&[2, 3], |p| replace(p, b"X\x01\0\0\x000", b"X\x01\0\0\x009")), "entry data/9 is missing"),
        (error_with(&[2, 3], |p| replace(p, b"FloatStorage", b"Flood-Storag")), "torch.Flood-Storag"),
        (error_with(&[2, 3], |p| p.truncate(60)), "cut short"),
        (error_with(&[2, 3], |p| *p = b"}X\x01\0\0\0aK\x01s.".to_vec()), "`a` is not a tensor"),
        (error_with(&[2, 3], |p| *p = b"].".to_vec()), "not a state dict"),
        (error_with(&[2, 3], |p| *p = b"cos\nsystem\n.".to_vec()), "`os.system`; only tensors"),
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

/// The error of a state dict with these keys and values, each written as the bytes of a pickle.
fn error_of_entries(entries: impl Iterator<Item = Vec<u8>>) -> String {
    let pickle: Vec<u8> = DICT.iter().copied().chain(entries.flatten()).chain(*b"u.").collect();
    error_with(&[1], |p| p.clone_from(&pickle))
}

/// The bytes of a key that is a number in text form.
fn key(number: usize) -> Vec<u8> {
    let mut key = Vec::new();
    text(&mut key, &number.to_string());
    key
}

/// A pickle refers to one value many times in two bytes; a file of some kilobytes must not become gigabytes of names and shapes.
#[test]
fn values_that_entries_share_do_not_multiply() {
    const COUNT: usize = 100_000;
    let tensor = |class: &str, storage: &str, sizes: &[u8]| {
        let mut bytes = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage".to_vec();
        bytes.extend(format!("ctorch\n{class}Storage\n").bytes());
        text(&mut bytes, storage);
        bytes.extend([b"X\x03\0\0\0cpuK\x01tQK\0", sizes, sizes, b"\x89)tRq\0"].concat());
        bytes
    };
    let shared = |first: Vec<u8>| {
        let first = [key(0), first].concat();
        let others = (1..COUNT).map(|number| [&*key(number), b"h\0"].concat());
        error_of_entries(std::iter::once(first).chain(others))
    };
    let long = "x".repeat(1 << 20);
    let ones = [&b"("[..], &b"K\x01".repeat(COUNT), b"t"].concat();
    for (error, words) in [
        (shared(tensor("Float", "0", &ones)), "its shape, strides or offset are invalid"),
        (shared(tensor("Float", &long, b")")), "its shape, strides or offset are invalid"),
        (shared(tensor(&long, "0", b")")), "only tensors"),
        (error_of_entries((0..2).map(|_| [&*key(7), b"N"].concat())), "the key `7` occurs twice"),
        (error_of_entries((0..=MAX_TENSORS).map(|number| [&*key(number), b"N"].concat())), "at most 131072 tensors"),
    ] {
        assert!(error.contains(words) && error.len() < 1000, "{words}: {error}");
    }
    let mut named = Vec::new();
    text(&mut named, &long);
    let error = error_of_entries(std::iter::once([&*named, b"N"].concat()));
    assert!(error.contains("must be at most 1000 bytes, got 1048576") && error.len() < 1000, "{error}");
}

#[test]
fn archives_that_torch_did_not_write_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pt");
    let error = || OpenedWeights::open(&path).expect_err("a hostile file").to_string();
    write(&path, &[("readme.txt", b"a")]);
    assert!(error().contains("a zip archive without data.pkl"), "{}", error());
    write(&path, &[("data.pkl", b"}."), ("byteorder", b"big")]);
    assert!(error().contains("big-endian"), "{}", error());
    write(&path, &[("data.pkl", b"}.")]);
    assert!(error().contains("found neither `transformer.wte.weight` nor `model.embed_tokens.weight`"), "{}", error());
    std::fs::write(&path, b"PK\x03\x04 and no more").unwrap();
    assert!(error().contains("damaged or incomplete zip archive"), "{}", error());
    for protocol in 2..=5 {
        std::fs::write(&path, [b"\x80", &[protocol][..], b"}."].concat()).unwrap();
        assert!(error().contains("a bare pickle") && error().contains("python -c"), "{}", error());
    }
}

/// Truncations and changed bytes: what opens can be read whole; nothing panics.
#[test]
fn no_bytes_make_it_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pt");
    write_nanogpt(&path, Some(2), true);
    let whole = std::fs::read(&path).unwrap();
    let attempt = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let Ok(opened) = OpenedWeights::open(&path) else { return };
        for parameter in opened.described.spec.decoder().parameters() {
            let mut values = vec![0.0; parameter.spec.len()];
            opened.read(&parameter.spec.name, &parameter.spec.shape, &mut values).unwrap();
        }
    };
    for cut in (0..whole.len()).step_by(7) {
        attempt(&whole[..cut]);
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for _ in 0..1000 {
        let mut bytes = whole.clone();
        for _ in 0..=random() % 3 {
            let at = random() % bytes.len();
            bytes[at] = if random() % 2 == 0 { random() as u8 } else { bytes[at] ^ (1 << (random() % 8)) };
        }
        attempt(&bytes);
    }
}
