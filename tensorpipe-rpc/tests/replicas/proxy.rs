//! A link to a server that can be cut. To the client, a cut looks like a killed process or a torn cable.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Passes bytes on, until it is cut.
pub(crate) struct Proxy {
    pub(crate) url: String,
    links: Arc<Mutex<Vec<AbortHandle>>>,
    is_open: Arc<AtomicBool>,
    /// Connections that came, those too that were shut out.
    pub(crate) came: Arc<AtomicUsize>,
    accepting: AbortHandle,
}

impl Proxy {
    /// In front of `server`.
    pub(crate) async fn to(server: &str) -> Self {
        let server = server.strip_prefix("tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("tcp://{}", listener.local_addr().unwrap());
        let links: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let is_open = Arc::new(AtomicBool::new(true));
        let came = Arc::new(AtomicUsize::new(0));
        let (to, open, count) = (links.clone(), is_open.clone(), came.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let server = server.clone();
                // Under the lock: a cut is either before or after.
                let mut links = to.lock().unwrap();
                if open.load(Ordering::SeqCst) {
                    let link = tokio::spawn(async move {
                        let Ok(mut far) = TcpStream::connect(server).await else {
                            return;
                        };
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    });
                    links.push(link.abort_handle());
                }
            }
        });
        Self {
            url,
            links,
            is_open,
            came,
            accepting: accepting.abort_handle(),
        }
    }

    /// Cuts what there is, and shuts out what comes.
    pub(crate) fn cut(&self) {
        let mut links = self.links.lock().unwrap();
        self.is_open.store(false, Ordering::SeqCst);
        links.drain(..).for_each(|link| link.abort());
    }

    pub(crate) fn mend(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}
