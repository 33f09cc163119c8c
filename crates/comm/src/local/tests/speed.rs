//! Not tests but measurements: `cargo test --release --lib local::tests::speed -- --ignored --nocapture`.

use std::time::Instant;

use candle_core::{DType, Device, Tensor};

use crate::communicator::{Communicator, GroupOperation};
use crate::tests::{ALL, Meeting, channel, world};
use runner_spec::topology::{Lane, Topology};

const BYTES: usize = 64 << 20;
const ROUNDS: usize = 15;

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn time(mut f: impl FnMut()) -> f64 {
    let one = |()| {
        let started = Instant::now();
        f();
        started.elapsed().as_secs_f64()
    };
    median(std::iter::repeat_n((), ROUNDS).map(one).collect())
}

#[test]
#[ignore = "a measurement"]
fn measures_the_bandwidth() {
    let gigabytes = BYTES as f64 / 1e9;
    let copies = world(&Topology::everyone(2), |comm| {
        let from = vec![1_u8; BYTES];
        let mut to = vec![2_u8; BYTES];
        comm.barrier(ALL).unwrap();
        time(|| std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from)))
    });
    println!("memcpy of 64 MiB, two threads at once: {:.2} GB/s each", gigabytes / copies[0]);
    for world_size in [2, 4] {
        let times = world(&Topology::everyone(world_size), |comm| {
            let x = Tensor::ones(BYTES / 4, DType::F32, &Device::Cpu).unwrap();
            comm.barrier(ALL).unwrap();
            let direct = time(|| comm.run(ALL, GroupOperation::AllReduce, &x).unwrap());
            let started =
                time(|| comm.start(ALL, vec![(GroupOperation::AllReduce, vec![x.clone()])]).unwrap().wait().unwrap());
            (direct, started)
        });
        let (direct, started) = times[0];
        println!(
            "all-reduce of 64 MiB, {world_size} ranks: {:.1} ms, {:.2} GB/s of buffer; started: {:.1} ms",
            direct * 1e3,
            gigabytes / direct,
            started * 1e3
        );
        let small = world(&Topology::everyone(world_size), |comm| {
            let x = Tensor::ones(16, DType::F32, &Device::Cpu).unwrap();
            comm.barrier(ALL).unwrap();
            time(|| (0..1000).for_each(|_| comm.run(ALL, GroupOperation::AllReduce, &x).unwrap()))
        });
        println!("all-reduce of 64 bytes, {world_size} ranks: {:.1} µs", small[0] * 1e3);
    }
    let channels = vec![channel(0, 1, Lane::Activation, 2, BYTES / 8)];
    let sends = world(&Topology { channels, ..Topology::everyone(2) }, |comm| {
        let x = Tensor::ones(BYTES / 32, DType::F32, &Device::Cpu).unwrap();
        time(|| {
            if comm.rank() == 0 {
                (0..8).for_each(|_| comm.send(1, Lane::Activation, &x).unwrap());
            } else {
                (0..8).for_each(|_| drop(comm.receive(0, Lane::Activation, DType::F32, &[BYTES / 32]).unwrap()));
            }
        })
    });
    println!("messages of 8 MiB: {:.2} GB/s", gigabytes / sends[1]);
}
