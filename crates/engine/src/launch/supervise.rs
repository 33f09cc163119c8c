//! Ranks as processes: how ddp and pipelines run. This process starts them, keeps the record of what they tell, notices when
//! one ends before its time, and then ends all of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::death::{Death, How, ProcessError, last_line};
use super::error::where_in;
use super::faults::Faults;
use super::message::{Done, Failure, FailureKind, Part, Start, ToParent, ToRank};
use super::process::{Heard, Process};
use super::progress::{PATIENCE, Progress};
use super::system;
use runner_comm::Region;
use runner_compute::observer::Observer;
use runner_spec::event::{BestValidation, Event, ObserveError};
use runner_spec::experiment::Experiment;
use runner_spec::plan::{Plan, RankPlan};
use runner_store::PartRecord;

/// How long a rank may give no sign of life.
const SILENCE: Duration = Duration::from_secs(10);
/// The same before its first: a program is loaded, from a slow disk perhaps.
const FIRST_SIGN: Duration = Duration::from_mins(1);
/// Between looks at the processes.
const LOOK: Duration = Duration::from_millis(50);
/// A look so late means that this process, and perhaps the whole machine, was suspended.
const LATE: Duration = Duration::from_secs(1);
/// What ranks have to end by themselves once the run is over, before they are killed.
const GRACE: Duration = Duration::from_secs(3);
/// Messages that wait to be recorded, before ranks must wait.
const UNHEARD: usize = 1024;

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    pub plan: &'a Plan,
    pub experiment: &'a Experiment,
    /// The run directory, which this process holds.
    pub run: &'a Path,
    /// The checkpoint to go on from, and its step; `None` and 0: from the start.
    pub checkpoint: Option<&'a Path>,
    pub from: u64,
    /// The step after which all ranks stop, if that is before the last.
    pub until: Option<u64>,
    /// Whether ranks tell the hashes of what they compute.
    pub trace: bool,
    /// None, except in tests.
    pub faults: &'a Faults,
}

impl Launch<'_> {
    /// What the rank is told that `planned` plans.
    fn start(&self, planned: &RankPlan) -> Start {
        Start {
            program: planned.program.clone(),
            plan_hash: self.plan.hash.clone(),
            channel_slots: self.plan.channel_slots,
            experiment: self.experiment.clone(),
            data: self.plan.data.clone(),
            threads: planned.hardware.threads,
            checkpoint: self.checkpoint.map(Path::to_owned),
            until: self.until,
            trace: self.trace,
            faults: self.faults.clone(),
        }
    }
}

/// Keeps the record of a run whose state lies elsewhere.
pub trait Record: Observer {
    /// Makes a checkpoint of `parts`, of which each stage wrote one, and says that it is there.
    ///
    /// # Errors
    /// Whatever keeps it from being in place.
    fn commit(
        &mut self,
        step: u64,
        tokens: u64,
        best: Option<BestValidation>,
        parts: Vec<PartRecord>,
    ) -> Result<(), ObserveError>;
}

/// How the ranks came to their end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Stopped on request, before the last step.
    pub interrupted: bool,
    /// Of each rank.
    pub peak_rss_bytes: Vec<Option<u64>>,
}

/// Runs all ranks to their end, or until `stop` is set. When this returns none of their processes is left.
///
/// # Errors
/// The end of the rank that ended first, or what kept the record from being kept.
pub fn run(launch: &Launch<'_>, stop: &AtomicBool, record: &mut dyn Record) -> Result<Ended, ProcessError> {
    let starts = launch.plan.ranks.iter().map(|planned| launch.start(planned));
    let Some(first) = starts.clone().next() else {
        return Ok(Ended { interrupted: false, peak_rss_bytes: Vec::new() });
    };
    let (region, fd) = Region::shared(&first.topology())?;
    let (say, heard) = sync_channel(UNHEARD);
    let mut ranks = Vec::with_capacity(launch.plan.ranks.len());
    for (rank, start) in starts.enumerate() {
        let process = Process::start(rank, launch.run, &fd, ToRank::Start(Box::new(start)), say.clone());
        // Those that were started are killed as they are dropped.
        let process = process.map_err(|source| ProcessError::Start { rank, source })?;
        ranks.push(Rank { process, closed: false, end: None, beat: 0, seen: Instant::now() });
    }
    // Who would attach later than these has no business here.
    drop(fd);
    let patience = launch.faults.patience().unwrap_or(PATIENCE);
    let progress = Progress::new(ranks.len(), launch.from, patience, Instant::now());
    let parts = BTreeMap::new();
    let supervisor = Supervisor { launch, region, ranks, progress, parts, cause: None, deadline: None, record };
    supervisor.watch(stop, &heard, &say)
}

/// What is known of one rank.
#[derive(Debug)]
struct Rank {
    process: Process,
    /// It says nothing more.
    closed: bool,
    /// Its last message.
    end: Option<Result<Done, Failure>>,
    /// Its last sign of life, and when it was seen.
    beat: u64,
    seen: Instant,
}

/// What ends the run before its time.
#[derive(Debug)]
enum Cause {
    Record(ObserveError),
    Rank { rank: usize, how: How, place: String, step: u64 },
}

struct Supervisor<'a> {
    launch: &'a Launch<'a>,
    region: Arc<Region>,
    ranks: Vec<Rank>,
    progress: Progress,
    /// Of the checkpoint in the making, by rank.
    parts: BTreeMap<usize, Part>,
    cause: Option<Cause>,
    /// When whoever is left is killed.
    deadline: Option<Instant>,
    record: &'a mut dyn Record,
}

impl Supervisor<'_> {
    /// `_say` keeps the channel open when all ranks have closed theirs.
    fn watch(
        mut self,
        stop: &AtomicBool,
        heard: &Receiver<(usize, Heard)>,
        _say: &SyncSender<(usize, Heard)>,
    ) -> Result<Ended, ProcessError> {
        let mut looked = Instant::now();
        loop {
            let news = heard.recv_timeout(LOOK).ok();
            let closing = matches!(news, None | Some((_, Heard::Closed)));
            if let Some((rank, heard)) = news {
                self.hear(rank, heard);
            }
            if closing || looked.elapsed() >= LOOK {
                let late = looked.elapsed() >= LATE;
                looked = Instant::now();
                if stop.load(Ordering::Relaxed) {
                    self.region.stop().store(true, Ordering::Relaxed);
                }
                if self.look(late) {
                    return self.conclude();
                }
            }
        }
    }

    fn hear(&mut self, rank: usize, heard: Heard) {
        let message = match heard {
            Heard::Message(message) => *message,
            Heard::Garbled(line) => {
                self.ranks[rank].process.kill();
                return self.fail(rank, How::Garbled(line));
            }
            Heard::Closed => {
                self.ranks[rank].closed = true;
                return;
            }
        };
        match message {
            ToParent::Done(done) => self.ranks[rank].end = Some(Ok(done)),
            ToParent::Error(failure) => {
                match failure.kind {
                    FailureKind::Followed => {}
                    FailureKind::TimedOut { peer, seconds } if peer < self.ranks.len() => {
                        if self.cause.is_none() {
                            self.ranks[peer].process.kill();
                        }
                        self.fail(peer, How::Hung { seconds });
                    }
                    _ => self.fail(rank, How::Failed(failure.clone())),
                }
                self.ranks[rank].end = Some(Err(failure));
            }
            // Once the run is over, what is told of it comes too late.
            _ if self.cause.is_some() => {}
            ToParent::Part(part) => self.save(rank, part),
            ToParent::Trace(lines) => {
                if let Err(error) = self.record.trace(&lines) {
                    self.end(self.ranks.len(), Cause::Record(error));
                }
            }
            _ if rank > 0 => {}
            ToParent::Ready => {
                self.note(&Event::Start { step: self.launch.from, steps: self.launch.plan.totals.steps });
            }
            ToParent::Step(metrics) => self.note(&Event::Step(metrics)),
            ToParent::Eval(mut metrics) => {
                // JSON has no infinity, which the perplexity of a large loss is.
                metrics.val_perplexity = metrics.val_perplexity.or(metrics.val_loss.map(f64::exp));
                self.note(&Event::Eval(metrics));
            }
            ToParent::Sample(sample) => self.note(&Event::Sample(sample)),
            ToParent::Watched(step) => self.note(&Event::Watched(step)),
            ToParent::Warning(message) => self.note(&Event::Warning(message)),
        }
    }

    fn note(&mut self, event: &Event) {
        if let Err(error) = self.record.observe(event) {
            self.end(self.ranks.len(), Cause::Record(error));
        }
    }

    /// Takes a rank's part; the last one makes the checkpoint.
    fn save(&mut self, rank: usize, part: Part) {
        self.parts.insert(rank, part);
        if self.parts.len() < self.ranks.len() {
            return;
        }
        let parts: Vec<Part> = std::mem::take(&mut self.parts).into_values().collect();
        let Part { step, tokens, best, .. } = parts[0];
        if let Some(other) = parts.iter().position(|p| p.step != step) {
            let line = format!("a part of step {} with others of step {step}", parts[other].step);
            return self.fail(other, How::Garbled(line));
        }
        let records = parts.into_iter().filter_map(|p| p.record).collect();
        match self.record.commit(step, tokens, best, records) {
            Ok(()) => self.ranks.iter().for_each(|r| r.process.tell(ToRank::Committed { step })),
            Err(error) => self.end(self.ranks.len(), Cause::Record(error)),
        }
    }

    /// Looks at every process; true when all have ended. `late`: this process was suspended, so nobody's silence counts.
    fn look(&mut self, late: bool) -> bool {
        let now = Instant::now();
        for rank in 0..self.ranks.len() {
            let view = self.region.snapshot(rank).unwrap_or_default();
            let beat = view.heartbeat;
            let r = &mut self.ranks[rank];
            if r.process.has_ended() {
                // Its last words come first.
                if let Some(how) = r.process.how().filter(|_| r.closed && r.end.is_none()) {
                    self.fail(rank, how);
                }
                continue;
            }
            if late || beat != r.beat {
                (r.beat, r.seen) = (beat, now);
            }
            let silence = self.launch.faults.silence().unwrap_or(SILENCE);
            let limit = if beat == 0 { FIRST_SIGN.max(silence) } else { silence };
            let hung = self.progress.look(rank, &view, now, late);
            let how = match hung {
                _ if self.cause.is_some() => continue,
                _ if now.duration_since(r.seen) >= limit => {
                    How::Silent { seconds: limit.as_secs(), stopped: system::is_stopped(r.process.id()) }
                }
                Some(quiet) => How::Hung { seconds: quiet.as_secs() },
                None => continue,
            };
            r.process.kill();
            self.fail(rank, how);
        }
        let all = |what: &dyn Fn(&mut Rank) -> bool, ranks: &mut [Rank]| ranks.iter_mut().all(what);
        // Those who said goodbye shall go, too.
        if self.deadline.is_none() && all(&|r| r.end.is_some(), &mut self.ranks) {
            self.deadline = Some(now + GRACE);
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.ranks.iter_mut().for_each(|r| r.process.kill());
        }
        all(&|r| r.closed && r.process.has_ended(), &mut self.ranks)
    }

    /// Rank `rank` ended before its time, and what it was doing is what the board still shows.
    fn fail(&mut self, rank: usize, how: How) {
        let program = &self.launch.plan.ranks[rank].program;
        let view = self.region.snapshot(rank).unwrap_or_default();
        let step = view.step.max(self.launch.from);
        self.end(rank, Cause::Rank { rank, how, place: where_in(program, &view), step });
    }

    /// Ends the run because of `rank`; one beyond the last is this process. The first cause is the one that counts.
    fn end(&mut self, rank: usize, cause: Cause) {
        if self.cause.is_none() {
            self.region.abort(rank);
            self.cause = Some(cause);
            self.deadline = Some(Instant::now() + GRACE);
        }
    }

    /// When all processes have ended.
    fn conclude(mut self) -> Result<Ended, ProcessError> {
        let (rank, how, place, step) = match self.cause.take() {
            Some(Cause::Record(error)) => return Err(error.into()),
            Some(Cause::Rank { rank, how, place, step }) => (rank, how, place, step),
            None => match self.ranks.iter().position(|r| !matches!(r.end, Some(Ok(_)))) {
                None => {
                    let done: Vec<Done> = self.ranks.iter().filter_map(|r| r.end.clone()?.ok()).collect();
                    let interrupted = done.iter().any(|d| d.interrupted);
                    return Ok(Ended { interrupted, peak_rss_bytes: done.iter().map(|d| d.peak_rss_bytes).collect() });
                }
                // It followed one that then did not say why.
                Some(rank) => {
                    let failure = self.ranks[rank].end.clone().and_then(Result::err);
                    let how = failure.map_or(How::Exited(0), How::Failed);
                    (rank, how, String::new(), self.launch.from)
                }
            },
        };
        let Process { log, log_from, .. } = &self.ranks[rank].process;
        // That of one that failed says the same.
        let last = if matches!(how, How::Failed(_)) { None } else { last_line(log, *log_from) };
        Err(ProcessError::Rank(Box::new(Death { rank, how, place, step, log: log.clone(), last })))
    }
}
