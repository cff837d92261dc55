//! Counts the system calls that calls cost: times would depend on the machine.
#![allow(missing_docs, reason = "a test")]

mod common;

use std::collections::BTreeSet;
use std::sync::Mutex;

use tensorpipe::{PipeStats, Tensor};
use tensorpipe_rpc::{Server, tensor_service};

#[tensor_service]
trait Echo {
    async fn text(&self, text: String) -> String;
    async fn tensor(&self, tensor: Tensor) -> Tensor;
}

/// On how many tasks handlers of `tensor` have run. One that takes long, as on a slow or busy machine, has a task of its own.
static TASKS: Mutex<BTreeSet<Option<String>>> = Mutex::new(BTreeSet::new());

struct Back;

impl Echo for Back {
    async fn text(&self, text: String) -> String {
        text
    }

    async fn tensor(&self, tensor: Tensor) -> Tensor {
        let task = tokio::task::try_id().map(|id| id.to_string());
        TASKS.lock().unwrap().insert(task);
        tensor
    }
}

async fn both() -> (EchoClient, Server) {
    let context = common::tcp().build().unwrap();
    let server = common::serve(&context, EchoService::new(Back)).await;
    let client = EchoClient::connect_with(&context, server.url())
        .await
        .unwrap();
    (client, server)
}

/// Writes and reads of the client and of the server.
fn counts(client: &EchoClient, server: &Server) -> [u64; 4] {
    let PipeStats { writes, reads, .. } = client.connection().pipe().stats();
    let theirs = server.pipes()[0].stats();
    [writes, reads, theirs.writes, theirs.reads]
}

fn spent(before: [u64; 4], after: [u64; 4]) -> [u64; 4] {
    std::array::from_fn(|i| after[i] - before[i])
}

#[tokio::test]
async fn a_small_call_is_one_write_and_one_read_at_each_end() {
    let (client, server) = both().await;
    let small = Tensor::from_vec(vec![1u8; 2000], [2000]).unwrap();
    for _ in 0..3 {
        client.text("warm").await.unwrap();
        client.tensor(&small).await.unwrap();
    }
    for _ in 0..10 {
        let before = counts(&client, &server);
        client.text("hello").await.unwrap();
        client.tensor(&small).await.unwrap();
        assert_eq!(spent(before, counts(&client, &server)), [2; 4]);
    }
    let before = client.connection().pipe().stats();
    client.text("hello").await.unwrap();
    let after = client.connection().pipe().stats();
    assert!(after.bytes_out - before.bytes_out < 128);
    assert_eq!(after.bytes_copied, before.bytes_copied);
}

#[tokio::test]
async fn calls_made_together_leave_together_and_so_do_their_answers() {
    const CALLS: u64 = 30;
    // The first eight leave at once, each as if it were alone.
    const MOST: u64 = 11;
    let (client, server) = both().await;
    // Of the larger ones most wait in the protocol's queue. What they are read in is not so certain.
    for (bytes, counted) in [(64, 4), (4096, 1)] {
        let tensor = Tensor::from_vec(vec![1u8; bytes], [bytes as u64]).unwrap();
        let mut undisturbed = Vec::new();
        for _ in 0..100 {
            TASKS.lock().unwrap().clear();
            let before = counts(&client, &server);
            let calls: Vec<_> = (0..CALLS).map(|_| client.tensor(&tensor)).collect();
            for call in calls {
                call.await.unwrap();
            }
            // That of the caller, and the connection's.
            if TASKS.lock().unwrap().len() <= 2 {
                undisturbed.push(spent(before, counts(&client, &server)));
            }
        }
        if undisturbed.is_empty() {
            println!("skipped: every time a handler was so slow that it ran on a task of its own");
        }
        let fits = |spent: &&[u64; 4]| spent[..counted].iter().all(|count| *count <= MOST);
        let fit = undisturbed.iter().filter(fits).count();
        assert!(2 * fit >= undisturbed.len(), "{undisturbed:?}");
    }
}

#[tokio::test]
async fn a_call_that_is_never_polled_leaves_beside_others_too() {
    let (client, _server) = both().await;
    let first = client.text("first");
    let second = client.text("second");
    let before = client.connection().pipe().stats().reads;
    common::until(|| client.connection().pipe().stats().reads > before).await;
    // The other way round: the one that left at once was dropped.
    drop(first);
    assert_eq!(second.await.unwrap(), "second");
}
