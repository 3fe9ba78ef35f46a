//! What an operator selects of live control.

use weir_core::control::Slot;

/// Most entries of one list.
pub const MAX_PAGE: u32 = 1_000;
/// Selects targets. An empty field matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceFilter {
    /// The workspace.
    pub workspace: String,
    /// The namespace or the rule.
    pub scope: String,
    /// The identifier, spelled as it was set.
    pub identifier: String,
    /// The network, in its displayed form.
    pub network: String,
}

/// Selects controls. A missing field matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlFilter {
    /// The target.
    pub place: PlaceFilter,
    /// The slot.
    pub slot: Option<Slot>,
    /// Only controls whose pattern matches this raw identifier. A scope then also matches controls for all namespaces.
    pub matching: Option<String>,
    /// Only controls with a higher revision.
    pub after: u64,
    /// Most entries, 1 to [`MAX_PAGE`].
    pub limit: u32,
}

/// Selects audit entries. An empty or missing field matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// The target.
    pub place: PlaceFilter,
    /// The author.
    pub author: String,
    /// Only entries with a lower number.
    pub before: Option<u64>,
    /// Most entries, 1 to [`MAX_PAGE`].
    pub limit: u32,
}
