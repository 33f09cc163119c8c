//! 20 steps of AdamW, of 2 rows of 12 tokens each, as the scripts in tests/golden train in PyTorch.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use runner_compute::state::TrainState;
use runner_executor::Trainer;
use runner_spec::experiment::Precision;
use runner_spec::model::ModelSpec;
use runner_spec::model::layout::ParamLayout;
use runner_spec::optimizer::{AdamW, Optimizer};

use crate::common::{WholePasses as _, program, values};

const STEPS: usize = 20;
const ROWS: usize = 2;
const LENGTH: usize = 12;

/// Losses and gradient norms of a training.
pub struct Trained {
    /// Mean cross-entropy of each step.
    pub losses: Vec<f64>,
    /// Norm of the gradient of each step.
    pub gradient_norms: Vec<f64>,
    /// Norms of the first step's gradients, by parameter.
    pub first_norms: HashMap<String, f64>,
}

/// Trains from the weights `flat`. `ids` has 13 tokens for each row.
pub fn train(spec: &ModelSpec, layout: &Arc<ParamLayout>, flat: &[f64], ids: &[u32], dtype: DType) -> Trained {
    let mut flat = flat.to_vec();
    flat.resize(3 * layout.total, 0.0);
    let mut state = TrainState::zeroed(layout.clone(), 2, dtype, &Device::Cpu).unwrap();
    state.buffer = Tensor::from_vec(flat.clone(), flat.len(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    let mut program = program(spec.clone(), Precision::Fp32, ROWS, LENGTH);
    program.optimizer = Optimizer::Adamw(AdamW { weight_decay: 0.0, ..AdamW::default() });
    let mut trainer = Trainer::new(&program, state).unwrap();
    let mut trained = Trained { losses: Vec::new(), gradient_norms: Vec::new(), first_norms: HashMap::new() };
    for (step, ids) in ids.chunks(ROWS * (LENGTH + 1)).enumerate() {
        let row = |from: usize| move |row: &[u32]| row[from..from + LENGTH].to_vec();
        let [inputs, targets] = [0, 1].map(|from| ids.chunks(LENGTH + 1).flat_map(row(from)).collect::<Vec<_>>());
        let mut mb = trainer.models[0].micro_batch(&inputs, targets, LENGTH).unwrap();
        (mb.training, mb.step, mb.scale) = (true, step as u64, 1.0 / (ROWS * LENGTH) as f64);
        let (losses, saved) = trainer.models[0].forward_losses(&trainer.weights, &mb);
        trainer.models[0].backward(&trainer.weights, &trainer.grads, saved, None, &mb).unwrap();
        trained.losses.push(losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() * mb.scale);
        let gradients = values(&trainer.grads.flat);
        let norm = |part: &[f64]| part.iter().map(|g| g * g).sum::<f64>().sqrt();
        trained.gradient_norms.push(norm(&gradients));
        if step == 0 {
            let norms = layout.entries.iter().map(|entry| (entry.spec.name.clone(), norm(&gradients[entry.range()])));
            trained.first_norms.extend(norms);
        }
        trainer.update(3e-3, 1.0).unwrap();
    }
    assert_eq!(trained.losses.len(), STEPS);
    trained
}
