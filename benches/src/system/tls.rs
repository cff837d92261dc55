//! TLS between both ends of a row: they show the same certificate, which the measuring process makes for itself and tells its server
//! with the plan.

use anyhow::{Context, Result};
use rcgen::generate_simple_self_signed;
use tensorpipe::transports::{Pem, TlsConfig, TlsTransport};

use crate::plan::Plan;

/// A certificate and its key.
pub(crate) fn made() -> Result<[String; 2]> {
    let made = generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    Ok([made.cert.pem(), made.signing_key.serialize_pem()])
}

/// The transport of either end. The listener asks for no certificates.
pub(super) fn transport(plan: &Plan) -> Result<TlsTransport> {
    let made = plan.certificate.as_ref();
    let [certificate, key] = made.context("this command measures nothing over tls")?;
    let certificate = Pem::bytes(certificate.as_str());
    let config = TlsConfig::new().certificate(certificate.clone(), Pem::bytes(key.as_str()));
    Ok(TlsTransport::new(config.trust(certificate))?)
}
