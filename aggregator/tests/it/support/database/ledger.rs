//! Shared by the ledger tests: attempts through the program and by hand, and invariants of the recorded attempts.

use super::{Scene, WITHIN};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row, SqliteConnection};
use std::collections::BTreeMap;
use std::time::Duration;
use weir_aggregator::database::{Database, Velocity, ZoneChange};
use weir_core::replication::exact::plan::LedgerCharge;

/// The zone of the scenarios.
pub const ZONE: u32 = 7;

pub async fn set_zone(database: &Database, zone: u32, rate: u64, window_seconds: u64) {
    let window = Duration::from_secs(window_seconds);
    let change = ZoneChange::new(zone, rate, window, Some("for a test".to_owned())).unwrap();
    database.set_zone(&change, WITHIN).await.unwrap();
}

/// An attempt.
pub fn ledger_charge(zone: u32, bucket: &[u8], cost: u64) -> LedgerCharge {
    LedgerCharge { zone, bucket: bucket.into(), cost }
}

/// An attempt in [`ZONE`] that must be answered.
pub async fn check(database: &Database, bucket: &str, cost: u64) -> Velocity {
    let charge = ledger_charge(ZONE, bucket.as_bytes(), cost);
    database.check_velocity(&charge, WITHIN).await.unwrap().expect("the zone exists")
}

/// The result row of the procedure, bucket included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub velocity: Velocity,
    pub zone: u64,
    pub bucket: Vec<u8>,
}

pub async fn by_hand(connection: &mut MySqlConnection, call: &str) -> Result<Answer, sqlx::Error> {
    let rows = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(call.to_owned()))).await?;
    assert_eq!(rows.len(), 1, "{call}");
    let row = &rows[0];
    let number = |name: &str| -> Option<u64> {
        let text: Option<String> = row.try_get_unchecked(name).unwrap();
        text.map(|text| text.parse().unwrap())
    };
    let required = |name| number(name).unwrap_or_else(|| panic!("{call}: no {name}"));
    let velocity = Velocity {
        transaction: required("transaction_id"),
        blocked: required("blocked") != 0,
        rate: required("rate"),
        window_ms: required("window") * 1_000,
        used: required("used"),
        reset_ms: required("reset_ms"),
        retry_after_ms: number("retry_after_ms"),
    };
    Ok(Answer { velocity, zone: required("zone_id"), bucket: row.try_get_unchecked("bucket_key").unwrap() })
}

/// The number of an error that the server raised.
pub fn error_number<T: std::fmt::Debug>(result: Result<T, sqlx::Error>) -> u16 {
    let error = result.unwrap_err();
    let sqlx::Error::Database(cause) = error else { panic!("{error}") };
    cause.downcast_ref::<sqlx::mysql::MySqlDatabaseError>().number()
}

/// A recorded attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub bucket: Vec<u8>,
    pub blocked: u64,
    pub cost: u64,
    pub at_us: u64,
}

/// All recorded attempts in [`ZONE`], ordered by number.
pub async fn recorded(scene: &Scene) -> Vec<Recorded> {
    let at =
        if scene.is_mysql() { "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at)" } else { "created_at" };
    let unsigned = if scene.is_mysql() { "SIGNED" } else { "INTEGER" };
    let sql = format!(
        "SELECT bucket_key, CAST(blocked AS {unsigned}), CAST(cost AS {unsigned}), CAST({at} AS {unsigned})
         FROM zone_txn WHERE zone_id = {ZONE} ORDER BY id"
    );
    type Columns = (Vec<u8>, i64, i64, i64);
    let rows: Vec<Columns> = if scene.is_mysql() {
        sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&mut scene.mysql().await).await.unwrap()
    } else {
        let mut connection = SqliteConnection::connect(&scene.url).await.unwrap();
        sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap()
    };
    let number = |value: i64| u64::try_from(value).unwrap();
    rows.into_iter()
        .map(|(bucket, blocked, cost, at)| Recorded {
            bucket,
            blocked: number(blocked),
            cost: number(cost),
            at_us: number(at),
        })
        .collect()
}

fn by_bucket(rows: &[Recorded]) -> impl Iterator<Item = Vec<&Recorded>> {
    let mut buckets: BTreeMap<&[u8], Vec<&Recorded>> = BTreeMap::new();
    rows.iter().for_each(|row| buckets.entry(&row.bucket).or_default().push(row));
    buckets.into_values()
}

/// No window, wherever it begins, holds more than the rate. Testing windows that begin at an attempt suffices, because
/// any other window holds no more than one of these.
pub fn no_window_holds_more(rows: &[Recorded], rate: u64, window_seconds: u64) {
    for mut bucket in by_bucket(rows) {
        bucket.retain(|row| row.blocked == 0);
        bucket.sort_by_key(|row| row.at_us);
        for (place, begin) in bucket.iter().enumerate() {
            let end = begin.at_us + window_seconds * 1_000_000;
            let sum: u64 = bucket[place..].iter().take_while(|row| row.at_us < end).map(|row| row.cost).sum();
            assert!(sum <= rate, "{sum} of {rate} in the window that begins at {begin:?}");
        }
    }
}

/// Each attempt was allowed or blocked as the attempts before it require.
pub fn decisions_are_right(rows: &[Recorded], rate: u64, window_seconds: u64) {
    for bucket in by_bucket(rows) {
        for (place, row) in bucket.iter().enumerate() {
            let counted = |other: &&&Recorded| {
                other.blocked == 0 && other.at_us + window_seconds * 1_000_000 > row.at_us
            };
            let used: u64 = bucket[..place].iter().filter(counted).map(|other| other.cost).sum();
            assert_eq!(row.blocked != 0, used + row.cost > rate, "{used} of {rate} were used before {row:?}");
        }
    }
}
