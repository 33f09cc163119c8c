//! Not tests but measurements, of ranks that mpirun started: `mpirun -n 2 TEST_PROGRAM mpi::tests --ignored --nocapture`.

use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};

use super::link::MpiLink;
use crate::communicator::Communicator;
use crate::tcp::{JoinConfig, PeerIdentity, RankToken, TcpComm, TcpMesh};
use crate::tests::ALL;
use runner_spec::topology::Topology;

const BYTES: usize = 64 << 20;
const ROUNDS: usize = 15;

fn number(names: [&str; 2]) -> usize {
    names.iter().find_map(|name| env::var(name).ok()).expect("started by mpirun").parse().unwrap()
}

/// The median time of an all-reduce, over MPI or over TCP.
fn measure(over_mpi: bool, port: u16) {
    let rank = number(["OMPI_COMM_WORLD_RANK", "PMI_RANK"]);
    let world_size = number(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]);
    let config = JoinConfig {
        rank,
        world_size,
        identity: PeerIdentity::new(rank, "here", "", ""),
        leader_host: "localhost".to_owned(),
        ports: vec![port],
        token: RankToken::new("bandwidth", Some("of this machine")),
        timeout: Duration::from_mins(1),
        heartbeat_timeout: Duration::from_secs(30),
        report_wait: |_| (),
        wait_hint: "",
    };
    let link = over_mpi.then(|| MpiLink::start((rank, world_size), vec![port], String::new(), |_| ()).unwrap());
    let mut mesh = TcpMesh::join(&config).unwrap();
    if let Some(link) = link {
        link.carry(&mut mesh);
    }
    let mesh = Arc::new(mesh);
    let comm = TcpComm::new(Arc::clone(&mesh), "plan", &Topology::everyone(world_size)).unwrap();
    let x = Tensor::ones(BYTES / 4, DType::F32, &Device::Cpu).unwrap();
    let small = Tensor::ones(16, DType::F32, &Device::Cpu).unwrap();
    let median = |tensor: &Tensor| {
        let mut seconds: Vec<f64> = std::iter::repeat_with(|| {
            comm.all_gather(ALL, &[]).unwrap();
            let started = Instant::now();
            comm.all_reduce(ALL, tensor).unwrap();
            started.elapsed().as_secs_f64()
        })
        .take(ROUNDS)
        .collect();
        seconds.sort_by(f64::total_cmp);
        seconds[ROUNDS / 2]
    };
    let (long, short) = (median(&x), median(&small));
    let others = || (0..world_size).filter(|peer| *peer != rank);
    others().for_each(|peer| mesh.send_control(peer, b"done"));
    others().for_each(|peer| drop(mesh.receive_control(peer).unwrap()));
    if rank == 0 {
        println!(
            "all-reduce of 64 MiB over {}, {world_size} ranks: {:.1} ms, {:.2} GB/s of buffer; of 64 bytes: {:.0} µs",
            if over_mpi { "MPI" } else { "TCP" },
            long * 1e3,
            BYTES as f64 / 1e9 / long,
            short * 1e6
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn bandwidth_of_mpi() {
    measure(true, 20_755);
}

#[test]
#[ignore = "a measurement"]
fn bandwidth_of_tcp() {
    measure(false, 20_756);
}
