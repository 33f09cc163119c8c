//! Schedules, optimizers and whole loss curves against PyTorch's, by the fixtures that the scripts in `golden/` write.
//!
//! `cargo test --test numerics peers -- --nocapture` prints a line for each: what, ours, reference, difference.

use std::collections::BTreeMap;

use std::collections::HashMap;
use std::f64::consts::PI;
use std::sync::Arc;

use crate::common::WholePasses as _;
use crate::common::counter::{below, centred, mix};
use crate::common::{model_for, program, small_gpt2, small_llama, values, with_values};
use candle_core::{DType, Device, Tensor};
use runner_compute::optim;
use runner_compute::state::TrainState;
use runner_config::{LoadOptions, load};
use runner_data::Sampler;
use runner_executor::Trainer;
use runner_executor::eval::{ChoiceBatches, ChoiceScore, run_all_batches};
use runner_plan::compile;
use runner_plan::schedule::{Pass, schedule};
use runner_spec::data::{ChoiceItem, Clipped, DataFacts, SplitFacts};
use runner_spec::experiment::Experiment;
use runner_spec::experiment::Family;
use runner_spec::experiment::Precision;
use runner_spec::experiment::{Parallel, ParallelMode, PipelineSchedule};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{ModelSpec, ParamInit, ParamRole, ParamSpec, parameters};
use runner_spec::optimizer::{AdamW, Muon, MuonScale, Optimizer, Sgd};
use runner_spec::plan::RankPlan;
use runner_spec::schedule::{CosineDecay, CosineRepeat, Decay, LrSchedule, ScheduleLength, StepDecay};

/// A fixture: tensors, and the JSON in its metadata.
struct Fixture {
    tensors: HashMap<String, Tensor>,
    metadata: HashMap<String, String>,
}

impl Fixture {
    fn read(bytes: &[u8]) -> Self {
        let (_, header) = safetensors::SafeTensors::read_metadata(bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        Self { tensors: candle_core::safetensors::load_buffer(bytes, &Device::Cpu).unwrap(), metadata }
    }

    fn values(&self, name: &str) -> Vec<f64> {
        values(&self.tensors[name])
    }
}

/// The largest difference in relation to the reference; where that is 0, ours itself.
fn relative(ours: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(ours.len(), reference.len());
    let apart = |(a, b): (&f64, &f64)| if *b == 0.0 { a.abs() } else { ((a - b) / b).abs() };
    ours.iter().zip(reference).map(apart).fold(0.0, f64::max)
}

// --- Learning rates ---

/// Far above what rounding makes of them (3e-13 after 3,000 of PyTorch's recursive steps), far below any other formula.
const RATES: f64 = 1e-11;

fn curve(peak: f64, warmup: (u64, Option<f64>), decay: Decay) -> LrSchedule {
    LrSchedule {
        peak,
        start: 0,
        warmup_steps: warmup.0,
        warmup_from: warmup.1,
        hold_steps: 0,
        later_decays: Vec::new(),
        decay,
    }
}

fn compare_rates(what: &str, schedule: &LrSchedule, steps: impl Iterator<Item = u64>, reference: &[f64]) {
    let ours: Vec<f64> = steps.take(reference.len()).map(|step| schedule.rate(step)).collect();
    let worst = relative(&ours, reference);
    let last = (ours[ours.len() - 1], reference[reference.len() - 1]);
    println!(
        "{what:<40} {} rates, last {:.9e}  {:.9e}  largest relative difference {worst:.1e}",
        ours.len(),
        last.0,
        last.1
    );
    assert!(worst <= RATES, "{what}: {worst:e}");
}

/// PyTorch multiplies the last rate at each step, ours come from the step: they drift apart by rounding alone, and the
/// cosine's end, where PyTorch divides by a small number, is where most of it is.
#[test]
fn learning_rates_are_pytorchs_at_every_step() {
    let fixture = Fixture::read(include_bytes!("../golden/schedules.safetensors"));
    let repeated = |last, steps, repeat, period_factor| {
        Decay::Cosine(CosineDecay { last, length: Some(ScheduleLength::Steps(steps)), repeat, period_factor })
    };
    let cosine = |last, steps| repeated(last, steps, CosineRepeat::Never, 1);
    for (name, schedule) in [
        ("llama", curve(1e-3, (1000, Some(0.1)), cosine(0.0, 2000))),
        ("alpaca", curve(3e-5, (0, None), repeated(0.01, 1000, CosineRepeat::Mirror, 1))),
        ("restarts", curve(1e-3, (100, Some(0.2)), repeated(0.05, 200, CosineRepeat::Restart, 2))),
        ("equal_restarts", curve(2e-3, (0, None), repeated(0.0, 70, CosineRepeat::Restart, 1))),
        (
            "tutorial",
            curve(
                5.0,
                (0, None),
                Decay::Step(StepDecay { every: Some(ScheduleLength::Steps(7)), epochs: None, gamma: 0.95 }),
            ),
        ),
    ] {
        compare_rates(name, &schedule, 0.., &fixture.values(name));
    }
    let nanogpt = curve(6e-4, (715, None), cosine(0.1, 19_072 - 715));
    let steps: Vec<u32> = fixture.tensors["nanogpt.steps"].to_vec1().unwrap();
    compare_rates(
        "build-nanogpt, 1 in 37",
        &nanogpt,
        steps.iter().map(|&s| s.into()),
        &fixture.values("nanogpt.rates"),
    );
    // Every step, and some more, by the formula as it is written there.
    let (peak, min) = (6e-4, 6e-4 * 0.1);
    let formula = |step: u64| match step {
        0..715 => peak * (step + 1) as f64 / 715.0,
        715..=19_072 => min + 0.5 * (1.0 + (PI * (step - 715) as f64 / 18_357.0).cos()) * (peak - min),
        _ => min,
    };
    compare_rates("build-nanogpt, all", &nanogpt, 0.., &(0..19_100).map(formula).collect::<Vec<_>>());
}

// --- Optimizers ---

/// How much further than PyTorch's f32 run ours may end up from the f64 one: each is the largest of a thousand
/// differences, a random number itself, and the order of roundings differs.
const F32_FACTOR: f64 = 4.0;

#[test]
fn optimizers_with_clipping_agree_with_pytorch_over_100_steps() {
    let fixture = Fixture::read(include_bytes!("../golden/optimizers.safetensors"));
    let float32_error: HashMap<String, f64> = serde_json::from_str(&fixture.metadata["float32_error"]).unwrap();
    let shapes: [(&str, &[usize]); 4] = [("up", &[40, 25]), ("up_bias", &[37]), ("down", &[12, 9]), ("norm", &[25])];
    let specs = shapes.map(|(name, shape)| ParamSpec {
        name: name.into(),
        shape: shape.to_vec(),
        init: ParamInit::Zeros,
        block: 1,
        role: ParamRole::Weight,
    });
    let adamw = AdamW { lr: 1e-3, weight_decay: 0.0, ..AdamW::default() };
    let muon = Muon { lr: 0.02, weight_decay: 0.1, adamw, ..Muon::default() };
    let scale = MuonScale::MatchRmsAdamw;
    let muon_rms = Muon { lr: 1e-3, momentum: 0.9, nesterov: false, iterations: 4, scale, ..muon };
    for (name, optimizer, lr, clip) in [
        ("muon", Optimizer::Muon(muon), 0.02, 0.5),
        ("muon_rms", Optimizer::Muon(muon_rms), 1e-3, 0.5),
        ("adamw", Optimizer::default(), 1e-3, 1.0),
        ("sgd", Optimizer::Sgd(Sgd { lr: 5.0, momentum: 0.0 }), 5.0, 0.5),
        ("sgd_momentum", Optimizer::Sgd(Sgd { lr: 5.0, momentum: 0.9 }), 5.0, 0.5),
    ] {
        // In the fixture's order of tensors.
        let expected = fixture.values(name);
        let moments = optimizer.description().moments();
        let has_one = |spec: &ParamSpec| optimizer.update_of(spec, 1).moments < moments;
        let layout = Arc::new(ParamLayout::with_fewer_moments(specs.to_vec(), has_one));
        let mut types = vec![(DType::F64, DType::F64), (DType::F32, DType::F32)];
        if layout.one_moment > 0 {
            types.push((DType::F32, DType::BF16));
        }
        for (dtype, products) in types {
            let flat = |of: &dyn Fn(usize, usize) -> Vec<f64>| {
                let mut flat = vec![0.0; layout.total];
                for (i, (name, shape)) in shapes.iter().enumerate() {
                    flat[layout.entry(name).unwrap().range()].copy_from_slice(&of(i, shape.iter().product()));
                }
                flat
            };
            let tensor = |flat: Vec<f64>| {
                let len = flat.len();
                Tensor::from_vec(flat, len, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
            };
            let mut state = TrainState::zeroed(layout.clone(), moments, dtype, &Device::Cpu).unwrap();
            let mut buffer = flat(&|i, n| centred(i as u64, n).iter().map(|w| w / 4.0).collect());
            buffer.resize(layout.state_len(moments), 0.0);
            state.buffer = tensor(buffer);
            for step in 0..100 {
                let size = 0.5_f64.powi(2 + step % 5);
                let of = |i, n| centred((1000 + 8 * step) as u64 + i as u64, n).iter().map(|g| g * size).collect();
                let grads = tensor(flat(&of));
                let norm = runner_compute::kernels::optimizer::norm(&grads).unwrap();
                let groups = optimizer.groups(&[], &state.layout, 1);
                let scale = optim::clip_scale(norm, Some(clip));
                optim::update(&state, &groups, &grads, [lr, scale], None, products).unwrap();
                state.step += 1;
            }
            let ours = values(&state.weights().unwrap());
            let ours: Vec<f64> =
                shapes.iter().flat_map(|(name, _)| ours[layout.entry(name).unwrap().range()].to_vec()).collect();
            let worst = ours.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            // In f64, 100 updates of weights of a size up to 20 leave some units in the last place.
            let of_pytorch = match products {
                DType::BF16 => float32_error[&format!("{name}.bf16")],
                _ => float32_error[name],
            };
            let tolerance = if dtype == DType::F64 { 1e-12 } else { F32_FACTOR * of_pytorch };
            println!("{name} {products:?}: largest difference of a weight {worst:.1e}, PyTorch's {of_pytorch:.1e}");
            assert!(worst <= tolerance, "{name} {products:?}: {worst:e} > {tolerance:e}");
        }
    }
}

// --- Loss curves ---

const VOCAB: u32 = 128;
const ROWS: usize = 8;
const LENGTH: usize = 32;
const STEPS: u64 = 200;

fn tiny(family: Family) -> ModelSpec {
    let llama = family == Family::Llama;
    ModelSpec {
        vocab_size: VOCAB as usize,
        context_length: LENGTH,
        layers: 2,
        heads: 4,
        kv_heads: if llama { 2 } else { 4 },
        d_model: 32,
        d_ff: if llama { 88 } else { 128 },
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
        ..if llama { small_llama() } else { small_gpt2() }
    }
}

/// The weights that `initial_weights` in curves.py makes: one stream of numbers for each parameter in the order of names.
fn initial_weights(layout: &ParamLayout) -> Vec<f64> {
    let mut names: Vec<&str> = layout.entries.iter().map(|e| e.spec.name.as_str()).collect();
    names.sort_unstable();
    let mut flat = vec![0.0; layout.total];
    for (stream, name) in names.iter().enumerate() {
        let entry = layout.entry(name).unwrap();
        let values = if entry.spec.shape.len() >= 2 {
            let size = if name.ends_with("c_proj.weight") { 1.0 / 64.0 } else { 1.0 / 32.0 };
            centred(stream as u64, entry.spec.len()).iter().map(|v| v * size).collect()
        } else {
            vec![if name.ends_with("weight") { 1.0 } else { 0.0 }; entry.spec.len()]
        };
        flat[entry.range()].copy_from_slice(&values);
    }
    flat
}

/// The batch that `batch` in curves.py makes: inputs and targets, [ROWS, LENGTH].
fn batch(seed: u64, step: u64) -> (Vec<u32>, Vec<u32>) {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for row in 0..ROWS {
        let mut ids = Vec::with_capacity(LENGTH + 1);
        for i in 0..=LENGTH {
            let bits = mix((1 << 20) + 1000 * seed + step, (row * (LENGTH + 1) + i) as u64);
            let drawn = (bits >> 8) % VOCAB;
            ids.push(match ids.last() {
                Some(last) if !bits.is_multiple_of(4) => (5 * last + 7) % VOCAB,
                _ => drawn,
            });
        }
        inputs.extend(&ids[..LENGTH]);
        targets.extend(&ids[1..]);
    }
    (inputs, targets)
}

fn losses(family: Family, seed: u64, precision: Precision) -> Vec<f64> {
    let spec = tiny(family);
    let program = program(spec.clone(), precision, ROWS, LENGTH);
    let layout = Arc::new(ParamLayout::new(parameters(&spec)));
    let mut flat = initial_weights(&layout);
    flat.resize(3 * layout.total, 0.0);
    let mut state = TrainState::zeroed(layout, 2, DType::F32, &Device::Cpu).unwrap();
    state.buffer = Tensor::from_vec(flat.clone(), flat.len(), &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    let mut trainer = Trainer::new(&program, state).unwrap();
    let schedule = curve(
        3e-3,
        (20, None),
        Decay::Cosine(CosineDecay { length: Some(ScheduleLength::Steps(180)), ..CosineDecay::default() }),
    );
    let one = |step: u64| {
        let (inputs, targets) = batch(seed, step);
        let mut mb = trainer.models[0].micro_batch(&inputs, targets, LENGTH).unwrap();
        (mb.training, mb.step, mb.scale) = (true, step, 1.0 / (ROWS * LENGTH) as f64);
        let (losses, mut saved) = trainer.models[0].forward_losses(&trainer.weights, &mb);
        trainer.models[0]
            .backward_blocks(&trainer.weights, &trainer.grads, &mut saved, None, &mb, 0..spec.block_count())
            .unwrap();
        let norm = crate::common::grad_norm(&trainer);
        trainer.update(schedule.rate(step), optim::clip_scale(norm, Some(1.0))).unwrap();
        losses.iter().map(|&l| f64::from(l)).sum::<f64>() * mb.scale
    };
    (0..STEPS).map(one).collect()
}

/// Mean and largest difference of two curves.
fn apart(a: &[f64], b: &[f64]) -> (f64, f64) {
    assert_eq!(a.len(), b.len());
    let apart: Vec<f64> = a.iter().zip(b).map(|(a, b)| (a - b).abs()).collect();
    (apart.iter().sum::<f64>() / apart.len() as f64, crate::common::largest(&apart))
}

/// fp32: PyTorch's own curve is up to 9e-7 from its float64 one, and so was ours; another compiler or processor may add as much.
///
/// bf16: what autocast changes in PyTorch's curve is the measure of what ours may change. Both are random numbers: over
/// the three data orders PyTorch's mean differences spread by a fifth, which is the room given.
#[test]
fn two_hundred_steps_are_pytorchs() {
    const SPREAD: f64 = 1.2;
    let fixture = Fixture::read(include_bytes!("../golden/curves.safetensors"));
    for (family, name) in [(Family::Gpt2, "gpt2"), (Family::Llama, "llama")] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for seed in 0..3 {
            let [float32, autocast] = ["float32", "bf16"].map(|k| fixture.values(&format!("{name}.{seed}.{k}")));
            let fp32 = losses(family, seed, Precision::Fp32);
            let (mean, most) = apart(&fp32, &float32);
            let (a, b) = (fp32[199], float32[199]);
            println!(
                "{name} {seed} fp32: last loss {a:.6}  {b:.6}, difference {mean:.1e} (mean), {most:.1e} (largest)"
            );
            assert!(most <= 5e-6 && fp32[199] < 0.5 * fp32[0], "{name}: {most:e}");
            ours.push(apart(&losses(family, seed, Precision::Bf16), &fp32));
            theirs.push(apart(&autocast, &float32));
        }
        let mean = |all: &[(f64, f64)]| all.iter().map(|a| a.0).sum::<f64>() / 3.0;
        let most = |all: &[(f64, f64)]| all.iter().map(|a| a.1).fold(0.0, f64::max);
        let (a, b) = (mean(&ours), mean(&theirs));
        println!(
            "{name} bf16 - fp32: ours {a:.2e} (mean), {:.1e} (largest); PyTorch's {b:.2e}, {:.1e}",
            most(&ours),
            most(&theirs)
        );
        assert!(a <= SPREAD * b, "{name}: {ours:?}, PyTorch {theirs:?}");
    }
}

// --- Pipelines ---

/// Every forward and backward of every rank, in PyTorch's order.
#[test]
fn pipeline_schedules_have_pytorchs_order() {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for line in include_str!("../golden/pipelines.txt").lines() {
        let mut parts = line.split(" | ");
        let head: Vec<&str> = parts.next().unwrap().split(' ').collect();
        let (name, numbers) = (head[0], head[1..].iter().map(|n| n.parse().unwrap()).collect::<Vec<usize>>());
        let kind = match name {
            "gpipe" => PipelineSchedule::Gpipe,
            "1f1b" => PipelineSchedule::OneFOneB,
            _ => PipelineSchedule::Interleaved,
        };
        let ours: Vec<String> = schedule(kind, numbers[0], numbers[1], numbers[2])
            .iter()
            .map(|ops| {
                let text = ops.iter().map(|op| {
                    let letter = if op.pass == Pass::Forward { 'F' } else { 'B' };
                    if kind == PipelineSchedule::Interleaved {
                        format!("{letter}{}.{}", op.mb, op.chunk)
                    } else {
                        format!("{letter}{}", op.mb)
                    }
                });
                text.collect::<Vec<_>>().join(" ")
            })
            .collect();
        assert_eq!(ours, parts.collect::<Vec<_>>(), "{}", head.join(" "));
        *counts.entry(name).or_default() += 1;
    }
    println!("pipelines with the same order on every rank: {counts:?}");
    assert_eq!(counts.len(), 3);
}

// --- Multiple choice ---

/// The item that `item` in choice.py makes.
fn choice_item(index: u64) -> ChoiceItem {
    let stream = (2 << 20) + 8 * index;
    let sizes: Vec<usize> = (0..6).map(|k| mix(stream + 7, k) as usize).collect();
    let endings = (0..4).map(|e| below(stream + 1 + e as u64, 2 + sizes[1 + e] % 9, VOCAB)).collect();
    let context = below(stream, 3 + sizes[0] % 10, VOCAB);
    ChoiceItem { context, endings, characters: vec![1; 4], label: sizes[5] % 4, ..ChoiceItem::default() }
}

/// The summed loss of each ending within a multiple of PyTorch's f32 error, so that means agree too; counts are equal.
/// The script makes sure that no choice is so close that rounding could decide it.
#[test]
fn multiple_choice_is_scored_as_in_pytorch() {
    let fixture = Fixture::read(include_bytes!("../golden/choice.safetensors"));
    let float32_error: f64 = serde_json::from_str(&fixture.metadata["float32_error"]).unwrap();
    let spec = tiny(Family::Gpt2);
    let layout = Arc::new(ParamLayout::new(parameters(&spec)));
    let mut flat = initial_weights(&layout);
    flat[..layout.matrices].iter_mut().for_each(|w| *w *= 8.0);
    let params = with_values(&layout, flat, DType::F32);
    let model = model_for(&spec, &params);
    let items: Vec<ChoiceItem> = (0..150).map(choice_item).collect();
    let all = ChoiceBatches::new(&items, spec.context_length);
    let partial = run_all_batches(&all, &model, &params).unwrap();
    let expected = fixture.values("sums");
    assert_eq!(partial.len(), expected.len());
    let worst = partial.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("multiple choice: largest difference of a summed loss {worst:.1e}, PyTorch's f32 {float32_error:.1e}");
    // A summed loss of some 40 nats is added up from f32 losses on both sides.
    assert!(worst <= F32_FACTOR * float32_error, "{worst:e}");
    let score = ChoiceScore::new(&all.scored_items(&partial).unwrap());
    let right: Vec<u32> = fixture.tensors["right"].to_vec1().unwrap();
    println!(
        "multiple choice, right of 150: ours {}, {}; PyTorch's {}, {}",
        score.right, score.right_norm, right[0], right[1]
    );
    assert_eq!([score.right as u32, score.right_norm as u32], [right[0], right[1]]);
}

// --- Data of replicas ---

const FILE: &str = "
version: 1
name: splits
model: {family: gpt2, layers: 2, heads: 1, d_model: 8, context_length: 8, vocab_size: 300}
data: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}, validation: null}
train: {steps: 100}
eval: {loss: null}
";

/// The rows of the source that each rank reads at each step, by the programs that the planner makes and the sampler that a rank
/// sets up.
fn replicas(experiment: &Experiment, rows: u64, ranks: usize, steps: u64) -> Vec<Vec<Vec<u64>>> {
    let train = SplitFacts {
        rows,
        tokens: rows * 8,
        documents: 1,
        clipped: Clipped::default(),
        hash: "assumed".to_owned(),
        text: None,
        overlaps: Vec::new(),
    };
    let data = DataFacts {
        tokenizer_vocab: 300,
        tokenizer_hash: "assumed".to_owned(),
        train,
        validation: None,
        test: None,
        choice: None,
        tasks: BTreeMap::new(),
        weights: None,
        joins_documents: false,
    };
    let plan = compile(experiment, &data, &runner_machine::local_cluster::cpu_cluster(1)).unwrap();
    assert_eq!(plan.ranks.len(), ranks);
    let read = |rank: &RankPlan| {
        let batch = &rank.program.batch;
        let sequence = &rank.program.row_sequence(rows);
        let sampler = if batch.order.sequential { Sampler::sequential(rows) } else { Sampler::new(7, rows) };
        let step = |step: u64| {
            let of = |mb: usize| {
                let (first, count) = batch.rows(mb);
                (0..count as u64).map(move |row| sequence.place(step, first as u64 + row * batch.stride as u64))
            };
            (0..batch.micro_batches()).flat_map(of).map(|(epoch, place)| sampler.row(epoch, place)).collect()
        };
        (0..steps).map(step).collect()
    };
    plan.ranks.iter().map(read).collect()
}

/// Rank by rank and step by step as a DataLoader over a DistributedSampler, over rows as they lie and over our permutation,
/// in the first epoch and the second. Without `drop_last` the full steps are the same; then PyTorch repeats the epoch's first
/// rows until the ranks are even and takes the remaining rows as a smaller batch, where ours starts the next epoch.
#[test]
fn replicas_read_what_pytorchs_sampler_gives_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("exp.yaml");
    std::fs::write(&file, FILE).unwrap();
    let mut experiment = load(&file, &LoadOptions::default()).unwrap().experiment;
    let mut steps = 0;
    for line in include_str!("../golden/splits.txt").lines() {
        let mut parts = line.split(" | ");
        let head: Vec<&str> = parts.next().unwrap().split(' ').collect();
        let [rows, ranks, size] = [1, 2, 3].map(|i| head[i].parse::<usize>().unwrap());
        let places = |text: &str| text.split(' ').map(|p| p.parse().unwrap()).collect::<Vec<u64>>();
        let theirs: Vec<Vec<Vec<u64>>> = parts.map(|rank| rank.split(';').map(places).collect()).collect();
        let drop_last = head[0] == "drop_last";
        let full = rows / (ranks * size);
        let epochs = if drop_last { 2 } else { 1 };
        (experiment.batch.sequences, experiment.batch.micro_batch) = (ranks * size, size);
        experiment.data.drop_last = drop_last;
        let (mode, pipeline) = (ParallelMode::Ddp, None);
        experiment.parallel = Parallel { mode, replicas: ranks, pipeline, ..Parallel::single() };
        for shuffle in [false, true] {
            experiment.data.shuffle = shuffle;
            let ours = replicas(&experiment, rows as u64, ranks, (epochs * full) as u64);
            let order = if shuffle { Sampler::new(7, rows as u64) } else { Sampler::sequential(rows as u64) };
            for (rank, ours) in ours.iter().enumerate() {
                assert!(!drop_last || theirs[rank].len() == full, "{line}");
                for (step, ours) in ours.iter().enumerate() {
                    let epoch = (step / full) as u64;
                    let expected: Vec<u64> = theirs[rank][step % full].iter().map(|p| order.row(epoch, *p)).collect();
                    assert_eq!(*ours, expected, "{line}, shuffle {shuffle}, rank {rank}, step {step}");
                    steps += 1;
                }
            }
        }
    }
    println!("replicas: the same rows in {steps} steps of a rank");
    assert!(steps > 1000);
}
