use tensorpipe::Tensor;

#[tensorpipe_rpc::tensor_service]
trait Scaler {
    async fn scale(&self, tensor: Tensor, factor: f32) -> Tensor;
}

async fn scale(client: ScalerClient) {
    client.scale(vec![1.0f32], 2.0).await.unwrap();
}

fn main() {
    let _ = scale;
}
