//! The engine as a library: loads an experiment, trains it with its own observer, and reads the record.
//!
//! `cargo run --release --example embed -- experiment.yaml runs cache`

use std::path::PathBuf;

use runner_config::{LoadOptions, ModelFetcher, load};
use runner_inputs::{Host, RunEvent, RunObserver};
use runner_record::run_dir;
use runner_spec::event::Event;
use runner_threads::stop::StopSwitch;
use runner_workflows::apply::{ApplyRequest, apply};

/// Keeps the loss of every step.
#[derive(Default)]
struct Losses(Vec<f64>);

impl RunObserver for Losses {
    fn observe(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::Training { event: Event::Step(metrics), .. } = event {
            self.0.push(metrics.loss);
        }
    }
}

#[expect(clippy::print_stdout, reason = "this is a program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [file, runs, cache] = paths.as_slice() else { return Err("usage: embed EXPERIMENT RUNS CACHE".into()) };
    let mut losses = Losses::default();
    let host = Host::new(runs.clone(), cache.clone(), runner_compute::kernel_workspace());
    let load =
        |fetch: &ModelFetcher<'_>| load(file, &LoadOptions { fetch_model: Some(fetch), ..LoadOptions::default() });
    let report = apply(&ApplyRequest::new(&load), &host, &StopSwitch::default(), &mut losses)?;
    let run = report.run.ok_or("the run has no folder here")?;
    let summary = run_dir::read_summary(&run)?.ok_or("the run has no summary")?;
    println!("{}: {} steps, {} losses, last {:?}", summary.id, summary.steps, losses.0.len(), summary.final_train_loss);
    Ok(())
}
