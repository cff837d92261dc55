//! Types that no call can carry: serving or requesting them is an error. Values that no call can carry, and types whose serde code
//! panics: that call gets an error, which names the method. A placeholder may stand for a value.

use futures_util::{StreamExt, stream};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorpipe::Error;
use tensorpipe_rpc::codec::{Argument, EncodeError, Encoder};
use tensorpipe_rpc::{
    CallError, ConnectError, Replicas, Server, Streaming, service::Service, tensor_service,
};

use super::lab::{serve, tcp, until};

#[derive(Debug, Serialize, Deserialize)]
struct Inner {
    depth: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    inner: Inner,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
}

#[derive(Debug, Serialize, Deserialize)]
struct Gaps {
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Deep(Option<Box<Self>>);

impl Deep {
    fn new(levels: usize) -> Self {
        (0..levels).fold(Self(None), |inner, _| Self(Some(Box::new(inner))))
    }
}

/// Travels, unless it is told otherwise.
#[derive(Debug)]
struct Fragile(u8);

const PANICS_WHEN_SENT: u8 = 1;
const PANICS_WHERE_IT_ARRIVES: u8 = 2;

thread_local! {
    /// Debug builds read back what they have written; that is not where it arrives.
    static AT_HOME: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Serialize for Fragile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(self.0 != PANICS_WHEN_SENT, "on the way out");
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = u8::deserialize(deserializer)?;
        let arrives = kind == PANICS_WHERE_IT_ARRIVES && !AT_HOME.get();
        assert!(!arrives, "on arrival");
        Ok(Self(kind))
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Number { number: u32 },
}

/// Each has a method that nobody can call.
mod hopeless {
    use super::*;

    #[tensor_service]
    pub(super) trait Flattens {
        async fn sum(&self, a: u64, b: u64) -> u64;
        async fn flat(&self, depth: u32, flat: Flat) -> ();
    }

    #[tensor_service]
    pub(super) trait Answers {
        async fn answer(&self) -> Option<Untagged>;
    }

    #[tensor_service]
    pub(super) trait Fails {
        async fn fail(&self) -> Result<(), Vec<Tagged>>;
    }

    #[tensor_service]
    pub(super) trait Reads {
        async fn read(&self, items: Streaming<serde_json::Value>) -> ();
    }
}

struct Hopeless;

impl hopeless::Flattens for Hopeless {
    async fn sum(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    async fn flat(&self, _: u32, _: Flat) {}
}

impl hopeless::Answers for Hopeless {
    async fn answer(&self) -> Option<Untagged> {
        None
    }
}

impl hopeless::Fails for Hopeless {
    async fn fail(&self) -> Result<(), Vec<Tagged>> {
        Ok(())
    }
}

impl hopeless::Reads for Hopeless {
    async fn read(&self, _: Streaming<serde_json::Value>) {}
}

/// What a server of a service says instead of listening.
async fn refused(service: impl Service) -> String {
    let server = Server::builder().context(&tcp().build().unwrap());
    let listening = server.service(service).listen("tcp://127.0.0.1:0").await;
    match listening {
        Err(Error::Misuse(misuse)) => misuse.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_service_with_a_type_that_cannot_be_decoded_is_not_served() {
    let refusals = [
        (
            refused(hopeless::FlattensService::new(Hopeless)).await,
            ["`Flattens`", "`flat`", "argument flat", "Flat`"],
        ),
        (
            refused(hopeless::AnswersService::new(Hopeless)).await,
            ["`Answers`", "`answer`", "returns", "Untagged>`"],
        ),
        (
            refused(hopeless::FailsService::new(Hopeless)).await,
            ["`Fails`", "`fail`", "error", "Tagged>`"],
        ),
        (
            refused(hopeless::ReadsService::new(Hopeless)).await,
            [
                "`Reads`",
                "`read`",
                "argument items",
                "serde_json::value::Value`",
            ],
        ),
    ];
    for (text, words) in refusals {
        let whole = words.iter().all(|word| text.contains(word));
        assert!(
            whole && text.contains("use a plain enum or struct"),
            "{text}"
        );
    }
}

/// The same service with another type: what the client cannot decode it does not ask for.
mod other {
    use super::*;

    #[tensor_service]
    pub(super) trait Odds {
        async fn give_gaps(&self, full: bool) -> Untagged;
    }
}

#[tokio::test]
async fn a_client_with_such_a_type_asks_nobody() {
    let (client, server) = both().await;
    let connection = client.connection();
    let sent = connection.pipe().stats().bytes_out;
    let error = other::OddsClient::on(connection).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Pipe(Error::Misuse(_))),
        "{error:?}"
    );
    assert!(error.to_string().contains("`give_gaps`"), "{error}");
    assert_eq!(connection.pipe().stats().bytes_out, sent);
    let replicas = Replicas::builder().url(server.url());
    let replicas = replicas.context(&tcp().build().unwrap()).connect();
    let replicas = replicas.await.unwrap();
    let error = other::OddsClient::on(&replicas).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Pipe(Error::Misuse(_))),
        "{error:?}"
    );
}

#[tensor_service]
trait Odds {
    async fn gaps(&self, gaps: Gaps) -> ();
    async fn deep(&self, deep: Deep) -> ();
    async fn give_gaps(&self, full: bool) -> Gaps;
    async fn give_deep(&self, levels: u32) -> Result<Deep, String>;
    async fn fragile(&self, fragile: Fragile) -> ();
    async fn give_fragile(&self, kind: u8) -> Fragile;
    async fn add(&self, a: u64, b: u64) -> u64;
    async fn gather(&self, gaps: Streaming<Gaps>) -> u64;
}

struct Ends;

impl Odds for Ends {
    async fn gaps(&self, _: Gaps) {}
    async fn deep(&self, _: Deep) {}

    async fn give_gaps(&self, full: bool) -> Gaps {
        Gaps {
            gap: full.then_some(1),
        }
    }

    async fn give_deep(&self, levels: u32) -> Result<Deep, String> {
        Ok(Deep::new(levels as usize))
    }

    async fn fragile(&self, _: Fragile) {}

    async fn give_fragile(&self, kind: u8) -> Fragile {
        Fragile(kind)
    }

    async fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    async fn gather(&self, gaps: Streaming<Gaps>) -> u64 {
        gaps.count().await as u64
    }
}

async fn both() -> (OddsClient, Server) {
    let context = tcp().build().unwrap();
    let server = serve(&context, OddsService::new(Ends)).await;
    let url = server.url().to_string();
    let client = OddsClient::connect_with(&context, url).await.unwrap();
    (client, server)
}

#[tokio::test]
async fn an_argument_that_does_not_suit_is_an_error_before_anything_is_sent() {
    let (client, _server) = both().await;
    let sent = client.connection().pipe().stats().bytes_out;
    let gaps = client.gaps(Gaps { gap: None });
    let errors = [
        (gaps.await, "gaps", "`#[serde(skip_serializing_if)]`"),
        (client.deep(Deep::new(200)).await, "deep", "128 levels"),
    ];
    for (result, method, cause) in errors {
        let Err(error @ CallError::Encode(_)) = result else {
            panic!("{result:?}");
        };
        assert!(!error.may_have_run());
        let text = error.to_string();
        assert!(
            text.contains(&format!("of `{method}`")) && text.contains(cause),
            "{text}"
        );
    }
    assert_eq!(client.connection().pipe().stats().bytes_out, sent);
    client.deep(Deep::new(60)).await.unwrap();
    assert_eq!(client.connection().calls_in_flight(), 0);
}

/// The method has the items before it by then.
#[tokio::test]
async fn an_item_of_an_argument_that_does_not_suit_is_an_error_after_which_the_method_may_have_run()
{
    let (client, _server) = both().await;
    let gaps = [Some(1), Some(2), None].map(|gap| Gaps { gap });
    let error = client.gather(stream::iter(gaps)).await.unwrap_err();
    assert!(error.may_have_run(), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("`#[serde(skip_serializing_if)]`"), "{text}");
}

#[tokio::test]
async fn a_result_that_does_not_suit_names_the_method_too() {
    let (client, server) = both().await;
    let error = client.give_deep(200).await.unwrap_err();
    assert!(matches!(error, CallError::BadReply(_)) && error.may_have_run());
    assert!(
        error.to_string().contains("the reply of `give_deep`"),
        "{error}"
    );
    let error = client.give_gaps(false).await.unwrap_err();
    assert!(
        error.to_string().contains("the reply of `give_gaps`"),
        "{error}"
    );
    assert_eq!(client.give_gaps(true).await.unwrap().gap, Some(1));
    client.give_deep(60).await.unwrap();
    assert_eq!(server.calls_in_flight(), 0);
}

#[tokio::test]
async fn serde_code_that_panics_harms_its_own_call_alone() {
    let (client, server) = both().await;
    let is_panicked = |result: Result<(), CallError>, words: &str| match result {
        Err(CallError::Panicked { message: text, .. }) => assert!(text.contains(words), "{text}"),
        other => panic!("{other:?}"),
    };
    let at_home = |kind| {
        AT_HOME.set(true);
        let call = client.fragile(Fragile(kind));
        AT_HOME.set(false);
        call
    };
    for _ in 0..3 {
        // On a task of its own, then on the connection's.
        is_panicked(at_home(PANICS_WHERE_IT_ARRIVES).await, "on arrival");
        let given = client.give_fragile(PANICS_WHEN_SENT).await;
        is_panicked(given.map(drop), "on the way out");
        for _ in 0..50 {
            client.fragile(Fragile(0)).await.unwrap();
            client.give_fragile(0).await.unwrap();
        }
    }
    // In the caller's own code it is the caller's panic, and no call is left behind.
    let stub = std::panic::AssertUnwindSafe(|| client.fragile(Fragile(PANICS_WHEN_SENT)));
    assert!(std::panic::catch_unwind(stub).is_err());
    assert_eq!(client.connection().calls_in_flight(), 0);
    until(|| server.calls_in_flight() == 0).await;
    assert_eq!(client.add(1, 2).await.unwrap(), 3);
}

/// Stands for a number that is elsewhere: as a remote reference would, or a call still pending.
struct Reference(&'static str);

impl Argument<u64> for Reference {
    fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
        encoder.write::<u64, u64>(&(self.0.len() as u64))
    }
}

#[tokio::test]
async fn an_argument_may_be_what_stands_for_a_value() {
    let (client, _server) = both().await;
    assert_eq!(client.add(Reference("four"), 3).await.unwrap(), 7);
}
