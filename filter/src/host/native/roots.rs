//! Which root the current event belongs to: a configuration of the filter, whatever the number of places that have it.

use std::cell::Cell;

thread_local! {
    static ROOT: Cell<u32> = const { Cell::new(0) };
}

/// Lets what follows in this thread belong to `root`.
pub fn enter(root: u32) {
    ROOT.set(root);
}

/// Lets requests of `root` find it, for which nothing is needed.
pub fn declare(_root: u32) {}

/// The root of the current event.
pub fn current() -> Option<u32> {
    Some(ROOT.get())
}
