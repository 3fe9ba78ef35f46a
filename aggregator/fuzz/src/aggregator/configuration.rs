//! The command `check-config`.

use weir_aggregator::cli::check_config::check_text;

/// A whole Envoy configuration, or the filter's JSON.
pub fn envoy_config(data: &[u8]) {
    check_text(data);
}
