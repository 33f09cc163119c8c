//! Curves of runs, drawn with characters.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType};

use super::state::{Curve, MAX_DRAWN, WatchedRun};
use runner_spec::format::{count, loss, printable, rate};

/// The colours of runs in a picture, in their order.
const COLOURS: [Color; MAX_DRAWN] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::Red];

/// The colour of the run with this place in a picture.
pub(super) fn colour(place: usize) -> Color {
    COLOURS[place % COLOURS.len()]
}

/// Draws `curve` of `runs` over the steps.
pub(super) fn draw_chart(frame: &mut Frame<'_>, area: Rect, curve: Curve, runs: &[&WatchedRun]) {
    let points: Vec<Vec<(f64, f64)>> = runs.iter().map(|run| run.points(curve)).collect();
    let all = || points.iter().flatten().copied();
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low < high { [low, high] } else { [low - 0.5, low + 0.5] }
    };
    let names = runs.iter().enumerate().flat_map(|(place, run)| {
        let name = Span::styled(printable(&run.listed.id), Style::new().fg(colour(place)));
        [name, Span::raw("  ")]
    });
    let title: Vec<Span<'_>> = [Span::raw(format!(" {}  ", curve.label()))].into_iter().chain(names).collect();
    let block = Block::bordered().title(Line::from(title));
    if all().next().is_none() {
        frame.render_widget(ratatui::widgets::Paragraph::new("nothing measured yet").block(block), area);
        return;
    }
    let (x, y) = (range(&mut all().map(|(x, _)| x)), range(&mut all().map(|(_, y)| y)));
    let datasets = points.iter().enumerate().map(|(place, points)| {
        let dataset = Dataset::default().marker(Marker::Braille).data(points);
        // One point alone is no line.
        let kind = if points.len() > 1 { GraphType::Line } else { GraphType::Scatter };
        dataset.graph_type(kind).style(Style::new().fg(colour(place)))
    });
    let text = |value: f64| if curve == Curve::Speed { rate(value) } else { loss(value) };
    let step = |value: f64| count(value.round() as u64);
    let chart = Chart::new(datasets.collect())
        .block(block)
        .x_axis(Axis::default().bounds(x).labels([step(x[0]), step(x[1])]))
        .y_axis(Axis::default().bounds(y).labels([text(y[0]), text(f64::midpoint(y[0], y[1])), text(y[1])]));
    frame.render_widget(chart, area);
}
