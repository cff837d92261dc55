//! This process's own memory that was lent to others.

use tensorpipe::conformance::pattern;
use tensorpipe::{Message, MessageTensor};
use tensorpipe_tests::eventually;

use crate::bench::{Bench, device, moved, pair};
use crate::driver::handles;

const LEN: usize = 3_000_000;

/// Descriptors of physical memory beside those that the driver keeps itself, one for each handle.
fn descriptors() -> u64 {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|one| std::fs::read_link(one.unwrap().path()).ok());
    let of_driver = links.filter(|link| link.to_string_lossy().contains("test cuda"));
    (of_driver.count() as u64).saturating_sub(handles())
}

/// It is lent anew later, without a copy.
pub(crate) async fn closed() {
    let bench = Bench::new();
    let pipes = pair(&bench, "cuda_ipc").await;
    let tensors = [(); 20].map(|()| bench.tensor(device(), &pattern(LEN, 1)));
    for _ in 0..2 {
        let mut most = 0;
        for tensor in &tensors {
            let tensor = MessageTensor::from(tensor.clone()).to_device(device());
            let read = moved(&pipes, Message::new("m").tensor(tensor)).await;
            assert!(bench.download(read.tensors[0].tensor.buffer()) == pattern(LEN, 1));
            most = most.max(descriptors());
        }
        assert!(most > 0, "none is lent");
        eventually("their descriptors are closed", || descriptors() == 0).await;
    }
    assert_eq!(pipes.0.stats().bytes_copied, 0);
}
