//! Curves as a picture: SVG in one file, without scripts, for light and dark backgrounds.

use std::fmt::Write as _;

use super::curves::{Curve, CurveAxis, thinned};
use runner_plan::svg::{SvgPicture, escape, ticks};

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
const DASHES: [&str; 4] = ["", "7 4", "2 3", "9 3 2 3"];

/// The picture of `curves` of `metric`, all of them with some point.
#[must_use]
pub fn svg(curves: &[Curve], title: &str, metric: &str, over: CurveAxis) -> String {
    let finite = || curves.iter().flat_map(|c| &c.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let range = |of: fn(&(f64, f64)) -> f64| {
        finite().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    // Steps and tokens begin at 0.
    let (_, to) = widened(range(|p| p.0), 0.0);
    let from = 0.0;
    let (low, high) = widened(range(|p| p.1), 0.04);
    let legend = curves.len() as f64 * ENTRY + 8.0;
    let height = TOP + PLOT.1.max(legend) + BOTTOM;
    let width = LEFT + PLOT.0 + LEGEND;
    let x = |v: f64| LEFT + (v - from) / (to - from) * PLOT.0;
    let y = |v: f64| TOP + (high - v) / (high - low) * PLOT.1;
    let (right, bottom) = (LEFT + PLOT.0, TOP + PLOT.1);
    let mut picture = SvgPicture::new(width, height, " role=\"img\"");
    picture.raw(format_args!("<title>{}</title>", escape(title)));
    picture.raw(format_args!("<style>{}</style>", styles(curves.len())));
    picture.raw(format_args!("<rect class=\"ground\" width=\"100%\" height=\"100%\"/>"));
    picture.text(LEFT, 24.0, " class=\"ink\" font-size=\"16\"", title);
    for tick in ticks(low, high, 8) {
        picture.line((LEFT, y(tick)), (right, y(tick)), " class=\"grid\"");
        picture.text(LEFT - 8.0, y(tick) + 4.0, " class=\"ink\" text-anchor=\"end\"", label(tick));
    }
    for tick in ticks(from, to, 8) {
        picture.line((x(tick), TOP), (x(tick), bottom), " class=\"grid\"");
        picture.text(x(tick), bottom + 18.0, " class=\"ink\" text-anchor=\"middle\"", label(tick));
    }
    picture.raw(format_args!("<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right:.1}\"/>"));
    picture.text(LEFT + PLOT.0 / 2.0, bottom + 40.0, " class=\"ink\" text-anchor=\"middle\"", over.name());
    let middle = TOP + PLOT.1 / 2.0;
    let rotated = format!(" class=\"ink\" transform=\"translate(18 {middle}) rotate(-90)\" text-anchor=\"middle\"");
    picture.text(0.0, 0.0, &rotated, metric);
    for (i, curve) in curves.iter().enumerate() {
        let points = thinned(&curve.points, from, to, PLOT.0 as usize);
        let mut path = String::new();
        let mut pen = false;
        for (px, py) in &points {
            if !(px.is_finite() && py.is_finite()) {
                pen = false;
                continue;
            }
            let _ = write!(path, "{}{:.2} {:.2}", if pen { 'L' } else { 'M' }, x(*px), y(*py));
            pen = true;
        }
        let name = escape(&curve.label);
        picture.raw(format_args!("<g class=\"curve c{i}\"><title>{name}</title><path d=\"{path}\"/>"));
        // A curve of few points, such as evaluations, shows where they are.
        if points.len() <= 40 {
            for (px, py) in points.iter().filter(|(px, py)| px.is_finite() && py.is_finite()) {
                picture.raw(format_args!("<circle cx=\"{:.2}\" cy=\"{:.2}\" r=\"2.5\"/>", x(*px), y(*py)));
            }
        }
        let (legend_x, legend_y) = (right + 16.0, TOP + 8.0 + i as f64 * ENTRY);
        picture.raw(format_args!("</g><g class=\"curve c{i}\"><path d=\"M{legend_x} {legend_y}h26\"/></g>"));
        picture.raw(format_args!("<g><title>{name}</title>"));
        picture.text(legend_x + 34.0, legend_y + 4.0, " class=\"ink\"", shorten_label(&curve.label));
        picture.raw(format_args!("</g>"));
    }
    picture.finish()
}

/// The colours of `curves` curves, on light and on dark.
fn styles(curves: usize) -> String {
    let mut out = String::from(
        ".ground{fill:#fff}.ink{fill:#222}.grid{stroke:#222;stroke-opacity:.12}.axis{stroke:#222;fill:none}\
         .curve path{fill:none;stroke-linejoin:round}.curve circle{stroke:none}",
    );
    let colour = |i: usize| COLOURS[i % COLOURS.len()];
    for i in 0..curves {
        let dash = DASHES[i / COLOURS.len() % DASHES.len()];
        let dash = if dash.is_empty() { String::new() } else { format!(";stroke-dasharray:{dash}") };
        // Earlier curves are wider, so that they show beside the later ones that cover them.
        let width = if curves <= 4 { 1.6 + 0.9 * (curves - 1 - i) as f64 } else { 1.6 };
        let _ = write!(out, ".c{i}{{stroke:{0};fill:{0};stroke-width:{width:.1}{dash}}}", colour(i).0);
    }
    out.push_str("@media (prefers-color-scheme:dark){.ground{fill:#16181c}.ink{fill:#ddd}");
    out.push_str(".grid{stroke:#ddd}.axis{stroke:#ddd}");
    for i in 0..curves {
        let _ = write!(out, ".c{i}{{stroke:{0};fill:{0}}}", colour(i).1);
    }
    out.push('}');
    out
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

/// A number of an axis, short: `2k`, `1.5M`, `3e-4`.
fn label(x: f64) -> String {
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
    fn axes_have_short_numbers() {
        let all = [0.0, 3e-4, 0.25, 1500.0, 20_000.0, 1.5e6, 3e9, -2.5, 1e-7];
        assert_eq!(all.map(label), ["0", "3e-4", "0.25", "1500", "20k", "1.5M", "3B", "-2.5", "1e-7"]);
    }

    #[test]
    fn names_are_text_and_gaps_are_gaps() {
        let points = vec![(1.0, 3.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 1.0)];
        let evil = Curve { label: "<script>alert(1)</script>&\"\u{1b}".to_owned(), points };
        let text = svg(&[evil], "a < b", "loss", CurveAxis::Step);
        assert!(!text.contains("<script") && !text.contains('\u{1b}') && text.contains("a &lt; b"));
        let path = text.lines().find(|l| l.contains("curve c0")).unwrap();
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn one_point_and_none_make_pictures_too() {
        for points in [vec![], vec![(5.0, 2.0)], vec![(1.0, f64::INFINITY)]] {
            let text = svg(&[Curve { label: "a".into(), points }], "t", "loss", CurveAxis::Tokens);
            assert!(text.ends_with("</svg>\n") && !text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    #[test]
    fn long_names_keep_their_ends() {
        let name = format!("{}-0a1b2c3d", "long".repeat(20));
        assert!(shorten_label(&name).ends_with("-0a1b2c3d") && shorten_label(&name).chars().count() <= LETTERS);
    }
}
