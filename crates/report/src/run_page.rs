//! The page that `runner runs show` prints about a run.

use std::path::Path;

use super::runs_table::origin;
use super::summary::{details, short_time};
use super::table::name_value_lines;
use runner_machine::host::Machine;
use runner_spec::format::{bytes, count, printable, rate};
use runner_spec::mesh::Mesh;
use runner_store::ancestry::Ancestor;
use runner_store::catalog::ListedRun;
use runner_store::manifest::{Manifest, Session};
use runner_store::summary::Summary;

/// Everything about one run. `summary` is that of the run's present state, `checkpoints` are the steps that can be resumed or
/// sampled from.
#[must_use]
pub fn run_page(
    listed: &ListedRun,
    manifest: &Manifest,
    summary: Option<&Summary>,
    checkpoints: &[u64],
    ancestors: &[Ancestor],
) -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("folder", listed.path.display().to_string());
    row("experiment", with_overrides(&manifest.experiment_file, &manifest.overrides));
    row("plan", manifest.plan_hash.clone());
    if let Some(layout) = manifest.layout {
        row("layout", describe_layout(layout));
    }
    if let Some(from) = &manifest.continued_from {
        row("continues", format!("{} after step {}", from.id, count(from.step)));
    }
    if !listed.tags.is_empty() {
        row("tags", listed.tags.join(" "));
    }
    if let Some(point) = &listed.sweep {
        row("sweep", format!("{}, point {}", point.id, point.point));
    }
    if listed.origin.is_some() {
        row("from", origin(listed));
    }
    row("steps", format!("{} of {}", count(listed.step), count(listed.steps)));
    row("started", short_time(&manifest.started));
    if let Some(ended) = &manifest.ended {
        row("ended", short_time(ended));
    }
    if summary.is_none() {
        if let Some(loss) = listed.loss {
            row("train loss", format!("{loss:.4}"));
        }
        if let Some(loss) = listed.val_loss {
            row("val loss", format!("{loss:.4}"));
        }
        if let Some(speed) = listed.tokens_per_second {
            row("speed", format!("{} tokens/s", rate(speed)));
        }
        if let Some(error) = &listed.error {
            row("error", error.clone());
        }
    }
    let steps: Vec<String> = checkpoints.iter().map(ToString::to_string).collect();
    row("checkpoints", if steps.is_empty() { "none yet".to_owned() } else { format!("steps {}", steps.join(", ")) });
    for (name, value) in &manifest.environment {
        row("environment", format!("{name}={value}"));
    }
    row(
        "data",
        format!("train {}  tokenizer {}", short_hash(&manifest.data.train), short_hash(&manifest.data.tokenizer)),
    );
    row("machine", describe_machine(&manifest.machine));
    if let Some(git) = &manifest.git {
        let dirty = if git.dirty { ", with uncommitted changes" } else { "" };
        row("git", format!("{}{dirty}", git.commit));
    }
    for rank in summary.iter().flat_map(|s| &s.ranks) {
        let peak = rank.peak_rss_bytes.map_or_else(|| "unknown".to_owned(), bytes);
        let planned = bytes(rank.planned_memory_bytes);
        let place = format!("stage {}  replica {}  memory peak {peak}  planned {planned}", rank.stage, rank.replica);
        row(&format!("rank {}", rank.rank), place);
    }
    for (i, session) in manifest.sessions.iter().enumerate() {
        row(&format!("session {}", i + 1), describe_session(session));
    }
    if let Some(hash) = summary.and_then(|s| s.final_hash.as_ref()) {
        row("state hash", hash.clone());
    }
    for ancestor in ancestors {
        row("ancestor", ancestor.words());
    }
    let rows = rows.iter().map(|(name, value)| (name.as_str(), printable(value)));
    let details = summary.map_or_else(String::new, details);
    format!("{}  {}\n{details}{}", printable(&listed.id), listed.status.name(), name_value_lines(rows))
}

fn with_overrides(file: &Path, overrides: &[String]) -> String {
    let sets: Vec<String> = overrides.iter().map(|set| format!("  --set {set}")).collect();
    format!("{}{}", file.display(), sets.concat())
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

fn short_hash(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}

fn describe_session(s: &Session) -> String {
    let to = s.to_step.map_or_else(|| "…".to_owned(), |step| step.to_string());
    let git = s.commit.as_ref().map_or_else(String::new, |commit| format!("  git {}", short_hash(commit)));
    let restarts = match s.restarts {
        0 => String::new(),
        1 => "  restarted once".to_owned(),
        n => format!("  restarted {n} times"),
    };
    let started = short_time(&s.started);
    format!("{started}  steps {}–{to}  {} threads  runner {}{git}{restarts}", s.from_step, s.threads, s.version)
}

fn describe_machine(m: &Machine) -> String {
    let memory = m.memory_bytes.map_or_else(String::new, |m| format!(", {}", bytes(m)));
    format!("{} ({} cores{memory}), {}", m.cpu.as_deref().unwrap_or(&m.arch), m.cores, m.os)
}
