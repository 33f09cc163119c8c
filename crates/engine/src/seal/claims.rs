//! What the files of a sealed run say, compared with its manifest and with one another.

use std::collections::BTreeSet;
use std::path::Path;

use runner_compare::stored_plan::resolved_experiment;
use runner_compare::verdict::OriginalRun;
use runner_files::read_regular_text;
use runner_prepare::Host;
use runner_record::checkpoint;
use runner_record::manifest::Manifest;
use runner_record::record_check::find_damage_of_metrics;
use runner_record::run_dir::{self, CHECKPOINTS, METRICS, RESOLVED, SUMMARY};
use runner_record::summary::Summary;
use runner_spec::error::{CommandError, Result};

use super::card::model_card;
use super::create::{COPIED, is_written};
use super::manifest::{CARD, MANIFEST, RUN, SealManifest, state_bytes};

/// True if this program sealed the run. A different version may write the card in other words, or count differently.
pub(super) fn is_sealed_by_this_program(seal: &SealManifest, host: &Host) -> bool {
    seal.version == env!("CARGO_PKG_VERSION") && seal.source_hash == host.build.source_hash
}

/// The files that the manifest lists and that `seal` does not write, a sentence each.
fn unexpected_files(seal: &SealManifest) -> Vec<String> {
    let state = seal.state.as_ref().map(|state| format!("{CHECKPOINTS}/{}/", checkpoint::dir_name(state.step)));
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
    let facts = [
        ("the number of steps", summary.steps == again.steps),
        ("the tokens", summary.tokens == again.tokens && summary.own().tokens == again.own().tokens),
        ("the last training loss", summary.final_train_loss == again.final_train_loss),
        ("the last evaluation", summary.last_eval == again.last_eval),
        ("the best evaluation", summary.best_eval == again.best_eval),
        ("the medians", summary.medians == again.medians),
    ];
    let differing = facts.into_iter().filter(|(_, is_equal)| !is_equal);
    Ok(differing.map(|(what, _)| format!("{RUN}/{SUMMARY} and {RUN}/{METRICS} differ in {what}")).collect())
}

/// What the files of the sealed run in `folder` say that contradicts its manifest, or one another.
pub(super) fn contradictions(folder: &Path, seal: &SealManifest, host: &Host) -> Result<Vec<String>> {
    let run = folder.join(RUN);
    let manifest = run_dir::read_manifest(&run)?;
    let summary = run_dir::read_summary(&run)?;
    let mut found = unexpected_files(seal);
    let mut paths = BTreeSet::new();
    let twice = seal.files.iter().find(|file| !paths.insert(&file.path));
    found.extend(twice.map(|file| format!("{MANIFEST} lists {} twice", file.path)));
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
    let final_hash = summary.as_ref().and_then(|summary| summary.final_hash.as_ref());
    // The last step decides which steps count as not verified.
    let steps = OriginalRun::read(&run, &manifest, summary.clone())?.last_step();
    for (what, is_equal) in [
        ("the id of the run", seal.run == manifest.id),
        ("the hash of the plan", seal.plan_hash == manifest.plan_hash),
        ("the status", seal.status == manifest.status),
        ("the last step", seal.steps == steps),
        ("the hashes of the data", seal.data == manifest.data),
        ("the hash of the state after the last step", seal.final_hash.as_ref() == final_hash),
    ] {
        if !is_equal {
            found.push(format!("{MANIFEST} and {RUN}/{} differ in {what}", run_dir::MANIFEST));
        }
    }
    let checkpoints = run.join(CHECKPOINTS);
    if let Some(state) = &seal.state {
        let recorded = checkpoint::recorded_hash(&checkpoints, state.step);
        if recorded.is_none_or(|hash| hash.state != state.state_hash) {
            found.push(format!("{MANIFEST} and the checkpoint of step {} differ in the hash of the state", state.step));
        }
        if state.bytes != state_bytes(&seal.files) {
            found.push(format!("{MANIFEST} contradicts itself in the size of the state"));
        }
    }
    let hash = checkpoint::recorded_hash(&checkpoints, seal.weights.step);
    if hash.is_some_and(|hash| seal.weights.contradicts(&hash, true)) {
        found.push(format!(
            "{MANIFEST} and the checkpoint of step {} differ in the hashes of the weights",
            seal.weights.step
        ));
    }
    found.extend(checkpoint::find_damage_of_newest(&checkpoints)?.map(|damage| damage.to_string()));
    found.extend(find_damage_of_metrics(&run, &manifest, summary.as_ref())?);
    if is_sealed_by_this_program(seal, host) && found.is_empty() {
        let path = folder.join(CARD);
        let card = read_regular_text(&path).map_err(CommandError::io(format!("reading {}", path.display())))?;
        if card != model_card(folder, seal)? {
            found.push(format!("{CARD} is not the card of this record"));
        }
    }
    Ok(found)
}

/// What is wrong if `resolved.yaml` of the run in `run`, which the card shows, has more than its settings, such as comments.
pub(super) fn describe_free_text(run: &Path) -> Result<Option<String>> {
    let path = run.join(RESOLVED);
    let text = read_regular_text(&path).map_err(CommandError::io(format!("reading {}", path.display())))?;
    let is_plain = text == runner_config::to_yaml(&resolved_experiment(run)?);
    Ok((!is_plain).then(|| format!("{RUN}/{RESOLVED} has more than its settings, such as comments")))
}
