//! Live control as operators see it: `filter` (what they select), `audit` (who changed what), `json`.

mod audit;
mod filter;
mod json;

pub use audit::{Action, AuditEntry};
pub use filter::{AuditFilter, ControlFilter, MAX_PAGE, PlaceFilter};
pub use json::{audited_json, control_json, described, name_and_value, put as put_field, stored_json};

/// How a person finds the identifier of a secret.
pub const NAME_THE_DIGEST: &str = "rules there have hash: true and count digests: name hmac: and the first 32 digits of the identifier's \
                                   HMAC-SHA-256, as of `printf %s \"$SECRET\" | openssl dgst -sha256 -hmac \"$HASH_KEY\"`";
/// Longest reason, in bytes.
pub const MAX_REASON_BYTES: usize = 500;
