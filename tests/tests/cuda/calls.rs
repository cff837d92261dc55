//! Calls between two processes: what their stats say of tensors that went another way.

use tensorpipe::conformance::device::Fixture;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Context, DType, Tensor};
use tensorpipe_rpc::{DeviceMap, Server, tensor_service};
use tensorpipe_test_cuda::Driver;
use tensorpipe_tests::{Child, runtime, say, soon};

use crate::bench::{Bench, device};
use crate::driver::nothing_went_wrong;

const LEN: usize = 3_000_000;

#[tensor_service]
trait Takes {
    /// Where it is.
    async fn take(&self, x: Tensor) -> String;
}

struct There;

impl Takes for There {
    async fn take(&self, x: Tensor) -> String {
        x.device().to_string()
    }
}

pub(crate) fn serves() {
    Driver::here();
    runtime().block_on(async {
        let cuda = CudaDevices::open().unwrap();
        let context = Context::builder().cuda(&cuda).build().unwrap();
        let server = Server::builder().context(&context);
        let server = server.service(TakesService::new(There));
        let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

/// The stats of the call whose tensor was diverted say so; those of the next one, which was not given to that channel, do not.
#[test]
fn without_descriptors_a_call_s_stats_say_which_way_its_tensor_went_and_why() {
    let refuses = ("TEST_CUDA_REFUSES", "cuMemImportFromShareableHandle");
    let server = Child::start("calls serves", &[refuses]);
    let url = server.hear("url");
    runtime().block_on(async {
        let bench = Bench::new();
        let context = Context::builder().cuda(&bench.cuda).build().unwrap();
        let pool = context.allocator(device()).unwrap();
        let client = TakesClient::connect_with(&context, url).await.unwrap();
        let map = DeviceMap::new([(device(), device())]).unwrap();
        let client = client.with_device_map(map);
        let asks = client.with_stats();
        let tensor = || {
            let bytes = vec![7; LEN];
            let room = pool.take(LEN).unwrap();
            let buffer = bench.fixture.write(&bytes, room);
            Tensor::from_buffer(buffer, DType::U8, [LEN as u64]).unwrap()
        };
        let mut all = Vec::new();
        for _ in 0..2 {
            let (taken, stats) = soon("an answer", asks.take(tensor()).stats()).await;
            assert_eq!(taken.unwrap(), device().to_string());
            all.push(stats);
        }
        let [one] = &all[0].request.diverted[..] else {
            panic!("{}", all[0]);
        };
        assert_eq!(
            (&*one.over, one.parts, one.bytes),
            ("cuda_basic", 1, LEN as u64)
        );
        assert!(
            one.reason.contains("cuMemImportFromShareableHandle"),
            "{one}"
        );
        assert!(all[0].to_string().contains(&one.to_string()), "{}", all[0]);
        assert!(all[0].reply.diverted.is_empty());
        assert!(all[1].request.diverted.is_empty(), "{}", all[1]);
        // Of a call that asks for none, none are kept.
        let (taken, stats) = soon("an answer", client.take(tensor()).stats()).await;
        assert!(taken.is_ok() && !stats.is_measured());
    });
    nothing_went_wrong();
}
