//! The forecasts of published runs on GPUs, beside what their authors measured. docs/plan.md has the table.

use crate::compile;
use crate::testing::{data, experiment};
use runner_machine::cluster_description::named_cluster;
use runner_spec::experiment as e;
use runner_spec::format::count;

/// The model of a published run, its batch and its division among GPUs.
struct PublishedRun {
    system: &'static str,
    model: &'static str,
    cluster: &'static str,
    /// Tokens per second of one GPU.
    published: f64,
    /// True if the assumed efficiencies were chosen by it.
    fit: bool,
    change: fn(&mut e::Experiment),
}

/// Forecast over published speed, of all runs: as docs/plan.md says.
const RATIOS: std::ops::RangeInclusive<f64> = 0.94..=1.56;

fn sizes(x: &mut e::Experiment, [layers, heads, d_model, d_ff, vocab]: [usize; 5], length: usize) {
    let sizes = e::Model { layers, heads, kv_heads: heads, d_model, d_ff, context_length: length, ..x.model.clone() };
    x.model = e::Model { vocab_size: Some(vocab), pad_vocab_to: None, ..sizes };
    x.data.layout = e::Layout::packed(length);
    x.precision = e::Precision::Bf16;
}

fn gpt2_124m(x: &mut e::Experiment) {
    sizes(x, [12, 12, 768, 3072, 50_304], 1024);
}

/// Layers, heads, width, d_ff and vocabulary; then key-value heads.
fn llama(x: &mut e::Experiment, widths: [usize; 5], kv_heads: usize, length: usize) {
    sizes(x, widths, length);
    (x.model.family, x.model.kv_heads) = (e::Family::Llama, kv_heads);
}

/// One GPU with micro-batches of `rows`, or several replicas with as many micro-batches each.
fn batch(x: &mut e::Experiment, replicas: usize, rows: usize, micro_batches: usize) {
    x.batch = e::Batch { sequences: replicas * rows * micro_batches, micro_batch: rows, warmup: None };
    if replicas > 1 {
        x.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas, ..e::Parallel::single() };
    }
}

/// Qwen2.5 without the biases of its projections, with bf16 state and rows of 1,024.
fn qwen(x: &mut e::Experiment, widths: [usize; 5], rows: usize) {
    llama(x, widths, 2, 1024);
    x.master_weights = false;
    batch(x, 1, rows, 4);
}

fn runs() -> Vec<PublishedRun> {
    let run = |system, model, cluster, published, fit, change| PublishedRun {
        system,
        model,
        cluster,
        published,
        fit,
        change,
    };
    vec![
        run("llm.c", "GPT-2 124M", "1x8xA100", 218e3, true, |x| {
            gpt2_124m(x);
            batch(x, 8, 64, 1);
        }),
        run("llm.c", "GPT-2 124M", "1x8xH100", 468e3, false, |x| {
            gpt2_124m(x);
            batch(x, 8, 64, 1);
        }),
        run("llm.c", "GPT-2 1.558B, ZeRO-1, 8 micro-batches of 16", "1x8xH100", 46.8e3, false, |x| {
            sizes(x, [48, 25, 1600, 6400, 50_304], 1024);
            batch(x, 8, 16, 8);
            x.parallel.shard = Some(e::ShardedState::Optimizer);
        }),
        run("torchtitan, compiled", "Llama 3.1 8B, FSDP, 2 rows of 8,192", "1x8xH100", 6_667.0, false, |x| {
            llama(x, [32, 32, 4096, 14_336, 128_256], 8, 8192);
            x.model.tie_embeddings = false;
            batch(x, 8, 2, 1);
            x.parallel.shard = Some(e::ShardedState::Parameters);
            x.train.recompute = e::Recompute::Attention;
        }),
        run("LLMQ, bf16", "Qwen2.5 0.5B, micro-batches of 32", "1x1xH100", 149e3, false, |x| {
            qwen(x, [24, 14, 896, 4864, 151_936], 32);
        }),
        run("LLMQ, bf16", "Qwen2.5 1.5B, micro-batches of 16", "1x1xH100", 59e3, false, |x| {
            qwen(x, [28, 12, 1536, 8960, 151_936], 16);
        }),
        run("build-nanogpt, fp32", "GPT-2 124M, 16 rows", "1x1xA100", 16.3e3, false, |x| {
            gpt2_124m(x);
            batch(x, 1, 16, 1);
            x.precision = e::Precision::Fp32;
        }),
        run("build-nanogpt, compiled, fused AdamW", "GPT-2 124M, 16 rows", "1x1xA100", 149e3, false, |x| {
            gpt2_124m(x);
            batch(x, 1, 16, 1);
        }),
        run(
            "build-nanogpt, compiled, fused AdamW",
            "GPT-2 124M, 16 micro-batches of 16",
            "1x2xA100",
            184e3,
            false,
            |x| {
                gpt2_124m(x);
                batch(x, 2, 16, 16);
            },
        ),
    ]
}

#[test]
fn published_runs_are_forecast_as_documented() {
    let mut table = String::new();
    for PublishedRun { system, model, cluster, published, fit, change } in runs() {
        let mut x = experiment();
        change(&mut x);
        let named = named_cluster(cluster).expect("a known device");
        let forecast = compile(&x, &data(), &named).expect("a plan").forecast.expect("known speeds");
        let tokens = forecast.tokens_per_second_per_device;
        let ratio = tokens / published;
        assert!(RATIOS.contains(&ratio), "{system}, {model}: {tokens:.0} tokens/s, published {published:.0}");
        let devices = cluster.strip_prefix("1x").expect("one node").replace('x', " × ");
        let (published, tokens) = (count(published as u64), count(tokens as u64));
        let fit = if fit { "fit" } else { "held out" };
        let cells = [system, model, &devices, &published, &tokens, &format!("{ratio:.2}"), fit];
        table.extend(["| ", &cells.join(" | "), " |\n"]);
    }
    let page = include_str!("../../../../docs/plan.md");
    assert!(page.contains(&table), "docs/plan.md must contain\n{table}");
}
