//! Folders that `transformers` wrote (`tests/golden/hf.py`), and the logits that PyTorch gives for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use runner_compute::model::{Model, Params};
use runner_spec::data::SpecialTokens;
use runner_spec::error::PlainError;
use runner_spec::experiment::Family;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parameters;
use runner_weights::{DescribedModel, Dtype, HfExport, OpenedWeights, describe};

use crate::common::values;
use crate::twenty_steps;

/// Half a unit in the last place of an f32 of magnitude 1: the fixtures were computed in f64 and rounded once.
const ROUNDING: f64 = 5.960_464_5e-8;

const FIXTURES: [&str; 15] = [
    "gpt2",
    "gpt2-sharded",
    "llama",
    "llama-tied",
    "llama3",
    "llama-linear",
    "llama-yarn",
    "mistral",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "gemma3",
    "olmo2",
    "olmo3",
    "smollm3",
];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf").join(name)
}

/// All parameters of the model that the weights are of, in f64.
pub fn params(opened: &OpenedWeights) -> Params {
    let layout = Arc::new(ParamLayout::new(parameters(&opened.described.spec)));
    let mut flat = vec![0.0; layout.total];
    for entry in &layout.entries {
        opened.read(&entry.spec.name, &entry.spec.shape, &mut flat[entry.range()]).unwrap();
    }
    let flat = Tensor::from_vec(flat, layout.total, &Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    Params::new(layout, flat)
}

#[test]
fn folders_of_transformers_give_the_logits_of_pytorch() {
    for name in FIXTURES {
        let opened = OpenedWeights::open(&fixture(name)).unwrap();
        let expected =
            candle_core::safetensors::load(fixture(name).join("expected.safetensors"), &Device::Cpu).unwrap();
        let tokens: Vec<i64> = expected["tokens"].flatten_all().unwrap().to_vec1().unwrap();
        let tokens: Vec<u32> = tokens.into_iter().map(|t| t as u32).collect();
        let params = params(&opened);
        let spec = opened.described.spec.clone();
        let blocks = 0..spec.block_count();
        let model = Model::new(&spec, params.layout.clone(), blocks, 1, &params.flat).unwrap();
        let mb = model.micro_batch(&tokens, Vec::new(), 12).unwrap();
        let ours: Vec<f64> = model.logits(&params, &mb).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let theirs: Vec<f32> = expected["logits"].flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(theirs) {
            // Sums of terms of order 1 in f64 beside the rounding of the fixture.
            let tolerance = ROUNDING * f64::from(b).abs() + 1e-11;
            assert!((a - f64::from(b)).abs() <= tolerance, "{name}: {a:e}, PyTorch {b:e}");
        }
    }
}

/// The losses and the norms of 20 steps of `transformers`' models and PyTorch's AdamW in f64. Losses of rows are f32 here too: half a unit in the
/// last place of 5.1 is 2.4e-7. In f32 PyTorch is off by at most 2.0e-6 in losses and by 2.5e-4 in norms; four times that is allowed, since both
/// errors are random.
#[test]
fn folders_of_transformers_train_as_in_pytorch() {
    for name in FIXTURES {
        let opened = OpenedWeights::open(&fixture(name)).unwrap();
        let mut spec = opened.described.spec.clone();
        if name == "olmo2" {
            spec.options.z_loss = 0.05;
        }
        let expected =
            candle_core::safetensors::load(fixture(name).join("expected.safetensors"), &Device::Cpu).unwrap();
        let ids: Vec<u32> = values(&expected["rows"].flatten_all().unwrap()).into_iter().map(|id| id as u32).collect();
        let params = params(&opened);
        for (dtype, loss_tolerance, norm_tolerance) in [(DType::F64, 2.4e-7, 1e-10), (DType::F32, 8e-6, 1e-3)] {
            let found = twenty_steps::train(&spec, &params.layout, &values(&params.flat), &ids, dtype);
            for (what, found, tolerance) in
                [("losses", found.losses, loss_tolerance), ("gradient_norms", found.gradient_norms, norm_tolerance)]
            {
                for (step, (ours, theirs)) in found.iter().zip(values(&expected[what])).enumerate() {
                    assert!(
                        (ours - theirs).abs() <= tolerance,
                        "{name} {dtype:?}, {what} of step {step}: {ours}, PyTorch {theirs}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_export_keeps_the_class_and_the_numbers_of_the_folder() {
    for name in &FIXTURES[2..] {
        let DescribedModel { spec, .. } = describe(&fixture(name)).unwrap();
        let layout = ParamLayout::new(parameters(&spec));
        let export = HfExport {
            spec: &spec,
            layout: &layout,
            dtype: Dtype::F32,
            shard_bytes: u64::MAX,
            vocab_size: spec.vocab_size,
            tokenizer: Err(PlainError::request("none")),
            special: SpecialTokens::default(),
        };
        let dir = tempfile::tempdir().unwrap();
        let opened = OpenedWeights::open(&fixture(name)).unwrap();
        export
            .write(
                dir.path(),
                true,
                &mut |write| {
                    for entry in &layout.entries {
                        let mut numbers = vec![0.0; entry.spec.len()];
                        opened.read(&entry.spec.name, &entry.spec.shape, &mut numbers).unwrap();
                        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                        write(entry.offset as u64, &bytes)?;
                    }
                    Ok(7)
                },
                &mut |_| Ok(None),
            )
            .unwrap();
        let again = OpenedWeights::open(dir.path()).unwrap();
        assert_eq!(again.described.spec, spec, "{name}");
        let model_type = |folder: &Path| {
            let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
            serde_json::from_str::<serde_json::Value>(&config).unwrap()["model_type"].clone()
        };
        assert_eq!(model_type(dir.path()), model_type(&fixture(name)), "{name}");
        assert_eq!(values(&params(&again).flat), values(&params(&opened).flat), "{name}");
    }
}

#[test]
fn configurations_say_what_the_models_are() {
    assert!(describe(&fixture("gpt2")).unwrap().gives("dropout"));
    let of = |name: &str| describe(&fixture(name)).unwrap().spec;
    let gpt2 = of("gpt2");
    assert_eq!((gpt2.family, gpt2.d_ff, gpt2.dropout, gpt2.tie_embeddings), (Family::Gpt2, 40, 0.0, true));
    assert_eq!((of("gpt2-sharded").norm_eps, of("gpt2-sharded").d_ff), (1e-6, 64));
    let llama = of("llama");
    assert_eq!((llama.rope_theta, llama.kv_heads, llama.heads, llama.tie_embeddings), (500.0, 2, 4, false));
    assert!(of("llama-tied").tie_embeddings);
}

#[test]
fn rows_that_the_file_lacks_stay_and_rows_that_the_model_lacks_are_left() {
    let opened = OpenedWeights::open(&fixture("gpt2")).unwrap();
    let name = "transformer.wte.weight";
    let mut whole = vec![0.0; 40 * 16];
    opened.read(name, &[40, 16], &mut whole).unwrap();
    let mut more = vec![7.0; 48 * 16];
    opened.read(name, &[48, 16], &mut more).unwrap();
    assert!(more[..40 * 16] == whole[..] && more[40 * 16..].iter().all(|&x| x == 7.0));
    let mut fewer = vec![0.0; 30 * 16];
    opened.read(name, &[30, 16], &mut fewer).unwrap();
    assert!(fewer[..] == whole[..30 * 16]);
    let mut positions = vec![0.0; 8 * 16];
    opened.read("transformer.wpe.weight", &[8, 16], &mut positions).unwrap();
    for (name, shape) in [("transformer.ln_f.weight", vec![8]), (name, vec![40, 8]), ("nothing", vec![8])] {
        let mut values = vec![0.0; shape.iter().product()];
        let error = opened.read(name, &shape, &mut values).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}
