//! A denial as a response: 429 with the headers that clients know, and the drafts' formats where they are asked for.
//!
//! `retry-after` (RFC 9110) is in whole seconds, at least 1. `x-ratelimit-limit`, `-remaining` and `-reset` (seconds)
//! are what most gateways send. `RateLimit` and `RateLimit-Policy` are those of
//! draft-ietf-httpapi-ratelimit-headers-08 to -11, whose problem type `quota-exceeded` the JSON body is of.
//!
//! Leaves to others: sending it (`host`).

use weir_core::limiter::{Budget, Cause, Denial};
use weir_core::rules::{Responses, Rule};

/// Problem type of the draft's section on quotas.
const PROBLEM_TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// gRPC's RESOURCE_EXHAUSTED.
pub const GRPC_RESOURCE_EXHAUSTED: i32 = 8;

/// What to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u32,
    /// For `%RESPONSE_CODE_DETAILS%` of access logs.
    pub details: &'static str,
    /// Response headers.
    pub headers: Vec<(&'static str, String)>,
    /// Response body.
    pub body: String,
}

/// Who is answered. Envoy turns a response to a gRPC request into a status, and its body into the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Any HTTP client.
    Http,
    /// One that sent `content-type: application/grpc…`.
    Grpc,
}

/// The response to a refused request.
pub fn denied(rule: &Rule, denial: &Denial, formats: &Responses, client: Client) -> Answer {
    // A cost above the limit never passes; a window's length keeps the client from hammering.
    let retry_after_s = seconds(denial.retry_after_ms.unwrap_or(rule.duration_ms)).max(1);
    let mut headers = vec![("retry-after", retry_after_s.to_string())];
    // The draft's `t` says when budget comes back, so here it is the wait, not the cell's end.
    let waiting = Budget { reset_ms: retry_after_s.saturating_mul(1_000), ..denial.budget };
    budget_headers(rule, &denial.budget, &waiting, formats, &mut headers);
    let details = match denial.cause {
        Cause::Limit | Cause::Cost => "weir_limit_exceeded",
        Cause::Reserved => "weir_limit_reserved",
        Cause::Undecided => "weir_undecided",
    };
    refusal(rule, details, headers, formats, client)
}

/// The response to a request that lacks what identifies it, where the rule denies such.
pub fn missing_identifier(rule: &Rule, formats: &Responses, client: Client) -> Answer {
    let retry_after_s = seconds(rule.duration_ms).max(1);
    let headers = vec![("retry-after", retry_after_s.to_string())];
    refusal(rule, "weir_missing_identifier", headers, formats, client)
}

/// The headers that an allowed response carries, where they are asked for.
pub fn allowed_headers(rule: &Rule, budget: &Budget, formats: &Responses) -> Vec<(&'static str, String)> {
    let mut headers = Vec::new();
    budget_headers(rule, budget, budget, formats, &mut headers);
    headers
}

fn budget_headers(
    rule: &Rule,
    budget: &Budget,
    draft: &Budget,
    formats: &Responses,
    headers: &mut Vec<(&'static str, String)>,
) {
    headers.push(("x-ratelimit-limit", budget.limit.to_string()));
    headers.push(("x-ratelimit-remaining", budget.remaining.to_string()));
    headers.push(("x-ratelimit-reset", seconds(budget.reset_ms).to_string()));
    if formats.draft_headers {
        let (name, window_s) = (&rule.name, seconds(rule.duration_ms));
        headers
            .push(("ratelimit", format!("\"{name}\";r={};t={}", draft.remaining, seconds(draft.reset_ms))));
        headers.push(("ratelimit-policy", format!("\"{name}\";q={};w={window_s}", budget.limit)));
    }
}

fn refusal(
    rule: &Rule,
    details: &'static str,
    mut headers: Vec<(&'static str, String)>,
    formats: &Responses,
    client: Client,
) -> Answer {
    let body = if formats.problem_json && client == Client::Http {
        headers.push(("content-type", "application/problem+json".to_owned()));
        serde_json::json!({
            "type": PROBLEM_TYPE,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": [rule.name],
        })
        .to_string()
    } else {
        headers.push(("content-type", "text/plain".to_owned()));
        "rate limit exceeded".to_owned()
    };
    Answer { status: 429, details, headers, body }
}

/// Whole seconds, rounded up.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::rules::Config;

    fn config(responses: &str) -> Config {
        let text = format!(
            r#"{{"aggregator": {{"cluster": "c"}}, "responses": {responses}, "rules": [{{"name": "per-key",
            "identifier": {{"header": "x-key"}}, "limit": 100, "window": "1m"}}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap()
    }

    fn denial(retry_after_ms: Option<u64>, cause: Cause) -> Denial {
        Denial {
            budget: Budget { rule: 0, limit: 100, remaining: 6, reset_ms: 12_001 },
            retry_after_ms,
            cause,
        }
    }

    fn check(responses: &str, denial: &Denial, expected: &[(&str, &str)]) -> Answer {
        let config = config(responses);
        let answer = denied(&config.rules[0], denial, &config.responses, Client::Http);
        let got: Vec<_> = answer.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!((answer.status, got.as_slice()), (429, expected));
        answer
    }

    #[test]
    fn a_denial_says_when_and_how_much() {
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
    fn the_drafts_formats_come_where_asked_for() {
        let answer = check(
            r#"{"draft_headers": true, "problem_json": true}"#,
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
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(body["type"], PROBLEM_TYPE);
        assert_eq!(body["violated-policies"][0], "per-key");
    }

    #[test]
    fn a_grpc_client_gets_a_plain_message() {
        let config = config(r#"{"problem_json": true}"#);
        let denial = denial(Some(1), Cause::Limit);
        let answer = denied(&config.rules[0], &denial, &config.responses, Client::Grpc);
        assert_eq!(answer.body, "rate limit exceeded");
    }
}
