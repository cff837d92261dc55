//! The probe for CUDA devices: what it finds, and its error if no device is usable.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use tensorpipe::device::cuda::{CudaDevices, Unavailable};
use tensorpipe::{Context, Message};
use tensorpipe_test_cuda::Driver;
use tensorpipe_tests::{Child, Fate, forbid, say};

use crate::driver::waits;
use crate::play;

pub(crate) fn opens() {
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
pub(crate) fn opens_no_file() {
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
        Unavailable::NoMemoryManagement(_) => "no memory management",
        _ => "failed",
    }
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
            ("TEST_CUDA_VMM", "0"),
            "no memory management",
            "leave it out by CUDA_VISIBLE_DEVICES",
        ),
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
pub(crate) async fn ordinary() {
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
