//! The facts about plans and their data.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::facts::{Fact, MathematicsPart as Part, Meaning};
use runner_spec::data::{DataFacts, DataPart, SplitFacts};
use runner_spec::forecast::Activity;
use runner_spec::plan::Plan;
use runner_spec::program::{BlockRange, Device, EarlierStage, Instruction, Program};

use Meaning::{Mathematics, Rounding};

/// A fact about the program of the first rank. The programs of the other ranks differ in the layout only.
macro_rules! of_program {
    ($name:literal, $meaning:expr, $program:ident => $value:expr) => {
        Fact::new($name, $meaning, |plan: &Plan| {
            let $program = first_program(plan)?;
            Some(json!($value))
        })
    };
}

/// What a plan computes, by the keys of the file, or sections of it, that decide it.
static SETTING_FACTS: [Fact<Plan>; 27] = [
    of_program!("seed", Mathematics(Part::Seed), p => p.seed),
    Fact::new("data", Mathematics(Part::Data), |plan| {
        let DataFacts { train, tokenizer_hash, tokenizer_vocab, .. } = &plan.data;
        Some(json!([split(train), tokenizer_hash, tokenizer_vocab]))
    }),
    of_program!("model", Mathematics(Part::Model), p => p.model),
    Fact::new("model.init", Mathematics(Part::InitialWeights), |plan| Some(json!(plan.data.weights))),
    of_program!("data.position", Mathematics(Part::Data), p => p.first_position()),
    of_program!("data.shuffle", Mathematics(Part::Data), p => p.batch.order.sequential),
    of_program!("data.drop_last", Mathematics(Part::Data), p => p.batch.order.drop_last),
    of_program!("data.epoch_rows", Mathematics(Part::Data), p => p.batch.order.epoch_rows),
    of_program!("batch.sequences", Mathematics(Part::Batch), p => p.batch.sequences),
    of_program!("data.layout", Mathematics(Part::Data), p => p.batch.length),
    // Padding comes after every token that counts.
    of_program!("data.layout.padded.mask", Rounding, p => p.batch.mask_padding),
    of_program!("train.stages", Mathematics(Part::Batch), p => {
        let stage = |stage: &EarlierStage| {
            let windows = stage.model.as_ref().map(|model| model.options.windows());
            json!([stage.until, stage.batch.sequences, stage.batch.length, windows])
        };
        p.earlier.iter().map(stage).collect::<Vec<_>>()
    }),
    of_program!("train.steps", Mathematics(Part::TrainingLength), p => p.steps),
    // Activations that are computed again are the same.
    of_program!("train.recompute", Meaning::None, p => p.recompute),
    of_program!("train.clip_norm", Mathematics(Part::Optimizer), p => p.clip_norm()),
    of_program!("optimizer", Mathematics(Part::Optimizer), p => p.optimizer.plan_value()),
    of_program!("train.groups", Mathematics(Part::Optimizer), p => p.groups),
    of_program!("train.transfer", Mathematics(Part::Optimizer), p => p.transfer),
    of_program!("learning rate", Mathematics(Part::Optimizer), p => p.schedule.peak),
    of_program!("schedule", Mathematics(Part::Schedule), p => {
        let schedule = &p.schedule;
        let (start, from) = (schedule.start, schedule.warmup_from);
        let mut parts = json!([start, schedule.warmup_steps, from, schedule.hold_steps, schedule.decay]);
        parts.as_array_mut()?.extend(schedule.later_decays.iter().map(|start| json!(start)));
        parts
    }),
    of_program!("precision", Mathematics(Part::Precision), p => p.precision),
    of_program!("master_weights", Mathematics(Part::Precision), p => p.master_weights),
    of_program!("parallel", Rounding, p => (p.mesh, &p.chunks, &p.buckets, passes(p))),
    // Each weight is updated by one replica, with the same gradients.
    of_program!("parallel.shard", Meaning::None, p => (&p.shards, p.sharded)),
    of_program!("batch.micro_batch", Rounding, p => {
        let earlier: Vec<usize> = p.earlier.iter().map(|stage| stage.batch.micro_batch).collect();
        if earlier.is_empty() { json!(p.batch.micro_batch) } else { json!([earlier, p.batch.micro_batch]) }
    }),
    Fact::new("eval", Mathematics(Part::Evaluation), |plan| {
        let program = first_program(plan)?;
        let measures = |i: Instruction| matches!(i, Instruction::Evaluate | Instruction::Sample);
        let due: Vec<_> = program.periodic.iter().filter(|p| measures(p.instruction)).collect();
        let start: Vec<_> = program.start.iter().filter(|i| measures(**i)).collect();
        let splits = [&plan.data.validation, &plan.data.test].map(|data| data.as_ref().map(split));
        Some(json!([program.eval, start, due, splits, plan.data.choice, plan.validation_rows()]))
    }),
    // The index of a device on its machine changes no number.
    of_program!("device", Rounding, p => p.device == Device::Cpu),
];

/// Sizes, lengths and layout of a plan, for a person.
pub(super) const PLAN_FIGURES: [Fact<Plan>; 13] = [
    Fact::new("plan hash", Meaning::None, |p| Some(p.hash.as_str().into())),
    Fact::new("mathematics hash", Meaning::None, |p| Some(p.math_hash.as_str().into())),
    Fact::new("parameters", Meaning::None, |p| Some(p.totals.parameters.into())),
    of_program!("vocabulary", Meaning::None, p => p.model.vocab_size),
    Fact::new("steps", Meaning::None, |p| Some(p.totals.steps.into())),
    Fact::new("tokens a step", Meaning::None, |p| Some(p.totals.pace.tokens_per_step.into())),
    Fact::new("tokens in all", Meaning::None, |p| Some(p.totals.tokens.into())),
    Fact::new("micro-batches a step", Meaning::None, |p| Some(p.totals.accumulation_steps.into())),
    Fact::new("ranks", Meaning::None, |p| Some(p.world_size.into())),
    Fact::new("devices", Meaning::None, |p| Some(devices(p).into())),
    Fact::new("layers by stage", Meaning::None, |p| layers(p).map(Into::into)),
    Fact::new("computed in", Meaning::None, |p| p.ranks.first().map(|r| r.precision.as_str().into())),
    Fact::new("validation rows read", Meaning::None, |p| p.validation_rows().map(Into::into)),
];

/// Content and size of data.
pub(super) const DATA_FACTS: [Fact<DataFacts>; 17] = [
    Fact::new("tokenizer", Mathematics(Part::Data), |d| Some(d.tokenizer_hash.as_str().into())),
    Fact::new("tokenizer ids", Mathematics(Part::Data), |d| Some(d.tokenizer_vocab.into())),
    Fact::new("train", Mathematics(Part::Data), |d| Some(d.train.hash.as_str().into())),
    Fact::new("train rows", Mathematics(Part::Data), |d| Some(d.train.rows.into())),
    Fact::new("train tokens", Mathematics(Part::Data), |d| Some(d.train.tokens.into())),
    Fact::new("train documents", Mathematics(Part::Data), |d| Some(d.train.documents.into())),
    Fact::new("validation", Mathematics(Part::Evaluation), |d| Some(d.validation.as_ref()?.hash.as_str().into())),
    Fact::new("validation rows", Mathematics(Part::Evaluation), |d| Some(d.validation.as_ref()?.rows.into())),
    Fact::new("validation tokens", Mathematics(Part::Evaluation), |d| Some(d.validation.as_ref()?.tokens.into())),
    Fact::new("validation documents", Mathematics(Part::Evaluation), |d| Some(d.validation.as_ref()?.documents.into())),
    Fact::new("test", Mathematics(Part::Evaluation), |d| Some(d.test.as_ref()?.hash.as_str().into())),
    Fact::new("test rows", Mathematics(Part::Evaluation), |d| Some(d.test.as_ref()?.rows.into())),
    Fact::new("test tokens", Mathematics(Part::Evaluation), |d| Some(d.test.as_ref()?.tokens.into())),
    Fact::new("test documents", Mathematics(Part::Evaluation), |d| Some(d.test.as_ref()?.documents.into())),
    Fact::new("multiple choice", Mathematics(Part::Evaluation), |d| Some(d.choice.as_ref()?.hash.as_str().into())),
    Fact::new("multiple choice items", Mathematics(Part::Evaluation), |d| Some(d.choice.as_ref()?.items.into())),
    Fact::new("initial weights", Mathematics(Part::InitialWeights), |d| Some(d.weights.as_ref()?.hash.as_str().into())),
];

/// What identifies the rows of `split`.
fn split(split: &SplitFacts) -> Value {
    json!([split.rows, split.tokens, split.documents, split.hash])
}

/// The program of the first rank. The programs of the other ranks differ in the layout only.
pub(super) fn first_program(plan: &Plan) -> Option<&Program> {
    plan.ranks.first().map(|rank| &rank.program)
}

/// The passes of a stage in the order of its schedule; none without stages, where micro-batches pass one after the other.
fn passes(program: &Program) -> Vec<&Instruction> {
    let is_pass = |instruction: &&Instruction| {
        matches!(
            instruction.activity(),
            Some(Activity::Forward | Activity::Backward | Activity::Input | Activity::Weight)
        )
    };
    program.step.iter().filter(|_| program.mesh.stages > 1).filter(is_pass).collect()
}

/// True if the ranks of both plans are on devices of the same kinds, CPUs or GPUs.
pub(super) fn have_same_kinds(a: &Plan, b: &Plan) -> bool {
    let kinds = |plan: &Plan| device_kinds(plan.ranks.iter().map(|rank| rank.device.to_string()));
    kinds(a) == kinds(b)
}

/// The kinds of the devices with these names, as the key `device` names them: `cpu`, `cuda`, or `cpu and cuda`.
#[must_use]
pub fn device_kinds(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let kinds = names.into_iter().map(|name| name.as_ref().split(':').next().unwrap_or_default().to_owned());
    kinds.collect::<BTreeSet<String>>().into_iter().collect::<Vec<_>>().join(" and ")
}

/// The kinds of devices: `4 cpu`.
pub(super) fn devices(plan: &Plan) -> String {
    let cuda = plan.ranks.iter().filter(|r| matches!(r.device, Device::Cuda(_))).count();
    match (plan.ranks.len() - cuda, cuda) {
        (cpu, 0) => format!("{cpu} cpu"),
        (0, cuda) => format!("{cuda} cuda"),
        (cpu, cuda) => format!("{cpu} cpu, {cuda} cuda"),
    }
}

/// The number of layers of each stage: `[2, 2]`. Chunks of one stage are joined by +.
fn layers(plan: &Plan) -> Option<String> {
    let model = &first_program(plan)?.model;
    let stage = |chunks: &[BlockRange]| {
        let counts = chunks.iter().map(|chunk| model.layers_in(chunk.range()).to_string());
        counts.collect::<Vec<_>>().join("+")
    };
    let stages = plan.ranks.iter().filter(|r| r.replica == 0).map(|r| stage(&r.chunks));
    Some(format!("[{}]", stages.collect::<Vec<_>>().join(", ")))
}

/// True if the ranks of both plans are on the same devices of their machines.
pub(super) fn same_devices(a: &Plan, b: &Plan) -> bool {
    a.ranks.iter().map(|r| r.device).eq(b.ranks.iter().map(|r| r.device))
}

/// True if both plans measure the same at the same steps.
pub(super) fn same_evaluation(a: &Plan, b: &Plan) -> bool {
    let (Some(p), Some(q)) = (first_program(a), first_program(b)) else { return a.ranks.len() == b.ranks.len() };
    let is_due_alike = |interval: &dyn Fn(&Program) -> Option<u64>| {
        match (interval(p), interval(q)) {
            // An interval of the run's length or more means after the last step only.
            (Some(a), Some(b)) => a == b || a >= p.steps && b >= q.steps,
            (a, b) => a.is_none() && b.is_none(),
        }
    };
    let measured = |plan: &Plan, program: &Program| {
        let DataFacts { validation, choice, tasks, test, .. } = plan.data.clone();
        let choice = choice.filter(|_| program.eval.choice_items.is_some()).map(|choice| (choice, tasks));
        let at_start = program.start.contains(&Instruction::Evaluate);
        let losses = (validation.zip(plan.validation_rows()), test, program.eval.test_rows);
        (at_start, losses, choice, program.eval.samples.clone())
    };
    let tasks = p.eval.tasks().into_iter().chain(q.eval.tasks());
    measured(a, p) == measured(b, q)
        && is_due_alike(&|program| program.loss_every())
        && is_due_alike(&|program| program.every(Instruction::Sample))
        && tasks.into_iter().all(|task| is_due_alike(&|program| program.task_every(&task.name)))
}

/// The names of the facts by which two plans differ, with what that means.
pub(super) fn differing_facts(a: &Plan, b: &Plan) -> impl Iterator<Item = (&'static str, Meaning)> {
    SETTING_FACTS.iter().filter(|fact| fact.differs(a, b)).map(|fact| (fact.name, fact.meaning))
}

/// The parts of the mathematics that differ between two plans.
pub(super) fn differing_parts(a: &Plan, b: &Plan) -> Vec<Part> {
    let mut parts: Vec<Part> = differing_facts(a, b)
        .filter_map(|(_, meaning)| match meaning {
            // Settings of an evaluation may have no effect, such as intervals that are longer than the run.
            Mathematics(Part::Evaluation) if same_evaluation(a, b) => None,
            Mathematics(part) => Some(part),
            _ => None,
        })
        .collect();
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// Describes which of `parts`, which changed since a run was made, make its data different: `its data has changed (validation data)`. `None` if
/// there are none.
#[must_use]
pub fn describe_changed_data(parts: &[DataPart]) -> Option<String> {
    let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
    Some(match parts {
        [] => return None,
        _ if parts.contains(&DataPart::Tokenizer) => {
            "its tokenizer, or the text it was made from, has changed".to_owned()
        }
        _ if parts.contains(&DataPart::Weights) => "the weights that it started from have changed".to_owned(),
        _ => format!("its data has changed ({})", names.join(", ")),
    })
}

/// The keys of the file, or sections of it, in which two plans differ.
#[must_use]
pub fn differing_keys(a: &Plan, b: &Plan) -> Vec<&'static str> {
    differing_facts(a, b).map(|(name, _)| name).collect()
}

/// The keys of the file, or sections of it, in which the training of two plans differs, apart from its layout.
#[must_use]
pub fn differing_training_keys(a: &Plan, b: &Plan) -> Vec<&'static str> {
    let changes_training = |meaning: Meaning| matches!(meaning, Mathematics(part) if part != Part::Evaluation);
    differing_facts(a, b).filter(|(_, meaning)| changes_training(*meaning)).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_spec::experiment::{Cooldown, Experiment, Optimizer, ScheduleLength};
    use runner_spec::optimizer::Sgd;
    use runner_spec::schedule::{Decay, DecayTarget, StepDecay};

    #[test]
    fn differences_are_named_in_the_files_words() {
        let plan = compiled(&experiment());
        let mut other = experiment();
        other.seed = 7.into();
        other.train.steps = Some(99);
        let other = compiled(&other);
        assert_ne!(plan.math_hash, other.math_hash);
        let what = differing_training_keys(&plan, &other);
        assert!(what.starts_with(&["seed", "train.steps"]), "{what:?}");
        assert!(differing_keys(&plan, &plan).is_empty());
    }

    #[test]
    fn schedules_that_differ_in_any_part_are_a_difference() {
        let planned = |decay, at: Option<Vec<ScheduleLength>>| {
            let mut experiment = experiment();
            experiment.schedule.cooldown = at.map(|at| Cooldown { at, ..ScheduleLength::Steps(10).into() });
            experiment.schedule.decay = decay;
            compiled(&experiment)
        };
        let linear = || Decay::Linear(DecayTarget::default());
        let epochs = |gamma| Decay::Step(StepDecay { every: None, epochs: Some(1.0), gamma });
        let plans = [
            planned(linear(), Some(Vec::new())),
            planned(linear(), Some(vec![ScheduleLength::Share(0.5)])),
            planned(epochs(0.5), None),
            planned(epochs(0.25), None),
        ];
        for (index, plan) in plans.iter().enumerate() {
            for other in &plans[..index] {
                assert_eq!(differing_training_keys(plan, other), ["schedule"]);
            }
            assert!(differing_keys(plan, plan).is_empty());
        }
    }

    #[test]
    fn evaluation_settings_without_effect_are_keys_but_not_a_part() {
        let planned = |change: &dyn Fn(&mut Experiment)| {
            let mut experiment = experiment();
            experiment.train.steps = Some(100);
            change(&mut experiment);
            compiled(&experiment)
        };
        let compared = |a: &Plan, b: &Plan| (differing_keys(a, b), differing_parts(a, b));
        let [never, neither] = [200, 300].map(|every| planned(&|e| e.eval.every = every));
        assert_eq!(compared(&never, &neither), (vec!["eval"], vec![]));
        assert_eq!(compared(&never, &planned(&|e| e.eval.every = 50)), (vec!["eval"], vec![Part::Evaluation]));
        let scored = |every| {
            planned(&|e| {
                e.eval.every = 200;
                e.eval.hellaswag.iter_mut().for_each(|set| set.every = Some(every));
            })
        };
        assert_eq!(compared(&never, &scored(300)), (vec!["eval"], vec![]));
        assert_eq!(compared(&never, &scored(50)), (vec!["eval"], vec![Part::Evaluation]));
        let rate = planned(&|e| e.optimizer = Optimizer::Sgd(Sgd { lr: 0.5, momentum: 0.0 }));
        let other_rate = planned(&|e| e.optimizer = Optimizer::Sgd(Sgd { lr: 0.25, momentum: 0.0 }));
        assert_eq!(compared(&rate, &other_rate), (vec!["learning rate"], vec![Part::Optimizer]));
    }

    /// Every text that the schema of the file allows as a value.
    fn texts_of_schema() -> Vec<Value> {
        fn collect(schema: &Value, out: &mut Vec<Value>) {
            match schema {
                Value::Object(map) => {
                    let allowed =
                        map.get("enum").and_then(Value::as_array).into_iter().flatten().chain(map.get("const"));
                    out.extend(allowed.filter(|value| value.is_string()).cloned());
                    map.values().for_each(|inner| collect(inner, out));
                }
                Value::Array(all) => all.iter().for_each(|inner| collect(inner, out)),
                _ => {}
            }
        }
        let mut out = Vec::new();
        collect(&serde_json::from_str(&runner_config::schema_text()).unwrap(), &mut out);
        out
    }

    #[test]
    fn every_key_that_changes_the_plan_is_named() {
        let texts = texts_of_schema();
        assert!(texts.contains(&"gpipe".into()) && texts.contains(&"attention".into()), "{texts:?}");
        let pipeline = json!({"parallel": {"mode": "pipeline", "replicas": 1, "pipeline": {
            "stages": 2, "partition": "auto", "schedule": "1f1b", "chunks": 1, "microbatches": 4}}});
        let padded = json!({"data": {"layout": {"padded": {
            "length": 8, "bos": "auto", "eos": "auto", "pad": "auto", "mask": "causal"}}}, "train": {"recompute": "none"}});
        let bases = [
            json!({}),
            pipeline,
            padded,
            json!({"parallel": {"mode": "ddp", "replicas": 2, "shard": null}}),
            json!({"model": {"family": "llama"}}),
        ];
        let mut found = BTreeSet::new();
        for over in bases {
            let mut document = crate::settings::document(&experiment());
            for (section, values) in over.as_object().unwrap() {
                for (key, value) in values.as_object().unwrap() {
                    document[section][key] = value.clone();
                }
            }
            let base = serde_json::from_value(document.clone()).map(|base: Experiment| compiled(&base)).unwrap();
            for (key, value) in crate::settings::flatten(&document) {
                let others = match &value {
                    Value::Bool(is) => vec![(!is).into()],
                    Value::Number(number) => {
                        let number = number.as_f64().unwrap();
                        [number + 1.0, number * 2.0, number / 2.0, 1.0 - number]
                            .map(|n| if n.fract() == 0.0 && n >= 0.0 { json!(n as u64) } else { json!(n) })
                            .to_vec()
                    }
                    Value::String(_) => texts.clone(),
                    Value::Null => vec![json!(1), json!(0.5), json!(true), json!({}), json!("optimizer")],
                    other => vec![other.clone()],
                };
                for other in others {
                    let mut changed = document.clone();
                    let Some(place) = changed.pointer_mut(&format!("/{}", key.replace('.', "/"))) else { continue };
                    *place = other;
                    let Ok(changed) = serde_json::from_value::<Experiment>(changed) else { continue };
                    let Ok(plan) =
                        runner_plan::compile(&changed, &runner_plan::testing::data(), &runner_plan::testing::cluster())
                    else {
                        continue;
                    };
                    if plan.hash != base.hash {
                        let section = key.split('.').next().unwrap();
                        let names = differing_keys(&base, &plan);
                        let is_named = |name: &&str| {
                            name.starts_with(section) || (section, *name) == ("optimizer", "learning rate")
                        };
                        assert!(names.iter().any(&is_named), "{key} is {changed:?}, and the names are {names:?}");
                        found.insert(key.clone());
                    }
                }
            }
        }
        for key in [
            "train.recompute",
            "parallel.shard",
            "parallel.pipeline.schedule",
            "data.layout.padded.mask",
            "model.d_ff",
            "eval.every",
            "seed",
        ] {
            assert!(found.contains(key), "{key} is not among {found:?}");
        }
    }
}
