//! The rows: a network fault, when it begins and ends, and what must hold afterwards.

use std::time::{Duration, Instant};

use tensorpipe_tests::{Child, End, Judged, judge_at_once, tidy};

use super::calls::{
    ALL_ARE_OUT, ALL_ARE_OUT_OF_LARGE, CHUNKS, ONE_IS_OUT, PATIENT, PORTS, UNANSWERED,
};
use super::link::{Link, Since, Weather};

#[derive(Clone)]
struct Row {
    name: String,
    weather: Weather,
    /// From the start, or for so long, once calls are under way or the cut has begun.
    during: Option<Duration>,
    /// The pipe is upgraded, to a connection of its own.
    upgrades: bool,
    /// Large tensors go over the pipe's connection.
    one: bool,
    /// Small calls are made for so long.
    seconds: u64,
    /// The deadlines of small calls and of the large one.
    small: Duration,
    large: Duration,
    silence: Option<Duration>,
    handshake: Option<Duration>,
    /// Nobody calls for so long at first.
    idle: Option<Duration>,
    /// Whether small calls end at their deadlines; `None`: maybe some do.
    late: Option<bool>,
    /// What the connection must end with, in words; else it must live.
    ends: Option<&'static str>,
    bulk: Bulk,
}

/// What becomes of the large tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bulk {
    Arrives,
    /// It is held up until its deadline, and the error says by what.
    IsHeld,
    Either,
    /// There is no connection any more.
    None,
}

/// Calls end so much later than their deadline at most, on a busy machine: before anything else would end them. The aim is 10 ms.
const EXCESS: Duration = Duration::from_secs(4);

/// Less than the link is cut for.
const IMPATIENT: Duration = Duration::from_secs(2);

/// What children have said.
struct Said(Vec<(String, String)>);

impl Said {
    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let said = self.0.iter().filter(move |(known, _)| known == key);
        said.map(|(_, value)| &**value)
    }

    fn numbers(&self, key: &str) -> Vec<u64> {
        self.all(key).map(|value| value.parse().unwrap()).collect()
    }

    fn word(&self, key: &str) -> Option<String> {
        self.all(key).next().map(tidy)
    }
}

/// What must hold, and does not.
#[derive(Default)]
struct Wrong(Vec<String>);

impl Wrong {
    fn unless(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(what());
        }
    }

    fn judged(self, outcome: String) -> Judged {
        let wrong = (!self.0.is_empty()).then(|| self.0.join("; "));
        Judged { outcome, wrong }
    }
}

/// A link, and a server at each of the ports.
fn scene(
    seed: u64,
    variables: &[(&str, &str)],
    ports: &[u16],
) -> Result<(Link, Vec<Child>), Judged> {
    let link = Link::new(seed).map_err(|error| Judged {
        outcome: format!("skipped: no link: {error}"),
        wrong: None,
    })?;
    let inside = link.inside(1);
    let start = |port: &u16| {
        let port = port.to_string();
        let variables = [variables, &[("TEST_PORT", &port)]].concat();
        let server = Child::start_by(&["nsenter", &inside], "server", &variables);
        server.hear("serves");
        server
    };
    let servers = ports.iter().map(start).collect();
    Ok((link, servers))
}

/// What both suites of rows ask of a client that has ended, and of the link.
fn common(
    wrong: &mut Wrong,
    said: &Said,
    end: End,
    client: &Child,
    link: &Link,
    weather: &Weather,
) {
    wrong.unless(end == End::Code(0), || {
        format!("the client: {end:?}, {}", client.complaints())
    });
    let excess = worst(said);
    wrong.unless(excess < EXCESS.as_millis() as u64, || {
        format!("a call ended {excess} ms after its deadline")
    });
    let undone = link.left_undone(weather);
    wrong.unless(undone.is_empty(), || format!("the link never {undone:?}"));
}

/// Waits until a cut has begun, if it ever does.
fn await_strike(link: &Link) {
    let begun = Instant::now();
    while !link.has_struck() && begun.elapsed() < PATIENT {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn worst(said: &Said) -> u64 {
    said.numbers("excess").into_iter().max().unwrap_or(0)
}

fn run(row: &Row) -> Judged {
    let millis = |time: Duration| time.as_millis().to_string();
    let (small, large) = (millis(row.small), millis(row.large));
    let (silence, handshake) = (row.silence.map(millis), row.handshake.map(millis));
    let idle = row.idle.map(millis);
    let seconds = row.seconds.to_string();
    let warm = row.weather.lane.is_some().to_string();
    let (upgrades, one) = (row.upgrades.to_string(), row.one.to_string());
    let mut variables = vec![
        ("TEST_SECONDS", &*seconds),
        ("TEST_WARM", &warm),
        ("TEST_UPGRADES", &upgrades),
        ("TEST_ONE", &one),
        ("TEST_SMALL", &small),
        ("TEST_LARGE", &large),
    ];
    variables.extend(silence.as_deref().map(|time| ("TEST_SILENCE", time)));
    variables.extend(idle.as_deref().map(|time| ("TEST_IDLE", time)));
    let (link, mut servers) = match scene(row.seconds, &variables, &PORTS[..1]) {
        Ok(scene) => scene,
        Err(skipped) => return skipped,
    };
    // The server waits longer: it is the client that gives up.
    variables.extend(handshake.as_deref().map(|time| ("TEST_HANDSHAKE", time)));
    let is_timed = row.weather.since == Since::Now;
    if row.during.is_none() || !is_timed {
        link.becomes(row.weather);
    }
    let mut client = Child::start_by(&["nsenter", &link.inside(0)], "client", &variables);
    let mut lines = Vec::new();
    if is_timed {
        lines = client.until("connected");
    }
    let calm = Weather {
        lane: row.weather.lane,
        ..Weather::default()
    };
    if let Some(during) = row.during {
        if is_timed {
            std::thread::sleep(Duration::from_millis(500));
            link.becomes(row.weather);
        } else {
            await_strike(&link);
        }
        std::thread::sleep(during);
        link.becomes(calm);
    }
    let (said, end) = client.until_end(4 * PATIENT);
    lines.extend(said);
    let said = Said(lines);
    servers[0].kill();
    let wrote = Said(servers[0].until_end(PATIENT).0).numbers("wrote");
    let mut wrong = Wrong::default();
    common(&mut wrong, &said, end, &client, &link, &row.weather);
    wrong.unless(wrote.is_sorted_by(|one, two| one < two), || {
        format!("out of order, or twice: {wrote:?}")
    });
    let acknowledged = said.numbers("acknowledged");
    let is_there = |number: &u64| wrote.binary_search(number).is_ok();
    wrong.unless(acknowledged.iter().all(is_there), || {
        format!("acknowledged, and not there: {acknowledged:?} {wrote:?}")
    });
    wrong.unless(acknowledged.is_empty() == row.handshake.is_some(), || {
        format!("{} calls were answered", acknowledged.len())
    });
    let upgraded = said.word("upgraded").is_some_and(|is| is == "true");
    wrong.unless(
        upgraded == (row.upgrades && row.handshake.is_none()),
        || format!("upgraded: {upgraded}"),
    );
    let late = said.numbers("late").len();
    wrong.unless(row.late.is_none_or(|is_late| is_late == (late > 0)), || {
        format!("{late} calls ended at their deadline")
    });
    let ended = said.word("ended");
    let is_expected = match (row.ends, &ended) {
        (None, None) => true,
        (Some(words), Some(ended)) => ended.contains(words),
        _ => false,
    };
    wrong.unless(is_expected, || format!("it ended: {ended:?}"));
    let bulk = said.word("bulk");
    let has_arrived = bulk.as_deref() == Some("works");
    let unanswered = bulk
        .as_ref()
        .filter(|words| words.starts_with("no answer within"));
    let is_held = unanswered.is_some_and(|words| words.contains("MTU"));
    let is_expected = match row.bulk {
        Bulk::Arrives => has_arrived,
        Bulk::IsHeld => is_held,
        Bulk::Either => has_arrived || unanswered.is_some(),
        Bulk::None => bulk.is_none(),
    };
    wrong.unless(is_expected, || format!("16 MiB: {bulk:?}"));
    if bulk.is_some() {
        let (seen, carried) = (link.connections(), said.numbers("carried"));
        let expected = 1 + usize::from(row.upgrades) + if row.one { 0 } else { 2 };
        // What is late or lost is sent again.
        let is_carried = match *carried {
            [chunks] if row.one => chunks == 0,
            [chunks] => (CHUNKS..3 * CHUNKS).contains(&chunks),
            _ => false,
        };
        wrong.unless(seen == expected && (!has_arrived || is_carried), || {
            format!("{seen} connections; mpt has carried {carried:?} of {CHUNKS} chunks")
        });
    }
    let excess = worst(&said);
    let mut outcome = match (acknowledged.is_empty(), late) {
        (true, _) => String::new(),
        (_, 0) => "all calls answered".to_owned(),
        _ => format!(
            "calls meanwhile end at their deadline, at most {excess} ms late; other calls answered"
        ),
    };
    if let Some(bulk) = bulk {
        outcome.push_str(&format!("; 16 MiB: {bulk}"));
        if let (Some(took), Some(usual)) = (said.word("took"), said.word("usual")) {
            outcome.push_str(&format!(" in {took} ms ({usual} before)"));
        }
    }
    match ended {
        Some(ended) if outcome.is_empty() => outcome = ended,
        Some(ended) => outcome = format!("{outcome} until: {ended}"),
        None => {}
    }
    wrong.judged(outcome)
}

#[test]
fn a_network_that_loses_delays_repeats_and_is_cut() {
    let calm = Weather::default();
    let always = |name: &str, weather| Row {
        name: name.to_owned(),
        weather,
        during: None,
        upgrades: false,
        one: false,
        seconds: 2,
        small: PATIENT,
        large: PATIENT,
        silence: None,
        handshake: None,
        idle: None,
        late: Some(false),
        ends: None,
        bulk: Bulk::Arrives,
    };
    let lossy = |name: &str, weather, bulk| Row {
        small: IMPATIENT,
        large: Duration::from_secs(8),
        late: None,
        bulk,
        ..always(name, weather)
    };
    let cut = |name: &str, cut, during, seconds| Row {
        during: Some(Duration::from_secs(during)),
        seconds,
        small: IMPATIENT,
        late: Some(true),
        ..always(name, Weather { cut, ..calm })
    };
    let silent = |name: &str, directions| Row {
        silence: Some(Duration::from_secs(4)),
        ends: Some("nothing heard from the peer for"),
        bulk: Bulk::None,
        ..cut(name, directions, 8, 20)
    };
    // The cut comes once 4 MiB have left, and ends.
    let amid = |name: &str, cut, large, bulk| Row {
        during: Some(Duration::from_secs(4)),
        seconds: 1,
        large,
        bulk,
        ..always(
            name,
            Weather {
                cut,
                since: Since::Bytes(4 << 20),
                ..calm
            },
        )
    };
    // The connection is there, and the client has just said something over it.
    let greeting = |cut| Weather {
        cut,
        since: Since::Bytes(1),
        ..calm
    };
    let upgrades = |row| Row {
        upgrades: true,
        ..row
    };
    let long = |longest| Weather {
        longest: Some(longest),
        ..calm
    };
    let mut rows = vec![
        silent("no packet arrives for 8 s", [true, true]),
        silent("none from the server arrives for 8 s", [false, true]),
        silent("none from the client arrives for 8 s", [true, false]),
        cut("no packet arrives for 4 s", [true, true], 4, 6),
        upgrades(cut(
            "no packet of an upgraded pipe arrives for 4 s",
            [true, true],
            4,
            6,
        )),
        amid(
            "no packet arrives for 4 s, amid 16 MiB by mpt",
            [true, true],
            PATIENT,
            Bulk::Arrives,
        ),
        Row {
            one: true,
            ..amid(
                "no packet arrives for 4 s, amid 16 MiB",
                [true, true],
                PATIENT,
                Bulk::Arrives,
            )
        },
        amid(
            "none from the server arrives for 4 s, amid 16 MiB by mpt",
            [false, true],
            IMPATIENT,
            Bulk::IsHeld,
        ),
        Row {
            one: true,
            ..amid(
                "none from the client arrives for 4 s, amid 16 MiB",
                [true, false],
                IMPATIENT,
                Bulk::IsHeld,
            )
        },
        Row {
            during: Some(Duration::from_secs(1)),
            ..always(
                "none from the client arrives for 1 s, amid the first handshake",
                greeting([true, false]),
            )
        },
        Row {
            during: Some(Duration::from_secs(2)),
            ..always(
                "none from the server arrives for 2 s, amid the first handshake",
                greeting([false, true]),
            )
        },
        Row {
            handshake: Some(IMPATIENT),
            ends: Some("raise `Timeouts::handshake`"),
            bulk: Bulk::None,
            ..always(
                "none from the server arrives, from the first handshake on",
                greeting([false, true]),
            )
        },
        upgrades(Row {
            during: Some(Duration::from_secs(2)),
            ..always(
                "none from the client arrives for 2 s, amid an upgrade",
                Weather {
                    cut: [true, false],
                    since: Since::Connections(2),
                    ..calm
                },
            )
        }),
        upgrades(Row {
            handshake: Some(IMPATIENT),
            ends: Some("raise `Timeouts::handshake`"),
            bulk: Bulk::None,
            ..always(
                "the connection that a pipe is upgraded to is cut",
                Weather {
                    lane: Some(1),
                    ..calm
                },
            )
        }),
        Row {
            handshake: Some(IMPATIENT),
            ends: Some("raise `Timeouts::handshake`"),
            bulk: Bulk::None,
            ..always("packets with more than 8 bytes of data vanish", long(60))
        },
        // The second of the two further connections.
        Row {
            during: Some(Duration::ZERO),
            ..always(
                "one of the connections of mpt is cut",
                Weather {
                    lane: Some(2),
                    ..calm
                },
            )
        },
        Row {
            large: IMPATIENT,
            bulk: Bulk::IsHeld,
            ..always("packets above 1200 bytes vanish", long(1200))
        },
        Row {
            silence: Some(IMPATIENT),
            idle: Some(3 * IMPATIENT),
            ..always("nobody calls for three times `Timeouts::silence`", calm)
        },
        always("a calm link", calm),
    ];
    // Each of them strikes the handshake, what is moved by one connection or several, and the way to a better transport.
    let all_along = [
        always(
            "packets above 600 bytes come back (ICMP)",
            Weather {
                mtu: Some(600),
                ..calm
            },
        ),
        Row {
            large: PATIENT,
            ..lossy(
                "1 % of packets are lost",
                Weather { lost: 10, ..calm },
                Bulk::Arrives,
            )
        },
        lossy(
            "10 % of packets are lost",
            Weather { lost: 100, ..calm },
            Bulk::Either,
        ),
        always(
            "5 % arrive twice",
            Weather {
                repeated: 50,
                ..calm
            },
        ),
        lossy(
            "packets are up to 20 ms late, and overtake others",
            Weather {
                delay: Duration::from_millis(10),
                ..calm
            },
            Bulk::Either,
        ),
    ];
    for row in all_along {
        rows.push(Row {
            name: format!("{}: one connection", row.name),
            one: true,
            ..row.clone()
        });
        rows.push(upgrades(Row {
            name: format!("{}: an upgraded pipe", row.name),
            ..row.clone()
        }));
        rows.push(row);
    }
    judge_at_once(AT_ONCE, "Networks", &rows, |row| row.name.clone(), run);
}

/// Rows at once: they wait most of the time.
const AT_ONCE: usize = 6;

/// Of a client of two servers: what they meet, until one alone has answered or for so long, and else from the start.
struct Of2 {
    name: &'static str,
    weather: Weather,
    meets: &'static str,
    during: Option<Duration>,
}

fn run_replicas(row: &Of2) -> Judged {
    let is_parted = row.meets == ONE_IS_OUT;
    let variables = [
        ("TEST_SMALL", &*IMPATIENT.as_millis().to_string()),
        ("TEST_MEETS", row.meets),
        // Calls that are not answered take a server out, not its silence.
        ("TEST_SILENCE", "60000"),
        ("TEST_HANDSHAKE", "10000"),
    ];
    let (link, mut servers) = match scene(7, &variables, &PORTS) {
        Ok(scene) => scene,
        Err(skipped) => return skipped,
    };
    if !is_parted && row.during.is_none() {
        link.becomes(row.weather);
    }
    let mut client = Child::start_by(&["nsenter", &link.inside(0)], "replicas", &variables);
    let mut wrong = Wrong::default();
    let mut lines = client.until("connected");
    if is_parted {
        link.becomes(row.weather);
        lines.extend(client.until("one"));
        link.becomes(Weather::default());
    } else if let Some(during) = row.during {
        link.becomes(row.weather);
        await_strike(&link);
        std::thread::sleep(during);
        link.becomes(Weather::default());
    }
    let (said, end) = client.until_end(4 * PATIENT);
    lines.extend(said);
    let said = Said(lines);
    servers.iter_mut().for_each(Child::kill);
    common(&mut wrong, &said, end, &client, &link, &row.weather);
    wrong.unless(said.word("both").is_some(), || {
        "not both answer at the end".to_owned()
    });
    let ended = said.word("ended");
    wrong.unless(ended.is_none(), || format!("a call ended with {ended:?}"));
    let late = said.numbers("late").len();
    wrong.unless(!is_parted || late == UNANSWERED as usize, || {
        format!("{late} calls had no answer, not {UNANSWERED}")
    });
    wrong.unless(row.during.is_none() || late > 0, || {
        "no call ended at its deadline".to_owned()
    });
    let excess = worst(&said);
    wrong.judged(match (is_parted, row.during) {
        (true, _) => format!(
            "{late} calls end at their deadline, at most {excess} ms late; then the other answers all, until both do again"
        ),
        (_, Some(_)) => format!(
            "calls meanwhile end at their deadline, at most {excess} ms late; then both answer again"
        ),
        _ => "each call is answered, or ends at its deadline; both answer".to_owned(),
    })
}

#[test]
fn a_network_between_a_client_and_two_servers() {
    let calm = Weather::default();
    let rows = [
        Of2 {
            name: "one of two replicas is out of reach for a while",
            weather: Weather {
                port: Some(PORTS[1]),
                ..calm
            },
            meets: ONE_IS_OUT,
            during: None,
        },
        Of2 {
            name: "both replicas are out of reach for 4 s",
            weather: Weather {
                cut: [true, true],
                ..calm
            },
            meets: ALL_ARE_OUT,
            during: Some(Duration::from_secs(4)),
        },
        Of2 {
            name: "both replicas are out of reach for 4 s, amid 16 MiB",
            weather: Weather {
                cut: [true, true],
                since: Since::Bytes(4 << 20),
                ..calm
            },
            meets: ALL_ARE_OUT_OF_LARGE,
            during: Some(Duration::from_secs(4)),
        },
        Of2 {
            name: "10 % of packets to and from two replicas are lost",
            weather: Weather { lost: 100, ..calm },
            meets: "a lossy link",
            during: None,
        },
    ];
    judge_at_once(
        AT_ONCE,
        "Replicas",
        &rows,
        |row| row.name.to_owned(),
        run_replicas,
    );
}
