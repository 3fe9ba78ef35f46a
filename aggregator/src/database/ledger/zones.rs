//! The ledger's zones, each a rate and a window. Every attempt reads its zone, so a change applies at once.

use crate::database::connection::retry::{self, Execute, Number, Rows};
use crate::database::connection::{Arg, Row};
use crate::database::{Database, DatabaseError};
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::key::MAX_DURATION_MS;
use weir_core::model::window::MAX_COUNT;

/// Highest rate.
pub const MAX_RATE: u64 = MAX_COUNT;
/// Longest window.
pub const MAX_WINDOW: Duration = Duration::from_millis(MAX_DURATION_MS);
/// Longest description, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 1_000;
/// Largest number to which the attempts of a deleted zone are counted.
const MAX_ATTEMPTS_COUNTED: u64 = 100_000;

/// A zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// The number of the zone.
    pub id: u32,
    /// A description for operators.
    pub description: String,
    /// The most that may be used in any window.
    pub rate: u64,
    /// The window in seconds.
    pub window_seconds: u64,
}

/// The requested state of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneChange {
    id: u32,
    description: Option<String>,
    rate: u64,
    window_seconds: u64,
}

/// Why a zone is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// The rate is too high.
    #[error("the rate {0} is above 2^53; set --rate to 0 to {MAX_RATE}")]
    Rate(u64),
    /// The window is out of range.
    #[error("the window must be whole seconds, from 1s to 366 days; set --window, as in --window 15m")]
    Window,
    /// The description is too long.
    #[error("the description has {0} bytes; expected {MAX_DESCRIPTION_BYTES} at most")]
    Description(usize),
}

/// The recorded attempts of a deleted zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Number of transactions, up to `MAX_ATTEMPTS_COUNTED`.
    pub transactions: u64,
    /// There are more transactions than that.
    pub and_more: bool,
}

impl ZoneChange {
    /// Checks a requested zone. Without a description, the zone keeps its present description.
    pub fn new(
        id: u32,
        rate: u64,
        window: Duration,
        description: Option<String>,
    ) -> Result<ZoneChange, ZoneError> {
        if rate > MAX_RATE {
            return Err(ZoneError::Rate(rate));
        }
        let window_seconds = window.as_secs();
        if window_seconds == 0 || window.subsec_nanos() > 0 || window > MAX_WINDOW {
            return Err(ZoneError::Window);
        }
        let bytes = description.as_ref().map_or(0, String::len);
        if bytes > MAX_DESCRIPTION_BYTES {
            return Err(ZoneError::Description(bytes));
        }
        Ok(ZoneChange { id, description, rate, window_seconds })
    }

    /// The number of the zone.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The most that may be used in any window.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// The window in seconds.
    pub fn window_seconds(&self) -> u64 {
        self.window_seconds
    }
}

impl Database {
    /// All zones, ordered by number.
    pub async fn zones(&self, within: Duration) -> Result<Vec<Zone>, DatabaseError> {
        self.read_zones(self.primary().statements().zones, &[], within).await
    }

    /// One zone.
    pub async fn zone(&self, id: u32, within: Duration) -> Result<Option<Zone>, DatabaseError> {
        let zones = self.read_zones(self.primary().statements().zone, &[Arg::Int(id.into())], within).await?;
        Ok(zones.into_iter().next())
    }

    /// Creates or changes a zone. The next attempt uses the new values.
    pub async fn set_zone(&self, zone: &ZoneChange, within: Duration) -> Result<(), DatabaseError> {
        let ZoneChange { id, description, rate, window_seconds } = zone;
        let text = description.as_deref().unwrap_or_default();
        let args = [
            Arg::Int((*id).into()),
            Arg::Bytes(text.as_bytes()),
            Arg::Int(*rate),
            Arg::Int(*window_seconds),
            Arg::Int(description.is_some().into()),
        ];
        let set = Execute(self.primary().statements().zone_set, &args);
        retry::until(Instant::now() + within, self.primary(), set).await.map(drop)
    }

    /// Deletes a zone and returns what is left of it; `None` if there is no such zone. Recorded attempts stay until the
    /// cleanup. If the zone is created again before, they count again.
    pub async fn delete_zone(&self, id: u32, within: Duration) -> Result<Option<Remains>, DatabaseError> {
        let deadline = Instant::now() + within;
        let delete = [Arg::Int(id.into())];
        let delete = Execute(self.primary().statements().zone_delete, &delete);
        if retry::until(deadline, self.primary(), delete).await? == 0 {
            return Ok(None);
        }
        let args = [Arg::Int(id.into()), Arg::Int(MAX_ATTEMPTS_COUNTED + 1)];
        let count = Number(self.primary().statements().zone_attempts, &args);
        let found = retry::until(deadline, self.primary(), count).await?.unwrap_or_default();
        let transactions = found.min(MAX_ATTEMPTS_COUNTED);
        Ok(Some(Remains { transactions, and_more: found > transactions }))
    }

    async fn read_zones(
        &self,
        statement: &'static str,
        args: &[Arg<'_>],
        within: Duration,
    ) -> Result<Vec<Zone>, DatabaseError> {
        retry::until(Instant::now() + within, self.primary(), Rows(statement, args, read_zone)).await
    }
}

fn read_zone(row: &Row<'_>) -> Option<Zone> {
    Some(Zone {
        id: row.number(0)?.try_into().ok()?,
        description: String::from_utf8_lossy(row.bytes(1)?).into_owned(),
        rate: row.number(2)?,
        window_seconds: row.number(3)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_zone_may_be() {
        let second = Duration::from_secs(1);
        let text = |bytes| Some("x".repeat(bytes));
        let cases = [
            (0, second, None, Ok(())),
            (MAX_RATE, MAX_WINDOW, text(MAX_DESCRIPTION_BYTES), Ok(())),
            (MAX_RATE + 1, second, None, Err(ZoneError::Rate(MAX_RATE + 1))),
            (1, Duration::ZERO, None, Err(ZoneError::Window)),
            (1, Duration::from_millis(1_500), None, Err(ZoneError::Window)),
            (1, MAX_WINDOW + second, None, Err(ZoneError::Window)),
            (1, Duration::MAX, None, Err(ZoneError::Window)),
            (1, second, text(MAX_DESCRIPTION_BYTES + 1), Err(ZoneError::Description(1_001))),
        ];
        for (rate, window, description, expected) in cases {
            assert_eq!(
                ZoneChange::new(1, rate, window, description).map(drop),
                expected,
                "{rate} {window:?}"
            );
        }
    }
}
