//! The points of sweeps, and what each gives to the loader.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::read::from_str;
use runner_config::{LayerFile, LoadOptions};
use runner_template::{Inputs, yaml_text};

fn spec(lines: &str) -> SweepSpec {
    from_str(&format!("sweep:\n  template: t.yaml.j2\n{lines}"), Path::new("s.yaml")).unwrap()
}

fn points(lines: &str) -> Vec<ExpandedPoint> {
    expand(&spec(lines)).unwrap().points
}

fn render_mistakes(lines: &str) -> String {
    expand(&spec(lines)).unwrap_err().to_string()
}

fn shown(points: &[ExpandedPoint]) -> Vec<String> {
    let values = |p: &ExpandedPoint| p.values.iter().map(|(_, v)| v.to_string()).collect::<Vec<_>>().join(" ");
    points.iter().map(|p| format!("{}: {}", p.index, values(p))).collect()
}

#[test]
fn the_first_axis_is_the_slowest_and_zips_go_together() {
    let all = points("  grid: {a: [1, 2], b: [x, y]}\n  zip: {c: [3, 4], d: [5, 6]}\n");
    let expected = [
        "1: 1 \"x\" 3 5",
        "2: 1 \"x\" 4 6",
        "3: 1 \"y\" 3 5",
        "4: 1 \"y\" 4 6",
        "5: 2 \"x\" 3 5",
        "6: 2 \"x\" 4 6",
        "7: 2 \"y\" 3 5",
        "8: 2 \"y\" 4 6",
    ];
    assert_eq!(shown(&all), expected);
    let names: Vec<&str> = all[0].values.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    // Sections count in the order of the file.
    assert_eq!(shown(&points("  zip: {c: [3, 4]}\n  grid: {a: [1, 2]}\n")), ["1: 3 1", "2: 3 2", "3: 4 1", "4: 4 2"]);
}

#[test]
fn excluded_points_are_kept_apart_and_the_rest_is_renumbered() {
    let all = spec(
        "  vars: {cap: 5e-4}\n  grid: {lr: [1e-4, 1e-3], layers: [2, 4]}\n  exclude: [layers == 4 and lr > 5e-4, lr < 5e-4 and layers == 2]\n",
    );
    let all = expand(&all).unwrap();
    assert_eq!(shown(&all.points), ["1: 0.0001 4", "2: 0.001 2"]);
    assert_eq!(shown(&all.excluded), ["1: 0.0001 2", "2: 0.001 4"]);
}

/// Expressions that minijinja reads: exponents, whole numbers beside floats, texts, lists, and variables of the template.
#[test]
fn expressions_compute_with_the_values() {
    for (expression, left) in [
        ("lr > 5e-4", "[1e-4,5e-4]"),
        ("lr >= 5E-4", "[1e-4]"),
        ("lr == 1e-4", "[5e-4,1e-3]"),
        ("lr == 0.0001", "[5e-4,1e-3]"),
        ("lr * 2 == 1e-3", "[1e-4,1e-3]"),
        ("not lr > 5e-4", "[1e-3]"),
        ("lr in [1e-3, 1e-4]", "[5e-4]"),
        ("(lr * 1e4)|round|int == 5", "[1e-4,1e-3]"),
        ("lr > cap", "[1e-4]"),
        ("decay == 'cosine' and lr > 5e-4", "[1e-4,5e-4]"),
        ("decay is string and (steps / 2 == 50 and steps // 3 == 33) and lr < 2e-4", "[5e-4,1e-3]"),
        ("steps == 100.0 and lr == 1e-3", "[1e-4,5e-4]"),
        ("(lr if decay == 'linear' else 1) == 1 and lr > 1e+3", "[1e-4,5e-4,1e-3]"),
        ("sizes[1] == 2 and lr == 1e-3", "[1e-4,5e-4]"),
        ("steps is divisibleby(50) and steps % 7 == 2 and lr == 1e-3", "[1e-4,5e-4]"),
        ("decay is startingwith('cos') and decay is endingwith('e') and lr|abs == 1e-3", "[1e-4,5e-4]"),
        ("lr is number and not lr is none and steps|float == 100 and lr == 1e-3", "[1e-4,5e-4]"),
    ] {
        let lines = format!(
            "  vars: {{cap: 2e-4, decay: cosine, steps: 100, sizes: [1, 2]}}\n  grid: {{lr: [1e-4, 5e-4, 1e-3]}}\n  exclude: [{}]\n",
            yaml_text(&json!(expression))
        );
        let rest: Vec<Value> = points(&lines).into_iter().map(|p| p.values[0].1.clone()).collect();
        let expected: Value = serde_json::from_str(left).unwrap();
        assert_eq!(Value::Array(rest), expected, "{expression}");
    }
}

#[test]
fn expressions_over_key_paths_are_nested() {
    let text = "sweep:\n  base: e.yaml\n  grid: {model.layers: [2, 4], optimizer.adamw.lr: [1e-4, 1e-3], model: [{heads: 2}, {heads: 4}]}\n  \
                exclude: [model.layers == 4 and optimizer.adamw.lr > 5e-4, model.heads == 2]\n";
    let all = expand(&from_str(text, Path::new("s.yaml")).unwrap()).unwrap();
    assert_eq!(
        shown(&all.points),
        ["1: 2 0.0001 {\"heads\":4}", "2: 2 0.001 {\"heads\":4}", "3: 4 0.0001 {\"heads\":4}"]
    );
}

#[test]
fn what_expressions_cannot_do_is_refused() {
    insta::assert_snapshot!(render_mistakes(
        "  grid: {lr: [1e-4, 1e-3], decay: [cosine]}\n  exclude:\n    - lr + 1\n    - decay - 1 > 0\n    - decay\n    - lr|list|length > 3\n"
    ));
    insta::assert_snapshot!(render_mistakes("  grid: {lr: [1e-4, 1e-3]}\n  exclude: [lr < 1, lr > 0]\n"));
    assert_eq!(points("  vars: {sizes: [1]}\n  grid: {lr: [1e-4, 1e-3]}\n  exclude: [lr * 10 > 5e-3]\n").len(), 1);
}

#[test]
fn draws_stay_in_their_ranges_and_depend_on_nothing_else() {
    let random = |more: &str| {
        format!(
            "  random: {{samples: 200, seed: 7, space: {{{more}lr: {{log_uniform: [1e-5, 1e-2]}}, n: {{int_uniform: [10, 13]}}, k: {{int_log_uniform: [1, 1000]}}, u: {{uniform: [-1, 3]}}, d: {{choice: [a, b, [1]]}}}}}}\n"
        )
    };
    let all = points(&random(""));
    assert_eq!(all.len(), 200);
    let column = |points: &[ExpandedPoint], name: &str| -> Vec<Value> {
        points.iter().map(|p| p.values.iter().find(|(n, _)| n == name).unwrap().1.clone()).collect()
    };
    let numbers = |name: &str| column(&all, name).iter().map(|v| v.as_f64().unwrap()).collect::<Vec<f64>>();
    // A standard error of a share of 200 draws is at most 0.035; four of them.
    let share = |name: &str, below: f64| numbers(name).iter().filter(|&&x| x < below).count() as f64 / 200.0;
    assert!(numbers("lr").iter().all(|x| (1e-5..=1e-2).contains(x)));
    assert!(
        (share("lr", 1e-4) - 1.0 / 3.0).abs() < 0.14,
        "a third below a third of the decades: {}",
        share("lr", 1e-4)
    );
    assert!(numbers("u").iter().all(|x| (-1.0..=3.0).contains(x)));
    assert!((share("u", 0.0) - 0.25).abs() < 0.14);
    assert!((share("k", 10.0) - 1.0 / 3.0).abs() < 0.14);
    assert!(column(&all, "k").iter().all(|v| (1..=1000).contains(&v.as_i64().unwrap())));
    let whole: HashSet<i64> = column(&all, "n").iter().map(|v| v.as_i64().unwrap()).collect();
    assert_eq!(whole, HashSet::from([10, 11, 12, 13]));
    assert_eq!(column(&all, "d").iter().map(Value::to_string).collect::<HashSet<_>>().len(), 3);
    // At most six digits, so that they read well and come back as they are.
    for x in numbers("lr").into_iter().chain(numbers("u")) {
        assert_eq!(format!("{x:.5e}").parse::<f64>().unwrap(), x);
    }

    let more = points(&random("extra: {uniform: [0, 1]}, "));
    for name in ["lr", "n", "k", "u", "d"] {
        assert_eq!(column(&all, name), column(&more, name), "another axis does not change {name}");
    }
    assert_ne!(column(&all, "u"), column(&points(&random("").replace("seed: 7", "seed: 8")), "u"));
    // Each point of the grid gets the same draws.
    let grid = points(&format!("  grid: {{g: [1, 2]}}\n{}", random("")));
    assert_eq!(column(&grid[..200], "lr"), column(&grid[200..], "lr"));
}

/// Fixed, because a sweep that is resumed by a different version of the program must draw the same.
#[test]
fn draws_never_change() {
    let all = points(
        "  random: {samples: 3, seed: 1, space: {lr: {log_uniform: [1e-5, 1e-2]}, warmup: {int_uniform: [10, 200]}, decay: {choice: [cosine, linear]}, u: {uniform: [0, 1]}, k: {int_log_uniform: [1, 1000]}}}\n",
    );
    insta::assert_snapshot!(shown(&all).join("\n"));
}

#[test]
fn extreme_ranges_hold() {
    use crate::spec::Distribution;
    for sample in 0..1000 {
        let x = Distribution::Uniform(-f64::MAX, f64::MAX).value(1, "x", sample).as_f64().unwrap();
        assert!(x.is_finite());
        let x = Distribution::LogUniform(5e-324, f64::MAX).value(1, "x", sample).as_f64().unwrap();
        assert!(x > 0.0 && x.is_finite());
        let x = Distribution::Uniform(0.123_456_71, 0.123_456_72).value(1, "x", sample).as_f64().unwrap();
        assert!((0.123_456_71..=0.123_456_72).contains(&x), "{x}");
        let x = Distribution::IntUniform(i64::MIN, i64::MAX).value(1, "x", sample);
        assert!(x.is_i64());
        assert_eq!(Distribution::IntLogUniform(5, 5).value(1, "x", sample), json!(5));
    }
    assert_eq!(Distribution::Choice(Vec::new()).value(1, "x", 0), Value::Null);
}

#[test]
fn a_product_is_counted_before_it_is_made() {
    let mut large = spec("  grid: {a: [1, 2]}\n");
    for name in ["b", "c", "d"] {
        let random = crate::spec::RandomDraws {
            samples: usize::MAX / 2,
            seed: 1,
            space: vec![(name.into(), crate::spec::Distribution::Uniform(0.0, 1.0))],
        };
        large.axes.push(Dimension::Random(random));
    }
    let said = expand(&large).unwrap_err().to_string();
    assert!(said.contains("a sweep must have at most 10000 points, got ") && said.contains(": 2 (a) × "), "{said}");
}

#[test]
fn a_template_gets_variables_and_an_experiment_keys() {
    let command = LoadOptions {
        sets: vec!["seed=5".into()],
        template: Inputs { vars: json!({"steps": 7, "fixed": 8}).as_object().unwrap().clone(), ..Inputs::default() },
        allows_absent_files: true,
        ..LoadOptions::default()
    };
    let mut spec = spec("  vars: {steps: 1, other: 2}\n  set: {log.every: 3}\n  grid: {lr: [1e-4]}\n");
    let point = expand(&spec).unwrap().points.remove(0);
    let got = load_options(&spec, &point, &command);
    assert_eq!(Value::Object(got.template.vars), json!({"steps": 7, "other": 2, "fixed": 8, "lr": 1e-4}));
    assert_eq!((got.sets, got.allows_absent_files), (vec!["log.every=3".to_owned(), "seed=5".to_owned()], true));

    spec.base = "e.yaml".into();
    let point = ExpandedPoint {
        index: 1,
        values: vec![("optimizer.adamw.lr".into(), json!(1e-5)), ("name".into(), json!("a: b"))],
    };
    let got = load_options(&spec, &point, &command);
    assert_eq!(got.sets, ["log.every=3", "seed=5", "optimizer.adamw.lr=1e-5", "name=\"a: b\""]);
    assert_eq!(got.template.vars, command.template.vars);
}

/// Every value that a sweep file can hold is read back from its text, among them what YAML text may not hold as it is.
#[test]
fn values_read_back_from_their_text() {
    let values = [
        json!(null),
        json!(true),
        json!("true"),
        json!(""),
        json!("null"),
        json!("1e-4"),
        json!(1e-4),
        json!(-0.0),
        json!(0.1 + 0.2),
        json!(5e-324),
        json!(f64::MAX),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e16),
        json!(-1e300),
        json!(0.001),
        json!(3e-4),
        json!(123_456_789.5),
        json!("a: b # c, {d} [e] \"f\" 'g' \\ \n\t\r\u{7f}\u{85}\u{feff}\u{2028}\u{0} é 漢 😀 &x *y !z %w @v"),
        json!([]),
        json!({}),
        json!([[1, "x"], {"a: b": [null, {"": 2.5}], "1": "~"}]),
    ];
    for value in values {
        let text = yaml_text(&value);
        assert!(!text.contains('\n'));
        let file = format!("sweep: {{template: t.j2, grid: {{x: [{text}]}}}}");
        let spec = from_str(&file, Path::new("s.yaml")).unwrap_or_else(|e| panic!("{text}: {e}"));
        let back = expand(&spec).unwrap().points[0].values[0].1.clone();
        assert_eq!(back, value, "{text}");
        assert_eq!(yaml_text(&back), text, "zeros keep their sign");
    }
    assert_eq!(
        [1e-5, 3e-4, 0.001, 0.25, 2.0].map(|x| yaml_text(&json!(x))),
        ["1e-5", "0.0003", "0.001", "0.25", "2.0"]
    );
}

#[test]
fn a_value_is_given_only_where_its_condition_is_true() {
    let all = points(
        "  grid: {optimizer: [adamw, muon], momentum: [0.9, 0.95], nesterov: [true, false]}\n  when:\n    momentum: optimizer == 'muon'\n    nesterov: momentum is defined and momentum > 0.9\n",
    );
    let expected = ["1: \"adamw\"", "2: \"muon\" 0.9", "3: \"muon\" 0.95 true", "4: \"muon\" 0.95 false"];
    assert_eq!(shown(&all), expected);
    insta::assert_snapshot!(render_mistakes("  grid: {a: [1, 2], b: [3, 4]}\n  when: {b: a + 1}\n"), @r"
    error: the expression must be true or false, but gives `2` for a: 1
     --> s.yaml:4:13
      |
    4 |   when: {b: a + 1}
      |             ^^^^^
      = help: compare with something, as in `layers == 4`

    1 mistake; nothing was started
    ");
}

#[test]
fn files_are_values_that_are_named_after_them() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["models/small.yaml", "models/large.yaml", "other/small.yaml"] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "layers: 2\n").unwrap();
    }
    let read = |files: &str| {
        let text = format!("sweep:\n  base: e.yaml\n  set: {{seed: 1}}\n  files: {{model: {files}}}\n");
        from_str(&text, &folder.path().join("s.yaml"))
    };
    let spec = read("['models/*.yaml']").unwrap();
    let all = expand(&spec).unwrap().points;
    assert_eq!(shown(&all), ["1: \"large\"", "2: \"small\""]);
    let options = load_options(&spec, &all[0], &LoadOptions::default());
    assert_eq!(options.sets, ["seed=1"]);
    let path = folder.path().join("models/large.yaml");
    assert_eq!(options.files, [LayerFile { key: "model".to_owned(), path }]);
    let alike = expand(&read("['*/small.yaml']").unwrap()).unwrap().points;
    assert_eq!(shown(&alike), ["1: \"models/small.yaml\"", "2: \"other/small.yaml\""]);
    assert!(read("[models/small.yaml, 'models/*.yaml']").unwrap_err().to_string().contains("is listed twice"));
}
