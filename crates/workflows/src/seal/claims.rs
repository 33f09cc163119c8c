//! What the files of a sealed run say, compared with its manifest, with one another, and with the record of a second training.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use runner_compare::stored_plan::{self, resolved_experiment};
use runner_compare::verdict::ReproductionVerdict;
use runner_files::read_regular_text;
use runner_record::checkpoint;
use runner_record::data_files::read_data_files;
use runner_record::files::read_plan;
use runner_record::foreign_content::find_foreign_content;
use runner_record::lines::for_each_record;
use runner_record::manifest::{DataHashes, Manifest, RunStatus};
use runner_record::record_check::{changed_descriptions, find_damage_of_metrics};
use runner_record::run_dir::{
    self, CHECKPOINTS, DATA, EXPERIMENT, MERGED_FILES, METRICS, PLAN, RESOLVED, ROWS, SAMPLES, SUMMARY, TEMPLATE,
    TOKENIZER,
};
use runner_record::summary::{OwnAmounts, Summary, TestResult};
use runner_spec::error::{CommandError, Result};
use runner_spec::event::{EvaluatedRows, SampleText};
use runner_spec::experiment::{Tokenizer, WeightInit};
use runner_spec::format::quoted_line;
use serde_json::Value;

use super::contents::{COPIED, is_written};
use super::manifest::{MANIFEST, README, RUN, SealManifest};
use super::readme::readme;

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
    let merged = (!manifest.files.is_empty()).then_some(MERGED_FILES);
    let record = record.into_iter().chain([summary, template, merged]).flatten().map(|name| format!("{RUN}/{name}"));
    let has = |path: &String| seal.files.iter().any(|file| file.path == *path);
    let is_weights = |path: &str| path.starts_with("model") && path.ends_with(".safetensors");
    let mut missing: Vec<String> = record.chain([README.to_owned()]).filter(|path| !has(path)).collect();
    if !seal.files.iter().any(|file| is_weights(&file.path)) {
        missing.push("model.safetensors".to_owned());
    }
    missing.into_iter().map(|path| format!("{path} is missing, which a sealed run has")).collect()
}

/// True if `summary` is what the program writes for the metrics and the manifest of the run in `run`, apart from times, memory, and what only
/// training gives: hashes and the result on test data.
fn follows_from_record(summary: &Summary, run: &Path, manifest: &Manifest) -> Result<bool> {
    let began = manifest.newest_layout_began();
    let again = Summary::from_metrics(&run.join(METRICS), manifest.continued_from.as_ref(), began, None)?;
    let expected = Summary {
        id: manifest.id.clone(),
        status: manifest.status,
        error: manifest.error.clone(),
        steps_total: manifest.steps,
        steps: again.steps,
        tokens: again.tokens,
        own: OwnAmounts { wall_seconds: summary.own.wall_seconds, ..again.own },
        final_train_loss: again.final_train_loss,
        last_eval: again.last_eval,
        best_eval: again.best_eval,
        medians: again.medians,
        ..summary.clone()
    };
    Ok(*summary == expected)
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
    let (experiment, plan) = (resolved_experiment(&run)?, stored_plan::read(&run)?);
    let id = run_dir::base_id(&manifest.name, &manifest.plan_hash);
    let is_named = manifest.id.strip_prefix(&id).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    if seal.run != manifest.id || !is_named {
        found.push(format!("{MANIFEST} and {RUN}/{record} differ in the id of the run"));
    }
    let of_files = (&experiment.name, &plan.hash, plan.totals.steps, &DataHashes::from(&plan.data));
    let of_manifest = (&manifest.name, &manifest.plan_hash, manifest.steps, &manifest.data);
    if of_files != of_manifest || !changed_descriptions(&run, &manifest)?.is_empty() {
        found.push(format!(
            "{RUN}/{record} differs from {RUN}/{RESOLVED} and {RUN}/{PLAN} in the name, the plan's hash, its steps, or hashes of files and data"
        ));
    }
    if let Some(summary) = &summary
        && !follows_from_record(summary, &run, &manifest)?
    {
        found.push(format!("{RUN}/{SUMMARY} does not follow from {RUN}/{METRICS} and {RUN}/{record}"));
    }
    found.extend(checkpoint::find_damage_of_newest(&run.join(CHECKPOINTS))?.map(|damage| damage.to_string()));
    found.extend(find_damage_of_metrics(&run, &manifest, summary.as_ref())?);
    if !found.is_empty() {
        return Ok(found.into_iter().map(Wrong).collect());
    }
    let mut unusual = find_foreign_content(&run, seal.state().map(|(step, _)| step))?;
    if read_text(&run.join(RESOLVED))? != runner_config::to_yaml(&experiment) {
        unusual.push(RESOLVED.to_owned());
    }
    let mut unusual: Vec<String> = unusual.into_iter().map(|name| format!("{RUN}/{name}")).collect();
    if read_text(&folder.join(README))? != readme(folder, seal)? {
        unusual.push(README.to_owned());
    }
    let describe = |path| format!("{path} is not as runner writes it: it may have comments, other words or other keys");
    Ok(unusual.into_iter().map(|path| Unusual(describe(path))).collect())
}

fn read_text(path: &Path) -> Result<String> {
    read_regular_text(path).map_err(CommandError::io(format!("reading {}", path.display())))
}

/// How the record of the sealed run in `run` differs from the record of `copy`, which has the steps that `trained` names.
pub(super) fn compare_records(run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<Vec<Finding>> {
    let mut found = compare_plans(run, copy)?;
    found.extend(compare_data(run, copy)?);
    found.extend(compare_samples(run, copy, trained)?);
    found.extend(compare_rows(run, copy, trained)?);
    found.extend(compare_ends(run, copy, trained)?);
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
    let keys = [&sealed, &planned].into_iter().filter_map(Value::as_object).flat_map(|plan| plan.keys());
    let keys: BTreeSet<&String> = keys.filter(|key| sealed[key.as_str()] != planned[key.as_str()]).collect();
    // The hash follows from the programs of the ranks.
    let has_same_ranks = sealed["ranks"] == planned["ranks"];
    let is_common = |key: &&String| COMMON.contains(&key.as_str()) || has_same_ranks && *key == "hash";
    let (common, others): (Vec<&String>, Vec<&String>) = keys.into_iter().partition(is_common);
    let shown = |key: &String| format!("`{}`", quoted_line(key));
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
    let manifest = run_dir::read_manifest(run)?;
    let last = match manifest.status {
        // There must be none after the last step.
        RunStatus::Done if trained.to_step == manifest.steps => u64::MAX,
        RunStatus::Done => trained.to_step,
        _ => trained.to_step.saturating_sub(1),
    };
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

fn compare_rows(run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<Option<Finding>> {
    let rows = |run: &Path| -> Result<Vec<EvaluatedRows>> {
        let mut rows = Vec::new();
        for_each_record(&run.join(ROWS), &mut |line: EvaluatedRows| rows.push(line))?;
        Ok(rows)
    };
    let (sealed, again) = (rows(run)?, rows(copy)?);
    let differs = |line: &EvaluatedRows| again.iter().any(|other| other.step == line.step && other != line);
    Ok(if trained.first_bits.is_none() && sealed.iter().any(differs) {
        Some(Wrong(format!("{RUN}/{ROWS} does not have the rows of these evaluations")))
    } else if sealed.iter().all(|line| again.contains(line)) {
        None
    } else {
        Some(NotVerified(format!("the rows of evaluations in {RUN}/{ROWS} that were not made again")))
    })
}

/// Compares what the summaries say of the end of the run: the hashes of the last state, and the result on the test data.
fn compare_ends(run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<Vec<Finding>> {
    let [sealed, again] = [run, copy].map(run_dir::read_summary);
    let (Some(sealed), Some(again)) = (sealed?, again?) else { return Ok(Vec::new()) };
    let has_end = sealed.final_hash.is_some() || sealed.weights_hash.is_some() || sealed.test.is_some();
    if sealed.steps != again.steps || sealed.error.is_some() {
        let text = format!(
            "the hashes of the last state and the test loss in {RUN}/{SUMMARY}: no such state was trained again"
        );
        return Ok(if has_end { vec![NotVerified(text)] } else { Vec::new() });
    }
    let mut found = Vec::new();
    if (&sealed.final_hash, &sealed.weights_hash) != (&again.final_hash, &again.weights_hash) {
        // States in other parts have other hashes.
        let parts = |run: &Path| run_dir::read_manifest(run).map(|manifest| manifest.parts_of_checkpoints());
        let must_be_equal = trained.first_bits.is_none() && parts(run)? == parts(copy)?;
        let text = format!("the hashes of the last state in {RUN}/{SUMMARY}");
        found.push(if must_be_equal {
            Wrong(format!("{text} differ from the hashes of the state that training reached"))
        } else {
            NotVerified(format!("{text}: no such state was trained again"))
        });
    }
    found.extend(match (&sealed.test, &again.test) {
        (None, None) => None,
        (Some(of_seal), Some(of_copy)) if of_seal.step != of_copy.step && of_seal.step <= trained.from_step => {
            Some(NotVerified(format!(
                "the test loss: it was measured on the weights of step {}, which were not trained again",
                of_seal.step
            )))
        }
        (Some(of_seal), Some(of_copy)) if is_near(of_seal, of_copy, trained) => None,
        _ => Some(Wrong(format!(
            "{RUN}/{SUMMARY} and the steps that were trained again differ in the result on the test data"
        ))),
    });
    Ok(found)
}

/// True if both results on the test data are equal, within the tolerance if `trained` has other bits.
fn is_near(sealed: &TestResult, again: &TestResult, trained: &ReproductionVerdict) -> bool {
    if trained.first_bits.is_none() {
        return sealed == again;
    }
    let allowed = trained.tolerance * sealed.loss;
    let rows = sealed.rows.max(1) as f64;
    let bits = [sealed, again].map(|result| result.bits_per_byte.unwrap_or(0.0));
    let error = [sealed, again].map(|result| result.standard_error.unwrap_or(0.0));
    (sealed.step, sealed.tokens, sealed.rows) == (again.step, again.tokens, again.rows)
        && (sealed.loss - again.loss).abs() <= allowed
        && (sealed.perplexity.ln() - again.perplexity.ln()).abs() <= allowed
        && (bits[0] - bits[1]).abs() <= trained.tolerance * bits[0]
        && (error[0] - error[1]).abs() <= allowed / rows.sqrt()
}
