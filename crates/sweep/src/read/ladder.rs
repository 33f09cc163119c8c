//! Reads a ladder, which expands to points as a sweep does, and the budget of both.

use serde_json::Value;

use super::axis_name::check_key_path;
use super::{NameCheck, SweepReader, entries, get, value};
use crate::points::TUNE;
use crate::points::exclude;
use crate::points::rules::FIGURES;
use crate::spec::{Budget, BudgetKind, Dimension, ExcludeExpression, ListAxis, SettingRule, SweepSpec};
use runner_record::time::parse_span;
use runner_spec::diagnostic::short;
use runner_spec::experiment::Train;
use runner_template::expression::expression_environment;
use runner_yaml::tree::{Entry, Yaml};

/// The key that `tokens_per_parameter` of a ladder sets.
const TOKENS_PER_PARAMETER: &str = "train.tokens_per_parameter";

impl SweepReader<'_> {
    /// Reads the keys that only ladders have. `ladder` is the legal part of the section `at`.
    pub(super) fn read_ladder(&mut self, at: &Entry, ladder: &Value, is_new: bool, spec: &mut SweepSpec) {
        spec.is_ladder = true;
        self.require(at, "ladder", "base", "name an experiment file: `base: experiment.yaml`");
        self.require(at, "ladder", "dial", "list the sizes: `dial: {model.layers: [1, 2, 3, 4, 6, 8]}`");
        let base = get(at, "base").and_then(|entry| self.read_base(entry, ladder, &spec.path, is_new));
        spec.base = base.unwrap_or_default();
        self.name_check = Some(check_key_path as NameCheck);
        spec.set = self.read_set(at, ladder, true);
        spec.axes.extend(get(at, "dial").and_then(|entry| self.read_zip(entry, &ladder["dial"])));
        let ratio = get(at, "tokens_per_parameter");
        match (ratio, &ladder["tokens_per_parameter"]) {
            (Some(entry), Value::Array(values)) => spec.axes.extend(self.read_tokens_per_parameter(entry, values)),
            (Some(entry), one @ Value::Number(_)) => {
                spec.set.push(self.add_setting(TOKENS_PER_PARAMETER, one, &entry.value));
            }
            _ => {}
        }
        spec.axes.extend(get(at, TUNE).and_then(|entry| self.read_tune(entry, &ladder[TUNE])));
        spec.rules = get(at, "rules").map(|entry| self.read_rules(entry, &spec.axes)).unwrap_or_default();
        if let (Some(tune), false) = (get(at, TUNE), spec.rules.iter().any(|rule| rule.expression.text.contains(TUNE)))
        {
            let help = "multiply what is tuned by it, as in `optimizer.adamw.lr: tune * 0.01`";
            self.error(tune.place, "ladder.tune", "no rule uses `tune`".to_owned(), help);
        }
        spec.counts_layers = value(ladder, "/count") == Some("non_embedding".to_owned());
        let has_flops = value::<f64>(ladder, "/budget/flops").is_some();
        if let (Some(count), true) = (get(at, "count"), spec.counts_layers && has_flops) {
            let message = "`budget.flops` counts all FLOPs, so the best size for it does too".to_owned();
            self.error(count.value.place, "ladder.count", message, "delete `count`");
        }
        let seeds = get(at, "seeds");
        spec.axes.extend(seeds.and_then(|entry| self.read_seeds(entry, "ladder.seeds", &ladder["seeds"])));
        if let (Some(ratio), Some(_)) = (ratio, get(at, "budget")) {
            let message = "a ladder has either `tokens_per_parameter` or `budget`, got both".to_owned();
            self.error(ratio.place, "ladder", message, "delete one of the two");
        }
    }

    /// Several ratios, each of which every size is trained with.
    fn read_tokens_per_parameter(&mut self, entry: &Entry, values: &[Value]) -> Option<Dimension> {
        if let Some(twice) = values.iter().enumerate().find(|(i, value)| values[..*i].contains(value)) {
            let message =
                format!("the values of `ladder.tokens_per_parameter` must differ, but {} is listed twice", twice.1);
            self.error(entry.value.place, "ladder.tokens_per_parameter", message, "delete one of the two");
        }
        for value in values {
            self.add_setting(TOKENS_PER_PARAMETER, value, &entry.value);
        }
        let axis = ListAxis { name: TOKENS_PER_PARAMETER.to_owned(), values: values.to_vec() };
        (!values.is_empty()).then_some(Dimension::Grid(axis))
    }

    /// The factors of `tune`, with 1 among them.
    fn read_tune(&mut self, entry: &Entry, factors: &Value) -> Option<Dimension> {
        let mut values = factors.as_array()?.clone();
        let is = |holds: fn(&f64) -> bool| values.iter().filter_map(Value::as_f64).any(|factor| holds(&factor));
        if !is(|factor| *factor < 1.0) || !is(|factor| *factor > 1.0) {
            let message = "`ladder.tune` needs a factor below 1 and one above".to_owned();
            self.error(entry.value.place, "ladder.tune", message, "write it as in `tune: [0.5, 1, 2]`");
            return None;
        }
        if !is(|factor| *factor == 1.0) {
            values.push(1.into());
        }
        Some(Dimension::Tune(ListAxis { name: TUNE.to_owned(), values }))
    }

    /// The rules, each with the names that it may use: those that vary, those of the rules before it, and the figures of a plan.
    fn read_rules(&mut self, section: &Entry, axes: &[Dimension]) -> Vec<SettingRule> {
        let mut needing_plan: Vec<String> = FIGURES.map(str::to_owned).to_vec();
        let varying = axes.iter().flat_map(Dimension::names).map(str::to_owned);
        let mut known: Vec<String> = varying.chain(needing_plan.clone()).collect();
        let environment = expression_environment();
        let mut rules = Vec::new();
        for entry in entries(&section.value) {
            let path = format!("ladder.rules.{}", entry.key);
            if !self.take_name(entry, "rules") {
                continue;
            }
            let Yaml::Scalar { text, .. } = &entry.value.value else { continue };
            let expression = ExcludeExpression { text: text.to_string(), place: entry.value.place };
            let names = match exclude::compile(&environment, Some(&known), &expression) {
                Ok((_, names)) => names,
                Err((message, help)) => {
                    self.error(entry.value.place, &path, message.replace("in this sweep", "in this ladder"), help);
                    continue;
                }
            };
            let needs_plan = names.iter().any(|name| needing_plan.contains(name));
            let decides_plan = ["model", "data", "train"].contains(&entry.key.split('.').next().unwrap_or_default());
            let is_tuned = names.iter().any(|name| name == TUNE);
            if (needs_plan || is_tuned) && decides_plan {
                let on =
                    if is_tuned { "`tune`, which must not change the rung" } else { "the plan, which depends on it" };
                let message = format!("`{}` cannot depend on {on}", short(&entry.key));
                let help = "use the dial and rules that do not use `parameters`, `tokens`, `flops`, `steps` or `tune`";
                self.error(entry.value.place, &path, message, help);
            }
            known.push(entry.key.clone());
            if needs_plan {
                needing_plan.push(entry.key.clone());
            }
            // Its values are found when the points are expanded.
            self.add_open_setting(&entry.key, entry.value.place);
            rules.push(SettingRule { key: entry.key.clone(), expression, needs_plan });
        }
        rules
    }

    /// The budget, whose legal part is `budget`. No other key may give the length of the training.
    pub(super) fn read_budget(&mut self, entry: &Entry, budget: &Value) -> Option<Budget> {
        let is_length = |name: &str| name == "train" || Train::LENGTH_KEYS.contains(&name);
        if let Some(taken) = self.taken.iter().find(|taken| is_length(&taken.name)) {
            let message = format!(
                "`budget` determines the steps of each point, but `{}` has values under `{}`",
                taken.name, taken.section
            );
            let help = format!("they are on line {}; delete one of the two", taken.line);
            self.error(entry.place, &format!("{}.budget", self.section), message, help);
        }
        let (kind, amount) = budget.as_object()?.iter().next()?;
        let kind = BudgetKind::ALL.into_iter().find(|known| known.name() == kind)?;
        let amount = match (kind, amount) {
            (BudgetKind::Time, Value::String(text)) => {
                let Some(span) = parse_span(text).filter(|span| !span.is_zero()) else {
                    let text = short(text);
                    let path = format!("{}.budget.time", self.section);
                    let message = format!(
                        "`{path}` must be a whole number of s, m, h or d, such as 30m, 12h or 2d, got `{text}`"
                    );
                    self.error(entry.value.place, &path, message, "");
                    return None;
                };
                span.as_secs_f64()
            }
            (_, amount) => amount.as_f64()?,
        };
        Some(Budget { kind, amount })
    }
}
