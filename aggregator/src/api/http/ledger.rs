//! The ledger's history: `GET /v1/ledger/{id}`, and `GET /v1/ledger?zone=&bucket=&before=&limit=`.

use super::problem::{FieldProblem, Problem};
use crate::auth::Caller;
use crate::database::{Database, DatabaseError, MAX_BUCKET_BYTES, MAX_HISTORY_ROWS, Outcome, Transaction};
use crate::net::percent;
use crate::telemetry::throttle::Throttle;
use axum::http::StatusCode;
use serde::Serialize;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use tracing::warn;
use weir_core::rules::identifier::identifier_of;

/// Timeout of a database call, including the wait for a turn.
const WITHIN: Duration = Duration::from_secs(2);
/// Most concurrent reads. The region's publishing and importing share the same four connections.
const MAX_READS: usize = 2;
/// Least time between two warnings that the database does not answer.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);
const DEFAULT_ROWS: u32 = 100;

/// Reads the ledger's history.
pub struct Ledger {
    database: Database,
    turns: Semaphore,
    warnings: Throttle,
}

/// A query for a part of a bucket's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The zone.
    pub zone: u32,
    /// The bucket as the ledger stores it.
    pub bucket: Vec<u8>,
    /// Only transactions with a lower number.
    pub before: Option<u64>,
    /// Most transactions, 1 to 1000.
    pub limit: u32,
}

/// A transaction in the response.
#[derive(Debug, Serialize)]
pub(super) struct Recorded {
    id: u64,
    zone: u32,
    bucket: String,
    outcome: &'static str,
    cost: u64,
    region: String,
    /// Milliseconds of Unix time.
    created_at: u64,
}

/// A part of the history, the newest transaction first.
#[derive(Debug, Serialize)]
pub(super) struct History {
    transactions: Vec<Recorded>,
    /// The value of `before` for the next part; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

/// One transaction. For a zone that the caller may not use, the result is "not found".
pub(super) async fn one(ledger: Option<&Ledger>, id: &str, caller: &Caller) -> Result<Recorded, Problem> {
    let number = id.parse::<u64>().ok().filter(|number| *number > 0);
    let number = number.ok_or_else(|| wrong("id", "expected the number of a transaction, 1 or more"))?;
    let ledger = required(ledger)?;
    let (_turn, within) = ledger.turn().await?;
    let found =
        ledger.database.transaction(number, within).await.map_err(|error| ledger.unavailable(&error))?;
    match found {
        Some(transaction) if caller.may_use(transaction.zone) => Ok(Recorded::of(transaction)),
        _ => {
            let message = "the ledger has no such transaction; old ones are deleted after a while";
            Err(Problem::new(StatusCode::NOT_FOUND, "not_found", message))
        }
    }
}

/// A bucket's transactions.
pub(super) async fn several(
    ledger: Option<&Ledger>,
    query: &str,
    caller: &Caller,
) -> Result<History, Problem> {
    let HistoryQuery { zone, bucket, before, limit } = parse_history(query)?;
    if !caller.may_use(zone) {
        let message = format!("this token does not allow zone {zone}");
        return Err(Problem::forbidden("zone_not_allowed", "zone".to_owned(), message));
    }
    let ledger = required(ledger)?;
    let (_turn, within) = ledger.turn().await?;
    let found = ledger.database.transactions(zone, &bucket, before, limit, within).await;
    let transactions: Vec<Recorded> =
        found.map_err(|error| ledger.unavailable(&error))?.into_iter().map(Recorded::of).collect();
    let full = transactions.len() == usize::try_from(limit).unwrap_or(usize::MAX);
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
            "limit" => limit.replace(number(name, value, 1, u64::from(MAX_HISTORY_ROWS))?).is_some(),
            "bucket" => bucket.replace(bytes(name, value)?).is_some(),
            "identifier" if identifier.len() < super::MAX_PARTS => {
                identifier.push(bytes(name, value)?);
                false
            }
            "identifier" => true,
            _ => {
                let shown: String = name.chars().take(64).collect();
                return Err(wrong(&shown, "there is no such parameter"));
            }
        };
        if again {
            return Err(wrong(name, "given too often"));
        }
    }
    let bucket = match (bucket, identifier.is_empty()) {
        (Some(bucket), true) if (1..=MAX_BUCKET_BYTES).contains(&bucket.len()) => bucket,
        (Some(_), true) => return Err(wrong("bucket", "expected 1 to 255 bytes, as responses show it")),
        (None, false) => {
            let parts: Vec<&[u8]> = identifier.iter().map(Vec::as_slice).collect();
            let mut canonical = Vec::new();
            identifier_of(&parts, &mut canonical);
            canonical
        }
        (None, true) => return Err(wrong("bucket", "missing; expected a bucket or an identifier")),
        (Some(_), false) => return Err(wrong("bucket", "expected either this or an identifier")),
    };
    let zone = zone.and_then(|zone| u32::try_from(zone).ok());
    Ok(HistoryQuery {
        zone: zone.ok_or_else(|| wrong("zone", "missing; expected the number of the ledger's zone"))?,
        bucket,
        before,
        limit: limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(DEFAULT_ROWS),
    })
}

impl Ledger {
    /// The history in `database`.
    pub fn new(database: Database) -> Ledger {
        let warnings = Throttle::new(BETWEEN_WARNINGS);
        Ledger { database, turns: Semaphore::new(MAX_READS), warnings }
    }

    /// Waits for a turn to read; returns it with the time that remains.
    async fn turn(&self) -> Result<(SemaphorePermit<'_>, Duration), Problem> {
        let deadline = Instant::now() + WITHIN;
        match timeout_at(deadline, self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok((turn, deadline.saturating_duration_since(Instant::now()))),
            _ => Err(unavailable("too many reads of the ledger's history at once; try again later")),
        }
    }

    fn unavailable(&self, error: &DatabaseError) -> Problem {
        // The database's error may name its address, so it is only logged.
        if let Some(held_back) = self.warnings.pass() {
            warn!(%error, held_back, "could not read the ledger's history");
        }
        unavailable("the ledger's database does not answer; try again later")
    }
}

fn unavailable(message: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ledger_unavailable", message)
}

impl Recorded {
    fn of(transaction: Transaction) -> Recorded {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let outcome = match transaction.outcome {
            Outcome::Allowed => "allowed",
            Outcome::Blocked => "blocked",
            Outcome::Refunded => "refunded",
        };
        Recorded {
            id: transaction.id,
            zone: transaction.zone,
            bucket: text(&transaction.bucket),
            outcome,
            cost: transaction.cost,
            region: text(&transaction.region),
            created_at: transaction.created_at_us / 1_000,
        }
    }
}

fn number(name: &str, value: Option<Vec<u8>>, least: u64, most: u64) -> Result<u64, Problem> {
    let text = value.and_then(|value| String::from_utf8(value).ok());
    let number =
        text.and_then(|text| text.parse::<u64>().ok()).filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| wrong(name, &format!("expected a whole number from {least} to {most}")))
}

fn bytes(name: &str, value: Option<Vec<u8>>) -> Result<Vec<u8>, Problem> {
    let decoded = value.ok_or_else(|| wrong(name, "not valid percent-encoding"))?;
    if decoded.len() > super::MAX_PART_BYTES {
        return Err(wrong(name, "longer than 1024 bytes"));
    }
    Ok(decoded)
}

fn wrong(field: &str, message: &str) -> Problem {
    Problem::fields(vec![FieldProblem { field: field.to_owned(), message: message.to_owned() }])
}

fn required(ledger: Option<&Ledger>) -> Result<&Ledger, Problem> {
    let message = "no database is set (--database-url), so there is no ledger";
    ledger.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "no_ledger", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::DatabaseOptions;
    use proptest::prelude::{prop_assert, proptest};

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_turn_is_refused_in_time() {
        let options = DatabaseOptions {
            url: "sqlite:///nowhere/weir.db".to_owned(),
            read_url: None,
            region: "here".to_owned(),
        };
        let ledger = Ledger::new(Database::open(&options).unwrap());
        let others = [ledger.turn().await.unwrap(), ledger.turn().await.unwrap()];
        let began = Instant::now();
        let problem = one(Some(&ledger), "1", &Caller::without_credential(false)).await.unwrap_err();
        assert!(problem.message.contains("too many"), "{}", problem.message);
        assert_eq!((problem.status, began.elapsed()), (StatusCode::SERVICE_UNAVAILABLE, WITHIN));
        drop(others);
        assert!(ledger.turn().await.is_ok());
    }

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
                prop_assert!(request.bucket.len() <= MAX_BUCKET_BYTES && (1..=1_000).contains(&request.limit));
            }
        }
    }
}
