//! A message that the handler of the pipe is given: of metadata alone, as most are, or any.

use tensorpipe::{Descriptor, Error, Incoming, Message, MessageStats, Small};

/// See the module's documentation. Dropping it skips the message.
pub(crate) enum Arrived<'a> {
    Small(Small<'a>),
    Any(Incoming),
}

impl Arrived<'_> {
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::Small(small) => small.id(),
            Self::Any(incoming) => incoming.id(),
        }
    }

    pub(super) fn metadata(&self) -> &[u8] {
        match self {
            Self::Small(small) => small.metadata(),
            Self::Any(incoming) => &incoming.descriptor().metadata,
        }
    }

    /// Bytes of its payloads and tensors.
    pub(super) fn parts_len(&self) -> u64 {
        self.descriptor().map_or(0, Descriptor::byte_len)
    }

    pub(super) fn descriptor(&self) -> Option<&Descriptor> {
        match self {
            Self::Small(_) => None,
            Self::Any(incoming) => Some(incoming.descriptor()),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        match self {
            Self::Small(_) => true,
            Self::Any(incoming) => incoming.is_whole(),
        }
    }

    pub(super) fn refuse(self, reason: &str) {
        match self {
            Self::Small(small) => small.refuse(reason),
            Self::Any(incoming) => incoming.refuse(reason),
        }
    }

    /// Takes it, as [`Incoming::accept`].
    pub(super) fn accept(self) -> Option<Result<Message, Error>> {
        match self {
            Self::Small(small) => Some(Ok(Message::new(small.accept()))),
            Self::Any(incoming) => incoming.accept(),
        }
    }

    /// How what is here of it came.
    pub(super) fn came(&self) -> MessageStats {
        match self {
            Self::Small(_) => MessageStats::default(),
            Self::Any(incoming) => incoming.stats(),
        }
    }
}
