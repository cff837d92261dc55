//! Large replies fill a server's queue while the link that brings their go-aheads stalls. Their heads are read at once.

use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::join_all;
use tensorpipe::testing::{self, Network};
use tensorpipe::{Limits, Tensor};
use tensorpipe_rpc::{CallError, Server, tensor_service};
use tokio::time::sleep;

use crate::scene::{millis, tensor};

/// Floats of a tensor that comes only when it is asked for.
const LARGE: usize = 1 << 20;

/// How many messages the server queues.
const QUEUE: usize = 4;

#[tensor_service]
trait Gives {
    async fn give(&self) -> Tensor;
}

struct Giver;

impl Gives for Giver {
    async fn give(&self) -> Tensor {
        tensor(LARGE)
    }
}

async fn story(network: Network) {
    let mut limits = Limits::default();
    limits.queued_writes = QUEUE;
    let context = network.host("server").context().limits(limits);
    let server = Server::builder().context(&context.build().unwrap());
    let server = server.service(GivesService::new(Giver));
    let server = server.listen("sim://server:1").await.unwrap();
    let client = network.host("client").context().build().unwrap();
    let client = GivesClient::connect_with(&client, server.url()).await;
    let client = client.unwrap();
    for (from, to) in [("client", "server"), ("server", "client")] {
        network.link(from, to).delay(millis(2));
    }
    let calls = join_all((0..QUEUE + 2).map(|_| client.give()));
    let faults = async {
        sleep(millis(1)).await;
        let further = client.give();
        // The calls are there, and what their replies wait for is not.
        sleep(millis(2)).await;
        network.link("client", "server").stall();
        sleep(Duration::from_secs(1)).await;
        network.heal("client", "server");
        let error = further.await.unwrap_err();
        assert!(matches!(error, CallError::Overloaded(_)), "{error}");
    };
    let (answers, ()) = tokio::join!(calls, faults);
    let given = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(given, QUEUE);
    let no_room = |answer: &Result<Tensor, CallError>| match answer {
        Err(CallError::BadReply(words)) => words.contains("queue was full"),
        _ => false,
    };
    let refused = answers.iter().filter(|answer| no_room(answer)).count();
    assert_eq!(refused, 2, "{answers:?}");
    client.give().await.unwrap();
}

#[test]
fn who_hears_that_there_was_no_room_for_its_reply_keeps_no_thread_busy() {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        testing::run(1, story);
        tell.send(())
    });
    // Otherwise a thread that spins would hang this test.
    let told = told.recv_timeout(Duration::from_secs(60));
    told.expect("the story does not go on");
}
