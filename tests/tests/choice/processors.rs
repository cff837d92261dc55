//! Whether `cma` reads ordinary memory depends on the processors of the two processes. Here pinned threads stand in for processes.

use std::sync::mpsc;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tensorpipe::{
    Context, ContextBuilder, Device, Error, Route,
    channels::{Pays, Threshold},
    device::MemoryKind,
    route::Carrier,
};

use super::scene::{between_processes, lends_no_copies, soon, transport, url};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The numbers of those that this process may use.
fn usable() -> Vec<usize> {
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let numbers = 0..CpuSet::count();
    numbers.filter(|at| all.is_set(*at).unwrap()).collect()
}

/// Runs `end` on a thread that is bound to these processors, with everything that it starts.
fn bound<T: Send + 'static>(
    to: &[usize],
    end: impl Future<Output = T> + Send + 'static,
) -> std::thread::JoinHandle<T> {
    let mut set = CpuSet::new();
    to.iter().for_each(|number| set.set(*number).unwrap());
    std::thread::spawn(move || {
        sched_setaffinity(Pid::from_raw(0), &set).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(end)
    })
}

/// Both ends' routes: of the one that connects, and of the one that listens.
fn routes(
    name: &'static str,
    ends: [&[usize]; 2],
    wishes: fn(ContextBuilder) -> ContextBuilder,
) -> [Route; 2] {
    let builder = move || {
        let builder = Context::builder().transports([transport(name)]);
        lends_no_copies(builder.channels(between_processes()))
    };
    let (tell, told) = mpsc::channel();
    let listens = bound(ends[1], async move {
        let context = builder().build().unwrap();
        let listener = soon("listen", context.listen([url(name)])).await.unwrap();
        tell.send(listener.url().to_string()).unwrap();
        let pipe = soon("a pipe", listener.accept()).await.unwrap();
        let route = Route::clone(pipe.route());
        // Nothing but its end comes.
        let end = soon("the end", pipe.read_descriptor()).await;
        assert!(matches!(end, Err(Error::Closed { .. })), "{end:?}");
        route
    });
    let url = told.recv().unwrap();
    let connects = bound(ends[0], async move {
        let context = wishes(builder()).build().unwrap();
        let pipe = soon("a pipe", context.connect(url)).await.unwrap();
        let route = Route::clone(pipe.route());
        soon("the end", pipe.close()).await.unwrap();
        route
    });
    [connects, listens].map(|end| end.join().unwrap())
}

/// From which size on ordinary memory is read by the other end.
fn read_from(route: &Route) -> Option<u64> {
    let bands = route.choice.bands().into_iter();
    let mut read = bands.filter(|band| band.carrier == Carrier::Channel("cma"));
    let first = read.find(|band| band.memory == MemoryKind::Heap)?;
    let start = *first.sizes.start();
    let ends = [(start - 1, "basic"), (start, "cma")];
    for (len, name) in ends {
        let carrier = route
            .choice
            .carrier(Device::CPU, MemoryKind::Heap, Device::CPU, len);
        assert_eq!(carrier, Carrier::Channel(name), "{route}");
    }
    Some(start)
}

#[test]
fn a_reader_with_several_reads_and_one_with_its_own_does_not() {
    let all = usable();
    let [one, other, ..] = all[..] else {
        println!("skipped: this process may use one processor, take it to a machine with two");
        return;
    };
    for (name, several) in [("shm", 8 * MIB), ("tcp", 4 * MIB)] {
        for (ends, reads) in [
            ([&all[..], &all[..]], [Some(several); 2]),
            // What an end sends is read by the other one.
            ([&[one], &all], [Some(several), None]),
            ([&all, &[one]], [None, Some(several)]),
            ([&[one], &[other]], [None; 2]),
            ([&[one], &[one]], [Some(MIB); 2]),
        ] {
            let routes = routes(name, ends, |builder| builder);
            let found = [read_from(&routes[0]), read_from(&routes[1])];
            assert_eq!(found, reads, "{name} {ends:?}:\n{}", routes[0]);
        }
        // A context has the last word.
        let wish = |builder: ContextBuilder| {
            let wish = Threshold::new(Pays::From(100 * KIB));
            builder.threshold("cma", wish)
        };
        let routes = routes(name, [&[one], &[other]], wish);
        let found = [read_from(&routes[0]), read_from(&routes[1])];
        assert_eq!(found, [Some(100 * KIB), None]);
    }
}
