//! A service that scales tensors: `hello serve URL`, `hello call URL`, or both in one process.

use tensorpipe::Tensor;
use tensorpipe_rpc::{Server, ServiceError, tensor_service};

#[tensor_service]
trait Scaler {
    /// Multiplies every element by `factor`.
    async fn scale(&self, tensor: Tensor, factor: f32) -> Result<Tensor, ServiceError>;
}

struct Cpu;

impl Scaler for Cpu {
    async fn scale(&self, mut tensor: Tensor, factor: f32) -> Result<Tensor, ServiceError> {
        let values = tensor.make_mut::<f32>()?;
        values.iter_mut().for_each(|value| *value *= factor);
        Ok(tensor)
    }
}

async fn serve(url: &str) -> Result<Server, tensorpipe::Error> {
    let service = ScalerService::new(Cpu);
    Server::builder().service(service).listen(url).await
}

async fn call(url: impl AsRef<str>) -> anyhow::Result<()> {
    let client = ScalerClient::connect(url).await?;
    let tensor = Tensor::from(vec![1.0f32, 2.0, 3.0]);
    let scaled = client.scale(&tensor, 10.0).await?;
    println!("{:?}", scaled.as_slice::<f32>()?);
    println!("{}", client.connection().route());
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [what, url] if what == "serve" => serve(url).await?.wait().await,
        [what, url] if what == "call" => call(url).await?,
        _ => {
            let server = serve("tcp://127.0.0.1:0").await?;
            call(server.url()).await?;
        }
    }
    Ok(())
}
