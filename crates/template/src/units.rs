//! Counts and durations as people write them: `10B` tokens, `1h30m`.

use std::fmt::Write as _;

use runner_spec::error::PlainError;
use runner_yaml::scalar::number;

/// Letters, and the powers of ten that they stand for; the largest first.
const COUNTS: [(char, u32); 5] = [('T', 12), ('B', 9), ('M', 6), ('k', 3), ('K', 3)];
const TIMES: [(&str, f64); 5] = [("d", 86400.0), ("h", 3600.0), ("ms", 1e-3), ("m", 60.0), ("s", 1.0)];

/// `10B`, `1.5M`, `250k`, `1,000,000`, `5_000`: the exact whole number.
pub(super) fn tokens(text: &str) -> Result<u64, PlainError> {
    let wrong = || PlainError::request(format!("invalid count `{text}`; write it like 10B, 1.5M or 250k"));
    let plain: String = text.trim().chars().filter(|c| !matches!(c, ',' | '_')).collect();
    let unit = COUNTS.iter().find_map(|(letter, exponent)| Some((plain.strip_suffix(*letter)?.trim_end(), *exponent)));
    let (digits, exponent) = unit.unwrap_or((&plain, 0));
    if digits.len() > 31 || !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(wrong());
    }
    let count = number(&format!("{digits}e{exponent}")).ok_or_else(wrong)?.integer;
    let count = count.ok_or_else(|| PlainError::request(format!("`{text}` is not a whole number of tokens")))?;
    u64::try_from(count).map_err(|_| PlainError::request(format!("`{text}` is too large")))
}

/// The shortest text that `tokens` reads as `n`.
pub(super) fn tokens_short(n: u64) -> String {
    for (letter, exponent) in COUNTS {
        let unit = 10_u64.pow(exponent);
        let thousandth = unit / 1000;
        if n >= unit && n.is_multiple_of(thousandth) {
            let text = format!("{}.{:03}", n / unit, n % unit / thousandth);
            return format!("{}{letter}", text.trim_end_matches('0').trim_end_matches('.'));
        }
    }
    n.to_string()
}

/// `1h30m`, `90s`, `1.5h`, `2d`, `250ms`: seconds. A bare number is seconds.
pub(super) fn seconds(text: &str) -> Result<f64, PlainError> {
    let wrong = || PlainError::request(format!("invalid duration `{text}`; write it like 1h30m, 45s or 2d"));
    let mut rest = text.trim();
    if let Ok(plain) = rest.parse::<f64>()
        && plain.is_finite()
        && rest.bytes().all(|b| b.is_ascii_digit() || b == b'.')
    {
        return Ok(plain);
    }
    let mut sum = 0.0;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = rest[digits..].trim_start();
        let (unit, factor) = TIMES.iter().find(|(unit, _)| rest.starts_with(unit)).ok_or_else(wrong)?;
        sum += number * factor;
        rest = rest[unit.len()..].trim_start();
    }
    if sum.is_finite() { Ok(sum) } else { Err(wrong()) }
}

/// `5400` as `1h30m`.
pub(super) fn duration(seconds: f64) -> Result<String, PlainError> {
    if !(0.0..1e12).contains(&seconds) {
        return Err(PlainError::request(format!("{seconds} seconds cannot be written as a duration")));
    }
    let milliseconds = (seconds * 1000.0).round() as u64;
    let mut out = String::new();
    let (whole, below) = (milliseconds / 1000, milliseconds % 1000);
    for (unit, modulus, letter) in [(86400, u64::MAX, 'd'), (3600, 24, 'h'), (60, 60, 'm')] {
        let n = whole / unit % modulus;
        if n > 0 {
            let _ = write!(out, "{n}{letter}");
        }
    }
    if whole % 60 > 0 || below > 0 || out.is_empty() {
        let text = format!("{}.{below:03}", whole % 60);
        out.push_str(text.trim_end_matches('0').trim_end_matches('.'));
        out.push('s');
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact() {
        for (text, n) in [
            ("10B", 10_000_000_000),
            ("1.5M", 1_500_000),
            ("250k", 250_000),
            ("250K", 250_000),
            ("1T", 1_000_000_000_000),
            ("0.1B", 100_000_000),
            ("1,000,000", 1_000_000),
            ("5_000", 5000),
            ("7", 7),
            (" 2 M ", 2_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(tokens(text), Ok(n), "{text}");
        }
        for bad in ["", "B", "1.5", "1.0005k", "10X", "-1", "1e9", "18446744073709551616", "99999999T", "1..2k"] {
            assert!(tokens(bad).is_err(), "{bad}");
        }
        for (n, text) in [
            (10_000_000_000, "10B"),
            (1_500_000, "1.5M"),
            (1234, "1.234k"),
            (1_234_567, "1234.567k"),
            (7, "7"),
            (0, "0"),
        ] {
            assert_eq!(tokens(text), Ok(n));
            if n != 1_234_567 {
                assert_eq!(tokens_short(n), text);
            }
        }
        for n in [0, 1, 999, 1000, 1001, 12_345_678, 124_439_808, u64::MAX] {
            assert_eq!(tokens(&tokens_short(n)), Ok(n));
        }
    }

    #[test]
    fn durations_go_both_ways() {
        for (text, s) in [
            ("1h30m", 5400.0),
            ("90s", 90.0),
            ("1.5h", 5400.0),
            ("2d", 172_800.0),
            ("250ms", 0.25),
            ("12", 12.0),
            ("1h 5s", 3605.0),
        ] {
            assert_eq!(seconds(text), Ok(s), "{text}");
        }
        for bad in ["", "h", "1x", "-1h", "1h30", "1e3", "nan", "."] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        for (s, text) in [(5400.0, "1h30m"), (0.0, "0s"), (59.5, "59.5s"), (90061.0, "1d1h1m1s"), (172_800.0, "2d")] {
            assert_eq!(duration(s).as_deref(), Ok(text));
            assert_eq!(seconds(text), Ok(s));
        }
        assert!(duration(-1.0).is_err() && duration(f64::NAN).is_err());
    }
}
