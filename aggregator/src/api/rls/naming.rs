//! Namespace and identifier of a descriptor.
//!
//! A limit with a name counts in the namespace of that name. A filter's rule with the same namespace, window and identifier
//! counts on the same key. Any other limit counts in a namespace made of the domain and the path through the configuration;
//! it contains a `|`, so no filter's namespace can be equal.
//!
//! The identifier is made of the values that the configuration does not fix, in the way a filter's rule joins its parts.
//! If the configuration fixes all values, there is one count, with the identifier [`ALL`].

use super::wire::Entry;
use crate::api::permission::Naming;
use weir_core::region::shares::OVERRIDES;
use weir_core::rules::identifier::identifier_of;

/// The identifier if the configuration fixes every value.
pub const ALL: &[u8] = b"*";
/// First part of the namespaces of limits without a name.
const SCHEME: &[u8] = b"rls";

/// A limit's namespace; `way` is the domain, then each level's key and [`matched`] value.
pub fn namespace(name: Option<&str>, way: &[String]) -> Vec<u8> {
    match name {
        Some(name) => name.as_bytes().to_vec(),
        None => joined(&[SCHEME], way.iter().map(String::as_bytes)),
    }
}

/// Who chose a limit's namespace. A name has neither `|` nor `:`, and any other namespace has one, also as a digest.
pub fn naming_of(namespace: &[u8]) -> Naming {
    match namespace.iter().any(|byte| b"|:".contains(byte)) {
        true => Naming::Path,
        false => Naming::Name,
    }
}

/// How a level's value is matched, as one text: fixed, by a pattern with a shared count, by a pattern, or any.
pub fn matched(value: Option<&str>, wild: bool, shared: bool) -> String {
    match value {
        None => String::new(),
        Some(pattern) if wild && shared => format!("+{pattern}"),
        Some(pattern) if wild => format!("~{pattern}"),
        Some(value) => format!("={value}"),
    }
}

/// The identifier of a descriptor; `free` are the positions of the values that form it.
pub fn identifier(entries: &[Entry], free: &[usize]) -> Vec<u8> {
    let values = free.iter().filter_map(|at| entries.get(*at)).map(|entry| entry.value.as_slice());
    match free.is_empty() {
        true => ALL.to_vec(),
        false => joined(&[], values),
    }
}

/// Namespace and identifier of a descriptor that brings its own limit, if the configuration has none for it.
pub fn of_override(domain: &str, entries: &[Entry]) -> (Vec<u8>, Vec<u8>) {
    let keys = entries.iter().map(|entry| entry.key.as_bytes());
    let free: Vec<usize> = (0..entries.len()).collect();
    let mut namespace = joined(&[SCHEME, b"override", domain.as_bytes()], keys);
    // A long one is a digest.
    if !namespace.starts_with(OVERRIDES) {
        namespace.splice(..0, OVERRIDES.iter().copied());
    }
    (namespace, identifier(entries, &free))
}

fn joined<'a>(first: &[&'a [u8]], rest: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let values: Vec<&[u8]> = first.iter().copied().chain(rest).collect();
    let mut out = Vec::new();
    identifier_of(&values, &mut out);
    out
}
