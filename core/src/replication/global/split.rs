//! Detects a split region: two groups of aggregators have its name, and each group has a store of its own, or another prefix in it. No
//! region imports its own rows, so each group passes the whole limit.
//!
//! An aggregator takes its writer number from the id under which the region's store lists it as alive. A writer of this region that goes
//! on writing while the store, which answers, does not list it belongs to another store. The marker of an aggregator that has ended does
//! not move, and one that lives is listed again within a second after a loss of the store: neither is taken for foreign.

use super::packet::Writer;
use crate::model::schedule::Schedule;
use crate::model::time::MonoMs;
use crate::replication::members::Members;

/// How many numbers a process has in turn, should another process have taken one.
const NUMBERS: usize = 4;

impl Writer {
    /// A number of the aggregator with this id. Another `attempt` gives another number.
    pub fn of(id: &[u8; 16], attempt: usize) -> Writer {
        let [a, b, c, d] = id.as_chunks::<4>().0.get(attempt % NUMBERS).copied().unwrap_or_default();
        Writer::new(u32::from_be_bytes([a, b, c, d]))
    }
}

/// What is known of another writer of this region.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listing {
    /// Since when it has been seen to write without being listed.
    unlisted: Option<MonoMs>,
    /// When it was seen so last.
    last: Option<MonoMs>,
}

impl Listing {
    /// The writer's marker was read, and `has_moved` since the read before. `members` is `None` in a region without a store, which has no
    /// other writer.
    pub(super) fn read(
        &mut self,
        (writer, has_moved): (Writer, bool),
        members: Option<&Members>,
        schedule: &Schedule,
        now: MonoMs,
    ) {
        let is_listed = members.map_or(Some(false), |members| lists(members, writer, schedule, now));
        let is_silent = self.last.is_none_or(|last| now.since(last) > patience_ms(schedule));
        match is_listed {
            Some(false) if has_moved => {
                self.unlisted = self.unlisted.filter(|_| !is_silent).or(Some(now));
                self.last = Some(now);
            }
            Some(false) if !is_silent => {}
            _ => *self = Listing::default(),
        }
    }

    /// Whether the writer belongs to another store: it has written for long without being listed.
    pub(super) fn is_foreign(&self, schedule: &Schedule) -> bool {
        let (Some(since), Some(last)) = (self.unlisted, self.last) else { return false };
        last.since(since) >= patience_ms(schedule)
    }
}

/// Whether the store lists the aggregator of this writer; `None` if it has not answered lately.
fn lists(members: &Members, writer: Writer, schedule: &Schedule, now: MonoMs) -> Option<bool> {
    let aggregators = members.recent(schedule.heartbeat_ms.saturating_mul(3), now)?;
    let has_number = |id: &[u8; 16]| (0..NUMBERS).any(|attempt| Writer::of(id, attempt) == writer);
    Some(aggregators.iter().any(has_number))
}

/// How long a writer has to write without being listed. Each writes at every interval, whatever it has to publish.
fn patience_ms(schedule: &Schedule) -> u64 {
    schedule.publish_ms.max(schedule.heartbeat_ms).saturating_mul(3)
}
