//! The table of `runner compare`: the settings in which runs differ, and their outcomes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use console::style;
use serde::Serialize;
use serde_json::Value;

use crate::run_groups::{RunGroups, group_runs};
use crate::run_to_compare::RunToCompare;
use crate::table::{Align, Column, RowTable};
use runner_compare::plan_facts::device_kinds;
use runner_compare::run_names::{RunSettings, end_of_value, is_implied_by_choice, name_runs, shortest_name};
use runner_compare::run_record::{RunFigures, RunRecord};
use runner_compare::settings::{DATA_POSITION, SettingGroup, differing_keys, settings};
use runner_plan::comparability::{find_incomparable, group_by_reason};
use runner_record::catalog::ListedStatus;
use runner_spec::format::{bytes, count, counted, loss, printable, rate, seconds, setting_text};
use runner_spec::measure::Better::{self, Higher, Lower, Neither};
use runner_spec::measure::Quantity::{self, TestLoss, TrainLoss, ValidationLoss};
use runner_spec::measure::{LossSample, Measure, MeasureForm};
use runner_sweep::verdict::Conclusion;
use runner_sweep::{PickedSettings, SweptRun};

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
    /// The settings of the runs, compared over their seeds; `None` if there is nothing to compare, or no metric compares.
    pub groups: Option<RunGroups>,
}

/// Figures that do not compare, for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IncomparableFigures {
    /// Their keys, such as `val_loss`.
    pub figures: Vec<String>,
    pub reason: String,
}

/// One number of a run's outcome, and how it is shown.
pub(crate) struct Figure {
    /// Its key in JSON and for `--sort`.
    key: Cow<'static, str>,
    /// Its name in a column of `runner compare`, which is narrow.
    head: Cow<'static, str>,
    /// Its name in a line of `runner diff`.
    pub(crate) name: Cow<'static, str>,
    better: Better,
    /// What it measures, if that depends on data.
    quantity: Option<Quantity>,
    value: FigureValue,
}

/// Where a figure's number is, and how it is shown.
enum FigureValue {
    Field(fn(&RunFigures) -> Option<f64>, fn(f64) -> String),
    Evaluated(Measure),
}

impl Figure {
    fn new(
        [key, head, name]: [&'static str; 3],
        better: Better,
        quantity: Option<Quantity>,
        value: fn(&RunFigures) -> Option<f64>,
        format: fn(f64) -> String,
    ) -> Self {
        let [key, head, name] = [key, head, name].map(Cow::from);
        Self { key, head, name, better, quantity, value: FigureValue::Field(value, format) }
    }

    /// The last value of `measure`. Its column names the task if `names_task`.
    fn evaluated(measure: Measure, names_task: bool) -> Self {
        Self {
            key: measure.key(),
            head: if names_task { measure.full_label() } else { measure.label().into() },
            name: measure.full_label(),
            better: measure.better(),
            quantity: Some(measure.quantity()),
            value: FigureValue::Evaluated(measure),
        }
    }

    fn value(&self, figures: &RunFigures) -> Option<f64> {
        match &self.value {
            FigureValue::Field(value, _) => value(figures),
            FigureValue::Evaluated(measure) => figures.evaluated.get(measure),
        }
    }

    fn format(&self, value: f64) -> String {
        match &self.value {
            FigureValue::Field(_, format) => format(value),
            FigureValue::Evaluated(measure) => measure.text(value),
        }
    }

    /// The figure of a run as text, if the run has it.
    pub(crate) fn text(&self, figures: &RunFigures) -> Option<String> {
        self.value(figures).map(|value| self.format(value))
    }

    /// The label of its column without the name of a task.
    fn label(&self) -> &str {
        match &self.value {
            FigureValue::Evaluated(measure) => measure.label(),
            FigureValue::Field(..) => &self.head,
        }
    }
}

/// The figures of `runs`: those of every run, and those of the tasks that one of them scores.
pub(crate) fn figures_of<'a>(runs: impl IntoIterator<Item = &'a RunFigures>) -> Vec<Figure> {
    let mut scores: Vec<&Measure> = Vec::new();
    for (measure, _) in runs.into_iter().flat_map(|run| run.evaluated.iter()) {
        if measure.task().is_some() && measure.is_comparable() && !scores.contains(&measure) {
            scores.push(measure);
        }
    }
    let names_task = scores.iter().any(|score| score.task() != scores[0].task());
    let mut figures = vec![
        Figure::new(["steps"; 3], Neither, None, |f| Some(f.steps as f64), |x| count(x as u64)),
        // It is a mean over other rows in each step, so no value is the best.
        Figure::new(["train_loss", "train loss", "train loss"], Neither, Some(TrainLoss), |f| f.train_loss, loss),
        Figure::new(
            ["best_val_loss", "best val", "best val loss"],
            Lower,
            Some(ValidationLoss),
            |f| f.best_val_loss,
            loss,
        ),
        Figure::evaluated(Measure::VAL_LOSS, false),
        // Who chooses by the test has no test left, so no value is the best.
        Figure::new(["test_loss", "test loss", "test loss"], Neither, Some(TestLoss), |f| f.test_loss, loss),
        Figure::evaluated(Measure::BITS_PER_BYTE, false),
    ];
    figures.extend(scores.into_iter().map(|score| Figure::evaluated(score.clone(), names_task)));
    figures.extend([
        Figure::new(["tokens_per_second", "tokens/s", "tokens/s"], Higher, None, |f| f.tokens_per_second, rate),
        Figure::new(
            ["peak_memory_bytes", "memory", "peak memory"],
            Lower,
            None,
            |f| f.peak_memory_bytes.map(|bytes| bytes as f64),
            |x| bytes(x as u64),
        ),
        Figure::new(["wall_seconds", "time", "wall time"], Lower, None, |f| f.wall_seconds, seconds),
    ]);
    figures
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
    let figures = figures_of(compared.iter().map(|run| &run.figures));
    let measured = figures.iter().filter_map(|figure| {
        let measured = compared.iter().zip(runs).filter(|(run, _)| figure.value(&run.figures).is_some());
        let bases = measured.map(|(run, RunToCompare { basis, .. })| (run.id.clone(), basis));
        Some((figure.key.to_string(), find_incomparable(bases, figure.quantity.as_ref()?)))
    });
    let incomparable = group_by_reason(measured).into_iter();
    let incomparable = incomparable.map(|(reason, figures)| IncomparableFigures { figures, reason }).collect();
    let keys = all.iter().flat_map(BTreeMap::keys).cloned().collect();
    let shared: BTreeSet<String> = runs.iter().flat_map(|run| run.basis.overlap_warnings()).collect();
    let mut notes: Vec<String> = shared.into_iter().collect();
    notes.extend(runs.iter().flat_map(|run| notes_on_figures(&run.record)));
    notes.extend(describe_samples(&compared));
    let picked = find_picked(runs);
    let groups = group_runs(runs, &all, &picked, &mut notes);
    notes.extend(picked.notes);
    Comparison { runs: compared, differing, keys, incomparable, notes, groups }
}

/// What the sweeps of `runs` say of them.
fn find_picked(runs: &[RunToCompare]) -> PickedSettings {
    let swept = runs.iter().filter_map(|run| SweptRun::of_manifest(&run.record.path, &run.record.manifest));
    let swept: Vec<SweptRun> = swept.collect();
    PickedSettings::find(&swept, swept.len() < runs.len())
}

/// The standard errors of each measure.
type MeasureErrors<'a> = Vec<(&'a Measure, Vec<f64>)>;

/// What the losses and scores of `runs` were measured on, and their standard errors; a sentence for the losses and each task, and each different
/// number of rows or items.
fn describe_samples(runs: &[ComparedRun]) -> Vec<String> {
    let mut samples: BTreeMap<(Option<&str>, String), MeasureErrors<'_>> = BTreeMap::new();
    for measured in runs.iter().map(|run| &run.figures.evaluated) {
        let rows = measured
            .val_sample()
            .map(|LossSample { tokens, rows, .. }| format!("{} in {}", counted(tokens, "token"), counted(rows, "row")));
        let losses = measured.losses().filter(|of| of.measure.form() == MeasureForm::Loss).collect();
        let tasks = measured
            .tasks()
            .into_iter()
            .map(|task| (Some(task.task), task.items.map(|items| counted(items, "item")), task.shares));
        for (task, sample, estimates) in tasks.chain([(None, rows, losses)]) {
            let Some(sample) = sample else { continue };
            let found = samples.entry((task, sample)).or_default();
            for of in estimates {
                match found.iter_mut().find(|(measure, _)| *measure == of.measure) {
                    Some((_, errors)) => errors.extend(of.standard_error),
                    None => found.push((of.measure, of.standard_error.into_iter().collect())),
                }
            }
        }
    }
    let range = |(measure, errors): &(&Measure, Vec<f64>)| {
        let low = measure.error_text(errors.iter().copied().min_by(f64::total_cmp)?);
        let high = measure.error_text(errors.iter().copied().max_by(f64::total_cmp)?);
        let label = measure.label();
        Some(if low == high { format!("{label} {low}") } else { format!("{label} {low} to {high}") })
    };
    let describe = |((task, sample), errors): (&(Option<&str>, String), &MeasureErrors<'_>)| {
        let ranges: Vec<String> = errors.iter().filter_map(range).collect();
        let errors = if ranges.is_empty() {
            "too few for a standard error".to_owned()
        } else {
            format!("standard errors: {}", ranges.join(", "))
        };
        format!("{}: measured on {sample}, {errors}", task.unwrap_or("losses"))
    };
    samples.iter().map(describe).collect()
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
    let speed = "its speed is that of the steps since then";
    let moved = record.moved_after().map(|began| format!("{id} changed its layout after step {began}; {speed}"));
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
    pub fn sort_keys(&self) -> Vec<String> {
        let figures = self.figures().into_iter().map(|figure| figure.key.into_owned());
        std::iter::once("id".to_owned()).chain(figures).chain(self.differing.iter().cloned()).collect()
    }

    fn figures(&self) -> Vec<Figure> {
        figures_of(self.runs.iter().map(|run| &run.figures))
    }

    /// Orders the runs by `key`: a figure from the best value, anything else from the lowest. A minus before the key reverses the order. Runs
    /// without a value come last. A column's name in the table is also a key. `None` if there is no such key.
    #[must_use]
    pub fn sorted(mut self, key: &str) -> Option<Self> {
        let (key, is_reversed) = key.strip_prefix('-').map_or((key, false), |key| (key, true));
        let figures = self.figures();
        let figure = figures.iter().find(|figure| figure.key == key || figure.head == key);
        let setting = self.differing.iter().find(|k| *k == key || head_of(k, &self.keys, &figures) == key);
        if key != "id" && key != "run" && figure.is_none() && setting.is_none() {
            return None;
        }
        // A number, else a text.
        let value = |run: &ComparedRun| match (figure, setting) {
            _ if key == "id" || key == "run" => Some((None, run.id.clone())),
            (Some(figure), _) => figure.value(&run.figures).map(|number| (Some(number), String::new())),
            (None, setting) => run.settings.get(setting?).map(|value| (value.as_f64(), setting_text(value))),
        };
        let is_reversed = is_reversed != figure.is_some_and(|figure| figure.better == Higher);
        self.runs.sort_by(|a, b| {
            let order = match (value(a), value(b)) {
                (Some((Some(a), a_text)), Some((Some(b), b_text))) => a.total_cmp(&b).then(a_text.cmp(&b_text)),
                (Some((a, a_text)), Some((b, b_text))) => a.is_none().cmp(&b.is_none()).then(a_text.cmp(&b_text)),
                (a, b) => return a.is_none().cmp(&b.is_none()),
            };
            if is_reversed { order.reverse() } else { order }
        });
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
        let all_figures = self.figures();
        let head = |key: &&String| printable(&head_of(key, &self.keys, &all_figures));
        let heads: Vec<String> = shown_keys.iter().map(head).collect();
        let is_shown = |figure: &&Figure| self.runs.iter().any(|run| figure.value(&run.figures).is_some());
        let figures: Vec<&Figure> = all_figures.iter().filter(is_shown).collect();
        let main_loss = ["val loss", "train loss"].into_iter().find(|loss| figures.iter().any(|f| f.head == *loss));
        let importance = |label: &str| {
            let rank = DISPENSABLE_LABELS.iter().position(|other| *other == label && main_loss != Some(label));
            rank.map_or(MAIN_LOSS, |rank| rank as u8)
        };
        let mut table = RowTable::new(&self.runs);
        table.add(Column::new("run", Align::Left, u8::MAX).shortened_to(12), |run| printable(&run.id));
        for (key, head) in shown_keys.iter().zip(&heads) {
            table.add(Column::new(head, Align::Right, SETTING).shortened_to(8), |run| {
                let value = run.settings.get(*key).map_or_else(|| "-".to_owned(), setting_text);
                printable(&end_of_value(&value))
            });
        }
        for figure in &figures {
            let best = self.best(figure);
            let column = Column::new(&figure.head, Align::Right, importance(figure.label()));
            table.add(column, |run| match figure.value(&run.figures) {
                None => "-".to_owned(),
                Some(x) if Some(x) == best => style(format!("*{}", figure.format(x))).green().to_string(),
                Some(x) => figure.format(x),
            });
        }
        let mut out = table.text(width);
        for IncomparableFigures { figures, reason } in &self.incomparable {
            let is_named = |figure: &&Figure| figures.iter().any(|key| *key == figure.key);
            let heads: Vec<&str> = all_figures.iter().filter(is_named).map(|figure| &*figure.head).collect();
            let heads = heads.join(", ");
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
        let conclusion = self.groups.as_ref().map(|groups| &groups.verdict.conclusion);
        let are_rungs = matches!(conclusion, Some(Conclusion::Rungs { .. }));
        let mut incomparable = self.incomparable.iter().flat_map(|found| &found.figures);
        if incomparable.any(|key| *key == figure.key) || are_rungs && figure.quantity.is_some() {
            return None;
        }
        // A run that has not finished is not the fastest one, or the one that needs least.
        let finished = || self.runs.iter().filter(|run| run.status == ListedStatus::Done.name());
        let values = || finished().filter_map(|run| figure.value(&run.figures));
        let (low, high) = (values().min_by(f64::total_cmp)?, values().max_by(f64::total_cmp)?);
        match figure.better {
            Lower if low < high => Some(low),
            Higher if low < high => Some(high),
            _ => None,
        }
    }
}

/// The name of the setting `key`, one of `keys`, in the table with `figures`.
fn head_of(key: &str, keys: &BTreeSet<String>, figures: &[Figure]) -> String {
    let heads: Vec<&str> = figures.iter().map(|figure| &*figure.head).chain(["run"]).collect();
    shortest_name(key, keys, &heads)
}

/// The labels of the figures, the least important first. A narrow table leaves them out in this order, then the settings in which
/// the runs differ, and last the loss.
const DISPENSABLE_LABELS: [&str; 11] = [
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
const SETTING: u8 = DISPENSABLE_LABELS.len() as u8;
const MAIN_LOSS: u8 = SETTING + 1;

#[cfg(test)]
mod tests;
