//! What a change did.

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Something was said.
    Set,
    /// Nothing is said any more.
    Deleted,
}

impl Action {
    pub(super) fn number(self) -> u64 {
        match self {
            Action::Set => 1,
            Action::Deleted => 2,
        }
    }
}
