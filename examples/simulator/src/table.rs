//! An Envoy's shared data: the core's table in memory. It also records which buckets were written since the checkers
//! last read it.

use weir_core::limiter::table::{ArrayShared, Bucket, Entry, Geometry};
use weir_core::model::shared::{Place, Shared, Version};

/// The table of one process.
#[derive(Clone, Debug)]
pub struct Table {
    array: ArrayShared,
    written: Vec<Place>,
    /// Which buckets `written` lists already; the last entry is the overflow bucket.
    noted: Vec<bool>,
}

impl Table {
    /// An empty table of this geometry.
    pub fn new(geometry: Geometry) -> Table {
        let places = usize::try_from(geometry.buckets).unwrap_or(usize::MAX).saturating_add(1);
        Table { array: ArrayShared::new(geometry), written: Vec::new(), noted: vec![false; places] }
    }

    /// The memory that the table holds, in bytes.
    pub fn held_bytes(&self) -> usize {
        self.array.held_bytes()
    }

    /// Buckets that were written since the last call.
    pub fn take_written(&mut self) -> Vec<Place> {
        self.noted_places(false);
        std::mem::take(&mut self.written)
    }

    fn noted_places(&mut self, noted: bool) {
        for at in 0..self.written.len() {
            if let Some(place) = self.number(self.written[at]) {
                self.noted[place] = noted;
            }
        }
    }

    fn number(&self, place: Place) -> Option<usize> {
        match place {
            Place::Bucket(number) => usize::try_from(number).ok(),
            Place::Overflow => Some(self.noted.len() - 1),
            Place::Meta | Place::WorkerRegistry | Place::Controls | Place::ControlSet | Place::Bans => None,
        }
    }

    /// Whether a bucket was written since the last [`Table::take_written`].
    pub fn is_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Loads a bucket without side effects.
    pub fn read(&self, place: Place, bucket: &mut Bucket) {
        bucket.buffer().clear();
        bucket.buffer().extend_from_slice(self.array.bytes(place));
        bucket.check();
    }

    /// The entry of a key.
    pub fn entry(&self, place: Place, fingerprint: u64, key: &[u8]) -> Option<Entry> {
        let mut bucket = Bucket::default();
        self.read(place, &mut bucket);
        bucket.find(fingerprint, key).map(|found| found.entry)
    }
}

impl Shared for Table {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        self.array.load(place, into)
    }

    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool {
        let stored = self.array.store(place, bytes, version);
        if let Some(noted) = self.number(place).and_then(|at| self.noted.get_mut(at)).filter(|_| stored)
            && !std::mem::replace(noted, true)
        {
            self.written.push(place);
        }
        stored
    }
}
