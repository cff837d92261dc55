//! Where pipes begin: addresses of every sort, listeners that are late, full of holes, or not there.

use std::pin::pin;
use std::time::Instant;

use futures_util::FutureExt;
use tensorpipe::channels::{Lane, Link};
use tensorpipe::{Device, DeviceKind, Error};

use super::*;

async fn through(url: &str, listener: &tensorpipe::Listener) -> Pipe {
    let context = over_tcp().build().unwrap();
    let (client, server) = soon("a pipe", async {
        tokio::join!(context.connect(url), listener.accept())
    })
    .await;
    let (client, server) = (client.unwrap(), server.unwrap());
    exchange(&client, &server, 5, 70_000).await;
    server
}

/// Containers are often without it.
fn has_ipv6() -> bool {
    let bound = std::net::TcpListener::bind("[::1]:0");
    if let Err(error) = &bound {
        println!("skipped what needs IPv6: {error}");
    }
    bound.is_ok()
}

#[tokio::test]
async fn one_listener_at_several_urls() {
    let context = Context::builder().name("several").build().unwrap();
    let mut urls = vec![
        "tcp://127.0.0.1:0",
        "memory://several urls",
        "tcp://localhost:0",
    ];
    if has_ipv6() {
        urls.push("tcp://[::1]:0");
    }
    let listener = context.listen(&urls).await.unwrap();
    assert_eq!(listener.urls().len(), urls.len());
    for url in listener.urls() {
        assert!(!url.address().ends_with(":0"), "{url} has a real port");
        let url = url.to_string();
        let (client, server) = tokio::join!(context.connect(&url), listener.accept());
        exchange(&client.unwrap(), &server.unwrap(), 1, 10_000).await;
    }
}

#[tokio::test]
async fn one_url_that_fails_leaves_none_listening() {
    let context = over_tcp().build().unwrap();
    let taken = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let free = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = free.url().to_string();
    drop(free);
    let both = context.listen([url.as_str(), taken.url().as_ref()]).await;
    let error = both.unwrap_err().to_string();
    assert!(
        error.contains("something has that address already"),
        "{error}"
    );
    let again = context.listen([&url]).await.unwrap();
    through(&url, &again).await;
}

#[tokio::test]
async fn host_names_ipv6_and_wildcards() {
    let context = over_tcp().build().unwrap();
    let named = context.listen(["tcp://localhost:0"]).await.unwrap();
    let port = |listener: &tensorpipe::Listener| {
        let url = listener.url().address().to_owned();
        url.rsplit_once(':').unwrap().1.to_owned()
    };
    let at = named.url().to_string();
    through(&at, &named).await;
    through(&format!("tcp://localhost:{}", port(&named)), &named).await;
    let anywhere = context.listen(["tcp://0.0.0.0:0"]).await.unwrap();
    through(&format!("tcp://127.0.0.1:{}", port(&anywhere)), &anywhere).await;
    if !has_ipv6() {
        return;
    }
    let six = context.listen(["tcp://[::1]:0"]).await.unwrap();
    through(&format!("tcp://[::1]:{}", port(&six)), &six).await;
    let anywhere = context.listen(["tcp://[::]:0"]).await.unwrap();
    through(&format!("tcp://[::1]:{}", port(&anywhere)), &anywhere).await;
    // As URL libraries write it.
    through(&format!("tcp://[::1]:{}/", port(&anywhere)), &anywhere).await;
}

#[tokio::test]
async fn bad_addresses_say_what_is_wrong() {
    let context = over_tcp().build().unwrap();
    let bad = [
        ("127.0.0.1:80", "no `://`"),
        ("tcp://127.0.0.1", "port is missing"),
        ("tcp://127.0.0.1:port", "not a number"),
        ("tcp://127.0.0.1:80/path", "a path has no meaning"),
        ("tcp://:80", "host is missing"),
        ("tcp://::1:80", "brackets"),
        ("udp://127.0.0.1:80", "no transport `udp`"),
    ];
    for (url, wanted) in bad {
        for error in [
            context.connect(url).await.unwrap_err(),
            context.listen([url]).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains(wanted), "{url}: {error}");
        }
    }
    // Waiting would not help.
    let error = context.connect("tcp://127.0.0.1:0").await.unwrap_err();
    assert!(matches!(error, Error::Misuse(_)), "{error:?}");
    assert!(
        error.to_string().contains("nobody listens at port 0"),
        "{error}"
    );
}

#[tokio::test]
async fn connect_waits_for_a_late_listener() {
    let context = over_tcp().build().unwrap();
    let early = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = early.url().to_string();
    drop(early);
    let connecting = tokio::spawn({
        let (context, url) = (context.clone(), url.clone());
        async move { context.connect(&url).await }
    });
    pause(400).await;
    assert!(!connecting.is_finished());
    let late = context.listen([&url]).await.unwrap();
    let server = soon("accept", late.accept()).await.unwrap();
    let client = soon("connect", connecting).await.unwrap().unwrap();
    exchange(&client, &server, 1, 1000).await;
}

#[tokio::test]
async fn black_holes_are_bounded() {
    let context = over_tcp().timeouts(timeouts(|timeouts| {
        timeouts.handshake = Duration::from_millis(400);
    }));
    let context = context.build().unwrap();
    // One that accepts and says nothing, one whose packets nobody answers, one that does not exist.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = format!("tcp://{}", mute.local_addr().unwrap());
    for url in [
        mute.as_str(),
        "tcp://192.0.2.1:9",
        "tcp://no-such-host.invalid:9",
    ] {
        let begun = Instant::now();
        let policy = ConnectPolicy::retrying_for(Duration::from_secs(1));
        let connecting = context.connect_with(url, &policy);
        let error = soon("the error", connecting).await.unwrap_err();
        let Error::Connect {
            waited, attempts, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert!(*attempts >= 1 && *waited <= begun.elapsed());
        assert!(error.to_string().contains(url), "{error}");
        assert!(
            begun.elapsed() < Duration::from_secs(8),
            "{url}: {:?}",
            begun.elapsed()
        );
    }
}

#[tokio::test]
async fn a_closed_context_connects_no_more() {
    let context = over_tcp().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    drop(listener);
    let connecting = tokio::spawn({
        let context = context.clone();
        async move { context.connect(&url).await }
    });
    pause(100).await;
    context.close().await.unwrap();
    let error = tokio::time::timeout(Duration::from_secs(3), connecting).await;
    let error = error.expect("it goes on connecting").unwrap().unwrap_err();
    assert!(error.to_string().contains("has been closed"), "{error}");
    assert!(context.listen(["tcp://127.0.0.1:0"]).await.is_err());
}

#[tokio::test]
async fn the_route_is_told_in_words() {
    let (inside, _) = pair(&Context::new(), &Context::new()).await;
    let route = inside.route().to_string();
    assert!(
        route.contains("transport memory") && route.contains("upgraded from tcp"),
        "{route}"
    );
    assert!(route.contains("channel xth: cpu:0 <-> cpu:0"), "{route}");
    for lesser in ["tcp", "shm"] {
        let words = format!("not transport {lesser}: memory is preferred");
        assert!(route.contains(&words), "{route}");
    }
    let plain = over_tcp().build().unwrap();
    let (mixed, other) = pair(&Context::new(), &plain).await;
    let route = mixed.route().to_string();
    assert!(route.starts_with("transport tcp ("), "{route}");
    for missing in ["memory", "shm"] {
        let words = format!("not transport {missing}: the listening side does not have it");
        assert!(route.contains(&words), "{route}");
    }
    let words = "xth, lease, cma: the listening side does not have it";
    assert!(route.contains(words), "{route}");
    exchange(&mixed, &other, 1, 100_000).await;
    let (plain, _other) = pair(&plain, &Context::new()).await;
    let route = plain.route().to_string();
    for missing in ["memory", "shm"] {
        let words = format!("not transport {missing}: the connecting side does not have it");
        assert!(route.contains(&words), "{route}");
    }
}

#[tokio::test]
async fn nobody_there_is_an_error_that_says_for_whom_it_waited() {
    let context = over_tcp().build().unwrap();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.url().to_string();
    drop(listener);
    let policy = ConnectPolicy::retrying_for(Duration::from_millis(200));
    let error = context.connect_with(&url, &policy).await.unwrap_err();
    let Error::Connect {
        waited, attempts, ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert!(*attempts > 2);
    let begins = format!(
        "no pipe to {url} after {} ms and {attempts} attempts: connect ",
        waited.as_millis()
    );
    assert!(error.to_string().starts_with(&begins), "{error}");
    // By default it is waited for much longer, and a caller who wants none of it says so.
    assert_eq!(ConnectPolicy::default().retry_for, Duration::from_secs(30));
    let once = ConnectPolicy::once();
    let error = context.connect_with(&url, &once).await.unwrap_err();
    assert!(
        matches!(error, Error::Connect { attempts: 1, .. }),
        "{error:?}"
    );
}

/// The connector lets go of its first connection as soon as it has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pipe_that_is_upgraded_is_accepted() {
    let context = Context::new();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    for _ in 0..200 {
        let both = async { tokio::join!(context.connect(listener.url()), listener.accept()) };
        let (client, server) = soon("a pipe", both).await;
        let from = client.unwrap().route().upgraded_from.clone();
        assert_eq!(from.as_deref(), Some("tcp"));
        assert_eq!(server.unwrap().route().transport, "memory");
    }
}

/// A channel of a machine with many devices of its own, each described at some length.
struct ManyDevices(&'static str, u32, usize);

impl Channel for ManyDevices {
    fn name(&self) -> &'static str {
        self.0
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let Self(_, devices, described) = *self;
        let device = |i| Device::new(DeviceKind::parse("toy").unwrap(), i);
        (0..devices)
            .map(|i| (device(i), vec![7; described]))
            .collect()
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        BasicChannel::new().open(link)
    }
}

fn with_devices(devices: u32, described: usize) -> Context {
    let channel = |name| Arc::new(ManyDevices(name, devices, described)) as Arc<dyn Channel>;
    let transports: [Arc<dyn Transport>; 1] = [Arc::new(TcpTransport::new())];
    let context = Context::builder().transports(transports);
    let context = context.channels([channel("toy"), channel("toy_too")]);
    context.build().unwrap()
}

#[tokio::test]
async fn machines_with_many_devices_have_a_channel_between_all_of_them() {
    let context = with_devices(44, 8);
    let (client, _server) = pair(&context, &context).await;
    let route = client.route();
    assert_eq!(route.channels.len(), 2);
    for channel in &route.channels {
        assert_eq!(channel.pairs.len(), 44 * 44);
        let mixed = (channel.pairs[5].0, channel.pairs[43].1);
        assert!(channel.pairs.contains(&mixed));
    }
}

#[tokio::test]
async fn devices_that_no_frame_can_name_are_refused_with_a_reason() {
    // 250 times 250 pairs are too many for the answer.
    for (described, frame) in [(40, "ANSWER"), (100, "HELLO")] {
        let context = with_devices(250, described);
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let refused = context.connect(listener.url().to_string()).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("use fewer devices or channels"), "{error}");
        assert!(error.contains(frame), "{error}");
    }
}

/// As in a `select!` whose loser is kept for later.
#[tokio::test]
async fn an_accept_that_is_polled_no_more_keeps_no_pipe_from_others() {
    let context = Context::new();
    let listener = context.listen(["memory://accepts"]).await.unwrap();
    let connect = || context.connect(listener.url());
    for waits in [false, true] {
        let (mut forgotten, mut other) = (pin!(listener.accept()), pin!(listener.accept()));
        assert!(futures_util::poll!(&mut forgotten).is_pending());
        assert!(!waits || futures_util::poll!(&mut other).is_pending());
        let first = (
            connect().await.unwrap(),
            soon("a pipe", other).await.unwrap(),
        );
        let second = (
            connect().await.unwrap(),
            soon("a later one", forgotten).await.unwrap(),
        );
        for (client, server) in [first, second] {
            exchange(&client, &server, 1, 100).await;
        }
    }
}

#[tokio::test]
async fn all_who_accept_from_a_context_that_is_closed_hear_of_it() {
    let context = Context::new();
    let listener = context.listen(["memory://closed"]).await.unwrap();
    let (mut first, mut second) = (pin!(listener.accept()), pin!(listener.accept()));
    assert!(futures_util::poll!(&mut first).is_pending());
    assert!(futures_util::poll!(&mut second).is_pending());
    context.close().await.unwrap();
    let accepts = [second, first, pin!(listener.accept())];
    for accept in accepts {
        let error = soon("the end", accept).await.unwrap_err().to_string();
        assert!(error.contains("has been closed"), "{error}");
    }
}

#[tokio::test]
async fn a_context_that_is_closed_while_it_begins_to_listen_has_no_listener() {
    let context = Context::new();
    let mut listening = pin!(context.listen(["tcp://localhost:0"]));
    // The name is looked up on another thread.
    assert!(listening.as_mut().now_or_never().is_none());
    context.close().await.unwrap();
    let listening = listening.await;
    assert!(matches!(listening, Err(Error::Misuse(_))), "{listening:?}");
}
