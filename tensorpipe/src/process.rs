//! Who this process is: a random id, made anew after a fork; never a pid, which other namespaces and later processes
//! have too.

use crate::ambient;
use crate::error::SystemError;
use crate::keys::Nonce;
pub(crate) use crate::proto::wire::hello::Token;
use crate::sys::fork::PerProcess;

/// Random bytes from the kernel.
///
/// # Errors
/// The system has none, or a filter denies the call. What could be guessed is no token: better no pipe at all.
pub(crate) fn random_token() -> Result<Token, SystemError> {
    random_from(ambient::fill_random)
}

fn random_from<const N: usize>(
    fill: impl Fn(&mut [u8]) -> Result<(), getrandom::Error>,
) -> Result<[u8; N], SystemError> {
    let mut random = [0; N];
    fill(&mut random).map_err(SystemError::of_random)?;
    Ok(random)
}

/// The same, longer.
pub(crate) fn random_nonce() -> Result<Nonce, SystemError> {
    random_from(ambient::fill_random)
}

/// 32 random hexadecimal digits.
pub(crate) fn random_name() -> Result<String, SystemError> {
    let token = random_token()?;
    Ok(token.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The id of this process. Where there is none when it is first asked for, there never is.
pub(crate) fn process_id() -> Result<Token, SystemError> {
    static ID: PerProcess<Result<Token, SystemError>> = PerProcess::new();
    // Of the process, not of a simulation: the first one in it gets no other chance than the next.
    ID.get(|| random_from(getrandom::fill)).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn where_no_random_numbers_are_left_it_is_said() {
        let error = random_from::<16>(|_| Err(getrandom::Error::UNSUPPORTED)).unwrap_err();
        assert_eq!(error.call, "getrandom");
        let said = Error::from(error).to_string();
        assert!(said.starts_with("getrandom: "), "{said}");
    }
}
