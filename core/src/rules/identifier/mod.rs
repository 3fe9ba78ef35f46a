//! The identifier that is counted: parts of a request, joined so that two different identifiers never coincide.
//!
//! The raw identifier: in each part `\` becomes `\\` and `|` becomes `\|`; the parts are joined by `|`. A part that is
//! absent or empty becomes `\-`, an ambiguous one `\+`, and one whose value is not listed `\~`; no value can produce these. Overrides are matched against
//! this text. The canonical identifier, which keys and tables use, is the raw one if that is short, and else a digest
//! of it.
//!
//! Values that an upstream treats as equal are written in the same way: decoded, and without leading and trailing
//! blanks.

mod escape;
pub(super) mod listed;
pub(super) mod sources;

use self::escape::push_escaped;
use self::listed::{Listed, ON_UNLISTED, ONE_OF, UNLISTED, Unlisted};
use self::sources::{FIELDS, HOST, LOWERCASE, NAMES, PICK, PICKS, Pick, Source, sources_with};
use super::request::sources::Sources;
use super::request::{Request, token, trim};
use crate::fields::{Errors, Fields, Node};
use crate::matching::canonical::canonical_identifier;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

/// Replaces a part that is absent or empty. No value can produce it.
const ABSENT: &[u8] = br"\-";

/// Replaces a part that has several values, of which an upstream may use any. No value can produce it.
const AMBIGUOUS: &[u8] = br"\+";

/// Most parts of one identifier.
pub(super) const PARTS_MAX: usize = 8;

/// Appends the canonical identifier of `values`, as a rule whose parts have these values produces it. It is for callers
/// that have no request. Leading and trailing blanks of a value are removed; an empty value counts as absent, and a token whose parts
/// are not base64 as ambiguous.
pub fn identifier_of(values: &[&[u8]], out: &mut Vec<u8>) {
    let (mut raw, mut buffer) = (Vec::new(), Vec::new());
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            raw.push(b'|');
        }
        match trim(value) {
            [] => raw.extend_from_slice(ABSENT),
            value => {
                let start = raw.len();
                push_escaped(value, &mut raw);
                if !token::rewrite(start, &mut raw, &mut buffer) {
                    raw.truncate(start);
                    raw.extend_from_slice(AMBIGUOUS);
                }
            }
        }
    }
    canonical_identifier(&raw, out);
}

/// Whether a part of a canonical identifier has a value. One without any is of all clients whose requests lack it, or have a value that
/// is not listed.
pub fn has_value(identifier: &[u8]) -> bool {
    values(identifier).any(|value| value.is_some())
}

/// The values of the parts of a canonical identifier, as they are written; `None` for what stands for no value.
fn values(identifier: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    let mut escaped = false;
    let parts = identifier.split(move |byte| {
        let separates = *byte == b'|' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        separates
    });
    parts.map(|part| (![ABSENT, AMBIGUOUS, UNLISTED].contains(&part)).then_some(part))
}

/// One part of an identifier.
#[derive(Clone, Debug)]
pub(super) struct Part {
    source: Source,
    /// Whether ASCII letters of the value are converted to lower case.
    lowercase: bool,
    /// The values that it may have.
    listed: Option<Box<Listed>>,
}

/// Whether a request has all parts of an identifier. For several parts the greatest value in this order applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Found {
    Whole,
    /// A part has a value that is not listed, and counts as all such.
    Unlisted,
    /// A part is absent or empty.
    Missing,
    /// A part has several values.
    Ambiguous,
    /// A part has a value that is not listed, and such requests are denied.
    Denied,
    /// A part has a value to which the rule does not apply.
    Skipped,
}

/// Headers with many spellings of one value, and the parts that read them.
const SPELT: [(&[u8], &str); 6] = [
    (b"authorization", "authorization"),
    (b"cookie", "cookie"),
    (b":path", "path, path_segment or query"),
    (b":authority", "host"),
    (b"host", "host"),
    (b"x-forwarded-for", "client_address"),
];

impl Part {
    /// Reads `identifier`: one part, or a list of them.
    pub fn read_all(node: Node<'_>, errors: &mut Errors) -> Option<Vec<Part>> {
        node.one_or_list(1..=PARTS_MAX, "parts", errors, Part::read)
    }

    /// Reads one part.
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<Part> {
        let fields = node.object(FIELDS, errors)?;
        let kind = fields.exactly_one(NAMES, errors)?;
        let lowercase = match sources_with(LOWERCASE).any(|with| with == kind) {
            true => fields.or(LOWERCASE, false, errors, |node, errors| node.boolean(errors)),
            false => of_no_use(&fields, LOWERCASE, errors).map(|()| false),
        };
        let pick = match sources_with(PICK).any(|with| with == kind) {
            true => fields.or(PICK, Pick::Only, errors, |node, errors| node.word(&PICKS, errors)),
            false => of_no_use(&fields, PICK, errors).map(|()| Pick::Only),
        };
        let source = Source::read(kind, pick.unwrap_or(Pick::Only), fields.get(kind)?, errors);
        let listed = match sources_with(ONE_OF).any(|with| with == kind) {
            true => Listed::read(kind == HOST || lowercase == Some(true), &fields, errors),
            false => [ONE_OF, ON_UNLISTED]
                .iter()
                .try_for_each(|field| of_no_use(&fields, field, errors))
                .map(|()| None),
        };
        pick?;
        Some(Part { source: source?, lowercase: lowercase?, listed: listed?.map(Box::new) })
    }

    /// Appends the part's value, escaped, or the replacement for a missing or ambiguous one.
    pub fn write<R: Request + ?Sized>(&self, request: &R, sources: &mut Sources, out: &mut Vec<u8>) -> Found {
        let start = out.len();
        let is_one =
            self.source.write(request, sources, out) && token::rewrite(start, out, &mut sources.buffer);
        if !is_one {
            out.truncate(start);
            out.extend_from_slice(AMBIGUOUS);
            return Found::Ambiguous;
        }
        if out.len() == start {
            out.extend_from_slice(ABSENT);
            return Found::Missing;
        }
        if self.lowercase
            && let Some(value) = out.get_mut(start..)
        {
            value.make_ascii_lowercase();
        }
        match self.listed.as_ref().and_then(|listed| listed.apply(start, out)) {
            None => Found::Whole,
            Some(Unlisted::Shared) => Found::Unlisted,
            Some(Unlisted::Deny) => Found::Denied,
            Some(Unlisted::Skip) => Found::Skipped,
        }
    }

    /// The name of the header that it is, if it is one.
    pub fn header(&self) -> Option<&[u8]> {
        match &self.source {
            Source::Header(name) => Some(name),
            _ => None,
        }
    }

    /// Whether its value is the same for all clients of a service.
    pub(super) fn is_of_service(&self) -> bool {
        matches!(self.source, Source::Constant(_) | Source::Authority { .. })
    }

    /// Whether the rule does not apply to values that are not listed.
    fn skips_unlisted(&self) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.skips())
    }

    /// Kind and name of the part if a client can omit it.
    fn optional(&self) -> Option<(&'static str, &[u8])> {
        match &self.source {
            Source::Header(name) => Some(("header", name)),
            Source::Authorization => Some(("header", b"authorization")),
            Source::Cookie(name, _) => Some(("cookie", name)),
            Source::Query(name, _) => Some(("query parameter", name)),
            Source::Certificate(property) => Some(("client certificate field", property.name())),
            _ => None,
        }
    }
}

/// The field of a part that is of the path, if one is.
pub(super) fn reads_path(parts: &[Part]) -> Option<&'static str> {
    parts.iter().find_map(|part| match part.source {
        Source::Path => Some("identifier.path"),
        Source::PathSegment(_) => Some("identifier.path_segment"),
        _ => None,
    })
}

/// The names of the headers that are parts.
pub(super) fn header_parts(parts: &[Part]) -> impl Iterator<Item = &[u8]> {
    parts.iter().filter_map(Part::header)
}

/// The metadata that is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataPart<'a> {
    /// The namespace of the metadata.
    pub namespace: &'a [u8],
    /// The last key to the value.
    pub key: &'a [u8],
    /// Whether its values are listed.
    pub is_listed: bool,
    /// Whether the rule does not apply to values that are not listed.
    pub skips_unlisted: bool,
}

/// The metadata that is a part.
pub(super) fn metadata_parts(parts: &[Part]) -> impl Iterator<Item = MetadataPart<'_>> {
    parts.iter().filter_map(|part| match &part.source {
        Source::Property(property, _) => Some(MetadataPart {
            namespace: property.namespace()?,
            key: property.name(),
            is_listed: part.listed.is_some(),
            skips_unlisted: part.skips_unlisted(),
        }),
        _ => None,
    })
}

/// Whether a request may lack a part.
pub(super) fn can_be_missing(parts: &[Part]) -> bool {
    parts.iter().any(|part| !matches!(part.source, Source::ClientAddress(_) | Source::Constant(_)))
}

/// Whether the rule does not apply to requests with a value of a part that is not listed.
pub(super) fn skips_unlisted(parts: &[Part]) -> bool {
    parts.iter().any(Part::skips_unlisted)
}

/// Headers that are identified by as they are written, though upstreams accept many spellings; each with the part to use.
pub(super) fn spelt_parts(parts: &[Part]) -> impl Iterator<Item = (&[u8], &'static str)> {
    parts.iter().filter_map(|part| match &part.source {
        Source::Header(name) => {
            SPELT.iter().find(|(spelt, _)| **spelt == **name).map(|(_, part)| (&**name, *part))
        }
        _ => None,
    })
}

/// Kind and name of each part whose value a client chooses, and to which the rule does not apply if it is not listed.
pub(super) fn evaded_parts(parts: &[Part]) -> impl Iterator<Item = (&'static str, &[u8])> {
    parts.iter().filter(|part| part.skips_unlisted()).filter_map(Part::optional)
}

/// The names of the query parameters that are parts.
pub(super) fn query_parts(parts: &[Part]) -> impl Iterator<Item = &[u8]> {
    parts.iter().filter_map(|part| match &part.source {
        Source::Query(name, _) => Some(&**name),
        _ => None,
    })
}

/// Kind and name of each part that a client can omit.
pub(super) fn optional_parts(parts: &[Part]) -> impl Iterator<Item = (&'static str, &[u8])> {
    parts.iter().filter_map(Part::optional)
}

/// Rejects a field that has no effect on this kind of part.
fn of_no_use<'a>(fields: &Fields<'a>, option: &'a str, errors: &mut Errors) -> Option<()> {
    match fields.get(option) {
        Some(node) => {
            let with = sources_with(option).collect::<Vec<_>>().join(" or ");
            node.reject(errors, "has no effect here", format!("it only with {with}"))
        }
        None => Some(()),
    }
}

/// The result of writing an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// The greatest [`Found`] of its parts.
    pub found: Found,
    /// Whether at least one part that tells clients apart has a value, or all parts have one and none tells them apart.
    pub is_of_client: bool,
}

/// Writes the raw identifier to `out`.
pub(super) fn write_raw<R: Request + ?Sized>(
    parts: &[Part],
    request: &R,
    sources: &mut Sources,
    out: &mut Vec<u8>,
) -> Written {
    out.clear();
    let mut all = Written { found: Found::Whole, is_of_client: false };
    let mut are_of_service = true;
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b'|');
        }
        let found = part.write(request, sources, out);
        all.found = all.found.max(found);
        all.is_of_client |= found == Found::Whole && !part.is_of_service();
        are_of_service &= part.is_of_service();
    }
    all.is_of_client |= are_of_service && all.found == Found::Whole;
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Bounds, Value};
    use crate::rules::request::has_foreign_blank;
    use crate::rules::testing::TestRequest;
    use alloc::string::{String, ToString};
    use alloc::vec;
    use proptest::prelude::*;

    fn raw(json: &str, request: &TestRequest) -> (String, Found) {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let parts = Part::read_all(Node::root("configuration", &json), &mut errors);
        let parts = errors.finish(parts).unwrap_or_else(|errors| panic!("{errors}"));
        let mut out = Vec::new();
        let written = write_raw(&parts, request, &mut Sources::default(), &mut out);
        (String::from_utf8(out).unwrap(), written.found)
    }

    fn check(json: &str, request: &TestRequest, expected: &str, found: Found) {
        assert_eq!(raw(json, request), (expected.into(), found), "{json}");
    }

    /// A list or a map as Envoy serialises it.
    fn pairs(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
        let number = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
        let mut bytes = number(pairs.len()).to_vec();
        for (name, value) in pairs {
            bytes.extend([number(name.len()), number(value.len())].concat());
        }
        pairs.iter().for_each(|(name, value)| bytes.extend([name, &[0][..], value, &[0]].concat()));
        bytes
    }

    fn check_each(request: &TestRequest, parts: &[(&str, &str, Found)]) {
        for (json, expected, found) in parts {
            check(json, request, expected, *found);
        }
    }

    #[test]
    fn parts_that_clients_send() {
        use Found::{Ambiguous, Missing, Whole};
        let request = TestRequest::get("/v1/users/%61lice/x%7Cy?key=a%7cb&empty=&twice=f&twice=+l&semi=a;b")
            .header("x-api-key", "k1")
            .header("x-pipe", r"a|b\c")
            .header("x-empty", "")
            .header("x-many", "a")
            .header("x-many", "b")
            .header("x-blank", " \tb c\t ")
            .header("x-case", "AbC\u{c9}")
            .header("cookie", "a=1; twice=\"1\"; twice=2")
            .header("cookie", "twice=%20%58%7c\t")
            .header("cookie", "session=s1; b=2")
            .peer("1.2.3.4:5");
        check_each(
            &request,
            &[
                (r#"{"header": "x-blank"}"#, "b c", Whole),
                (r#"{"header": "x-case"}"#, "AbC\u{c9}", Whole),
                (r#"{"header": "x-case", "lowercase": true}"#, "abc\u{c9}", Whole),
                (r#"{"cookie": "twice"}"#, r"\+", Ambiguous),
                (r#"{"cookie": "twice", "pick": "first"}"#, "1", Whole),
                (r#"{"cookie": "twice", "pick": "last", "lowercase": true}"#, r"x\|", Whole),
                (r#"{"query": "twice"}"#, r"\+", Ambiguous),
                (r#"{"query": "twice", "pick": "first"}"#, "f", Whole),
                (r#"{"query": "twice", "pick": "last"}"#, "l", Whole),
                (r#"{"query": "semi", "pick": "first"}"#, r"\+", Ambiguous),
                (r#"[{"header": "x-none"}, {"header": "x-many"}]"#, r"\-|\+", Ambiguous),
                (r#"{"header": "X-Api-Key"}"#, "k1", Whole),
                (r#"[{"header": "x-api-key"}]"#, "k1", Whole),
                (r#"{"header": "x-pipe"}"#, r"a\|b\\c", Whole),
                (r#"{"header": "x-empty"}"#, r"\-", Missing),
                (r#"{"header": "x-none"}"#, r"\-", Missing),
                (r#"{"header": "x-many"}"#, r"\+", Ambiguous),
                (r#"{"header": ":method"}"#, "GET", Whole),
                (r#"{"cookie": "session"}"#, "s1", Whole),
                (r#"{"cookie": "Session"}"#, r"\+", Ambiguous),
                (r#"{"cookie": "sessions"}"#, r"\-", Missing),
                (r#"{"query": "key"}"#, r"a\|b", Whole),
                (r#"{"query": "empty"}"#, r"\-", Missing),
                (r#"{"client_address": {}}"#, "1.2.3.4", Whole),
                (r#"{"client_address": {"ipv4_prefix": 8}}"#, "1.0.0.0/8", Whole),
                (r#"{"path_segment": 3}"#, "alice", Whole),
                (r#"{"path_segment": 3.0}"#, "alice", Whole),
                (r#"{"path_segment": 4}"#, r"x\|y", Whole),
                (r#"{"path_segment": 5}"#, r"\-", Missing),
                (r#"{"host": true}"#, "example.com", Whole),
                (r#"{"constant": "all|\\"}"#, r"all\|\\", Whole),
                (
                    r#"[{"constant": "a"}, {"header": "x-none"}, {"header": "x-api-key"}]"#,
                    r"a|\-|k1",
                    Missing,
                ),
            ],
        );
        check(
            r#"{"host": {"port": true}}"#,
            &TestRequest::default().header(":authority", "u@A.Com.:080"),
            "a.com:80",
            Whole,
        );
    }

    #[test]
    fn parts_that_envoy_and_its_filters_have() {
        use Found::{Ambiguous, Missing, Whole};
        let request = TestRequest::get("/")
            .metadata(&["envoy.filters.http.jwt_authn", "jwt_payload", "sub"], "alice")
            .metadata(&["envoy.filters.http.ext_authz", "plan"], " Gold|1 ")
            .property(b"metadata\0filter_metadata\0ext\0org\0id", &42.0f64.to_le_bytes())
            .property(b"metadata\0filter_metadata\0ext\0empty", b"")
            .property(b"metadata\0filter_metadata\0ext\0yes", &[1])
            .property(b"metadata\0filter_metadata\0ext\0no", &[0])
            .property(b"metadata\0filter_metadata\0ext\0half", &(-0.5f64).to_le_bytes())
            .property(b"metadata\0filter_metadata\0ext\0nothing", &pairs(&[]))
            .property(b"metadata\0filter_metadata\0ext\0one", &pairs(&[(b" a", b"")]))
            .property(
                b"metadata\0filter_metadata\0ext\0two",
                &pairs(&[(b"a", b""), (&7.0f64.to_le_bytes(), b"")]),
            )
            .property(b"metadata\0filter_metadata\0ext\0nested", &pairs(&[(&pairs(&[]), b"")]))
            .property(b"metadata\0filter_metadata\0ext\0map", &pairs(&[(b"a", b"b")]))
            .property(b"filter_state\0acme.tenant", b"t1")
            .property(b"connection\0uri_san_peer_certificate", b"spiffe://acme/ns/shop/sa/cart")
            .metadata(&["envoy.filters.http.jwt_authn", "corp", "org", "id"], "o1");
        check_each(
            &request,
            &[
                (r#"{"jwt_claim": {"claim": "sub"}}"#, "alice", Whole),
                (r#"{"jwt_claim": {"payload": "corp", "claim": ["org", "id"]}}"#, "o1", Whole),
                (r#"{"jwt_claim": {"claim": "iss"}}"#, r"\-", Missing),
                (
                    r#"{"metadata": {"filter": "envoy.filters.http.ext_authz", "key": "plan"}, "lowercase": true}"#,
                    r"gold\|1",
                    Whole,
                ),
                (r#"{"metadata": {"filter": "ext", "key": ["org", "id"]}}"#, "42", Whole),
                (r#"{"metadata": {"filter": "ext", "key": "empty"}}"#, r"\-", Missing),
                (r#"{"metadata": {"filter": "ext", "key": "none"}}"#, r"\-", Missing),
                (r#"{"metadata": {"filter": "ext", "key": "yes"}}"#, "true", Whole),
                (r#"{"metadata": {"filter": "ext", "key": "no"}}"#, "false", Whole),
                (r#"{"metadata": {"filter": "ext", "key": "half"}}"#, "-0.5", Whole),
                (r#"{"metadata": {"filter": "ext", "key": "nothing"}}"#, r"\-", Missing),
                (r#"{"metadata": {"filter": "ext", "key": "one"}}"#, "a", Whole),
                (r#"{"metadata": {"filter": "ext", "key": "two"}}"#, r"\+", Ambiguous),
                (r#"{"metadata": {"filter": "ext", "key": "two"}, "pick": "first"}"#, "a", Whole),
                (r#"{"metadata": {"filter": "ext", "key": "two"}, "pick": "last"}"#, "7", Whole),
                (r#"{"metadata": {"filter": "ext", "key": "nested"}, "pick": "first"}"#, r"\+", Ambiguous),
                (r#"{"metadata": {"filter": "ext", "key": "map"}}"#, r"\+", Ambiguous),
                (r#"{"filter_state": "acme.tenant"}"#, "t1", Whole),
                (r#"{"filter_state": "acme.none"}"#, r"\-", Missing),
                (r#"{"client_certificate": "uri_san"}"#, "spiffe://acme/ns/shop/sa/cart", Whole),
                (r#"{"client_certificate": "sha256"}"#, r"\-", Missing),
            ],
        );
    }

    #[test]
    fn values_that_are_not_listed_share_one_replacement() {
        use Found::{Ambiguous, Denied, Missing, Skipped, Unlisted, Whole};
        let request = TestRequest::get("/search?q=a")
            .header("x-tool", "search")
            .header("x-other", "search-1")
            .header("x-case", "SeArch")
            .header("x-pipe", "a|b")
            .header("x-tilde", r"\~")
            .header("x-many", "search")
            .header("x-many", "fetch")
            .property(b"metadata\0filter_metadata\0ext\0n", &42.0f64.to_le_bytes());
        const LIST: &str = r#""one_of": ["search", "a|b", "42", "Example.com"]"#;
        for (part, expected, found) in [
            (r#""header": "x-tool""#, "search", Whole),
            (r#""header": "x-other""#, r"\~", Unlisted),
            (r#""header": "x-case""#, r"\~", Unlisted),
            (r#""header": "x-case", "lowercase": true"#, "search", Whole),
            (r#""header": "x-pipe""#, r"a\|b", Whole),
            (r#""header": "x-tilde""#, r"\~", Unlisted),
            (r#""header": "x-none""#, r"\-", Missing),
            (r#""header": "x-none", "on_unlisted": "deny""#, r"\-", Missing),
            (r#""header": "x-many", "on_unlisted": "skip""#, r"\+", Ambiguous),
            (r#""header": "x-other", "on_unlisted": "shared""#, r"\~", Unlisted),
            (r#""header": "x-other", "on_unlisted": "deny""#, r"\~", Denied),
            (r#""header": "x-other", "on_unlisted": "skip""#, r"\~", Skipped),
            (r#""header": "x-tool", "on_unlisted": "skip""#, "search", Whole),
            (r#""metadata": {"filter": "ext", "key": "n"}"#, "42", Whole),
            (r#""query": "q""#, r"\~", Unlisted),
            (r#""path_segment": 1"#, "search", Whole),
            (r#""host": true"#, "example.com", Whole),
        ] {
            check(&format!("{{{part}, {LIST}}}"), &request, expected, found);
        }
        let two = |on: &str| {
            format!(
                r#"[{{"header": "x-none"}}, {{"header": "x-many"}}, {{"header": "x-other", {LIST}, "on_unlisted": "{on}"}}]"#
            )
        };
        check(&two("shared"), &request, r"\-|\+|\~", Ambiguous);
        check(&two("deny"), &request, r"\-|\+|\~", Denied);
        check(&two("skip"), &request, r"\-|\+|\~", Skipped);
    }

    #[test]
    fn lists_that_cannot_be_used_are_errors() {
        let many: Vec<String> = (0..=listed::VALUES_MAX).map(|number| format!("\"v{number}\"")).collect();
        let long = "x".repeat(listed::VALUE_BYTES_MAX + 1);
        for (part, problem) in [
            (r#""header": "a", "one_of": []"#.to_string(), "one_of"),
            (format!(r#""header": "a", "one_of": [{}]"#, many.join(",")), "it has 257 values"),
            (format!(r#""header": "a", "one_of": ["{long}"]"#), "one_of[0]"),
            (r#""header": "a", "one_of": [" a"]"#.to_string(), "blank"),
            (r#""header": "a", "one_of": [""]"#.to_string(), "empty"),
            (r#""header": "a", "one_of": "a""#.to_string(), "is not a list"),
            (r#""header": "a", "on_unlisted": "deny""#.to_string(), "without one_of"),
            (r#""header": "a", "one_of": ["a"], "on_unlisted": "allow""#.to_string(), "shared, deny or skip"),
            (r#""constant": "a", "one_of": ["a"]"#.to_string(), "has no effect here"),
            (r#""client_address": {}, "one_of": ["a"]"#.to_string(), "has no effect here"),
        ] {
            let mut errors = Errors::default();
            let json = format!("{{{part}}}");
            let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
            let parts = Part::read_all(Node::root("identifier", &json), &mut errors);
            let error = errors.finish(parts).unwrap_err().to_string();
            assert!(error.contains(problem), "{part}\n{error}");
        }
    }

    #[test]
    fn host_calls_are_made_once_and_only_when_needed() {
        let request = TestRequest::get("/").peer("1.2.3.4:5").header("x-forwarded-for", "9.9.9.9");
        raw(r#"{"header": "x"}"#, &request);
        raw(r#"{"client_address": {"trusted_hops": 1}}"#, &request);
        assert_eq!(request.host_calls.get(), 0);
        raw(r#"[{"client_address": {}}, {"client_address": {"ipv4_prefix": 8}}]"#, &request);
        assert_eq!(request.host_calls.get(), 1);
    }

    /// Joins values as the parts of an identifier.
    #[test]
    fn an_identifier_has_a_value_if_a_part_has() {
        for (identifier, expected) in [
            (r"alice", true),
            (r"\-|alice", true),
            (r"\-|\+|", true),
            (r"\|\\-", true),
            (r"-|+", true),
            (r"\-", false),
            (r"\+", false),
            (r"\-|\+", false),
            (r"\~", false),
            (r"alice|\~", true),
            (r"~", true),
        ] {
            assert_eq!(has_value(identifier.as_bytes()), expected, "{identifier}");
        }
    }

    fn join(values: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                out.push(b'|');
            }
            let header = TestRequest::default().raw_header("x", value);
            let mut part = Vec::new();
            let parts =
                [Part { source: Source::Header(b"x".as_slice().into()), lowercase: false, listed: None }];
            write_raw(&parts, &header, &mut Sources::default(), &mut part);
            out.extend(part);
        }
        out
    }

    /// Splits a joined identifier into its values, which is possible only if joining is unambiguous.
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
        fn joining_is_reversible(values in proptest::collection::vec("[ab|\\\\-]{0,5}", 1..=PARTS_MAX)) {
            let values: Vec<Vec<u8>> = values.into_iter().map(String::into_bytes).collect();
            prop_assert_eq!(split(&join(&values)), values);
        }

        #[test]
        fn any_bytes_can_be_joined(
            values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 1..=PARTS_MAX)
        ) {
            let expected = |value: &Vec<u8>| match trim(value) {
                ambiguous if has_foreign_blank(ambiguous) => b"+".to_vec(),
                trimmed => trimmed.to_vec(),
            };
            let expected: Vec<_> = values.iter().map(expected).collect();
            prop_assert_eq!(split(&join(&values)), expected);
        }

    }
}
