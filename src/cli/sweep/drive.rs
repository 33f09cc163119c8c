//! Running a sweep's points on this machine: starts what is due, watches it, and says how it goes.
//!
//! Nothing is remembered but in memory: what the points' run directories say is all that a later call needs.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::closing::{self, Closing};
use super::events::{Outcome, SweepEvent};
use super::point::arguments;
use super::preview::many;
use crate::cli::common;
use crate::cli::common::{ThreadArgs, host_without_runs};
use crate::cli::exit::Exit;
use crate::cli::interrupt::Interrupt;
use runner_engine::point_process::{Child, DEVICES, Work};
use runner_engine::prepare::{Host, local_devices};
use runner_lab::sweep::allocate::{ResourceAllocator, ResourceNeed};
use runner_lab::sweep::ending::ProcessExit;
use runner_lab::sweep::ending::{EndedProcess, SegmentOutcome};
use runner_lab::sweep::frozen::{PlannedPoint, SweepRecord, SweepTasks};
use runner_lab::sweep::problems::these;
use runner_lab::sweep::standing::{PointProgress, read_all};
use runner_lab::sweep::{PointStatus, Results, ScheduleDecision, SegmentResult, TrainingSegment, standing};
use runner_lab::sweep_dir::{SweepDir, point_log};
use runner_report::{MultiScreen, Screen};
use runner_spec::format::{count, duration, printable, rate};
use runner_spec::program::Device;
use runner_store::RunLock;
use runner_store::manifest::RunStatus;
use runner_store::run_dir::RunsSnapshot;

/// Between looks at the children.
const TICK: Duration = Duration::from_millis(30);
/// How long to wait for a process of an earlier call that still works on a run: it ends after its step.
const PATIENCE: Duration = Duration::from_mins(10);
/// Tasks up to which the time that is left is worked out with early stopping in mind.
const FEW: usize = 2000;

/// What to run, and how.
pub(super) struct Drive<'a> {
    pub sweep: &'a SweepDir,
    pub root: &'a Path,
    /// `--runs`, where it was given.
    pub runs: Option<&'a Path>,
    pub parallel: usize,
    /// Of each point.
    pub threads: usize,
    pub retries: u32,
    pub interrupt: &'a Interrupt,
}

pub(super) struct Driver<'a> {
    drive: Drive<'a>,
    tasks: SweepTasks,
    workers: usize,
    /// By place in the sweep's list of points.
    standings: Vec<Option<PointProgress>>,
    /// Tasks that failed in this call and are not tried again in it.
    failed: BTreeSet<usize>,
    attempts: BTreeMap<usize, u32>,
    running: BTreeMap<usize, Running>,
    /// Tasks on whose run another process works or did, and since when.
    waiting: BTreeMap<usize, Instant>,
    /// Those of them on whose run one was at work at the last look.
    held: BTreeSet<usize>,
    allocator: ResourceAllocator,
    best: Option<(usize, f64)>,
    began: Instant,
    /// Virtual cost of what this call did.
    cost_done: f64,
    /// And of what is left, as far as it can be told.
    cost_left: f64,
}

/// A segment at work.
struct Running {
    child: Child,
    segment: TrainingSegment,
    from: u64,
    asked_to_stop: bool,
}

impl<'a> Driver<'a> {
    /// # Errors
    /// A `RUNNER_PEAK_FLOPS` that is no number.
    pub(super) fn new(drive: Drive<'a>) -> anyhow::Result<Self> {
        let frozen = drive.sweep.frozen();
        let host = host_without_runs(ThreadArgs { threads: None })?;
        let cluster = local_devices(&Host { threads: drive.threads, ..host });
        let memory = cluster.devices.iter().find(|d| matches!(d.device, Device::Cpu)).and_then(|d| d.memory_bytes);
        let cuda = cluster.devices.iter().filter(|d| matches!(d.device, Device::Cuda(_))).count();
        let allocator =
            ResourceAllocator::new(drive.parallel, memory, visible(cuda, std::env::var(DEVICES).ok().as_deref()));
        Ok(Self {
            tasks: frozen.tasks(),
            workers: frozen.workers(drive.parallel),
            standings: read_all(drive.root, frozen),
            failed: BTreeSet::new(),
            attempts: BTreeMap::new(),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            held: BTreeSet::new(),
            allocator,
            best: None,
            began: Instant::now(),
            cost_done: 0.0,
            cost_left: 0.0,
            drive,
        })
    }

    /// Runs what is due until nothing is, or until asked to stop. Children end with the thread that calls this.
    ///
    /// Points that fail are told, and then the exit code is 1.
    pub(super) fn run(mut self, screen: Screen) -> Exit {
        let mut screen = MultiScreen::new(screen);
        self.drive.interrupt.stop().arm();
        self.opening(&screen);
        let mut decision = self.decide();
        let outcome = loop {
            if self.reap(&mut screen) {
                decision = self.decide();
            }
            if self.drive.interrupt.stop().is_requested() {
                self.ask_to_stop();
                if self.running.is_empty() {
                    break Outcome::Interrupted;
                }
            } else {
                // Where results decide, what failed may be all that the rest waits for.
                let stuck = decision.due.iter().all(|segment| self.failed.contains(&segment.task));
                if stuck && self.running.is_empty() {
                    let well = self.failed.is_empty() && !self.has_diverged();
                    break if well { Outcome::Done } else { Outcome::Failed };
                }
                if self.start_due(&decision.due, &mut screen) {
                    decision = self.decide();
                }
            }
            self.show(&mut screen);
            thread::sleep(TICK);
        };
        self.close(outcome, screen)
    }

    fn frozen(&self) -> &'a SweepRecord {
        self.drive.sweep.frozen()
    }

    fn place(&self, task: usize) -> usize {
        self.tasks.points[task]
    }

    fn point(&self, task: usize) -> &'a PlannedPoint {
        &self.frozen().points[self.place(task)]
    }

    fn standing(&self, task: usize) -> Option<&PointProgress> {
        self.standings[self.place(task)].as_ref()
    }

    fn found(&self, task: usize, rung: usize) -> Option<SegmentResult> {
        let point = self.point(task);
        let until = *point.rungs.get(rung)?;
        self.standing(task)?.finding(until, point.steps)
    }

    /// Whether a point failed and would of the same again.
    fn has_diverged(&self) -> bool {
        let last = |task: usize| self.point(task).rungs.len().checked_sub(1).and_then(|rung| self.found(task, rung));
        (0..self.tasks.tasks.len()).any(|task| last(task) == Some(SegmentResult::Failed))
    }

    fn decide(&mut self) -> ScheduleDecision {
        let found = |task: usize, rung: usize| self.found(task, rung);
        let decision = self.tasks.decide(self.workers, &found);
        let cost = |segment: &TrainingSegment| {
            let steps = if self.found(segment.task, segment.rung).is_some() { 0 } else { self.tasks.steps(segment) };
            steps as f64 * self.tasks.tasks[segment.task].step_cost
        };
        let left = if self.tasks.tasks.len() <= FEW {
            self.tasks.expected(self.workers, &found).order.iter().map(cost).sum()
        } else {
            decision.due.iter().map(cost).sum()
        };
        self.cost_left = left;
        decision
    }

    fn opening(&mut self, screen: &MultiScreen) {
        let frozen = self.frozen();
        let done = self.standings.iter().flatten().filter(|s| s.status == RunStatus::Done).count();
        let begun = self.standings.iter().flatten().filter(|s| s.status != RunStatus::Done).count();
        screen.json(&SweepEvent::Sweep {
            id: &frozen.id,
            path: self.drive.sweep.path(),
            points: frozen.points.len(),
            runs: self.tasks.tasks.len(),
            done,
        });
        if done + begun > 0 {
            let of = many(self.tasks.tasks.len(), "run");
            screen.line(&format!("sweep    {}: {done} of {of} done, {begun} begun", printable(&frozen.id)));
        }
        self.best = self.best_now();
    }

    /// The best point so far: its number and objective.
    fn best_now(&self) -> Option<(usize, f64)> {
        let rows = standing::rows(self.frozen(), &self.standings, &[]);
        let results = Results::new(self.frozen().objective, rows);
        // What others came to after fewer steps is no match.
        let best = results.best().filter(|row| row.status == PointStatus::Done)?;
        Some((best.point, best.objective?))
    }

    /// Looks after children that ended; whether there were any.
    fn reap(&mut self, screen: &mut MultiScreen) -> bool {
        let mut ended: Vec<(usize, ProcessExit)> = Vec::new();
        for (task, running) in &mut self.running {
            ended.extend(running.child.ended().map(|end| (*task, end)));
        }
        for (task, end) in &ended {
            let Some(running) = self.running.remove(task) else { continue };
            self.allocator.give_back(*task);
            screen.remove_item(self.point(*task).index);
            self.look(*task);
            let steps = self.standing(*task).map_or(0, PointProgress::steps).saturating_sub(running.from);
            self.cost_done += steps as f64 * self.tasks.tasks[*task].step_cost;
            let next = self.next(*task, *end, &running);
            let since = self.waiting.remove(task);
            match next {
                SegmentOutcome::Completed(value) => self.completed(*task, running.segment, value, screen),
                SegmentOutcome::Stopped => {}
                SegmentOutcome::Later => self.wait(*task, since, screen),
                SegmentOutcome::Failed { error, again } => self.fail(*task, &error, again, screen),
            }
        }
        !ended.is_empty()
    }

    /// Reads anew how a task's run stands.
    fn look(&mut self, task: usize) {
        let runs = RunsSnapshot::read(self.drive.root);
        let standing = PointProgress::read(&runs, self.point(task), self.frozen().objective);
        let place = self.place(task);
        self.standings[place] = standing;
    }

    fn completed(&mut self, task: usize, segment: TrainingSegment, value: f64, screen: &MultiScreen) {
        let point = self.point(task);
        let done = segment.until >= point.steps;
        let run = self.standing(task).map(|s| s.id.clone());
        let objective = value.is_finite().then_some(value);
        screen.json(&SweepEvent::Finished {
            point: point.index,
            step: segment.until,
            objective,
            done,
            run: run.as_deref(),
        });
        let metric = self.frozen().objective.metric;
        let how = if done { "done  " } else { "judged" };
        let words = name(point);
        screen.line(&format!(
            "{how}   {words}: {metric} {value:.4} after {} of {} steps",
            count(segment.until),
            count(point.steps)
        ));
        let best = self.best_now();
        if best != self.best {
            self.best = best;
            if let Some((index, objective)) = best {
                screen.json(&SweepEvent::Best { point: index, objective });
                let words = self.frozen().point(index).map_or_else(String::new, name);
                screen.line(&format!("best     {words}: {metric} {objective:.4}"));
            }
        }
    }

    /// Tells of a failure; unless it is tried again, it is for good.
    fn fail(&mut self, task: usize, error: &str, again: bool, screen: &MultiScreen) {
        let point = self.point(task);
        let log = point_log(self.drive.sweep.path(), point.index);
        screen.json(&SweepEvent::Failed { point: point.index, error, log: &log, again });
        let tried = self.attempts.get(&task).copied().unwrap_or(0);
        let then =
            if again { format!("; it is tried again ({tried} of {})", self.drive.retries) } else { String::new() };
        screen.warn(&format!("{} failed: {}; its log is {}{then}", name(point), printable(error), log.display()));
        if !again {
            self.failed.insert(task);
        }
    }

    fn next(&mut self, task: usize, end: ProcessExit, running: &Running) -> SegmentOutcome {
        let attempts = self.attempts.get(&task).copied().unwrap_or(0);
        let standing = self.standing(task).filter(|s| s.status == RunStatus::Failed);
        let next = EndedProcess {
            end,
            asked_to_stop: running.asked_to_stop,
            finding: self.found(task, running.segment.rung),
            recorded: standing.and_then(|s| s.error.as_deref()),
            written: running.child.error().as_deref(),
            attempts,
            retries: self.drive.retries,
        }
        .next();
        if matches!(next, SegmentOutcome::Failed { again: true, .. }) {
            self.attempts.insert(task, attempts + 1);
        }
        next
    }

    /// Starts what is due and has room; whether that found something new.
    fn start_due(&mut self, due: &[TrainingSegment], screen: &mut MultiScreen) -> bool {
        let mut news = false;
        for segment in due {
            if self.allocator.is_full() {
                break;
            }
            let task = segment.task;
            if self.running.contains_key(&task) || self.failed.contains(&task) {
                continue;
            }
            if self.is_held(task, screen) {
                news |= self.failed.contains(&task);
                continue;
            }
            if self.held.remove(&task) {
                // That other process came further, or to the end.
                self.look(task);
                news = true;
                continue;
            }
            let point = self.point(task);
            let need = ResourceNeed { memory: point.memory_bytes, devices: point.cuda_devices };
            let Some(devices) = self.allocator.take(task, need) else { continue };
            self.start(*segment, devices, screen);
            news |= self.failed.contains(&task);
        }
        news
    }

    /// Whether another process works on the task's run. That of an earlier call ends soon; another one's may not.
    fn is_held(&mut self, task: usize, screen: &MultiScreen) -> bool {
        if !self.standing(task).is_some_and(|s| RunLock::is_held(&s.path)) {
            return false;
        }
        self.held.insert(task);
        let since = self.waiting.remove(&task);
        self.wait(task, since, screen);
        true
    }

    /// Leaves a task to the process that has its run, since `since` if it was left before.
    fn wait(&mut self, task: usize, since: Option<Instant>, screen: &MultiScreen) {
        let point = self.point(task);
        let run = self.standing(task).map_or_else(String::new, |s| format!(" {}", printable(&s.id)));
        let since = since.unwrap_or_else(|| {
            screen.line(&format!("waiting  {}: another process works on its run{run}", name(point)));
            Instant::now()
        });
        if since.elapsed() > PATIENCE {
            let error = format!("another process has worked on its run{run} for {}", duration(PATIENCE));
            self.fail(task, &error, false, screen);
        } else {
            self.waiting.insert(task, since);
        }
    }

    fn start(&mut self, segment: TrainingSegment, devices: Vec<String>, screen: &MultiScreen) {
        let point = self.point(segment.task);
        let from = self.standing(segment.task).map_or(0, PointProgress::steps);
        let path = self.drive.sweep.path();
        let until = (segment.until < point.steps).then_some(segment.until);
        let mut words = arguments(path, self.frozen(), point, self.drive.root, self.drive.threads, until);
        words.push(OsString::from("--json"));
        let work = Work {
            arguments: words,
            log: point_log(path, point.index),
            hidden: common::experiment_environment().into_iter().map(|(name, _)| name).collect(),
            devices,
        };
        let child = match work.start() {
            Ok(child) => child,
            Err(error) => {
                self.allocator.give_back(segment.task);
                self.fail(segment.task, &format!("starting its process: {error}"), false, screen);
                return;
            }
        };
        screen.json(&SweepEvent::Started { point: point.index, from, until: segment.until, steps: point.steps });
        let begin = if from > 0 { format!("from step {} ", count(from)) } else { String::new() };
        let of = if until.is_some() { format!(" of {}", count(point.steps)) } else { String::new() };
        screen.line(&format!("start    {}: {begin}to step {}{of}", name(point), count(segment.until)));
        self.running.insert(segment.task, Running { child, segment, from, asked_to_stop: false });
    }

    /// Asks all children to stop, once.
    fn ask_to_stop(&mut self) {
        for running in self.running.values_mut().filter(|r| !r.asked_to_stop) {
            running.asked_to_stop = true;
            running.child.stop();
        }
    }

    /// Moves the lines in progress.
    fn show(&self, screen: &mut MultiScreen) {
        if !screen.is_live() {
            return;
        }
        let mut cost = self.cost_done;
        for (task, running) in &self.running {
            let point = self.point(*task);
            let told = running.child.told();
            let step = told.step.max(running.from).min(point.steps);
            cost += step.saturating_sub(running.from) as f64 * self.tasks.tasks[*task].step_cost;
            let mut text = format!("{}  {}/{}", name(point), count(step), count(point.steps));
            text.extend(told.loss.map(|loss| format!("  loss {loss:.4}")));
            text.extend(told.tokens_per_second.map(|speed| format!("  {} tok/s", rate(speed))));
            if !told.begun {
                text.push_str("  starting");
            }
            screen.show_item(point.index, step, point.steps, text);
        }
        let done = self.standings.iter().flatten().filter(|s| s.status == RunStatus::Done).count();
        let runs = self.tasks.tasks.len();
        let queued = runs.saturating_sub(done + self.failed.len() + self.running.len());
        let mut text =
            format!("{done} done  {} failed  {} running  {queued} queued", self.failed.len(), self.running.len());
        if let Some((index, objective)) = self.best {
            let words = self.frozen().point(index).map_or_else(String::new, name);
            let _ = write!(text, "  best {objective:.4} {words}");
        }
        if let Some(left) = self.left(cost) {
            let _ = write!(text, "  {} left", duration(left));
        }
        let cost_now = cost - self.cost_done;
        let all = self.cost_done + self.cost_left;
        let share = if all > 0.0 { cost / all.max(self.cost_done + cost_now) } else { 0.0 };
        screen.show_total((share * 1000.0) as u64, 1000, text);
    }

    /// What is left to do at the pace of this call, which did `cost`.
    fn left(&self, cost: f64) -> Option<Duration> {
        let now = cost - self.cost_done;
        let left = (self.cost_left - now).max(0.0);
        let seconds = self.began.elapsed().as_secs_f64() / cost * left;
        Duration::try_from_secs_f64(seconds).ok().filter(|_| cost > 0.0)
    }

    fn close(self, outcome: Outcome, screen: MultiScreen) -> Exit {
        let mut closing = Closing::new(self.drive.sweep.path(), self.frozen(), &self.standings, self.drive.runs);
        closing.failed = self.failed.len();
        let screen = screen.finish();
        let stopped = closing.stopped();
        if !stopped.is_empty() {
            screen.line(&format!("stopped  early: {}", these(&stopped, usize::MAX)));
            let event = SweepEvent::Stopped { points: &stopped };
            if let Ok(line) = serde_json::to_string(&event) {
                screen.json_line(&line);
            }
        }
        closing::print(&closing, outcome, false, &screen);
        match outcome {
            Outcome::Done => Exit::Done,
            Outcome::Failed => Exit::Failed,
            Outcome::Interrupted => Exit::Interrupted,
        }
    }
}

/// `point 3 (lr=0.001 layers=2)`.
fn name(point: &PlannedPoint) -> String {
    format!("point {} ({})", point.index, point.words())
}

/// Names of the graphics devices to share out: of `count` of this machine those that this process may see itself.
fn visible(count: usize, variable: Option<&str>) -> Vec<String> {
    match variable {
        Some(names) => {
            names.split(',').map(str::trim).filter(|n| !n.is_empty()).take(count).map(str::to_owned).collect()
        }
        None => (0..count).map(|i| i.to_string()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_that_are_seen_are_shared_out() {
        assert_eq!(visible(3, None), ["0", "1", "2"]);
        assert_eq!(visible(2, Some("3, GPU-a")), ["3", "GPU-a"]);
        assert!(visible(0, Some("")).is_empty() && visible(0, None).is_empty());
    }
}
