//! Conditions on a query parameter. Where upstreams read different values, a condition holds if it holds for one of them, and an inverted
//! one if it does not hold for one: another spelling of a parameter takes no request out of a rule.

use super::text::Text;
use super::value::ValueTest;
use crate::fields::{Errors, Node};
use crate::rules::request::query::{Decoded, parameters};
use crate::rules::request::{Request, has_foreign_blank, joined_header, trim};
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(in crate::rules) const FIELDS: [&str; 8] =
    ["name", "exact", "prefix", "suffix", "contains", "regex", "present", "invert"];
pub(in crate::rules) const NAME_BYTES_MAX: usize = 256;

/// One condition on a query parameter.
#[derive(Clone, Debug)]
pub(super) struct QueryCondition {
    name: Box<[u8]>,
    test: ValueTest,
    invert: bool,
}

/// What upstreams find of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    /// Some may find it met.
    met: bool,
    /// Some may find it not met.
    unmet: bool,
}

impl QueryCondition {
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<QueryCondition> {
        let fields = node.object(&FIELDS, errors)?;
        let name = fields.required("name", "the name of a parameter such as \"format\"", errors, |n, e| {
            n.text(NAME_BYTES_MAX, e)
        });
        let test = ValueTest::read(&fields, errors);
        let invert = fields.or("invert", false, errors, |node, errors| node.boolean(errors));
        Some(QueryCondition { name: name?.as_bytes().into(), test: test?, invert: invert? })
    }

    /// Whether it has a regular expression.
    pub fn is_expression(&self) -> bool {
        matches!(self.test, ValueTest::Value(Text::Regex(_)))
    }

    /// Whether some upstream finds it met.
    pub fn matches<R: Request + ?Sized>(
        &self,
        request: &R,
        buffer: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> bool {
        self.find(request, buffer, value).met
    }

    /// Whether all upstreams find it met.
    pub fn matches_certainly<R: Request + ?Sized>(
        &self,
        request: &R,
        buffer: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> bool {
        !self.find(request, buffer, value).unmet
    }

    fn find<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>, value: &mut Vec<u8>) -> Found {
        let target = joined_header(request, b":path", buffer).unwrap_or_default();
        let (mut found, mut is_there) = (Found::default(), false);
        for read in parameters(target, &self.name) {
            let Some(text) = read else {
                // Some take it for the parameter, or another value from it.
                found = Found { met: true, unmet: true };
                continue;
            };
            is_there = true;
            if let ValueTest::Value(test) = &self.test {
                each_reading(text, value, |reading| match reading {
                    Some(reading) if test.matches(reading) => found.met = true,
                    Some(_) => found.unmet = true,
                    None => found = Found { met: true, unmet: true },
                });
            }
        }
        match self.test {
            ValueTest::Value(_) => found.unmet |= !is_there,
            ValueTest::Present(wanted) => {
                let may_be_there = is_there || found.met;
                found = Found { met: may_be_there, unmet: !is_there };
                found = if wanted { found } else { found.inverted() };
            }
        }
        if self.invert { found.inverted() } else { found }
    }
}

impl Found {
    fn inverted(self) -> Found {
        Found { met: self.unmet, unmet: self.met }
    }
}

/// Passes on what upstreams read as a value, without blanks around it: a `+` is a blank or itself. `None` if they differ in the blanks.
fn each_reading(text: &[u8], value: &mut Vec<u8>, mut take: impl FnMut(Option<&[u8]>)) {
    let mut take = |reading: &[u8]| take(Some(trim(reading)).filter(|reading| !has_foreign_blank(reading)));
    if memchr::memchr2(b'%', b'+', text).is_none() {
        return take(text);
    }
    let forms: &[bool] = if memchr::memchr(b'+', text).is_some() { &[true, false] } else { &[true] };
    for form in forms {
        value.clear();
        value.extend(Decoded { bytes: text, form: *form });
        take(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Bounds, Value};
    use crate::rules::testing::TestRequest;
    use alloc::format;
    use alloc::string::{String, ToString};

    fn read(json: &str) -> Result<QueryCondition, String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let condition = QueryCondition::read(Node::root("query", &json), &mut errors);
        errors.finish(condition).map_err(|errors| errors.to_string())
    }

    /// Whether a condition on `format` holds, and whether it holds for certain.
    fn check(test: &str, target: &str) -> (bool, bool) {
        let condition = read(&format!(r#"{{"name": "format", {test}}}"#)).unwrap();
        let request = TestRequest::get(target);
        let (mut buffer, mut value) = (Vec::new(), Vec::from(*b"left"));
        (
            condition.matches(&request, &mut buffer, &mut value),
            condition.matches_certainly(&request, &mut buffer, &mut value),
        )
    }

    #[test]
    fn a_condition_holds_if_it_does_for_one_reading() {
        const YES: (bool, bool) = (true, true);
        const MAYBE: (bool, bool) = (true, false);
        const NO: (bool, bool) = (false, false);
        for (target, exact, inverted) in [
            ("/?format=json", YES, NO),
            ("/?a=b&format=json", YES, NO),
            ("/?%66ormat=js%6Fn", YES, NO),
            ("/?format=%20json+", MAYBE, MAYBE),
            ("/?format=+json", MAYBE, MAYBE),
            ("/?format=%20json%09", YES, NO),
            ("/?format=json&format=json", YES, NO),
            ("/?format=json&format=xml", MAYBE, MAYBE),
            ("/?format[]=json", MAYBE, MAYBE),
            ("/?Format=json", MAYBE, MAYBE),
            ("/?a=1;format=json", MAYBE, MAYBE),
            ("/?format=json;x", MAYBE, MAYBE),
            ("/?format=%u006ason", MAYBE, MAYBE),
            ("/?format=json%0A", MAYBE, MAYBE),
            ("/?format=json&Format=xml", MAYBE, MAYBE),
            ("/?format=xml", NO, YES),
            ("/?format=JSON", NO, YES),
            ("/?format", NO, YES),
            ("/?formats=json", NO, YES),
            ("/#?format=json", NO, YES),
            ("/format=json", NO, YES),
            ("/", NO, YES),
        ] {
            assert_eq!(check(r#""exact": "json""#, target), exact, "{target}");
            assert_eq!(check(r#""exact": "json", "invert": true"#, target), inverted, "{target} inverted");
        }
        for (target, present, absent) in [
            ("/?format", YES, NO),
            ("/?format=x&Format=y", YES, NO),
            ("/?Format=x", MAYBE, MAYBE),
            ("/?other=x", NO, YES),
        ] {
            assert_eq!(check(r#""present": true"#, target), present, "{target}");
            assert_eq!(check(r#""present": false"#, target), absent, "{target}");
            assert_eq!(check(r#""present": true, "invert": true"#, target), absent, "{target}");
        }
        assert_eq!(check(r#""regex": "[a-z]+""#, "/?format=ab"), YES);
        assert_eq!(check(r#""regex": "[a-z]+""#, "/?format=a+b"), NO);
        assert_eq!(check(r#""contains": "+""#, "/?format=a+b"), MAYBE);
    }

    #[test]
    fn errors() {
        for (json, problem) in [
            (r#"{"exact": "a"}"#, "name: it is missing"),
            (r#"{"name": "a"}"#, "none of"),
            (r#"{"name": "", "exact": "a"}"#, "is empty"),
            (r#"{"name": "a", "exact": "a", "present": true}"#, "both"),
            (r#"{"name": "a", "regex": "("}"#, "regular expression"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(problem), "{json}\n{error}");
        }
    }
}
