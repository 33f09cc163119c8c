//! Runs the points of a sweep in processes on this machine or in jobs of Slurm: starts the segments that are due, watches them, and
//! retries them.
//!
//! The driver keeps its state in memory only: the run directories of the points, and Slurm's queue, are all that a later call needs.

mod branches;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::progress::{PointProgress, SweepProgress};
use crate::record::sweep_dir::SweepDir;
use crate::record::{PlannedPoint, SweepRecord};
use crate::schedule::{ScheduleDecision, SegmentResult, SweepTasks, TrainingSegment};
use crate::summary::{LeadingSetting, leading_setting};
use runner_record::RunLock;
use runner_record::manifest::RunStatus;
use runner_spec::error::Result;
use runner_spec::program::Device;

use super::event::{DriveProgress, RunningPoint, SweepEvent, SweepObserver, SweepOutcome};
use super::point_process::DEVICES;
use super::request::SweepRequest;
use super::resource_allocator::{ResourceAllocator, ResourceNeed, visible_devices};
use super::segment_outcome::{EndedSegment, SegmentEnd, SegmentOutcome};
use super::segment_worker::{SegmentWorker, SegmentWorkers};
use super::trunks::{Branch, branches};
use super::work_tally::WorkTally;
use branches::Beginning;
use runner_inputs::{Host, local_devices};
use runner_threads::stop::StopSwitch;

const POLL_INTERVAL: Duration = Duration::from_millis(30);
/// The largest number of tasks for which the remaining time is predicted by simulating early stopping.
const MAX_SIMULATED_TASKS: usize = 2000;

/// The result of a call of [`run_sweep`].
#[derive(Debug)]
pub struct SweepReport {
    pub outcome: SweepOutcome,
    /// The numbers of the points that failed in this call.
    pub failed: Vec<usize>,
    pub progress: SweepProgress,
}

/// Runs the segments of `sweep` that are due until none is, or until `stop` is requested. The processes of the points end with the
/// thread that calls this; jobs do not. A point that fails does not stop the others.
///
/// # Errors
/// If jobs cannot be submitted, because the path of this program is unknown.
pub fn run_sweep(
    sweep: &SweepDir,
    request: &SweepRequest<'_>,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn SweepObserver,
) -> Result<SweepReport> {
    let mut driver = Driver::new(sweep, request, host, observer)?;
    stop.arm();
    let outcome = driver.run(stop);
    let failed = driver.failed.iter().map(|task| driver.point(*task).index).collect();
    Ok(SweepReport { outcome, failed, progress: driver.progress })
}

struct Driver<'a> {
    sweep: &'a SweepDir,
    observer: &'a mut dyn SweepObserver,
    runs: &'a Path,
    segment_workers: SegmentWorkers<'a>,
    max_retries: u32,
    tasks: SweepTasks,
    workers: usize,
    progress: SweepProgress,
    /// Tasks that failed in this call and are not retried in it.
    failed: BTreeSet<usize>,
    /// The number of times that each segment (task and rung) was retried.
    attempts: BTreeMap<(usize, usize), u32>,
    running: BTreeMap<usize, RunningSegment>,
    /// Tasks whose run another process worked on when it was last checked: one of an earlier call, which ends after its current step, or one
    /// of another sweep.
    waiting: BTreeSet<usize>,
    allocator: ResourceAllocator,
    /// Problems of runs that were reported.
    reported: BTreeSet<String>,
    leader: Option<LeadingSetting>,
    tally: WorkTally,
    /// The tasks that may still begin with the checkpoint of a different task.
    branches: BTreeMap<usize, Branch>,
}

/// A segment that is being trained.
struct RunningSegment {
    worker: SegmentWorker,
    segment: TrainingSegment,
    from: u64,
    /// The step after which the worker ends: that of the segment, or one after which other points begin.
    until: u64,
    /// The branch whose run the worker creates.
    branch: Option<Branch>,
    was_asked_to_stop: bool,
}

impl<'a> Driver<'a> {
    fn new(
        sweep: &'a SweepDir,
        request: &'a SweepRequest<'_>,
        host: &'a Host,
        observer: &'a mut dyn SweepObserver,
    ) -> Result<Self> {
        let record = sweep.record();
        let segment_workers = SegmentWorkers::new(sweep, request, &host.runs)?;
        let cluster = local_devices(&Host { threads: request.threads, ..host.clone() });
        let memory = cluster.devices.iter().find(|d| matches!(d.device, Device::Cpu)).and_then(|d| d.memory_bytes);
        let gpus = cluster.devices.iter().filter(|d| matches!(d.device, Device::Cuda(_))).count();
        let devices = visible_devices(gpus, host.environment.get(DEVICES).map(String::as_str));
        let memory = memory.filter(|_| !segment_workers.are_jobs());
        let tasks = record.tasks();
        let branches = if segment_workers.are_jobs() { BTreeMap::new() } else { branches(record, &tasks) };
        Ok(Self {
            sweep,
            observer,
            runs: &host.runs,
            segment_workers,
            max_retries: request.spec.retries,
            tasks,
            branches,
            workers: record.workers(request.parallel),
            progress: SweepProgress::read(&host.runs, record),
            failed: BTreeSet::new(),
            attempts: BTreeMap::new(),
            running: BTreeMap::new(),
            waiting: BTreeSet::new(),
            allocator: ResourceAllocator::new(request.parallel, memory, devices),
            reported: BTreeSet::new(),
            leader: None,
            tally: WorkTally::start(),
        })
    }

    fn run(&mut self, stop: &StopSwitch) -> SweepOutcome {
        self.announce();
        let mut decision = self.decide();
        loop {
            self.poll_workers();
            if self.reap_segments() {
                decision = self.decide();
            }
            if let Some(reason) = stop.stop_reason() {
                self.ask_to_stop();
                if self.running.is_empty() {
                    return SweepOutcome::Interrupted(reason);
                }
            } else {
                // With early stopping, all other tasks may wait for the failed ones.
                let is_stuck = decision.due.iter().all(|segment| self.failed.contains(&segment.task));
                if is_stuck && self.running.is_empty() {
                    let is_well = self.failed.is_empty() && !self.has_diverged();
                    return if is_well { SweepOutcome::Done } else { SweepOutcome::Failed };
                }
                if self.start_due(&decision.due) {
                    decision = self.decide();
                }
            }
            self.observer.observe(&SweepEvent::Progress(&self.drive_progress()));
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn record(&self) -> &'a SweepRecord {
        self.sweep.record()
    }

    fn point(&self, task: usize) -> &'a PlannedPoint {
        &self.record().points[self.tasks.points[task]]
    }

    fn progress_of(&self, task: usize) -> Option<&PointProgress> {
        self.progress.points[self.tasks.points[task]].as_ref()
    }

    fn steps_done(&self, task: usize) -> u64 {
        self.progress_of(task).map_or(0, |progress| progress.steps)
    }

    fn run_id(&self, task: usize) -> Option<String> {
        self.progress_of(task).map(|progress| progress.id.clone())
    }

    fn result(&self, task: usize, rung: usize) -> Option<SegmentResult> {
        self.progress.result(self.record(), self.tasks.points[task], rung)
    }

    /// True if a point failed in a way that would repeat.
    fn has_diverged(&self) -> bool {
        let last_rung = |task: usize| self.point(task).rungs.len().checked_sub(1);
        let last_result = |task: usize| last_rung(task).and_then(|rung| self.result(task, rung));
        (0..self.tasks.tasks.len()).any(|task| last_result(task) == Some(SegmentResult::Failed))
    }

    fn decide(&mut self) -> ScheduleDecision {
        let result = |task: usize, rung: usize| self.result(task, rung);
        let decision = self.tasks.decide(self.workers, &result);
        let cost = |segment: &TrainingSegment| {
            let has_result = self.result(segment.task, segment.rung).is_some();
            let begun = self.steps_done(segment.task).max(segment.until - self.tasks.steps(segment));
            let steps = if has_result { 0 } else { segment.until.saturating_sub(begun) };
            steps as f64 * self.tasks.tasks[segment.task].step_cost
        };
        self.tally.left = if self.tasks.tasks.len() <= MAX_SIMULATED_TASKS {
            self.tasks.simulate_rest(self.workers, &result).order.iter().map(cost).sum()
        } else {
            decision.due.iter().map(cost).sum()
        };
        decision
    }

    fn announce(&mut self) {
        let runs = || self.progress.points.iter().flatten();
        let done = runs().filter(|run| run.status == RunStatus::Done).count();
        self.observer.observe(&SweepEvent::Sweep {
            id: &self.record().id,
            path: self.sweep.path(),
            points: self.record().points.len(),
            runs: self.tasks.tasks.len(),
            done,
            begun: runs().count() - done,
        });
        self.report_problems();
        self.leader = leading_setting(self.record(), &self.progress);
    }

    fn report_problems(&mut self) {
        for problem in self.progress.problems.drain(..) {
            if self.reported.insert(problem.clone()) {
                self.observer.observe(&SweepEvent::Warning(&problem));
            }
        }
    }

    /// Reads the queue of jobs if that is due.
    fn poll_workers(&mut self) {
        if let Err(error) = self.segment_workers.poll() {
            self.progress.problems.push(format!("{error}; waiting until it answers"));
            self.report_problems();
        }
    }

    /// Handles the segments whose process or job has ended. Returns true if there are any.
    fn reap_segments(&mut self) -> bool {
        let (workers, running) = (&self.segment_workers, self.running.iter_mut());
        let ends: Vec<(usize, SegmentEnd)> =
            running.filter_map(|(task, running)| Some((*task, workers.end(&mut running.worker)?))).collect();
        for (task, end) in &ends {
            let Some(running) = self.running.remove(task) else { continue };
            self.allocator.give_back(*task);
            self.update_progress(*task);
            if self.has_failed_to_branch(&running) {
                continue;
            }
            let steps = self.steps_done(*task).saturating_sub(running.from);
            self.tally.done += steps as f64 * self.tasks.tasks[*task].step_cost;
            match self.outcome(*end, &running) {
                SegmentOutcome::Completed(value) => self.complete(*task, running.segment, value),
                SegmentOutcome::Stopped => {}
                SegmentOutcome::Busy => self.wait(*task),
                SegmentOutcome::Failed { error, is_retried } => self.fail(running.segment, &error, is_retried),
            }
        }
        !ends.is_empty()
    }

    /// Reads the progress of a task's run again.
    fn update_progress(&mut self, task: usize) {
        self.progress.update(self.runs, self.sweep.record(), self.tasks.points[task]);
        self.report_problems();
    }

    fn complete(&mut self, task: usize, segment: TrainingSegment, value: f64) {
        let point = self.point(task);
        self.observer.observe(&SweepEvent::Finished {
            point: point.index,
            step: segment.until,
            objective: value.is_finite().then_some(value),
            done: segment.until >= point.steps,
            run: self.run_id(task).as_deref(),
        });
        let leader = leading_setting(self.record(), &self.progress);
        if leader != self.leader {
            self.leader = leader;
            if let Some(LeadingSetting { point, mean, seeds }) = leader {
                self.observer.observe(&SweepEvent::Leader { point, objective: mean, seeds });
            }
        }
    }

    /// Reports a failure. The task fails in this call unless it is retried.
    fn fail(&mut self, segment: TrainingSegment, error: &str, is_retried: bool) {
        let point = self.point(segment.task);
        let log = self.segment_workers.log(point);
        self.observer.observe(&SweepEvent::Failed {
            point: point.index,
            error,
            log: &log,
            again: is_retried,
            attempt: self.attempts_of(segment),
            retries: self.max_retries,
        });
        if !is_retried {
            self.failed.insert(segment.task);
        }
    }

    fn attempts_of(&self, segment: TrainingSegment) -> u32 {
        self.attempts.get(&(segment.task, segment.rung)).copied().unwrap_or(0)
    }

    fn outcome(&mut self, end: SegmentEnd, running: &RunningSegment) -> SegmentOutcome {
        let segment = running.segment;
        let (task, attempts) = (segment.task, self.attempts_of(segment));
        let failed_run = self.progress_of(task).filter(|run| run.status == RunStatus::Failed);
        let outcome = EndedSegment {
            end,
            was_asked_to_stop: running.was_asked_to_stop,
            is_paused: running.until < segment.until && self.steps_done(task) >= running.until,
            is_held: self.progress_of(task).is_some_and(|run| RunLock::is_held(&run.path)),
            result: self.result(task, segment.rung),
            recorded_error: failed_run.and_then(|run| run.error.as_deref()),
            logged_error: self.segment_workers.last_error(&running.worker).as_deref(),
            attempts,
            max_retries: self.max_retries,
        }
        .outcome();
        if matches!(outcome, SegmentOutcome::Failed { is_retried: true, .. }) {
            self.attempts.insert((task, segment.rung), attempts + 1);
        }
        outcome
    }

    /// Starts the segments that are due and for which there are resources. Returns true if the results may have changed.
    fn start_due(&mut self, due: &[TrainingSegment]) -> bool {
        let mut has_changed = false;
        for segment in due {
            if self.allocator.is_full() {
                break;
            }
            let task = segment.task;
            if self.running.contains_key(&task) || self.failed.contains(&task) {
                continue;
            }
            let has_job = self.segment_workers.has_job(self.point(task));
            if !has_job && self.progress_of(task).is_some_and(|run| RunLock::is_held(&run.path)) {
                self.wait(task);
            } else if self.waiting.remove(&task) {
                // The other process has trained further, or to the end.
                self.update_progress(task);
                has_changed = true;
                continue;
            } else if let Some(error) = self
                .progress_of(task)
                .and_then(|run| run.explain_missing(segment.until, &self.record().objective, self.runs))
            {
                self.fail(*segment, &error, false);
            } else {
                match self.beginning(task) {
                    Beginning::Waits => {}
                    Beginning::Alone if self.waits_for_branches(task) => {}
                    Beginning::Alone => self.start(*segment, None),
                    Beginning::Branch(branch) => self.start(*segment, Some(branch)),
                }
            }
            has_changed |= self.failed.contains(&task);
        }
        has_changed
    }

    /// Waits for the other process that works on the run of `task`.
    fn wait(&mut self, task: usize) {
        if self.waiting.insert(task) {
            let run = self.run_id(task);
            self.observer.observe(&SweepEvent::Waiting { point: self.point(task).index, run: run.as_deref() });
        }
    }

    /// Starts a segment if there are resources for it; with `branch`, its run is created from the checkpoint of a different run.
    fn start(&mut self, segment: TrainingSegment, branch: Option<Branch>) {
        let (task, point) = (segment.task, self.point(segment.task));
        let devices = if self.segment_workers.are_jobs() { 0 } else { point.cuda_devices };
        let need = ResourceNeed { memory: point.memory_bytes, devices };
        let Some(devices) = self.allocator.take(task, need) else { return };
        let from = branch.map_or(self.steps_done(task), |branch| branch.steps);
        let until = self.next_pause(segment, from);
        let trunk = branch.and_then(|branch| Some((self.run_id(branch.trunk)?, branch.steps)));
        let trunk = trunk.as_ref().map(|(run, steps)| (run.as_str(), *steps));
        let last = (until < point.steps).then_some(until);
        let worker = match self.segment_workers.start(point, last, &devices, trunk) {
            Ok(worker) => worker,
            Err(error) => {
                self.allocator.give_back(task);
                return match branch {
                    Some(branch) => self.give_branch_up(branch, &error),
                    None => self.fail(segment, &error, false),
                };
            }
        };
        if let Some(branch) = branch {
            let trunk = self.point(branch.trunk).index;
            self.observer.observe(&SweepEvent::Branched { point: point.index, trunk, steps: branch.steps });
        }
        self.observer.observe(&SweepEvent::Started { point: point.index, from, until, steps: point.steps });
        self.running.insert(task, RunningSegment { worker, segment, from, until, branch, was_asked_to_stop: false });
    }

    /// Asks each process to stop, once. Jobs stay in the queue, where the next call finds them.
    fn ask_to_stop(&mut self) {
        self.running.retain(|_, running| matches!(running.worker, SegmentWorker::Process(_)));
        for running in self.running.values_mut().filter(|r| !r.was_asked_to_stop) {
            running.was_asked_to_stop = true;
            if let SegmentWorker::Process(process) = &mut running.worker {
                process.stop();
            }
        }
    }

    fn drive_progress(&self) -> DriveProgress {
        let mut cost_running = 0.0;
        let mut points = Vec::new();
        for (task, running) in &self.running {
            let point = self.point(*task);
            let mut progress = self.segment_workers.progress(&running.worker);
            progress.step = progress.step.max(running.from).min(point.steps);
            cost_running += progress.step.saturating_sub(running.from) as f64 * self.tasks.tasks[*task].step_cost;
            points.push(RunningPoint { index: point.index, steps: point.steps, progress });
        }
        let done = self.progress.points.iter().flatten().filter(|run| run.status == RunStatus::Done).count();
        let (failed, runs) = (self.failed.len(), self.tasks.tasks.len());
        let is_idle = |task: &usize| !self.running.contains_key(task) && !self.failed.contains(task);
        let is_judged = |task: &usize| self.progress.is_judged(self.record(), self.tasks.points[*task]);
        let judged = (0..runs).filter(is_idle).filter(is_judged).count();
        DriveProgress {
            queued: runs.saturating_sub(done + judged + failed + points.len()),
            running: points,
            done,
            judged,
            failed,
            leader: self.leader,
            share: self.tally.share(cost_running),
            remaining: self.tally.remaining(cost_running),
        }
    }
}

#[cfg(test)]
mod tests;
