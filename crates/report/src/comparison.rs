//! Several runs as a table: the settings in which they differ, and how well they did.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use console::style;
use serde::Serialize;
use serde_json::Value;

use crate::table::{Align, table};
use runner_lab::compare::keys::{CHOICES, SettingGroup, is_choice, settings, shown};
use runner_lab::compare::record::{RunFigures, RunRecord};
use runner_spec::experiment::Experiment;
use runner_spec::format::{bytes, count, percent, printable, rate, seconds};

/// One run of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub id: String,
    pub status: &'static str,
    /// Of the settings in which the runs differ; one that the run does not have is left out.
    pub settings: BTreeMap<String, Value>,
    #[serde(rename = "outcomes")]
    pub figures: RunFigures,
}

/// Several runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// The settings in which they differ, by group and name.
    pub differing: Vec<String>,
    pub runs: Vec<Row>,
}

/// A column of outcomes: its name, and on which side of a comparison the better value is.
struct Outcome {
    key: &'static str,
    head: &'static str,
    /// Whether less is better; `None`: neither is.
    less: Option<bool>,
    of: fn(&RunFigures) -> Option<f64>,
    show: fn(f64) -> String,
}

const fn outcome(
    key: &'static str,
    head: &'static str,
    less: Option<bool>,
    of: fn(&RunFigures) -> Option<f64>,
    show: fn(f64) -> String,
) -> Outcome {
    Outcome { key, head, less, of, show }
}

fn four(x: f64) -> String {
    format!("{x:.4}")
}

const OUTCOMES: [Outcome; 9] = [
    outcome("steps", "steps", None, |f| Some(f.steps as f64), |x| count(x as u64)),
    outcome("train_loss", "train loss", Some(true), |f| f.train_loss, four),
    outcome("best_val_loss", "best val", Some(true), |f| f.best_val_loss, four),
    outcome("val_loss", "val loss", Some(true), |f| f.val_loss, four),
    outcome("hellaswag_acc", "acc", Some(false), |f| f.hellaswag_acc, percent),
    outcome("hellaswag_acc_norm", "acc_norm", Some(false), |f| f.hellaswag_acc_norm, percent),
    outcome("tokens_per_second", "tokens/s", Some(false), |f| f.tokens_per_second, rate),
    outcome("peak_memory_bytes", "memory", Some(true), |f| f.peak_memory_bytes.map(|b| b as f64), |x| bytes(x as u64)),
    outcome("wall_seconds", "time", Some(true), |f| f.wall_seconds, seconds),
];

/// The table of `runs`.
#[must_use]
pub fn compare(runs: &[(RunRecord, Experiment)]) -> Table {
    let all: Vec<BTreeMap<String, Value>> = runs.iter().map(|(_, experiment)| settings(experiment)).collect();
    let mut keys: Vec<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|key| all.iter().any(|one| one.get(*key) != all.first().and_then(|first| first.get(*key))));
    keys.sort_by_key(|key| (SettingGroup::of(key), (*key).clone()));
    let differing: Vec<String> = keys.into_iter().cloned().collect();
    let row = |((record, _), settings): (&(RunRecord, Experiment), &BTreeMap<String, Value>)| Row {
        id: record.manifest.id.clone(),
        status: record.standing.as_str(),
        settings: differing.iter().filter_map(|key| Some((key.clone(), settings.get(key)?.clone()))).collect(),
        figures: record.figures(),
    };
    Table { runs: runs.iter().zip(&all).map(row).collect(), differing }
}

impl Table {
    /// What `sort` takes.
    #[must_use]
    pub fn sort_keys(&self) -> Vec<&str> {
        let outcomes = OUTCOMES.iter().map(|o| o.key);
        std::iter::once("id").chain(outcomes).chain(self.differing.iter().map(String::as_str)).collect()
    }

    /// Orders the runs by `key`: outcomes from the best, others from the least; runs without it last. `None` if there is no
    /// such key.
    #[must_use]
    pub fn sorted(mut self, key: &str) -> Option<Self> {
        if key == "id" {
            self.runs.sort_by(|a, b| a.id.cmp(&b.id));
        } else if let Some(outcome) = OUTCOMES.iter().find(|o| o.key == key) {
            let rank = |row: &Row| {
                let value = (outcome.of)(&row.figures);
                value.map_or(f64::INFINITY, |v| if outcome.less == Some(false) { -v } else { v })
            };
            self.runs.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
        } else if self.differing.iter().any(|k| k == key) {
            let number = |row: &Row| row.settings.get(key).and_then(Value::as_f64).unwrap_or(f64::INFINITY);
            let text = |row: &Row| row.settings.get(key).map(shown);
            self.runs.sort_by(|a, b| number(a).total_cmp(&number(b)).then_with(|| text(a).cmp(&text(b))));
        } else {
            return None;
        }
        Some(self)
    }

    /// The table as lines; the best value of each column is marked with `*`.
    #[must_use]
    pub fn text(&self) -> String {
        // Names are in the ids, and other bookkeeping says nothing of how well a run did.
        let (mut kept, hidden): (Vec<&String>, Vec<&String>) =
            self.differing.iter().partition(|key| SettingGroup::of(key) != SettingGroup::Bookkeeping);
        kept.retain(|key| !self.follows(key));
        let heads: Vec<String> = kept.iter().map(|key| printable(&short(key, &kept))).collect();
        let outcomes: Vec<&Outcome> =
            OUTCOMES.iter().filter(|o| self.runs.iter().any(|run| (o.of)(&run.figures).is_some())).collect();
        let mut columns = vec![("run", Align::Left)];
        columns.extend(heads.iter().map(|head| (head.as_str(), Align::Right)));
        columns.extend(outcomes.iter().map(|o| (o.head, Align::Right)));
        let best: Vec<Option<f64>> = outcomes.iter().map(|o| self.best(o)).collect();
        let rows: Vec<Vec<String>> = self
            .runs
            .iter()
            .map(|run| {
                let mut cells = vec![printable(&run.id)];
                cells.extend(kept.iter().map(|key| {
                    let value = run.settings.get(*key).map_or_else(|| "-".to_owned(), shown);
                    printable(&ended(&value))
                }));
                cells.extend(outcomes.iter().zip(&best).map(|(o, best)| match (o.of)(&run.figures) {
                    None => "-".to_owned(),
                    Some(value) if Some(value) == *best => style(format!("*{}", (o.show)(value))).green().to_string(),
                    Some(value) => (o.show)(value),
                }));
                cells
            })
            .collect();
        let mut out = table(&columns, &rows);
        let hidden: Vec<&str> = hidden.into_iter().map(String::as_str).filter(|key| *key != "name").collect();
        if !hidden.is_empty() {
            let _ = writeln!(out, "they differ in bookkeeping, too: {}", hidden.join(", "));
        }
        out
    }

    /// Whether `key` is there because of a choice alone: some runs have chosen otherwise, and the others have the same.
    fn follows(&self, key: &str) -> bool {
        let chosen = |choice: &str| key.strip_prefix(choice).is_some_and(|rest| rest.starts_with('.'));
        if !CHOICES.into_iter().chain(["parallel.pipeline"]).any(chosen) && key != "parallel.pipeline" {
            return false;
        }
        let mut values = self.runs.iter().map(|run| run.settings.get(key));
        let absent = values.clone().any(|value| value.is_none());
        let mut present = values.by_ref().flatten();
        let first = present.next();
        absent && present.all(|value| Some(value) == first)
    }

    /// The best value of a column, if some value is worse.
    fn best(&self, outcome: &Outcome) -> Option<f64> {
        let less = outcome.less?;
        let values = || self.runs.iter().filter_map(|run| (outcome.of)(&run.figures));
        let (low, high) = (values().min_by(f64::total_cmp)?, values().max_by(f64::total_cmp)?);
        if low == high {
            return None;
        }
        Some(if less { low } else { high })
    }
}

/// The end of `key` that no other of `keys` has: `lr` for `optimizer.adamw.lr`.
fn short(key: &str, keys: &[&String]) -> String {
    if is_choice(key) {
        return key.to_owned();
    }
    let mut from = key.len();
    while let Some(dot) = key[..from].rfind('.') {
        let end = &key[dot + 1..];
        let others = keys.iter().filter(|k| k.as_str() != key);
        // The table has columns of its own.
        let own = end == "run" || OUTCOMES.iter().any(|o| o.head == end);
        if !own && !others.into_iter().any(|k| k.as_str() == end || k.ends_with(&key[dot..])) {
            return end.to_owned();
        }
        from = dot;
    }
    key.to_owned()
}

/// A long value by its end: paths differ there.
fn ended(text: &str) -> String {
    const MOST: usize = 28;
    let length = text.chars().count();
    if length <= MOST {
        text.to_owned()
    } else {
        format!("…{}", text.chars().skip(length - MOST + 1).collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, lr: f64, val_loss: Option<f64>) -> Row {
        let figures = RunFigures { steps: 10, val_loss, tokens_per_second: Some(1000.0 / lr), ..RunFigures::default() };
        let settings = BTreeMap::from([("optimizer.adamw.lr".to_owned(), Value::from(lr))]);
        Row { id: id.to_owned(), status: "done", settings, figures }
    }

    fn three() -> Table {
        let runs = vec![row("c", 1.0, Some(2.5)), row("a", 10.0, None), row("b", 2.0, Some(1.5))];
        Table { differing: vec!["optimizer.adamw.lr".to_owned()], runs }
    }

    #[test]
    fn the_best_of_each_column_is_marked() {
        insta::assert_snapshot!(three().text(), @r"
        run    lr  steps  val loss  tokens/s
        c     1.0     10    2.5000    *1,000
        a    10.0     10         -       100
        b     2.0     10   *1.5000       500
        ");
    }

    #[test]
    fn runs_are_sorted_from_the_best_and_those_without_come_last() {
        let ids = |key| three().sorted(key).map(|t| t.runs.iter().map(|r| r.id.clone()).collect::<String>());
        assert_eq!(ids("val_loss").unwrap(), "bca");
        assert_eq!(ids("tokens_per_second").unwrap(), "cba");
        assert_eq!(ids("optimizer.adamw.lr").unwrap(), "cba");
        assert_eq!(ids("id").unwrap(), "abc");
        assert!(ids("vall_oss").is_none());
    }

    #[test]
    fn heads_are_the_shortest_that_are_clear() {
        let keys =
            ["optimizer.adamw.lr", "schedule.warmup.steps", "train.steps", "seed", "optimizer"].map(str::to_owned);
        let keys: Vec<&String> = keys.iter().collect();
        let heads: Vec<String> = keys.iter().map(|key| short(key, &keys)).collect();
        assert_eq!(heads, ["lr", "warmup.steps", "train.steps", "seed", "optimizer"]);
    }
}
