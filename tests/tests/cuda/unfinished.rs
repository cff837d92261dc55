//! A writer whose devices never run the work that its tensors wait for. It must not block the streams of the reading process.

use std::time::Duration;

use tensorpipe::conformance::device::Fixture;
use tensorpipe::conformance::pattern;
use tensorpipe::{Context, Message, MessageTensor};
use tensorpipe_tests::{Child, runtime, say, soon};

use crate::bench::{Bench, device};
use crate::driver::nothing_went_wrong;

const LEN: usize = 300_000;

const URL: &str = "TEST_CUDA_URL";

/// Sends one tensor, and one whose bytes never come.
pub(crate) fn never_ends() {
    let bench = Bench::new();
    runtime().block_on(async {
        let context = Context::builder().cuda(&bench.cuda).build().unwrap();
        let pipe = context.connect(std::env::var(URL).unwrap()).await.unwrap();
        let message = |seed| {
            let tensor = bench.tensor(device(), &pattern(LEN, seed));
            Message::new("m").tensor(MessageTensor::from(tensor).to_device(device()))
        };
        pipe.write(message(1)).await.unwrap();
        let _held = bench.fixture.hold_writes(device());
        pipe.send(message(2)).unwrap();
        say("sent", pipe.stats().bytes_lent);
        std::future::pending::<()>().await;
    });
}

#[test]
fn a_writer_that_is_killed_before_its_work_is_done_keeps_no_stream_of_its_reader() {
    let bench = Bench::new();
    runtime().block_on(async {
        let context = Context::builder().cuda(&bench.cuda).build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let mut writer = Child::start("never ends", &[(URL, listener.url().as_ref())]);
        let pipe = soon("a pipe", listener.accept()).await.unwrap();
        let first = soon("the first", pipe.read()).await.unwrap();
        let first = first.tensors[0].tensor.buffer().clone();
        assert_eq!(writer.hear("sent"), LEN.to_string());
        let incoming = soon("a descriptor", pipe.read_descriptor()).await.unwrap();
        let mut second = std::pin::pin!(incoming.read());
        let early = tokio::time::timeout(Duration::from_millis(200), &mut second).await;
        assert!(early.is_err(), "{early:?} before its bytes are there");
        assert!(bench.download(&first) == pattern(LEN, 1));
        writer.kill();
        let ended = soon("an end", second).await;
        assert!(ended.is_err(), "{ended:?} without its bytes");
        // What is borrowed stays, and all that is queued gets done.
        assert!(bench.download(&first) == pattern(LEN, 1));
        let own = bench.upload(device(), &pattern(LEN, 3));
        assert!(bench.download(&own) == pattern(LEN, 3));
    });
    nothing_went_wrong();
}
