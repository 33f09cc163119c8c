//! PyTorch's tutorial on DDP and pipelines, in small, beside the same computation in PyTorch (`golden/tutorial.py`): its text in columns, its
//! epochs of 10 batches, attention without a causal mask, a rate that falls each epoch, clipping and validation.

use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use runner_compute::state::TrainState;
use runner_executor::{Observer, initial_state};
use runner_machine::local_cluster::cpu_cluster;
use runner_spec::event::{Event, ObserveError};
use runner_spec::program::Program;

use crate::common::counter::{below, centred};
use crate::common::layouts::{LayoutCase, compile_file, run_from};
use crate::common::values;

const WORDS: u32 = 40;

/// As the function of the same name in `golden/tutorial.py`.
fn text(stream: u64, count: usize) -> String {
    let (noise, jumps) = (below(stream, count, 4), below(stream + 1, count, WORDS));
    let mut words = vec![0];
    for i in 1..count {
        words.push(if noise[i] == 0 { jumps[i] } else { (5 * words[i - 1] + 7) % WORDS });
    }
    words.iter().map(|word| format!("word{word}")).collect::<Vec<_>>().join(" ")
}

/// The experiment, with the keys of experiments/transformer-ddp-pipeline.yaml.
fn tutorial(dir: &Path, parallel: &str) -> LayoutCase {
    fs::write(dir.join("train.txt"), text(800, 643)).unwrap();
    fs::write(dir.join("valid.txt"), text(810, 181)).unwrap();
    let yaml = format!(
        "name: tutorial\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 16, d_ff: 24, context_length: 5, dropout: 0, \
         tie_embeddings: false, norm: post, activation: relu, positions: sinusoidal, embedding_scale: true, head_bias: true, \
         final_norm: false, causal: false}}\n\
         data:\n  tokenizer: {{words: {{special_tokens: ['<pad>']}}}}\n  train: {{text: {{files: [train.txt]}}}}\n  \
         validation: {{text: {{files: [valid.txt]}}}}\n  layout: {{columns: {{length: 5, eval_count: 3}}}}\n  epoch_rows: 80\n\
         train: {{epochs: 2, clip_norm: 0.5}}\noptimizer: {{sgd: {{lr: 5.0}}}}\n\
         schedule: {{decay: {{step: {{epochs: 1, gamma: 0.95}}}}}}\neval: {{every: 10, loss: {{rows: 30}}}}\n{parallel}\n"
    );
    compile_file(dir, "tutorial.yaml", &yaml, &cpu_cluster(1))
}

/// Initial weights as in `golden/tutorial.py`, in f64. Streams are counted over the names of the whole model.
fn counted_weights(program: &Program, names: &[String]) -> TrainState {
    let mut state = initial_state(program, None).unwrap();
    let mut flat = values(&state.buffer);
    for entry in &state.layout.entries {
        let stream = 900 + names.iter().position(|name| *name == entry.spec.name).unwrap() as u64;
        let is_norm = entry.spec.name.contains(".ln_") && entry.spec.name.ends_with(".weight");
        let offset = if is_norm { 1.0 } else { 0.0 };
        let numbers = centred(stream, entry.range().len()).into_iter().map(|number| offset + 0.125 * number);
        flat.splice(entry.range(), numbers);
    }
    let count = flat.len();
    state.buffer = Tensor::from_vec(flat, count, &Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    state
}

#[derive(Default)]
struct Curves {
    losses: Vec<f64>,
    norms: Vec<f64>,
    rates: Vec<f64>,
    validation: Vec<f64>,
}

impl Observer for Curves {
    fn checkpoint(&mut self, _: &TrainState, _: bool) -> Result<(), ObserveError> {
        Ok(())
    }

    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        match event {
            Event::Step(step) => {
                self.losses.push(step.loss);
                self.norms.push(step.grad_norm);
                self.rates.push(step.lr);
            }
            Event::Eval(eval) => self.validation.extend(eval.val_loss()),
            _ => {}
        }
        Ok(())
    }
}

/// In f64. A token's loss is reported in f32, and SGD at 5.0 amplifies differences of 1e-16 over 20 steps.
const LOSS: f64 = 2e-7;
const NORM: f64 = 1e-9;

#[test]
fn twenty_steps_of_the_tutorial_agree_with_pytorchs() {
    let bytes = include_bytes!("../golden/tutorial.safetensors");
    let fixture = candle_core::safetensors::load_buffer(bytes, &Device::Cpu).unwrap();
    for parallel in [
        "batch: {sequences: 8, micro_batch: 8}",
        "batch: {sequences: 8}\nparallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2, schedule: gpipe, microbatches: 2}}",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let case = tutorial(dir.path(), parallel);
        let parameters = |rank: &runner_spec::plan::RankPlan| {
            let state = initial_state(&rank.program, None).unwrap();
            state.layout.entries.iter().map(|entry| entry.spec.name.clone()).collect::<Vec<_>>()
        };
        let mut names: Vec<String> = case.plan.ranks.iter().flat_map(parameters).collect();
        names.sort();
        names.dedup();
        let mut ours = Curves::default();
        run_from(&case, |program| counted_weights(program, &names), &mut ours);
        for (what, ours, tolerance) in [
            ("losses", &ours.losses, LOSS),
            ("norms", &ours.norms, NORM),
            ("rates", &ours.rates, 1e-14),
            ("validation", &ours.validation, LOSS),
        ] {
            let theirs = values(&fixture[what]);
            assert_eq!(ours.len(), theirs.len(), "{what}");
            let worst = ours.iter().zip(&theirs).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max);
            println!("{what:<12}{} values, largest relative difference {worst:.1e}", ours.len());
            assert!(worst < tolerance, "{parallel}, {what}: {worst:e}\n{ours:?}\n{theirs:?}");
        }
    }
}
