//! One call with a tensor, server and client in one program.

use tensorpipe::Tensor;
use tensorpipe_rpc::{Server, tensor_service};

#[tensor_service]
trait Scaler {
    /// Multiplies every element by `factor`.
    async fn scale(&self, tensor: Tensor, factor: f32) -> Result<Tensor, String>;
}

struct Cpu;

impl Scaler for Cpu {
    async fn scale(&self, mut tensor: Tensor, factor: f32) -> Result<Tensor, String> {
        let values = tensor.make_mut::<f32>().map_err(|e| e.to_string())?;
        values.iter_mut().for_each(|value| *value *= factor);
        Ok(tensor)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .service(ScalerService::new(Cpu))
        .listen("tcp://127.0.0.1:0")
        .await?;
    let client = ScalerClient::connect(server.url()).await?;
    let tensor = Tensor::from(vec![1.0f32, 2.0, 3.0]);
    let scaled = client.scale(&tensor, 10.0).await?;
    println!("{:?}", scaled.as_slice::<f32>()?);
    println!("{}", client.connection().route());
    Ok(())
}
