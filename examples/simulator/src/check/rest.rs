//! When a cell has come to rest: who is to know it, and what. Then all parts agree with the truth, exactly.
//!
//! What is counted and was not let pass has a name: a grant that stays unspent ([`Share::granted`], or
//! [`Share::proposed`] where the answer got lost), and what dead or sleeping workers had reserved ([`Share::reserved`]).
//! Where a region has lost what only it knew, its base makes up for it, which is not exact: then what the living know is
//! the least, and everything that anybody may have counted, twice, the most.
//!
//! Leaves to others: reading tables, regions and stores (`world`).

use super::truth::{Origin, Share};
use super::{CellId, Check};
use std::collections::BTreeMap;
use weir_core::model::key::OriginId;
use weir_core::region::SHORTEST_PUBLISHED_MS;
use weir_core::region::exchange::BASELINE;

/// What an Envoy is to know of a cell that has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// What its region used.
    pub near: u64,
    /// What other regions did, as far as they speak of it.
    pub far: u64,
    /// Everybody in the region is to know it, not only those who use it.
    pub by_all: bool,
}

/// The components of a cell as a part of a region holds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Of each origin.
    pub parts: BTreeMap<OriginId, u64>,
    /// What it counts as the region's sum.
    pub total: u64,
    /// What other regions are believed to have used.
    pub far: u64,
}

/// What an Envoy's table says of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Spent here.
    pub own: u64,
    /// By others of the region.
    pub near: u64,
    /// By other regions.
    pub far: u64,
    /// Reserved at the moment.
    pub reserved: u64,
    /// Its base is not known.
    pub without_baseline: bool,
}

impl Check {
    /// What is to be known in a region.
    pub(crate) fn expected(
        &self,
        id: CellId,
        region: usize,
        limit: u64,
        window_ms: u64,
        of: impl Fn(&Share) -> u64,
    ) -> Expected {
        let near = self.truth.sum(id, |one| one.region == region, &of);
        let load =
            |region| self.truth.load(id, |id| self.truth.sum(id, |one: &Origin| one.region == region, &of));
        let mut regions = 0..self.truth.lost_us.len();
        let is_long = regions.len() > 1 && window_ms >= SHORTEST_PUBLISHED_MS;
        let spoken_of = is_long && regions.any(|region| load(region) >= limit.div_ceil(2));
        let far = if spoken_of { self.truth.sum(id, |one| one.region != region, &of) } else { 0 };
        Expected { near, far, by_all: far > 0 || load(region) > limit / 2 }
    }

    /// A part of a region holds this of a cell at rest; `who` names the part. It is to know all of it.
    pub(crate) fn rests_in_region(
        &mut self,
        id: CellId,
        (region, who): (usize, &str),
        held: &Held,
        now_us: u64,
    ) {
        let Some(cell) = self.truth.cell(id) else { return };
        let (born_us, shares) = (cell.born_us, cell.shares.clone());
        let made_up = self.truth.is_made_up(region, born_us);
        let crowded = self.truth.is_crowded(region);
        let (mut least, mut most) = (0u64, 0u64);
        for share in &shares {
            let Some(origin) = self.truth.origin(share.origin).copied().filter(|one| one.region == region)
            else {
                continue;
            };
            let part = held.parts.get(&origin.id).copied().unwrap_or(0);
            // A grant that a region lost and nobody has spent, nobody repeats.
            let known = match origin.incarnations {
                true if made_up => share.own,
                true => share.known(),
                false => share.left,
            };
            // What only the dead had reported, a region that lost all may have made up for or not; nor can a table repeat what it
            // has evicted, which it may where the region refused it.
            let may_miss = crowded
                || made_up && (!origin.incarnations || origin.forgets)
                || share.refused && origin.forgets;
            least += if may_miss { 0 } else { known };
            most += share.most();
            let fits = (known..=share.most()).contains(&part);
            // What was asked for may have been granted by an answer that got lost.
            let exact = !origin.incarnations || part == known || (part > known && share.proposed >= part);
            let lost = may_miss && part <= known;
            if !(fits && exact || lost) {
                self.violated("rest", now_us, || {
                    format!(
                        "{who} of region {region} holds {part} of Envoy {} in {id:?}: {share:?}",
                        origin.envoy
                    )
                });
            }
        }
        let baseline = held.parts.get(&BASELINE).copied().unwrap_or(0);
        let fits = if made_up { least..=2 * most } else { least..=most }.contains(&held.total);
        if !fits || (baseline > 0 && !made_up) {
            self.violated("rest", now_us, || {
                format!(
                    "{who} of region {region} counts {} of {least} to {most} in {id:?}, base {baseline}",
                    held.total
                )
            });
        }
    }

    /// An Envoy holds this of a cell at rest; `None`: it does not know it. `near` is what its region holds of all, `far`
    /// what others have published, if it is to know that.
    pub(crate) fn rests_in_table(
        &mut self,
        id: CellId,
        origin: OriginId,
        seen: Option<Seen>,
        (near, far): (Option<u64>, Option<u64>),
        now_us: u64,
    ) {
        let Some(number) = self.truth.number(origin) else { return };
        let Some(who) = self.truth.origin(number).copied() else { return };
        let share = self.truth.share_of(id, number);
        let Some(seen) = seen else {
            // A table that was too small has forgotten what its region holds, or had no room: who comes next asks.
            let should = near.is_some_and(|near| near > 0) || share.admitted > share.border;
            if should && !who.forgets {
                self.violated("rest", now_us, || {
                    format!("Envoy {} knows nothing of {id:?}, which used {near:?} and {far:?}", who.envoy)
                });
            }
            return;
        };
        let least = share.admitted.saturating_sub(share.border + seen.reserved);
        let most = share.admitted + share.neighbour + share.reserved;
        // Where a bucket was full of what may not leave, the overflow cell took it.
        let missing = least.saturating_sub(seen.own);
        // What it evicted is gone where its region lost it too, had no room for it or refused it.
        let crowded = self.truth.is_crowded(who.region);
        let born_us = self.truth.cell(id).map_or(0, |cell| cell.born_us);
        let made_up = self.truth.is_made_up(who.region, born_us);
        let gone = who.forgets && (crowded || share.refused || made_up);
        // A push brings a forgotten key back without its base: who comes next asks, and the region's parts are looked at for
        // what it holds.
        // An aggregator without room has no base to tell.
        let waits_for_baseline = who.forgets && seen.without_baseline && (seen.own == 0 || crowded);
        let counted = match who.forgets {
            true => {
                waits_for_baseline || gone && seen.own <= most || self.truth.accounts_for(id, number, missing)
            }
            false => (least..=most).contains(&seen.own),
        };
        if !waits_for_baseline && (!counted || seen.without_baseline) {
            self.violated("rest", now_us, || {
                format!("Envoy {} holds {seen:?} of {id:?}, where it let {least} to {most} pass", who.envoy)
            });
        }
        // What was granted by an answer that got lost is held by the region for this Envoy, which knows nothing of it.
        let others = near.map(|near| near.saturating_sub(share.known().max(share.proposed)));
        let others_most = near.map(|near| near.saturating_sub(if gone { 0 } else { share.own }));
        // What is reported before a region that lost everything has made up for those that ended, hides in what it makes up, so
        // that it counts less than who was there before.
        let others_most = if made_up { others_most.map(|_| u64::MAX) } else { others_most };
        let knows = others.zip(others_most).is_none_or(|(least, most)| (least..=most).contains(&seen.near));
        // Whoever asks for the base of a cell is answered with what others used of it, which its region had pushed before the table
        // evicted the key.
        if !waits_for_baseline && (!knows || far.is_some_and(|far| far != seen.far)) {
            self.violated("rest", now_us, || {
                format!(
                    "Envoy {} holds {seen:?} of {id:?}, where the region has {near:?} and others {far:?}",
                    who.envoy
                )
            });
        }
    }
}
