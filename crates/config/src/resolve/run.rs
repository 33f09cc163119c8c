//! The sections `train`, `optimizer`, `schedule` and `eval`.

use crate::resolve::resolver::Resolver;
use runner_spec::diagnostic::{KeyMistake, short};
use runner_spec::experiment::{
    ChoiceText, Cooldown, Eval, EvalLoss, HELLASWAG, HubChoice, Log, Mlflow, Model, Optimizer, Precision, Samples,
    Schedule, ScheduleLength, ScheduleStart, Task, Train, WeightInit, task_key,
};
use runner_spec::format::{choice_name, counted};
use runner_spec::measure::is_task_name;
use runner_spec::model::parameters;
use runner_spec::schedule::{Decay, DecayLength};
use runner_template::RecordTemplate;

const DEFAULT_STEPS: u64 = 1000;

impl Resolver<'_> {
    /// Checks the optimizer, and the groups of parameters against the model's names.
    pub(crate) fn optimizer(&mut self, optimizer: &Optimizer, train: Option<&Train>, model: Option<&Model>) {
        self.key_mistakes(optimizer.description().mistakes(&format!("optimizer.{}", optimizer.name())));
        let is_decayed = self.given("optimizer.muon.weight_decay")
            || train.is_some_and(|train| train.groups.iter().any(|group| group.weight_decay.is_some()));
        if matches!(optimizer, Optimizer::Muon(muon) if muon.cautious_decay) && !is_decayed {
            self.error(
                &["optimizer.muon.cautious_decay"],
                "`cautious_decay: true` has no effect without a `weight_decay`",
                "set `optimizer.muon.weight_decay`, or delete `cautious_decay`",
            );
        }
        if let (Some(train), Some(model)) = (train, model) {
            // The names do not depend on the size of the vocabulary.
            let spec = model.spec(model.vocab_size.unwrap_or(1));
            if !train.groups.is_empty() {
                self.key_mistakes(optimizer.group_mistakes("train.groups", &train.groups, &parameters(&spec)));
            }
            if let (Some(_), Some(WeightInit::From(_))) = (train.transfer, &model.init) {
                let message = "the initial weights of a transfer are drawn, and these are read";
                let help = "delete one of the two keys; `train.groups` scales learning rates only";
                self.error(&["train.transfer", "model.init.from"], message, help);
            }
            if let Some(transfer) = train.transfer {
                self.key_mistakes(transfer.mistakes("train.transfer", &spec, optimizer));
            }
        }
    }

    /// Reports mistakes that a description of what the file names has found.
    pub(crate) fn key_mistakes(&mut self, mistakes: Vec<KeyMistake>) {
        for KeyMistake { keys, message, help } in mistakes {
            self.error(&keys.iter().map(String::as_str).collect::<Vec<_>>(), message, help);
        }
    }

    /// Reports `master_weights: false` under a precision other than bf16, where all weights are 32-bit.
    pub(crate) fn master_weights(&mut self, precision: Precision, master_weights: bool) {
        if master_weights || precision == Precision::Bf16 {
            return;
        }
        let name = choice_name(&precision);
        self.error(
            &["master_weights", "precision"],
            format!(
                "`master_weights: false` needs `precision: bf16`, got `precision: {name}`, whose weights are 32-bit"
            ),
            "delete it, or choose `precision: bf16`",
        );
    }

    /// Gives `schedule.start: fork` its step, and a warmup without a length no steps. Reports a warmup longer than the run, and a decay in
    /// steps of unknown length.
    pub(crate) fn schedule(&mut self, mut schedule: Schedule, train: Option<&Train>) -> Schedule {
        if let (ScheduleStart::Fork, Some(step)) = (schedule.start, self.options.fork_step) {
            schedule.start = ScheduleStart::At(ScheduleLength::Steps(step));
        }
        if schedule.warmup.length.is_none() && schedule.warmup.from.is_some() {
            self.error(
                &["schedule.warmup.from"],
                "`schedule.warmup.from` has no effect without the length of the warmup",
                "add `steps`, `tokens` or `share`, or delete `from`",
            );
        }
        let length = schedule.warmup.length();
        schedule.warmup.length = Some(length);
        let steps = train.and_then(|t| t.steps);
        // The plan checks lengths in tokens.
        let in_steps = |length: ScheduleLength| length.known_steps(steps);
        let known_warmup = in_steps(length);
        let warmup = known_warmup.unwrap_or(0);
        let start = schedule.start_step(steps, warmup, in_steps);
        if let Err((message, help)) = &start {
            let warmup_key = format!("schedule.warmup.{}", length.key());
            self.error(&["schedule.start", &warmup_key, "train.steps"], message, help);
        } else if let Some(steps) = steps.filter(|steps| warmup > *steps) {
            let default = if self.given("train.steps") { "" } else { " (the default)" };
            self.error(
                &["schedule.warmup.steps", "train.steps"],
                format!("the warmup is longer than the run: {warmup} steps, and the run has {steps}{default}"),
                format!("make `schedule.warmup.steps` at most {steps}, or `train.steps` at least {warmup}"),
            );
        }
        self.key_mistakes(schedule.decay.mistakes());
        if let (Decay::InverseSqrt(decay), Some(warmup)) = (&schedule.decay, known_warmup)
            && let Some((message, help)) = decay.mistake(warmup, in_steps)
        {
            let given = schedule.decay.length().map(|given| given.key);
            let keys = [given.as_deref(), Some("schedule.decay.inverse_sqrt"), Some("schedule.warmup")];
            self.error(&keys.into_iter().flatten().collect::<Vec<_>>(), message, help);
        }
        let decay_start = start.ok().flatten().zip(known_warmup).map(|(start, warmup)| start.saturating_add(warmup));
        if let Some(decay_start) = decay_start
            && let Err((key, message)) = schedule.decay.clone().placed(decay_start, steps.unwrap_or(u64::MAX), in_steps)
        {
            let help = "give the points in their order, after the warmup and within the run; they count from the start of the run";
            self.error(&[&key], format!("`{key}` {message}"), help);
        }
        if let Some(cooldown) = &schedule.cooldown {
            self.cooldown(cooldown, &schedule, steps, known_warmup, decay_start);
        }
        schedule
    }

    /// Reports a cooldown without a length or without a decay that it can be the length of, one that is longer than the run after its warmup, and
    /// decays that overlap.
    fn cooldown(
        &mut self,
        cooldown: &Cooldown,
        schedule: &Schedule,
        steps: Option<u64>,
        warmup: Option<u64>,
        decay_start: Option<u64>,
    ) {
        let Some(cooldown_length) = cooldown.length else {
            let message = "`schedule.cooldown` needs `steps`, `tokens` or `share`, the length of the decay";
            return self.error(&["schedule.cooldown"], message, "write `cooldown: {share: 0.2}`");
        };
        if schedule.decay.fall().is_none() {
            let name = schedule.decay.name();
            self.error(
                &["schedule.cooldown", "schedule.decay"],
                format!("`schedule.cooldown` is the length of a decay, which `decay: {name}` does not have"),
                "write `decay: {linear: {final: 0}}`, or delete `cooldown`",
            );
            return;
        }
        if let Some(DecayLength { key, .. }) = schedule.decay.length() {
            self.error(
                &["schedule.cooldown", &key],
                format!("`schedule.cooldown` and `{key}` both give the length of the decay"),
                "delete one of them",
            );
        }
        let (Some(steps), Some(length)) = (steps, cooldown_length.known_steps(steps)) else { return };
        let most = steps.saturating_sub(warmup.unwrap_or(0));
        if length > most {
            self.error(
                &["schedule.cooldown", "schedule.warmup", "train.steps"],
                format!(
                    "the cooldown is longer than the run after its warmup: {length} steps, and the run has {most} of {steps} left"
                ),
                "make the cooldown or the warmup shorter, or the run longer",
            );
        } else if let Some(decay_start) = decay_start
            && let Err((key, message)) =
                cooldown.decay_starts(length, decay_start, steps, |point| point.known_steps(Some(steps)))
        {
            let help = format!(
                "decays of {} must not overlap; the first starts after the warmup, and the last ends with the run",
                counted(length, "step")
            );
            self.error(&[&key], format!("`{key}` {message}"), help);
        }
    }

    /// `has_validation` is `None` after a mistake in the data.
    pub(crate) fn eval(&mut self, mut eval: Eval, has_validation: Option<bool>) -> Option<Eval> {
        if (eval.loss.is_some() || self.given("eval.loss")) && has_validation == Some(false) {
            self.error(
                &["eval.loss", "data.validation"],
                "`eval.loss` needs validation data, but `data.validation` is null",
                "add `validation: {fraction: 0.1}` or a separate source under `data`, or write `loss: null`",
            );
        }
        if eval.loss.is_none() && has_validation != Some(false) && !self.given_as_null("eval.loss") {
            eval.loss = Some(EvalLoss::default());
        }
        let temperature = eval.samples.as_ref().map(|samples| samples.temperature);
        if let Some((temperature, help)) = temperature.and_then(|t| Some((t, Samples::temperature_problem(t)?))) {
            let key = "eval.samples.temperature";
            self.error(&[key], format!("`{key}` must be 0 or at least 1e-6, got {temperature:e}"), help);
        }
        if eval.tasks.as_ref().is_some_and(|tasks| tasks.contains_key(HELLASWAG)) {
            let (key, help) = (task_key(HELLASWAG), "move it to `eval.hellaswag`");
            return self.refuse(&["eval.tasks.hellaswag"], format!("the task `{HELLASWAG}` is `{key}`"), help);
        }
        let mut resolved = Some(());
        for (name, task) in eval.tasks_mut() {
            resolved = self.task(name, task).and(resolved);
        }
        resolved?;
        if let Some(test) = &mut eval.test {
            self.source(test, "eval.test")?;
        } else if eval.test_rows.is_some() {
            let message = "`eval.test_rows` is set, but `eval.test` names no data";
            self.error(&["eval.test_rows"], message, "delete it, or add `test:` under `eval`");
        }
        Some(eval)
    }

    /// Reports an invalid address, and fills in the name of the experiment on the server. `name` is that of the run's experiment.
    pub(crate) fn log(&mut self, mut log: Log, name: Option<&str>) -> Option<Log> {
        let Some(mlflow) = &mut log.mlflow else { return Some(log) };
        if let Some(problem) = Mlflow::uri_problem(&mlflow.uri) {
            let help = "give the server's address, such as `http://localhost:5000`, and its credentials in MLFLOW_TRACKING_TOKEN, or \
                        in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD";
            return self.refuse(&["log.mlflow.uri"], format!("`log.mlflow.uri` {problem}"), help);
        }
        let experiment = mlflow.experiment.get_or_insert_with(|| name.unwrap_or_default().to_owned());
        if experiment.trim().is_empty() || experiment.chars().any(char::is_control) {
            return self.refuse(
                &["log.mlflow.experiment"],
                "`log.mlflow.experiment` must be one line of text",
                "give a name, or delete the key",
            );
        }
        Some(log)
    }

    /// Resolves the task `name`.
    fn task(&mut self, name: &str, task: &mut Task) -> Option<()> {
        let key = task_key(name);
        let of = |end: &str| format!("{key}.{end}");
        if name != HELLASWAG && (!is_task_name(name) || name == "val") {
            return self.refuse(
                &[&key, "eval.tasks"],
                format!("`{}` cannot be the name of a task", short(name)),
                "use letters, digits and `_`, and begin with a letter; `hellaswag` is `eval.hellaswag`",
            );
        }
        if task.file.is_none() && task.builtin.is_none() && task.hub.is_none() {
            return self.refuse(
                &[&key, &of("file"), &of("builtin"), &of("hub")],
                format!("`{key}` names no items"),
                if name == HELLASWAG {
                    "give `hub: Rowan/hellaswag`, `file:` a JSONL or parquet file, or `builtin: stories`"
                } else {
                    "give `file:` a JSONL or parquet file, or `hub:` a dataset"
                },
            );
        }
        if task.builtin.is_some() && task.text == ChoiceText::LmEval {
            return self.refuse(
                &[&of("text")],
                format!("`{}: lm_eval` needs fields that the built-in items do not have", of("text")),
                "use `raw`, or give HellaSwag itself: `hub: Rowan/hellaswag`",
            );
        }
        let names_fields =
            task.context.is_some() || task.choices.is_some() || task.answer.is_some() || task.labels.is_some();
        if names_fields && (task.builtin.is_some() || task.text == ChoiceText::LmEval) {
            return self.refuse(
                &[&of("context"), &of("choices"), &of("answer"), &of("labels")],
                format!("`{key}` names fields, but its items have their own: `ctx`, `endings` and `label`"),
                "delete `context`, `choices`, `answer` and `labels`, or `builtin` and `text`",
            );
        }
        let template = task.context.as_deref().filter(|context| context.contains("{{"));
        if let Some(Err(problem)) = template.map(RecordTemplate::new) {
            let help = "`{{ name }}` stands for the text of a field; without braces the key names one field";
            return self.refuse(&[&of("context")], format!("`{}`: {problem}", of("context")), help);
        }
        if let Some(source) = self.layers.origin(&of("hub"), false) {
            self.note(of("hub.dataset"), source);
        }
        if let Some(HubChoice { dataset, config, split, revision }) = &task.hub {
            self.hub_dataset(&of("hub"), dataset, config.as_deref(), split, revision).then_some(())?;
        }
        task.file.as_mut().map_or(Some(()), |file| self.file(&of("file"), file))
    }
}

/// Fills in the length of the run; `None` if the file gives it in two ways, which is reported at its place.
pub(crate) fn resolve_train(mut train: Train) -> Option<Train> {
    if train.length() == Err(0) {
        train.steps = Some(DEFAULT_STEPS);
    }
    train.length().is_ok().then_some(train)
}
