//! Counts as people write them: `10B` tokens.

use runner_spec::error::PlainError;
use runner_yaml::scalar::number;

/// Letters, and the powers of ten that they stand for; the largest first.
const COUNTS: [(char, u32); 5] = [('T', 12), ('B', 9), ('M', 6), ('k', 3), ('K', 3)];

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
}
