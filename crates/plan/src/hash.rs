//! The plan's hash: blake3 over a canonical JSON of all that determines the run's numbers.
//!
//! It covers the programs, and the content hashes of data and tokenizer. It leaves out names, log and checkpoint periods, thread
//! counts and peak rates, since none of them changes a number, paths of files, and what is known of the text that tokens stand for.

use std::collections::BTreeMap;

use serde_json::json;

use runner_spec::data::{Clipped, DataFacts};
use runner_spec::experiment::{Precision, Recompute};
use runner_spec::mesh::Mesh;
use runner_spec::program::{Device, EvalSpec, Instruction, Program};

/// Changes when the meaning of a program does, so that an old run is not taken for a new one.
const FORMAT: &str = "runner plan 2";
const MATH_FORMAT: &str = "runner mathematics 1";
/// The formats of runs in bf16. Both changed when gains and biases were no longer rounded, on CPUs and GPUs, and the plan's when a CPU's
/// activations became bf16 tensors.
const FORMAT_BF16: &str = "runner plan 5, bf16";
const MATH_FORMAT_BF16: &str = "runner mathematics 2, bf16";
/// The formats of runs without master weights: the plan's changed with [`FORMAT_BF16`], the other one when gradients were rounded after
/// each micro-batch.
const FORMAT_BF16_STATE: &str = "runner plan 5, bf16 state";
const MATH_FORMAT_BF16_STATE: &str = "runner mathematics 3, bf16 state";

/// The hash of a plan, 64 hex digits.
pub(crate) fn plan_hash(data: &DataFacts, programs: &[Program]) -> String {
    // From the second on, replicas differ in nothing but their rank and rows, which mesh and batch settle.
    let programs: Vec<Program> = programs.iter().filter(|p| p.replica() < 2).map(essential).collect();
    let format =
        programs.first().map_or(FORMAT, |program| format_of(program, [FORMAT, FORMAT_BF16, FORMAT_BF16_STATE]));
    hash(format, data, &programs)
}

/// The hash of what is computed, however it is divided among ranks and micro-batches, 64 hex digits.
pub(crate) fn math_hash(data: &DataFacts, common: &Program, clip_norm: Option<f64>) -> String {
    let mut program = essential(common);
    (program.mesh, program.device) = (Mesh::single(), Device::Cpu);
    (program.rank, program.batch.slice, program.batch.micro_batch) = (0, (0, 0), 0);
    program.batch.stride = 1;
    // Activations that are computed again are the same.
    program.recompute = Recompute::None;
    // The mask changes no loss, because padding comes after every token that counts.
    program.batch.mask_padding = false;
    (program.chunks, program.buckets, program.shards) = (Vec::new(), Vec::new(), Vec::new());
    (program.start, program.periodic) = (Vec::new(), Vec::new());
    program.eval = EvalSpec::default();
    let data = DataFacts { validation: None, choice: None, tasks: BTreeMap::new(), test: None, ..data.clone() };
    for stage in &mut program.earlier {
        (stage.batch.slice, stage.batch.micro_batch, stage.batch.stride) = ((0, 0), 0, 1);
        (stage.batch.mask_padding, stage.step) = (false, Vec::new());
    }
    // Clipping is an instruction of the step: it stays.
    program.step = vec![Instruction::ClipNorm { max: clip_norm }];
    let format = format_of(&program, [MATH_FORMAT, MATH_FORMAT_BF16, MATH_FORMAT_BF16_STATE]);
    hash(format, &data, &[program])
}

/// The format of `program` among those of f32 numbers, of bf16 with f32 master weights, and of bf16 without them.
fn format_of<'a>(program: &Program, [f32, bf16, bf16_state]: [&'a str; 3]) -> &'a str {
    match (program.precision, program.master_weights) {
        (Precision::Bf16, false) => bf16_state,
        (Precision::Bf16, true) => bf16,
        _ => f32,
    }
}

/// Hashes the arguments as JSON with sorted keys, in which order serde_json keeps them, and no blanks; numbers in their shortest form that
/// reads back, which does not depend on the platform.
fn hash(format: &str, data: &DataFacts, programs: &[Program]) -> String {
    let mut data = DataFacts { joins_documents: false, ..data.clone() };
    for split in [Some(&mut data.train), data.validation.as_mut(), data.test.as_mut()].into_iter().flatten() {
        (split.clipped, split.text, split.overlaps) = (Clipped::default(), None, Vec::new());
    }
    let value = json!({ "format": format, "data": data, "programs": programs });
    blake3::hash(value.to_string().as_bytes()).to_hex().to_string()
}

/// `program` without the fields that change none of its numbers.
fn essential(program: &Program) -> Program {
    let mut program = program.clone();
    program.flops_per_step = 0.0;
    program.earlier.iter_mut().for_each(|stage| stage.flops_per_step = 0.0);
    program.peak_flops = None;
    program.copies_saved_state = false;
    // The kind of the device counts: its index on the machine changes no number.
    if let Device::Cuda(index) = &mut program.device {
        *index = 0;
    }
    program.periodic.retain(|p| p.instruction != Instruction::Checkpoint);
    program
}

#[cfg(test)]
mod tests {
    #[test]
    fn canonical_text_does_not_depend_on_the_order_of_keys() {
        let text = |json: &str| serde_json::from_str::<serde_json::Value>(json).expect("valid").to_string();
        assert_eq!(
            text(r#"{"b": [1, 2.50], "a": {"d": null, "c": "x\n"}}"#),
            r#"{"a":{"c":"x\n","d":null},"b":[1,2.5]}"#
        );
        assert_eq!(text(r#"{"a": 1}"#), text("{\"a\":\n1}"));
    }
}
