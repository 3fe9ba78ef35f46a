//! Live control as operators see it: `filter` (what they select), `audit` (who changed what), `json`.

mod audit;
mod filter;
mod json;

pub use audit::{Action, Audited};
pub use filter::{AuditFilter, ControlFilter, MAX_PAGE, PlaceFilter};
pub use json::{audited_json, control_json, described, name_and_value, put as put_field, stored_json};

/// Longest reason, in bytes.
pub const MAX_REASON_BYTES: usize = 500;
