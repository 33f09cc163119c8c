//! A rank's peak memory by category, from the model's table of buffers and the number of micro-batches in flight.
//!
//! Sizes are not bounded here (a count of samples may be anything), so sums and products saturate.
//!
//! The table says what the executor holds, buffer by buffer: where a measurement disagrees, the table is to be corrected.

pub mod device;
pub(crate) mod shortage;

use crate::check::LiveMicroBatches;
use crate::forecast::block_time::PerBlockKind;
use crate::forecast::cost::count_chunks;
use crate::ranks::shard::{HeldElements, gathered_element_bytes};
use crate::ranks::topology::longest_message;
use device::is_hopper_or_newer;
use runner_spec::cluster::{DeviceFacts, KernelWorkspace};
use runner_spec::experiment::{ParallelMode, Precision, Recompute};
use runner_spec::model::parts::{Buffer, Head, Layer, Linear, Positions, Sums};
use runner_spec::model::{Carried, Decoder};
use runner_spec::plan::{COMMAND_ITEM, MemoryCategory, MemoryEstimate, MemoryItem, PROCESS_ITEM};
use runner_spec::precision;
use runner_spec::program::{Device, EVAL_TOKENS_PER_FORWARD, Instruction, Program};

/// A rank's process without any model: code, stacks, small blocks. Measured in release builds: 27 to 40 MiB.
const PROCESS_BYTES: u64 = 34 << 20;

/// What the process of the command takes besides: files of the experiment, tokenizer, multiple choice. Measured: 6 to 20 MiB.
const COMMAND_BYTES: u64 = 10 << 20;

/// Bytes of one rank's part of the memory through which gradients are summed.
const REDUCE_PIECE_BYTES: u64 = 4 << 20;

/// An id and a target, u32 each.
const BYTES_PER_TOKEN: u64 = 8;

const F32_BYTES: u64 = 4;

/// What the memory of all ranks of a plan depends on, besides their programs and devices.
#[derive(Debug, Clone, Copy)]
pub struct MemoryBasis {
    pub kernels: KernelWorkspace,
    /// Messages that a channel holds.
    pub slots: usize,
    /// True if a launcher starts a command for each rank.
    pub is_launched: bool,
}

/// Peak bytes of the rank of `program` on `hardware` by category, with `live` micro-batches of each chunk (`check` counts them). Workspace is what the
/// peak needs beyond the saved activations: transient gradients, or whatever an evaluation or sampling holds if that is more.
#[expect(clippy::too_many_lines, reason = "one sum over the buffers of a rank")]
pub fn estimate(
    program: &Program,
    live: &[LiveMicroBatches],
    hardware: &DeviceFacts,
    basis: MemoryBasis,
) -> MemoryEstimate {
    let MemoryBasis { ref kernels, slots, is_launched } = basis;
    let (spec, decoder) = (&program.model, program.model.decoder());
    let mut items = state_items(program);

    let head = spec.layers + 1;
    let (sizes, last) = (Sizes::of_micro_batch(program), Sizes::of_smaller_last(program));
    // Of each layer of the pattern: saved, kept for its weights, and saved of the last micro-batch. If a chunk holds all micro-batches, one of
    // them may be smaller.
    let mut layers = vec![[0_u64; 3]; decoder.layers.pattern().len()];
    let mut carried = vec![[0_u64; 2]; decoder.carried.len()];
    let (mut heads, mut last_heads) = (0, 0);
    for (chunk, live) in program.chunks.iter().zip(live) {
        // Without recomputation, the weights' work is as much as what was saved.
        let (saved, work) = match program.recompute {
            Recompute::None => (live.saved + live.work, 0),
            _ => (live.saved, live.work),
        };
        let smaller = u64::from(last.is_some() && saved == program.batch.micro_batches());
        let held = [saved as u64 - smaller, work as u64, smaller];
        for (sum, (_, times)) in layers.iter_mut().zip(decoder.layers.count_in(chunk.range())) {
            *sum = [0, 1, 2].map(|i| sum[i] + times as u64 * held[i]);
        }
        for place in decoder.carried_kept(&chunk.range(), program.recompute) {
            carried[place] = [carried[place][0] + saved as u64 - smaller, carried[place][1] + smaller];
        }
        if chunk.contains(head) {
            last_heads += smaller;
            heads += (saved + work) as u64 - smaller;
        }
    }
    let has_head = heads + last_heads > 0;
    let mut activations = |part: &str, buffers: &[Buffer], sizes: &Sizes, count: u64| {
        for buffer in buffers.iter().filter(|_| count > 0) {
            let new = item(MemoryCategory::Activations, format!("{part}: {}", buffer.name), sizes.bytes(buffer), count);
            match items
                .iter_mut()
                .find(|known| (known.category, &known.what, known.bytes) == (new.category, &new.what, new.bytes))
            {
                Some(known) => known.count += count,
                None => items.push(new),
            }
        }
    };
    let counted = || decoder.layers.pattern().iter().zip(&layers);
    for (layer, [saved, work, _]) in counted() {
        activations("layer", &layer.kept(program.recompute), &sizes, *saved);
        activations("layer, for its weights", &layer.deferred(), &sizes, *work);
    }
    activations("head", &head_kept(program, &decoder.head), &sizes, heads);
    let of_carried = |index: usize| decoder.carried[index].buffer();
    for (index, [count, _]) in carried.iter().enumerate() {
        activations("carried", &[of_carried(index)], &sizes, *count);
    }
    if let Some(last) = &last {
        for (index, [_, smaller]) in carried.iter().enumerate() {
            activations("carried, last micro-batch", &[of_carried(index)], last, *smaller);
        }
        for (layer, [.., smaller]) in counted() {
            activations("layer, last micro-batch", &layer.kept(program.recompute), last, *smaller);
        }
        activations("head, last micro-batch", &head_kept(program, &decoder.head), last, last_heads);
    }
    let saved = sum(&items, MemoryCategory::Activations);

    // The head's backward comes first, with everything saved; a layer's when the head's buffers are free again.
    let head_freed = if has_head { sizes.total(&head_kept(program, &decoder.head)) } else { 0 };
    let head_peak = if has_head { saved.saturating_add(sizes.bytes(&decoder.head.held())) } else { saved };
    let layer_peak = decoder.layers.most(|layer| layer_backward(program, layer, &sizes));
    let layer_peak = (saved - head_freed).saturating_add(layer_peak);
    let layer_peak = layer_peak.saturating_add(sizes.bytes(&carried_gradients(program, &decoder)));
    let all_weights = weights_gathered_for_evaluation(program);
    let with_weights = |workspace: u64| if workspace > 0 { workspace.saturating_add(all_weights) } else { 0 };
    let (evaluation, sampling) =
        (with_weights(evaluation(program, has_head, kernels)), with_weights(sampling(program)));
    let sums = gradient_sum_bytes(program);
    let peaks = [
        ("backward of the head", head_peak.saturating_add(sums.head)),
        ("backward of a layer", layer_peak.saturating_add(sums.layer)),
        ("backward of the embedding", embedding_backward(program, &sizes, saved - head_freed, sums.embedding)),
        ("evaluation", evaluation),
        ("sampling", sampling),
        ("orthogonalization", orthogonalization(program)),
    ];
    let widest = peaks.into_iter().fold(peaks[0], |widest, peak| if peak.1 > widest.1 { peak } else { widest });
    let mut workspace = |what: &str, bytes: u64, count: u64| {
        items.push(item(MemoryCategory::Workspace, what, bytes, count));
    };
    workspace(&format!("beyond the activations, {}", widest.0), widest.1 - saved, 1);
    let length = program.batch.length as u64;
    if program.device == Device::Cpu {
        let KernelWorkspace { attention_queries, attention_tiles, attention_head_buffers, .. } = *kernels;
        let per_key = attention_tiles * length.min(attention_queries) + attention_head_buffers * spec.head_dim() as u64;
        let bytes = F32_BYTES.saturating_mul(per_key).saturating_mul(length);
        workspace("attention tiles and heads per thread", bytes, hardware.threads as u64);
        if program.precision == Precision::Bf16 {
            workspace("blocks of products (at most)", product_blocks(&decoder, sizes.positions, kernels), 1);
        } else {
            let bytes = packed_bytes(&decoder, sizes.positions, kernels);
            workspace("blocks of products per thread (at most)", bytes, hardware.threads as u64);
        }
    } else {
        let scratch = kernels.gpu_scratch_bytes[usize::from(is_hopper_or_newer(hardware.compute_capability))];
        workspace("scratch of matrix products", scratch, 1);
    }
    let rows = program.batch.slice.1 as u64;
    workspace("ids and targets per row", BYTES_PER_TOKEN.saturating_mul(length), rows);
    let mut table = |what: &str, width: usize| {
        let numbers = (spec.context_length as u64).saturating_mul(width as u64);
        workspace(what, F32_BYTES.saturating_mul(numbers), 1);
    };
    if decoder.embedding.positions == Positions::Sinusoidal && program.chunks.iter().any(|c| c.contains(0)) {
        table("sinusoidal positions", spec.d_model);
    }
    for rotary in decoder.rotary_tables(program.chunks.iter().map(|chunk| chunk.range())) {
        table("rotary positions", rotary.dims);
    }
    if program.device == Device::Cpu {
        // The replicas of dp are threads of the command's process. Otherwise the command starts a process for each of several ranks. Under a
        // launcher, each rank is a command.
        let is_thread = matches!(program.mesh.mode, ParallelMode::Single | ParallelMode::Dp);
        let is_first = program.rank == 0;
        if is_first || !is_thread {
            workspace(PROCESS_ITEM, PROCESS_BYTES, 1);
        }
        if is_first || is_launched {
            let own_process = if is_thread || is_launched { 0 } else { PROCESS_BYTES };
            workspace(COMMAND_ITEM, COMMAND_BYTES + own_process, 1);
        }
    } else {
        let what = "the driver's context and the kernels' code (assumed)";
        let mut push = |what: &str, bytes: u64, count: u64| {
            if count > 0 {
                items.push(item(MemoryCategory::Context, what, bytes, count));
            }
        };
        let (groups, channels) = device::communicators(program);
        push(what, device::context_bytes(hardware.compute_capability), 1);
        push("communicators of groups (assumed)", device::GROUP_COMMUNICATOR_BYTES, groups);
        push("communicators of channels (assumed)", device::CHANNEL_COMMUNICATORS_BYTES, channels);
    }
    items.extend(communication(program, slots as u64, &sizes));

    MemoryEstimate {
        weights: sum(&items, MemoryCategory::Weights),
        gradients: sum(&items, MemoryCategory::Gradients),
        optimizer: sum(&items, MemoryCategory::Optimizer),
        activations: saved,
        workspace: sum(&items, MemoryCategory::Workspace),
        communication: sum(&items, MemoryCategory::Communication),
        checkpoint: sum(&items, MemoryCategory::Checkpoint),
        context: sum(&items, MemoryCategory::Context),
        items,
    }
}

/// The carried tensors that flow into a block of this rank, where they are widest.
fn widest_carried(program: &Program, decoder: &Decoder) -> usize {
    let blocks = program.chunks.iter().flat_map(|chunk| chunk.range()).filter(|_| !decoder.carried.is_empty());
    let widths = blocks.map(|block| decoder.carried_to(block).map(|(_, carried)| carried.width).sum());
    widths.max().unwrap_or(0)
}

/// The gradients of carried tensors that the blocks after a chunk's last layer give back. In the backward of earlier layers there may be more,
/// and as much that was saved is free.
fn carried_gradients(program: &Program, decoder: &Decoder) -> Buffer {
    let last_layers = program.chunks.iter().map(|chunk| chunk.end.min(program.model.layers + 1));
    let widths = last_layers.map(|after| {
        let read_later = decoder.carried_to(after).filter(|(_, carried)| carried.last >= after);
        read_later.map(|(_, carried)| carried.width).sum()
    });
    Buffer { name: "gradients of carried tensors", per_position: widths.max().unwrap_or(0), always_f32: false }
}

/// Bytes that a layer's backward needs at its peak beyond what is saved: gradients, and activations that it computes again.
fn layer_backward(program: &Program, layer: &Layer, sizes: &Sizes) -> u64 {
    let gradients = sizes.total(&layer.held());
    let all = sizes.total(&layer.kept(Recompute::None));
    let kept = sizes.total(&layer.kept(program.recompute));
    match program.recompute {
        Recompute::None => gradients,
        Recompute::Block => (all - kept).saturating_add(gradients),
        // Either in the MLP's backward, before attention is computed again, or in attention's, when the MLP's is free.
        Recompute::Attention => gradients.max(sizes.total(&layer.held_with_attention()).saturating_sub(kept)),
    }
}

/// Rows, depth and columns of the products of matrices for `positions` rows of activations: for each projection forward, the gradient of
/// its input, and the gradient of its weight.
fn products(decoder: &Decoder, positions: u64) -> impl Iterator<Item = [u64; 3]> {
    let linears = decoder.layers.pattern().iter().flat_map(Layer::products).chain([&decoder.head.project]);
    let sizes: Vec<_> = linears.map(|linear| (linear.inputs as u64, linear.width() as u64)).collect();
    sizes.into_iter().flat_map(move |(inputs, outputs)| {
        [[positions, inputs, outputs], [positions, outputs, inputs], [outputs, positions, inputs]]
    })
}

/// The bytes that a thread's f32 products hold of the left matrix, at most.
fn packed_bytes(decoder: &Decoder, positions: u64, kernels: &KernelWorkspace) -> u64 {
    let bytes =
        |[rows, depth, _]: [u64; 3]| F32_BYTES * rows.min(kernels.packed_rows) * depth.min(kernels.packed_depth);
    products(decoder, positions).map(bytes).max().unwrap_or(0)
}

/// The bytes that a CPU's products of bf16 matrices hold of both matrices and of sums, at most.
fn product_blocks(decoder: &Decoder, positions: u64, kernels: &KernelWorkspace) -> u64 {
    let KernelWorkspace { product_operand_bytes, product_sum_bytes, .. } = *kernels;
    let block = |rows: u64, cols: u64, most: u64| F32_BYTES.saturating_mul(rows).saturating_mul(cols).min(most);
    let bytes = |[rows, depth, cols]: [u64; 3]| {
        let operands = block(rows, depth, product_operand_bytes) + block(depth, cols, product_operand_bytes);
        operands + block(rows, cols, product_sum_bytes)
    };
    products(decoder, positions).map(bytes).max().unwrap_or(0)
}

/// Bytes of the largest f32 sum of a matrix's gradients that the backward of each kind of block holds for a moment where gradients are
/// stored in bf16. 0 for blocks that the rank does not have, and where they are stored in f32.
fn gradient_sum_bytes(program: &Program) -> PerBlockKind<u64> {
    let Decoder { embedding, layers, head, .. } = program.model.decoder();
    let head_block = program.model.layers + 1;
    let bytes = |is_needed: bool, numbers: usize| {
        if is_needed && !program.master_weights { F32_BYTES.saturating_mul(numbers as u64) } else { 0 }
    };
    let has = |block: usize| program.chunks.iter().any(|chunk| chunk.contains(block));
    let tables = layers.pattern().iter().flat_map(Layer::sums).map(Sums::largest_table);
    let products = layers.pattern().iter().flat_map(Layer::products).map(Linear::size);
    let widest = products.chain(tables).max().unwrap_or(0);
    PerBlockKind {
        embedding: bytes(has(0), embedding.largest_matrix()),
        layer: bytes((1..head_block).any(has), widest),
        head: bytes(has(head_block), head.project.size()),
    }
}

/// Bytes that Muon needs for its largest matrix: at first the momentum's direction in f32 and as it is multiplied, then two such matrices
/// and three of the smaller side.
fn orthogonalization(program: &Program) -> u64 {
    let products = precision::activation_bytes(program.precision);
    let bytes = |[rows, cols]: [usize; 2]| {
        let (all, gram) = ((rows * cols) as u64, (rows.min(cols) as u64).pow(2));
        (all * (F32_BYTES + products)).max(2 * all * products + 3 * gram * F32_BYTES)
    };
    program.orthogonalized().into_iter().map(bytes).max().unwrap_or(0)
}

/// Bytes that the embedding's backward needs: the gradient of its output, the f32 sum of a table's gradients, and of the `saved`
/// activations those of other micro-batches.
fn embedding_backward(program: &Program, sizes: &Sizes, saved: u64, sum: u64) -> u64 {
    if sum == 0 {
        return 0;
    }
    let spec = &program.model;
    let (decoder, chunk) = (spec.decoder(), program.chunks.iter().find(|chunk| chunk.contains(0)));
    let layers = chunk.into_iter().flat_map(|chunk| decoder.layers.count_in(chunk.range()));
    let freed = layers.fold(0, |sum: u64, (layer, times)| {
        sum.saturating_add((times as u64).saturating_mul(sizes.total(&layer.kept(program.recompute))))
    });
    // A norm's input and output are computed again.
    let sums = decoder.embedding.sums.equations.len() as u64;
    let tensors = sums + if decoder.embedding.norm.is_some() || sums > 0 { 4 } else { 1 };
    let gradient = sizes.positions.saturating_mul(spec.d_model as u64).saturating_mul(sizes.element);
    saved.saturating_sub(freed).saturating_add(tensors * gradient).saturating_add(sum)
}

/// Messages that wait for this rank, and the pieces in which gradients are summed.
fn communication(program: &Program, slots: u64, sizes: &Sizes) -> Vec<MemoryItem> {
    let mut items = Vec::new();
    let mut push = |what: &str, bytes: u64, count: u64| {
        if count > 0 {
            items.push(item(MemoryCategory::Communication, what, bytes, count));
        }
    };
    // Every part of the model receives activations but the first, and gradients but the last.
    let parts = program.mesh.stages * program.chunks.len();
    let has_part = |first: usize, end: usize| {
        let mut held = (0..program.chunks.len()).map(|chunk| program.virtual_stage(chunk));
        u64::from(held.any(|part| (first..end).contains(&part)))
    };
    let (before_it, after_it) = (has_part(1, parts), has_part(0, parts - 1));
    let channels = before_it + after_it;
    let message = sizes.positions.saturating_mul(program.widest_message() as u64).saturating_mul(sizes.element);
    // A stream of several tensors is packed into one to be sent, and taken apart when it is received.
    let packed = program.model.decoder().carried.iter().any(Carried::is_handed_on);
    push("activations and gradients, packed", message, if packed { channels } else { 0 });
    if program.device == Device::Cpu {
        // A slot stays as large as the longest message that was in it.
        let slot = message.max((longest_message(program) as u64).saturating_mul(sizes.element));
        push("activations and gradients in flight", slot, channels * slots);
        push("pieces of gradients being summed", REDUCE_PIECE_BYTES, u64::from(program.mesh.replicas > 1));
    } else {
        // A message is received where it is used: one of each kind is under way.
        push("activations and gradients in flight", message, channels);
        push("activations and gradients that were sent", message, channels * slots);
    }
    items
}

/// Bytes of the weights that an evaluation gathers beyond those that a step does.
fn weights_gathered_for_evaluation(program: &Program) -> u64 {
    HeldElements::new(program).map_or(0, |most| gathered_element_bytes(program).saturating_mul(most.released as u64))
}

/// Weights, gradients and moments.
fn state_items(program: &Program) -> Vec<MemoryItem> {
    let counts = count_chunks(&program.model, &program.chunks);
    let mut items = Vec::new();
    let mut push = |category, what: &str, bytes: u64, count: u64| {
        if bytes * count > 0 {
            items.push(item(category, what, bytes, count));
        }
    };
    let [weights, gradients, moments] = if program.master_weights {
        ["f32 weights", "f32 gradients", "moments"]
    } else {
        ["bf16 weights", "bf16 gradients", "bf16 moments"]
    };
    let element = precision::state_bytes(program.master_weights);
    let shard = program.shard();
    let held = shard.as_ref().map_or(counts.total, |shard| shard.len() as u64);
    push(MemoryCategory::Weights, weights, element * held, 1);
    let at_most = HeldElements::new(program);
    let read = counts.total - at_most.map_or(0, |most| most.released as u64);
    if precision::has_rounded_copy(program.precision, program.master_weights) {
        push(MemoryCategory::Weights, "weights in bf16", precision::ROUNDED_COPY_BYTES * read, 1);
    } else if shard.is_some() {
        push(MemoryCategory::Weights, "weights of all replicas", element * read, 1);
    }
    if !program.master_weights || (shard.is_some() && program.precision == Precision::Bf16) {
        // Norms read them.
        push(MemoryCategory::Weights, "gains and biases in f32", F32_BYTES * counts.other, 1);
    }
    push(MemoryCategory::Gradients, gradients, element * at_most.map_or(counts.total, |most| most.gradients as u64), 1);
    let (sections, one_moment) = (1 + program.moments() as u64, program.one_moment() as u64);
    if one_moment > 0 && program.moments() > 1 {
        push(MemoryCategory::Optimizer, "first moments", element * held, 1);
        push(MemoryCategory::Optimizer, "second moments", element * (held - one_moment), 1);
    } else {
        push(MemoryCategory::Optimizer, moments, element * held, program.moments() as u64);
    }
    if program.copies_saved_state {
        let missing = if program.moments() > 1 { one_moment } else { 0 };
        push(MemoryCategory::Checkpoint, "copy of weights and moments", element * (held * sections - missing), 1);
    }
    items
}

/// Bytes of the buffers of one micro-batch.
struct Sizes {
    positions: u64,
    element: u64,
}

impl Sizes {
    fn of_micro_batch(program: &Program) -> Self {
        let rows = program.batch.micro_batch.min(program.batch.slice.1) as u64;
        let element = precision::activation_bytes(program.precision);
        Self { positions: rows.saturating_mul(program.batch.length as u64), element }
    }

    /// The sizes of the last micro-batch, if it is smaller than the others.
    fn of_smaller_last(program: &Program) -> Option<Self> {
        let full = Self::of_micro_batch(program);
        let rows = program.batch.rows(program.batch.micro_batches().checked_sub(1)?).1 as u64;
        let positions = rows.saturating_mul(program.batch.length as u64);
        (positions < full.positions).then_some(Self { positions, ..full })
    }

    fn bytes(&self, buffer: &Buffer) -> u64 {
        let element = if buffer.always_f32 { F32_BYTES } else { self.element };
        self.positions.saturating_mul(buffer.per_position as u64).saturating_mul(element)
    }

    fn total(&self, buffers: &[Buffer]) -> u64 {
        buffers.iter().fold(0, |sum, b| sum.saturating_add(self.bytes(b)))
    }
}

/// One forward that keeps nothing: one layer's buffers, then the logits where the head is. Multiple choice batches by tokens.
fn evaluation(program: &Program, has_head: bool, kernels: &KernelWorkspace) -> u64 {
    if !program.periodic.iter().any(|p| p.instruction == Instruction::Evaluate) {
        return 0;
    }
    let mut sizes = Sizes::of_micro_batch(program);
    if program.eval.choice_items.is_some() {
        sizes.positions = sizes.positions.max(EVAL_TOKENS_PER_FORWARD as u64);
    }
    let (spec, decoder) = (&program.model, program.model.decoder());
    let width = spec.d_model + widest_carried(program, &decoder);
    let Decoder { layers, head, .. } = decoder;
    let input = sizes.positions.saturating_mul(width as u64).saturating_mul(sizes.element);
    // What a layer makes, and its output.
    let layer = layers.most(|layer| sizes.total(&layer.kept(Recompute::None))).saturating_add(input);
    if !has_head {
        return layer;
    }
    let logit_rows = kernels.logit_rows[usize::from(program.device != Device::Cpu)];
    let part = Sizes { positions: sizes.positions.min(logit_rows), ..sizes };
    layer.max(input.saturating_add(part.total(&head_kept(program, &head))))
}

/// The key-value cache of a batch of continuations of the longest prompt, and their logits. A prompt has at most as many tokens
/// as bytes, since the tokenizers here are byte-level or coarser.
fn sampling(program: &Program) -> u64 {
    let Some(samples) = &program.eval.samples else { return 0 };
    let (spec, layers) = (&program.model, program.model.decoder().layers);
    let prompt = samples.prompts.iter().map(String::len).max().unwrap_or(0);
    let length = prompt.saturating_add(samples.max_tokens).min(spec.context_length) as u64;
    let rows = samples.batch_rows() as u64;
    let caches = layers.iter().flat_map(Layer::attentions).map(|attention| attention.cached() as u64);
    let cache: u64 = caches.sum();
    let element = precision::activation_bytes(program.precision);
    let cached = rows.saturating_mul(length).saturating_mul(cache).saturating_mul(element);
    let logits = rows.saturating_mul(spec.vocab_size as u64).saturating_mul(F32_BYTES);
    // The prompt's pass through one layer, for the whole batch.
    let sizes = Sizes { positions: rows.saturating_mul(prompt.min(spec.context_length) as u64), element };
    cached.saturating_add(logits).saturating_add(layers.most(|layer| sizes.total(&layer.kept(Recompute::None))))
}

fn item(category: MemoryCategory, what: impl Into<String>, bytes: u64, count: u64) -> MemoryItem {
    MemoryItem { category, what: what.into(), bytes, count }
}

/// The tensors that the head keeps. A GPU begins each row of logits at a multiple of 16 bytes of bf16 (`compute/kernels/cuda/matmul.rs`).
fn head_kept(program: &Program, head: &Head) -> Vec<Buffer> {
    const ALIGNED: usize = 8;
    let mut kept = head.kept();
    let vocabulary = head.project.width();
    if program.device != Device::Cpu && !program.model.options.head_bias && vocabulary > ALIGNED {
        let logits = kept.iter_mut().filter(|buffer| buffer.name == "logits");
        logits.for_each(|buffer| buffer.per_position = vocabulary.next_multiple_of(ALIGNED));
    }
    kept
}

fn sum(items: &[MemoryItem], category: MemoryCategory) -> u64 {
    let of_category = items.iter().filter(|i| i.category == category);
    of_category.fold(0, |sum, i| sum.saturating_add(i.bytes.saturating_mul(i.count)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile;
    use crate::testing::{cluster, compiled, data, experiment};
    use runner_spec::cluster::ClusterFacts;
    use runner_spec::optimizer::{Optimizer, Sgd};
    use runner_spec::program::BatchSpec;

    const ONE: LiveMicroBatches = LiveMicroBatches { saved: 1, work: 0 };

    fn estimate_alone(program: &Program) -> MemoryEstimate {
        let ClusterFacts { devices, kernels, .. } = cluster();
        estimate(program, &[ONE], &devices[0], MemoryBasis { kernels, slots: 2, is_launched: false })
    }

    fn program() -> Program {
        compiled(&experiment()).ranks[0].program.clone()
    }

    #[test]
    fn categories_are_the_sums_of_the_table() {
        let memory = estimate_alone(&program());
        let table: u64 = memory.items.iter().map(|i| i.bytes * i.count).sum();
        assert_eq!(memory.total(), table);
        assert!(memory.items.iter().all(|i| i.bytes > 0 || i.category == MemoryCategory::Workspace));
    }

    #[test]
    fn state_is_four_bytes_a_parameter() {
        let mut program = program();
        let n = count_chunks(&program.model, &program.chunks).total;
        let adamw = estimate_alone(&program);
        assert_eq!([adamw.weights, adamw.gradients, adamw.optimizer], [4 * n, 4 * n, 8 * n]);
        program.optimizer = Optimizer::Sgd(Sgd { lr: 1.0, momentum: 0.0 });
        program.precision = Precision::Bf16;
        let sgd = estimate_alone(&program);
        assert_eq!([sgd.weights, sgd.gradients, sgd.optimizer], [6 * n, 4 * n, 0]);
    }

    /// With a large vocabulary the peak is in the backward of the head, whose f32 sum of gradients has 4 bytes a number.
    #[test]
    fn bf16_state_is_two_bytes_a_parameter() {
        let mut program = program();
        (program.precision, program.model.vocab_size) = (Precision::Bf16, 50_000);
        program.periodic.clear();
        program.eval.samples = None;
        let masters = estimate_alone(&program);
        program.master_weights = false;
        let memory = estimate_alone(&program);
        let counts = count_chunks(&program.model, &program.chunks);
        let (n, other) = (counts.total, counts.other);
        assert_eq!([memory.weights, memory.gradients, memory.optimizer], [2 * n + 4 * other, 2 * n, 4 * n]);
        let table = 4 * (program.model.vocab_size * program.model.d_model) as u64;
        assert_eq!((memory.activations, memory.workspace), (masters.activations, masters.workspace + table));
    }

    /// By hand: 3 GPT-2 layers 16 wide with 2 heads and d_ff 64, 2 rows of 8 positions; per position a layer keeps
    /// 5·16 + 48 + 2 + 4 + 2·64 = 262 and the head 2·16 + 2 + vocabulary.
    #[test]
    fn activations_of_a_tiny_model_equal_those_by_hand() {
        let program = program();
        assert_eq!((program.batch.micro_batch, program.batch.length), (2, 8));
        let positions = 2 * 8;
        let want = 4 * positions * (3 * 262 + 34 + program.model.vocab_size as u64);
        assert_eq!(estimate_alone(&program).activations, want);
    }

    /// bf16 on an H100, by hand: f32 weights, a bf16 copy of them; per position the 262 + 34 + vocabulary elements of
    /// the test above, in bf16 but for statistics: 2·2 of each layer's norms, 2 log-sum-exps, 2 of the final norm.
    #[test]
    fn memory_of_bf16_on_a_gpu_equals_that_by_hand() {
        let named = runner_machine::cluster_description::named_cluster("1x1xH100").expect("known");
        let cluster = ClusterFacts { kernels: cluster().kernels, ..named };
        let mut experiment = experiment();
        experiment.precision = Precision::Bf16;
        for masters in [true, false] {
            experiment.master_weights = masters;
            let plan = compile(&experiment, &data(), &cluster).expect("it is planned");
            let (rank, memory) = (&plan.ranks[0], &plan.ranks[0].memory);
            let n = rank.params.total;
            let other = rank.params.other;
            let state = if masters { [(4 + 2) * n, 4 * n, 8 * n] } else { [2 * n + 4 * other, 2 * n, 4 * n] };
            assert_eq!([memory.weights, memory.gradients, memory.optimizer], state);
            let (all, f32s) = (3 * 262 + 34 + rank.program.model.vocab_size as u64, 3 * (4 + 2) + 2);
            assert_eq!(memory.activations, 2 * 8 * (2 * all + 2 * f32s));
            assert_eq!(memory.context, 512 << 20);
            let scratch = memory.items.iter().find(|i| i.what == "scratch of matrix products");
            assert_eq!(scratch.map(|i| i.bytes), Some(32 << 20));
        }
    }

    /// Multiple choice makes the logits of more rows at once than a small micro-batch has: as many as the device holds.
    #[test]
    fn an_evaluation_holds_logits_of_some_rows() {
        let mut program = program();
        program.batch.micro_batch = 1;
        program.model.vocab_size = 50_000;
        program.eval.choice_items = Some(1);
        assert!(program.periodic.iter().any(|p| p.instruction == Instruction::Evaluate));
        let kernels = cluster().kernels;
        for (device, rows) in [(Device::Cpu, 256), (Device::Cuda(0), 2048)] {
            program.device = device;
            let logits = 4 * 50_000 * rows;
            let needed = evaluation(&program, true, &kernels);
            assert!((logits..logits + (1 << 20)).contains(&needed), "{device:?}: {needed} of {logits}");
            assert!(evaluation(&program, false, &kernels) < logits / 10, "of a stage without the head");
        }
    }

    #[test]
    fn activations_follow_the_micro_batches_in_flight() {
        let program = program();
        let live = [LiveMicroBatches { saved: 2, work: 0 }];
        let ClusterFacts { devices, kernels, .. } = cluster();
        let basis = MemoryBasis { kernels, slots: 2, is_launched: false };
        let two = estimate(&program, &live, &devices[0], basis);
        assert_eq!(two.activations, 2 * estimate_alone(&program).activations);
        // 8 rows in micro-batches of 3, 3 and 2: when all are held, they have 8 rows, and not 9.
        let uneven = Program { batch: BatchSpec { micro_batch: 3, ..program.batch.clone() }, ..program.clone() };
        let held = |saved| {
            let live = [LiveMicroBatches { saved, work: 0 }];
            estimate(&uneven, &live, &devices[0], basis).activations
        };
        let row = estimate_alone(&program).activations / 2;
        assert_eq!([1, 2, 3].map(held), [3 * row, 6 * row, 8 * row]);
    }
}
