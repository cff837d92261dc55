//! This process's own memory that was lent to others.

use std::time::Duration;

use tensorpipe::conformance::pattern;
use tensorpipe::{Message, MessageTensor};
use tensorpipe_tests::eventually;

use crate::bench::{Bench, device, moved, pair};
use crate::driver::handles;

const LEN: usize = 1_500_000;

/// Descriptors of physical memory beside those that the driver keeps itself, one for each handle.
fn descriptors() -> u64 {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|one| std::fs::read_link(one.unwrap().path()).ok());
    let of_driver = links.filter(|link| link.to_string_lossy().contains("test cuda"));
    (of_driver.count() as u64).saturating_sub(handles())
}

/// Those that a program has which this process starts.
fn inherited() -> usize {
    let mut ls = std::process::Command::new("ls");
    let listed = ls.args(["-l", "/proc/self/fd"]).output().unwrap();
    assert!(listed.status.success());
    let text = String::from_utf8_lossy(&listed.stdout);
    text.lines()
        .filter(|line| line.contains("test cuda"))
        .count()
}

/// More blocks than descriptors stay open. All are lent without a copy, also those whose descriptor was closed.
pub(crate) async fn closed() {
    let bench = Bench::new();
    let pipes = pair(&bench, "cuda_ipc").await;
    let tensors = [(); 150].map(|()| bench.tensor(device(), &pattern(LEN, 1)));
    for _ in 0..2 {
        let mut most = 0;
        for tensor in &tensors {
            let tensor = MessageTensor::from(tensor.clone()).to_device(device());
            let read = moved(&pipes, Message::new("m").tensor(tensor)).await;
            assert!(bench.download(read.tensors[0].tensor.buffer()) == pattern(LEN, 1));
            most = most.max(descriptors());
        }
        assert!((100..140).contains(&most), "{most} at once");
        assert_eq!(inherited(), 0, "another program keeps memory");
        let some = descriptors();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(
            some > 100 && descriptors() == some,
            "most stay for the next time"
        );
    }
    drop(tensors);
    drop(bench);
    eventually("the others go with their memory", || descriptors() == 0).await;
    assert_eq!(pipes.0.stats().bytes_copied, 0);
}
