//! Why a stream is not accepted or not continued, in words for an operator and as a metric's label.
//!
//! Also the check of a stream's first frame. Leaves to others: what an accepted stream may do (`stream`).

use subtle::ConstantTimeEq;
use tonic::Code;
use weir_core::exact::MAX_CHARGES;
use weir_core::key::OriginId;
use weir_core::wire::{Hello, MAX_FRAME_CELLS, MAX_FRAME_CONTROLS, PROTOCOL_VERSION};

/// Why a stream ends although its peer would go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The first frame did not come in time.
    #[error("no hello arrived within {0} ms")]
    Silent(u64),
    /// The first frame says something else.
    #[error("the first frame of a stream must hold a hello")]
    NoHello,
    /// A version of the frames that this program does not speak.
    #[error("protocol version {0} is not spoken here; this aggregator speaks {PROTOCOL_VERSION}")]
    Version(u32),
    /// Not an origin id.
    #[error("the origin must be 16 bytes, not all zero")]
    Origin,
    /// Another origin than the stream began with.
    #[error("a stream belongs to one origin; open another stream for another")]
    OriginChanged,
    /// Missing or wrong.
    #[error("the token is missing or wrong; the aggregator's is set by --token or WEIR_TOKEN")]
    Token,
    /// More origins than the region keeps.
    #[error("the region already has as many origins as it keeps")]
    TooManyOrigins,
    /// More streams than this program serves.
    #[error("this aggregator already serves {0} streams")]
    TooManyStreams(usize),
    /// Over the cap of a frame.
    #[error("{0} counts in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyCounts(usize),
    /// Over the cap of a frame.
    #[error("{0} consults in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyConsults(usize),
    /// Over the cap of a frame.
    #[error("{0} asks in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyAsks(usize),
    /// Over the cap of a frame.
    #[error("{0} withdrawals in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyWithdrawals(usize),
    /// Over the cap of a frame.
    #[error("{0} bans in one frame; at most {MAX_FRAME_CONTROLS} are allowed")]
    TooManyBans(usize),
    /// Over the cap of a question.
    #[error("{0} charges in one ask; at most {MAX_CHARGES} are allowed")]
    TooManyCharges(usize),
    /// Began and ceased to subscribe again and again.
    #[error("the subscription of this stream changes too often")]
    Unsteady,
    /// Not a frame.
    #[error("malformed frame: {0}")]
    Malformed(String),
    /// A frame over the cap in bytes.
    #[error("oversized frame: {0}")]
    Oversized(String),
}

impl Refusal {
    /// The metric's label: a word out of a fixed set.
    pub const fn label(&self) -> &'static str {
        match self {
            Refusal::Silent(_) => "silent",
            Refusal::NoHello => "no_hello",
            Refusal::Version(_) => "version",
            Refusal::Origin => "origin",
            Refusal::OriginChanged => "origin_changed",
            Refusal::Token => "token",
            Refusal::TooManyOrigins => "too_many_origins",
            Refusal::TooManyStreams(_) => "too_many_streams",
            Refusal::TooManyCounts(_) => "too_many_counts",
            Refusal::TooManyConsults(_) => "too_many_consults",
            Refusal::TooManyAsks(_) => "too_many_asks",
            Refusal::TooManyWithdrawals(_) => "too_many_withdrawals",
            Refusal::TooManyBans(_) => "too_many_bans",
            Refusal::TooManyCharges(_) => "too_many_charges",
            Refusal::Unsteady => "unsteady",
            Refusal::Malformed(_) => "malformed",
            Refusal::Oversized(_) => "oversized",
        }
    }

    /// The gRPC status with which the stream ends.
    pub const fn code(&self) -> Code {
        match self {
            Refusal::Silent(_) => Code::DeadlineExceeded,
            Refusal::Version(_) => Code::FailedPrecondition,
            Refusal::Token => Code::Unauthenticated,
            Refusal::TooManyOrigins | Refusal::TooManyStreams(_) | Refusal::Unsteady => {
                Code::ResourceExhausted
            }
            _ => Code::InvalidArgument,
        }
    }
}

/// Checks a stream's hello: the version first, so that a newer filter is told about that; then the token, so that
/// a stranger learns nothing else.
pub fn check_hello(hello: &Hello, token: Option<&str>) -> Result<OriginId, Refusal> {
    if hello.version != PROTOCOL_VERSION {
        return Err(Refusal::Version(hello.version));
    }
    if token.is_some_and(|token| !bool::from(token.as_bytes().ct_eq(hello.token.as_bytes()))) {
        return Err(Refusal::Token);
    }
    OriginId::parse(&hello.origin).ok_or(Refusal::Origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos() {
        let good = Hello { version: PROTOCOL_VERSION, origin: vec![1; 16], ..Hello::default() };
        let origin = OriginId([1; 16]);
        let cases = [
            (good.clone(), None, Ok(origin)),
            (Hello { token: "any".into(), ..good.clone() }, None, Ok(origin)),
            (Hello { token: "secret".into(), ..good.clone() }, Some("secret"), Ok(origin)),
            (Hello { token: "secreT".into(), ..good.clone() }, Some("secret"), Err(Refusal::Token)),
            (good.clone(), Some("secret"), Err(Refusal::Token)),
            (Hello { version: 0, ..good.clone() }, None, Err(Refusal::Version(0))),
            (Hello { version: 2, ..good.clone() }, Some("secret"), Err(Refusal::Version(2))),
            (Hello { origin: vec![], ..good.clone() }, None, Err(Refusal::Origin)),
            (Hello { origin: vec![0; 16], ..good.clone() }, None, Err(Refusal::Origin)),
            (Hello { origin: vec![1; 17], ..good }, None, Err(Refusal::Origin)),
        ];
        for (hello, token, expected) in cases {
            assert_eq!(check_hello(&hello, token), expected, "{hello:?} with {token:?}");
        }
    }
}
