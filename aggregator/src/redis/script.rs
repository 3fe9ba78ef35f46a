//! The Lua scripts, their arguments and answers.
//!
//! Each script runs atomically on the keys of one slot. Redis loses scripts on a restart or by `SCRIPT FLUSH`; `nodes`
//! then loads them again.

use super::error::StoreError;
use redis::{Cmd, Pipeline, Script, Value};
use std::sync::LazyLock;
use weir_core::model::key::OriginId;
use weir_core::model::window::MAX_COUNT;
use weir_core::region::exchange::{BASELINE, LowerBound, Merge, Merged, Part, Proposal};

pub(super) struct Scripts {
    pub(super) merge: Script,
    pub(super) lower_bound: Script,
    pub(super) hot: Script,
    pub(super) incarnation: Script,
    pub(super) origins: Script,
    pub(super) status: Script,
    pub(super) log: Script,
    pub(super) log_refund: Script,
}

const MERGE: &str = concat!(include_str!("cell.lua"), include_str!("merge.lua"));
const LOWER_BOUND: &str = concat!(include_str!("cell.lua"), include_str!("lower_bound.lua"));
const HOT: &str = concat!(include_str!("cell.lua"), include_str!("hot.lua"));
const INCARNATION: &str = include_str!("incarnation.lua");
const ORIGINS: &str = include_str!("origins.lua");
const STATUS: &str = include_str!("status.lua");
const LOG: &str = concat!(include_str!("log_key.lua"), include_str!("log.lua"));
const LOG_REFUND: &str = concat!(include_str!("log_key.lua"), include_str!("log_refund.lua"));
const SOURCES: [&str; 8] = [MERGE, LOWER_BOUND, HOT, INCARNATION, ORIGINS, STATUS, LOG, LOG_REFUND];

/// Hashed once.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    merge: Script::new(MERGE),
    lower_bound: Script::new(LOWER_BOUND),
    hot: Script::new(HOT),
    incarnation: Script::new(INCARNATION),
    origins: Script::new(ORIGINS),
    status: Script::new(STATUS),
    log: Script::new(LOG),
    log_refund: Script::new(LOG_REFUND),
});

/// The field of the lowest limit; never a node's field, because those have 16 bytes.
const LIMIT_FIELD: &[u8] = b"l";

/// A pipeline that loads every script, and its number of commands.
pub(super) fn load_all() -> (Pipeline, usize) {
    let mut pipeline = Pipeline::with_capacity(SOURCES.len());
    for source in SOURCES {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(source);
    }
    (pipeline, SOURCES.len())
}

/// A call of `script` on `keys`; arguments follow.
pub(super) fn call(script: &Script, keys: &[&str]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script.get_hash()).arg(keys.len()).arg(keys);
    command
}

/// Whether the script reads the previous cells.
pub(super) fn needs_previous(cell: &Merge) -> bool {
    cell.wants_previous || cell.proposal.is_some()
}

/// A call of `merge.lua` on the cell named `current`, with the previous cells only if they are read: while a cluster
/// migrates a slot, it may reject commands with two keys.
pub(super) fn merge(cell: &Merge, current: &str, previous: &[String]) -> Cmd {
    let keys: Vec<&str> = std::iter::once(current).chain(previous.iter().map(String::as_str)).collect();
    let mut command = call(&SCRIPTS.merge, &keys);
    command.arg(cell.expires.0);
    if cell.limit == u64::MAX {
        command.arg("");
    } else {
        command.arg(cell.limit.min(MAX_COUNT));
    }
    command.arg(u8::from(cell.wants_previous)).arg(u8::from(cell.proposal.is_some()));
    if let Some(proposal) = &cell.proposal {
        add_proposal(&mut command, proposal);
    }
    for (origin, count) in &cell.parts {
        command.arg(&origin.0).arg((*count).min(MAX_COUNT));
    }
    command
}

fn add_proposal(command: &mut Cmd, proposal: &Proposal) {
    let cell_ms = proposal.cell_ms.max(1);
    command.arg(&proposal.origin.0);
    let clamped = [proposal.own, proposal.limit, proposal.global_current, proposal.global_previous];
    for number in clamped.map(|number| number.min(MAX_COUNT)) {
        command.arg(number);
    }
    command.arg(proposal.covered_ms.min(cell_ms)).arg(cell_ms);
}

/// A call of `lower_bound.lua` on the cell named `current`.
pub(super) fn lower_bound(lower_bound: &LowerBound, current: &str) -> Cmd {
    let mut command = call(&SCRIPTS.lower_bound, &[current]);
    command.arg(lower_bound.expires.0).arg(lower_bound.total.min(MAX_COUNT)).arg(&BASELINE.0);
    command
}

/// Parses the answer of `merge.lua` and `lower_bound.lua`.
pub(super) fn merged(answer: Value) -> Result<Merged, StoreError> {
    let [granted, current, previous] = array(answer)?.try_into().map_err(|_| StoreError::Protocol)?;
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
        if let Some(part) = part(&field, &value) {
            cell.current.push(part);
        }
    }
    cell.current.sort_unstable();
    Ok(cell)
}

fn part(field: &[u8], value: &[u8]) -> Option<Part> {
    Some((OriginId(field.try_into().ok()?), number(value)?))
}

/// Accepts the same numbers as `cell.lua`.
fn number(text: &[u8]) -> Option<u64> {
    let digits = (1..=16).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let number: u64 = digits.then(|| std::str::from_utf8(text).ok()?.parse().ok())??;
    (number <= MAX_COUNT).then_some(number)
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
        assert_eq!((cell.current, cell.limit), (vec![(OriginId([1; 16]), 5)], 12));
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
            assert_eq!(merged(answer), Err(StoreError::Protocol));
        }
    }
}
