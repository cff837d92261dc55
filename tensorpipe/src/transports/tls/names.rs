//! The names in a certificate that was found to be valid.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::address::CertificateName;

/// The subject's alternative names that are host names or URIs. If there are none, its common name.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<CertificateName> {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let hosts = parsed.valid_dns_names().map(str::to_owned);
    let uris = parsed.valid_uri_names().map(str::to_owned);
    let names = hosts.map(CertificateName::Dns);
    let names: Vec<_> = names.chain(uris.map(CertificateName::Uri)).collect();
    if !names.is_empty() {
        return names;
    }
    let name = common_name(parsed.subject());
    name.map(CertificateName::Common).into_iter().collect()
}

/// The object identifier 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];

const OBJECT: u8 = 6;
const UTF8: u8 = 12;
const PRINTABLE: u8 = 19;
const IA5: u8 = 22;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// The last common name of a distinguished name in DER, with or without the header of its sequence.
fn common_name(mut name: &[u8]) -> Option<String> {
    if let Some((SEQUENCE, inner, [])) = value(name) {
        name = inner;
    }
    let mut found = None;
    while let Some((SET, set, rest)) = value(name) {
        name = rest;
        let mut set = set;
        while let Some((SEQUENCE, attribute, rest)) = value(set) {
            set = rest;
            let Some((OBJECT, kind, text)) = value(attribute) else {
                continue;
            };
            if let (COMMON_NAME, Some((UTF8 | PRINTABLE | IA5, text, _))) = (kind, value(text)) {
                found = std::str::from_utf8(text).ok().map(str::to_owned);
            }
        }
    }
    found
}

/// The tag of the first value, its content, and what follows.
fn value(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, len], rest) = der.split_first_chunk::<2>()?;
    let (len, rest) = match len {
        0..=0x7f => (usize::from(len), rest),
        0x81 => {
            let (len, rest) = rest.split_first()?;
            (usize::from(*len), rest)
        }
        0x82 => {
            let (len, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*len)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_name_is_found_and_nonsense_is_none() {
        let attribute = |kind: u8, text: &[u8]| {
            let mut out = vec![0x30, 7 + text.len() as u8, 6, 3, 0x55, 4, kind, 12];
            out.push(text.len() as u8);
            out.extend_from_slice(text);
            [&[0x31, out.len() as u8][..], &out].concat()
        };
        let inner = [attribute(10, b"Acme"), attribute(3, b"alice")].concat();
        let whole = [&[0x30, inner.len() as u8][..], &inner].concat();
        assert_eq!(common_name(&inner).as_deref(), Some("alice"));
        assert_eq!(common_name(&whole).as_deref(), Some("alice"));
        assert_eq!(common_name(&attribute(10, b"Acme")), None);
        for cut in 0..whole.len() {
            let _ = common_name(&whole[..cut]);
        }
        for at in 0..whole.len() {
            for by in [1, 0x7f, 0x80, 0xff] {
                let mut near = whole.clone();
                near[at] ^= by;
                let _ = common_name(&near);
            }
        }
    }
}
