//! The `parallel` section: what it fills in, what it refuses and how, and that what it advises is legal.

use std::fmt::Write as _;
use std::path::Path;

use super::diagnostics::{render_mistakes, says, with};
use super::load::{SHORT, experiment, fill, loaded};
use crate::{LoadOptions, explain, from_str, to_yaml};
use runner_spec::experiment::{AutoOr, Parallel, ParallelMode, PipelineSchedule};
use runner_spec::program::Device;

/// A model of 12 layers and `lines`.
fn deep(lines: &str) -> String {
    format!("model: {{preset: gpt2-micro, layers: 12}}\ndata: {{train: {{text: {{files: [input.txt]}}}}}}\n{lines}")
}

/// Stages of a model of 12 layers, with `keys` beside `stages`.
fn staged(stages: usize, keys: &str) -> String {
    deep(&format!("parallel:\n  mode: pipeline\n  pipeline:\n    stages: {stages}\n{keys}"))
}

says! {
    mode_without_replicas: with("parallel: {mode: ddp}\n");
    mode_without_its_pipeline: with("parallel: {mode: pipeline, replicas: 2}\n");
    pipeline_without_stages: with("parallel: {mode: pipeline, pipeline: {schedule: gpipe}}\n");
    pipeline_of_another_mode: with("parallel:\n  mode: ddp\n  replicas: 2\n  pipeline: {stages: 2}\n");
    pipeline_without_a_mode: with("parallel:\n  pipeline: {stages: 2}\n");
    replicas_of_one: with("parallel:\n  replicas: 2\n");
    replicas_do_not_divide: with("batch: {sequences: 10}\nparallel: {mode: ddp, replicas: 3}\n");
    more_replicas_than_sequences: with("batch: {sequences: 4}\nparallel: {mode: dp, replicas: 16}\n");
    replicas_do_not_divide_the_default: with("parallel: {mode: ddp, replicas: 3}\n");
    replicas_do_not_divide_tokens: with("batch: {tokens: 1280}\nparallel: {mode: ddp, replicas: 3}\n");
    micro_batch_larger_than_the_slice: with("batch: {sequences: 16, micro_batch: 16}\nparallel: {mode: ddp, replicas: 2}\n");
    microbatches_more_than_the_slice: staged(3, "    microbatches: 20\n  replicas: 2\n");
    micro_batch_and_uneven_microbatches_disagree: staged(3, "    microbatches: 5\nbatch: {sequences: 16, micro_batch: 3}\n");
    micro_batch_and_microbatches_disagree: staged(3, "    microbatches: 4\n  replicas: 2\nbatch: {sequences: 16, micro_batch: 4}\n");
    too_many_microbatches: staged(3, "batch: {sequences: 1_000_000, micro_batch: 1}\n");
    more_stages_than_layers: staged(13, "");
    more_chunks_than_layers: staged(5, "    schedule: interleaved_1f1b\n    chunks: 3\nbatch: {sequences: 30}\n");
    partition_of_another_length: staged(3, "    partition: [4, 4]\n");
    partition_of_chunks_of_another_length: staged(2, "    partition: [6, 6]\n    schedule: interleaved_1f1b\n");
    partition_of_another_sum: staged(3, "    partition: [4, 4, 3]\n");
    partition_with_nothing: staged(3, "    partition: [6, 6, 0]\n");
    partition_of_words: staged(2, "    partition: [four, 4]\n");
    partition_of_one_number: staged(2, "    partition: 4\n");
    partition_that_is_a_slip: staged(2, "    partition: atuo\n");
    partition_that_is_a_word: staged(2, "    partition: evenly\n");
    partition_that_is_a_mapping: staged(2, "    partition: {first: 4}\n");
    chunks_of_another_schedule: staged(2, "    chunks: 2\n");
    interleaved_without_chunks: staged(2, "    schedule: interleaved_1f1b\n    chunks: 1\n");
    interleaved_microbatches: staged(3, "    schedule: interleaved_1f1b\n    microbatches: 4\nbatch: {sequences: 24}\n");
    interleaved_micro_batch: staged(3, "    schedule: interleaved_1f1b\nbatch: {sequences: 24, micro_batch: 6}\n");
    interleaved_micro_batch_without_a_way: staged(3, "    schedule: interleaved_1f1b\nbatch: {sequences: 16, micro_batch: 4}\n");
    micro_batch_larger_than_the_slice_of_tokens: with("batch: {tokens: 2048, micro_batch: 9}\nparallel: {mode: ddp, replicas: 2}\n");
    interleaved_without_a_way: staged(3, "    schedule: interleaved_1f1b\n  replicas: 2\nbatch: {sequences: 16}\n");
    interleaved_microbatches_without_a_way: staged(3, "    schedule: interleaved_1f1b\n    microbatches: 4\nbatch: {sequences: 16}\n");
    schedule_that_is_a_slip: staged(2, "    schedule: 1b1f\n");
    schedule_that_is_none: staged(2, "    schedule: chimera\n");
    mode_that_is_none: with("parallel: {mode: fsdp}\n");
    fewer_devices_than_ranks: staged(3, "  replicas: 2\n  devices: [cpu, cpu, cpu, cpu]\n");
    more_devices_than_ranks: with("parallel: {mode: ddp, replicas: 2, devices: [cuda:0, cuda:1, cuda:2]}\n");
    devices_of_one_rank: with("parallel: {devices: [cpu, cpu]}\n");
    devices_of_two_kinds: with("parallel: {mode: ddp, replicas: 2, devices: [cpu, cuda:0]}\n");
    a_device_twice: with("parallel: {mode: dp, replicas: 4, devices: [cuda:0, cuda:1, cuda:3, cuda:1]}\n");
    cuda_on_cpus: with("device: cuda\nparallel: {mode: ddp, replicas: 2, devices: [cpu, cpu]}\n");
    cpu_on_gpus: with("device: cpu\nparallel: {mode: ddp, replicas: 2, devices: [cuda:0, cuda:1]}\n");
    words_that_are_no_devices: with("parallel:\n  mode: ddp\n  replicas: 8\n  devices:\n    - gpu\n    - cuda1\n    - cpu:0\n    - CPU\n    - tpu\n    - cuda:+1\n    - cuda:-1\n    - cuda:99999999999999999999\n");
    devices_that_are_one_word: with("parallel: {devices: cuda:0}\n");
    devices_that_are_a_slip: with("parallel: {devices: uato}\n");
    devices_that_are_numbers: with("parallel: {mode: ddp, replicas: 2, devices: [0, 1]}\n");
    numbers_out_of_range: with("parallel:\n  mode: pipeline\n  replicas: 0\n  bucket_mb: 0\n  max_restarts: -1\n  pipeline: {stages: 1e9, chunks: 0, microbatches: 65537}\n");
    too_many_ranks: with("parallel:\n  mode: pipeline\n  replicas: 100000\n  pipeline: {stages: 100000}\n");
    several_mistakes_of_a_pipeline: staged(3, "    partition: [4, 4]\n    microbatches: 50\n  replicas: 2\n  devices: [cpu]\n");
}

#[test]
fn a_mode_from_above_takes_the_keys_of_others_with_it() {
    let text = staged(3, "");
    let ddp = experiment(&text, &["parallel.mode=ddp", "parallel.replicas=2"]).parallel;
    assert_eq!((ddp.mode, ddp.replicas, ddp.pipeline), (ParallelMode::Ddp, 2, None));
    let replicas = staged(3, "  replicas: 2\n");
    for single in ["parallel.mode=single", "parallel={mode: single}"] {
        assert_eq!(experiment(&replicas, &[single]).parallel, Parallel::single());
    }
    // The mode contradicts the keys beside it.
    insta::assert_snapshot!(render_mistakes(SHORT, &["parallel={mode: ddp, replicas: 2, pipeline: {stages: 2}}"], &[]));
}

#[test]
fn one_rank_is_the_default() {
    assert_eq!(experiment(SHORT, &[]).parallel, Parallel::single());
    assert_eq!(experiment(&format!("{SHORT}parallel:\n"), &[]).parallel, Parallel::single());
    let one = format!("{SHORT}parallel: {{replicas: 1, devices: [cuda:1], pipeline: null}}\n");
    assert_eq!(experiment(&one, &[]).parallel.devices, AutoOr::Given(vec![Device::Cuda(1)]));
}

/// (micro_batch, microbatches, chunks) of a pipeline in 12 layers, from 32 sequences.
fn sizes(text: &str) -> (usize, usize, usize) {
    let e = experiment(text, &[]);
    let p = e.parallel.pipeline.unwrap();
    (e.batch.micro_batch, p.microbatches, p.chunks)
}

#[test]
fn micro_batches_of_a_pipeline_follow_from_what_is_given() {
    // From 2·stages on.
    assert_eq!(sizes(&staged(2, "")), (8, 4, 1));
    assert_eq!(sizes(&staged(3, "")), (4, 8, 1));
    assert_eq!(sizes(&staged(3, "  replicas: 4\n")), (1, 8, 1));
    // None so large: one sequence each.
    assert_eq!(sizes(&staged(5, "  replicas: 4\n")), (1, 8, 1));
    assert_eq!(sizes(&staged(3, "    microbatches: 4\n  replicas: 2\n")), (4, 4, 1));
    assert_eq!(sizes(&staged(3, "  replicas: 2\nbatch: {micro_batch: 8}\n")), (8, 2, 1));
    assert_eq!(sizes(&staged(3, "    microbatches: 2\n  replicas: 2\nbatch: {micro_batch: 8}\n")), (8, 2, 1));
    assert_eq!(sizes(&staged(2, "    schedule: interleaved_1f1b\n")), (8, 4, 2));
    // 6 divides 24, and so does 4, which is not a multiple of 3.
    assert_eq!(sizes(&staged(3, "    schedule: interleaved_1f1b\nbatch: {sequences: 24}\n")), (4, 6, 2));
    // The largest multiple of 3 that there is.
    assert_eq!(sizes(&staged(3, "    schedule: interleaved_1f1b\nbatch: {sequences: 3}\n")), (1, 3, 2));
    assert_eq!(sizes(&staged(2, "    schedule: interleaved_1f1b\n    chunks: 6\n")), (8, 4, 6));
    // As torch.chunk divides: 7 chunks of at most 3.
    assert_eq!(sizes(&staged(2, "    microbatches: 8\nbatch: {sequences: 20}\n")), (3, 8, 1));
    assert_eq!(sizes(&staged(2, "    microbatches: 8\nbatch: {sequences: 20, micro_batch: 3}\n")), (3, 8, 1));
    assert_eq!(sizes(&staged(2, "batch: {sequences: 20, micro_batch: 3}\n")), (3, 7, 1));
    assert_eq!(sizes(&staged(2, "    microbatches: 3\nbatch: {sequences: 9, micro_batch: 4}\n")), (4, 3, 1));
    assert_eq!(
        sizes(&staged(3, "    schedule: interleaved_1f1b\nbatch: {sequences: 16, micro_batch: 3}\n")),
        (3, 6, 2)
    );
    for (word, schedule) in [("gpipe", PipelineSchedule::Gpipe), ("zero_bubble", PipelineSchedule::ZeroBubble)] {
        let e = experiment(&staged(2, &format!("    schedule: {word}\n")), &[]);
        assert_eq!(e.parallel.pipeline.unwrap().schedule, schedule);
    }
}

#[test]
fn the_micro_batch_of_a_replica_is_a_part_of_its_sequences() {
    let micro = |lines: &str| experiment(&format!("{SHORT}{lines}"), &[]).batch.micro_batch;
    assert_eq!(micro("parallel: {mode: ddp, replicas: 2}\n"), 8);
    assert_eq!(micro("parallel: {mode: ddp, replicas: 8}\n"), 4);
    assert_eq!(micro("batch: {sequences: 30}\nparallel: {mode: dp, replicas: 2}\n"), 5);
    assert_eq!(micro("parallel: {mode: dp, replicas: 1}\n"), 8);
    assert_eq!(micro("batch: {sequences: 20, micro_batch: 3}\nparallel: {mode: ddp, replicas: 2}\n"), 3);
}

#[test]
fn explain_names_where_the_values_are_from() {
    let text =
        staged(3, "    schedule: interleaved_1f1b\n    microbatches: 6\n  replicas: 2\nbatch: {sequences: 24}\n");
    let rows = |text: &str| {
        let all = explain(&loaded(text, &[], &[]).origins);
        let mine = all.lines().filter(|line| line.starts_with("batch") || line.starts_with("parallel"));
        mine.collect::<Vec<_>>().join("\n") + "\n"
    };
    let mut out = rows(&text);
    let _ = write!(out, "\n{}", rows(&staged(3, "")));
    let _ = write!(out, "\n{}", rows(&staged(3, "  replicas: 2\nbatch: {micro_batch: 8}\n")));
    let _ = write!(out, "\n{}", rows(&with("parallel: {mode: ddp, replicas: 2, devices: [cuda:0, cuda:1]}\n")));
    insta::assert_snapshot!(out);
}

/// Every combination of small sizes is taken, and then adds up and survives being written; or refused for a reason, and
/// then the nearest legal values that are named are taken.
#[test]
fn small_sizes_add_up_or_are_refused_with_advice_that_works() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    let path = folder.path().join("exp.yaml");
    let load = |text: &str, sets: Vec<String>| from_str(text, &path, &LoadOptions { sets, ..LoadOptions::default() });
    let (mut taken, mut advised) = (0, 0);
    for case in 0..4 * 3 * 3 * 4 * 4 * 2 {
        let mut rest = case;
        let mut pick = |of: &[usize]| {
            let value = of[rest % of.len()];
            rest /= of.len();
            value
        };
        let (sequences, replicas, stages) = (pick(&[6, 8, 11, 24]), pick(&[1, 2, 3]), pick(&[1, 2, 3]));
        let (micro, count, interleaved) = (pick(&[0, 1, 3, 4]), pick(&[0, 2, 4, 6]), pick(&[0, 1]) == 1);
        let mut keys = format!("    schedule: {}\n", if interleaved { "interleaved_1f1b" } else { "1f1b" });
        if count > 0 {
            let _ = writeln!(keys, "    microbatches: {count}");
        }
        let _ = writeln!(keys, "  replicas: {replicas}\nbatch:\n  sequences: {sequences}");
        if micro > 0 {
            let _ = writeln!(keys, "  micro_batch: {micro}");
        }
        let text = staged(stages, &keys);
        match load(&text, Vec::new()) {
            Ok(good) => {
                let e = good.experiment;
                let p = e.parallel.pipeline.clone().unwrap();
                let (each, size) = (sequences / replicas, e.batch.micro_batch);
                let made = each.div_ceil(size);
                assert!(each * replicas == sequences && size <= each, "{text}");
                assert!(p.microbatches == made || size == each.div_ceil(p.microbatches), "{text}");
                assert!(!interleaved || (p.chunks > 1 && made.is_multiple_of(stages)), "{text}");
                assert!((micro == 0 || micro == e.batch.micro_batch) && (count == 0 || count == p.microbatches));
                let yaml = to_yaml(&e);
                let again = from_str(&yaml, Path::new("/resolved.yaml"), &LoadOptions::default());
                assert_eq!(again.unwrap_or_else(|e| panic!("{e}\n{yaml}")).experiment, e, "{yaml}");
                taken += 1;
            }
            Err(error) => {
                let [found] = error.diagnostics.as_slice() else { panic!("{error}\n{text}") };
                // Elsewhere the advice mends one rule, and may run into the next.
                if interleaved || micro + count > 0 {
                    continue;
                }
                let nearest = found.help.strip_prefix("nearest: ").unwrap_or_default();
                for part in nearest.split("; ").filter(|part| !part.is_empty()) {
                    let (name, values) = part.split_once(' ').unwrap();
                    let section = if name == "replicas" { "parallel" } else { "batch" };
                    for value in values.split(" or ") {
                        let good = load(&text, vec![format!("{section}.{name}={value}")]);
                        assert!(good.is_ok(), "{name} {value}: {}\n{text}", good.unwrap_err());
                        advised += 1;
                    }
                }
            }
        }
    }
    assert!(taken > 150 && advised > 20, "{taken} taken, {advised} pieces of advice");
}

#[test]
fn every_mode_survives_being_written() {
    for lines in [
        "parallel: {mode: single, bucket_mb: 0.001, max_restarts: 1000}\n",
        "parallel: {mode: dp, replicas: 4, devices: auto}\n",
        "parallel: {mode: ddp, replicas: 2, devices: [cuda:7, cuda:0], bucket_mb: 1e6}\ndevice: cuda\n",
        "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 3, partition: auto, schedule: zero_bubble}}\n",
        "parallel: {mode: pipeline, pipeline: {stages: 2, chunks: 2, schedule: interleaved_1f1b, partition: [1, 2, 3, 6]}}\n",
        "parallel: {mode: pipeline, pipeline: {stages: 12, schedule: gpipe, microbatches: 1}}\n",
    ] {
        let first = experiment(&deep(lines), &[]);
        // Paths in it lead into the folder that is gone.
        let yaml = to_yaml(&first);
        let parallel = yaml.split_once("parallel:\n").and_then(|(_, rest)| rest.split_once("eval:\n")).unwrap().0;
        let batch = format!("batch: {{sequences: 32, micro_batch: {}}}", first.batch.micro_batch);
        let second = experiment(&deep(&format!("parallel:\n{parallel}{batch}\n")), &[]);
        assert_eq!(second.parallel, first.parallel, "{yaml}");
    }
}

#[test]
fn sizes_that_mean_harm_are_refused() {
    let first = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path());
        from_str(text, &folder.path().join("exp.yaml"), &LoadOptions::default()).unwrap_err().diagnostics.remove(0)
    };
    let with_keys = |keys: &str| staged(100_000, keys);
    for text in [
        with_keys("  replicas: 100000\n"),
        with_keys(
            "    chunks: 100000\n    schedule: interleaved_1f1b\n    microbatches: 65536\nbatch: {sequences: 1e9}\n",
        ),
        with_keys(
            "    chunks: 100000\n    schedule: interleaved_1f1b\nbatch: {sequences: 999999937, micro_batch: 1}\n",
        ),
        staged(12, "batch: {sequences: 999999937, micro_batch: 1}\n"),
        staged(12, "  replicas: 83333\nbatch: {sequences: 999999937, micro_batch: 1e9}\n"),
        staged(12, "    microbatches: 65536\n  replicas: 83333\nbatch: {sequences: 999996000, micro_batch: 1e9}\n"),
        staged(12, &format!("    partition: [{}]\n", vec!["10000"; 90_000].join(", "))),
        staged(12, &format!("  devices: [{}]\n", vec!["cpu"; 90_000].join(", "))),
        staged(12, &format!("  devices: [{}]\n", vec!["gpu"; 90_000].join(", "))),
        staged(12, &format!("  devices: [{}]\n", "x".repeat(1_000_000))),
        staged(12, "  replicas: 99999999999999999999999999\n"),
    ] {
        let found = first(&text);
        assert!(found.message.len() < 300 && found.help.len() < 300, "{found:?}");
    }
    // The largest legal values.
    let e = experiment(&deep("batch: {sequences: 1e9}\nparallel: {mode: ddp, replicas: 1e5}\n"), &[]);
    assert_eq!((e.parallel.replicas, e.batch.micro_batch), (100_000, 8));
}
