//! The time limit of a job as a user writes it.

use std::time::Duration;

use runner_record::time::parse_span;

const SECONDS_PER_DAY: u64 = 86_400;

/// Parses `90m`, `12h` or `2d`, or a time as `sbatch --time` reads it: `MINUTES`, `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS`, `DAYS-HOURS`,
/// `DAYS-HOURS:MINUTES` or `DAYS-HOURS:MINUTES:SECONDS`. `None` for anything else, and for a time longer than ten thousand years.
#[must_use]
pub fn parse_time_limit(text: &str) -> Option<Duration> {
    parse_span(text).or_else(|| parse_time_of_slurm(text))
}

fn parse_time_of_slurm(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days), clock),
        None => (None, text),
    };
    // Digits alone: `u64` also parses a sign.
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let fields = clock.split(':').map(number).collect::<Option<Vec<u64>>>()?;
    // Of the first field. After days it is hours; otherwise it is hours only if there are seconds, too.
    let first: u32 = match (days, fields.len()) {
        (Some(_), 1..=3) | (None, 3) => 2,
        (None, 1..=2) => 1,
        _ => return None,
    };
    let mut seconds = days.map_or(Some(0), number)?.checked_mul(SECONDS_PER_DAY)?;
    for (field, power) in fields.into_iter().zip((0..=first).rev()) {
        seconds = seconds.checked_add(field.checked_mul(60_u64.pow(power))?)?;
    }
    // The longest time of `parse_span`.
    parse_span(&format!("{seconds}s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_or_is_one_of_slurms() {
        let minutes = |text| parse_time_limit(text).map(|limit| limit.as_secs_f64() / 60.0);
        for (text, expected) in [
            ("90m", 90.0),
            ("12h", 720.0),
            ("2d", 2880.0),
            // The forms of sbatch's manual.
            ("90", 90.0),
            ("90:30", 90.5),
            ("1:30:30", 90.5),
            ("1-12", 2160.0),
            ("1-12:00", 2160.0),
            ("1-02:03", 1563.0),
            ("1-02:03:30", 1563.5),
            ("0-36:00:00", 2160.0),
            ("100:00:00", 6000.0),
        ] {
            assert_eq!(minutes(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "-",
            ":",
            "1:",
            ":30",
            "1-",
            "-12",
            "1:2:3:4",
            "1-2:3:4:5",
            "1-2-3",
            "+5",
            "1.5",
            "1-12h",
            "12h30",
            " 90",
            "UNLIMITED",
            "99999999999999999999",
            "99999999999999-00",
            "18446744073709551615:59:59",
            "٣",
        ] {
            assert_eq!(minutes(text), None, "{text:?}");
        }
    }
}
