//! What the files of a sealed run say, compared with its manifest, with one another, and with the record of a second training.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use runner_compare::stored_plan::{self, resolved_experiment};
use runner_compare::verdict::{OriginalRun, ReproductionVerdict};
use runner_files::read_regular_text;
use runner_record::MetricLine;
use runner_record::checkpoint;
use runner_record::data_files::read_data_files;
use runner_record::files::read_plan;
use runner_record::foreign_content::find_foreign_content;
use runner_record::lines::for_each_record;
use runner_record::manifest::{DataHashes, Manifest, RunStatus};
use runner_record::metrics::for_each_metric;
use runner_record::record_check::{changed_descriptions, find_damage_of_metrics};
use runner_record::run_dir::{
    self, CHECKPOINTS, DATA, EXPERIMENT, METRICS, PLAN, RESOLVED, SAMPLES, SUMMARY, TEMPLATE, TOKENIZER,
};
use runner_record::summary::{Summary, TestResult};
use runner_spec::error::{CommandError, Result};
use runner_spec::event::SampleText;
use runner_spec::experiment::{Tokenizer, WeightInit};
use runner_spec::format::quoted_line;
use runner_spec::plan::Plan;
use serde_json::Value;

use super::card::model_card;
use super::create::{COPIED, is_written};
use super::manifest::{CARD, MANIFEST, RUN, SealManifest};

/// What a check found, in a sentence.
pub(super) enum Finding {
    /// Files, numbers or hashes that are wrong, whichever program wrote them.
    Wrong(String),
    /// What this build of the program would have written otherwise. A different one may have written it.
    Unusual(String),
    /// A part of the record that was not compared.
    NotVerified(String),
}

use Finding::{NotVerified, Unusual, Wrong};

/// The files that the manifest lists and that `seal` does not write, a sentence each.
fn unexpected_files(seal: &SealManifest) -> Vec<String> {
    let state = seal.state().map(|(step, _)| format!("{CHECKPOINTS}/{}/", checkpoint::dir_name(step)));
    let is_expected = |path: &str| match path.strip_prefix(&format!("{RUN}/")) {
        Some(own) => {
            let in_state = state.as_ref().and_then(|state| own.strip_prefix(state.as_str()));
            own == run_dir::MANIFEST || COPIED.contains(&own) || in_state.is_some_and(checkpoint::is_checkpoint_file)
        }
        None => is_written(path),
    };
    let unexpected = seal.files.iter().map(|file| &file.path).filter(|path| !is_expected(path));
    unexpected.map(|path| format!("a sealed run does not contain {path}")).collect()
}

/// The files that every sealed run has, of the manifest `manifest`, and that this one lacks, a sentence each.
fn missing_files(seal: &SealManifest, manifest: &Manifest) -> Vec<String> {
    let record = [EXPERIMENT, RESOLVED, PLAN, TOKENIZER, DATA, METRICS, SAMPLES].map(Some);
    let summary = (manifest.status == RunStatus::Done).then_some(SUMMARY);
    let template = manifest.template.as_ref().map(|_| TEMPLATE);
    let record = record.into_iter().chain([summary, template]).flatten().map(|name| format!("{RUN}/{name}"));
    let has = |path: &String| seal.files.iter().any(|file| file.path == *path);
    let is_weights = |path: &str| path.starts_with("model") && path.ends_with(".safetensors");
    let mut missing: Vec<String> = record.chain([CARD.to_owned()]).filter(|path| !has(path)).collect();
    if !seal.files.iter().any(|file| is_weights(&file.path)) {
        missing.push("model.safetensors".to_owned());
    }
    missing.into_iter().map(|path| format!("{path} is missing, which a sealed run has")).collect()
}

/// How `summary` differs from the metrics of the run in `run`, a sentence each.
fn summary_contradictions(run: &Path, manifest: &Manifest, summary: &Summary) -> Result<Vec<String>> {
    let began = manifest.newest_layout_began();
    let again = Summary::from_metrics(&run.join(METRICS), manifest.continued_from.as_ref(), began, None)?;
    let own = |summary: &Summary| (summary.own().steps, summary.own().tokens);
    let facts = [
        ("the number of steps", summary.steps == again.steps && summary.steps_total == manifest.steps),
        ("the tokens", summary.tokens == again.tokens),
        ("the run's own steps and tokens", own(summary) == own(&again)),
        ("the last training loss", summary.final_train_loss == again.final_train_loss),
        ("the last evaluation", summary.last_eval == again.last_eval),
        ("the best evaluation", summary.best_eval == again.best_eval),
        ("the medians", summary.medians == again.medians),
    ];
    let differing = facts.into_iter().filter(|(_, is_equal)| !is_equal);
    Ok(differing.map(|(what, _)| format!("{RUN}/{SUMMARY} and {RUN}/{METRICS} differ in {what}")).collect())
}

/// What the files of the sealed run in `folder` say that contradicts its manifest, or one another, or that this program does not write.
pub(super) fn check_files(folder: &Path, seal: &SealManifest) -> Result<Vec<Finding>> {
    let run = folder.join(RUN);
    let record = run_dir::MANIFEST;
    let manifest = run_dir::read_manifest(&run)?;
    let summary = run_dir::read_summary(&run)?;
    let mut found = unexpected_files(seal);
    found.extend(missing_files(seal, &manifest));
    let mut paths = BTreeSet::new();
    let twice = seal.files.iter().find(|file| !paths.insert(&file.path));
    found.extend(twice.map(|file| format!("{MANIFEST} lists {} twice", file.path)));
    if summary.as_ref().is_some_and(|summary| (&summary.id, &summary.error) != (&manifest.id, &manifest.error)) {
        found.push(format!("{RUN}/{SUMMARY} and {RUN}/{record} differ in the id or the error"));
    }
    let experiment = resolved_experiment(&run)?;
    if experiment.name != manifest.name {
        found.push(format!("{RUN}/{record} and {RUN}/{RESOLVED} differ in the name"));
    }
    match &summary {
        Some(summary) if summary.is_current(manifest.status) => {
            found.extend(summary_contradictions(&run, &manifest, summary)?);
        }
        // A run that was killed may have the summary of the session before. `seal` leaves it out.
        Some(_) => found.push(format!("{RUN}/{SUMMARY} and {RUN}/{record} differ in the status")),
        None => {}
    }
    let plan = stored_plan::read(&run)?;
    let of_plan = (&plan.hash, plan.totals.steps, &DataHashes::from(&plan.data));
    if of_plan != (&manifest.plan_hash, manifest.steps, &manifest.data) {
        found.push(format!(
            "{RUN}/{record} and {RUN}/{PLAN} differ in the hash of the plan, its steps, or the hashes of the data"
        ));
    }
    if !changed_descriptions(&run, &manifest)?.is_empty() {
        found.push(format!("{RUN}/{record} has other hashes than {RESOLVED} and {PLAN} have"));
    }
    let id = run_dir::base_id(&manifest.name, &manifest.plan_hash);
    let is_named = manifest.id.strip_prefix(&id).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    if seal.run != manifest.id || !is_named {
        found.push(format!("{MANIFEST} and {RUN}/{record} differ in the id of the run"));
    }
    let state = seal.state().map(|(step, _)| step);
    if let Some(step) = state {
        found.extend(state_contradiction(&run, step, &plan, &manifest)?);
        let hash = checkpoint::recorded_hash(&run.join(CHECKPOINTS), step).map(|hash| (hash.state, hash.weights));
        let last = summary.as_ref().filter(|summary| summary.steps == step && summary.error.is_none());
        let last = last.and_then(|summary| summary.final_hash.clone().zip(summary.weights_hash.clone()));
        if hash.is_some() && last.is_some() && hash != last {
            found.push(format!("{RUN}/{SUMMARY} and the checkpoint of step {step} differ in their hashes"));
        }
    }
    let last_step = OriginalRun::read(&run, &manifest, summary.clone())?.last_step();
    if last_measured_step(&run)? > last_step {
        found.push(format!("{RUN}/{METRICS} or {RUN}/{SAMPLES} has measurements after the last step, {last_step}"));
    }
    if summary.as_ref().is_some_and(|summary| summary.test.is_some()) && plan.data.test.is_none() {
        found.push(format!("{RUN}/{SUMMARY} has a result on test data, of which {RUN}/{PLAN} has none"));
    }
    found.extend(checkpoint::find_damage_of_newest(&run.join(CHECKPOINTS))?.map(|damage| damage.to_string()));
    found.extend(find_damage_of_metrics(&run, &manifest, summary.as_ref())?);
    if !found.is_empty() {
        return Ok(found.into_iter().map(Wrong).collect());
    }
    let mut unusual = find_foreign_content(&run, state)?;
    if summary.as_ref().is_some_and(|summary| summary.own.is_none()) {
        unusual.push(SUMMARY.to_owned());
    }
    if read_text(&run.join(RESOLVED))? != runner_config::to_yaml(&experiment) {
        unusual.push(RESOLVED.to_owned());
    }
    let mut unusual: Vec<String> = unusual
        .into_iter()
        .map(|name| format!("{RUN}/{name} is not as runner writes it: it may have comments or other keys"))
        .collect();
    if unusual.is_empty() && read_text(&folder.join(CARD))? != model_card(folder, seal)? {
        unusual.push(format!("{CARD} is not the card of this record"));
    }
    Ok(unusual.into_iter().map(Unusual).collect())
}

fn read_text(path: &Path) -> Result<String> {
    read_regular_text(path).map_err(CommandError::io(format!("reading {}", path.display())))
}

/// The last step of an evaluation or a sample of the run in `run`.
fn last_measured_step(run: &Path) -> Result<u64> {
    let mut last = 0;
    for_each_metric(&run.join(METRICS), &mut |line| last = last.max(line.step()))?;
    for_each_record(&run.join(SAMPLES), &mut |sample: SampleText| last = last.max(sample.step))?;
    Ok(last)
}

/// What is wrong with the evaluations, the tokens or the position in the data that the checkpoint of `step` of the run in `run` records.
fn state_contradiction(run: &Path, step: u64, plan: &Plan, manifest: &Manifest) -> Result<Option<String>> {
    let Some(saved) = checkpoint::recorded_position(&run.join(CHECKPOINTS), step) else {
        return Ok(Some(format!("the checkpoint of step {step} cannot be read")));
    };
    if saved.data != plan.row_sequence().map(|rows| rows.position_after(step)) {
        return Ok(Some(format!("the checkpoint of step {step} and {RUN}/{PLAN} differ in the position in the data")));
    }
    // An evaluation before the first step is never the best.
    let mut losses = Vec::new();
    let began = manifest.continued_from.as_ref().map_or(0, |from| from.step);
    let (mut inherited, mut own) = (0_u64, 0_u64);
    for_each_metric(&run.join(METRICS), &mut |line| match line {
        MetricLine::Eval(line) if (1..=step).contains(&line.step) => {
            losses.extend(line.val_loss().map(|loss| (line.step, loss)));
        }
        MetricLine::Train(line) if line.step <= began => inherited = inherited.saturating_add(line.tokens),
        MetricLine::Train(line) if line.step <= step => own = own.saturating_add(line.tokens),
        _ => {}
    })?;
    let inherited = manifest.continued_from.as_ref().and_then(|from| from.tokens).unwrap_or(inherited);
    if saved.tokens != inherited.saturating_add(own) {
        return Ok(Some(format!("the checkpoint of step {step} and {RUN} differ in the tokens that were seen")));
    }
    let recorded = losses.iter().find(|(of, _)| *of == step).map(|(_, loss)| *loss);
    let best = losses.iter().copied().min_by(|(_, a), (_, b)| a.total_cmp(b));
    let saved_best = saved.best.map(|best| (best.step, best.val_loss));
    // A run that began with the checkpoint of a different run may lack evaluations of that run.
    let is_whole = manifest.continued_from.is_none();
    let has_other_loss = saved.val_loss.is_some() && saved.val_loss != recorded && (is_whole || recorded.is_some());
    let has_other_best = saved_best.is_some() && saved_best != best && is_whole;
    let text = format!("the checkpoint of step {step} and {RUN}/{METRICS} differ in the validation loss");
    Ok((has_other_loss || has_other_best).then_some(text))
}

/// Adds the keys, at most two deep, whose values differ between `a` and `b`, which `at` leads to. Items of lists count together.
fn add_differing_keys(a: &Value, b: &Value, at: &str, out: &mut BTreeSet<String>) {
    match (a, b) {
        _ if a == b => {}
        (Value::Object(of_a), Value::Object(of_b)) if !at.contains('.') => {
            for key in of_a.keys().chain(of_b.keys()) {
                let inner = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                add_differing_keys(&a[key.as_str()], &b[key.as_str()], &inner, out);
            }
        }
        (Value::Array(of_a), Value::Array(of_b)) if of_a.len() == of_b.len() => {
            of_a.iter().zip(of_b).for_each(|(a, b)| add_differing_keys(a, b, at, out));
        }
        _ => {
            out.insert(at.to_owned());
        }
    }
}

/// How the record of the sealed run in `run` differs from the record of `copy`, which has the steps that `trained` names.
pub(super) fn compare_records(run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<Vec<Finding>> {
    let mut found = compare_plans(run, copy)?;
    found.extend(compare_data(run, copy)?);
    found.extend(compare_samples(run, copy, trained)?);
    found.extend(compare_hashes(run, copy, trained)?);
    found.extend(compare_tests(run, copy, trained)?);
    let experiment = resolved_experiment(run)?;
    if fs::read(run.join(TOKENIZER)).ok() != fs::read(copy.join(TOKENIZER)).ok() {
        found.push(Wrong(format!("{RUN}/{TOKENIZER} differs from the tokenizer that was made again")));
    } else if matches!(experiment.data.tokenizer, Tokenizer::Hub(_)) {
        found.push(NotVerified(format!("{RUN}/{TOKENIZER}: it is the tokenizer of a hub, which was not asked for it")));
    }
    if matches!(experiment.model.init, Some(WeightInit::From(_))) && trained.from_step > 0 {
        found.push(NotVerified("the hash of the weights that the run started from: they were not read".to_owned()));
    }
    Ok(found)
}

fn compare_plans(run: &Path, copy: &Path) -> Result<Vec<Finding>> {
    /// Keys that are the same on every machine.
    const COMMON: [&str; 4] = ["math_hash", "experiment_name", "totals", "data"];
    let [sealed, planned]: [Value; 2] = [read_plan(&run.join(PLAN))?, read_plan(&copy.join(PLAN))?];
    let mut differing = BTreeSet::new();
    add_differing_keys(&sealed, &planned, "", &mut differing);
    let shown = |key: &String| format!("`{}`", quoted_line(key));
    // The hash follows from the programs of the ranks.
    let is_wrong_hash = !differing.iter().any(|key| key.starts_with("ranks"));
    let is_common =
        |key: &&String| COMMON.contains(&key.split('.').next().unwrap_or(key)) || is_wrong_hash && *key == "hash";
    let (common, others): (Vec<&String>, Vec<&String>) = differing.iter().partition(is_common);
    let differs =
        |key| Unusual(format!("{} in {RUN}/{PLAN} differs from what is planned from {RUN}/{RESOLVED}", shown(key)));
    let mut found: Vec<Finding> = common.into_iter().map(differs).collect();
    if !others.is_empty() {
        let others = others.into_iter().map(shown).collect::<Vec<_>>().join(", ");
        found.push(NotVerified(format!(
            "{others} in {RUN}/{PLAN}: this machine, with this number of threads, has a different plan"
        )));
    }
    Ok(found)
}

/// Compares the files of the data, wherever they are now.
fn compare_data(run: &Path, copy: &Path) -> Result<Vec<Finding>> {
    let contents = |run: &Path| -> Result<Option<Vec<_>>> {
        let files = read_data_files(run)?;
        Ok(files.map(|files| files.into_iter().map(|file| (file.part.name(), file.bytes, file.hash)).collect()))
    };
    Ok(match contents(run)? {
        None => vec![Unusual(format!("{RUN}/{DATA} is missing"))],
        sealed if sealed == contents(copy)? => Vec::new(),
        Some(_) => vec![Wrong(format!("{RUN}/{DATA} does not list the files that were read again"))],
    })
}

fn compare_samples(run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<Vec<Finding>> {
    // A run that was not done may have ended between a step and its samples.
    let is_done = run_dir::read_manifest(run)?.status == RunStatus::Done;
    let last = if is_done { trained.to_step } else { trained.to_step.saturating_sub(1) };
    let is_trained = |step: u64| step <= last && (step > trained.from_step || trained.from_step == 0);
    let samples = |run: &Path| -> Result<Vec<SampleText>> {
        let mut samples = Vec::new();
        for_each_record(&run.join(SAMPLES), &mut |sample: SampleText| samples.push(sample))?;
        samples.retain(|sample| is_trained(sample.step));
        Ok(samples)
    };
    if samples(run)? == samples(copy)? {
        return Ok(Vec::new());
    }
    let text = format!("{RUN}/{SAMPLES} does not have the samples of these steps");
    // Rounding may change a token.
    Ok(vec![if trained.first_bits.is_none() { Wrong(text) } else { NotVerified(text) }])
}

/// Compares the hashes of the last state. States in other parts have other hashes.
fn compare_hashes(run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<Option<Finding>> {
    let [sealed, again] = [run, copy].map(run_dir::read_summary);
    let (Some(sealed), Some(again)) = (sealed?, again?) else { return Ok(None) };
    let [parts, parts_again] =
        [run_dir::read_manifest(run)?, run_dir::read_manifest(copy)?].map(|manifest| manifest.parts_of_checkpoints());
    let is_equal = (&sealed.final_hash, &sealed.weights_hash) == (&again.final_hash, &again.weights_hash);
    let is_last = sealed.steps == again.steps && sealed.error.is_none();
    let text = format!("the hashes of the last state in {RUN}/{SUMMARY}");
    Ok(match trained.first_bits {
        _ if is_equal => None,
        None if is_last && parts == parts_again => {
            Some(Wrong(format!("{text} differ from the hashes of the state that training reached")))
        }
        _ if sealed.final_hash.is_none() && sealed.weights_hash.is_none() => None,
        _ => Some(NotVerified(format!("{text}, which the card shows: no such state was trained again"))),
    })
}

/// Compares the results on the test data.
fn compare_tests(run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<Option<Finding>> {
    let test =
        |run: &Path| -> Result<Option<TestResult>> { Ok(run_dir::read_summary(run)?.and_then(|summary| summary.test)) };
    let (sealed, again) = match (test(run)?, test(copy)?) {
        (Some(sealed), Some(again)) => (sealed, again),
        (None, Some(_)) if run_dir::read_manifest(run)?.status == RunStatus::Done => {
            return Ok(Some(Wrong(format!("{RUN}/{SUMMARY} lacks the result on the test data"))));
        }
        (None, _) => return Ok(None),
        (Some(_), None) => {
            let why = "it is measured at the end of a run, and these steps end before it";
            return Ok(Some(NotVerified(format!("the test loss: {why}"))));
        }
    };
    if sealed.step != again.step && sealed.step <= trained.from_step {
        let text = format!(
            "the test loss: it was measured on the weights of step {}, which were not trained again",
            sealed.step
        );
        return Ok(Some(NotVerified(text)));
    }
    // Equal bits of every number leave no room for a different result.
    let tolerance = trained.first_bits.as_ref().map_or(0.0, |_| trained.tolerance);
    let is_near = |a: Option<f64>, b: Option<f64>, allowed: f64| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= allowed,
        (a, b) => a == b,
    };
    let allowed = tolerance * sealed.loss;
    let of_error = allowed / (sealed.rows.unwrap_or(1).max(1) as f64).sqrt();
    let is_equal = (sealed.step, sealed.tokens, sealed.rows) == (again.step, again.tokens, again.rows)
        && is_near(Some(sealed.loss), Some(again.loss), allowed)
        && is_near(Some(sealed.perplexity.ln()), Some(again.perplexity.ln()), allowed)
        && is_near(sealed.bits_per_byte, again.bits_per_byte, tolerance * sealed.bits_per_byte.unwrap_or(0.0))
        && is_near(sealed.standard_error, again.standard_error, of_error);
    let (of_seal, of_copy) = (sealed.loss, again.loss);
    Ok((!is_equal).then(|| {
        Wrong(format!(
            "{RUN}/{SUMMARY} and the steps that were trained again differ in the result on the test data (loss {of_seal} and {of_copy})"
        ))
    }))
}
