//! The ranks that a launcher started, as one of them sees them from its start to its end: it has met the others before it
//! looks at its file, so that whatever goes wrong with one is told to all, once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::device::on_device;
use super::environment::Seat;
use super::error::where_in;
use super::system;
use runner_comm::{CommError, Communicator, JoinConfig, JoinError, Mesh, RunAbort, TcpComm};
use runner_plan::topology::topology;
use runner_spec::cluster::RankLocation;
use runner_spec::plan::Plan;
use runner_spec::program::Device;
use runner_spec::topology::LocalRanks;

/// How long a rank waits for the others to come.
const COMING: Duration = Duration::from_mins(5);

/// How long a rank that was told that another ended waits to be told why.
const WORDS: Duration = Duration::from_secs(3);

/// Within what time all ranks of a machine that went away are missed once one is: signs of life come once a second.
const MISSED: Duration = Duration::from_secs(3);

/// How long ranks wait for what rank 0 does when all have come to their end, such as a test of the best checkpoint.
const CLOSING: Duration = Duration::from_hours(24 * 7);

/// The exit code of a rank with a number that is not finite; no process exits with it.
pub(super) const NOT_FINITE: u8 = 64;

/// This process among the ranks.
#[derive(Debug)]
pub struct World {
    seat: Seat,
    pub(super) mesh: Arc<Mesh>,
}

/// What rank 0 tells the others beside operations.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromFirst {
    Begin(super::member::Begin),
    /// All are ready. `share`: whoever cannot read the checkpoint gets its state from a replica that can.
    Go {
        share: bool,
    },
    /// The checkpoint of `step` is in place.
    Committed {
        step: u64,
    },
    /// There is nothing more to do; the exit code of all.
    Over {
        code: u8,
    },
}

impl World {
    /// Meets the other ranks, for at most `limit` where that is given; what it waits for is told.
    ///
    /// # Errors
    /// As `Mesh::join`.
    pub fn join(seat: Seat, limit: Option<Duration>, tell: fn(&str)) -> Result<Self, JoinError> {
        let meeting = JoinConfig {
            rank: seat.rank,
            world_size: seat.world_size,
            local_rank: seat.local_rank,
            host: seat.master.host.clone(),
            ports: seat.master.ports.clone(),
            token: seat.token_hash(),
            place: format!("{}|{}", system::machine(), system::cores()),
            limit: limit.unwrap_or(COMING),
            tell,
        };
        let mesh = Mesh::join(&meeting)?;
        if let Some(limit) = limit {
            mesh.set_operation_timeout(limit);
        }
        Ok(Self { seat, mesh: Arc::new(mesh) })
    }

    #[must_use]
    pub fn rank(&self) -> usize {
        self.seat.rank
    }

    #[must_use]
    pub fn world_size(&self) -> usize {
        self.seat.world_size
    }

    /// Whether this rank keeps the record, and speaks.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.seat.rank == 0
    }

    #[must_use]
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// The machines that the ranks are on.
    #[must_use]
    pub fn machines(&self) -> usize {
        self.mesh.ranks().iter().map(|peer| machine(&peer.place)).collect::<BTreeSet<_>>().len()
    }

    /// Where each rank is, the machines in the order of their first ranks.
    #[must_use]
    pub fn seats(&self) -> Vec<RankLocation> {
        let mut machines = BTreeMap::new();
        let seat = |peer: &runner_comm::PeerIdentity| {
            let next = machines.len();
            let node = *machines.entry(machine(&peer.place).to_owned()).or_insert(next);
            RankLocation { node, local_rank: peer.local_rank }
        };
        self.mesh.ranks().iter().map(seat).collect()
    }

    /// Threads for this rank of `total`, which the ranks of a machine share: those with the same cores, or all of them where
    /// the number was `given`.
    #[must_use]
    pub fn threads(&self, total: usize, given: bool) -> usize {
        let place = |rank: usize| {
            let place = self.mesh.ranks().get(rank).map_or("", |peer| peer.place.as_str());
            if given { machine(place) } else { place }
        };
        let own = place(self.rank());
        let sharers = (0..self.world_size()).filter(|rank| place(*rank) == own).count();
        (total / sharers.max(1)).max(1)
    }

    /// Shows the others the plan, and is shown theirs: the communicator for it, of tensors on `device`.
    ///
    /// # Errors
    /// If they are not the same, or a rank has ended.
    pub fn agree(&self, plan: &Plan, device: Device) -> Result<Box<dyn Communicator>, JoinError> {
        let Some(first) = plan.ranks.first() else {
            return Err(JoinError::Refused("the plan has no ranks".to_owned()));
        };
        // Activations are sent as f32.
        let topology = topology(&first.program, plan.channel_slots, size_of::<f32>());
        // What is done from time to time is not in the plan's hash, and all must do it together.
        let periodic = runner_spec::format::json_bytes(&first.program.periodic);
        let shown = format!("{}/{}", plan.hash, &blake3::hash(&periodic).to_hex()[..8]);
        let comm = TcpComm::new(Arc::clone(&self.mesh), &shown, &topology)?;
        let own = plan.ranks.get(self.rank()).map_or(&first.program, |rank| &rank.program);
        on_device(Box::new(comm), device, &topology, own, LocalRanks::Processes).map_err(JoinError::Refused)
    }

    pub(super) fn tell_all(&self, message: &FromFirst) {
        let bytes = runner_spec::format::json_bytes(message);
        (1..self.world_size()).for_each(|rank| self.mesh.send_control(rank, &bytes));
    }

    /// What rank 0 says next.
    pub(super) fn next_order(&self) -> Result<FromFirst, CommError> {
        let said = self.mesh.receive_control(0)?;
        serde_json::from_slice(&said).map_err(|_| self.garbled(0))
    }

    pub(super) fn garbled(&self, by: usize) -> CommError {
        self.mesh.abort(by, 1, &format!("rank {by} said what is no message"));
        CommError::Aborted { by }
    }

    /// All other ranks end with this code, when they have nothing more to do.
    pub fn over(&self, code: u8) {
        self.tell_all(&FromFirst::Over { code });
    }

    /// Waits for what `over` tells.
    ///
    /// # Errors
    /// If rank 0 has ended without it.
    pub fn await_over(&self) -> Result<u8, CommError> {
        self.mesh.set_operation_timeout(CLOSING);
        loop {
            if let FromFirst::Over { code } = self.next_order()? {
                return Ok(code);
            }
        }
    }

    /// Ends the run because of this rank. The first that does so counts.
    pub fn fail(&self, code: u8, text: &str) {
        self.mesh.abort(self.rank(), code, text);
    }

    /// Why the run ended before its time: the rank, its exit code, and what is to be said. Waits a moment for the words of one
    /// that is about to say them.
    #[must_use]
    pub fn ended(&self, plan: Option<&Plan>) -> Option<(usize, u8, String)> {
        let started = Instant::now();
        let ended = loop {
            match self.mesh.abort_cause() {
                Some(ended) => break ended,
                None if started.elapsed() > WORDS => return None,
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        let RunAbort { by, code, reason: text, lost } = ended;
        if !lost {
            return Some((by, code, text));
        }
        let program = plan.and_then(|plan| plan.ranks.get(by)).map(|rank| &rank.program);
        let place = program.map_or("while starting".to_owned(), |program| where_in(program, &self.mesh.snapshot(by)));
        Some((by, 1, format!("rank {by} was lost {place}: {text}")))
    }

    /// Whether this rank has to say why the run ended: rank 0, or, where that was lost, the next one that was not. Where ranks
    /// were lost, waits a moment for those before this one to leave or to be missed, too.
    #[must_use]
    pub fn speaks(&self) -> bool {
        let started = Instant::now();
        let undecided = |rank| {
            let lost = self.mesh.abort_cause().is_some_and(|ended| ended.lost);
            lost && self.mesh.is_connected(rank) && started.elapsed() < MISSED
        };
        (0..self.rank()).all(|rank| {
            while !self.mesh.is_lost(rank) && undecided(rank) {
                thread::sleep(Duration::from_millis(10));
            }
            self.mesh.is_lost(rank)
        })
    }
}

/// Of a place, the machine.
fn machine(place: &str) -> &str {
    place.split('|').next().unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::environment;

    fn alone() -> World {
        let variables = [("RANK", "0"), ("WORLD_SIZE", "1")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let seat = environment::seat(&variables.into_iter().collect()).unwrap().unwrap();
        World::join(seat, None, |_| ()).unwrap()
    }

    #[test]
    fn a_world_of_one_needs_nobody() {
        let world = alone();
        assert!(world.leads() && world.speaks());
        assert_eq!(world.seats(), [RankLocation { node: 0, local_rank: 0 }]);
        assert_eq!((world.machines(), world.threads(6, true), world.threads(0, false)), (1, 6, 1));
    }

    #[test]
    fn the_first_failure_is_the_one_that_is_told() {
        let world = alone();
        world.fail(2, "no such file");
        world.fail(1, "and then that");
        assert_eq!(world.ended(None), Some((0, 2, "no such file".to_owned())));
    }
}
