//! Reads untrusted text field by field, and reports every error with its path.
//!
//! The filter's configuration, requests to the HTTP API and files of rate limits are read in the same way:
//!
//! - [`value`]: a tree of values, bounded while it is parsed. Field order and repeated fields are kept.
//! - [`reader`]: the fields of an object, with their types and ranges.
//! - [`yaml`]: documents of YAML as such values (with the feature `yaml`).
//! - `duration`: durations.
//! - [`errors`]: errors and their paths.

pub mod duration;
pub mod errors;
pub mod reader;
pub mod value;
#[cfg(feature = "yaml")]
pub mod yaml;

pub use duration::{Span, parse_ms, written};
pub use errors::{Errors, FieldError, FieldErrors, Path};
pub use reader::{Fields, Node, is_token_byte};
pub use value::{Bounds, Value, quoted};
