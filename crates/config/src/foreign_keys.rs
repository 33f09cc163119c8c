//! The keys of other trainers: nanoGPT, Hugging Face, Lightning and litgpt, torchtitan, llm.c, axolotl. A user who writes one of them is
//! told the key of this program.

/// Spellings of one idea in other trainers, this program's key for it, and what differs. The key is empty where there is no such key; the
/// note then says what there is instead.
struct ForeignKeys {
    spellings: &'static str,
    key: &'static str,
    note: &'static str,
    /// True if a value means the same under this program's key.
    is_direct: bool,
}

const fn same(spellings: &'static str, key: &'static str) -> ForeignKeys {
    ForeignKeys { spellings, key, note: "", is_direct: true }
}

/// Another key whose values mean the same, and what else a user must know.
const fn noted(spellings: &'static str, key: &'static str, note: &'static str) -> ForeignKeys {
    ForeignKeys { spellings, key, note, is_direct: true }
}

/// Another key with values in another form.
const fn differs(spellings: &'static str, key: &'static str, note: &'static str) -> ForeignKeys {
    ForeignKeys { spellings, key, note, is_direct: false }
}

const fn none(spellings: &'static str, note: &'static str) -> ForeignKeys {
    ForeignKeys { spellings, key: "", note, is_direct: false }
}

/// Each spelling occurs once, in lower case with underscores.
const FOREIGN_KEYS: &[ForeignKeys] = &[
    // The model.
    same("n_layer n_layers num_layers num_hidden_layers num_blocks depth", "model.layers"),
    same("n_head n_heads num_heads num_attention_heads", "model.heads"),
    same("n_kv_heads n_kv_head num_kv_heads num_key_value_heads n_query_groups num_query_groups", "model.kv_heads"),
    same("n_embd n_embed d_embed embed_dim embedding_dim emb_dim hidden_size hidden_dim dim channels", "model.d_model"),
    same("intermediate_size n_inner ffn_dim ffn_hidden_size d_hidden mlp_hidden_dim dim_feedforward", "model.d_ff"),
    differs("ffn_dim_multiplier multiple_of", "model.d_ff", "it is the width itself"),
    same(
        "block_size seq_len seq_length sequence_length sequence_len max_seq_len max_seq_length max_sequence_length \
         max_position_embeddings n_positions n_ctx context_size ctx_len context_window",
        "model.context_length",
    ),
    same("padded_vocab_size n_vocab", "model.vocab_size"),
    same(
        "pad_vocab_size_to pad_vocab_size_multiple_of padding_multiple make_vocab_size_divisible_by",
        "model.pad_vocab_to",
    ),
    same(
        "attn_dropout attention_dropout resid_dropout residual_dropout hidden_dropout embd_pdrop attn_pdrop resid_pdrop dropout_p \
         dropout_rate",
        "model.dropout",
    ),
    same("layer_norm_epsilon layer_norm_eps rms_norm_eps layernorm_eps", "model.norm_eps"),
    same("rope_base rope_freq_base rotary_base", "model.rope_theta"),
    same("tie_word_embeddings tie_weights weight_tying share_embeddings", "model.tie_embeddings"),
    differs("activation_function hidden_act act_fn nonlinearity", "model.activation", "it is `gelu` or `relu`"),
    differs("model_type architecture arch architectures", "model.family", "it is `gpt2` or `llama`"),
    differs(
        "model_name base_model model_size flavor",
        "model.preset",
        "weights to start from are `model.init: {from: FOLDER}`",
    ),
    differs(
        "init_from pretrained checkpoint_dir initial_checkpoint initial_checkpoint_dir model_name_or_path resume_from_checkpoint init_ckpt",
        "model.init.from",
        "it starts from weights; `runner resume RUN` and `runner fork RUN` go on from a run of this program",
    ),
    none(
        "bias use_bias qkv_bias attention_bias mlp_bias",
        "GPT-2 has biases and Llama has none: choose `model.family`",
    ),
    none(
        "norm_type norm_class normalization",
        "GPT-2 has LayerNorm and Llama RMSNorm: choose `model.family`; `model.norm` is `pre` or `post`",
    ),
    // The batch.
    differs(
        "micro_batch_size per_device_train_batch_size train_micro_batch_size_per_gpu device_batch_size local_batch_size \
         per_gpu_train_batch_size mbs",
        "batch.micro_batch",
        "`batch.sequences` is the batch of one optimizer step, of all ranks together",
    ),
    differs(
        "batch_size train_batch_size",
        "batch.micro_batch",
        "`batch.sequences` is the batch of one optimizer step: batch_size · accumulation steps · ranks",
    ),
    noted(
        "global_batch_size effective_batch_size gbs",
        "batch.sequences",
        "it counts the sequences of all ranks and all accumulation steps",
    ),
    noted(
        "total_batch_size tokens_per_batch batch_tokens",
        "batch.tokens",
        "it counts the tokens of one optimizer step, of all ranks together",
    ),
    none(
        "gradient_accumulation_steps gradient_accumulation_iters grad_accum_steps grad_accumulation_steps accumulate_grad_batches \
         gradient_accumulation accumulation_steps grad_accum",
        "accumulation follows from the batch: `batch.sequences` = `batch.micro_batch` · accumulation steps · replicas",
    ),
    none(
        "eval_batch_size per_device_eval_batch_size val_batch_size",
        "evaluation uses `batch.micro_batch`; its result does not depend on it",
    ),
    // How long to train.
    same(
        "max_iters max_steps num_iterations num_iters train_steps training_steps num_steps total_steps num_train_steps iterations \
         n_steps",
        "train.steps",
    ),
    same("num_epochs num_train_epochs max_epochs n_epochs", "train.epochs"),
    same("train.max_tokens train_tokens num_tokens total_tokens", "train.tokens"),
    same(
        "grad_clip gradient_clip gradient_clip_val max_grad_norm max_norm clip_grad clip_grad_norm grad_clip_norm gradient_clipping \
         clip_value",
        "train.clip_norm",
    ),
    differs(
        "gradient_checkpointing activation_checkpointing activation_checkpoint grad_checkpointing use_recompute",
        "train.recompute",
        "it is `none`, `attention` or `block`; `block` keeps only the inputs of layers",
    ),
    // The optimizer.
    same("learning_rate max_lr peak_lr base_lr max_learning_rate", "optimizer.adamw.lr"),
    same("wd", "optimizer.adamw.weight_decay"),
    differs(
        "beta1 beta2 adam_beta1 adam_beta2 beta_1 beta_2",
        "optimizer.adamw.betas",
        "it is a list of both: `[0.9, 0.95]`",
    ),
    same("adam_eps adam_epsilon epsilon", "optimizer.adamw.eps"),
    differs(
        "optim optimizer_type optimizer_name",
        "optimizer",
        "write `optimizer: {adamw: {lr: 6e-4}}` or `{sgd: {lr: 0.1}}`",
    ),
    none("use_fused fused foreach", "updates are always fused: leave it out"),
    // The schedule.
    same(
        "warmup_iters warmup_steps num_warmup_steps lr_warmup_steps lr_warmup_iters warmup_iterations",
        "schedule.warmup.steps",
    ),
    differs(
        "warmup_ratio warmup_fraction warmup_frac",
        "schedule.warmup.steps",
        "it is a number of steps: ratio · `train.steps`",
    ),
    differs(
        "warmup_init_lr start_lr",
        "schedule.warmup.from",
        "it is a share of the peak learning rate: start_lr / lr",
    ),
    differs(
        "min_lr lr_min learning_rate_min min_learning_rate eta_min final_lr",
        "schedule.decay.cosine.final",
        "it is a share of the peak learning rate: min_lr / learning_rate",
    ),
    differs(
        "final_learning_rate_fraction learning_rate_decay_frac min_lr_ratio min_lr_factor cosine_min_lr_ratio lr_min_ratio",
        "schedule.decay.cosine.final",
        "it is a share of the peak learning rate too",
    ),
    differs(
        "lr_decay_iters lr_decay_steps decay_steps lr_max_steps t_max max_decay_steps",
        "schedule.decay.cosine.steps",
        "it counts from the end of the warmup: lr_decay_iters − warmup steps",
    ),
    differs(
        "decay_lr lr_scheduler lr_scheduler_type lr_schedule lr_decay_style lr_decay_type scheduler",
        "schedule.decay",
        "write `schedule: {decay: {cosine: {}}}`, or `linear`, `step`, `constant`",
    ),
    // Data.
    differs(
        "dataset dataset_name dataset_path train_data_path",
        "data.train",
        "write `data: {train: {text: {files: [input.txt]}}}`, or `hub`, `jsonl`, `parquet`, `tokens`",
    ),
    differs(
        "datasets data_path data_dir train_files input_bin train_data train_bin input_file",
        "data.train",
        "for example `data: {train: {tokens: {files: [train.bin]}}}`",
    ),
    differs(
        "val_files input_val_bin val_data val_bin val_dataset eval_dataset valid_data",
        "data.validation",
        "it takes a source as `data.train` does, or `{fraction: 0.1}`",
    ),
    differs(
        "val_split val_split_fraction val_set_size validation_split test_size",
        "data.validation",
        "write `validation: {fraction: 0.1}`",
    ),
    differs(
        "tokenizer_path tokenizer_name tokenizer_file tokenizer_type tokenizer_dir",
        "data.tokenizer",
        "write `tokenizer: {file: tokenizer.json}`, or `gpt2`, `hub`, `bpe`, `bytes`, `chars`",
    ),
    differs("sample_packing packing pack_sequences", "data.layout.packed", "packing is the default"),
    none(
        "num_workers dataloader_num_workers prefetch_factor pin_memory streaming",
        "data are tokenized once and mapped into memory; no workers are needed",
    ),
    // Arithmetic.
    differs(
        "dtype torch_dtype amp autocast mixed_precision mixed_precision_param param_dtype compute_dtype training_dtype",
        "precision",
        "it is `fp32`, `tf32` or `bf16`",
    ),
    none("bf16 bfloat16", "write `precision: bf16`"),
    none("tf32 allow_tf32", "write `precision: tf32`"),
    none("fp16 float16", "there is no fp16, which needs loss scaling: write `precision: bf16`"),
    none("compile torch_compile use_compile jit", "there is nothing to compile: kernels are part of the program"),
    none(
        "flash_attention flash attn_implementation use_flash_attn sdpa attention_backend",
        "attention is always computed in tiles, as flash attention does",
    ),
    // Layout.
    differs("accelerator backend device_type", "device", "it is `auto`, `cpu` or `cuda`"),
    differs(
        "gpus num_gpus n_gpu nproc_per_node num_devices world_size data_parallel_replicate_degree data_parallel_size dp_size dp_replicate",
        "parallel.replicas",
        "write `parallel: {mode: ddp, replicas: N}`",
    ),
    differs(
        "devices num_nodes",
        "parallel.devices",
        "it lists the device of each rank: `[cuda:0, cuda:1]`; replicas are `parallel.replicas`",
    ),
    differs(
        "strategy distributed_strategy distributed_backend",
        "parallel.mode",
        "it is `single`, `dp`, `ddp` or `pipeline`",
    ),
    differs(
        "pipeline_parallel_degree pipeline_parallel_size pp_size pp_degree pipeline_stages pp",
        "parallel.pipeline.stages",
        "write `parallel: {mode: pipeline, pipeline: {stages: N}}`",
    ),
    same("pipeline_parallel_schedule pp_schedule", "parallel.pipeline.schedule"),
    same("pipeline_parallel_microbatches n_microbatches num_microbatches", "parallel.pipeline.microbatches"),
    same("bucket_cap_mb bucket_size", "parallel.bucket_mb"),
    none(
        "fsdp fsdp_config deepspeed zero_stage zero_optimization tensor_parallel_degree tensor_parallel_size tp_size tp \
         data_parallel_shard_degree dp_shard context_parallel_degree expert_parallel_degree sharding_strategy",
        "weights are not sharded within a layer; `parallel.mode` is `single`, `dp`, `ddp` or `pipeline` (a model larger than a device: `pipeline`)",
    ),
    // Evaluation, checkpoints, logs.
    noted(
        "eval_interval eval_steps eval_freq val_loss_every val_check_interval val_every eval.interval",
        "eval.every",
        "it counts optimizer steps",
    ),
    noted(
        "eval_iters limit_val_batches eval_max_iters val_max_steps max_eval_batches val_steps eval.max_iters",
        "eval.loss.batches",
        "it counts micro-batches",
    ),
    same("initial_validation val_at_start", "eval.at_start"),
    none("final_validation", "an evaluation always follows the last step"),
    none(
        "evaluation_strategy eval_strategy save_strategy",
        "evaluations and checkpoints count optimizer steps: `eval.every`, `checkpoint.every`",
    ),
    differs("hellaswag_eval run_hellaswag", "eval.hellaswag", "write `hellaswag: {file: hellaswag_val.jsonl}`"),
    differs(
        "sample_every sample_interval num_samples genlen",
        "eval.samples",
        "texts are continued at each evaluation: write `samples: {prompts: [\"Once\"]}`",
    ),
    same("max_new_tokens max_gen_len", "eval.samples.max_tokens"),
    noted(
        "save_interval save_steps save_every checkpoint_every checkpoint_interval ckpt_interval checkpoint_freq",
        "checkpoint.every",
        "it counts optimizer steps",
    ),
    same("save_total_limit save_top_k keep_last_k keep_latest_k", "checkpoint.keep"),
    none(
        "always_save_checkpoint save_best load_best_model_at_end",
        "the best checkpoint by validation loss is always kept",
    ),
    same("log_interval logging_steps log_freq log_every_n_steps log_every print_every", "log.every"),
    none(
        "wandb wandb_log wandb_project wandb_run_name wandb_entity report_to logger logger_name tensorboard",
        "metrics are always recorded; `runner export-metrics` writes them for TensorBoard, which W&B reads, and as CSV and Parquet",
    ),
    none("out_dir output_dir log_dir save_dir dump_folder logging_dir", "runs are kept in `runs/`, or in `--runs DIR`"),
    noted("run_name exp_name experiment_name project_name", "name", "it names the run's folder"),
    same("random_seed manual_seed rng_seed seed_everything", "seed"),
    none("deterministic", "runs are always deterministic: the same plan gives the same bits"),
];

/// Values of other trainers: this program's key, spellings, and what to write.
const FOREIGN_VALUES: &[(&str, &str, &str)] = &[
    ("model.preset", "gpt2 gpt2-small gpt2-117m", "write `gpt2-124m`"),
    ("model.preset", "gpt2-medium gpt2-345m gpt2-350m", "write `gpt2-355m`"),
    ("model.preset", "gpt2-large", "write `gpt2-774m`"),
    ("model.preset", "gpt2-xl gpt2-1.5b", "write `gpt2-1558m`"),
    ("model.family", "gpt nanogpt gpt-2", "write `gpt2`"),
    ("model.family", "llama2 llama3 llama-2 llama-3", "write `llama`"),
    ("model.activation", "gelu_new gelu_tanh gelu_pytorch_tanh gelu_fast", "write `gelu`, which is the tanh form"),
    ("model.activation", "silu swish swiglu", "SwiGLU is the activation of `family: llama`"),
    ("precision", "fp16 float16 half 16 16-mixed 16-true", "there is no fp16, which needs loss scaling; write `bf16`"),
    ("precision", "bfloat16 bf16-mixed bf16-true", "write `bf16`"),
    ("precision", "float32 f32 32 32-true float", "write `fp32`"),
    ("device", "gpu", "write `cuda`"),
    ("device", "mps rocm xpu tpu", "it can be `cpu` or `cuda`"),
    (
        "parallel.mode",
        "fsdp fsdp2 hsdp zero zero1 zero2 zero3 deepspeed tp tensor tensor_parallel sp cp ep",
        "weights are not sharded within a layer: a model larger than one device is trained with `pipeline`, others with `ddp`",
    ),
    ("parallel.mode", "pp pipeline_parallel", "write `pipeline`"),
    ("parallel.mode", "dist distributed", "write `ddp`"),
];

/// The answer to a key of another trainer.
pub(crate) struct Answer {
    /// The key of this program that is meant, if there is one.
    pub(crate) own: Option<&'static str>,
    /// Says what differs, or what there is instead. Empty if nothing differs.
    note: &'static str,
    /// True if a value means the same under `own`.
    pub(crate) is_direct: bool,
}

impl Answer {
    /// Says what to write instead of `key`; `own` is this program's key in the section at hand.
    pub(crate) fn help(&self, key: &str, own: Option<&str>) -> String {
        match (own, self.note) {
            (None, note) => note.to_owned(),
            (Some(own), "") => format!("`{key}` is `{own}` here"),
            (Some(own), note) => format!("`{key}` is `{own}` here; {note}"),
        }
    }
}

/// The answer to `key` in the section `path`, or None if no other trainer has this key.
pub(crate) fn answer_key(path: &str, key: &str) -> Option<Answer> {
    let plain = key.to_ascii_lowercase().replace('-', "_");
    let full = format!("{path}.{plain}");
    let find = |wanted: &str| {
        FOREIGN_KEYS.iter().find(|keys| keys.spellings.split_whitespace().any(|spelling| spelling == wanted))
    };
    let found = find(&full).or_else(|| find(&plain))?;
    Some(Answer { own: Some(found.key).filter(|key| !key.is_empty()), note: found.note, is_direct: found.is_direct })
}

/// Says what to write instead of `value` for this program's key `path`; None if no other trainer has this value.
pub(crate) fn answer_value(path: &str, value: &str) -> Option<&'static str> {
    let plain = value.to_ascii_lowercase();
    let found = FOREIGN_VALUES
        .iter()
        .find(|(key, spellings, _)| *key == path && spellings.split_whitespace().any(|spelling| spelling == plain))?;
    Some(found.2)
}

#[cfg(test)]
mod tests;
