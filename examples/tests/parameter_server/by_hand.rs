//! Server and workers started one by one, in any order, with hostile peers around.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::run::{BOUND, Run, json};

#[test]
fn roles_by_hand_train_too() {
    let listen = [
        "--role",
        "server",
        "--listen",
        "tcp://127.0.0.1:0",
        "--steps",
        "600",
        "--json",
    ];
    let mut server = Run::start(&listen);
    let url = server
        .output_line()
        .strip_prefix("listening on ")
        .unwrap()
        .to_owned();
    let connect = ["--role", "worker", "--connect", &url];
    let mut short = Run::start(&[&connect[..], &["--steps", "50"]].concat());
    let mut other = Run::start(&connect);
    for (worker, words) in [
        (&mut short, "done, after 50 steps"),
        (&mut other, "done, after 5"),
    ] {
        let (status, _) = worker.wait();
        assert!(status.success(), "{}", worker.said());
        assert!(worker.said().contains(words), "{}", worker.said());
    }
    let (status, output) = server.wait();
    assert!(status.success(), "{}", server.said());
    let result = json(&output);
    assert_eq!(
        (result["steps"].as_u64(), result["workers"].as_u64()),
        (Some(600), Some(2))
    );
    assert!(result["accuracy"].as_f64().unwrap() >= 0.95, "{result}");
}

#[test]
fn a_worker_waits_for_its_server() {
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}");
    let mut worker = Run::start(&["--role", "worker", "--connect", &url]);
    worker.hear(&format!("no pipe to {url} yet"));
    let mut server = Run::start(&["--role", "server", "--listen", &url, "--steps", "300"]);
    let (status, _) = worker.wait();
    assert!(status.success(), "{}", worker.said());
    assert!(
        worker.said().contains("done, after 300 steps"),
        "{}",
        worker.said()
    );
    let (status, output) = server.wait();
    assert!(status.success(), "{}", server.said());
    assert!(output.contains("300 steps of 1 workers in"), "{output}");
}

#[test]
fn a_hostile_peer_at_the_port_disturbs_nobody() {
    let mut server = Run::start(&[
        "--role",
        "server",
        "--listen",
        "tcp://127.0.0.1:0",
        "--steps",
        "300",
    ]);
    let url = server
        .output_line()
        .strip_prefix("listening on ")
        .unwrap()
        .to_owned();
    let mut hostile = TcpStream::connect(url.strip_prefix("tcp://").unwrap()).unwrap();
    hostile.set_read_timeout(Some(BOUND)).unwrap();
    hostile
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    // Closed, with or without a word, at once: the server need not wait to see that this is none of its workers.
    let begun = Instant::now();
    let _ = hostile.read_to_end(&mut Vec::new());
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let mut worker = Run::start(&["--role", "worker", "--connect", &url]);
    let (status, _) = worker.wait();
    assert!(status.success(), "{}", worker.said());
    let (status, _) = server.wait();
    assert!(status.success(), "{}", server.said());
}

#[test]
fn a_worker_tells_a_hostile_peer_from_its_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let mut worker = Run::start(&["--role", "worker", "--connect", &url]);
    let (mut hostile, _) = listener.accept().unwrap();
    hostile
        .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .unwrap();
    let (status, _) = worker.wait();
    assert_eq!(status.code(), Some(1));
    let said = worker.said();
    assert!(
        said.contains(&format!("error: cannot reach the server at {url}")),
        "{said}"
    );
    assert!(said.contains("does not speak this protocol"), "{said}");
}

/// One that nobody listens at, for now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
