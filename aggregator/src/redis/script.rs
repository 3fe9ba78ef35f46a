//! The Lua scripts, their arguments and answers.
//!
//! Each script runs atomically on the keys of one slot. Redis loses scripts on a restart or by `SCRIPT FLUSH`; `nodes`
//! then loads them again.

use super::command::{self, Command};
use super::error::StoreError;
use super::names::Names;
use redis::{Cmd, Script, ToRedisArgs, Value};
use std::sync::LazyLock;
use weir_core::model::key::NodeId;
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;
use weir_core::region::exchange::{BASELINE, LowerBound, Merge, Merged, Part, Proposal};

pub(super) struct Scripts {
    pub(super) merge: Script,
    pub(super) lower_bound: Script,
    pub(super) hot: Script,
    pub(super) incarnation: Script,
    pub(super) receipt: Script,
    pub(super) nodes: Script,
    pub(super) status: Script,
    pub(super) log: Script,
    pub(super) log_refund: Script,
}

const MERGE: &str = concat!(include_str!("cell.lua"), include_str!("merge.lua"));
const LOWER_BOUND: &str = concat!(include_str!("cell.lua"), include_str!("lower_bound.lua"));
const HOT: &str = concat!(include_str!("cell.lua"), include_str!("hot.lua"));
const INCARNATION: &str = include_str!("incarnation.lua");
const RECEIPT: &str = include_str!("receipt.lua");
const NODES: &str = include_str!("nodes.lua");
const STATUS: &str = include_str!("status.lua");
const LOG: &str = concat!(include_str!("log_key.lua"), include_str!("log.lua"));
const LOG_REFUND: &str = concat!(include_str!("log_key.lua"), include_str!("log_refund.lua"));
const SOURCES: [&str; 9] = [MERGE, LOWER_BOUND, HOT, INCARNATION, RECEIPT, NODES, STATUS, LOG, LOG_REFUND];

/// Hashed once.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    merge: Script::new(MERGE),
    lower_bound: Script::new(LOWER_BOUND),
    hot: Script::new(HOT),
    incarnation: Script::new(INCARNATION),
    receipt: Script::new(RECEIPT),
    nodes: Script::new(NODES),
    status: Script::new(STATUS),
    log: Script::new(LOG),
    log_refund: Script::new(LOG_REFUND),
});

/// The field of the lowest limit; never a node's field, because those have 16 bytes.
const LIMIT_FIELD: &[u8] = b"l";
/// The field of the lower bound.
const LOWER_BOUND_FIELD: &[u8] = b"b";

/// The commands that load every script.
pub(super) fn load_all() -> Vec<Cmd> {
    let load = |source| {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(source);
        command
    };
    SOURCES.map(load).into()
}

/// A call of `script` on `keys`; arguments follow.
pub(super) fn call<K: ToRedisArgs>(script: &Script, keys: &[K]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script.get_hash()).arg(keys.len()).arg(keys);
    command
}

/// Whether the script reads the previous cells.
pub(super) fn needs_previous(cell: &Merge) -> bool {
    cell.wants_previous || cell.proposal.is_some()
}

/// A call of `merge.lua` on `cells`, each with its name and, only if they are read, the names of the previous cells: while
/// a cluster migrates a slot, it may reject commands with two keys. Cells expire by the region's time, which is `now`.
pub(super) fn merge(cells: &[&Merge], names: &Names, now: UnixMs) -> Command {
    let mut keys = Vec::with_capacity(cells.len());
    for cell in cells {
        keys.push(names.cell(&cell.key, cell.sequence));
        if needs_previous(cell) {
            keys.extend(names.cells_before(&cell.key, cell.sequence));
        }
    }
    let mut what = call(&SCRIPTS.merge, &keys);
    cells.iter().for_each(|cell| add_cell(&mut what, cell, now));
    let is_query = cells.iter().any(|cell| cell.proposal.is_some());
    let part = if is_query { command::Part::Queries } else { command::Part::Region };
    Command { part, ..Command::on_several(keys.first().map_or("", String::as_str), keys.len(), what) }
}

fn add_cell(command: &mut Cmd, cell: &Merge, now: UnixMs) {
    command.arg(cell.expires.0.saturating_sub(now.0));
    if cell.limit == u64::MAX {
        command.arg("");
    } else {
        command.arg(cell.limit.min(MAX_COUNT));
    }
    if cell.lower_bound == 0 {
        command.arg("");
    } else {
        command.arg(cell.lower_bound.min(MAX_COUNT));
    }
    let previous = if needs_previous(cell) { cell.key.parts().resolution } else { 0 };
    command.arg(cell.parts.len()).arg(previous);
    for (node, count) in &cell.parts {
        let count = (*count).min(MAX_COUNT);
        command.arg(&node.0);
        if cell.above.contains(node) {
            command.arg(format!("+{count}"));
        } else {
            command.arg(count);
        }
    }
    if previous > 0 {
        command.arg(u8::from(cell.wants_previous)).arg(u8::from(cell.proposal.is_some()));
    }
    if let Some(proposal) = &cell.proposal {
        add_proposal(command, proposal);
    }
}

fn add_proposal(command: &mut Cmd, proposal: &Proposal) {
    let cell_ms = proposal.cell_ms.max(1);
    command.arg(&proposal.node.0);
    let clamped = [proposal.own, proposal.limit, proposal.global_current, proposal.global_previous];
    for number in clamped.map(|number| number.min(MAX_COUNT)) {
        command.arg(number);
    }
    command.arg(proposal.covered_ms.min(cell_ms)).arg(cell_ms);
}

/// A call of `lower_bound.lua` on the cell named `current`; see [`merge`] for `now`.
pub(super) fn lower_bound(lower_bound: &LowerBound, current: &str, now: UnixMs) -> Cmd {
    let mut command = call(&SCRIPTS.lower_bound, &[current]);
    command
        .arg(lower_bound.expires.0.saturating_sub(now.0))
        .arg(lower_bound.total.min(MAX_COUNT))
        .arg(&BASELINE.0);
    command
}

/// Parses the answer of `merge.lua`: a result for each of the first `cells`, and for one at least. The others were not
/// merged.
pub(super) fn merged(answer: Result<Value, StoreError>, cells: &[&Merge]) -> Vec<Result<Merged, StoreError>> {
    let all_failed = |error: StoreError| cells.iter().map(|_| Err(error.clone())).collect();
    match answer.and_then(array) {
        Ok(answers) if answers.is_empty() => all_failed(StoreError::Protocol),
        Ok(answers) => {
            answers.into_iter().zip(cells).map(|(answer, cell)| merged_cell(answer, cell)).collect()
        }
        Err(error) => all_failed(error),
    }
}

fn merged_cell(answer: Value, cell: &Merge) -> Result<Merged, StoreError> {
    if answer == Value::Int(0) {
        return Ok(as_sent(cell));
    }
    let answer = match answer {
        Value::ServerError(error) => return Err(StoreError::of_command(&error)),
        answer => array(answer)?,
    };
    let [granted, current, previous] = answer.try_into().map_err(|_| StoreError::Protocol)?;
    let granted = match granted {
        Value::Int(1) => Some(true),
        Value::Int(0) => Some(false),
        Value::Int(-1) => None,
        _ => return Err(StoreError::Protocol),
    };
    let parts = |cell: Value| stored(cell).map(|cell| cell.current);
    let previous = array(previous)?.into_iter().map(parts).collect::<Result<_, _>>()?;
    Ok(Merged { granted, previous, ..stored(current)? })
}

/// The store holds of a cell what was sent, and nothing else.
fn as_sent(cell: &Merge) -> Merged {
    let mut current: Vec<Part> =
        cell.parts.iter().map(|(node, count)| (*node, (*count).min(MAX_COUNT))).collect();
    current.sort_unstable();
    let limit = if cell.limit == u64::MAX { u64::MAX } else { cell.limit.min(MAX_COUNT) };
    let lower_bound = cell.lower_bound.min(MAX_COUNT);
    Merged { granted: None, current, previous: Vec::new(), limit, lower_bound }
}

/// Parses a cell as returned by `HGETALL`: fields and values in turn. Skips fields that no aggregator wrote.
pub(super) fn stored(answer: Value) -> Result<Merged, StoreError> {
    let mut cell = Merged { limit: u64::MAX, ..Merged::default() };
    let mut flat = array(answer)?.into_iter();
    while let (Some(field), Some(value)) = (flat.next(), flat.next()) {
        let (Value::BulkString(field), Value::BulkString(value)) = (field, value) else {
            return Err(StoreError::Protocol);
        };
        if field == LIMIT_FIELD {
            cell.limit = number(&value).unwrap_or(u64::MAX);
        }
        if field == LOWER_BOUND_FIELD {
            cell.lower_bound = number(&value).unwrap_or_default();
        }
        if let Some(part) = part(&field, &value) {
            cell.current.push(part);
        }
    }
    cell.current.sort_unstable();
    Ok(cell)
}

fn part(field: &[u8], value: &[u8]) -> Option<Part> {
    Some((NodeId(field.try_into().ok()?), number(value)?))
}

/// Accepts the same numbers as `cell.lua`.
fn number(text: &[u8]) -> Option<u64> {
    let digits = (1..=16).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let number: u64 = digits.then(|| std::str::from_utf8(text).ok()?.parse().ok())??;
    (number <= MAX_COUNT).then_some(number)
}

/// An id as the markers have it.
pub(super) fn hex(id: u128) -> String {
    format!("{id:032x}")
}

/// The elements of an array.
pub(super) fn array(answer: Value) -> Result<Vec<Value>, StoreError> {
    match answer {
        Value::Array(values) => Ok(values),
        _ => Err(StoreError::Protocol),
    }
}

/// A decimal number in text form.
pub(super) fn decimal(answer: &Value) -> Result<u64, StoreError> {
    match answer {
        Value::BulkString(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(StoreError::Protocol)
        }
        _ => Err(StoreError::Protocol),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::model::key::{Key, KeyParts};

    fn cell() -> Merge {
        let texts: [&[u8]; 3] = [b"default", b"login", b"alice"];
        let [workspace, namespace, identifier] = texts;
        let key = KeyParts { workspace, namespace, identifier, duration_ms: 60_000, epoch: 0, resolution: 1 };
        Merge {
            key: Key::new(&key).unwrap(),
            sequence: 7,
            parts: vec![(NodeId([1; 16]), 5)],
            limit: 12,
            lower_bound: 0,
            above: vec![],
            expires: UnixMs(0),
            proposal: None,
            wants_previous: false,
            incarnation: 0,
        }
    }

    fn bulk(text: &[u8]) -> Value {
        Value::BulkString(text.to_vec())
    }

    #[test]
    fn only_what_an_aggregator_wrote_is_read() {
        let answer = Value::Array(
            [&[1; 16][..], b"5", &[2; 16], b"x", &[3; 16], b"9007199254740993", b"note", b"7", b"l", b"12"]
                .map(bulk)
                .to_vec(),
        );
        let cell = stored(answer).unwrap();
        assert_eq!((cell.current, cell.limit), (vec![(NodeId([1; 16]), 5)], 12));
    }

    #[test]
    fn cells_left_by_a_call_have_no_result() {
        let (cell, as_sent) = (cell(), Value::Int(0));
        let merged = |answers| merged(answers, &[&cell, &cell]);
        let sent = Merged { current: cell.parts.clone(), limit: 12, ..Merged::default() };
        assert_eq!(merged(Ok(Value::Array(vec![as_sent.clone()]))), [Ok(sent.clone())]);
        let three = Value::Array(vec![Value::Nil, as_sent.clone(), as_sent]);
        assert_eq!(merged(Ok(three)), [Err(StoreError::Protocol), Ok(sent)]);
        for (answer, error) in [
            (Ok(Value::Array(vec![])), StoreError::Protocol),
            (Ok(Value::Nil), StoreError::Protocol),
            (Err(StoreError::Timeout), StoreError::Timeout),
        ] {
            assert_eq!(merged(answer), [Err(error.clone()), Err(error)], "each call has a result at least");
        }
    }

    #[test]
    fn other_answers_are_errors() {
        let answers = [
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(2), Value::Array(vec![]), Value::Nil]),
            Value::Array(vec![Value::Int(1), Value::Nil, Value::Array(vec![])]),
            Value::Array(vec![Value::Int(1), Value::Array(vec![]), Value::Nil]),
            Value::Array(vec![Value::Int(1), Value::Array(vec![]), Value::Array(vec![Value::Int(1)])]),
            Value::Array(vec![Value::Int(1), Value::Array(vec![Value::Nil, Value::Nil]), Value::Nil]),
        ];
        for answer in answers {
            assert_eq!(merged_cell(answer, &cell()), Err(StoreError::Protocol));
        }
    }
}
