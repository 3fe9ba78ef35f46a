//! The response of a denial: 429 with the usual headers, and the drafts' formats if they are configured. A ban with an end gives 429
//! too. A ban without end and a denied address give 403, as a retry has no use.
//!
//! `retry-after` (RFC 9110) is in whole seconds, at least 1. `x-ratelimit-limit`, `-remaining` and `-reset` (seconds)
//! are what most gateways send. `RateLimit` and `RateLimit-Policy` are those of
//! draft-ietf-httpapi-ratelimit-headers-08 to -11, whose problem type `quota-exceeded` the JSON body is of.
//!
//! `x-envoy-ratelimited` marks each 429, as Envoy's own limiters do: an Envoy in front does not retry such a response.
//!
//! `x-ratelimit-transaction` has the numbers under which the ledger recorded the request, `x-ratelimit-undecided` the
//! exact rules that were not decided; both may be lists.

use crate::host::headers::HeaderValue;
use std::borrow::Cow;
use weir_core::control::Banned;
use weir_core::limiter::{Budget, Cause, Denial, ExactDetails};
use weir_core::model::exact::Algorithm;
use weir_core::model::time::UnixMs;
use weir_core::rules::{Cost, Responses, Rule};

/// Headers of a denial with all formats.
const HEADERS: usize = 9;

/// An Envoy in front does not retry a response with this header.
const RATE_LIMITED: &str = "x-envoy-ratelimited";
/// Problem type of the draft's section on quotas.
const PROBLEM_TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// Problem type of a response that states no more than its status (RFC 9457).
const PROBLEM_BLANK: &str = "about:blank";
/// gRPC's PERMISSION_DENIED.
const GRPC_PERMISSION_DENIED: i32 = 7;
/// gRPC's RESOURCE_EXHAUSTED.
const GRPC_RESOURCE_EXHAUSTED: i32 = 8;
/// HTTP status, its phrase, and the gRPC status.
const FORBIDDEN: (u32, &str, i32) = (403, "Forbidden", GRPC_PERMISSION_DENIED);
const TOO_MANY: (u32, &str, i32) = (429, "Too Many Requests", GRPC_RESOURCE_EXHAUSTED);

/// A header of a response.
pub type Header = (&'static str, HeaderValue);

/// A response of the filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u32,
    /// For `%RESPONSE_CODE_DETAILS%` of access logs.
    pub details: &'static str,
    /// Response headers.
    pub headers: Vec<Header>,
    /// Response body.
    pub body: Cow<'static, str>,
    /// The gRPC status; gRPC requests get it in place of the HTTP status.
    pub grpc_status: i32,
}

/// The kind of client. Envoy turns the response to a gRPC request into a gRPC status with the body as its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Any HTTP client.
    Http,
    /// A client that sent `content-type: application/grpc…`.
    Grpc,
}

/// The response to a request that one of `rules` denies. `None` if the denial names none of them.
pub fn denied(
    rules: &[Rule],
    denial: &Denial,
    details: &ExactDetails,
    formats: &Responses,
    client: Client,
) -> Option<Response> {
    let rule = rules.get(usize::from(denial.budget.rule))?;
    // A cost above the limit never passes; the window's length makes the client wait before it tries again.
    let retry_after_s = seconds(denial.retry_after_ms.unwrap_or(window_ms(rule, details))).max(1);
    let mut headers = Vec::with_capacity(HEADERS);
    headers.push(("retry-after", retry_after_s.into()));
    // The budget of an undecided exact rule is unknown.
    if denial.cause != Cause::Undecided || rule.algorithm == Algorithm::Window {
        // The draft's `t` is the time until budget is available: here the wait, not the end of the cell.
        let waiting = Budget { reset_ms: retry_after_s.saturating_mul(1_000), ..denial.budget };
        budget_headers(rule, details, (&denial.budget, &waiting), formats, &mut headers);
    }
    let undecided = if denial.cause == Cause::Undecided { bit(denial.budget.rule) } else { 0 };
    exact_headers(
        rules,
        &ExactDetails { undecided: details.undecided | undecided, ..*details },
        &mut headers,
    );
    let details = match denial.cause {
        Cause::Limit | Cause::Cost => "weir_limit_exceeded",
        Cause::Reserved => "weir_limit_reserved",
        Cause::Undecided => "weir_undecided",
    };
    Some(error(rule, details, headers, formats, client))
}

/// The response to a request without an identifier, if the rule denies those. It has no `retry-after`, as waiting has no use.
pub fn missing_identifier(formats: &Responses, client: Client) -> Response {
    rejected(TOO_MANY, "weir_missing_identifier", "identifier missing", Vec::new(), formats, client)
}

/// The response to a request with several values of an identifier, if the rule denies those.
pub fn ambiguous_identifier(formats: &Responses, client: Client) -> Response {
    rejected(TOO_MANY, "weir_ambiguous_identifier", "identifier ambiguous", Vec::new(), formats, client)
}

/// The response to a request whose identifier or network is banned.
pub fn banned(banned: Banned, now: UnixMs, formats: &Responses, client: Client) -> Response {
    let (status, headers) = match banned {
        Banned::ForEver => (FORBIDDEN, Vec::new()),
        Banned::Until(until) => {
            let retry_after_s = seconds(until.0.saturating_sub(now.0)).max(1);
            (TOO_MANY, vec![("retry-after", retry_after_s.into())])
        }
    };
    rejected(status, "weir_banned", "banned", headers, formats, client)
}

/// The response to a request of a client whose address is denied.
pub fn denied_address(formats: &Responses, client: Client) -> Response {
    rejected(FORBIDDEN, "weir_denied_address", "address denied", Vec::new(), formats, client)
}

/// The headers of an allowed request's response: those of its budget if configured, and those of exact rules.
pub fn allowed_headers(
    rules: &[Rule],
    budget: Option<&Budget>,
    details: &ExactDetails,
    formats: &Responses,
) -> Vec<Header> {
    let mut headers = Vec::new();
    if let Some(budget) = budget.filter(|_| formats.headers_on_allowed)
        && let Some(rule) = rules.get(usize::from(budget.rule))
    {
        budget_headers(rule, details, (budget, budget), formats, &mut headers);
    }
    exact_headers(rules, details, &mut headers);
    headers
}

/// Corrects the remaining budget by the cost that the response stated, which replaces what was reserved.
pub fn settle(budget: &mut Budget, rules: &[Rule], cost: u64) {
    if let Some(Cost::Response(details)) = rules.get(usize::from(budget.rule)).map(|rule| &rule.cost) {
        let unreserved = budget.remaining.saturating_add(details.reserve).min(budget.limit);
        budget.remaining = unreserved.saturating_sub(cost);
    }
}

fn exact_headers(rules: &[Rule], details: &ExactDetails, headers: &mut Vec<Header>) {
    if !details.transactions.is_empty() {
        let transactions: Vec<String> =
            details.transactions.iter().map(|number| number.to_string()).collect();
        headers.push(("x-ratelimit-transaction", transactions.join(", ").into()));
    }
    if details.undecided != 0 {
        let undecided = (0u16..).zip(rules).filter(|(index, _)| details.undecided & bit(*index) != 0);
        let names: Vec<&str> = undecided.map(|(_, rule)| rule.name.as_str()).collect();
        headers.push(("x-ratelimit-undecided", names.join(", ").into()));
    }
}

fn budget_headers(
    rule: &Rule,
    details: &ExactDetails,
    (budget, draft): (&Budget, &Budget),
    formats: &Responses,
    headers: &mut Vec<Header>,
) {
    headers.push(("x-ratelimit-limit", budget.limit.into()));
    headers.push(("x-ratelimit-remaining", budget.remaining.into()));
    headers.push(("x-ratelimit-reset", seconds(budget.reset_ms).into()));
    if formats.ietf_headers {
        let (name, window_s) = (&rule.name, seconds(window_ms(rule, details)));
        let limit = format!("\"{name}\";r={};t={}", draft.remaining, seconds(draft.reset_ms));
        headers.push(("ratelimit", limit.into()));
        headers.push(("ratelimit-policy", format!("\"{name}\";q={};w={window_s}", budget.limit).into()));
    }
}

/// The window of a rule. A ledger's window is defined by its zone, so the exact response contains it.
fn window_ms(rule: &Rule, details: &ExactDetails) -> u64 {
    if details.window_ms > 0 { details.window_ms } else { rule.duration_ms }
}

/// The bit of a rule in a set of rules.
pub fn bit(rule: u16) -> u64 {
    1u64.checked_shl(u32::from(rule)).unwrap_or(0)
}

fn error(
    rule: &Rule,
    details: &'static str,
    mut headers: Vec<Header>,
    formats: &Responses,
    client: Client,
) -> Response {
    let body = if formats.problem_json && client == Client::Http {
        headers.push(("content-type", "application/problem+json".into()));
        serde_json::json!({
            "type": PROBLEM_TYPE,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": [rule.name],
        })
        .to_string()
        .into()
    } else {
        headers.push(("content-type", "text/plain".into()));
        "rate limit exceeded".into()
    };
    headers.push((RATE_LIMITED, "true".into()));
    Response { status: 429, details, headers, body, grpc_status: GRPC_RESOURCE_EXHAUSTED }
}

/// The response of a denial that is not about a quota.
fn rejected(
    (status, title, grpc_status): (u32, &str, i32),
    details: &'static str,
    why: &'static str,
    mut headers: Vec<Header>,
    formats: &Responses,
    client: Client,
) -> Response {
    let (kind, body) = match formats.problem_json && client == Client::Http {
        true => {
            let problem = serde_json::json!({
                "type": PROBLEM_BLANK, "title": title, "status": status, "detail": why,
            });
            ("application/problem+json", problem.to_string().into())
        }
        false => ("text/plain", why.into()),
    };
    headers.push(("content-type", HeaderValue::from(kind)));
    if status == TOO_MANY.0 {
        headers.push((RATE_LIMITED, "true".into()));
    }
    Response { status, details, headers, body, grpc_status }
}

/// Whole seconds, rounded up.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::limiter::Transactions;
    use weir_core::rules::Config;

    /// A window, a log and a ledger.
    fn config(responses: &str) -> Config {
        let text = format!(
            r#"{{"aggregator": {{"cluster": "c"}}, "responses": {responses}, "rules": [
            {{"name": "per-key", "identifier": {{"header": "x-key"}}, "limit": 100, "window": "1m"}},
            {{"name": "log", "algorithm": "sliding_log", "identifier": {{"header": "x-key"}}, "limit": 9, "window": "1m"}},
            {{"name": "cards", "algorithm": "ledger", "identifier": {{"header": "x-key"}}, "zone": 7}}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap()
    }

    fn denial(retry_after_ms: Option<u64>, cause: Cause) -> Denial {
        denial_of(0, retry_after_ms, cause)
    }

    fn denial_of(rule: u16, retry_after_ms: Option<u64>, cause: Cause) -> Denial {
        Denial { budget: Budget { rule, limit: 100, remaining: 6, reset_ms: 12_001 }, retry_after_ms, cause }
    }

    fn details(undecided: u64, window_ms: u64, numbers: &[u64]) -> ExactDetails {
        let mut transactions = Transactions::default();
        numbers.iter().for_each(|number| transactions.push(*number));
        ExactDetails { undecided, window_ms, transactions }
    }

    fn check(responses: &str, denial: &Denial, expected: &[(&str, &str)]) -> Response {
        check_details(responses, denial, &ExactDetails::default(), expected)
    }

    fn check_details(
        responses: &str,
        denial: &Denial,
        details: &ExactDetails,
        expected: &[(&str, &str)],
    ) -> Response {
        let config = config(responses);
        let response = denied(&config.rules, denial, details, &config.responses, Client::Http).unwrap();
        let got: Vec<_> =
            response.headers.iter().map(|(name, value)| (*name, value.with_text(str::to_owned))).collect();
        let marked = expected.iter().chain(&[(RATE_LIMITED, "true")]);
        let expected: Vec<_> = marked.map(|(name, value)| (*name, (*value).to_owned())).collect();
        assert_eq!((response.status, got), (429, expected));
        response
    }

    #[test]
    fn a_ledgers_denial_names_its_transaction_and_its_zones_window() {
        let with = |retry_after, window| {
            [
                ("retry-after", retry_after),
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "6"),
                ("x-ratelimit-reset", "13"),
                ("ratelimit", if retry_after == "1" { "\"cards\";r=6;t=1" } else { "\"cards\";r=6;t=300" }),
                ("ratelimit-policy", window),
                ("x-ratelimit-transaction", "18446744073709551615"),
                ("content-type", "text/plain"),
            ]
        };
        let details = details(0, 300_000, &[u64::MAX]);
        let draft = r#"{"ietf_headers": true}"#;
        let policy = "\"cards\";q=100;w=300";
        check_details(draft, &denial_of(2, Some(1), Cause::Limit), &details, &with("1", policy));
        check_details(draft, &denial_of(2, None, Cause::Cost), &details, &with("300", policy));
    }

    #[test]
    fn an_undecided_response_is_marked_so() {
        let undecided = denial_of(1, Some(1_000), Cause::Undecided);
        let response = check_details(
            "{}",
            &undecided,
            &details(0b110, 0, &[]),
            &[("retry-after", "1"), ("x-ratelimit-undecided", "log, cards"), ("content-type", "text/plain")],
        );
        assert_eq!(response.details, "weir_undecided");
        // For a window the local count is shown, even if the region was to be queried.
        check(
            "{}",
            &denial(Some(1_000), Cause::Undecided),
            &[
                ("retry-after", "1"),
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "6"),
                ("x-ratelimit-reset", "13"),
                ("x-ratelimit-undecided", "per-key"),
                ("content-type", "text/plain"),
            ],
        );
    }

    #[test]
    fn an_allowed_response_lists_exact_rules_with_or_without_budgets() {
        let budget = Budget { rule: 1, limit: 9, remaining: 6, reset_ms: 12_001 };
        let get = |responses: &str, details: &ExactDetails| {
            let config = config(responses);
            let headers = allowed_headers(&config.rules, Some(&budget), details, &config.responses);
            headers
                .iter()
                .map(|(name, value)| value.with_text(|text| format!("{name}: {text}")))
                .collect::<Vec<_>>()
        };
        assert!(get("{}", &details(0, 0, &[])).is_empty());
        let exact = ["x-ratelimit-transaction: 5, 7", "x-ratelimit-undecided: cards"];
        assert_eq!(get("{}", &details(0b100, 0, &[5, 7])), exact);
        let all = get(r#"{"headers_on_allowed": true}"#, &details(0b100, 0, &[5, 7]));
        assert_eq!((all[0].as_str(), &all[3..]), ("x-ratelimit-limit: 9", &exact.map(str::to_owned)[..]));
        let none = config("{}");
        assert!(allowed_headers(&none.rules, None, &ExactDetails::default(), &none.responses).is_empty());
    }

    #[test]
    fn a_denial_states_the_wait_and_the_budget() {
        let expected = |retry_after| {
            [
                ("retry-after", retry_after),
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "6"),
                ("x-ratelimit-reset", "13"),
                ("content-type", "text/plain"),
            ]
        };
        for (wait, retry_after) in [(Some(0), "1"), (Some(1), "1"), (Some(1_001), "2"), (None, "60")] {
            check("{}", &denial(wait, Cause::Limit), &expected(retry_after));
        }
    }

    #[test]
    fn the_drafts_formats_are_used_where_configured() {
        let response = check(
            r#"{"ietf_headers": true, "problem_json": true}"#,
            &denial(Some(30_000), Cause::Limit),
            &[
                ("retry-after", "30"),
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "6"),
                ("x-ratelimit-reset", "13"),
                ("ratelimit", "\"per-key\";r=6;t=30"),
                ("ratelimit-policy", "\"per-key\";q=100;w=60"),
                ("content-type", "application/problem+json"),
            ],
        );
        let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
        assert_eq!(body["type"], PROBLEM_TYPE);
        assert_eq!(body["violated-policies"][0], "per-key");
    }

    #[test]
    fn a_grpc_client_gets_a_plain_message() {
        let config = config(r#"{"problem_json": true}"#);
        let denial = denial(Some(1), Cause::Limit);
        let details = ExactDetails::default();
        let response = denied(&config.rules, &denial, &details, &config.responses, Client::Grpc).unwrap();
        assert_eq!(response.body, "rate limit exceeded");
    }

    #[test]
    fn a_ban_states_its_end_if_it_has_one() {
        let formats = config(r#"{"problem_json": true, "ietf_headers": true}"#);
        let responses = &formats.responses;
        let now = UnixMs(1_000);
        for (until, retry_after) in [(61_000, 60), (61_001, 61), (1_001, 1), (0, 1)] {
            let response = banned(Banned::Until(UnixMs(until)), now, responses, Client::Http);
            assert_eq!((response.status, response.details), (429, "weir_banned"));
            assert_eq!(response.headers[0], ("retry-after", retry_after.into()));
            assert_eq!(response.headers[2], (RATE_LIMITED, "true".into()));
            assert_eq!(
                response.body,
                r#"{"detail":"banned","status":429,"title":"Too Many Requests","type":"about:blank"}"#
            );
            assert_eq!(response.grpc_status, GRPC_RESOURCE_EXHAUSTED);
        }
        let for_ever = banned(Banned::ForEver, now, responses, Client::Http);
        assert_eq!((for_ever.status, for_ever.grpc_status), (403, GRPC_PERMISSION_DENIED));
        assert_eq!(for_ever.headers, [("content-type", "application/problem+json".into())]);
        assert_eq!(
            for_ever.body,
            r#"{"detail":"banned","status":403,"title":"Forbidden","type":"about:blank"}"#
        );
    }

    #[test]
    fn a_missing_identifier_is_denied_without_a_wait() {
        let problem = r#"{"detail":"identifier missing","status":429,"title":"Too Many Requests","type":"about:blank"}"#;
        for (responses, kind, body) in [
            ("{}", "text/plain", "identifier missing"),
            (r#"{"problem_json": true}"#, "application/problem+json", problem),
        ] {
            let response = missing_identifier(&config(responses).responses, Client::Http);
            assert_eq!((response.status, response.details), (429, "weir_missing_identifier"));
            assert_eq!(response.headers, [("content-type", kind.into()), (RATE_LIMITED, "true".into())]);
            assert_eq!(response.body, body);
            let ambiguous = ambiguous_identifier(&config(responses).responses, Client::Http);
            assert_eq!((ambiguous.status, ambiguous.details), (429, "weir_ambiguous_identifier"));
            assert_eq!(ambiguous.headers, response.headers);
            assert_eq!(ambiguous.body, body.replace("missing", "ambiguous"));
        }
    }

    #[test]
    fn the_remaining_budget_follows_the_cost_of_the_response() {
        let text = r#"{"aggregator": {"cluster": "c"}, "rules": [
            {"name": "fixed", "identifier": {"header": "x-key"}, "limit": 1000, "window": "1m"},
            {"name": "stated", "identifier": {"header": "x-key"}, "limit": 1000, "window": "1m",
             "cost": {"response": {"header": "x-used"}, "reserve": 100, "max": 5000}}]}"#;
        let config = Config::parse(text.as_bytes()).unwrap();
        for (rule, remaining, cost, expected) in [
            (1, 900, 300, 700),
            (1, 900, 100, 900),
            (1, 900, 0, 1_000),
            (1, 900, 5_000, 0),
            (1, 0, 40, 60),
            (1, u64::MAX, 0, 1_000),
            (0, 900, 300, 900),
            (7, 900, 300, 900),
        ] {
            let mut budget = Budget { rule, limit: 1_000, remaining, reset_ms: 1 };
            settle(&mut budget, &config.rules, cost);
            assert_eq!(budget.remaining, expected, "{rule} {remaining} {cost}");
        }
    }

    #[test]
    fn a_denied_address_gets_403() {
        for (responses, client) in [("{}", Client::Http), (r#"{"problem_json": true}"#, Client::Grpc)] {
            let response = denied_address(&config(responses).responses, client);
            assert_eq!((response.status, &*response.body), (403, "address denied"));
            assert_eq!(response.headers, [("content-type", "text/plain".into())]);
        }
    }
}
