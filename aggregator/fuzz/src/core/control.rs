//! Live control: frames of an aggregator, and shared data.

use prost::Message;
use weir_core::control::{Controls, Keeper, MAX_CONTROLS, Scratch, Subject};
use weir_core::matching::canonical::canonical_identifier;
use weir_core::model::shared::{MemoryShared, Place, Shared};
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire;

const NOW: Now = Now { unix: UnixMs(1_700_000_040_000), mono: MonoMs(1_000_000) };

/// A frame, applied twice: the second time changes nothing. The controls are sound, and shared data returns them as they were stored.
pub fn controls(data: &[u8]) {
    let Ok(frame) = wire::Controls::decode(data) else { return };
    let mut set = Controls::default();
    set.apply(&wire::Controls {
        incarnation: frame.incarnation,
        complete_through: 1,
        from_scratch: true,
        ..Default::default()
    });
    set.apply(&frame);
    assert!(!set.apply(&frame), "it was applied before");
    check(&set);
    let mut shared = MemoryShared::default();
    let mut keeper = Keeper::load(&mut shared, NOW);
    keeper.on_frame(&mut shared, &frame);
    let other = Keeper::load(&mut shared, NOW);
    assert_eq!(other.controls().known(), keeper.controls().known());
    assert!(other.controls().iter().eq(keeper.controls().iter()));
}

/// The bytes of each place in turn, as another version may have left them: the reader goes on, and applies later frames.
pub fn stored_controls(data: &[u8]) {
    for place in [Place::Controls, Place::ControlSet, Place::Bans] {
        let mut shared = MemoryShared::default();
        shared.store(place, data, None);
        let mut keeper = Keeper::load(&mut shared, NOW);
        check(keeper.controls());
        let known = keeper.controls().known();
        let frame =
            wire::Controls { incarnation: 77, complete_through: 5, from_scratch: true, ..Default::default() };
        keeper.on_frame(&mut shared, &frame);
        let later = Now { mono: NOW.mono.after(50), ..NOW };
        keeper.tick(&mut shared, later);
        let kept = keeper.controls().known();
        assert!(kept.revision == 5 || (known.incarnation == 77 && kept == known), "{known:?}, then {kept:?}");
    }
}

fn check(set: &Controls) {
    assert!(set.iter().count() <= MAX_CONTROLS);
    let mut scratch = Scratch::default();
    for control in set.iter() {
        assert_eq!(control.check(), Ok(()));
        let raw = format!("{:?}", control.target.selector);
        let mut canonical = Vec::new();
        canonical_identifier(raw.as_bytes(), &mut canonical);
        let subject = Subject {
            workspace: &control.target.workspace,
            namespace: &control.target.scope,
            raw: raw.as_bytes(),
            canonical: &canonical,
            window_ms: control.target.window_ms.unwrap_or(1_000),
            address: Some([10, 0, 0, 1].into()),
            allowed: Some(8),
        };
        let found = set.find(&subject, NOW.unix, &mut scratch);
        assert!(!(found.exempt && found.ban.is_some()), "both: {found:?}");
        set.shadow(&control.target.workspace, &control.target.scope, NOW.unix);
    }
}
