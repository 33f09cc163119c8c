//! Experiments, facts and plans that tests share, here and in other crates.

use std::path::PathBuf;

use runner_spec::cluster::{ClusterFacts, Device, DeviceFacts, PeakFlops};
use runner_spec::data::{ChoiceFacts, DataFacts, SplitFacts};
use runner_spec::experiment as e;
use runner_spec::model::ModelSpec;
use runner_spec::model::variant::Gpt2Variant;
use runner_spec::plan::Plan;

use crate::compile;

pub fn gpt2_124m(vocab_size: usize) -> ModelSpec {
    ModelSpec {
        family: e::Family::Gpt2,
        vocab_size,
        context_length: 1024,
        layers: 12,
        heads: 12,
        kv_heads: 12,
        d_model: 768,
        d_ff: 3072,
        dropout: 0.0,
        tie_embeddings: true,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        variant: Gpt2Variant::default(),
    }
}

/// A stack of PyTorch's encoder layers as its tutorials make a language model of it; d_ff is d_model.
pub fn encoder(vocab_size: usize, layers: usize, d_model: usize, heads: usize) -> ModelSpec {
    let variant = Gpt2Variant {
        norm: e::NormPlace::Post,
        activation: e::Activation::Relu,
        positions: e::PositionKind::Sinusoidal,
        embedding_scale: true,
        head_bias: true,
        final_norm: false,
        mlp_dropout: 0.2,
        pytorch_init: Some(0.1),
    };
    let sizes = ModelSpec { layers, heads, kv_heads: heads, d_model, d_ff: d_model, ..gpt2_124m(vocab_size) };
    ModelSpec { dropout: 0.2, tie_embeddings: false, variant, ..sizes }
}

pub fn llama_179m() -> ModelSpec {
    ModelSpec { family: e::Family::Llama, context_length: 512, kv_heads: 3, tie_embeddings: false, ..gpt2_124m(50_000) }
}

/// A tiny GPT-2 on 8 rows a step in micro-batches of 2, with everything that can be evaluated.
pub fn experiment() -> e::Experiment {
    e::Experiment {
        version: 1,
        name: "tiny".to_owned(),
        seed: 1337,
        device: e::DeviceChoice::Auto,
        model: e::Model {
            family: e::Family::Gpt2,
            vocab_size: None,
            pad_vocab_to: Some(64),
            context_length: 16,
            layers: 3,
            heads: 2,
            kv_heads: 2,
            d_model: 16,
            d_ff: 64,
            dropout: 0.0,
            tie_embeddings: true,
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
            norm: e::NormPlace::Pre,
            activation: e::Activation::Gelu,
            positions: e::PositionKind::Learned,
            embedding_scale: false,
            head_bias: false,
            final_norm: true,
            mlp_dropout: 0.0,
            init: None,
        },
        data: e::Data {
            tokenizer: e::Tokenizer::Bytes {},
            train: e::Source::Text { files: vec![PathBuf::from("/data/input.txt")] },
            validation: Some(e::Validation::Fraction(0.1)),
            layout: e::Layout::Packed { length: 8 },
            shuffle: true,
            drop_last: false,
        },
        batch: e::Batch { sequences: 8, micro_batch: 2 },
        train: e::Train {
            steps: Some(100),
            epochs: None,
            tokens: None,
            clip_norm: Some(1.0),
            recompute: e::Recompute::None,
        },
        optimizer: e::Optimizer::Adamw {
            lr: 1e-3,
            betas: [0.9, 0.99],
            eps: 1e-8,
            weight_decay: 0.1,
            decays: e::Decays::Matrices,
        },
        schedule: e::Schedule {
            warmup: e::Warmup { steps: 10, from: None },
            decay: e::Decay::Cosine(e::DecayTarget { share: 0.1, steps: None }),
        },
        precision: e::Precision::Fp32,
        master_weights: true,
        parallel: e::Parallel::single(),
        eval: e::Eval {
            at_start: false,
            every: 25,
            loss: Some(e::EvalLoss { batches: 20 }),
            hellaswag: Some(e::HellaSwag { file: None, builtin: Some(e::Corpus::Stories), limit: Some(50) }),
            samples: Some(e::Samples {
                prompts: vec!["Once".to_owned()],
                count: 2,
                max_tokens: 32,
                top_k: Some(50),
                temperature: 1.0,
                top_p: None,
                seed: 42,
            }),
            test: None,
        },
        checkpoint: e::Checkpoint { every: 50, keep: 3 },
        log: e::Log { every: 10 },
    }
}

pub fn data() -> DataFacts {
    let split = |rows, tokens, hash: &str| SplitFacts { rows, tokens, documents: 1, hash: hash.to_owned() };
    DataFacts {
        tokenizer_vocab: 257,
        tokenizer_hash: "ab".repeat(32),
        train: split(1_000, 8_001, "c0ffee"),
        validation: Some(split(100, 801, "decaf")),
        test: None,
        choice: Some(ChoiceFacts { items: 50, hash: "beef".to_owned() }),
        weights: None,
    }
}

pub fn cluster() -> ClusterFacts {
    let cpu = DeviceFacts {
        device: Device::Cpu,
        node: 0,
        name: "Example CPU".to_owned(),
        threads: 2,
        memory_bytes: Some(24 << 30),
        peak_flops: PeakFlops::default(),
        compute_capability: None,
        estimated: false,
    };
    ClusterFacts { devices: vec![cpu], ..ClusterFacts::default() }
}

#[expect(clippy::expect_used, reason = "a test whose fixture cannot be planned has failed")]
pub fn compiled(experiment: &e::Experiment) -> Plan {
    compile(experiment, &data(), &cluster()).expect("the fixture can be planned")
}

/// A change to a part of an experiment, and its name.
#[cfg(test)]
pub(crate) type Change<T> = (&'static str, fn(&mut T));
