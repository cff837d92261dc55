//! Connections inside one process: the reference implementation of a transport.
//!
//! Addresses are names in a process-wide table. Tensors do not pass through its pipes: channel `xth` hands them over.

use std::collections::HashMap;
use std::task::{Context, Poll};

use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use super::{Acceptor, BoxFuture, Connection, Transport};
use crate::error::{Error, Misuse, SystemError};
use crate::process::process_id;
use crate::sync::{Mutex, lock};
use crate::sys::fork::PerProcess;

/// Bytes that each direction of a connection holds.
const CAPACITY: usize = 512 << 10;

/// Connections that may wait to be accepted at one address.
const BACKLOG: usize = 128;

type Table = Mutex<HashMap<String, mpsc::Sender<DuplexStream>>>;

fn table() -> &'static Table {
    static TABLE: PerProcess<Table> = PerProcess::new();
    TABLE.get(Table::default)
}

/// Transport `memory`: `memory://NAME`, within one process.
#[derive(Debug, Default)]
pub struct MemoryTransport(());

impl MemoryTransport {
    /// Works everywhere.
    pub fn new() -> Self {
        Self(())
    }
}

impl Transport for MemoryTransport {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn domain(&self) -> Vec<u8> {
        process_id().map_or_else(|_| Vec::new(), |id| id.to_vec())
    }

    fn reaches(&self, theirs: &[u8]) -> Result<(), String> {
        if process_id().is_ok_and(|id| theirs == id) {
            Ok(())
        } else {
            Err("the peer is another process".to_owned())
        }
    }

    fn in_process(&self) -> bool {
        true
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            let refused = |why: &str| {
                let source =
                    std::io::Error::new(std::io::ErrorKind::ConnectionRefused, why.to_owned());
                SystemError::new("connect", format!("memory://{address}"), source)
            };
            let listener = lock(table()).get(address).cloned();
            let listener = listener.ok_or_else(|| {
                refused("nobody in this process listens there, and no other process can")
            })?;
            let (ours, theirs) = tokio::io::duplex(CAPACITY);
            listener
                .try_send(theirs)
                .map_err(|_| refused("too many connections wait to be accepted"))?;
            Ok(Box::new(ours) as Box<dyn Connection>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            let mut table = lock(table());
            if table.contains_key(address) {
                let url = format!("memory://{address}");
                let reason =
                    "another listener of this process has that name; choose another".to_owned();
                return Err(Misuse::Address { url, reason }.into());
            }
            let (sender, incoming) = mpsc::channel(BACKLOG);
            table.insert(address.to_owned(), sender);
            Ok(Box::new(MemoryAcceptor {
                address: address.to_owned(),
                incoming,
            }) as Box<dyn Acceptor>)
        })
    }

    fn upgrade_address(&self) -> Option<String> {
        crate::process::random_name().ok()
    }
}

struct MemoryAcceptor {
    address: String,
    incoming: mpsc::Receiver<DuplexStream>,
}

impl Acceptor for MemoryAcceptor {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Connection>, Error>> {
        match self.incoming.poll_recv(cx) {
            Poll::Ready(Some(connection)) => Poll::Ready(Ok(Box::new(connection))),
            // The table holds the sender as long as this acceptor exists.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for MemoryAcceptor {
    fn drop(&mut self) {
        lock(table()).remove(&self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::children_can;

    #[test]
    fn a_forked_child_has_a_table_of_its_own() {
        assert!(children_can(|| {
            let (sender, _) = mpsc::channel(1);
            lock(table()).insert("a_forked_child".to_owned(), sender);
        }));
    }
}
