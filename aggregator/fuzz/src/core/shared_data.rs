//! The bytes that a process shares: another version of the filter, or another plugin, may have written them.

use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{Check, Limiter, Policy, Setup};
use weir_core::model::exact::Algorithm;
use weir_core::model::key::{HashKey, Key, KeyParts, NodeId};
use weir_core::model::shared::{Place, Shared, Version};
use weir_core::model::time::{MonoMs, Now, UnixMs};

/// Every place holds the same bytes until it is written to.
struct Damaged<'a> {
    bytes: &'a [u8],
    written: Vec<(Place, Vec<u8>)>,
}

impl Shared for Damaged<'_> {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        into.clear();
        let written = self.written.iter().find(|(at, _)| *at == place).map(|(_, bytes)| bytes.as_slice());
        into.extend_from_slice(written.unwrap_or(self.bytes));
        Some(Version(1))
    }

    fn store(&mut self, place: Place, bytes: &[u8], _: Option<Version>) -> bool {
        self.written.retain(|(at, _)| *at != place);
        self.written.push((place, bytes.to_vec()));
        true
    }
}

/// A worker that decides over damaged bytes: whatever they are, a limit of 3 is not passed more often than that by it.
pub fn shared_data(data: &[u8]) {
    let mut shared = Damaged { bytes: data, written: Vec::new() };
    let geometry = Geometry { buckets: 2, keys_per_bucket: 2 };
    let meta = Meta { node: NodeId([3; 16]), secret: HashKey(1, 2), geometry };
    let setup = Setup { meta, worker: 5, local_sets: 4 };
    let (unix, mono) = (UnixMs(1_700_000_040_000), MonoMs(1_000_000));
    let mut limiter = Limiter::new(setup, Now { unix, mono });
    let parts = KeyParts {
        workspace: b"w",
        namespace: b"n",
        identifier: b"i",
        duration_ms: 3_600_000,
        epoch: 0,
        resolution: 1,
    };
    let key = Key::new(&parts).expect("the parts are short");
    let check = Check {
        rule: 0,
        algorithm: Algorithm::Window,
        key: key.as_bytes(),
        cell_ms: 3_600_000,
        limit: 3,
        configured: None,
        cost: 1,
        policy: Policy::default(),
    };
    let mut passed = 0;
    for turn in 0..8 {
        let now = Now { unix: UnixMs(unix.0 + turn * 50), mono: mono.after(turn * 50) };
        limiter.tick(&mut shared, now);
        let outcome = limiter.decide(&mut shared, turn, &[check], now.mono);
        passed += u32::from(matches!(outcome.decision, weir_core::limiter::Decision::Allow(_)));
        while limiter.next(&mut shared, now.mono).is_some() {}
    }
    assert!(passed <= 3, "{passed} passed a limit of 3");
}
