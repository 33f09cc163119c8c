//! The predicted time of a plan, and the timeline of a pipeline, as text.

use super::page::Page;
use super::rank::last_stage;
use runner_plan::forecast::timeline::timeline;
use runner_plan::quantity::{seconds, three_decimals};
use runner_spec::forecast::{Forecast, ForecastBasis};
use runner_spec::format::{choice_name, count, counted, percent};
use runner_spec::plan::{Plan, RankPlan};
use runner_spec::program::Device;

/// The basis of a forecast that may be wrong.
const DISTURBED: &str = "from what runner calibrate --force measured on a busy machine, so it may be wrong; calibrate again while the machine is idle";

/// The predicted time of the run, where it is known, and its cost with `price` per device-hour.
pub(super) fn time_lines(plan: &Plan, price: Option<f64>, page: &mut Page) {
    match &plan.forecast {
        Some(forecast) => prediction_lines(plan, forecast, price, page),
        None => page.line("time", reason_for_no_forecast(plan)),
    }
}

/// The predicted time of each stage, and the timeline of a pipeline.
pub(super) fn stage_lines(plan: &Plan, page: &mut Page) {
    if let Some(f) = plan.forecast.as_ref().filter(|_| plan.ranks.len() > 1) {
        page.blank();
        page.line("a step", format!("{:<10}{:>12}{:>10}{:>16}", "", "computes", "bubble", "communication"));
        for s in &f.stages {
            let (name, bubble) = (format!("stage {}", s.stage), percent(s.bubble));
            let (computes, communication) = (seconds(s.compute_seconds), seconds(s.communication_seconds));
            page.more(format!("{name:<10}{computes:>12}{bubble:>10}{communication:>16}"));
        }
    }
    if plan.mesh.stages < 2 {
        return;
    }
    let Some(timeline) = timeline(plan) else { return };
    let unit = if timeline.in_seconds { "" } else { ", in units of time: F 1, B 2, I and W 1" };
    page.blank();
    page.line("timeline", format!("one row per stage{unit}, with its bubble at the end"));
    for line in timeline.grid() {
        page.raw(&line);
    }
}

fn reason_for_no_forecast(plan: &Plan) -> String {
    let Some(rank) = plan.ranks.first().filter(|r| r.device != Device::Cpu) else {
        return "unknown: run `runner calibrate` to predict times on this machine".to_owned();
    };
    let (name, precision) = (&rank.hardware.name, choice_name(&rank.program.precision));
    format!("unknown: the speed of {name} in {precision} is unknown; give device.peak_flops.{precision} and links")
}

fn prediction_lines(plan: &Plan, f: &Forecast, price: Option<f64>, page: &mut Page) {
    let mfu = f.mfu.map_or_else(String::new, |mfu| format!(", MFU {}", percent(mfu)));
    let rounded = |x: f64| count(x.round() as u64);
    let each = rounded(f.tokens_per_second_per_device);
    let each = if f.devices > 1 { format!(", {each} per device") } else { String::new() };
    let (time, speed) = (seconds(f.step_seconds), rounded(f.tokens_per_second));
    let last = plan.ranks.first().map_or_else(String::new, |rank| last_stage(&rank.program));
    page.line(
        "time",
        format!("{} without evaluations: {time} a step, {speed} tokens/s{each}{mfu}{last}", seconds(f.run_seconds)),
    );
    page.more(match f.basis {
        ForecastBasis::Measured => "from what runner calibrate measured",
        ForecastBasis::Disturbed => DISTURBED,
        ForecastBasis::Assumed => "from data sheets and assumed efficiencies",
    });
    let is_dropped_on_a_cpu = |rank: &RankPlan| {
        let model = &rank.program.model;
        rank.device == Device::Cpu && (model.dropout > 0.0 || model.options.mlp_dropout > 0.0)
    };
    if plan.ranks.first().is_some_and(is_dropped_on_a_cpu) {
        page.more("without dropout, which is not modelled on a CPU and may take as long as the rest");
    }
    let hours = if f.device_hours < 0.01 {
        format!("{} device-seconds", three_decimals(3600.0 * f.device_hours))
    } else {
        format!("{} device-hours", three_decimals(f.device_hours))
    };
    let cost = price
        .map_or_else(String::new, |p| format!(": {:.2} at {} per device-hour", p * f.device_hours, three_decimals(p)));
    page.line("cost", format!("{hours} on {}{cost}", counted(f.devices as u64, "device")));
}
