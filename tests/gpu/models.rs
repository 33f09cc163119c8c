//! Losses and gradients of models with the parts of published ones on a GPU: as near to those in f64 as the CPU's.

use candle_core::{DType, Device, Tensor};
use half::bf16;
use runner_compute::model::Params;
use runner_compute::nn::MicroBatch;
use runner_spec::data::IGNORED_TARGET;
use runner_spec::model::{ModelSpec, parameters};

use crate::common::{WholePasses, below, model_for, models_with_sums, random_params, recent_models, values};
use crate::device::gpus;

const SEQ: usize = 9;
/// The starts of the documents of two rows.
const DOCUMENTS: [u32; 2 * SEQ] = [0, 1, 1, 1, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 7, 7];

/// How many times as far off as the CPU's numbers a GPU's may be: errors that are as large in the mean differ by up to 3 where a parameter has few
/// elements.
const ALLOWED: f64 = 5.0;

/// The losses, the gradient of each parameter, and one vector for all parameters of one number.
type Numbers = Vec<(String, Vec<f64>)>;

fn losses_and_gradients(spec: &ModelSpec, dtype: DType, device: &Device) -> Numbers {
    let Params { layout, flat, .. } = random_params(parameters(spec), 0.3);
    // Weights that no type rounds.
    let weights: Vec<f64> = values(&flat).into_iter().map(|v| bf16::from_f64(v).to_f64()).collect();
    let weights = Tensor::from_vec(weights, layout.total, &Device::Cpu).unwrap();
    let stored = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let weights = weights.to_dtype(stored).unwrap().to_device(device).unwrap();
    let grads = Params::zeroed_like(layout.clone(), &weights).unwrap();
    let params = match dtype {
        DType::BF16 => Params::rounded(layout, weights).unwrap(),
        _ => Params::new(layout, weights),
    };

    let model = model_for(spec, &params);
    let [ids, mut targets] = ["ids", "targets"].map(|what| below(what, DOCUMENTS.len(), spec.vocab_size));
    targets.iter_mut().step_by(5).for_each(|t| *t = IGNORED_TARGET);
    let mb = model.micro_batch(&ids, targets, SEQ).unwrap();
    let mb = MicroBatch { training: true, scale: 0.37, ..mb };
    // `previous(x)` knows no documents.
    let mb = if spec.options.sums.is_empty() { mb.with_documents(&DOCUMENTS).unwrap() } else { mb };
    let (losses, saved) = model.forward_losses(&params, &mb);
    model.backward(&params, &grads, saved, None, &mb).unwrap();

    let losses = losses.into_iter().map(f64::from).collect();
    let gradient = |index: usize| values(&grads.parameter(index).unwrap().to_device(&Device::Cpu).unwrap());
    let mut numbers = vec![("losses".to_owned(), losses), ("parameters of one number".to_owned(), Vec::new())];
    for (index, entry) in grads.layout.entries.iter().enumerate() {
        // The gradient of one number is a sum over all positions. Where it is nearly 0, its relative error is arbitrarily large.
        match gradient(index) {
            single if single.len() == 1 => numbers[1].1.extend(single),
            gradient => numbers.push((entry.spec.name.clone(), gradient)),
        }
    }
    numbers.retain(|(_, numbers)| !numbers.is_empty());
    numbers
}

/// The length of the difference for each length of `right`.
fn error(found: &[f64], right: &[f64]) -> f64 {
    let length = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|v| v * v).sum::<f64>().sqrt();
    length(&mut found.iter().zip(right).map(|(a, b)| a - b)) / length(&mut right.iter().copied())
}

#[test]
fn models_with_recent_parts_are_as_near_to_f64_as_on_cpus() {
    let Some(_) = gpus(1) else { return };
    let gpu = runner_compute::gpu::open(0).unwrap();
    for (name, spec) in recent_models().into_iter().chain(models_with_sums()) {
        let exact = losses_and_gradients(&spec, DType::F64, &Device::Cpu);
        for dtype in [DType::F32, DType::BF16] {
            let cpu = losses_and_gradients(&spec, dtype, &Device::Cpu);
            let found = losses_and_gradients(&spec, dtype, &gpu);
            assert_eq!(found, losses_and_gradients(&spec, dtype, &gpu), "{name}, {dtype:?}: twice the same bits");
            let errors = |numbers: &Numbers| -> Vec<f64> {
                numbers.iter().zip(&exact).map(|((_, numbers), (_, exact))| error(numbers, exact)).collect()
            };
            let (cpu, found) = (errors(&cpu), errors(&found));
            let mean = cpu.iter().sum::<f64>() / cpu.len() as f64;
            for (((what, _), found), cpu) in exact.iter().zip(found).zip(cpu) {
                println!("{name}, {dtype:?}, {what}: {found:.1e}, the CPU {cpu:.1e}, its mean {mean:.1e}");
                assert!(
                    found <= ALLOWED * cpu.max(mean),
                    "{name}, {dtype:?}: {what} is {found:e} off, the CPU's {cpu:e}"
                );
            }
        }
    }
}
