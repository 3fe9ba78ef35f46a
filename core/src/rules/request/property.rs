//! Properties: what Envoy and its filters have of a request besides its headers.
//!
//! Source: Envoy's documentation, "Attributes", and its Wasm extension for `metadata` and `filter_state`. Envoy returns a text as
//! it is, a number as the eight bytes of a little-endian double, a boolean as one byte, and a list or a map as it returns headers: the items of
//! a list are names without values. For null, and for a list with null in it, it returns nothing. Typed metadata is a message, whose whole
//! numbers Envoy returns as little-endian integers of eight bytes. The configuration states which of the two a property is.

use crate::fields::{Errors, Fields, Node};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// `address:port` of the client as Envoy has it.
pub(in crate::rules) const PEER_ADDRESS: &[u8] = b"source\0address";
/// The name of the route that was selected.
pub(in crate::rules) const ROUTE: &[u8] = b"xds\0route_name";
/// The name of the virtual host that was selected.
pub(in crate::rules) const VIRTUAL_HOST: &[u8] = b"xds\0virtual_host_name";

pub(in crate::rules) const KEY_BYTES_MAX: usize = 256;
/// Most keys that lead to a value.
pub(in crate::rules) const DEPTH_MAX: usize = 8;
pub(in crate::rules) const METADATA_FIELDS: [&str; 3] = ["filter", "typed", "key"];
/// Whose metadata is read: exactly one of these fields.
pub(in crate::rules) const METADATA_KINDS: [&str; 2] = ["filter", "typed"];
pub(in crate::rules) const CLAIM_FIELDS: [&str; 2] = ["payload", "claim"];
const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";
const JWT_PAYLOAD: &str = "jwt_payload";
const MCP_FILTER: &str = "envoy.filters.http.mcp";

/// The values of `client_certificate`.
pub(in crate::rules) const CERTIFICATE_WORDS: [(&str, &str); 4] = [
    ("uri_san", "uri_san_peer_certificate"),
    ("dns_san", "dns_san_peer_certificate"),
    ("subject", "subject_peer_certificate"),
    ("sha256", "sha256_peer_certificate_digest"),
];

/// 2⁵³: a double holds whole numbers up to it exactly.
pub(in crate::rules) const WHOLE_MAX: u64 = 1 << 53;
const EXACT_MAX: f64 = WHOLE_MAX as f64;

/// The path of a property: its elements, with a NUL byte between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rules) struct Property {
    path: Box<[u8]>,
    numbers: Numbers,
}

/// What eight bytes are that are no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Double,
    Integer,
}

impl Property {
    fn of<'a>(elements: impl IntoIterator<Item = &'a str>) -> Property {
        let elements: Vec<&str> = elements.into_iter().collect();
        Property { path: elements.join("\0").into_bytes().into(), numbers: Numbers::Double }
    }

    /// Dynamic metadata of this kind: the value at `keys` in what was written under `namespace`.
    pub fn metadata(kind: &str, namespace: &str, keys: &[String]) -> Property {
        let (root, numbers) = match kind {
            "typed" => ("typed_filter_metadata", Numbers::Integer),
            _ => ("filter_metadata", Numbers::Double),
        };
        let root = ["metadata", root, namespace];
        Property { numbers, ..Property::of(root.into_iter().chain(keys.iter().map(String::as_str))) }
    }

    /// Reads `metadata`.
    pub fn read_metadata(node: Node<'_>, errors: &mut Errors) -> Option<Property> {
        let fields = node.object(&METADATA_FIELDS, errors)?;
        Property::read_metadata_fields(&fields, errors)
    }

    /// Reads the fields of `metadata` beside others.
    pub fn read_metadata_fields(fields: &Fields<'_>, errors: &mut Errors) -> Option<Property> {
        let kind = fields.exactly_one(&METADATA_KINDS, errors);
        let namespace = kind.and_then(|kind| read_key(fields.get(kind)?, errors));
        let keys = read_keys("key", "a key such as \"plan\", or the list of keys to it", fields, errors);
        Some(Property::metadata(kind?, &namespace?, &keys?))
    }

    /// Reads `jwt_claim`: a claim in the metadata that Envoy's JWT filter writes.
    pub fn read_claim(node: Node<'_>, errors: &mut Errors) -> Option<Property> {
        let fields = node.object(&CLAIM_FIELDS, errors)?;
        let payload = fields.or("payload", JWT_PAYLOAD.to_string(), errors, read_key);
        let claim = read_keys("claim", "a claim such as \"sub\", or the list of keys to it", &fields, errors);
        let mut keys = Vec::from([payload?]);
        keys.extend(claim?);
        Some(Property::metadata("filter", JWT_FILTER, &keys))
    }

    /// The id of a call, which Envoy's filter for MCP writes.
    pub fn of_mcp_id() -> Property {
        Property::metadata("filter", MCP_FILTER, &["id".to_string()])
    }

    /// A header of the request, which is there at its end, too.
    pub fn request_header(name: &str) -> Property {
        Property::of(["request", "headers", name])
    }

    /// Reads `filter_state`.
    pub fn read_filter_state(node: Node<'_>, errors: &mut Errors) -> Option<Property> {
        let key = read_key(node, errors)?;
        Some(Property::of(["filter_state", key.as_str()]))
    }

    /// Reads `client_certificate`.
    pub fn read_certificate(node: Node<'_>, errors: &mut Errors) -> Option<Property> {
        let field = node.word(&CERTIFICATE_WORDS, errors)?;
        Some(Property::of(["connection", field]))
    }

    /// Its last element.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// As Envoy takes it.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The namespace of the metadata that it is in, if it is in metadata.
    pub fn namespace(&self) -> Option<&[u8]> {
        let mut elements = self.path.split(|byte| *byte == 0);
        (elements.next() == Some(b"metadata")).then(|| elements.nth(1)).flatten()
    }

    /// What its bytes are.
    pub fn content<'a>(&self, bytes: &'a [u8]) -> Content<'a> {
        match (Content::of(bytes), self.numbers, bytes.try_into()) {
            (Content::Number(_), Numbers::Integer, Ok(number)) => {
                Content::Integer(i64::from_le_bytes(number))
            }
            (content, ..) => content,
        }
    }

    /// Its bytes, if they are a text.
    pub fn text<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        match self.content(bytes) {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The elements of its path in metadata that is not typed: the namespace and the keys.
    pub fn elements_of_metadata(&self) -> impl Iterator<Item = &str> {
        let path = core::str::from_utf8(&self.path).unwrap_or_default();
        path.strip_prefix("metadata\0filter_metadata\0").unwrap_or_default().split('\0')
    }

    /// The whole number of less than 2⁵³ that its bytes may be though they are a text.
    pub fn hidden_number(&self, bytes: &[u8]) -> Option<i64> {
        let number = f64::from_le_bytes(self.text(bytes)?.try_into().ok()?);
        let may_be_number = self.numbers == Numbers::Double && number.abs() < EXACT_MAX;
        may_be_number.then_some(number as i64).filter(|whole| *whole as f64 == number)
    }

    /// The number that its bytes are, if it is a whole one from −2⁵³ to 2⁵³.
    pub fn number(&self, bytes: &[u8]) -> Option<i64> {
        // In this range the conversion is exact for whole numbers, and only for them the way back gives the same.
        let number = match self.content(bytes) {
            Content::Number(number) => number,
            Content::Integer(number) => number as f64,
            _ => return None,
        };
        let whole = number as i64;
        ((-EXACT_MAX..=EXACT_MAX).contains(&number) && whole as f64 == number).then_some(whole)
    }
}

fn read_keys<'a>(
    name: &'a str,
    expected: &str,
    fields: &Fields<'a>,
    errors: &mut Errors,
) -> Option<Vec<String>> {
    fields.required(name, expected, errors, |node, errors| {
        node.one_or_list(1..=DEPTH_MAX, "keys", errors, read_key)
    })
}

/// Envoy ends each element at a NUL byte, so none may contain one.
pub(in crate::rules) fn read_key(node: Node<'_>, errors: &mut Errors) -> Option<String> {
    let text = node.text(KEY_BYTES_MAX, errors)?;
    if text.contains('\0') {
        return node.reject(errors, "contains a zero byte", "text without zero bytes");
    }
    Some(text.to_string())
}

/// What the bytes of a property are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::rules) enum Content<'a> {
    Text(&'a [u8]),
    Number(f64),
    Integer(i64),
    Bool(bool),
    List(Items<'a>),
    Map,
}

/// The items of a list: names without values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::rules) struct Items<'a> {
    lengths: &'a [[u8; 8]],
    texts: &'a [u8],
}

impl<'a> Content<'a> {
    /// Text has no zero bytes and is UTF-8, which distinguishes it from the others.
    pub fn of(bytes: &'a [u8]) -> Content<'a> {
        if let [value @ (0 | 1)] = bytes {
            return Content::Bool(*value == 1);
        }
        if let Ok(number) = bytes.try_into()
            && (bytes.contains(&0) || core::str::from_utf8(bytes).is_err())
        {
            return Content::Number(f64::from_le_bytes(number));
        }
        match Items::of(bytes) {
            None => Content::Text(bytes),
            Some(items) if items.pairs().all(|(_, value)| value.is_empty()) => Content::List(items),
            Some(_) => Content::Map,
        }
    }

    /// Whether it is neither a list nor a map.
    pub fn is_single(&self) -> bool {
        !matches!(self, Content::List(_) | Content::Map)
    }
}

impl<'a> Items<'a> {
    /// The pairs that the bytes are, and nothing else.
    fn of(bytes: &'a [u8]) -> Option<Items<'a>> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let count = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (lengths, texts) = rest.split_at_checked(count.checked_mul(8)?)?;
        let items = Items { lengths: lengths.as_chunks().0, texts };
        let mut found = 0_usize;
        let read: usize = items
            .pairs()
            .inspect(|_| found = found.saturating_add(1))
            .map(|(name, value)| name.len().saturating_add(value.len()).saturating_add(2))
            .fold(0, usize::saturating_add);
        (found == count && read == texts.len()).then_some(items)
    }

    fn pairs(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.texts;
        self.lengths.iter().map_while(move |[a, b, c, d, e, f, g, h]| {
            let name_length = usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).ok()?;
            let value_length = usize::try_from(u32::from_le_bytes([*e, *f, *g, *h])).ok()?;
            let (name, after) = rest.split_at_checked(name_length)?;
            let (value, after) = after.strip_prefix(&[0])?.split_at_checked(value_length)?;
            rest = after.strip_prefix(&[0])?;
            Some((name, value))
        })
    }

    /// Passes each item on.
    pub fn for_each(self, item: impl FnMut(&'a [u8])) {
        self.pairs().map(|(name, _)| name).for_each(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinguished_from_texts() {
        for (value, expected) in [
            (42.0f64.to_le_bytes().as_slice(), Some(42)),
            (&0.0f64.to_le_bytes(), Some(0)),
            (&(-7.0f64).to_le_bytes(), Some(-7)),
            (&1e15f64.to_le_bytes(), Some(1_000_000_000_000_000)),
            (&9_007_199_254_740_991f64.to_le_bytes(), Some(9_007_199_254_740_991)),
            (&0.5f64.to_le_bytes(), None),
            (&1e300f64.to_le_bytes(), None),
            (&f64::NAN.to_le_bytes(), None),
            (&f64::INFINITY.to_le_bytes(), None),
            (b"12345678", None),
            (b"alice@3C", None),
            (b"42", None),
            (b"", None),
        ] {
            let property = Property::metadata("filter", "ext", &[]);
            assert_eq!(property.number(value), expected, "{value:?}");
        }
    }

    #[test]
    fn numbers_of_typed_metadata_are_integers() {
        let property = Property::metadata("typed", "ext", &["n".to_string()]);
        assert_eq!(property.path(), b"metadata\0typed_filter_metadata\0ext\0n");
        assert_eq!(property.namespace(), Some(b"ext".as_slice()));
        for (value, content, expected) in [
            (0, Content::Integer(0), Some(0)),
            (16, Content::Integer(16), Some(16)),
            (-7, Content::Integer(-7), Some(-7)),
            (1 << 53, Content::Integer(1 << 53), Some(1 << 53)),
            ((1 << 53) + 2, Content::Integer((1 << 53) + 2), None),
            (i64::MAX, Content::Integer(i64::MAX), None),
            (i64::MIN, Content::Integer(i64::MIN), None),
        ] {
            let bytes = value.to_le_bytes();
            assert_eq!((property.content(&bytes), property.number(&bytes)), (content, expected));
        }
        assert_eq!(property.number(&16.0f64.to_le_bytes()), None, "a double");
        assert_eq!(property.content(b"gpt-4o-x"), Content::Text(b"gpt-4o-x"), "a text of eight bytes");
    }

    #[test]
    fn damaged_lists_are_texts() {
        let list = b"\x01\0\0\0\x01\0\0\0\0\0\0\0a\0\0";
        assert!(matches!(Content::of(list), Content::List(_)));
        assert!(matches!(Content::of(&[0; 4]), Content::List(_)), "an empty list or map");
        for end in (2..list.len()).filter(|end| *end != 8) {
            let cut = &list[..end];
            assert_eq!(Content::of(cut), Content::Text(cut), "cut at {end}");
        }
        let long = [list.as_slice(), b"x"].concat();
        assert_eq!(Content::of(&long), Content::Text(&long));
        assert!(!matches!(Content::of(&[0xff; 12]), Content::List(_)));
    }
}
