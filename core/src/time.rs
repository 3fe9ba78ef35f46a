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

/// Both clocks, read together at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Which cell it is.
    pub unix: UnixMs,
    /// How long things take.
    pub mono: MonoMs,
}
