//! Summarises a valid configuration: what each rule limits, and which rules clients can evade.

use super::conditions::OVERRIDES_SHOWN;
use weir_core::fields::written;
use weir_core::matching::glob::matches_parts;
use weir_core::model::exact::Algorithm;
use weir_core::rules::rule::Rule;
use weir_core::rules::{Ban, CarriedLimit, Config, Cost, ResponseCost, Share, Violations};

/// The module with response callbacks.
pub const MODULE_OF_RESPONSES: &str = "weir-filter-responses.wasm";

/// Limits below this one are warned of if the algorithm is not exact.
const SMALL: u64 = 5;

/// One line for the configuration, whose JSON is given too, and one for each rule and warning.
pub fn summary(config: &Config, json: &serde_json::Value) -> String {
    let Config { workspace, aggregator, rules, .. } = config;
    let head = format!(
        "valid: workspace {workspace:?}, aggregator cluster {:?}, {} {}",
        aggregator.cluster,
        rules.len(),
        if rules.len() == 1 { "rule" } else { "rules" },
    );
    let needs = config.needs_responses().map(|why| format!("needs {MODULE_OF_RESPONSES}, for {why}"));
    let lines = needs.into_iter().chain(addresses_summary(config)).chain(rules.iter().map(rule_summary));
    let lines = lines.chain(warnings(rules)).chain(rules.iter().enumerate().flat_map(spelling_warnings));
    let lines = lines.chain(rules.iter().enumerate().filter_map(small_limit)).chain(bare_durations(json));
    let lines = lines.chain(rules.iter().enumerate().filter_map(low_reserve));
    let lines = lines.chain(rules.iter().enumerate().filter_map(short_ban));
    let lines = lines.chain(rules.iter().enumerate().flat_map(|rule| unmatched_overrides(rule, json)));
    lines.fold(head, |summary, line| format!("{summary}\n  {line}"))
}

/// Warns of rules that clients can evade by omitting a header or parameter, if no other rule limits such requests.
fn warnings(rules: &[Rule]) -> impl Iterator<Item = String> {
    let evadable = rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| !rule.shadow && !rules.iter().any(|other| other.covers(rule)));
    evadable.flat_map(|(at, rule)| {
        let left_out = rule.left_out().map(|(kind, name)| {
            let name = String::from_utf8_lossy(name);
            format!(
                "warning: rules[{at}].on_missing_identifier: skip allows every request without {kind} {name}; add a rule for such requests, or \
                 use shared or deny"
            )
        });
        let unlisted = rule.evaded_by().map(|(kind, name)| {
            let name = String::from_utf8_lossy(name);
            format!(
                "warning: rules[{at}].identifier: on_unlisted: skip allows every request with another value of {kind} {name}; add a rule for such \
                 requests, or use shared or deny"
            )
        });
        left_out.into_iter().chain(unlisted)
    })
}

/// Warns of what is compared or counted as it was sent, though upstreams accept many spellings of it or take it from elsewhere.
fn spelling_warnings((at, rule): (usize, &Rule)) -> impl Iterator<Item = String> {
    let headers = rule.spelt_headers().map(move |(name, part)| {
        let name = String::from_utf8_lossy(name);
        format!(
            "warning: rules[{at}].identifier: each spelling of header {name} is another client; use {part}"
        )
    });
    let path = rule.compares_sent_path().then(|| {
        format!("warning: rules[{at}].match.headers: :path is compared as it was sent, in any spelling; use match.path")
    });
    let body = rule.query_beside_body().map(|name| {
        let name = String::from_utf8_lossy(name);
        format!(
            "warning: rules[{at}].identifier: many upstreams take {name} from a form in the body where it has one, and a client chooses either; \
             use a header that the front end sets, or let the upstream read the query alone"
        )
    });
    headers.chain(path).chain(body)
}

/// Warns of a limit that a few requests beyond it exceed by much.
fn small_limit((at, rule): (usize, &Rule)) -> Option<String> {
    let is_small =
        rule.algorithm == Algorithm::Window && !rule.hard_limit && (1..SMALL).contains(&rule.limit);
    is_small.then(|| {
        format!(
            "warning: rules[{at}].limit: {} is small; requests that arrive at several Envoys at once may each be allowed; use hard_limit \
             or algorithm: sliding_log if that matters",
            rule.limit
        )
    })
}

/// Warns of responses that may cost more than what is reserved for them, so that parallel requests may exceed the limit together.
fn low_reserve((at, rule): (usize, &Rule)) -> Option<String> {
    let Cost::When(cost) = &rule.cost else { return None };
    let (most, reserve) = (cost.most(), cost.reserve);
    (most > reserve).then(|| {
        format!(
            "warning: rules[{at}].cost.reserve: a request may cost {most}, and {reserve} is held until its response; requests under way \
             together may exceed the limit"
        )
    })
}

/// Warns of a ban that ends while what led to it may still count, so that the next one comes after fewer violations.
fn short_ban((at, rule): (usize, &Rule)) -> Option<String> {
    let ban = rule.ban.as_ref()?;
    let least = ban.window_ms.saturating_mul(2);
    (ban.first_ms < least).then(|| {
        let [first, window, least] = [ban.first_ms, ban.window_ms, least].map(written);
        format!(
            "warning: rules[{at}].ban.duration: after {first}, other Envoys may still count violations from before the ban, as their window is \
             {window}; use {least} or more"
        )
    })
}

/// Warns of overrides that match no identifier of their rule, as they have more or fewer parts.
fn unmatched_overrides((at, rule): (usize, &Rule), json: &serde_json::Value) -> Vec<String> {
    let parts = rule.parts_of_raw_identifiers();
    let overrides = json.pointer(&format!("/rules/{at}/overrides")).and_then(serde_json::Value::as_array);
    let unmatched = overrides.into_iter().flatten().enumerate().filter_map(|(number, listed)| {
        let text = listed.get("identifier")?.as_str()?;
        (!matches_parts(text.as_bytes(), parts)).then_some((number, text))
    });
    let warned = unmatched.take(OVERRIDES_SHOWN).map(|(number, text)| {
        let of = if parts == 1 { "1 part".to_owned() } else { format!("{parts} parts") };
        let text = if rule.hash { "it".to_owned() } else { format!("{text:?}") };
        format!(
            "warning: rules[{at}].overrides[{number}].identifier: {text} matches none, as identifiers of the rule have {of}; `|` separates \
             parts, and `\\|` is one in a value"
        )
    });
    warned.collect()
}

/// Warns of durations that are numbers, since seconds may have been meant.
fn bare_durations(json: &serde_json::Value) -> impl Iterator<Item = String> {
    const PATHS: [&str; 6] =
        ["/window", "/timeout", "/ban/window", "/ban/duration", "/ban/max_duration", "/cost/hold_timeout"];
    let rules = json.get("rules").and_then(serde_json::Value::as_array).into_iter().flatten().enumerate();
    rules.flat_map(|(at, rule)| {
        PATHS.iter().filter_map(move |path| {
            let number = rule.pointer(path).filter(|value| value.is_number())?;
            let path = path[1..].replace('/', ".");
            Some(format!(
                "warning: rules[{at}].{path}: {number} is in milliseconds; write \"{number}ms\", or \"{number}s\" if seconds are meant"
            ))
        })
    })
}

fn addresses_summary(config: &Config) -> Option<String> {
    let (allowed, denied) = config.addresses.listed;
    (allowed + denied > 0).then(|| format!("addresses: exempt {allowed}, denied {denied}"))
}

fn rule_summary(rule: &Rule) -> String {
    let Rule { name, namespace, limit, carried, duration_ms, hash, hard_limit, shadow, enforced, .. } = rule;
    let window = written(*duration_ms);
    let is_money = matches!(&rule.cost, Cost::Usage(cost) if cost.is_money);
    let limit = match carried {
        None if is_money => format!("{} dollars", dollars(*limit)),
        Some(CarriedLimit::Stated(stated)) => {
            format!("{limit} (or what the request carries, at most {})", stated.max)
        }
        Some(CarriedLimit::ByPlan(plans)) => {
            format!(
                "{limit} (or by plan: {} listed, from {} to {})",
                plans.count, plans.lowest, plans.highest
            )
        }
        None => limit.to_string(),
    };
    let limited = match rule.algorithm {
        Algorithm::Window => format!("{limit} per {window} in namespace {namespace:?}"),
        Algorithm::Ledger { zone } => format!("as zone {zone} of the ledger allows"),
        exact => {
            let word = exact.kind().word();
            format!("{limit} per {window} in namespace {namespace:?}, by an exact {word}")
        }
    };
    let hashed = if *hash { ", identifiers hashed" } else { "" };
    let hard_limit = if *hard_limit { ", as a hard limit" } else { "" };
    let cost = cost_summary(&rule.cost);
    let overrides = match rule.overrides_listed() {
        0 => String::new(),
        1 => ", 1 override".to_owned(),
        many => format!(", {many} overrides"),
    };
    let ban = rule.ban.as_ref().map(ban_summary).unwrap_or_default();
    let shadow = match (*shadow, *enforced == Share::ALL) {
        (true, _) => ", in shadow mode: never denies".to_owned(),
        (false, false) => format!(", enforced for {enforced} % of identifiers"),
        (false, true) => String::new(),
    };
    format!("{name}: {limited}{hashed}{hard_limit}{cost}{overrides}{ban}{shadow}")
}

/// Micro-dollars in dollars.
fn dollars(micro: u64) -> String {
    let text = format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn cost_summary(cost: &Cost) -> String {
    match cost {
        Cost::Fixed(1) => String::new(),
        Cost::Fixed(cost) => format!(", a request costs {cost}"),
        Cost::Request(cost) => {
            let of_metadata = |(namespace, key)| {
                format!(
                    "{} in metadata of {}",
                    String::from_utf8_lossy(key),
                    String::from_utf8_lossy(namespace)
                )
            };
            let header = cost.header().map(|name| String::from_utf8_lossy(name).into_owned());
            let name = header.or_else(|| cost.metadata().map(of_metadata)).unwrap_or_default();
            format!(", a request costs the value of {name}, at most {}", cost.max)
        }
        Cost::When(cost) => format!(", a request costs {cost}"),
        Cost::Usage(cost) if cost.is_money => {
            format!(", a request costs what its tokens do, at most {} dollars", dollars(cost.max))
        }
        Cost::Usage(cost) => format!(", a request costs its tokens, at most {}", cost.max),
        Cost::Response(ResponseCost { name, reserve, max, .. }) => {
            let name = String::from_utf8_lossy(name);
            format!(
                ", a request costs the value of {name} in its response ({reserve} until then), at most {max}"
            )
        }
    }
}

fn ban_summary(Ban { threshold, window_ms, first_ms, max_duration_ms, count }: &Ban) -> String {
    let [within, first, longest] = [*window_ms, *first_ms, *max_duration_ms].map(written);
    let of = match count {
        Violations::Denials => "denials",
        Violations::Charged => "charged",
    };
    format!(", bans for {first}, up to {longest}, after {threshold} {of} within {within}")
}
