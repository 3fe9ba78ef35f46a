//! Parses the queries of the admin listener.
//!
//! Identifiers come from headers and need not be UTF-8, so they are decoded as bytes. A text decoder would select
//! another key.

use crate::controls::{AuditFilter, PlaceFilter};
use crate::net::percent;
use crate::region::status::counters::Rule;
use weir_core::model::key::{MAX_DURATION_MS, MAX_TEXT_BYTES, MIN_DURATION_MS};
use weir_core::region::top::MAX_TOP;

/// The requested key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyQuery {
    /// The workspace, by default `default`.
    pub workspace: Vec<u8>,
    /// The namespace as in the rule; empty for a zone.
    pub namespace: Vec<u8>,
    /// A zone of the ledger in place of a namespace.
    pub zone: Option<u32>,
    /// The identifier, as a request carries it or as it is counted.
    pub identifier: Vec<u8>,
    /// Whether the identifier is given in the form in which it is counted.
    pub is_counted: bool,
    /// The only window to show.
    pub window_ms: Option<u64>,
}

/// Why a query is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A required parameter is missing or empty.
    #[error("missing: {0}; expected ?namespace=…&identifier=…, and &workspace=… if it is not \"default\"")]
    Missing(String),
    /// An unknown parameter, and those that exist.
    #[error("unknown parameter {0:?}; expected {1}")]
    Unknown(String, String),
    /// Not a number, or out of range.
    #[error("{0} is not a number from {1} to {2}")]
    Number(&'static str, u64, u64),
    /// The identifier is given in both forms.
    #[error("both identifier and counted are given; expected one of them")]
    Both,
    /// A namespace and a zone are given.
    #[error("both namespace and zone are given; expected one of them")]
    BothPlaces,
    /// A parameter is given twice.
    #[error("{0} is given more than once")]
    Repeated(&'static str),
    /// Longer than any key's text.
    #[error("{0} is longer than {MAX_TEXT_BYTES} bytes, so no key has it")]
    Long(&'static str),
    /// A `%` is not followed by two hexadecimal digits.
    #[error("{0} is not validly percent-encoded; expected two hexadecimal digits after each %")]
    Encoding(&'static str),
    /// Not UTF-8.
    #[error("{0} is not UTF-8")]
    Text(&'static str),
    /// Not an order.
    #[error("{0:?} is not an order; expected name or busiest")]
    Order(String),
    /// Not one of the kinds.
    #[error("{0:?} is not a kind; expected limit, exempt, ban, credit, reset or shadow")]
    Kind(String),
}

/// Kinds of live control, as in the JSON of `/v1/overrides`.
const KINDS: [&str; 6] = ["limit", "exempt", "ban", "credit", "reset", "shadow"];
/// Entries of one page, unless the query states a number, and the most that it may state.
const PAGE: (u32, u32) = (50, 200);

/// The rules to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesQuery {
    /// Only rules whose name, namespace or workspace contains this, without regard to case; empty for all.
    pub text: String,
    /// Their order.
    pub order: Order,
    /// Rules that are skipped.
    pub offset: usize,
    /// Most rules; by default all.
    pub limit: usize,
}

/// An order of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By workspace and name.
    #[default]
    Name,
    /// By decisions within the last minute, the most first.
    Busiest,
}

/// The keys to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopQuery {
    /// Most keys.
    pub limit: usize,
    /// Only keys whose identifier or namespace contains this; empty for all.
    pub text: Vec<u8>,
}

/// The live controls to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverridesQuery {
    /// Only this kind.
    pub kind: Option<String>,
    /// Only controls that have this in their target, author or reason, without regard to case; empty for all.
    pub text: String,
    /// Only controls with a lower revision.
    pub before: Option<u64>,
    /// Most controls.
    pub limit: usize,
}

/// The values of the parameters `names`, in their order. No other parameter may be given, and none twice.
fn parameters<const N: usize>(
    raw: &str,
    names: [&'static str; N],
) -> Result<[Option<Vec<u8>>; N], QueryError> {
    let mut values = [const { None }; N];
    for (name, value) in percent::parameters(raw) {
        let found = names.iter().zip(&mut values).find(|(known, _)| **known == name);
        let (known, place) = found.ok_or_else(|| QueryError::Unknown(name.to_owned(), names.join(", ")))?;
        if place.replace(value.ok_or(QueryError::Encoding(known))?).is_some() {
            return Err(QueryError::Repeated(known));
        }
    }
    Ok(values)
}

/// A parameter as text; empty if it is not given.
fn as_text(name: &'static str, value: Option<Vec<u8>>) -> Result<String, QueryError> {
    String::from_utf8(value.unwrap_or_default()).map_err(|_| QueryError::Text(name))
}

fn page(value: Option<Vec<u8>>) -> Result<u32, QueryError> {
    let (usual, most) = PAGE;
    let given = value.map(|text| number("limit", &text, 1, most.into())).transpose()?;
    Ok(given.map_or(usual, |given| u32::try_from(given).unwrap_or(most)))
}

fn before(value: Option<Vec<u8>>) -> Result<Option<u64>, QueryError> {
    value.map(|text| number("before", &text, 1, i64::MAX.unsigned_abs())).transpose()
}

impl TopQuery {
    /// Parses the query of `/v1/top`.
    pub fn parse(raw: &str) -> Result<TopQuery, QueryError> {
        let [limit, text] = parameters(raw, ["limit", "text"])?;
        let limit = limit.map(|text| number("limit", &text, 1, MAX_TOP as u64)).transpose()?;
        let text = text.unwrap_or_default();
        if text.len() > MAX_TEXT_BYTES {
            return Err(QueryError::Long("text"));
        }
        Ok(TopQuery { limit: limit.map_or(MAX_TOP, |limit| usize::try_from(limit).unwrap_or(MAX_TOP)), text })
    }
}

impl RulesQuery {
    /// Parses the query of `/v1/rules`.
    pub fn parse(raw: &str) -> Result<RulesQuery, QueryError> {
        const MOST: u64 = u32::MAX as u64;
        let [text, order, offset, limit] = parameters(raw, ["text", "order", "offset", "limit"])?;
        let order = match as_text("order", order)?.as_str() {
            "" | "name" => Order::Name,
            "busiest" => Order::Busiest,
            other => return Err(QueryError::Order(other.to_owned())),
        };
        let read = |name, least, value: Option<Vec<u8>>| {
            value.map(|text| number(name, &text, least, MOST).map(|number| number as usize)).transpose()
        };
        Ok(RulesQuery {
            text: as_text("text", text)?.to_lowercase(),
            order,
            offset: read("offset", 0, offset)?.unwrap_or(0),
            limit: read("limit", 1, limit)?.unwrap_or(usize::MAX),
        })
    }

    /// Whether a rule is one of those.
    pub fn selects(&self, rule: &Rule) -> bool {
        let parts = [&rule.name, &rule.namespace, &rule.workspace];
        self.text.is_empty() || parts.iter().any(|part| part.to_lowercase().contains(&self.text))
    }
}

impl OverridesQuery {
    /// Parses the query of `/v1/overrides`.
    pub fn parse(raw: &str) -> Result<OverridesQuery, QueryError> {
        let [kind, text, revision, limit] = parameters(raw, ["kind", "text", "before", "limit"])?;
        let kind = kind.map(|kind| as_text("kind", Some(kind))).transpose()?.filter(|kind| !kind.is_empty());
        if let Some(kind) = kind.as_ref().filter(|kind| !KINDS.contains(&kind.as_str())) {
            return Err(QueryError::Kind(kind.clone()));
        }
        Ok(OverridesQuery {
            kind,
            text: as_text("text", text)?,
            before: before(revision)?,
            limit: page(limit)? as usize,
        })
    }
}

/// Parses the query of `/v1/overrides/audit`.
pub fn audit(raw: &str) -> Result<AuditFilter, QueryError> {
    const NAMES: [&str; 7] = ["workspace", "namespace", "identifier", "network", "author", "before", "limit"];
    let [workspace, scope, identifier, network, author, number, limit] = parameters(raw, NAMES)?;
    let place = PlaceFilter {
        workspace: as_text("workspace", workspace)?,
        scope: as_text("namespace", scope)?,
        identifier: as_text("identifier", identifier)?,
        network: as_text("network", network)?,
    };
    Ok(AuditFilter {
        place,
        author: as_text("author", author)?,
        before: before(number)?,
        limit: page(limit)?,
    })
}

impl KeyQuery {
    /// Parses a query string.
    pub fn parse(raw: &str) -> Result<KeyQuery, QueryError> {
        let [workspace, namespace, zone, raw, counted, window_ms] =
            parameters(raw, ["workspace", "namespace", "zone", "identifier", "counted", "window_ms"])?;
        if raw.is_some() && counted.is_some() {
            return Err(QueryError::Both);
        }
        let is_counted = counted.is_some();
        let identifier = raw.or(counted);
        let window_ms =
            window_ms.map(|text| number("window_ms", &text, MIN_DURATION_MS, MAX_DURATION_MS)).transpose()?;
        let given = |value: &Option<Vec<u8>>| value.as_ref().is_some_and(|value| !value.is_empty());
        let zone = zone.map(|text| number("zone", &text, 1, u32::MAX.into())).transpose()?;
        if zone.is_some() && given(&namespace) {
            return Err(QueryError::BothPlaces);
        }
        let namespace = namespace.or_else(|| zone.map(|_| Vec::new()));
        let missing: Vec<&str> =
            [("namespace", given(&namespace) || zone.is_some()), ("identifier", given(&identifier))]
                .iter()
                .filter_map(|(name, given)| (!given).then_some(*name))
                .collect();
        let (Some(namespace), Some(identifier), true) = (namespace, identifier, missing.is_empty()) else {
            return Err(QueryError::Missing(missing.join(", ")));
        };
        let workspace = workspace.unwrap_or_else(|| b"default".to_vec());
        for (name, value) in [("workspace", &workspace), ("namespace", &namespace)] {
            if value.len() > MAX_TEXT_BYTES {
                return Err(QueryError::Long(name));
            }
        }
        let zone = zone.and_then(|zone| u32::try_from(zone).ok());
        Ok(KeyQuery { workspace, namespace, zone, identifier, is_counted, window_ms })
    }
}

fn number(name: &'static str, text: &[u8], least: u64, most: u64) -> Result<u64, QueryError> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.filter(|number| (least..=most).contains(number)).ok_or(QueryError::Number(name, least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> KeyQuery {
        KeyQuery {
            workspace: workspace.to_vec(),
            namespace: namespace.to_vec(),
            zone: None,
            identifier: identifier.to_vec(),
            is_counted: false,
            window_ms: None,
        }
    }

    #[test]
    fn queries() {
        let missing = |names: &str| Err(QueryError::Missing(names.to_owned()));
        let long = format!("namespace={}&identifier=i", "n".repeat(65));
        let cases = [
            ("namespace=n&identifier=i", Ok(query(b"default", b"n", b"i"))),
            ("&workspace=w&identifier=i&namespace=n&", Ok(query(b"w", b"n", b"i"))),
            ("namespace=a%20b+c&identifier=%ff%00%3D", Ok(query(b"default", b"a b c", b"\xff\x00="))),
            ("", missing("namespace, identifier")),
            ("namespace=n", missing("identifier")),
            ("namespace=&identifier=i", missing("namespace")),
            ("namespace=n&identifier", missing("identifier")),
            (
                "namespace=n&id=i",
                Err(QueryError::Unknown(
                    "id".into(),
                    "workspace, namespace, zone, identifier, counted, window_ms".into(),
                )),
            ),
            ("namespace=n&namespace=n", Err(QueryError::Repeated("namespace"))),
            ("namespace=n&identifier=%f", Err(QueryError::Encoding("identifier"))),
            ("namespace=%zz&identifier=i", Err(QueryError::Encoding("namespace"))),
            (
                "namespace=n&counted=sha256%3Ax&window_ms=60000",
                Ok(KeyQuery {
                    is_counted: true,
                    window_ms: Some(60_000),
                    ..query(b"default", b"n", b"sha256:x")
                }),
            ),
            ("zone=3&identifier=i", Ok(KeyQuery { zone: Some(3), ..query(b"default", b"", b"i") })),
            ("zone=3&namespace=n&identifier=i", Err(QueryError::BothPlaces)),
            ("zone=0&identifier=i", Err(QueryError::Number("zone", 1, u32::MAX.into()))),
            ("zone=3", missing("identifier")),
            ("namespace=n&counted=a&identifier=a", Err(QueryError::Both)),
            (
                "namespace=n&identifier=i&window_ms=1",
                Err(QueryError::Number("window_ms", 1_000, 31_622_400_000)),
            ),
            (&long, Err(QueryError::Long("namespace"))),
        ];
        for (raw, expected) in cases {
            assert_eq!(KeyQuery::parse(raw), expected, "{raw}");
        }
    }

    #[test]
    fn keys_to_list() {
        let wrong = || Err(QueryError::Number("limit", 1, 100));
        let top = |limit, text: &str| Ok(TopQuery { limit, text: text.into() });
        let cases = [
            ("", top(100, "")),
            ("limit=7", top(7, "")),
            ("text=al%20ice&limit=20", top(20, "al ice")),
            ("limit=0", wrong()),
            ("limit=101", wrong()),
            ("limit=x", wrong()),
            ("a=1", Err(QueryError::Unknown("a".into(), "limit, text".into()))),
        ];
        for (raw, expected) in cases {
            assert_eq!(TopQuery::parse(raw), expected, "{raw}");
        }
        let long = format!("text={}", "x".repeat(MAX_TEXT_BYTES + 1));
        assert_eq!(TopQuery::parse(&long), Err(QueryError::Long("text")));
    }

    #[test]
    fn rules_to_list() {
        let all = RulesQuery { text: String::new(), order: Order::Name, offset: 0, limit: usize::MAX };
        let page = RulesQuery { text: "ké".into(), order: Order::Busiest, offset: 50, limit: 25 };
        let cases = [
            ("", Ok(all.clone())),
            ("text=K%c3%89&order=busiest&offset=50&limit=25", Ok(page.clone())),
            ("order=size", Err(QueryError::Order("size".into()))),
            ("limit=0", Err(QueryError::Number("limit", 1, u32::MAX.into()))),
            ("offset=-1", Err(QueryError::Number("offset", 0, u32::MAX.into()))),
        ];
        for (raw, expected) in cases {
            assert_eq!(RulesQuery::parse(raw), expected, "{raw}");
        }
        let rule = Rule {
            workspace: "shop".into(),
            namespace: "n".into(),
            name: "Per-KÉy".into(),
            ..Rule::default()
        };
        assert!(page.selects(&rule) && all.selects(&rule) && !page.selects(&Rule::default()));
        assert!(RulesQuery { text: "shop".into(), ..all }.selects(&rule), "by its workspace");
    }

    #[test]
    fn controls_and_changes_to_list() {
        let usual = OverridesQuery { limit: 50, ..OverridesQuery::default() };
        let cases = [
            ("", Ok(usual.clone())),
            ("kind=&text=", Ok(usual)),
            (
                "kind=ban&text=Fraud&before=7&limit=200",
                Ok(OverridesQuery {
                    kind: Some("ban".into()),
                    text: "Fraud".into(),
                    before: Some(7),
                    limit: 200,
                }),
            ),
            ("kind=override", Err(QueryError::Kind("override".into()))),
            ("limit=201", Err(QueryError::Number("limit", 1, 200))),
            ("before=0", Err(QueryError::Number("before", 1, i64::MAX.unsigned_abs()))),
            ("text=%ff", Err(QueryError::Text("text"))),
            ("text=a&text=b", Err(QueryError::Repeated("text"))),
        ];
        for (raw, expected) in cases {
            assert_eq!(OverridesQuery::parse(raw), expected, "{raw}");
        }
        let found = audit("namespace=api&identifier=a%2Fb&before=9").unwrap();
        assert_eq!((found.place.scope.as_str(), found.place.identifier.as_str()), ("api", "a/b"));
        assert_eq!((found.before, found.limit), (Some(9), 50));
        assert!(audit("matching=a").is_err());
    }
}
