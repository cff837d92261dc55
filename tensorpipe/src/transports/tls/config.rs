//! Certificates and keys, and which peers an end trusts.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use zeroize::Zeroizing;

use super::Sides;
use super::checks::Connects;
use crate::error::Misuse;

/// ALPN: a listener of another protocol behind the same certificate must not be taken for one of this.
pub(super) const PROTOCOL: &[u8] = b"tensorpipe/1";

/// Certificates or a key, as PEM.
#[derive(Clone)]
pub struct Pem(Source);

#[derive(Clone)]
enum Source {
    File(PathBuf),
    Bytes(Arc<Zeroizing<Vec<u8>>>),
}

impl Pem {
    /// From this file, which [`TlsTransport::reload`](super::TlsTransport::reload) reads again.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// From these bytes.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Source::Bytes(Arc::new(Zeroizing::new(bytes.into()))))
    }

    fn read(&self, what: &'static str) -> Result<Arc<Zeroizing<Vec<u8>>>, Misuse> {
        match &self.0 {
            Source::Bytes(bytes) => Ok(bytes.clone()),
            Source::File(path) => match std::fs::read(path) {
                Ok(bytes) => Ok(Arc::new(Zeroizing::new(bytes))),
                Err(error) => Err(bad(what, "readable", self, &error.to_string())),
            },
        }
    }

    fn certificates(&self, what: &'static str) -> Result<Vec<CertificateDer<'static>>, Misuse> {
        let bytes = self.read(what)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let found = found.map_err(|error| bad(what, WANTED, self, &error.to_string()))?;
        match found.is_empty() {
            true => Err(bad(what, WANTED, self, "no certificate")),
            false => Ok(found),
        }
    }

    /// The chain to present.
    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, Misuse> {
        let what = "a certificate";
        let chain = self.certificates(what)?;
        match chain.iter().map(|one| one.len()).sum() {
            ..=CHAIN_MOST => Ok(chain),
            len => {
                let wanted = format!("a chain of at most {CHAIN_MOST} bytes");
                Err(bad(what, &wanted, self, &format!("{len} bytes")))
            }
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, Misuse> {
        let what = "the key of a certificate";
        let found = PrivateKeyDer::from_pem_slice(&self.read(what)?);
        found.map_err(|error| bad(what, "a private key in PEM", self, &error.to_string()))
    }

    fn roots(&self, what: &'static str) -> Result<RootCertStore, Misuse> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(what)? {
            let added = roots.add(certificate);
            added.map_err(|error| bad(what, "certificates of CAs", self, &error.to_string()))?;
        }
        Ok(roots)
    }
}

/// The longest chain to present, in DER: five certificates of RSA-4096 take 10 KiB. The other end reads 32 KiB before the handshake is
/// complete.
pub(super) const CHAIN_MOST: usize = 12 << 10;

const WANTED: &str = "certificates in PEM";

fn bad(what: &'static str, wanted: &str, from: &Pem, found: &str) -> Misuse {
    Misuse::Config {
        what,
        wanted: wanted.to_owned(),
        found: format!("{from}: {found}"),
    }
}

/// Does not print the bytes, which may be a key.
impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::File(path) => path.display().fmt(f),
            Source::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({self})")
    }
}

/// The certificates that an end of TLS presents, and the ones that it trusts.
///
/// A CA of one's own, and a certificate of it, by OpenSSL 3. The CA's own certificate is only for [`trust`](Self::trust) and
/// [`clients`](Self::clients): no end can present it.
///
/// ```sh
/// openssl req -x509 -newkey ed25519 -nodes -days 3650 -subj "/CN=our CA" -keyout ca.key -out ca.pem
/// openssl req -newkey ed25519 -nodes -subj "/CN=server" -addext "subjectAltName=DNS:localhost,IP:127.0.0.1" \
///     -keyout server.key -out server.csr
/// openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -days 365 -copy_extensions copy -out server.pem
/// ```
#[derive(Clone, Debug, Default)]
pub struct TlsConfig {
    certificate: Option<(Pem, Pem)>,
    trust: Option<Pem>,
    clients: Option<Pem>,
    server_name: Option<String>,
}

impl TlsConfig {
    /// Presents nothing, and trusts nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// The certificate that a listener presents to everybody, and a connector to listeners that ask, with its key. The chain holds
    /// the certificate, then those that lead from it to one that the other end trusts. It takes 12 KiB at most, without the encoding
    /// of PEM.
    pub fn certificate(mut self, chain: Pem, key: Pem) -> Self {
        self.certificate = Some((chain, key));
        self
    }

    /// A connector trusts listeners whose certificates lead to one of these, and no others.
    pub fn trust(mut self, roots: Pem) -> Self {
        self.trust = Some(roots);
        self
    }

    /// A listener accepts only connectors whose certificates lead to one of these.
    pub fn clients(mut self, roots: Pem) -> Self {
        self.clients = Some(roots);
        self
    }

    /// The name that a connector asks for (SNI), and wants to see in the listener's certificate. By default the host of the URL.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    pub(super) fn expected(&self) -> Result<Option<ServerName<'static>>, Misuse> {
        let name = self.server_name.clone();
        let parsed = name.map(|name| {
            ServerName::try_from(name.clone()).map_err(|error| Misuse::Config {
                what: "the name of a server",
                wanted: "a host's name or address".to_owned(),
                found: format!("`{name}`: {error}"),
            })
        });
        parsed.transpose()
    }

    pub(super) fn load(&self) -> Result<Sides, Misuse> {
        self.expected()?;
        let provider = Arc::new(ring::default_provider());
        let certificate = match &self.certificate {
            None => None,
            Some((chain, key)) => Some((chain.chain()?, key.key()?)),
        };
        let own = |certificate: &(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)| {
            (certificate.0.clone(), certificate.1.clone_key())
        };
        let connects = match &self.trust {
            None => None,
            Some(roots) => Some(self.client(&provider, roots, certificate.as_ref().map(own))?),
        };
        let listens = match certificate {
            None => None,
            Some(certificate) => Some(self.server(&provider, certificate)?),
        };
        Ok(Sides { connects, listens })
    }

    fn client(
        &self,
        provider: &Arc<CryptoProvider>,
        roots: &Pem,
        certificate: Option<Certificate>,
    ) -> Result<Connects, Misuse> {
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(&[&TLS13]);
        let builder = builder.map_err(|error| self.unfit(&error.to_string()))?;
        let roots = Arc::new(roots.roots("the roots of listeners")?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
        let verifier = verifier.map_err(|error| self.unfit(&error.to_string()))?;
        let builder = builder.with_webpki_verifier(verifier.clone());
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| self.unfit(&error.to_string()))?,
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Connects {
            config: Arc::new(config),
            verifier,
        })
    }

    fn server(
        &self,
        provider: &Arc<CryptoProvider>,
        (chain, key): Certificate,
    ) -> Result<Arc<ServerConfig>, Misuse> {
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(&[&TLS13]);
        let builder = builder.map_err(|error| self.unfit(&error.to_string()))?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let roots = Arc::new(roots.roots("the roots of connectors")?);
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
                let verifier = verifier.map_err(|error| self.unfit(&error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let made = builder.with_single_cert(chain, key);
        let mut config = made.map_err(|error| self.unfit(&error.to_string()))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        if self.clients.is_some() {
            // A resumed session shows no certificate, so the handshake could not tell a connector that its certificate has
            // expired.
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(Arc::new(config))
    }

    fn unfit(&self, found: &str) -> Misuse {
        let from = self.certificate.as_ref();
        let from = from.map_or_else(String::new, |(chain, key)| format!("{chain} and {key}: "));
        Misuse::Config {
            what: "a certificate and its key",
            wanted: "such as fit each other".to_owned(),
            found: format!("{from}{found}"),
        }
    }
}

type Certificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);
