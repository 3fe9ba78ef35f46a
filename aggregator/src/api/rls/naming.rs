//! What a descriptor is counted under: namespace and identifier.
//!
//! A limit with a name counts in the namespace of that name, so a filter's rule with the same namespace and window
//! counts on the same key, if their identifiers are the same. Any other counts in a namespace that is made of the domain
//! and of the way through the configuration; as it holds a `|`, no filter's namespace can be the same.
//!
//! The identifier is made of the values that the configuration does not fix, as a filter's rule makes its of its parts.
//! Where it fixes all of them there is one count, that of [`ALL`].
//!
//! Leaves to others: which rule a descriptor finds (`matching`).

use super::wire::Entry;
use weir_core::rules::identifier::identifier_of;

/// Who is counted where the configuration fixes every value.
pub const ALL: &[u8] = b"*";
/// What such namespaces begin with.
const SCHEME: &[u8] = b"rls";

/// A limit's namespace; `way` is the domain, then each level's key and [`matched`] value.
pub fn namespace(name: Option<&str>, way: &[String]) -> Vec<u8> {
    match name {
        Some(name) => name.as_bytes().to_vec(),
        None => joined(&[SCHEME], way.iter().map(String::as_bytes)),
    }
}

/// How a level's value is matched, as one text: fixed, by a pattern that all share, by a pattern, or any.
pub fn matched(value: Option<&str>, wild: bool, shared: bool) -> String {
    match value {
        None => String::new(),
        Some(pattern) if wild && shared => format!("+{pattern}"),
        Some(pattern) if wild => format!("~{pattern}"),
        Some(value) => format!("={value}"),
    }
}

/// The identifier of a descriptor whose values at `free` count.
pub fn identifier(entries: &[Entry], free: &[usize]) -> Vec<u8> {
    let values = free.iter().filter_map(|at| entries.get(*at)).map(|entry| entry.value.as_slice());
    match free.is_empty() {
        true => ALL.to_vec(),
        false => joined(&[], values),
    }
}

/// Namespace and identifier of a descriptor that brings its own limit, where the configuration has none for it.
pub fn of_override(domain: &str, entries: &[Entry]) -> (Vec<u8>, Vec<u8>) {
    let keys = entries.iter().map(|entry| entry.key.as_bytes());
    let free: Vec<usize> = (0..entries.len()).collect();
    (joined(&[SCHEME, b"override", domain.as_bytes()], keys), identifier(entries, &free))
}

fn joined<'a>(first: &[&'a [u8]], rest: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let values: Vec<&[u8]> = first.iter().copied().chain(rest).collect();
    let mut out = Vec::new();
    identifier_of(&values, &mut out);
    out
}
