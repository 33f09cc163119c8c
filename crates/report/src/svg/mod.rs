//! Pictures as SVG in one file: without scripts, for light and dark backgrounds. Coordinates are in pixels.

mod curves;
mod timeline;

use std::fmt::{Arguments, Display, Write as _};

pub use curves::draw_curves;
pub use timeline::draw_timeline;

/// Colours of the background, text and lines, on light and on dark.
const LIGHT: &str =
    ".ground{fill:#fff}.ink{fill:#222}.row{fill:#eee}.grid{stroke:#222;stroke-opacity:.12}.axis{stroke:#222;fill:none}";
const DARK: &str = ".ground{fill:#16181c}.ink{fill:#ddd}.row{fill:#24272d}.grid,.axis{stroke:#ddd}";

/// A picture that is being written, one element after another.
#[derive(Debug)]
struct Picture {
    text: String,
}

impl Picture {
    /// Starts a picture with `title` at `left`. `light` are styles of its own, `dark` replaces some of them on a dark background.
    fn new((width, height): (f64, f64), left: f64, title: &str, light: &str, dark: &str) -> Self {
        let mut picture = Self { text: String::new() };
        picture.raw(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"12\" role=\"img\">"
        ));
        picture.raw(format_args!("<title>{}</title>", escape(title)));
        picture.raw(format_args!("<style>{LIGHT}{light}@media (prefers-color-scheme:dark){{{DARK}{dark}}}</style>"));
        picture.raw(format_args!("<rect class=\"ground\" width=\"100%\" height=\"100%\"/>"));
        picture.text((left, 24.0), " font-size=\"16\"", title);
        picture
    }

    /// Adds a line of SVG as it is.
    #[expect(clippy::expect_used, reason = "writing into a String cannot fail")]
    fn raw(&mut self, line: Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a String takes any text");
    }

    /// Adds `text`, escaped.
    fn text(&mut self, (x, y): (f64, f64), attributes: &str, text: impl Display) {
        let text = escape(&text.to_string());
        self.raw(format_args!("<text class=\"ink\" x=\"{x:.2}\" y=\"{y:.2}\"{attributes}>{text}</text>"));
    }

    /// Adds a rectangle of `size` (width and height) with its upper left corner at `corner`; a browser shows `title` as a tooltip.
    fn rectangle(&mut self, corner: (f64, f64), size: (f64, f64), attributes: &str, title: &str) {
        let title = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
        self.raw(format_args!(
            "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\"{attributes}>{title}</rect>",
            corner.0, corner.1, size.0, size.1
        ));
    }

    /// Adds a vertical line from `top` to `bottom` at `x` of each of `ticks`, with its number below.
    fn ticks_below(&mut self, ticks: Vec<f64>, x: impl Fn(f64) -> f64, (top, bottom): (f64, f64)) {
        for tick in ticks {
            let x = x(tick);
            self.raw(format_args!("<path class=\"grid\" d=\"M{x:.2} {top:.2}V{bottom:.2}\"/>"));
            self.text((x, bottom + 18.0), " text-anchor=\"middle\"", short_number(tick));
        }
    }

    /// The whole picture.
    fn finish(mut self) -> String {
        self.raw(format_args!("</svg>"));
        self.text
    }
}

/// Multiples of 1, 2 or 5 times a power of ten between `low` and `high`, at most about `count` of them.
fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let span = high - low;
    if !(span.is_finite() && span > 0.0) {
        return Vec::new();
    }
    let power = 10.0_f64.powf((span / count as f64).log10().floor());
    let fits = |step: &f64| span / step <= count as f64;
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(fits).unwrap_or(10.0 * power);
    let first = (low / step).ceil();
    let last = (high / step).floor();
    if last - first > 1e3 {
        return Vec::new();
    }
    // Adding 0 turns -0 into 0.
    (0..=(last - first) as i64).map(|i| (first + i as f64) * step + 0.0).collect()
}

/// The number of a tick: `2k`, `1.5M`, `3e-4`.
fn short_number(x: f64) -> String {
    let shortest = |x: f64| format!("{}", (x * 1e6).round() / 1e6);
    match x.abs() {
        0.0 => "0".to_owned(),
        a if a >= 1e15 => format!("{x:.1e}"),
        a if a >= 1e9 => format!("{}B", shortest(x / 1e9)),
        a if a >= 1e6 => format!("{}M", shortest(x / 1e6)),
        a if a >= 1e4 => format!("{}k", shortest(x / 1e3)),
        a if a >= 1e-3 => shortest(x),
        _ => {
            let text = format!("{x:.2e}");
            let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{}e{power}", digits.trim_end_matches('0').trim_end_matches('.'))
        }
    }
}

/// Text as XML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML allows no other control characters, and not these two.
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.0, 10.0, 8), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(-0.03, 0.27, 8).len(), 6);
        for (low, high) in [(1.5, 7.3), (0.0, 1e-7), (1e9, 3e12), (-5.0, -4.9), (120.0, 121.0)] {
            let found = ticks(low, high, 8);
            assert!((3..=9).contains(&found.len()), "{low} {high}: {found:?}");
            assert!(found.iter().all(|t| (low..=high).contains(t)), "{low} {high}: {found:?}");
        }
        assert!(ticks(1.0, 1.0, 8).is_empty() && ticks(f64::NAN, 1.0, 8).is_empty());
    }

    #[test]
    fn axes_have_short_numbers() {
        let all = [0.0, 3e-4, 0.25, 1500.0, 20_000.0, 1.5e6, 3e9, -2.5, 1e-7];
        assert_eq!(all.map(short_number), ["0", "3e-4", "0.25", "1500", "20k", "1.5M", "3B", "-2.5", "1e-7"]);
    }
}
