//! The text of `runner diff`: lines with `+`, `~` and `-`, coloured where the terminal has colours.

use std::borrow::Cow;
use std::fmt::Write as _;

use console::{Style, measure_text_width, pad_str, style};
use serde_json::Value;

use crate::comparison::figures_of;
use crate::table::{Align, table};
use runner_compare::classification::DifferenceClass;
use runner_compare::diff::{ChangedSetting, Diff, DiffSide};
use runner_compare::facts::{FactPair, MathematicsPart};
use runner_compare::outcome_comparison::{LossPair, OutcomeComparison};
use runner_compare::setting_effect::SettingEffect;
use runner_spec::format::{bytes, count, counted, loss, printable, setting_text, short_hash};

/// The whole difference as text.
pub fn diff_text(diff: &Diff) -> String {
    let mut out = String::new();
    // Runs of two folders may have one id.
    let with_folder = diff.a.label == diff.b.label && diff.a.path != diff.b.path;
    let _ = writeln!(out, "{}", describe_side("A", &diff.a, with_folder));
    let _ = writeln!(out, "{}\n", describe_side("B", &diff.b, with_folder));
    let colour = match diff.classification.class {
        DifferenceClass::SameRun => Style::new().green(),
        DifferenceClass::Bookkeeping | DifferenceClass::Rounding => Style::new().yellow(),
        DifferenceClass::Mathematics => Style::new().red(),
    };
    let _ = writeln!(out, "{}", colour.bold().apply_to(&diff.classification.meaning));
    for note in &diff.notes {
        let _ = writeln!(out, "note: {}", printable(note));
    }
    add_settings(&mut out, &diff.settings);
    let mut same = if diff.settings.is_empty() { vec!["settings"] } else { Vec::new() };
    for (name, list) in [
        ("plan", &diff.plan),
        ("data", &diff.data),
        ("program", &diff.program),
        ("machine", &diff.machine),
        ("flags", &diff.invocation),
    ] {
        if list.iter().any(|f| !f.same) {
            add_facts(&mut out, name, list);
        } else if !list.is_empty() {
            same.push(name);
        }
    }
    if !diff.bits.is_empty() {
        add_heading(&mut out, "bits may differ", "");
        for sentence in &diff.bits {
            let _ = writeln!(out, "  {}", printable(sentence));
        }
    }
    if !same.is_empty() {
        add_heading(&mut out, "the same", &format!(": {}", same.join(", ")));
    }
    if let Some(found) = &diff.outcomes {
        add_outcomes(&mut out, found);
        if diff.has_contradicting_losses() {
            out.push_str(if diff.bits.is_empty() {
                "  the plans are equal, so a record was changed, or a different program or machine rounds differently\n"
            } else {
                "  the plans are equal; `bits may differ` names the possible reasons\n"
            });
        }
        if diff.classification.parts.contains(&MathematicsPart::Evaluation) {
            out.push_str(
                "  settings of the evaluation differ: see the differences above before comparing these numbers\n",
            );
        }
    }
    out
}

fn describe_side(letter: &str, named: &DiffSide, with_folder: bool) -> String {
    let status = named.status.map_or_else(String::new, |status| format!("  {status}"));
    let folder = if with_folder { format!("  {}", named.path.display()) } else { String::new() };
    format!("{letter}  {:4}  {}{status}{}", named.kind, printable(&named.label), printable(&folder))
}

fn add_heading(out: &mut String, name: &str, rest: &str) {
    let _ = writeln!(out, "\n{}{rest}", style(name).bold());
}

/// Appends a line for the difference between `a` and `b`, with a `note` after the values, which may be empty. A value that is on one side alone has
/// the sign of that side. `name` is padded.
fn add_change(out: &mut String, [indent, name, note]: [&str; 3], [a, b]: [Option<String>; 2]) {
    let note = if note.is_empty() { String::new() } else { format!("  {}", style(note).dim()) };
    let (removed, added, changed) = (Style::new().red(), Style::new().green(), Style::new().yellow());
    let _ = match (a, b) {
        (Some(a), Some(b)) => {
            let (sign, a, b) = (changed.apply_to("~"), removed.apply_to(a), added.apply_to(b));
            writeln!(out, "{indent}{sign} {name}  {a} → {b}{note}")
        }
        (Some(a), None) => writeln!(out, "{indent}{}{note}", removed.apply_to(format!("- {name}  {a}"))),
        (None, Some(b)) => writeln!(out, "{indent}{}{note}", added.apply_to(format!("+ {name}  {b}"))),
        (None, None) => Ok(()),
    };
}

fn describe_effect(effect: SettingEffect) -> &'static str {
    match effect {
        SettingEffect::None => "same numbers",
        SettingEffect::Bookkeeping => "bookkeeping",
        SettingEffect::Rounding => "rounding",
        SettingEffect::Evaluation => "evaluation",
        SettingEffect::Mathematics => "mathematics",
    }
}

fn add_settings(out: &mut String, changed: &[ChangedSetting]) {
    if changed.is_empty() {
        return;
    }
    add_heading(out, "settings", "");
    let value = |is_there: bool, value: &Option<Value>| {
        is_there.then(|| printable(&value.as_ref().map_or_else(|| "null".to_owned(), setting_text)))
    };
    let padded = padded_names(changed.iter().map(|c| c.difference.key.as_str()));
    let mut group = None;
    for (c, name) in changed.iter().zip(padded) {
        if group != Some(c.difference.group) {
            let _ = writeln!(out, "  {}", c.difference.group.name());
            group = Some(c.difference.group);
        }
        let values = [value(c.in_a, &c.difference.a), value(c.in_b, &c.difference.b)];
        add_change(out, ["    ", &name, describe_effect(c.effect)], values);
    }
}

/// `names`, padded to the width of the widest.
fn padded_names<'a>(names: impl Iterator<Item = &'a str> + Clone) -> impl Iterator<Item = Cow<'a, str>> {
    let width = names.clone().map(measure_text_width).max().unwrap_or(0);
    names.map(move |name| pad_str(name, width, Align::Left, None))
}

fn add_facts(out: &mut String, name: &str, facts: &[FactPair]) {
    add_heading(out, name, "");
    let differing: Vec<&FactPair> = facts.iter().filter(|f| !f.same).collect();
    for (f, name) in differing.iter().zip(padded_names(differing.iter().map(|f| f.name))) {
        let text = |value: &Option<Value>| value.as_ref().map(|value| fact_text(f.name, value));
        let note = if f.name == "threads" { "any number gives the same bits" } else { "" };
        add_change(out, ["  ", &name, note], [text(&f.a), text(&f.b)]);
    }
}

/// The value of a fact for a person; hashes are shortened to their first digits.
fn fact_text(name: &str, value: &Value) -> String {
    match (value.as_u64(), value.as_str()) {
        (Some(n), _) if name == "memory bytes" => bytes(n),
        (Some(n), _) => count(n),
        (_, Some(text)) if text.len() >= 40 && text.as_bytes()[..40].iter().all(u8::is_ascii_hexdigit) => {
            let (digits, rest) = text.split_at(short_hash(text).len());
            format!("{digits}{}", rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
        }
        (_, Some(text)) => printable(text),
        _ => value.to_string(),
    }
}

fn loss_text(x: Option<f64>) -> String {
    x.map_or_else(|| "-".to_owned(), loss)
}

fn add_outcomes(out: &mut String, found: &OutcomeComparison) {
    add_heading(out, "outcomes", "");
    if found.common_steps == 0 {
        out.push_str("  the two runs share no step\n");
    } else {
        let relative = |pair: &LossPair| match pair.relative {
            Some(0.0) => "0".to_owned(),
            Some(r) => format!("{r:.1e}"),
            None => "-".to_owned(),
        };
        let row = |pair: &LossPair| vec![count(pair.step), loss_text(pair.a), loss_text(pair.b), relative(pair)];
        let rows: Vec<_> = found.losses.iter().map(row).collect();
        let columns = ["step", "loss A", "loss B", "relative"].map(|head| (head, Align::Right));
        add_indented(out, &table(&columns, &rows));
        let _ = writeln!(out, "  {}", describe_loss_differences(found));
    }
    let all = figures_of([&found.a, &found.b]);
    let figures = all.iter().map(|figure| (&*figure.name, figure.text(&found.a), figure.text(&found.b)));
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows: Vec<_> = figures
        .filter(|(_, a, b)| a.is_some() || b.is_some())
        .map(|(name, a, b)| vec![name.to_owned(), or_dash(a), or_dash(b)])
        .collect();
    add_indented(out, &table(&[("", Align::Left), ("A", Align::Right), ("B", Align::Right)], &rows));
    let state = match (found.same_state, found.same_weights) {
        (Some(true), _) => "weights and moments are equal, bit for bit",
        (_, Some(true)) => "the weights are equal, bit for bit",
        (Some(false), _) if found.same_layout => "the weights or their moments differ",
        (Some(false), _) => "the checkpoints are divided differently, so their hashes cannot be compared",
        (None, _) => return,
    };
    let _ = writeln!(out, "  at the end: {state}");
}

fn add_indented(out: &mut String, text: &str) {
    for line in text.lines() {
        let _ = writeln!(out, "  {line}");
    }
}

/// Describes the steps and the amount by which the losses of the two runs differ.
fn describe_loss_differences(found: &OutcomeComparison) -> String {
    let Some(first) = found.first_difference else {
        return format!("losses are the same, bit for bit, in {}", counted(found.common_steps, "common step"));
    };
    let beyond = match found.first_beyond {
        Some(step) => format!("first by more than {:e} at step {}", found.tolerance, count(step)),
        None => format!("by no more than {:e} anywhere", found.tolerance),
    };
    let largest = found.largest.and_then(|l| Some((l.step, l.relative?)));
    let largest = largest.map_or_else(String::new, |(step, r)| format!("; the most, {r:.1e}, at step {}", count(step)));
    format!("losses first differ at step {},\n  {beyond}{largest}", count(first))
}
