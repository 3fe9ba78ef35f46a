//! Workers of one process over simulated time: which identifiers are banned, for how long, and what is proposed.

use super::making::Bans;
use super::proposals::{MAX_PROPOSALS, Proposals};
use crate::control::{Keeper, Local};
use crate::limiter::table::{Geometry, Meta};
use crate::limiter::{Limiter, Output, Setup};
use crate::model::key::{HashKey, Key, KeyParts, Namespace, NodeId};
use crate::model::shared::MemoryShared;
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::wire;
use crate::rules::Config;
use std::format;
use std::vec;
use std::vec::Vec;

const CONFIG: &str = r#"{"aggregator": {"cluster": "weir"}, "rules": [{
    "name": "login", "identifier": {"header": "x"}, "limit": 1, "window": "1m",
    "ban": {"threshold": 3, "window": "1m", "duration": "10m", "max_duration": "30m"}
}]}"#;
const MINUTE: u64 = 60_000;
const OF: Namespace<&str> = Namespace { workspace: "default", name: "login" };

/// Workers of one process, each with its own memory.
struct World {
    shared: MemoryShared,
    workers: Vec<(Limiter, Keeper, Bans, Proposals)>,
    now: Now,
}

impl World {
    fn of(workers: u64) -> World {
        World::with(workers, CONFIG)
    }

    fn with(workers: u64, config: &str) -> World {
        let mut shared = MemoryShared::default();
        let geometry = Geometry { buckets: 8, keys_per_bucket: 8 };
        let proposal = Meta { node: NodeId([1; 16]), secret: HashKey(1, 2), geometry };
        let meta = Meta::establish(&mut shared, proposal);
        let now = Now { unix: UnixMs(1_700_000_040_000), mono: MonoMs(1_000_000) };
        let config = Config::parse(config.as_bytes()).unwrap();
        let worker = |worker, shared: &mut MemoryShared| {
            let setup = Setup { meta, worker, local_sets: 8 };
            (Limiter::new(setup, now), Keeper::load(shared, now), Bans::new(5, &config), Proposals::default())
        };
        let workers = (1..=workers).map(|number| worker(number, &mut shared)).collect();
        World { shared, workers, now }
    }

    fn pass(&mut self, ms: u64) {
        let end = self.now.mono.0 + ms;
        while self.now.mono.0 < end {
            let step = 50.min(end - self.now.mono.0);
            self.now.mono.0 += step;
            self.now.unix.0 += step;
            for (limiter, keeper, bans, _) in &mut self.workers {
                limiter.tick(&mut self.shared, self.now);
                keeper.tick(&mut self.shared, self.now);
                while let Some(output) = limiter.next(&mut self.shared, self.now.mono) {
                    if let Output::Struck(violator) = output {
                        bans.ban(&violator, keeper, self.now);
                    }
                }
            }
        }
    }

    fn deny(&mut self, worker: usize, identifier: &str, times: usize) {
        let (limiter, keeper, bans, _) = &mut self.workers[worker];
        for _ in 0..times {
            bans.begin();
            bans.accuse(0, identifier.as_bytes());
            bans.denied(&mut self.shared, limiter, keeper, 0, self.now);
        }
    }

    /// Which ban in a row holds on a worker, and for how many more milliseconds.
    fn banned(&self, worker: usize, identifier: &str) -> Option<(u32, u64)> {
        let (_, keeper, ..) = &self.workers[worker];
        let ban = keeper.controls().banned_here(OF, identifier.as_bytes(), self.now)?;
        let left_ms = ban.until.0.saturating_sub(self.now.unix.0);
        (left_ms > 0).then_some((ban.level, left_ms))
    }

    /// The region sends the first worker one ban of this length, and no other control.
    fn send_ban(&mut self, identifier: &str, minutes: u64, revision: u64) {
        let control = wire::Control {
            revision,
            workspace: "default".into(),
            scope: "login".into(),
            identifier: identifier.into(),
            kind: 3,
            expires_ms: self.now.unix.0 + minutes * MINUTE,
            ..Default::default()
        };
        self.send(vec![control], revision);
    }

    /// The region sends the first worker an empty set of controls.
    fn lift_all(&mut self, revision: u64) {
        self.send(Vec::new(), revision);
    }

    fn send(&mut self, entries: Vec<wire::Control>, revision: u64) {
        let controls = wire::Controls {
            incarnation: 1,
            entries,
            complete_through: revision,
            from_scratch: true,
            as_of: revision,
            ..Default::default()
        };
        self.workers[0].1.on_frame(&mut self.shared, &controls);
    }

    /// A request of the first worker is denied by a ban.
    fn meets_a_ban(&mut self, identifier: &str) {
        let (_, keeper, bans, _) = &mut self.workers[0];
        bans.begin();
        bans.accuse(0, identifier.as_bytes());
        bans.on_banned(keeper, 0, self.now);
    }

    fn proposed(&mut self, worker: usize) -> Vec<wire::Ban> {
        let (_, keeper, bans, proposals) = &mut self.workers[worker];
        let rule_in = |workspace: &str, namespace: &str| bans.rule_in(workspace, namespace);
        proposals.take_frames(keeper, rule_in, self.now).into_iter().flat_map(|frame| frame.bans).collect()
    }
}

#[test]
fn what_clients_without_a_value_share_is_not_banned() {
    let mut world = World::of(1);
    for identifier in [r"\-", r"\+", r"\-|\+"] {
        world.deny(0, identifier, 20);
        world.pass(100);
        assert_eq!(world.banned(0, identifier), None, "{identifier}");
    }
    world.deny(0, r"\-|mallory", 3);
    world.pass(100);
    assert!(world.banned(0, r"\-|mallory").is_some());
    assert_eq!(world.proposed(0).len(), 1);
}

#[test]
fn bans_double_up_to_the_longest_and_expire() {
    let mut world = World::of(1);
    for (level, minutes) in [(1, 10), (2, 20), (3, 30), (4, 30)] {
        world.deny(0, "mallory", 2);
        world.pass(100);
        assert_eq!(world.banned(0, "mallory"), None, "two are not three");
        world.deny(0, "mallory", 1);
        world.pass(100);
        let (made, left_ms) = world.banned(0, "mallory").unwrap();
        assert_eq!((made, left_ms.div_ceil(MINUTE)), (level, minutes));
        world.pass(minutes * MINUTE);
    }
    world.pass(30 * MINUTE);
    world.deny(0, "mallory", 3);
    assert_eq!(world.banned(0, "mallory").unwrap().0, 1, "good for so long");
    assert_eq!(world.banned(0, "alice"), None);
}

#[test]
fn a_ban_holds_on_all_workers_and_is_made_once() {
    let mut world = World::of(3);
    world.deny(0, "mallory", 1);
    world.deny(1, "mallory", 1);
    world.pass(100);
    world.deny(2, "mallory", 1);
    world.pass(200);
    let bans: Vec<_> = (0..3).map(|worker| world.banned(worker, "mallory")).collect();
    assert!(bans[0].is_some() && bans.iter().all(|ban| *ban == bans[0]), "{bans:?}");
    // Denials on a worker before it has the ban lead to no other ban.
    world.deny(1, "mallory", 2);
    world.pass(200);
    assert_eq!(world.banned(1, "mallory").unwrap().0, 1);
}

#[test]
fn a_new_vm_loads_the_bans() {
    let mut world = World::of(1);
    world.deny(0, "mallory", 3);
    world.pass(100);
    let config = Config::parse(CONFIG.as_bytes()).unwrap();
    let (_, keeper, bans, proposals) = &mut world.workers[0];
    (*keeper, *bans) = (Keeper::load(&mut world.shared, world.now), Bans::new(6, &config));
    *proposals = Proposals::default();
    assert_eq!(world.banned(0, "mallory").unwrap().0, 1);
    world.pass(10 * MINUTE);
    world.deny(0, "mallory", 3);
    assert_eq!(world.banned(0, "mallory").unwrap().0, 2);
}

#[test]
fn a_ban_is_proposed_until_the_region_sends_it() {
    let mut world = World::of(1);
    world.deny(0, "mallory", 3);
    let [ban] = &world.proposed(0)[..] else { panic!("one proposal") };
    assert_eq!((ban.identifier.as_slice(), ban.level, ban.rule.as_str()), (&b"mallory"[..], 1, "login"));
    assert_eq!(ban.until_ms, world.now.unix.0 + 10 * MINUTE);
    assert_eq!(world.proposed(0), [], "not again at once");
    world.pass(1_000);
    assert_eq!(world.proposed(0).len(), 1, "but again");
    world.send_ban("mallory", 10, 1);
    world.pass(2_000);
    assert_eq!(world.proposed(0), []);
}

#[test]
fn a_ban_from_elsewhere_counts_in_the_row() {
    let mut world = World::of(1);
    world.send_ban("mallory", 15, 1);
    world.meets_a_ban("mallory");
    world.pass(15 * MINUTE);
    world.deny(0, "mallory", 3);
    assert_eq!(world.banned(0, "mallory").unwrap().0, 3, "it had lasted like a second one");
}

#[test]
fn after_a_long_ban_was_lifted_the_rule_bans_again() {
    let mut world = World::of(1);
    world.send_ban("mallory", 30 * 24 * 60, 1);
    world.meets_a_ban("mallory");
    world.pass(20 * MINUTE);
    world.meets_a_ban("mallory");
    world.pass(MINUTE);
    world.lift_all(2);
    world.pass(MINUTE);
    // Now the rule has reasons of its own.
    let began = world.now.unix.0;
    world.deny(0, "mallory", 3);
    world.pass(100);
    assert_eq!(world.banned(0, "mallory").unwrap().1.div_ceil(MINUTE), 30);
    let [ban] = &world.proposed(0)[..] else { panic!("one proposal") };
    assert_eq!(ban.since_ms, began, "so that it is no older than the lifting");
}

#[test]
fn a_banned_network_does_not_count_in_the_row() {
    let mut world = World::of(1);
    world.meets_a_ban("mallory");
    world.pass(100);
    world.deny(0, "mallory", 3);
    assert_eq!(world.banned(0, "mallory").unwrap().0, 1);
}

#[test]
fn what_a_vm_that_died_had_banned_is_proposed_by_the_next() {
    let mut world = World::of(2);
    world.deny(1, "mallory", 3);
    world.pass(100);
    let config = Config::parse(CONFIG.as_bytes()).unwrap();
    world.workers.truncate(1);
    let (_, keeper, bans, proposals) = &mut world.workers[0];
    (*keeper, *bans) = (Keeper::load(&mut world.shared, world.now), Bans::new(6, &config));
    *proposals = Proposals::default();
    let [ban] = &world.proposed(0)[..] else { panic!("one proposal") };
    assert_eq!((ban.identifier.as_slice(), ban.level, ban.rule.as_str()), (&b"mallory"[..], 1, "login"));
}

#[test]
fn denials_that_led_to_a_ban_lead_to_no_other() {
    // If it expired sooner than its denials leave the window, the ban would be repeated at each single denial.
    let config = CONFIG
        .replace("\"threshold\": 3, \"window\": \"1m\"", "\"threshold\": 3, \"window\": \"1h\"")
        .replace(
            "\"duration\": \"10m\", \"max_duration\": \"30m\"",
            "\"duration\": \"1m\", \"max_duration\": \"1m\"",
        );
    let mut world = World::with(1, &config);
    world.deny(0, "mallory", 3);
    world.pass(100);
    assert_eq!(world.banned(0, "mallory").map(|ban| ban.0), Some(1));
    world.pass(3 * MINUTE);
    world.deny(0, "mallory", 2);
    world.pass(100);
    assert_eq!(world.banned(0, "mallory"), None, "two are not three");
    world.deny(0, "mallory", 1);
    world.pass(100);
    assert_eq!(world.banned(0, "mallory").map(|ban| ban.0), Some(1), "good for longer than the longest ban");
}

/// Violations age by the monotonic clock, which does not count the time in which the machine was suspended.
#[test]
fn after_a_night_of_a_suspended_machine_denials_of_before_lead_to_no_other_ban() {
    let mut world = World::of(2);
    world.deny(0, "mallory", 3);
    world.pass(100);
    assert!(world.banned(0, "mallory").is_some());
    world.now.unix.0 += 25 * 60 * MINUTE;
    world.pass(100);
    for worker in [0, 1] {
        world.deny(worker, "mallory", 1);
        world.pass(200);
        assert_eq!(world.banned(worker, "mallory"), None, "two are not three");
    }
    world.deny(1, "mallory", 1);
    world.pass(200);
    assert_eq!(world.banned(0, "mallory").map(|ban| ban.0), Some(1), "good for so long");
}

#[test]
fn workspaces_and_namespaces_propose_in_turn() {
    let mut world = World::of(1);
    let now = world.now;
    let (_, keeper, _, proposals) = &mut world.workers[0];
    let (until, kept_until) = (now.unix.after(MINUTE), now.mono.after(MINUTE));
    let ban = Local { mark: until, level: 1, until, since: now.unix, kept_until, taken_over: false };
    for (workspace, name, count) in [("a", "a", 1_100), ("a", "b", 300), ("z", "z", 400)] {
        for number in 0..count {
            keeper.ban(Namespace { workspace, name }, format!("i{number}").as_bytes(), ban, now);
        }
    }
    let frames = proposals.take_frames(keeper, |_, _| Some("rule"), now);
    let bans: Vec<wire::Ban> = frames.into_iter().flat_map(|frame| frame.bans).collect();
    let of = |workspace: &str, namespace: &str| {
        bans.iter().filter(|ban| ban.workspace == workspace && ban.namespace == namespace).count()
    };
    assert_eq!((of("a", "b"), of("z", "z"), bans.len()), (300, 400, MAX_PROPOSALS));
}

#[test]
fn one_charge_counts_once_for_rules_that_share_their_violations() {
    let rule = |name: &str, window: &str, threshold: u64| {
        format!(
            r#"{{"name": "{name}", "namespace": "login", "identifier": {{"header": "x"}}, "limit": 9, "window": "1m",
                "cost": {{"only": 401}},
                "ban": {{"threshold": {threshold}, "window": "{window}", "duration": "10m", "count": "charged"}}}}"#
        )
    };
    let rules = [rule("a", "1m", 9), rule("b", "1m", 3), rule("c", "2m", 4)].join(", ");
    let config = format!(r#"{{"aggregator": {{"cluster": "weir"}}, "rules": [{rules}]}}"#);
    let key = |identifier: &str| {
        let parts = KeyParts {
            workspace: b"default",
            namespace: b"login",
            identifier: identifier.as_bytes(),
            duration_ms: MINUTE,
            epoch: 0,
            resolution: 1,
        };
        Key::new(&parts).unwrap()
    };
    for (costs, charges) in [
        (&[(0, 1), (1, 1)][..], 3),
        (&[(1, 1), (0, 1)], 3),
        (&[(0, 2), (1, 1)], 2),
        (&[(0, 1)], 9),
        (&[(0, 1), (2, 1)], 4),
        (&[(0, 1), (1, 1), (2, 1)], 3),
    ] {
        let mut world = World::with(1, &config);
        for charge in 1..=charges {
            assert_eq!(world.banned(0, "eve"), None, "{costs:?} before charge {charge}");
            let (limiter, keeper, bans, _) = &mut world.workers[0];
            bans.charged(&mut world.shared, (limiter, keeper), key("eve").as_bytes(), costs, world.now);
            bans.charged(&mut world.shared, (limiter, keeper), key("bob").as_bytes(), &[(0, 0)], world.now);
        }
        assert!(world.banned(0, "eve").is_some(), "{costs:?}");
        assert_eq!(world.banned(0, "bob"), None);
    }
}
