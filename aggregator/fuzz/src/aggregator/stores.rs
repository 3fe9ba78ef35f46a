//! URLs of stores, and what stores hold and answer.

use redis::Value;
use weir_aggregator::database::{Database, DatabaseOptions, decode_identifier, encode_identifier};
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::redis::log::answered;
use weir_core::model::exact::ExactRequestId;
use weir_core::model::key::{Key, KeyParts};
use weir_core::region::log::{EntryId, LogCharge, Outcome};

/// Where Redis is.
pub fn redis_url(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        // Either outcome will do.
        let _ = StoreOptions::parse(text, "region");
    }
}

/// Where the database is. Opening connects to nothing.
pub fn database_url(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let options = DatabaseOptions { url: text.to_owned(), read_url: None, region: "region".to_owned() };
        // Either outcome will do.
        let _ = Database::open(&options);
    }
}

/// The column of an identifier: what is read is written the same.
pub fn column_identifier(data: &[u8]) {
    let Some((epoch, resolution, identifier)) = decode_identifier(data) else { return };
    let parts =
        KeyParts { workspace: b"w", namespace: b"n", identifier, duration_ms: 60_000, epoch, resolution };
    assert_eq!(encode_identifier(&parts), data);
}

/// What the script of logs answers, as numbers of eight bytes.
pub fn log_answer(data: &[u8]) {
    let (numbers, _) = data.as_chunks::<8>();
    let numbers: Vec<i64> = numbers.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    let parts = KeyParts {
        workspace: b"w",
        namespace: b"n",
        identifier: b"i",
        duration_ms: 1_000,
        epoch: 0,
        resolution: 1,
    };
    let key = Key::new(&parts).expect("the parts are short");
    let charge =
        LogCharge { key, id: EntryId { request: ExactRequestId::of(7, 1), place: 0 }, cost: 1, most: 5 };
    let answer = || Value::Array(numbers.iter().map(|number| Value::Int(*number)).collect());
    let reading = answered(answer(), &charge);
    let [status, shown, now, used, ..] = numbers[..] else { return assert!(reading.is_err()) };
    match reading {
        Ok(reading) => {
            assert_eq!(numbers.len(), 6);
            assert_eq!(reading.shown_us, u64::try_from(shown).ok());
            assert_eq!(reading.decided.is_some(), status >= 0);
            if let Some(decided) = reading.decided {
                assert_eq!(decided.outcome == Outcome::Allowed, status == 1);
                assert_eq!((Ok(decided.at.0), Ok(decided.used)), (now.try_into(), used.try_into()));
                // Every answer has a result.
                decided.result(charge.most, 1_000);
            }
        }
        Err(_) => assert!(numbers.len() != 6 || now < 0 || used < 0),
    }
}
