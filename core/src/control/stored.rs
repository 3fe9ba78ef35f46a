//! The controls of a process as bytes in shared data.
//!
//! They are a head, a frame with all controls, and a *tail*: a frame of later changes. Ten thousand controls take long to write and read,
//! and clients can cause changes by rules with a ban. So a change is appended to the tail. The result is a frame again, since Protobuf
//! joins messages whose bytes follow each other. A worker that has everything before the tail reads only the tail. When the tail is long,
//! the first frame is written again, still followed by the last changes for workers that are a little behind.

use super::log::Log;
use crate::model::wire::{self, ControlsKnown};
use alloc::vec::Vec;
use prost::Message;

/// Longer bytes were not stored by a worker: the largest possible set is smaller.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Longest tail, some hundred bans: each worker reads it for each change.
const MAX_TAIL_BYTES: usize = 32 * 1024;
const LAYOUT: u8 = 4;

/// What a worker reads.
#[derive(Debug)]
pub(super) enum Found {
    /// The changes since the known revision.
    News(wire::Controls),
    /// Everything.
    All(Log),
}

/// The parts of stored bytes.
struct Parts<'a> {
    known: ControlsKnown,
    /// The tail continues this revision.
    after: u64,
    base: &'a [u8],
    tail: &'a [u8],
}

/// The revision of the bytes.
pub(super) fn known(bytes: &[u8]) -> Option<ControlsKnown> {
    Some(split(bytes)?.known)
}

/// Reads what is newer than `known`.
pub(super) fn read(bytes: &[u8], known: ControlsKnown) -> Option<Found> {
    let stored = split(bytes).filter(|_| bytes.len() <= MAX_BYTES)?;
    let tail = wire::Controls::decode(stored.tail).ok()?;
    let tail = wire::Controls {
        incarnation: stored.known.incarnation,
        after: stored.after,
        complete_through: stored.known.revision,
        proof: stored.known.proof,
        stamp: stored.known.stamp,
        ..tail
    };
    if known.incarnation == stored.known.incarnation
        && (stored.after..stored.known.revision).contains(&known.revision)
    {
        return Some(Found::News(tail));
    }
    let mut log = Log::from_frame(&wire::Controls::decode(stored.base).ok()?);
    log.follow(&tail);
    (log.known() == stored.known).then_some(Found::All(log))
}

/// The bytes of `log`: its changes are appended to `bytes`, if these contain all before them.
pub(super) fn write(bytes: &[u8], log: &Log) -> Vec<u8> {
    let known = log.known();
    let all = || log.to_frame().encode_to_vec();
    // A set from scratch may have the same revision, with other controls.
    let is_continued = |stored: &Parts<'_>| {
        stored.known.incarnation == known.incarnation
            && (stored.known.revision != known.revision || stored.known == known)
    };
    let stored = split(bytes).filter(is_continued);
    let news = stored.as_ref().and_then(|stored| log.since(stored.known.revision));
    match stored.zip(news.map(|news| news.encode_to_vec())) {
        Some((stored, news)) if stored.tail.len().saturating_add(news.len()) <= MAX_TAIL_BYTES => {
            join(known, stored.after, stored.base, &[stored.tail, &news])
        }
        Some((stored, news)) => join(known, stored.known.revision, &all(), &[&news]),
        None => join(known, known.revision, &all(), &[]),
    }
}

fn join(known: ControlsKnown, after: u64, base: &[u8], tail: &[&[u8]]) -> Vec<u8> {
    let base_bytes = u64::try_from(base.len()).unwrap_or(u64::MAX);
    let ControlsKnown { incarnation, revision, proof, stamp } = known;
    let head = [incarnation, revision, proof, stamp, after, base_bytes].map(u64::to_le_bytes);
    [&[LAYOUT], head.as_flattened(), base, &tail.concat()].concat()
}

fn split(bytes: &[u8]) -> Option<Parts<'_>> {
    let (&LAYOUT, rest) = bytes.split_first()? else { return None };
    let (head, rest) = rest.split_first_chunk::<48>()?;
    let (words, _) = head.as_chunks::<8>();
    let words = <&[[u8; 8]; 6]>::try_from(words).ok()?;
    let [incarnation, revision, proof, stamp, after, base_bytes] = words.map(u64::from_le_bytes);
    let (base, tail) = rest.split_at_checked(usize::try_from(base_bytes).ok()?)?;
    Some(Parts { known: ControlsKnown { incarnation, revision, proof, stamp }, after, base, tail })
}
