//! The room that several parts share, such as workspaces or credentials.

/// A part may have as many times what is free.
const TIMES_FREE: usize = 3;

/// How much a part may have while so much is `free`: one alone has three quarters of the room at most, and another finds a quarter
/// free, whatever the first has filled.
pub fn most_of_part(free: usize) -> usize {
    free.saturating_mul(TIMES_FREE)
}

/// What is free once a part of which `left` may still be taken has taken it: what it takes is not free any more.
pub fn free_within_part(left: usize) -> usize {
    left.div_ceil(TIMES_FREE + 1)
}
