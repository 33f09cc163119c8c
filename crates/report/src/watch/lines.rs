//! What `runner watch` prints where there is no terminal: a line whenever a run moves on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::state::{WatchState, WatchedRun};
use runner_record::catalog::ListedStatus;
use runner_spec::format::{count, loss, printable, rate, seconds};
use runner_spec::measure::Measured;

/// A run that trains gets a line at least this often.
const INTERVAL: Duration = Duration::from_secs(30);

/// The lines that are due.
#[derive(Debug, Default)]
pub struct ProgressLines {
    /// What was printed last of each run, and when.
    printed: HashMap<String, (ListedStatus, Measured, Instant)>,
}

impl ProgressLines {
    /// The lines of the runs of `state` that began, ended, were evaluated, or have had no line for a while.
    pub fn due(&mut self, state: &WatchState) -> Vec<String> {
        let mut lines = Vec::new();
        for run in &state.runs {
            let now = (run.listed.status, run.listed.last_eval.clone());
            let is_due = self.printed.get(&run.listed.id).is_none_or(|(status, eval, printed)| {
                (*status, eval) != (now.0, &now.1) || now.0 == ListedStatus::Running && printed.elapsed() >= INTERVAL
            });
            if is_due {
                lines.push(line(run));
                self.printed.insert(run.listed.id.clone(), (now.0, now.1, Instant::now()));
            }
        }
        lines
    }
}

impl WatchState {
    /// True if a run trains.
    #[must_use]
    pub fn has_running(&self) -> bool {
        self.runs.iter().any(|run| run.listed.status == ListedStatus::Running)
    }
}

fn line(run: &WatchedRun) -> String {
    let listed = &run.listed;
    let mut line = format!(
        "{}  {}  step {}/{}",
        printable(&listed.id),
        listed.status.description(),
        count(listed.step),
        count(listed.steps)
    );
    let parts = [
        listed.loss.map(|value| format!("loss {}", loss(value))),
        listed.last_eval.val_loss().map(|value| format!("val loss {}", loss(value))),
        listed.tokens_per_second.map(|value| format!("{} tokens/s", rate(value))),
        run.seconds_left().map(|left| format!("{} left", seconds(left))),
        listed.error.as_ref().map(|error| printable(error).lines().next().unwrap_or_default().to_owned()),
    ];
    for part in parts.into_iter().flatten() {
        line.push_str("  ");
        line.push_str(&part);
    }
    line
}
