//! The audit of live control: every change, with its author and reason.

use weir_core::control::Slot;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A control was set.
    Set,
    /// A control was deleted.
    Deleted,
}

impl Action {
    /// The number in the database.
    pub fn number(self) -> u64 {
        match self {
            Action::Set => 1,
            Action::Deleted => 2,
        }
    }
}

/// An audit entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// The number of the entry.
    pub id: u64,
    /// The time, in milliseconds since the Unix epoch.
    pub created_at: u64,
    /// The author.
    pub author: String,
    /// A rule made the change, not a person.
    pub automatic: bool,
    /// The region of the aggregator that made the change.
    pub region: String,
    /// The kind of the change.
    pub action: Action,
    /// The workspace.
    pub workspace: String,
    /// The namespace or the rule.
    pub scope: String,
    /// The identifier; empty if the target has none.
    pub identifier: String,
    /// The network; empty if the target has none.
    pub network: String,
    /// The window in milliseconds; 0 for all windows.
    pub window_ms: u64,
    /// The slot.
    pub slot: Slot,
    /// The revision.
    pub revision: u64,
    /// The control before the change, as JSON; empty if there was none.
    pub was: String,
    /// The control after the change, as JSON; empty if there is none.
    pub is_now: String,
    /// The reason.
    pub reason: String,
}
