//! The screen of `runner watch`: the list of runs with the curves of some, or one run alone.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::charts::{colour, draw_chart};
use super::state::{Curve, WatchState, WatchedRun};
use runner_record::catalog::{ListedRun, ListedStatus};
use runner_spec::format::{count, counted, loss, printable, rate, seconds};

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, state: &WatchState) {
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(3), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(Paragraph::new(title_line(state)), top);
    match state.selected().filter(|_| state.is_detail) {
        Some(run) => draw_run(frame, middle, run),
        None => draw_list(frame, middle, state),
    }
    frame.render_widget(Paragraph::new(key_line(state)).style(Style::new().add_modifier(Modifier::DIM)), bottom);
}

fn title_line(state: &WatchState) -> Line<'static> {
    let of = |status: ListedStatus| state.runs.iter().filter(|run| run.listed.status == status).count();
    let counts = ListedStatus::ALL.into_iter().filter(|status| of(*status) > 0);
    let counts: Vec<String> = counts.map(|status| format!("{} {}", of(status), status.description())).collect();
    let title = Span::styled(printable(&state.title), Style::new().add_modifier(Modifier::BOLD));
    let mut spans = vec![title, Span::raw(format!("  {}", counts.join(", ")))];
    if let Some(problem) = &state.problem {
        spans.push(Span::styled(format!("  {}", printable(problem)), Style::new().fg(Color::Red)));
    }
    Line::from(spans)
}

fn key_line(state: &WatchState) -> String {
    match (state.is_typing, state.is_detail) {
        (true, _) => format!("filter: {}_   Enter keeps it, Esc clears it", printable(&state.filter)),
        (_, true) => "Esc back  ↑↓ other runs  q quit".to_owned(),
        _ => {
            let filter =
                if state.filter.is_empty() { String::new() } else { format!(" ({})", printable(&state.filter)) };
            format!("↑↓ choose  Enter open  Space pin  m curve  / filter{filter}  q quit")
        }
    }
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, state: &WatchState) {
    let shown: Vec<&WatchedRun> = state.shown().collect();
    let rows = (shown.len() as u16).saturating_add(1).min(area.height / 2).max(3);
    let [list, picture] = Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(area);
    if shown.is_empty() {
        let text = if state.runs.is_empty() { "no runs yet" } else { "no run matches the filter" };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let drawn = state.drawn();
    // A narrow terminal has room for the ids only without the speed, which the time left implies.
    let columns: &[usize] = if area.width >= 110 { &[1, 2, 3, 4, 5, 6, 7, 8, 9] } else { &[1, 2, 3, 4, 5, 7] };
    let head = ["", "run", "status", "step", "loss", "val loss", "tokens/s", "left", "started", "sweep"];
    let widths = [2, 0, 11, 13, 8, 8, 9, 8, 19, 20];
    let width = |column: usize| if column == 1 { Constraint::Min(14) } else { Constraint::Length(widths[column]) };
    let row = |run: &&WatchedRun| {
        let place = drawn.iter().position(|other| other.listed.id == run.listed.id);
        let mark = if state.pinned.contains(&run.listed.id) { "◆" } else { "●" };
        let mark = place.map_or_else(Span::default, |place| Span::styled(mark, Style::new().fg(colour(place))));
        let texts = cells_of(run);
        let cells = columns.iter().map(|&column| Cell::from(aligned(texts[column - 1].clone().into(), column)));
        Row::new([Cell::from(mark)].into_iter().chain(cells))
    };
    let heads = [0].iter().chain(columns).map(|&column| aligned(Line::from(head[column]), column));
    let widths: Vec<Constraint> = [0].iter().chain(columns).map(|&column| width(column)).collect();
    let selected = state.selected.as_ref().and_then(|id| shown.iter().position(|run| run.listed.id == *id));
    let table = Table::new(shown.iter().map(row), widths)
        .header(Row::new(heads).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, list, &mut TableState::default().with_selected(selected));
    if picture.height >= 6 {
        draw_chart(frame, picture, state.curve, &drawn);
    }
}

/// A cell of the column `column`: numbers end where the column does.
fn aligned(text: Line<'static>, column: usize) -> Line<'static> {
    if (3..=7).contains(&column) { text.right_aligned() } else { text }
}

/// The cells of a run in the list, without its mark.
fn cells_of(run: &WatchedRun) -> Vec<Span<'static>> {
    let ListedRun { id, status, step, steps, .. } = &run.listed;
    let colour = match status {
        ListedStatus::Running => Color::Green,
        ListedStatus::Failed | ListedStatus::Broken => Color::Red,
        ListedStatus::Interrupted | ListedStatus::Stopped => Color::Yellow,
        _ => Color::Reset,
    };
    let dash = || "-".to_owned();
    let sweep = run.listed.sweep.as_ref().map_or_else(String::new, |point| format!("{} #{}", point.id, point.point));
    let started = run.listed.started.clone().unwrap_or_default().replace('T', " ");
    let plain = [
        format!("{}/{}", count(*step), count(*steps)),
        run.listed.loss.map_or_else(dash, loss),
        run.listed.last_eval.val_loss().map_or_else(dash, loss),
        run.listed.tokens_per_second.map_or_else(dash, rate),
        run.seconds_left().map_or_else(dash, seconds),
        started.chars().take(19).collect(),
        printable(&sweep),
    ];
    let status = Span::styled(status.description(), Style::new().fg(colour));
    [Span::raw(printable(id)), status].into_iter().chain(plain.map(Span::raw)).collect()
}

/// One run: facts, curves, the time of a step by phase, and the newest sample.
fn draw_run(frame: &mut Frame<'_>, area: Rect, run: &WatchedRun) {
    let facts = facts_of(run);
    let inner = usize::from(area.width.saturating_sub(2)).max(1);
    let lines = facts.iter().map(|line| line.width().div_ceil(inner).max(1)).sum::<usize>().min(12) as u16;
    let [top, pictures] = Layout::vertical([Constraint::Length(lines + 2), Constraint::Min(0)]).areas(area);
    let block = Block::bordered().title(format!(" {} ", printable(&run.listed.id)));
    frame.render_widget(Paragraph::new(facts).block(block).wrap(Wrap { trim: false }), top);
    let has_evaluations = run.points(Curve::ValidationLoss).len() > 1;
    let curves = [Curve::TrainLoss, if has_evaluations { Curve::ValidationLoss } else { Curve::Speed }];
    let halves = [Constraint::Fill(1), Constraint::Fill(1)];
    let areas: [Rect; 2] = if pictures.width >= 110 {
        Layout::horizontal(halves).areas(pictures)
    } else {
        Layout::vertical(halves).areas(pictures)
    };
    for (area, curve) in areas.into_iter().zip(curves).filter(|(area, _)| area.height >= 5) {
        draw_chart(frame, area, curve, &[run]);
    }
}

fn facts_of(run: &WatchedRun) -> Vec<Line<'static>> {
    let cells = cells_of(run);
    let text = |cell: usize| cells[cell].content.clone().into_owned();
    let mut progress =
        format!("{}  step {}  loss {}  val loss {}  {} tokens/s", text(1), text(2), text(3), text(4), text(5));
    if let Some(left) = run.seconds_left() {
        progress = format!("{progress}  {} left", seconds(left));
    }
    let mut lines = vec![Line::from(progress)];
    if let Some(data) = &run.data {
        let ranks = data.plan.ranks();
        let ranks = ranks.map_or_else(String::new, |ranks| format!("{}  ", counted(ranks as u64, "rank")));
        let medians = &data.curves.medians;
        let phases = medians.times.iter().filter_map(|(phase, time)| Some(format!("{phase} {}", rate((*time)?))));
        let step = medians.step_ms.map_or_else(String::new, |step| format!("{} ms a step: ", rate(step)));
        lines.push(Line::from(format!("{ranks}{step}{}", phases.collect::<Vec<_>>().join(", "))));
        if let Some(evaluation) = data.curves.evals.last() {
            let measured = evaluation
                .measured
                .iter()
                .filter(|(measure, _)| measure.is_comparable())
                .map(|(measure, value)| format!("{} {}", measure.key(), measure.text(value)));
            lines.push(Line::from(format!(
                "step {}: {}",
                count(evaluation.step),
                measured.collect::<Vec<_>>().join("  ")
            )));
        }
        lines.extend(
            data.problems.iter().map(|problem| Line::styled(printable(problem), Style::new().fg(Color::Yellow))),
        );
    }
    if !run.listed.tags.is_empty() {
        lines.push(Line::from(format!("tags {}", run.listed.tags.join(" "))));
    }
    lines.extend(run.listed.error.as_ref().map(|error| {
        let first = printable(error).lines().next().unwrap_or_default().to_owned();
        Line::styled(first, Style::new().fg(Color::Red))
    }));
    lines
}
