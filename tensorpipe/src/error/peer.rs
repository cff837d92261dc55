//! The peer's faults, never a bare string for a fault of the protocol; and the peer's words, which are shown to people.

/// The longest text for people that is sent or kept, in bytes.
pub(crate) const TEXT_MAX: usize = 1024;

/// A peer's words, made safe for errors, routes and logs: at most [`TEXT_MAX`] bytes. The result cannot move a terminal's cursor, begin a
/// line of its own, or reorder other text.
pub(crate) fn legible(words: &str) -> String {
    let mut kept = String::new();
    for c in words.chars() {
        let c = match c {
            // Line and paragraph separators, and controls of text direction.
            '\u{2028}' | '\u{2029}' | '\u{061c}' | '\u{200e}' | '\u{200f}' => '\u{fffd}',
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
            c if c.is_control() => '\u{fffd}',
            c => c,
        };
        // Counted after the replacement: what replaces a control character is longer than the character.
        if kept.len() + c.len_utf8() > TEXT_MAX {
            break;
        }
        kept.push(c);
    }
    kept
}

impl PeerFault {
    /// What an error says in front of it: who has another secret, or no certificate, or speaks something else, broke no protocol.
    pub(crate) fn blames(&self) -> &'static str {
        match self {
            Self::Unproven { .. } | Self::Tls { .. } | Self::BadMagic { .. } => "",
            _ => "the peer broke the protocol: ",
        }
    }
}

/// What the peer did wrong; the pipe ends with it, this process does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerFault {
    /// The connection does not begin with this protocol's magic bytes.
    #[error("it does not speak this protocol: its first bytes are \"{first}\"{hint}")]
    BadMagic {
        /// The bytes found instead, escaped if they are not text.
        first: String,
        /// The protocol that they look like.
        hint: &'static str,
    },
    /// It needs a version that this side does not speak.
    #[error(
        "it speaks versions {low} to {high} of the protocol, this side {our_low} to {our_high}; upgrade the older one"
    )]
    Version {
        /// The lowest it speaks.
        low: u16,
        /// The highest it speaks.
        high: u16,
        /// The lowest spoken here.
        our_low: u16,
        /// The highest spoken here.
        our_high: u16,
    },
    /// A frame ends before its fields do.
    #[error("a {frame} frame is cut short")]
    Truncated {
        /// The frame.
        frame: &'static str,
    },
    /// A field has a value that means nothing.
    #[error("a {frame} frame holds {what}")]
    Malformed {
        /// The frame.
        frame: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// A frame is longer than this side allows.
    #[error("a {frame} frame of {len} bytes exceeds the limit of {limit}")]
    FrameTooLarge {
        /// The frame.
        frame: &'static str,
        /// Its length, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A part of a message is larger than this side allows.
    #[error("{what} of {found} exceeds this side's limit of {limit}")]
    LimitExceeded {
        /// The part.
        what: &'static str,
        /// Bytes or items.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A frame kind that this version does not know, not marked as optional.
    #[error("it sent a frame of the unknown kind {kind}")]
    UnknownFrame {
        /// The kind's code.
        kind: u8,
    },
    /// A known frame at a point where it is not allowed.
    #[error("it sent a {frame} frame {when}")]
    Unexpected {
        /// The frame.
        frame: &'static str,
        /// At which point.
        when: &'static str,
    },
    /// It names a message or part that is not under way.
    #[error("a {frame} frame names message {message}, which is not under way")]
    UnknownMessage {
        /// The frame.
        frame: &'static str,
        /// The message.
        message: u64,
    },
    /// It sent more than it was given credit for.
    #[error("it sent {what} beyond its credit of {limit}")]
    CreditExceeded {
        /// What.
        what: &'static str,
        /// The cumulative limit.
        limit: u64,
    },
    /// It did not prove that it has the secret: it has another secret under this name, or is somebody else.
    #[error(
        "it did not prove that it has {what}; give both ends the same, and look who is at that address"
    )]
    Unproven {
        /// The name of the secret.
        what: String,
    },
    /// It violates TLS, or presents no certificate that is trusted here.
    #[error("tls: {reason}")]
    Tls {
        /// What is wrong.
        reason: String,
    },
    /// It chose something that was not offered.
    #[error("its answer names {what}, which was not offered")]
    NotOffered {
        /// The choice.
        what: String,
    },
    /// It chose a channel over which the two ends do not reach each other.
    #[error(
        "its answer names channel {channel}, which does not reach from here to there: {reason}"
    )]
    OutOfReach {
        /// The channel.
        channel: String,
        /// Why not.
        reason: String,
    },
    /// A channel's own bytes make no sense.
    #[error("channel `{channel}`: {what}")]
    Channel {
        /// The channel.
        channel: &'static str,
        /// What is wrong.
        what: String,
    },
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_of_a_peer_have_no_lines_of_their_own() {
        let words = super::legible("it\n  channel cma: all well\x1b[2J");
        assert_eq!(words, "it\u{fffd}  channel cma: all well\u{fffd}[2J");
        let lines = super::legible("one\u{85}two\u{2028}three\u{2029}four");
        assert_eq!(lines, "one\u{fffd}two\u{fffd}three\u{fffd}four");
    }

    #[test]
    fn words_of_a_peer_are_shown_in_their_own_order() {
        let marks = ['\u{61c}', '\u{200e}', '\u{200f}'].into_iter();
        let marks = marks.chain('\u{202a}'..='\u{202e}');
        for mark in marks.chain('\u{2066}'..='\u{2069}') {
            let words = super::legible(&format!("user{mark}toor"));
            assert_eq!(words, "user\u{fffd}toor", "{mark:?}");
        }
        assert_eq!(super::legible("größer שלום"), "größer שלום");
    }
}
