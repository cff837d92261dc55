//! The place of channel `cuda_gdr` (GPUDirect RDMA), in which a network adapter reads and writes a GPU's memory itself. It has no lane yet.
//! Its requirements can be probed already, and a pipe's route says which of them a machine lacks.
//!
//! | needed | found by |
//! |---|---|
//! | an RDMA device | `/sys/class/infiniband` |
//! | memory of a GPU that it may register, by one of two ways | |
//! | … a descriptor of that memory (dma-buf) | `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED` |
//! | … or NVIDIA's kernel module | `/sys/module/nvidia_peermem` |

use std::path::Path;

use super::CudaDevices;

pub(crate) const NAME: &str = "cuda_gdr";

/// The reason why it does not exist here, in words.
pub(crate) fn why_not(devices: &CudaDevices) -> String {
    missing(Path::new("/sys"), devices.export_dma_bufs())
}

/// As `why_not`, for the machine whose kernel files are under `sys`; `has_dma_bufs`: all of its GPUs export memory as a dma-buf.
fn missing(sys: &Path, has_dma_bufs: bool) -> String {
    let adapters = std::fs::read_dir(sys.join("class/infiniband"));
    let adapters = adapters.into_iter().flatten().flatten();
    let adapters = adapters.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let Some(adapter) = adapters.min() else {
        return "this machine has no RDMA device (/sys/class/infiniband is empty)".to_owned();
    };
    let way = match (has_dma_bufs, sys.join("module/nvidia_peermem").exists()) {
        (true, _) => "a dma-buf",
        (false, true) => "nvidia_peermem",
        (false, false) => {
            return format!(
                "{adapter} cannot reach the GPUs: their driver exports no dma-buf (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0), and the kernel module nvidia_peermem is not loaded"
            );
        }
    };
    format!("{adapter} could reach the GPUs by {way}, but this version has no RDMA")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_in_the_order_in_which_it_is_needed() {
        let sys = tempfile::tempdir().unwrap();
        let holds = |has_dma_bufs, words: &str| {
            let said = missing(sys.path(), has_dma_bufs);
            assert!(said.contains(words), "{said}");
        };
        holds(true, "no RDMA device");
        std::fs::create_dir_all(sys.path().join("class/infiniband/mlx5_0")).unwrap();
        holds(false, "nvidia_peermem is not loaded");
        holds(true, "mlx5_0 could reach the GPUs by a dma-buf");
        std::fs::create_dir_all(sys.path().join("module/nvidia_peermem")).unwrap();
        holds(false, "mlx5_0 could reach the GPUs by nvidia_peermem");
    }
}
