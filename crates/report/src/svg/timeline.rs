//! The timeline of one step as a picture: a row for each stage.

use super::{Picture, ticks};
use runner_plan::forecast::timeline::{Timeline, label};
use runner_spec::forecast::{Activity, ForecastSpan};

const LEFT: f64 = 70.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 64.0;
const WIDTH: f64 = 1600.0;
/// Height of a stage's row, and of the lane of its communication below.
const ROW: f64 = 24.0;
const LANE: f64 = 8.0;
const GAP: f64 = 10.0;

/// Name and colour of an activity.
fn appearance(activity: Activity) -> (&'static str, &'static str) {
    match activity {
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
pub fn draw_timeline(timeline: &Timeline, title: &str) -> String {
    let stages = timeline.bubbles.len();
    let row_top = |stage: usize| TOP + stage as f64 * (ROW + LANE + GAP);
    let (plot_width, right, bottom) = (WIDTH - LEFT - RIGHT, WIDTH - RIGHT + 12.0, row_top(stages));
    let scale = plot_width / timeline.end.max(f64::MIN_POSITIVE);
    let x = |time: f64| LEFT + time * scale;
    let mut picture = Picture::new((WIDTH, bottom + 40.0), LEFT, title, "", "");
    let mut activities: Vec<Activity> = timeline.spans.iter().map(|s| s.what).collect();
    activities.sort_unstable();
    activities.dedup();
    let mut legend_x = LEFT;
    for activity in activities {
        let (name, colour) = appearance(activity);
        picture.rectangle((legend_x, 34.0), (12.0, 12.0), &format!(" fill=\"{colour}\""), "");
        picture.text((legend_x + 17.0, 44.0), "", name);
        legend_x += 40.0 + 7.0 * name.len() as f64;
    }
    picture.text((right, 44.0), "", "bubble");
    for (stage, bubble) in timeline.bubbles.iter().enumerate() {
        let y = row_top(stage);
        picture.text((10.0, y + 16.0), "", format!("stage {stage}"));
        picture.rectangle((LEFT, y), (plot_width, ROW), " class=\"row\"", "");
        picture.text((right, y + 16.0), "", format!("{:.1} %", 100.0 * bubble));
    }
    for span in &timeline.spans {
        let (name, colour) = appearance(span.what);
        let top = row_top(span.stage);
        let (y, height) = if span.what == Activity::Reduce { (top + ROW, LANE) } else { (top, ROW) };
        let width = ((span.end - span.start) * scale).max(0.2);
        let attributes = format!(" fill=\"{colour}\" stroke=\"white\" stroke-width=\"0.5\"");
        let title = tooltip(span, name, timeline.in_seconds);
        picture.rectangle((x(span.start), y), (width, height), &attributes, &title);
        let text = label(span);
        if span.mb.is_some() && width > 8.0 * text.chars().count() as f64 {
            let attributes = " style=\"fill:#fff\" text-anchor=\"middle\" pointer-events=\"none\"";
            picture.text((x(span.start) + width / 2.0, y + 16.0), attributes, text);
        }
    }
    let (factor, unit) = if timeline.in_seconds { (1e3, "ms") } else { (1.0, "units of a forward") };
    picture.ticks_below(ticks(0.0, timeline.end * factor, 12), |value| x(value / factor), (TOP, bottom));
    picture.text((right, bottom + 18.0), "", unit);
    picture.finish()
}

fn tooltip(span: &ForecastSpan, name: &str, in_seconds: bool) -> String {
    let what =
        span.mb.map_or_else(|| name.to_owned(), |mb| format!("{name} of micro-batch {mb}, chunk {}", span.chunk));
    if in_seconds {
        format!("{what}: {:.3} to {:.3} ms", 1e3 * span.start, 1e3 * span.end)
    } else {
        format!("{what}: {:.2} to {:.2}", span.start, span.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::forecast::timeline::timeline;
    use runner_plan::testing::{compiled, experiment};

    /// Every tag is closed in order, text is escaped, and each span has a rectangle.
    #[test]
    fn a_picture_is_well_formed() {
        let plan = compiled(&experiment());
        let timeline = timeline(&plan).expect("small");
        let picture = draw_timeline(&timeline, "a <b> & \"c\"\u{7}");
        assert!(picture.contains("a &lt;b&gt; &amp; &quot;c&quot; "));
        let mut open: Vec<&str> = Vec::new();
        for tag in picture.split('<').skip(1) {
            let (inside, _) = tag.split_once('>').expect("a tag ends");
            assert_eq!(inside.matches('"').count() % 2, 0, "{inside}");
            if let Some(name) = inside.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !inside.ends_with('/') {
                open.push(inside.split(' ').next().expect("a name"));
            }
        }
        assert!(open.is_empty(), "{open:?}");
        // The picture has one too.
        assert_eq!(picture.matches("<title>").count(), timeline.spans.len() + 1);
        assert!(!picture.contains("script") && picture.contains("prefers-color-scheme:dark"));
    }
}
