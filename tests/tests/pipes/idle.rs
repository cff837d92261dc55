//! Pipes on which nothing is said cost nothing: a process that has many of them sleeps.

use nix::sys::resource::{UsageWho, getrusage};
use tensorpipe_tests::{Child, say};

use super::*;

const PIPES: usize = 10;

const WATCHED: Duration = Duration::from_secs(2);

/// The child: nothing else runs in it.
pub(crate) fn play() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let context = over_shm().build().unwrap();
        let mut pipes = Vec::new();
        for number in 0..PIPES as u64 {
            let (client, server) = pair(&context, &context).await;
            round_trips(&client, &server, 20).await;
            exchange(&client, &server, number, 100_000).await;
            pipes.push((client, server));
        }
        // Polling is given up.
        pause(500).await;
        let usage = || {
            let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
            let times = [usage.user_time(), usage.system_time()];
            let micros = times.map(|time| time.tv_sec() * 1_000_000 + time.tv_usec());
            (usage.voluntary_context_switches(), micros[0] + micros[1])
        };
        let before = usage();
        tokio::time::sleep(WATCHED).await;
        let after = usage();
        say("wakes", after.0 - before.0);
        say("micros", after.1 - before.1);
    });
}

#[test]
fn idle_pipes_let_their_process_sleep() {
    let child = Child::start("idle", &[]);
    let [wakes, micros] = ["wakes", "micros"].map(|key| child.hear(key).parse::<u64>().unwrap());
    println!("{wakes} wake-ups, {micros} us of CPU time in {WATCHED:?}");
    // Of 20 ends and their clocks.
    assert!(wakes <= 40, "{wakes} wake-ups");
    // Half a percent of a processor: who never sleeps is not woken.
    let most = WATCHED.as_micros() as u64 / 200;
    assert!(micros <= most, "{micros} us of CPU time, of {most}");
}
