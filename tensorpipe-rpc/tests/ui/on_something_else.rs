#[tensorpipe_rpc::tensor_service]
trait Adder {
    async fn add(&self, a: u64, b: u64) -> u64;
}

async fn connect() {
    let client = AdderClient::on(&"tcp://127.0.0.1:5000").await.unwrap();
    client.add(1, 2).await.unwrap();
}

fn main() {
    drop(connect());
}
