//! What must hold of bans by rules.
//!
//! - A worker denies by a ban only until an end that a rule of its process, or the database, has stated; and a rule bans
//!   after as many denials as its threshold.
//! - A ban denies on all workers of its process until its end, unless the region has taken it over.
//! - The database has it within a bound, unless it keeps a person's control; floods of other bans change nothing.
//! - What a person deleted denies no more.
//! - No rule replaces a person's control, restores what a person deleted afterwards, or shortens a ban.

use super::super::World;
use super::super::targets::{CLIENTS, NAMESPACE, OF, Place, THRESHOLD, WORKSPACE, place_of};
use super::BOUND_MS;
use std::collections::BTreeMap;
use weir_core::bans::proposals::REPEAT_MS;
use weir_core::control::change::StoredControl;
use weir_core::control::{Banned, Controls, Effect, Local, Scratch, Subject};
use weir_core::model::time::{MonoMs, UnixMs};

/// Time after which all workers of a process have a ban: the ticks of two workers.
const SHARED_MS: u64 = 150;
/// Time after which the database has a ban: ticks of two workers, a message, and two batches, as bans of four namespaces
/// come in turn.
const STORED_MS: u64 = 1_000;

/// Within this time, workers that have not received each other's ban may make one of the same denials.
const MADE_ONCE_MS: u64 = 10_000;

/// A ban that a rule made.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    client: &'static str,
    ban: Local,
    /// When.
    at: u64,
    /// The database has it, or a longer one.
    is_stored: bool,
    /// The process has received it from the region.
    is_taken_over: bool,
    /// When a person deleted it.
    deleted: Option<u64>,
    /// A person's other control replaced it, or a deletion that the worker had not received may have been of it.
    is_replaced: bool,
    /// When the database kept a person's control last.
    blocked: u64,
}

/// Whether a row bans at least until an end.
fn covers(row: Option<&StoredControl>, until: UnixMs) -> bool {
    row.is_some_and(|row| {
        let control = &row.control;
        !row.is_deleted
            && control.effect == Effect::Ban
            && Banned::from(control.expires) >= Banned::Until(until)
    })
}

impl Made {
    /// When the database has it at the latest, proposed on a stream that was `opened` then, if the last fault was at `fault`.
    fn due(&self, opened: u64, fault: u64) -> u64 {
        let proposed = self.at.max(opened);
        match fault.max(self.blocked).checked_sub(proposed) {
            // The pause before a repetition is as long as all before it. What was blocked in the millisecond of the proposal may still be when
            // that arrives.
            Some(since) => proposed + 2 * since + REPEAT_MS + STORED_MS,
            None => proposed + STORED_MS,
        }
    }

    /// Notes what became of its row.
    fn follow(&mut self, before: Option<&StoredControl>, is_now: Option<&StoredControl>, now: u64) {
        let until = self.ban.until;
        self.is_stored |= covers(is_now, until);
        // Readers that come now find no deletion any more.
        let is_unread = self.deleted.is_some_and(|deleted| now < deleted + BOUND_MS);
        if is_unread && is_now.is_some_and(|row| !row.is_deleted) {
            (self.deleted, self.is_replaced) = (None, true);
        }
        if !covers(before, until) || covers(is_now, until) {
            return;
        }
        match is_now {
            Some(row) if row.is_deleted => self.deleted = Some(now),
            Some(_) => self.is_replaced = true,
            // The database has lost it.
            None => self.is_stored = false,
        }
    }
}

impl World {
    /// Notes the bans that a worker has made now, which counted denials from these seconds.
    pub fn note_bans(&mut self, envoy: usize, at: usize, before: [u64; CLIENTS.len()]) {
        let now = self.now;
        let Some(rule) = self.ban_of_login() else { return };
        let found = &mut self.envoys[envoy];
        let Some(worker) = found.workers.get(at) else { return };
        let clocks = worker.limiter.moment(MonoMs(now));
        let mut bans = Vec::new();
        for (client, before) in CLIENTS.into_iter().zip(before) {
            let last = worker.keeper.controls().banned_here(OF, client.as_bytes(), clocks);
            let is_new = |ban: &Local| ban.until > UnixMs(0) && ban.since == clocks.unix && !ban.taken_over;
            let Some(ban) = last.filter(is_new) else { continue };
            if found.made.iter().any(|made| made.client == client && made.ban.mark == ban.mark) {
                continue;
            }
            // Those that led to the last ban count for none after it, whatever clock forgets that ban.
            let last = found.since_ban.insert(client, (now, 0)).filter(|(at, _)| now - at > MADE_ONCE_MS);
            let since_ban = last.map_or(u64::MAX, |(_, denied)| denied);
            let denied = found.violations.get(&(client, before)).copied().unwrap_or(0).min(since_ban);
            let length_ms = ban.until.0 - ban.since.0;
            if denied < THRESHOLD || length_ms != rule.length_ms(ban.level) {
                self.checks.fail(format!("envoy {envoy} bans {client} after {denied} denials: {ban:?}"));
            }
            self.checks.bans += 1;
            self.checks.ends.insert((client, ban.until));
            let known = worker.keeper.controls().known().revision;
            // Also one whose row was written again since: its message may be under way.
            let unread = (place_of(client), known.saturating_add(1))..=(place_of(client), u64::MAX);
            let mut unread = self.checks.written.range(unread).flat_map(|(_, rows)| rows);
            let is_replaced = unread.any(|row| row.is_deleted);
            found.made.push(Made {
                client,
                ban,
                at: now,
                is_stored: false,
                is_taken_over: false,
                deleted: None,
                is_replaced,
                blocked: 0,
            });
            bans.push((client, ban));
        }
        for (client, ban) in bans {
            self.note(|| format!("envoy {envoy} bans {client}: {ban:?}"));
        }
    }

    /// Checks the bans of a worker of an Envoy.
    pub fn check_bans(&mut self, envoy: usize, at: usize) {
        let now = self.now;
        let fault = self.fault_of(envoy);
        let found = &mut self.envoys[envoy];
        let Some(worker) = found.workers.get(at) else { return };
        let (clock, controls) = (worker.limiter.moment(MonoMs(now)).unix, worker.keeper.controls());
        let frozen = found.frozen_until;
        found.made.retain(|made| clock.0 < made.ban.until.after(60_000).0);
        let mut wrong = None;
        let open: Vec<(&[u8], UnixMs)> = controls
            .open_bans(clock)
            .filter(|named| named.namespace == NAMESPACE)
            .map(|named| (named.identifier, named.ban.until))
            .collect();
        for (identifier, until) in &open {
            let is_it = |made: &&Made| made.client.as_bytes() == *identifier && made.ban.until == *until;
            if !found.made.iter().any(|made| is_it(&made)) || *until <= clock {
                wrong.get_or_insert(format!("denies {identifier:?} until {until:?}, which no rule made"));
            }
        }
        for client in CLIENTS {
            let ban = banned(controls, client, clock).0;
            if let Some(Banned::Until(until)) = ban
                && (until <= clock || !self.checks.is_end(client, until))
            {
                wrong.get_or_insert(format!("bans {client} at {clock:?} until {until:?}"));
            }
        }
        for made in &mut found.made {
            let Made { client, ban, at, .. } = *made;
            let named = controls.named(OF, client.as_bytes());
            made.is_taken_over |= named >= Some(Banned::Until(ban.until));
            let (stands, is_exempt) = banned(controls, client, clock);
            let holds = stands >= Some(Banned::Until(ban.until)) || is_exempt;
            let is_the_regions = made.is_taken_over || made.deleted.is_some() || made.is_replaced;
            if now >= at.max(frozen) + SHARED_MS && clock < ban.until && !holds && !is_the_regions {
                wrong.get_or_insert(format!("does not deny by {made:?}, but {stands:?}"));
            }
            let is_known = made.deleted.is_some_and(|deleted| fault < at && now >= deleted + BOUND_MS);
            if is_known && open.contains(&(client.as_bytes(), ban.until)) {
                wrong.get_or_insert(format!("denies by {made:?}, which was deleted"));
            }
        }
        if let Some(what) = wrong {
            self.checks.fail(format!("worker {at} of envoy {envoy} {what}"));
        }
    }

    /// Checks that the database has the bans of an Envoy.
    pub fn check_stored(&mut self, envoy: usize) {
        let (now, fault) = (self.now, self.fault_of(envoy));
        let Some(stream) = &self.envoys[envoy].stream else { return };
        let (opened, aggregator) = (stream.opened, &self.aggregators[stream.aggregator]);
        let clock = aggregator.clocks(now, self.slept_ms).unix;
        let rows = &self.database.tables.rows;
        let found = &mut self.envoys[envoy];
        let mut wrong = None;
        for made in &mut found.made {
            let row = rows.get(&place_of(made.client));
            made.is_stored |= covers(row, made.ban.until);
            let keeps = |row: &StoredControl| {
                // The time of a decision is not in the future.
                let since = made.ban.since.min(clock);
                !row.automatic && (row.updated_at > since.0 || row.is_in_force(clock))
            };
            if row.is_some_and(keeps) {
                made.blocked = now;
            }
            let is_the_regions = made.is_taken_over || made.deleted.is_some() || made.is_replaced;
            let is_over = made.ban.until <= clock.after(STORED_MS);
            if !made.is_stored && !is_the_regions && !is_over && now >= made.due(opened, fault) {
                wrong.get_or_insert(format!("the database lacks {made:?} of envoy {envoy}, and has {row:?}"));
            }
        }
        if let Some(what) = wrong {
            self.checks.fail(what);
        }
    }

    /// Follows the rows of the clients, from one version of the database to the next.
    pub fn follow_bans(&mut self, before: &BTreeMap<Place, StoredControl>) {
        let (now, rows) = (self.now, &self.database.tables.rows);
        for made in self.envoys.iter_mut().flat_map(|envoy| &mut envoy.made) {
            let place = place_of(made.client);
            made.follow(before.get(&place), rows.get(&place), now);
        }
    }

    /// Checks a row that a rule wrote at `now`, by what was there before.
    pub fn check_rule(
        &mut self,
        row: &StoredControl,
        since: UnixMs,
        before: Option<&StoredControl>,
        now: UnixMs,
    ) {
        if let Some(before) = before {
            let is_late = !before.automatic && before.updated_at > since.0;
            let is_shorter = before.is_in_force(now)
                && Banned::from(row.control.expires) <= Banned::from(before.control.expires);
            let is_a_persons = before.is_in_force(now) && !before.automatic;
            if is_late || is_shorter || is_a_persons {
                self.checks.fail(format!("a rule writes {row:?}, decided at {since:?}, over {before:?}"));
            }
        }
        for client in CLIENTS {
            let expires = row.control.expires.unwrap_or_default();
            if row.place() == place_of(client) && !self.checks.ends.contains(&(client, expires)) {
                self.checks.fail(format!("a rule writes {row:?}, which no process proposed"));
            }
        }
    }
}

/// The end of a client's ban, and whether it is exempt.
fn banned(controls: &Controls, client: &str, clock: UnixMs) -> (Option<Banned>, bool) {
    let subject = Subject {
        workspace: WORKSPACE,
        namespace: NAMESPACE,
        raw: client.as_bytes(),
        canonical: client.as_bytes(),
        window_ms: 60_000,
        address: None,
        allowed: None,
    };
    let found = controls.find(&subject, clock, &mut Scratch::default());
    (found.ban, found.exempt)
}
