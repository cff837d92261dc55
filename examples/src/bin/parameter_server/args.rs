//! The command line, and which of the three programs it asks for.

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, ValueEnum};

const STEPS: u64 = 2000;
const WORKERS: u16 = 2;

/// Trains a small network on handwritten digits with a parameter server and its workers, each a process of its own.
///
/// Without --role, one command does everything: it starts the server and the workers, shows the progress, measures the
/// accuracy, and ends them.
#[derive(Debug, Parser)]
#[command(
    name = "parameter_server",
    after_help = "On several machines, by hand:
  parameter_server --role server --listen tcp://0.0.0.0:5000
  parameter_server --role worker --connect tcp://SERVER:5000    (as many as you like, in any order)"
)]
pub(crate) struct Args {
    /// Be only this part
    #[arg(long, value_enum)]
    role: Option<Role>,

    /// Worker processes to start [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,

    /// Steps of the whole training [default: 2000]; for a worker: leave after so many of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,

    /// Where the server listens; port 0 takes any free one
    #[arg(long, value_name = "URL")]
    listen: Option<String>,

    /// Where the server is
    #[arg(long, value_name = "URL")]
    connect: Option<String>,

    /// End standard output with the results as one line of JSON
    #[arg(long)]
    json: bool,

    /// Started by a launcher: end when standard input does
    #[arg(long, hide = true)]
    supervised: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Keep the parameters, end when the training is over
    Server,
    /// Compute gradients for a server
    Worker,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Everything: start a server and workers, watch them, report.
    Launch(Launch),
    /// The server's part.
    Serve(Serve),
    /// A worker's part.
    Work(Work),
}

/// How to run a whole training.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Worker processes.
    pub(crate) workers: u16,
    /// Steps of all workers together.
    pub(crate) steps: u64,
    /// Where the server shall listen.
    pub(crate) listen: String,
    /// Print the results as JSON too.
    pub(crate) json: bool,
}

/// How to be a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    /// Where to listen.
    pub(crate) listen: String,
    /// Steps of all workers together.
    pub(crate) steps: u64,
    /// Print the results as JSON too.
    pub(crate) json: bool,
    /// Serve until standard input ends, and say nothing but the address.
    pub(crate) supervised: bool,
}

/// How to be a worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Where the server is.
    pub(crate) connect: String,
    /// Leave after so many own steps.
    pub(crate) steps: Option<u64>,
    /// End when standard input does, and say nothing but errors.
    pub(crate) supervised: bool,
}

impl Args {
    /// Sorts out what belongs to which role.
    ///
    /// # Errors
    /// An option that the role does not have, or one that it lacks; in clap's form, with the usage.
    pub(crate) fn resolve(self) -> Result<Command, clap::Error> {
        let missing = |message: &str| wrong(ErrorKind::MissingRequiredArgument, message);
        let conflict = |message: &str| wrong(ErrorKind::ArgumentConflict, message);
        match self.role {
            None | Some(Role::Server) if self.connect.is_some() => {
                Err(conflict("--connect is for workers; add --role worker"))
            }
            Some(_) if self.workers.is_some() => Err(conflict(
                "--workers is for the command that starts them; leave out --role, or start more workers by hand",
            )),
            None => Ok(Command::Launch(Launch {
                workers: self.workers.unwrap_or(WORKERS),
                steps: self.steps.unwrap_or(STEPS),
                listen: self
                    .listen
                    .unwrap_or_else(|| "tcp://127.0.0.1:0".to_owned()),
                json: self.json,
            })),
            Some(Role::Server) => Ok(Command::Serve(Serve {
                listen: self.listen.ok_or_else(|| {
                    missing(
                        "a server needs an address; add for example --listen tcp://0.0.0.0:5000",
                    )
                })?,
                steps: self.steps.unwrap_or(STEPS),
                json: self.json,
                supervised: self.supervised,
            })),
            Some(Role::Worker) if self.listen.is_some() => Err(conflict(
                "--listen is for servers; a worker takes --connect with the server's address",
            )),
            Some(Role::Worker) if self.json => Err(conflict(
                "--json is for the server, which has the results; a worker has none",
            )),
            Some(Role::Worker) => Ok(Command::Work(Work {
                connect: self.connect.ok_or_else(|| {
                    missing(
                        "a worker needs a server; add for example --connect tcp://127.0.0.1:5000",
                    )
                })?,
                steps: self.steps,
                supervised: self.supervised,
            })),
        }
    }
}

fn wrong(kind: ErrorKind, message: &str) -> clap::Error {
    Args::command().error(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Result<Command, String> {
        let words = std::iter::once("parameter_server").chain(line.split_whitespace());
        Args::try_parse_from(words)
            .and_then(Args::resolve)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_wrong_line_shows_the_usage_of_this_program() {
        let error = command("--role server").unwrap_err();
        assert!(error.contains("Usage: parameter_server"), "{error}");
    }

    #[test]
    fn no_arguments_run_everything() {
        let Ok(Command::Launch(launch)) = command("") else {
            panic!("not a launch");
        };
        assert_eq!((launch.workers, launch.steps), (2, 2000));
        assert_eq!(launch.listen, "tcp://127.0.0.1:0");
    }

    #[test]
    fn each_role_takes_its_own_options() {
        let served = command("--role server --listen tcp://0.0.0.0:5000 --steps 9 --json");
        let Ok(Command::Serve(serve)) = served else {
            panic!("{served:?}");
        };
        assert_eq!(
            (serve.listen.as_str(), serve.steps, serve.json),
            ("tcp://0.0.0.0:5000", 9, true)
        );
        let work = command("--role worker --connect tcp://a:1 --steps 7").unwrap();
        assert_eq!(
            work,
            Command::Work(Work {
                connect: "tcp://a:1".into(),
                steps: Some(7),
                supervised: false
            })
        );
    }

    #[test]
    fn a_wrong_line_says_what_to_write() {
        let said = [
            ("--workers 0", "1..=64"),
            ("--workers many", "invalid digit"),
            ("--steps 0", "1.."),
            ("--role boss", "possible values: server, worker"),
            (
                "--role server",
                "add for example --listen tcp://0.0.0.0:5000",
            ),
            (
                "--role worker",
                "add for example --connect tcp://127.0.0.1:5000",
            ),
            ("--connect tcp://a:1", "add --role worker"),
            (
                "--role server --listen tcp://a:1 --connect tcp://a:1",
                "add --role worker",
            ),
            (
                "--role worker --connect tcp://a:1 --listen tcp://a:1",
                "--listen is for servers",
            ),
            (
                "--role worker --connect tcp://a:1 --workers 2",
                "leave out --role",
            ),
            (
                "--role worker --connect tcp://a:1 --json",
                "--json is for the server",
            ),
            ("--wrokers 2", "--workers"),
        ];
        for (line, words) in said {
            let error = command(line).unwrap_err();
            assert!(error.contains(words), "`{line}` said: {error}");
        }
    }
}
