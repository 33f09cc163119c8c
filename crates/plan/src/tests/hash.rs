//! Tests of the properties of an experiment that a plan's hash depends on, and of those that it does not.

use std::path::PathBuf;

use crate::compile;
use crate::testing::{Change, cluster, compiled, data, experiment};
use runner_spec::data::{DataFacts, DataPart, TextOverlap};
use runner_spec::experiment as e;
use runner_spec::model::values::{NamedValue, Scalar};
use runner_spec::model::{Biases, LayerOptions, Mask, NormGain, QkNorm};
use runner_spec::optimizer::{AdamW, Decays, GroupOptions, Muon, Sgd};
use runner_spec::schedule::{Decay, InverseSqrtDecay, PointShape, SchedulePoint, StepDecay};
use runner_spec::transfer::Transfer;

#[test]
fn changes_that_affect_no_number_keep_the_hash() {
    let reference = compiled(&experiment()).hash;
    assert_eq!(reference.len(), 64);
    let same: [Change<e::Experiment>; 11] = [
        ("name", |x| x.name = "other".to_owned()),
        ("log", |x| (x.log.every, x.log.phases) = (1, true)),
        ("checkpoint.every", |x| x.checkpoint.every = 7),
        ("checkpoint.keep", |x| x.checkpoint.keep = 9),
        ("where the data lies", |x| x.data.train = e::Source::Text { files: vec![PathBuf::from("elsewhere.txt")] }),
        ("the same steps in epochs", |x| {
            x.train.steps = None;
            x.train.epochs = Some(0.8);
        }),
        ("the same steps in FLOPs", |x| {
            let totals = compiled(x).totals;
            x.train.flops = Some(totals.pace.flops_per_step * x.train.steps.take().expect("steps") as f64);
        }),
        ("the same steps in tokens per parameter", |x| {
            let totals = compiled(x).totals;
            x.train.steps = None;
            x.train.tokens_per_parameter = Some(totals.tokens as f64 / totals.parameters as f64);
        }),
        ("an interval of multiple choice that is eval.every", |x| {
            x.eval.hellaswag.iter_mut().for_each(|set| set.every = Some(x.eval.every));
        }),
        ("an interval of samples that is eval.every", |x| {
            x.eval.samples.iter_mut().for_each(|samples| samples.every = Some(x.eval.every));
        }),
        ("the device that auto takes", |x| x.device = e::DeviceChoice::Cpu),
    ];
    for (what, change) in same {
        let mut changed = experiment();
        change(&mut changed);
        assert_eq!(compiled(&changed).hash, reference, "{what} must not change the hash");
    }
    let mut cluster = cluster().with_peak_flops(Some(1e12));
    cluster.devices[0].threads = 64;
    cluster.devices[0].memory_bytes = None;
    cluster.devices[0].name = "Another CPU".to_owned();
    let elsewhere = compile(&experiment(), &data(), &cluster).expect("plans");
    assert_eq!(elsewhere.hash, reference, "the machine must not change the hash");
}

/// A hash that is written down: it must not change with the platform, the order of struct fields, or by accident. When a
/// program's meaning changes on purpose, so may this.
#[test]
fn the_hash_is_stable() {
    insta::assert_snapshot!(compiled(&experiment()).hash, @"edd24e0f274740e3cfd96c12ae3833f0b3dad59d1df9bcc0109f7e3e507650ec");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn changes_that_affect_a_number_change_the_hash() {
    let mut seen = vec![("reference", compiled(&experiment()).hash)];
    let changes: [Change<e::Experiment>; 75] = [
        ("seed", |x| x.seed = 1.into()),
        ("seed.data", |x| x.seed.data = 1),
        ("seed.init", |x| x.seed.init = 1),
        ("seed.dropout", |x| x.seed.dropout = 1),
        ("family", |x| x.model.family = e::Family::Llama),
        ("vocab_size", |x| x.model.vocab_size = Some(500)),
        ("context_length", |x| x.model.context_length = 32),
        ("layers", |x| x.model.layers = 4),
        ("heads", |x| (x.model.heads, x.model.kv_heads) = (4, 4)),
        ("kv_heads", |x| (x.model.family, x.model.kv_heads) = (e::Family::Llama, 1)),
        ("d_model", |x| x.model.d_model = 32),
        ("d_ff", |x| x.model.d_ff = 32),
        ("dropout", |x| x.model.dropout = 0.1),
        ("tie_embeddings", |x| x.model.tie_embeddings = false),
        ("norm_eps", |x| x.model.norm_eps = 1e-6),
        ("norm", |x| x.model.options.norm = e::NormPlace::Post),
        ("activation", |x| x.model.options.activation = Some(e::Activation::Relu)),
        ("positions", |x| x.model.options.positions = e::PositionKind::Sinusoidal),
        ("embedding_scale", |x| x.model.options.embedding_scale = true),
        ("head_bias", |x| x.model.options.head_bias = true),
        ("final_norm", |x| x.model.options.final_norm = false),
        ("mlp_dropout", |x| x.model.options.mlp_dropout = 0.1),
        ("causal", |x| x.model.options.mask = Mask::Full),
        ("norm_gain", |x| x.model.options.norm_gain = NormGain::None),
        ("gated", |x| x.model.options.gated = Some(true)),
        ("biases", |x| x.model.options.biases = Some(Biases::Qkv)),
        ("head_dim", |x| x.model.options.head_dim = Some(48)),
        ("qk_norm", |x| x.model.options.qk_norm = QkNorm::Head),
        ("attention_scale", |x| x.model.options.attention_scale = Some(0.5)),
        ("window", |x| x.model.options.window = Some(7)),
        ("z_loss", |x| x.model.options.z_loss = 1e-4),
        ("embedding_norm", |x| x.model.options.embedding_norm = true),
        ("logit_softcap", |x| x.model.options.logit_softcap = Some(15.0)),
        ("pattern", |x| {
            x.model.options.pattern =
                vec![LayerOptions { mlp: false, ..LayerOptions::default() }, LayerOptions::default()];
        }),
        ("sums", |x| x.model.options.sums.layer = vec!["0.5 * x".to_owned()]),
        ("values", |x| {
            x.model.options.values = [(
                "half".to_owned(),
                NamedValue::Scalar(Scalar { initial: 0.5, initial_of_last: None, sigmoid: false }),
            )]
            .into();
            x.model.options.sums.layer = vec!["half * x".to_owned()];
        }),
        ("init", |x| x.model.init = Some(e::WeightInit::Pytorch { embedding: e::PytorchEmbedding::Uniform(0.1) })),
        ("init", |x| x.model.init = Some(e::WeightInit::Pytorch { embedding: e::PytorchEmbedding::Normal })),
        ("length", |x| x.data.layout = e::Layout::packed(4)),
        ("shuffle", |x| x.data.shuffle = false),
        ("sequences that leave some rows", |x| x.batch.sequences = 24),
        ("drop_last", |x| (x.data.drop_last, x.batch.sequences) = (true, 24)),
        ("epoch_rows", |x| x.data.epoch_rows = Some(16)),
        ("decays", |x| {
            x.optimizer =
                e::Optimizer::Adamw(AdamW { lr: 1e-3, betas: [0.9, 0.99], decays: Decays::All, ..AdamW::default() });
        }),
        ("epochs of a decay", |x| {
            x.schedule.decay = Decay::Step(StepDecay { every: None, epochs: Some(1.0), gamma: 0.5 });
        }),
        ("sequences", |x| x.batch.sequences = 16),
        ("micro_batch", |x| x.batch.micro_batch = 4),
        ("steps", |x| x.train.steps = Some(101)),
        ("clip_norm", |x| x.train.clip_norm = None),
        ("lr", |x| x.optimizer = e::Optimizer::Adamw(AdamW { lr: 2e-3, betas: [0.9, 0.99], ..AdamW::default() })),
        ("betas", |x| x.optimizer = e::Optimizer::Adamw(AdamW { lr: 1e-3, ..AdamW::default() })),
        ("sgd", |x| x.optimizer = e::Optimizer::Sgd(Sgd { lr: 1e-3, momentum: 0.0 })),
        ("muon", |x| x.optimizer = e::Optimizer::Muon(Muon::default())),
        ("muon's adamw", |x| {
            let adamw = AdamW { lr: 1e-3, ..AdamW::default() };
            x.optimizer = e::Optimizer::Muon(Muon { adamw, ..Muon::default() });
        }),
        ("groups", |x| {
            let group = GroupOptions { r#match: "*.bias".to_owned(), lr_scale: Some(0.5), weight_decay: None };
            x.train.groups = vec![group];
        }),
        ("transfer", |x| {
            let (d_model, layers, tokens) = (16, Some(1), None);
            let transfer = Transfer { d_model, layers, depth_exponent: 1.0, tokens, token_exponent: 0.32 };
            x.train.transfer = Some(transfer);
        }),
        ("warmup", |x| x.schedule.warmup.from = Some(0.1)),
        ("cooldown", |x| x.schedule.cooldown = Some(e::ScheduleLength::Steps(50).into())),
        ("decays before the end", |x| {
            x.schedule.cooldown =
                Some(e::Cooldown { at: vec![e::ScheduleLength::Share(0.5)], ..e::ScheduleLength::Steps(20).into() });
        }),
        ("decay", |x| x.schedule.decay = Decay::Constant {}),
        ("piecewise", |x| x.schedule.decay = Decay::Piecewise(vec![halved()])),
        ("inverse_sqrt", |x| x.schedule.decay = Decay::InverseSqrt(InverseSqrtDecay::default())),
        ("precision", |x| x.precision = e::Precision::Bf16),
        // It changes none, but gives a separate plan.
        ("recompute", |x| x.train.recompute = e::Recompute::Block),
        ("ddp", |x| x.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas: 2, ..e::Parallel::single() }),
        // Nor does this one.
        ("a sharded optimizer", |x| {
            let shard = Some(e::ShardedState::Optimizer);
            x.parallel = e::Parallel { mode: e::ParallelMode::Ddp, replicas: 2, shard, ..e::Parallel::single() };
        }),
        ("master_weights", |x| (x.precision, x.master_weights) = (e::Precision::Bf16, false)),
        ("eval.every", |x| x.eval.every = 10),
        ("eval.hellaswag.every", |x| x.eval.hellaswag.iter_mut().for_each(|set| set.every = Some(10))),
        ("eval.hellaswag.every, a multiple", |x| x.eval.hellaswag.iter_mut().for_each(|set| set.every = Some(50))),
        ("eval.samples.every", |x| x.eval.samples.iter_mut().for_each(|samples| samples.every = Some(10))),
        ("eval.at_start", |x| x.eval.at_start = true),
        ("eval.loss", |x| x.eval.loss = Some(e::EvalLoss::Rows(1))),
        ("eval.hellaswag", |x| x.eval.hellaswag = None),
        ("eval.samples", |x| x.eval.samples = None),
    ];
    for (what, change) in changes {
        let mut changed = experiment();
        change(&mut changed);
        seen.push((what, compiled(&changed).hash));
    }
    let data_changes: [Change<DataFacts>; 3] = [
        ("tokenizer", |d| d.tokenizer_hash = "0".to_owned()),
        ("training data", |d| d.train.hash = "0".to_owned()),
        ("validation data", |d| d.validation = None),
    ];
    for (what, change) in data_changes {
        let mut data = data();
        change(&mut data);
        seen.push((what, compile(&experiment(), &data, &cluster()).expect("plans").hash));
    }
    for (i, (what, hash)) in seen.iter().enumerate() {
        if let Some((other, _)) = seen[..i].iter().find(|(_, h)| h == hash) {
            panic!("{what} has the hash of {other}");
        }
    }
}

/// What is known of the text of a split changes no number.
#[test]
fn shared_text_is_a_warning_and_changes_no_hash() {
    let mut data = data();
    let planned = |data: &DataFacts| compile(&experiment(), data, &cluster()).expect("plans");
    let before = planned(&data);
    let overlap =
        TextOverlap { with: DataPart::Train, window_tokens: 32, windows: 100, found: 2, drawn: 100, repeated: 0 };
    data.validation.as_mut().expect("validation").overlaps = vec![overlap];
    assert!(planned(&data).warnings.is_empty(), "so much recurs by chance");
    data.validation.as_mut().expect("validation").overlaps[0].found = 40;
    let shared = planned(&data);
    assert_eq!((&before.hash, &before.math_hash), (&shared.hash, &shared.math_hash));
    let warning = "validation data: 40 of 100 windows of 32 tokens also occur in the training data (40.0%), so a loss on it also measures \
                   memorization; hold out different text";
    assert_eq!(shared.warnings, [warning]);
}

/// Half the peak at half of the run.
fn halved() -> SchedulePoint {
    SchedulePoint { at: e::ScheduleLength::Share(0.5), factor: 0.5, shape: PointShape::Linear }
}
