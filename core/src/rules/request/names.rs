//! Names of query parameters and cookies that some upstream takes for the same.
//!
//! PHP takes `user.id`, `user id`, `user[id` and what follows a NUL byte for `user_id`, and drops blanks before a name; PHP, Rack and
//! Express take `user_id[]` for a list of that name; Rack and Express drop brackets around a name; ASP.NET compares names without
//! their case.

/// Whether some upstream takes a name, decoded, for `wanted`. Both are different texts.
pub(in crate::rules) fn is_alias(name: impl Iterator<Item = u8>, wanted: &[u8]) -> bool {
    let mut name = name.skip_while(|byte| is_dropped(*byte));
    let begins_alike = wanted
        .iter()
        .skip_while(|byte| is_dropped(**byte))
        .all(|byte| name.next().is_some_and(|other| folded(other) == folded(*byte)));
    begins_alike
        && match name.next() {
            None | Some(0 | b'[' | b']') => true,
            // PHP ignores what follows an index.
            Some(_) => wanted.last() == Some(&b']'),
        }
}

/// Before a name.
fn is_dropped(byte: u8) -> bool {
    matches!(byte, b' ' | b'[' | b']')
}

fn folded(byte: u8) -> u8 {
    match byte {
        b' ' | b'.' | b'[' => b'_',
        byte => byte.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases() {
        for (name, wanted, expected) in [
            ("user.id", "user_id", true),
            ("user_id", "user.id", true),
            ("USER ID", "user_id", true),
            ("  user_id", "user_id", true),
            ("user[id", "user_id", true),
            ("user_id[]", "user_id", true),
            ("user_id]", "user_id", true),
            ("]user_id", "user_id", true),
            ("[user_id]", "user_id", true),
            (" [[user_id]", "user_id", true),
            ("user_id\0x", "user_id", true),
            ("a[b]c", "a[b]", true),
            ("user", "user_id", false),
            ("user_ids", "user_id", false),
            ("userid", "user_id", false),
            ("user-id", "user_id", false),
            ("a[c]", "a[b]", false),
            ("", "a", false),
        ] {
            assert_eq!(is_alias(name.bytes(), wanted.as_bytes()), expected, "{name:?} {wanted:?}");
        }
    }
}
