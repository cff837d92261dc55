//! More calls than the other process accepts: the excess fails at once with an error that says so, and calls in flight go on.

use futures_util::{StreamExt, stream};
use tensorpipe_rpc::{CallError, ServerLimits};
use tensorpipe_tests::{Child, alone, eventually, soon};

use super::works::{client, client_within, is_numbered, numbered};

#[test]
fn a_stream_too_many_is_refused_and_the_others_go_on() {
    alone(async || {
        let child = Child::start("server", &[("TEST_CALLS", "2")]);
        let (client, _) = client(&child.hear("url")).await;
        let (give, items) = tokio::sync::mpsc::unbounded_channel();
        let given = stream::unfold(items, async |mut items| Some((items.recv().await?, items)));
        let measured = client.measure(given);
        let mut tensors = client.tensors(0, 5000);
        let first = soon("an item", tensors.next()).await.unwrap().unwrap();
        assert!(is_numbered(&first, 0));
        // Neither way.
        let refused = soon("an end", client.tensors(1, 1).next()).await;
        assert!(
            matches!(refused, Some(Err(CallError::Overloaded(_)))),
            "{refused:?}"
        );
        let refused = client.measure(stream::iter([numbered(1, 0)]));
        let refused = soon("an end", refused).await.unwrap_err();
        assert!(
            matches!(refused, CallError::Overloaded(_)) && !refused.may_have_run(),
            "{refused:?}"
        );
        for i in 1..100 {
            let tensor = soon("an item", tensors.next()).await.unwrap().unwrap();
            assert!(is_numbered(&tensor, i));
        }
        give.send(numbered(70_000, 0)).unwrap();
        drop(give);
        assert_eq!(soon("a sum", measured).await.unwrap(), 70_000);
        // There is room again.
        assert_eq!(soon("a stream", client.tensors(3, 1).count()).await, 3);
    });
}

#[test]
fn references_too_many_are_not_given_and_those_that_are_held_stay() {
    alone(async || {
        let child = Child::start("server", &[("TEST_REFERENCES", "10")]);
        let (client, _) = client(&child.hear("url")).await;
        let held = soon("some", client.parts(7)).await.unwrap();
        // The method made them, nobody has them, and they are gone.
        let error = soon("no more", client.parts(4)).await.unwrap_err();
        assert!(
            matches!(error, CallError::BadReply(_)) && error.may_have_run(),
            "{error:?}"
        );
        let fewer = async { while client.under_way().await.unwrap() > 7 {} };
        soon("the others are gone", fewer).await;
        assert_eq!(soon("a size", client.size(&held[6])).await.unwrap(), 6);
        // A chain that would be one too many fails at its end, and says so.
        let mut more = Vec::new();
        for size in 1..=3 {
            more.push(soon("one more", client.part(size)).await.unwrap());
        }
        let joined = client.join(&more[0], &more[1]);
        let error = soon("no more", client.size(&joined)).await.unwrap_err();
        assert!(matches!(error, CallError::Unresolved(_)), "{error:?}");
        drop((held, more, joined));
        let none = async { while client.under_way().await.unwrap() > 0 {} };
        soon("all are gone", none).await;
        assert_eq!(soon("ten", client.parts(10)).await.unwrap().len(), 10);
    });
}

#[test]
fn a_client_that_is_called_back_too_often_says_so() {
    alone(async || {
        let child = Child::start("server", &[]);
        let mut limits = ServerLimits::default();
        limits.calls_per_connection = 2;
        let (client, hall) = client_within(&child.hear("url"), limits).await;
        // For the question that the server asks first, there is room.
        assert_eq!(soon("an answer", client.ask_back(1)).await.unwrap(), 1);
        let held = [client.ask_back(600_000), client.ask_back(600_000)];
        eventually("both are here", || hall.under_way() == 2).await;
        let error = soon("a refusal", client.ask_back(1)).await.unwrap_err();
        let CallError::Service(words) = &error else {
            panic!("{error:?}");
        };
        assert!(words.contains("enough to do"), "{words}");
        drop(held);
        eventually("both are gone", || hall.under_way() == 0).await;
        assert_eq!(soon("an answer", client.ask_back(1)).await.unwrap(), 1);
    });
}
