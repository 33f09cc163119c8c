use super::*;

fn row(id: &str, lr: f64, val_loss: Option<f64>) -> ComparedRun {
    let evaluated = val_loss.into_iter().map(|loss| (Measure::VAL_LOSS, loss)).collect();
    let figures = RunFigures { steps: 10, evaluated, tokens_per_second: Some(1000.0 / lr), ..RunFigures::default() };
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
        let widest = text.lines().filter(|line| !line.starts_with("left out")).map(console::measure_text_width).max();
        assert!(widest.unwrap() <= width, "{width}: {text}");
        assert!(text.contains("val loss") && text.contains("run"), "{text}");
    }
    insta::assert_snapshot!(wide.text(Some(60)));
    assert_eq!(wide.text(Some(400)), wide.text(None));
}

#[test]
fn incomparable_values_have_no_best() {
    let reason = "b reads 80 validation rows, but c reads 160".to_owned();
    let figures = ["best_val_loss", "val_loss"].map(str::to_owned).to_vec();
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
    for (head, order) in [("lr", "cba"), ("val loss", "bca"), ("-val_loss", "cba"), ("-lr", "abc"), ("-id", "cba")] {
        assert_eq!(ids(head).unwrap(), order, "{head}");
    }
    assert!(ids("vall_oss").is_none());
}

#[test]
fn heads_are_the_shortest_that_are_clear() {
    let keys = ["eval.samples.seed", "optimizer", "optimizer.adamw.lr", "schedule.warmup.steps", "seed", "train.steps"];
    let all: BTreeSet<String> = keys.map(str::to_owned).into();
    let heads = keys.map(|key| head_of(key, &all, &figures_of([])));
    assert_eq!(heads, ["samples.seed", "optimizer", "lr", "warmup.steps", "seed", "train.steps"]);
}
