//! The reasons for which a stream is refused or ended, as a message for the operator, a metric's label and a gRPC status.
//! Also the check of a stream's hello.

use sha2::{Digest, Sha256};
use strum::{IntoStaticStr, VariantNames};
use tonic::Code;
use weir_core::model::exact::MAX_CHARGES;
use weir_core::model::key::NodeId;
use weir_core::model::wire::{
    Hello, MAX_FRAME_CELLS, MAX_FRAME_CONTROLS, MAX_FRAME_COUNTERS, PROTOCOL_VERSION,
};

/// Why the aggregator ends a stream that its node would continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StreamError {
    /// The hello did not arrive in time; in milliseconds.
    #[error("no hello arrived within {0} ms")]
    Silent(u64),
    /// The first frame contains no hello.
    #[error("the first frame of a stream must hold a hello")]
    NoHello,
    /// A version of the protocol that this aggregator does not support.
    #[error("protocol version {0} is not supported; this aggregator supports version {PROTOCOL_VERSION}")]
    Version(u32),
    /// Not a valid node id.
    #[error("the node must be 16 bytes, not all zero")]
    Node,
    /// The node differs from that of the stream's first hello.
    #[error("a stream has one node, which cannot change; open another stream for another node")]
    NodeChanged,
    /// The token is missing or wrong.
    #[error(
        "the filter's token is missing or wrong; the aggregator accepts the token of --filter-token or WEIR_FILTER_TOKEN, and \
             those of the entries with workspaces in its tokens file"
    )]
    Token,
    /// The credential was valid when the stream began.
    #[error("the filter's credential was revoked or changed; reconnect with a valid one")]
    Revoked,
    /// The credential does not cover the workspace of the filter's configuration: the credential's name, the workspace.
    #[error(
        "the credential {0:?} does not cover the workspace {1:?}; add the workspace to its entry in the tokens file"
    )]
    Workspace(String, String),
    /// More nodes than a region stores, or than it stores of one address.
    #[error("the region already has too many nodes, in all or of this address")]
    TooManyNodes,
    /// More streams than this aggregator serves.
    #[error("this aggregator already serves {0} streams")]
    TooManyStreams(usize),
    /// More streams than one address may have.
    #[error("this aggregator already serves {0} streams of this address, half of its maximum")]
    TooManyOfAddress(usize),
    /// Too many streams have not sent their hello.
    #[error("too many streams wait for their hello; try again")]
    TooManySilent,
    /// More counts in a frame than allowed.
    #[error("{0} counts in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyCounts(usize),
    /// More queries in a frame than allowed.
    #[error("{0} queries in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyQueries(usize),
    /// Counters of more rules in a frame than allowed.
    #[error("{0} rule counters in one frame; at most {MAX_FRAME_COUNTERS} are allowed")]
    TooManyCounters(usize),
    /// More exact requests in a frame than allowed.
    #[error("{0} exact requests in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyExactRequests(usize),
    /// More refunds in a frame than allowed.
    #[error("{0} refunds in one frame; at most {MAX_FRAME_CELLS} are allowed")]
    TooManyRefunds(usize),
    /// More bans in a frame than allowed.
    #[error("{0} bans in one frame; at most {MAX_FRAME_CONTROLS} are allowed")]
    TooManyBans(usize),
    /// More charges in an exact request than allowed.
    #[error("{0} charges in one exact request; at most {MAX_CHARGES} are allowed")]
    TooManyCharges(usize),
    /// The stream subscribed and unsubscribed too often.
    #[error("the subscription of this stream changes too often")]
    Unsteady,
    /// The bytes cannot be decoded as a frame.
    #[error("malformed frame: {0}")]
    Malformed(String),
    /// A frame of more bytes than allowed.
    #[error("oversized frame: {0}")]
    Oversized(String),
}

impl StreamError {
    /// The metric's label, one of [`StreamError::VARIANTS`].
    pub const fn label(&self) -> &'static str {
        self.into_str()
    }

    /// The gRPC status with which the stream ends.
    pub const fn code(&self) -> Code {
        match self {
            StreamError::Silent(_) => Code::DeadlineExceeded,
            StreamError::Version(_) => Code::FailedPrecondition,
            StreamError::Token | StreamError::Revoked => Code::Unauthenticated,
            StreamError::Workspace(..) => Code::PermissionDenied,
            StreamError::TooManyNodes
            | StreamError::TooManyStreams(_)
            | StreamError::TooManyOfAddress(_)
            | StreamError::TooManySilent
            | StreamError::Unsteady => Code::ResourceExhausted,
            _ => Code::InvalidArgument,
        }
    }
}

/// Checks a stream's hello, the version first, so that a newer filter gets the version error. See [`node_of`].
pub fn check_hello(hello: &Hello) -> Result<NodeId, StreamError> {
    if hello.version != PROTOCOL_VERSION {
        return Err(StreamError::Version(hello.version));
    }
    NodeId::parse(&hello.node).map(node_of).ok_or(StreamError::Node)
}

/// The public node of a process. A process sends a number that is a secret between it and this aggregator; the node is the
/// digest of that number. A reader of the digest in a log, a store or at the admin listener can therefore neither raise
/// the process' components nor take over its subscription.
pub fn node_of(secret: NodeId) -> NodeId {
    let halves: [u64; 2] = [b"weir origin 0", b"weir origin 1"].map(|half| digest(half, &[&secret.0]));
    let mut node = NodeId::default();
    for (place, byte) in node.0.iter_mut().zip(halves.into_iter().flat_map(u64::to_le_bytes)) {
        *place = byte;
    }
    node
}

/// Eight bytes of a digest of `parts`, each of a fixed length. Digests of different `purpose` differ.
pub fn digest(purpose: &[u8], parts: &[&[u8]]) -> u64 {
    let mut digest = Sha256::new_with_prefix(purpose);
    parts.iter().for_each(|part| digest.update(part));
    let bytes: [u8; 32] = digest.finalize().into();
    bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::FRAME_REASONS;

    #[test]
    fn labels_are_the_reasons_of_the_metric() {
        assert_eq!(StreamError::VARIANTS, FRAME_REASONS);
        assert_eq!(StreamError::TooManyOfAddress(3).label(), "too_many_of_address");
        let page = include_str!("../../METRICS.md");
        for label in StreamError::VARIANTS {
            assert!(page.contains(&format!("`{label}`")), "METRICS.md lacks {label}");
        }
    }

    #[test]
    fn hellos() {
        let good = Hello { version: PROTOCOL_VERSION, node: vec![1; 16], ..Hello::default() };
        let node = node_of(NodeId([1; 16]));
        let cases = [
            (good.clone(), Ok(node)),
            (Hello { version: 0, ..good.clone() }, Err(StreamError::Version(0))),
            (Hello { version: 2, node: vec![], ..good.clone() }, Err(StreamError::Version(2))),
            (Hello { node: vec![], ..good.clone() }, Err(StreamError::Node)),
            (Hello { node: vec![0; 16], ..good.clone() }, Err(StreamError::Node)),
            (Hello { node: vec![1; 17], ..good }, Err(StreamError::Node)),
        ];
        for (hello, expected) in cases {
            assert_eq!(check_hello(&hello), expected, "{hello:?}");
        }
    }
}
