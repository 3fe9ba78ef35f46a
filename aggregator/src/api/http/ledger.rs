//! The ledger's history: `GET /v1/ledger/{id}`, and `GET /v1/ledger?zone=&bucket=&before=&limit=`.

use super::problem::Problem;
use crate::auth::Caller;
use crate::net::percent;
use crate::region::exact::{Exact, HistoryQuery, Recorded, Unread};
use axum::http::StatusCode;
use serde::Serialize;
use weir_core::rules::identifier::identifier_of;

const DEFAULT_ROWS: u32 = 100;

/// A part of the history, the newest transaction first.
#[derive(Debug, Serialize)]
pub(super) struct History {
    transactions: Vec<Recorded>,
    /// The value of `before` for the next part; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// One transaction. For a zone that the caller may not use, the result is "not found".
pub(super) async fn one(exact: &Exact, id: &str, caller: &Caller) -> Result<Recorded, Problem> {
    let number = id.parse::<u64>().ok().filter(|number| *number > 0);
    let number =
        number.ok_or_else(|| Problem::field("id", "expected the number of a transaction, 1 or more"))?;
    let found = exact.history().map_err(unread)?.one(number).await.map_err(unread)?;
    match found {
        Some(recorded) if caller.may_use(recorded.zone) => Ok(recorded),
        _ => {
            let message = "the ledger has no such transaction; old ones are deleted after a while";
            Err(Problem::new(StatusCode::NOT_FOUND, "not_found", message))
        }
    }
}

/// A bucket's transactions.
pub(super) async fn several(exact: &Exact, query: &str, caller: &Caller) -> Result<History, Problem> {
    let query = parse_history(query)?;
    if !caller.may_use(query.zone) {
        let message = format!("this token does not allow zone {}", query.zone);
        return Err(Problem::forbidden("zone_not_allowed", "zone".to_owned(), message));
    }
    let transactions = exact.history().map_err(unread)?.several(&query).await.map_err(unread)?;
    let full = transactions.len() == usize::try_from(query.limit).unwrap_or(usize::MAX);
    let next = transactions.last().filter(|_| full).map(|last| last.id);
    Ok(History { transactions, next })
}

/// Parses the query of `GET /v1/ledger`: `zone`; either `bucket` as responses show it, or `identifier` as in a check, once
/// for each of its parts; `before`; `limit`.
pub fn parse_history(query: &str) -> Result<HistoryQuery, Problem> {
    let (mut zone, mut bucket, mut before, mut limit) = (None, None, None, None);
    let mut identifier: Vec<Vec<u8>> = Vec::new();
    for (name, value) in percent::parameters(query) {
        let again = match name {
            "zone" => zone.replace(number(name, value, 1, u64::from(u32::MAX))?).is_some(),
            "before" => before.replace(number(name, value, 1, u64::MAX)?).is_some(),
            "limit" => limit.replace(number(name, value, 1, u64::from(HistoryQuery::MAX_ROWS))?).is_some(),
            "bucket" => bucket.replace(bytes(name, value)?).is_some(),
            "identifier" if identifier.len() < super::MAX_PARTS => {
                identifier.push(bytes(name, value)?);
                false
            }
            "identifier" => true,
            _ => {
                let shown: String = name.chars().take(64).collect();
                return Err(Problem::field(&shown, "there is no such parameter"));
            }
        };
        if again {
            return Err(Problem::field(name, "given too often"));
        }
    }
    let bucket = match (bucket, identifier.is_empty()) {
        (Some(bucket), true) if (1..=HistoryQuery::MAX_BUCKET_BYTES).contains(&bucket.len()) => bucket,
        (Some(_), true) => {
            return Err(Problem::field("bucket", "expected 1 to 255 bytes, as responses show it"));
        }
        (None, false) => {
            let parts: Vec<&[u8]> = identifier.iter().map(Vec::as_slice).collect();
            let mut canonical = Vec::new();
            identifier_of(&parts, &mut canonical);
            canonical
        }
        (None, true) => return Err(Problem::field("bucket", "missing; expected a bucket or an identifier")),
        (Some(_), false) => return Err(Problem::field("bucket", "expected either this or an identifier")),
    };
    let zone = zone.and_then(|zone| u32::try_from(zone).ok());
    Ok(HistoryQuery {
        zone: zone
            .ok_or_else(|| Problem::field("zone", "missing; expected the number of the ledger's zone"))?,
        bucket,
        before,
        limit: limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(DEFAULT_ROWS),
    })
}

/// Why the history was not read. The error for operators may not be shown to applications.
fn unread(error: Unread) -> Problem {
    let unavailable =
        |message: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger_unavailable", message);
    match error {
        Unread::NoDatabase => {
            let message = "no database is set (--database-url), so there is no ledger";
            Problem::new(StatusCode::NOT_FOUND, "no_ledger", message)
        }
        Unread::Busy => unavailable(error.to_string()),
        Unread::Log | Unread::Ledger => {
            unavailable("the ledger's database does not answer; try again later".to_owned())
        }
    }
}

fn number(name: &str, value: Option<Vec<u8>>, least: u64, most: u64) -> Result<u64, Problem> {
    let text = value.and_then(|value| String::from_utf8(value).ok());
    let number =
        text.and_then(|text| text.parse::<u64>().ok()).filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| Problem::field(name, &format!("expected a whole number from {least} to {most}")))
}

fn bytes(name: &str, value: Option<Vec<u8>>) -> Result<Vec<u8>, Problem> {
    let decoded = value.ok_or_else(|| Problem::field(name, "not valid percent-encoding"))?;
    if decoded.len() > super::MAX_PART_BYTES {
        return Err(Problem::field(name, "longer than 1024 bytes"));
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert, proptest};

    #[test]
    fn queries() {
        let query =
            |bucket: &[u8], before, limit| HistoryQuery { zone: 7, bucket: bucket.to_vec(), before, limit };
        for (text, expected) in [
            ("zone=7&bucket=a", query(b"a", None, 100)),
            ("limit=1&bucket=a%7Cb&before=9&zone=7&", query(b"a|b", Some(9), 1)),
            ("zone=7&identifier=a%7Cb&identifier=", query(br"a\|b|\-", None, 100)),
        ] {
            assert_eq!(parse_history(text), Ok(expected), "{text}");
        }
        for (text, field, part) in [
            ("", "bucket", "missing"),
            ("bucket=a", "zone", "missing"),
            ("zone=0&bucket=a", "zone", "from 1 to 4294967295"),
            ("zone=4294967296&bucket=a", "zone", "from 1"),
            ("zone=7&bucket=", "bucket", "1 to 255"),
            ("zone=7&bucket=%", "bucket", "percent"),
            ("zone=7&bucket=a&bucket=b", "bucket", "too often"),
            ("zone=7&bucket=a&identifier=b", "bucket", "either"),
            ("zone=7&bucket=a&limit=1001", "limit", "from 1 to 1000"),
            ("zone=7&bucket=a&before=0", "before", "from 1"),
            ("zone=7&bucket=a&page=2", "page", "no such"),
            (
                "identifier=1&identifier=2&identifier=3&identifier=4&identifier=5&identifier=6&identifier=7&identifier=8&identifier=9",
                "identifier",
                "too often",
            ),
        ] {
            let problem = parse_history(text).expect_err(text);
            assert_eq!(problem.fields[0].field, field, "{text}");
            assert!(problem.message.contains(part), "{text}: {}", problem.message);
        }
        assert!(parse_history(&format!("zone=7&bucket={}", "b".repeat(256))).is_err());
    }

    proptest! {
        #[test]
        fn any_query_is_answered(query in "(zone=[0-9]{0,3}|&|bucket=|%[0-9a-f]{0,2}|identifier=|.){0,12}") {
            if let Ok(request) = parse_history(&query) {
                prop_assert!(request.bucket.len() <= HistoryQuery::MAX_BUCKET_BYTES && (1..=1_000).contains(&request.limit));
            }
        }
    }
}
