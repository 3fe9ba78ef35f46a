//! Reads of a response only what names it, as its resources are bounded before they are decoded.

use super::wire::DiscoveryRequest;
use prost::Message;
use prost::bytes::{Buf, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Requests are encoded as usual.
#[derive(Clone, Copy, Debug)]
pub struct ResponseCodec;

/// A response that was not decoded.
#[derive(Debug)]
pub struct Received {
    /// What names it.
    pub head: Head,
    /// All of it.
    pub message: Bytes,
}

/// The fields of a `DiscoveryResponse` without its resources.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Head {
    /// The version of the resources.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// Names the response.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

impl Codec for ResponseCodec {
    type Encode = DiscoveryRequest;
    type Decode = Received;
    type Encoder = ProstEncoder<DiscoveryRequest>;
    type Decoder = ResponseCodec;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        ResponseCodec
    }
}

impl Decoder for ResponseCodec {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        let message = source.copy_to_bytes(source.remaining());
        let head = Head::decode(message.clone()).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some(Received { head, message }))
    }
}
