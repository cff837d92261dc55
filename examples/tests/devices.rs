//! Examples that use GPUs: with those of a driver for tests, and with none.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use tensorpipe_test_cuda::Driver;

/// What a program says, started where its loader finds the driver for tests, or none.
fn run(program: &str, driver: Option<&Driver>) -> String {
    let mut command = Command::new(program);
    let Some(driver) = driver else {
        return said_by(command.env("CUDA_VISIBLE_DEVICES", ""));
    };
    let said = said_by(with(&mut command, driver));
    assert_eq!(driver.nothing_went_wrong(), 2, "both processes report");
    said
}

/// Where its loader finds the driver for tests, which reports.
fn with<'a>(command: &'a mut Command, driver: &Driver) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", driver.path());
    command.env("TEST_CUDA_REPORT", driver.report())
}

fn said_by(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success() && errors.is_empty(), "{said}{errors}");
    said.into_owned()
}

/// Whether each of `words` is said.
fn says(said: &str, words: &[&str]) {
    for words in words {
        assert!(said.contains(words), "`{words}` is missing:\n{said}");
    }
}

#[test]
fn a_function_runs_on_the_gpu_or_says_why_not() {
    let program = env!("CARGO_BIN_EXE_gpu_function");
    let on_gpu = run(program, Some(&Driver::load()));
    says(
        &on_gpu,
        &[
            "on cuda:0) came back",
            "[0.0, 0.0, 10.0, 20.0]",
            "cuda:1 -> cuda:1: cuda_ipc",
        ],
    );
    let on_cpu = run(program, None);
    says(
        &on_cpu,
        &[
            "on the CPU: no GPU here",
            "[0.0, 0.0, 10.0, 20.0]",
            "not channel cuda_xth, cuda_ipc, cuda_gdr: ",
        ],
    );
}

/// A client with a GPU, and a server without.
#[test]
fn where_the_server_has_no_gpu_the_client_says_so() {
    let program = env!("CARGO_BIN_EXE_gpu_function");
    let mut server = Command::new(program);
    server.args(["serve", "tcp://127.0.0.1:0"]);
    server
        .env("CUDA_VISIBLE_DEVICES", "")
        .stdout(Stdio::piped());
    let mut server = Ended(server.spawn().unwrap());
    let mut url = String::new();
    let said = server.0.stdout.take().unwrap();
    BufReader::new(said).read_line(&mut url).unwrap();
    let driver = Driver::load();
    let mut call = Command::new(program);
    call.args(["call", url.trim()]);
    let said = said_by(with(&mut call, &driver));
    assert_eq!(driver.nothing_went_wrong(), 1, "it reports");
    says(
        &said,
        &[
            "this runs on the CPU: no GPU at the server",
            "[0.0, 0.0, 10.0, 20.0]",
        ],
    );
}

/// A process that ends with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a program and its children open, by its calls; `None` where the system lets no program see those of another one.
fn opened_by(program: &str, driver: &Driver) -> Option<String> {
    let log = driver.path().join("opened");
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=openat,open", "-o"]);
    command.arg(&log).arg("--").arg(program);
    let can = Command::new("strace").arg("true").output();
    if !can.is_ok_and(|can| can.status.success()) {
        println!("skipped: strace does not run here");
        return None;
    }
    // LeakSanitizer does not run in a process that is traced.
    let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
    command.env("ASAN_OPTIONS", format!("{options}:detect_leaks=0"));
    let said = said_by(command.env("LD_LIBRARY_PATH", driver.path()));
    assert!(!said.is_empty());
    Some(std::fs::read_to_string(log).unwrap())
}

/// A driver is there, and nobody asks for it: calls, pipes, a whole service.
#[test]
fn programs_that_ask_for_no_gpu_never_open_the_driver() {
    let driver = Driver::load();
    for program in [
        env!("CARGO_BIN_EXE_hello"),
        env!("CARGO_BIN_EXE_custom_transport"),
        env!("CARGO_BIN_EXE_custom_channel"),
    ] {
        let Some(opened) = opened_by(program, &driver) else {
            return;
        };
        assert!(opened.contains("libc.so"), "{opened}");
        let of_cuda = opened.lines().find(|line| line.contains("libcuda"));
        assert_eq!(of_cuda, None, "{program}");
    }
    // It is seen where somebody asks.
    let asks = opened_by(env!("CARGO_BIN_EXE_gpu_function"), &driver).unwrap();
    assert!(asks.contains("/libcuda.so"), "{asks}");
}

/// And their routes say so.
#[test]
fn a_route_says_that_nobody_asked_for_gpus() {
    let said = run(env!("CARGO_BIN_EXE_hello"), None);
    let why = "nobody asked for CUDA: ContextBuilder::try_cuda";
    says(
        &said,
        &[&format!("not channel cuda_xth, cuda_ipc, cuda_gdr: {why}")],
    );
}

#[test]
fn blocks_of_a_cache_are_lent_where_they_lie() {
    let program = env!("CARGO_BIN_EXE_kv_blocks");
    let on_gpu = run(program, Some(&Driver::load()));
    says(
        &on_gpu,
        &[
            "12 MiB on cuda:0, in ",
            " GB/s; ",
            "cancelled half-way",
            "12 MiB of them were read where the prefill has them",
            "cuda:1 -> cuda:1: cuda_ipc",
        ],
    );
    let on_cpu = run(program, None);
    says(
        &on_cpu,
        &[
            "12 MiB on cpu:0, in ",
            " GB/s; ",
            "cancelled half-way",
            "borrowed: in the frame <= 4 KiB, lease above",
        ],
    );
}
