//! Points in time, as values that the caller measured.
//!
//! There are two clocks that must not be mixed. [`UnixMs`] determines the cell of a request, and does not step while an
//! aggregator serves (`replication::regional::clock`).
//! [`MonoMs`] measures waits and leases, and never jumps.

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// The time `ms` later.
    pub const fn after(self, ms: u64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms))
    }
}

/// Milliseconds on a monotonic clock that all workers of one process share; its zero has no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonoMs(pub u64);

impl MonoMs {
    /// Milliseconds since `earlier`; zero if it is in the future.
    pub const fn since(self, earlier: MonoMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `ms` later.
    pub const fn after(self, ms: u64) -> MonoMs {
        MonoMs(self.0.saturating_add(ms))
    }
}

/// A time that is wrong approaches the right one by one part in this many, so slowly that no limit notices.
pub(crate) const SLOW_PARTS: u64 = 1_000;

/// `from`, moved towards `to` by at most `most`.
pub(crate) fn toward(from: u64, to: u64, most: u64) -> u64 {
    to.clamp(from.saturating_sub(most), from.saturating_add(most))
}

/// Windows may begin before the zero of the monotonic clock, so times in [`Now::mono_of`] are counted from this long before it.
const BEFORE_ZERO_MS: u64 = 1 << 48;

/// Both clocks, read at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Wall clock.
    pub unix: UnixMs,
    /// Monotonic clock.
    pub mono: MonoMs,
}

impl Now {
    /// The monotonic time of `unix`, if the wall clock does not step. It is counted from before the zero of the monotonic clock, so it is
    /// comparable only with other results of this function.
    pub const fn mono_of(self, unix: UnixMs) -> MonoMs {
        let now = self.mono.0.saturating_add(BEFORE_ZERO_MS);
        MonoMs(
            now.saturating_add(unix.0.saturating_sub(self.unix.0))
                .saturating_sub(self.unix.0.saturating_sub(unix.0)),
        )
    }
}
