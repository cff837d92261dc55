//! Who this process is: a random id, made anew after a fork; never a pid, which other namespaces and later processes
//! have too.

use crate::ambient;
use crate::keys::Nonce;
pub(crate) use crate::proto::wire::hello::Token;
use crate::sys::fork::PerProcess;

/// Random bytes from the kernel.
pub(crate) fn random_token() -> Token {
    random_from(ambient::fill)
}

fn random_from(fill: impl Fn(&mut [u8]) -> Result<(), getrandom::Error>) -> Token {
    let mut token = Token::default();
    if fill(&mut token).is_err() {
        // Without a random source (before Linux 3.17, or early boot) tokens would be guessable: better no pipe at all.
        panic!("the system has no source of random numbers");
    }
    token
}

/// The same, longer.
pub(crate) fn random_nonce() -> Nonce {
    let mut nonce = Nonce::default();
    nonce[..16].copy_from_slice(&random_token());
    nonce[16..].copy_from_slice(&random_token());
    nonce
}

/// 32 random hexadecimal digits.
pub(crate) fn random_name() -> String {
    random_token()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The id of this process.
pub(crate) fn process_id() -> Token {
    static ID: PerProcess<Token> = PerProcess::new();
    // Of the process, not of a simulation: the first one in it gets no other chance than the next.
    *ID.get(|| random_from(getrandom::fill))
}
