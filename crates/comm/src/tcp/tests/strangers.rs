//! Processes that do not belong to the run, at the ports of its rendezvous: they neither join it nor keep the ranks from joining.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::{config, free_port};
use crate::tcp::handshake::{Handshake, Introduction, PeerIdentity, RankToken};
use crate::tcp::{JoinConfig, TcpMesh};

const TIMEOUT: Duration = Duration::from_secs(10);

fn connect(port: u16) -> TcpStream {
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn other_token() -> RankToken {
    RankToken::new("job", None)
}

/// The first message of version 4 of the protocol, whose token could be derived by anyone.
fn old_greeting() -> Vec<u8> {
    let token = ["1"; 32].join(",");
    let json = format!(
        "{{\"version\":4,\"world_size\":2,\"rank\":1,\"token\":[{token}],\"port\":1,\
         \"peer\":{{\"local_rank\":1,\"machine\":\"here 1\",\"cores\":\"0-3\"}}}}"
    );
    [&(json.len() as u32).to_le_bytes(), json.as_bytes()].concat()
}

/// Greets like a rank, and introduces itself with a wrong proof.
fn introduce_falsely(port: u16) -> TcpStream {
    let mut handshake = Handshake::connect(connect(port), other_token(), TIMEOUT).unwrap();
    let peer = PeerIdentity::new(1, "here 1", "0-3", "runner");
    handshake.send(&Introduction { world_size: 2, rank: 1, port: 1, peer }).unwrap();
    handshake.into_stream()
}

/// Drops the meshes concurrently, because each waits for the others.
fn leave(meshes: impl IntoIterator<Item = TcpMesh>) {
    thread::scope(|s| {
        for mesh in meshes {
            s.spawn(move || drop(mesh));
        }
    });
}

#[test]
fn strangers_do_not_keep_ranks_from_joining() {
    let port = free_port();
    thread::scope(|s| {
        let zero = s.spawn(|| TcpMesh::join(&config(0, 2, port)).unwrap());
        let silent = connect(port);
        let first_bytes: [&[u8]; 4] = [&[b'x'; 4096], &[0; 252], &old_greeting(), b"GET / HTTP/1.1\r\n\r\n"];
        for bytes in first_bytes {
            let mut stream = connect(port);
            let _ = stream.write_all(bytes);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.is_empty(), "a stranger gets no answer: {answer:?}");
        }
        let greeted = Handshake::connect(connect(port), other_token(), TIMEOUT).unwrap();
        let mut answer = Vec::new();
        let _ = introduce_falsely(port).read_to_end(&mut answer);
        assert!(answer.is_empty(), "nor is one without a proof: {answer:?}");
        let other = JoinConfig { token: other_token(), timeout: Duration::from_millis(200), ..config(1, 2, port) };
        let error = TcpMesh::join(&other).unwrap_err().to_string();
        assert!(
            error.contains("not rank 0 of this run, or has a different token: it closed the connection"),
            "{error}"
        );
        let one = s.spawn(|| TcpMesh::join(&config(1, 2, port)).unwrap());
        leave([zero, one].map(|rank| rank.join().unwrap()));
        drop((silent, greeted));
    });
}

/// Rank 0, on another machine, has ended because it found its port taken.
#[test]
fn a_rank_whose_port_is_taken_says_so() {
    let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = stranger.local_addr().unwrap().port();
    // It closes each connection, until this test ends.
    thread::spawn(move || stranger.incoming().for_each(drop));
    let config = JoinConfig { timeout: Duration::from_secs(1), ..config(1, 2, port) };
    let error = TcpMesh::join(&config).unwrap_err().to_string();
    assert!(error.contains("set `MASTER_PORT` to a port that no other program uses"), "{error}");
}

#[test]
fn a_stranger_is_not_taken_for_rank_0() {
    let (false_leader, port) = (TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), free_port());
    let ports = vec![false_leader.local_addr().unwrap().port(), port];
    thread::scope(|s| {
        let one = s.spawn(|| TcpMesh::join(&JoinConfig { ports, ..config(1, 2, port) }).unwrap());
        // It answers with nothing, with bytes, and like a rank with another token.
        drop(false_leader.accept().unwrap());
        let (mut stream, _) = false_leader.accept().unwrap();
        stream.write_all(&[b'x'; 4096]).unwrap();
        let handshake = Handshake::accept(false_leader.accept().unwrap().0, other_token(), TIMEOUT);
        let peer = PeerIdentity::new(0, "here 0", "0-3", "runner");
        handshake.unwrap().send(&Introduction { world_size: 2, rank: 0, port: 0, peer }).unwrap();
        drop((stream, false_leader));
        let zero = s.spawn(|| TcpMesh::join(&config(0, 2, port)).unwrap());
        leave([zero, one].map(|rank| rank.join().unwrap()));
    });
}

#[test]
fn refused_connections_are_reported_with_the_missing_ranks() {
    let port = free_port();
    let error = thread::scope(|s| {
        let zero = s.spawn(|| TcpMesh::join(&JoinConfig { timeout: Duration::from_secs(1), ..config(0, 2, port) }));
        let _ = introduce_falsely(port).read_to_end(&mut Vec::new());
        zero.join().unwrap().unwrap_err().to_string()
    });
    let expected = "rank 1 did not; a connection was refused, from 127.0.0.1: it did not prove that it knows the token";
    assert!(error.contains(expected), "{error}");
}

/// If the token can be derived, a process that does not fit may be a stranger. It is refused, and the ranks keep waiting.
#[test]
fn without_a_secret_nobody_ends_the_run() {
    let port = free_port();
    let join = |world_size, rank| {
        TcpMesh::join(&JoinConfig { token: RankToken::new("public", None), ..config(rank, world_size, port) })
    };
    thread::scope(|s| {
        let zero = s.spawn(|| join(3, 0).unwrap());
        let of_another_world = join(2, 1).unwrap_err().to_string();
        assert_eq!(of_another_world, "rank 1 was started as one of 2 ranks, but rank 0 as one of 3");
        let one = s.spawn(|| join(3, 1));
        let another = s.spawn(|| join(3, 1));
        while !one.is_finished() && !another.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        let two = s.spawn(|| join(3, 2).unwrap());
        let (ones, refused): (Vec<_>, Vec<_>) =
            [one, another].into_iter().map(|rank| rank.join().unwrap()).partition(Result::is_ok);
        assert_eq!(refused[0].as_ref().unwrap_err().to_string(), "two processes were started as rank 1 of 3");
        leave([zero, two].map(|rank| rank.join().unwrap()).into_iter().chain(ones.into_iter().map(Result::unwrap)));
    });
}

#[test]
fn another_build_of_a_rank_is_an_error_that_names_both() {
    let port = free_port();
    let [zero, one] = [(0, "runner 1"), (1, "runner 2")].map(|(rank, program)| {
        let identity = PeerIdentity::new(rank, "here", "0-3", program);
        thread::spawn(move || TcpMesh::join(&JoinConfig { identity, ..config(rank, 2, port) }).unwrap_err().to_string())
    });
    let error = "rank 1 is runner 2, but rank 0 is runner 1; start the same program for all ranks";
    assert_eq!([zero, one].map(|rank| rank.join().unwrap()), [error; 2]);
}

/// 192.0.2.1 is reserved for examples.
#[test]
fn an_address_of_another_machine_is_reported_by_rank_0() {
    let leader_host = "192.0.2.1".to_owned();
    let config = JoinConfig { leader_host, timeout: Duration::from_millis(200), ..config(0, 2, free_port()) };
    let error = TcpMesh::join(&config).unwrap_err().to_string();
    let expected = "rank 1 did not; rank 0 was started on here, but 192.0.2.1 is not an address of that machine";
    assert!(error.contains(expected), "{error}");
}

/// A rank whose connection breaks while it waits for the others may connect again.
#[test]
fn a_rank_may_come_back() {
    let port = free_port();
    thread::scope(|s| {
        let zero = s.spawn(|| TcpMesh::join(&config(0, 3, port)).unwrap());
        let token = config(1, 3, port).token;
        let mut handshake = Handshake::connect(connect(port), token, TIMEOUT).unwrap();
        let peer = PeerIdentity::new(1, "here 1", "0-3", "runner");
        handshake.send(&Introduction { world_size: 3, rank: 1, port: 1, peer }).unwrap();
        assert_eq!(handshake.receive::<Introduction>(1 << 12, TIMEOUT).unwrap().rank, 0);
        drop(handshake);
        let others = [1, 2].map(|rank| s.spawn(move || TcpMesh::join(&config(rank, 3, port)).unwrap()));
        leave(others.map(|rank| rank.join().unwrap()).into_iter().chain([zero.join().unwrap()]));
    });
}
