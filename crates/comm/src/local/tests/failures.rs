//! Ranks as threads: the errors that they get when something is wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use candle_core::DType;

use crate::communicator::{Communicator, GroupOperation};
use crate::error::CommError;
use crate::local::region::unlinked_file;
use crate::local::{LocalComm, Region};
use crate::rank_status::RankPhase;
use crate::tests::{ALL, Meeting, channel, numbers, with_channel, world};
use runner_spec::topology::{Lane, Topology};

/// Rank 0 waits in `wait`; then the run is aborted because of rank 1.
fn aborted(wait: impl Fn(&LocalComm) -> Result<(), CommError> + Sync) {
    world(&with_channel(1, 400), |comm| {
        if comm.rank() == 0 {
            let result = wait(&comm);
            assert!(matches!(result, Err(CommError::Aborted { by: 1 })), "{result:?}");
            assert!(matches!(comm.barrier(ALL), Err(CommError::Aborted { by: 1 })), "and so is all that follows");
        } else {
            // Also while it waits for an operation that it started.
            while comm.region().snapshot(0).unwrap().waiting_for != Some(1) {
                thread::yield_now();
            }
            comm.region().abort(1);
            comm.region().abort(0);
            assert_eq!(comm.region().aborted(), Some(1), "the first cause stays");
        }
    });
}

#[test]
fn an_abort_ends_every_kind_of_wait() {
    aborted(|c| c.barrier(ALL));
    aborted(|c| c.run(ALL, GroupOperation::AllReduce, &numbers(100_000)));
    aborted(|c| c.start(ALL, vec![(GroupOperation::AllReduce, vec![numbers(10)])])?.wait());
    aborted(|c| (0..2).try_for_each(|_| c.send(1, Lane::Activation, &numbers(100))));
    let topology = Topology { channels: vec![channel(1, 0, Lane::Gradient, 1, 4)], ..Topology::everyone(2) };
    world(&topology, |comm| {
        if comm.rank() == 0 {
            let result = comm.receive(1, Lane::Gradient, DType::F32, &[1]);
            assert!(matches!(result, Err(CommError::Aborted { by: 1 })), "{result:?}");
        } else {
            thread::sleep(Duration::from_millis(5));
            comm.region().abort(1);
        }
    });
}

#[test]
fn a_timeout_names_the_rank_and_its_last_status() {
    let region = Region::anonymous(&with_channel(1, 4)).unwrap();
    let comm = LocalComm::new(Arc::clone(&region), 0).unwrap();
    comm.set_operation_timeout(Duration::from_millis(20));
    let peer = region.status(1).unwrap();
    let error = comm.barrier(ALL).unwrap_err().to_string();
    assert!(error.contains("in all-gather for rank 1, which was last seen starting"), "{error}");
    peer.set_phase(RankPhase::Step);
    peer.set_step(12);
    peer.set_instruction(2, 34);
    peer.record_heartbeat(99);
    comm.send(1, Lane::Activation, &numbers(1)).unwrap();
    let error = comm.send(1, Lane::Activation, &numbers(1)).unwrap_err();
    assert!(matches!(error, CommError::Timeout { rank: 0, peer: 1, .. }));
    let text = error.to_string();
    assert!(text.ends_with("in send for rank 1, which was last seen in step 12, list 2, instruction 34"), "{text}");
    let view = region.snapshot(1).unwrap();
    assert_eq!((view.heartbeat, view.step, view.list, view.index, view.phase), (99, 12, 2, 34, RankPhase::Step));
    // After the barrier that failed, started operations of the group still have a separate order.
    let pending = comm.start(ALL, vec![(GroupOperation::AllReduce, vec![numbers(3)])]).unwrap();
    assert!(matches!(pending.wait(), Err(CommError::Timeout { peer: 1, .. })));
    let pending = comm.start(ALL, vec![(GroupOperation::AllReduce, vec![numbers(3)])]).unwrap();
    assert!(matches!(pending.wait(), Err(CommError::Closed { .. })), "not another wait of the whole timeout");
}

#[test]
fn nothing_continues_after_a_disagreement() {
    world(&Topology::everyone(2), |comm| {
        assert!(comm.run(ALL, GroupOperation::AllReduce, &numbers(1 + comm.rank())).is_err());
        // Both, before one of them leaves.
        assert!(matches!(comm.barrier(ALL), Err(CommError::Closed { .. })));
    });
}

#[test]
fn a_rank_that_waits_for_one_that_has_left_gets_an_error() {
    world(&with_channel(2, 4), |comm| {
        if comm.rank() == 0 {
            comm.send(1, Lane::Activation, &numbers(1)).unwrap();
            comm.status().set_phase(RankPhase::Finished);
        } else {
            while !comm.region().status(0).unwrap().has_left() {
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
    let region = Region::anonymous(&Topology::everyone(2)).unwrap();
    let comm = LocalComm::new(Arc::clone(&region), 0).unwrap();
    let _pending = comm.start(ALL, vec![(GroupOperation::AllReduce, vec![numbers(100_000)])]).unwrap();
    assert_eq!(LocalComm::new(Arc::clone(&region), 0).unwrap_err().to_string(), "rank 0 is taken");
    drop(comm);
    assert_eq!(LocalComm::new(Arc::clone(&region), 0).unwrap_err().to_string(), "rank 0 is taken", "once only");
    assert_eq!(LocalComm::new(region, 2).unwrap_err().to_string(), "there is no rank 2 in a world of 2");
}

#[test]
fn another_topology_or_another_file_is_refused() {
    use std::os::fd::AsRawFd;
    let (region, fd) = Region::shared(&Topology::everyone(2)).unwrap();
    let number = fd.as_raw_fd();
    let same = Region::attach(number, &Topology::everyone(2)).unwrap();
    region.stop().store(true, Ordering::SeqCst);
    assert!(same.stop().load(Ordering::SeqCst), "one memory");
    for other in [Topology::everyone(3), with_channel(1, 1)] {
        let error = Region::attach(number, &other).unwrap_err().to_string();
        assert!(error.ends_with(" is not a region of this run"), "{error}");
    }
    for bytes in [0, 100_000] {
        let file = unlinked_file(bytes).unwrap();
        let result = Region::attach(file.as_raw_fd(), &Topology::everyone(2));
        assert!(result.unwrap_err().to_string().ends_with(" is not a region of this run"));
    }
    let error = Region::attach(-1, &Topology::everyone(2)).unwrap_err().to_string();
    assert!(error.starts_with("attaching to file descriptor -1: "), "{error}");
}
