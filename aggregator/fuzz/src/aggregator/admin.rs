//! Queries of operators to the admin listener.

use weir_aggregator::admin::query::{KeyQuery, RulesQuery};

/// The queries of `/v1/keys` and `/v1/rules`.
pub fn admin_query(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        // Either outcome will do.
        let _ = (KeyQuery::parse(text), RulesQuery::parse(text));
    }
}
