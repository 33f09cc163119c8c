//! What has changed since a run was made: its own files, data, program and machine.

use std::env;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::continued::differences;
use super::ready::Ready;
use crate::plan::Plan;
use crate::report::format::printable;
use crate::store::manifest::{DataHashes, Manifest};
use crate::store::run_dir::RESOLVED;
use crate::store::{Git, Machine, stored_plan};

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Item {
    what: &'static str,
    changed: bool,
    /// Whether a change may change numbers.
    counts: bool,
    was: String,
    is: String,
}

/// All that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Drift {
    items: Vec<Item>,
}

impl Drift {
    /// Of the run in `path`, which `ready` is about to do again with `threads`.
    ///
    /// # Errors
    /// If the run's own plan cannot be read or made again.
    pub(super) fn of(path: &Path, manifest: &Manifest, ready: &Ready, threads: usize) -> anyhow::Result<Self> {
        let mut items = vec![plan(path, manifest)?];
        let mut item = |what, counts, was: String, is: String| {
            items.push(Item { what, changed: was != is, counts, was, is });
        };
        let (was, is) = (&manifest.data, DataHashes::from(&ready.prepared.facts));
        let absent = || "none".to_owned();
        let hash = |hash: &Option<String>| hash.as_ref().map_or_else(absent, |hash| short(hash));
        item("tokenizer", true, short(&was.tokenizer), short(&is.tokenizer));
        item("training data", true, short(&was.train), short(&is.train));
        item("validation data", true, hash(&was.validation), hash(&is.validation));
        item("multiple choice", true, hash(&was.choice), hash(&is.choice));
        item("program", true, manifest.version.clone(), env!("CARGO_PKG_VERSION").to_owned());
        let here = Machine::here();
        let processor = |m: &Machine| m.cpu.clone().unwrap_or_else(|| m.arch.clone());
        item("processor", true, processor(&manifest.machine), processor(&here));
        let devices: Vec<String> = ready.plan.ranks.iter().map(|rank| rank.device.to_string()).collect();
        item("devices", true, manifest.devices.join(" "), devices.join(" "));
        // Any number of threads gives the same bits; the folder's commit is that of the experiments, not of the program.
        item("threads", false, manifest.threads.to_string(), threads.to_string());
        let git = |git: &Option<Git>| match git {
            Some(git) if git.dirty => format!("{}, with changes", short(&git.commit)),
            Some(git) => short(&git.commit),
            None => "no repository".to_owned(),
        };
        let now = env::current_dir().ok().and_then(|folder| Git::of(&folder));
        item("git", false, git(&manifest.git), git(&now));
        Ok(Self { items })
    }

    /// Whether something changed that may change numbers.
    pub(super) fn counts(&self) -> bool {
        self.items.iter().any(|item| item.changed && item.counts)
    }

    /// What changed and counts, one line each.
    pub(super) fn changes(&self) -> Vec<String> {
        let changed = self.items.iter().filter(|item| item.changed && item.counts);
        changed.map(|item| format!("{}: {}, was {}", item.what, item.is, item.was)).collect()
    }

    /// One line for each thing.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |item: &Item| {
            let (what, is) = (item.what, printable(&item.is));
            match (item.changed, item.counts) {
                (false, _) => format!("drift  {what:16} same     {is}"),
                (true, true) => format!("drift  {what:16} changed  {is}, was {}", printable(&item.was)),
                (true, false) => {
                    format!("drift  {what:16} other    {is}, was {} (no number depends on it)", printable(&item.was))
                }
            }
        };
        self.items.iter().map(line).collect()
    }
}

/// Whether the run's `resolved.yaml` still makes the plan that the run was made by.
fn plan(path: &Path, manifest: &Manifest) -> anyhow::Result<Item> {
    let rebuilt = stored_plan::compiled(path, &stored_plan::data_facts(path)?)?;
    let (was, is) = (short(&manifest.plan_hash), short(&rebuilt.hash));
    if manifest.plan_hash == rebuilt.hash {
        return Ok(Item { what: "plan", changed: false, counts: true, was, is });
    }
    let Some(written) = stored_plan::as_written(path) else {
        let is = format!("{is} (of an older version's format: its hash {was} cannot be compared)");
        return Ok(Item { what: "plan", changed: false, counts: true, was, is });
    };
    let keys = changed_keys(&written, &rebuilt);
    let keys = if keys.is_empty() { "this version plans otherwise".to_owned() } else { keys.join(", ") };
    let values = changed_values(&written, &rebuilt);
    let values = if values.is_empty() { String::new() } else { format!("; in the program {}", values.join(", ")) };
    let is = format!("{is} ({RESOLVED} makes another one: {keys}{values})");
    Ok(Item { what: "plan", changed: true, counts: true, was, is })
}

/// In what two plans differ, in the file's words.
fn changed_keys(a: &Plan, b: &Plan) -> Vec<&'static str> {
    let mut keys = differences(a, b);
    if let (Some(p), Some(q)) = (a.ranks.first().map(|r| &r.program), b.ranks.first().map(|r| &r.program)) {
        let rest = [
            ("parallel", a.mesh != b.mesh || p.chunks != q.chunks || p.buckets != q.buckets),
            ("batch.micro_batch", p.batch.micro_batch != q.batch.micro_batch),
            ("eval", p.eval != q.eval || p.start != q.start || p.periodic != q.periodic),
            ("device", p.device != q.device),
        ];
        keys.extend(rest.into_iter().filter(|(_, differ)| *differ).map(|(key, _)| key));
    }
    keys
}

/// The first few numbers and words of the first rank's program that differ, by their place in it.
fn changed_values(a: &Plan, b: &Plan) -> Vec<String> {
    const SHOWN: usize = 4;
    let program = |plan: &Plan| plan.ranks.first().and_then(|rank| serde_json::to_value(&rank.program).ok());
    let (Some(a), Some(b)) = (program(a), program(b)) else { return Vec::new() };
    let mut out = Vec::new();
    walk("", &a, &b, &mut out);
    if out.len() > SHOWN {
        let more = out.len() - SHOWN;
        out.truncate(SHOWN);
        out.push(format!("{more} more"));
    }
    out
}

fn walk(at: &str, a: &Value, b: &Value, out: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            for (key, value) in a {
                let dot = if at.is_empty() { "" } else { "." };
                walk(&format!("{at}{dot}{key}"), value, &b[key], out);
            }
        }
        // Lists of instructions are long, and follow from the rest; so do costs.
        (Value::Array(_), Value::Array(_)) => {}
        _ if at.starts_with("flops") || at.starts_with("peak_flops") || a == b => {}
        _ => out.push(format!("{at} {b}, was {a}")),
    }
}

fn short(hash: &str) -> String {
    hash.chars().take(16).collect()
}
