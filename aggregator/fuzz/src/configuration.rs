//! What operators write.

use weir_aggregator::cli::check_config::check_text;
use weir_core::rules::Config;

/// The filter's JSON. What is accepted stays accepted, in the same version.
pub fn filter_config(data: &[u8]) {
    if let Ok(config) = Config::parse(data) {
        let again = Config::parse(data).expect("it was accepted before");
        assert_eq!(config.version(), again.version());
        assert!(!config.rules.is_empty());
    }
}

/// A whole Envoy configuration, or the filter's JSON.
pub fn envoy_config(data: &[u8]) {
    check_text(data);
}
