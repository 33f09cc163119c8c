//! What the files of a sealed run say, compared with its manifest and with one another.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use runner_compare::stored_plan::{self, resolved_experiment};
use runner_compare::verdict::ReproductionVerdict;
use runner_files::read_regular_text;
use runner_prepare::Host;
use runner_record::MetricLine;
use runner_record::checkpoint;
use runner_record::data_files::read_data_files;
use runner_record::files::read_plan;
use runner_record::foreign_content::find_foreign_content;
use runner_record::lines::for_each_record;
use runner_record::manifest::{DataHashes, Manifest};
use runner_record::metrics::for_each_metric;
use runner_record::record_check::{changed_descriptions, find_damage_of_metrics};
use runner_record::run_dir::{self, CHECKPOINTS, DATA, METRICS, PLAN, RESOLVED, SAMPLES, SUMMARY, TOKENIZER};
use runner_record::summary::Summary;
use runner_spec::error::{CommandError, Result};
use runner_spec::event::SampleText;
use runner_spec::format::quoted_line;
use runner_spec::plan::Plan;
use serde_json::Value;

use super::card::model_card;
use super::create::{COPIED, is_written};
use super::manifest::{CARD, MANIFEST, RUN, SealManifest};

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

/// How `summary` differs from the metrics of the run in `run`, a sentence each.
fn summary_contradictions(run: &Path, manifest: &Manifest, summary: &Summary) -> Result<Vec<String>> {
    let began = manifest.newest_layout_began();
    let again = Summary::from_metrics(&run.join(METRICS), manifest.continued_from.as_ref(), began, None)?;
    let own = |summary: &Summary| (summary.own().steps, summary.own().tokens);
    let facts = [
        ("the number of steps", summary.steps == again.steps && summary.steps_total == manifest.steps),
        ("the tokens", summary.tokens == again.tokens),
        ("the steps and tokens of its own", own(summary) == own(&again)),
        ("the last training loss", summary.final_train_loss == again.final_train_loss),
        ("the last evaluation", summary.last_eval == again.last_eval),
        ("the best evaluation", summary.best_eval == again.best_eval),
        ("the medians", summary.medians == again.medians),
    ];
    let differing = facts.into_iter().filter(|(_, is_equal)| !is_equal);
    Ok(differing.map(|(what, _)| format!("{RUN}/{SUMMARY} and {RUN}/{METRICS} differ in {what}")).collect())
}

/// What the files of the sealed run in `folder` say that contradicts its manifest, or one another.
pub(super) fn find_contradictions(folder: &Path, seal: &SealManifest, host: &Host) -> Result<Vec<String>> {
    let run = folder.join(RUN);
    let manifest = run_dir::read_manifest(&run)?;
    let summary = run_dir::read_summary(&run)?;
    let mut found = unexpected_files(seal);
    let mut paths = BTreeSet::new();
    let twice = seal.files.iter().find(|file| !paths.insert(&file.path));
    found.extend(twice.map(|file| format!("{MANIFEST} lists {} twice", file.path)));
    if summary.as_ref().is_some_and(|summary| (&summary.id, &summary.error) != (&manifest.id, &manifest.error)) {
        found.push(format!("{RUN}/{SUMMARY} and {RUN}/{} differ in the id or the error", run_dir::MANIFEST));
    }
    let experiment = resolved_experiment(&run)?;
    if experiment.name != manifest.name {
        found.push(format!("{RUN}/{} and {RUN}/{RESOLVED} differ in the name", run_dir::MANIFEST));
    }
    match &summary {
        Some(summary) if summary.is_current(manifest.status) => {
            found.extend(summary_contradictions(&run, &manifest, summary)?);
        }
        // A run that was killed may have the summary of the session before. `seal` leaves it out.
        Some(_) => found.push(format!("{RUN}/{SUMMARY} and {RUN}/{} differ in the status", run_dir::MANIFEST)),
        None => {}
    }
    let plan = stored_plan::read(&run)?;
    let of_plan = (&plan.hash, plan.totals.steps, &DataHashes::from(&plan.data));
    if of_plan != (&manifest.plan_hash, manifest.steps, &manifest.data) {
        let record = run_dir::MANIFEST;
        found.push(format!(
            "{RUN}/{record} and {RUN}/{PLAN} differ in the hash of the plan, its steps, or the hashes of the data"
        ));
    }
    if !changed_descriptions(&run, &manifest)?.is_empty() {
        found.push(format!("{RUN}/{} has hashes that are not those of {RESOLVED} and {PLAN}", run_dir::MANIFEST));
    }
    let id = run_dir::base_id(&manifest.name, &manifest.plan_hash);
    let is_named = manifest.id.strip_prefix(&id).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    if seal.run != manifest.id || !is_named {
        found.push(format!("{MANIFEST} and {RUN}/{} differ in the id of the run", run_dir::MANIFEST));
    }
    let checkpoints = run.join(CHECKPOINTS);
    if let Some((step, _)) = seal.state() {
        found.extend(state_contradictions(&run, step, &plan, manifest.continued_from.is_none())?);
    }
    found.extend(checkpoint::find_damage_of_newest(&checkpoints)?.map(|damage| damage.to_string()));
    found.extend(find_damage_of_metrics(&run, &manifest, summary.as_ref())?);
    if seal.is_of_this_program(host) && found.is_empty() {
        let path = folder.join(CARD);
        let card = read_regular_text(&path).map_err(CommandError::io(format!("reading {}", path.display())))?;
        if card != model_card(folder, seal)? {
            found.push(format!("{CARD} is not the card of this record"));
        }
    }
    Ok(found)
}

/// What is wrong with the evaluations and the position in the data that the checkpoint of `step` of the run in `run` records. `is_whole` is true if
/// the run has no steps of another one, whose evaluations it may lack.
fn state_contradictions(run: &Path, step: u64, plan: &Plan, is_whole: bool) -> Result<Option<String>> {
    let Some(saved) = checkpoint::recorded_position(&run.join(CHECKPOINTS), step) else {
        return Ok(Some(format!("the checkpoint of step {step} cannot be read")));
    };
    let mut losses = Vec::new();
    for_each_metric(&run.join(METRICS), &mut |line| match line {
        MetricLine::Eval(line) if line.step <= step => losses.extend(line.val_loss.map(|loss| (line.step, loss))),
        _ => {}
    })?;
    let best = losses.iter().copied().min_by(|(_, a), (_, b)| a.total_cmp(b));
    let own = losses.iter().find(|(of, _)| *of == step).map(|(_, loss)| *loss);
    let saved_best = saved.best.map(|best| (best.step, best.val_loss));
    let is_known = own.is_some() || is_whole;
    let is_equal = (!is_known || saved.val_loss.is_none_or(|loss| Some(loss) == own))
        && (!is_whole || saved_best.is_none_or(|saved| Some(saved) == best));
    if saved.data.is_some() && saved.data != plan.row_sequence().map(|rows| rows.position_after(step)) {
        return Ok(Some(format!("the checkpoint of step {step} and {RUN}/{PLAN} differ in the position in the data")));
    }
    Ok((!is_equal).then(|| format!("the checkpoint of step {step} and {RUN}/{METRICS} differ in the validation loss")))
}

/// What the record of the sealed run in `folder` has beyond what this program writes, a sentence each.
pub(super) fn foreign_content(folder: &Path, seal: &SealManifest) -> Result<Vec<String>> {
    let run = folder.join(RUN);
    let path = run.join(RESOLVED);
    let text = read_regular_text(&path).map_err(CommandError::io(format!("reading {}", path.display())))?;
    let mut found = find_foreign_content(&run, seal.state().map(|(step, _)| step))?;
    if text != runner_config::to_yaml(&resolved_experiment(&run)?) {
        found.push(RESOLVED.to_owned());
    }
    Ok(found
        .into_iter()
        .map(|name| format!("{RUN}/{name} has more than runner writes, such as comments or other keys"))
        .collect())
}

/// How the record of the sealed run in `run` differs from that of `copy`, in which steps were trained again.
#[derive(Debug, Default)]
pub(super) struct RecordDifferences {
    /// What the same program would have written, a sentence each.
    pub(super) contradictions: Vec<String>,
    /// What another machine may plan differently, or the steps that were trained again do not reach, a sentence each.
    pub(super) not_verified: Vec<String>,
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

impl RecordDifferences {
    /// Compares `run` with `copy`, which has the steps that `trained` names.
    pub(super) fn find(run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<Self> {
        let mut found = Self::default();
        found.compare_plans(run, copy)?;
        found.compare_data(run, copy)?;
        found.compare_samples(run, copy, trained)?;
        found.compare_summaries(run, copy, trained)?;
        if fs::read(run.join(TOKENIZER)).ok() != fs::read(copy.join(TOKENIZER)).ok() {
            found.contradictions.push(format!("{RUN}/{TOKENIZER} is not the tokenizer that these settings lead to"));
        }
        Ok(found)
    }

    fn compare_plans(&mut self, run: &Path, copy: &Path) -> Result<()> {
        /// What no machine plans differently.
        const COMMON: [&str; 4] = ["math_hash", "experiment_name", "totals", "data"];
        let [sealed, planned]: [Value; 2] = [read_plan(&run.join(PLAN))?, read_plan(&copy.join(PLAN))?];
        let mut differing = BTreeSet::new();
        add_differing_keys(&sealed, &planned, "", &mut differing);
        let is_common = |key: &String| COMMON.contains(&key.split('.').next().unwrap_or(key));
        let (common, others): (Vec<String>, Vec<String>) = differing.into_iter().partition(is_common);
        for key in common {
            let key = quoted_line(&key);
            self.contradictions
                .push(format!("`{key}` in {RUN}/{PLAN} differs from what is planned from {RUN}/{RESOLVED}"));
        }
        if !others.is_empty() {
            let others = others.iter().map(|key| format!("`{}`", quoted_line(key))).collect::<Vec<_>>().join(", ");
            self.not_verified.push(format!(
                "{others} in {RUN}/{PLAN}: planned for this machine and its threads, the plan differs there"
            ));
        }
        Ok(())
    }

    /// Compares the files of the data, wherever they are now.
    fn compare_data(&mut self, run: &Path, copy: &Path) -> Result<()> {
        let contents = |run: &Path| -> Result<Vec<_>> {
            let files = read_data_files(run)?.unwrap_or_default();
            Ok(files.into_iter().map(|file| (file.part.name(), file.bytes, file.hash)).collect())
        };
        if contents(run)? != contents(copy)? {
            self.contradictions.push(format!("{RUN}/{DATA} does not list the files that these settings read"));
        }
        Ok(())
    }

    fn compare_samples(&mut self, run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<()> {
        let is_trained = |step: u64| step <= trained.to_step && (step > trained.from_step || trained.from_step == 0);
        let samples = |run: &Path| -> Result<Vec<SampleText>> {
            let mut samples = Vec::new();
            for_each_record(&run.join(SAMPLES), &mut |sample: SampleText| samples.push(sample))?;
            samples.retain(|sample| is_trained(sample.step));
            Ok(samples)
        };
        if samples(run)? != samples(copy)? {
            let text = format!("{RUN}/{SAMPLES} does not have the samples of these steps");
            // Rounding may change a token.
            if trained.first_bits.is_none() { &mut self.contradictions } else { &mut self.not_verified }.push(text);
        }
        Ok(())
    }

    /// Compares the hashes of the last state, and the results on the test data.
    fn compare_summaries(&mut self, run: &Path, copy: &Path, trained: &ReproductionVerdict) -> Result<()> {
        // Equal bits of every number leave no room for a different result.
        let tolerance = trained.first_bits.as_ref().map_or(0.0, |_| trained.tolerance);
        let [sealed, again] = [run, copy].map(run_dir::read_summary);
        let (sealed, again) = (sealed?.unwrap_or_default(), again?.unwrap_or_default());
        // States that are divided among other ranks have other hashes.
        if sealed.final_hash.is_some()
            && sealed.final_hash == again.final_hash
            && sealed.weights_hash != again.weights_hash
        {
            self.contradictions.push(format!("{RUN}/{SUMMARY} has a hash of weights that these steps do not lead to"));
        }
        let (sealed, again) = (sealed.test, again.test);
        let Some(sealed) = sealed else {
            if again.is_some() {
                self.contradictions.push(format!("{RUN}/{SUMMARY} lacks the result on the test data"));
            }
            return Ok(());
        };
        let Some(again) = again else {
            self.not_verified
                .push("the test loss: it is measured at the end of a run, and these steps end before it".to_owned());
            return Ok(());
        };
        let is_near = |a: Option<f64>, b: Option<f64>, allowed: f64| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() <= allowed,
            // Older versions recorded less.
            (a, _) => a.is_none(),
        };
        let allowed = tolerance * sealed.loss;
        let of_error = allowed / (sealed.rows.unwrap_or(1).max(1) as f64).sqrt();
        let is_equal = (sealed.step, sealed.tokens) == (again.step, again.tokens)
            && (sealed.rows.is_none() || sealed.rows == again.rows)
            && is_near(Some(sealed.loss), Some(again.loss), allowed)
            && is_near(Some(sealed.perplexity.ln()), Some(again.perplexity.ln()), allowed)
            && is_near(sealed.bits_per_byte, again.bits_per_byte, tolerance * sealed.bits_per_byte.unwrap_or(0.0))
            && is_near(sealed.standard_error, again.standard_error, of_error);
        if !is_equal {
            let (of_seal, of_copy) = (sealed.loss, again.loss);
            self.contradictions
                .push(format!("{RUN}/{SUMMARY} and the steps that were trained again differ in the result on the test data (loss {of_seal} and {of_copy})"));
        }
        Ok(())
    }
}
