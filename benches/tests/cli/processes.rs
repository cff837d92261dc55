//! The second process ends with the first, however that ends.

use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use crate::run::{ends, start, within};

#[test]
fn a_server_ends_with_its_stdin() {
    let mut server = start("serve");
    let mut stdin = server.stdin.take().expect("piped");
    let plan = r#"{"system":"tokio","case":"echo","transport":"tcp","channel":null,"alloc":"heap",
        "runtime":"current","bytes":8,"seconds":1.0,"cores":null}"#
        .replace('\n', "");
    writeln!(stdin, "{plan}").expect("it takes its plan");
    let mut greeting = String::new();
    let stdout = server.stdout.take().expect("piped");
    BufReader::new(stdout)
        .read_line(&mut greeting)
        .expect("it greets");
    assert!(
        greeting.starts_with(r#"{"ready":"127.0.0.1:"#),
        "{greeting}"
    );
    assert!(
        server.try_wait().expect("wait").is_none(),
        "it ended too early"
    );
    drop(stdin);
    assert!(ends(&mut server), "it outlived its stdin");
}

#[test]
fn a_server_dies_with_a_parent_that_was_killed() {
    let mut parent = start("baseline --system tokio --size 64 --seconds 60 --json");
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let child = within(Duration::from_secs(10), || {
        let list = std::fs::read_to_string(&children).ok()?;
        list.split_whitespace().next().map(str::to_owned)
    })
    .expect("a second process");
    parent.kill().expect("kill");
    parent.wait().expect("reap");
    let gone = within(Duration::from_secs(5), || {
        // Where nobody reaps orphans it stays behind as a zombie.
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
        let dead = stat.map_or(true, |stat| stat.contains(") Z "));
        dead.then_some(())
    });
    assert!(gone.is_some(), "process {child} outlived its parent");
}
