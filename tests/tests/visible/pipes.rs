//! Metrics of a pipe that has ended while its client still exists: the pipe is not counted as open, and all of its work is counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use tensorpipe::{PipeStats, Tensor};
use tensorpipe_rpc::{Server, tensor_service};
use tensorpipe_tests::{eventually, soon};

use super::scene::of_heap;

#[tensor_service]
trait Meter {
    async fn measure(&self, tensor: Tensor) -> u64;
}

struct Length;

impl Meter for Length {
    async fn measure(&self, tensor: Tensor) -> u64 {
        tensor.byte_len() as u64
    }
}

#[test]
fn a_pipe_that_has_ended_is_not_open_though_its_client_is_there() {
    // Of one thread, so that nobody else counts here.
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let book = Book::default();
    with_local_recorder(&book, || {
        runtime.block_on(async {
            let open = || f64::from_bits(book.value("tensorpipe_pipes_open"));
            let server = Server::builder().service(MeterService::new(Length));
            let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
            let client = MeterClient::connect(server.url().to_string());
            let client = soon("a client", client).await.unwrap();
            assert_eq!(open(), 2.0);
            let measured = soon("a call", client.measure(of_heap(1 << 20))).await;
            assert_eq!(measured.unwrap(), 1 << 20);
            let mut pipes = server.pipes();
            pipes.push(client.connection().pipe().clone());
            assert_eq!(pipes.len(), 2);
            soon("the end", server.shutdown()).await;
            eventually("both are closed", || open() == 0.0).await;
            // Their goodbyes are part of it.
            let all = |of: fn(&PipeStats) -> u64| {
                let stats = pipes.iter().map(|pipe| of(&pipe.stats()));
                stats.sum::<u64>()
            };
            eventually("all is counted", || {
                book.value("tensorpipe_pipe_bytes_in") == all(|stats| stats.bytes_in)
                    && book.value("tensorpipe_pipe_bytes_out") == all(|stats| stats.bytes_out)
            })
            .await;
            drop(client);
            assert_eq!(open(), 0.0);
        });
    });
}

/// Counters and gauges by their names.
#[derive(Default)]
struct Book(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Book {
    fn entry(&self, name: &str) -> Arc<AtomicU64> {
        let mut book = self.0.lock().unwrap();
        book.entry(name.to_owned()).or_default().clone()
    }

    fn value(&self, name: &str) -> u64 {
        self.entry(name).load(Ordering::SeqCst)
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.entry(key.name()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.entry(key.name()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
