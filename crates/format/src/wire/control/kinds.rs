//! Names the kinds of messages, and says which frames bring raw bytes.
//!
//! Not here: their numbers (`wire.rs`).

use super::{BULK, BULK_HEAD_BYTES, Message, PIECE, PIECE_HEAD_BYTES, SAID};
use crate::wire::staging::StoreMessage;

impl Message {
    /// The name of this kind of message in the numbered steps of tests.
    #[must_use]
    pub fn name_of(kind: u8) -> &'static str {
        const NAMES: [&str; 35] = [
            "nothing",
            "hello",
            "durable",
            "not durable",
            "vote",
            "record",
            "recorded",
            "committed",
            "aborted",
            "placement",
            "goodbye",
            "reserve",
            "granted",
            "credit",
            "finish",
            "held",
            "lost",
            "let go",
            "data",
            "fetch",
            "yield",
            "adopt",
            "lock",
            "door",
            "link",
            "begin",
            "resumed from",
            "leave",
            "done",
            "refused",
            "note",
            "ask",
            "sealed",
            "status",
            "drain",
        ];
        match kind {
            40 => "list",
            41 => "listing",
            SAID => "said",
            BULK => "bytes",
            PIECE => "piece",
            _ => NAMES
                .get(usize::from(kind))
                .copied()
                .or_else(|| StoreMessage::name_of(kind))
                .unwrap_or("other"),
        }
    }
}

/// Bytes of the place before the raw bytes of such a frame; `None` for messages.
pub fn place_bytes(kind: u8) -> Option<usize> {
    match kind {
        BULK => Some(BULK_HEAD_BYTES),
        PIECE => Some(PIECE_HEAD_BYTES),
        _ => None,
    }
}
