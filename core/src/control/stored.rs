//! The controls of a process as bytes in shared data, where its workers find them.
//!
//! A head, the frame that told all (the *base*), and a frame of what came since (the *tail*). Ten thousand controls take long
//! to write and to read, and clients provoke changes by rules that ban. So a change is written behind the tail, which is a
//! frame again, as Protobuf joins messages whose bytes follow each other; and who knows all that the tail follows on reads
//! nothing else. When the tail is long the base is written anew, with the last news behind it all the same: those who are
//! only a little behind need not read it.
//!
//! Leaves to others: where the bytes are, and who writes first (`keeper`).

use super::stock::Stock;
use crate::model::wire::{self, ControlsKnown};
use alloc::vec::Vec;
use prost::Message;

/// Larger bytes are not what a worker has stored: all that is kept, of the greatest length, takes less.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Longest tail: each worker reads it for each change, some hundred bans.
const MAX_TAIL_BYTES: usize = 32 * 1024;
const LAYOUT: u8 = 3;

/// What there is to take over.
#[derive(Debug)]
pub(super) enum Found {
    /// What came since what is known.
    News(wire::Controls),
    /// Everything.
    All(Stock),
}

/// The parts of stored bytes.
struct Parts<'a> {
    known: ControlsKnown,
    /// The tail follows on all up to this revision.
    after: u64,
    base: &'a [u8],
    tail: &'a [u8],
}

/// Up to where the bytes tell everything.
pub(super) fn known(bytes: &[u8]) -> Option<ControlsKnown> {
    Some(split(bytes)?.known)
}

/// What the bytes say to somebody who knows this.
pub(super) fn read(bytes: &[u8], known: ControlsKnown) -> Option<Found> {
    let stored = split(bytes).filter(|_| bytes.len() <= MAX_BYTES)?;
    let tail = wire::Controls::decode(stored.tail).ok()?;
    let tail = wire::Controls {
        incarnation: stored.known.incarnation,
        after: stored.after,
        complete_through: stored.known.revision,
        proof: stored.known.proof,
        ..tail
    };
    if known.incarnation == stored.known.incarnation
        && (stored.after..stored.known.revision).contains(&known.revision)
    {
        return Some(Found::News(tail));
    }
    let mut stock = Stock::from_frame(&wire::Controls::decode(stored.base).ok()?);
    stock.follow(&tail);
    (stock.known() == stored.known).then_some(Found::All(stock))
}

/// The bytes that tell all of `stock`: what is new in it is written behind `bytes`, if they tell all before that.
pub(super) fn write(bytes: &[u8], stock: &Stock) -> Vec<u8> {
    let known = stock.known();
    let all = || stock.to_frame().encode_to_vec();
    let stored = split(bytes).filter(|stored| stored.known.incarnation == known.incarnation);
    let news = stored.as_ref().and_then(|stored| stock.since(stored.known.revision));
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
    let head = [known.incarnation, known.revision, known.proof, after, base_bytes].map(u64::to_le_bytes);
    [&[LAYOUT], head.as_flattened(), base, &tail.concat()].concat()
}

fn split(bytes: &[u8]) -> Option<Parts<'_>> {
    let (&LAYOUT, rest) = bytes.split_first()? else { return None };
    let (head, rest) = rest.split_first_chunk::<40>()?;
    let (words, _) = head.as_chunks::<8>();
    let [incarnation, revision, proof, after, base_bytes] = words else { return None };
    let [incarnation, revision, proof, after, base_bytes] =
        [incarnation, revision, proof, after, base_bytes].map(|word| u64::from_le_bytes(*word));
    let (base, tail) = rest.split_at_checked(usize::try_from(base_bytes).ok()?)?;
    Some(Parts { known: ControlsKnown { incarnation, revision, proof }, after, base, tail })
}
