//! The ledger: each attempt is decided against its zone's rate and recorded, allowed or not, before it is answered.
//!
//! An attempt is allowed if its cost, plus the costs of all allowed attempts younger than the zone's window, is at most
//! the rate. Each kind of database decides in its own way (`dialect`), with the same results.

pub(in crate::database) mod history;
pub(in crate::database) mod zones;

use crate::database::connection::retry::{Execute, Work};
use crate::database::connection::{Arg, Connection};
use crate::database::dialect::{MAX_BUCKET_BYTES, Velocity};
use crate::database::{Database, DatabaseError, Reason};
use crate::telemetry::spans;
use std::time::Duration;
use weir_core::model::breaker::State;
use weir_core::model::window::MAX_COUNT;
use weir_core::replication::exact::plan::{LedgerCharge, Transaction};

impl Database {
    /// Decides an attempt and records it. Returns `None` if the zone does not exist; nothing is recorded then. After an
    /// error the attempt may be recorded nevertheless, unless the database certainly rolled it back.
    pub async fn check_velocity(
        &self,
        charge: &LedgerCharge,
        within: Duration,
    ) -> Result<Option<Velocity>, DatabaseError> {
        let (bytes, cost) = (charge.bucket.len(), charge.cost);
        if bytes > MAX_BUCKET_BYTES {
            let text = format!("a bucket of {bytes} bytes is longer than {MAX_BUCKET_BYTES}");
            return Err(DatabaseError::new(Reason::Other, text));
        }
        if cost > MAX_COUNT {
            let text =
                format!("a cost of {cost} is more than {MAX_COUNT}, which is the most that is recorded");
            return Err(DatabaseError::new(Reason::Other, text));
        }
        let call = spans::statement(self.primary().statements().system, "CALL", "check_velocity", 1);
        let check = Check { charge, region: self.region_bytes() };
        let result = self.ledger().call(charge.zone, within, check).await;
        spans::failed(call, result.as_ref().err().map(DatabaseError::reason));
        match result {
            Ok(velocity) => Ok(Some(velocity)),
            Err(error) if error.kind() == Reason::NoZone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Refunds an allowed attempt of its zone and bucket, so that it no longer counts. Returns whether this call
    /// refunded it: `false` if the attempt is unknown or younger than stated, belongs to another bucket, was blocked, or had
    /// been refunded before.
    pub async fn refund(&self, transaction: &Transaction, within: Duration) -> Result<bool, DatabaseError> {
        let Transaction { id, zone, bucket, age_us } = transaction;
        let Some((id, age_us)) = storable(*id).zip(storable(*age_us)) else { return Ok(false) };
        let args = [Arg::Int(id), Arg::Int(u64::from(*zone)), Arg::Bytes(bucket), Arg::Int(age_us)];
        let statement = self.primary().statements().refund;
        let rows = self.ledger().call(*zone, within, Execute(statement, &args)).await?;
        Ok(rows > 0)
    }

    /// The state of the ledger's circuit breaker.
    pub fn ledger_state(&self) -> State {
        self.ledger().state()
    }
}

/// The number, if every column can store it.
pub(in crate::database) fn storable(number: u64) -> Option<u64> {
    i64::try_from(number).is_ok().then_some(number)
}

/// Decides one attempt on one connection.
struct Check<'a> {
    charge: &'a LedgerCharge,
    region: &'a [u8],
}

impl Work for Check<'_> {
    type Output = Velocity;

    async fn run(&mut self, connection: &mut Connection) -> Result<Velocity, DatabaseError> {
        connection.check_velocity(self.charge, self.region).await
    }
}
