//! A builder of SVG pictures without scripts, and what plots need: tick values and escaped text. Coordinates are in pixels.

use std::fmt::{Arguments, Display, Write as _};

/// A picture that is being written, one element after another.
#[derive(Debug)]
pub struct SvgPicture {
    text: String,
}

impl SvgPicture {
    /// Begins a picture; `attributes` are further ones of its root element.
    pub fn new(width: f64, height: f64, attributes: &str) -> Self {
        let mut picture = Self { text: String::new() };
        picture.raw(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\"{attributes}>"
        ));
        picture
    }

    /// Adds a line of SVG as it is.
    #[expect(clippy::expect_used, reason = "writing into a String cannot fail")]
    pub fn raw(&mut self, line: Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a String takes any text");
    }

    /// Adds `text`, escaped.
    pub fn text(&mut self, x: f64, y: f64, attributes: &str, text: impl Display) {
        let text = escape(&text.to_string());
        self.raw(format_args!("<text x=\"{x:.2}\" y=\"{y:.2}\"{attributes}>{text}</text>"));
    }

    /// Adds a rectangle of `size` (width and height) with its upper left corner at `corner`; a browser shows `title` as a tooltip.
    pub fn rectangle(&mut self, corner: (f64, f64), size: (f64, f64), attributes: &str, title: &str) {
        let title = if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
        self.raw(format_args!(
            "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\"{attributes}>{title}</rect>",
            corner.0, corner.1, size.0, size.1
        ));
    }

    /// Adds a straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.raw(format_args!("<line x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\"{attributes}/>"));
    }

    /// The whole picture.
    pub fn finish(mut self) -> String {
        self.raw(format_args!("</svg>"));
        self.text
    }
}

/// Multiples of 1, 2 or 5 times a power of ten between `low` and `high`, at most about `count` of them.
pub fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
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

/// Text as XML.
pub fn escape(text: &str) -> String {
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
    use super::ticks;

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
}
