use tensorpipe_rpc::tensor_service;

#[tensor_service]
pub struct Embedder {
    size: usize,
}

fn main() {
    let _ = Embedder { size: 1 };
}
