//! Points in time as the core sees them: values that a shell measured and handed in.
//!
//! Leaves to others: measuring. Two clocks exist and must not meet: [`UnixMs`] says which cell a request falls
//! into and may jump when somebody sets the machine's clock; [`MonoMs`] measures waits and leases and never does.

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// The moment `ms` later.
    pub const fn after(self, ms: u64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms))
    }
}

/// Milliseconds on a monotonic clock that all workers of one process share; its zero means nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonoMs(pub u64);

impl MonoMs {
    /// How long ago `earlier` was; zero where it lies ahead.
    pub const fn since(self, earlier: MonoMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `ms` later.
    pub const fn after(self, ms: u64) -> MonoMs {
        MonoMs(self.0.saturating_add(ms))
    }
}

/// Windows reach back beyond the zero of the monotonic clock: such moments are counted from so long before it.
const BEFORE_ZERO_MS: u64 = 1 << 48;

/// Both clocks, read together at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Which cell it is.
    pub unix: UnixMs,
    /// How long things take.
    pub mono: MonoMs,
}

impl Now {
    /// The monotonic moment at which it is `unix` while the clock does not step, counted from before the zero of the monotonic
    /// clock. To be compared with others of its kind alone.
    pub const fn mono_of(self, unix: UnixMs) -> MonoMs {
        let now = self.mono.0.saturating_add(BEFORE_ZERO_MS);
        MonoMs(
            now.saturating_add(unix.0.saturating_sub(self.unix.0))
                .saturating_sub(self.unix.0.saturating_sub(unix.0)),
        )
    }
}
