//! Why a stream is not accepted or not continued, in words for an operator and as a metric's label.
//!
//! Also the check of a stream's first frame. Leaves to others: what an accepted stream may do (`stream`).

use sha2::{Digest, Sha256};
use tonic::Code;
use weir_core::model::exact::MAX_CHARGES;
use weir_core::model::key::OriginId;
use weir_core::model::wire::{Hello, MAX_FRAME_CELLS, MAX_FRAME_CONTROLS, PROTOCOL_VERSION};

/// Why a stream ends although its peer would go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
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
    #[error(
        "the filter's token is missing or wrong; the aggregator has one of --filter-token or WEIR_FILTER_TOKEN, and those of entries with \
         workspaces in its tokens file"
    )]
    Token,
    /// It was valid as the stream began.
    #[error("the filter's credential was refunded or changed; connect again")]
    Revoked,
    /// The filter's configuration is of a workspace that its credential is not for: the credential's name, the workspace.
    #[error("the credential {0:?} does not name the workspace {1:?}; its entry in the tokens file would")]
    Workspace(String, String),
    /// More origins than the region keeps.
    #[error("the region already has as many origins as it keeps")]
    TooManyOrigins,
    /// More streams than this program serves.
    #[error("this aggregator already serves {0} streams")]
    TooManyStreams(usize),
    /// More streams than one address may have.
    #[error("this aggregator already serves {0} streams of this address, half of all that it serves")]
    TooManyOfAddress(usize),
    /// Too many streams wait for their hello.
    #[error("too many streams have not sent a hello")]
    TooManySilent,
    /// Over the cap of a frame.
    #[error("{0} counts in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyCounts(usize),
    /// Over the cap of a frame.
    #[error("{0} consults in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyConsults(usize),
    /// Over the cap of a frame.
    #[error("{0} exact requests in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyExactRequests(usize),
    /// Over the cap of a frame.
    #[error("{0} refunds in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyRefunds(usize),
    /// Over the cap of a frame.
    #[error("{0} bans in one frame; at most {MAX_FRAME_CONTROLS} are allowed")]
    TooManyBans(usize),
    /// Over the cap of a question.
    #[error("{0} charges in one exact request; at most {MAX_CHARGES} are allowed")]
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

impl StreamError {
    /// The metric's label: a word out of a fixed set.
    pub const fn label(&self) -> &'static str {
        match self {
            StreamError::Silent(_) => "silent",
            StreamError::NoHello => "no_hello",
            StreamError::Version(_) => "version",
            StreamError::Origin => "origin",
            StreamError::OriginChanged => "origin_changed",
            StreamError::Token => "token",
            StreamError::Revoked => "refunded",
            StreamError::Workspace(..) => "workspace",
            StreamError::TooManyOrigins => "too_many_origins",
            StreamError::TooManyStreams(_) => "too_many_streams",
            StreamError::TooManyOfAddress(_) => "too_many_of_address",
            StreamError::TooManySilent => "too_many_silent",
            StreamError::TooManyCounts(_) => "too_many_counts",
            StreamError::TooManyConsults(_) => "too_many_consults",
            StreamError::TooManyExactRequests(_) => "too_many_exact_requests",
            StreamError::TooManyRefunds(_) => "too_many_refunds",
            StreamError::TooManyBans(_) => "too_many_bans",
            StreamError::TooManyCharges(_) => "too_many_charges",
            StreamError::Unsteady => "unsteady",
            StreamError::Malformed(_) => "malformed",
            StreamError::Oversized(_) => "oversized",
        }
    }

    /// The gRPC status with which the stream ends.
    pub const fn code(&self) -> Code {
        match self {
            StreamError::Silent(_) => Code::DeadlineExceeded,
            StreamError::Version(_) => Code::FailedPrecondition,
            StreamError::Token | StreamError::Revoked => Code::Unauthenticated,
            StreamError::Workspace(..) => Code::PermissionDenied,
            StreamError::TooManyOrigins
            | StreamError::TooManyStreams(_)
            | StreamError::TooManyOfAddress(_)
            | StreamError::TooManySilent
            | StreamError::Unsteady => Code::ResourceExhausted,
            _ => Code::InvalidArgument,
        }
    }
}

/// Checks a stream's hello: the version first, so that a newer filter is told about that. See [`origin_of`].
pub fn check_hello(hello: &Hello) -> Result<OriginId, StreamError> {
    if hello.version != PROTOCOL_VERSION {
        return Err(StreamError::Version(hello.version));
    }
    OriginId::parse(&hello.origin).map(origin_of).ok_or(StreamError::Origin)
}

/// The origin that a process is known by. The number that it sends is a secret of the process and of this aggregator, and this
/// is its digest: who reads the digest in a log, a store or at the admin listener can neither raise the process'
/// components nor take its subscription.
pub fn origin_of(secret: OriginId) -> OriginId {
    let halves: [u64; 2] = [b"weir origin 0", b"weir origin 1"].map(|half| digest(half, &[&secret.0]));
    let mut origin = OriginId::default();
    for (place, byte) in origin.0.iter_mut().zip(halves.into_iter().flat_map(u64::to_le_bytes)) {
        *place = byte;
    }
    origin
}

/// Eight bytes of a digest of `parts`, of which each has a fixed length; `purpose` tells digests apart.
pub fn digest(purpose: &[u8], parts: &[&[u8]]) -> u64 {
    let mut digest = Sha256::new_with_prefix(purpose);
    parts.iter().for_each(|part| digest.update(part));
    let bytes: [u8; 32] = digest.finalize().into();
    bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos() {
        let good = Hello { version: PROTOCOL_VERSION, origin: vec![1; 16], ..Hello::default() };
        let origin = origin_of(OriginId([1; 16]));
        let cases = [
            (good.clone(), Ok(origin)),
            (Hello { version: 0, ..good.clone() }, Err(StreamError::Version(0))),
            (Hello { version: 2, origin: vec![], ..good.clone() }, Err(StreamError::Version(2))),
            (Hello { origin: vec![], ..good.clone() }, Err(StreamError::Origin)),
            (Hello { origin: vec![0; 16], ..good.clone() }, Err(StreamError::Origin)),
            (Hello { origin: vec![1; 17], ..good }, Err(StreamError::Origin)),
        ];
        for (hello, expected) in cases {
            assert_eq!(check_hello(&hello), expected, "{hello:?}");
        }
    }
}
