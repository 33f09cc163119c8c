//! The result of a search as text.

use super::page::Page;
use runner_plan::quantity::{bytes, seconds};
use runner_plan::search::{RankedLayout, SearchResult};
use runner_spec::forecast::ForecastBasis;
use runner_spec::format::{choice_name, count, counted};

/// Layouts of the front that take more than this many times the least time are not in the text.
const SLOWEST_SHOWN: f64 = 2.0;

/// The result of a search as text: the layouts with the shortest forecasts, the front, and why others fell out.
pub fn render_search(result: &SearchResult) -> String {
    let mut page = Page::default();
    let layouts = counted(result.layouts as u64, "layout");
    let (fit, ranks) = (count(result.fit as u64), counted(result.max_ranks as u64, "rank"));
    page.line("search", format!("{}: {layouts} on up to {ranks}, of which {fit} fit", result.experiment_name));
    page.more("all of them train on the same batches with the same mathematics; they differ in how sums are rounded");
    page.more(match result.basis {
        ForecastBasis::Measured => "times are predicted from what runner calibrate measured",
        ForecastBasis::Disturbed => {
            "times are predicted from measurements on a busy machine, so any of the layouts may be the fastest; calibrate again while the machine is idle"
        }
        ForecastBasis::Assumed => "times are predicted from data sheets and assumed efficiencies, so close ones may be in the wrong order",
    });
    page.blank();
    page.line("shortest", heading());
    for layout in &result.shortest_forecasts {
        page.more(row(layout));
    }
    page.blank();
    match (&result.current, result.shortest_forecasts.first()) {
        (Some(current), Some(shortest)) => {
            page.line("file", row(current));
            let times = current.step_seconds / shortest.step_seconds;
            page.more(if current.layout == shortest.layout {
                "the layout of the file has the shortest forecast".to_owned()
            } else {
                format!("the forecast of the file's layout is {times:.2} times the shortest")
            });
        }
        _ => page.line("file", result.current_problem.as_deref().unwrap_or("its layout cannot be planned here")),
    }
    page.blank();
    page.line("front", "no faster layout of the front needs as little memory and sends as little, within 25%");
    let limit =
        result.shortest_forecasts.first().map_or(f64::INFINITY, |shortest| SLOWEST_SHOWN * shortest.step_seconds);
    let (shown, slower): (Vec<_>, Vec<_>) = result.front.iter().partition(|layout| layout.step_seconds <= limit);
    for layout in shown {
        page.more(row(layout));
    }
    if !slower.is_empty() {
        let slower = counted(slower.len() as u64, "layout");
        page.more(format!("{slower} of more than {SLOWEST_SHOWN} times the shortest time: see --json"));
    }
    if !result.excluded.is_empty() {
        page.blank();
    }
    for (index, out) in result.excluded.iter().enumerate() {
        page.line(if index == 0 { "left out" } else { "" }, &out.reason);
    }
    page.text
}

fn heading() -> String {
    format!("{:>9}{:>13}{:>13}{:>13}{:>7}  {:<10}  layout", "step", "tokens/s", "memory", "sent", "micro", "recompute")
}

fn row(ranked: &RankedLayout) -> String {
    let layout = &ranked.layout;
    format!(
        "{:>9}{:>13}{:>13}{:>13}{:>7}  {:<10}  {}",
        seconds(ranked.step_seconds),
        count(ranked.tokens_per_second.round() as u64),
        bytes(ranked.memory_bytes),
        bytes(ranked.sent_bytes),
        layout.micro_batch,
        choice_name(&layout.recompute),
        layout.describe()
    )
}
