//! The server's process: opens a model, says where it listens, serves until it is asked to end.

use std::io::{Read as _, Write as _, stderr, stdin, stdout};
use std::path::Path;
use std::process::exit;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tensorpipe_rpc::Server;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::model::Model;
use crate::server::ModelServer;
use crate::service::EmbedderService;

/// Start of the line on standard output that tells the address.
pub const LISTENING: &str = "listening on ";

/// How long a server may take to end in good order once the program that started it is gone.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serves the model in `directory` at `listen` until a signal arrives or, if `supervised`, until its standard input ends.
///
/// # Errors
/// The directory holds no model, or `listen` cannot be listened on.
pub async fn serve(directory: &Path, listen: &str, supervised: bool) -> Result<()> {
    let place = directory.to_owned();
    let model = spawn_blocking(move || Model::open(place)).await??;
    // A closed standard error must not stop the server.
    let _ = writeln!(
        stderr(),
        "serving {}: {} numbers an embedding, {} tokens a sentence",
        model.name(),
        model.dimension(),
        model.width()
    );
    let server = Server::builder()
        .service(EmbedderService::new(ModelServer::new(model)))
        .listen(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    writeln!(stdout(), "{LISTENING}{}", server.url())
        .context("cannot write the address to standard output")?;
    let ended = async {
        if supervised {
            orphaned().await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        ending = interrupted() => ending?,
        () = ended => {}
    }
    server.shutdown().await;
    Ok(())
}

async fn interrupted() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// Completes at the end of standard input. The parent process holds the other end, which the kernel closes however the
/// parent ends.
async fn orphaned() {
    let (gone, released) = oneshot::channel();
    // A thread: a read of standard input cannot be cancelled.
    thread::spawn(move || {
        let mut byte = [0];
        while stdin().read(&mut byte).is_ok_and(|read| read > 0) {}
        let _ = gone.send(());
        thread::sleep(LAST_WORDS);
        exit(1);
    });
    let _ = released.await;
}
