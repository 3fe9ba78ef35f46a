//! Which counts are plausible, and why a region does not merge the others.

use crate::model::key::KeyParts;
use crate::model::time::UnixMs;
use crate::model::window::{MAX_COUNT, MAX_LIMIT, Position};

/// How many windows a sequence may differ from the aggregator's own. A greater difference means that a clock is wrong.
pub const MAX_WINDOW_SKEW: u64 = 2;

/// The most that one node can plausibly have used of one key in a second: a million requests, each with a cost of a
/// million.
pub const MOST_A_SECOND: u64 = 1 << 40;

/// Seconds added to the time that a cell has lasted, since clocks differ.
const CLOCKS_DIFFER_S: u64 = 60;
const _: () = assert!(MAX_LIMIT == CLOCKS_DIFFER_S * MOST_A_SECOND);

/// Why a count was not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The key's bytes are not a key, or another region's key has a window that regions do not share.
    #[error("malformed key")]
    Key,
    /// The sequence is more than two windows away from now.
    #[error("sequence is more than two windows away from now")]
    Sequence,
    /// A component beyond [`MAX_COUNT`], or beyond [`MOST_A_SECOND`] for as long as its cell lasts.
    #[error("implausible component")]
    Component,
    /// A bound of [`RegionLimits`](super::RegionLimits), or of the number of nodes of one key, is reached.
    #[error("the region is full")]
    Full,
    /// The process has evicted its own count, and the store that may hold it cannot be queried.
    #[error("the baseline is unknown while the regional store is unavailable")]
    Baseline,
}

/// Whether a count is plausible, and the present position in the key's windows. Works on bytes, as most keys are stored
/// already and need no new `Key`.
pub(super) fn checked(key: &[u8], sequence: u64, component: u64, now: UnixMs) -> Result<Position, Refused> {
    let parts = KeyParts::decode(key).map_err(|_| Refused::Key)?;
    let at = Position::at(now, parts.cell_ms());
    if sequence.abs_diff(at.sequence) > MAX_WINDOW_SKEW.saturating_mul(u64::from(parts.resolution)) {
        return Err(Refused::Sequence);
    }
    if component > MAX_COUNT {
        return Err(Refused::Component);
    }
    Ok(at)
}

/// The same for the count of one node.
pub(super) fn checked_own(key: &[u8], sequence: u64, own: u64, now: UnixMs) -> Result<Position, Refused> {
    let at = checked(key, sequence, own, now)?;
    if own > most_by_now(sequence, at.cell_ms, now) { Err(Refused::Component) } else { Ok(at) }
}

/// The most that one node can plausibly have used in a cell by now.
pub(super) fn most_by_now(sequence: u64, cell_ms: u64, now: UnixMs) -> u64 {
    let lasted_ms = now.0.saturating_sub(sequence.saturating_mul(cell_ms)).min(cell_ms);
    let seconds = (lasted_ms / 1_000).saturating_add(CLOCKS_DIFFER_S);
    seconds.saturating_mul(MOST_A_SECOND).min(MAX_COUNT)
}
