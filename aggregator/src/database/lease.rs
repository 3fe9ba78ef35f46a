//! Which aggregator serves a region that has no Redis: one at a time, by a lease on the database's clock.
//!
//! Leaves to others: how often to renew, and what a second aggregator does about it (`serve`).

use super::connection::Arg;
use super::{Database, DatabaseError, Reason, retry};
use std::time::Duration;
use tokio::time::Instant;

/// Who has the region's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Whoever asked, from now for as long as it asked for.
    Mine,
    /// Another.
    HeldBy {
        /// Who.
        holder: [u8; 16],
        /// For how many milliseconds more.
        for_ms: u64,
    },
}

impl Database {
    /// Takes or renews the lease, unless another has it.
    pub async fn lease(
        &self,
        holder: &[u8; 16],
        ttl: Duration,
        within: Duration,
    ) -> Result<Lease, DatabaseError> {
        let region = self.region_bytes();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).min(u64::from(u32::MAX));
        let lease = retry::until(Instant::now() + within, self.primary(), async |connection| {
            let statements = connection.statements();
            let take = [Arg::Bytes(region), Arg::Bytes(holder), Arg::Int(ttl_ms)];
            connection.execute(statements.lease_take, &take).await?;
            let mut found = None;
            connection
                .each(statements.lease_read, &[Arg::Bytes(region)], |row| {
                    let other: Option<[u8; 16]> = row.bytes(0).and_then(|bytes| bytes.try_into().ok());
                    found = other.zip(row.number(1));
                })
                .await?;
            found.ok_or_else(|| DatabaseError::new(Reason::Other, "the lease was deleted as it was taken"))
        });
        let (found, for_ms) = lease.await?;
        Ok(if found == *holder { Lease::Mine } else { Lease::HeldBy { holder: found, for_ms } })
    }

    /// Gives the lease back, if this holder has it.
    pub async fn release(&self, holder: &[u8; 16], within: Duration) -> Result<(), DatabaseError> {
        let args = [Arg::Bytes(self.region_bytes()), Arg::Bytes(holder)];
        retry::until(Instant::now() + within, self.primary(), async |connection| {
            connection.execute(connection.statements().lease_release, &args).await.map(drop)
        })
        .await
    }
}
