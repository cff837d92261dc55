//! Why a message was given up, in one byte on the wire.

/// Why a message was abandoned or refused. Travels as one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetCode {
    /// The application does not want it; not an error.
    Skipped,
    /// The application gave up on it.
    Cancelled,
    /// A deadline passed.
    Deadline,
    /// The application refused it, for the reason in the text.
    Refused,
    /// This end is closing.
    Closing,
    /// The channel or the memory failed.
    Failed,
    /// The application has too much to do; it may take the message later.
    Overloaded,
    /// A code of a later version.
    Other(u8),
}

impl ResetCode {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Skipped => 0,
            Self::Cancelled => 1,
            Self::Deadline => 2,
            Self::Refused => 3,
            Self::Closing => 4,
            Self::Failed => 5,
            Self::Overloaded => 6,
            Self::Other(code) => code,
        }
    }

    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Skipped,
            1 => Self::Cancelled,
            2 => Self::Deadline,
            3 => Self::Refused,
            4 => Self::Closing,
            5 => Self::Failed,
            6 => Self::Overloaded,
            other => Self::Other(other),
        }
    }
}

impl std::fmt::Display for ResetCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Skipped => f.write_str("skipped"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Deadline => f.write_str("its deadline passed"),
            Self::Refused => f.write_str("refused"),
            Self::Closing => f.write_str("the other end is closing"),
            Self::Failed => f.write_str("the transfer failed"),
            Self::Overloaded => f.write_str("it has too much to do"),
            Self::Other(code) => write!(f, "reason {code}"),
        }
    }
}
