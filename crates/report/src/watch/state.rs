//! The runs that are watched, and what a person has chosen to see of them.

use std::path::Path;

use crate::html::{RunData, RunReader};
use runner_record::catalog::{ListedRun, ListedStatus};

/// Runs whose metrics are read at most: the others of a long list are described by their small files.
const MAX_READ: usize = 24;

/// Runs in one picture at most.
pub(super) const MAX_DRAWN: usize = 6;

/// Points of a curve.
const CURVE_POINTS: usize = 600;

/// A run, and, if it trains or is looked at, its curves.
#[derive(Debug, Clone)]
pub(super) struct WatchedRun {
    pub(super) listed: ListedRun,
    pub(super) data: Option<RunData>,
}

/// What a curve shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Curve {
    TrainLoss,
    ValidationLoss,
    Speed,
}

impl Curve {
    const ALL: [Self; 3] = [Self::TrainLoss, Self::ValidationLoss, Self::Speed];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::TrainLoss => "train loss",
            Self::ValidationLoss => "validation loss",
            Self::Speed => "tokens/s",
        }
    }
}

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchKey {
    Up,
    Down,
    First,
    Last,
    Enter,
    Escape,
    Backspace,
    Character(char),
}

/// The runs, and what a person has chosen.
#[derive(Debug)]
pub struct WatchState {
    /// What is watched, such as `runs/`.
    pub(super) title: String,
    pub(super) runs: Vec<WatchedRun>,
    pub(super) selected: Option<String>,
    pub(super) pinned: Vec<String>,
    pub(super) filter: String,
    /// True while the filter is being typed.
    pub(super) is_typing: bool,
    /// True if one run fills the screen.
    pub(super) is_detail: bool,
    pub(super) curve: Curve,
    /// Why the runs could not be read the last time.
    pub(super) problem: Option<String>,
    reader: RunReader,
}

impl WatchState {
    /// Nothing yet, under this title.
    #[must_use]
    pub fn new(title: String) -> Self {
        Self {
            title,
            runs: Vec::new(),
            selected: None,
            pinned: Vec::new(),
            filter: String::new(),
            is_typing: false,
            is_detail: false,
            curve: Curve::TrainLoss,
            problem: None,
            reader: RunReader::default(),
        }
    }

    /// Shows these runs from now on, those that train first, then the newest first; or, if they could not be read, the reason.
    pub fn refresh(&mut self, found: Result<Vec<ListedRun>, String>) {
        let mut runs = match found {
            Ok(runs) => runs,
            Err(problem) => {
                self.problem = Some(problem);
                return;
            }
        };
        self.problem = None;
        runs.reverse();
        runs.sort_by_key(|run| run.status != ListedStatus::Running);
        let wanted = |run: &ListedRun| {
            let is_chosen = self.selected.as_deref() == Some(run.id.as_str()) || self.pinned.contains(&run.id);
            (!is_chosen, run.status != ListedStatus::Running)
        };
        let mut order: Vec<usize> = (0..runs.len()).collect();
        order.sort_by_key(|&i| wanted(&runs[i]));
        order.truncate(MAX_READ);
        let is_read = |i: usize, run: &ListedRun| order.contains(&i) && run.status != ListedStatus::Broken;
        let read = |reader: &mut RunReader, path: &Path| reader.read_run(path, CURVE_POINTS);
        let watched = runs.into_iter().enumerate().map(|(i, listed)| {
            let data = is_read(i, &listed).then(|| read(&mut self.reader, &listed.path));
            WatchedRun { listed, data }
        });
        self.runs = watched.collect();
        if self.selected().is_none() {
            let first = self.shown().next().map(|run| run.listed.id.clone());
            self.selected = first;
        }
    }

    /// The runs that the filter leaves.
    pub(super) fn shown(&self) -> impl Iterator<Item = &WatchedRun> {
        let filter = self.filter.to_lowercase();
        self.runs.iter().filter(move |run| {
            let ListedRun { id, name, status, tags, .. } = &run.listed;
            let texts = [id.as_str(), name.as_deref().unwrap_or_default(), status.name()];
            texts.into_iter().chain(tags.iter().map(String::as_str)).any(|text| text.to_lowercase().contains(&filter))
        })
    }

    /// The chosen run.
    pub(super) fn selected(&self) -> Option<&WatchedRun> {
        self.shown().find(|run| self.selected.as_deref() == Some(run.listed.id.as_str()))
    }

    /// The runs whose curves are drawn: the pinned ones and the chosen one; without pins, also others that train.
    pub(super) fn drawn(&self) -> Vec<&WatchedRun> {
        let is_pinned = |run: &&WatchedRun| self.pinned.contains(&run.listed.id);
        let is_selected = |run: &&WatchedRun| self.selected.as_deref() == Some(run.listed.id.as_str());
        let is_running = |run: &&WatchedRun| self.pinned.is_empty() && run.listed.status == ListedStatus::Running;
        let mut drawn: Vec<&WatchedRun> = self.runs.iter().filter(is_pinned).collect();
        let others = || self.shown().filter(|run| !is_pinned(run));
        drawn.extend(others().filter(is_selected));
        drawn.extend(others().filter(|run| !is_selected(run) && is_running(run)));
        drawn.truncate(MAX_DRAWN);
        drawn
    }

    /// Does what a key asks for. Returns false if it ends the command.
    pub fn press(&mut self, key: WatchKey) -> bool {
        if self.is_typing {
            match key {
                WatchKey::Enter => self.is_typing = false,
                WatchKey::Escape => (self.is_typing, self.filter) = (false, String::new()),
                WatchKey::Backspace => drop(self.filter.pop()),
                WatchKey::Character(character) => self.filter.push(character),
                _ => {}
            }
            self.select(0);
            return true;
        }
        match key {
            WatchKey::Character('q') => return false,
            WatchKey::Escape if self.is_detail => self.is_detail = false,
            WatchKey::Escape if self.filter.is_empty() => return false,
            WatchKey::Escape => self.filter.clear(),
            WatchKey::Up | WatchKey::Character('k') => self.select(-1),
            WatchKey::Down | WatchKey::Character('j') => self.select(1),
            WatchKey::First | WatchKey::Character('g') => self.select(isize::MIN),
            WatchKey::Last | WatchKey::Character('G') => self.select(isize::MAX),
            WatchKey::Enter => self.is_detail = !self.is_detail && self.selected().is_some(),
            WatchKey::Character('/') => (self.is_typing, self.is_detail) = (true, false),
            WatchKey::Character('m') => {
                let at = Curve::ALL.iter().position(|curve| *curve == self.curve).unwrap_or(0);
                self.curve = Curve::ALL[(at + 1) % Curve::ALL.len()];
            }
            WatchKey::Character(' ' | 'p') => {
                if let Some(id) = self.selected().map(|run| run.listed.id.clone()) {
                    match self.pinned.iter().position(|pinned| *pinned == id) {
                        Some(at) => drop(self.pinned.remove(at)),
                        None => self.pinned.push(id),
                    }
                }
            }
            _ => {}
        }
        true
    }

    /// Chooses the run that is `by` further down, or the first if the chosen one is not shown.
    fn select(&mut self, by: isize) {
        let ids: Vec<&str> = self.shown().map(|run| run.listed.id.as_str()).collect();
        let at = self.selected.as_deref().and_then(|id| ids.iter().position(|shown| *shown == id));
        let to = at.map_or(0, |at| at.saturating_add_signed(by).min(ids.len().saturating_sub(1)));
        self.selected = ids.get(to).map(|id| (*id).to_owned());
    }
}

impl WatchedRun {
    /// Seconds until the run has done its steps, at the speed that it had so far; `None` if it does not train or has none yet.
    pub(super) fn seconds_left(&self) -> Option<f64> {
        let step = self.data.as_ref()?.curves.medians.step_ms?;
        let is_training = self.listed.status == ListedStatus::Running;
        is_training.then(|| self.listed.steps.saturating_sub(self.listed.step) as f64 * step / 1e3)
    }

    /// The points of `curve`, as the picture needs them.
    pub(super) fn points(&self, curve: Curve) -> Vec<(f64, f64)> {
        let Some(curves) = self.data.as_ref().map(|data| &data.curves) else { return Vec::new() };
        let series = match curve {
            Curve::TrainLoss => &curves.loss,
            Curve::Speed => &curves.tokens_per_second,
            Curve::ValidationLoss => {
                let value = |e: &runner_spec::event::Evaluation| Some((e.step as f64, e.measured.val_loss()?));
                return curves.evals.iter().filter_map(value).collect();
            }
        };
        let Some(series) = series else { return Vec::new() };
        // Of a long run, the means: extremes of hundreds of steps would fill the picture.
        let (x, y) = series.mean.as_ref().map_or((&series.x, &series.y), |mean| (&mean.x, &mean.y));
        x.iter().zip(y).filter_map(|(step, value)| Some((*step as f64, (*value)?))).collect()
    }
}
