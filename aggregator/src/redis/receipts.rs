//! Receipts of writes: the first and the last command of each pipeline of writes record their numbers in a marker that is
//! on the same server (`receipt.lua`). The next look at the markers states the last numbers that were answered.

use super::error::StoreError;
use super::marker::{Incarnation, LastRead};
use super::script::{self, SCRIPTS};
use super::slots::{SLOTS, slot_of};
use parking_lot::Mutex;
use redis::{Cmd, Value};
use weir_core::replication::regional::receipts::{Ended, Lanes, Receipt, Receipts, Step};

/// The answer to one command.
type Answer = Result<Value, StoreError>;

/// The markers of a store, and what was answered about the writes beside them.
pub(super) struct Markers {
    /// By place.
    names: Vec<String>,
    slots: Vec<u16>,
    /// The random id under which the markers count this client's reads and writes.
    reader: u128,
    receipts: Mutex<Receipts>,
}

/// The receipt of a pipeline in flight. If it is dropped, nothing is known about the pipeline.
pub(super) struct Open<'a> {
    markers: &'a Markers,
    receipt: Receipt,
    ended: Ended,
}

impl Markers {
    pub(super) fn new(names: Vec<String>) -> Markers {
        let slots = names.iter().map(|name| slot_of(name.as_bytes())).collect();
        Markers { names, slots, reader: rand::random(), receipts: Mutex::default() }
    }

    /// The names of the markers, in the order of their places.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// The reader in the markers, in hexadecimal.
    pub(super) fn reader(&self) -> String {
        script::hex(self.reader)
    }

    /// The places and slots of all markers, beginning with the one that is nearest to `slot`.
    pub(super) fn near(&self, slot: u16) -> impl Iterator<Item = (u16, u16)> + use<'_> {
        let places = self.slots.len().max(1);
        let first = usize::from(slot) * places / usize::from(SLOTS);
        let all = (0..places).map(move |step| (first + step) % places);
        all.filter_map(|place| Some((u16::try_from(place).ok()?, *self.slots.get(place)?)))
    }

    /// The receipt of a pipeline that begins, in the marker at `place`; `None` if that was not read yet.
    pub(super) fn begin(&self, place: u16) -> Option<Open<'_>> {
        let receipt = self.receipts.lock().begin(place)?;
        Some(Open { markers: self, receipt, ended: Ended::Unanswered })
    }

    /// What the marker at `place` must have, if its id is that of `last`; `None` if it was replaced or set back.
    pub(super) fn stated(&self, place: u16, last: &LastRead) -> Option<Lanes> {
        match last.at(place) {
            Some(last) => self.receipts.lock().stated(place, last.id),
            None => Some(Lanes::new()),
        }
    }

    /// A marker was read.
    pub(super) fn read(&self, read: &Incarnation) {
        self.receipts.lock().read(read.place, read.id);
    }
}

impl Open<'_> {
    /// The first and the last command of the pipeline.
    pub(super) fn commands(&self) -> Option<[Cmd; 2]> {
        let Receipt { place, id, lane, first, last } = self.receipt;
        let name = self.markers.names.get(usize::from(place))?;
        Some([first, last].map(|Step { number, after }| {
            let mut command = script::call(&SCRIPTS.receipt, &[name]);
            command.arg(script::hex(id)).arg(self.markers.reader()).arg(lane).arg(number).arg(after);
            command
        }))
    }

    /// The server has answered both commands. Without both answers, nothing is known about the pipeline.
    pub(super) fn answered(mut self, first: Answer, last: Answer) -> Result<(), StoreError> {
        let is_recorded = first.and(last)? == Value::Int(1);
        self.ended = if is_recorded { Ended::Recorded } else { Ended::Unrecorded };
        Ok(())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.markers.receipts.lock().end(&self.receipt, self.ended);
    }
}
