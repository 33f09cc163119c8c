//! Curves of runs as a picture.

use std::fmt::Write as _;

use super::{Picture, escape, short_number, ticks};
use crate::thin::thin;
use runner_compare::curves::{Curve, CurveAxis};

const LEFT: f64 = 72.0;
const TOP: f64 = 44.0;
const PLOT: (f64, f64) = (640.0, 400.0);
const LEGEND: f64 = 250.0;
const BOTTOM: f64 = 52.0;
/// Height of a line of the legend, and the letters that fit into it.
const ENTRY: f64 = 20.0;
const LETTERS: usize = 30;

/// Colours by Okabe and Ito, which differ for any kind of colour vision, on light and on dark. Further curves take them again with other
/// dashes.
const COLOURS: [(&str, &str); 7] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#e69f00"),
    ("#009e73", "#2fd0a0"),
    ("#cc79a7", "#e8a3c8"),
    ("#b58900", "#f0e442"),
    ("#444444", "#dddddd"),
    ("#7a52c7", "#b79bf0"),
];
const DASHES: [&str; 4] = ["none", "7 4", "2 3", "9 3 2 3"];

/// The picture of `curves` of `metric`, all of them with some point.
#[must_use]
pub fn draw_curves(curves: &[Curve], title: &str, metric: &str, over: CurveAxis) -> String {
    let finite = || curves.iter().flat_map(|c| &c.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let range = |of: fn(&(f64, f64)) -> f64| {
        finite().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    // Steps and tokens start at 0.
    let (_, end) = widened(range(|p| p.0), 0.0);
    let (low, high) = widened(range(|p| p.1), 0.04);
    let legend = curves.len() as f64 * ENTRY + 8.0;
    let height = TOP + PLOT.1.max(legend) + BOTTOM;
    let x = |v: f64| LEFT + v / end * PLOT.0;
    let y = |v: f64| TOP + (high - v) / (high - low) * PLOT.1;
    let (right, bottom) = (LEFT + PLOT.0, TOP + PLOT.1);
    let (light, dark) = styles(curves.len());
    let mut picture = Picture::new((right + LEGEND, height), LEFT, title, &light, &dark);
    for tick in ticks(low, high, 8) {
        picture.raw(format_args!("<path class=\"grid\" d=\"M{LEFT} {:.2}H{right}\"/>", y(tick)));
        picture.text((LEFT - 8.0, y(tick) + 4.0), " text-anchor=\"end\"", short_number(tick));
    }
    picture.ticks_below(ticks(0.0, end, 8), x, (TOP, bottom));
    picture.raw(format_args!("<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right:.1}\"/>"));
    picture.text((LEFT + PLOT.0 / 2.0, bottom + 40.0), " text-anchor=\"middle\"", over.name());
    let rotated = format!(" transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\"", TOP + PLOT.1 / 2.0);
    picture.text((0.0, 0.0), &rotated, metric);
    for (i, curve) in curves.iter().enumerate() {
        // A step and a number of tokens are integers. For each pixel the lowest and the highest value are drawn.
        let points: Vec<_> = curve.points.iter().map(|&(x, y)| (x as u64, Some(y))).collect();
        let points = thin(&points, 2 * PLOT.0 as usize).unwrap_or_default();
        let (mut path, mut circles, mut command) = (String::new(), String::new(), 'M');
        for (&at, value) in points.x.iter().zip(&points.y) {
            let Some(value) = *value else {
                command = 'M';
                continue;
            };
            let (px, py) = (x(at as f64), y(value));
            let _ = write!(path, "{command}{px:.2} {py:.2}");
            command = 'L';
            // A curve of few points, such as evaluations, shows where they are.
            if points.x.len() <= 40 {
                let _ = write!(circles, "<circle cx=\"{px:.2}\" cy=\"{py:.2}\" r=\"2.5\"/>");
            }
        }
        let name = escape(&curve.label);
        picture.raw(format_args!("<g class=\"curve c{i}\"><title>{name}</title><path d=\"{path}\"/>{circles}</g>"));
        let (legend_x, legend_y) = (right + 16.0, TOP + 8.0 + i as f64 * ENTRY);
        picture.raw(format_args!("<g class=\"curve c{i}\"><path d=\"M{legend_x} {legend_y}h26\"/></g>"));
        picture.raw(format_args!("<g><title>{name}</title>"));
        picture.text((legend_x + 34.0, legend_y + 4.0), "", shorten_label(&curve.label));
        picture.raw(format_args!("</g>"));
    }
    picture.finish()
}

/// The styles of `curves` curves, on light and on dark.
fn styles(curves: usize) -> (String, String) {
    let mut light = String::from(".curve path{fill:none;stroke-linejoin:round}.curve circle{stroke:none}");
    let mut dark = String::new();
    for i in 0..curves {
        let (on_light, on_dark) = COLOURS[i % COLOURS.len()];
        let dashes = DASHES[i / COLOURS.len() % DASHES.len()];
        // Earlier curves are wider, so that they show beside the later ones that cover them.
        let width = if curves <= 4 { 1.6 + 0.9 * (curves - 1 - i) as f64 } else { 1.6 };
        let colour = |colour: &str| format!("stroke:{colour};fill:{colour}");
        let _ = write!(light, ".c{i}{{{};stroke-width:{width:.1};stroke-dasharray:{dashes}}}", colour(on_light));
        let _ = write!(dark, ".c{i}{{{}}}", colour(on_dark));
    }
    (light, dark)
}

/// A range with `margin` of itself around it, and never empty.
fn widened((low, high): (f64, f64), margin: f64) -> (f64, f64) {
    if !(low.is_finite() && high.is_finite()) {
        return (0.0, 1.0);
    }
    // Numbers that are closer than a millionth of their size have the same label.
    let span = high - low;
    if !span.is_finite() || span <= f64::max(low.abs(), high.abs()) * 1e-6 {
        let around = f64::max(low.abs(), 1.0) * 0.05;
        return (low - around, high + around);
    }
    (low - margin * span, high + margin * span)
}

fn shorten_label(label: &str) -> String {
    if label.chars().count() <= LETTERS {
        return label.to_owned();
    }
    // Ids differ at their ends.
    let tail: Vec<char> = label.chars().rev().take(14).collect();
    let head: String = label.chars().take(LETTERS - 15).collect();
    format!("{head}…{}", tail.into_iter().rev().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_and_gaps_are_gaps() {
        let points = vec![(1.0, 3.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 1.0)];
        let evil = Curve { label: "<script>alert(1)</script>&\"\u{1b}".to_owned(), points };
        let text = draw_curves(&[evil], "a < b", "loss", CurveAxis::Step);
        assert!(!text.contains("<script") && !text.contains('\u{1b}') && text.contains("a &lt; b"));
        let path = text.lines().find(|l| l.contains("curve c0")).unwrap();
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn one_point_and_none_make_pictures_too() {
        for points in [vec![], vec![(5.0, 2.0)], vec![(1.0, f64::INFINITY)]] {
            let text = draw_curves(&[Curve { label: "a".into(), points }], "t", "loss", CurveAxis::Tokens);
            assert!(text.ends_with("</svg>\n") && !text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    #[test]
    fn long_names_keep_their_ends() {
        let name = format!("{}-0a1b2c3d", "long".repeat(20));
        assert!(shorten_label(&name).ends_with("-0a1b2c3d") && shorten_label(&name).chars().count() <= LETTERS);
    }
}
