//! Who or what is counted: parts of a request, joined so that two different requests never share by accident.
//!
//! The raw identifier: in each part `\` becomes `\\` and `|` becomes `\|`; the parts are joined by `|`; a part that
//! is absent or empty is `\-`, which no value can spell. Overrides are matched against this text. The canonical
//! identifier, which keys and tables use, is the raw one as long as it is short, and a digest beyond that.

use super::client_address::{ClientAddress, Peer};
use super::cookie::cookie;
use super::errors::Errors;
use super::fields::{Fields, Node};
use super::json::Json;
use super::matcher::NormalPath;
use super::path::segment;
use super::query::parameter;
use super::request::{Lines, Request, joined_header};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use sha2::{Digest, Sha256};

/// A canonical identifier is never longer: tables keep it in place.
pub const MAX_IDENTIFIER_BYTES: usize = 64;

/// Every digest begins so; a raw identifier that begins so is digested, whatever its length.
pub const DIGEST_PREFIX: &[u8] = b"sha256:";

/// Length of every digest.
pub const DIGEST_BYTES: usize = 50;

/// What stands for a part that is absent or empty; no value can spell it.
const ABSENT: &[u8] = br"\-";

/// The parts of one identifier.
pub(super) const PARTS_MAX: usize = 8;

const PART_NAME_BYTES_MAX: usize = 256;
const PATH_SEGMENT_MAX: u64 = 64;
const CLAIM_DEPTH_MAX: usize = 8;
const JWT_NAMESPACE: &str = "envoy.filters.http.jwt_authn";
const JWT_PAYLOAD: &str = "jwt_payload";

/// Appends the canonical form of a raw identifier: itself up to 64 bytes, else `sha256:` and the digest in
/// base64url without padding (50 bytes). Different raw identifiers have different canonical ones.
pub fn canonical_identifier(raw: &[u8], out: &mut Vec<u8>) {
    if raw.len() <= MAX_IDENTIFIER_BYTES && !raw.starts_with(DIGEST_PREFIX) {
        out.extend_from_slice(raw);
    } else {
        out.extend_from_slice(DIGEST_PREFIX);
        push_base64url(&Sha256::digest(raw), out);
    }
}

/// Appends what stands for a canonical identifier since a reset, where there is no other place for its epoch: in epoch 0 the
/// identifier itself, else an identifier that no request has, as `\@` is in none.
pub fn identifier_in_epoch(canonical: &[u8], epoch: u32, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(canonical);
    if epoch == 0 {
        return;
    }
    out.extend_from_slice(br"\@");
    out.extend_from_slice(&epoch.to_be_bytes());
    let Some(whole) = out.get(start..) else { return };
    if whole.len() > MAX_IDENTIFIER_BYTES {
        let digest = Sha256::digest(whole);
        out.truncate(start);
        out.extend_from_slice(DIGEST_PREFIX);
        push_base64url(&digest, out);
    }
}

/// Appends the canonical identifier of `values`, as a rule has it whose parts yield them: for those who name an
/// identifier without a request. An empty value counts as absent.
pub fn identifier_of(values: &[&[u8]], out: &mut Vec<u8>) {
    let mut raw = Vec::new();
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            raw.push(b'|');
        }
        match value.is_empty() {
            true => raw.extend_from_slice(ABSENT),
            false => push_escaped(value, &mut raw),
        }
    }
    canonical_identifier(&raw, out);
}

/// One part of an identifier.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Header(Box<[u8]>),
    Cookie(Box<[u8]>),
    Query(Box<[u8]>),
    ClientAddress(ClientAddress),
    PathSegment(usize),
    Authority,
    Metadata(Vec<String>),
    Constant(Box<[u8]>),
}

/// The fields of which a part has exactly one.
const PART_KINDS: [&str; 8] =
    ["header", "cookie", "query", "client_address", "path_segment", "authority", "jwt_claim", "constant"];

impl Part {
    /// Reads `identifier`: one part, or a list of them.
    pub fn read_all(node: Node<'_>, errors: &mut Errors) -> Option<Vec<Part>> {
        node.one_or_list(1..=PARTS_MAX, "parts", errors, Part::read)
    }

    fn read(node: Node<'_>, errors: &mut Errors) -> Option<Part> {
        let fields = node.object(&PART_KINDS, errors)?;
        let kind = fields.exactly_one(&PART_KINDS, errors)?;
        Part::read_kind(kind, fields.get(kind)?, errors)
    }

    fn read_kind(kind: &str, node: Node<'_>, errors: &mut Errors) -> Option<Part> {
        match kind {
            "header" => node.header_name(errors).map(Part::Header),
            "cookie" => node.visible(PART_NAME_BYTES_MAX, errors).map(|name| Part::Cookie(bytes(name))),
            "query" => node.text(PART_NAME_BYTES_MAX, errors).map(|name| Part::Query(bytes(name))),
            "client_address" => ClientAddress::read(node, errors).map(Part::ClientAddress),
            "path_segment" => {
                let number = node.integer(1..=PATH_SEGMENT_MAX, errors)?;
                usize::try_from(number).ok().map(Part::PathSegment)
            }
            "authority" => match node.json {
                Json::Bool(true) => Some(Part::Authority),
                _ => node.reject(errors, "says nothing", "true"),
            },
            "jwt_claim" => read_claim(node, errors).map(Part::Metadata),
            _ => node.text(PART_NAME_BYTES_MAX, errors).map(|text| Part::Constant(bytes(text))),
        }
    }

    /// Appends the part's value, escaped; nothing when the request has none.
    fn write<R: Request + ?Sized>(&self, request: &R, sources: &mut Sources, out: &mut Vec<u8>) {
        let Sources { path, peer, buffer } = sources;
        match self {
            Part::Header(name) => push_escaped(single_line(request, name), out),
            Part::Cookie(name) => write_cookie(request, name, out),
            Part::Query(name) => {
                let target = joined_header(request, b":path", buffer).unwrap_or_default();
                parameter(target, name).into_iter().flatten().for_each(|byte| push_escaped_byte(byte, out));
            }
            Part::ClientAddress(part) => part.write(request, peer, buffer, out),
            Part::PathSegment(number) => {
                push_escaped(segment(path.of(request, buffer), *number).unwrap_or_default(), out);
            }
            Part::Authority => {
                let authority = joined_header(request, b":authority", buffer).unwrap_or_default();
                authority.iter().for_each(|byte| push_escaped_byte(byte.to_ascii_lowercase(), out));
            }
            Part::Metadata(path) => {
                buffer.clear();
                if request.metadata(path, buffer) {
                    push_escaped(buffer, out);
                }
            }
            Part::Constant(text) => push_escaped(text, out),
        }
    }
}

/// What parts are read from besides headers; kept for the length of a request, its memory for ever.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub path: NormalPath,
    pub peer: Peer,
    pub buffer: Vec<u8>,
}

impl Sources {
    pub fn forget(&mut self) {
        self.path.forget();
        self.peer.forget();
    }
}

/// Writes the raw identifier to `out`; false when a part is missing.
pub(super) fn write_raw<R: Request + ?Sized>(
    parts: &[Part],
    request: &R,
    sources: &mut Sources,
    out: &mut Vec<u8>,
) -> bool {
    out.clear();
    let mut complete = true;
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b'|');
        }
        let start = out.len();
        part.write(request, sources, out);
        if out.len() == start {
            out.extend_from_slice(ABSENT);
            complete = false;
        }
    }
    complete
}

fn bytes(text: &str) -> Box<[u8]> {
    text.as_bytes().into()
}

/// `jwt_claim`: the way to the claim in the metadata that Envoy's JWT filter leaves.
fn read_claim(node: Node<'_>, errors: &mut Errors) -> Option<Vec<String>> {
    let fields = node.object(&["payload", "claim"], errors)?;
    let payload = fields.or("payload", JWT_PAYLOAD.to_string(), errors, read_key);
    let claim = read_claim_path(&fields, errors);
    let mut path = Vec::from([JWT_NAMESPACE.to_string(), payload?]);
    path.extend(claim?);
    Some(path)
}

fn read_claim_path(fields: &Fields<'_>, errors: &mut Errors) -> Option<Vec<String>> {
    fields.required("claim", "a claim such as \"sub\", or the list of keys to it", errors, |node, errors| {
        node.one_or_list(1..=CLAIM_DEPTH_MAX, "keys", errors, read_key)
    })
}

/// A key of metadata; Envoy ends each with a zero byte, so none may hold one.
fn read_key(node: Node<'_>, errors: &mut Errors) -> Option<String> {
    let text = node.text(PART_NAME_BYTES_MAX, errors)?;
    if text.contains('\0') {
        return node.reject(errors, "holds a zero byte", "text without zero bytes");
    }
    Some(text.to_string())
}

/// The first cookie of the name, over all lines: HTTP/2 clients may send one cookie a line.
fn write_cookie<R: Request + ?Sized>(request: &R, name: &[u8], out: &mut Vec<u8>) {
    let mut found = false;
    request.for_each_header(b"cookie", &mut |line| {
        if found {
            return;
        }
        if let Some(value) = cookie(line, name) {
            found = true;
            push_escaped(value, out);
        }
    });
}

/// The header's only line, else nothing: whoever sends a second one would choose among identifiers at will, while an
/// upstream may believe the first.
fn single_line<'a, R: Request + ?Sized>(request: &'a R, name: &[u8]) -> &'a [u8] {
    match request.header(name) {
        Lines::One(line) => line,
        Lines::None | Lines::Many => &[],
    }
}

fn push_escaped(value: &[u8], out: &mut Vec<u8>) {
    match memchr::memchr2(b'\\', b'|', value) {
        None => out.extend_from_slice(value),
        Some(_) => value.iter().for_each(|byte| push_escaped_byte(*byte, out)),
    }
}

fn push_escaped_byte(byte: u8, out: &mut Vec<u8>) {
    if matches!(byte, b'\\' | b'|') {
        out.push(b'\\');
    }
    out.push(byte);
}

/// RFC 4648's URL-safe alphabet, without padding.
fn push_base64url(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let mut padded = [0_u8; 4];
        padded.iter_mut().skip(1).zip(chunk).for_each(|(to, from)| *to = *from);
        let group = u32::from_be_bytes(padded);
        let sextets = [group >> 18, group >> 12, group >> 6, group];
        let used = chunk.len().saturating_add(1);
        out.extend(sextets.iter().take(used).map(|sextet| base64url_digit(sextet & 0x3f)));
    }
}

fn base64url_digit(sextet: u32) -> u8 {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    usize::try_from(sextet).ok().and_then(|at| DIGITS.get(at).copied()).unwrap_or(b'_')
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestRequest;
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::vec;
    use proptest::prelude::*;

    fn raw(json: &str, request: &TestRequest) -> (String, bool) {
        let mut errors = Errors::default();
        let json = Json::parse(json.as_bytes(), &mut errors).unwrap();
        let parts = Part::read_all(Node::root(&json), &mut errors);
        let parts = errors.finish(parts).unwrap_or_else(|errors| panic!("{errors}"));
        let mut out = Vec::new();
        let complete = write_raw(&parts, request, &mut Sources::default(), &mut out);
        (String::from_utf8(out).unwrap(), complete)
    }

    fn check(json: &str, request: &TestRequest, expected: &str, complete: bool) {
        assert_eq!(raw(json, request), (expected.into(), complete), "{json}");
    }

    #[test]
    fn parts() {
        let request = TestRequest::get("/v1//users/%61lice/x%7Cy?key=a%7cb&empty=")
            .header("x-api-key", "k1")
            .header("x-pipe", r"a|b\c")
            .header("x-empty", "")
            .header("x-many", "a")
            .header("x-many", "b")
            .header("cookie", "a=1")
            .header("cookie", "session=s1; b=2")
            .peer("1.2.3.4:5")
            .metadata(&[JWT_NAMESPACE, "jwt_payload", "sub"], "alice")
            .metadata(&[JWT_NAMESPACE, "corp", "org", "id"], "o1");
        for (json, expected, complete) in [
            (r#"{"header": "X-Api-Key"}"#, "k1", true),
            (r#"[{"header": "x-api-key"}]"#, "k1", true),
            (r#"{"header": "x-pipe"}"#, r"a\|b\\c", true),
            (r#"{"header": "x-empty"}"#, r"\-", false),
            (r#"{"header": "x-none"}"#, r"\-", false),
            (r#"{"header": "x-many"}"#, r"\-", false),
            (r#"{"header": ":method"}"#, "GET", true),
            (r#"{"cookie": "session"}"#, "s1", true),
            (r#"{"cookie": "Session"}"#, r"\-", false),
            (r#"{"query": "key"}"#, r"a\|b", true),
            (r#"{"query": "empty"}"#, r"\-", false),
            (r#"{"client_address": {}}"#, "1.2.3.4", true),
            (r#"{"client_address": {"ipv4_prefix": 8}}"#, "1.0.0.0/8", true),
            (r#"{"path_segment": 3}"#, "alice", true),
            (r#"{"path_segment": 3.0}"#, "alice", true),
            (r#"{"path_segment": 4}"#, "x%7Cy", true),
            (r#"{"path_segment": 5}"#, r"\-", false),
            (r#"{"authority": true}"#, "example.com", true),
            (r#"{"jwt_claim": {"claim": "sub"}}"#, "alice", true),
            (r#"{"jwt_claim": {"payload": "corp", "claim": ["org", "id"]}}"#, "o1", true),
            (r#"{"jwt_claim": {"claim": "iss"}}"#, r"\-", false),
            (r#"{"constant": "all|\\"}"#, r"all\|\\", true),
            (r#"[{"constant": "a"}, {"header": "x-none"}, {"header": "x-api-key"}]"#, r"a|\-|k1", false),
        ] {
            check(json, &request, expected, complete);
        }
        check(
            r#"{"authority": true}"#,
            &TestRequest::default().header(":authority", "A.Com:80"),
            "a.com:80",
            true,
        );
    }

    #[test]
    fn host_calls_are_made_once_and_only_when_needed() {
        let request = TestRequest::get("/").peer("1.2.3.4:5").header("x-forwarded-for", "9.9.9.9");
        raw(r#"{"header": "x"}"#, &request);
        raw(r#"{"client_address": {"trusted_proxies": 1}}"#, &request);
        assert_eq!(request.host_calls.get(), 0);
        raw(r#"[{"client_address": {}}, {"client_address": {"ipv4_prefix": 8}}]"#, &request);
        assert_eq!(request.host_calls.get(), 1);
    }

    #[test]
    fn long_identifiers_become_digests() {
        let canonical = |raw: &[u8]| {
            let mut out = Vec::new();
            canonical_identifier(raw, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(canonical(b""), "");
        assert_eq!(canonical(&[b'a'; 64]), "a".repeat(64));
        // printf 'a%.0s' {1..65} | openssl dgst -sha256 -binary | basenc --base64url
        assert_eq!(canonical(&[b'a'; 65]), "sha256:Y1NhxIu56rFBmOduqKt_GkFoXWrWKqkUbTAdTxfrCuA");
        // printf 'sha256:' | openssl dgst -sha256 -binary | basenc --base64url
        assert_eq!(canonical(b"sha256:"), "sha256:n9cUzm9jw7MgyUS3DoCl0QX9Lz4tMK4vqBNw4iP1DQc");
    }

    #[test]
    fn identifiers_of_epochs_are_nobodys() {
        let (short, long) = ([b'a'; 58], [b'a'; 59]);
        let mut all = Vec::new();
        for (canonical, epoch) in
            [(&short[..], 0), (&short, 1), (&short, 2), (&long, 0), (&long, 1), (&long, u32::MAX)]
        {
            let mut out = b"before".to_vec();
            identifier_in_epoch(canonical, epoch, &mut out);
            let identifier = out.split_off(6);
            assert_eq!(out, b"before");
            assert!(identifier.len() <= MAX_IDENTIFIER_BYTES);
            all.push(identifier);
        }
        assert_eq!(all[0], short);
        assert_eq!(all[1], [&short[..], br"\@", &[0, 0, 0, 1]].concat());
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 6);
    }

    /// Joins values as parts do, without a request.
    fn join(values: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                out.push(b'|');
            }
            let header = TestRequest::default().raw_header("x", value);
            let mut part = Vec::new();
            let parts = [Part::Header(b"x".as_slice().into())];
            write_raw(&parts, &header, &mut Sources::default(), &mut part);
            out.extend(part);
        }
        out
    }

    /// Takes a joined identifier apart again, which only an unambiguous joining allows.
    fn split(raw: &[u8]) -> Vec<Vec<u8>> {
        let mut values = vec![Vec::new()];
        let mut bytes = raw.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'|' => values.push(Vec::new()),
                b'\\' => match bytes.next() {
                    Some(b'-') => {}
                    escaped => values.last_mut().unwrap().extend(escaped),
                },
                byte => values.last_mut().unwrap().push(*byte),
            }
        }
        values
    }

    proptest! {
        #[test]
        fn joining_can_be_undone(values in proptest::collection::vec("[ab|\\\\-]{0,5}", 1..=PARTS_MAX)) {
            let values: Vec<Vec<u8>> = values.into_iter().map(String::into_bytes).collect();
            prop_assert_eq!(split(&join(&values)), values);
        }

        #[test]
        fn any_bytes_can_be_joined(
            values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 1..=PARTS_MAX)
        ) {
            prop_assert_eq!(split(&join(&values)), values);
        }

        #[test]
        fn canonical_identifiers_are_short_and_never_meet(
            raws in proptest::collection::vec("(sha256:)?[ab]{0,80}", 1..50)
        ) {
            let mut seen: BTreeMap<Vec<u8>, String> = BTreeMap::new();
            for raw in raws {
                let mut out = Vec::new();
                canonical_identifier(raw.as_bytes(), &mut out);
                prop_assert!(out.len() <= MAX_IDENTIFIER_BYTES);
                let earlier = seen.entry(out).or_insert_with(|| raw.clone());
                prop_assert_eq!(&*earlier, &raw, "{}", format!("{earlier} and {raw} meet"));
            }
        }
    }
}
