//! Where stories take place: what carries pipes, and the sites of servers.

use std::sync::{Arc, LazyLock, Mutex};

use tensorpipe::Context;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::testing::Network;
use tensorpipe::transports::{Pem, ShmTransport, TcpTransport, TlsConfig, TlsTransport, Transport};
use tensorpipe_rpc::Server;
use tensorpipe_test_cuda::Driver;
use tensorpipe_tests::Child;

use crate::fixture::CudaFixture;
use crate::proxy::{Passes, Proxy};

/// What carries the pipes.
#[derive(Clone, Debug)]
pub(super) enum Ground {
    /// On a virtual clock.
    Simulated(Network),
    Real(Real),
}

/// In real time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Real {
    pub(super) wire: Wire,
    /// Each server is one; otherwise all is here.
    pub(super) are_processes: bool,
    /// Those of the driver for tests.
    pub(super) have_gpus: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Wire {
    Tcp,
    Shm,
    /// Tcp, through a proxy that stalls and cuts.
    Proxied,
    /// The same with TLS.
    ProxiedTls,
}

impl Wire {
    pub(super) fn is_proxied(self) -> bool {
        matches!(self, Self::Proxied | Self::ProxiedTls)
    }

    pub(super) fn transport(self) -> Arc<dyn Transport> {
        match self {
            Self::Tcp | Self::Proxied => Arc::new(TcpTransport::new()),
            Self::Shm => Arc::new(ShmTransport::new()),
            Self::ProxiedTls => {
                static CERTIFICATE: LazyLock<[String; 2]> = LazyLock::new(|| {
                    let names = ["127.0.0.1".to_owned()];
                    let own = rcgen::generate_simple_self_signed(names).unwrap();
                    [own.cert.pem(), own.signing_key.serialize_pem()]
                });
                let [chain, key] = CERTIFICATE.each_ref().map(|pem| Pem::bytes(pem.as_str()));
                let config = TlsConfig::new()
                    .certificate(chain.clone(), key)
                    .trust(chain);
                Arc::new(TlsTransport::new(config).unwrap())
            }
        }
    }
}

impl Real {
    /// In this process.
    pub(super) fn here(seed: u64) -> Self {
        let wire = match seed % 4 {
            0 => Wire::Proxied,
            1 => Wire::ProxiedTls,
            _ => Wire::Shm,
        };
        Self {
            wire,
            are_processes: false,
            have_gpus: false,
        }
    }

    pub(super) fn processes(seed: u64) -> Self {
        let wire = match seed % 2 {
            0 => Wire::Tcp,
            _ => Wire::Shm,
        };
        Self {
            wire,
            are_processes: true,
            have_gpus: false,
        }
    }

    pub(super) fn with_gpus(self) -> Self {
        Self {
            have_gpus: true,
            ..self
        }
    }
}

impl Ground {
    pub(super) fn real(&self) -> Option<Real> {
        match self {
            Self::Simulated(_) => None,
            Self::Real(real) => Some(*real),
        }
    }
}

/// A server, while it runs. Another one takes its place.
pub(super) struct Site {
    pub(super) name: String,
    /// Where it listened first, or listens next.
    pub(super) url: Mutex<String>,
    pub(super) life: Mutex<Option<Life>>,
    /// What its clients connect to in its place.
    pub(super) proxies: Mutex<Vec<Proxy>>,
}

pub(super) enum Life {
    Here(Server, Context),
    Process(Child),
}

impl Site {
    /// Looks at a server of this process. `None` if it is another one's.
    pub(super) fn with<T>(&self, look: impl FnOnce(&Server, &Context) -> T) -> Option<T> {
        match self.life.lock().unwrap().as_ref().expect("it runs") {
            Life::Here(server, context) => Some(look(server, context)),
            Life::Process(_) => None,
        }
    }

    pub(super) fn take(&self) -> Option<Life> {
        self.life.lock().unwrap().take()
    }

    /// Stops its process, if it is one, until the guard is dropped.
    pub(super) fn suspend(&self) -> Option<Suspended<'_>> {
        match self.life.lock().unwrap().as_ref() {
            Some(Life::Process(child)) => child.suspend(),
            _ => return None,
        }
        Some(Suspended(self))
    }

    pub(super) fn url(&self) -> String {
        self.url.lock().unwrap().clone()
    }

    /// What a client of its server connects to.
    pub(super) fn front(&self) -> String {
        match self.proxies.lock().unwrap().first() {
            Some(proxy) => proxy.url().to_owned(),
            None => self.url(),
        }
    }

    pub(super) fn lets_pass(&self, passes: Passes) {
        for proxy in &*self.proxies.lock().unwrap() {
            proxy.lets_pass(passes);
        }
    }
}

pub(super) struct Suspended<'a>(&'a Site);

impl Drop for Suspended<'_> {
    fn drop(&mut self) {
        if let Some(Life::Process(child)) = self.0.life.lock().unwrap().as_ref() {
            child.resume();
        }
    }
}

/// The driver's devices, and what reads and writes them.
pub(super) struct Gpus {
    pub(super) cuda: CudaDevices,
    pub(super) streams: Arc<CudaFixture>,
}

impl Gpus {
    pub(super) fn new() -> Self {
        Driver::here();
        let cuda = CudaDevices::open().unwrap();
        let streams = Arc::new(CudaFixture::on(&cuda));
        Self { cuda, streams }
    }
}
