//! Wall-clock times as RFC 3339 in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};
use runner_spec::error::PlainError;

/// The last second of the year 9999. RFC 3339 has no later year.
const LAST_SECOND: i64 = 253_402_300_799;

/// Now, to the millisecond: `2026-01-31T09:08:07.123Z`. A time that [`check_clock`] refuses is the nearest one that it does not.
pub fn now() -> String {
    let (seconds, nanoseconds) = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(_) => (0, 0),
    };
    let time = DateTime::from_timestamp(seconds.min(LAST_SECOND), nanoseconds).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Checks that the system's clock shows a time that a record can state. Libraries panic at others.
///
/// # Errors
/// A message, if it is before 1970 or after 9999.
pub fn check_clock() -> Result<(), PlainError> {
    const SECONDS_PER_DAY: u64 = 86_400;
    const SECONDS_PER_YEAR: u64 = 31_556_952;
    let found = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) if since.as_secs() <= LAST_SECOND as u64 => return Ok(()),
        Ok(since) => format!("about the year {}", 1970 + (since.as_secs() + SECONDS_PER_DAY) / SECONDS_PER_YEAR),
        Err(_) => "a time before 1970".to_owned(),
    };
    Err(PlainError::failure(format!(
        "the system's clock must show a time from 1970 to 9999, found {found}; set the clock"
    )))
}

/// Seconds since 1970-01-01T00:00:00Z of a time as [`now`] writes it. The time of day, or parts of it, may be left out.
/// `None` if `text` is not such a time.
pub fn parse(text: &str) -> Option<f64> {
    let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, "00"));
    let clock = clock.strip_suffix('Z').unwrap_or(clock);
    let left_out = ["", ":00", ":00:00"].get(2_usize.checked_sub(clock.matches(':').count())?)?;
    let time = DateTime::parse_from_rfc3339(&format!("{date}T{clock}{left_out}Z")).ok()?;
    let seconds = time.timestamp() as f64 + f64::from(time.timestamp_subsec_nanos()) / 1e9;
    (seconds >= 0.0).then_some(seconds)
}

/// A span as people write it: `90s`, `30m`, `12h`, `7d`, `2w`. `None` if `text` is not a span, or longer than ten thousand years.
pub fn parse_span(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let each = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return None,
    };
    let digits = text.strip_suffix(unit)?;
    let count: u64 = if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok()? } else { return None };
    count.checked_mul(each).filter(|s| *s < 315_576_000_000).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00.000Z", 0.0),
            ("2000-02-29T00:00:00.000Z", 951_782_400.0),
            ("2001-09-09T01:46:40.000Z", 1e9),
            ("2024-02-29T23:59:59.042Z", 1_709_251_199.042),
            ("2100-03-01T00:00:00.000Z", 4_107_542_400.0),
        ] {
            assert_eq!(parse(text), Some(seconds), "{text}");
        }
        let (text, since) = (now(), SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        let seconds = since.as_secs_f64();
        check_clock().unwrap();
        assert!(text.len() == 24 && (parse(&text).unwrap() - seconds).abs() < 60.0, "{text}");
        assert_eq!(parse("2024-03-01"), parse("2024-03-01T00:00:00.000Z"));
        assert_eq!(parse("2024-03-01 01:30"), parse("2024-03-01").map(|s| s + 5400.0));
        for text in [
            "",
            "2024",
            "1969-12-31",
            "2023-02-29",
            "2024-13-01",
            "2024-1-+1",
            "2024-01-01T24:00",
            "2024-01-01T1:2:3:4",
            "x",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn spans() {
        let seconds = |text| parse_span(text).map(|span| span.as_secs());
        assert_eq!(["90s", "30m", "12h", "7d", "2w"].map(seconds), [90, 1800, 43_200, 604_800, 1_209_600].map(Some));
        for text in ["", "7", "d", "-7d", "7.5d", "7y", "99999999999999999999d", "7é"] {
            assert_eq!(seconds(text), None, "{text:?}");
        }
    }
}
