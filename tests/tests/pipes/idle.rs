//! Idle pipes cost nothing: a process with many of them sleeps.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tensorpipe_tests::{Child, say};

use super::*;

const PIPES: usize = 10;

const WATCHED: Duration = Duration::from_secs(2);

/// The child: nothing else runs in it.
pub(crate) fn play() {
    current_thread().block_on(async {
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
        let (wakes, busy) = use_of(WATCHED).await;
        say("wakes", wakes);
        say("micros", busy.as_micros());
    });
}

/// How often a thread of this process was woken meanwhile, and the CPU time of all: who never sleeps is not woken.
pub(crate) async fn use_of(pause: Duration) -> (i64, Duration) {
    let used = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        let times = [usage.user_time(), usage.system_time()];
        let times = times.map(|time| Duration::from_micros(time.num_microseconds() as u64));
        (usage.voluntary_context_switches(), times[0] + times[1])
    };
    let before = used();
    tokio::time::sleep(pause).await;
    let after = used();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn idle_pipes_let_their_process_sleep() {
    let child = Child::start("idle", &[]);
    let [wakes, micros] = ["wakes", "micros"].map(|key| child.hear(key).parse::<u64>().unwrap());
    println!("{wakes} wake-ups, {micros} us of CPU time in {WATCHED:?}");
    // Of 20 ends and their clocks.
    assert!(wakes <= 40, "{wakes} wake-ups");
    // Half a percent of a processor.
    let most = WATCHED.as_micros() as u64 / 200;
    assert!(micros <= most, "{micros} us of CPU time, of {most}");
}
