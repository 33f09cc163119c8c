//! A sweep as its file describes it, checked.

mod budget;
mod dimension;
mod early_stop;
mod expression;
mod objective;
mod random;

use std::path::{Path, PathBuf};

use runner_config::resolve::name_of_file;
use runner_spec::measure::Measure;
use serde_json::{Map, Value};

use runner_spec::diagnostic::{ConfigError, Diagnostic};
#[cfg(doc)]
use runner_template::yaml_text;
use runner_yaml::source::{Place, Source};

pub use budget::{Budget, BudgetKind};
pub use dimension::{Dimension, ListAxis};
pub(crate) use early_stop::steps_to;
pub use early_stop::{AshaSettings, MilestoneUnit};
pub use expression::{ExcludeExpression, SettingRule};
pub(crate) use objective::{CONFIDENCE, measurement_interval};
pub use objective::{Goal, MeasurementChoice, Objective};
pub use random::{Distribution, RandomDraws};

/// The JSON Schema of the sweep file (draft 7). The module `read` checks files against it.
pub const SCHEMA: &str = include_str!("../../../../schemas/sweep.schema.json");

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
    /// Names that vary, each with the expression that must be true for a point to have a value of it.
    pub conditions: Vec<(String, ExcludeExpression)>,
    pub exclude: Vec<ExcludeExpression>,
    /// The rules of a ladder, in the order of the file.
    pub rules: Vec<SettingRule>,
    /// What each point may cost, if the file says so; it then determines the points' steps.
    pub budget: Option<Budget>,
    /// True if the file has the key `ladder`.
    pub is_ladder: bool,
    /// True if the law of a ladder counts the parameters and FLOPs of the layers only.
    pub counts_layers: bool,
    pub objective: Objective,
    /// True if the file names the metric. Otherwise points with different tokenizers are compared by bits per byte.
    pub names_metric: bool,
    /// `early_stop.asha`.
    pub early_stop: Option<AshaSettings>,
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
    pub(crate) fn new(path: &Path, text: &str, kind: &str) -> Self {
        Self {
            name: name_of_file(path, kind),
            base: PathBuf::new(),
            missing_base: None,
            vars: Map::new(),
            set: Vec::new(),
            axes: Vec::new(),
            conditions: Vec::new(),
            exclude: Vec::new(),
            rules: Vec::new(),
            budget: None,
            is_ladder: false,
            counts_layers: false,
            objective: Objective::new(Measure::VAL_LOSS, MeasurementChoice::Last),
            names_metric: false,
            early_stop: None,
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

    /// The names whose values are drawn.
    pub(crate) fn drawn_names(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().filter(|axis| matches!(axis, Dimension::Random(_))).flat_map(Dimension::names)
    }

    /// The name of the axis that `seeds` makes, which sets a key even if the other names are variables of a template.
    #[must_use]
    pub fn seeds_axis(&self) -> Option<&str> {
        self.axes.iter().find_map(|axis| match axis {
            Dimension::Seeds(axis) => Some(axis.name.as_str()),
            _ => None,
        })
    }

    /// The file that holds the value of the key `name`, if it is one of `files`, which is called `value`.
    pub(crate) fn file_of(&self, name: &str, value: &Value) -> Option<&Path> {
        self.axes.iter().find_map(|axis| match axis {
            Dimension::Files(axis, paths) if axis.name == name => {
                Some(paths.get(axis.values.iter().position(|own| own == value)?)?.as_path())
            }
            _ => None,
        })
    }

    /// True if points are made from a template.
    #[must_use]
    pub fn has_template(&self) -> bool {
        runner_template::is_template(&self.base)
    }

    /// `setting` (`key.path=value`, as [`yaml_text`] writes the value) as it is written in the file, if it is.
    pub(crate) fn as_written(&self, setting: String) -> String {
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
