//! A hostile server sends wrong answers: the client's wait ends with a typed error.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::channels::{BasicChannel, Channel, XthChannel};
use tensorpipe::transports::Transport;
use tensorpipe::{ConnectPolicy, Context, Error, PeerFault, Pipe, Timeouts};

use super::memory::story;
use super::raw::{
    ANSWER, FIN_ACK, HELLO, REJECT, Raw, SOON, STAY, frame, header, limits, noise, preface, text,
};
use super::stream::{Stream, Way};

const HANDSHAKE: Duration = Duration::from_millis(800);

/// Connects once to a server that does `script` with the connection.
pub(super) fn against<T: Send + 'static>(
    script: impl FnOnce(Raw) -> T + Send + 'static,
    then: impl AsyncFnOnce(Context, Result<Pipe, Error>),
) -> T {
    against_one_with(&[Way::Tcp.transport()], &[], script, then)
}

/// The same for a client with these transports, and with these channels before `basic`.
pub(super) fn against_one_with<T: Send + 'static>(
    transports: &[Arc<dyn Transport>],
    channels: &[Arc<dyn Channel>],
    script: impl FnOnce(Raw) -> T + Send + 'static,
    then: impl AsyncFnOnce(Context, Result<Pipe, Error>),
) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let server =
        std::thread::spawn(move || script(Raw(Stream::accepted(listener.accept().unwrap().0))));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut timeouts = Timeouts::default();
        timeouts.handshake = HANDSHAKE;
        let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
        let context = Context::builder()
            .transports(transports.iter().cloned())
            .channels(channels.iter().cloned().chain([basic]))
            .timeouts(timeouts)
            .build()
            .unwrap();
        let once = ConnectPolicy::once();
        let connecting = context.connect_with(url, &once);
        let connected = tokio::time::timeout(SOON, connecting)
            .await
            .expect("connecting ends");
        tokio::time::timeout(2 * SOON, then(context, connected))
            .await
            .expect("what follows ends");
    });
    server.join().unwrap()
}

/// What the one attempt met.
fn met(connected: Result<Pipe, Error>) -> Error {
    match connected {
        Err(Error::Connect { source, .. }) => {
            println!("{source}");
            *source
        }
        other => panic!("{other:?}"),
    }
}

fn fault(connected: Result<Pipe, Error>) -> PeerFault {
    match met(connected) {
        Error::Peer { fault, .. } => fault,
        other => panic!("{other:?}"),
    }
}

pub(super) struct Choice {
    pub(super) upgrade: Option<(&'static str, String)>,
    pub(super) channels: Vec<(&'static str, u8)>,
    /// How many devices the connector has offered for a channel.
    pub(super) offered: u8,
    /// The listener's descriptor of its main memory, for each channel.
    pub(super) descriptor: Vec<u8>,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            upgrade: None,
            channels: vec![("basic", 0)],
            offered: 1,
            descriptor: b"any".to_vec(),
        }
    }
}

pub(super) fn answer(choice: &Choice) -> Vec<u8> {
    let mut body = text(b"bad server");
    body.extend([0x22; 16]);
    body.extend(limits());
    match &choice.upgrade {
        None => body.push(0),
        Some((transport, address)) => {
            body.push(1);
            body.extend(text(transport.as_bytes()));
            body.extend(text(address.as_bytes()));
            body.extend([0x33; 16]);
        }
    }
    body.push(choice.channels.len() as u8);
    for (name, tokens) in &choice.channels {
        body.extend(text(name.as_bytes()));
        body.push(*tokens);
        body.extend([0x44].repeat(16 * usize::from(*tokens)));
        body.extend([1, 0]);
        body.extend(text(&choice.descriptor));
        // The first with the first.
        body.extend([choice.offered, 1]);
    }
    body.push(0);
    [preface(), frame(ANSWER, &body)].concat()
}

/// Reads the client's HELLO, then sends `bytes`.
fn says(bytes: Vec<u8>) -> impl FnOnce(Raw) + Send {
    move |mut raw| {
        raw.expect_preface();
        assert_eq!(raw.frame().unwrap().kind, HELLO);
        raw.send(&bytes);
        raw.is_cut("the client", SOON);
    }
}

#[test]
fn nonsense_for_an_answer_is_the_peers_fault() {
    let _story = story!();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("HTTP", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("noise", noise(3, 4000)),
        (
            "an answer of 4 GiB",
            [preface(), header(ANSWER, u32::MAX, b"")].concat(),
        ),
        (
            "an answer of noise",
            [preface(), frame(ANSWER, &noise(5, 300))].concat(),
        ),
        ("an empty answer", [preface(), frame(ANSWER, b"")].concat()),
        ("a hello", [preface(), frame(HELLO, &[0; 100])].concat()),
        (
            "a rejection cut short",
            [preface(), frame(REJECT, &[1, 255, 255])].concat(),
        ),
        ("another version", b"\x93TPIPE\r\n\x09\0\x07\0".to_vec()),
    ];
    for (what, bytes) in cases {
        against(says(bytes), async |_, connected| {
            println!("{what}: {}", fault(connected));
        });
    }
}

#[test]
fn an_answer_cut_at_every_byte_is_an_end() {
    let _story = story!();
    let whole = answer(&Choice::default());
    for len in (0..whole.len()).step_by(3) {
        let bytes = whole[..len].to_vec();
        against(
            move |mut raw| {
                raw.expect_preface();
                raw.frame().unwrap();
                raw.send(&bytes);
                raw.finish_sending();
                raw.is_cut("the client", SOON);
            },
            async |_, connected| {
                assert!(matches!(met(connected), Error::Lost { .. }));
            },
        );
    }
}

#[test]
fn a_choice_that_was_not_offered_is_the_peers_fault() {
    let _story = story!();
    let with = |channels: &[(&'static str, u8)]| Choice {
        channels: channels.to_vec(),
        ..Choice::default()
    };
    let choices = [
        (with(&[("mirrors", 0)]), "channel mirrors"),
        (
            Choice {
                offered: 2,
                ..Choice::default()
            },
            "channel basic",
        ),
        (
            Choice {
                upgrade: Some(("smoke", "s1".to_owned())),
                ..Choice::default()
            },
            "transport smoke",
        ),
    ];
    for (choice, expected) in choices {
        against(says(answer(&choice)), async |_, connected| {
            let fault = fault(connected);
            let PeerFault::NotOffered { what } = &fault else {
                panic!("{fault}");
            };
            assert!(what.contains(expected), "{fault}");
        });
    }
}

/// A channel is for ends that reach each other: a client looks for itself, and sees what the pipe goes over.
#[test]
fn a_channel_that_does_not_reach_is_the_peers_fault() {
    let _story = story!();
    // What a client tells every server: `xth` means this process by it.
    let id = against(
        |mut raw| {
            raw.expect_preface();
            let hello = raw.frame().unwrap().body;
            let name = usize::from(u16::from_le_bytes([hello[1], hello[2]]));
            hello[3 + name..][..16].to_vec()
        },
        async |_, _| {},
    );
    for descriptor in [b"another process".to_vec(), id] {
        let choice = Choice {
            channels: vec![("xth", 0), ("basic", 0)],
            descriptor,
            ..Choice::default()
        };
        against_one_with(
            &[Way::Tcp.transport()],
            &[Arc::new(XthChannel::new())],
            says(answer(&choice)),
            async |_, connected| {
                let words = fault(connected).to_string();
                println!("{words}");
                assert!(words.contains("channel xth"), "{words}");
            },
        );
    }
}

/// A server must not make its clients open connections by the hundred.
#[test]
fn tokens_that_no_channel_asked_for_open_no_connections() {
    let _story = story!();
    for channels in [vec![("basic", 255)], vec![("basic", 0), ("basic", 0)]] {
        let choice = Choice {
            channels,
            ..Choice::default()
        };
        against(says(answer(&choice)), async |_, connected| {
            let fault = fault(connected);
            assert!(matches!(fault, PeerFault::Malformed { .. }), "{fault}");
        });
    }
}

#[test]
fn an_address_to_upgrade_to_where_nobody_is_keeps_the_first_connection() {
    let _story = story!();
    let choice = Choice {
        upgrade: Some(("shm", "nobody listens there".to_owned())),
        ..Choice::default()
    };
    let bytes = answer(&choice);
    against_one_with(
        &[Way::Shm.transport(), Way::Tcp.transport()],
        &[],
        move |mut raw| {
            raw.expect_preface();
            raw.frame().unwrap();
            raw.send(&bytes);
            let stay = raw.frame().unwrap();
            assert_eq!(stay.kind, STAY);
            println!("{}", String::from_utf8_lossy(&stay.body));
        },
        async |_, connected| {
            let pipe = connected.unwrap();
            assert!(matches!(pipe.ended().await, Error::Lost { .. }));
        },
    );
}

/// Its words would be in the route, and in the log, of a pipe that stays.
#[test]
fn an_address_to_upgrade_to_that_begins_a_line_is_the_peers_fault() {
    let _story = story!();
    let choice = Choice {
        upgrade: Some(("shm", "nobody\n  channel cma: all well".to_owned())),
        ..Choice::default()
    };
    against_one_with(
        &[Way::Shm.transport(), Way::Tcp.transport()],
        &[],
        says(answer(&choice)),
        async |_, connected| {
            let fault = fault(connected);
            assert!(matches!(fault, PeerFault::Malformed { .. }), "{fault}");
        },
    );
}

/// A server does not make its clients connect to whom it likes: a pipe is upgraded to a way within its machine.
#[test]
fn an_upgrade_to_another_address_of_the_network_is_the_peers_fault() {
    let _story = story!();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let choice = Choice {
        upgrade: Some(("tcp", other.local_addr().unwrap().to_string())),
        ..Choice::default()
    };
    against(says(answer(&choice)), async |_, connected| {
        let fault = fault(connected);
        assert!(matches!(fault, PeerFault::Malformed { .. }), "{fault}");
    });
    let nobody = other.accept().unwrap_err();
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn an_answer_that_never_ends_is_cut_off_at_the_bound() {
    let _story = story!();
    against(
        |mut raw| {
            for byte in answer(&Choice::default()) {
                if !raw.send(&[byte]) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        },
        async |_, connected| {
            assert!(matches!(met(connected), Error::Timeout { .. }));
        },
    );
    // Not a byte.
    let begun = Instant::now();
    against(
        |mut raw| drop(raw.is_cut("the client", SOON)),
        async |_, connected| {
            assert!(matches!(met(connected), Error::Timeout { .. }));
        },
    );
    assert!(begun.elapsed() >= HANDSHAKE);
}

#[test]
fn a_server_that_rejects_is_quoted() {
    let _story = story!();
    let reason = [&[0][..], &text("not \u{1b}[31mtoday".as_bytes())].concat();
    against(
        says([preface(), frame(REJECT, &reason)].concat()),
        async |_, connected| {
            let error = met(connected);
            assert!(
                matches!(
                    &error,
                    Error::Rejected {
                        transient: false,
                        ..
                    }
                ),
                "{error:?}"
            );
            // What a hostile peer says does not paint our terminal.
            assert!(!error.to_string().contains('\u{1b}'), "{error:?}");
        },
    );
}

#[test]
fn nonsense_behind_a_good_answer_ends_the_pipe() {
    let _story = story!();
    for bytes in [
        noise(7, 100),
        frame(FIN_ACK, b""),
        header(16, u32::MAX, b""),
    ] {
        let bytes = [answer(&Choice::default()), bytes].concat();
        against(says(bytes), async |_, connected| {
            let pipe = connected.unwrap();
            let error = pipe.read().await.unwrap_err();
            println!("{error}");
            assert!(matches!(error, Error::Peer { .. }), "{error:?}");
        });
    }
}
