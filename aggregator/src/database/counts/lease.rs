//! The region lease: without Redis, at most one aggregator serves a region. The database's clock times the lease.

use crate::database::connection::retry::{self, Execute, Work};
use crate::database::connection::{Arg, Connection};
use crate::database::{Database, DatabaseError, Reason};
use std::time::Duration;
use tokio::time::Instant;

/// The holder of the region lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The caller, from now on for the requested time.
    Mine,
    /// Another aggregator.
    HeldBy {
        /// Its identity.
        holder: [u8; 16],
        /// The remaining time, in milliseconds.
        for_ms: u64,
        /// When it expires, by the database's clock. Each renewal changes it.
        expires_at: u64,
    },
}

impl Database {
    /// Takes or renews the lease unless another holder has it. A lease that expires at `abandoned` counts as expired.
    pub async fn lease(
        &self,
        holder: &[u8; 16],
        ttl: Duration,
        abandoned: Option<u64>,
        within: Duration,
    ) -> Result<Lease, DatabaseError> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).min(u64::from(u32::MAX));
        let abandoned = abandoned.unwrap_or_default();
        let take = Take { region: self.region_bytes(), holder, ttl_ms, abandoned };
        retry::until(Instant::now() + within, self.primary(), take).await
    }

    /// Releases the lease if this holder has it.
    pub async fn release(&self, holder: &[u8; 16], within: Duration) -> Result<(), DatabaseError> {
        let args = [Arg::Bytes(self.region_bytes()), Arg::Bytes(holder)];
        let release = Execute(self.primary().statements().lease_release, &args);
        retry::until(Instant::now() + within, self.primary(), release).await.map(drop)
    }
}

/// Takes the lease if it is free, and reads its holder and remaining time.
struct Take<'a> {
    region: &'a [u8],
    holder: &'a [u8; 16],
    ttl_ms: u64,
    abandoned: u64,
}

impl Work for Take<'_> {
    type Output = Lease;

    async fn run(&mut self, connection: &mut Connection) -> Result<Self::Output, DatabaseError> {
        let Take { region, holder, ttl_ms, abandoned } = *self;
        let statements = connection.statements();
        let take = [Arg::Bytes(region), Arg::Bytes(holder), Arg::Int(ttl_ms), Arg::Int(abandoned)];
        connection.execute(statements.lease_take, &take).await?;
        let mut found = None;
        connection
            .each(statements.lease_read, &[Arg::Bytes(region)], &mut |row| {
                let other: Option<[u8; 16]> = row.bytes(0).and_then(|bytes| bytes.try_into().ok());
                found = match (other, row.number(1), row.number(2)) {
                    (Some(found), ..) if found == *holder => Some(Lease::Mine),
                    (Some(holder), Some(for_ms), Some(expires_at)) => {
                        Some(Lease::HeldBy { holder, for_ms, expires_at })
                    }
                    _ => None,
                };
            })
            .await?;
        found.ok_or_else(|| {
            DatabaseError::new(Reason::Other, "the region lease was deleted right after it was taken")
        })
    }
}
