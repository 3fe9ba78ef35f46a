//! Cuts what a stream receives into gRPC messages.

use crate::host::kinds::MAX_MESSAGE_BYTES;
use crate::host::stream::HEAD_BYTES;

/// The bytes of a message that has not arrived wholly.
#[derive(Debug, Default)]
pub struct Frames {
    rest: Vec<u8>,
}

/// What was received is no message of an aggregator: it is too long, or compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Frames {
    /// Takes bytes as they arrive.
    pub fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// The next whole message, without its head.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        let Some(head) = self.rest.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [compressed, length @ ..] = *head;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if compressed != 0 || length > MAX_MESSAGE_BYTES {
            return Err(Malformed);
        }
        let end = HEAD_BYTES.saturating_add(length);
        let Some(message) = self.rest.get(HEAD_BYTES..end) else { return Ok(None) };
        let message = message.to_vec();
        self.rest.drain(..end);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap();
        [&[0][..], &length.to_be_bytes(), message].concat()
    }

    #[test]
    fn messages_are_whole_wherever_they_are_cut() {
        let bytes = [framed(b"one"), framed(b""), framed(b"three")].concat();
        for cut in 0..=bytes.len() {
            let mut frames = Frames::default();
            let mut messages = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                frames.push(part);
                while let Some(message) = frames.next().unwrap() {
                    messages.push(message);
                }
            }
            assert_eq!(messages, [&b"one"[..], b"", b"three"], "cut at {cut}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_at_its_head() {
        let mut frames = Frames::default();
        frames.push(&framed(&[0])[..1]);
        frames.push(&u32::try_from(MAX_MESSAGE_BYTES + 1).unwrap().to_be_bytes());
        assert_eq!(frames.next(), Err(Malformed));
        let mut frames = Frames::default();
        frames.push(&[1, 0, 0, 0, 0]);
        assert_eq!(frames.next(), Err(Malformed), "compressed");
    }
}
