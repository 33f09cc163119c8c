//! Experiment + data facts + cluster facts → Plan. Pure: no IO, no clock, no environment, no device.

use std::cmp::Ordering;

use crate::check::ExecutionSummary;
use crate::error::{PlanError, Result, refuse};
use crate::evaluations::{eval_spec, periodic, start};
use crate::forecast::cost::count_chunks;
use crate::forecast::slow_sizes::describe_slow_sizes;
use crate::forecast::{forecast, step_seconds};
use crate::hash::{math_hash, plan_hash};
use crate::learning_rate::{
    StepClock, describe_unfinished_decay, describe_unsaved_decays, lr_schedule, zero_rate_warnings,
};
use crate::memory::MemoryBasis;
use crate::memory::shortage;
use crate::ranks::{devices, shard_note};
use crate::run_length::{StepSizes, run_steps, steps_of_stages};
use crate::stages::{PlacedStage, PlacedStages, Stage, Stages};
use crate::{check, ranks};
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::{DataFacts, DataPart, NO_SEPARATOR_WARNING, SplitFacts};
use runner_spec::experiment::ParallelMode;
use runner_spec::experiment::{Experiment, Layout, Precision, ShardedState};
use runner_spec::format::{choice_name, count, division, json_value};
use runner_spec::model::ModelSpec;
use runner_spec::model::{BrokenRule, HeadMistake, head_mistakes};
use runner_spec::plan::{PLAN_FORMAT, Plan, RankPlan, Totals};
use runner_spec::program::{BlockRange, DataPosition, Device, Program, RowOrder, RowSequence};

/// A program lists every micro-batch: more than this many per step is a mistake in the file.
const MAX_MICRO_BATCHES: usize = 1 << 16;

/// Parameters that a plan can still be made for; beyond it, byte counts would leave u64 and block lists memory.
const MAX_PARAMETERS: f64 = 1e15;
const MAX_LAYERS: usize = 100_000;

/// A model's vocabulary that is this many times as large as the tokenizer's gets a warning.
const UNUSED_VOCABULARY_FACTOR: usize = 2;

/// Compiles, counts and proves the plan of `experiment`.
///
/// # Errors
/// If experiment, data and machine do not fit one another: in the file's vocabulary, with the arithmetic.
pub fn compile(experiment: &Experiment, data: &DataFacts, cluster: &ClusterFacts) -> Result<Plan> {
    compile_continuation(experiment, data, cluster, 0)
}

/// [`compile`] for a run that begins with the checkpoint of another run, which did the first `inherited_steps`: warnings are about the steps
/// after them.
///
/// # Errors
/// Those of [`compile`].
#[expect(clippy::too_many_lines, reason = "the parts of a plan, each of which needs those before it")]
pub fn compile_continuation(
    experiment: &Experiment,
    data: &DataFacts,
    cluster: &ClusterFacts,
    inherited_steps: u64,
) -> Result<Plan> {
    let mut notes = Vec::new();
    let model = model_spec(experiment, data)?;
    notes.extend(data.weights.as_ref().and_then(|w| vocabulary_note(w.vocab_size, model.vocab_size)));
    let mut warnings: Vec<String> = unused_vocabulary(experiment, data).into_iter().collect();
    warnings.extend(data.joins_documents.then(|| NO_SEPARATOR_WARNING.to_owned()));
    warnings.extend(data.overlap_warnings());
    notes.extend(experiment.train.transfer.and_then(|transfer| transfer.note(&model)));
    let length = row_length(experiment)?;
    let (sequences, micro_batch) = batch_sizes(experiment)?;
    notes.extend(DataPart::ALL.into_iter().filter_map(|part| {
        let SplitFacts { documents, tokens, clipped, .. } = data.split(part)?;
        clipped.note(part.name(), length, *documents, *tokens)
    }));
    let SettledLength { stages, steps, parameters } = run_length(experiment, data, &model, &mut notes)?;
    let stages = stages.placed(steps)?;
    let (row_sequence, pace) = (stages.row_sequence(data.train.rows), stages.pace());
    let PlacedStages { earlier, last } = stages;
    let clock = StepClock { steps, pace: &pace };
    let schedule = lr_schedule(experiment, &row_sequence, clock, &mut notes)?;
    notes.extend(describe_unsaved_decays(&schedule, experiment.checkpoint.every));
    warnings.extend(describe_unfinished_decay(&experiment.schedule.decay, &schedule, steps));
    warnings.extend(zero_rate_warnings(&schedule, inherited_steps, steps));
    let eval = eval_spec(experiment, data, micro_batch, &mut notes)?;
    let mesh = ranks::mesh(&experiment.parallel, sequences)?;
    let periodic = periodic(experiment, &eval)?;
    let hardware = devices::choose_devices(&experiment.parallel.devices, experiment.device, mesh, cluster, &mut notes)?;
    if experiment.precision == Precision::Tf32 && hardware.iter().any(|facts| facts.device == Device::Cpu) {
        notes.push("precision: tf32 is computed as fp32 on a CPU, which has no TF32".to_owned());
    }
    notes.extend(describe_slow_sizes(&model, experiment.precision, &hardware)?);
    let (evaluated, saved) = (experiment.eval.every, experiment.checkpoint.every);
    if data.test.is_some() && eval.loss.is_some() && !evaluated.is_multiple_of(saved.max(1)) {
        notes.push(format!(
            "eval.test: a checkpoint is written every {saved} steps, an evaluation runs every {evaluated}, and the best is chosen among \
             steps that have both; make eval.every a multiple of checkpoint.every"
        ));
    }

    let mut common = Program {
        rank: 0,
        mesh,
        seed: experiment.seed,
        device: Device::Cpu,
        precision: experiment.precision,
        master_weights: experiment.master_weights,
        recompute: experiment.train.recompute,
        start: start(experiment, &periodic),
        step: Vec::new(),
        chunks: Vec::new(),
        buckets: Vec::new(),
        shards: Vec::new(),
        sharded: ShardedState::default(),
        batch: last.batch,
        optimizer: experiment.optimizer.without_lr(),
        groups: experiment.train.groups.clone(),
        transfer: experiment.train.transfer.and_then(|transfer| transfer.planned(&model)),
        schedule,
        steps,
        periodic,
        copies_saved_state: false,
        eval,
        flops_per_step: last.flops_per_step,
        peak_flops: devices::total_peak_flops(experiment.precision, &hardware),
        model,
        earlier: Vec::new(),
    };
    let costs = ranks::BlockTimes::new(&common, &hardware, cluster);
    let layout = ranks::RankLayout::new(&experiment.parallel, &common, &costs, &mut notes)?;
    let divide = |common: &Program| -> Result<StagePrograms> {
        let programs = layout.programs(&experiment.parallel, experiment.train.clip_norm, common, &hardware)?;
        let (executions, slots) = check::check(&programs.iter().collect::<Vec<_>>())?;
        Ok(StagePrograms { programs, executions, slots })
    };
    let StagePrograms { mut programs, executions, mut slots } = divide(&common)?;
    let mut divided = Vec::with_capacity(earlier.len());
    for PlacedStage { key, until, stage } in earlier {
        let Stage { model, batch, flops_per_step } = stage;
        let stage = Program { model, batch, flops_per_step, ..common.clone() };
        // Each stage obeys the rules by which the last one divides the model.
        ranks::RankLayout::new(&experiment.parallel, &stage, &costs, &mut Vec::new())
            .map_err(|error| error.in_stage(&key))?;
        let stage_programs = divide(&stage)?;
        slots = slots.max(stage_programs.slots);
        common.push_stage(until, stage);
        for (program, earlier) in programs.iter_mut().zip(&stage_programs.programs) {
            program.push_stage(until, earlier.clone());
        }
        divided.push((until, stage_programs));
    }
    let hash = plan_hash(data, &programs);
    let mut totals = Totals {
        steps,
        sequences_per_step: sequences,
        accumulation_steps: programs.first().map_or(0, |p| p.batch.micro_batches()),
        tokens: row_sequence.position_after(steps).tokens,
        has_padding: matches!(experiment.data.layout, Layout::Padded { .. }),
        epochs: row_sequence.epochs_after(steps),
        parameters,
        pace,
    };
    let basis = MemoryBasis { kernels: cluster.kernels, slots, is_launched: cluster.has_launcher() };
    let mut ranks = ranks::rank_plans(programs, &executions, hardware.clone(), basis);
    let mut heaviest: Option<(u64, Vec<RankPlan>)> = None;
    let mut shortages = Vec::new();
    for ((until, stage), pace) in divided.into_iter().zip(&mut totals.pace.earlier_stages) {
        let stage_ranks = ranks::rank_plans(stage.programs, &stage.executions, hardware.clone(), basis);
        pace.step_seconds = step_seconds(&stage_ranks, slots, cluster);
        // Not for lack of room for copies of saved states, which are dropped.
        let mut without = stage_ranks.clone();
        shortage::drop_saved_copies(&mut without);
        shortages.extend(shortage::describe_shortage(&layout, &without, basis));
        if largest_need(&stage_ranks) > largest_need(heaviest.as_ref().map_or(&ranks, |(_, heaviest)| heaviest)) {
            heaviest = Some((until, stage_ranks));
        }
    }
    let last_ranks = heaviest.as_mut().map_or(&mut ranks, |(_, heaviest)| heaviest);
    notes.extend(shortage::drop_saved_copies(last_ranks));
    let shortage = shortage::describe_shortage(&layout, last_ranks, basis).or_else(|| shortages.into_iter().next());
    if let Some((until, heaviest)) = heaviest {
        notes.push(format!(
            "the memory shown is for the stage that ends at step {}, which needs the most",
            count(until)
        ));
        for (rank, most) in ranks.iter_mut().zip(heaviest) {
            rank.memory = most.memory;
            rank.program.copies_saved_state = most.program.copies_saved_state;
        }
    }
    if experiment.parallel.shard.is_some() && mesh.replicas == 1 {
        notes.push("parallel.shard has no effect with one replica, which holds the whole state".to_owned());
    }
    notes.extend(shard_note::describe_shards(&ranks, &executions, basis));
    notes.extend(shard_note::describe_orthogonalization(&ranks));
    let forecast = forecast(&ranks, &totals, slots, cluster);
    Ok(Plan {
        format: PLAN_FORMAT,
        hash,
        math_hash: math_hash(data, &common, experiment.train.clip_norm),
        experiment_name: experiment.name.clone(),
        world_size: mesh.world_size(),
        mesh,
        channel_slots: slots,
        totals,
        data: data.clone(),
        notes,
        warnings,
        shortage,
        ranks,
        forecast,
    })
}

/// The stages of a run, the number of its steps, and the parameters of its model.
struct SettledLength {
    stages: Stages,
    steps: u64,
    parameters: u64,
}

fn run_length(
    experiment: &Experiment,
    data: &DataFacts,
    model: &ModelSpec,
    notes: &mut Vec<String>,
) -> Result<SettledLength> {
    let (sequences, length) = (experiment.batch.sequences, experiment.data.layout.length());
    let epoch_rows = epoch_rows(experiment, data, sequences, notes)?;
    let position = data_position(experiment, data)?;
    // An epoch of whole batches leaves nothing to drop, unless a part of it is read in other batches.
    let has_stages = !experiment.earlier_stages().0.is_empty();
    let partial = position.is_some() || has_stages || !epoch_rows.is_multiple_of(sequences.max(1) as u64);
    let order = RowOrder {
        sequential: !experiment.data.shuffle,
        drop_last: experiment.data.drop_last && partial,
        epoch_rows: (epoch_rows < data.train.rows).then_some(epoch_rows),
    };
    let stages = Stages::new(experiment, model, order, position, data.train.rows)?;
    let parameters = count_chunks(model, &[BlockRange { start: 0, end: model.block_count() }]).total;
    let steps = if stages.is_single() {
        let (rows, flops) = (stages.row_sequence(u64::MAX), stages.flops_of_last_step());
        run_steps(&experiment.train, &rows, StepSizes { sequences, length, parameters, flops })?
    } else {
        steps_of_stages(&experiment.train, &stages, parameters)?
    };
    Ok(SettledLength { stages, steps, parameters })
}

/// The rows of `data` that each step of `experiment` reads.
///
/// # Errors
/// If they do not fit one another.
pub fn planned_rows(experiment: &Experiment, data: &DataFacts) -> Result<RowSequence> {
    let model = model_spec(experiment, data)?;
    row_length(experiment)?;
    batch_sizes(experiment)?;
    let SettledLength { stages, steps, .. } = run_length(experiment, data, &model, &mut Vec::new())?;
    Ok(stages.placed(steps)?.row_sequence(data.train.rows))
}

/// The programs of one stage, which the check has executed.
struct StagePrograms {
    programs: Vec<Program>,
    executions: Vec<ExecutionSummary>,
    /// Messages that a channel must hold.
    slots: usize,
}

/// Bytes that the rank with the largest need has.
fn largest_need(ranks: &[RankPlan]) -> u64 {
    ranks.iter().map(|rank| rank.memory.total()).max().unwrap_or(0)
}

/// The model with its vocabulary settled: the given one or the tokenizer's, rounded up.
fn model_spec(experiment: &Experiment, data: &DataFacts) -> Result<ModelSpec> {
    let m = &experiment.model;
    let tokenizer = data.tokenizer_vocab;
    let given = m.vocab_size.unwrap_or(tokenizer);
    if given < tokenizer && data.weights.as_ref().is_some_and(|w| given == w.vocab_size) {
        refuse!(
            "model.vocab_size",
            "the weights of model.init.from have {given} vocabulary rows, but the tokenizer produces {tokenizer} ids (0 to {}); use the \
             weights' own tokenizer, or set model.vocab_size to {tokenizer}, whose extra rows are initialized at random",
            tokenizer - 1
        );
    }
    if given < tokenizer {
        refuse!(
            "model.vocab_size",
            "must be at least {tokenizer}, because the tokenizer produces ids 0 to {}, got {given}; raise it, or delete the key",
            tokenizer - 1
        );
    }
    let multiple = m.pad_vocab_to.unwrap_or(1);
    let Some(vocab_size) = given.checked_next_multiple_of(multiple) else {
        refuse!("model.pad_vocab_to", "{given} has no multiple of {multiple} above it")
    };
    let spec = m.spec(vocab_size);
    if let Some((key, _)) = spec.sizes().into_iter().find(|(_, size)| *size == 0) {
        refuse!(format!("model.{key}"), "must be at least 1, got 0");
    }
    let multiple = |key, whole, part_key, part| {
        let sizes = division(whole, part);
        PlanError::value(key, format!("{sizes} is not a multiple of model.{part_key} {part}"))
    };
    match head_mistakes(m.family, m.d_model, m.heads, m.kv_heads, m.options.head_dim).first() {
        Some(HeadMistake::Width) => return Err(multiple("model.d_model", m.d_model, "heads", m.heads)),
        Some(HeadMistake::Groups) => return Err(multiple("model.heads", m.heads, "kv_heads", m.kv_heads)),
        Some(HeadMistake::Grouped) => {
            let family = choice_name(&m.family);
            refuse!("model.kv_heads", "must be {}, like model.heads, in {family}, got {}", m.heads, m.kv_heads)
        }
        Some(HeadMistake::OddWidth) | None => {}
    }
    if let Some(lacked) = m.family.foreign_keys(&json_value(&m.options)).next() {
        refuse!("model", "{} has no {}: {}", choice_name(&m.family), lacked.key, lacked.why);
    }
    let broken = m.options.broken_rules(m.family, m.layers, m.d_model, spec.attention_heads());
    if let Some(BrokenRule { keys, message, .. }) = broken.into_iter().next() {
        refuse!(format!("model.{}", keys[0]), "{message}");
    }
    let bound = spec.parameter_bound();
    if bound > MAX_PARAMETERS || m.layers > MAX_LAYERS {
        refuse!(
            "model",
            "its sizes give about {bound:.1e} parameters in {} layers, more than any device holds",
            m.layers
        );
    }
    Ok(spec)
}

/// Warns of a tokenizer with far fewer ids than the model's vocabulary: it is hardly the tokenizer that the vocabulary was made for.
fn unused_vocabulary(experiment: &Experiment, data: &DataFacts) -> Option<String> {
    let (vocabulary, ids) = (experiment.model.vocab_size?, data.tokenizer_vocab);
    if vocabulary / UNUSED_VOCABULARY_FACTOR < ids {
        return None;
    }
    let (vocabulary, unused, ids) = (count(vocabulary as u64), count((vocabulary - ids) as u64), count(ids as u64));
    let way_out = if data.weights.is_some() {
        "the weights were trained with a different tokenizer, so their rows stand for different text; set data.tokenizer to theirs"
    } else {
        "set data.tokenizer to the one that the vocabulary belongs to (GPT-2's is {hub: gpt2}), or set model.vocab_size to null to use \
         the tokenizer's"
    };
    Some(format!(
        "the model has a vocabulary of {vocabulary}, but the tokenizer of data.tokenizer produces only {ids} ids, so {unused} rows \
         are never used: {way_out}"
    ))
}

/// The rows that an epoch reads, including those that `data.drop_last` leaves out.
fn epoch_rows(experiment: &Experiment, data: &DataFacts, sequences: usize, notes: &mut Vec<String>) -> Result<u64> {
    let SplitFacts { rows, tokens, .. } = data.train;
    let read = experiment.data.epoch_rows.map_or(rows, |epoch_rows| epoch_rows.min(rows));
    if let Some(epoch_rows) = experiment.data.epoch_rows.filter(|epoch_rows| *epoch_rows >= rows) {
        notes.push(format!("data.epoch_rows: {epoch_rows} has no effect, because data.train has {} rows", count(rows)));
    }
    if sequences as u64 > read {
        let times = sequences as f64 / read.max(1) as f64;
        let (needed, read) = (count(sequences as u64), count(read));
        if experiment.data.drop_last {
            refuse!(
                "data.drop_last",
                "it leaves out rows that do not fill a batch, but an epoch has {read} rows ({} tokens in the source) and batch.sequences \
                 is {needed}; set data.drop_last to false, which reads {times:.3} epochs in each step, or use at most {read} sequences",
                count(tokens)
            );
        }
        notes.push(format!(
            "batch.sequences: each step reads {needed} rows, which are {times:.2} epochs of {read} rows"
        ));
    }
    Ok(read)
}

/// The position from which rows are counted, if the run does not read them from the first one on.
fn data_position(experiment: &Experiment, data: &DataFacts) -> Result<Option<DataPosition>> {
    let Some(position) = experiment.data.position else { return Ok(None) };
    let (row, rows) = (position.row, data.train.rows);
    if row >= rows.max(1) {
        refuse!("data.position.row", "it must be below {rows}, the rows of data.train, got {row}");
    }
    Ok(Some(position))
}

/// Says what happens to rows of the vocabulary that either the weights to start from or the model does not have.
fn vocabulary_note(theirs: usize, ours: usize) -> Option<String> {
    match theirs.cmp(&ours) {
        Ordering::Equal => None,
        Ordering::Less => Some(format!(
            "model.init.from: the weights do not have rows {theirs} to {} of the vocabulary, so these are initialized at random, as \
             in a run that starts from scratch",
            ours - 1
        )),
        Ordering::Greater => Some(format!(
            "model.init.from: rows {ours} to {} of the weights' vocabulary are left out; the tokenizer does not produce them",
            theirs - 1
        )),
    }
}

pub(crate) fn row_length(experiment: &Experiment) -> Result<usize> {
    let length = experiment.data.layout.length();
    if length == 0 {
        refuse!("data.layout", "the length of rows must be at least 1, got 0");
    }
    let context = experiment.model.context_length;
    if length > context {
        refuse!(
            "data.layout",
            "rows of {length} tokens do not fit model.context_length {context}: shorten the layout's length to {context}, or raise \
             the context length"
        );
    }
    Ok(length)
}

/// The global batch and the micro-batch, in sequences.
pub(crate) fn batch_sizes(experiment: &Experiment) -> Result<(usize, usize)> {
    let (sequences, micro_batch) = (experiment.batch.sequences, experiment.batch.micro_batch);
    if sequences == 0 {
        refuse!("batch.sequences", "must be at least 1, got 0");
    }
    if micro_batch == 0 || micro_batch > sequences {
        refuse!("batch.micro_batch", "must be 1 to {sequences}, the sequences of a step, got {micro_batch}");
    }
    // A program lists the micro-batches of its replica.
    let replicas =
        if experiment.parallel.mode == ParallelMode::Single { 1 } else { experiment.parallel.replicas.max(1) };
    let slice = sequences.div_ceil(replicas);
    let count = slice.div_ceil(micro_batch);
    if count > MAX_MICRO_BATCHES {
        refuse!(
            "batch.micro_batch",
            "{slice} sequences / {micro_batch} = {count} micro-batches in a step; at most {MAX_MICRO_BATCHES} can be planned, so use \
             at least {}",
            slice.div_ceil(MAX_MICRO_BATCHES)
        );
    }
    Ok((sequences, micro_batch))
}
