//! The order of the calls, and what is refunded: each machine against stores whose replies a test states.

use super::mixed::{MixedRequest, Step, WindowsResult};
use super::refunding::Refunding;
use super::request::Request;
use super::timeout::within_us;
use super::*;
use crate::model::breaker::State;
use crate::model::exact::{Charge, ChargeResult, ExactKey, ExactRequestId, Verdict};
use crate::model::key::{Key, KeyParts};
use crate::model::schedule::Schedule;
use crate::model::wire;
use crate::region::log::{EntryId, Logs, LogsLimits, Outcome};
use crate::region::log::{LogCharge, LogDecision, Micros};
use crate::replication::exact::refund::{PendingRefund, Withdrawal};
use crate::replication::{Failure, Next};
use alloc::boxed::Box;
use std::vec;
use std::vec::Vec;

pub(super) const NOW: Micros = Micros(50_000_000);
const ID: ExactRequestId = ExactRequestId([1; 16]);
const WITHIN_US: u64 = 90_000;

fn key(name: &str) -> Key {
    let (workspace, namespace) = (b"w", b"n");
    let (identifier, duration_ms) = (name.as_bytes(), 60_000);
    Key::new(&KeyParts { workspace, namespace, identifier, duration_ms, epoch: 0, resolution: 1 }).unwrap()
}

pub(super) fn log(name: &str, cost: u64, most: u64) -> LogCharge {
    LogCharge { key: key(name), id: EntryId { request: ID, place: 0 }, cost, most }
}

fn charge(name: &str, cost: u64, most: u64) -> Charge {
    Charge { key: ExactKey::Log(key(name)), most, cost }
}

fn ledger(zone: u32) -> Charge {
    Charge { key: ExactKey::Ledger { zone, bucket: Box::from(*b"b") }, most: 0, cost: 1 }
}

fn passes() -> Result<LogDecision, Failure> {
    Ok(LogDecision { outcome: Outcome::Allowed, at: NOW, used: 1, reset_us: 60_000_000 })
}

fn denies() -> Result<LogDecision, Failure> {
    let outcome = Outcome::Denied { retry_after_us: Some(30_000_000) };
    Ok(LogDecision { outcome, at: NOW, used: 5, reset_us: 30_000_000 })
}

fn of_ledger(verdict: Verdict, id: u64) -> ChargeResult {
    ChargeResult { verdict, limit: 3, transaction: Some(id), ..ChargeResult::UNDECIDED }
}

const DENIED: Verdict = Verdict::Denied { retry_after_ms: Some(9) };

/// The names of the keys, or of the ledgers' zones and transactions.
fn shown(call: &Call) -> String {
    let names = |charges: &[LogCharge]| {
        let name =
            |charge: &LogCharge| std::str::from_utf8(charge.key.parts().identifier).unwrap().to_owned();
        charges.iter().map(name).collect::<Vec<_>>().join(",")
    };
    match call {
        Call::ChargeLogs(charges) => format!("charge {}", names(charges)),
        Call::ChargeLedger(charge) => format!("charge zone {}", charge.zone),
        Call::RefundLogs(charges) => format!("refund {}", names(charges)),
        Call::RefundLedger(transaction) => format!("refund {} of zone {}", transaction.id, transaction.zone),
    }
}

use std::borrow::ToOwned;
use std::format;
use std::string::String;

/// Runs a machine; returns its calls and pauses. `reply` states the reply to the call of a number.
fn run(
    machine: &mut impl Machine,
    state: &mut ExactState,
    now: &mut Micros,
    mut reply: impl FnMut(usize, &Call) -> Reply,
) -> Vec<String> {
    let mut calls = Vec::new();
    loop {
        match machine.next(state, *now) {
            Next::Call(call) => {
                let reply = reply(calls.len(), &call);
                calls.push(shown(&call));
                machine.replied(state, reply, *now);
            }
            Next::Sleep(ms) => {
                calls.push(format!("wait {ms}"));
                *now = now.after(ms * 1_000);
            }
            Next::Over => return calls,
            other => panic!("{other:?}"),
        }
    }
}

fn verdicts(request: &Request) -> Vec<Verdict> {
    request.results().iter().map(|result| result.verdict).collect()
}

fn none(_: usize, call: &Call) -> Reply {
    panic!("{call:?}")
}

#[test]
fn logs_are_charged_at_once_and_ledgers_one_after_the_other() {
    let mut state = ExactState::new(true);
    let charges = [ledger(1), charge("a", 2, 9), charge("b", 1, 5), charge("a", 3, 7), ledger(2)];
    let mut request = Request::new(ID, &charges, WITHIN_US, NOW);
    let calls = run(&mut request, &mut state, &mut { NOW }, |number, _| match number {
        0 => Reply::LogsCharged(vec![passes(), passes()]),
        number => Reply::LedgerCharged(of_ledger(Verdict::Allowed, number as u64)),
    });
    assert_eq!(calls, ["charge a,b", "charge zone 1", "charge zone 2"]);
    assert_eq!(verdicts(&request), [Verdict::Allowed; 5]);
    assert_eq!((request.deadline(), state.next_due()), (NOW.after(WITHIN_US), None));
}

#[test]
fn after_a_denial_nothing_more_is_charged_and_what_was_charged_is_refunded() {
    let charges =
        [charge("a", 1, 9), charge("b", 1, 5), charge("free", 0, 5), ledger(1), ledger(2), ledger(3)];
    let logs = |middle| Reply::LogsCharged(vec![passes(), middle, passes()]);
    let mut state = ExactState::new(true);
    let mut request = Request::new(ID, &charges, WITHIN_US, NOW);
    let calls = run(&mut request, &mut state, &mut { NOW }, |number, _| match number {
        0 => logs(denies()),
        _ => Reply::LogsRefunded(vec![Ok(true)]),
    });
    assert_eq!(calls, ["charge a,b,free", "refund a"]);
    let untried = Verdict::Untried;
    assert_eq!(
        verdicts(&request),
        [untried, Verdict::Denied { retry_after_ms: Some(30_000) }, untried, untried, untried, untried]
    );
    // A ledger denies: the transaction before it and both logs are refunded; the third ledger is not called.
    let mut state = ExactState::new(true);
    let mut request = Request::new(ID, &charges, WITHIN_US, NOW);
    let calls = run(&mut request, &mut state, &mut { NOW }, |number, _| match number {
        0 => logs(passes()),
        1 => Reply::LedgerCharged(of_ledger(Verdict::Allowed, 7)),
        2 => Reply::LedgerCharged(of_ledger(DENIED, 8)),
        3 => Reply::LogsRefunded(vec![Ok(true), Ok(false)]),
        _ => Reply::LedgerRefunded(Some(true)),
    });
    assert_eq!(
        calls,
        ["charge a,b,free", "charge zone 1", "charge zone 2", "refund a,b", "refund 7 of zone 1"]
    );
    assert_eq!(verdicts(&request), [untried, untried, untried, untried, DENIED, untried]);
    assert_eq!(request.results()[4].transaction, Some(8), "a denied attempt has a number too");
    let counters = state.take_counters();
    assert_eq!((counters.refunded, counters.missing, state.next_due()), (2, 1, None));
}

#[test]
fn an_undecided_charge_overturns_nothing_and_is_refunded_after_the_deadline() {
    let mut state = ExactState::new(true);
    let charges = [charge("a", 1, 9), charge("b", 1, 5), charge("c", 1, 5), ledger(1)];
    let mut request = Request::new(ID, &charges, WITHIN_US, NOW);
    let calls = run(&mut request, &mut state, &mut { NOW }, |number, _| match number {
        0 => Reply::LogsCharged(vec![passes(), Err(Failure::Timeout), Err(Failure::Refused)]),
        _ => Reply::LedgerCharged(ChargeResult::UNDECIDED),
    });
    assert_eq!(calls, ["charge a,b,c", "charge zone 1"]);
    let undecided = Verdict::Undecided;
    assert_eq!(verdicts(&request), [Verdict::Allowed, undecided, undecided, undecided]);
    // Only the charge that may have been made, once the store would refuse to make it.
    let due = NOW.after(WITHIN_US + 100_000);
    assert_eq!(
        (state.next_due(), Refunding::due(&mut state, Micros(due.0 - 1)).is_none()),
        (Some(due), true)
    );
    let mut refunding = Refunding::due(&mut state, due).unwrap();
    let calls = run(&mut refunding, &mut state, &mut { due }, |_, _| Reply::LogsRefunded(vec![Ok(true)]));
    assert_eq!((calls, state.next_due()), (vec!["refund b".to_owned()], None));
}

#[test]
fn a_refund_that_fails_is_made_later() {
    let mut state = ExactState::new(true);
    let charges = [charge("a", 1, 9), ledger(1), ledger(2)];
    let mut request = Request::new(ID, &charges, WITHIN_US, NOW);
    run(&mut request, &mut state, &mut { NOW }, |number, _| match number {
        0 => Reply::LogsCharged(vec![passes()]),
        1 => Reply::LedgerCharged(of_ledger(Verdict::Allowed, 7)),
        2 => Reply::LedgerCharged(of_ledger(DENIED, 8)),
        3 => Reply::LogsRefunded(vec![Err(Failure::Timeout)]),
        _ => Reply::LedgerRefunded(None),
    });
    assert_eq!(verdicts(&request), [Verdict::Untried, Verdict::Untried, DENIED]);
    let mut refunding = Refunding::due(&mut state, NOW).unwrap();
    assert_eq!(refunding.deadline(), NOW.after(refunding::REFUND_US));
    let calls = run(&mut refunding, &mut state, &mut { NOW }, |number, _| match number {
        0 => Reply::LogsRefunded(vec![Ok(true)]),
        _ => Reply::LedgerRefunded(None),
    });
    assert_eq!(calls, ["refund a", "refund 7 of zone 1"]);
    let again = state.next_due().unwrap();
    let mut refunding = Refunding::due(&mut state, again).unwrap();
    let calls = run(&mut refunding, &mut state, &mut { again }, |_, call| {
        // A row with this number that is younger was written since the database was set back.
        let age_us = if let Call::RefundLedger(transaction) = call { transaction.age_us } else { 0 };
        assert_eq!(age_us, 250_000 - 250_000 / 500);
        Reply::LedgerRefunded(Some(false))
    });
    assert_eq!((again.since(NOW), calls), (250_000, vec!["refund 7 of zone 1".to_owned()]));
    let counters = state.take_counters();
    assert_eq!((counters.refunded, counters.missing, counters.given_up.len()), (1, 1, 0));
}

#[test]
fn windows_come_first_and_last() {
    let ran = |peek_denies, log: Result<LogDecision, Failure>, windows, deny_on_failure| {
        let mut state = ExactState::new(false);
        let request = Request::new(ID, &[charge("a", 1, 9)], WITHIN_US, NOW);
        let mut mixed = MixedRequest::new(request, deny_on_failure);
        let mut steps = Vec::new();
        loop {
            let step = mixed.step(&mut state, NOW);
            match step {
                Step::Peek => mixed.peeked(peek_denies),
                Step::Exact => {
                    run(mixed.request(), &mut state, &mut { NOW }, |_, _| Reply::LogsCharged(vec![log]));
                }
                Step::Charge => mixed.charged(windows),
                Step::Over => break,
            }
            steps.push(step);
        }
        let refunds = state.waiting().map(PendingRefund::len).sum::<usize>();
        let verdict = mixed.results().map(|results| results[0].verdict);
        (steps.len(), verdict, mixed.is_allowed(), refunds)
    };
    use WindowsResult::{Allowed, Denied, Undecided};
    let (unanswered, untried) = (Err(Failure::Refused), Some(Verdict::Untried));
    for deny_on_failure in [false, true] {
        assert_eq!(ran(true, passes(), Allowed, deny_on_failure), (1, None, false, 0));
        let denied = Some(Verdict::Denied { retry_after_ms: Some(30_000) });
        assert_eq!(ran(false, denies(), Allowed, deny_on_failure), (2, denied, false, 0));
        assert_eq!(ran(false, passes(), Denied, deny_on_failure), (3, untried, false, 1));
        assert_eq!(ran(false, passes(), Allowed, deny_on_failure), (3, Some(Verdict::Allowed), true, 0));
    }
    assert_eq!(ran(false, passes(), Undecided, true), (3, untried, false, 1));
    assert_eq!(ran(false, passes(), Undecided, false), (3, Some(Verdict::Allowed), false, 0));
    assert_eq!(ran(false, unanswered, Allowed, true), (2, Some(Verdict::Undecided), false, 0));
    assert_eq!(ran(false, unanswered, Allowed, false), (3, Some(Verdict::Undecided), false, 0));
}

#[test]
fn a_cached_denial_spares_the_calls_until_a_refund() {
    let mut state = ExactState::new(true);
    let charges = [charge("b", 1, 5), charge("a", 1, 9), ledger(1)];
    let request = |now| Request::new(ID, &charges, WITHIN_US, now);
    let flood = |state: &mut ExactState, now| {
        let mut request = request(now);
        let calls = run(&mut request, state, &mut { now }, |number, _| match number {
            0 => Reply::LogsCharged(vec![passes(), denies()]),
            _ => Reply::LogsRefunded(vec![Ok(true)]),
        });
        (calls.len(), verdicts(&request), request.denied_by_cache().is_some())
    };
    let denied_for = |ms| Verdict::Denied { retry_after_ms: Some(ms) };
    let (untried, later) = (Verdict::Untried, NOW.after(999_999));
    assert_eq!(flood(&mut state, NOW), (2, vec![untried, denied_for(30_000), untried], false));
    assert_eq!(flood(&mut state, later), (0, vec![untried, denied_for(29_001), untried], true));
    assert_eq!(state.take_counters().cached_denials, 1);
    assert_eq!(flood(&mut state, NOW.after(1_000_000)).0, 2);
    // A refund of the key ends the denial, whatever its result.
    let refund = PendingRefund::now(vec![log("a", 1, 9)], vec![], later);
    run(&mut Refunding::new(refund, later), &mut state, &mut { later }, |_, _| {
        Reply::LogsRefunded(vec![Err(Failure::Timeout)])
    });
    assert_eq!(flood(&mut state, NOW.after(1_100_000)).0, 2);
}

#[test]
fn after_a_lost_connection_the_open_charges_are_called_again_within_the_time() {
    let charges = [charge("a", 1, 9), charge("b", 1, 5)];
    let lost = || Err(Failure::Unavailable);
    let mut state = ExactState::new(true);
    let mut request = Request::new(ID, &charges, WITHIN_US, NOW);
    let calls = run(&mut request, &mut state, &mut { NOW }, |number, _| match number {
        0 => Reply::LogsCharged(vec![passes(), lost()]),
        2 => Reply::LogsCharged(vec![lost()]),
        _ => Reply::LogsCharged(vec![Err(Failure::Unreachable)]),
    });
    assert_eq!(calls, ["charge a,b", "wait 10", "charge b", "wait 30", "charge b"]);
    assert_eq!(verdicts(&request), [Verdict::Allowed, Verdict::Undecided]);
    let due = NOW.after(WITHIN_US + 100_000);
    assert_eq!(state.next_due(), Some(due), "the first call may have charged it");
    // The second pause would end after the deadline.
    let mut request = Request::new(ID, &charges, 40_000, NOW);
    let calls = run(&mut request, &mut state, &mut { NOW }, |_, _| Reply::LogsCharged(vec![lost(), lost()]));
    assert_eq!(calls, ["charge a,b", "wait 10", "charge a,b"]);
}

#[test]
fn the_circuit_breaker_opens_and_tries_again() {
    let mut state = ExactState::new(true);
    let mut now = NOW;
    let ask = |state: &mut ExactState, now: &mut Micros, answer: Result<LogDecision, Failure>| {
        let mut request = Request::new(ID, &[charge("a", 1, 9)], WITHIN_US, *now);
        run(&mut request, state, now, |_, _| Reply::LogsCharged(vec![answer])).len()
    };
    for _ in 0..5 {
        assert_eq!(ask(&mut state, &mut now, Err(Failure::Refused)), 1);
    }
    assert_eq!(state.breaker_state(now), Some(State::Open));
    assert_eq!(ask(&mut state, &mut now, passes()), 0);
    // A refund waits meanwhile.
    let refund = PendingRefund::now(vec![log("a", 1, 9)], vec![], now);
    run(&mut Refunding::new(refund, now.after(WITHIN_US)), &mut state, &mut now, none);
    assert_eq!(state.waiting().count(), 1);
    now = now.after(Schedule::default().store_breaker.rest_ms * 1_000);
    // A call that is cancelled is no trial.
    let mut cancelled = Request::new(ID, &[charge("a", 1, 9)], WITHIN_US, now);
    assert!(matches!(cancelled.next(&mut state, now), Next::Call(_)));
    assert_eq!(ask(&mut state, &mut now, passes()), 0, "one trial at a time");
    cancelled.cancel(&mut state, now);
    assert_eq!(ask(&mut state, &mut now, passes()), 1);
    assert_eq!(state.breaker_state(now), Some(State::Closed));
    assert_eq!(ExactState::new(false).breaker_state(now), None);
}

#[test]
fn a_withdrawn_request_is_refunded_at_once_and_again_if_it_may_be_under_way() {
    let charges = [charge("a", 1, 9), charge("b", 1, 5), ledger(1), ledger(2)];
    let request = wire::ExactRequest {
        id: 3,
        timeout_ms: 100,
        charges: charges.iter().map(Charge::to_wire).collect(),
        ..Default::default()
    };
    let results: Vec<wire::ChargeResult> = [
        of_ledger(Verdict::Allowed, 0),
        ChargeResult { verdict: DENIED, ..ChargeResult::UNDECIDED },
        of_ledger(Verdict::Allowed, 7),
        of_ledger(Verdict::Allowed, 8),
    ]
    .iter()
    .map(ChargeResult::to_wire)
    .collect();
    let refund = |results: &[wire::ChargeResult]| wire::Refund {
        request: Some(request.clone()),
        results: results.to_vec(),
    };
    let all = |state: &mut ExactState, now| {
        let mut calls = Vec::new();
        while let Some(mut refunding) = Refunding::due(state, now) {
            calls.extend(run(&mut refunding, state, &mut { now }, |_, call| match call {
                Call::RefundLogs(charges) => Reply::LogsRefunded(vec![Ok(true); charges.len()]),
                _ => Reply::LedgerRefunded(Some(true)),
            }));
        }
        calls
    };
    let mut state = ExactState::new(true);
    let mut withdrawal = Withdrawal::read(9, &refund(&results)).unwrap().unwrap();
    assert_eq!(withdrawal.id, ExactRequestId::of(9, 3));
    assert_eq!(withdrawal.disown(|id| id == 7), 1, "another sender's transaction");
    state.withdraw(&withdrawal, NOW);
    assert_eq!(all(&mut state, NOW), ["refund a", "refund 7 of zone 1"]);
    assert_eq!(state.next_due(), None);
    // Without results, logs may have been charged, and may be until the request's time is over.
    state.withdraw(&Withdrawal::read(9, &refund(&[])).unwrap().unwrap(), NOW);
    assert_eq!(all(&mut state, NOW), ["refund a,b"]);
    assert_eq!(state.next_due(), Some(NOW.after(within_us(100) + 100_000)));
    assert_eq!(Withdrawal::read(9, &wire::Refund::default()), Ok(None));
}

#[test]
fn stores_get_what_the_filter_leaves() {
    for (waits, expected) in [(0, 90), (100, 90), (15, 5), (5, 1), (u32::MAX, 9_990)] {
        assert_eq!(within_us(waits), expected * 1_000, "{waits}");
    }
}

#[test]
fn too_many_charges_are_undecided_without_a_call() {
    let charges = vec![ledger(1); crate::model::exact::MAX_CHARGES + 1];
    let mut request = Request::new(ID, &charges, WITHIN_US, NOW);
    assert_eq!(run(&mut request, &mut ExactState::new(true), &mut { NOW }, none), [""; 0]);
    assert_eq!(request.results(), vec![ChargeResult::UNDECIDED; charges.len()]);
}

/// Charges of one log pass together or not at all, by the core's own log.
#[test]
fn charges_of_one_log_are_one() {
    let (mut state, mut logs) = (ExactState::new(false), Logs::new(LogsLimits::default()));
    let mut ask = |number: u64, charges: &[Charge]| {
        let mut request = Request::new(ExactRequestId::of(1, number), charges, WITHIN_US, NOW);
        run(&mut request, &mut state, &mut { NOW }, |_, call| match call {
            Call::ChargeLogs(charges) => {
                Reply::LogsCharged(charges.iter().map(|one| Ok(logs.decide(NOW, one).unwrap())).collect())
            }
            other => none(0, other),
        });
        request.results().iter().map(|result| (result.verdict, result.remaining)).collect::<Vec<_>>()
    };
    let both = [charge("a", 2, 9), charge("a", 3, 7)];
    assert_eq!(ask(1, &both), [(Verdict::Allowed, 2); 2]);
    assert_eq!(ask(1, &both), [(Verdict::Allowed, 2); 2], "a repeated request charges nothing");
    let denied = Verdict::Denied { retry_after_ms: Some(60_000) };
    assert_eq!(ask(2, &both), [(denied, 2); 2]);
    assert_eq!(ask(3, &[charge("a", 2, 7)]), [(Verdict::Allowed, 0)]);
}
