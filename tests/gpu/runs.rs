//! Whole runs of the program on a GPU.

use runner_compute::gpu;
use runner_compute::kernels::out_of_memory::is_out_of_memory;
use serde_json::Value;

use crate::device::gpus;
use crate::sandbox::Sandbox;

/// A sandbox with an experiment on a GPU, with these lines added.
fn new_sandbox(more: &str) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 4}}\ntrain: {{steps: 12}}\ndevice: cuda\n\
         eval: {{every: 6, at_start: true, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: 4, keep: 2}}\n{more}\n"
    );
    Sandbox::new().with_numbers(4000).with("exp.yaml", yaml)
}

/// As a rank does with what is planned for its tensors. Other tests may use the pool meanwhile.
#[test]
fn the_pool_holds_the_reserved_bytes() {
    const BYTES: u64 = 64 << 20;
    if gpus(1).is_none() {
        return;
    }
    let device = gpu::open(0).unwrap();
    gpu::reserve(&device, BYTES).unwrap();
    let memory = gpu::memory(&device).unwrap();
    assert!(memory.reserved >= BYTES, "{memory:?}");
    let error = gpu::reserve(&device, 2 * memory.total).unwrap_err();
    assert!(is_out_of_memory(&error), "{error}");
}

#[test]
fn a_run_resumes_with_the_same_bits() {
    let Some(_) = gpus(1) else { return };
    for precision in ["precision: fp32", "precision: bf16", "precision: bf16\nmaster_weights: false"] {
        let (whole, parts) = (new_sandbox(precision), new_sandbox(precision));
        whole.expect(0, "apply exp.yaml");
        parts.expect(0, "apply exp.yaml --until-step 7");
        parts.expect(0, "apply exp.yaml");
        assert_eq!(whole.only_run().numbers(), parts.only_run().numbers(), "{precision}");
        assert_eq!(whole.only_run().numbers().len(), 12 + 3);
    }
}

/// A run that was trained on a GPU is evaluated and sampled on it, and on the CPU.
#[test]
fn a_run_is_evaluated_and_sampled_here_and_there() {
    let Some(_) = gpus(1) else { return };
    for (precision, tolerance) in [("fp32", 1e-5), ("bf16", 1e-3)] {
        let sandbox = new_sandbox(&format!("precision: {precision}"));
        sandbox.expect(0, "apply exp.yaml");
        let evaluations = sandbox.only_run().metrics_of("eval");
        let recorded = evaluations.last().unwrap()["val_loss"].as_f64().unwrap();
        let loss = |line: &str| sandbox.json_of(line)["val_loss"].as_f64().unwrap();
        let here = loss("eval lab --json");
        assert_eq!((here, loss("eval lab --json --device cuda")), (recorded, recorded), "{precision}: the same bits");
        // The same sums in another order; bf16 rounds what differs.
        let there = loss("eval lab --json --device cpu");
        assert!((there - recorded).abs() < tolerance * recorded, "{precision}: {there}, not {recorded}");
        for device in ["auto", "cpu"] {
            sandbox.expect(0, &["sample", "lab", "--prompt", "1", "--device", device]);
        }
    }
}

/// A run tests its best checkpoint on the GPU after its last step.
#[test]
fn a_run_is_tested_on_its_gpu() {
    let Some(_) = gpus(1) else { return };
    let sandbox = new_sandbox("precision: bf16");
    sandbox.write("test.txt", "1 4 9 16 25 36 49 64 81 100 121 ".repeat(20));
    let said = sandbox.expect(0, &["apply", "exp.yaml", "--set", "eval.test={text: {files: [test.txt]}}"]);
    assert!(said.contains("test loss "), "{said}");
}

/// The program knows the CUDA that it was built with, and reports itself and its GPU as ready.
#[test]
fn doctor_reports_this_build_and_its_gpu_as_ready() {
    let Some(found) = gpus(1) else { return };
    let report = Sandbox::new().json_of("doctor --json");
    let build = &report["build"];
    let cuda = build["cuda"].as_str().unwrap_or_else(|| panic!("built without CUDA: {build}"));
    assert!(cuda.split('.').count() == 2 && cuda.split('.').all(|part| part.parse::<u32>().is_ok()), "{build}");
    assert_eq!(build["nccl"], cfg!(feature = "nccl"), "{build}");
    assert_eq!(report["driver"]["gpus"].as_array().unwrap().len(), found);
    let not_ready = |feature: &&Value| feature["ready"] != true;
    let features: Vec<&Value> = report["features"].as_array().unwrap().iter().filter(not_ready).collect();
    // Several GPUs need more than one here, and a build with NCCL.
    let allowed = |feature: &&Value| {
        feature["name"] == "training on several GPUs (NCCL)" && (found == 1 || !cfg!(feature = "nccl"))
    };
    assert!(features.iter().all(allowed), "{features:?}");
}

#[test]
fn auto_takes_the_gpu() {
    let Some(_) = gpus(1) else { return };
    let plan = new_sandbox("").stdout_of("plan exp.yaml --set device=auto --json");
    assert!(plan.contains("cuda"), "{plan}");
}

/// By number of GPUs. On CPUs the ranks of `dp` are threads.
#[cfg(feature = "nccl")]
const LAYOUTS: [(usize, &str); 13] = [
    (2, "{mode: dp, replicas: 2}"),
    (2, "{mode: ddp, replicas: 2}"),
    (4, "{mode: ddp, replicas: 4, shard: optimizer}"),
    (2, "{mode: ddp, replicas: 2, shard: gradients}"),
    (4, "{mode: ddp, replicas: 4, shard: parameters}"),
    (2, "{mode: pipeline, pipeline: {stages: 2, schedule: gpipe}}"),
    (2, "{mode: pipeline, pipeline: {stages: 2, schedule: 1f1b}}"),
    (2, "{mode: pipeline, pipeline: {stages: 2, schedule: zero_bubble}}"),
    (2, "{mode: pipeline, pipeline: {stages: 2, schedule: interleaved_1f1b, chunks: 2}}"),
    (4, "{mode: pipeline, replicas: 2, pipeline: {stages: 2, schedule: 1f1b}}"),
    (8, "{mode: ddp, replicas: 8, shard: gradients}"),
    (8, "{mode: pipeline, replicas: 2, pipeline: {stages: 4, schedule: 1f1b}}"),
    (8, "{mode: pipeline, replicas: 4, pipeline: {stages: 2, schedule: zero_bubble}}"),
];

/// Ranks in processes, as users start them: each layout trains as one GPU does, and has the same bits when it was interrupted.
#[cfg(feature = "nccl")]
#[test]
fn ranks_in_processes_train_as_one_gpu_does() {
    let Some(n) = gpus(2) else { return };
    let sandbox = new_sandbox("precision: fp32");
    sandbox.edit("exp.yaml", "sequences: 8, micro_batch: 4", "sequences: 16, micro_batch: 2");
    sandbox.edit("exp.yaml", "layers: 2", "layers: 4");
    sandbox.expect(0, "apply exp.yaml --runs alone");
    let alone = sandbox.only_run_in("alone").train_losses();
    for (i, (_, layout)) in LAYOUTS.into_iter().filter(|(ranks, _)| *ranks <= n).enumerate() {
        let (whole, parts) = (format!("whole-{i}"), format!("parts-{i}"));
        let apply = |runs: &str, more: &[&str]| {
            let set = format!("parallel={layout}");
            sandbox.expect(0, &[&["apply", "exp.yaml", "--set", &set, "--runs", runs], more].concat());
        };
        apply(&whole, &[]);
        apply(&parts, &["--until-step", "7"]);
        apply(&parts, &[]);
        let whole = sandbox.only_run_in(&whole);
        assert_eq!(whole.numbers(), sandbox.only_run_in(&parts).numbers(), "{layout}");
        // The same sums in another order: 1e-7 each, of which AdamW makes what `layouts::tolerance` says.
        let losses = whole.train_losses();
        assert_eq!(losses.len(), alone.len(), "{layout}");
        for (a, b) in losses.iter().zip(&alone) {
            assert!((a - b).abs() < 1e-4 * b, "{layout}: {losses:?}, not {alone:?}");
        }
    }
}
