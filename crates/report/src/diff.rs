//! A comparison as lines for people: `+ ~ -`, coloured where the terminal has colours.

use std::fmt::Write as _;

use console::{Style, measure_text_width, style};
use serde_json::Value;

use crate::table::{Align, table};
use runner_lab::compare::class::{DifferenceClass, MathematicsPart};
use runner_lab::compare::diff::{ChangedSetting, Diff, DiffSide};
use runner_lab::compare::effect::SettingEffect;
use runner_lab::compare::facts::FactPair;
use runner_lab::compare::keys::shown;
use runner_lab::compare::outcome::{LossPair, OutcomeComparison};
use runner_lab::compare::record::RunFigures;
use runner_spec::format::{bytes, count, percent, printable, rate, seconds};

/// Columns that lines are made for.
const WIDTH: usize = 80;

/// The whole comparison.
#[must_use]
pub fn text(diff: &Diff) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", side("A", &diff.a));
    let _ = writeln!(out, "{}\n", side("B", &diff.b));
    let look = match diff.class {
        DifferenceClass::SameRun => Style::new().green(),
        DifferenceClass::Bookkeeping | DifferenceClass::Rounding => Style::new().yellow(),
        DifferenceClass::Mathematics => Style::new().red(),
    };
    let _ = writeln!(out, "{}", look.bold().apply_to(&diff.meaning));
    for note in &diff.notes {
        let _ = writeln!(out, "note: {}", printable(note));
    }
    settings(&mut out, &diff.settings);
    let mut same = if diff.settings.is_empty() { vec!["settings"] } else { Vec::new() };
    for (name, list) in [
        ("plan", &diff.plan),
        ("data", &diff.data),
        ("program", &diff.program),
        ("machine", &diff.machine),
        ("flags", &diff.invocation),
    ] {
        if list.iter().any(|f| !f.same) {
            facts(&mut out, name, list);
        } else if !list.is_empty() {
            same.push(name);
        }
    }
    if !same.is_empty() {
        heading(&mut out, "the same", &format!(": {}", same.join(", ")));
    }
    if let Some(found) = &diff.outcomes {
        outcomes(&mut out, found);
        if diff.parts.contains(&MathematicsPart::Evaluation) {
            out.push_str("  the two do not measure alike: see what differs in the evaluation\n");
        }
    }
    out
}

fn side(letter: &str, named: &DiffSide) -> String {
    let status = named.status.map_or_else(String::new, |status| format!("  {status}"));
    format!("{letter}  {:4}  {}{status}", named.kind, printable(&named.label))
}

fn heading(out: &mut String, name: &str, rest: &str) {
    let _ = writeln!(out, "\n{}{rest}", style(name).bold());
}

/// One line of a difference: what is on one side alone has a sign of its own.
fn line(out: &mut String, [indent, name, said]: [&str; 3], widths: [usize; 2], a: Option<&str>, b: Option<&str>) {
    let [width, values] = widths;
    let pad = " ".repeat(width.saturating_sub(measure_text_width(name)));
    let said = if said.is_empty() { String::new() } else { format!("  {}", style(said).dim()) };
    let fill = |text: &str| {
        if said.is_empty() { String::new() } else { " ".repeat(values.saturating_sub(measure_text_width(text))) }
    };
    let (removed, added, changed) = (Style::new().red(), Style::new().green(), Style::new().yellow());
    match (a, b) {
        (Some(a), Some(b)) => {
            let short = format!("{indent}~ {name}{pad}  {a} → {b}");
            let sign = changed.apply_to("~");
            if measure_text_width(&short) + measure_text_width(&said) <= WIDTH {
                let fill = fill(&format!("{a} → {b}"));
                let (a, b) = (removed.apply_to(a), added.apply_to(b));
                let _ = writeln!(out, "{indent}{sign} {name}{pad}  {a} → {b}{fill}{said}");
            } else {
                let _ = writeln!(out, "{indent}{sign} {name}{said}");
                let _ = writeln!(out, "{indent}    {}", removed.apply_to(format!("- {a}")));
                let _ = writeln!(out, "{indent}    {}", added.apply_to(format!("+ {b}")));
            }
        }
        (Some(a), None) => {
            let _ = writeln!(out, "{indent}{}{}{said}", removed.apply_to(format!("- {name}{pad}  {a}")), fill(a));
        }
        (None, Some(b)) => {
            let _ = writeln!(out, "{indent}{}{}{said}", added.apply_to(format!("+ {name}{pad}  {b}")), fill(b));
        }
        (None, None) => {}
    }
}

/// What is said of an effect.
fn said(effect: SettingEffect) -> &'static str {
    match effect {
        SettingEffect::None => "no effect here",
        SettingEffect::Bookkeeping => "bookkeeping",
        SettingEffect::Rounding => "rounding",
        SettingEffect::Evaluation => "evaluation",
        SettingEffect::Mathematics => "mathematics",
    }
}

/// Values up to this wide leave room for what is said of them.
const VALUES: usize = 24;

fn settings(out: &mut String, changed: &[ChangedSetting]) {
    if changed.is_empty() {
        return;
    }
    heading(out, "settings", "");
    let value = |there: bool, value: &Option<Value>| {
        there.then(|| printable(&value.as_ref().map_or_else(|| "null".to_owned(), shown)))
    };
    let rows: Vec<_> = changed.iter().map(|c| (c, value(c.in_a, &c.a), value(c.in_b, &c.b))).collect();
    let width = changed.iter().map(|c| c.key.chars().count()).max().unwrap_or(0);
    let of = |a: &Option<String>, b: &Option<String>| {
        let arrow = if a.is_some() && b.is_some() { 3 } else { 0 };
        arrow + [a, b].into_iter().flatten().map(|text| measure_text_width(text)).sum::<usize>()
    };
    let values = rows.iter().map(|(_, a, b)| of(a, b)).filter(|&width| width <= VALUES).max().unwrap_or(0);
    let mut group = None;
    for (c, a, b) in rows {
        if group != Some(c.group) {
            let _ = writeln!(out, "  {}", c.group.name());
            group = Some(c.group);
        }
        line(out, ["    ", &c.key, said(c.effect)], [width, values], a.as_deref(), b.as_deref());
    }
}

fn facts(out: &mut String, name: &str, facts: &[FactPair]) {
    heading(out, name, "");
    let differing: Vec<&FactPair> = facts.iter().filter(|f| !f.same).collect();
    let width = differing.iter().map(|f| f.name.chars().count()).max().unwrap_or(0);
    for f in differing {
        let shown = |value: &Option<Value>| value.as_ref().map(|value| of_fact(f.name, value));
        let said = if f.name == "threads" { "any number gives the same bits" } else { "" };
        line(out, ["  ", f.name, said], [width, 0], shown(&f.a).as_deref(), shown(&f.b).as_deref());
    }
}

/// A fact as people read it; hashes by their first digits.
fn of_fact(name: &str, value: &Value) -> String {
    match (value.as_u64(), value.as_str()) {
        (Some(n), _) if name == "memory bytes" => bytes(n),
        (Some(n), _) => count(n),
        (_, Some(text)) if text.len() >= 40 && text.as_bytes()[..40].iter().all(u8::is_ascii_hexdigit) => {
            let (digits, rest) = text.split_at(12);
            format!("{digits}{}", rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
        }
        (_, Some(text)) => printable(text),
        _ => value.to_string(),
    }
}

fn loss(x: Option<f64>) -> String {
    x.map_or_else(|| "-".to_owned(), |x| format!("{x:.4}"))
}

fn outcomes(out: &mut String, found: &OutcomeComparison) {
    heading(out, "outcomes", "");
    if found.common_steps == 0 {
        out.push_str("  no step that both have done\n");
    } else {
        let relative = |pair: &LossPair| match pair.relative {
            Some(0.0) => "0".to_owned(),
            Some(r) => format!("{r:.1e}"),
            None => "-".to_owned(),
        };
        let rows: Vec<Vec<String>> = found
            .losses
            .iter()
            .map(|pair| vec![count(pair.step), loss(pair.a), loss(pair.b), relative(pair)])
            .collect();
        let right = Align::Right;
        let columns = [("step", right), ("loss A", right), ("loss B", right), ("relative", right)];
        indented(out, &table(&columns, &rows));
        let _ = writeln!(out, "  {}", parting(found));
    }
    let rows = figures(&found.a, &found.b);
    indented(out, &table(&[("", Align::Left), ("A", Align::Right), ("B", Align::Right)], &rows));
    let state = match (found.same_state, found.same_weights) {
        (Some(true), _) => "weights and moments are equal, bit for bit",
        (_, Some(true)) => "the weights are equal, bit for bit",
        (Some(false), _) if found.same_layout => "the weights or their moments differ",
        (Some(false), _) => "checkpoints are divided otherwise, so that hashes do not tell",
        (None, _) => return,
    };
    let _ = writeln!(out, "  at the end: {state}");
}

fn indented(out: &mut String, text: &str) {
    for line in text.lines() {
        let _ = writeln!(out, "  {line}");
    }
}

/// Where the losses part.
fn parting(found: &OutcomeComparison) -> String {
    let steps = count(found.common_steps);
    let Some(first) = found.first_difference else {
        return format!("losses are the same, bit for bit, in {steps} common steps");
    };
    let beyond = match found.first_beyond {
        Some(step) => format!("first by more than {:e} at step {}", found.tolerance, count(step)),
        None => format!("by no more than {:e} anywhere", found.tolerance),
    };
    let largest = found.largest.and_then(|l| Some((l.step, l.relative?)));
    let largest = largest.map_or_else(String::new, |(step, r)| format!("; the most, {r:.1e}, at step {}", count(step)));
    format!("losses first differ at step {},\n  {beyond}{largest}", count(first))
}

/// Rows of the numbers that both or one of them has.
fn figures(a: &RunFigures, b: &RunFigures) -> Vec<Vec<String>> {
    type Of = fn(&RunFigures) -> Option<String>;
    let table: [(&str, Of); 9] = [
        ("steps", |f| Some(count(f.steps))),
        ("train loss", |f| f.train_loss.map(|x| loss(Some(x)))),
        ("val loss", |f| f.val_loss.map(|x| loss(Some(x)))),
        ("best val loss", |f| f.best_val_loss.map(|x| loss(Some(x)))),
        ("hellaswag acc", |f| f.hellaswag_acc.map(percent)),
        ("hellaswag acc_norm", |f| f.hellaswag_acc_norm.map(percent)),
        ("tokens/s", |f| f.tokens_per_second.map(rate)),
        ("peak memory", |f| f.peak_memory_bytes.map(bytes)),
        ("wall time", |f| f.wall_seconds.map(seconds)),
    ];
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = table.into_iter().map(|(name, of)| (name, of(a), of(b)));
    rows.filter(|(_, a, b)| a.is_some() || b.is_some())
        .map(|(name, a, b)| vec![name.to_owned(), dash(a), dash(b)])
        .collect()
}
