//! Where a listener is, `transport://address`, and who is at the other end of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use crate::error::Misuse;

/// Where a listener is: the name of a transport and an address that it understands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    text: String,
    /// Where `://` begins in it.
    colon: usize,
}

impl Url {
    pub(crate) fn new(transport: &str, address: &str) -> Self {
        Self {
            text: format!("{transport}://{address}"),
            colon: transport.len(),
        }
    }

    /// The transport's name.
    pub fn transport(&self) -> &str {
        &self.text[..self.colon]
    }

    /// The address, e.g. `127.0.0.1:5000`, `[::1]:0` or `host.example:5000` for tcp.
    pub fn address(&self) -> &str {
        &self.text[self.colon + "://".len()..]
    }
}

impl FromStr for Url {
    type Err = Misuse;

    fn from_str(url: &str) -> Result<Self, Misuse> {
        let bad = |reason: &str| Misuse::Address {
            url: url.to_owned(),
            reason: reason.to_owned(),
        };
        let (transport, address) = url
            .split_once("://")
            .ok_or_else(|| bad("there is no `://` in it; write `transport://address`, for example `tcp://127.0.0.1:5000`"))?;
        if transport.is_empty()
            || !transport
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        {
            return Err(bad(
                "a transport's name is in lower-case letters and digits",
            ));
        }
        if address.is_empty() {
            return Err(bad("nothing stands after `://`"));
        }
        if address.len() > 1024 {
            return Err(bad("it is longer than 1024 bytes"));
        }
        Ok(Self::new(transport, address))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// So that it can be given where a URL is asked for, as in `connect(server.url())`.
impl AsRef<str> for Url {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// Who is at the other end of a connection: as this system says, and not as the peer does. For limits per peer, and for logs.
///
/// ```
/// # use tensorpipe::PeerAddr;
/// let peer = PeerAddr::Socket("10.0.0.7:40000".parse().unwrap());
/// assert_eq!(peer.party().to_string(), "10.0.0.7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerAddr {
    /// `tcp`: its address. Who listens sees the connector's port, which is another one for each connection.
    Socket(SocketAddr),
    /// The host of such an address.
    Host(IpAddr),
    /// `shm`: a process of this machine, as the kernel knows it.
    Process {
        /// Its number; `None` where this process's namespace has none for it: it runs in another container.
        pid: Option<u32>,
        /// The user whose rights it had when it connected or listened.
        uid: u32,
    },
    /// `memory`: this very process.
    SameProcess,
    /// The transport does not say.
    Unknown,
}

impl PeerAddr {
    /// The same for all connections of one peer, to count them by: its host, or its process. Of an address of IPv6 the first
    /// 64 bits, within which one host may choose the others.
    #[must_use]
    pub fn party(self) -> Self {
        match self {
            Self::Socket(address) => Self::Host(match address.ip().to_canonical() {
                IpAddr::V6(host) => Ipv6Addr::from_bits(host.to_bits() >> 64 << 64).into(),
                host @ IpAddr::V4(_) => host,
            }),
            other => other,
        }
    }

    /// Of a process that this one's namespace has a number for.
    pub(crate) fn pid(self) -> Option<u32> {
        match self {
            Self::Process { pid, .. } => pid,
            _ => None,
        }
    }

    /// The same for all that may be one attacker's doing: a host, or all processes of a user.
    #[must_use]
    pub(crate) fn origin(self) -> Self {
        match self.party() {
            Self::Process { uid, .. } => Self::Process { pid: None, uid },
            party => party,
        }
    }
}

/// Who a peer has proved to be, beyond its [address](PeerAddr): by a [token](crate::ContextBuilder::token), or to a transport that
/// authenticates ([`Connection::identity`](crate::transports::Connection::identity)). Names that a peer gives itself are none.
///
/// ```
/// # use tensorpipe::{Error, Identity, Listener};
/// # async fn serve(listener: Listener) -> Result<(), Error> {
/// let pipe = listener.accept().await?;
/// match &pipe.route().identity {
///     Some(Identity::Token { name, .. }) => println!("somebody who has the secret of {name}"),
///     Some(other) => println!("{other}, whom nobody knows here"),
///     None => println!("somebody at {}", pipe.peer_addr()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Identity {
    /// It has the key of an X.509 certificate that leads to one that is trusted here.
    Certificates {
        /// What that certificate is about: the names of hosts and URIs among the alternative names of its subject, or the common name where
        /// there are none.
        names: Arc<[CertificateName]>,
        /// It and those that it came with, each as DER.
        chain: Arc<[Vec<u8>]>,
    },
    /// The name for which whoever issued its key vouches.
    Subject(Arc<str>),
    /// It has the secret of a token, as all have who were given it. Over a network without TLS this is about the moment of the
    /// handshake: see [`Route::exposed`](crate::Route::exposed).
    Token {
        /// The token's name.
        name: Arc<str>,
        /// What it has proved to the transport beside that.
        over: Option<Arc<Self>>,
    },
}

/// A name in a certificate. Its kind is part of it. A common name may look like a host's, or like a URI, and its authority may not
/// have checked what it means. Compare the whole, and not its text.
///
/// ```
/// # use tensorpipe::{CertificateName, Error, Listener};
/// # async fn serve(listener: Listener) -> Result<(), Error> {
/// let pipe = listener.accept().await?;
/// let worker = CertificateName::Dns("worker.example".to_owned());
/// if pipe.peer().identity.is_some_and(|known| known.names().contains(&worker)) {
///     println!("{worker}"); // DNS:"worker.example"
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CertificateName {
    /// Of a host, or of all those of a domain (`*.example`).
    Dns(String),
    /// As SPIFFE names workloads: `spiffe://example/trainer`.
    Uri(String),
    /// Of a subject that has no other name: any text.
    Common(String),
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In quotes: somebody else chose it, perhaps with a comma in it and another name behind that.
        match self {
            Self::Dns(name) => write!(f, "DNS:{name:?}"),
            Self::Uri(name) => write!(f, "URI:{name:?}"),
            Self::Common(name) => write!(f, "CN:{name:?}"),
        }
    }
}

impl Identity {
    /// The name of the token whose secret it has.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Token { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The names in its certificate, if it has one.
    pub fn names(&self) -> &[CertificateName] {
        match self.over() {
            Some(Self::Certificates { names, .. }) => names,
            _ => &[],
        }
    }

    /// What it has proved to the transport: all but its token.
    pub fn over(&self) -> Option<&Self> {
        match self {
            Self::Token { over, .. } => over.as_deref(),
            other => Some(other),
        }
    }
}

/// Without the bytes of certificates, which are thousands of numbers.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificates { names, chain } => {
                let bytes: Vec<_> = chain.iter().map(Vec::len).collect();
                let mut shown = f.debug_struct("Certificates");
                shown
                    .field("names", names)
                    .field("bytes", &bytes)
                    .finish_non_exhaustive()
            }
            Self::Subject(name) => f.debug_tuple("Subject").field(name).finish(),
            Self::Token { name, over } => {
                let mut shown = f.debug_struct("Token");
                shown.field("name", name).field("over", over).finish()
            }
        }
    }
}

/// For people. A hook that decides compares the parts.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificates { names, .. } if names.is_empty() => {
                f.write_str("certificate without a name")
            }
            Self::Certificates { names, .. } => {
                f.write_str("certificate of ")?;
                for (i, name) in names.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{name}")?;
                }
                Ok(())
            }
            Self::Subject(name) => write!(f, "subject {name:?}"),
            Self::Token { name, over } => {
                write!(f, "token {}", name.escape_debug())?;
                match over {
                    Some(over) => write!(f, ", {over}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Who is at the other end of a pipe: as this system says, as it has proved, and as it calls itself.
///
/// Two processes of one user on one machine trust each other without a proof. Over `shm` the kernel names the process and its user,
/// and `addr` is who the peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// As this system says. [`PeerAddr::Unknown`] at a connector that has not heard yet whether its pipe may be upgraded: it has when a message
    /// has come.
    pub addr: PeerAddr,
    /// As it has proved to be.
    pub identity: Option<Identity>,
    /// The name that its context gave itself: proved by nothing.
    pub name: Arc<str>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.identity {
            Some(identity) => write!(f, "{identity} at {}", self.addr),
            None => write!(f, "{}, which has proved nothing", self.addr),
        }
    }
}

/// Who is at the other end of a pipe, once that is certain. A pipe that is upgraded to another connection may be refused there;
/// then its peer is the first connection's.
#[derive(Clone, Debug, Default)]
pub struct SettledPeer(Arc<OnceLock<PeerAddr>>);

impl SettledPeer {
    /// [`PeerAddr::Unknown`] until it is certain.
    pub fn addr(&self) -> PeerAddr {
        self.0.get().copied().unwrap_or(PeerAddr::Unknown)
    }

    pub(crate) fn settle(&self, peer: PeerAddr) {
        let _ = self.0.set(peer);
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Host(host) => host.fmt(f),
            Self::Process {
                pid: Some(pid),
                uid,
            } => write!(f, "process {pid} of uid {uid}"),
            Self::Process { pid: None, uid } => {
                write!(
                    f,
                    "a process of uid {uid} in another pid namespace (another container)"
                )
            }
            Self::SameProcess => f.write_str("this process"),
            Self::Unknown => f.write_str("a peer that its transport does not name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url: Url = "tcp://[::1]:80".parse().unwrap();
        assert_eq!((url.transport(), url.address()), ("tcp", "[::1]:80"));
        assert_eq!(url.to_string(), "tcp://[::1]:80");
        assert_eq!(url.as_ref(), "tcp://[::1]:80");
        for bad in ["", "127.0.0.1:80", "tcp:/x", "://x", "TCP://x", "tcp://"] {
            assert!(
                matches!(bad.parse::<Url>(), Err(Misuse::Address { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_shown_identity_has_no_bytes_of_certificates() {
        let identity = Identity::Certificates {
            names: vec![CertificateName::Dns("worker.example".to_owned())].into(),
            chain: vec![vec![250; 1000]].into(),
        };
        let shown = format!("{identity:?}");
        assert!(shown.contains("worker.example"), "{shown}");
        assert!(!shown.contains("250") && shown.len() < 100, "{shown}");
    }

    #[test]
    fn an_address_names_a_host_however_it_is_written() {
        let party =
            |host: &str| PeerAddr::Socket((host.parse::<IpAddr>().unwrap(), 80).into()).party();
        assert_eq!(party("192.0.2.7"), party("::ffff:192.0.2.7"));
        assert_ne!(party("192.0.2.7"), party("192.0.2.8"));
        assert_eq!(party("2001:db8::1"), party("2001:db8::2:3:4:5"));
        assert_ne!(party("2001:db8::1"), party("2001:db8:0:1::1"));
    }
}
