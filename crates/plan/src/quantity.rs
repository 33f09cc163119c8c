//! Quantities as a plan's text and messages show them: always with their unit, and exact enough to add up.

/// Bytes in binary units with two decimals: `1.50 GiB`.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// `x` in decimal units with two decimals: `876.00 GFLOP`.
pub fn si(x: f64, unit: &str) -> String {
    let text = scaled(x, 1000.0, &["", "k", "M", "G", "T", "P", "E", "Z"]);
    format!("{text}{unit}")
}

fn scaled(mut x: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while x >= base && unit + 1 < units.len() {
        x /= base;
        unit += 1;
    }
    let decimals = if unit == 0 { 0 } else { 2 };
    format!("{x:.decimals$} {}", units[unit])
}

/// At most three decimals.
pub fn three_decimals(x: f64) -> String {
    let text = format!("{x:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A time with three digits, in the unit that a person would take.
pub fn seconds(s: f64) -> String {
    let (value, unit) = match s {
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s if s < 120.0 => (s, "s"),
        s if s < 7200.0 => (s / 60.0, "min"),
        s if s < 48.0 * 3600.0 => (s / 3600.0, "h"),
        s => (s / 86_400.0, "days"),
    };
    let decimals = match value {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([bytes(12), bytes(1536), bytes(3 << 30)], ["12 B", "1.50 KiB", "3.00 GiB"]);
        assert_eq!(si(8.76e11, "FLOP"), "876.00 GFLOP");
        assert_eq!([three_decimals(2.0), three_decimals(0.125), three_decimals(1.23456)], ["2", "0.125", "1.235"]);
    }

    #[test]
    fn times_have_three_digits() {
        let cases = [3.2e-6, 0.0456, 1.5, 119.0, 600.0, 9000.0, 1e6].map(seconds);
        assert_eq!(cases, ["3.20 µs", "45.6 ms", "1.50 s", "119 s", "10.0 min", "2.50 h", "11.6 days"]);
    }
}
