//! Ranks as threads, connected over this machine's loopback: the errors that they get when something is wrong. What the operations
//! compute is tested for all transports at once.

mod damage;
mod proxy;
mod strangers;

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::DType;

use super::frame::FrameTag;
use super::{JoinConfig, PeerIdentity, RankToken, RunAbort, TcpComm, TcpMesh};
use crate::collective::PIECE_BYTES;
use crate::communicator::{Communicator, GroupOperation};
use crate::error::{CommError, ElementType, Operation, OperationKind};
use crate::local::LocalComm;
use crate::rank_status::RankPhase;
use crate::tests::{ALL, Meeting, bits, channel, numbers, tensor, with_channel};
use runner_spec::topology::{GroupId, Lane, Topology};

impl TcpComm {
    fn mesh(&self) -> &Arc<TcpMesh> {
        &self.own.transport.mesh
    }
}

/// A port on which nothing listens. It is below the ports that the system hands out, so that no other connection takes it before
/// rank 0 does, and each call of this process returns a different one.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = (std::process::id() as u16).wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 12_000 + offset % 8_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub(super) fn config(rank: usize, world_size: usize, port: u16) -> JoinConfig {
    JoinConfig {
        rank,
        world_size,
        identity: PeerIdentity::new(rank, &format!("here {rank}"), "0-3", "runner"),
        leader_host: "127.0.0.1".to_owned(),
        ports: vec![port],
        token: RankToken::new("job", Some("secret")),
        timeout: Duration::from_secs(30),
        heartbeat_timeout: Duration::from_secs(30),
        report_wait: |_| (),
    }
}

/// Runs every rank of a world in a separate thread, from its join on; returns what each returned.
fn meet<R: Send>(world_size: usize, rank: impl Fn(JoinConfig) -> R + Sync) -> Vec<R> {
    let port = free_port();
    thread::scope(|s| {
        let rank = &rank;
        let threads: Vec<_> = (0..world_size).map(|r| s.spawn(move || rank(config(r, world_size, port)))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Runs every rank of a world in a separate thread; returns what each returned.
pub(crate) fn world<R: Send>(topology: &Topology, rank: impl Fn(TcpComm) -> R + Sync) -> Vec<R> {
    meet(topology.world_size, |config| {
        let mesh = Arc::new(TcpMesh::join(&config).unwrap());
        mesh.set_operation_timeout(Duration::from_mins(1));
        rank(TcpComm::new(mesh, "plan", topology).unwrap())
    })
}

/// Sums over memory and over sockets are equal, for one topology with groups in different orders.
#[test]
fn sums_are_those_between_ranks_of_one_machine() {
    let groups = vec![vec![0, 1, 2, 3], vec![3, 0, 2], vec![2, 1]];
    let topology = Topology { groups: groups.clone(), ..Topology::everyone(4) };
    let sums = |comm: &dyn Communicator| -> Vec<Vec<u64>> {
        let mine = groups.iter().enumerate().filter(|(_, ranks)| ranks.contains(&comm.rank()));
        let mut out = Vec::new();
        for (group, _) in mine {
            for n in [3, 100_003, 700_000] {
                let x = tensor(DType::F32, n, comm.rank(), n);
                let pending = comm.start(GroupId(group), vec![(GroupOperation::AllReduce, vec![x.clone()])]).unwrap();
                pending.wait().unwrap();
                out.push(bits(&x));
            }
        }
        out
    };
    let over_sockets = world(&topology, |comm| sums(&comm));
    let over_memory = crate::tests::world(&topology, |comm: LocalComm| sums(&comm));
    assert!(over_sockets == over_memory);
}

#[test]
fn ranks_see_each_others_status() {
    let said = meet(3, |config| {
        let mesh = TcpMesh::join(&config).unwrap();
        mesh.ranks().iter().map(|peer| peer.machine.clone()).collect::<Vec<_>>()
    });
    assert!(said.iter().all(|places| *places == ["here 0", "here 1", "here 2"]), "{said:?}");
}

#[test]
fn different_plans_are_an_error_that_names_both() {
    let told = meet(3, |config| {
        let mesh = Arc::new(TcpMesh::join(&config).unwrap());
        let plan = if config.rank == 1 { "0123456789abcdef01234567" } else { "fedc" };
        TcpComm::new(mesh, plan, &Topology::everyone(3)).unwrap_err().to_string()
    });
    let expected = "rank 1 has the plan 0123456789abcdef, but rank 0 has fedc; start all ranks with the same file, \
        flags and data, and two runs with different values of `MASTER_PORT`";
    assert_eq!(told, [expected; 3]);
}

#[test]
fn ranks_of_another_world_are_refused_on_both_sides() {
    let told = meet(2, |config| {
        let world_size = 2 + config.rank;
        TcpMesh::join(&JoinConfig { world_size, ..config }).unwrap_err().to_string()
    });
    assert_eq!(told, ["rank 1 was started as one of 3 ranks, but rank 0 as one of 2"; 2]);
    let told = meet(3, |config| {
        let rank = config.rank.min(1);
        TcpMesh::join(&JoinConfig { rank, timeout: Duration::from_secs(5), ..config })
            .map(drop)
            .unwrap_err()
            .to_string()
    });
    assert!(told.iter().all(|told| told == "two processes were started as rank 1 of 3"), "{told:?}");
}

#[test]
fn missing_ranks_are_named() {
    let port = free_port();
    let alone = JoinConfig { timeout: Duration::from_millis(100), ..config(0, 3, port) };
    let error = TcpMesh::join(&alone).unwrap_err().to_string();
    assert_eq!(error, format!("only 1 of 3 ranks connected to 127.0.0.1:{port} within 0 s; ranks 1, 2 did not"));
    let lost = JoinConfig { timeout: Duration::from_millis(100), ..config(2, 3, free_port()) };
    let error = TcpMesh::join(&lost).unwrap_err().to_string();
    assert!(error.starts_with("rank 2 did not find rank 0 at 127.0.0.1:"), "{error}");
    assert!(error.to_lowercase().contains("refused"), "{error}");
}

#[test]
fn a_waiting_rank_reports_what_it_waits_for() {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let (port, other) = (free_port(), free_port());
    let report_wait = |what: &str| TOLD.lock().unwrap().push(what.to_owned());
    let waits = |config| {
        TcpMesh::join(&JoinConfig { timeout: Duration::from_secs(2), report_wait, ..config }).map(drop).unwrap_err()
    };
    waits(config(0, 3, port));
    waits(config(2, 3, other));
    let told = TOLD.lock().unwrap();
    assert_eq!(told[0], format!("1 of 3 ranks have connected to 127.0.0.1:{port}; ranks 1, 2 did not yet"));
    assert!(told[1].starts_with(&format!("rank 2 has not found rank 0 at 127.0.0.1:{other} yet: ")), "{told:?}");
    assert_eq!(told.len(), 2, "and only now and then: {told:?}");
}

#[test]
fn a_busy_port_is_an_error_unless_there_is_another() {
    let busy = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = busy.local_addr().unwrap().port();
    let error = TcpMesh::join(&config(0, 2, port)).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("rank 0 cannot listen at 127.0.0.1:") && error.contains("in use"), "{error}");
    assert!(error.contains("set `MASTER_PORT` to a port that no other run uses"), "{error}");
    // As when a launcher itself listens at the port that it announces.
    let other = free_port();
    let worlds = meet(2, |config| {
        TcpMesh::join(&JoinConfig { ports: vec![port, other], ..config }).map(|mesh| mesh.world_size()).unwrap()
    });
    assert_eq!(worlds, [2, 2]);
}

/// A peer that sends what it must not, or ends unannounced: it is reported at once, to those who wait for it and to the others.
#[test]
fn a_broken_connection_ends_the_run_everywhere() {
    let garble = |bytes: &'static [u8]| -> Box<dyn Fn(&TcpMesh) + Sync> {
        Box::new(move |mesh| {
            for stream in mesh.streams() {
                let mut stream: &std::net::TcpStream = stream;
                let _ = stream.write_all(bytes);
                let _ = stream.shutdown(Shutdown::Write);
            }
        })
    };
    let send = |tag: FrameTag, bytes: usize| -> Box<dyn Fn(&TcpMesh) + Sync> {
        Box::new(move |mesh| mesh.peers().for_each(|peer| mesh.send_queues[peer].push(tag, vec![0; bytes])))
    };
    let operation =
        Operation { kind: OperationKind::AllReduce, element: ElementType::F32, bytes: 4000, root: None, sequence: 1 };
    let collective = |group| FrameTag::Collective { group, queue: 0, is_sum: false, operation };
    let ends = [
        (garble(b""), "its connection was closed without notice"),
        (garble(&[99; 48]), " is damaged: chunk "),
        (garble(&[0; 48]), " is damaged: chunk "),
        (send(collective(7), 0), "it sent an invalid frame"),
        (send(collective(0), PIECE_BYTES + 1), "it sent an invalid frame"),
    ];
    for (end, why) in ends {
        let started = Instant::now();
        meet(3, |config| {
            let mesh = Arc::new(TcpMesh::join(&config).unwrap());
            let comm = TcpComm::new(Arc::clone(&mesh), "plan", &Topology::everyone(3)).unwrap();
            // Another may still be in here when the first garbled bytes come, and close its end before the last.
            let met = comm.barrier(ALL);
            if config.rank == 1 {
                // This rank breaks its connections itself, so it reports no other rank.
                mesh.close();
                end(&mesh);
                thread::sleep(Duration::from_millis(50));
                return;
            }
            let error = met.and_then(|()| comm.run(ALL, GroupOperation::AllReduce, &numbers(1000))).unwrap_err();
            assert!(matches!(error, CommError::Left { peer: 1, .. } | CommError::Aborted { by: 1 }), "{error}");
            let ended = mesh.abort_cause().unwrap();
            assert!(ended.by == 1 && ended.is_loss && ended.reason.contains(why), "{ended:?}");
            assert!(matches!(comm.barrier(ALL), Err(CommError::Aborted { by: 1 })), "and so is all that follows");
        });
        assert!(started.elapsed() < Duration::from_secs(20), "seconds, not minutes");
    }
}

/// Why the run is over and who is lost, as each rank of `world_size` knows it once rank `by` has given up `lost`, as for silence, one
/// after the other: all stay connected until each has looked.
fn given_up(world_size: usize, by: usize, lost: &[usize]) -> Vec<(Option<RunAbort>, Vec<usize>)> {
    let (met, looked) = (Barrier::new(world_size), Barrier::new(world_size));
    meet(world_size, |config| {
        let mesh = TcpMesh::join(&config).unwrap();
        met.wait();
        if config.rank == by {
            for rank in lost {
                mesh.mark_lost(*rank, "for a test");
            }
        }
        let knows = || lost.contains(&config.rank) || lost.iter().all(|rank| mesh.is_lost(*rank));
        until(|| mesh.abort_cause().is_some() && knows());
        let seen = (mesh.abort_cause(), (0..world_size).filter(|rank| mesh.is_lost(*rank)).collect());
        looked.wait();
        seen
    })
}

/// Waits, for seconds at most.
fn until(done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() && started.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A rank that loses a peer sends the loss to all, the lost rank included, which then loses no rank itself.
#[test]
fn all_ranks_learn_which_rank_one_gave_up() {
    let lost = Some(RunAbort { by: 1, code: 1, reason: "for a test".to_owned(), is_loss: true });
    let others = (lost.clone(), vec![1]);
    assert_eq!(given_up(3, 0, &[1]), [others.clone(), (lost, vec![]), others]);
}

/// Two ranks are lost, such as those of one machine.
#[test]
fn every_loss_is_reported_and_the_first_is_the_cause() {
    let seen = given_up(4, 3, &[0, 1]);
    for (ended, lost) in &seen[2..] {
        assert_eq!((ended.as_ref().map(|ended| ended.by), lost.as_slice()), (Some(0), &[0, 1][..]));
    }
}

/// A rank that has failed and then loses another rank sends it the first cause.
#[test]
fn a_loss_does_not_hide_what_came_before() {
    let met = Barrier::new(2);
    let told = meet(2, |config| {
        let mesh = TcpMesh::join(&config).unwrap();
        met.wait();
        if config.rank == 0 {
            mesh.abort(0, 2, "for a test");
            mesh.mark_lost(1, "it left");
        }
        until(|| mesh.abort_cause().is_some());
        let ended = mesh.abort_cause();
        met.wait();
        ended.unwrap()
    });
    assert!(told.iter().all(|ended| (ended.by, ended.code, ended.is_loss) == (0, 2, false)), "{told:?}");
}

/// Rank 0 waits in `wait`; then the run is aborted because of rank 1.
fn aborted(wait: impl Fn(&TcpComm) -> Result<(), CommError> + Sync) {
    world(&with_channel(1, 400), |comm| {
        let mesh = comm.mesh();
        if comm.rank() == 0 {
            let result = wait(&comm);
            assert!(matches!(result, Err(CommError::Aborted { by: 1 })), "{result:?}");
            let ended = mesh.abort_cause().unwrap();
            assert_eq!((ended.by, ended.code, ended.reason.as_str(), ended.is_loss), (1, 2, "for a test", false));
        } else {
            thread::sleep(Duration::from_millis(30));
            mesh.abort(1, 2, "for a test");
            mesh.abort(0, 1, "later");
            assert_eq!(mesh.abort_cause().map(|ended| ended.by), Some(1), "the first cause stays");
        }
    });
}

#[test]
fn an_abort_ends_every_kind_of_wait() {
    aborted(|c| c.barrier(ALL));
    aborted(|c| c.run(ALL, GroupOperation::AllReduce, &numbers(100_000)));
    aborted(|c| c.start(ALL, vec![(GroupOperation::AllReduce, vec![numbers(10)])])?.wait());
    aborted(|c| (0..2).try_for_each(|_| c.send(1, Lane::Activation, &numbers(100))));
    aborted(|c| c.mesh().receive_control(1).map(drop));
}

#[test]
fn a_timeout_names_the_rank_and_its_last_status() {
    world(&with_channel(1, 4), |comm| {
        if comm.rank() == 1 {
            comm.mesh().status().set_phase(RankPhase::Step);
            comm.mesh().status().set_step(12);
            // Until the other one has had its time-out.
            assert_eq!(comm.mesh().receive_control(0).unwrap(), b"over");
            return;
        }
        while comm.mesh().last_seen(1).is_none_or(|seen| seen.status.step != 12) {
            thread::sleep(Duration::from_millis(5));
        }
        comm.mesh().set_operation_timeout(Duration::from_millis(150));
        let error = comm.barrier(ALL).unwrap_err().to_string();
        assert!(error.contains("in all-gather for rank 1, which was last seen in step 12"), "{error}");
        comm.send(1, Lane::Activation, &numbers(1)).unwrap();
        let error = comm.send(1, Lane::Activation, &numbers(1)).unwrap_err();
        assert!(matches!(error, CommError::Timeout { rank: 0, peer: 1, .. }), "{error}");
        assert!(matches!(comm.barrier(ALL), Err(CommError::Closed { .. })), "not another wait of the whole limit");
        comm.mesh().send_control(1, b"over");
    });
}

#[test]
fn a_rank_that_waits_for_one_that_has_left_gets_an_error() {
    world(&with_channel(2, 4), |comm| {
        if comm.rank() == 0 {
            comm.send(1, Lane::Activation, &numbers(1)).unwrap();
            comm.mesh().status().set_phase(RankPhase::Finished);
        } else {
            while comm.mesh().is_connected(0) {
                thread::yield_now();
            }
            comm.receive(0, Lane::Activation, DType::F32, &[1]).unwrap();
            let error = comm.receive(0, Lane::Activation, DType::F32, &[1]).unwrap_err().to_string();
            assert_eq!(error, "rank 1 waits in receive for rank 0, which has left: finished after step 0");
            assert!(matches!(comm.barrier(ALL), Err(CommError::Left { peer: 0, .. })));
        }
    });
}

/// A rank that goes away in the middle does not wait for the others.
#[test]
fn a_dropped_communicator_ends_what_it_started() {
    world(&Topology::everyone(2), |comm| {
        if comm.rank() == 0 {
            let _pending = comm.start(ALL, vec![(GroupOperation::AllReduce, vec![numbers(100_000)])]).unwrap();
        } else {
            let mesh = Arc::clone(comm.mesh());
            while mesh.is_connected(0) {
                thread::yield_now();
            }
        }
    });
}

/// Messages in both directions at once, far more than sockets hold: a sender that has slots does not wait for the receiver.
#[test]
fn senders_with_slots_do_not_block() {
    const N: usize = 1 << 20;
    let channels = vec![channel(0, 1, Lane::Activation, 8, 4 * N), channel(1, 0, Lane::Gradient, 8, 4 * N)];
    let topology = Topology { channels, ..Topology::everyone(2) };
    world(&topology, |comm| {
        let (to, back) =
            if comm.rank() == 0 { (Lane::Activation, Lane::Gradient) } else { (Lane::Gradient, Lane::Activation) };
        let peer = 1 - comm.rank();
        let mine = tensor(DType::F32, 1, comm.rank(), N);
        for _ in 0..8 {
            comm.send(peer, to, &mine).unwrap();
        }
        let theirs = bits(&tensor(DType::F32, 1, peer, N));
        for _ in 0..8 {
            assert!(bits(&comm.receive(peer, back, DType::F32, &[N]).unwrap()) == theirs);
        }
    });
}

/// Two meshes have nothing to do with each other.
#[test]
fn two_runs_work_beside_each_other() {
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| world(&Topology::everyone(2), |comm| comm.barrier(ALL).unwrap()));
        }
    });
}
