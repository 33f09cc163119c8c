//! The ranks that a launcher started, as one of them sees them. A rank meets the others before it reads its file, so that every
//! failure of one rank reaches all of them and is reported once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::device_communicator::device_communicator;
use super::failure::describe_last_seen;
use super::faults;
use super::launcher_environment::AssignedRank;
use super::protocol::{FromRank, ToRank, describe_invalid_line};
use runner_comm::{
    CommError, Communicator, Connections, JoinConfig, JoinError, PeerIdentity, RankPhase, RankToken, RunAbort, TcpComm,
    TcpMesh,
};
use runner_compute::kernels::cpu::product::Bf16Products;
use runner_machine::host::{allowed_core_list, machine_id};
use runner_plan::ranks::topology::topology;
use runner_spec::cluster::RankLocation;
use runner_spec::experiment::Precision;
use runner_spec::format::json_bytes;
use runner_spec::mesh::RankGroup;
use runner_spec::plan::Plan;
use runner_spec::program::Device;
use runner_spec::topology::GroupId;
use runner_threads::stop::StopSwitch;

/// The time that a rank waits for the other ranks to join.
const JOIN_TIMEOUT: Duration = Duration::from_mins(5);

/// A rank without a heartbeat for this long is lost.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that a rank waits for the reason after another rank has aborted.
const ABORT_REASON_TIMEOUT: Duration = Duration::from_secs(3);

/// The time in which the connections of a rank that a signal ends must send its last message.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that a signal which ends a rank leaves it to connect to the others, which may be connected to it already.
const CONNECTION_TIMEOUT: Duration = Duration::from_millis(500);

/// The time within which a signal that all ranks get ends this one, if another was lost because of it: longer than `SEND_TIMEOUT` and
/// `CONNECTION_TIMEOUT` together.
const SIGNAL_SPREAD: Duration = Duration::from_secs(2);

/// The time within which all ranks of a machine that failed are lost, once one of them is. Heartbeats come once a second.
const LOSS_SPREAD: Duration = Duration::from_secs(3);

/// The time that ranks wait for the work of rank 0 after the last step, such as a test of the best checkpoint.
const LEADER_TIMEOUT: Duration = Duration::from_hours(24 * 7);

/// This process among the ranks that a launcher started.
#[derive(Debug)]
pub struct World {
    assigned: AssignedRank,
    pub(super) mesh: Arc<TcpMesh>,
}

impl World {
    /// Joins the other ranks, which know the same `token` and are the same `program`. `report_wait` receives what the rank waits for. From
    /// then on, a signal that ends this process at once ends the other ranks with the same exit code.
    ///
    /// # Errors
    /// Those of `TcpMesh::join`.
    pub fn join(
        assigned: AssignedRank,
        program: &str,
        token: RankToken,
        report_wait: fn(&str),
        stop: &StopSwitch,
    ) -> Result<Self, JoinError> {
        let timeout = faults::milliseconds("operation-timeout");
        let joined = Arc::new(OnceLock::new());
        share_early_end(stop, assigned.rank, Arc::clone(&joined));
        let config = JoinConfig {
            rank: assigned.rank,
            world_size: assigned.world_size,
            identity: PeerIdentity::new(
                assigned.local_rank,
                &machine_id(assigned.host_name.as_deref()),
                &allowed_core_list().unwrap_or_else(|| "unknown".to_owned()),
                program,
            ),
            leader_host: assigned.leader_host.clone(),
            ports: assigned.leader_ports.clone(),
            token,
            timeout: timeout.unwrap_or(JOIN_TIMEOUT),
            heartbeat_timeout: faults::milliseconds("heartbeat-timeout").unwrap_or(HEARTBEAT_TIMEOUT),
            report_wait,
        };
        let mesh = TcpMesh::join(&config)?;
        if let Some(timeout) = timeout {
            mesh.set_operation_timeout(timeout);
        }
        let mesh = Arc::new(mesh);
        let _ = joined.set(mesh.connections());
        Ok(Self { assigned, mesh })
    }

    pub fn rank(&self) -> usize {
        self.assigned.rank
    }

    pub fn world_size(&self) -> usize {
        self.assigned.world_size
    }

    /// True on rank 0, which writes the record.
    pub fn is_leader(&self) -> bool {
        self.rank() == 0
    }

    pub fn assigned_rank(&self) -> &AssignedRank {
        &self.assigned
    }

    /// The number of machines that the ranks are on.
    pub fn machine_count(&self) -> usize {
        self.mesh.ranks().iter().map(|peer| &peer.machine).collect::<BTreeSet<_>>().len()
    }

    /// The location of each rank. Machines are numbered in the order of their first ranks.
    pub fn rank_locations(&self) -> Vec<RankLocation> {
        let mut machines = BTreeMap::new();
        let ranks = self.mesh.ranks().iter().map(|PeerIdentity { local_rank, machine, .. }| {
            let next = machines.len();
            RankLocation { node: *machines.entry(machine).or_insert(next), local_rank: *local_rank }
        });
        ranks.collect()
    }

    /// The number of threads of this rank, of `total` threads that ranks of one machine share: ranks with the same cores, or all ranks of
    /// the machine if the user gave the number.
    pub fn threads(&self, total: usize, is_given: bool) -> usize {
        let own = &self.mesh.ranks()[self.rank()];
        let sharers = self.ranks_of_machine().filter(|(_, peer)| is_given || peer.cores == own.cores).count();
        (total / sharers.max(1)).max(1)
    }

    /// The ranks on the machine of this one, which is among them.
    fn ranks_of_machine(&self) -> impl Iterator<Item = (usize, &PeerIdentity)> {
        let ranks = self.mesh.ranks();
        let own = &ranks[self.rank()];
        ranks.iter().enumerate().filter(|(_, peer)| peer.machine == own.machine)
    }

    /// Compares the plan with those of the other ranks. Returns the communicator for it.
    ///
    /// # Errors
    /// If the plans differ, or a rank has ended.
    pub fn agree_on_plan(&self, plan: &Plan) -> Result<Box<dyn Communicator>, JoinError> {
        let Some(first) = plan.ranks.first() else {
            return Err(JoinError::Failed("the plan has no ranks".to_owned()));
        };
        // Activations are sent as f32, or as bf16, which is smaller.
        let topology = topology(&first.program, plan.channel_slots, size_of::<f32>());
        // Periodic instructions are not part of the plan's hash, but all ranks must execute them together.
        let periodic = json_bytes(&first.program.periodic);
        let compared = format!("{}/{}", plan.hash, &blake3::hash(&periodic).to_hex()[..8]);
        let comm = TcpComm::new(Arc::clone(&self.mesh), &compared, &topology)?;
        if first.program.precision == Precision::Bf16 && first.device == Device::Cpu {
            compare_products(plan, &comm)?;
        }
        let own = plan.ranks.get(self.rank()).map_or(&first.program, |rank| &rank.program);
        Ok(device_communicator(Box::new(comm), &topology, own)?)
    }

    pub(super) fn send_to_all(&self, message: &ToRank) {
        let bytes = json_bytes(message);
        (1..self.world_size()).for_each(|rank| self.mesh.send_control(rank, &bytes));
    }

    pub(super) fn send_to_leader(&self, message: &FromRank) {
        self.mesh.send_control(0, &json_bytes(message));
    }

    /// Receives the next message of `rank`, which aborts the run if it is invalid.
    pub(super) fn receive<T: serde::de::DeserializeOwned>(&self, rank: usize) -> Result<T, CommError> {
        self.parse(rank, &self.mesh.receive_control(rank)?)
    }

    /// The next message of `rank`, if it has arrived.
    pub(super) fn receive_if_arrived<T: serde::de::DeserializeOwned>(
        &self,
        rank: usize,
    ) -> Result<Option<T>, CommError> {
        self.mesh.receive_arrived_control(rank).map(|bytes| self.parse(rank, &bytes)).transpose()
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, rank: usize, bytes: &[u8]) -> Result<T, CommError> {
        serde_json::from_slice(bytes).map_err(|_| self.abort_for_invalid_message(rank, &describe_invalid_line(bytes)))
    }

    /// Aborts the run because `rank` has sent a message that is invalid for the reason `why`.
    pub(super) fn abort_for_invalid_message(&self, rank: usize, why: &str) -> CommError {
        self.mesh.abort(rank, 1, &format!("rank {rank} sent an invalid message: {why}"));
        CommError::Aborted { by: rank }
    }

    /// Aborts the run because `rank` has sent a message of the protocol at the wrong time.
    pub(super) fn abort_for_unexpected_message(&self, rank: usize, message: &impl std::fmt::Debug) -> CommError {
        let message: String = format!("{message:?}").chars().take(200).collect();
        self.abort_for_invalid_message(rank, &format!("{message} was not expected"))
    }

    /// Makes all other ranks exit with `code`, when nothing is left to do.
    pub fn send_exit(&self, code: u8) {
        self.send_to_all(&ToRank::Exit { code });
    }

    /// Waits for the exit code that the leader sends.
    ///
    /// # Errors
    /// If the leader ends without sending it.
    pub fn await_exit(&self) -> Result<u8, CommError> {
        self.mesh.set_operation_timeout(LEADER_TIMEOUT);
        loop {
            if let ToRank::Exit { code } = self.receive(0)? {
                return Ok(code);
            }
        }
    }

    /// Aborts the run because this rank failed outside its training. Only the first abort of a run counts.
    pub fn abort_outside_training(&self, code: u8, error: &str) {
        let place = match self.mesh.status().snapshot().phase {
            RankPhase::Starting => "while starting",
            _ => "after training",
        };
        self.abort(code, &format!("rank {} failed {place}: {error}", self.rank()));
    }

    /// Aborts the run because of this rank. Only the first abort of a run counts.
    pub fn abort(&self, code: u8, reason: &str) {
        self.mesh.abort(self.rank(), code, reason);
    }

    /// The abort of the run, with a reason to report. If none has arrived, waits a moment for it.
    pub fn await_abort(&self, plan: Option<&Plan>) -> Option<RunAbort> {
        let started = Instant::now();
        let mut abort = loop {
            match self.mesh.abort_cause() {
                Some(abort) => break abort,
                None if started.elapsed() > ABORT_REASON_TIMEOUT => return None,
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        if abort.is_loss {
            if self.mesh.status().snapshot().phase == RankPhase::Starting {
                // Before training, a signal ends a rank at once. If it comes here too, the exit code is that of the signal.
                thread::sleep(SIGNAL_SPREAD);
            }
            let by = abort.by;
            let program = plan.and_then(|plan| plan.ranks.get(by)).map(|rank| &rank.program);
            let seen = match (program, self.mesh.last_seen(by)) {
                // The others have lost this rank.
                _ if by == self.rank() => String::new(),
                (None, _) => "; the ranks were still starting".to_owned(),
                (_, None) => "; it had sent no status".to_owned(),
                (Some(program), Some(seen)) => format!("; {}", describe_last_seen(program, &seen)),
            };
            abort.code = 1;
            abort.reason = format!("rank {by}{} was lost: {}{seen}", self.describe_machine(by), abort.reason);
        }
        Some(abort)
    }

    /// ` on node-1`, where ranks are on several machines.
    fn describe_machine(&self, rank: usize) -> String {
        let machine = self.mesh.ranks().get(rank).map(PeerIdentity::machine_name);
        machine.filter(|_| self.machine_count() > 1).map_or_else(String::new, |name| format!(" on {name}"))
    }

    /// True if this rank has to report why the run ended: it is rank 0, or all ranks before it were lost. After a loss, waits a moment for
    /// the ranks before this one to leave or to be lost, too.
    pub fn must_report(&self) -> bool {
        let started = Instant::now();
        let may_be_lost = |rank| {
            let is_loss = self.mesh.abort_cause().is_some_and(|abort| abort.is_loss);
            is_loss && self.mesh.is_connected(rank) && started.elapsed() < LOSS_SPREAD
        };
        (0..self.rank()).all(|rank| {
            while !self.mesh.is_lost(rank) && may_be_lost(rank) {
                thread::sleep(Duration::from_millis(10));
            }
            self.mesh.is_lost(rank)
        })
    }
}

/// Makes a signal that ends this process at once end the other ranks with the same exit code, through the connections in `joined` once there
/// are some.
fn share_early_end(stop: &StopSwitch, rank: usize, joined: Arc<OnceLock<Arc<Connections>>>) {
    stop.at_early_end(move |reason| {
        let started = Instant::now();
        while joined.get().is_none() && started.elapsed() < CONNECTION_TIMEOUT {
            thread::sleep(Duration::from_millis(5));
        }
        let Some(connections) = joined.get() else { return };
        let text = match connections.status().snapshot().phase {
            RankPhase::Starting => format!("rank {rank} was stopped before training; nothing is lost"),
            _ => format!("rank {rank} was stopped immediately"),
        };
        connections.abort(rank, reason.exit() as u8, &text);
        // The process ends next, so this waits for the threads that write.
        connections.wait_until_sent(SEND_TIMEOUT);
    });
}

/// Compares the methods with which ranks multiply bf16 matrices: the record names one.
fn compare_products(plan: &Plan, comm: &dyn Communicator) -> Result<(), JoinError> {
    let own = Bf16Products::in_use().name();
    let all = comm.all_gather(GroupId(plan.mesh.index(RankGroup::World)), own.as_bytes())?;
    let Some(rank) = all.iter().position(|other| Some(other) != all.first()) else { return Ok(()) };
    let [leader, other] = [0, rank].map(|rank| String::from_utf8_lossy(&all[rank]));
    Err(JoinError::Failed(format!(
        "rank {rank} multiplies bf16 matrices with {other}, but rank 0 with {leader}, which rounds sums \
         differently; set `RUNNER_BF16_PRODUCTS` to the same value for all ranks"
    )))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::launcher_environment::assigned_rank;
    use runner_threads::stop::StopReason;

    fn world_of_one() -> World {
        let variables = [("RANK", "0"), ("WORLD_SIZE", "1")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        join(&variables, &StopSwitch::default())
    }

    fn join(variables: &[(String, String)], stop: &StopSwitch) -> World {
        let assigned = assigned_rank(&variables.iter().cloned().collect()).unwrap().unwrap();
        World::join(assigned, "runner", RankToken::new("job", None), |_| (), stop).unwrap()
    }

    /// The other ranks get the notice, and not that the rank was lost.
    #[test]
    fn a_signal_while_the_ranks_connect_reaches_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let variables = |rank: &str| {
            [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
        };
        let stop = StopSwitch::default();
        thread::scope(|scope| {
            let rank_1 = scope.spawn(|| join(&variables("1"), &stop));
            // Rank 1 tries again after its first connection is closed.
            listener.accept().unwrap();
            drop(listener);
            scope.spawn(|| stop.end_early(StopReason::Notice));
            let abort = join(&variables("0"), &StopSwitch::default()).await_abort(None).unwrap();
            assert_eq!((abort.by, abort.code, abort.is_loss), (1, 75, false));
            assert_eq!(rank_1.join().unwrap().await_abort(None).unwrap(), abort);
        });
    }

    #[test]
    fn a_world_of_one_waits_for_nobody() {
        let world = world_of_one();
        assert!(world.is_leader() && world.must_report());
        assert_eq!(world.rank_locations(), [RankLocation { node: 0, local_rank: 0 }]);
        assert_eq!((world.machine_count(), world.threads(6, true), world.threads(0, false)), (1, 6, 1));
    }

    /// The place of a failure outside training follows from the rank's status.
    #[test]
    fn a_failure_after_training_is_not_one_of_the_start() {
        let reason = |phase: RankPhase| {
            let world = world_of_one();
            world.mesh.status().set_phase(phase);
            world.abort_outside_training(1, "no space");
            world.await_abort(None).unwrap().reason
        };
        assert_eq!(reason(RankPhase::Starting), "rank 0 failed while starting: no space");
        assert_eq!(reason(RankPhase::Finished), "rank 0 failed after training: no space");
    }

    #[test]
    fn an_invalid_message_is_quoted() {
        let world = world_of_one();
        world.abort_for_invalid_message(0, &describe_invalid_line(b"boom"));
        let reason = world.await_abort(None).unwrap().reason;
        assert_eq!(reason, "rank 0 sent an invalid message: \"boom\" is not a message of the protocol");
    }

    #[test]
    fn the_first_failure_is_reported() {
        let world = world_of_one();
        world.abort(2, "no such file");
        world.abort(1, "and then that");
        let abort = world.await_abort(None).unwrap();
        assert_eq!((abort.by, abort.code, abort.reason.as_str()), (0, 2, "no such file"));
    }
}
