//! Wall-clock times as RFC 3339 in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now, to the millisecond: `2026-01-31T09:08:07.123Z`.
#[must_use]
pub fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A time since 1970-01-01T00:00:00Z.
#[must_use]
pub fn rfc3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}Z", since_epoch.subsec_millis())
}

/// Seconds since 1970-01-01T00:00:00Z of a time as `now` writes it; the time of day, or parts of it, may be left out.
/// `None` for what is no such time.
#[must_use]
pub fn parse(text: &str) -> Option<f64> {
    let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let number = |text: &str, most: u64| -> Option<u64> {
        let all_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if all_digits { text.parse().ok().filter(|n| *n <= most) } else { None }
    };
    let [year, month, day] = date.split('-').collect::<Vec<_>>().try_into().ok()?;
    let (year, month, day) = (number(year, 9999)?, number(month, 12)?, number(day, 31)?);
    if year < 1970 || month < 1 || day < 1 {
        return None;
    }
    let days = days(year, month, day);
    // The 31st of a month of 30 days would be another month's first.
    if civil(days) != (year, month, day) {
        return None;
    }
    let clock = clock.strip_suffix('Z').unwrap_or(clock);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut parts = clock.split(':');
    let mut part = |most| parts.next().map_or(Some(0), |text| number(text, most));
    let (h, m, s) = (part(23)?, part(59)?, part(60)?);
    let nanos = number(fraction.get(..9).unwrap_or(fraction), 999_999_999)?;
    let scale = 10f64.powi(fraction.len().min(9) as i32);
    parts.next().is_none().then(|| (days * 86_400 + h * 3600 + m * 60 + s) as f64 + nanos as f64 / scale)
}

/// A span as people write it: `90s`, `30m`, `12h`, `7d`, `2w`. `None` for what is none, or longer than ten thousand years.
#[must_use]
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

/// Days from 1970-01-01 to a date, the inverse of `civil`.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (march_year, march_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (cycle, year_of_cycle) = (march_year / 400, march_year % 400);
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let day_of_cycle = year_of_cycle * 365 + year_of_cycle / 4 - year_of_cycle / 100 + day_of_year;
    cycle * 146_097 + day_of_cycle - 719_468
}

/// The proleptic Gregorian date `days` after 1970-01-01, counted in 400-year cycles of 146,097 days whose years begin in
/// March, so that the leap day is the last of a year.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (cycle, day_of_cycle) = (shifted / 146_097, shifted % 146_097);
    let year_of_cycle = (day_of_cycle - day_of_cycle / 1460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
    let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = cycle * 400 + year_of_cycle + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let at = |s| rfc3339(Duration::from_secs(s));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_000_000_000), "2001-09-09T01:46:40.000Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000Z");
        assert_eq!(rfc3339(Duration::from_millis(1_709_251_199_042)), "2024-02-29T23:59:59.042Z");
    }

    #[test]
    fn what_is_written_is_read() {
        for ms in [0, 1_709_251_199_042, 951_782_400_000, 4_107_542_399_999] {
            let text = rfc3339(Duration::from_millis(ms));
            assert_eq!(parse(&text), Some(ms as f64 / 1e3), "{text}");
        }
        for day in (0..80_000).step_by(13) {
            let (y, m, d) = civil(day);
            assert_eq!(days(y, m, d), day);
        }
        assert_eq!(parse("2024-03-01"), parse("2024-03-01T00:00:00.000Z"));
        assert_eq!(parse("2024-03-01 01:30"), parse("2024-03-01").map(|s| s + 5400.0));
        for text in ["", "2024", "2023-02-29", "2024-13-01", "2024-1-+1", "2024-01-01T24:00", "2024-01-01T1:2:3:4", "x"]
        {
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

    #[test]
    fn every_day_follows_the_last() {
        let mut last = (1969, 12, 31);
        for day in 0..80_000 {
            let now = civil(day);
            assert!(now > last && (1..=31).contains(&now.2) && (1..=12).contains(&now.1), "{last:?} then {now:?}");
            last = now;
        }
    }
}
