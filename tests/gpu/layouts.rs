//! One experiment on GPUs, under layouts that differ in kind, beside the same on one CPU.

use candle_core::DType;
use runner_spec::cluster::ClusterFacts;
use runner_spec::cluster::{Device, DeviceFacts};
use runner_spec::plan::RankPlan;

use crate::common::layouts::{ENCODER, LAYOUTS, MODELS, MUON, ObservedRun, RECENT, STAGES, layout_case_on, run};
use crate::device::gpus;

const STEPS: usize = 10;

/// `count` GPUs beside this machine's CPU.
pub(crate) fn cluster(count: usize) -> ClusterFacts {
    let mut facts = runner_machine::local_cluster::cpu_cluster(1);
    let gpu = |index| DeviceFacts::unmeasured(Device::Cuda(index), "GPU".to_owned(), 1);
    facts.devices.extend((0..count).map(gpu));
    facts.kernels = runner_compute::kernel_workspace();
    facts
}

fn relative(a: f64, b: f64) -> f64 {
    (a - b).abs() / b.abs().max(1e-12)
}

/// The largest difference of a loss or an evaluation's loss, and of a gradient's norm; relative.
fn differences(a: &ObservedRun, b: &ObservedRun) -> [f64; 2] {
    assert_eq!((a.steps.len(), a.evals.len(), a.samples.len()), (b.steps.len(), b.evals.len(), b.samples.len()));
    let mut worst = [0.0_f64; 2];
    for (a, b) in a.steps.iter().zip(&b.steps) {
        worst[0] = worst[0].max(relative(a[0], b[0]));
        worst[1] = worst[1].max(relative(a[1], b[1]));
    }
    for (a, b) in a.evals.iter().zip(&b.evals) {
        worst[0] = worst[0].max(relative(a[0], b[0]));
    }
    worst
}

/// In f32 the order of sums and the functions exp, tanh and rsqrt differ between devices by a few units in the last place,
/// 1e-7 each; over 10 steps AdamW makes of it what it makes of another layout's order on the CPU: below 1e-4 in the loss. In bf16 an
/// activation may be rounded to the other side, 2^-8 of it, and there are many of them: a mean of hundreds of losses moves by
/// a few 1e-3. TF32 keeps 10 bits of each factor, 2^-11: between the two.
fn tolerance(precision: &str) -> [f64; 2] {
    match precision {
        "fp32" => [1e-4, 1e-3],
        "tf32" => [5e-3, 5e-2],
        _ => [2e-2, 2e-1],
    }
}

fn observe_run(model: &str, layout: &str, precision: &str, device: &str) -> ObservedRun {
    let more = format!("precision: {precision}\ndevice: {device}");
    let case = layout_case_on(model, layout, &more, STEPS, &cluster(4));
    let on_gpu = |rank: &RankPlan| matches!(rank.program.device, Device::Cuda(_));
    assert_eq!(case.plan.ranks.iter().all(on_gpu), device == "cuda", "{layout}");
    run(&case, DType::F32).0
}

fn agree(name: &str, model: &str, layouts: &[usize], precisions: &[&str]) {
    for precision in precisions {
        let cpu = observe_run(model, LAYOUTS[0].1, precision, "cpu");
        for (layout, yaml) in layouts.iter().map(|&i| LAYOUTS[i]) {
            let gpu = observe_run(model, yaml, precision, "cuda");
            let worst = differences(&gpu, &cpu);
            let limit = tolerance(precision);
            println!("{name:<38}{layout:<20}{precision}  loss {:.1e}  norm {:.1e}", worst[0], worst[1]);
            assert!(worst[0] < limit[0] && worst[1] < limit[1], "{name}, {layout}, {precision}: {worst:?}");
            assert_eq!(
                gpu,
                observe_run(model, yaml, precision, "cuda"),
                "{name}, {layout}, {precision}: twice the same bits"
            );
        }
    }
}

#[test]
fn one_gpu_agrees_with_the_cpu() {
    let Some(_) = gpus(1) else { return };
    let encoder = format!("{ENCODER}, dropout: 0.1, mlp_dropout: 0.1");
    let models = [MODELS[1], MODELS[3], ("encoder, dropout", encoder.as_str())];
    for (name, model) in models {
        agree(name, model, &[0], &["fp32", "tf32", "bf16"]);
    }
}

#[test]
fn one_gpu_agrees_with_the_cpu_about_recent_parts() {
    let Some(_) = gpus(1) else { return };
    for (name, model) in &RECENT[..2] {
        agree(name, model, &[0], &["fp32", "bf16"]);
    }
}

#[test]
fn one_gpu_agrees_with_the_cpu_about_sums() {
    let Some(_) = gpus(1) else { return };
    agree(RECENT[2].0, RECENT[2].1, &[0], &["fp32"]);
}

#[test]
fn one_gpu_agrees_with_the_cpu_about_muon() {
    let Some(_) = gpus(1) else { return };
    let layout = format!("{}\n{MUON}", LAYOUTS[0].1);
    for ((name, model), precision) in [(MODELS[1], "fp32"), (MODELS[3], "fp32"), (MODELS[3], "bf16")] {
        let [cpu, gpu] = ["cpu", "cuda"].map(|device| observe_run(model, &layout, precision, device));
        let (worst, limit) = (differences(&gpu, &cpu), tolerance(precision));
        println!("{name:<38}muon  {precision}  loss {:.1e}  norm {:.1e}", worst[0], worst[1]);
        assert!(worst[0] < limit[0] && worst[1] < limit[1], "{name}, {precision}: {worst:?}");
        assert_eq!(gpu, observe_run(model, &layout, precision, "cuda"), "{name}, {precision}: twice the same bits");
    }
}

/// Two changes of batch, row length and window in ten steps: tensors of other sizes, and with several GPUs a rehearsal of each stage.
#[test]
fn gpus_agree_with_the_cpu_about_stages() {
    let Some(n) = gpus(1) else { return };
    let model = format!("{}, window: 9", MODELS[3].1);
    let cpu = observe_run(&model, &format!("{}\n{STAGES}", LAYOUTS[0].1), "fp32", "cpu");
    for (layout, yaml) in
        [0, 2, 6].map(|place| LAYOUTS[place]).into_iter().take(if cfg!(feature = "nccl") && n > 1 { 3 } else { 1 })
    {
        let gpu = observe_run(&model, &format!("{yaml}\n{STAGES}"), "fp32", "cuda");
        let (worst, limit) = (differences(&gpu, &cpu), tolerance("fp32"));
        println!("stages  {layout:<20}loss {:.1e}  norm {:.1e}", worst[0], worst[1]);
        assert!(worst[0] < limit[0] && worst[1] < limit[1], "{layout}: {worst:?}");
    }
}

/// By place in `LAYOUTS`: dp and ddp of two, 1f1b of two stages, zero bubble of two, and 1f1b of two stages and replicas.
#[cfg(feature = "nccl")]
#[test]
fn several_gpus_agree_with_the_cpu() {
    let Some(n) = gpus(2) else { return };
    let four: &[usize] = if n >= 4 { &[1, 2, 6, 10, 13] } else { &[1, 2, 6, 10] };
    let ((gpt2, gpt2_model), (llama, llama_model)) = (MODELS[1], MODELS[3]);
    agree(gpt2, gpt2_model, four, &["fp32"]);
    agree(llama, llama_model, &[2, 10], &["bf16"]);
}

#[cfg(feature = "nccl")]
#[test]
fn several_gpus_agree_with_the_cpu_about_recent_parts() {
    let Some(_) = gpus(2) else { return };
    // Replicas; stages whose gradients of weights come later.
    for ((name, model), layout) in RECENT.into_iter().zip([2, 10]) {
        agree(name, model, &[layout], &["fp32", "bf16"]);
    }
}
