//! The times of a model's blocks on a device, from the device's rates.

use std::collections::BTreeSet;

use crate::forecast::cost;
use crate::forecast::interpolation::{by_size, by_width};
use runner_spec::cluster::DeviceFacts;
use runner_spec::experiment::{Optimizer, Precision, Recompute};
use runner_spec::model::parts::{Buffer, Layer, Linear};
use runner_spec::model::{Decoder, ModelSpec};
use runner_spec::plan::ParamCounts;
use runner_spec::precision;
use runner_spec::program::Program;
use runner_spec::rates::{AcceleratorRates, BlockSeconds, ConcurrentLoad, DeviceRates, MeasuredRates};

/// Kernels of one block's forward, and the seconds that starting one takes. Its backward starts twice as many.
const KERNELS_PER_FORWARD: f64 = 12.0;
const KERNEL_START_SECONDS: f64 = 4e-6;

/// Each saved activation is written and read once in the forward; in the backward it is read once more, and its gradient
/// is written (its reader does so on the way).
const FORWARD_PASSES: f64 = 2.0;
const BACKWARD_PASSES: f64 = 2.0;

/// FLOPs at the peak of fp32 that an element of a dropout mask takes. Fitted to GPT-2 124M with a dropout of 0.1 on an H100.
const FLOPS_PER_MASK_ELEMENT: f64 = 135.0;

/// Under `master_weights: false` each micro-batch's gradients are added in f32: a tensor's sum is converted there (6 bytes an element) and
/// back. What this takes beyond the bytes, in kernel starts per tensor, is fitted to GPT-2 124M on an H100.
const ROUNDED_SUM_BYTES: f64 = 12.0;
const ROUNDED_SUM_STARTS: f64 = 7.0;

/// A rank on its device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockTimer<'a> {
    pub program: &'a Program,
    /// The recomputation that is timed, which may not be the program's.
    pub recompute: Recompute,
    pub device: &'a DeviceFacts,
    pub rates: &'a DeviceRates,
    /// Ranks on this device, this one included.
    pub sharers: usize,
}

/// A value for each of the three kinds of blocks; that of layers is their mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PerBlockKind<T> {
    pub embedding: T,
    pub layer: T,
    pub head: T,
}

impl<T: Copy> PerBlockKind<T> {
    /// The value for entry `block` of a list with `layers` layers.
    pub(crate) fn of_block(&self, block: usize, layers: usize) -> T {
        match block {
            0 => self.embedding,
            b if b <= layers => self.layer,
            _ => self.head,
        }
    }
}

/// Seconds of the three kinds of blocks.
pub(crate) type BlockKindSeconds = PerBlockKind<BlockSeconds>;

impl BlockTimer<'_> {
    /// Seconds of the blocks for a micro-batch of `rows` rows of `length`. `None` if the device's peak is unknown.
    pub(crate) fn block_seconds(&self, rows: usize, length: usize) -> Option<BlockKindSeconds> {
        match self.rates {
            DeviceRates::Accelerator(rates) => self.accelerated(rates, rows, length),
            DeviceRates::Measured(rates) => self.measured(rates, rows, length),
        }
    }

    /// Seconds of the end of a step on `counts` parameters; without `optimizer`, the gradients are only cleared.
    pub(crate) fn update_seconds(&self, counts: &ParamCounts, optimizer: Option<Optimizer>) -> Option<f64> {
        let passes = optimizer.map_or(1.0, |optimizer| optimizer.description().passes());
        // The optimizer that measured rates are for.
        let measured_passes = Optimizer::default().description().passes();
        let share = passes / measured_passes;
        let n = counts.total as f64;
        match self.rates {
            DeviceRates::Accelerator(r) => {
                let Program { precision, master_weights, .. } = *self.program;
                let is_copied = precision::has_rounded_copy(precision, master_weights);
                let copied = if is_copied { precision::ROUNDED_COPY_BYTES * counts.total } else { 0 };
                let state = precision::state_bytes(master_weights) as f64 * measured_passes;
                Some((n * state * share + copied as f64) / (r.memory_bandwidth * r.memory_efficiency))
            }
            DeviceRates::Measured(r) => {
                let points = |busy| r.updates.iter().filter(move |p| p.busy == busy);
                let seconds = |busy| by_size(points(busy).map(|p| (p.parameters as f64, p.seconds)), n);
                let copied = precision::has_rounded_copy(self.program.precision, self.program.master_weights);
                let rounded = if copied { 1.25 } else { 1.0 };
                Some(self.shared(r, seconds)? * share * rounded)
            }
        }
    }

    fn accelerated(&self, r: &AcceleratorRates, rows: usize, length: usize) -> Option<BlockKindSeconds> {
        let peak = precision::peak(self.program.precision, self.device.device, &self.device.peak_flops)?;
        let (spec, decoder) = (&self.program.model, self.program.model.decoder());
        let n = (rows * length) as f64;
        let products = peak * r.product_efficiency.of(self.program.precision);
        let memory = r.memory_bandwidth * r.memory_efficiency;
        let bytes = precision::activation_bytes(self.program.precision) as f64;
        let moved = |buffers: &[Buffer]| -> f64 {
            buffers.iter().map(|b| b.per_position as f64 * if b.always_f32 { 4.0 } else { bytes }).sum()
        };
        let mask_seconds = |elements: f64| {
            let seconds_per_element = self.device.peak_flops.fp32.map_or(0.0, |peak| FLOPS_PER_MASK_ELEMENT / peak);
            n * elements * seconds_per_element
        };
        let block_seconds = |linears: &[&Linear], attention: f64, moved: f64, masks: [f64; 2], counts: ParamCounts| {
            let attention = attention * n;
            let linear: f64 = linears.iter().map(|linear| 2.0 * n * linear.size() as f64).sum();
            let traffic = n * moved / memory;
            let start = KERNELS_PER_FORWARD * KERNEL_START_SECONDS;
            let rounded_sums = if precision::state_bytes(self.program.master_weights) < 4 {
                let tensors = (counts.decayed_tensors + counts.other_tensors) as f64;
                counts.total as f64 * ROUNDED_SUM_BYTES / memory + tensors * ROUNDED_SUM_STARTS * KERNEL_START_SECONDS
            } else {
                0.0
            };
            BlockSeconds {
                forward: ((linear + attention) / products + FORWARD_PASSES * traffic).max(start)
                    + mask_seconds(masks[0]),
                // Attention has no weights: both products of its backward are the input's.
                input: ((linear + 2.0 * attention) / products + BACKWARD_PASSES * traffic).max(start)
                    + mask_seconds(masks[1]),
                weight: (linear / products).max(start) + rounded_sums,
            }
        };
        // Attention's kernels fill heads up to one of these widths.
        let width = spec.head_dim();
        let filled = [64, 128, 256].into_iter().find(|filled| width <= *filled).unwrap_or(width) as f64 / width as f64;
        let layer_seconds = |layer: &Layer| {
            let kept = moved(&layer.kept(Recompute::None));
            let (scores, masks) = (layer.score_flops(length) * filled, layer.mask_elements(length));
            let counts = cost::count(&layer.parameters(0));
            let mut seconds = block_seconds(&layer.products(), scores, kept, masks, counts);
            if self.recompute != Recompute::None {
                let again = layer.recomputed_flops(self.recompute, length);
                let dropped = kept - moved(&layer.kept(self.recompute));
                seconds.input += n * (again / products + FORWARD_PASSES * dropped / memory) + mask_seconds(masks[0]);
            }
            Some(seconds)
        };
        let (embedding, head) = (&decoder.embedding, &decoder.head);
        let dropped = if embedding.dropout > 0.0 { embedding.width as f64 } else { 0.0 };
        // The table of a tied embedding gets gradients from both ends of the model.
        let tied = if head.tied { head.project.size() as u64 } else { 0 };
        let mut head_counts = cost::count(&head.parameters(spec.layers + 1));
        head_counts.total += tied;
        let embedding_counts = cost::count(&embedding.parameters());
        Some(BlockKindSeconds {
            embedding: block_seconds(&[], 0.0, spec.d_model as f64 * bytes, [dropped; 2], embedding_counts),
            layer: mean_of_layers(&decoder, layer_seconds)?,
            head: block_seconds(&[&head.project], 0.0, moved(&head.kept()), [0.0; 2], head_counts),
        })
    }

    fn measured(&self, r: &MeasuredRates, rows: usize, length: usize) -> Option<BlockKindSeconds> {
        let n = (rows * length) as f64;
        let rounded = if self.program.precision == Precision::Bf16 { r.bf16_factor } else { 1.0 };
        let mean = |seconds: &dyn Fn(ConcurrentLoad) -> Option<BlockSeconds>| {
            let part = |get: fn(BlockSeconds) -> f64| self.shared(r, |busy| seconds(busy).map(get));
            let (forward, input, weight) = (part(|s| s.forward)?, part(|s| s.input)?, part(|s| s.weight)?);
            Some(BlockSeconds { forward, input, weight }.times(rounded))
        };
        let layer_seconds = |layer: &Layer| mean(&|busy| self.layer(r, layer, busy, n, length));
        Some(BlockKindSeconds {
            embedding: mean(&|busy| self.embedding(r, busy, n))?,
            layer: mean_of_layers(&self.program.model.decoder(), layer_seconds)?,
            head: mean(&|busy| self.head(r, busy, n))?,
        })
    }

    /// The time that `seconds` gives for the ranks that share the device, between a thread each and all threads for one rank.
    fn shared(&self, r: &MeasuredRates, seconds: impl Fn(ConcurrentLoad) -> Option<f64>) -> Option<f64> {
        let cores = r.cores.max(1);
        let threads = self.device.threads.clamp(1, cores);
        let few = seconds(ConcurrentLoad { ranks: if self.sharers > 1 { cores } else { 1 }, threads: 1 });
        let all = seconds(ConcurrentLoad { ranks: 1, threads: cores });
        let time = match (few, all) {
            (Some(few), _) if threads == 1 => few,
            (Some(few), Some(all)) if cores > 1 => {
                let share = (threads as f64).ln() / (cores as f64).ln();
                // A time of 0 has no logarithm.
                if few > 0.0 && all > 0.0 { (few.ln() * (1.0 - share) + all.ln() * share).exp() } else { all }
            }
            (few, all) => all.or(few)?,
        };
        // More ranks than cores take turns.
        Some(time * (self.sharers as f64 / cores as f64).max(1.0))
    }

    /// A part of a layer's time grows with its matrix products, and a part with the length.
    fn layer(
        &self,
        r: &MeasuredRates,
        layer: &Layer,
        busy: ConcurrentLoad,
        n: f64,
        length: usize,
    ) -> Option<BlockSeconds> {
        let spec = &self.program.model;
        let points: Vec<_> = r.layers.iter().filter(|p| p.busy == busy && p.family == spec.family).copied().collect();
        // Relative to causal attention of heads that are together as wide as the model.
        let pairs: f64 = layer
            .attentions()
            .map(|of| of.mask.relative_pairs(length) * (of.heads.out_width() as f64 / spec.d_model as f64))
            .sum();
        let linear = layer.multiplications() as f64;
        let predict = |get: fn(&runner_spec::rates::LayerPoint) -> f64| {
            let (mut linears, mut attentions) = (Vec::new(), Vec::new());
            for width in points.iter().map(|p| p.d_model).collect::<BTreeSet<_>>() {
                let mine = || points.iter().filter(move |p| p.d_model == width);
                let short = mine().map(|p| p.length).min()?;
                let long = mine().max_by_key(|p| p.length)?;
                let pair = mine().find(|p| p.length == short && p.positions == long.positions);
                // Seconds per position and per position of the length.
                let attention = pair.filter(|p| p.length < long.length).map_or(0.0, |p| {
                    ((get(long) - get(p)) / (long.positions * (long.length - p.length)) as f64).max(0.0)
                });
                let measured = ModelSpec::for_calibration(spec.family, [1, 1, 1, width]).decoder();
                let flops = measured.layers.iter().map(Layer::multiplications).sum::<usize>() as f64;
                let sizes = mine().filter(|p| p.length == short).map(|p| {
                    let rest = get(p) - attention * (p.positions * p.length) as f64;
                    (p.positions as f64, rest.max(0.1 * get(p)))
                });
                linears.push((width as f64, by_size(sizes, n)? / flops));
                attentions.push((width as f64, attention / width as f64));
            }
            let d = spec.d_model as f64;
            Some((by_width(&linears, d)? * linear, by_width(&attentions, d)? * d * length as f64 * n * pairs))
        };
        let (forward, backward) = (predict(|p| p.forward)?, predict(|p| p.backward)?);
        let again = match layer.recomputed_flops(self.recompute, length) {
            all if all > 0.0 => {
                let attention = layer.score_flops(length);
                forward.0 * (all - attention) / (layer.forward_flops(length) - attention) + forward.1
            }
            _ => 0.0,
        };
        Some(BlockSeconds {
            forward: forward.0 + forward.1,
            input: backward.0 / 2.0 + backward.1 + again,
            weight: backward.0 / 2.0,
        })
    }

    /// A head's time grows with its vocabulary.
    fn head(&self, r: &MeasuredRates, busy: ConcurrentLoad, n: f64) -> Option<BlockSeconds> {
        let spec = &self.program.model;
        let predict = |get: fn(&runner_spec::rates::HeadPoint) -> f64| {
            let points = || r.heads.iter().filter(move |p| p.busy == busy);
            let mut per_id = Vec::new();
            for width in points().map(|p| p.d_model).collect::<BTreeSet<_>>() {
                // Seconds of a logit, by how many logits there are at a time: caches hold few of them.
                let logits = n * spec.vocab_size as f64;
                let sizes = points().filter(|p| p.d_model == width).map(|p| ((p.positions * p.vocab) as f64, get(p)));
                per_id.push((width as f64, by_size(sizes, logits)?));
            }
            by_width(&per_id, spec.d_model as f64)
        };
        let (forward, backward) = (predict(|p| p.forward)?, predict(|p| p.backward)?);
        Some(BlockSeconds { forward, input: backward / 2.0, weight: backward / 2.0 })
    }

    fn embedding(&self, r: &MeasuredRates, busy: ConcurrentLoad, n: f64) -> Option<BlockSeconds> {
        let elements = n * self.program.model.d_model as f64;
        let predict = |get: fn(&runner_spec::rates::EmbeddingPoint) -> f64| {
            let points = r.embeddings.iter().filter(move |p| p.busy == busy);
            by_size(points.map(|p| ((p.positions * p.d_model) as f64, get(p))), elements)
        };
        Some(BlockSeconds { forward: predict(|p| p.forward)?, input: 0.0, weight: predict(|p| p.backward)? })
    }
}

/// The mean of `seconds` over a model's layers.
fn mean_of_layers(decoder: &Decoder, seconds: impl Fn(&Layer) -> Option<BlockSeconds>) -> Option<BlockSeconds> {
    let layers = &decoder.layers;
    layers.count_in(1..layers.len() + 1).try_fold(BlockSeconds::default(), |sum, (layer, times)| {
        let part = seconds(layer)?.times(times as f64 / layers.len() as f64);
        Some(BlockSeconds {
            forward: sum.forward + part.forward,
            input: sum.input + part.input,
            weight: sum.weight + part.weight,
        })
    })
}
