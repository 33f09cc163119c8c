//! The meaning of sweep files, and the report of each kind of mistake, word for word.

use serde_json::json;

use super::*;
use crate::points::expand::expand;
use crate::spec::{Dimension, Distribution, ListAxis, Objective, RandomDraws};

fn read_text(text: &str) -> Result<SweepSpec, ConfigError> {
    from_str(text, Path::new("dir/s.yaml"))
}

fn render_mistakes(text: &str) -> String {
    read_text(text).unwrap_err().to_string()
}

const WHOLE: &str = r#"version: 1
sweep:
  template: gpt2-lr.yaml.j2
  vars: {steps: 1000, preset: "1e-4", sizes: [1, {a: ~}]}
  set: {log.every: 5, optimizer: {adamw: {weight_decay: 1e-1}}}
  grid: {lr: [1e-4, 3e-4, 1e-3], layers: [2, 4]}
  zip: {d_model: [128, 256], heads: [4, 8]}
  random: {samples: 20, seed: 1, space: {rate: {log_uniform: [1e-5, 1e-2]}, warmup: {int_uniform: [10, 200]}, decay: {choice: [cosine, linear]}}}
  exclude: ["layers == 4 and lr > 5e-4"]
  objective: {metric: hellaswag_acc, at: best}
  early_stop: {asha: {min_steps: 100, reduction: 4}}
  parallel: 2
  retries: 1
"#;

#[test]
fn a_whole_file_is_read() {
    let spec = read_text(WHOLE).unwrap();
    assert_eq!(spec.name, "s");
    assert_eq!(spec.base, PathBuf::from("dir/gpt2-lr.yaml.j2"));
    assert_eq!(Value::Object(spec.vars.clone()), json!({"steps": 1000, "preset": "1e-4", "sizes": [1, {"a": null}]}));
    assert_eq!(spec.set, ["log.every=5", "optimizer={adamw: {weight_decay: 0.1}}"]);
    let axis = |name: &str, values: Value| ListAxis { name: name.into(), values: values.as_array().unwrap().clone() };
    let space = vec![
        ("rate".to_owned(), Distribution::LogUniform(1e-5, 1e-2)),
        ("warmup".to_owned(), Distribution::IntUniform(10, 200)),
        ("decay".to_owned(), Distribution::Choice(vec![json!("cosine"), json!("linear")])),
    ];
    let expected = [
        Dimension::Grid(axis("lr", json!([1e-4, 3e-4, 1e-3]))),
        Dimension::Grid(axis("layers", json!([2, 4]))),
        Dimension::Zip(vec![axis("d_model", json!([128, 256])), axis("heads", json!([4, 8]))]),
        Dimension::Random(RandomDraws { samples: 20, seed: 1, space }),
    ];
    assert_eq!(spec.axes, expected);
    let exclude = ExcludeExpression {
        text: "layers == 4 and lr > 5e-4".into(),
        place: Place { line: 9, column: 13, length: 27 },
    };
    assert_eq!(spec.exclude, [exclude]);
    assert_eq!(spec.objective, Objective::new(Measure::of_key("hellaswag_acc").unwrap(), MeasurementChoice::Best));
    assert_eq!(spec.early_stop, Some(AshaSettings { unit: MilestoneUnit::Steps, first: 100.0, reduction: 4 }));
    assert_eq!((spec.parallel, spec.retries), (2, 1));
    assert_eq!((spec.text.as_str(), spec.path.as_path()), (WHOLE, Path::new("dir/s.yaml")));
}

#[test]
fn a_short_file_gets_the_defaults() {
    let spec = read_text("\u{FEFF}sweep: {base: /abs/exp.yaml, grid: {optimizer.adamw.lr: [3e-4]}}").unwrap();
    assert_eq!(spec.base, PathBuf::from("/abs/exp.yaml"));
    assert_eq!(spec.objective, Objective::new(Measure::VAL_LOSS, MeasurementChoice::Last));
    assert_eq!((spec.early_stop, spec.parallel, spec.retries), (None, 1, 0));
    assert!(spec.exclude.is_empty() && spec.set.is_empty() && spec.vars.is_empty());
    // Keys that a section without a value leaves out have their defaults, and an explicit null is null.
    let spec = read_text(
        "sweep:\n  base: e.yaml\n  name: a-1\n  exclude: []\n  parallel:\n  early_stop: ~\n  grid: {model.d_ff: [null, 8]}",
    );
    let spec = spec.unwrap();
    assert_eq!((spec.name.as_str(), spec.parallel), ("a-1", 1));
    assert_eq!(
        spec.axes,
        [Dimension::Grid(ListAxis { name: "model.d_ff".into(), values: vec![Value::Null, json!(8)] })]
    );
}

#[test]
fn numbers_are_as_they_are_spelled() {
    let spec = read_text(
        "sweep: {template: t.j2, grid: {x: [1, 1.0, 1e3, 0x1E, 10e9, 1.5e3, 1e-4, '1', yes, true, -0.5, 1e25]}}",
    );
    let Dimension::Grid(axis) = &spec.unwrap().axes[0] else { panic!() };
    let expected = json!([1, 1.0, 1000, 30, 10_000_000_000_u64, 1500.0, 1e-4, "1", "yes", true, -0.5, 1e25]);
    assert_eq!(Value::Array(axis.values.clone()), expected);
}

#[test]
fn seeds_are_a_number_or_a_list() {
    let axis = |text: &str| read_text(&format!("sweep: {{base: e.yaml, {text}}}")).unwrap().axes;
    let seeds = |values: &[u64]| {
        Dimension::Seeds(ListAxis { name: "seed".into(), values: values.iter().map(|seed| json!(seed)).collect() })
    };
    assert_eq!(axis("seeds: 3"), [seeds(&[1, 2, 3])]);
    assert_eq!(axis("seeds: [7, 2]"), [seeds(&[7, 2])]);
    // They vary fastest, wherever they stand.
    assert_eq!(axis("seeds: 1, grid: {model.layers: [1, 2]}")[1], seeds(&[1]));
}

macro_rules! says {
    ($($name:ident: $text:expr;)*) => {$(
        #[test]
        fn $name() {
            insta::assert_snapshot!(render_mistakes($text));
        }
    )*};
}

says! {
    wrong_seeds: "sweep:\n  base: e.yaml\n  grid: {model.layers: [1, 2]}\n  seeds: 0\n";
    repeated_seeds: "sweep:\n  base: e.yaml\n  seeds: [1, 2, 1]\n";
    seeds_that_are_no_numbers: "sweep:\n  base: e.yaml\n  seeds: [1, a]\n";
    seeds_beside_an_axis_of_seeds: "sweep:\n  base: e.yaml\n  grid: {seed: [1, 2]}\n  seeds: 3\n";
    slips_in_keys: "sweep:\n  templat: t.yaml.j2\n  base: e.yaml\n  gird: {seed: [1]}\n  grid: {seed: [1, 2]}\n  objective: {metrics: val_loss, at: first}\n  early_stop: {ahsa: {min_steps: 5}}\nsweeep: 1\nparallel: 3\nversion: 2\n";
    keys_of_other_tools: "sweep:\n  base: e.yaml\n  grid: {train.warmup_ratio: [0.1], optimizer.lr: [1], tr\u{430}in.steps: [1], \"warmup.steps\": [1]}\n  set: {max_steps: 3, data.train: {hub: owner/name}}\n";
    a_template_that_is_not_one: "sweep:\n  base: {{ base }}\n  grid: {seed: [1, 2]}\n";
    variables_that_are_not_replaced: "sweep:\n  name: run-${X}\n  base: e.yaml\n  grid: {optimizer.adamw.lr: [${lr}]}\n";
    spaces_of_other_kinds: "sweep:\n  base: e.yaml\n  grid:\u{A0}{seed: [1, 2]}\n";
    wrong_types: "sweep:\n  name: [a]\n  template: {a: b}\n  vars: [1]\n  grid: {lr: 1e-4, layers: {int_uniform: [1, 3]}, heads: []}\n  zip: [1, 2]\n  random: {samples: many, seed: -1, space: {a: [1, 2], b: {choice: 3}, c: 4}}\n  exclude: layers == 4\n  objective: val_loss\n  early_stop: asha\n  parallel: '2'\n  retries: 1.5\n";
    wrong_values: "sweep:\n  name: a/b\n  base: e.yaml\n  grid: {seed: [1, 2, 1], train.steps: [.nan]}\n  zip: {model.layers: [2, 4], model.heads: [2, 4, 8], log.every: [1]}\n  random:\n    samples: 0\n    space:\n      optimizer.adamw.lr: {log_uniform: [0, 1e-2]}\n      optimizer.adamw.beta1: {log_uniform: [1e-2, 1e-5]}\n      optimizer.adamw.beta2: {uniform: [0.5, 0.5]}\n      schedule.warmup: {int_uniform: [200, 10]}\n      batch.sequences: {int_log_uniform: [0, 10]}\n      batch.micro_batch: {uniform: [1]}\n      model.d_model: {uniform: [1, .inf]}\n  early_stop: {asha: {min_steps: 0, reduction: 1}}\n  parallel: 0\n  retries: -1\n";
    names_that_cannot_be: "sweep:\n  base: e.yaml\n  set: {modle.layers: 3, seed: 1, log.every: 2}\n  grid: {lr: [1], optimizer.adam.lr: [1], seed: [1, 2], train.steps: [5]}\n  random: {samples: 2, space: {train.steps: {choice: [1, 2]}, nonsense: {choice: [1, 2]}}}\n";
    variables_that_cannot_be: "sweep:\n  template: t.yaml.j2\n  vars: {lr: 1, a b: 2}\n  grid: {optimizer.adamw.lr: [1], lr: [1], 2x: [1], in: [1]}\n";
    neither_base_nor_axes: "sweep: {parallel: 1}\n";
    both_bases: "sweep:\n  base: e.yaml\n  template: t.yaml.j2\n  vars: {a: 1}\n  grid: {seed: [1, 2]}\n";
    a_template_as_base: "sweep:\n  base: e.yaml.j2\n  grid: {}\n";
    an_experiment_as_template: "sweep:\n  template: e.yaml\n  random: {}\n  early_stop: {asha: {}}\n";
    exclusions: "sweep:\n  template: t.yaml.j2\n  vars: {fixed: 1}\n  grid: {lr: [1], layers: [2]}\n  exclude:\n    - layer == 4\n    - layers = 4\n    - layers == 4 && lr > 1\n    - \"lr >\"\n    - fixed == 1 and lr in [3]\n    - lr in range(3)\n    - [1]\n    - ''\n    - depth > 3\n";
    mistakes_of_all_kinds: "sweep:\n  base: e.yaml\n  grid: {modle.layers: [2]}\n  zip: {seed: [1, 2], train.steps: [1]}\n  exclude: [seed = 1, sed == 1]\n";
    exclusions_by_key_path: "sweep:\n  base: e.yaml\n  grid: {model.layers: [2], optimizer: [{adamw: {lr: 1}}]}\n  exclude: [layers == 4, model.layer == 4, optimizer.adamw.lr > 1, model.layers.x == 1 and model]\n";
    too_many_points: "sweep:\n  base: e.yaml\n  grid: {seed: [1, 2, 3], train.steps: [1, 2]}\n  random: {samples: 5000, space: {optimizer.adamw.lr: {uniform: [0, 1]}}}\n";
    not_a_sweep: "model: {preset: gpt2-micro}\n";
    nothing: "# nothing\n";
    a_list: "- 1\n";
    not_yaml: "sweep: {base: e.yaml\n";
}

#[test]
fn a_long_expression_is_refused_before_it_is_parsed() {
    let text = format!("sweep: {{template: t.j2, grid: {{x: [1]}}, exclude: [\"1{} == 2\"]}}", " + 1".repeat(100_000));
    assert!(render_mistakes(&text).contains("bytes, got 400006"));
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(load(folder.path()).unwrap_err().to_string().contains("this is a folder"));
    let missing = load(&folder.path().join("none.yaml")).unwrap_err().to_string();
    assert!(missing.contains("there is no such file") && missing.contains("name a sweep file"), "{missing}");
    let file = folder.path().join("latin.yaml");
    std::fs::write(&file, b"sweep: \xE9").unwrap();
    assert!(load(&file).unwrap_err().to_string().contains("not UTF-8"));
    std::fs::write(&file, WHOLE).unwrap();
    // A sweep that was started does not need its base to resume.
    let missing = ConfigError::new(vec![*load(&file).unwrap().missing_base.unwrap()]).to_string();
    assert!(missing.contains("there is no file") && missing.contains("latin.yaml:3:13"), "{missing}");
    std::fs::write(&file, format!("{WHOLE}  paralel: 2\n")).unwrap();
    let all = load(&file).unwrap_err().to_string();
    assert!(all.contains("there is no file") && all.contains("paralel"), "{all}");
    std::fs::write(&file, WHOLE).unwrap();
    std::fs::write(folder.path().join("gpt2-lr.yaml.j2"), "").unwrap();
    assert_eq!(load(&file).unwrap().base, folder.path().join("gpt2-lr.yaml.j2"));
}

#[test]
fn the_words_of_choices_are_all_read() {
    for metric in objective_measures().chain(Measure::of_key("quiz_acc_norm")) {
        let text = format!("sweep: {{base: e.yaml, grid: {{seed: [1]}}, objective: {{metric: {}}}}}", metric.key());
        let objective = read_text(&text).unwrap().objective;
        assert_eq!(objective.metric, metric);
    }
    for distribution in ["uniform", "log_uniform", "int_uniform", "int_log_uniform", "choice"] {
        let text =
            format!("sweep: {{base: e.yaml, random: {{samples: 1, space: {{seed: {{{distribution}: [1, 3]}}}}}}}}");
        assert!(read_text(&text).is_ok(), "{distribution}");
    }
}

/// Words of the schema that its own enumerations do not have, and the other way round, are found.
#[test]
fn the_schema_has_the_words_of_the_program() {
    let schema: Value = serde_json::from_str(crate::spec::SCHEMA).unwrap();
    let words = |key: &str| {
        schema.pointer(&format!("/properties/sweep/properties/objective/properties/{key}/enum")).unwrap().clone()
    };
    let metric = schema.pointer("/properties/sweep/properties/objective/properties/metric/description").unwrap();
    for measure in objective_measures() {
        assert!(metric.as_str().unwrap().contains(&*measure.key()), "{metric}");
    }
    for (name, help) in [("val_los", "did you mean `val_loss`?"), ("accuracy", "use val_loss, "), ("val_tokens", "")] {
        let text = format!("sweep: {{base: e.yaml, grid: {{seed: [1]}}, objective: {{metric: {name}}}}}");
        let refused = read_text(&text).unwrap_err().to_string();
        assert!(refused.contains("is not something that runs are compared by") && refused.contains(help), "{refused}");
    }
    assert_eq!(words("at"), json!(MeasurementChoice::ALL.map(MeasurementChoice::name)));
}

#[test]
fn the_examples_are_sweeps_of_twelve_points() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("experiments/sweeps");
    for name in ["stories", "stories-asha"] {
        let spec = load(&folder.join(format!("{name}.yaml"))).unwrap();
        assert_eq!((spec.name.as_str(), expand(&spec).unwrap().points.len()), (name, 12));
        assert_eq!(spec.early_stop.is_some(), name == "stories-asha");
    }
}

const LADDER: &str = r"
ladder:
  base: e.yaml
  dial: {model.layers: [1, 2, 4], model.heads: [1, 2, 4]}
  rules:
    model.d_model: 64 * model.layers
    optimizer.adamw.lr: 0.01 * (64 / model.d_model) ** 0.5
    schedule.warmup.steps: (steps / 10) | round | int
  tokens_per_parameter: [10, 20]
  seeds: 2
";

#[test]
fn a_ladder_is_a_sweep_over_its_dial() {
    let spec = read_text(LADDER).unwrap();
    assert!(spec.is_ladder && spec.budget.is_none());
    assert_eq!(spec.names(), ["model.layers", "model.heads", "train.tokens_per_parameter", "seed"]);
    assert_eq!(spec.rules.iter().map(|rule| rule.needs_plan).collect::<Vec<_>>(), [false, false, true]);
    let points = expand(&spec).unwrap().points;
    assert_eq!(points.len(), 12);
    let value = |name: &str| points[4].values.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    assert_eq!((value("model.layers"), value("model.d_model")), (Some(json!(2)), Some(json!(128))));
    assert_eq!(value("optimizer.adamw.lr"), Some(json!(7.071_07e-3)), "six digits");
    assert_eq!(value("schedule.warmup.steps"), None, "it needs the plan");
    let figures = [1e6, 2e7, 1e14, 105.0];
    assert_eq!(spec.rules[2].value(&spec, &points[4], Some(figures)).unwrap(), json!(11));
    let one = read_text(&LADDER.replace("[10, 20]", "20")).unwrap();
    assert_eq!(one.set, ["train.tokens_per_parameter=20"]);
}

#[test]
fn tune_varies_what_rules_give_at_two_sizes() {
    let text = LADDER.replace("lr: 0.01", "lr: tune * 0.01").replace("[10, 20]", "20") + "  tune: [0.5, 2]\n";
    let spec = read_text(&text).unwrap();
    let points = expand(&spec).unwrap().points;
    let of = |name: &str, point: &crate::ExpandedPoint| {
        point.values.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.as_f64()).unwrap()
    };
    let varied: Vec<[f64; 3]> =
        points.iter().map(|point| ["model.layers", "tune", "optimizer.adamw.lr"].map(|name| of(name, point))).collect();
    let seeds = [[1.0, 0.5, 0.005], [1.0, 2.0, 0.02], [1.0, 1.0, 0.01]];
    assert_eq!(varied[..6], seeds.map(|row| [row; 2]).concat(), "1 is among the factors");
    assert_eq!(varied[6..12].iter().map(|row| row[1]).collect::<Vec<_>>(), [0.5, 0.5, 2.0, 2.0, 1.0, 1.0]);
    assert_eq!(varied[12..].iter().map(|row| row[..2].to_vec()).collect::<Vec<_>>(), [[4.0, 1.0]; 2]);
    // The experiment does not have the factor as a key.
    assert!(crate::point_settings(&spec, &points[0]).iter().all(|setting| !setting.starts_with("tune")));
    for (old, new, message) in [
        ("tune: [0.5, 2]", "tune: [2, 4]", "`ladder.tune` needs a factor below 1 and one above"),
        ("tune * 0.01", "0.01", "no rule uses `tune`"),
        ("  tune: [0.5, 2]\n", "", "`tune` does not vary in this ladder"),
        ("64 * model.layers", "64 * tune", "`model.d_model` cannot depend on `tune`, which must not change the rung"),
        ("tune: [0.5, 2]", "count: layers", "count"),
    ] {
        let found = render_mistakes(&text.replace(old, new));
        assert!(found.contains(message), "{new}: {found}");
    }
}

/// The ladder of the page with tuned rates and their correction for the horizon.
#[test]
fn the_ladder_of_the_page_corrects_the_rate_for_its_tokens() {
    let page = include_str!("../../../../docs/ladders.md");
    let yaml = page.split("```yaml\n").find(|part| part.contains("/ tokens")).and_then(|part| part.split("```").next());
    let spec = read_text(yaml.unwrap()).unwrap();
    let rule = spec.rules.iter().find(|rule| rule.key == "optimizer.adamw.lr").unwrap();
    assert!(rule.needs_plan);
    let mut rates = Vec::new();
    let points = expand(&spec).unwrap().points;
    for tokens in [1e6, 8e6] {
        rates.push(rule.value(&spec, &points[0], Some([5e4, tokens, 1e12, 100.0])).unwrap().as_f64().unwrap());
    }
    assert!((rates[1] / rates[0] - 8_f64.powf(-0.3)).abs() < 1e-5, "{rates:?}");
}

#[test]
fn mistakes_of_ladders_are_named() {
    for (old, new, message) in [
        ("base: e.yaml", "parallel: 2", "`ladder.base` is missing"),
        ("64 * model.layers", "64 * model.layer", "did you mean `model.layers`?"),
        ("64 * model.layers", "steps * 2", "`model.d_model` cannot depend on the plan, which depends on it"),
        ("model.d_model: 64", "model.layers: 64", "`model.layers` already has values under `dial`"),
        ("64 * model.layers", "64 *", "not an expression"),
        ("[10, 20]", "[10, 10]", "must differ, but 10 is listed twice"),
        ("seeds: 2", "budget: {flops: 1e15}", "either `tokens_per_parameter` or `budget`, got both"),
        ("seeds: 2", "seeds: 0", "`ladder.seeds` must be a number"),
        ("tokens_per_parameter: [10, 20]", "budget: {time: 2x}", "`ladder.budget.time` must be a whole number"),
        ("seeds: 2", "name: a/b", "`ladder.name` "),
        ("[1, 2, 4], model", "[1, 2], model", "`ladder.dial.model.heads` has 3 values, but `model.layers` has 2"),
    ] {
        let found = render_mistakes(&LADDER.replace(old, new));
        assert!(found.contains(message), "{new}: {found}");
    }
    let both = format!("sweep: {{base: e.yaml, grid: {{seed: [1, 2]}}}}{LADDER}");
    assert!(render_mistakes(&both).contains("either `sweep` or `ladder`, got both"));
    let spec = read_text(&LADDER.replace("64 * model.layers", "\"'yes' if model.layers else 'no'\"")).unwrap();
    assert!(expand(&spec).unwrap_err().to_string().contains("a rule must give a number, got `yes`"));
}

#[test]
fn budgets_are_read() {
    let sweep = |rest: &str| format!("sweep:\n  base: e.yaml\n  grid: {{model.layers: [1, 2]}}\n{rest}");
    let budget = |text: &str| read_text(&sweep(&format!("  budget: {text}\n"))).unwrap().budget.unwrap();
    let (flops, time) = (budget("{flops: 1e18}"), budget("{time: 2h}"));
    assert_eq!((flops.kind, flops.amount), (crate::BudgetKind::Flops, 1e18));
    assert_eq!((time.kind, time.amount), (crate::BudgetKind::Time, 7200.0));
    for (rest, message) in [
        ("  budget: {time: 2}\n", "such as 30m, 12h or 2d, got `2`"),
        (
            "  budget: {time: 2x}\n",
            "`sweep.budget.time` must be a whole number of s, m, h or d, such as 30m, 12h or 2d, got `2x`",
        ),
        ("  budget: {time: 0h}\n", "must be a whole number of s, m, h or d"),
        ("  budget: {flops: -1}\n", "greater than 0"),
        ("  budget: {flops: 1, tokens: 1}\n", "budget"),
        ("  budget: {tokens: 5}\n  set: {train.steps: 5}\n", "but `train.steps` has values under `set`"),
    ] {
        let found = render_mistakes(&sweep(rest));
        assert!(found.contains(message), "{rest}: {found}");
    }
}

#[test]
fn an_experiment_with_seeds_is_a_sweep_of_its_seeds() {
    let read = |lines: &str| from_file(&ExperimentFile::new(format!("name: g\n{lines}\n"), Path::new("dir/g.yaml")));
    let group = read("seeds: [7, 2]").unwrap();
    assert_eq!((group.base.as_path(), group.name.as_str()), (Path::new("dir/g.yaml"), "g"));
    assert_eq!((group.set.as_slice(), group.axes.len()), (&["seeds=null".to_owned()][..], 1));
    // The sweep's folder keeps a sweep file that makes the same points.
    let copy = from_str(&group.copy, Path::new("dir/g.yaml")).unwrap();
    assert_eq!((copy.base, copy.set, copy.axes), (group.base, group.set, group.axes));
    let mistake = |lines: &str| read(lines).unwrap_err().render(false);
    insta::assert_snapshot!(mistake("seeds: [1, 2, 1]"), @r"
    error: the values of `seeds` must differ, but this one is listed twice
     --> dir/g.yaml:2:15
      |
    2 | seeds: [1, 2, 1]
      |               ^
      = help: delete one of the two

    1 mistake; nothing was started
    ");
    insta::assert_snapshot!(mistake("seeds: 0"), @r"
    error: `seeds` must be a number from 1 to 1000, or a list of seeds, got `0`
     --> dir/g.yaml:2:8
      |
    2 | seeds: 0
      |        ^
      = help: write their number, such as `seeds: 5`, or list them: `seeds: [1, 2, 3]`

    1 mistake; nothing was started
    ");
}

#[test]
fn a_budget_of_flops_counts_all_of_them() {
    let file = "ladder: {base: e.yaml, dial: {model.d_model: [8, 16]}, budget: {BUDGET}, count: non_embedding}";
    let mistakes = render_mistakes(&file.replace("BUDGET", "flops: 1e9"));
    assert!(mistakes.contains("`budget.flops` counts all FLOPs"), "{mistakes}");
    assert!(read_text(&file.replace("BUDGET", "tokens: 1000")).is_ok());
}
