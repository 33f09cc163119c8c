use super::*;

#[test]
fn every_measure_is_found_by_its_key() {
    let all = Measure::all_fixed().chain(Measure::all_of_task("hellaswag")).chain(Measure::all_of_task("a_n"));
    for measure in all {
        assert_eq!(Measure::of_key(&measure.key()), Some(measure));
    }
    let norm = Measure::of_key("arc_easy_acc_norm").unwrap();
    assert_eq!(
        (norm.task(), norm.label(), norm.full_label()),
        (Some("arc_easy"), "acc_norm", "arc_easy acc_norm".into())
    );
    for key in ["_acc", "acc", "epoch", "a b_acc", "1_acc"] {
        assert_eq!(Measure::of_key(key), None, "{key}");
    }
}

#[test]
fn numbers_keep_their_form_in_json() {
    let task = |key| Measure::of_key(key).unwrap();
    let measured = Measured::default()
        .with(Measure::VAL_LOSS, 0.1 + 0.2)
        .with(Measure::VAL_PERPLEXITY, f64::INFINITY)
        .with(Measure::VAL_TOKENS, 4096.0)
        .with(task("quiz_acc"), 1.0)
        .with(task("quiz_n"), 3.0);
    let json = serde_json::to_string(&measured).unwrap();
    assert_eq!(json, r#"{"val_loss":0.30000000000000004,"val_tokens":4096,"quiz_acc":1.0,"quiz_n":3}"#);
    assert_eq!(serde_json::from_str::<Measured>(&json).unwrap(), measured);
    let sorted = serde_json::to_string(&serde_json::from_str::<serde_json::Value>(&json).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<Measured>(&sorted).unwrap(), measured, "in any order of keys");
    let read = |text| serde_json::from_str::<Measured>(text);
    assert!(read(r#"{"val_loss":null,"other":"x"}"#).unwrap().is_empty());
    assert!(read(r#"{"val_loss":1,"val_loss":2}"#).unwrap_err().to_string().contains("duplicate"));
    assert!(read(r#"{"val_tokens":1.5}"#).is_err() && read(r#"{"val_loss":"1"}"#).is_err());
}

/// By hand: 2 nats are 4 bits of 4 bytes per token, and √(0.2 · 0.8 / 64) = 0.05.
#[test]
fn standard_errors_follow_from_what_is_recorded() {
    let task = |key| Measure::of_key(key).unwrap();
    let measured = Measured::default()
        .with(Measure::VAL_LOSS, 2.0)
        .with(Measure::VAL_LOSS_SE, 0.1)
        .with(Measure::VAL_PERPLEXITY, 7.0)
        .with(Measure::BITS_PER_BYTE, 0.5)
        .with(task("quiz_acc"), 0.2)
        .with(task("quiz_n"), 64.0);
    let errors = measured.with_errors();
    let error = |key| (errors.get(&task(key)).unwrap() * 1e6).round() / 1e6;
    let keys = ["val_loss_se", "val_perplexity_se", "val_bits_per_byte_se", "quiz_acc_se"];
    assert_eq!(keys.map(error), [0.1, 0.7, 0.025, 0.05]);
    assert_eq!(errors.tasks()[0].shares_text(" "), "acc 20.0% (SE 5.0%)");
    assert_eq!(errors.tasks()[0].items, Some(64));
    assert_eq!(errors.with_errors(), errors);
    let alone = Measured::default().with(Measure::VAL_LOSS, 2.0).with(task("quiz_acc"), 0.2);
    assert_eq!(alone.with_errors(), alone, "without errors and items");
    let all_right = alone.with(task("quiz_acc"), 1.0).with(task("quiz_n"), 1.0);
    assert_eq!(all_right.standard_error(&task("quiz_acc")), None);
}

#[test]
fn a_later_evaluation_replaces_its_own_parts() {
    let task = |key| Measure::of_key(key).unwrap();
    let mut measured = Measured::default().with(Measure::VAL_LOSS, 3.0).with(Measure::VAL_LOSS_SE, 0.1);
    measured.update(&Measured::default().with(task("quiz_acc"), 0.5).with(task("quiz_cut"), 2.0));
    measured.update(&Measured::default().with(Measure::VAL_LOSS, 2.0));
    measured.update(&Measured::default().with(task("quiz_acc"), 0.75));
    assert_eq!(measured, Measured::default().with(Measure::VAL_LOSS, 2.0).with(task("quiz_acc"), 0.75));
}
