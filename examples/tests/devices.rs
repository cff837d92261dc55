//! Examples that use GPUs: with those of a driver for tests, and with none.

use std::process::Command;

use tensorpipe_test_cuda::Driver;

/// What a program says, started where its loader finds the driver for tests, or none.
fn run(program: &str, driver: Option<&Driver>) -> String {
    let mut command = Command::new(program);
    match driver {
        Some(driver) => command.env("LD_LIBRARY_PATH", driver.path()),
        None => command.env("CUDA_VISIBLE_DEVICES", ""),
    };
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
            "no GPU here",
            "[0.0, 0.0, 10.0, 20.0]",
            "not channel cuda_ipc: ",
        ],
    );
}

#[test]
fn blocks_of_a_cache_are_lent_where_they_lie() {
    let program = env!("CARGO_BIN_EXE_kv_blocks");
    let on_gpu = run(program, Some(&Driver::load()));
    says(
        &on_gpu,
        &[
            "12 MiB on cuda:0",
            "cancelled half-way",
            "cuda:1 -> cuda:1: cuda_ipc",
        ],
    );
    let on_cpu = run(program, None);
    says(
        &on_cpu,
        &[
            "12 MiB on cpu:0",
            "cancelled half-way",
            "borrowed: in the frame <= 4 KiB, lease above",
        ],
    );
}
