//! A function that runs on a GPU, called like a local async method.
//!
//! ```text
//! gpu_function                   starts a server in a process of its own, and calls it
//! gpu_function serve URL         a server alone
//! gpu_function call URL          calls a server that is there
//! ```
//!
//! The server's method runs a CUDA kernel ([`kernel`]) on the GPU that holds the tensor, and answers with a tensor on it. No thread
//! waits for the GPU: the kernel is queued behind the transfer of its argument, and the transfer of the result behind the kernel.
//! If either end has no GPU, the client says so and the same call runs on the CPU.

mod kernel;

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand};
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Context, Device, Tensor, device::MemoryKind, route::Carrier};
use tensorpipe_examples::Second;
use tensorpipe_rpc::{DeviceMap, Server, tensor_service};

use crate::kernel::Kernel;

/// A function that runs on a GPU, called like a local one.
#[derive(Parser)]
#[command(name = "gpu_function", version)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serves at a URL, e.g. tcp://127.0.0.1:5000, until it is ended.
    Serve { url: String },
    /// Calls a server.
    Call { url: String },
}

#[tensor_service]
trait Activation {
    /// The larger of 0 and `factor * x`, element by element: on the device where `x` lies.
    async fn scaled_relu(&self, x: Tensor, factor: f32) -> Result<Tensor, String>;
}

/// On the CPU, and on GPUs where there are some.
struct Everywhere {
    kernel: Option<Kernel>,
}

impl Activation for Everywhere {
    async fn scaled_relu(&self, mut x: Tensor, factor: f32) -> Result<Tensor, String> {
        if let Some(kernel) = self.kernel.as_ref().filter(|_| !x.device().is_cpu()) {
            let queued = kernel.scaled_relu(&x, factor);
            return queued.map_err(|error| format!("{error:#}"));
        }
        let values = x.make_mut::<f32>().map_err(|error| error.to_string())?;
        values.iter_mut().for_each(|x| *x = (*x * factor).max(0.0));
        Ok(x)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    match &Args::parse().command {
        Some(Command::Serve { url }) => serve(url).await,
        Some(Command::Call { url }) => call(url).await,
        None => both().await,
    }
}

async fn serve(url: &str) -> Result<()> {
    let cuda = CudaDevices::open();
    let context = Context::builder().name("server").try_cuda(&cuda).build()?;
    let kernel = cuda.ok().map(|cuda| Kernel::load(&cuda, &context));
    let service = Everywhere {
        kernel: kernel.transpose()?,
    };
    let server = Server::builder().context(&context);
    let server = server.service(ActivationService::new(service));
    let server = server.listen(url).await?;
    println!("{}", server.url());
    server.wait().await;
    bail!("the listener failed")
}

async fn call(url: &str) -> Result<()> {
    let cuda = CudaDevices::open();
    let context = Context::builder().name("client").try_cuda(&cuda).build()?;
    let client = ActivationClient::connect_with(&context, url).await?;
    let numbers = Tensor::from(vec![-1.0f32, 0.0, 1.0, 2.0]);
    let gpu = CudaDevices::device(0);
    let memory = MemoryKind::Device(gpu.kind);
    let route = client.connection().route();
    let carrier = route.choice.carrier(gpu, memory, gpu, 16);
    let why_not = match &cuda {
        Err(why) => Some(format!("no GPU here: {why}")),
        Ok(_) if carrier == Carrier::Nothing => Some("no GPU at the server".to_owned()),
        Ok(_) => None,
    };
    let result = if let Some(why_not) = why_not {
        println!("this runs on the CPU: {why_not}");
        client.scaled_relu(&numbers, 10.0).await?
    } else {
        // Tensors on this GPU arrive on the server's GPU, and the server's answers return to this GPU.
        let client = client
            .clone()
            .with_device_map(DeviceMap::new([(gpu, gpu)])?);
        let x = numbers.to(gpu, &context).await?;
        let y = client.scaled_relu(&x, 10.0).await?;
        println!("{x:?} went there, {y:?} came back");
        y.to(Device::CPU, &context).await?
    };
    println!("{:?}", result.as_slice::<f32>()?);
    ensure!(result.as_slice::<f32>()? == [0.0, 0.0, 10.0, 20.0]);
    println!("{route}");
    Ok(())
}

/// A server in a process of its own, and a client here.
async fn both() -> Result<()> {
    let server = Second::start(&["serve", "tcp://127.0.0.1:0"]).await?;
    call(&server.url).await?;
    server.end().await
}
