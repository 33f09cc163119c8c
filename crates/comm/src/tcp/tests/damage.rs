//! Two ranks whose connection is damaged: their results are those of an intact connection, or there is an error that names a rank.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use candle_core::DType;

use super::proxy::{Damage, Direction, Fault, Proxy};
use super::{config, free_port};
use crate::communicator::{Communicator, GroupOperation};
use crate::error::{CommError, JoinError};
use crate::tcp::{JoinConfig, TcpComm, TcpMesh};
use crate::tests::{ALL, bits, channel, tensor};
use runner_spec::topology::{Lane, Topology};

/// The number of numbers of an all-reduce and of a message: many chunks each.
const NUMBERS: usize = 150_001;

/// A timeout for heartbeats that an intact connection meets even on a busy machine.
const LONG_HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of each rank: the bits that it computed, or the reason why it failed.
type Results = Vec<Result<Vec<u64>, String>>;

/// Runs every operation. A timeout of an operation fails the test, because damage must be noticed earlier.
fn work(config: &JoinConfig) -> Result<Vec<u64>, String> {
    let mesh = Arc::new(TcpMesh::join(config).map_err(|error| error.to_string())?);
    let channels = vec![channel(0, 1, Lane::Activation, 2, 4 * NUMBERS), channel(1, 0, Lane::Gradient, 2, 4 * NUMBERS)];
    let topology = Topology { channels, ..Topology::everyone(2) };
    mesh.set_operation_timeout(Duration::from_mins(1));
    let rank = config.rank;
    let operations = || -> Result<Vec<u64>, CommError> {
        let comm = TcpComm::new(Arc::clone(&mesh), "plan", &topology).map_err(|error| match error {
            JoinError::Comm(error) => error,
            other => panic!("{other}"),
        })?;
        let (to, from) =
            if rank == 0 { (Lane::Activation, Lane::Gradient) } else { (Lane::Gradient, Lane::Activation) };
        let mut seen = Vec::new();
        for round in 0..2 {
            let numbers = tensor(DType::F32, round, rank, NUMBERS);
            comm.send(1 - rank, to, &numbers)?;
            comm.run(ALL, GroupOperation::AllReduce, &numbers)?;
            seen.extend(bits(&numbers));
            seen.extend(bits(&comm.receive(1 - rank, from, DType::F32, &[NUMBERS])?));
            comm.all_gather(ALL, &[rank as u8; 3])?
                .iter()
                .for_each(|bytes| seen.extend(bytes.iter().map(|b| u64::from(*b))));
        }
        mesh.send_control(1 - rank, b"over");
        seen.extend(mesh.receive_control(1 - rank)?.into_iter().map(u64::from));
        Ok(seen)
    };
    operations().map_err(|error| {
        assert!(!matches!(error, CommError::Timeout { .. }), "{error}");
        format!("{error}: {}", mesh.abort_cause().map(|abort| abort.reason).unwrap_or_default())
    })
}

/// Runs both ranks with `fault` between them: their results, and the number of bytes that passed in each direction.
fn results(fault: Option<Fault>, heartbeat_timeout: Duration) -> (Results, [u64; 2]) {
    results_with(fault, heartbeat_timeout, Duration::from_secs(6))
}

/// Runs both ranks as [`results`] does. They wait for each other for `timeout`.
fn results_with(fault: Option<Fault>, heartbeat_timeout: Duration, timeout: Duration) -> (Results, [u64; 2]) {
    let port = free_port();
    let proxy = Proxy::start(port, fault);
    let results = thread::scope(|s| {
        let ranks = [port, proxy.port].into_iter().enumerate().map(|(rank, port)| {
            let config = JoinConfig { timeout, heartbeat_timeout, ..config(rank, 2, port) };
            s.spawn(move || work(&config))
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    (results, [Direction::ToTarget, Direction::FromTarget].map(|direction| proxy.passed(direction)))
}

fn intact() -> (Vec<Vec<u64>>, [u64; 2]) {
    let (results, passed) = results(None, LONG_HEARTBEAT_TIMEOUT);
    assert!(passed.iter().all(|bytes| *bytes > 4 * NUMBERS as u64), "{passed:?}");
    (results.into_iter().map(|bits| bits.unwrap()).collect(), passed)
}

/// Causes `damage` at places all over the connection. Returns the reasons of the ranks that failed, by place.
fn spread(places: u64, heartbeat_timeout: Duration, damage: impl Fn(u64) -> Damage) -> Vec<Vec<String>> {
    let (expected, passed) = intact();
    let faults = [Direction::ToTarget, Direction::FromTarget].into_iter().flat_map(|direction| {
        let (bytes, damage) = (passed[direction as usize], &damage);
        (0..places).map(move |place| {
            // Half of the places are where the ranks prove themselves and agree on their plans.
            let at = if place % 2 == 0 { place * 61 } else { bytes * place / places };
            Fault { direction, at, damage: damage(place) }
        })
    });
    // At once, because most of the time is spent waiting for timeouts.
    thread::scope(|s| {
        let cases = faults.map(|fault| (fault, s.spawn(move || results(Some(fault), heartbeat_timeout).0)));
        let check = |(fault, case): (Fault, thread::ScopedJoinHandle<'_, Results>)| {
            let mut errors = Vec::new();
            for (rank, result) in case.join().unwrap().into_iter().enumerate() {
                match result {
                    Ok(bits) => assert!(bits == expected[rank], "rank {rank} has other numbers after {fault:?}"),
                    Err(why) => {
                        assert!(why.contains("rank 0") || why.contains("rank 1"), "{fault:?}: {why}");
                        errors.push(why);
                    }
                }
            }
            errors
        };
        cases.collect::<Vec<_>>().into_iter().map(check).collect()
    })
}

/// The number of places after which a rank gave `reason`.
fn count(failures: &[Vec<String>], reason: &str) -> usize {
    failures.iter().filter(|errors| errors.iter().any(|why| why.contains(reason))).count()
}

#[test]
fn a_flipped_bit_never_changes_a_number() {
    let failures = spread(12, LONG_HEARTBEAT_TIMEOUT, |place| Damage::FlipBit((place % 8) as u32));
    assert!(count(&failures, "is damaged: chunk ") >= 12, "{failures:?}");
}

#[test]
fn repeated_bytes_are_noticed() {
    let failures = spread(6, LONG_HEARTBEAT_TIMEOUT, |place| Damage::Repeat(1 << (2 * place)));
    assert!(count(&failures, "is damaged: chunk ") >= 6, "{failures:?}");
}

/// Later heartbeats do not hide that bytes are missing.
#[test]
fn lost_bytes_are_noticed_within_the_time_of_heartbeats() {
    let timeout = Duration::from_secs(2);
    let failures = spread(4, timeout, |place| Damage::Drop(1 + 10 * place));
    let noticed = count(&failures, "is damaged: chunk ") + count(&failures, "no heartbeat for 2 s");
    assert!(noticed >= 4, "{failures:?}");
    let silent = spread(2, timeout, |_| Damage::Drop(u64::MAX));
    assert!(count(&silent, "no heartbeat for 2 s") >= 1, "{silent:?}");
}

#[test]
fn a_cut_connection_is_noticed() {
    let failures = spread(4, LONG_HEARTBEAT_TIMEOUT, |_| Damage::Cut);
    assert!(count(&failures, "its connection was closed without notice") >= 4, "{failures:?}");
}

#[test]
fn a_delay_changes_nothing() {
    let (expected, passed) = intact();
    for (direction, at) in [(Direction::ToTarget, 5), (Direction::FromTarget, passed[1] / 2)] {
        let fault = Fault { direction, at, damage: Damage::Delay(Duration::from_millis(400)) };
        let (results, _) = results(Some(fault), LONG_HEARTBEAT_TIMEOUT);
        assert!(results.into_iter().map(|bits| bits.unwrap()).eq(expected.iter().cloned()), "{fault:?}");
    }
}

/// Rank 0 has accepted rank 1, stops listening and continues. Rank 1 must not look for it as long as ranks wait for each other.
#[test]
fn damage_to_the_answer_of_rank_0_ends_the_rendezvous_of_rank_1() {
    let long = Duration::from_mins(10);
    let started = Instant::now();
    // From behind the greeting to the list of ranks: lengths, texts and proofs.
    let places = [44, 45, 60, 130, 170, 250, 300];
    let damages = [Damage::FlipBit(6), Damage::Drop(3), Damage::Drop(u64::MAX)];
    let faults = places.into_iter().flat_map(|at| damages.map(|damage| (at, damage)));
    let errors: Vec<Option<String>> = thread::scope(|s| {
        let cases = faults.map(|(at, damage)| {
            let fault = Fault { direction: Direction::FromTarget, at, damage };
            s.spawn(move || results_with(Some(fault), Duration::from_secs(8), long).0.remove(1).err())
        });
        cases.collect::<Vec<_>>().into_iter().map(|case| case.join().unwrap()).collect()
    });
    let damaged = errors.iter().flatten().filter(|why| why.contains("but its answer was damaged: ")).count();
    assert!(damaged >= 3, "{errors:?}");
    assert!(started.elapsed() < long, "a rank waited for the whole rendezvous: {errors:?}");
}
