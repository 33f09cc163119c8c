//! The page that `runner runs show` prints about a run.

use std::path::Path;

use super::runs_table::origin;
use super::summary::{details, short_time};
use super::table::name_value_lines;
use runner_machine::host::Machine;
use runner_record::ancestry::Ancestor;
use runner_record::catalog::{ListedRun, ListedStatus};
use runner_record::manifest::{ContinuedFrom, Manifest, Session};
use runner_record::summary::Summary;
use runner_spec::format::{bytes, choice_name, count, counted, loss, printable, rate, seconds, short_hash};
use runner_spec::measure::MeasureForm;
use runner_spec::mesh::Mesh;

/// Everything about one run. `summary` is that of the run's present state, `checkpoints` are the steps that can be resumed or
/// sampled from. If the run is a point of a sweep, `point_values` are the point's values.
pub fn run_page(
    listed: &ListedRun,
    manifest: &Manifest,
    summary: Option<&Summary>,
    checkpoints: &[u64],
    ancestors: &[Ancestor],
    point_values: Option<&str>,
) -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: Option<String>| rows.extend(value.map(|value| (name.to_owned(), value)));
    row("folder", Some(listed.path.display().to_string()));
    row("experiment", Some(with_overrides(&manifest.experiment_file, &manifest.overrides)));
    row("plan", Some(manifest.plan_hash.clone()));
    let shard = manifest.sessions.last().and_then(|session| session.layout.as_ref()?.parallel.shard);
    let shard = shard.map_or_else(String::new, |shard| format!(", shard: {}", choice_name(&shard)));
    row("layout", manifest.layout.map(|mesh| describe_layout(mesh) + &shard));
    row("continues", manifest.continued_from.as_ref().map(describe_beginning));
    let values = point_values.map_or_else(String::new, |values| format!(" ({values})"));
    row("tags", (!listed.tags.is_empty()).then(|| listed.tags.join(" ")));
    row("sweep", listed.sweep.as_ref().map(|point| format!("{}, point {}{values}", point.id, point.point)));
    row("from", listed.origin.as_ref().map(|_| origin(listed)));
    let own =
        |own: String| if manifest.continued_from.is_some() { format!(" ({own} in this run)") } else { String::new() };
    let done = format!("{} of {}", count(listed.step), count(listed.steps));
    row("steps", Some(done + &own(count(listed.own_steps))));
    if let (Some(tokens), Some(own_tokens)) = (listed.tokens, listed.own_tokens) {
        row("tokens", Some(count(tokens) + &own(count(own_tokens))));
    }
    if let (Some(time), Some(own_time)) = (listed.seconds, listed.own_seconds) {
        row("time", Some(seconds(time) + &own(seconds(own_time))));
    }
    row("started", Some(short_time(&manifest.started)));
    row("ended", manifest.ended.as_deref().map(short_time));
    if summary.is_none() {
        row("train loss", listed.loss.map(loss));
        let losses = listed.last_eval.losses().filter(|loss| loss.measure.form() == MeasureForm::Loss);
        losses.for_each(|loss| row(loss.measure.label(), Some(loss.number())));
        row("speed", listed.tokens_per_second.map(|speed| format!("{} tokens/s", rate(speed))));
        row("error", listed.error.clone());
    }
    let steps: Vec<String> = checkpoints.iter().map(ToString::to_string).collect();
    let steps = match listed.status {
        _ if !steps.is_empty() => format!("steps {}", steps.join(", ")),
        ListedStatus::Done => "none: they were deleted".to_owned(),
        _ => "none".to_owned(),
    };
    row("checkpoints", Some(steps));
    for (name, value) in &manifest.environment {
        row("environment", Some(format!("{name}={value}")));
    }
    let [train, tokenizer] = [&manifest.data.train, &manifest.data.tokenizer].map(|hash| short_hash(hash));
    row("data", Some(format!("train {train}  tokenizer {tokenizer}")));
    row("machine", Some(describe_machine(&manifest.machine)));
    let uncommitted = |dirty: bool| if dirty { ", with uncommitted changes" } else { "" };
    row("git", manifest.git.as_ref().map(|git| format!("{}{}", git.commit, uncommitted(git.dirty))));
    for rank in summary.iter().flat_map(|s| &s.ranks) {
        let peak = rank.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), bytes);
        let planned = bytes(rank.planned_memory_bytes);
        let place = format!("stage {}  replica {}  memory peak {peak}  planned {planned}", rank.stage, rank.replica);
        row(&format!("rank {}", rank.rank), Some(place));
    }
    let has_moved = manifest.sessions.windows(2).any(|pair| pair[0].layout != pair[1].layout);
    for (i, session) in manifest.sessions.iter().enumerate() {
        let layout = session.layout.as_ref().filter(|_| has_moved);
        let layout = layout.map_or_else(String::new, |layout| format!("  {}", layout.describe()));
        row(&format!("session {}", i + 1), Some(describe_session(session) + &layout));
        // The error of the last session is that of the run.
        let is_last = i + 1 == manifest.sessions.len();
        row("", session.error.as_ref().filter(|_| !is_last).map(|error| format!("failed: {error}")));
    }
    row("state hash", summary.and_then(|s| s.final_hash.clone()));
    for ancestor in ancestors {
        row("ancestor", Some(ancestor.describe()));
    }
    let rows = rows.iter().map(|(name, value)| (name.as_str(), printable(value)));
    let details = summary.map_or_else(String::new, details);
    format!("{}  {}\n{details}{}", printable(&listed.id), listed.status.description(), name_value_lines(rows))
}

fn with_overrides(file: &Path, overrides: &[String]) -> String {
    let sets: Vec<String> = overrides.iter().map(|set| format!("  --set {set}")).collect();
    format!("{}{}", file.display(), sets.concat())
}

/// `lab-0a1b2c3d after step 20, without its validation losses (eval.loss reads 32 rows, read 8)`.
fn describe_beginning(from: &ContinuedFrom) -> String {
    let omitted = match from.omitted_evaluations.as_slice() {
        [] => String::new(),
        omitted => format!(", without its {}", omitted.join(" and ")),
    };
    format!("{} after step {}{omitted}", from.id, count(from.step))
}

/// `pipeline, 2 stages · 2 replicas = 4 ranks`.
fn describe_layout(mesh: Mesh) -> String {
    let mode = format!("{:?}", mesh.mode).to_lowercase();
    match (mesh.stages, mesh.replicas) {
        (1, 1) => format!("{mode}, 1 rank"),
        (1, replicas) => format!("{mode}, {replicas} replicas = {replicas} ranks"),
        (stages, 1) => format!("{mode}, {stages} stages = {stages} ranks"),
        (stages, replicas) => format!("{mode}, {stages} stages · {replicas} replicas = {} ranks", stages * replicas),
    }
}

fn describe_session(s: &Session) -> String {
    let to = s.to_step.map_or_else(|| "…".to_owned(), count);
    let git = s.commit.as_ref().map_or_else(String::new, |commit| format!("  git {}", short_hash(commit)));
    let restarts = match s.restarts {
        0 => String::new(),
        1 => "  restarted once".to_owned(),
        n => format!("  restarted {n} times"),
    };
    let started = short_time(&s.started);
    let (from, threads) = (count(s.from_step), counted(s.threads as u64, "thread"));
    let products = s.platform.as_ref().and_then(|platform| platform.bf16_matmul_instructions.as_ref());
    let products = products.map_or_else(String::new, |name| format!("  bf16 products {name}"));
    format!("{started}  steps {from}–{to}  {threads}  runner {}{git}{products}{restarts}", s.version)
}

fn describe_machine(m: &Machine) -> String {
    let limit = m.memory_limit.as_ref();
    let limit =
        limit.map_or_else(String::new, |limit| format!(" limited to {} by {}", bytes(limit.bytes), limit.source));
    let memory = m.memory_bytes.map_or_else(String::new, |m| format!(", {}{limit}", bytes(m)));
    let cores = counted(m.cores as u64, "core");
    format!("{} ({cores}{memory}), {}", m.cpu.as_deref().unwrap_or(&m.arch), m.os)
}
