//! The limiter's shared storage: a table of the process, which outlives configurations, so that a reload keeps all counts.
//!
//! Each place has a lock of its own, which is held for the copy of its bytes alone. Buckets are made in blocks, as the table fills.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use weir_core::model::shared::{Place, Shared, Version};

/// Buckets of a block. With [`BLOCKS`] blocks there is room for the largest table.
const BLOCK: usize = 1_024;
const BLOCKS: usize = 1_024;

/// The bytes of a place, and their version; 0 if nothing was stored yet.
#[derive(Debug, Default)]
struct Stored {
    bytes: Vec<u8>,
    version: u32,
}

/// A place has a line of the processor's cache to itself.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell(Mutex<Stored>);

static OTHERS: [OnceLock<Cell>; 6] = [const { OnceLock::new() }; 6];
static BUCKETS: [OnceLock<Box<[Cell]>>; BLOCKS] = [const { OnceLock::new() }; BLOCKS];

/// The table of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnvoyShared;

impl Shared for EnvoyShared {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        into.clear();
        let stored = lock(place)?;
        into.extend_from_slice(&stored.bytes);
        (stored.version > 0).then_some(Version(stored.version))
    }

    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool {
        let Some(mut stored) = lock(place) else { return false };
        if stored.version != version.map_or(0, |version| version.0) {
            return false;
        }
        stored.bytes.clear();
        stored.bytes.extend_from_slice(bytes);
        stored.version = stored.version.wrapping_add(1).max(1);
        true
    }
}

fn lock(place: Place) -> Option<MutexGuard<'static, Stored>> {
    let Cell(stored) = cell(place)?;
    Some(stored.lock().unwrap_or_else(PoisonError::into_inner))
}

fn cell(place: Place) -> Option<&'static Cell> {
    let other = match place {
        Place::Meta => 0,
        Place::WorkerRegistry => 1,
        Place::Overflow => 2,
        Place::Controls => 3,
        Place::ControlSet => 4,
        Place::Bans => 5,
        Place::Bucket(index) => {
            let index = usize::try_from(index).ok()?;
            let block = BUCKETS.get(index.checked_div(BLOCK)?)?;
            let block = block.get_or_init(|| std::iter::repeat_with(Cell::default).take(BLOCK).collect());
            return block.get(index.checked_rem(BLOCK)?);
        }
    };
    OTHERS.get(other).map(|cell| cell.get_or_init(Cell::default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_replaced_in_its_version_only() {
        // The last bucket of the largest table, which no other test has.
        let place = Place::Bucket((BLOCK * BLOCKS - 1) as u32);
        let (mut shared, mut into) = (EnvoyShared, b"x".to_vec());
        assert_eq!((shared.load(place, &mut into), into.as_slice()), (None, &b""[..]));
        assert!(!shared.store(place, b"no", Some(Version(1))), "nothing is there yet");
        assert!(shared.store(place, b"one", None));
        assert!(!shared.store(place, b"again", None), "it is there");
        assert_eq!(shared.load(place, &mut into), Some(Version(1)));
        assert!(shared.store(place, b"two", Some(Version(1))));
        assert!(!shared.store(place, b"late", Some(Version(1))));
        assert_eq!((shared.load(place, &mut into), into.as_slice()), (Some(Version(2)), &b"two"[..]));
        assert!(!shared.store(Place::Bucket(u32::MAX), b"beyond", None));
    }
}
