//! Closing a transport closes the direction in which it sends, and no more.

use futures_util::{SinkExt, StreamExt};
use tarpc::{ClientMessage, Request, Response, context};
use tensorpipe::Tensor;
use tensorpipe_rpc::tarpc::{PipeTransport, transport};

use super::over_each;

type Received = ClientMessage<Tensor>;
type Answer = Response<Tensor>;

const LARGE: u64 = 2 << 20;

fn tensor(len: u64) -> Tensor {
    Tensor::from(vec![1f32; len as usize])
}

fn request(id: u64, len: u64) -> Received {
    ClientMessage::Request(Request {
        context: context::current(),
        id,
        message: tensor(len),
    })
}

fn answer(request_id: u64) -> Answer {
    Response {
        request_id,
        message: Ok(tensor(3)),
    }
}

#[tokio::test]
async fn the_peers_stream_ends_after_what_was_sent_and_answers_still_come() {
    over_each(async |client, server| {
        let mut client: PipeTransport<Answer, Received> = transport(client);
        let mut server: PipeTransport<Received, Answer> = transport(server);
        client.feed(request(1, LARGE)).await.unwrap();
        client.feed(request(2, 3)).await.unwrap();
        let (closed, mut came) = tokio::join!(client.close(), async {
            let mut came = Vec::new();
            while let Some(message) = server.next().await {
                let ClientMessage::Request(request) = message.unwrap() else {
                    panic!("a request");
                };
                came.push(request.id);
            }
            came
        });
        closed.unwrap();
        came.sort_unstable();
        assert_eq!(came, [1, 2]);
        for id in came {
            server.send(answer(id)).await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap().request_id, id);
        }
        server.close().await.unwrap();
        assert!(client.next().await.is_none());
    })
    .await;
}

#[tokio::test]
async fn what_is_sent_after_closing_is_an_error_and_does_not_arrive() {
    over_each(async |client, server| {
        let mut client: PipeTransport<Answer, Received> = transport(client);
        let mut server: PipeTransport<Received, Answer> = transport(server);
        client.close().await.unwrap();
        client.close().await.unwrap();
        let error = client.send(request(1, 3)).await.unwrap_err();
        assert!(error.to_string().contains("closed by this side"), "{error}");
        assert!(server.next().await.is_none());
        server.send(answer(7)).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap().request_id, 7);
    })
    .await;
}
