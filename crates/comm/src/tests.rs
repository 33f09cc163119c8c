//! Ranks as threads, over every transport on this machine: what the operations compute.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::communicator::{Communicator, GroupOperation};
use super::error::CommError;
use super::local::{LocalComm, Region};
use super::tcp;
use runner_spec::topology::{Channel, GroupId, Lane, Topology};

/// A wait for all members, of whom each gathers nothing from the others.
pub(crate) trait Meeting: Communicator {
    fn barrier(&self, group: GroupId) -> Result<(), CommError> {
        self.all_gather(group, &[]).map(drop)
    }
}

impl<T: Communicator + ?Sized> Meeting for T {}

/// Bytes that both transports pass at a time.
const PIECE: usize = 256 << 10;

pub(super) const ALL: GroupId = GroupId(0);

/// Runs every rank of a world in a separate thread; returns what each returned. A rank that fails does not hang the others for
/// longer than the limit.
pub(super) fn world<R: Send>(topology: &Topology, rank: impl Fn(LocalComm) -> R + Sync) -> Vec<R> {
    let region = Region::anonymous(topology).unwrap();
    let one = |r| {
        let comm = LocalComm::new(Arc::clone(&region), r).unwrap();
        comm.set_operation_timeout(Duration::from_mins(1));
        rank(comm)
    };
    thread::scope(|s| {
        let threads: Vec<_> = (0..topology.world_size).map(|r| s.spawn(move || one(r))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Runs every rank of a world over each transport. Returns what the ranks of each returned.
fn everywhere<R: Send>(topology: &Topology, rank: impl Fn(&dyn Communicator) -> R + Sync) -> Vec<R> {
    let mut all = world(topology, |comm| rank(&comm));
    all.extend(tcp::tests::world(topology, |comm| rank(&comm)));
    all
}

pub(super) fn channel(from: usize, to: usize, lane: Lane, slots: usize, slot_bytes: usize) -> Channel {
    Channel { from, to, lane, slots, slot_bytes }
}

/// Numbers from -1e3 to 1e3 whose sums depend on the order of summands.
fn number(round: usize, rank: usize, i: usize) -> f64 {
    let mut x = ((round * 31 + rank) * 1_000_003 + i) as u64;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x >> 11) as f64 / (1_u64 << 52) as f64 - 1.0) * [1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3, 0.5][x as usize % 8]
}

pub(super) fn tensor(dtype: DType, round: usize, rank: usize, n: usize) -> Tensor {
    let numbers: Vec<f64> = (0..n).map(|i| number(round, rank, i)).collect();
    Tensor::from_vec(numbers, n, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

pub(super) fn bits(t: &Tensor) -> Vec<u64> {
    match t.dtype() {
        DType::F32 => t.to_vec1::<f32>().unwrap().into_iter().map(|x| u64::from(x.to_bits())).collect(),
        DType::BF16 => t.to_vec1::<bf16>().unwrap().into_iter().map(|x| u64::from(x.to_bits())).collect(),
        _ => t.to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect(),
    }
}

/// The serial sum in the order of `ranks`; of bf16 numbers in f32, rounded at the end.
pub(super) fn expected(dtype: DType, round: usize, ranks: &[usize], n: usize) -> Vec<u64> {
    if dtype == DType::F32 {
        let x = |r, i| number(round, r, i) as f32;
        let sum = |i| ranks[1..].iter().fold(x(ranks[0], i), |sum, &r| sum + x(r, i));
        return (0..n).map(|i| u64::from(sum(i).to_bits())).collect();
    }
    if dtype == DType::BF16 {
        let x = |r, i| bf16::from_f64(number(round, r, i)).to_f32();
        let sum = |i| ranks[1..].iter().fold(x(ranks[0], i), |sum, &r| sum + x(r, i));
        return (0..n).map(|i| u64::from(bf16::from_f32(sum(i)).to_bits())).collect();
    }
    let x = |r, i| number(round, r, i);
    let sum = |i| ranks[1..].iter().fold(x(ranks[0], i), |sum, &r| sum + x(r, i));
    (0..n).map(|i| sum(i).to_bits()).collect()
}

/// Nothing, one, odd, a whole piece of f32, one more, several pieces.
const LENGTHS: [usize; 6] = [0, 1, 1003, PIECE / 4, PIECE / 4 + 1, 3 * PIECE / 4 + 77];

#[test]
fn sums_have_the_bits_of_a_serial_sum_in_rank_order() {
    for world_size in 1..=5 {
        let ranks: Vec<usize> = (0..world_size).collect();
        everywhere(&Topology::everyone(world_size), |comm| {
            for (round, n) in LENGTHS.into_iter().enumerate() {
                for dtype in [DType::F32, DType::F64, DType::BF16] {
                    let wanted = expected(dtype, round, &ranks, n);
                    let x = tensor(dtype, round, comm.rank(), n);
                    comm.run(ALL, GroupOperation::AllReduce, &x).unwrap();
                    assert_eq!(bits(&x), wanted, "all-reduce of {n} {dtype:?}, {world_size} ranks");
                    let root = round % world_size;
                    let x = tensor(dtype, round, comm.rank(), n);
                    let before = bits(&x);
                    comm.run(ALL, GroupOperation::Reduce { root }, &x).unwrap();
                    let after = if comm.rank() == root { &wanted } else { &before };
                    assert_eq!(&bits(&x), after, "reduce of {n} {dtype:?}, {world_size} ranks");
                }
            }
        });
    }
    let order = |ranks: &[usize]| expected(DType::F32, 0, ranks, 1003);
    assert_ne!(order(&[0, 1, 2]), order(&[2, 1, 0]), "the numbers must show the order");
}

#[test]
fn the_order_of_sums_is_the_group_s() {
    let groups = vec![vec![0, 1, 2, 3], vec![3, 0, 2], vec![2, 1], vec![1]];
    let topology = Topology { groups: groups.clone(), ..Topology::everyone(4) };
    everywhere(&topology, |comm| {
        for (g, ranks) in groups.iter().enumerate().filter(|(_, ranks)| ranks.contains(&comm.rank())) {
            let x = tensor(DType::F32, g, comm.rank(), 1003);
            comm.run(GroupId(g), GroupOperation::AllReduce, &x).unwrap();
            assert_eq!(bits(&x), expected(DType::F32, g, ranks, 1003), "group {g}");
        }
    });
}

#[test]
fn a_view_is_reduced_and_its_neighbours_are_not() {
    everywhere(&Topology::everyone(2), |comm| {
        let flat = tensor(DType::F32, 0, comm.rank(), 300);
        let before = bits(&flat);
        comm.run(ALL, GroupOperation::AllReduce, &flat.narrow(0, 100, 100).unwrap()).unwrap();
        let after = bits(&flat);
        assert_eq!((&after[..100], &after[200..]), (&before[..100], &before[200..]));
        assert_eq!(after[100..200], expected(DType::F32, 0, &[0, 1], 300)[100..200]);
    });
}

#[test]
fn broadcast_copies_the_root_s_buffer() {
    for world_size in [1, 2, 3, 5] {
        everywhere(&Topology::everyone(world_size), |comm| {
            for (round, n) in LENGTHS.into_iter().enumerate() {
                let root = (round + 1) % world_size;
                let x = tensor(DType::F64, round, comm.rank(), n);
                comm.run(ALL, GroupOperation::Broadcast { root }, &x).unwrap();
                assert_eq!(bits(&x), bits(&tensor(DType::F64, round, root, n)));
                let ids = Tensor::full(comm.rank() as u32, n, &Device::Cpu).unwrap();
                comm.run(ALL, GroupOperation::Broadcast { root }, &ids).unwrap();
                assert_eq!(ids.to_vec1::<u32>().unwrap(), vec![root as u32; n]);
            }
        });
    }
}

#[test]
fn bytes_of_different_lengths_are_gathered_in_order() {
    let mine = |rank: usize, round: usize| -> Vec<u8> {
        let n = [0, 3, PIECE, 4 * PIECE + 1, 2 * PIECE - 1][(rank + round) % 5];
        (0..n).map(|i| (i % 251 + rank) as u8).collect()
    };
    for world_size in [1, 2, 3, 5] {
        everywhere(&Topology::everyone(world_size), |comm| {
            for round in 0..5 {
                let all = comm.all_gather(ALL, &mine(comm.rank(), round)).unwrap();
                let wanted: Vec<_> = (0..world_size).map(|r| mine(r, round)).collect();
                assert!(all == wanted, "{world_size} ranks, round {round}");
                comm.barrier(ALL).unwrap();
            }
            assert!(comm.all_gather(ALL, &[]).unwrap().iter().all(Vec::is_empty));
        });
    }
}

/// Nobody leaves the barrier before the last has come.
#[test]
fn a_barrier_holds_everyone() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let hold = |comm: &dyn Communicator, arrived: &AtomicUsize| {
        for round in 1..=50 {
            thread::sleep(Duration::from_micros((comm.rank() * 37 + round * 11) as u64 % 100));
            arrived.fetch_add(1, Ordering::SeqCst);
            comm.barrier(ALL).unwrap();
            assert!(arrived.load(Ordering::SeqCst) >= 4 * round);
        }
    };
    let (local, tcp) = (AtomicUsize::new(0), AtomicUsize::new(0));
    world(&Topology::everyone(4), |comm| hold(&comm, &local));
    tcp::tests::world(&Topology::everyone(4), |comm| hold(&comm, &tcp));
}

#[test]
fn messages_come_in_the_order_sent_per_lane() {
    let channels = vec![
        channel(0, 1, Lane::Activation, 3, 4000),
        channel(0, 1, Lane::Gradient, 2, 8),
        channel(1, 0, Lane::Gradient, 1, 4),
    ];
    let topology = Topology { channels, ..Topology::everyone(2) };
    everywhere(&topology, |comm| {
        let ids = |v: u32, n: usize| Tensor::full(v, n, &Device::Cpu).unwrap();
        if comm.rank() == 0 {
            // Both fit their channels, so neither blocks, whatever the other rank reads first.
            comm.send(1, Lane::Activation, &tensor(DType::F32, 7, 0, 1000)).unwrap();
            comm.send(1, Lane::Gradient, &tensor(DType::F64, 7, 0, 1)).unwrap();
            for i in 0..200 {
                comm.send(1, Lane::Activation, &ids(i, 1 + i as usize % 5)).unwrap();
                let back = comm.receive(1, Lane::Gradient, DType::U32, &[]).unwrap();
                assert_eq!(back.to_scalar::<u32>().unwrap(), i);
            }
            for i in 0..100 {
                comm.send(1, Lane::Activation, &ids(i, 0)).unwrap();
                comm.send(1, Lane::Activation, &ids(i, 6)).unwrap();
            }
        } else {
            let first = comm.receive(0, Lane::Gradient, DType::F64, &[1]).unwrap();
            assert_eq!(bits(&first), bits(&tensor(DType::F64, 7, 0, 1)));
            let second = comm.receive(0, Lane::Activation, DType::F32, &[10, 100]).unwrap();
            assert_eq!(second.dims(), [10, 100]);
            assert_eq!(bits(&second.flatten_all().unwrap()), bits(&tensor(DType::F32, 7, 0, 1000)));
            for i in 0..200 {
                let n = 1 + i as usize % 5;
                let got = comm.receive(0, Lane::Activation, DType::U32, &[n, 1]).unwrap();
                assert_eq!(got.flatten_all().unwrap().to_vec1::<u32>().unwrap(), vec![i; n]);
                comm.send(0, Lane::Gradient, &ids(i, 1).reshape(()).unwrap()).unwrap();
            }
            for i in 0..100 {
                assert_eq!(comm.receive(0, Lane::Activation, DType::U32, &[0]).unwrap().dims(), [0]);
                let got = comm.receive(0, Lane::Activation, DType::U32, &[2, 3]).unwrap();
                assert_eq!(got.to_vec2::<u32>().unwrap(), [[i; 3]; 2]);
            }
        }
    });
}

/// Started reductions of ranges of one buffer, in which the caller works on other ranges, beside its own reductions in
/// the same group and messages around a ring; everyone delayed at random.
#[test]
fn started_reductions_run_beside_everything_else() {
    const N: usize = PIECE / 4 + 333;
    const RANKS: usize = 3;
    let ranks: Vec<usize> = (0..RANKS).collect();
    let channels = (0..RANKS).map(|r| channel(r, (r + 1) % RANKS, Lane::Activation, 2, 400)).collect();
    let topology = Topology { channels, ..Topology::everyone(RANKS) };
    everywhere(&topology, |comm| {
        let me = comm.rank();
        let mut seed = me as u64 + 1;
        let mut pause = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if seed >> 62 == 0 {
                thread::sleep(Duration::from_micros(seed >> 40 & 511));
            }
        };
        for round in 0..15 {
            let flat = tensor(DType::F32, round, me, 4 * N);
            let part = |i: usize, n: usize| flat.narrow(0, i * N, n).unwrap();
            let first = comm.start(ALL, vec![(GroupOperation::AllReduce, vec![part(3, N), part(2, 10)])]).unwrap();
            pause();
            let second = comm.start(ALL, vec![(GroupOperation::AllReduce, vec![part(1, N)])]).unwrap();
            let own = tensor(DType::F64, round, me, 1003);
            comm.run(ALL, GroupOperation::AllReduce, &own).unwrap();
            assert_eq!(bits(&own), expected(DType::F64, round, &ranks, 1003));
            // Writes into the buffer that is being reduced.
            part(0, N).inplace_op1(&Negate).unwrap();
            pause();
            comm.send((me + 1) % RANKS, Lane::Activation, &tensor(DType::F32, round, me, 100)).unwrap();
            let from = (me + RANKS - 1) % RANKS;
            let got = comm.receive(from, Lane::Activation, DType::F32, &[100]).unwrap();
            assert_eq!(bits(&got), bits(&tensor(DType::F32, round, from, 100)));
            pause();
            second.wait().unwrap();
            first.wait().unwrap();
            let (got, sums) = (bits(&flat), expected(DType::F32, round, &ranks, 4 * N));
            let mine = bits(&tensor(DType::F32, round, me, 4 * N));
            let negated: Vec<u64> = mine[..N].iter().map(|b| b ^ 1 << 31).collect();
            assert!(got[..N] == negated, "the caller's own range, round {round}");
            assert!(got[N..2 * N] == sums[N..2 * N], "the second, round {round}");
            assert!(got[2 * N..2 * N + 10] == sums[2 * N..2 * N + 10], "the end of the first, round {round}");
            assert!(got[2 * N + 10..3 * N] == mine[2 * N + 10..3 * N], "nobody's range, round {round}");
            assert!(got[3 * N..] == sums[3 * N..], "the first, round {round}");
        }
    });
}

struct Negate;

impl candle_core::InplaceOp1 for Negate {
    fn name(&self) -> &'static str {
        "negate"
    }

    fn cpu_fwd(&self, storage: &mut candle_core::CpuStorage, layout: &candle_core::Layout) -> candle_core::Result<()> {
        let (start, end) = layout.contiguous_offsets().unwrap();
        let candle_core::CpuStorage::F32(x) = storage else { panic!("f32") };
        x[start..end].iter_mut().for_each(|x| *x = -*x);
        Ok(())
    }
}

/// Many short operations, everyone delayed at random: each has its own numbers, so that one round's cannot pass for
/// another's.
#[test]
fn many_rounds_under_random_delays() {
    let ranks = [0, 1, 2, 3];
    everywhere(&Topology::everyone(4), |comm| {
        let mut seed = comm.rank() as u64 + 77;
        for round in 0..400 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match seed >> 61 {
                0 => thread::sleep(Duration::from_micros(seed >> 30 & 127)),
                1 => thread::yield_now(),
                _ => {}
            }
            let x = tensor(DType::F32, round, comm.rank(), 17 + round % 50);
            comm.run(ALL, GroupOperation::AllReduce, &x).unwrap();
            assert_eq!(bits(&x), expected(DType::F32, round, &ranks, 17 + round % 50), "round {round}");
        }
    });
}

#[test]
fn time_in_operations_is_counted() {
    let waited = everywhere(&Topology::everyone(2), |comm| {
        if comm.rank() == 0 {
            thread::sleep(Duration::from_millis(30));
        }
        assert_eq!(comm.waited(), Duration::ZERO);
        comm.barrier(ALL).unwrap();
        comm.waited()
    });
    assert!(waited.iter().all(|w| *w > Duration::ZERO), "{waited:?}");
}

pub(super) fn with_channel(slots: usize, slot_bytes: usize) -> Topology {
    Topology { channels: vec![channel(0, 1, Lane::Activation, slots, slot_bytes)], ..Topology::everyone(2) }
}

pub(super) fn numbers(n: usize) -> Tensor {
    tensor(DType::F32, 0, 0, n)
}

/// The errors of ranks 0 and 1 if they do `a` and `b` at the same time.
fn disagree(
    a: impl Fn(&dyn Communicator) -> Result<(), CommError> + Sync,
    b: impl Fn(&dyn Communicator) -> Result<(), CommError> + Sync,
) -> Vec<String> {
    everywhere(&Topology::everyone(2), |comm| {
        // An operation before it, so that it is not the first.
        comm.barrier(ALL).unwrap();
        let result = if comm.rank() == 0 { a(comm) } else { b(comm) };
        match result {
            Err(e @ CommError::Mismatch { .. }) => e.to_string(),
            other => panic!("{other:?}"),
        }
    })
}

#[test]
fn the_error_of_members_that_disagree_names_both() {
    let told = disagree(
        |c| c.run(ALL, GroupOperation::AllReduce, &numbers(100)),
        |c| c.run(ALL, GroupOperation::AllReduce, &numbers(100_000)),
    );
    let (a, b) = ("all-reduce (number 1, 400 bytes of f32)", "all-reduce (number 1, 400000 bytes of f32)");
    let of_ranks = [
        format!("group 0: rank 0 is in {a}, but rank 1 is in {b}"),
        format!("group 0: rank 1 is in {b}, but rank 0 is in {a}"),
    ];
    assert_eq!(told, [of_ranks.clone(), of_ranks].concat());
    let f64s = |n| tensor(DType::F64, 0, 0, n);
    let told = disagree(
        |c| c.run(ALL, GroupOperation::AllReduce, &numbers(2)),
        |c| c.run(ALL, GroupOperation::AllReduce, &f64s(1)),
    );
    assert!(told[0].contains("8 bytes of f32") && told[0].contains("8 bytes of f64"), "{told:?}");
    let told = disagree(
        |c| c.run(ALL, GroupOperation::Reduce { root: 0 }, &numbers(3)),
        |c| c.all_gather(ALL, b"abc").map(drop),
    );
    let both =
        "rank 0 is in reduce (number 1, 12 bytes of f32, root 0), but rank 1 is in all-gather (number 1, 3 bytes)";
    assert!(told[0].ends_with(both), "{told:?}");
    let told = disagree(
        |c| c.run(ALL, GroupOperation::Broadcast { root: 0 }, &numbers(3)),
        |c| c.run(ALL, GroupOperation::Broadcast { root: 1 }, &numbers(3)),
    );
    assert!(told[0].contains("root 0") && told[0].contains("root 1"), "{told:?}");
    let start = |c: &dyn Communicator, n| c.start(ALL, vec![(GroupOperation::AllReduce, vec![numbers(n)])])?.wait();
    let told = disagree(move |c| start(c, 5), move |c| start(c, 6));
    assert!(told[1].contains("24 bytes") && told[1].contains("20 bytes"), "{told:?}");
}

#[test]
fn the_error_of_a_message_of_a_different_size_names_both_sizes() {
    everywhere(&with_channel(2, 40), |comm| {
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
            // The tensor has as many bytes, of another type.
            let error = comm.receive(0, Lane::Activation, DType::U32, &[2, 5]).unwrap_err().to_string();
            assert!(error.contains("40 bytes of f32") && error.contains("u32"), "{error}");
            assert_eq!(comm.receive(0, Lane::Activation, DType::F32, &[2, 5]).unwrap().dims(), [2, 5]);
        }
    });
}

#[test]
fn only_wrong_requests_are_refused() {
    let topology = Topology { groups: vec![vec![0, 1], vec![0]], ..with_channel(1, 8) };
    everywhere(&topology, |comm| {
        let text = |r: Result<(), CommError>| r.unwrap_err().to_string();
        if comm.rank() == 1 {
            assert_eq!(text(comm.barrier(GroupId(1))), "rank 1 is not in group 1");
            assert_eq!(text(comm.barrier(GroupId(9))), "rank 1 is not in group 9");
            assert_eq!(
                text(comm.send(0, Lane::Activation, &numbers(1))),
                "there is no activation channel from rank 1 to rank 0"
            );
        }
        assert_eq!(text(comm.run(ALL, GroupOperation::Reduce { root: 2 }, &numbers(1))), "rank 2 is not in group 0");
        let ids = Tensor::zeros(4, DType::U32, &Device::Cpu).unwrap();
        assert_eq!(
            text(comm.run(ALL, GroupOperation::AllReduce, &ids)),
            "all-reduce: sums must be of f32, f64 or bf16, got u32"
        );
        let halves = Tensor::zeros(4, DType::F16, &Device::Cpu).unwrap();
        assert!(text(comm.run(ALL, GroupOperation::Broadcast { root: 0 }, &halves)).contains("F16"));
        let strided = numbers(6).reshape((2, 3)).unwrap().t().unwrap();
        assert!(text(comm.run(ALL, GroupOperation::AllReduce, &strided)).contains("[3, 2]"));
        let mixed = vec![numbers(2), tensor(DType::F64, 0, 0, 2)];
        assert!(
            comm.start(ALL, vec![(GroupOperation::AllReduce, mixed)]).unwrap_err().to_string().contains("f32 and f64")
        );
        // These requests counted as no operations.
        comm.barrier(ALL).unwrap();
    });
}
