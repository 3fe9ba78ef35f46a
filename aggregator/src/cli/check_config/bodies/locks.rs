//! Rules by a parsed body, and those that limit requests whose body is not parsed.

use super::super::order::one_or_list;
use super::parsers::namespace_of;
use serde_json::{Value, json};
use weir_core::model::exact::Algorithm;
use weir_core::rules::{CarriedLimit, Config, Cost, Lines, Live, Missing, Request, Rule, Scratch, Share};

/// Warns of conditions on a body that no request without a parsed body meets, if no rule is a lock for such requests.
pub fn evaded(config: &Config, json: &Value, is_of_body: impl Fn(&str) -> bool) -> Option<String> {
    let written = json["rules"].as_array().into_iter().flatten();
    let rules: Vec<RuleOfBody<'_>> = config
        .rules
        .iter()
        .zip(written)
        .zip(0..)
        .map(|((rule, json), at)| RuleOfBody { rule, json, at })
        .collect();
    let is_closed = |evaded: &RuleOfBody<'_>, namespace: &str| {
        evaded.methods().iter().all(|method| rules.iter().any(|lock| lock.locks(evaded, namespace, method)))
    };
    let (at, namespace) = rules.iter().filter(|one| !one.rule.shadow).find_map(|one| {
        let mut evaded = conditions(one.json).filter(|(_, meets_nothing)| !meets_nothing);
        let (namespace, _) =
            evaded.find(|(namespace, _)| is_of_body(namespace) && !is_closed(one, namespace))?;
        Some((one.at, namespace))
    })?;
    Some(format!(
        "warning: rules[{at}].match.metadata: a request whose body is not parsed, such as a batch, a large or a compressed one, does not \
         meet it; add a rule with present: false on metadata of {namespace} that is enforced for all such requests, with no higher limit for what they cost"
    ))
}

/// A rule, and how it is written.
struct RuleOfBody<'a> {
    rule: &'a Rule,
    json: &'a Value,
    /// Its place among the rules.
    at: usize,
}

impl<'a> RuleOfBody<'a> {
    /// The methods of requests with a body that it is for.
    fn methods(&self) -> Vec<&'a str> {
        let methods = &self.json["match"]["methods"];
        let methods: Vec<&str> = one_or_list(methods).iter().filter_map(Value::as_str).collect();
        if methods.is_empty() { Vec::from(["POST"]) } else { methods }
    }

    /// Whether it limits all requests of this method that `evaded` would apply to if the metadata were there, and not by less.
    fn locks(&self, evaded: &RuleOfBody<'_>, namespace: &str, method: &str) -> bool {
        let mut of_namespace = conditions(self.json).filter(|(other, _)| *other == namespace).peekable();
        let is_for_unparsed = of_namespace.peek().is_some() && of_namespace.all(|(_, nothing)| nothing);
        is_for_unparsed && self.is_enforced(evaded) && self.is_for_all_of(evaded, namespace, method)
    }

    /// Whether it denies at the latest when `evaded` would.
    fn is_enforced(&self, evaded: &RuleOfBody<'_>) -> bool {
        let Rule { cost, shadow, enforced, missing, algorithm, .. } = self.rule;
        let is_ledger =
            [algorithm, &evaded.rule.algorithm].iter().any(|one| matches!(one, Algorithm::Ledger { .. }));
        let can_lack = self.rule.left_out().is_some() || self.rule.metadata_parts().next().is_some();
        let skips = *missing == Missing::Skip && can_lack;
        // Of its group another rule may apply in its place, but for the one that it is to replace.
        let is_replaced = self.rule.replaced_by().any(|other| other != evaded.at);
        !shadow
            && *enforced == Share::ALL
            && matches!(cost, Cost::Fixed(1..) | Cost::Request(_))
            && !skips
            && !is_replaced
            && (is_ledger || self.is_no_higher(evaded))
    }

    /// Whether no identifier passes more requests in a time than under `evaded`: by limit and cost, or by the same limit at no lower cost.
    fn is_no_higher(&self, evaded: &RuleOfBody<'_>) -> bool {
        let (own_ms, other_ms) = (self.rule.duration_ms, evaded.rule.duration_ms);
        let (own_cost, other_cost) = match self.json["cost"] == evaded.json["cost"] {
            true => (1, 1),
            false => (self.costs().0, evaded.costs().1),
        };
        let product = |limit: u64, ms: u64, cost: u64| {
            u128::from(limit).saturating_mul(u128::from(ms)).saturating_mul(u128::from(cost))
        };
        let is_within =
            |own: u64, other: u64| product(own, other_ms, other_cost) <= product(other, own_ms, own_cost);
        let is_same = |field: &str| {
            self.json[field] == evaded.json[field] && own_ms >= other_ms && own_cost >= other_cost
        };
        let ((_, highest), (lowest, _)) = (self.limits(), evaded.limits());
        // An override without a limit exempts.
        let is_low = |limit: Option<u64>| limit.is_some_and(|limit| is_within(limit, lowest));
        let is_high = |limit: Option<u64>| limit.is_none_or(|limit| is_within(highest, limit));
        let are_sound = self.overrides().all(is_low) && evaded.overrides().all(is_high);
        (is_same("limit") || is_within(highest, lowest)) && (is_same("overrides") || are_sound)
    }

    /// The least and the most that a request costs, as far as that is known before its response: what that settles is taken for 1.
    fn costs(&self) -> (u64, u64) {
        match &self.rule.cost {
            Cost::Fixed(cost) => (*cost, *cost),
            Cost::Request(cost) => (1, cost.max),
            Cost::Response(_) | Cost::When(_) | Cost::Usage(_) => (1, 1),
        }
    }

    /// The limits of its overrides, of which one may exempt.
    fn overrides(&self) -> impl Iterator<Item = Option<u64>> {
        self.json["overrides"].as_array().into_iter().flatten().map(|one| one["limit"].as_u64())
    }

    /// The lowest and the highest limit of those without an override.
    fn limits(&self) -> (u64, u64) {
        match &self.rule.carried {
            None => (self.rule.limit, self.rule.limit),
            Some(CarriedLimit::ByPlan(plans)) => (plans.lowest, plans.highest),
            Some(CarriedLimit::Stated(stated)) => (0, stated.max),
        }
    }

    /// Whether its conditions, but those on the metadata, hold for all requests of this method that meet those of `evaded`.
    fn is_for_all_of(&self, evaded: &RuleOfBody<'_>, namespace: &str, method: &str) -> bool {
        let (own, other) = (&self.json["match"], &evaded.json["match"]);
        let own = own.as_object().into_iter().flatten();
        own.filter(|(field, _)| *field != "methods").all(|(field, wanted)| {
            let others = one_or_list(&other[field]);
            match field.as_str() {
                "metadata" => one_or_list(wanted)
                    .iter()
                    .all(|one| namespace_of(one) == Some(namespace) || others.contains(one)),
                "headers" => {
                    one_or_list(wanted).iter().all(|one| others.contains(one) || is_of_method(one, method))
                }
                "host" => {
                    others != [Value::Null] && others.iter().all(|host| one_or_list(wanted).contains(host))
                }
                _ => *wanted == other[field],
            }
        }) && self.is_for_method(method)
    }

    fn is_for_method(&self, method: &str) -> bool {
        let methods = &self.json["match"]["methods"];
        methods.is_null() || one_or_list(methods).iter().any(|one| one == method)
    }
}

/// Whether a condition on a header holds for every request of this method.
fn is_of_method(condition: &Value, method: &str) -> bool {
    let rule = json!({
        "name": "method", "match": { "headers": [condition] }, "identifier": { "constant": "all" }, "limit": 1, "window": "1m",
    });
    let config = json!({ "aggregator": { "cluster": "c" }, "rules": [rule] }).to_string();
    let is_name = condition["name"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(":method"));
    is_name
        && Config::parse(config.as_bytes()).is_ok_and(|config| {
            let mut scratch = Scratch::default();
            config.resolve(&OfMethod(method), &Live::default(), &mut scratch).len() == 1
        })
}

/// A request that has a method, and nothing else.
struct OfMethod<'a>(&'a str);

impl Request for OfMethod<'_> {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        if name == b":method" { Lines::One(self.0.as_bytes()) } else { Lines::None }
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        if let Lines::One(value) = self.header(name) {
            line(value);
        }
    }

    fn property(&self, _: &[u8], _: &mut Vec<u8>) -> bool {
        false
    }
}

/// The conditions of a rule on metadata: the namespace, and whether the condition holds without the metadata.
fn conditions(rule: &Value) -> impl Iterator<Item = (&str, bool)> {
    let conditions = rule["match"]["metadata"].as_array().into_iter().flatten();
    conditions.filter_map(|condition| Some((namespace_of(condition)?, meets_nothing(condition))))
}

/// Whether a condition holds for a request without the metadata.
fn meets_nothing(condition: &Value) -> bool {
    (condition["present"] == false) != (condition["invert"] == true)
}
