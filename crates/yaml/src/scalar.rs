//! Plain YAML scalars: numbers in any common spelling, truth values and nulls.

/// A number as spelled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Number {
    /// The nearest float; infinite if the number is too large for one or spelled `.inf`, and NaN if it is spelled `.nan`.
    pub float: f64,
    /// Its exact value, if that is a whole number of moderate size.
    pub integer: Option<i128>,
}

/// `null`, `~` and nothing at all.
pub fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// `true` and `false`. YAML 1.1's yes, no, on and off are words.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// `12`, `-3`, `5_000`, `1e-4`, `10e9`, `.5`, `1.`, `1E+3`, `0x1F`, `0o17`; `None` if `text` is not a number.
pub fn number(text: &str) -> Option<Number> {
    let (negative, body) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let signed = |n: Number| {
        if negative { Number { float: -n.float, integer: n.integer.map(|i| -i) } } else { n }
    };
    match body {
        ".inf" | ".Inf" | ".INF" => return Some(signed(Number { float: f64::INFINITY, integer: None })),
        ".nan" | ".NaN" | ".NAN" => return Some(Number { float: f64::NAN, integer: None }),
        _ => {}
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(text) = body.strip_prefix(prefix) {
            let integer = i128::from_str_radix(&digits(text, radix).filter(|digits| !digits.is_empty())?, radix).ok();
            return Some(signed(Number { float: integer.map_or(f64::INFINITY, |i| i as f64), integer }));
        }
    }
    decimal(body).map(signed)
}

/// `text` without underscores, if it is digits with underscores between them.
fn digits(text: &str, radix: u32) -> Option<String> {
    let is_legal =
        text.chars().all(|c| c == '_' || c.is_digit(radix)) && !text.starts_with('_') && !text.ends_with('_');
    is_legal.then(|| text.replace('_', ""))
}

fn decimal(text: &str) -> Option<Number> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let (whole, fraction) = (digits(whole, 10)?, digits(fraction, 10)?);
    let power = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if whole.len() + fraction.len() == 0 || power.is_empty() || !power.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let float = format!("{whole}.{fraction}e{exponent}").parse().ok()?;
    // Beyond this range the value is zero or infinite anyway, whatever fits into a file.
    let exponent = exponent.parse().unwrap_or(if exponent.starts_with('-') { i64::MIN / 4 } else { i64::MAX / 4 });
    Some(Number { float, integer: exact(&whole, &fraction, exponent) })
}

/// whole.fraction · 10^exponent, if it is a whole number below 10^30.
fn exact(whole: &str, fraction: &str, exponent: i64) -> Option<i128> {
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    let trailing = digits.len() - digits.trim_end_matches('0').len();
    let power = exponent.checked_sub(fraction.len() as i64)?.checked_add(trailing as i64)?;
    if power < 0 || significant.len() as i64 > 30 || power > 30 - significant.len() as i64 {
        return None;
    }
    significant.parse::<i128>().ok()?.checked_mul(10_i128.checked_pow(power as u32)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_common_spelling_is_a_number() {
        for (text, float, integer) in [
            ("12", 12.0, Some(12)),
            ("-3", -3.0, Some(-3)),
            ("+7", 7.0, Some(7)),
            ("0", 0.0, Some(0)),
            ("007", 7.0, Some(7)),
            ("5_000", 5000.0, Some(5000)),
            ("1_000.5", 1000.5, None),
            ("1e-4", 1e-4, None),
            ("6e-4", 6e-4, None),
            ("10e9", 1e10, Some(10_000_000_000)),
            ("1.5e3", 1500.0, Some(1500)),
            ("1.50", 1.5, None),
            ("3.0", 3.0, Some(3)),
            (".5", 0.5, None),
            ("5.", 5.0, Some(5)),
            ("1E+3", 1000.0, Some(1000)),
            ("100e-2", 1.0, Some(1)),
            ("0e999999999999999999999", 0.0, Some(0)),
            ("0x1F", 31.0, Some(31)),
            ("0o17", 15.0, Some(15)),
            ("18446744073709551615", 18_446_744_073_709_551_615.0, Some(u64::MAX.into())),
        ] {
            assert_eq!(number(text), Some(Number { float, integer }), "{text}");
        }
        assert_eq!(number("1e999").map(|n| (n.float.is_infinite(), n.integer)), Some((true, None)));
        assert_eq!(number("1e99999999999999999999").map(|n| n.integer), Some(None));
    }

    #[test]
    fn words_are_not_numbers() {
        for text in [
            "", "-", "+", ".", "e5", "1e", "1e+", "inf", "nan", "infinity", "1.2.3", "_1", "1_", "1_.5", "1._5",
            "1e_5", "1_e5", "1e1_0", "0x_1", "1 2", "0x", "12k", "1-2", "é",
        ] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
