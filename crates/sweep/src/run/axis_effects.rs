//! The effect of what varies in a sweep. A value that changes nothing, or that a later value replaces, makes the table of results untrue.

use std::collections::BTreeMap;

use crate::{Dimension, ExpandedPoint, PointValues, SweepSpec, point_settings};
use runner_config::{Loaded, OverriddenSetting};
use runner_spec::diagnostic::Diagnostic;
use runner_spec::error::PlainError;
use runner_spec::experiment::Experiment;
use runner_spec::format::json_bytes;
use runner_yaml::source::{Place, Source};

use super::point_problems::PointProblems;

/// The effect of the values of a name, from none to one on what is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AxisEffect {
    /// All values give the same experiment.
    None,
    /// Only what is recorded differs, and under which name: the runs are the same.
    Record,
    /// Only the seed differs.
    Seed,
    Training,
}

impl AxisEffect {
    /// The effect by which two experiments differ.
    fn between(a: &Experiment, b: &Experiment) -> Self {
        if a == b {
            return Self::None;
        }
        let mut same = b.clone();
        same.name.clone_from(&a.name);
        same.log.clone_from(&a.log);
        same.checkpoint = a.checkpoint;
        if *a == same {
            return Self::Record;
        }
        same.seed = a.seed;
        if *a == same { Self::Seed } else { Self::Training }
    }
}

/// What varies in `spec`, as far as its values vary together: the names, and their effect, seen in the `points` that differ in nothing else.
/// Names without such points are left out: those with one value, and draws of `random`.
pub(super) fn find_effects<'s>(
    spec: &'s SweepSpec,
    points: &[(&ExpandedPoint, Loaded)],
) -> Vec<(Vec<&'s str>, AxisEffect)> {
    let axes = spec.axes.iter().filter(|axis| !matches!(axis, Dimension::Random(_))).map(Dimension::names);
    axes.filter_map(|names| Some((find_effect(spec, &names, points)?, names)).map(|(effect, names)| (names, effect)))
        .collect()
}

fn find_effect(spec: &SweepSpec, names: &[&str], points: &[(&ExpandedPoint, Loaded)]) -> Option<AxisEffect> {
    let varied = spec.names();
    let mut first_of: BTreeMap<Vec<u8>, (PointValues, &Experiment)> = BTreeMap::new();
    let mut most = None;
    for (point, loaded) in points {
        let values = point.values.iter().filter(|(name, _)| varied.contains(&name.as_str())).cloned();
        let (own, others): (PointValues, PointValues) = values.partition(|(name, _)| names.contains(&name.as_str()));
        let (known, first) = first_of.entry(json_bytes(&others)).or_insert_with(|| (own.clone(), &loaded.experiment));
        if *known != own {
            most = most.max(Some(AxisEffect::between(first, &loaded.experiment)));
        }
    }
    // Points that are excluded could differ.
    most.filter(|effect| *effect > AxisEffect::None || spec.exclude.is_empty())
}

/// Adds a mistake for each of `effects` that is [`AxisEffect::None`].
pub(super) fn report_ineffective_axes(
    spec: &SweepSpec,
    points: &[(&ExpandedPoint, Loaded)],
    effects: &[(Vec<&str>, AxisEffect)],
    problems: &mut PointProblems,
) {
    for (names, _) in effects.iter().filter(|(_, effect)| *effect == AxisEffect::None) {
        let message = format!("`{}` has no effect: all its values give the same experiment", names.join("`, `"));
        let help = if spec.has_template() {
            "use it in the template, or delete it"
        } else {
            "delete it, or give it values that differ"
        };
        let mistake = diagnostic(spec, names[0], message, help.to_owned());
        for (point, _) in points {
            problems.add_config(point, mistake.clone().into());
        }
    }
}

/// Adds a mistake for each value of a point that another value of the point replaces, and for each setting of all points, of the file or
/// of the command's flags `sets`, that the values of every point replace.
pub(super) fn report_overridden(
    spec: &SweepSpec,
    points: &[(&ExpandedPoint, Loaded)],
    sets: &[String],
    problems: &mut PointProblems,
) {
    let key = |setting: &str| setting.split('=').next().unwrap_or(setting).trim().to_owned();
    for (point, loaded) in points {
        let own = point_settings(spec, point);
        for OverriddenSetting { setting, by, .. } in
            loaded.overridden.iter().filter(|overridden| own.contains(&overridden.setting))
        {
            let (name, by) = (key(setting), key(by));
            let message = format!("`{name}` has no effect: `{by}`, which also varies, replaces it");
            let help = match common_section(&name, &by) {
                "" => "vary one of them".to_owned(),
                section => format!("vary one of them, or give `{section}` a list of mappings"),
            };
            problems.add_config(point, diagnostic(spec, &name, message, help).into());
        }
    }
    for setting in spec.shared_settings().iter().chain(sets) {
        let replaced_by = |(point, loaded): &(&ExpandedPoint, Loaded)| {
            let own = point_settings(spec, point);
            let by_key = own.iter().find(|own| key(own) == key(setting));
            let overridden = loaded
                .overridden
                .iter()
                .find(|overridden| overridden.setting == *setting && own.contains(&overridden.by));
            by_key.or(overridden.map(|overridden| &overridden.by)).map(|by| key(by))
        };
        let Some(replacing) = points.iter().map(replaced_by).collect::<Option<Vec<String>>>() else { continue };
        let Some(by) = replacing.first() else { continue };
        for (point, _) in points {
            if sets.contains(setting) {
                let file = spec.path.display();
                let text = format!("--set {setting} would have no effect: the sweep varies {by}; change it in {file}");
                problems.add(point, PlainError::request(text));
            } else {
                let message = format!("`{}` has no effect: `{by}`, which varies, replaces it", key(setting));
                problems.add_config(
                    point,
                    diagnostic(spec, &key(setting), message, "delete one of the two".to_owned()).into(),
                );
            }
        }
    }
}

/// The section that two keys have in common; empty if there is none.
fn common_section<'k>(a: &'k str, b: &str) -> &'k str {
    let shared: usize = a.split('.').zip(b.split('.')).take_while(|(a, b)| a == b).map(|(key, _)| key.len() + 1).sum();
    a.get(..shared.saturating_sub(1)).unwrap_or_default()
}

/// A mistake at the first value of `name` in the sweep file.
fn diagnostic(spec: &SweepSpec, name: &str, message: String, help: String) -> Diagnostic {
    let source = Source::file(&spec.path, spec.text.clone());
    let setting = spec.settings.iter().find(|setting| setting.key() == name);
    let whole = Place { line: 1, column: 1, length: 1 };
    source.diagnostic(setting.map_or(whole, |setting| setting.place), &format!("sweep.{name}"), message, help)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::{expand, from_str, load_options};
    use runner_config::LoadOptions;

    use super::*;

    /// The effects and the mistakes of a sweep over a small experiment, or over a template.
    fn check(text: &str, sets: &[&str]) -> (Vec<(String, AxisEffect)>, String) {
        let dir = tempfile::tempdir().unwrap();
        let experiment =
            "model: {preset: gpt2-micro}\ndata: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}}\n";
        fs::write(dir.path().join("b.yaml"), experiment).unwrap();
        let template = format!(
            "{experiment}seed: {{{{ s }}}}\n{{% if kind == 'x' %}}train: {{{{ {{'steps': n}} }}}}{{% endif %}}\n\n# {{{{ n }}}} {{{{ idle }}}}\n"
        );
        fs::write(dir.path().join("t.yaml.j2"), template).unwrap();
        let spec = from_str(text, &dir.path().join("s.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let expanded = expand(&spec).unwrap();
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let options = LoadOptions { sets: sets.clone(), ..LoadOptions::default() };
        let load = |point: &ExpandedPoint| runner_config::load(&spec.base, &load_options(&spec, point, &options));
        let points: Vec<_> = expanded
            .points
            .iter()
            .map(|point| (point, load(point).unwrap_or_else(|error| panic!("{error}"))))
            .collect();
        let mut problems = PointProblems::new(points.len());
        report_overridden(&spec, &points, &sets, &mut problems);
        if let Err(problems) = problems.into_result() {
            return (Vec::new(), problems.render(false));
        }
        let mut problems = PointProblems::new(points.len());
        let effects = find_effects(&spec, &points);
        report_ineffective_axes(&spec, &points, &effects, &mut problems);
        let text = problems.into_result().err().map(|problems| problems.render(false)).unwrap_or_default();
        (effects.into_iter().map(|(names, effect)| (names.join("+"), effect)).collect(), text)
    }

    #[test]
    fn values_that_undo_each_other_are_mistakes() {
        for (sweep, message) in [
            (
                "grid: {optimizer.adamw.lr: [1e-4, 1e-3], optimizer.sgd.lr: [0.1]}",
                "`optimizer.adamw.lr` has no effect: `optimizer.sgd.lr`, which also varies, replaces it",
            ),
            (
                "grid: {train.steps: [5], train.epochs: [1], seed: [1, 2]}",
                "`train.steps` has no effect: `train.epochs`, which also varies, replaces it",
            ),
            (
                "random: {samples: 3, space: {train.tokens: {int_uniform: [100, 900]}, train.steps: {int_uniform: [1, 9]}}}",
                "`train.tokens` has no effect: `train.steps`, which also varies, replaces it",
            ),
            (
                "zip: {schedule.decay.cosine.final: [0.1, 0.2], schedule.decay.linear.final: [0.1, 0.2]}",
                "`schedule.decay.cosine.final` has no effect",
            ),
            (
                "grid: {optimizer: [{adamw: {}}, {sgd: {lr: 1}}], optimizer.adamw.lr: [1e-4, 1e-3]}",
                "`optimizer` has no effect: `optimizer.adamw.lr`, which also varies, replaces it",
            ),
            (
                "set: {train.steps: 5}\n  grid: {train.epochs: [1, 2]}",
                "`train.steps` has no effect: `train.epochs`, which varies,",
            ),
        ] {
            let (_, found) = check(&format!("sweep:\n  base: b.yaml\n  {sweep}\n"), &[]);
            assert!(found.contains(message) && found.contains("s.yaml:"), "{sweep}: {found}");
            assert!(found.contains("1 mistake in the sweep's points"), "{found}");
        }
        let (_, found) = check("sweep: {base: b.yaml, grid: {train.epochs: [1, 2]}}", &["train.steps=5"]);
        assert!(found.contains("--set train.steps=5 would have no effect: the sweep varies train.epochs"), "{found}");
        // The setting counts in the points with this optimizer.
        let sweep = "set: {optimizer.sgd.momentum: 0.9}, grid: {optimizer: [{adamw: {}}, {sgd: {lr: 1}}]}";
        assert_eq!(check(&format!("sweep: {{base: b.yaml, {sweep}}}"), &["optimizer.adamw.eps=1e-6"]).1, "");
    }

    #[test]
    fn the_effect_of_what_varies() {
        let template = "sweep: {template: t.yaml.j2, vars: {kind: KIND}, grid: {s: [1, 2], n: [3, 4], idle: [5, 6]}}";
        let (effects, found) = check(&template.replace("KIND", "x"), &[]);
        let named = |list: &[(&str, AxisEffect)]| list.iter().map(|(n, e)| ((*n).to_owned(), *e)).collect::<Vec<_>>();
        let expected = [("s", AxisEffect::Seed), ("n", AxisEffect::Training), ("idle", AxisEffect::None)];
        assert_eq!(effects, named(&expected), "{found}");
        assert!(found.contains("`idle` has no effect: all its values give the same experiment"), "{found}");
        assert!(found.contains("in all 8 points") && !found.contains("`n`"), "{found}");
        let (effects, found) = check(&template.replace("KIND", "y"), &[]);
        assert_eq!(effects[1].1, AxisEffect::None, "{found}");

        let sweep = "grid: {log.every: [10, 20], seed: [1, 2]}, random: {samples: 2, space: {train.steps: {int_uniform: [1, 90]}}}, \
                     zip: {name: [a, b], optimizer.adamw.lr: [1e-3, 1e-4]}";
        let (effects, found) = check(&format!("sweep: {{base: b.yaml, {sweep}}}"), &[]);
        let expected = [
            ("log.every", AxisEffect::Record),
            ("seed", AxisEffect::Seed),
            ("name+optimizer.adamw.lr", AxisEffect::Training),
        ];
        assert_eq!((effects, found), (named(&expected), String::new()));
    }

    #[test]
    fn sections_in_common() {
        assert_eq!(common_section("optimizer.adamw.lr", "optimizer.sgd.lr"), "optimizer");
        assert_eq!((common_section("train.steps", "train.epochs"), common_section("seed", "name")), ("train", ""));
        assert_eq!(common_section("optimizer", "optimizer.adamw.lr"), "optimizer");
    }
}
