//! CUDA devices, on a driver for tests (`tests/cuda-driver`): each story is a child, whose loader finds that driver.
#![allow(missing_docs, reason = "a test")]

mod across;
#[allow(dead_code, reason = "the suites are run elsewhere")]
mod bench;
mod calls;
mod channels;
mod driver;
mod fixture;
mod foreign;
mod ipc;
mod liars;
mod segments;
mod slices;
mod unfinished;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tensorpipe::conformance::device::{self, Subject};
use tensorpipe::device::cuda::{CudaDevices, Unavailable};
use tensorpipe::{Context, Message};
use tensorpipe_test_cuda::Driver;
use tensorpipe_tests::{Child, Fate, forbid, runtime, say};

use driver::{faults, waits};
use fixture::CudaFixture;

/// A story told by a child, on whose devices nothing goes wrong.
fn tell(role: &str) {
    let driver = Driver::load();
    let child = play(&driver, role, &[]);
    ends_well(&child, role);
}

/// It has told its story, did nothing wrong on the devices, and waited for none.
fn ends_well(child: &Child, role: &str) {
    assert_eq!(child.hear("told"), role);
    assert_eq!(child.hear("faults"), "");
    assert_eq!(child.hear("waits"), "0", "calls that wait for a device");
}

/// Tells it, and asks for faults when all that it had is gone, the last of it behind its work.
fn told(role: &str, story: fn()) {
    story();
    std::thread::sleep(std::time::Duration::from_millis(50));
    say("told", role);
    say("faults", faults().join("; "));
    say("waits", waits());
}

#[test]
fn child() {
    match tensorpipe_tests::role().as_deref() {
        None => {}
        Some("suite") => runtime().block_on(suite()),
        Some("pairs") => told("pairs", || {
            runtime().block_on(channels::every_pair_has_a_way());
        }),
        Some("ordinary peer") => told("ordinary peer", || {
            runtime().block_on(channels::with_an_ordinary_peer());
        }),
        Some("required") => told("required", || runtime().block_on(channels::required())),
        Some("route") => runtime().block_on(route()),
        Some("calls serves") => calls::serves(),
        Some("ipc reads") => ipc::reads(),
        Some("ipc lends") => ipc::lends(),
        Some("across") => told("across", across::echoes),
        Some("foreign goes") => told("foreign goes", foreign::goes),
        Some("foreign lends") => foreign::lends(),
        Some("never ends") => unfinished::never_ends(),
        Some("handed over") => told("handed over", || {
            runtime().block_on(channels::handed_over());
        }),
        Some("full") => told("full", || runtime().block_on(channels::full())),
        Some("fails") => told("fails", || runtime().block_on(channels::calls_fail())),
        Some("pieces") => told("pieces", || {
            runtime().block_on(channels::pieces_to_main_memory());
        }),
        Some("hot") => told("hot", || runtime().block_on(channels::nobody_waits())),
        Some("first") => told("first", || {
            runtime().block_on(channels::nobody_waits_at_first());
        }),
        Some("late") => told("late", || {
            runtime().block_on(channels::a_late_source_holds_up_nobody());
        }),
        Some("still") => told("still", || {
            runtime().block_on(channels::a_device_that_stands_still_takes_little());
        }),
        Some("counts") => counts(),
        Some("opens") => opens(),
        Some("opens no file") => opens_no_file(),
        Some("slices") => told("slices", slices::there_and_back),
        Some("dropped") => told("dropped", slices::dropped_under_work),
        Some("filled") => told("filled", slices::filled_by_hand),
        Some("read") => told("read", slices::read_by_hand),
        Some("given up") => told("given up", slices::given_up),
        Some("sources") => told("sources", slices::sources_are_kept),
        Some("copied") => told("copied", slices::copied_to_another_device),
        Some("panics") => told("panics", slices::a_callback_panics),
        Some("dlpack") => told("dlpack", slices::by_dlpack),
        Some("of devices") => told("of devices", slices::borrowed_by_device),
        Some("outlive") => told("outlive", slices::outlive_their_devices),
        Some("two") => told("two", slices::two_streams_of_cudarcs),
        Some("ordinary") => runtime().block_on(ordinary()),
        Some(role) => panic!("no role {role}"),
    }
}

/// Plays a role where this driver is found, and others are not.
fn play(driver: &Driver, role: &str, variables: &[(&str, &str)]) -> Child {
    let path = driver.path();
    let path = path.to_str().expect("a path of letters");
    let variables = [variables, &[("LD_LIBRARY_PATH", path)]].concat();
    Child::start(role, &variables)
}

async fn suite() {
    let names = device::all(|| Subject::new(CudaFixture::on(&CudaDevices::open().unwrap()))).await;
    say("scenarios", names.len());
    say("faults", faults().join("; "));
    say("waits", waits());
}

#[test]
fn the_device_suite_holds() {
    let driver = Driver::load();
    let child = play(&driver, "suite", &[]);
    assert_eq!(child.hear("scenarios"), device::SCENARIOS.len().to_string());
    assert_eq!(child.hear("faults"), "");
    assert_eq!(child.hear("waits"), "0");
}

#[test]
fn within_a_process_memory_is_handed_over() {
    for (peers, is_direct) in [("", false), ("0-1,1-0", true)] {
        let driver = Driver::load();
        let child = play(&driver, "handed over", &[("TEST_CUDA_PEERS", peers)]);
        let detours: u64 = child.hear("detours").parse().expect("a number");
        assert_eq!(detours == 0, is_direct, "{detours} by way of main memory");
        ends_well(&child, "handed over");
    }
}

#[test]
fn every_pair_of_devices_has_a_way() {
    tell("pairs");
}

/// Main memory that the driver does not take is copied once more.
#[test]
fn without_registered_memory_every_pair_has_a_way_too() {
    let driver = Driver::load();
    let refuses = ("TEST_CUDA_REFUSES", "cuMemHostRegister");
    let child = play(&driver, "pairs", &[refuses]);
    ends_well(&child, "pairs");
}

#[test]
fn nobody_waits_for_a_device() {
    tell("hot");
}

#[test]
fn nobody_waits_for_a_program_s_work_at_the_first_transfer() {
    tell("first");
}

#[test]
fn a_tensor_goes_to_main_memory_in_pieces_as_the_driver_counts() {
    tell("pieces");
}

#[test]
fn a_late_source_holds_up_nobody() {
    tell("late");
}

#[test]
fn a_device_that_stands_still_takes_little_main_memory() {
    tell("still");
}

/// Every call that waits for a device, and how often the driver for tests says that somebody has waited.
#[allow(
    unsafe_code,
    reason = "calls of the driver, which are tried one by one"
)]
fn counts() {
    use cudarc::driver::{CudaContext, result};
    let context = CudaContext::new(0).unwrap();
    let stream = context.default_stream().fork().unwrap();
    let mut bytes = [7u8; 64];
    let mut counted = Vec::new();
    let mut count = |call, act: &mut dyn FnMut()| {
        let before = waits();
        act();
        counted.push(format!("{call} {}", waits() - before));
    };
    let mut address = 0;
    count("alloc", &mut || {
        // SAFETY: here and below, the memory is there until it is freed, and as long as what is copied; nothing else uses it.
        address = unsafe { result::malloc_sync(64) }.unwrap();
    });
    count("to", &mut || {
        // SAFETY: as above.
        unsafe { result::memcpy_htod_sync(address, &bytes) }.unwrap();
    });
    count("from", &mut || {
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }.unwrap();
    });
    count("within", &mut || {
        // SAFETY: as above.
        unsafe { result::memcpy_dtod_sync(address, address, 64) }.unwrap();
    });
    count("fill", &mut || {
        // SAFETY: as above.
        unsafe { result::memset_d8_sync(address, 1, 64) }.unwrap();
    });
    count("free", &mut || {
        // SAFETY: as above.
        unsafe { result::free_sync(address) }.unwrap();
    });
    count("stream", &mut || stream.synchronize().unwrap());
    count("context", &mut || context.synchronize().unwrap());
    let event = stream.record_event(None).unwrap();
    count("event", &mut || event.synchronize().unwrap());
    let slice = stream.clone_htod(&bytes).unwrap();
    count("ordinary memory", &mut || {
        drop(stream.clone_dtoh(&slice).unwrap())
    });
    say("counted", counted.join(", "));
    say("faults", faults().join("; "));
}

#[test]
fn the_driver_counts_every_call_that_waits() {
    let driver = Driver::load();
    let child = play(&driver, "counts", &[]);
    let calls = "alloc, to, from, within, fill, free, stream, context, event, ordinary memory";
    let once: Vec<_> = calls.split(", ").map(|call| format!("{call} 1")).collect();
    assert_eq!(child.hear("counted"), once.join(", "));
    assert_eq!(child.hear("faults"), "");
}

/// A device without room costs the message that needs it, and nothing else.
#[test]
fn a_full_device_is_a_typed_error_and_what_comes_next_goes() {
    let driver = Driver::load();
    let child = play(&driver, "full", &[("TEST_CUDA_MEMORY", "33554432")]);
    ends_well(&child, "full");
}

#[test]
fn a_call_of_the_driver_that_fails_costs_one_message_and_what_comes_next_goes() {
    tell("fails");
}

#[test]
fn main_memory_of_an_ordinary_peer_reaches_devices() {
    tell("ordinary peer");
}

#[test]
fn what_is_required_goes_so_or_not_at_all() {
    tell("required");
}

fn opens() {
    let opened = CudaDevices::open();
    assert_eq!(opened.is_ok(), CudaDevices::open().is_ok(), "it stays so");
    match opened {
        Ok(devices) => say("devices", format!("{devices:?}")),
        Err(error) => {
            say("sort", sort(&error));
            say("words", error);
        }
    }
}

/// The driver is here already, and its devices' files are somebody else's.
fn opens_no_file() {
    Driver::here();
    forbid(libc::SYS_openat, None, Fate::Fails(libc::EACCES));
    opens();
}

/// The driver says the same of devices that there are not and of those that this process may not open.
#[test]
fn a_driver_whose_devices_may_not_be_opened_is_said() {
    for variable in [("TEST_CUDA_DEVICES", "0"), ("TEST_CUDA_INIT", "100")] {
        let child = Child::start("opens no file", &[variable]);
        assert_eq!(child.hear("sort"), "not permitted", "{variable:?}");
        let said = child.hear("words");
        assert!(
            said.starts_with("/dev/nvidiactl may not be opened"),
            "{said}"
        );
    }
}

fn sort(error: &Unavailable) -> &'static str {
    match error {
        Unavailable::NoDriver(_) => "no driver",
        Unavailable::MissingFunction { .. } => "missing function",
        Unavailable::OldDriver(_) => "old driver",
        Unavailable::NoDevice => "no device",
        Unavailable::NotPermitted(_) => "not permitted",
        _ => "failed",
    }
}

#[test]
fn a_slice_is_a_tensor_and_a_slice_again() {
    tell("slices");
}

#[test]
fn tensors_of_other_libraries_come_and_go_by_dlpack() {
    tell("dlpack");
}

#[test]
fn a_tensor_that_is_dropped_is_freed_behind_its_work() {
    tell("dropped");
}

#[test]
fn memory_is_filled_and_read_by_work_of_ones_own() {
    tell("filled");
}

#[test]
fn work_of_ones_own_reads_what_is_there() {
    tell("read");
}

#[test]
fn memory_that_is_given_up_is_used_again_behind_its_work() {
    tell("given up");
}

#[test]
fn main_memory_is_kept_until_it_is_copied() {
    tell("sources");
}

#[test]
fn a_copy_to_another_device_waits_for_its_source() {
    tell("copied");
}

#[test]
fn a_callback_that_panics_takes_nobody_along() {
    tell("panics");
}

#[test]
fn memory_of_another_device_is_not_borrowed_from_this_driver_s() {
    tell("of devices");
}

#[test]
fn what_is_on_devices_outlives_every_handle_on_them() {
    tell("outlive");
}

#[test]
fn other_streams_of_a_slice_are_waited_for_and_wait() {
    tell("two");
}

#[test]
fn devices_are_counted_and_not_touched() {
    let driver = Driver::load();
    let child = play(&driver, "opens", &[("TEST_CUDA_DEVICES", "3")]);
    assert_eq!(child.hear("devices"), "CudaDevices(3)");
}

#[test]
fn a_driver_that_does_not_serve_is_said() {
    let driver = Driver::load();
    let cases = [
        (("TEST_CUDA_DEVICES", "0"), "no device", "nvidia-smi"),
        (("TEST_CUDA_INIT", "100"), "no device", "nvidia-smi"),
        (("TEST_CUDA_INIT", "803"), "failed", "CUDA error 803"),
        (("TEST_CUDA_VERSION", "11080"), "old driver", "CUDA 11.8"),
        (
            ("TEST_CUDA_FAILS", "cuDeviceGetCount:1:999"),
            "failed",
            "cuDeviceGetCount: an error that the driver has no words for (CUDA error 999)",
        ),
    ];
    for (variable, expected, words) in cases {
        let child = play(&driver, "opens", &[variable]);
        assert_eq!(child.hear("sort"), expected, "{variable:?}");
        let said = child.hear("words");
        assert!(said.contains(words), "{variable:?}: {said}");
    }
}

#[test]
fn where_no_driver_is_it_is_said() {
    let nowhere = tempfile::tempdir().expect("a folder");
    let path = nowhere.path().to_str().expect("a path of letters");
    let child = Child::start("opens", &[("LD_LIBRARY_PATH", path)]);
    let Some(sort) = child.hears("sort") else {
        println!("skipped: this machine has a CUDA driver");
        return;
    };
    assert_eq!(sort, "no driver");
    assert!(child.hear("words").contains("install NVIDIA's driver"));
}

/// What a pipe's route says of channels that the context would have.
async fn route() {
    let context = Context::builder().try_cuda(&CudaDevices::open());
    let context = context.build().unwrap();
    let listener = context.listen(["memory://route"]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    for (end, pipe) in [("client", client.unwrap()), ("server", server.unwrap())] {
        let route = pipe.route();
        let of_devices = route
            .refused
            .iter()
            .filter(|one| one.candidate.contains("cuda"));
        let words = of_devices.map(|one| format!("{}: {}", one.candidate, one.reason));
        say(end, words.collect::<Vec<_>>().join("; "));
    }
}

#[test]
fn routes_say_why_there_are_no_devices() {
    let driver = Driver::load();
    let child = play(&driver, "route", &[("TEST_CUDA_VERSION", "11080")]);
    let why = "the CUDA driver is one of CUDA 11.8: install one of CUDA 12.0 or later";
    let of_devices = ["cuda_xth", "cuda_ipc", "cuda_gdr"];
    let expected = of_devices.map(|name| format!("channel {name}: {why}"));
    assert_eq!(child.hear("client"), expected.join("; "));
    assert_eq!(child.hear("server"), expected.join("; "));
}

/// Whatever this machine has: with an adapter it is about the driver, without one about that.
#[test]
fn with_each_driver_routes_say_what_gpudirect_rdma_lacks() {
    let adapters = std::fs::read_dir("/sys/class/infiniband");
    let has_adapters = adapters.is_ok_and(|mut adapters| adapters.next().is_some());
    let driver = Driver::load();
    for (dma_bufs, with_adapters) in [("0", "reach the GPUs"), ("1", "by a dma-buf")] {
        let child = play(&driver, "route", &[("TEST_CUDA_DMA_BUFS", dma_bufs)]);
        for end in ["client", "server"] {
            let said = child.hear(end);
            let words = if has_adapters {
                with_adapters
            } else {
                "no RDMA device"
            };
            let (_, reason) = said.split_once("channel cuda_gdr: ").expect("it is listed");
            assert!(reason.contains(words), "{said}");
        }
    }
}

/// Every function that the probe looks for.
fn functions() -> Vec<&'static str> {
    let probe = include_str!("../../../tensorpipe/src/device/cuda/probe.rs");
    let (_, list) = probe.split_once("const FUNCTIONS").expect("it has a list");
    let (list, _) = list.split_once("];").expect("that ends");
    let names = list.split('"').skip(1).step_by(2);
    names.collect()
}

/// A driver that has these functions, each of which says that there is no device.
fn driver_of(functions: &[&str], library: &Path) {
    let mut compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-x", "c", "-o"])
        .arg(library)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    let mut source = compiler.stdin.take().expect("it is piped");
    for function in functions {
        writeln!(source, "int {function}(void) {{ return 100; }}").expect("it reads");
    }
    drop(source);
    assert!(compiler.wait().expect("it ends").success());
}

/// What a probe says where such libraries are, by their names.
fn probed(place: &Path) -> (String, String) {
    let path = place.to_str().expect("a path of letters");
    let child = Child::start("opens", &[("LD_LIBRARY_PATH", path)]);
    (child.hear("sort"), child.hear("words"))
}

/// Of another age, each without one of the functions; and one that has them all.
#[test]
fn a_driver_that_lacks_a_function_is_said() {
    let functions = functions();
    assert!(functions.len() > 40 && functions.contains(&"cuInit"));
    let place = tempfile::tempdir().expect("a folder");
    for missing in &functions {
        let others = functions.iter().filter(|function| *function != missing);
        driver_of(
            &others.copied().collect::<Vec<_>>(),
            &place.path().join("libcuda.so.1"),
        );
        let (sort, words) = probed(place.path());
        assert_eq!(sort, "missing function", "without {missing}: {words}");
        let said = format!("libcuda.so.1, has no {missing}: ");
        assert!(words.contains(&said), "without {missing}: {words}");
    }
    driver_of(&functions, &place.path().join("libcuda.so.1"));
    assert_eq!(probed(place.path()).0, "no device");
}

/// What is found first is what is used, whatever stands behind it.
#[test]
fn a_broken_driver_under_the_first_name_is_said() {
    let driver = Driver::load();
    let first = driver.path().join("libcuda.so");
    std::fs::remove_file(&first).expect("a link");
    driver_of(&["cuInit"], &first);
    let (sort, words) = probed(&driver.path());
    assert_eq!(sort, "missing function");
    let said = "the CUDA driver, libcuda.so, has no cuDriverGetVersion";
    assert!(words.starts_with(said), "{words}");
    // What is no library at all is passed over.
    std::fs::write(&first, "no library").expect("a file");
    let child = play(&driver, "opens", &[]);
    assert_eq!(child.hear("devices"), "CudaDevices(2)");
}

/// Whoever asks for no CUDA device never opens the driver.
async fn ordinary() {
    let context = Context::builder().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    let (written, read) = tokio::join!(client.write(Message::new("hello")), server.read());
    written.unwrap();
    read.unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let driver = maps.lines().find(|line| line.contains("cuda.so"));
    say("driver", driver.unwrap_or("none"));
    // As it is seen where it was opened.
    CudaDevices::open().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    say("then", maps.lines().any(|line| line.contains("cuda.so")));
    say("waits", waits());
}

#[test]
fn an_ordinary_program_never_opens_the_driver() {
    let driver = Driver::load();
    let child = play(&driver, "ordinary", &[]);
    assert_eq!(child.hear("driver"), "none");
    assert_eq!(child.hear("then"), "true");
    assert_eq!(child.hear("waits"), "0");
}
