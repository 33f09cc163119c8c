//! A sweep as its file describes it, checked.

use std::path::{Path, PathBuf};

use runner_config::resolve::name_of_file;
use runner_spec::measure::{Better, Measure, Quantity};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::budget::Budget;
use super::race::RaceSettings;
use super::random::{Distribution, RandomDraws};
use super::rules::SettingRule;
use runner_spec::diagnostic::{ConfigError, Diagnostic};
use runner_spec::format::count;
use runner_spec::program::Program;
#[cfg(doc)]
use runner_template::yaml_text;
use runner_yaml::source::{Place, Source};

/// The JSON Schema of the sweep file (draft 7). The module `read` checks files against it.
pub const SCHEMA: &str = include_str!("../../../schemas/sweep.schema.json");

/// The largest number of points of a sweep, before exclusion.
pub const MAX_POINTS: usize = 10_000;

/// A sweep, as its file describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepSpec {
    /// The key `name`, else the name of the file without its extension.
    pub name: String,
    /// The file that points are made from: a template, whose variables the axes are, or an experiment, whose key paths they are. The path
    /// is joined to the folder of the sweep file.
    pub base: PathBuf,
    /// The mistake that there is no such file. A sweep that was started resumes without it.
    pub missing_base: Option<Box<Diagnostic>>,
    /// Variables of the template that are the same for all points.
    pub vars: Map<String, Value>,
    /// `key.path=value` for every point, in the form of `--set`.
    pub set: Vec<String>,
    /// The dimensions, in the order of the file; the first one varies slowest.
    pub axes: Vec<Dimension>,
    pub exclude: Vec<ExcludeExpression>,
    /// The rules of a ladder, in the order of the file.
    pub rules: Vec<SettingRule>,
    /// What each point may cost, if the file says so; it then determines the points' steps.
    pub budget: Option<Budget>,
    /// True if the file has the key `ladder`.
    pub is_ladder: bool,
    pub objective: Objective,
    /// True if the file names the metric. Otherwise points with different tokenizers are compared by bits per byte.
    pub names_metric: bool,
    /// `early_stop.asha`.
    pub early_stop: Option<AshaSettings>,
    /// `early_stop.race`.
    pub race: Option<RaceSettings>,
    /// The number of concurrent runs, at least 1.
    pub parallel: usize,
    /// The number of times that a failed point is retried.
    pub retries: u32,
    /// The settings of experiments that the file gives: those of `set` and of all points.
    pub settings: Vec<FileSetting>,
    /// The file as given.
    pub text: String,
    /// The sweep file that the sweep's folder keeps: the file as given, or, of the group of an experiment, one that makes this sweep.
    pub copy: String,
    pub path: PathBuf,
}

impl SweepSpec {
    /// The sweep of the file `path` with the content `text`, without what varies. A file without a name in its path is called `kind`.
    pub(super) fn new(path: &Path, text: &str, kind: &str) -> Self {
        let metric = Measure::VAL_LOSS;
        let at = MeasurementChoice::Last;
        Self {
            name: name_of_file(path, kind),
            base: PathBuf::new(),
            missing_base: None,
            vars: Map::new(),
            set: Vec::new(),
            axes: Vec::new(),
            exclude: Vec::new(),
            rules: Vec::new(),
            budget: None,
            is_ladder: false,
            objective: Objective { goal: Goal::of(&metric), metric, at, smallest_difference: None },
            names_metric: false,
            early_stop: None,
            race: None,
            parallel: 1,
            retries: 0,
            settings: Vec::new(),
            text: text.to_owned(),
            copy: text.to_owned(),
            path: path.to_owned(),
        }
    }

    /// The names of everything that varies, in the order of the file.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.axes.iter().flat_map(Dimension::names).collect()
    }

    /// The name of the axis that `seeds` makes, which sets a key even if the other names are variables of a template.
    #[must_use]
    pub fn seeds_axis(&self) -> Option<&str> {
        self.axes.iter().find_map(|axis| match axis {
            Dimension::Seeds(axis) => Some(axis.name.as_str()),
            _ => None,
        })
    }

    /// True if points are made from a template.
    #[must_use]
    pub fn has_template(&self) -> bool {
        runner_template::is_template(&self.base)
    }

    /// `setting` (`key.path=value`, as [`yaml_text`] writes the value) as it is written in the file, if it is.
    pub(super) fn as_written(&self, setting: String) -> String {
        self.settings.iter().find(|known| known.normalized == setting).map_or(setting, |known| known.written.clone())
    }

    /// The settings of `set`, as they are written in the file.
    #[must_use]
    pub fn shared_settings(&self) -> Vec<String> {
        self.set.iter().map(|setting| self.as_written(setting.clone())).collect()
    }

    /// The mistakes of a point, those in settings of the file at their places in the file.
    #[must_use]
    pub fn locate_mistakes(&self, mut mistakes: ConfigError) -> ConfigError {
        let source = Source::file(&self.path, self.text.clone());
        for mistake in mistakes.diagnostics.iter_mut().filter(|mistake| mistake.source == SET_FLAG) {
            if let Some(setting) = self.settings.iter().find(|setting| setting.gives(&mistake.source_line)) {
                let Diagnostic { key, message, help, .. } = mistake;
                *mistake = source.diagnostic(setting.place, key, message.clone(), help.clone());
            }
        }
        mistakes
    }
}

/// The source of a setting that a flag gives, in mistakes.
const SET_FLAG: &str = "--set";

/// A setting of experiments in a sweep file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSetting {
    /// `key.path=value` as [`yaml_text`] writes the value; of a draw, `key.path=`.
    pub normalized: String,
    /// `key.path=value` with the value as the file has it.
    pub written: String,
    pub place: Place,
}

impl FileSetting {
    /// The key path.
    #[must_use]
    pub fn key(&self) -> &str {
        self.normalized.split('=').next().unwrap_or_default()
    }

    /// True if `setting` is this one, or a value of this draw.
    fn gives(&self, setting: &str) -> bool {
        self.written == setting || (self.normalized.ends_with('=') && setting.starts_with(&self.normalized))
    }
}

/// One factor of the product that the points are.
#[derive(Debug, Clone, PartialEq)]
pub enum Dimension {
    /// An axis of `grid`.
    Grid(ListAxis),
    /// The key `seeds`: values of the experiment's key `seed`. It varies fastest.
    Seeds(ListAxis),
    /// The axes of `zip`: equally long, and varied together.
    Zip(Vec<ListAxis>),
    /// The draws of `random`. They are the same for every combination of the other dimensions.
    Random(RandomDraws),
}

impl Dimension {
    /// The number of values.
    #[must_use]
    pub fn value_count(&self) -> usize {
        match self {
            Self::Grid(axis) | Self::Seeds(axis) => axis.values.len(),
            Self::Zip(axes) => axes.first().map_or(0, |a| a.values.len()),
            Self::Random(random) => random.samples,
        }
    }

    /// The names of everything that varies in the dimension.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Grid(axis) | Self::Seeds(axis) => vec![&axis.name],
            Self::Zip(axes) => axes.iter().map(|a| a.name.as_str()).collect(),
            Self::Random(random) => random.space.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// True if a value of `name` is a list.
    pub(super) fn has_list(&self, name: &str) -> bool {
        let in_axis = |axis: &ListAxis| axis.name == name && axis.values.iter().any(Value::is_array);
        match self {
            Self::Grid(axis) | Self::Seeds(axis) => in_axis(axis),
            Self::Zip(axes) => axes.iter().any(in_axis),
            Self::Random(random) => random.space.iter().any(|(drawn, draw)| {
                drawn == name && matches!(draw, Distribution::Choice(values) if values.iter().any(Value::is_array))
            }),
        }
    }
}

/// A variable or key path with its values, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct ListAxis {
    pub name: String,
    pub values: Vec<Value>,
}

/// An expression that leaves out the points for which it is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludeExpression {
    pub text: String,
    pub place: Place,
}

/// The objective that points are compared by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    pub metric: Measure,
    pub goal: Goal,
    pub at: MeasurementChoice,
    /// The smallest difference between settings that is of interest, if the file gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smallest_difference: Option<f64>,
}

impl Objective {
    /// The metric as results show it: by its name, and with the choice of the best evaluation if that is not the last one.
    #[must_use]
    pub fn label(&self) -> String {
        match self.at {
            MeasurementChoice::Best => format!("{} (at: best)", self.metric.key()),
            MeasurementChoice::Last => self.metric.key().into_owned(),
        }
    }
}

/// The steps between measurements of `measure` in a run of `program`.
#[must_use]
pub(crate) fn measurement_interval(measure: &Measure, program: &Program) -> Option<u64> {
    match measure.quantity() {
        Quantity::Task(name) => program.task_every(&name),
        _ if measure.is_evaluated() => program.loss_every(),
        _ => Some(1),
    }
}

runner_record::named_enum! {
    pub enum Goal {
        Minimize = "minimize",
        Maximize = "maximize",
    }
}

impl Goal {
    /// The only goal that a file may have with `measure`.
    #[must_use]
    pub fn of(measure: &Measure) -> Self {
        if measure.better() == Better::Higher { Self::Maximize } else { Self::Minimize }
    }

    /// Orders the better value first. NaN is worse than any number, and equal to itself.
    #[must_use]
    pub fn order(self, a: f64, b: f64) -> std::cmp::Ordering {
        match (a.is_nan(), b.is_nan()) {
            (true, true) => std::cmp::Ordering::Equal,
            (true, false) => std::cmp::Ordering::Greater,
            (false, true) => std::cmp::Ordering::Less,
            (false, false) => {
                let order = a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal);
                if self == Self::Minimize { order } else { order.reverse() }
            }
        }
    }
}

runner_record::named_enum! {
    /// The measurement of a run that counts.
    pub enum MeasurementChoice {
        /// The measurement after the last step.
        Last = "last",
        /// The best measurement.
        Best = "best",
    }
}

/// Asynchronous successive halving: a point is judged at the first milestone, at `reduction` times as much, and so on, and the best of
/// `reduction` continues.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AshaSettings {
    #[serde(flatten)]
    pub first: Milestone,
    /// At least 2.
    pub reduction: u64,
}

/// How far every point is trained before it is first judged: a positive number of steps, of tokens with padding, or of FLOPs as counted for
/// MFU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Milestone {
    MinSteps(u64),
    MinTokens(u64),
    MinFlops(f64),
}

impl Milestone {
    /// Its key in the file.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::MinSteps(_) => "min_steps",
            Self::MinTokens(_) => "min_tokens",
            Self::MinFlops(_) => "min_flops",
        }
    }

    /// What it counts.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::MinSteps(_) => "steps",
            Self::MinTokens(_) => "tokens",
            Self::MinFlops(_) => "FLOPs",
        }
    }

    /// `times` as much; `None` beyond the range of numbers.
    #[must_use]
    pub fn times(self, times: u64) -> Option<Self> {
        match self {
            Self::MinSteps(steps) => steps.max(1).checked_mul(times).map(Self::MinSteps),
            Self::MinTokens(tokens) => tokens.max(1).checked_mul(times).map(Self::MinTokens),
            Self::MinFlops(flops) => Some(Self::MinFlops(flops * times as f64)).filter(|_| flops.is_finite()),
        }
    }

    /// The fewest steps that reach it, in a run whose step has so many tokens and FLOPs.
    #[must_use]
    pub fn steps(self, tokens_per_step: u64, flops_per_step: f64) -> u64 {
        match self {
            Self::MinSteps(steps) => steps,
            Self::MinTokens(tokens) => tokens.div_ceil(tokens_per_step.max(1)),
            Self::MinFlops(flops) => {
                let steps = (flops / flops_per_step).ceil().max(1.0) as u64;
                // The quotient is rounded: it may be one step off.
                let reaches = |steps: u64| steps as f64 * flops_per_step >= flops;
                let enough = (steps.saturating_sub(1)..=steps).find(|steps| *steps > 0 && reaches(*steps));
                enough.unwrap_or(steps.saturating_add(1))
            }
        }
    }

    /// The number, as text.
    #[must_use]
    pub fn amount(self) -> String {
        match self {
            Self::MinSteps(number) | Self::MinTokens(number) => count(number),
            Self::MinFlops(flops) => format!("{flops:e}"),
        }
    }

    /// What a run of `steps` steps has of the unit.
    #[must_use]
    pub fn of_steps(self, steps: u64, tokens_per_step: u64, flops_per_step: f64) -> Self {
        match self {
            Self::MinSteps(_) => Self::MinSteps(steps),
            Self::MinTokens(_) => Self::MinTokens(steps.saturating_mul(tokens_per_step)),
            Self::MinFlops(_) => Self::MinFlops(steps as f64 * flops_per_step),
        }
    }
}

impl AshaSettings {
    /// The milestones, ascending.
    pub fn milestones(&self) -> impl Iterator<Item = Milestone> {
        let reduction = self.reduction.max(2);
        let times = std::iter::successors(Some(1_u64), move |times| times.checked_mul(reduction));
        times.map_while(|times| self.first.times(times))
    }
}
