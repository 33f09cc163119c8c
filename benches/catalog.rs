//! Criterion bench of listing 10,000 runs of realistic size: what `runner runs` reads, filters and lays out.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run should stop")]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use runner_housekeeping::select;
use runner_record::catalog;
use runner_report::runs_table::runs_table;
use serde_json::{Value, json};

const RUNS: usize = 10_000;
/// One run in this many was killed, so that its metrics have to be read.
const KILLED: usize = 100;
const STEPS: u64 = 2_000;

/// The `manifest.json` of a run with two sessions on a machine of 64 cores.
fn manifest(i: usize, status: &str) -> Value {
    let machine = json!({"os": "linux", "arch": "x86_64", "cpu": "A Processor With A Long Name @ 2.60GHz", "cores": 64,
        "memory_bytes": 540_000_000_000_u64});
    let started = format!("2026-01-{:02}T{:02}:{:02}:{:02}.123Z", 1 + i % 28, i / 28 % 24, i / 672 % 60, i % 60);
    let session = json!({"started": started, "ended": started, "from_step": 0, "to_step": STEPS, "version": "0.1.0",
        "commit": "0123456789abcdef0123456789abcdef01234567", "threads": 64, "machine": machine,
        "overrides": ["optimizer.adamw.lr=3e-4"], "environment": {"RUNNER_CACHE": "/data/cache"}});
    json!({"format": 1, "id": id(i), "name": "gpt2-small", "plan_hash": "0123456789abcdef".repeat(4), "status": status,
        "error": null, "steps": STEPS, "started": started, "ended": started, "version": "0.1.0",
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": false}, "machine": machine,
        "layout": null, "devices": ["cpu"], "threads": 64, "experiment_file": "experiments/gpt2-small.yaml",
        "overrides": ["optimizer.adamw.lr=3e-4"], "environment": {"RUNNER_CACHE": "/data/cache"},
        "data": {"tokenizer": "a".repeat(64), "train": "b".repeat(64), "validation": "c".repeat(64), "choice": null},
        "sweep": {"id": "lr", "point": i + 1}, "sessions": [session.clone(), session]})
}

fn id(i: usize) -> String {
    format!("gpt2-small-{:08x}", i * 7919)
}

fn summary(i: usize) -> Value {
    let eval = json!({"step": STEPS, "val_loss": 3.0 + (i % 97) as f64 / 100.0, "val_perplexity": 25.0, "hellaswag_acc": 0.25,
        "hellaswag_acc_norm": 0.26, "hellaswag_acc_norm_chars": 0.255, "hellaswag_n": 200});
    let medians = json!({"step_ms": 55.2, "data_ms": 0.1, "forward_ms": 18.0, "backward_ms": 35.0, "optimizer_ms": 2.0,
        "tokens_per_second": 13913.0, "mfu": 0.3});
    json!({"id": id(i), "status": "done", "error": null, "steps": STEPS, "steps_total": STEPS, "tokens": 1_536_000,
        "wall_seconds": 112.4, "own_steps": STEPS, "own_tokens": 1_536_000, "own_wall_seconds": 112.4, "final_train_loss": 3.1, "last_eval": eval, "best_eval": eval, "medians": medians,
        "predicted_step_ms": 51.0, "peak_rss_bytes": 346_030_080, "planned_memory_bytes": 335_544_320,
        "final_hash": "d".repeat(64), "weights_hash": "e".repeat(64)})
}

fn metrics() -> String {
    let line = |step: u64| {
        let line = json!({"kind": "train", "step": step, "loss": 3.1, "lr": 6e-4, "grad_norm": 0.5, "tokens": 768,
            "tokens_per_second": 13913.2, "mfu": null, "step_ms": 55.2, "data_ms": 0.1, "forward_ms": 18.0,
            "backward_ms": 35.0, "optimizer_ms": 2.0});
        let eval = if step.is_multiple_of(250) {
            json!({"kind": "eval", "step": step, "val_loss": 3.2}).to_string() + "\n"
        } else {
            String::new()
        };
        format!("{line}\n{eval}")
    };
    (1..=STEPS).map(line).collect()
}

fn fill(root: &Path) {
    let metrics = metrics();
    for i in 0..RUNS {
        let run = root.join(id(i));
        fs::create_dir(&run).unwrap();
        let killed = i % KILLED == 0;
        let status = if killed { "running" } else { "done" };
        fs::write(run.join("manifest.json"), serde_json::to_vec_pretty(&manifest(i, status)).unwrap()).unwrap();
        if killed {
            fs::write(run.join("metrics.jsonl"), &metrics).unwrap();
        } else {
            fs::write(run.join("summary.json"), serde_json::to_vec_pretty(&summary(i)).unwrap()).unwrap();
        }
        if i % 10 == 0 {
            fs::write(run.join("tags.json"), "{\"format\":1,\"tags\":[\"good\"]}").unwrap();
        }
    }
}

fn listing(c: &mut Criterion) {
    // A folder that is kept, to try `runner runs --runs DIR` on it.
    let kept = std::env::var_os("CATALOG_BENCH_DIR").map(std::path::PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let root = kept.as_deref().unwrap_or(temporary.path());
    fs::create_dir_all(root).unwrap();
    if fs::read_dir(root).unwrap().next().is_none() {
        fill(root);
    }
    let mut group = c.benchmark_group("catalog");
    group.sample_size(10).warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(5));
    group.bench_function(format!("list {RUNS} runs"), |b| b.iter(|| catalog::list(black_box(root)).unwrap()));
    group.bench_function(format!("list, choose and lay out {RUNS} runs"), |b| {
        b.iter(|| {
            let mut runs = catalog::list(black_box(root)).unwrap();
            select::keep_where(&mut runs, "val_loss < 3.5 and step >= 100").unwrap();
            select::sort(&mut runs, "val_loss").unwrap();
            runs_table(&runs, Some(120))
        });
    });
    group.finish();
}

criterion_group!(benches, listing);
criterion_main!(benches);
