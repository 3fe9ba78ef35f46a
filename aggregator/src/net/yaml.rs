//! The documents of a YAML text, within bounds of memory and of time.
//!
//! A few bytes of YAML can repeat a long text, and the time that a parser takes for nested lists and objects in brackets grows
//! with the square of their depth. Both are bounded before the parser runs or while it reads.

use serde::de::{Error as _, IgnoredAny};
use serde_yaml_ng::{Deserializer, Error};
use std::cell::Cell;
use weir_core::fields::{Bounds, Value};

/// Longest text, in bytes.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Most opening brackets of a text that is not JSON, whose parser bounds the depth by itself.
pub const MAX_BRACKETS: usize = 32_768;

/// The documents, up to the first that is malformed or beyond a bound, which all share.
pub fn documents(text: &[u8]) -> impl Iterator<Item = Result<Value<'_>, Error>> {
    let refused = admit_unread(text).err();
    let documents = Deserializer::from_slice(if refused.is_some() { b"" } else { text });
    let left = Cell::new(Bounds::OF_A_FILE.bytes);
    let read = documents.map(move |document| Value::read_one_of(document, Bounds::OF_A_FILE, &left));
    let is_admitted = refused.is_none();
    refused.map(Err).into_iter().chain(read.filter(move |_| is_admitted))
}

/// Refuses a text beyond the bounds, so that a parser of its own may read it.
pub fn admit(text: &[u8]) -> Result<(), Error> {
    documents(text).try_for_each(|document| document.map(drop))
}

/// Refuses a text that is too long, or has too many brackets.
fn admit_unread(text: &[u8]) -> Result<(), Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::custom(format!("it has more than {MAX_BYTES} bytes")));
    }
    let brackets = text.iter().filter(|byte| b"[{".contains(byte)).count();
    if brackets > MAX_BRACKETS && serde_json::from_slice::<IgnoredAny>(text).is_err() {
        return Err(Error::custom(format!(
            "it has more than {MAX_BRACKETS} opening brackets and is not JSON; write lists and objects on lines of their own"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &[u8]) -> String {
        documents(text).find_map(Result::err).map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn what_repeats_or_nests_beyond_bounds_is_refused() {
        let repeated = |times: usize| {
            format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000_000), vec!["*a"; times].join(", "))
        };
        assert_eq!(error(repeated(100).as_bytes()), "");
        assert!(error(repeated(2_000).as_bytes()).contains("repeated ones included"));
        let documents_of = |times: usize| format!("{}---\n", repeated(100)).repeat(times);
        assert_eq!(error(documents_of(1).as_bytes()), "");
        assert!(error(documents_of(2).as_bytes()).contains("repeated ones included"), "documents together");
        assert!(error("[".repeat(200_000).as_bytes()).contains("opening brackets"));
        assert!(error("[".repeat(MAX_BRACKETS).as_bytes()).contains("nests deeper"));
        let many = format!("[{}]", vec!["[{}]"; MAX_BRACKETS].join(","));
        assert_eq!(error(many.as_bytes()), "", "JSON");
        assert!(error(&vec![b' '; MAX_BYTES + 1]).contains("more than 8388608 bytes"));
        assert_eq!(documents(b"a: 1\n---\nb: 2\n").filter(Result::is_ok).count(), 2);
    }
}
