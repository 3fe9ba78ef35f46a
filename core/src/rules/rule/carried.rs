//! A limit that the request carries: a filter before this one, such as an external authorisation, has written it into dynamic
//! metadata or filter state, or has named the client's plan (`plans`). Headers are no source of numbers, as clients write them.

use super::plans::Plans;
use crate::fields::{Errors, Node, Value};
use crate::rules::digits;
use crate::rules::request::property::Property;
use crate::rules::request::{Request, trim};
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(in crate::rules) const FIELDS: [&str; 4] = ["metadata", "filter_state", "default", "max"];
/// Where the limit is found: exactly one of these fields.
pub(in crate::rules) const KINDS: [&str; 2] = ["metadata", "filter_state"];
/// The fields that tell a limit by plan from one that is stated.
const PLAN_FIELDS: [&str; 2] = ["by", "of"];

/// Where a request carries its limit.
#[derive(Clone, Debug)]
pub enum CarriedLimit {
    /// As a number.
    Stated(StatedLimit),
    /// By the client's plan.
    ByPlan(Box<Plans>),
}

/// Where a request states its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedLimit {
    property: Property,
    /// The highest limit that a request may carry; higher ones count as this.
    pub max: u64,
}

impl CarriedLimit {
    /// Reads what has the default of its limit beside it. `number` reads a limit.
    pub(in crate::rules) fn read(
        node: Node<'_>,
        number: impl Fn(Node<'_>, &mut Errors) -> Option<u64>,
        errors: &mut Errors,
    ) -> Option<(u64, CarriedLimit)> {
        let is_of_plans = |name: &str| PLAN_FIELDS.contains(&name);
        match node.value {
            Value::Object(fields) if fields.iter().any(|(name, _)| is_of_plans(name)) => {
                let (default, plans) = Plans::read(node, number, errors)?;
                Some((default, CarriedLimit::ByPlan(Box::new(plans))))
            }
            _ => {
                let (default, stated) = StatedLimit::read(node, number, errors)?;
                Some((default, CarriedLimit::Stated(stated)))
            }
        }
    }
}

impl StatedLimit {
    /// Reads `{metadata | filter_state, default, max}`. Returns the default beside it. `number` reads a limit.
    pub(in crate::rules) fn read(
        node: Node<'_>,
        number: impl Fn(Node<'_>, &mut Errors) -> Option<u64>,
        errors: &mut Errors,
    ) -> Option<(u64, StatedLimit)> {
        let fields = node.object(&FIELDS, errors)?;
        let property = fields.exactly_one(&KINDS, errors).and_then(|kind| {
            let node = fields.get(kind)?;
            match kind {
                "metadata" => Property::read_metadata(node, errors),
                _ => Property::read_filter_state(node, errors),
            }
        });
        let default = fields.required("default", "the limit of requests that carry none", errors, &number);
        let max = fields.required("max", "the highest limit that a request may carry", errors, &number);
        let (property, default, max) = (property?, default?, max?);
        if default > max {
            return fields.get("default")?.reject(errors, "is above max", "a number up to max");
        }
        Some((default, StatedLimit { property, max }))
    }

    /// The limit that a request carries: a whole number of 0 or more, as a number or in digits. `None` if there is none.
    pub(in crate::rules) fn of<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> Option<u64> {
        buffer.clear();
        if !request.property(self.property.path(), buffer) {
            return None;
        }
        let limit = match self.property.number(buffer) {
            Some(number) => u64::try_from(number).ok()?,
            None => digits::parse(trim(buffer))?,
        };
        Some(limit.min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Bounds;
    use crate::rules::testing::TestRequest;
    use alloc::string::ToString;

    const LIMIT: &str = r#"{"metadata": {"filter": "ext", "key": "limit"}, "default": 10, "max": 500}"#;

    fn read(json: &str) -> Result<(u64, StatedLimit), alloc::string::String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let limit = StatedLimit::read(
            Node::root("limit", &json),
            |node, errors| node.integer(0..=1_000, errors),
            &mut errors,
        );
        errors.finish(limit).map_err(|errors| errors.to_string())
    }

    #[test]
    fn the_limit_of_a_request() {
        let (default, carried) = read(LIMIT).unwrap();
        assert_eq!(default, 10);
        let number = |number: f64| number.to_le_bytes().to_vec();
        for (value, expected) in [
            (number(42.0), Some(42)),
            (number(0.0), Some(0)),
            (number(501.0), Some(500)),
            (number(-1.0), None),
            (number(1.5), None),
            (b" 42 ".to_vec(), Some(42)),
            (b"12345678".to_vec(), Some(500)),
            (b"99999999999999999999999".to_vec(), Some(500)),
            (b"+4".to_vec(), None),
            (b"4 2".to_vec(), None),
            (b"gold".to_vec(), None),
            (b"".to_vec(), None),
        ] {
            let request = TestRequest::get("/").property(b"metadata\0filter_metadata\0ext\0limit", &value);
            assert_eq!(carried.of(&request, &mut Vec::new()), expected, "{value:?}");
        }
        assert_eq!(carried.of(&TestRequest::get("/"), &mut Vec::from(*b"7")), None);
    }

    #[test]
    fn errors() {
        for (json, problem) in [
            (r#"{"metadata": {"filter": "e", "key": "k"}, "default": 10, "max": 5}"#, "above max"),
            (r#"{"metadata": {"filter": "e", "key": "k"}, "max": 5}"#, "default"),
            (r#"{"default": 1, "max": 5}"#, "metadata"),
            (
                r#"{"metadata": {"filter": "e", "key": "k"}, "filter_state": "x", "default": 1, "max": 5}"#,
                "filter_state",
            ),
            (r#"{"header": "x-limit", "default": 1, "max": 5}"#, "header"),
            (r#"{"filter_state": "x", "default": 1, "max": 5000}"#, "max"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(problem), "{json}\n{error}");
        }
    }
}
