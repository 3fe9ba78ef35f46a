//! The metrics of the rate-limit quota service.

use super::families::{Label, at_zero};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

const REPORTS: [&str; 3] = ["counted", "unlimited", "refused"];
const ASSIGNMENTS: [&str; 5] = ["tokens", "rate", "allow", "deny", "abandon"];

table! {
    /// The metrics of streams and their buckets.
    pub struct QuotaMetrics {
        pub quota_streams: Gauge = "Open streams of the rate-limit quota service";
        pub quota_buckets: Gauge = "Buckets of these streams";
        quota_reports: Family<Label, Counter> =
            "Reports of buckets by result: counted, unlimited (the bucket has no limit), refused",
            at_zero("result", &REPORTS);
        quota_assignments: Family<Label, Counter> =
            "Assignments sent to Envoys: tokens, rate, allow, deny, abandon",
            at_zero("assignment", &ASSIGNMENTS);
    }
}

impl QuotaMetrics {
    /// Counts the report of a bucket: `counted`, `unlimited` or `refused`.
    pub fn reported(&self, result: &'static str) {
        self.quota_reports.get_or_create(&[("result", result)]).inc();
    }

    /// Counts an assignment by its kind.
    pub fn assigned(&self, assignment: &'static str) {
        self.quota_assignments.get_or_create(&[("assignment", assignment)]).inc();
    }
}
