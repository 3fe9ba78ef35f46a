//! The response of a denial: 429 with the usual headers, and the drafts' formats if they are configured. A ban with an end gives 429
//! too. A ban without end and a denied address give 403, and a path that meets too many rules 400, as a retry has no use.
//!
//! `retry-after` (RFC 9110) is in whole seconds, at least 1. `x-ratelimit-limit`, `-remaining` and `-reset` (seconds)
//! are what most gateways send; a configuration may name them otherwise, and state the reset as a moment. `RateLimit` and `RateLimit-Policy` are those of
//! draft-ietf-httpapi-ratelimit-headers-08 to -11, whose problem type `quota-exceeded` the JSON body is of. `x-ratelimit-…` are those of the
//! budget that ends first; the two lists have the rules that apply, at most [`MAX_BUDGETS`]. A denial's `RateLimit` names only the rule that
//! denies: another rule's `t` may be later than `retry-after`, which the draft advises against.
//!
//! `x-envoy-ratelimited` marks each 429, as Envoy's own limiters do: an Envoy in front does not retry such a response.
//!
//! A rule may have a status and a body of its own, and may hide all headers about its limit (`OwnResponse`).
//!
//! `x-ratelimit-transaction` has the numbers under which the ledger recorded the request, `x-ratelimit-undecided` the
//! exact rules that were not decided; both may be lists.

use crate::host::headers::HeaderValue;
use std::borrow::Cow;
use weir_core::control::Banned;
use weir_core::limiter::{Budget, Cause, Denial, ExactDetails, MAX_BUDGETS, RuleSet, Transactions};
use weir_core::model::exact::Algorithm;
use weir_core::model::time::UnixMs;
use weir_core::rules::{JsonRpc, LimitHeaders, Reset, Responses, Rule};

/// Headers of a denial with all formats.
const HEADERS: usize = 10;

/// Largest integer of a structured field (RFC 9651).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// An Envoy in front does not retry a response with this header.
const RATE_LIMITED: &str = "x-envoy-ratelimited";
/// The headers of a budget, as most gateways name them.
const BUDGET_HEADERS: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
const CONTENT_TYPE: &str = "content-type";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// The text of a denial by a limit.
const EXCEEDED: &str = "rate limit exceeded";
/// Problem type of the draft's section on quotas.
const PROBLEM_TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// Problem type of a response that states no more than its status (RFC 9457).
const PROBLEM_BLANK: &str = "about:blank";
/// gRPC's INVALID_ARGUMENT.
const GRPC_INVALID_ARGUMENT: i32 = 3;
/// gRPC's PERMISSION_DENIED.
const GRPC_PERMISSION_DENIED: i32 = 7;
/// gRPC's RESOURCE_EXHAUSTED.
const GRPC_RESOURCE_EXHAUSTED: i32 = 8;
/// HTTP status, its phrase, and the gRPC status.
const OK: u32 = 200;
const BAD_REQUEST: (u32, &str, i32) = (400, "Bad Request", GRPC_INVALID_ARGUMENT);
const FORBIDDEN: (u32, &str, i32) = (403, "Forbidden", GRPC_PERMISSION_DENIED);
const TOO_MANY: (u32, &str, i32) = (429, "Too Many Requests", GRPC_RESOURCE_EXHAUSTED);

/// A header of a response.
pub type Header = (Cow<'static, str>, HeaderValue);

/// A response of the filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u32,
    /// For `%RESPONSE_CODE_DETAILS%` of access logs, which name the rule besides.
    pub details: &'static str,
    /// Response headers. Envoy adds `content-type: text/plain` where there is no other.
    pub headers: Vec<Header>,
    /// Response body.
    pub body: Cow<'static, str>,
    /// The gRPC status; gRPC requests get it in place of the HTTP status.
    pub grpc_status: i32,
    /// The response is an error of JSON-RPC, to be completed by [`Response::complete`].
    pub rpc: Option<Box<RpcError>>,
}

/// An error of JSON-RPC for a call whose id is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcError {
    form: JsonRpc,
    /// The error object, as JSON.
    error: String,
    /// HTTP status if the id is known.
    status: u32,
}

impl RpcError {
    /// The path of the property that holds the id.
    pub fn id_path(&self) -> &[u8] {
        self.form.id_path()
    }

    /// Whether the whole metadata is needed to read an id.
    pub fn needs_metadata(&self, id: &[u8]) -> bool {
        self.form.is_ambiguous(id)
    }
}

impl Response {
    /// Adds the id, which the property and, if needed, the whole metadata hold, and the form that the client accepts: one event to a client that accepts nothing but
    /// events. Without a usable id nothing waits for the response, so that it stays the usual one, with `null` in place of the id.
    pub fn complete(mut self, id: &[u8], metadata: &[u8], accept: Option<&[u8]>) -> Response {
        let Some(rpc) = self.rpc.take() else { return self };
        let id = rpc.form.id(id, metadata);
        if id.is_some() {
            self.status = rpc.status;
            self.headers.retain(|(name, _)| name != RATE_LIMITED);
            mark(self.status, &mut self.headers);
        }
        let body = JsonRpc::response(id.as_deref(), &rpc.error);
        let (kind, body) = match accept.is_some_and(accepts_events_alone) {
            true => (EVENTS, format!("event: message\ndata: {body}\n\n")),
            false => (JSON, body),
        };
        self.headers.retain(|(name, _)| name != CONTENT_TYPE);
        self.headers.push((CONTENT_TYPE.into(), kind.into()));
        self.body = body.into();
        self
    }
}

/// Whether a client accepts events, and no JSON.
fn accepts_events_alone(accept: &[u8]) -> bool {
    let accept = accept.to_ascii_lowercase();
    let has = |kind: &str| accept.windows(kind.len()).any(|part| part == kind.as_bytes());
    has(EVENTS) && ![JSON, "application/*", "*/*"].into_iter().any(has)
}

/// The kind of client. Envoy turns the response to a gRPC request into a gRPC status with the body as its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Any HTTP client.
    Http,
    /// A client that sent `content-type: application/grpc…`.
    Grpc,
}

/// The response to a request that one of `rules` denies. `None` if the denial names none of them. `policies` are the limits that apply,
/// for the draft's headers.
pub fn denied(
    rules: &[Rule],
    (denial, policies): (&Denial, Vec<(u16, u64)>),
    details: &ExactDetails,
    formats: &Responses,
    client: Client,
    now: fn() -> UnixMs,
) -> Option<Response> {
    let rule = rules.get(usize::from(denial.budget.rule))?;
    // A cost above the limit never passes; the window's length makes the client wait before it tries again.
    let window_ms = window_ms(rules, denial.budget.rule, details).unwrap_or(0);
    let retry_after_s = seconds(denial.retry_after_ms.unwrap_or(window_ms)).max(1);
    let numbers = Numbers { limit: denial.budget.limit, retry_after_s };
    let cause = match denial.cause {
        Cause::Limit | Cause::Cost => "weir_limit_exceeded",
        Cause::Reserved => "weir_limit_reserved",
        Cause::Undecided => "weir_undecided",
    };
    if rule.is_hidden() {
        return Some(rejected(
            TOO_MANY,
            cause,
            EXCEEDED,
            Vec::new(),
            (Some((rule, numbers)), formats),
            client,
        ));
    }
    let mut headers = Vec::with_capacity(HEADERS);
    headers.push(("retry-after".into(), retry_after_s.into()));
    // The budget of an undecided exact rule is unknown.
    if denial.cause != Cause::Undecided || rule.algorithm == Algorithm::Window {
        let wait_ms = retry_after_s.saturating_mul(1_000);
        // A client that waits for the reset may pass then.
        let shown = Budget { reset_ms: denial.budget.reset_ms.max(wait_ms), ..denial.budget };
        budget_headers(&shown, (formats, now), &mut headers);
        token_headers(rules, &[shown], &mut headers);
        if formats.ietf_headers {
            // The draft's `t` is the time until budget is available: here the wait, not the end of the cell.
            let waiting = Budget { reset_ms: wait_ms, ..denial.budget };
            headers.push(("ratelimit".into(), limits(rules, &[waiting]).into()));
            let policies = with_denying(rules, &denial.budget, policies);
            headers.push(("ratelimit-policy".into(), listed(rules, policies.into_iter(), details).into()));
        }
    }
    let mut undecided = details.undecided.clone();
    if denial.cause == Cause::Undecided {
        undecided.insert(denial.budget.rule);
    }
    exact_headers(rules, &undecided, &details.transactions, &mut headers);
    Some(error(rule, cause, headers, (numbers, formats), client))
}

/// The response to a request without an identifier, if the rule denies those. It has no `retry-after`, as waiting has no use.
pub fn missing_identifier(rule: Option<&Rule>, formats: &Responses, client: Client) -> Response {
    let of = rule.map(|rule| (rule, Numbers::without_wait(rule)));
    rejected(TOO_MANY, "weir_missing_identifier", "identifier missing", Vec::new(), (of, formats), client)
}

/// The response to a request with a value of an identifier that is not listed, if the rule denies those.
pub fn unlisted_identifier(rule: Option<&Rule>, formats: &Responses, client: Client) -> Response {
    let of = rule.map(|rule| (rule, Numbers::without_wait(rule)));
    rejected(TOO_MANY, "weir_unlisted_identifier", "identifier not listed", Vec::new(), (of, formats), client)
}

/// The response to a request with several values of an identifier, if the rule denies those.
pub fn ambiguous_identifier(rule: Option<&Rule>, formats: &Responses, client: Client) -> Response {
    let of = rule.map(|rule| (rule, Numbers::without_wait(rule)));
    rejected(TOO_MANY, "weir_ambiguous_identifier", "identifier ambiguous", Vec::new(), (of, formats), client)
}

/// The response to a request whose identifier or network is banned.
pub fn banned(
    banned: Banned,
    now: UnixMs,
    rule: Option<&Rule>,
    formats: &Responses,
    client: Client,
) -> Response {
    let (status, retry_after_s) = match banned {
        Banned::ForEver => (FORBIDDEN, 0),
        Banned::Until(until) => (TOO_MANY, seconds(until.0.saturating_sub(now.0)).max(1)),
    };
    let is_shown = retry_after_s > 0 && !rule.is_some_and(Rule::is_hidden);
    let headers = if is_shown { vec![("retry-after".into(), retry_after_s.into())] } else { Vec::new() };
    let of = rule.map(|rule| (rule, Numbers { limit: rule.limit, retry_after_s }));
    rejected(status, "weir_banned", "banned", headers, (of, formats), client)
}

/// The response to a request of a client whose address is denied.
pub fn denied_address(formats: &Responses, client: Client) -> Response {
    rejected(FORBIDDEN, "weir_denied_address", "address denied", Vec::new(), (None, formats), client)
}

/// The response to a request whose path or host has readings that meet too many rules. No retry passes.
pub fn ambiguous_path(formats: &Responses, client: Client) -> Response {
    rejected(BAD_REQUEST, "weir_ambiguous_path", "path ambiguous", Vec::new(), (None, formats), client)
}

/// The headers of an allowed request's response: those of its budgets, and those of exact rules.
pub fn allowed_headers(
    rules: &[Rule],
    mut budgets: Vec<Budget>,
    details: &ExactDetails,
    formats: &Responses,
    now: fn() -> UnixMs,
) -> Vec<Header> {
    let mut headers = Vec::new();
    budgets.sort_unstable_by_key(|budget| budget.rule);
    let sooner = |one: Budget, other: Budget| if other.ends_before(&one) { other } else { one };
    if let Some(first) = budgets.iter().copied().reduce(sooner) {
        budget_headers(&first, (formats, now), &mut headers);
        token_headers(rules, &budgets, &mut headers);
        if formats.ietf_headers {
            headers.push(("ratelimit".into(), limits(rules, &budgets).into()));
            let policies = budgets.iter().map(|budget| (budget.rule, budget.limit));
            headers.push(("ratelimit-policy".into(), listed(rules, policies, details).into()));
        }
    }
    exact_headers(rules, &details.undecided, &details.transactions, &mut headers);
    headers
}

/// Whether responses have headers about the limit of this rule.
pub fn is_shown(rules: &[Rule], rule: u16) -> bool {
    rules.get(usize::from(rule)).is_some_and(|rule| !rule.is_hidden())
}

/// Corrects the remaining budget by the cost that the response stated, which replaces what was reserved.
pub fn settle(budget: &mut Budget, reserved: u64, cost: u64) {
    let unreserved = budget.remaining.saturating_add(reserved).min(budget.limit);
    budget.remaining = unreserved.saturating_sub(cost);
}

fn exact_headers(
    rules: &[Rule],
    undecided: &RuleSet,
    transactions: &Transactions,
    headers: &mut Vec<Header>,
) {
    if !transactions.is_empty() {
        let transactions: Vec<String> = transactions.iter().map(|number| number.to_string()).collect();
        headers.push(("x-ratelimit-transaction".into(), transactions.join(", ").into()));
    }
    if !undecided.is_empty() {
        let undecided = undecided.iter().filter_map(|rule| rules.get(usize::from(rule)));
        let shown = undecided.filter(|rule| !rule.is_hidden());
        let names: Vec<&str> = shown.map(|rule| rule.name.as_str()).collect();
        if !names.is_empty() {
            headers.push(("x-ratelimit-undecided".into(), names.join(", ").into()));
        }
    }
}

fn budget_headers(budget: &Budget, (formats, now): (&Responses, fn() -> UnixMs), headers: &mut Vec<Header>) {
    let reset = match formats.reset {
        Reset::Seconds => seconds(budget.reset_ms),
        Reset::UnixSeconds => seconds(now().0.saturating_add(budget.reset_ms)),
    };
    let values = [budget.limit, budget.remaining, reset];
    for ((usual, given), value) in BUDGET_HEADERS.into_iter().zip(&formats.names).zip(values) {
        let name = given.as_deref().map_or(Cow::Borrowed(usual), |name| Cow::Owned(name.to_owned()));
        headers.push((name, value.into()));
    }
}

/// The headers of OpenAI's API about tokens, of the first limit that shows them.
fn token_headers(rules: &[Rule], budgets: &[Budget], headers: &mut Vec<Header>) {
    let of_tokens = |budget: &&Budget| {
        rules.get(usize::from(budget.rule)).is_some_and(|rule| rule.headers() == LimitHeaders::OpenAi)
    };
    if let Some(budget) = budgets.iter().find(of_tokens) {
        headers.push(("x-ratelimit-limit-tokens".into(), budget.limit.into()));
        headers.push(("x-ratelimit-remaining-tokens".into(), budget.remaining.into()));
        headers.push(("x-ratelimit-reset-tokens".into(), format!("{}s", seconds(budget.reset_ms)).into()));
    }
}

/// The draft's `RateLimit`.
fn limits(rules: &[Rule], budgets: &[Budget]) -> String {
    let item = |budget: &Budget| {
        let name = &rules.get(usize::from(budget.rule))?.name;
        let remaining = budget.remaining.min(INTEGER_MAX);
        Some(format!("\"{name}\";r={remaining};t={}", seconds(budget.reset_ms)))
    };
    budgets.iter().filter_map(item).collect::<Vec<_>>().join(", ")
}

/// The draft's `RateLimit-Policy`, of rules with their limits.
fn listed(rules: &[Rule], policies: impl Iterator<Item = (u16, u64)>, details: &ExactDetails) -> String {
    let item = |(rule, limit): (u16, u64)| {
        let name = &rules.get(usize::from(rule))?.name;
        let limit = limit.min(INTEGER_MAX);
        Some(match window_ms(rules, rule, details) {
            Some(window_ms) => format!("\"{name}\";q={limit};w={}", seconds(window_ms)),
            None => format!("\"{name}\";q={limit}"),
        })
    };
    policies.filter_map(item).collect::<Vec<_>>().join(", ")
}

/// The limits that clients see, that of the denying rule in any case, in the order of the rules.
fn with_denying(rules: &[Rule], denying: &Budget, mut policies: Vec<(u16, u64)>) -> Vec<(u16, u64)> {
    policies.retain(|(rule, _)| *rule != denying.rule && is_shown(rules, *rule));
    policies.dedup_by_key(|(rule, _)| *rule);
    policies.truncate(MAX_BUDGETS - 1);
    policies.push((denying.rule, denying.limit));
    policies.sort_unstable();
    policies
}

/// The window of a rule. A ledger's window is defined by its zone, so only the exact response contains it.
fn window_ms(rules: &[Rule], rule: u16, details: &ExactDetails) -> Option<u64> {
    let configured = || rules.get(usize::from(rule)).map(|rule| rule.duration_ms);
    details.window_ms(rule).or_else(configured).filter(|window_ms| *window_ms > 0)
}

/// The values of a body's placeholders.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    limit: u64,
    /// 0 if waiting has no use.
    retry_after_s: u64,
}

impl Numbers {
    fn without_wait(rule: &Rule) -> Numbers {
        Numbers { limit: rule.limit, retry_after_s: 0 }
    }
}

/// Status and body of a rule's own response, for what of both the rule states. The message of a gRPC status is text, so
/// it is never JSON.
fn own(rule: &Rule, numbers: Numbers, client: Client) -> (Option<u32>, Option<(String, String)>) {
    let Some(own) = &rule.response else { return (None, None) };
    let body = own.body.as_ref().filter(|body| client == Client::Http || !body.is_json);
    let body = body.map(|body| {
        (body.content_type.clone(), body.render(&rule.name, numbers.limit, numbers.retry_after_s))
    });
    // A status of success is for calls whose id is known.
    (own.status.map(u32::from).filter(|status| *status >= BAD_REQUEST.0), body)
}

/// The error of JSON-RPC, if the rule's denials are such.
fn rpc_error(rule: &Rule, numbers: Numbers, why: &str, client: Client) -> Option<Box<RpcError>> {
    let own = rule.response.as_ref().filter(|_| client == Client::Http)?;
    let form = own.json_rpc.clone()?;
    let shown = (!rule.is_hidden()).then_some((numbers.limit, numbers.retry_after_s));
    let error = JsonRpc::error(why, &rule.name, shown);
    Some(Box::new(RpcError { form, error, status: own.status.map_or(OK, u32::from) }))
}

/// The response of a denial by a limit that clients may see.
fn error(
    rule: &Rule,
    details: &'static str,
    mut headers: Vec<Header>,
    (numbers, formats): (Numbers, &Responses),
    client: Client,
) -> Response {
    let (own_status, own_body) = own(rule, numbers, client);
    let status = own_status.unwrap_or(TOO_MANY.0);
    let body = if let Some((kind, body)) = own_body {
        headers.push(("content-type".into(), kind.into()));
        body.into()
    } else if formats.problem_json && client == Client::Http {
        headers.push(("content-type".into(), "application/problem+json".into()));
        serde_json::json!({
            "type": PROBLEM_TYPE,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": status,
            "violated-policies": [rule.name],
        })
        .to_string()
        .into()
    } else {
        EXCEEDED.into()
    };
    mark(status, &mut headers);
    let rpc = rpc_error(rule, numbers, EXCEEDED, client);
    Response { status, details, headers, body, grpc_status: GRPC_RESOURCE_EXHAUSTED, rpc }
}

/// The response of a denial that states no quota. `of` is the rule that denies, with the values for its body.
fn rejected(
    (usual_status, title, grpc_status): (u32, &str, i32),
    details: &'static str,
    why: &'static str,
    mut headers: Vec<Header>,
    (of, formats): (Option<(&Rule, Numbers)>, &Responses),
    client: Client,
) -> Response {
    let (own_status, own_body) = of.map_or((None, None), |(rule, numbers)| own(rule, numbers, client));
    let status = own_status.unwrap_or(usual_status);
    let body = if let Some((kind, body)) = own_body {
        headers.push((CONTENT_TYPE.into(), kind.into()));
        body.into()
    } else if formats.problem_json && client == Client::Http {
        // The title of a blank problem is the phrase of its status, which is known of the usual one alone.
        let problem = match status == usual_status {
            true => serde_json::json!({
                "type": PROBLEM_BLANK, "title": title, "status": status, "detail": why,
            }),
            false => serde_json::json!({"type": PROBLEM_BLANK, "status": status, "detail": why}),
        };
        headers.push((CONTENT_TYPE.into(), "application/problem+json".into()));
        problem.to_string().into()
    } else {
        why.into()
    };
    mark(status, &mut headers);
    let rpc = of.and_then(|(rule, numbers)| rpc_error(rule, numbers, why, client));
    Response { status, details, headers, body, grpc_status, rpc }
}

/// Marks a 429 as Envoy's own limiters do.
fn mark(status: u32, headers: &mut Vec<Header>) {
    if status == TOO_MANY.0 {
        headers.push((RATE_LIMITED.into(), "true".into()));
    }
}

/// Whole seconds, rounded up.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::rules::Config;

    fn now() -> UnixMs {
        UnixMs(1_700_000_000_500)
    }

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

    fn details(undecided: &[u16], window_ms: u64, numbers: &[u64]) -> ExactDetails {
        let windows = if window_ms > 0 { vec![(2, window_ms)] } else { Vec::new() };
        let undecided = undecided.iter().copied().collect();
        let mut transactions = Transactions::default();
        numbers.iter().for_each(|number| transactions.push(*number));
        ExactDetails { undecided, windows, transactions }
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
        let of = (denial, Vec::new());
        let response = denied(&config.rules, of, details, &config.responses, Client::Http, now).unwrap();
        let got: Vec<_> = response
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.with_text(str::to_owned)))
            .collect();
        let marked = expected.iter().chain(&[(RATE_LIMITED, "true")]);
        let expected: Vec<_> = marked.map(|(name, value)| (name.to_string(), (*value).to_owned())).collect();
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
                ("x-ratelimit-reset", if retry_after == "1" { "13" } else { retry_after }),
                ("ratelimit", if retry_after == "1" { "\"cards\";r=6;t=1" } else { "\"cards\";r=6;t=300" }),
                ("ratelimit-policy", window),
                ("x-ratelimit-transaction", "18446744073709551615"),
            ]
        };
        let details = details(&[], 300_000, &[u64::MAX]);
        let draft = r#"{"ietf_headers": true}"#;
        let policy = "\"cards\";q=100;w=300";
        check_details(draft, &denial_of(2, Some(1), Cause::Limit), &details, &with("1", policy));
        check_details(draft, &denial_of(2, None, Cause::Cost), &details, &with("300", policy));
    }

    #[test]
    fn a_reset_may_be_a_moment_and_headers_have_other_names() {
        let responses = r#"{"reset": "unix_seconds", "names": {"limit": "X-Rate-Limit", "reset": "x-until"}, "ietf_headers": true}"#;
        let expected = [
            ("retry-after", "30"),
            ("x-rate-limit", "100"),
            ("x-ratelimit-remaining", "6"),
            // 30 s after a moment half a second past the second.
            ("x-until", "1700000031"),
            ("ratelimit", "\"per-key\";r=6;t=30"),
            ("ratelimit-policy", "\"per-key\";q=100;w=60"),
        ];
        check(responses, &denial(Some(30_000), Cause::Limit), &expected);
        let config = config(responses);
        let budget = Budget { rule: 0, limit: 9, remaining: 6, reset_ms: 12_001 };
        let headers =
            allowed_headers(&config.rules, vec![budget], &ExactDetails::default(), &config.responses, now);
        assert_eq!(headers[2].0, "x-until");
        assert_eq!(headers[2].1.with_text(str::to_owned), "1700000013");
    }

    #[test]
    fn an_undecided_response_is_marked_so() {
        let undecided = denial_of(1, Some(1_000), Cause::Undecided);
        let response = check_details(
            "{}",
            &undecided,
            &details(&[1, 2], 0, &[]),
            &[("retry-after", "1"), ("x-ratelimit-undecided", "log, cards")],
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
            ],
        );
    }

    #[test]
    fn an_allowed_response_lists_exact_rules_with_or_without_budgets() {
        let budget = Budget { rule: 1, limit: 9, remaining: 6, reset_ms: 12_001 };
        let get = |budgets: &[Budget], details: &ExactDetails| {
            let config = config("{}");
            let headers = allowed_headers(&config.rules, budgets.to_vec(), details, &config.responses, now);
            headers
                .iter()
                .map(|(name, value)| value.with_text(|text| format!("{name}: {text}")))
                .collect::<Vec<_>>()
        };
        assert!(get(&[], &details(&[], 0, &[])).is_empty());
        let exact = ["x-ratelimit-transaction: 5, 7", "x-ratelimit-undecided: cards"];
        assert_eq!(get(&[], &details(&[2], 0, &[5, 7])), exact);
        let all = get(&[budget], &details(&[2], 0, &[5, 7]));
        assert_eq!((all[0].as_str(), &all[3..]), ("x-ratelimit-limit: 9", &exact.map(str::to_owned)[..]));
    }

    /// The headers about limits of an allowed request, and of its denial by the first of these budgets.
    fn budgets_shown(budgets: &[Budget], details: &ExactDetails) -> [Vec<String>; 2] {
        let config = config(r#"{"ietf_headers": true, "headers_on_allowed": true}"#);
        let (rules, formats) = (&config.rules, &config.responses);
        let allowed = allowed_headers(rules, budgets.to_vec(), details, formats, now);
        let denial = Denial { budget: budgets[0], retry_after_ms: Some(5_000), cause: Cause::Limit };
        let policies = budgets.iter().map(|budget| (budget.rule, budget.limit)).collect();
        let denied = denied(rules, (&denial, policies), details, formats, Client::Http, now).unwrap();
        [allowed, denied.headers].map(|headers| {
            let about_limits = headers.iter().filter(|(name, _)| name.contains("ratelimit"));
            about_limits.map(|(name, value)| value.with_text(|text| format!("{name}: {text}"))).collect()
        })
    }

    #[test]
    fn every_policy_is_listed_and_the_smallest_share_is_shown() {
        let budgets = [
            Budget { rule: 2, limit: u64::MAX, remaining: u64::MAX, reset_ms: 90_000 },
            Budget { rule: 0, limit: 100_000, remaining: 900, reset_ms: 3_000 },
            Budget { rule: 1, limit: 600, remaining: 599, reset_ms: 12_001 },
        ];
        let [allowed, denied] = budgets_shown(&budgets, &details(&[], 300_000, &[]));
        let policies = "\"per-key\";q=100000;w=60, \"log\";q=600;w=60, \"cards\";q=999999999999999;w=300";
        let limits = "\"per-key\";r=900;t=3, \"log\";r=599;t=13, \"cards\";r=999999999999999;t=90";
        assert_eq!(
            allowed,
            [
                "x-ratelimit-limit: 100000",
                "x-ratelimit-remaining: 900",
                "x-ratelimit-reset: 3",
                &format!("ratelimit: {limits}"),
                &format!("ratelimit-policy: {policies}"),
            ]
        );
        // The policies stay the same; the limit is that of the rule that denies, so that no `t` is later than `retry-after`.
        assert_eq!(
            denied[3..5],
            [
                "ratelimit: \"cards\";r=999999999999999;t=5".to_owned(),
                format!("ratelimit-policy: {policies}")
            ]
        );
        // A window that is not known is left out.
        let [_, denied] = budgets_shown(&budgets, &details(&[], 0, &[]));
        assert!(denied[4].ends_with("\"cards\";q=999999999999999"), "{denied:?}");
    }

    #[test]
    fn the_list_of_policies_is_bounded() {
        let config = config(r#"{"ietf_headers": true}"#);
        let mut rules = Vec::new();
        for number in 0..50 {
            let mut rule = config.rules[0].clone();
            rule.name = format!("{number:064}");
            rules.push(rule);
        }
        let denial = Denial {
            budget: Budget { rule: 49, limit: 1, remaining: 0, reset_ms: 1 },
            ..denial(Some(1), Cause::Limit)
        };
        let policies: Vec<(u16, u64)> = (0..50).map(|rule| (rule, u64::MAX)).collect();
        let none = ExactDetails::default();
        let response =
            denied(&rules, (&denial, policies), &none, &config.responses, Client::Http, now).unwrap();
        let list = response.headers.iter().find(|(name, _)| *name == "ratelimit-policy").unwrap();
        let list = list.1.with_text(str::to_owned);
        assert_eq!(list.split(", ").count(), MAX_BUDGETS);
        assert!(list.ends_with(&format!("\"{:064}\";q=1;w=60", 49)) && list.len() < 1_024, "{list}");
    }

    #[test]
    fn a_denial_states_the_wait_and_the_budget() {
        let expected = |retry_after, reset| {
            [
                ("retry-after", retry_after),
                ("x-ratelimit-limit", "100"),
                ("x-ratelimit-remaining", "6"),
                ("x-ratelimit-reset", reset),
            ]
        };
        // A client that waits for the reset does not come too early.
        for (wait, retry_after, reset) in [
            (Some(0), "1", "13"),
            (Some(1), "1", "13"),
            (Some(1_001), "2", "13"),
            (Some(13_001), "14", "14"),
            (None, "60", "60"),
        ] {
            check("{}", &denial(wait, Cause::Limit), &expected(retry_after, reset));
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
                ("x-ratelimit-reset", "30"),
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
        let of = (&denial, Vec::new());
        let response = denied(&config.rules, of, &details, &config.responses, Client::Grpc, now).unwrap();
        assert_eq!(response.body, "rate limit exceeded");
    }

    #[test]
    fn a_ban_states_its_end_if_it_has_one() {
        let formats = config(r#"{"problem_json": true, "ietf_headers": true}"#);
        let responses = &formats.responses;
        let now = UnixMs(1_000);
        for (until, retry_after) in [(61_000, 60), (61_001, 61), (1_001, 1), (0, 1)] {
            let response = banned(Banned::Until(UnixMs(until)), now, None, responses, Client::Http);
            assert_eq!((response.status, response.details), (429, "weir_banned"));
            assert_eq!(response.headers[0], ("retry-after".into(), retry_after.into()));
            assert_eq!(response.headers[2], (RATE_LIMITED.into(), "true".into()));
            assert_eq!(
                response.body,
                r#"{"detail":"banned","status":429,"title":"Too Many Requests","type":"about:blank"}"#
            );
            assert_eq!(response.grpc_status, GRPC_RESOURCE_EXHAUSTED);
        }
        let for_ever = banned(Banned::ForEver, now, None, responses, Client::Http);
        assert_eq!((for_ever.status, for_ever.grpc_status), (403, GRPC_PERMISSION_DENIED));
        assert_eq!(for_ever.headers, [("content-type".into(), "application/problem+json".into())]);
        assert_eq!(
            for_ever.body,
            r#"{"detail":"banned","status":403,"title":"Forbidden","type":"about:blank"}"#
        );
    }

    #[test]
    fn a_missing_identifier_is_denied_without_a_wait() {
        let problem = r#"{"detail":"identifier missing","status":429,"title":"Too Many Requests","type":"about:blank"}"#;
        for (responses, kind, body) in [
            ("{}", None, "identifier missing"),
            (r#"{"problem_json": true}"#, Some("application/problem+json"), problem),
        ] {
            let response = missing_identifier(None, &config(responses).responses, Client::Http);
            assert_eq!((response.status, response.details), (429, "weir_missing_identifier"));
            let kind = kind.map(|kind| (CONTENT_TYPE.into(), kind.into()));
            let marked: Vec<Header> =
                kind.into_iter().chain([(RATE_LIMITED.into(), "true".into())]).collect();
            assert_eq!(response.headers, marked);
            assert_eq!(response.body, body);
            let ambiguous = ambiguous_identifier(None, &config(responses).responses, Client::Http);
            assert_eq!((ambiguous.status, ambiguous.details), (429, "weir_ambiguous_identifier"));
            assert_eq!(ambiguous.headers, response.headers);
            assert_eq!(ambiguous.body, body.replace("missing", "ambiguous"));
            let unlisted = unlisted_identifier(None, &config(responses).responses, Client::Http);
            assert_eq!((unlisted.status, unlisted.details), (429, "weir_unlisted_identifier"));
            assert_eq!(unlisted.headers, response.headers);
            assert_eq!(unlisted.body, body.replace("missing", "not listed"));
        }
    }

    #[test]
    fn the_remaining_budget_follows_the_cost_of_the_response() {
        for (remaining, cost, expected) in [
            (900, 300, 700),
            (900, 100, 900),
            (900, 0, 1_000),
            (900, 5_000, 0),
            (0, 40, 60),
            (u64::MAX, 0, 1_000),
        ] {
            let mut budget = Budget { rule: 1, limit: 1_000, remaining, reset_ms: 1 };
            settle(&mut budget, 100, cost);
            assert_eq!(budget.remaining, expected, "{remaining} {cost}");
        }
    }

    /// A rule with its own response.
    fn own_config(response: &str, responses: &str) -> Config {
        let text = format!(
            r#"{{"aggregator": {{"cluster": "c"}}, "responses": {responses}, "rules": [
            {{"name": "per-key", "identifier": {{"header": "x-key"}}, "limit": 100, "window": "1m", "response": {response}}},
            {{"name": "open", "algorithm": "sliding_log", "identifier": {{"header": "x-key"}}, "limit": 9, "window": "1m"}}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap()
    }

    /// Status, body, gRPC status and headers of each kind of denial by the rule.
    fn all_denials(config: &Config, client: Client) -> Vec<(u32, String, i32, Vec<String>)> {
        let (rules, formats, rule) = (&config.rules, &config.responses, config.rules.first());
        let none = ExactDetails::default();
        let by_limit = |wait, cause| {
            denied(rules, (&denial(wait, cause), vec![(0, 100), (1, 9)]), &none, formats, client, now)
                .unwrap()
        };
        let all = [
            by_limit(Some(2_000), Cause::Limit),
            by_limit(Some(2_000), Cause::Undecided),
            missing_identifier(rule, formats, client),
            ambiguous_identifier(rule, formats, client),
            banned(Banned::Until(UnixMs(9_000)), UnixMs(0), rule, formats, client),
            banned(Banned::ForEver, UnixMs(0), rule, formats, client),
        ];
        let shown = all.into_iter().map(|response| {
            let name = |(name, value): &Header| value.with_text(|text| format!("{name}: {text}"));
            let headers = response.headers.iter().map(name).collect();
            (response.status, response.body.into_owned(), response.grpc_status, headers)
        });
        shown.collect()
    }

    /// A denial by the first rule, completed with this id and this header `accept`.
    fn rpc_denial(response: &str, id: &[u8], accept: Option<&str>) -> Response {
        let config = own_config(response, "{}");
        let denial = denial(Some(2_000), Cause::Limit);
        let none = ExactDetails::default();
        let response =
            denied(&config.rules, (&denial, Vec::new()), &none, &config.responses, Client::Http, now);
        response.unwrap().complete(id, &[], accept.map(str::as_bytes))
    }

    fn header(response: &Response, name: &str) -> Option<String> {
        let found = response.headers.iter().filter(|(of, _)| *of == name);
        let found: Vec<String> = found.map(|(_, value)| value.with_text(str::to_owned)).collect();
        assert!(found.len() < 2, "{name}: {found:?}");
        found.into_iter().next()
    }

    #[test]
    fn a_denial_is_the_answer_to_a_call() {
        const RPC: &str = r#"{"format": "json_rpc"}"#;
        let zero = 0.0f64.to_le_bytes();
        for (own, id, status, shown) in [
            (RPC, b"c-1".as_slice(), 200, "\"c-1\""),
            (RPC, &zero, 200, "0"),
            // Nothing waits for these.
            (RPC, b"", 429, "null"),
            (RPC, &[b'i'; 10_240], 429, "null"),
            (r#"{"format": "json_rpc", "status": 200}"#, b"", 429, "null"),
            (r#"{"format": "json_rpc", "status": 503}"#, b"c-1", 503, "\"c-1\""),
            (r#"{"format": "json_rpc", "status": 503}"#, b"", 503, "null"),
        ] {
            let response = rpc_denial(own, id, None);
            let expected = format!(
                r#"{{"jsonrpc":"2.0","id":{shown},"error":{{"code":-32029,"message":"rate limit exceeded","data":{{"rule":"per-key","limit":100,"retry_after":2}}}}}}"#
            );
            assert_eq!((response.status, &*response.body), (status, expected.as_str()));
            assert_eq!(header(&response, "content-type").as_deref(), Some("application/json"));
            assert_eq!(header(&response, "retry-after").as_deref(), Some("2"));
            assert_eq!(header(&response, RATE_LIMITED).is_some(), status == 429, "{own} {id:?}");
        }
        let hidden = rpc_denial(r#"{"format": "json_rpc", "headers": "hidden"}"#, b"a", None);
        assert!(!hidden.body.contains("data") && header(&hidden, "retry-after").is_none(), "{hidden:?}");
    }

    #[test]
    fn a_client_that_accepts_events_alone_gets_one() {
        for (accept, kind) in [
            (None, "application/json"),
            (Some("application/json, text/event-stream"), "application/json"),
            (Some("*/*"), "application/json"),
            (Some("text/event-stream, */*;q=0.1"), "application/json"),
            (Some("text/html"), "application/json"),
            (Some("text/event-stream"), "text/event-stream"),
            (Some("Text/Event-Stream;q=1"), "text/event-stream"),
        ] {
            let response = rpc_denial(r#"{"format": "json_rpc"}"#, b"a\n\"b", accept);
            assert_eq!(header(&response, "content-type").as_deref(), Some(kind), "{accept:?}");
            let data = response
                .body
                .strip_prefix("event: message\ndata: ")
                .and_then(|rest| rest.strip_suffix("\n\n"));
            assert_eq!(data.is_some(), kind == "text/event-stream");
            let json = data.unwrap_or(&response.body);
            assert!(!json.contains('\n'), "{json}");
            let json: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(json["id"], "a\n\"b");
        }
    }

    #[test]
    fn every_denial_by_the_rule_is_an_error_except_for_grpc() {
        let config = own_config(r#"{"format": "json_rpc"}"#, r#"{"problem_json": true}"#);
        let (formats, rule) = (&config.responses, config.rules.first());
        for client in [Client::Http, Client::Grpc] {
            for (response, message) in [
                (missing_identifier(rule, formats, client), "identifier missing"),
                (unlisted_identifier(rule, formats, client), "identifier not listed"),
                (ambiguous_identifier(rule, formats, client), "identifier ambiguous"),
                (banned(Banned::ForEver, UnixMs(0), rule, formats, client), "banned"),
            ] {
                let response = response.complete(b"a", &[], None);
                match client {
                    Client::Grpc => assert_eq!(response.body, message),
                    Client::Http => {
                        let json: serde_json::Value = serde_json::from_str(&response.body).unwrap();
                        assert_eq!((response.status, &json["error"]["message"]), (200, &message.into()));
                        assert_eq!(
                            json["error"]["data"],
                            serde_json::json!({"rule": "per-key", "limit": 100})
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_rules_own_status_and_body_are_those_of_all_its_denials() {
        let response = r#"{"status": 503, "body": "{\"a\":\"{rule}\",\"l\":{limit},\"r\":{retry_after}}", "content_type": "application/json"}"#;
        let config = own_config(response, r#"{"problem_json": true}"#);
        let found = all_denials(&config, Client::Http);
        for ((status, body, _, headers), wait) in found.iter().zip([2, 2, 0, 0, 9, 0]) {
            assert_eq!(*status, 503);
            assert_eq!(body, &format!(r#"{{"a":"per-key","l":100,"r":{wait}}}"#));
            assert!(headers.contains(&"content-type: application/json".to_owned()), "{headers:?}");
            assert!(!headers.iter().any(|header| header.starts_with(RATE_LIMITED)), "{headers:?}");
            assert_eq!(headers.contains(&format!("retry-after: {wait}")), wait > 0, "{headers:?}");
        }
        assert!(found[0].3.contains(&"x-ratelimit-limit: 100".to_owned()));
        // gRPC clients get the same gRPC status as without it, and no JSON.
        let grpc = all_denials(&config, Client::Grpc);
        let texts: Vec<_> = grpc.iter().map(|(_, body, status, _)| (body.as_str(), *status)).collect();
        let expected = [
            ("rate limit exceeded", 8),
            ("rate limit exceeded", 8),
            ("identifier missing", 8),
            ("identifier ambiguous", 8),
            ("banned", 8),
            ("banned", 7),
        ];
        assert_eq!(texts, expected);
        let text = own_config(r#"{"body": "slow down, {rule}"}"#, "{}");
        assert!(all_denials(&text, Client::Grpc).iter().all(|(_, body, ..)| body == "slow down, per-key"));
        let statuses: Vec<_> = all_denials(&text, Client::Http).iter().map(|(status, ..)| *status).collect();
        assert_eq!(statuses, [429, 429, 429, 429, 429, 403], "only the body is the rule's own");
    }

    #[test]
    fn a_status_without_a_body_is_that_of_the_problem() {
        let config = own_config(r#"{"status": 420}"#, r#"{"problem_json": true}"#);
        for (status, body, ..) in all_denials(&config, Client::Http) {
            let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!((status, &problem["status"]), (420, &420.into()));
            assert!(problem["type"] == PROBLEM_TYPE || problem.get("title").is_none(), "{problem}");
        }
    }

    #[test]
    fn a_hidden_limit_is_in_no_header() {
        let formats = r#"{"ietf_headers": true, "headers_on_allowed": true, "problem_json": true}"#;
        let config = own_config(r#"{"headers": "hidden"}"#, formats);
        for (status, body, _, headers) in all_denials(&config, Client::Http) {
            let kind = "content-type: application/problem+json";
            let expected: &[&str] =
                if status == 429 { &[kind, "x-envoy-ratelimited: true"] } else { &[kind] };
            assert_eq!(headers, expected);
            assert!(!body.contains("per-key"), "{body}");
        }
        let (rules, formats) = (&config.rules, &config.responses);
        let names = |rule, undecided: &[u16]| -> Vec<String> {
            let budget = Budget { rule, limit: 9, remaining: 6, reset_ms: 1 };
            let exact = details(undecided, 0, &[]);
            let budgets = if is_shown(rules, rule) { vec![budget] } else { Vec::new() };
            let headers = allowed_headers(rules, budgets, &exact, formats, now);
            headers.iter().map(|(name, _)| name.to_string()).collect()
        };
        assert!(names(0, &[0]).is_empty());
        assert_eq!(names(0, &[0, 1]), ["x-ratelimit-undecided"]);
        assert_eq!(names(1, &[]).len(), 5, "the limits that are shown stay so");
        // A denial by another rule does not name the hidden one.
        let denial = denial_of(1, Some(1), Cause::Undecided);
        let of = |denial| {
            denied(
                rules,
                (denial, vec![(0, 100), (1, 9)]),
                &details(&[0], 0, &[]),
                formats,
                Client::Http,
                now,
            )
        };
        let response = of(&denial).unwrap();
        let undecided = response.headers.iter().find(|(name, _)| *name == "x-ratelimit-undecided").unwrap();
        assert_eq!(undecided.1.with_text(str::to_owned), "open");
        let response = of(&denial_of(1, Some(1), Cause::Limit)).unwrap();
        let policies = response.headers.iter().find(|(name, _)| *name == "ratelimit-policy").unwrap();
        assert_eq!(policies.1.with_text(str::to_owned), "\"open\";q=100;w=60");
    }

    #[test]
    fn an_ambiguous_path_gets_400() {
        let problem =
            r#"{"detail":"path ambiguous","status":400,"title":"Bad Request","type":"about:blank"}"#;
        for (responses, body) in [("{}", "path ambiguous"), (r#"{"problem_json": true}"#, problem)] {
            let response = ambiguous_path(&config(responses).responses, Client::Http);
            assert_eq!((response.status, response.details), (400, "weir_ambiguous_path"));
            let kinds = usize::from(responses != "{}");
            assert_eq!((&*response.body, response.headers.len()), (body, kinds), "no header of a limit");
        }
        let grpc = ambiguous_path(&config("{}").responses, Client::Grpc);
        assert_eq!((grpc.grpc_status, &*grpc.body), (3, "path ambiguous"));
    }

    #[test]
    fn a_denied_address_gets_403() {
        for (responses, client) in [("{}", Client::Http), (r#"{"problem_json": true}"#, Client::Grpc)] {
            let response = denied_address(&config(responses).responses, client);
            assert_eq!((response.status, &*response.body), (403, "address denied"));
            assert!(response.headers.is_empty());
        }
    }
}
