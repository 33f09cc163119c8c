//! Shows a running sweep and its end: lines and a progress bar for a person, JSON lines for a program.

use crate::cli::terminal::output::{print_to_stderr, table_width};
use crate::cli::terminal::repeated_command::repeated_command;
use runner_report::sweep_results::SweepResultsText;
use runner_report::{OutputMode, Screen};
use runner_spec::format::{count, counted, duration, printable};
use runner_spec::line_part::LinePart;
use runner_sweep::PointValues;
use runner_sweep::record::{PlannedPoint, SweepRecord, describe_values};
use runner_sweep::run::{DriveProgress, SweepEvent, SweepObserver, SweepOutcome};
use runner_sweep::summary::LeadingSetting;

/// Shows the events of a sweep.
pub(super) struct SweepScreen<'a> {
    screen: Screen,
    record: &'a SweepRecord,
}

impl<'a> SweepScreen<'a> {
    pub(super) fn new(mut screen: Screen, record: &'a SweepRecord) -> Self {
        screen.start_share_bar();
        Self { screen, record }
    }

    /// Removes the progress bar and returns the plain screen.
    pub(super) fn finish(mut self) -> Screen {
        self.screen.clear();
        self.screen
    }

    fn describe(&self, point: usize) -> String {
        self.record.point(point).map_or_else(|| format!("point {point}"), PlannedPoint::describe)
    }

    /// The setting whose first point is `point`, and the number of seeds of its mean; `None` if the sweep varies nothing but seeds.
    fn describe_setting(&self, point: usize, seeds: usize) -> Option<String> {
        let names = &self.record.seeds;
        let planned =
            self.record.point(point).filter(|planned| planned.values.iter().any(|(name, _)| names.contains(name)));
        let Some(planned) = planned else { return Some(self.describe(point)) };
        let values: PointValues = planned.values.iter().filter(|(name, _)| !names.contains(name)).cloned().collect();
        let name = Some(describe_values(&values)).filter(|name| !name.is_empty())?;
        Some(format!("{name} (mean of {})", counted(seeds as u64, "seed")))
    }

    fn metric_text(&self, value: f64) -> String {
        self.record.objective.metric.text(value)
    }

    /// The line for an event, if there is one.
    fn line(&self, event: &SweepEvent<'_>) -> Option<String> {
        let metric = self.record.objective.metric.key();
        let steps_of = |point: usize| self.record.point(point).map_or(0, |point| point.steps);
        Some(match event {
            SweepEvent::Sweep { id, runs, done, begun, .. } if done + begun > 0 => {
                let runs = counted(*runs as u64, "run");
                format!("sweep    {}: {done} of {runs} done, {begun} started", printable(id))
            }
            SweepEvent::Started { point, from, until, steps } => {
                let begin = if *from > 0 { format!("from step {} ", count(*from)) } else { String::new() };
                let of = if until < steps { format!(" of {}", count(*steps)) } else { String::new() };
                format!("start    {}: {begin}to step {}{of}", self.describe(*point), count(*until))
            }
            SweepEvent::Branched { point, trunk, steps } => {
                let (steps, trunk) = (counted(*steps, "step"), self.describe(*trunk));
                format!("branch   {}: begins with the first {steps} of {trunk}", self.describe(*point))
            }
            SweepEvent::Finished { point, step, objective, done, .. } => {
                let kind = if *done { "done  " } else { "judged" };
                let value = objective.map_or_else(|| "is not finite".to_owned(), |value| self.metric_text(value));
                let (point, steps) = (self.describe(*point), count(steps_of(*point)));
                format!("{kind}   {point}: {metric} {value} after {} of {steps} steps", count(*step))
            }
            SweepEvent::Leader { point, objective, seeds } => {
                let value = self.metric_text(*objective);
                match self.describe_setting(*point, *seeds) {
                    Some(name) => format!("leads    {name}: {metric} {value}"),
                    None => format!("mean     of {}: {metric} {value}", counted(*seeds as u64, "seed")),
                }
            }
            SweepEvent::Waiting { point, run } => {
                let run = run.map_or_else(String::new, |run| format!(" {}", printable(run)));
                format!("waiting  {}: another process is working on its run{run}", self.describe(*point))
            }
            _ => return None,
        })
    }

    /// The numbers of points, the leading setting and the time left.
    fn describe_total(&self, progress: &DriveProgress) -> Vec<LinePart> {
        let DriveProgress { running, done, judged, failed, queued, leader, share: _, remaining } = progress;
        let mut parts = vec![LinePart::new(5, format!("{done} done"))];
        if self.record.early_stop.is_some() {
            parts.push(LinePart::new(4, format!("{judged} judged")));
        }
        parts.push(LinePart::new(3, format!("{failed} failed")));
        parts.push(LinePart::new(1, format!("{} running", running.len())));
        parts.push(LinePart::new(2, format!("{queued} queued")));
        let leader = leader.map(|LeadingSetting { point, mean, seeds }| {
            let mean = self.metric_text(mean);
            match self.describe_setting(point, seeds) {
                Some(name) => format!("{name} leads: {mean}"),
                None => format!("mean of {}: {mean}", counted(seeds as u64, "seed")),
            }
        });
        parts.extend(leader.map(|leader| LinePart::new(0, leader)));
        parts.extend(remaining.map(|remaining| LinePart::new(6, format!("{} left", duration(remaining)))));
        parts
    }
}

impl SweepObserver for SweepScreen<'_> {
    fn observe(&mut self, event: &SweepEvent<'_>) {
        match event {
            SweepEvent::Progress(progress) => self.screen.show_share(progress.share, &self.describe_total(progress)),
            SweepEvent::Warning(text) => self.screen.warn(text),
            SweepEvent::Waiting { .. } => {}
            event => self.screen.json(event),
        }
        if let SweepEvent::Failed { point, error, log, again, attempt, retries } = event {
            let retry = if *again { format!("; retrying ({attempt} of {retries})") } else { String::new() };
            let (point, error) = (self.describe(*point), printable(error));
            let text = format!("{point} failed: {error}; its log is {}{retry}", log.display());
            // Even a quiet command shows errors.
            if self.screen.mode() == OutputMode::Quiet {
                print_to_stderr(&format!("error: {text}"));
            } else {
                self.screen.warn(&text);
            }
        }
        if let Some(line) = self.line(event) {
            self.screen.line(&line);
        }
    }
}

/// The end of a call of `runner sweep`.
#[derive(Debug, Clone, Copy)]
pub(super) enum SweepEnding {
    /// There was nothing to do.
    UpToDate,
    Ran {
        outcome: SweepOutcome,
        /// The number of points that failed in the call.
        failed: usize,
    },
}

/// Prints how a call of `runner sweep` ended. `changed_inputs` have changed since the points were made.
pub(super) fn print_summary(
    text: &SweepResultsText<'_>,
    ending: SweepEnding,
    changed_inputs: &[String],
    screen: &Screen,
) {
    let (record, summary) = (text.record, text.summary);
    summary.problems.iter().for_each(|problem| screen.warn(problem));
    text.parts(table_width()).for_each(|part| screen.line(&part));
    let (status, up_to_date) = match ending {
        SweepEnding::UpToDate => (SweepOutcome::Done, changed_inputs.is_empty()),
        SweepEnding::Ran { outcome, .. } => (outcome, false),
    };
    screen.json(&SweepEvent::Summary { status, up_to_date, changed_inputs, summary });
    let points = counted(record.points.len() as u64, "point");
    let sweep = format!("sweep {}, {points}: {}", printable(&record.id), text.counts());
    let retry = text.retry_command();
    let retry = retry.map_or_else(String::new, |command| format!("; {command} retries the first point that diverged"));
    let next = || format!("\nnext:\n  {}", repeated_command());
    let ended = match ending {
        SweepEnding::UpToDate if changed_inputs.is_empty() => format!("up to date: {sweep}{retry}"),
        SweepEnding::UpToDate => format!("all recorded points are done: {sweep}{retry}"),
        SweepEnding::Ran { outcome, failed } => match outcome {
            SweepOutcome::Done => format!("done: {sweep}"),
            SweepOutcome::Interrupted(_) => format!("interrupted: {sweep}{}", next()),
            SweepOutcome::Failed if summary.is_finished => format!("failed: {sweep}{retry}"),
            SweepOutcome::Failed => {
                let in_this_call = if failed > 0 { format!("; {failed} failed in this call") } else { String::new() };
                format!("failed: {sweep}{in_this_call}{}", next())
            }
        },
    };
    let ended = match changed_inputs {
        [] => ended,
        changed => {
            let changed = printable(&changed.join(", "));
            format!(
                "{ended}\nnot up to date: {changed} changed since the sweep started; `--new` trains the points as they are now"
            )
        }
    };
    // A quiet command shows its result, too. The others have shown it above.
    let quiet_result = text.conclusion().filter(|_| screen.mode() == OutputMode::Quiet && summary.is_finished);
    screen.result_line(&quiet_result.map_or_else(|| ended.clone(), |result| format!("{ended}\n{result}")));
}
