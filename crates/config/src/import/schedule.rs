//! Translates the schedule of the learning rate, and the settings that count steps as shares of a run.

use serde_json::{Value, json};

use super::Trainer;
use super::draft::ExperimentDraft;
use super::settings::{Settings, integer, show};
use runner_spec::diagnostic::list;

pub(super) fn translate_schedule(trainer: Trainer, settings: &mut Settings, draft: &mut ExperimentDraft) {
    let is_constant = settings.take(&["decay_lr"]).is_some_and(|(_, value)| value == Value::Bool(false));
    let kind = settings.take(&["lr_scheduler", "lr_scheduler_type"]);
    let shape = match kind.as_ref().and_then(|(_, value)| value.as_str()) {
        _ if is_constant => None,
        None if kind.is_none() && trainer != Trainer::HuggingFace => Some("cosine"),
        Some("constant" | "constant_with_warmup") => None,
        Some("linear") => Some("linear"),
        Some("cosine") => Some("cosine"),
        _ => {
            if let Some((key, value)) = &kind {
                draft.leave_out(show(key, value), "the decay must be `cosine`, `linear`, `step` or `constant`");
            }
            None
        }
    };
    let length = run_length(settings, draft);
    if trainer == Trainer::Axolotl {
        translate_shares_of_run(length, settings, draft);
    }
    leave_out_warmup_of_epoch(settings, draft);
    let warmup = settings.take_number(&["warmup_iters", "warmup_steps", "lr_warmup_steps"]);
    let end = settings.take_number(&["lr_decay_iters"]);
    let floor = settings.take_number(&["min_lr"]);
    let (warmup, floor) = match trainer {
        Trainer::Litgpt => add_litgpt_schedule(settings, draft, length, warmup, floor),
        Trainer::Axolotl => (warmup.or_else(|| axolotl_warmup(length, draft)), floor),
        _ => (warmup, floor),
    };
    // nanoGPT's warmup is a part of its decay.
    if is_constant && trainer == Trainer::NanoGpt {
        return;
    }
    // A run that ends within its warmup is refused here.
    let warmup = warmup.map(|(key, steps)| match length {
        Some(length) if steps > length => {
            draft.leave_out(show(&key, &json!(steps)), "cut to the length of the run");
            (key, length)
        }
        _ => (key, steps),
    });
    if let Some((key, steps)) = &warmup {
        draft.set("schedule.warmup.steps", integer(*steps), key);
    }
    let Some(shape) = shape else {
        for (key, value) in floor.into_iter().chain(end) {
            draft.leave_out(show(&key, &json!(value)), "the learning rate is constant after the warmup");
        }
        return;
    };
    let path = |key: &str| format!("schedule.decay.{shape}.{key}");
    if shape == "cosine"
        && let Some((key, share)) = settings.take_number(&["cosine_min_lr_ratio"])
    {
        draft.set(&path("final"), share, key);
    }
    if let Some((key, end)) = end {
        let steps = (end - warmup.map_or(0.0, |w| w.1)).max(1.0);
        draft.set(&path("steps"), integer(steps), format!("{key} − warmup"));
    }
    let rate = draft.number("optimizer.adamw.lr").or_else(|| draft.number("optimizer.sgd.lr"));
    match (floor, rate.filter(|rate| *rate > 0.0)) {
        (Some((key, floor)), Some(rate)) => {
            // The text drops the rounding error of the division: 6e-5 / 6e-4 is 0.1.
            let share = format!("{:.12}", floor / rate).parse::<f64>().unwrap_or(floor / rate);
            draft.set(&path("final"), share, format!("{key} / learning rate"));
        }
        (Some((key, floor)), None) => {
            draft.leave_out(
                show(&key, &json!(floor)),
                "`final` is a fraction of the peak learning rate, which the configuration does not give",
            );
        }
        // The schedules of `transformers`, which axolotl uses, end at 0.
        (None, _) if trainer == Trainer::Axolotl => draft.set_default(&path("final"), 0.0, "axolotl's default"),
        (None, _) => {}
    }
}

/// The number of optimizer steps of the run, if the configuration states it.
fn run_length(settings: &Settings, draft: &ExperimentDraft) -> Option<f64> {
    let number = |keys: &[&str]| keys.iter().find_map(|key| settings.get(key)).and_then(Value::as_f64);
    let tokens_of_step = || {
        let context = number(&["train.max_seq_length", "model_config.block_size"])?;
        Some(draft.number("batch.sequences")? * context)
    };
    number(&["max_iters", "max_steps", "train.max_steps"])
        .or_else(|| Some((number(&["train.max_tokens"])? / tokens_of_step()?).floor()))
        .filter(|steps| *steps >= 1.0)
}

/// A number of a configuration, with the name of its setting.
type NamedNumber = Option<(String, f64)>;

/// Adds the defaults of `litgpt pretrain` to the steps of the warmup and the last learning rate. Its other commands have other defaults.
fn add_litgpt_schedule(
    settings: &mut Settings,
    draft: &mut ExperimentDraft,
    length: Option<f64>,
    warmup: NamedNumber,
    floor: NamedNumber,
) -> (NamedNumber, NamedNumber) {
    let default = |key: &str, value: f64| Some((format!("{key} (litgpt's default)"), value));
    let has_no_warmup = settings.take_null("lr_warmup_steps").is_some();
    let has_warmup = has_no_warmup || warmup.is_some() || draft.is_left_out("lr_warmup_fraction");
    let is_pretraining = settings.get("checkpoint_dir").is_none();
    let mut missing = Vec::new();
    let warmup = match length {
        _ if has_warmup => warmup,
        // A run that ends within its warmup is refused here.
        Some(length) if is_pretraining => default("lr_warmup_steps", length.min(2000.0)),
        _ => {
            missing.push("lr_warmup_steps");
            None
        }
    };
    let floor = match floor {
        None if is_pretraining => default("min_lr", 4e-5),
        None => {
            missing.push("min_lr");
            None
        }
        floor => floor,
    };
    if !missing.is_empty() {
        draft.warnings.push(format!(
            "the configuration leaves out {}, and litgpt's default is not applied; check `schedule`",
            list(&missing, "and")
        ));
    }
    (warmup, floor)
}

/// Translates numbers of steps below 1, which are shares of the run's steps in `transformers`, and `warmup_ratio`.
fn translate_shares_of_run(length: Option<f64>, settings: &mut Settings, draft: &mut ExperimentDraft) {
    // A warmup in steps counts before one in shares.
    let is_share = |settings: &Settings, key: &str| {
        settings.get(key).and_then(Value::as_f64).is_some_and(|share| share > 0.0 && share < 1.0)
    };
    if settings.get("warmup_steps").is_some()
        && let Some((key, value)) = settings.take(&["warmup_ratio"])
    {
        draft.leave_out(show(&key, &value), "`warmup_steps` takes precedence");
    }
    for (key, own) in [
        ("warmup_steps", "schedule.warmup.steps"),
        ("warmup_ratio", "schedule.warmup.steps"),
        ("eval_steps", "eval.every"),
        ("save_steps", "checkpoint.every"),
        ("logging_steps", "log.every"),
    ] {
        if key != "warmup_ratio" && !is_share(settings, key) {
            continue;
        }
        let Some((label, share)) = settings.take_number(&[key]) else { continue };
        // axolotl rounds the steps of a ratio down, and `transformers` rounds up.
        let round = if key == "warmup_ratio" { f64::floor } else { f64::ceil };
        let Some(length) = length else {
            // Only the warmup may be a fraction here, too.
            if own == "schedule.warmup.steps" {
                draft.set("schedule.warmup.share", share, label);
                continue;
            }
            let reason = "it is a fraction of the run's steps, and the configuration does not give their number";
            draft.leave_out(show(&label, &json!(share)), reason);
            draft.warnings.push(format!(
                "{} is a fraction of the run's steps, and the configuration does not give their number; set `{own}`",
                show(&label, &json!(share))
            ));
            continue;
        };
        let steps = round(share * length);
        if steps >= 1.0 {
            draft.set(own, integer(steps), format!("{label} · max_steps"));
        } else {
            draft.leave_out(show(&label, &json!(share)), "less than a step");
        }
    }
}

/// The warmup of axolotl where its configuration names none.
fn axolotl_warmup(length: Option<f64>, draft: &mut ExperimentDraft) -> NamedNumber {
    if draft.has("schedule.warmup") || draft.is_left_out("warmup_ratio") || draft.is_left_out("warmup_steps") {
        return None;
    }
    let Some(length) = length else {
        draft.warnings.push(
            "the configuration leaves out the warmup and the number of steps, of which axolotl's default is a fraction \
             (3%, at most 100 steps); set `schedule.warmup.steps`"
                .to_owned(),
        );
        return None;
    };
    let steps = (0.03 * length).floor().min(100.0);
    (steps >= 1.0).then(|| ("axolotl's default: 3% of the steps, at most 100".to_owned(), steps))
}

/// Leaves out litgpt's warmup as a share of an epoch.
fn leave_out_warmup_of_epoch(settings: &mut Settings, draft: &mut ExperimentDraft) {
    let Some((key, share)) = settings.take(&["lr_warmup_fraction"]) else { return };
    draft.leave_out(show(&key, &share), "it is a fraction of an epoch; `schedule.warmup.steps` is a number of steps");
    draft.warnings.push(format!("{} is a fraction of an epoch; set `schedule.warmup.steps`", show(&key, &share)));
}
