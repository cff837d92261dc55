//! A forked child drops inherited calls, values and connections. Those of its parent are not affected.

#![allow(unsafe_code, reason = "a process is forked")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tensorpipe::Context;
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe_rpc::{Connection, Server};
use tensorpipe_tests::{alone, soon};

use super::works::{Hall, WorksClient, WorksService};

/// Whether a forked child ends in good order that drops this.
fn a_child_drops<T>(inherited: &mut Option<T>) -> bool {
    // SAFETY: the child drops what it is given, and leaves at once without running anything of this process.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // SAFETY: the child has no handlers of its own; the signal ends one that waits for ever.
            unsafe { libc::alarm(10) };
            drop(inherited.take());
            // SAFETY: ends the child without running what the parent has registered.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            let status = waitpid(child, None).unwrap();
            println!("{status:?}");
            matches!(status, WaitStatus::Exited(_, 0))
        }
    }
}

/// Closes all of it when it is dropped in a forked child.
struct Closes(Context, Connection, Option<Server>, u32);

impl Drop for Closes {
    fn drop(&mut self) {
        let Self(context, connection, server, parent) = self;
        if *parent == std::process::id() {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let closes = async {
            connection.close().await.unwrap_err();
            assert_eq!(server.take().unwrap().shutdown().await, 0);
            context.close().await.unwrap();
        };
        // This thread is within its parent's runtime.
        std::thread::scope(|threads| threads.spawn(|| runtime.block_on(closes)).join()).unwrap();
        std::mem::forget(runtime);
    }
}

#[test]
fn a_forked_child_ends_nothing_of_its_parents() {
    alone(async || {
        // Within one process pipes have no socket to break.
        let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new());
        let context = Context::builder().transports([tcp]).build().unwrap();
        let hall = Hall::default();
        let builder = Server::builder().context(&context);
        let builder = builder.service(WorksService::new(hall.clone()));
        let server = builder.listen("tcp://127.0.0.1:0").await.unwrap();
        let url = server.url().to_string();
        let client = async || {
            let connection = Connection::builder().context(&context).connect(&url);
            let connection = connection.await.unwrap();
            WorksClient::on(&connection).await.unwrap()
        };
        let other = soon("a client", client()).await;
        let client = soon("a client", client()).await;
        let part = soon("a reference", client.part(7)).await.unwrap();
        let call = client.wait(3000);
        let (mut part, mut call) = (Some(part), Some(call));
        let (mut client, mut server) = (Some(client), Some(server));
        assert!(a_child_drops(&mut call));
        assert!(a_child_drops(&mut part));
        assert!(a_child_drops(&mut client));
        assert!(a_child_drops(&mut server));
        // Not even if it closes them.
        let connection = other.connection().clone();
        let parent = std::process::id();
        let mut closes = Some(Closes(context.clone(), connection, server.take(), parent));
        assert!(a_child_drops(&mut closes));
        let _server = closes.take().unwrap().2.take();
        let answer = soon("the answer", call.take().unwrap()).await;
        assert_eq!(answer.unwrap(), 3000);
        let (client, part) = (client.unwrap(), part.unwrap());
        assert_eq!(soon("its size", client.size(&part)).await.unwrap(), 7);
        assert_eq!(hall.made.load(Ordering::SeqCst), 1);
        assert_eq!(soon("an answer", other.wait(1)).await.unwrap(), 1);
        let connection = Connection::builder().context(&context).connect(&url);
        soon("a connection", connection).await.unwrap();
    });
}
