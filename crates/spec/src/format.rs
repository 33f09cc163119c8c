//! Numbers as people read them.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::Value;

use super::safe_text::is_unsafe;
pub use super::safe_text::printable;

/// `1234567` as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 step`, `2,000 steps`: `n` of what `noun` names, which takes an `s` in the plural.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// The milliseconds of a step's phases: those of data, forward, backward and update, and of communication if there are several ranks.
pub fn phase_times([data, forward, backward, optimizer]: [f64; 4], communication: Option<f64>) -> String {
    let communication = communication.map_or_else(String::new, |time| format!("  communication {time:.1}"));
    format!("data {data:.1}  forward {forward:.1}  backward {backward:.1}  optimizer {optimizer:.1}{communication} ms")
}

/// A division with its remainder: `10 = 2·4 + 2`.
pub fn division(whole: usize, part: usize) -> String {
    format!("{whole} = {}·{part} + {}", whole / part, whole % part)
}

/// A rate: a whole number with separators from 100 on, one decimal below.
pub fn rate(x: f64) -> String {
    match x {
        x if !x.is_finite() => "?".to_owned(),
        x if x.abs() >= 99.5 => count(x.round().max(0.0) as u64),
        x => format!("{x:.1}"),
    }
}

/// A time: `0.4 s`, `12 s`, `3m 05s`, `2h 03m`, `1d 04h`.
pub fn duration(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{s} s"),
        60..3600 => format!("{}m {:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h {:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d {:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// Seconds as `duration`; `?` for numbers that are not a time.
pub fn seconds(s: f64) -> String {
    Duration::try_from_secs_f64(s).map_or_else(|_| "?".to_owned(), duration)
}

/// Bytes in binary units, three digits.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value {
        _ if unit == 0 => format!("{n} B"),
        v if v < 9.995 => format!("{v:.2} {}", UNITS[unit]),
        v if v < 99.95 => format!("{v:.1} {}", UNITS[unit]),
        v => format!("{v:.0} {}", UNITS[unit]),
    }
}

/// The first twelve digits of a hash or of a commit, for a message.
#[must_use]
pub fn short_hash(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// `value` with `digits` significant digits.
#[must_use]
pub fn significant(value: f64, digits: i32) -> String {
    format!("{value:.0$}", if value == 0.0 { 0 } else { decimals(value.abs(), digits) })
}

/// The decimals that give `scale` so many significant digits.
#[must_use]
pub fn decimals(scale: f64, digits: i32) -> usize {
    usize::try_from(digits - 1 - scale.log10().floor() as i32).unwrap_or(0).min(12)
}

/// A loss with four decimals, as every table and page shows it.
#[must_use]
pub fn loss(x: f64) -> String {
    format!("{x:.4}")
}

/// `done` of `steps` steps: `1,200/2,000`.
#[must_use]
pub fn step_share(done: u64, steps: u64) -> String {
    format!("{}/{}", count(done), count(steps))
}

/// A fraction in percent.
pub fn percent(x: f64) -> String {
    format!("{:.1}%", 100.0 * x)
}

/// Foreign text for a message: one line of limited length, without unsafe characters.
pub fn quoted_line(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    let plain: String =
        text.chars().map(|c| if c.is_control() || is_unsafe(c) { ' ' } else { c }).take(MAX_CHARS).collect();
    plain.trim().to_owned()
}

/// Small and large numbers in the spelling of experiment files, without rounding errors in the last digits: `6e-5`.
#[expect(clippy::expect_used, reason = "a number that was just printed")]
pub fn scientific(x: f64) -> String {
    let rounded: f64 = format!("{x:.6e}").parse().expect("a printed number can be read");
    if rounded != 0.0 && (rounded.abs() < 1e-2 || rounded.abs() >= 1e6) {
        format!("{rounded:e}")
    } else {
        rounded.to_string()
    }
}

/// `value` as indented JSON with an end of line.
pub fn pretty_json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// `value` as JSON. It must be plain data, whose maps have strings as keys: anything else is a mistake of the caller.
#[expect(clippy::expect_used, reason = "the caller passes plain data, and an empty value would hide a mistake")]
pub fn json_value(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("plain data is JSON")
}

/// The word for `choice`, a unit variant, in an experiment file, such as `bf16`.
pub fn choice_name(choice: &impl serde::Serialize) -> String {
    match json_value(choice) {
        Value::String(name) => name,
        other => other.to_string(),
    }
}

/// `value` on one line for a person: texts without quotes, and small and large numbers as files have them, such as `6e-4`.
pub fn setting_text(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(setting_text).collect::<Vec<_>>().join(", ")),
        Value::String(text) => text.escape_debug().to_string(),
        Value::Number(n) => match n.as_f64() {
            Some(x) if n.is_f64() && x != 0.0 && !(1e-3..1e6).contains(&x.abs()) => format!("{x:e}"),
            _ => n.to_string(),
        },
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{}: {}", key.escape_debug(), setting_text(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// `argument` in quotation marks, if a shell would change it without them.
pub fn shell_word(argument: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,+%@".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.into();
    }
    format!("'{}'", argument.replace('\'', r"'\''")).into()
}

/// The bytes of [`json_value`].
#[expect(clippy::expect_used, reason = "the caller passes plain data, and an empty message would hide a mistake")]
pub fn json_bytes(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_read_them() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1, 2000].map(|n| counted(n, "step")), ["0 steps", "1 step", "2,000 steps"]);
        assert_eq!([6e-4 * 0.1, 1.0, 0.0, 1e-8].map(scientific), ["6e-5", "1", "0", "1e-8"]);
        assert_eq!([0.0, 12.34, 99.96, 12_345.6, f64::NAN].map(rate), ["0.0", "12.3", "100", "12,346", "?"]);
        assert_eq!(
            [0.43, 12.9, 185.0, 7_380.0, 100_800.0, -1.0].map(seconds),
            ["0.4 s", "12 s", "3m 05s", "2h 03m", "1d 04h", "?"]
        );
        assert_eq!(
            [17, 1024, 1 << 20, 1_610_612_736, u64::MAX].map(bytes),
            ["17 B", "1.00 KiB", "1.00 MiB", "1.50 GiB", "16777216 TiB"]
        );
        assert_eq!(percent(0.2859), "28.6%");
    }

    #[test]
    fn foreign_text_is_one_line_of_limited_length() {
        assert_eq!(quoted_line(" a\x1b[2J\nb\n"), "a [2J b");
        assert_eq!(quoted_line(&"ü".repeat(301)), "ü".repeat(300));
    }
}
