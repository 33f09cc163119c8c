//! Shows a run to a person or a program, from its preparation to its end.

use std::path::Path;

use runner_compare::stored_plan::resolved_experiment;
use runner_inputs::{RunEvent, RunObserver};
use runner_record::checkpoint;
use runner_record::run_dir::CHECKPOINTS;
use runner_record::summary::headline;
use runner_report::data_progress::show_data_progress;
use runner_report::printer::Printer;
use runner_report::summary::{closing_text, up_to_date_message};
use runner_report::{JsonEvent, OutputMode, Screen};
use runner_spec::error::CommandError;
use runner_spec::event::Event;
use runner_spec::experiment::Log;
use runner_spec::format::{counted, printable};
use runner_workflows::event_lines::EventLines;
use runner_workflows::outcome::{RunOutcome, RunReport};

use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::exit_of_screen;

/// Shows a run on the screen.
#[derive(Debug)]
pub(crate) struct ScreenObserver {
    lines: EventLines,
    printer: Printer,
    /// The name by which other commands find the run that has ended.
    name: String,
    /// The message about a run that has nothing left to do.
    up_to_date: Option<String>,
    /// The command that resumes an interrupted run; `None`: `runner resume` with the name of the run.
    resuming_command: Option<String>,
}

impl ScreenObserver {
    /// A screen that names `resuming_command` after an interrupt; `None` stands for `runner resume` with the name of the run.
    ///
    /// # Errors
    /// If there is no thread to print from.
    pub(crate) fn new(mode: OutputMode, resuming_command: Option<String>) -> Result<Self> {
        let printer = Printer::new(mode)?;
        Ok(Self {
            lines: EventLines::new(&Log::default(), None),
            printer,
            name: String::new(),
            up_to_date: None,
            resuming_command,
        })
    }

    pub(crate) fn printer(&mut self) -> &mut Printer {
        &mut self.printer
    }

    /// The screen, once everything is written.
    pub(crate) fn finish(self) -> Screen {
        let mut screen = self.printer.finish();
        screen.clear();
        screen
    }

    fn show_training(&mut self, run: &Path, event: &Event) {
        let line = self.lines.line(event);
        if let Some(json) = JsonEvent::new(event, run) {
            self.printer.json(&json);
        }
        match event {
            Event::Step(metrics) => {
                self.printer.step(metrics.step, || self.lines.numbers());
                if let Some(line) = line.filter(|_| self.printer.mode() != OutputMode::Bar) {
                    self.printer.show(Screen::line, line);
                }
            }
            Event::Warning(message) => self.printer.show(Screen::warn, message),
            _ => line.into_iter().for_each(|line| self.printer.show(Screen::line, line)),
        }
    }

    /// Waits until everything is written, and reports how the work on the run ended; `up_to_date_hint` follows the message that
    /// nothing is left to do. Returns the command's exit code.
    ///
    /// # Errors
    /// That of `result`, after the lines that precede it; if standard output could not be written. The record of the run is complete in
    /// the second case.
    pub(crate) fn close(mut self, result: Result<RunReport, CommandError>, up_to_date_hint: &str) -> Result<Exit> {
        let next = format!("continue with `runner resume {}`", self.name);
        let up_to_date = self.up_to_date.take();
        let screen = self.finish();
        let outcome = result?.outcome;
        match outcome {
            // A run with a damaged record is done, but not up to date.
            RunOutcome::UpToDate => {
                if let Some(text) = up_to_date {
                    screen.result_line(&format!("{text}{up_to_date_hint}"));
                }
            }
            RunOutcome::StoppedAt(step) => screen.line(&format!("stopped after step {step} as asked; {next}")),
            RunOutcome::AlreadyAt(step) => {
                screen.result_line(&format!("the run already has {}; {next}", counted(step, "step")));
            }
            _ => {}
        }
        exit_of_screen(&screen, outcome.exit())
    }
}

impl RunObserver for ScreenObserver {
    fn observe(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::Preparing(progress) => self.printer.preparing(*progress),
            RunEvent::Prepared => self.printer.clear(),
            RunEvent::Note(text) => self.printer.show(Screen::line, *text),
            RunEvent::Warning(text) => self.printer.show(Screen::warn, *text),
            RunEvent::Begin { text, step, plan, log, .. } => {
                self.lines = EventLines::new(log, plan.row_sequence());
                self.printer.show(Screen::line, *text);
                self.printer.start_bar(*step, plan.totals.steps);
            }
            RunEvent::Training { run, event } => self.show_training(run, event),
            RunEvent::End { run, name, summary, up_to_date, failed, interrupted } => {
                (*name).clone_into(&mut self.name);
                // A folder that cannot be read may have checkpoints.
                let has_checkpoints =
                    || checkpoint::saved_steps(&run.join(CHECKPOINTS)).map_or(true, |steps| !steps.is_empty());
                self.up_to_date = up_to_date.then(|| up_to_date_message(name, *summary, has_checkpoints()));
                self.printer.clear();
                self.printer.json(&JsonEvent::Summary { run, up_to_date: *up_to_date, summary: *summary });
                if let (Some(summary), false, false) = (summary, up_to_date, failed) {
                    if self.printer.mode() == OutputMode::Quiet {
                        self.printer.show(Screen::result_line, headline(summary));
                    } else {
                        let resuming = interrupted
                            .then(|| self.resuming_command.clone().unwrap_or_else(|| format!("runner resume {name}")));
                        let sees_ahead =
                            resolved_experiment(run).is_ok_and(|found| found.model.options.mask.sees_ahead());
                        let has_samples = !sees_ahead && has_checkpoints();
                        let text = closing_text(summary, name, run, has_samples, resuming.as_deref());
                        self.printer.show(Screen::line, text);
                    }
                }
            }
            RunEvent::Drift { .. } => {}
        }
    }
}

/// Shows what the engine prepares for a command that has a screen of its own.
pub(crate) struct PreparationObserver<'a> {
    screen: &'a mut Screen,
}

impl<'a> PreparationObserver<'a> {
    pub(crate) fn new(screen: &'a mut Screen) -> Self {
        Self { screen }
    }
}

impl RunObserver for PreparationObserver<'_> {
    fn observe(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::Preparing(progress) => {
                self.screen.spinner();
                show_data_progress(self.screen, *progress);
            }
            RunEvent::Prepared => self.screen.clear(),
            RunEvent::Note(text) => self.screen.line(text),
            RunEvent::Warning(text) => self.screen.warn(&printable(text)),
            _ => {}
        }
    }
}
