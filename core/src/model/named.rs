//! Values by namespace and name, which share their room: bans in a process, and those that wait in an aggregator.

use super::key::Namespace;
use super::room::RoomUse;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::borrow::Borrow;

/// Values by namespace and name. Clients choose names, so a map with a fixed hash key is not used.
#[derive(Clone, Debug)]
pub struct NamedMap<K, V> {
    workspaces: BTreeMap<Box<str>, OfWorkspace<K, V>>,
    len: usize,
    /// How many values were removed in turn.
    turns: u64,
}

#[derive(Clone, Debug)]
struct OfWorkspace<K, V> {
    namespaces: BTreeMap<Box<str>, OfNamespace<K, V>>,
    len: usize,
    /// Of the last value that was removed in turn.
    turn: u64,
}

#[derive(Clone, Debug)]
struct OfNamespace<K, V> {
    values: BTreeMap<K, V>,
    turn: u64,
}

/// One item of each of several queues in turn.
struct InTurn<I>(VecDeque<I>);

impl<I: Iterator> Iterator for InTurn<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        while let Some(mut queue) = self.0.pop_front() {
            if let Some(item) = queue.next() {
                self.0.push_back(queue);
                return Some(item);
            }
        }
        None
    }
}

impl<K, V> Default for NamedMap<K, V> {
    fn default() -> Self {
        NamedMap { workspaces: BTreeMap::new(), len: 0, turns: 0 }
    }
}

impl<K: Ord, V> NamedMap<K, V> {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A value.
    pub fn get<Q: Ord + ?Sized>(&self, namespace: Namespace<&str>, name: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.of(namespace)?.values.get(name)
    }

    /// A value, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, namespace: Namespace<&str>, name: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.workspaces.get_mut(namespace.workspace)?.namespaces.get_mut(namespace.name)?.values.get_mut(name)
    }

    /// The values of a namespace.
    pub fn values(&self, namespace: Namespace<&str>) -> impl Iterator<Item = &V> {
        self.of(namespace).into_iter().flat_map(|of| of.values.values())
    }

    /// What is held, in all and around a namespace.
    pub fn held(&self, namespace: Namespace<&str>) -> RoomUse {
        RoomUse {
            all: self.len,
            of_workspace: self.workspaces.get(namespace.workspace).map_or(0, |of| of.len),
            of_namespace: self.of(namespace).map_or(0, |of| of.values.len()),
        }
    }

    /// Merges a value: of two with one name the higher one stays. Returns whether anything changed.
    pub fn raise<Q: Ord + ?Sized>(&mut self, namespace: Namespace<&str>, name: &Q, value: V) -> bool
    where
        K: Borrow<Q> + for<'q> From<&'q Q>,
        V: Ord,
    {
        if let Some(stored) = self.get_mut(namespace, name) {
            let raises = value > *stored;
            if raises {
                *stored = value;
            }
            return raises;
        }
        let turn = self.turns;
        let new = || OfWorkspace { namespaces: BTreeMap::new(), len: 0, turn };
        let workspace = self.workspaces.entry(namespace.workspace.into()).or_insert_with(new);
        let new = || OfNamespace { values: BTreeMap::new(), turn };
        let of = workspace.namespaces.entry(namespace.name.into()).or_insert_with(new);
        of.values.insert(name.into(), value);
        workspace.len = workspace.len.saturating_add(1);
        self.len = self.len.saturating_add(1);
        true
    }

    /// Removes the next `most` values: those of the workspaces and namespaces first that had none removed for longest.
    pub fn take_in_turn(&mut self, most: usize) -> Vec<(Namespace<Box<str>>, K, V)>
    where
        K: Clone,
    {
        let next = self.in_turn(|_| true).take(most);
        let next: Vec<_> = next.map(|(of, name, _)| (owned(of), name.clone())).collect();
        let taken = next.into_iter().filter_map(|(of, name)| {
            let value = self.remove(Namespace { workspace: &of.workspace, name: &of.name }, &name)?;
            Some((of, name, value))
        });
        taken.collect()
    }

    fn remove(&mut self, namespace: Namespace<&str>, name: &K) -> Option<V> {
        let workspace = self.workspaces.get_mut(namespace.workspace)?;
        let of = workspace.namespaces.get_mut(namespace.name)?;
        let value = of.values.remove(name)?;
        self.turns = self.turns.saturating_add(1);
        (workspace.turn, of.turn) = (self.turns, self.turns);
        workspace.len = workspace.len.saturating_sub(1);
        self.len = self.len.saturating_sub(1);
        if of.values.is_empty() {
            workspace.namespaces.remove(namespace.name);
        }
        if workspace.len == 0 {
            self.workspaces.remove(namespace.workspace);
        }
        Some(value)
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = (Namespace<&str>, &K, &V)> {
        self.workspaces.iter().flat_map(|(workspace, of)| {
            of.namespaces.iter().flat_map(move |(name, of)| {
                of.values.iter().map(move |(key, value)| {
                    (Namespace { workspace: &**workspace, name: &**name }, key, value)
                })
            })
        })
    }

    /// All values, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Namespace<&str>, &K, &mut V)> {
        self.workspaces.iter_mut().flat_map(|(workspace, of)| {
            of.namespaces.iter_mut().flat_map(move |(name, of)| {
                let namespace = Namespace { workspace: &**workspace, name: &**name };
                of.values.iter_mut().map(move |(key, value)| (namespace, key, value))
            })
        })
    }

    /// The values that are `wanted`, in turn of each workspace and there of each namespace: of each come as many as of every other one.
    pub fn in_turn(
        &self,
        wanted: impl Fn(&V) -> bool + Copy,
    ) -> impl Iterator<Item = (Namespace<&str>, &K, &V)> {
        let mut workspaces: Vec<_> = self.workspaces.iter().collect();
        workspaces.sort_by_key(|(_, of)| of.turn);
        let each = workspaces.into_iter().map(move |(workspace, of)| {
            let mut namespaces: Vec<_> = of.namespaces.iter().collect();
            namespaces.sort_by_key(|(_, of)| of.turn);
            let each = namespaces.into_iter().map(move |(name, of)| {
                let namespace = Namespace { workspace: &**workspace, name: &**name };
                let wanted = of.values.iter().filter(move |(_, value)| wanted(value));
                wanted.map(move |(key, value)| (namespace, key, value))
            });
            InTurn(each.collect())
        });
        InTurn(each.collect())
    }

    /// Keeps the values that `keep` selects; returns whether any were dropped.
    pub fn retain(&mut self, mut keep: impl FnMut(&V) -> bool) -> bool {
        let before = self.len;
        self.workspaces.retain(|_, of| {
            of.namespaces.retain(|_, of| {
                of.values.retain(|_, value| keep(value));
                !of.values.is_empty()
            });
            of.len = of.namespaces.values().map(|of| of.values.len()).sum();
            of.len > 0
        });
        self.len = self.workspaces.values().map(|of| of.len).sum();
        self.len < before
    }

    fn of(&self, namespace: Namespace<&str>) -> Option<&OfNamespace<K, V>> {
        self.workspaces.get(namespace.workspace)?.namespaces.get(namespace.name)
    }
}

fn owned(namespace: Namespace<&str>) -> Namespace<Box<str>> {
    Namespace { workspace: namespace.workspace.into(), name: namespace.name.into() }
}
