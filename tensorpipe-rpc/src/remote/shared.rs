//! References for a third process: plain data that one holder makes and another process opens.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpipe::{Context, Misuse, Url};
use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use super::owned::{Referent, drop_value};
use super::{Location, Remote};
use crate::call::{Call, StartedCall};
use crate::client::Connection;
use crate::context::CallContext;
use crate::error::CallError;
use crate::header::{FailureCode, Kind};
use crate::lock::lock;
use crate::server::ServerShared;

/// How many unclaimed references one connection may have shared at least, or a quarter of the server's, so that none takes them all.
const SHARED_BY_ONE: usize = 1 << 14;

/// A reference that any process can [`open`](Shared::open): the owner's URLs, and a token that can be used once.
///
/// ```
/// use tensorpipe::Context;
/// use tensorpipe_rpc::remote::Shared;
/// use tensorpipe_rpc::{Remote, Server, ServiceError, tensor_service};
///
/// #[tensor_service]
/// trait Owner {
///     async fn make(&self) -> Remote<String>;
/// }
///
/// #[tensor_service]
/// trait Third {
///     async fn read(&self, text: Shared<String>) -> Result<String, ServiceError>;
/// }
///
/// struct Here;
///
/// impl Owner for Here {
///     async fn make(&self) -> Remote<String> {
///         Remote::new("made by the owner".to_owned())
///     }
/// }
///
/// impl Third for Here {
///     async fn read(&self, text: Shared<String>) -> Result<String, ServiceError> {
///         // Talks to the owner directly.
///         Ok(text.open(Context::global()).await?.fetch().await?)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let owner = Server::builder().service(OwnerService::new(Here)).listen("tcp://127.0.0.1:0").await?;
/// let third = Server::builder().service(ThirdService::new(Here)).listen("tcp://127.0.0.1:0").await?;
/// let owner = OwnerClient::connect(owner.url()).await?;
/// let third = ThirdClient::connect(third.url()).await?;
///
/// let text = owner.make().await?;
/// assert_eq!(third.read(text.share().await?).await?, "made by the owner");
/// # Ok(())
/// # }
/// ```
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Shared<T> {
    urls: Vec<String>,
    token: Token,
    value: PhantomData<fn() -> T>,
}

type Token = [u8; 16];

/// The owner's answer to a request to share.
#[derive(Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) urls: Vec<String>,
    pub(crate) token: Token,
}

/// How many URLs of an owner are passed on, and tried.
const URLS: usize = 8;

/// How long all URLs together are tried.
const REACHABLE: Duration = Duration::from_secs(30);

/// How long URLs are still tried after a process has answered, and did not hand over the reference. Whoever is asked has at least its share
/// of that to answer.
const REACHABLE_STILL: Duration = Duration::from_secs(3);

/// How long a reference that was shared can be claimed.
const CLAIMABLE: Duration = Duration::from_secs(60);

/// The longest time between two sweeps: an expired grant is kept no longer than that.
const SWEEP: Duration = Duration::from_secs(10);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self {
            urls: self.urls.clone(),
            token: self.token,
            value: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Shared<T> {
    /// Without the token: everybody who knows it can have the value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Remote<T> {
    /// Makes a reference to send to a third process, which opens it and then talks to the owner directly. It can be opened once,
    /// within a minute. Until then the owner keeps the value, even if this reference is dropped. Everybody who reads the reference
    /// can open it, so send it only to trusted processes.
    ///
    /// A method shares a value of its own process, for the next stage of a pipeline, through the server that runs it. Elsewhere
    /// [`Server::share`](crate::Server::share) does that.
    ///
    /// # Errors
    /// [`CallError::Unresolved`] if the value is in this process, but this is no method's task, or if its owner listens nowhere that
    /// others reach; otherwise the errors of any call.
    pub async fn share(&self) -> Result<Shared<T>, CallError> {
        let handle = match &self.location {
            Location::There(handle) => handle,
            Location::Here(value, copy) => {
                let context = CallContext::current();
                let engine = context.and_then(|context| context.inner.caller.engine());
                let Some(engine) = engine else {
                    let text = "the value is in this process, and this is no task of a method: `Server::share` shares it, too";
                    return Err(CallError::Unresolved(text.into()));
                };
                return Self::granted(engine.grant(Referent::new(value, *copy), names_a_host));
            }
            Location::Nowhere => return Err(CallError::Unresolved(super::NOWHERE.into())),
        };
        let Grant { urls, token } = handle.share().await?;
        // The URL at which this process reached the owner comes first: the owner's own may be `0.0.0.0`.
        let mut reached: Vec<_> = handle
            .engine()
            .peer_url
            .get()
            .cloned()
            .into_iter()
            .collect();
        reached.extend(urls);
        reached.dedup();
        reached.truncate(URLS);
        Ok(Shared {
            urls: reached,
            token,
            value: PhantomData,
        })
    }

    /// As [`share`](Self::share), for a value of this process, by its server.
    pub(crate) fn share_by(
        &self,
        server: &ServerShared,
        runtime: &Runtime,
    ) -> Result<Shared<T>, CallError> {
        match &self.location {
            Location::Here(value, copy) => {
                let referent = Referent::new(value, *copy);
                // No connection has this number.
                Self::granted(server.share(referent, u64::MAX, runtime, names_a_host))
            }
            Location::There(_) => Err(CallError::Unresolved(
                "the value is in another process: `Remote::share` asks its owner".into(),
            )),
            Location::Nowhere => Err(CallError::Unresolved(super::NOWHERE.into())),
        }
    }

    /// What this process's own server has granted.
    fn granted(granted: Result<Grant, (FailureCode, String)>) -> Result<Shared<T>, CallError> {
        let Grant { mut urls, token } = granted.map_err(|(code, text)| match code {
            FailureCode::Overloaded => CallError::Overloaded(text.into()),
            _ => CallError::Unresolved(text.into()),
        })?;
        urls.truncate(URLS);
        Ok(Shared {
            urls,
            token,
            value: PhantomData,
        })
    }
}

/// Whether it is neither `0.0.0.0` nor `[::]`, where each host reaches itself.
fn names_a_host(url: &str) -> bool {
    !ip_of(url).is_some_and(|ip| ip.is_unspecified())
}

/// Whether each host reaches itself there, and so perhaps another process than the owner.
fn is_of_each_host(url: &str) -> bool {
    let parsed = url.parse::<Url>();
    let is_localhost = parsed.is_ok_and(|url| url.address().starts_with("localhost:"));
    is_localhost
        || ip_of(url).is_some_and(|ip| ip.is_unspecified() || ip.to_canonical().is_loopback())
}

fn ip_of(url: &str) -> Option<IpAddr> {
    let address = url.parse::<Url>().ok()?;
    let address = address.address().parse::<SocketAddr>().ok()?;
    Some(address.ip())
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// The owner's URLs, as the maker of the reference gave them.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Connects to the owner, for as long as the context tries ([`ConnectPolicy`](tensorpipe::ConnectPolicy)), and claims the
    /// reference, which then keeps the connection open. Cancel safe, but once the owner has been asked, the token is used up.
    ///
    /// URLs are tried in order, loopback and unspecified addresses last, until a process there knows the reference. Each process that
    /// is asked gets the token, also one that is not the owner: on another host, a port of `127.0.0.1` is another process's. Where that
    /// matters, allow only URLs whose servers prove who they are, such as `tls`.
    ///
    /// The sender of the reference chooses the hosts and ports that this connects to, over the context's transports: at most 8
    /// URLs, within 40 s in all. For references from untrusted peers, use [`open_where`](Shared::open_where). Must be awaited inside a
    /// tokio runtime, on which the connection lives.
    ///
    /// # Errors
    /// - [`CallError::Unresolved`] if it was opened before, or too late, or names too many URLs.
    /// - [`CallError::Connection`] if nobody can be reached at any URL. A context that has transport `tls` tries only that and
    ///   transports within this machine (`shm`, not `tcp` to `localhost`); `open_where` tries others, too.
    /// - Otherwise, the errors of any call: the first of a process that did not say it has no such reference.
    pub async fn open(&self, context: &Context) -> Result<Remote<T>, CallError> {
        // Whoever wrote the URLs must not choose a connection that proves less than this context's others.
        let tls = "tls://-".parse();
        let has_tls = tls.is_ok_and(|tls| context.check_transport(&tls).is_ok());
        let is_guarded = |url: &Url| !has_tls || url.transport() == "tls" || context.is_local(url);
        let is_open = |url: &String| url.parse().is_ok_and(|url| !is_guarded(&url));
        if !self.urls.is_empty() && self.urls.iter().all(is_open) {
            return Err(CallError::Unresolved(
                "its owner listens neither at `tls`, which this context has, nor within this machine: let it, or use `open_where`".into(),
            ));
        }
        self.open_where(context, is_guarded).await
    }

    /// As [`open`](Shared::open), but connects to those URLs that are `allowed`, and to no others. Judge by [`Url::transport`] as well as by
    /// the address: a context with `tls` then also follows `tcp` URLs.
    ///
    /// # Errors
    /// As [`open`](Shared::open); [`CallError::Unresolved`] when none is allowed.
    pub async fn open_where(
        &self,
        context: &Context,
        allowed: impl Fn(&Url) -> bool,
    ) -> Result<Remote<T>, CallError> {
        if Runtime::try_current().is_err() {
            return Err(CallError::Connection {
                error: Misuse::NoRuntime.into(),
                may_have_run: false,
            });
        }
        let unresolved = |text: String| Err(CallError::Unresolved(text.into()));
        if self.urls.len() > URLS {
            let count = self.urls.len();
            return unresolved(format!("it names {count} URLs, at most {URLS} are tried"));
        }
        let is_allowed = |url: &&String| url.parse().map_or(true, |url| allowed(&url));
        let mut urls: Vec<_> = self.urls.iter().filter(is_allowed).collect();
        urls.sort_by_key(|url| is_of_each_host(url));
        let mut until = Instant::now() + REACHABLE;
        let (mut unreachable, mut unknown, mut failed) = (None, None, None);
        for (i, url) in urls.iter().enumerate() {
            let left = until.saturating_duration_since(Instant::now());
            let others = (urls.len() - i) as u32;
            let share = left / others;
            let by = Instant::now() + share;
            let late = |doing: &str, after| tensorpipe::Error::Timeout {
                what: format!("{doing} {url}, where a reference says that its owner is").into(),
                after,
                hint: "the owner may be gone: ask whoever shared the reference for another one",
            };
            let connecting = Connection::connect_with(context, url);
            let connected = tokio::time::timeout_at(by, connecting).await;
            let connected = connected.map_err(|_| late("connecting to", share));
            let connection = match connected.flatten() {
                Ok(connection) => connection,
                Err(error) => {
                    unreachable.get_or_insert(error);
                    continue;
                }
            };
            let made = connection.engine.ask(Kind::Claim, &self.token, None, None);
            let claim = Call::of_value(&super::FETCH, made.map(StartedCall::sent));
            // The token is used up once it is asked with: not for want of the time that connecting took.
            let asked = Instant::now();
            let by = by.max(asked + REACHABLE_STILL / others);
            let claimed = tokio::time::timeout_at(by, claim).await;
            let unanswered = |_| CallError::Connection {
                error: late("claiming at", by - asked),
                may_have_run: true,
            };
            // Whatever it answers, perhaps this is not the owner. If it is, the others need not be waited for long.
            match claimed.map_err(unanswered).flatten() {
                Ok(claimed) => return Ok(claimed),
                Err(CallError::Connection {
                    error,
                    may_have_run: false,
                }) => {
                    unreachable.get_or_insert(error);
                    continue;
                }
                Err(error @ CallError::Unresolved(_)) => _ = unknown.get_or_insert(error),
                Err(error) => _ = failed.get_or_insert(error),
            }
            until = until.min(Instant::now() + REACHABLE_STILL);
        }
        let unreachable = unreachable.map(|error| CallError::Connection {
            error,
            may_have_run: false,
        });
        if let Some(error) = failed.or(unknown).or(unreachable) {
            return Err(error);
        }
        match self.urls.len() {
            0 => unresolved("its owner listens nowhere".to_owned()),
            count => unresolved(format!("none of its {count} URLs is allowed here")),
        }
    }
}

/// References that were shared, and not claimed yet.
#[derive(Default)]
pub(crate) struct Grants {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    granted: HashMap<Token, Granted>,
    /// How many of them each connection has shared, by its number.
    by_connection: HashMap<u64, usize>,
    /// A task removes expired grants. There is only one, however many grants are made and claimed.
    swept: bool,
}

struct Granted {
    /// Until when it can be claimed.
    until: Instant,
    connection: u64,
    referent: Referent,
}

impl Table {
    /// What is out of `granted` no longer counts against its connection.
    fn uncount(&mut self, connection: u64) {
        if let Entry::Occupied(mut count) = self.by_connection.entry(connection) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Grants {
    pub(crate) fn count(&self) -> usize {
        lock(&self.table).granted.len()
    }

    /// Keeps a value until somebody claims it, on behalf of the connection with this number. The error says why it cannot.
    pub(crate) fn give(
        self: &Arc<Self>,
        referent: Referent,
        connection: u64,
        limit: usize,
        runtime: &Runtime,
    ) -> Result<Token, String> {
        let mut token = Token::default();
        tensorpipe::ambient::fill_random(&mut token).map_err(|error| error.to_string())?;
        let until = Instant::now() + CLAIMABLE;
        let swept = {
            let mut table = lock(&self.table);
            if table.granted.len() >= limit {
                return Err(format!(
                    "{limit} references are shared and not claimed, the limit"
                ));
            }
            let most = SHARED_BY_ONE.max(limit / 4);
            let of_one = table.by_connection.entry(connection).or_default();
            if *of_one >= most {
                return Err(format!(
                    "{most} references were shared over this connection, or by this process itself, and not claimed, \
                     the limit; each can be claimed for a minute"
                ));
            }
            *of_one += 1;
            let granted = Granted {
                until,
                connection,
                referent,
            };
            table.granted.insert(token, granted);
            std::mem::replace(&mut table.swept, true)
        };
        if !swept {
            runtime.spawn(Sweeper(Arc::downgrade(self)).run());
        }
        Ok(token)
    }

    /// Claims a value, once.
    pub(crate) fn take(&self, token: &Token) -> Option<Referent> {
        let granted = {
            let mut table = lock(&self.table);
            let granted = table.granted.remove(token)?;
            table.uncount(granted.connection);
            granted
        };
        if Instant::now() < granted.until {
            return Some(granted.referent);
        }
        drop_value(granted);
        None
    }

    /// Drops expired grants. Returns whether others are left, which the sweeper goes on watching.
    fn remove_expired(&self, now: Instant) -> bool {
        let (passed, left) = {
            let mut table = lock(&self.table);
            let passed = table.granted.extract_if(|_, granted| granted.until <= now);
            let passed: Vec<_> = passed.map(|(_, granted)| granted).collect();
            for granted in &passed {
                table.uncount(granted.connection);
            }
            // Drops of values may take long, and somebody may share meanwhile.
            table.swept = !table.granted.is_empty();
            (passed, table.swept)
        };
        passed.into_iter().for_each(drop_value);
        left
    }
}

/// Drops grants that nobody claimed in time. If its runtime ends, the next grant starts a new sweeper.
struct Sweeper(Weak<Grants>);

impl Sweeper {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(SWEEP).await;
            let grants = self.0.upgrade();
            if !grants.is_some_and(|grants| grants.remove_expired(Instant::now())) {
                // There may be another sweeper by now.
                self.0 = Weak::new();
                return;
            }
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(grants) = self.0.upgrade() {
            lock(&grants.table).swept = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorpipe::Error;
    use tensorpipe::transports::{Acceptor, BoxFuture, Transport};

    use super::super::owned::no_copy;
    use super::*;
    use crate::server::Server;

    fn at(urls: impl IntoIterator<Item = String>) -> Shared<String> {
        Shared {
            urls: urls.into_iter().collect(),
            token: [7; 16],
            value: PhantomData,
        }
    }

    /// A `tls` transport on which an attacker breaks every connection.
    struct Spoilt;

    impl Transport for Spoilt {
        fn name(&self) -> &'static str {
            "tls"
        }
        fn domain(&self) -> Vec<u8> {
            Vec::new()
        }
        fn connect<'a>(
            &'a self,
            _: &'a str,
        ) -> BoxFuture<'a, Result<Box<dyn tensorpipe::transports::Connection>, Error>> {
            Box::pin(std::future::pending())
        }
        fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
            Box::pin(std::future::pending())
        }
    }

    /// On paused time, which jumps to the next timer.
    #[tokio::test(start_paused = true)]
    async fn with_tls_nobody_is_asked_over_tcp() {
        for (has_tls, is_asked, is_first) in [
            (true, false, false),
            (true, false, true),
            (false, true, false),
        ] {
            let (listener, tcp) = silent().await;
            let mut urls = ["tls://127.0.0.1:1".to_owned(), tcp];
            if is_first {
                urls.reverse();
            }
            let shared = at(urls);
            let context = match has_tls {
                true => Context::builder().prefer_transport(Spoilt),
                false => Context::builder(),
            };
            let context = context.build().unwrap();
            shared.open(&context).await.unwrap_err();
            let asked = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
            assert_eq!(
                asked.is_ok(),
                is_asked,
                "with tls: {has_tls}, first: {is_first}"
            );
        }
        let here = Context::builder().build().unwrap();
        let listener = here.listen(["memory://behind-tls"]).await.unwrap();
        let shared = at(["tls://127.0.0.1:1", "memory://behind-tls"].map(str::to_owned));
        let context = Context::builder().prefer_transport(Spoilt);
        let context = context.build().unwrap();
        let opens = tokio::spawn(async move { shared.open(&context).await });
        listener.accept().await.expect("it was not tried");
        opens.abort();
    }

    /// A listener that never answers.
    async fn silent() -> (tokio::net::TcpListener, String) {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("tcp://{}", silent.local_addr().unwrap());
        (silent, url)
    }

    fn words(opened: Result<Remote<String>, CallError>) -> String {
        let Err(CallError::Unresolved(words)) = opened else {
            panic!("{opened:?}");
        };
        words.to_string()
    }

    #[tokio::test]
    async fn a_reference_makes_nobody_connect_to_whom_it_likes() {
        let (silent, url) = silent().await;
        let context = Context::new();
        let opened = at(vec![url.clone(); 9]).open(&context).await;
        assert!(words(opened).contains("9 URLs"));
        let one = at([url]);
        let opened = one.open_where(&context, |url| url.transport() == "shm");
        assert!(words(opened.await).contains("allowed"));
        let came = tokio::time::timeout(Duration::from_millis(50), silent.accept());
        assert!(came.await.is_err(), "somebody has connected");
    }

    /// A server of nothing, as may listen on another host at the owner's loopback address.
    #[tokio::test]
    async fn another_process_at_one_of_its_urls_is_not_taken_for_its_owner() {
        let context = Context::new();
        let serve = || {
            Server::builder()
                .context(&context)
                .listen("tcp://127.0.0.1:0")
        };
        let (owner, other) = (serve().await.unwrap(), serve().await.unwrap());
        let mut shared = owner.share(&Remote::new("kept".to_owned())).unwrap();
        shared.urls.insert(0, other.url().to_string());
        let opened = shared.open(&context).await.unwrap();
        assert_eq!(opened.fetch().await.unwrap(), "kept");
        assert!(words(shared.open(&context).await).contains("claimed"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_closes_or_stays_silent_does_not_end_the_search_for_the_owner() {
        let context = Context::new();
        let stranger = Server::builder().context(&context);
        let stranger = stranger.listen("memory://a stranger").await.unwrap();
        for (closes, silence, is_second) in [
            (true, Duration::ZERO, false),
            (false, REACHABLE / 2, false),
            (false, REACHABLE_STILL / 2, true),
        ] {
            let other = context.listen(["memory://not the owner"]).await.unwrap();
            let owner = Server::builder().context(&context);
            let owner = owner.listen("memory://the owner").await.unwrap();
            let mut shared = owner.share(&Remote::new("kept".to_owned())).unwrap();
            shared.urls.insert(0, "memory://not the owner".to_owned());
            if is_second {
                shared.urls.insert(0, stranger.url().to_string());
            }
            let open = async || {
                let asked = async {
                    let pipe = other.accept().await.unwrap();
                    let claim = pipe.read_descriptor().await;
                    match closes {
                        true => drop((pipe, claim)),
                        false => {
                            tokio::time::advance(silence).await;
                            std::future::pending::<()>().await;
                        }
                    }
                    std::future::pending().await
                };
                tokio::select! {
                    opened = shared.open(&context) => opened,
                    never = asked => never,
                }
            };
            assert_eq!(open().await.unwrap().fetch().await.unwrap(), "kept");
            // Nobody knows it any more: what may have become of it where no answer came says most.
            let error = open().await.unwrap_err();
            assert!(
                matches!(
                    &error,
                    CallError::Connection {
                        may_have_run: true,
                        ..
                    }
                ),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn where_each_host_reaches_itself_is_tried_last() {
        let is_last = [
            "localhost:1",
            "127.0.0.1:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
            "0.0.0.0:1",
        ];
        assert!(is_last.map(|at| is_of_each_host(&format!("tcp://{at}"))) == [true; 5]);
        assert!(
            !["tcp://10.0.0.1:1", "tls://owner:1", "shm://owner"]
                .map(is_of_each_host)
                .contains(&true)
        );
        let context = Context::new();
        let owner = Server::builder().context(&context);
        let owner = owner.listen("memory://tried first").await.unwrap();
        let mut shared = owner.share(&Remote::new("kept".to_owned())).unwrap();
        let (silent, url) = silent().await;
        shared.urls.insert(0, url);
        shared.open(&context).await.unwrap();
        let came = tokio::time::timeout(Duration::from_millis(50), silent.accept());
        assert!(came.await.is_err(), "somebody has connected");
    }

    /// On paused time, which jumps to the next timer.
    #[tokio::test(start_paused = true)]
    async fn all_its_urls_together_are_tried_for_a_bounded_time() {
        let (_silent, url) = silent().await;
        let begun = Instant::now();
        let opened = at(vec![url; URLS]).open(&Context::new()).await;
        assert!(
            matches!(opened, Err(CallError::Connection { .. })),
            "{opened:?}"
        );
        assert!(begun.elapsed() <= REACHABLE + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_shares_much_leaves_room_for_others() {
        let (grants, runtime) = (Arc::new(Grants::default()), Runtime::current());
        let give = |connection| {
            let referent = Referent::new(&Arc::new(()), no_copy);
            grants.give(referent, connection, 4 * SHARED_BY_ONE, &runtime)
        };
        let tokens: Vec<_> = (0..SHARED_BY_ONE).map(|_| give(1).unwrap()).collect();
        assert!(give(1).is_err());
        give(2).unwrap();
        assert!(grants.take(&tokens[0]).is_some());
        give(1).unwrap();
        assert!(give(1).is_err());
        tokio::time::sleep(CLAIMABLE + 2 * SWEEP).await;
        assert!(lock(&grants.table).by_connection.is_empty());
        give(1).unwrap();
    }

    /// Shares something else when it is dropped.
    struct SharesAgain(Weak<Grants>);

    impl Drop for SharesAgain {
        fn drop(&mut self) {
            let referent = Referent::new(&Arc::new(()), no_copy);
            let grants = self.0.upgrade().unwrap();
            grants.give(referent, 1, 2, &Runtime::current()).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_shared_while_the_last_value_is_dropped_is_watched() {
        let grants = Arc::new(Grants::default());
        let referent = Referent::new(&Arc::new(SharesAgain(Arc::downgrade(&grants))), no_copy);
        grants.give(referent, 1, 2, &Runtime::current()).unwrap();
        tokio::time::sleep(CLAIMABLE + SWEEP).await;
        assert_eq!(grants.count(), 1);
        tokio::time::sleep(CLAIMABLE + SWEEP).await;
        assert_eq!(grants.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_shared_is_kept_for_a_minute_and_watched_by_one_task() {
        let (grants, value) = (Arc::new(Grants::default()), Arc::new(()));
        let runtime = Runtime::current();
        let tasks = || runtime.metrics().num_alive_tasks();
        let give = || {
            let referent = Referent::new(&value, no_copy);
            grants.give(referent, 1, 2, &runtime)
        };
        for _ in 0..100 {
            let token = give().unwrap();
            assert!(grants.take(&token).is_some());
            assert!(grants.take(&token).is_none(), "once");
        }
        assert_eq!(tasks(), 1);
        let tokens = [give().unwrap(), give().unwrap()];
        assert!(give().is_err());
        tokio::time::sleep(CLAIMABLE - SWEEP).await;
        assert!(grants.take(&tokens[0]).is_some());
        assert_eq!(Arc::strong_count(&value), 2);
        tokio::time::sleep(3 * SWEEP).await;
        assert_eq!((grants.count(), Arc::strong_count(&value)), (0, 1));
        assert!(grants.take(&tokens[1]).is_none());
        assert_eq!(tasks(), 0);
        // A new grant starts a new task.
        give().unwrap();
        assert_eq!(tasks(), 1);
        drop(grants);
        tokio::time::sleep(2 * SWEEP).await;
        assert_eq!((tasks(), Arc::strong_count(&value)), (0, 1));
    }
}
