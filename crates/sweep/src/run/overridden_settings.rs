//! Settings that have no effect, because another setting replaces them: they make the table of results untrue.

use super::point_problems::PointProblems;
use crate::{ExpandedPoint, SweepSpec, point_settings};
use runner_config::{Loaded, OverriddenSetting};
use runner_spec::diagnostic::Diagnostic;
use runner_spec::error::PlainError;
use runner_yaml::source::{Place, Source};

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
        for found in loaded.overridden.iter().filter(|found| own.contains(&found.setting)) {
            let (name, by) = (key(&found.setting), key(&found.by));
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
            let is_own = |found: &&OverriddenSetting| found.setting == *setting && own.contains(&found.by);
            by_key.or(loaded.overridden.iter().find(is_own).map(|found| &found.by)).map(|by| key(by))
        };
        let Some(replacing) = points.iter().map(replaced_by).collect::<Option<Vec<String>>>() else { continue };
        let Some(by) = replacing.first() else { continue };
        for (point, _) in points {
            if sets.contains(setting) {
                let file = spec.path.display();
                let text = format!("--set {setting} would have no effect: the sweep varies {by}; change it in {file}");
                problems.add(point, PlainError::request(text));
            } else {
                let (name, help) = (key(setting), "delete one of the two".to_owned());
                let message = format!("`{name}` has no effect: `{by}`, which varies, replaces it");
                problems.add_config(point, diagnostic(spec, &name, message, help).into());
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

    /// The mistakes of a sweep over a small experiment.
    fn check(text: &str, sets: &[&str]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let experiment =
            "model: {preset: gpt2-micro}\ndata: {tokenizer: {bytes: {}}, train: {builtin: {corpus: stories}}}\n";
        fs::write(dir.path().join("b.yaml"), experiment).unwrap();
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
        problems.into_result().err().map(|problems| problems.render(false)).unwrap_or_default()
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
            let found = check(&format!("sweep:\n  base: b.yaml\n  {sweep}\n"), &[]);
            assert!(found.contains(message) && found.contains("s.yaml:"), "{sweep}: {found}");
            assert!(found.contains("1 mistake in the sweep's points"), "{found}");
        }
        let found = check("sweep: {base: b.yaml, grid: {train.epochs: [1, 2]}}", &["train.steps=5"]);
        assert!(found.contains("--set train.steps=5 would have no effect: the sweep varies train.epochs"), "{found}");
        // The setting counts in the points with this optimizer.
        let sweep = "set: {optimizer.sgd.momentum: 0.9}, grid: {optimizer: [{adamw: {}}, {sgd: {lr: 1}}]}";
        assert_eq!(check(&format!("sweep: {{base: b.yaml, {sweep}}}"), &["optimizer.adamw.eps=1e-6"]), "");
    }

    #[test]
    fn sections_in_common() {
        assert_eq!(common_section("optimizer.adamw.lr", "optimizer.sgd.lr"), "optimizer");
        assert_eq!((common_section("train.steps", "train.epochs"), common_section("seed", "name")), ("train", ""));
        assert_eq!(common_section("optimizer", "optimizer.adamw.lr"), "optimizer");
    }
}
