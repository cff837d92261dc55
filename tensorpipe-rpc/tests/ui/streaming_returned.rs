use tensorpipe_rpc::{Server, Streaming, tensor_service};

#[tensor_service]
trait Numbers {
    fn numbers(&self) -> Streaming<u32>;
}

#[tensor_service]
trait Other {
    async fn other(&self);
}

struct Mine;

impl Other for Mine {
    async fn other(&self) {}
}

fn main() {
    let _ = Server::builder().service(Mine);
}
