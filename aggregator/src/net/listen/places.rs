//! The places of one listener's connections: their number, in all and for each address, and which connection gives way.
//!
//! If no place is free, a new connection displaces an idle one whose peer has presented no credential. If its address has
//! half of the places, it displaces an idle one of this address, with a credential only if no other is idle. The one that
//! has been idle for the longest gives way. Peers that only hold connections open therefore cannot keep others out, a flood
//! of new connections displaces its own, and an authenticated peer cannot take all places.
//!
//! Credentials share the places: once one has more than [its part](most_of_part), the connection that presents it displaces the one of
//! the same credential that has been idle for the longest, from whatever address.

use super::Turn;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot};
use weir_core::model::room::most_of_part;

/// How often the order is brought up to date for one new connection. While requests end meanwhile, it is not exact.
const LOOKS: usize = 3;

/// The connections of a listener.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    held: HashMap<u64, Connection>,
    /// The numbers of all connections by a moment at which each was idle, the last one that was looked at.
    order: BTreeMap<u64, u64>,
    of_address: HashMap<IpAddr, usize>,
    of_credential: HashMap<Credential, usize>,
    /// Connections that have not ended, including displaced ones.
    open: usize,
}

/// A credential, by a hash of its name.
pub(super) type Credential = u64;

/// Among which connections one gives way.
#[derive(Clone, Copy)]
enum Among {
    All,
    Address(IpAddr),
    /// The others with the credential of this connection.
    Credential(Credential, u64),
}

#[derive(Debug)]
struct Connection {
    address: IpAddr,
    credential: Option<Credential>,
    /// Its place in the order.
    moment: u64,
    turn: Arc<Turn>,
    displace: oneshot::Sender<()>,
}

/// The place of one connection, freed when it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
}

/// What happened to a new connection.
pub(super) enum Entry {
    /// It has a place; the receiver completes when another connection displaces it.
    Placed(Place, oneshot::Receiver<()>, Displaced),
    /// Its address has as many as one address may have, and none of these gives way.
    AddressFull,
    /// All places are taken, and no connection gives way.
    Full,
}

/// Whether another connection was displaced.
pub(super) type Displaced = bool;

impl Places {
    pub(super) fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { most, state: Mutex::default(), freed: Notify::new() })
    }

    /// Gives a connection a place.
    pub(super) fn enter(self: &Arc<Places>, address: IpAddr, turn: Arc<Turn>) -> Entry {
        let address = peer_of(address);
        let mut state = self.state.lock();
        let of_address = state.of_address.get(&address).copied().unwrap_or(0);
        let displaced = if of_address >= most_of_address(self.most) {
            if !state.displace(Among::Address(address)) {
                return Entry::AddressFull;
            }
            true
        } else if state.held.len() >= self.most {
            if !state.displace(Among::All) {
                return Entry::Full;
            }
            true
        } else {
            false
        };
        let (displace, gives_way) = oneshot::channel();
        state.last += 1;
        state.open += 1;
        let (number, moment) = (state.last, turn.rest());
        state
            .held
            .insert(number, Connection { address, credential: None, moment, turn: turn.clone(), displace });
        state.order.insert(moment, number);
        *state.of_address.entry(address).or_default() += 1;
        drop(state);
        turn.placed(self, number);
        Entry::Placed(Place { places: self.clone(), number }, gives_way, displaced)
    }

    /// Notes that the peer of a connection has presented a credential. If that has more than its part, another one of its connections gives
    /// way.
    pub(super) fn authenticated(&self, number: u64, credential: Credential) {
        let mut state = self.state.lock();
        let Some(held) = state.held.get_mut(&number) else { return };
        let before = held.credential.replace(credential);
        before.into_iter().for_each(|before| decrement(&mut state.of_credential, &before));
        let count = state.of_credential.entry(credential).or_default();
        *count += 1;
        if *count > most_of_part(self.most.saturating_sub(state.held.len())) {
            state.displace(Among::Credential(credential, number));
        }
    }

    /// Completes when a connection has ended since it last completed.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Completes once every connection has ended.
    pub(super) async fn emptied(&self) {
        while self.state.lock().open > 0 {
            self.freed().await;
        }
    }
}

impl State {
    /// Displaces the connection that gives way; false if there is none.
    fn displace(&mut self, among: Among) -> bool {
        let mut found = None;
        for _ in 0..LOOKS {
            let was_used;
            (found, was_used) = self.longest_idle(among);
            if was_used.is_empty() {
                break;
            }
            // They were used since they were looked at last.
            for (number, moment) in was_used {
                if let Some(held) = self.held.get_mut(&number) {
                    self.order.remove(&std::mem::replace(&mut held.moment, moment));
                    self.order.insert(moment, number);
                }
            }
        }
        let Some(held) = found.and_then(|number| self.remove(number)) else { return false };
        // The send fails if the connection has already ended.
        let _ = held.displace.send(());
        true
    }

    /// The connection that gives way, and those before it in the order that have been idle since a later moment.
    fn longest_idle(&self, among: Among) -> (Option<u64>, Vec<(u64, u64)>) {
        let (mut found, mut was_used) = (None, Vec::new());
        for (moment, number) in &self.order {
            let is_among = |held: &&Connection| match among {
                Among::All => true,
                Among::Address(address) => held.address == address,
                Among::Credential(credential, but) => held.credential == Some(credential) && *number != but,
            };
            let Some(held) = self.held.get(number).filter(is_among) else { continue };
            match held.turn.idle_since() {
                None => {}
                Some(since) if since > *moment => was_used.push((*number, since)),
                Some(_) if !held.turn.has_credential() => return (Some(*number), was_used),
                Some(_) if !matches!(among, Among::All) => found = found.or(Some(*number)),
                Some(_) => {}
            }
        }
        (found, was_used)
    }

    fn remove(&mut self, number: u64) -> Option<Connection> {
        let held = self.held.remove(&number)?;
        self.order.remove(&held.moment);
        decrement(&mut self.of_address, &held.address);
        held.credential.iter().for_each(|credential| decrement(&mut self.of_credential, credential));
        Some(held)
    }
}

fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state.lock();
        state.remove(self.number);
        state.open -= 1;
        drop(state);
        self.places.freed.notify_one();
    }
}

/// How many of `places` one address may have.
pub fn most_of_address(places: usize) -> usize {
    (places / 2).max(1)
}

/// What counts as one peer: an IPv4 address, or the /64 network of an IPv6 address, as one machine may have all of it.
pub fn peer_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const C: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 3));

    struct One {
        turn: Arc<Turn>,
        gives_way: oneshot::Receiver<()>,
        _place: Place,
    }

    fn enter(places: &Arc<Places>, address: IpAddr) -> Option<One> {
        let turn = Arc::<Turn>::default();
        match places.enter(address, turn.clone()) {
            Entry::Placed(_place, gives_way, _) => Some(One { turn, gives_way, _place }),
            Entry::AddressFull | Entry::Full => None,
        }
    }

    impl One {
        fn was_displaced(&mut self) -> bool {
            self.gives_way.try_recv().is_ok()
        }
    }

    #[test]
    fn the_one_that_has_been_idle_for_the_longest_gives_way() {
        let places = Places::new(6);
        let mut held: Vec<One> = [A, A, A, B, B, B].map(|of| enter(&places, of).unwrap()).into();
        held[0].turn.authenticated("one");
        held[1].turn.begin();
        let served = held[2].turn.serve();
        // The first of B has been used since.
        held[3].turn.begin();
        held[3].turn.end();
        let mut new = enter(&places, C).unwrap();
        let displaced = |held: &mut [One]| held.iter_mut().map(One::was_displaced).collect::<Vec<_>>();
        assert_eq!(displaced(&mut held), [false, false, false, false, true, false]);
        held[1].turn.end();
        drop(served);
        let (mut order, mut kept) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            kept.push(enter(&places, C).unwrap());
            order.extend(
                held.iter_mut().enumerate().filter_map(|(at, one)| one.was_displaced().then_some(at)),
            );
        }
        assert_eq!((order, new.was_displaced()), (vec![5, 3], false));
        assert!(!held[0].was_displaced(), "a credential keeps its place");
    }

    #[test]
    fn an_address_has_at_most_half_and_displaces_its_own() {
        let places = Places::new(4);
        let mut other = enter(&places, B).unwrap();
        let mut held: Vec<One> = [A, A].into_iter().map(|of| enter(&places, of).unwrap()).collect();
        let mut third = enter(&places, A).unwrap();
        assert!(held[0].was_displaced() && !held[1].was_displaced() && !other.was_displaced());
        [&held[1], &third].into_iter().for_each(|one| one.turn.authenticated("one"));
        let fourth = enter(&places, A).expect("an idle one of its own gives way, also with a credential");
        assert!(held[1].was_displaced() && !third.was_displaced() && !other.was_displaced());
        let _served = [third.turn.serve(), fourth.turn.serve()];
        assert!(enter(&places, A).is_none(), "none of its own is idle");
        assert!(enter(&places, B).is_some() && !other.was_displaced(), "a place is free for others");
    }

    #[test]
    fn others_displace_no_peer_with_a_credential() {
        let places = Places::new(2);
        let held = [A, B].map(|of| enter(&places, of).unwrap());
        held.iter().zip(["one", "two"]).for_each(|(one, name)| one.turn.authenticated(name));
        assert!(enter(&places, C).is_none());
    }

    #[test]
    fn a_credential_has_its_part_from_whatever_addresses() {
        let places = Places::new(40);
        let mut held: Vec<One> = Vec::new();
        for at in 0..60_u8 {
            let one = enter(&places, IpAddr::from([192, 0, 2, at / 15])).expect("a place");
            one.turn.authenticated("low");
            one.turn.authenticated("low");
            held.push(one);
        }
        let displaced: Vec<_> = held.iter_mut().map(One::was_displaced).collect();
        assert_eq!(displaced, [[true; 30], [false; 30]].concat());
        let others: Vec<One> = (0..5).map(|_| enter(&places, C).unwrap()).collect();
        others.iter().for_each(|one| one.turn.authenticated("victim"));
        assert!(!held.iter_mut().skip(30).any(One::was_displaced), "they had free places");
        drop((held, others));
        assert!(places.state.lock().of_credential.is_empty());
    }

    #[test]
    fn places_are_given_back_once() {
        let places = Places::new(4);
        let (first, _second) = (enter(&places, A).unwrap(), enter(&places, A).unwrap());
        let _third = enter(&places, A).unwrap();
        assert_eq!(places.state.lock().open, 3, "the displaced one has not ended");
        drop(first);
        let state = places.state.lock();
        assert_eq!((state.open, state.held.len(), state.of_address.get(&A)), (2, 2, Some(&2)));
    }

    #[test]
    fn peers() {
        let cases = [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("::1", "::"),
        ];
        for (address, expected) in cases {
            assert_eq!(peer_of(address.parse().unwrap()), expected.parse::<IpAddr>().unwrap(), "{address}");
        }
    }
}
