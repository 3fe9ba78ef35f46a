//! The room that several parts share, such as workspaces or credentials.

use super::key::Namespace;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;

/// A part may have as many times what is free.
const TIMES_FREE: usize = 3;

/// How much a part may have while so much is `free`: one alone has three quarters of the room at most, and another finds a quarter
/// free, whatever the first has filled.
pub fn most_of_part(free: usize) -> usize {
    free.saturating_mul(TIMES_FREE)
}

/// What is free once a part of which `left` may still be taken has taken it: what it takes is not free any more.
fn free_within_part(left: usize) -> usize {
    left.div_ceil(TIMES_FREE + 1)
}

/// How much of a room is taken: in all, by one workspace, and by one of its namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomUse {
    /// In all workspaces.
    pub all: usize,
    /// In one workspace.
    pub of_workspace: usize,
    /// In one of its namespaces.
    pub of_namespace: usize,
}

impl RoomUse {
    /// Whether there is a place for another one of that namespace among `most`: workspaces share the places, and namespaces those of
    /// their workspace.
    pub fn has_place(self, most: usize) -> bool {
        let of_workspace = most_of_part(most.saturating_sub(self.all));
        let free = free_within_part(of_workspace.saturating_sub(self.of_workspace));
        self.of_namespace < most_of_part(free)
    }
}

/// The places of a room, counted by the part that has them.
#[derive(Debug)]
pub struct Places<P> {
    most: usize,
    taken: usize,
    of: BTreeMap<P, usize>,
}

impl<P: Ord> Places<P> {
    /// A room of `most` places, all free.
    pub fn new(most: usize) -> Places<P> {
        Places { most, taken: 0, of: BTreeMap::new() }
    }

    /// Whether a part may have another place.
    pub fn has_place(&self, part: &P) -> bool {
        let held = self.of.get(part).copied().unwrap_or(0);
        held < most_of_part(self.most.saturating_sub(self.taken))
    }

    /// Gives a part a place, if it may have another one.
    pub fn take(&mut self, part: P) -> bool {
        let has_place = self.has_place(&part);
        if has_place {
            let held = self.of.entry(part).or_default();
            *held = held.saturating_add(1);
            self.taken = self.taken.saturating_add(1);
        }
        has_place
    }

    /// Takes a place back that a part had.
    pub fn leave(&mut self, part: &P) {
        let Some(held) = self.of.get_mut(part) else { return };
        *held = held.saturating_sub(1);
        self.taken = self.taken.saturating_sub(1);
        if *held == 0 {
            self.of.remove(part);
        }
    }

    /// Places that are taken.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

/// How much of a room workspaces and their namespaces have.
#[derive(Debug, Default)]
pub struct ByNamespace {
    taken: usize,
    workspaces: BTreeMap<Box<[u8]>, OfWorkspace>,
}

#[derive(Debug, Default)]
struct OfWorkspace {
    taken: usize,
    namespaces: BTreeMap<Box<[u8]>, usize>,
}

impl ByNamespace {
    /// What is taken, in all and around this namespace.
    pub fn held(&self, namespace: Namespace<&[u8]>) -> RoomUse {
        let of = self.workspaces.get(namespace.workspace);
        RoomUse {
            all: self.taken,
            of_workspace: of.map_or(0, |of| of.taken),
            of_namespace: of.and_then(|of| of.namespaces.get(namespace.name)).copied().unwrap_or(0),
        }
    }

    /// A namespace has taken so much more.
    pub fn add(&mut self, Namespace { workspace, name }: Namespace<&[u8]>, more: usize) {
        if more == 0 {
            return;
        }
        if !self.workspaces.contains_key(workspace) {
            self.workspaces.insert(workspace.into(), OfWorkspace::default());
        }
        let Some(of) = self.workspaces.get_mut(workspace) else { return };
        match of.namespaces.get_mut(name) {
            Some(held) => *held = held.saturating_add(more),
            None => drop(of.namespaces.insert(name.into(), more)),
        }
        of.taken = of.taken.saturating_add(more);
        self.taken = self.taken.saturating_add(more);
    }

    /// A namespace has so much less.
    pub fn remove(&mut self, Namespace { workspace, name }: Namespace<&[u8]>, less: usize) {
        let Some(of) = self.workspaces.get_mut(workspace) else { return };
        let Some(held) = of.namespaces.get_mut(name) else { return };
        let less = less.min(*held);
        *held = held.saturating_sub(less);
        if *held == 0 {
            of.namespaces.remove(name);
        }
        of.taken = of.taken.saturating_sub(less);
        if of.taken == 0 {
            self.workspaces.remove(workspace);
        }
        self.taken = self.taken.saturating_sub(less);
    }

    /// What is taken in all.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Whether nothing is taken, and nothing is kept of whoever had something.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0 && self.workspaces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_take_all_they_may_leave_room_to_others() {
        let mut places = Places::new(64);
        let mut fill = |part: u8| (0..100).take_while(|_| places.take(part)).count();
        assert_eq!([1, 2, 3].map(&mut fill), [48, 12, 3]);
        (0..48).for_each(|_| places.leave(&1));
        assert_eq!((places.taken(), places.of.len()), (15, 2));
        places.leave(&9);
        assert_eq!(places.taken(), 15, "who has nothing gives nothing back");
    }

    fn of<'a>(workspace: &'a str, name: &'a str) -> Namespace<&'a [u8]> {
        Namespace { workspace: workspace.as_bytes(), name: name.as_bytes() }
    }

    #[test]
    fn namespaces_leave_room_to_those_of_their_workspace_and_of_others() {
        let mut room = ByNamespace::default();
        let mut fill = |workspace: &str, namespace: &str| {
            let namespace = of(workspace, namespace);
            let takes = |_: &usize| {
                let has_place = room.held(namespace).has_place(1_024);
                room.add(namespace, usize::from(has_place));
                has_place
            };
            (0..2_000).take_while(takes).count()
        };
        let (one, other) = (fill("w", "one"), fill("w", "other"));
        assert!((500..600).contains(&one) && (100..200).contains(&other), "{one} {other}");
        assert!(fill("v", "one") >= 100);
        for (namespace, held) in [("one", one), ("other", other)] {
            room.remove(of("w", namespace), held + 9);
        }
        room.remove(of("v", "one"), 1_024);
        assert!(room.is_empty(), "{room:?}");
    }
}
