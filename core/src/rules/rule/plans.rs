//! A limit by the client's plan: a claim, metadata or another fact names the plan, and the rule has the limit of each. The plan is no part
//! of the key, so the count stays one when a customer changes plan.
//!
//! A plan that has several values may be any of them for the upstream, so it gets the lowest limit of all.

use super::pattern::pattern_of;
use crate::fields::{Errors, Node, Value};
use crate::matching::glob;
use crate::matching::pattern_map::PatternMap;
use crate::rules::identifier::{Found, Part, sources};
use crate::rules::request::Request;
use crate::rules::request::sources::Sources;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

pub(in crate::rules) const FIELDS: [&str; 3] = ["by", "of", "default"];
/// What may name a plan. A client writes the other sources; a header is for a filter or a front end to write.
pub(in crate::rules) const SOURCES: [&str; 5] =
    ["jwt_claim", "metadata", "filter_state", "client_certificate", "header"];
/// How many plans a rule may have.
pub(in crate::rules) const PLANS: RangeInclusive<usize> = 1..=64;
/// Longest name or pattern of a plan.
pub(in crate::rules) const PLAN_BYTES_MAX: usize = 256;

/// `limit: {by, of, default}`.
#[derive(Clone, Debug)]
pub struct Plans {
    by: Part,
    limits: PatternMap<u64>,
    /// How many plans are listed: 1 to 64.
    pub count: usize,
    /// The lowest limit, the default included.
    pub lowest: u64,
    /// The highest limit, the default included.
    pub highest: u64,
}

impl Plans {
    /// Reads `{by, of, default}`. Returns the default beside it. `number` reads a limit.
    pub(in crate::rules) fn read(
        node: Node<'_>,
        number: impl Fn(Node<'_>, &mut Errors) -> Option<u64>,
        errors: &mut Errors,
    ) -> Option<(u64, Plans)> {
        let fields = node.object(&FIELDS, errors)?;
        let expected = "what names the plan, such as {\"jwt_claim\": {\"claim\": \"plan\"}}";
        let by = fields.required("by", expected, errors, read_by);
        let expected = "the limit of each plan, such as {\"free\": 60, \"pro\": 600}";
        let of = fields.required("of", expected, errors, |node, errors| {
            let entries = node.entries(PLANS, "plans", errors, |name, node, errors| {
                let pattern = pattern_of(name, &node, PLAN_BYTES_MAX, errors);
                let limit = number(node, errors);
                Some((pattern?, limit?))
            })?;
            Some(entries)
        });
        let default = fields.required("default", "the limit of all other plans", errors, &number);
        let (by, of, default) = (by?, of?, default?);
        let limits = || of.iter().map(|(_, limit)| *limit).chain([default]);
        let (lowest, highest) = (limits().min()?, limits().max()?);
        let count = of.len();
        let Some(limits) = PatternMap::build(of) else {
            return node.reject(errors, "has patterns that are too large in total", "fewer patterns");
        };
        Some((default, Plans { by, limits, count, lowest, highest }))
    }

    /// The limit of a request's plan; `None` if it names none of the plans. `name` is room for the plan.
    pub(in crate::rules) fn of<R: Request + ?Sized>(
        &self,
        request: &R,
        sources: &mut Sources,
        name: &mut Vec<u8>,
        globs: &mut glob::Scratch,
    ) -> Option<u64> {
        name.clear();
        match self.by.write(request, sources, name) {
            Found::Missing => None,
            Found::Ambiguous => Some(self.lowest),
            _ => self.limits.find(name, globs),
        }
    }

    /// The header that names the plan, if one does.
    pub fn header(&self) -> Option<&[u8]> {
        self.by.header()
    }
}

/// Reads a part of which no value is left to the client.
fn read_by(node: Node<'_>, errors: &mut Errors) -> Option<Part> {
    let Value::Object(fields) = node.value else { return Part::read(node, errors) };
    let other = fields.iter().map(|(name, _)| &**name).find(|name| {
        let is_source = sources::NAMES.contains(name) && !SOURCES.contains(name);
        is_source || sources::LISTS.contains(name)
    });
    match other {
        Some(name) if sources::LISTS.contains(&name) => {
            errors.reject(&node.path, alloc::format!("{name} has no effect here"), "the plans in of")
        }
        Some(name) => errors.reject(
            &node.path,
            alloc::format!("{name} cannot name a plan, as a client chooses it"),
            "one of jwt_claim, metadata, filter_state, client_certificate and header",
        ),
        None => Part::read(node, errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Bounds;
    use crate::rules::testing::TestRequest;
    use alloc::format;
    use alloc::string::{String, ToString};

    fn read(json: &str) -> Result<(u64, Plans), String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let number = |node: Node<'_>, errors: &mut Errors| node.integer(0..=1_000, errors);
        let plans = Plans::read(Node::root("limit", &json), number, &mut errors);
        errors.finish(plans).map_err(|errors| errors.to_string())
    }

    fn limit(plans: &Plans, request: &TestRequest) -> Option<u64> {
        let mut name = Vec::from(*b"left from another request");
        plans.of(request, &mut Sources::default(), &mut name, &mut glob::Scratch::default())
    }

    #[test]
    fn each_plan_has_its_limit() {
        let (default, plans) = read(
            r#"{"by": {"header": "x-plan"}, "default": 50,
                "of": {"free": 60, "pro": 600, "enterprise*": 900, "enterprise-trial": 30, "ent*l": 7, "a\\|b": 8}}"#,
        )
        .unwrap();
        assert_eq!((default, plans.count, plans.lowest, plans.highest), (50, 6, 7, 900));
        assert_eq!(plans.header(), Some(b"x-plan".as_slice()));
        for (plan, expected) in [
            ("free", Some(60)),
            (" pro ", Some(600)),
            ("enterprise", Some(900)),
            ("enterprise-eu", Some(900)),
            ("enterprise-trial", Some(30)),
            ("ental", Some(7)),
            ("a|b", Some(8)),
            ("Free", None),
            ("free1", None),
            ("", None),
            ("\\-", None),
        ] {
            let request = TestRequest::get("/").header("x-plan", plan);
            assert_eq!(limit(&plans, &request), expected, "{plan}");
        }
        assert_eq!(limit(&plans, &TestRequest::get("/")), None);
        let twice = TestRequest::get("/").header("x-plan", "free").header("x-plan", "enterprise");
        assert_eq!(limit(&plans, &twice), Some(7), "the lowest");
    }

    #[test]
    fn a_plan_may_be_a_claim_metadata_or_a_number() {
        let of = |by: &str| {
            read(&format!(r#"{{"by": {by}, "of": {{"pro": 2, "7": 3}}, "default": 1}}"#)).unwrap().1
        };
        let request = TestRequest::get("/")
            .metadata(&["envoy.filters.http.jwt_authn", "jwt_payload", "plan"], "PRO")
            .property(b"metadata\0filter_metadata\0ext\0tier", &7.0_f64.to_le_bytes())
            .property(b"metadata\0typed_filter_metadata\0ext\0tier", &7_i64.to_le_bytes())
            .property(b"filter_state\0plan", b"pro");
        for (by, expected) in [
            (r#"{"jwt_claim": {"claim": "plan"}}"#, None),
            (r#"{"jwt_claim": {"claim": "plan"}, "lowercase": true}"#, Some(2)),
            (r#"{"metadata": {"filter": "ext", "key": "tier"}}"#, Some(3)),
            (r#"{"metadata": {"typed": "ext", "key": "tier"}}"#, Some(3)),
            (r#"{"metadata": {"filter": "ext", "key": "none"}}"#, None),
            (r#"{"filter_state": "plan"}"#, Some(2)),
        ] {
            assert_eq!(limit(&of(by), &request), expected, "{by}");
        }
    }

    #[test]
    fn of_equal_patterns_the_first_by_name_applies() {
        let (_, plans) =
            read(r#"{"by": {"header": "p"}, "of": {"b*": 2, "*b": 1, "*a": 3, "a*": 4}, "default": 9}"#)
                .unwrap();
        let of = |plan: &str| limit(&plans, &TestRequest::get("/").header("p", plan));
        assert_eq!([of("bb"), of("ba"), of("ab")], [Some(1), Some(3), Some(1)]);
    }

    #[test]
    fn errors() {
        let many: Vec<String> = (0..65).map(|number| format!("\"p{number}\": 1")).collect();
        let by = r#""by": {"header": "p"}"#;
        for (json, problem) in [
            (r#"{"of": {"a": 1}, "default": 1}"#.to_string(), "by: it is missing"),
            (format!(r#"{{{by}, "default": 1}}"#), "of: it is missing"),
            (format!(r#"{{{by}, "of": {{"a": 1}}}}"#), "default: it is missing"),
            (format!(r#"{{{by}, "of": {{}}, "default": 1}}"#), "it has 0 plans"),
            (format!(r#"{{{by}, "of": {{{}}}, "default": 1}}"#, many.join(",")), "it has 65 plans"),
            (format!(r#"{{{by}, "of": ["a"], "default": 1}}"#), "of: a list is not an object"),
            (format!(r#"{{{by}, "of": {{"a": 1001}}, "default": 1}}"#), "of.a: 1001 is out of range"),
            (format!(r#"{{{by}, "of": {{"a": "x"}}, "default": 1}}"#), "of.a: "),
            (format!(r#"{{{by}, "of": {{"a": 1, "a": 2}}, "default": 1}}"#), "of.a: it is given twice"),
            (format!(r#"{{{by}, "of": {{"": 1}}, "default": 1}}"#), "its pattern has 0 bytes"),
            (format!(r#"{{{by}, "of": {{"a\\b": 1}}, "default": 1}}"#), "a backslash before another"),
            (format!(r#"{{{by}, "of": {{"a": 1}}, "default": 1, "max": 2}}"#), "max: there is no such"),
            (
                r#"{"by": {"query": "p"}, "of": {"a": 1}, "default": 1}"#.to_string(),
                "query cannot name a plan",
            ),
            (
                r#"{"by": {"header": "p", "one_of": ["a"]}, "of": {"a": 1}, "default": 1}"#.to_string(),
                "one_of has no",
            ),
            (r#"{"by": {}, "of": {"a": 1}, "default": 1}"#.to_string(), "none of"),
            (r#"{"by": "plan", "of": {"a": 1}, "default": 1}"#.to_string(), "is not an object"),
        ] {
            let error = read(&json).unwrap_err();
            assert!(error.contains(problem), "{json}\n{error}");
        }
    }
}
