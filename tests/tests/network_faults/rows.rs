//! The rows: weather, when it comes and goes, and what must be so afterwards.

use std::time::Duration;

use tensorpipe_tests::{Child, End, Judged, judge, tidy};

use super::link::{Link, Weather};

struct Row {
    name: &'static str,
    weather: Weather,
    /// From the start, or for so long, once calls are under way.
    during: Option<Duration>,
    /// Small calls are made for so long.
    seconds: u64,
    /// What the connection must end with, in words; else it must live.
    ends: Option<&'static str>,
    /// Whether a large tensor must arrive.
    bulk: bool,
}

/// Calls end so much later than their deadline at most, on a busy machine. The aim is 10 ms.
const EXCESS: u64 = 1000;

fn run(row: &Row) -> Judged {
    let link = match Link::new(row.seconds) {
        Ok(link) => link,
        Err(error) => {
            let outcome = format!("skipped: no link: {error}");
            return Judged {
                outcome,
                wrong: None,
            };
        }
    };
    let (client, server) = (link.inside(0), link.inside(1));
    let mut server = Child::start_by(&["nsenter", &server], "server", &[]);
    server.hear("serves");
    if row.during.is_none() {
        link.becomes(row.weather);
    }
    let seconds = row.seconds.to_string();
    let warm = row.weather.lane.is_some().to_string();
    let mut client = Child::start_by(
        &["nsenter", &client],
        "client",
        &[("TEST_SECONDS", &seconds), ("TEST_WARM", &warm)],
    );
    client.hear("connected");
    let calm = Weather {
        lane: row.weather.lane,
        ..Weather::default()
    };
    if let Some(during) = row.during {
        std::thread::sleep(Duration::from_millis(500));
        link.becomes(row.weather);
        std::thread::sleep(during);
        link.becomes(calm);
    }
    let (said, end) = client.until_end(Duration::from_secs(40));
    server.kill();
    let (wrote, _) = server.until_end(Duration::from_secs(1));
    let numbers = |said: &[(String, String)], key: &str| -> Vec<u64> {
        let values = said.iter().filter(|(known, _)| known == key);
        values.map(|(_, value)| value.parse().unwrap()).collect()
    };
    let (acknowledged, wrote) = (numbers(&said, "acknowledged"), numbers(&wrote, "wrote"));
    let excess = numbers(&said, "excess").into_iter().max().unwrap_or(0);
    let late = numbers(&said, "late").len();
    let word = |key: &str| {
        said.iter()
            .find(|(known, _)| known == key)
            .map(|(_, value)| tidy(value))
    };
    let mut wrong = Vec::new();
    let mut must = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    must(
        end == End::Code(0),
        format!("the client: {end:?}, {}", client.complaints()),
    );
    must(
        wrote.is_sorted_by(|one, two| one < two),
        format!("out of order, or twice: {wrote:?}"),
    );
    let is_there = acknowledged
        .iter()
        .all(|number| wrote.binary_search(number).is_ok());
    must(
        is_there,
        format!("acknowledged, and not there: {acknowledged:?} {wrote:?}"),
    );
    must(!acknowledged.is_empty(), "no call was answered".to_owned());
    must(
        excess < EXCESS,
        format!("a call ended {excess} ms after its deadline"),
    );
    match (row.ends, word("ended")) {
        (None, ended) => must(ended.is_none(), format!("it ended: {ended:?}")),
        (Some(words), ended) => {
            let as_expected = ended.as_ref().is_some_and(|ended| ended.contains(words));
            must(as_expected, format!("it ended: {ended:?}"));
        }
    }
    let bulk = word("bulk");
    must(
        !row.bulk || bulk.as_deref() == Some("works"),
        format!("16 MiB: {bulk:?}"),
    );
    let mut outcome = format!("{} calls answered", if late == 0 { "all" } else { "other" });
    if late > 0 {
        outcome =
            format!("calls meanwhile end at their deadline, at most {excess} ms late; {outcome}");
    }
    if let Some(bulk) = bulk {
        outcome.push_str(&format!("; 16 MiB: {bulk}"));
    }
    if let Some(ended) = word("ended") {
        outcome = format!("{outcome} until: {ended}");
    }
    Judged {
        outcome,
        wrong: (!wrong.is_empty()).then(|| wrong.join("; ")),
    }
}

#[test]
fn a_network_that_loses_delays_repeats_and_is_cut() {
    let calm = Weather::default();
    let always = |name, weather, bulk| Row {
        name,
        weather,
        during: None,
        seconds: 3,
        ends: None,
        bulk,
    };
    let cut = |name, cut, during, seconds, ends| Row {
        name,
        weather: Weather { cut, ..calm },
        during: Some(Duration::from_secs(during)),
        seconds,
        ends,
        bulk: true,
    };
    let silent = Some("nothing heard from the peer");
    let rows = [
        always("a calm link", calm, true),
        Row {
            bulk: false,
            ..cut("no packet arrives for 14 s", [true, true], 14, 20, silent)
        },
        Row {
            bulk: false,
            ..cut(
                "none from the server arrives for 14 s",
                [false, true],
                14,
                20,
                silent,
            )
        },
        cut("no packet arrives for 4 s", [true, true], 4, 9, None),
        // The second of the two further connections.
        Row {
            name: "one of the connections of mpt is cut",
            weather: Weather {
                lane: Some(2),
                ..calm
            },
            during: Some(Duration::ZERO),
            seconds: 3,
            ends: None,
            bulk: false,
        },
        always(
            "1 % of packets are lost",
            Weather { lost: 10, ..calm },
            true,
        ),
        always(
            "10 % of packets are lost",
            Weather { lost: 100, ..calm },
            false,
        ),
        always(
            "5 % arrive twice",
            Weather {
                repeated: 50,
                ..calm
            },
            true,
        ),
        always(
            "packets are up to 20 ms late, and overtake others",
            Weather {
                delay: Duration::from_millis(10),
                ..calm
            },
            false,
        ),
        always(
            "packets above 1200 bytes vanish",
            Weather {
                longest: Some(1200),
                ..calm
            },
            false,
        ),
    ];
    judge("Networks", &rows, |row| row.name.to_owned(), run);
}
