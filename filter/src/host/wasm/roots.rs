//! Which root the current request belongs to.
//!
//! Envoy has no call for it, but expressions belong to roots: `expr_create` compiles one for the root that calls it, and numbers the
//! expressions of each root from 0. So each root defines its own id as its first expression, a constant, and a request that
//! evaluates expression 0 gets the id of its root. `foreign.cc` in Envoy has both functions.

use super::calls;

/// The number of a root's first expression.
const FIRST: u32 = 0;

/// Lets requests of `root`, the current context, find it.
pub fn declare(root: u32) {
    // An Envoy that was built without expressions refuses; then requests find no root.
    calls::call_foreign(b"expr_create", root.to_string().as_bytes(), |_, _| ());
}

/// The root of the current request; `None` if Envoy was built without expressions.
pub fn current() -> Option<u32> {
    calls::call_foreign(b"expr_evaluate", &FIRST.to_le_bytes(), |_, value| {
        let value = i64::from_le_bytes(*value.as_array()?);
        u32::try_from(value).ok()
    })
}
