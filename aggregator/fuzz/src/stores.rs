//! What operators name stores by, and what stores hold.

use weir_aggregator::database::{Database, DatabaseOptions, decode_identifier, encode_identifier};
use weir_aggregator::redis::StoreOptions;
use weir_core::model::key::KeyParts;

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
