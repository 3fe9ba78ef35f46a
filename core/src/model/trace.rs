//! The trace context of a waiting request: W3C `traceparent` and Envoy's `x-request-id`, bounded in size.
//!
//! It never affects a decision. A malformed trace context counts as absent, and is no reason to deny a request or reject a frame.

use crate::model::wire;
use alloc::string::String;

/// Longest `x-request-id` that is passed on; Envoy's own have 36 bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 64;
/// Most trace contexts of one query, even if more requests have joined it. With them a frame of queries stays below
/// [`wire::MAX_FRAME_BYTES`].
pub const MAX_TRACES: usize = 4;

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;
/// `version-trace id-span id-flags` of version 0.
const TRACEPARENT_BYTES: usize = 55;

/// A span of another program, by [W3C Trace Context](https://www.w3.org/TR/trace-context/#traceparent-header).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Not all zero.
    pub trace_id: [u8; 16],
    /// Not all zero.
    pub span_id: [u8; 8],
    /// Bit 0: the trace is recorded.
    pub flags: u8,
}

/// A request's trace context, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace<'a> {
    /// The parent span.
    pub parent: Option<TraceParent>,
    /// 1 to [`MAX_REQUEST_ID_BYTES`] visible ASCII characters.
    pub request_id: Option<&'a str>,
}

impl TraceParent {
    /// Parses the header; `None` if it is malformed. Of later versions the fields of version 0 are read.
    pub fn parse(header: &[u8]) -> Option<TraceParent> {
        let (head, rest) = header.split_at_checked(TRACEPARENT_BYTES)?;
        let mut parts = head.split(|byte| *byte == b'-');
        let [version] = hex(parts.next()?)?;
        let parent = TraceParent {
            trace_id: hex(parts.next()?)?,
            span_id: hex(parts.next()?)?,
            flags: u8::from_be_bytes(hex(parts.next()?)?),
        };
        let ends = match version {
            0 => rest.is_empty(),
            u8::MAX => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        (ends && parts.next().is_none()).then_some(parent)?.sound()
    }

    /// Whether the trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    fn sound(self) -> Option<TraceParent> {
        (self.trace_id != [0; 16] && self.span_id != [0; 8]).then_some(self)
    }
}

impl<'a> Trace<'a> {
    /// Reads a request's headers; `None` if neither is valid.
    pub fn of_headers(traceparent: Option<&[u8]>, request_id: Option<&'a [u8]>) -> Option<Trace<'a>> {
        Trace::sound(
            traceparent.and_then(TraceParent::parse),
            request_id.and_then(|id| str::from_utf8(id).ok()),
        )
    }

    /// From a frame; `None` if nothing in it is sound.
    pub fn of_wire(trace: &'a wire::Trace) -> Option<Trace<'a>> {
        let parent = || {
            let trace_id = trace.trace_id.as_slice().try_into().ok()?;
            let span_id = trace.span_id.as_slice().try_into().ok()?;
            TraceParent { trace_id, span_id, flags: u8::try_from(trace.flags).ok()? }.sound()
        };
        Trace::sound(parent(), Some(&trace.request_id))
    }

    /// For a frame.
    pub fn to_wire(&self) -> wire::Trace {
        wire::Trace {
            trace_id: self.parent.map(|parent| parent.trace_id.to_vec()).unwrap_or_default(),
            span_id: self.parent.map(|parent| parent.span_id.to_vec()).unwrap_or_default(),
            flags: self.parent.map(|parent| u32::from(parent.flags)).unwrap_or_default(),
            request_id: self.request_id.map(String::from).unwrap_or_default(),
        }
    }

    fn sound(parent: Option<TraceParent>, request_id: Option<&'a str>) -> Option<Trace<'a>> {
        let plain = |id: &&str| {
            (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let request_id = request_id.filter(plain);
        (parent.is_some() || request_id.is_some()).then_some(Trace { parent, request_id })
    }
}

/// Whether a trace, as a frame brings it, is recorded.
pub(crate) fn is_sampled(trace: &wire::Trace) -> bool {
    trace.flags & u32::from(SAMPLED) != 0
}

/// `N` bytes in lower-case hexadecimal digits, as the standard has them.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => digit.checked_sub(b'0'),
        b'a'..=b'f' => digit.checked_sub(b'a' - 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn check(header: &str, expected: Option<u8>) {
        let parsed = TraceParent::parse(header.as_bytes());
        assert_eq!(parsed.map(|parent| parent.flags), expected, "{header}");
        if let Some(TraceParent { trace_id, span_id, .. }) = parsed {
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            assert_eq!((hex(&trace_id), hex(&span_id)), (TRACE.to_string(), SPAN.to_string()));
        }
    }

    #[test]
    fn a_traceparent_is_parsed_as_the_standard_defines() {
        let cases = [
            (format!("00-{TRACE}-{SPAN}-01"), Some(1)),
            (format!("00-{TRACE}-{SPAN}-00"), Some(0)),
            (format!("00-{TRACE}-{SPAN}-ff"), Some(255)),
            (format!("00-{TRACE}-{SPAN}-01-more"), None),
            (format!("01-{TRACE}-{SPAN}-01"), Some(1)),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-brings"), Some(1)),
            (format!("cc-{TRACE}-{SPAN}-01.what"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{TRACE}-{SPAN}-0"), None),
            (format!("00-{TRACE}-{SPAN}-0g"), None),
            (format!("00-{TRACE}{SPAN}--01"), None),
            (format!(" 00-{TRACE}-{SPAN}-01"), None),
            (String::new(), None),
            ("-".repeat(55), None),
        ];
        cases.iter().for_each(|(header, expected)| check(header, *expected));
    }

    #[test]
    fn invalid_parts_are_absent() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let longest = "x".repeat(MAX_REQUEST_ID_BYTES);
        let cases: [(&str, &str, _); 6] = [
            (&parent, "an-id", Some((true, true))),
            (&parent, "an id", Some((true, false))),
            (&parent, &format!("{longest}x"), Some((true, false))),
            ("00-nothing", &longest, Some((false, true))),
            ("00-nothing", "", None),
            ("", "\u{e9}", None),
        ];
        for (traceparent, id, expected) in cases {
            let trace = Trace::of_headers(Some(traceparent.as_bytes()), Some(id.as_bytes()));
            let found = trace.map(|trace| (trace.parent.is_some(), trace.request_id.is_some()));
            assert_eq!(found, expected, "{traceparent} {id}");
            let wire = trace.map(|trace| trace.to_wire());
            assert_eq!(wire.as_ref().and_then(Trace::of_wire), trace, "over the wire");
        }
        assert_eq!(Trace::of_headers(None, None), None);
    }

    #[test]
    fn an_invalid_trace_in_a_frame_is_ignored() {
        let valid =
            Trace::of_headers(Some(format!("00-{TRACE}-{SPAN}-01").as_bytes()), None).unwrap().to_wire();
        let invalid = [
            wire::Trace { trace_id: [1; 15].to_vec(), ..valid.clone() },
            wire::Trace { trace_id: [0; 16].to_vec(), ..valid.clone() },
            wire::Trace { span_id: [1; 9].to_vec(), ..valid.clone() },
            wire::Trace { flags: 256, ..valid.clone() },
            wire::Trace { request_id: "\n".to_string(), ..wire::Trace::default() },
        ];
        assert!(Trace::of_wire(&valid).is_some());
        invalid.iter().for_each(|trace| assert_eq!(Trace::of_wire(trace), None, "{trace:?}"));
    }
}
