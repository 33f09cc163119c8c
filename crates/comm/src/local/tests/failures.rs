//! Ranks as threads: what they are told when something is wrong.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};

use crate::communicator::Communicator;
use crate::error::CommError;
use crate::local::region::unlinked_file;
use crate::local::{LocalComm, RankPhase, Region, RegionError};
use crate::tests::{ALL, channel, tensor, world};
use runner_spec::topology::{GroupId, Lane, Topology};

fn with_channel(slots: usize, slot_bytes: usize) -> Topology {
    Topology { channels: vec![channel(0, 1, Lane::Activation, slots, slot_bytes)], ..Topology::everyone(2) }
}

fn numbers(n: usize) -> Tensor {
    tensor(DType::F32, 0, 0, n)
}

/// What ranks 0 and 1 are told if they do `a` and `b` at the same time.
fn disagree(
    a: impl Fn(&LocalComm) -> Result<(), CommError> + Sync,
    b: impl Fn(&LocalComm) -> Result<(), CommError> + Sync,
) -> Vec<String> {
    world(&Topology::everyone(2), |comm| {
        // An operation before it, so that it is not the first.
        comm.barrier(ALL).unwrap();
        let result = if comm.rank() == 0 { a(&comm) } else { b(&comm) };
        match result {
            Err(e @ CommError::Mismatch { .. }) => e.to_string(),
            other => panic!("{other:?}"),
        }
    })
}

#[test]
fn members_that_disagree_are_told_about_both() {
    let told = disagree(|c| c.all_reduce(ALL, &numbers(100)), |c| c.all_reduce(ALL, &numbers(100_000)));
    assert_eq!(
        told,
        [
            "group 0: rank 0 is in all-reduce (number 1, 400 bytes of f32), but rank 1 is in all-reduce (number 1, \
             400000 bytes of f32)",
            "group 0: rank 1 is in all-reduce (number 1, 400000 bytes of f32), but rank 0 is in all-reduce (number 1, \
             400 bytes of f32)",
        ]
    );
    let f64s = |n| tensor(DType::F64, 0, 0, n);
    let told = disagree(|c| c.all_reduce(ALL, &numbers(2)), |c| c.all_reduce(ALL, &f64s(1)));
    assert!(told[0].contains("8 bytes of f32") && told[0].contains("8 bytes of f64"), "{told:?}");
    let told = disagree(|c| c.barrier(ALL), |c| c.all_gather(ALL, b"abc").map(drop));
    assert!(told[0].ends_with("rank 0 is in barrier (number 1), but rank 1 is in all-gather (number 1, 3 bytes)"));
    let told = disagree(|c| c.broadcast(ALL, 0, &numbers(3)), |c| c.broadcast(ALL, 1, &numbers(3)));
    assert!(told[0].contains("root 0") && told[0].contains("root 1"), "{told:?}");
    let start = |c: &LocalComm, n| c.wait(c.start_all_reduce(ALL, vec![numbers(n)])?);
    let told = disagree(move |c| start(c, 5), move |c| start(c, 6));
    assert!(told[1].contains("24 bytes") && told[1].contains("20 bytes"), "{told:?}");
}

#[test]
fn a_message_of_another_size_is_told_with_both() {
    world(&with_channel(2, 40), |comm| {
        if comm.rank() == 0 {
            let error = comm.send(1, Lane::Activation, &numbers(11)).unwrap_err().to_string();
            assert_eq!(
                error,
                "a message of 44 bytes from rank 0 to rank 1 (activation) is longer than the channel's 40"
            );
            comm.send(1, Lane::Activation, &numbers(10)).unwrap();
        } else {
            let error = comm.receive(0, Lane::Activation, DType::F32, &[2, 6]).unwrap_err().to_string();
            assert_eq!(
                error,
                "the next activation message from rank 0 to rank 1 has 40 bytes of f32, but a tensor of shape [2, 6] of f32 \
                 (48 bytes) was expected"
            );
            // As many bytes, of another type.
            let error = comm.receive(0, Lane::Activation, DType::U32, &[2, 5]).unwrap_err().to_string();
            assert!(error.contains("40 bytes of f32") && error.contains("u32"), "{error}");
            assert_eq!(comm.receive(0, Lane::Activation, DType::F32, &[2, 5]).unwrap().dims(), [2, 5]);
        }
    });
}

#[test]
fn wrong_requests_are_refused_alone() {
    let topology = Topology { groups: vec![vec![0, 1], vec![0]], ..with_channel(1, 8) };
    world(&topology, |comm| {
        let text = |r: Result<(), CommError>| r.unwrap_err().to_string();
        if comm.rank() == 1 {
            assert_eq!(text(comm.barrier(GroupId(1))), "rank 1 is not in group 1");
            assert_eq!(text(comm.barrier(GroupId(9))), "rank 1 is not in group 9");
            assert_eq!(
                text(comm.send(0, Lane::Activation, &numbers(1))),
                "there is no activation channel from rank 1 to rank 0"
            );
        }
        assert_eq!(text(comm.reduce(ALL, 2, &numbers(1))), "rank 2 is not in group 0");
        let ids = Tensor::zeros(4, DType::U32, &Device::Cpu).unwrap();
        assert_eq!(text(comm.all_reduce(ALL, &ids)), "all-reduce: sums are of f32 or f64, not u32");
        let halves = Tensor::zeros(4, DType::F16, &Device::Cpu).unwrap();
        assert!(text(comm.broadcast(ALL, 0, &halves)).contains("F16"));
        let strided = numbers(6).reshape((2, 3)).unwrap().t().unwrap();
        assert!(text(comm.all_reduce(ALL, &strided)).contains("[3, 2]"));
        let mixed = vec![numbers(2), tensor(DType::F64, 0, 0, 2)];
        assert!(comm.start_all_reduce(ALL, mixed).unwrap_err().to_string().contains("f32 and f64"));
        // None of them counted as an operation.
        comm.barrier(ALL).unwrap();
    });
}

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
    aborted(|c| c.all_reduce(ALL, &numbers(100_000)));
    aborted(|c| c.wait(c.start_all_reduce(ALL, vec![numbers(10)])?));
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
fn a_timeout_says_who_and_what_it_last_did() {
    let region = Region::anonymous(&with_channel(1, 4)).unwrap();
    let comm = LocalComm::new(Arc::clone(&region), 0).unwrap();
    comm.set_operation_timeout(Duration::from_millis(20));
    let peer = region.status(1).unwrap();
    let error = comm.barrier(ALL).unwrap_err().to_string();
    assert!(error.contains("in barrier for rank 1, which was last seen starting"), "{error}");
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
    // After the barrier that failed, started operations of the group still are an order of their own.
    let pending = comm.start_all_reduce(ALL, vec![numbers(3)]).unwrap();
    assert!(matches!(comm.wait(pending), Err(CommError::Timeout { peer: 1, .. })));
    let pending = comm.start_all_reduce(ALL, vec![numbers(3)]).unwrap();
    assert!(matches!(comm.wait(pending), Err(CommError::Closed { .. })), "not another wait of the whole timeout");
}

#[test]
fn nothing_goes_on_after_a_disagreement() {
    world(&Topology::everyone(2), |comm| {
        assert!(comm.all_reduce(ALL, &numbers(1 + comm.rank())).is_err());
        // Both, before one of them leaves.
        assert!(matches!(comm.barrier(ALL), Err(CommError::Closed { .. })));
    });
}

#[test]
fn who_waits_for_a_rank_that_has_left_is_told() {
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
    let _pending = comm.start_all_reduce(ALL, vec![numbers(100_000)]).unwrap();
    assert!(matches!(LocalComm::new(Arc::clone(&region), 0), Err(RegionError::Taken { rank: 0 })));
    drop(comm);
    LocalComm::new(Arc::clone(&region), 0).unwrap();
    assert!(matches!(LocalComm::new(region, 2), Err(RegionError::NoSuchRank { rank: 2, world_size: 2 })));
}

#[test]
fn another_topology_or_another_file_is_refused() {
    use std::os::fd::AsRawFd;
    let (region, fd) = Region::shared(&Topology::everyone(2)).unwrap();
    let number = fd.as_raw_fd();
    let same = Region::attach(number, &Topology::everyone(2)).unwrap();
    region.stop().store(true, Ordering::SeqCst);
    assert!(same.stop().load(Ordering::SeqCst), "one memory");
    let reversed = Topology { groups: vec![vec![1, 0]], ..Topology::everyone(2) };
    for other in [Topology::everyone(3), with_channel(1, 1), reversed] {
        assert!(matches!(Region::attach(number, &other), Err(RegionError::OtherTopology)));
    }
    for bytes in [0, 100_000] {
        let file = unlinked_file(bytes).unwrap();
        let result = Region::attach(file.as_raw_fd(), &Topology::everyone(2));
        assert!(matches!(result, Err(RegionError::NotARegion { .. })), "{result:?}");
    }
    assert!(matches!(Region::attach(-1, &Topology::everyone(2)), Err(RegionError::Descriptor { .. })));
}
