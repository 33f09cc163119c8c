//! Spellings of other trainers, and the answers that users get.

use std::collections::HashSet;

use super::*;
use crate::shape::sections_by_key;
use crate::tests::diagnostics::{render_mistakes, with};

#[test]
fn every_spelling_is_unique_and_leads_to_a_key_of_the_schema() {
    let homes = sections_by_key(crate::shape::root());
    let mut seen = HashSet::new();
    for Counterpart { names, key, note, differs } in &FOREIGN_NAMES.keys {
        assert!(key.is_some() || !note.is_empty() && !differs, "{names}");
        for spelling in names.split_whitespace() {
            assert!(seen.insert(spelling), "{spelling} stands twice");
            assert!(!spelling.contains('-'), "{spelling}");
        }
        let Some((parent, last)) = key.as_ref().and_then(|key| key.rsplit_once('.')) else { continue };
        assert!(homes.get(last).is_some_and(|homes| homes.iter().any(|home| home == parent)), "{parent}.{last}");
    }
    assert!(seen.len() >= 300, "{}", seen.len());
}

/// The sections in which users write keys of other trainers.
const SECTIONS: [&str; 4] = ["", "model", "train", "data"];

#[test]
fn every_spelling_is_answered_once_in_every_section_and_without_a_list_of_keys() {
    for Counterpart { names, key, .. } in &FOREIGN_NAMES.keys {
        for spelling in names.split_whitespace().filter(|spelling| !spelling.contains('.')) {
            let answered: Vec<String> = SECTIONS
                .iter()
                .filter(|section| {
                    sections_by_key(crate::shape::root())
                        .get(spelling)
                        .is_none_or(|homes| !homes.iter().any(|home| home == *section))
                })
                .filter_map(|section| find_counterpart(section, spelling))
                .map(|counterpart| counterpart.help(spelling, counterpart.key.as_deref()))
                .collect();
            assert!(!answered.is_empty(), "{spelling}");
            for help in answered {
                assert!(key.as_ref().is_none_or(|key| help.contains(&format!("is `{key}` here"))), "{help}");
                assert!(!help.contains("the keys here are"), "{help}");
            }
        }
    }
}

/// 120 pairs of a spelling and this program's key, as the documentation of the other trainers has them. Written by hand: not from the table.
const EXPECTED: &str = "
    n_layer model.layers | n_head model.heads | n_embd model.d_model | block_size model.context_length | dropout_rate model.dropout
    batch_size batch.micro_batch | gradient_accumulation_steps - | max_iters train.steps | learning_rate optimizer.adamw.lr
    beta1 optimizer.adamw.betas | beta2 optimizer.adamw.betas | grad_clip train.clip_norm
    warmup_iters schedule.warmup.steps | lr_decay_iters schedule.decay.cosine.steps | min_lr schedule.decay.cosine.final
    decay_lr schedule.decay | eval_interval eval.every | eval_iters eval.loss.rows | log_interval log.every | always_save_checkpoint -
    init_from model.init.from | wandb_log - | wandb_project - | wandb_run_name - | dataset data.train | out_dir - | compile -
    backend device | dtype precision | bias model.biases |
    num_hidden_layers model.layers | num_attention_heads model.heads | num_key_value_heads model.kv_heads | hidden_size model.d_model
    intermediate_size model.d_ff | n_inner model.d_ff | n_positions model.context_length | max_position_embeddings model.context_length
    rms_norm_eps model.norm_eps | layer_norm_epsilon model.norm_eps | tie_word_embeddings model.tie_embeddings | hidden_act model.activation
    activation_function model.activation | model_type model.family | torch_dtype precision | attn_implementation - | resid_pdrop model.dropout
    embd_pdrop model.dropout | attn_pdrop model.dropout | attention_dropout model.dropout | per_device_train_batch_size batch.micro_batch
    num_train_epochs train.epochs | max_steps train.steps | warmup_ratio schedule.warmup.share | warmup_steps schedule.warmup.steps
    lr_scheduler_type schedule.decay | max_grad_norm train.clip_norm | adam_beta1 optimizer.adamw.betas | adam_beta2 optimizer.adamw.betas
    adam_epsilon optimizer.adamw.eps | logging_steps log.every | save_steps checkpoint.every | save_total_limit checkpoint.keep
    eval_steps eval.every | report_to - | output_dir - | run_name name | dataloader_num_workers - | gradient_checkpointing train.recompute
    load_best_model_at_end - | per_device_eval_batch_size - | bf16 - | fp16 - | tf32 - | deepspeed - | fsdp - | optim optimizer
    eval_strategy - |
    micro_batch_size batch.micro_batch | global_batch_size batch.sequences | max_epochs train.epochs | gradient_clip_val train.clip_norm
    accumulate_grad_batches - | n_query_groups model.kv_heads | padded_vocab_size model.vocab_size | padding_multiple model.pad_vocab_to
    rope_base model.rope_theta | checkpoint_dir model.init.from | save_interval checkpoint.every | max_seq_length model.context_length
    log_every_n_steps log.every | val_check_interval eval.every | limit_val_batches eval.loss.rows | accelerator device | strategy parallel.mode
    num_nodes parallel.devices | devices parallel.devices | seed_everything seed | max_new_tokens eval.samples.max_tokens | num_workers - |
    dim model.d_model | n_layers model.layers | n_heads model.heads | n_kv_heads model.kv_heads | ffn_dim_multiplier model.d_ff
    local_batch_size batch.micro_batch | seq_len model.context_length | max_norm train.clip_norm | flavor model.preset
    data_parallel_replicate_degree parallel.replicas | data_parallel_shard_degree - | tensor_parallel_degree - | context_parallel_degree -
    pipeline_parallel_degree parallel.pipeline.stages | pipeline_parallel_schedule parallel.pipeline.schedule | dump_folder -
    mixed_precision_param precision | min_lr_factor schedule.decay.cosine.final | decay_steps schedule.decay.cosine.steps | log_freq log.every
    keep_latest_k checkpoint.keep | activation_checkpoint train.recompute |
    input_bin data.train | input_val_bin data.validation | total_batch_size batch.tokens | num_iterations train.steps
    learning_rate_decay_frac schedule.decay.cosine.final | val_loss_every eval.every | val_max_steps eval.loss.rows | sample_every eval.samples.every
    genlen eval.samples | zero_stage - |
    sequence_len model.context_length | sample_packing data.layout.packed | num_epochs train.epochs | val_set_size data.validation
    T_0 schedule.decay.cosine.steps | T_mult schedule.decay.cosine.period_factor | T_max schedule.decay.cosine.steps
    base_model model.preset | flash_attention - | datasets data.train | lr_scheduler schedule.decay | channels model.d_model
";

#[test]
fn keys_of_nanogpt_hugging_face_litgpt_torchtitan_llm_c_and_axolotl_are_known() {
    let mut count = 0;
    for pair in EXPECTED.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().chunks(2) {
        let [spelling, own] = pair else { panic!("{pair:?}") };
        let counterpart = find_counterpart("", spelling).unwrap_or_else(|| panic!("unknown: {spelling}"));
        assert_eq!(counterpart.key.as_deref().unwrap_or("-"), *own, "{spelling}");
        count += 1;
    }
    assert!(count >= 120, "{count}");
}

#[test]
fn a_file_of_nanogpt_keys_has_one_hint_for_each_mistake() {
    let text = "model: {n_layer: 4, n_head: 4, n_embd: 128, block_size: 128}\ndata:\n  train: {text: {files: [input.txt]}}\n\
                batch: {batch_size: 16, gradient_accumulation_steps: 2}\ntrain: {max_iters: 80}\nmin_lr: 1e-4\n";
    insta::assert_snapshot!(render_mistakes(text, &[], &[]));
}

#[test]
fn values_of_other_trainers_are_answered() {
    for (line, answer) in [
        ("model: {preset: gpt2}\n", "write `gpt2-124m`"),
        ("parallel: {mode: fsdp, replicas: 2}\n", "write `ddp`, and `parallel.shard: parameters` for fsdp"),
        ("parallel: {mode: tp}\n", "weights are not sharded within a layer"),
        ("precision: fp16\n", "write `bf16`"),
        ("device: gpu\n", "write `cuda`"),
    ] {
        let text = if line.starts_with("model") {
            render_mistakes(&format!("{line}data:\n  train: {{text: {{files: [input.txt]}}}}\n"), &[], &[])
        } else {
            render_mistakes(&with(line), &[], &[])
        };
        assert!(text.contains(answer), "{text}");
        assert_eq!(text.matches(" = help").count(), 1, "{text}");
    }
}

#[test]
fn a_sweep_file_is_answered_with_its_command() {
    let text = render_mistakes("version: 1\nsweep: {base: exp.yaml, grid: {seed: [1, 2]}}\n", &[], &[]);
    assert!(text.contains("this is a sweep file: `runner sweep FILE`") && text.contains("1 mistake;"), "{text}");
}

#[test]
fn prefers_the_current_section() {
    for (line, own) in [
        ("optimizer: {sgd: {lr: 1, learning_rate: 1}}\n", "`optimizer.sgd.lr`"),
        ("schedule: {decay: {linear: {min_lr: 1}}}\n", "`schedule.decay.linear.final`"),
    ] {
        let text = render_mistakes(&with(line), &[], &[]);
        assert!(text.contains(own), "{text}");
    }
}
