//! A timeline as a picture: SVG without scripts, for a browser.

use std::fmt::Write as _;

use crate::timeline::{Timeline, label};
use runner_spec::forecast::{Activity, Span};

const LEFT: f64 = 70.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 64.0;
const WIDTH: f64 = 1600.0;
/// Height of a stage's row, and of the lane of its communication below.
const ROW: f64 = 24.0;
const LANE: f64 = 8.0;
const GAP: f64 = 10.0;

/// Name and colour of what there is to see.
fn look(what: Activity) -> (&'static str, &'static str) {
    match what {
        Activity::Forward => ("forward", "#4477aa"),
        Activity::Backward => ("backward", "#228833"),
        Activity::Input => ("input gradient", "#66aa55"),
        Activity::Weight => ("weight gradients", "#ccbb44"),
        Activity::Update => ("norm and update", "#aa3377"),
        Activity::Reduce => ("all-reduce", "#ee6677"),
        Activity::Collective => ("collective", "#bb8899"),
    }
}

/// The picture of `timeline`, under `title`.
#[must_use]
pub fn svg(timeline: &Timeline, title: &str) -> String {
    let stages = timeline.bubbles.len();
    let pitch = ROW + LANE + GAP;
    let height = TOP + stages as f64 * pitch + 40.0;
    let scale = (WIDTH - LEFT - RIGHT) / timeline.end.max(f64::MIN_POSITIVE);
    let x = |time: f64| LEFT + time * scale;
    let mut out = String::new();
    // Writing into a String cannot fail.
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(out, "{text}");
    };
    line(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">"
    ));
    line(format_args!("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"));
    line(format_args!("<text x=\"{LEFT}\" y=\"22\" font-size=\"16\">{}</text>", escape(title)));
    let mut kinds: Vec<Activity> = timeline.spans.iter().map(|s| s.what).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut at = LEFT;
    for kind in kinds {
        let (name, colour) = look(kind);
        line(format_args!("<rect x=\"{at:.1}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"));
        line(format_args!("<text x=\"{:.1}\" y=\"44\">{name}</text>", at + 17.0));
        at += 40.0 + 7.0 * name.len() as f64;
    }
    line(format_args!("<text x=\"{:.1}\" y=\"44\">bubble</text>", WIDTH - RIGHT + 12.0));
    for stage in 0..stages {
        let y = TOP + stage as f64 * pitch;
        line(format_args!("<text x=\"10\" y=\"{:.1}\">stage {stage}</text>", y + 16.0));
        line(format_args!(
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{ROW}\" fill=\"#eeeeee\"/>",
            WIDTH - LEFT - RIGHT
        ));
        line(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\">{:.1} %</text>",
            WIDTH - RIGHT + 12.0,
            y + 16.0,
            100.0 * timeline.bubbles[stage]
        ));
    }
    for span in &timeline.spans {
        let y = TOP + span.stage as f64 * pitch;
        let (name, colour) = look(span.what);
        let (y, height) = if span.what == Activity::Reduce { (y + ROW, LANE) } else { (y, ROW) };
        let width = ((span.end - span.start) * scale).max(0.2);
        let place = x(span.start);
        line(format_args!(
            "<rect x=\"{place:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height}\" fill=\"{colour}\" \
             stroke=\"white\" stroke-width=\"0.5\"><title>{}</title></rect>",
            escape(&tip(span, name, timeline.in_seconds))
        ));
        let text = label(span);
        if span.mb.is_some() && width > 8.0 * text.chars().count() as f64 {
            line(format_args!(
                "<text x=\"{:.2}\" y=\"{:.1}\" fill=\"white\" text-anchor=\"middle\" pointer-events=\"none\">{}</text>",
                place + width / 2.0,
                y + 16.0,
                escape(&text)
            ));
        }
    }
    let bottom = TOP + stages as f64 * pitch;
    let (factor, unit) = if timeline.in_seconds { (1e3, "ms") } else { (1.0, "units of a forward") };
    let tick = tick(timeline.end * factor);
    let mut value = 0.0;
    while value <= timeline.end * factor && tick > 0.0 {
        let place = x(value / factor);
        line(format_args!(
            "<line x1=\"{place:.2}\" x2=\"{place:.2}\" y1=\"{TOP}\" y2=\"{bottom:.1}\" stroke=\"black\" \
             stroke-opacity=\"0.15\"/>"
        ));
        line(format_args!(
            "<text x=\"{place:.2}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 14.0,
            (value * 1e6).round() / 1e6
        ));
        value += tick;
    }
    line(format_args!("<text x=\"{:.1}\" y=\"{:.1}\">{unit}</text>", WIDTH - RIGHT + 12.0, bottom + 14.0));
    line(format_args!("</svg>"));
    out
}

fn tip(span: &Span, name: &str, in_seconds: bool) -> String {
    let what =
        span.mb.map_or_else(|| name.to_owned(), |mb| format!("{name} of micro-batch {mb}, chunk {}", span.chunk));
    if in_seconds {
        format!("{what}: {:.3} to {:.3} ms", 1e3 * span.start, 1e3 * span.end)
    } else {
        format!("{what}: {:.2} to {:.2}", span.start, span.end)
    }
}

/// 1, 2 or 5 times a power of ten, so that there are about ten of them.
fn tick(end: f64) -> f64 {
    if !(end.is_finite() && end > 0.0) {
        return 0.0;
    }
    let power = 10.0_f64.powf((end / 10.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|s| s * power).find(|t| end / t <= 12.0).unwrap_or(power * 10.0)
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
            // XML has no other control characters, and not these two.
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
