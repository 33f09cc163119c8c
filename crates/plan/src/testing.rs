//! Experiments, facts and plans that tests share, here and in other crates.

use std::collections::BTreeMap;

use serde_json::json;

use runner_spec::cluster::{ClusterFacts, Device, DeviceFacts, KernelWorkspace};
use runner_spec::data::{ChoiceFacts, Clipped, DataFacts, SplitFacts};
use runner_spec::experiment as e;
use runner_spec::model::{Mask, ModelOptions, ModelSpec, PytorchEmbedding};
use runner_spec::plan::Plan;
use runner_spec::rates::{
    ConcurrentLoad, DeviceRates, EmbeddingPoint, HeadPoint, LayerPoint, Link, Links, MeasuredRates, UpdatePoint,
};

use crate::compile;

pub fn gpt2_124m(vocab_size: usize) -> ModelSpec {
    ModelSpec::with_defaults(e::Family::Gpt2, [vocab_size, 1024, 12, 12, 768])
}

/// A stack of PyTorch's encoder layers as its tutorials make a language model of it; d_ff is d_model.
pub fn encoder(vocab_size: usize, layers: usize, d_model: usize, heads: usize) -> ModelSpec {
    let options = ModelOptions {
        norm: e::NormPlace::Post,
        activation: Some(e::Activation::Relu),
        positions: e::PositionKind::Sinusoidal,
        embedding_scale: true,
        head_bias: true,
        final_norm: false,
        mlp_dropout: 0.2,
        mask: Mask::Causal,
        pytorch_init: Some(PytorchEmbedding::Uniform(0.1)),
        ..ModelOptions::default()
    };
    let sizes = ModelSpec::with_defaults(e::Family::Gpt2, [vocab_size, 1024, layers, heads, d_model]);
    ModelSpec { d_ff: d_model, dropout: 0.2, tie_embeddings: false, options, ..sizes }
}

pub fn llama_179m() -> ModelSpec {
    ModelSpec { family: e::Family::Llama, context_length: 512, kv_heads: 3, tie_embeddings: false, ..gpt2_124m(50_000) }
}

/// A tiny GPT-2 on 8 rows a step in micro-batches of 2, with everything that can be evaluated.
#[expect(clippy::expect_used, reason = "a fixture that is not an experiment has failed")]
pub fn experiment() -> e::Experiment {
    let resolved = json!({
        "version": 1,
        "name": "tiny",
        "seed": 1337,
        "device": "auto",
        "model": {
            "family": "gpt2", "pad_vocab_to": 64, "context_length": 16,
            "layers": 3, "heads": 2, "kv_heads": 2, "d_model": 16, "d_ff": 64,
            "dropout": 0.0, "tie_embeddings": true, "norm_eps": 1e-5, "rope_theta": 1e4,
        },
        "data": {
            "tokenizer": {"bytes": {}},
            "train": {"text": {"files": ["/data/input.txt"]}},
            "validation": {"fraction": 0.1},
            "layout": {"packed": {"length": 8}},
        },
        "batch": {"sequences": 8, "micro_batch": 2},
        "train": {"steps": 100, "clip_norm": 1.0},
        "optimizer": {"adamw": {"lr": 1e-3, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1}},
        "schedule": {"warmup": {"steps": 10}, "decay": {"cosine": {"final": 0.1}}},
        "precision": "fp32",
        "parallel": e::Parallel::single(),
        "eval": {
            "every": 25,
            "loss": {"batches": 20},
            "hellaswag": {"builtin": "stories", "limit": 50},
            "samples": {"prompts": ["Once"], "count": 2, "max_tokens": 32, "top_k": 50, "temperature": 1.0, "seed": 42},
        },
        "checkpoint": {"every": 50, "keep": 3},
        "log": {"every": 10},
    });
    serde_json::from_value(resolved).expect("the fixture is an experiment")
}

pub fn data() -> DataFacts {
    let split = |rows, tokens, hash: &str| SplitFacts {
        rows,
        tokens,
        documents: 1,
        clipped: Clipped::default(),
        hash: hash.to_owned(),
        text: None,
        overlaps: Vec::new(),
    };
    DataFacts {
        tokenizer_vocab: 257,
        tokenizer_hash: "ab".repeat(32),
        train: split(1_000, 8_001, "c0ffee"),
        validation: Some(split(100, 801, "decaf")),
        test: None,
        choice: Some(ChoiceFacts { items: 50, hash: "beef".to_owned() }),
        tasks: BTreeMap::new(),
        weights: None,
        joins_documents: false,
    }
}

pub fn cluster() -> ClusterFacts {
    let cpu = DeviceFacts::unmeasured(Device::Cpu, "Example CPU".to_owned(), 2);
    let cpu = DeviceFacts { memory_bytes: Some(24 << 30), ..cpu };
    let kernels = KernelWorkspace {
        attention_queries: 64,
        attention_tiles: 3,
        attention_head_buffers: 5,
        packed_rows: 2040,
        packed_depth: 512,
        product_operand_bytes: 8 << 20,
        product_sum_bytes: 16 << 20,
        gpu_scratch_bytes: [4 << 20, 32 << 20],
        logit_rows: [256, 2048],
    };
    ClusterFacts { devices: vec![cpu], kernels, ..ClusterFacts::default() }
}

/// A machine on which everything takes `unit` per position, whatever its width: two cores.
pub fn measured(unit: f64) -> ClusterFacts {
    let mut cluster = cluster();
    let mut rates = MeasuredRates {
        cores: 2,
        layers: Vec::new(),
        heads: Vec::new(),
        embeddings: Vec::new(),
        updates: Vec::new(),
        bf16_factor: 2.0,
        disturbance: None,
    };
    for (ranks, threads) in [(1, 1), (2, 1), (1, 2)] {
        let busy = ConcurrentLoad { ranks, threads };
        for family in [e::Family::Gpt2, e::Family::Llama] {
            for (positions, length) in [(16, 8), (64, 8)] {
                let forward = unit * positions as f64;
                rates.layers.push(LayerPoint {
                    family,
                    busy,
                    d_model: 16,
                    positions,
                    length,
                    forward,
                    backward: 2.0 * forward,
                });
            }
        }
        let (d_model, positions, forward) = (16, 16, unit * 16.0);
        let backward = 2.0 * forward;
        rates.heads.push(HeadPoint { busy, d_model, vocab: 320, positions, forward, backward });
        rates.embeddings.push(EmbeddingPoint { busy, d_model, positions, forward, backward });
        rates.updates.push(UpdatePoint { busy, parameters: 15_248, seconds: 100.0 * unit });
    }
    let link = Link { bytes_per_second: 1e9, latency: 1e-6, copied_by_ranks: true, sum_bytes_per_second: None };
    cluster.rates.devices.insert("Example CPU".to_owned(), DeviceRates::Measured(rates));
    cluster.rates.links = Some(Links { within: link, between: link });
    cluster
}

#[expect(clippy::expect_used, reason = "a test whose fixture cannot be planned has failed")]
pub fn compiled(experiment: &e::Experiment) -> Plan {
    compile(experiment, &data(), &cluster()).expect("the fixture can be planned")
}

/// A change to a part of an experiment, and its name.
#[cfg(test)]
pub(crate) type Change<T> = (&'static str, fn(&mut T));
