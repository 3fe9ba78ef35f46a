//! Bounds of a response, checked on its bytes: a nested message of two bytes would take hundreds once it is decoded.

use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Most nested messages of a response: resources, descriptors, their limits, the limits that these replace, and values of metadata.
pub const MAX_MESSAGES: usize = 200_000;
/// Deepest nesting that is followed; decoding ends before.
const MAX_DEPTH: usize = 128;

/// How many nested messages a response may still have.
struct Budget(usize);

/// Why a response is not decoded.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error(
        "the response has more than {MAX_MESSAGES} resources, descriptors, limits, replaced limits and values of metadata"
    )]
    TooMany,
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("{0}")]
    Malformed(#[from] DecodeError),
    #[error("it is cut off")]
    Cut,
    #[error("resource {0} is no RateLimitConfig: {1}")]
    Resource(usize, Box<Refused>),
}

/// The messages of a response that contain others.
#[derive(Clone, Copy)]
enum Message {
    Response,
    Resource,
    Config,
    Descriptor,
    Policy,
    Struct,
    Entry,
    Value,
    List,
    Leaf,
}

impl Message {
    /// The message in the field of this number.
    fn inside(self, field: u32) -> Option<Message> {
        match (self, field) {
            (Message::Response, 2) => Some(Message::Resource),
            (Message::Resource, 2) => Some(Message::Config),
            (Message::Config, 3) | (Message::Descriptor, 4) => Some(Message::Descriptor),
            (Message::Descriptor, 3) => Some(Message::Policy),
            (Message::Descriptor, 8) | (Message::Value, 5) => Some(Message::Struct),
            (Message::Policy, 5) => Some(Message::Leaf),
            (Message::Struct, 1) => Some(Message::Entry),
            (Message::Entry, 2) | (Message::List, 1) => Some(Message::Value),
            (Message::Value, 6) => Some(Message::List),
            _ => None,
        }
    }
}

/// Refuses a response that would take too much memory once it is decoded, or cannot be decoded.
pub fn check(response: &[u8]) -> Result<(), Refused> {
    Budget(MAX_MESSAGES).walk(response, Message::Response, MAX_DEPTH)
}

impl Budget {
    fn walk(&mut self, mut bytes: &[u8], message: Message, depth: usize) -> Result<(), Refused> {
        let below = depth.checked_sub(1).ok_or(Refused::TooDeep)?;
        let mut at = 0;
        while !bytes.is_empty() {
            let (field, wire_type) = decode_key(&mut bytes)?;
            let inside = message.inside(field).filter(|_| wire_type == WireType::LengthDelimited);
            let Some(inside) = inside else {
                skip_field(wire_type, field, &mut bytes, DecodeContext::default())?;
                continue;
            };
            let length = usize::try_from(decode_varint(&mut bytes)?).map_err(|_| Refused::Cut)?;
            let (content, rest) = bytes.split_at_checked(length).ok_or(Refused::Cut)?;
            self.0 = self.0.checked_sub(1).ok_or(Refused::TooMany)?;
            self.walk(content, inside, below).map_err(|refused| match (message, refused) {
                (_, Refused::TooMany) => Refused::TooMany,
                (Message::Response, refused) => Refused::Resource(at, Box::new(refused)),
                (_, refused) => refused,
            })?;
            at += 1;
            bytes = rest;
        }
        Ok(())
    }
}
