//! Ranks as processes, which this test program starts as itself.

use std::os::fd::{AsRawFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::DType;

use crate::communicator::{Communicator, GroupOperation};
use crate::error::CommError;
use crate::local::layout::Layout;
use crate::local::region::unlinked_file;
use crate::local::{LocalComm, Region};
use crate::rank_status::RankPhase;
use crate::tests::{ALL, Meeting, bits, channel, expected, tensor};
use runner_spec::topology::{Lane, Topology};

/// "rank descriptor", for a process that is to be a rank.
const ROLE: &str = "RUNNER_TEST_COMM_RANK";

fn topology() -> Topology {
    let channels = vec![channel(0, 1, Lane::Activation, 2, 4000), channel(1, 0, Lane::Gradient, 2, 4000)];
    Topology { channels, ..Topology::everyone(2) }
}

/// The work of a rank, if this process is one: reductions and messages, then a wait that only an abort ends.
#[test]
fn as_a_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (rank, fd) = role.split_once(' ').unwrap();
    let (rank, fd): (usize, RawFd) = (rank.parse().unwrap(), fd.parse().unwrap());
    let comm = LocalComm::new(Region::attach(fd, &topology()).unwrap(), rank).unwrap();
    comm.set_operation_timeout(Duration::from_mins(1));
    comm.status().set_phase(RankPhase::Step);
    for round in 0..20 {
        comm.status().set_step(round as u64);
        let n = 1 + round * 10_000;
        let (x, y) = (tensor(DType::F32, round, rank, n), tensor(DType::F64, round, rank, n));
        let pending = comm.start(ALL, vec![(GroupOperation::AllReduce, vec![x.clone()])]).unwrap();
        comm.run(ALL, GroupOperation::AllReduce, &y).unwrap();
        let sent = tensor(DType::F32, round, rank, 1000);
        let (lane, back) =
            if rank == 0 { (Lane::Activation, Lane::Gradient) } else { (Lane::Gradient, Lane::Activation) };
        comm.send(1 - rank, lane, &sent).unwrap();
        let got = comm.receive(1 - rank, back, DType::F32, &[1000]).unwrap();
        assert_eq!(bits(&got), bits(&tensor(DType::F32, round, 1 - rank, 1000)));
        pending.wait().unwrap();
        assert_eq!(bits(&x), expected(DType::F32, round, &[0, 1], n));
        assert_eq!(bits(&y), expected(DType::F64, round, &[0, 1], n));
    }
    comm.status().set_phase(RankPhase::Periodic);
    if rank == 1 {
        // Killed here.
        thread::sleep(Duration::from_mins(1));
    }
    let error = comm.barrier(ALL).unwrap_err();
    assert!(matches!(error, CommError::Aborted { by: 1 }), "{error}");
    comm.status().set_phase(RankPhase::Finished);
}

/// Lets programs that this process starts inherit the descriptor, under the same number.
fn keep_across_exec(fd: RawFd) {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: sets a flag of a descriptor that is open.
    let status = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    assert_eq!(status, 0);
}

fn start(rank: usize, fd: RawFd) -> Child {
    let name = module_path!().split_once("::").unwrap().1;
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{name}::as_a_rank"), "--nocapture", "--test-threads", "1"])
        .env(ROLE, format!("{rank} {fd}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Two ranks compute; one is killed; the other gets an error.
fn kill_one_of_two(region: &Arc<Region>, fd: RawFd) {
    let mut ranks = [start(0, fd), start(1, fd)];
    let state = |rank: usize| region.snapshot(rank).unwrap();
    while !(state(1).phase == RankPhase::Periodic
        && state(0).waiting_for == Some(1)
        && state(0).phase == RankPhase::Periodic)
    {
        for child in &mut ranks {
            assert_eq!(child.try_wait().unwrap(), None, "a rank failed; what it said is above");
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((state(0).step, state(1).step), (19, 19));
    ranks[1].kill().unwrap();
    assert!(!ranks[1].wait().unwrap().success());
    region.abort(1);
    assert!(ranks[0].wait().unwrap().success());
    assert_eq!(state(0).phase, RankPhase::Finished);
}

#[test]
fn processes_compute_and_one_is_killed() {
    let (region, fd) = Region::shared(&topology()).unwrap();
    keep_across_exec(fd.as_raw_fd());
    kill_one_of_two(&region, fd.as_raw_fd());
    // There is no file whose name could be left: Linux calls it deleted from the start.
    #[cfg(target_os = "linux")]
    {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        assert_eq!(name.to_string_lossy(), "/memfd:runner (deleted)");
        assert_eq!(std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().len() % 4096, 0);
    }
}

/// Systems without files in memory use an unlinked file.
#[test]
fn processes_compute_over_an_unlinked_file() {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt;
    let topology = topology();
    let file = unlinked_file(Layout::new(&topology).unwrap().bytes).unwrap();
    let region = Region::in_file(&file, &topology).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0, "no name");
    let fd = OwnedFd::from(file);
    keep_across_exec(fd.as_raw_fd());
    kill_one_of_two(&region, fd.as_raw_fd());
}
