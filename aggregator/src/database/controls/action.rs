//! The kind of a change in the audit.

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A control was set.
    Set,
    /// A control was deleted.
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
