//! The other regions: each is named once, and has a component of each cell that it has published.
//!
//! A region owns its component and only ever raises it, so merges take the maximum. A reader adds the components.

use crate::model::time::UnixMs;
use crate::region::plausibility::Refused;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most other regions. The rows of further ones are refused.
pub const MAX_OTHER_REGIONS: usize = 255;

/// Number of another region, as this aggregator counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherRegion(u8);

/// What another region has used in one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherComponent {
    /// The owner.
    pub region: OtherRegion,
    /// The count; it never falls.
    pub count: u64,
    /// When the count last grew here.
    pub updated: UnixMs,
}

/// The components of other regions, ordered by region. Most cells have none, so none is stored inline.
pub type OtherComponents = Vec<OtherComponent>;

/// A set of other regions.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::region) struct RegionSet([u64; 4]);

impl RegionSet {
    pub(in crate::region) fn insert(&mut self, region: OtherRegion) {
        if let Some(word) = self.0.get_mut(usize::from(region.0 / 64)) {
            *word |= 1 << (region.0 % 64);
        }
    }

    pub(in crate::region) fn has(&self, region: OtherRegion) -> bool {
        self.0.get(usize::from(region.0 / 64)).is_some_and(|word| word >> (region.0 % 64) & 1 == 1)
    }

    pub(in crate::region) fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The names of the other regions; a name is never removed.
#[derive(Debug, Default)]
pub(in crate::region) struct OtherRegions(Vec<Box<[u8]>>);

impl OtherRegions {
    /// The region of this name, which is added if it is new.
    pub(in crate::region) fn entry(&mut self, name: &[u8]) -> Result<OtherRegion, Refused> {
        let place = match self.0.iter().position(|known| **known == *name) {
            Some(place) => place,
            None if self.0.len() >= MAX_OTHER_REGIONS => return Err(Refused::Full),
            None => {
                self.0.push(name.into());
                self.0.len() - 1
            }
        };
        u8::try_from(place).map(OtherRegion).map_err(|_| Refused::Full)
    }

    pub(in crate::region) fn name(&self, region: OtherRegion) -> &[u8] {
        self.0.get(usize::from(region.0)).map_or(&[], |name| &**name)
    }
}

/// Raises a region's component. Returns by how much it grew.
pub(in crate::region) fn raise(
    components: &mut OtherComponents,
    region: OtherRegion,
    count: u64,
    now: UnixMs,
) -> u64 {
    match components.binary_search_by_key(&region, |component| component.region) {
        Ok(found) => match components.get_mut(found) {
            Some(component) if component.count < count => {
                component.updated = now;
                count - core::mem::replace(&mut component.count, count)
            }
            _ => 0,
        },
        Err(place) if count > 0 => {
            components.insert(place, OtherComponent { region, count, updated: now });
            count
        }
        Err(_) => 0,
    }
}
