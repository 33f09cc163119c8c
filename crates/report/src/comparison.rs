//! The table of `runner compare`: the settings in which runs differ, and their outcomes.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use console::style;
use serde::Serialize;
use serde_json::Value;

use crate::run_groups::{RunGroups, group_runs};
use crate::table::{Align, Column, table_of_width};
use runner_compare::comparability::{MeasuredQuantity, MeasurementBasis, find_incomparable, group_by_reason};
use runner_compare::plan_facts::device_kinds;
use runner_compare::run_names::{RunSettings, end_of_value, is_implied_by_choice, name_runs, shortest_name};
use runner_compare::run_record::{RunFigures, RunRecord};
use runner_compare::settings::{DATA_POSITION, SettingGroup, differing_keys, settings};
use runner_record::catalog::ListedStatus;
use runner_spec::experiment::Experiment;
use runner_spec::format::{bytes, count, counted, loss, percent, printable, rate, seconds, setting_text, significant};
use runner_sweep::verdict::Conclusion;
use runner_sweep::{PickedFrom, PickedSettings};

/// One run of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedRun {
    /// The run's folder, if another run of the table has the same id.
    pub id: String,
    /// The settings that distinguish the run from the others, and its id.
    pub name: String,
    pub status: &'static str,
    /// The run's values of the settings in which the runs differ. A setting that the run does not have is left out.
    pub settings: BTreeMap<String, Value>,
    #[serde(rename = "outcomes")]
    pub figures: RunFigures,
}

/// Several runs side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The settings in which the runs differ, by group and name.
    pub differing: Vec<String>,
    pub runs: Vec<ComparedRun>,
    /// All settings that any of the runs has.
    #[serde(skip)]
    pub keys: BTreeSet<String>,
    /// The figures that do not compare between these runs: none of their values is the best.
    pub incomparable: Vec<IncomparableFigures>,
    /// What must be known of the figures, a sentence each.
    pub notes: Vec<String>,
    /// The sweeps that trained some of the runs. All their settings count in `groups`.
    pub picked_from: Vec<PickedFrom>,
    /// The settings of the runs, compared over their seeds; `None` if there is nothing to compare, or no metric compares.
    pub groups: Option<RunGroups>,
}

/// Figures that do not compare, for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IncomparableFigures {
    /// Their keys, such as `val_loss`.
    pub figures: Vec<&'static str>,
    pub reason: String,
}

/// The direction in which a figure gets better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
    Neither,
}

use Better::{Higher, Lower, Neither};

/// One number of a run's outcome, and how it is shown.
pub(crate) struct Figure {
    /// Its key in JSON and for `--sort`.
    key: &'static str,
    /// Its name in a column of `runner compare`, which is narrow.
    head: &'static str,
    /// Its name in a line of `runner diff`.
    pub(crate) name: &'static str,
    better: Better,
    /// The quantity that it measures, if that depends on data.
    quantity: Option<MeasuredQuantity>,
    value: fn(&RunFigures) -> Option<f64>,
    format: fn(f64) -> String,
}

impl Figure {
    const fn new(
        [key, head, name]: [&'static str; 3],
        better: Better,
        value: fn(&RunFigures) -> Option<f64>,
        format: fn(f64) -> String,
    ) -> Self {
        Self { key, head, name, better, quantity: None, value, format }
    }

    const fn measuring(self, quantity: MeasuredQuantity) -> Self {
        Self { quantity: Some(quantity), ..self }
    }

    /// The figure of a run as text, if the run has it.
    pub(crate) fn text(&self, figures: &RunFigures) -> Option<String> {
        (self.value)(figures).map(self.format)
    }
}

pub(crate) const FIGURES: [Figure; 12] = [
    Figure::new(["steps"; 3], Neither, |f| Some(f.steps as f64), |x| count(x as u64)),
    // It is a mean over other rows in each step, so no value is the best.
    Figure::new(["train_loss", "train loss", "train loss"], Neither, |f| f.train_loss, loss)
        .measuring(MeasuredQuantity::TrainLoss),
    Figure::new(["best_val_loss", "best val", "best val loss"], Lower, |f| f.best_val_loss, loss)
        .measuring(MeasuredQuantity::ValidationLoss),
    Figure::new(["val_loss", "val loss", "val loss"], Lower, |f| f.val_loss, loss)
        .measuring(MeasuredQuantity::ValidationLoss),
    // Who chooses by the test has no test left, so no value is the best.
    Figure::new(["test_loss", "test loss", "test loss"], Neither, |f| f.test_loss, loss)
        .measuring(MeasuredQuantity::TestLoss),
    Figure::new(["val_bits_per_byte", "bits/byte", "bits/byte"], Lower, |f| f.val_bits_per_byte, loss)
        .measuring(MeasuredQuantity::BitsPerByte),
    Figure::new(["hellaswag_acc", "acc", "hellaswag acc"], Higher, |f| f.hellaswag_acc, percent)
        .measuring(MeasuredQuantity::MultipleChoice),
    Figure::new(["hellaswag_acc_norm", "acc_norm", "hellaswag acc_norm"], Higher, |f| f.hellaswag_acc_norm, percent)
        .measuring(MeasuredQuantity::MultipleChoice),
    Figure::new(
        ["hellaswag_acc_norm_chars", "acc_norm_chars", "hellaswag acc_norm_chars"],
        Higher,
        |f| f.hellaswag_acc_norm_chars,
        percent,
    )
    .measuring(MeasuredQuantity::MultipleChoice),
    Figure::new(["tokens_per_second", "tokens/s", "tokens/s"], Higher, |f| f.tokens_per_second, rate),
    Figure::new(
        ["peak_memory_bytes", "memory", "peak memory"],
        Lower,
        |f| f.peak_memory_bytes.map(|bytes| bytes as f64),
        |x| bytes(x as u64),
    ),
    Figure::new(["wall_seconds", "time", "wall time"], Lower, |f| f.wall_seconds, seconds),
];

/// A run to compare.
#[derive(Debug)]
pub struct RunToCompare {
    pub record: RunRecord,
    pub experiment: Experiment,
    pub basis: MeasurementBasis,
    /// What its setting computes: see [`mathematics_of_setting`](runner_compare::planned_experiment::mathematics_of_setting). `None` if it
    /// can no longer be planned.
    pub mathematics: Option<String>,
}

/// Compares `runs`.
pub fn compare(runs: &[RunToCompare]) -> Comparison {
    let all: Vec<RunSettings> = runs.iter().map(settings_and_products).collect();
    let differing = differing_keys(&all.iter().collect::<Vec<_>>());
    let ids: Vec<String> = runs.iter().map(|run| distinct_id(run, runs)).collect();
    let names = name_runs(&ids.iter().map(String::as_str).zip(&all).collect::<Vec<_>>());
    let row = |(i, (id, name)): (usize, (String, String))| ComparedRun {
        id,
        name,
        status: runs[i].record.status.name(),
        settings: differing.iter().filter_map(|key| Some((key.clone(), all[i].get(key)?.clone()))).collect(),
        figures: runs[i].record.figures(),
    };
    let compared: Vec<ComparedRun> = ids.into_iter().zip(names).enumerate().map(row).collect();
    let measured = FIGURES.iter().filter_map(|figure| {
        let has_value = |run: &ComparedRun| (figure.value)(&run.figures).is_some();
        let measured = compared.iter().zip(runs).filter(move |(run, _)| has_value(run));
        let bases = measured.map(|(run, RunToCompare { basis, .. })| (run.id.clone(), basis));
        Some((figure.key, find_incomparable(bases, figure.quantity?)))
    });
    let incomparable = group_by_reason(measured).into_iter();
    let incomparable = incomparable.map(|(reason, figures)| IncomparableFigures { figures, reason }).collect();
    let keys = all.iter().flat_map(BTreeMap::keys).cloned().collect();
    let shared: BTreeSet<String> = runs.iter().flat_map(|run| run.basis.overlap_warnings()).collect();
    let mut notes: Vec<String> = describe_samples(&compared).into_iter().chain(shared).collect();
    notes.extend(runs.iter().flat_map(|run| notes_on_figures(&run.record)));
    let picked = find_picked(runs);
    let groups = group_runs(runs, &all, &picked.origin, &mut notes);
    let has_p_values =
        groups.as_ref().is_some_and(|groups| groups.verdict.settings.iter().any(|s| s.comparison.is_some()));
    notes.extend(if has_p_values { picked.notes_on_p_values() } else { picked.notes() });
    notes.extend(groups.iter().flat_map(|groups| groups.describe_other_objectives(&picked.from)));
    Comparison { runs: compared, differing, keys, incomparable, notes, picked_from: picked.from, groups }
}

/// The sweeps of `runs`; none if all runs are of one setting.
#[must_use]
pub fn find_picked(runs: &[RunToCompare]) -> PickedSettings {
    let point = |run: &RunToCompare| Some((run.record.path.parent()?.to_owned(), run.record.manifest.sweep.clone()?));
    let points: Vec<_> = runs.iter().filter_map(point).collect();
    let found = PickedSettings::find(&points, &runs.iter().filter_map(|run| run.mathematics.clone()).collect());
    if points.len() == runs.len() && found.is_one_setting() { PickedSettings::default() } else { found }
}

/// What the validation losses of `runs` were measured on; a sentence for each different number of rows.
fn describe_samples(runs: &[ComparedRun]) -> Vec<String> {
    let mut samples: BTreeMap<(u64, u64), Vec<f64>> = BTreeMap::new();
    for sample in runs.iter().filter_map(|run| run.figures.val_sample()) {
        samples.entry((sample.tokens, sample.rows)).or_default().extend(sample.standard_error);
    }
    let describe = |((tokens, rows), mut errors): ((u64, u64), Vec<f64>)| {
        errors.sort_by(f64::total_cmp);
        let texts: Vec<String> = errors.iter().map(|error| significant(*error, 2)).collect();
        let errors = match (texts.first(), texts.last()) {
            (Some(low), Some(high)) if low == high => format!(", standard error {low}"),
            (Some(low), Some(high)) => format!(", standard errors {low} to {high}"),
            _ => ", too few for a standard error".to_owned(),
        };
        format!("val loss: measured on {} in {}{errors}", counted(tokens, "token"), counted(rows, "row"))
    };
    samples.into_iter().map(describe).collect()
}

/// The id of `run`, or its folder if a run of a different folder among `runs` has the same id.
fn distinct_id(RunToCompare { record, .. }: &RunToCompare, runs: &[RunToCompare]) -> String {
    let id = &record.manifest.id;
    let is_shared = runs.iter().any(|other| other.record.manifest.id == *id && other.record.path != record.path);
    if is_shared { record.path.display().to_string() } else { id.clone() }
}

/// The settings of `run`, with the kinds of its devices instead of `auto`, and how its sessions multiplied in bf16, as if that were one of
/// them.
fn settings_and_products(run: &RunToCompare) -> RunSettings {
    let mut settings = settings(&run.experiment);
    settings.insert("device".to_owned(), device_kinds(&run.record.manifest.devices).into());
    let mut products: Vec<String> = Vec::new();
    for session in run.record.manifest.described_sessions() {
        products.extend(session.platform.and_then(|platform| platform.bf16_matmul_instructions));
    }
    products.dedup();
    if !products.is_empty() {
        settings.insert("precision.bf16_products".to_owned(), products.join(", then ").into());
    }
    settings
}

/// Notes on the figures of a run that changed its layout, or that started from another run's checkpoint.
pub fn notes_on_figures(record: &RunRecord) -> impl Iterator<Item = String> {
    let id = &record.manifest.id;
    let moved = record.moved_after();
    let moved = moved
        .map(|began| format!("{id} changed its layout after step {began}; its speed is that of the steps since then"));
    let inherited = record.manifest.continued_from.as_ref().map(|from| {
        let figures = record.figures();
        let mut own = vec![counted(figures.own_steps, "step")];
        own.extend(figures.own_tokens.map(|tokens| format!("{} tokens", count(tokens))));
        own.extend(figures.own_wall_seconds.map(|time| format!("a time of {}", seconds(time))));
        let (step, own) = (count(from.step), own.join(", "));
        format!("{id} started from step {step} of {}; its own part of its totals is {own}", from.id)
    });
    moved.into_iter().chain(inherited)
}

impl Comparison {
    /// The keys by which `sorted` can order.
    pub fn sort_keys(&self) -> Vec<&str> {
        let figures = FIGURES.iter().map(|figure| figure.key);
        std::iter::once("id").chain(figures).chain(self.differing.iter().map(String::as_str)).collect()
    }

    /// Orders the runs by `key`: a figure from the best value, anything else from the lowest. A minus before the key reverses the order. Runs
    /// without a value come last. A column's name in the table is also a key. `None` if there is no such key.
    #[must_use]
    pub fn sorted(mut self, key: &str) -> Option<Self> {
        let (key, is_reversed) = key.strip_prefix('-').map_or((key, false), |key| (key, true));
        let figure = FIGURES.iter().find(|figure| figure.key == key || figure.head == key);
        let setting = || self.differing.iter().find(|k| *k == key || head_of(k, &self.keys) == key).cloned();
        let directed = |order: Ordering| if is_reversed { order.reverse() } else { order };
        if key == "id" || key == "run" {
            self.runs.sort_by(|a, b| directed(a.id.cmp(&b.id)));
        } else if let Some(figure) = figure {
            let value = |run: &ComparedRun| (figure.value)(&run.figures);
            self.runs.sort_by(|a, b| match (value(a), value(b)) {
                (Some(a), Some(b)) if figure.better == Higher => directed(b.total_cmp(&a)),
                (Some(a), Some(b)) => directed(a.total_cmp(&b)),
                (a, b) => a.is_none().cmp(&b.is_none()),
            });
        } else {
            let key = setting()?;
            let compare = |a: &Value, b: &Value| match (a.as_f64(), b.as_f64()) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                (a, b) => a.is_none().cmp(&b.is_none()),
            };
            self.runs.sort_by(|a, b| match (a.settings.get(&key), b.settings.get(&key)) {
                (Some(a), Some(b)) => directed(compare(a, b).then_with(|| setting_text(a).cmp(&setting_text(b)))),
                (a, b) => a.is_none().cmp(&b.is_none()),
            });
        }
        Some(self)
    }

    /// The comparison as a table; the best value of each column is marked with `*`. Lines of the table are at most `width` characters wide,
    /// if it is given: texts are shortened, then columns are left out, which the last line names.
    pub fn text(&self, width: Option<usize>) -> String {
        // Ids contain names, and other bookkeeping does not influence outcomes.
        let (mut shown_keys, bookkeeping): (Vec<&String>, Vec<&String>) =
            self.differing.iter().partition(|key| SettingGroup::of_key(key) != SettingGroup::Bookkeeping);
        let settings: Vec<&RunSettings> = self.runs.iter().map(|run| &run.settings).collect();
        // A note names the checkpoint from which a fork started.
        shown_keys.retain(|key| *key != DATA_POSITION && !is_implied_by_choice(key, &settings));
        let heads: Vec<String> = shown_keys.iter().map(|key| printable(&head_of(key, &self.keys))).collect();
        let figures: Vec<&Figure> = FIGURES
            .iter()
            .filter(|figure| self.runs.iter().any(|run| (figure.value)(&run.figures).is_some()))
            .collect();
        let main_loss = ["val loss", "train loss"].into_iter().find(|loss| figures.iter().any(|f| f.head == *loss));
        let importance = |head: &str| {
            let rank = DISPENSABLE_HEADS.iter().position(|other| *other == head && main_loss != Some(head));
            rank.map_or(MAIN_LOSS, |rank| rank as u8)
        };
        let mut columns = vec![Column::new("run", Align::Left, u8::MAX).shortened_to(12)];
        columns.extend(heads.iter().map(|head| Column::new(head, Align::Right, SETTING).shortened_to(8)));
        columns.extend(figures.iter().map(|figure| Column::new(figure.head, Align::Right, importance(figure.head))));
        let best: Vec<Option<f64>> = figures.iter().map(|figure| self.best(figure)).collect();
        let rows: Vec<Vec<String>> = self
            .runs
            .iter()
            .map(|run| {
                let mut cells = vec![printable(&run.id)];
                cells.extend(shown_keys.iter().map(|key| {
                    let value = run.settings.get(*key).map_or_else(|| "-".to_owned(), setting_text);
                    printable(&end_of_value(&value))
                }));
                cells.extend(figures.iter().zip(&best).map(|(figure, best)| match (figure.value)(&run.figures) {
                    None => "-".to_owned(),
                    Some(x) if Some(x) == *best => style(format!("*{}", (figure.format)(x))).green().to_string(),
                    Some(x) => (figure.format)(x),
                }));
                cells
            })
            .collect();
        let mut out = table_of_width(columns, rows, width);
        for IncomparableFigures { figures, reason } in &self.incomparable {
            let heads = FIGURES.iter().filter(|figure| figures.contains(&figure.key)).map(|figure| figure.head);
            let heads = heads.collect::<Vec<_>>().join(", ");
            let _ = writeln!(out, "not comparable: {heads}: {}", printable(reason));
        }
        let hidden: Vec<&str> = bookkeeping.into_iter().map(String::as_str).filter(|key| *key != "name").collect();
        if !hidden.is_empty() {
            let _ = writeln!(out, "the runs also differ in bookkeeping: {}", hidden.join(", "));
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {}", printable(note));
        }
        if let Some(groups) = &self.groups {
            out.push('\n');
            out += &groups.text(width);
        }
        out
    }

    /// The best value of a column; `None` if all values are equal or do not compare, no direction is better, or the losses are those of
    /// different rungs of a ladder.
    fn best(&self, figure: &Figure) -> Option<f64> {
        let are_rungs =
            self.groups.as_ref().is_some_and(|groups| matches!(groups.verdict.conclusion, Conclusion::Rungs { .. }));
        let is_incomparable = || self.incomparable.iter().any(|found| found.figures.contains(&figure.key));
        if is_incomparable() || are_rungs && figure.quantity.is_some() {
            return None;
        }
        // A run that has not finished is not the fastest one, or the one that needs least.
        let finished = || self.runs.iter().filter(|run| run.status == ListedStatus::Done.name());
        let values = || finished().filter_map(|run| (figure.value)(&run.figures));
        let (low, high) = (values().min_by(f64::total_cmp)?, values().max_by(f64::total_cmp)?);
        match figure.better {
            Lower if low < high => Some(low),
            Higher if low < high => Some(high),
            _ => None,
        }
    }
}

/// The heads of the figures' columns, the least important first. A narrow table leaves them out in this order, then the settings in which
/// the runs differ, and last the loss.
const DISPENSABLE_HEADS: [&str; 11] = [
    "time",
    "memory",
    "tokens/s",
    "steps",
    "acc",
    "acc_norm_chars",
    "acc_norm",
    "bits/byte",
    "train loss",
    "test loss",
    "best val",
];
const SETTING: u8 = DISPENSABLE_HEADS.len() as u8;
const MAIN_LOSS: u8 = SETTING + 1;

/// The name of `key` in the table.
fn head_of(key: &str, keys: &BTreeSet<String>) -> String {
    let heads: Vec<&str> = FIGURES.iter().map(|figure| figure.head).chain(["run"]).collect();
    shortest_name(key, keys, &heads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, lr: f64, val_loss: Option<f64>) -> ComparedRun {
        let figures = RunFigures { steps: 10, val_loss, tokens_per_second: Some(1000.0 / lr), ..RunFigures::default() };
        let settings = BTreeMap::from([("optimizer.adamw.lr".to_owned(), Value::from(lr))]);
        ComparedRun { id: id.to_owned(), name: id.to_owned(), status: "done", settings, figures }
    }

    fn three() -> Comparison {
        let runs = vec![row("c", 1.0, Some(2.5)), row("a", 10.0, None), row("b", 2.0, Some(1.5))];
        let keys = ["optimizer.adamw.lr", "data.path"].map(str::to_owned).into();
        Comparison {
            differing: vec!["optimizer.adamw.lr".to_owned()],
            runs,
            keys,
            incomparable: Vec::new(),
            notes: Vec::new(),
            picked_from: Vec::new(),
            groups: None,
        }
    }

    #[test]
    fn the_best_of_each_column_is_marked() {
        insta::assert_snapshot!(three().text(None), @r"
        run    lr  steps  val loss  tokens/s
        c     1.0     10    2.5000    *1,000
        a    10.0     10         -       100
        b     2.0     10   *1.5000       500
        ");
    }

    /// A run that was interrupted has the lowest loss, and the speed of its first steps.
    #[test]
    fn only_finished_runs_are_the_best() {
        let mut table = three();
        table.runs[2].status = ListedStatus::Interrupted.name();
        table.runs.push(row("d", 4.0, Some(3.5)));
        insta::assert_snapshot!(table.text(None), @r"
        run    lr  steps  val loss  tokens/s
        c     1.0     10   *2.5000    *1,000
        a    10.0     10         -       100
        b     2.0     10    1.5000       500
        d     4.0     10    3.5000       250
        ");
    }

    #[test]
    fn a_narrow_table_leaves_out_the_least_important_columns() {
        let mut wide = three();
        for run in &mut wide.runs {
            run.id = format!("a-run-with-a-long-name-{}", run.id);
            run.settings.insert("data.path".to_owned(), Value::from("/a/long/folder/of/data/with/text.txt"));
            run.figures.wall_seconds = Some(12.0);
            run.figures.peak_memory_bytes = Some(1 << 30);
        }
        wide.differing.insert(0, "data.path".to_owned());
        for width in [30, 40, 60, 80, 120] {
            let text = wide.text(Some(width));
            let widest =
                text.lines().filter(|line| !line.starts_with("left out")).map(console::measure_text_width).max();
            assert!(widest.unwrap() <= width, "{width}: {text}");
            assert!(text.contains("val loss") && text.contains("run"), "{text}");
        }
        insta::assert_snapshot!(wide.text(Some(60)));
        assert_eq!(wide.text(Some(400)), wide.text(None));
    }

    #[test]
    fn incomparable_values_have_no_best() {
        let reason = "b reads 80 validation rows, but c reads 160".to_owned();
        let figures = vec!["best_val_loss", "val_loss"];
        let table = Comparison { incomparable: vec![IncomparableFigures { figures, reason }], ..three() };
        insta::assert_snapshot!(table.text(None), @r"
        run    lr  steps  val loss  tokens/s
        c     1.0     10    2.5000    *1,000
        a    10.0     10         -       100
        b     2.0     10    1.5000       500
        not comparable: best val, val loss: b reads 80 validation rows, but c reads 160
        ");
    }

    #[test]
    fn runs_are_sorted_from_the_best_and_those_without_come_last() {
        let ids = |key| three().sorted(key).map(|t| t.runs.iter().map(|r| r.id.clone()).collect::<String>());
        assert_eq!(ids("val_loss").unwrap(), "bca");
        assert_eq!(ids("tokens_per_second").unwrap(), "cba");
        assert_eq!(ids("optimizer.adamw.lr").unwrap(), "cba");
        assert_eq!(ids("id").unwrap(), "abc");
        for (head, order) in [("lr", "cba"), ("val loss", "bca"), ("-val_loss", "cba"), ("-lr", "abc"), ("-id", "cba")]
        {
            assert_eq!(ids(head).unwrap(), order, "{head}");
        }
        assert!(ids("vall_oss").is_none());
    }

    #[test]
    fn heads_are_the_shortest_that_are_clear() {
        let keys =
            ["eval.samples.seed", "optimizer", "optimizer.adamw.lr", "schedule.warmup.steps", "seed", "train.steps"];
        let all: BTreeSet<String> = keys.map(str::to_owned).into();
        let heads = keys.map(|key| head_of(key, &all));
        assert_eq!(heads, ["samples.seed", "optimizer", "lr", "warmup.steps", "seed", "train.steps"]);
    }
}
