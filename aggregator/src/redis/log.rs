//! Exact sliding logs: one sorted set for each key, and one script that decides and charges in one step.
//!
//! Times are the server's. The script does nothing if it would run after its caller's deadline, or if the server's
//! clock is ahead of its prediction (`server_clock`). After such a step, the call is repeated with the corrected clock.
//!
//! A log is stored only in Redis. If a server loses entries, by a wipe, an eviction, a restart, or a failover before
//! replication, their charges no longer count. The log continues with the remaining entries.

use super::cluster::servers::Node;
use super::command::Command;
use super::error::StoreError;
use super::script::{self, SCRIPTS};
use super::{Store, deadline};
use redis::{Cmd, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::region::log::{LogCharge, LogDecision, Micros, Outcome};

/// Highest cost that an entry's three bytes can hold; no limit is higher.
const MAX_ENTRY_COST: u64 = 0xFF_FFFF;
/// The tolerated lead of the server's clock over its prediction when a charge is made. A smaller step is noticed only
/// after the charge. The last try is for a slow server and may take all of the remaining time.
const TRIES: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(400), Duration::MAX];
/// Steps of a server's clock of at least this size are logged.
const NOTABLE_STEP: Duration = Duration::from_millis(100);

impl Store {
    /// Decides each charge in a separate step, which succeeds or fails alone; results are in the order of `charges`.
    /// After `within`, charges without an answer fail with [`StoreError::Timeout`]. Such a charge may have been made if
    /// it was sent in time. A charge may be repeated: an entry that counts already is not charged again.
    pub async fn charge_logs(
        &self,
        charges: &[LogCharge],
        within: Duration,
    ) -> Vec<Result<LogDecision, StoreError>> {
        let deadline = deadline(within);
        let mut results: Vec<_> = charges.iter().map(|_| Err(StoreError::Timeout)).collect();
        let mut open: Vec<usize> = (0..charges.len()).collect();
        for patience in TRIES {
            let now = Instant::now();
            if open.is_empty() || now >= deadline {
                break;
            }
            let latest = now.checked_add(patience).map_or(deadline, |latest| latest.min(deadline));
            let open_charges = open.iter().filter_map(|place| charges.get(*place)).collect();
            let answers = self.try_logs(open_charges, latest, deadline).await;
            let tried = std::mem::take(&mut open);
            for (place, answer) in tried.into_iter().zip(answers) {
                match answer {
                    Ok(None) => open.push(place),
                    answer => {
                        if let Some(result) = results.get_mut(place) {
                            *result = answer.and_then(|decided| decided.ok_or(StoreError::Timeout));
                        }
                    }
                }
            }
        }
        results
    }

    /// Refunds charges, and returns for each whether its entry existed. May be repeated.
    pub async fn refund_logs(
        &self,
        charges: &[LogCharge],
        within: Duration,
    ) -> Vec<Result<bool, StoreError>> {
        let commands = charges.iter().map(|charge| {
            let name = self.inner.names.log(&charge.key);
            let mut what = script::call(&SCRIPTS.log_refund, &[&name]);
            what.arg(&entry(charge)[..]);
            Command::on(&name, what).of(charge.key.parts().workspace)
        });
        let answers = self.run(commands.collect(), within).await;
        let refunded = |answer: Result<Value, StoreError>| match answer? {
            Value::Int(refunded) => Ok(refunded == 1),
            _ => Err(StoreError::Protocol),
        };
        answers.into_iter().map(refunded).collect()
    }

    /// Decides each charge; `None` for those that arrived too late.
    async fn try_logs(
        &self,
        charges: Vec<&LogCharge>,
        latest: Instant,
        deadline: Instant,
    ) -> Vec<Result<Option<LogDecision>, StoreError>> {
        let (commands, nodes): (Vec<_>, Vec<_>) =
            charges.iter().map(|charge| self.log_command(charge, latest)).unzip();
        let sent = Instant::now();
        let answers = self.inner.nodes.run(commands, deadline).await;
        let received = Instant::now();
        let answers = answers.into_iter().zip(nodes).zip(charges);
        answers
            .map(|((answer, node), charge)| {
                let Answered { shown_us, decided } = answered(answer?, charge)?;
                if let (Some(node), Some(shown_us)) = (node, shown_us) {
                    node.showed(shown_us, 0, sent, received);
                }
                Ok(decided)
            })
            .collect()
    }

    fn log_command(&self, charge: &LogCharge, latest: Instant) -> (Command, Option<Arc<Node>>) {
        let name = self.inner.names.log(&charge.key);
        let mut what = script::call(&SCRIPTS.log, &[&name]);
        what.arg(&entry(charge)[..]).arg(charge.cost).arg(charge.most).arg(window_us(charge));
        let node = self.inner.nodes.owner(&name);
        add_clock(&mut what, node.as_deref(), latest);
        (Command::on(&name, what).of(charge.key.parts().workspace), node)
    }
}

impl Node {
    /// Records the time that this server's clock showed; see `ServerClock::showed`.
    pub(super) fn showed(&self, shown_us: u64, coarse_us: u64, sent: Instant, received: Instant) {
        let step = self.clock.showed(shown_us, coarse_us, sent, received);
        if let Some(step) = step.filter(|step| *step >= NOTABLE_STEP) {
            tracing::warn!(server = %self.address, ?step, "the clock of the regional store stepped forward");
        }
    }
}

fn add_clock(what: &mut Cmd, node: Option<&Node>, latest: Instant) {
    let Some((node, latest)) = node.and_then(|node| Some((node, node.clock.latest_us(latest)?))) else {
        what.arg("");
        return;
    };
    what.arg(latest);
    for era in node.clock.eras() {
        what.arg(era.first_us).arg(era.last_us).arg(era.ahead_us);
    }
}

fn window_us(charge: &LogCharge) -> u64 {
    charge.key.parts().duration_ms.saturating_mul(1_000)
}

/// The member of the sorted set: the request's id, the charge's place in it, and the cost.
fn entry(charge: &LogCharge) -> [u8; 20] {
    let mut entry = [0; 20];
    let [.., high, middle, low] = charge.cost.min(MAX_ENTRY_COST).to_be_bytes();
    entry[..16].copy_from_slice(&charge.id.request.0);
    entry[16..].copy_from_slice(&[charge.id.place, high, middle, low]);
    entry
}

/// The parsed answer of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The time of the server's clock, if the answer has one.
    pub shown_us: Option<u64>,
    /// `None` if the charge arrived too late and nothing was done.
    pub decided: Option<LogDecision>,
}

/// Parses the script's answer on `charge`. The server may not be a proper Redis, so every value is checked.
pub fn answered(answer: Value, charge: &LogCharge) -> Result<Answered, StoreError> {
    let [status, shown, rest @ ..] = numbers(answer)?;
    let decided = if status < 0 { None } else { Some(decided(status == 1, rest, charge)?) };
    Ok(Answered { shown_us: u64::try_from(shown).ok(), decided })
}

/// The numbers that the script returns; -1 means none.
fn numbers(answer: Value) -> Result<[i64; 6], StoreError> {
    let number = |value| match value {
        Value::Int(number) => Ok(number),
        _ => Err(StoreError::Protocol),
    };
    let numbers: Vec<_> = script::array(answer)?.into_iter().map(number).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| StoreError::Protocol)
}

fn decided(
    allowed: bool,
    [now, used, oldest, last]: [i64; 4],
    charge: &LogCharge,
) -> Result<LogDecision, StoreError> {
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| StoreError::Protocol);
    let (now, used) = (unsigned(now)?, unsigned(used)?);
    let leaves_in =
        |at: i64| Some(u64::try_from(at).ok()?.saturating_add(window_us(charge)).saturating_sub(now));
    let outcome =
        if allowed { Outcome::Allowed } else { Outcome::Denied { retry_after_us: leaves_in(last) } };
    Ok(LogDecision { outcome, at: Micros(now), used, reset_us: leaves_in(oldest).unwrap_or(0) })
}
