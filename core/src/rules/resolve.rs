//! Applies all rules to a request: which of them match, with which identifier, limit and cost.
//!
//! Live control precedes the configuration. A network that the configuration denies is denied regardless of the rules,
//! unless a live exemption of all namespaces has a prefix at least as long. A network that the configuration exempts is
//! exempt from all rules, unless live control bans the identifier, or a network with a prefix at least as long. So is a request that
//! meets the conditions of `exempt`, unless live control bans the identifier or a network of the client.
//!
//! A client whose identifier is ambiguous may be a banned one: while an identifier of a rule's namespace is banned, the rule denies
//! requests with several.
//!
//! Rules that only some readings of a path or a host meet are applied all. So that no client uses up the limits of many by one request, nor the
//! time that they take, a request with more than [`MAX_SPLIT_RULES`] of them is denied. Only rules that may deny the request count: rules
//! that are in shadow mode for it do not, nor do those that it is exempt from. Of rules in shadow mode, those beyond the first
//! [`MAX_SPLIT_RULES`] are not applied.

use super::addresses::Listed;
use super::config::Config;
use super::identifier::{self, Written, write_raw};
use super::index::{Candidates, MAX_SPLIT_RULES, Standing, TooMany};
use super::matcher::Conditions;
use super::request::Request;
use super::request::sources::Sources;
use super::rule::carried::CarriedLimit;
use super::rule::overrides::Override;
use super::rule::share::Share;
use super::rule::{Ambiguous, Missing, Rule};
use super::secret::SecretKey;
use crate::control::{self, Banned, Controls, Found, Subject};
use crate::matching::canonical::canonical_identifier;
use crate::matching::glob;
use crate::model::time::UnixMs;
use crate::usage::Ratios;
use alloc::vec::Vec;
use core::net::IpAddr;

/// Why a request is denied before any rule is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The configuration denies the client's address.
    Address,
    /// Readings of the path or the host meet too many rules that others do not and that may deny the request.
    Path,
}

/// One rule that matches a request.
#[derive(Clone, Copy, Debug)]
pub struct Match<'a> {
    /// The rule's index in [`Config::rules`].
    pub rule_index: usize,
    /// The rule.
    pub rule: &'a Rule,
    /// The canonical identifier, at most [`MAX_IDENTIFIER_BYTES`](crate::matching::canonical::MAX_IDENTIFIER_BYTES) long.
    pub identifier: &'a [u8],
    /// Whether the identifier is of certain clients: a part that tells clients apart has a value, or the rule has no such part. Any
    /// other is of all clients whose requests lack the value, or have several, so that no rule bans it.
    pub is_of_client: bool,
    /// What to do for the rule.
    pub action: Action,
    /// Whether the identifier is in the share for which the rule is enforced. If not, the rule is in shadow mode for it.
    pub enforced: bool,
}

/// What to do for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Charge `cost` if the limit admits it.
    Limit {
        /// The limit after overrides and credits; 0 for a ledger, whose zone sets it.
        limit: u64,
        /// The limit without live control, if live control sets `limit`.
        configured: Option<u64>,
        /// The request's cost.
        cost: u64,
        /// The epoch of the key: the revision of the newest reset; 0 if there was none.
        epoch: u32,
    },
    /// Admit the request without counting it.
    Exempt,
    /// Deny the request without counting it, since a part of the identifier is missing.
    DenyMissing,
    /// Deny the request without counting it, since a part of the identifier has a value that is not listed.
    DenyUnlisted,
    /// Deny the request without counting it, since a part of the identifier has several values, and the rule states so or one of them may
    /// be banned.
    DenyAmbiguous,
    /// Deny the request without counting it, since live control bans it.
    Ban(Banned),
}

/// Live control at this moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live<'a> {
    /// All live controls; `None` if there are none.
    pub controls: Option<&'a Controls>,
    /// The present moment, for controls that expire. It is not used without controls.
    pub now: UnixMs,
}

/// Memory for [`Config::resolve`], one for each worker. After the first requests nothing is allocated any more.
#[derive(Debug, Default)]
pub struct Scratch {
    sources: Sources,
    /// The raw identifier, which overrides are matched against.
    raw: Vec<u8>,
    /// The digest that replaces it outside the filter, if the rule hashes identifiers.
    hashed: Vec<u8>,
    identifiers: Vec<u8>,
    globs: glob::Scratch,
    /// Learned from responses of language models.
    ratios: Ratios,
    /// The client's plan, where a limit depends on it.
    plan: Vec<u8>,
    live: control::Scratch,
    client: Client,
    found: Vec<Applied>,
    /// Rules with a list of values that has none of the request.
    unlisted: Vec<usize>,
    split: Split,
    candidates: Candidates,
}

/// The client's address, if any configured network or live control needs it.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    address: Option<IpAddr>,
    /// Length of the prefix by which the configuration exempts it; 0 if the request is exempt by its conditions.
    allowed: Option<u8>,
}

/// Rules that match the request and that not all readings of its path meet.
#[derive(Clone, Copy, Debug, Default)]
struct Split {
    /// Those that may deny the request.
    denying: usize,
    /// Those in shadow mode for it that were applied.
    trial: usize,
    /// Whether others in shadow mode were not.
    left_out: bool,
}

#[derive(Clone, Copy, Debug)]
struct Applied {
    rule_index: usize,
    identifier_end: usize,
    is_of_client: bool,
    action: Action,
    enforced: bool,
}

/// The rules that match one request, in their order.
#[derive(Clone, Debug)]
pub struct Matches<'a> {
    rules: &'a [Rule],
    identifiers: &'a [u8],
    found: core::slice::Iter<'a, Applied>,
    unlisted: &'a [usize],
    identifier_start: usize,
    denied: Option<Denied>,
    is_path_on_trial: bool,
}

impl Config {
    /// The rules that match this request, each with its action.
    pub fn resolve<'a, R: Request + ?Sized>(
        &'a self,
        request: &R,
        live: &Live<'_>,
        scratch: &'a mut Scratch,
    ) -> Matches<'a> {
        scratch.begin();
        let live = WorkspaceControls {
            controls: live.controls.filter(|controls| !controls.is_empty()),
            now: live.now,
            workspace: &self.workspace,
        };
        let hash_key = self.hash_key.as_ref();
        let is_denied = scratch.is_denied(self, request, &live);
        if !is_denied && !self.exempt.is_empty() {
            scratch.exempt(&self.exempt, request);
        }
        let denied = match is_denied {
            true => Some(Denied::Address),
            false => self.apply_all(request, hash_key, &live, scratch).err(),
        };
        if denied.is_some() {
            scratch.found.clear();
        }
        let is_path_on_trial = denied.is_none() && scratch.split.are_too_many();
        let (identifiers, found) = (scratch.identifiers.as_slice(), scratch.found.iter());
        let (rules, unlisted) = (self.rules.as_slice(), scratch.unlisted.as_slice());
        Matches { rules, identifiers, found, unlisted, identifier_start: 0, denied, is_path_on_trial }
    }

    /// Applies the rules that may match.
    fn apply_all<R: Request + ?Sized>(
        &self,
        request: &R,
        hash_key: Option<&SecretKey>,
        live: &WorkspaceControls<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), Denied> {
        let Some(index) = &self.index else {
            let mut rules = self.rules.iter().enumerate();
            return rules.try_for_each(|(number, rule)| {
                scratch.apply((number, rule, &self.rules), hash_key, request, live)
            });
        };
        let mut candidates = core::mem::take(&mut scratch.candidates);
        let client = scratch.client;
        let standing = |number: u16| match self.rules.get(usize::from(number)) {
            Some(rule) => client.standing(rule, live),
            None => Standing::OnTrial,
        };
        let Sources { path, buffer, .. } = &mut scratch.sources;
        let found = index.find(request, path, buffer, &standing, &mut candidates);
        let applied = found.map_err(|TooMany| Denied::Path).and_then(|(found, left_out)| {
            scratch.split.left_out = left_out;
            let rules = found.iter().map(|number| usize::from(*number));
            let mut rules = rules.filter_map(|number| Some((number, self.rules.get(number)?)));
            rules.try_for_each(|(number, rule)| {
                scratch.apply((number, rule, &self.rules), hash_key, request, live)
            })
        });
        scratch.candidates = candidates;
        applied
    }
}

/// The live control of this workspace; no controls if there are none.
struct WorkspaceControls<'a> {
    controls: Option<&'a Controls>,
    now: UnixMs,
    workspace: &'a str,
}

impl WorkspaceControls<'_> {
    /// Whether the rule is in shadow mode, by its switch or else by the configuration.
    fn is_shadow(&self, rule: &Rule) -> bool {
        let switch = self.controls.and_then(|controls| controls.shadow(self.workspace, &rule.name, self.now));
        switch.unwrap_or(rule.shadow)
    }

    /// Whether an identifier of the rule's namespace is banned.
    fn bans_some(&self, rule: &Rule) -> bool {
        let bans = |controls: &Controls| controls.bans_some(self.workspace, &rule.namespace, self.now);
        self.controls.is_some_and(bans)
    }
}

impl Client {
    /// Whether a rule may deny the request of this client.
    fn standing(self, rule: &Rule, live: &WorkspaceControls<'_>) -> Standing {
        if self.is_exempt(rule, live) {
            Standing::Depends
        } else if rule.enforced == Share::NONE || live.is_shadow(rule) {
            Standing::OnTrial
        } else if rule.enforced == Share::ALL {
            Standing::Denies
        } else {
            Standing::Depends
        }
    }

    /// Whether the address is exempt from a rule, unless the identifier is banned or has a limit of its own.
    fn is_exempt(self, rule: &Rule, live: &WorkspaceControls<'_>) -> bool {
        let (Some(_), Some(controls)) = (self.address, live.controls) else { return self.allowed.is_some() };
        let subject = Subject {
            workspace: live.workspace,
            namespace: &rule.namespace,
            raw: &[],
            canonical: &[],
            window_ms: rule.duration_ms,
            address: self.address,
            allowed: self.allowed,
        };
        controls.exempts_address(&subject, live.now)
    }
}

impl Split {
    /// One more that may deny the request.
    fn deny(&mut self) -> Result<(), Denied> {
        if self.denying >= MAX_SPLIT_RULES {
            return Err(Denied::Path);
        }
        self.denying = self.denying.saturating_add(1);
        Ok(())
    }

    /// One more in shadow mode. Returns whether it is applied.
    fn try_out(&mut self) -> bool {
        let has_room = self.trial < MAX_SPLIT_RULES;
        if has_room {
            self.trial = self.trial.saturating_add(1);
        } else {
            self.left_out = true;
        }
        has_room
    }

    /// Whether they are too many, those in shadow mode included.
    fn are_too_many(self) -> bool {
        self.left_out || self.denying.saturating_add(self.trial) > MAX_SPLIT_RULES
    }
}

impl Scratch {
    /// What was learned from responses of language models, by which requests reserve.
    pub fn ratios(&mut self) -> &mut Ratios {
        &mut self.ratios
    }

    fn begin(&mut self) {
        self.sources.reset();
        self.identifiers.clear();
        self.found.clear();
        self.unlisted.clear();
        self.split = Split::default();
        self.client = Client::default();
    }

    /// Whether the client's address is denied. Stores the address for [`Scratch::controls_of`].
    fn is_denied<R: Request + ?Sized>(
        &mut self,
        config: &Config,
        request: &R,
        live: &WorkspaceControls<'_>,
    ) -> bool {
        let named = live.controls.is_some_and(|controls| controls.has_networks(live.workspace));
        if !named && !config.addresses.are_listed() {
            return false;
        }
        let Sources { peer, buffer, .. } = &mut self.sources;
        self.client.address = config.addresses.client(request, peer, buffer);
        let Some(address) = self.client.address else { return false };
        match config.addresses.find(address) {
            None => false,
            Some((prefix, Listed::Allow)) => {
                self.client.allowed = Some(prefix);
                false
            }
            Some((prefix, Listed::Deny)) => {
                let control =
                    live.controls.and_then(|controls| controls.network(live.workspace, address, live.now));
                !control.is_some_and(|(live_prefix, banned)| live_prefix >= prefix && !banned)
            }
        }
    }

    /// Exempts a request that meets conditions in all of its readings. As the configuration exempts it by no network, each one that live
    /// control bans precedes.
    fn exempt<R: Request + ?Sized>(&mut self, conditions: &[Conditions], request: &R) {
        if conditions.iter().any(|one| one.matches_certainly(request, &mut self.sources)) {
            self.client.allowed = self.client.allowed.or(Some(0));
        }
    }

    fn apply<R: Request + ?Sized>(
        &mut self,
        (rule_index, rule, rules): (usize, &Rule, &[Rule]),
        hash_key: Option<&SecretKey>,
        request: &R,
        live: &WorkspaceControls<'_>,
    ) -> Result<(), Denied> {
        if !rule.conditions.matches(request, &mut self.sources) {
            return Ok(());
        }
        if !rule.more_specific.is_empty() && self.is_replaced((rule, rules), hash_key, request, live) {
            return Ok(());
        }
        let is_split = rule.conditions.matches_some_readings(request, &mut self.sources)
            || rule.conditions.matches_some_hosts(request, &mut self.sources.buffer);
        let on_trial = is_split && self.client.standing(rule, live) == Standing::OnTrial;
        if on_trial && !self.split.try_out() {
            return Ok(());
        }
        let written = write_raw(&rule.parts, request, &mut self.sources, &mut self.raw);
        if is_skipped(rule, written.found) {
            if written.found == identifier::Found::Skipped {
                self.unlisted.push(rule_index);
            }
            return Ok(());
        }
        let start = self.identifiers.len();
        self.write_identifier(rule, written, hash_key);
        let action = match self.controls_of(rule, start, live) {
            Found { ban: Some(banned), .. } => Action::Ban(banned),
            Found { exempt: true, .. } => Action::Exempt,
            found => match written.found {
                identifier::Found::Missing if rule.missing == Missing::Deny => Action::DenyMissing,
                identifier::Found::Denied => {
                    self.unlisted.push(rule_index);
                    Action::DenyUnlisted
                }
                identifier::Found::Unlisted => {
                    self.unlisted.push(rule_index);
                    self.limit((rule_index, rule), request, &found)
                }
                identifier::Found::Ambiguous if rule.ambiguous == Ambiguous::Deny => Action::DenyAmbiguous,
                // One of its values may be banned.
                identifier::Found::Ambiguous if live.bans_some(rule) => Action::DenyAmbiguous,
                _ => self.limit((rule_index, rule), request, &found),
            },
        };
        let identifier = self.identifiers.get(start..).unwrap_or_default();
        let enforced = rule.enforced.has(live.workspace, &rule.namespace, identifier);
        if is_split && !on_trial && action != Action::Exempt {
            let denies = enforced && !live.is_shadow(rule);
            if denies {
                self.split.deny()?;
            } else if !self.split.try_out() {
                self.identifiers.truncate(start);
                return Ok(());
            }
        }
        self.found.push(Applied {
            rule_index,
            identifier_end: self.identifiers.len(),
            is_of_client: written.is_of_client,
            action,
            enforced,
        });
        Ok(())
    }

    /// Appends the identifier of which `raw` is the raw form.
    fn write_identifier(&mut self, rule: &Rule, written: Written, hash_key: Option<&SecretKey>) {
        self.hashed.clear();
        match hash_key.filter(|_| rule.hash && written.is_of_client) {
            Some(key) => {
                key.write(&self.raw, &mut self.hashed);
                self.identifiers.extend_from_slice(&self.hashed);
            }
            None => canonical_identifier(&self.raw, &mut self.identifiers),
        }
    }

    /// Whether a rule of its group with a more specific path applies in place of this one. One in shadow mode does not, nor does one that
    /// the request is exempt from.
    fn is_replaced<R: Request + ?Sized>(
        &mut self,
        (rule, rules): (&Rule, &[Rule]),
        hash_key: Option<&SecretKey>,
        request: &R,
        live: &WorkspaceControls<'_>,
    ) -> bool {
        let mut others = rule.more_specific.iter().filter_map(|number| rules.get(usize::from(*number)));
        others.any(|other| {
            if other.enforced != Share::ALL
                || live.is_shadow(other)
                || !other.conditions.matches_certainly(request, &mut self.sources)
            {
                return false;
            }
            let written = write_raw(&other.parts, request, &mut self.sources, &mut self.raw);
            !is_skipped(other, written.found) && !self.exempts(other, written, hash_key, live)
        })
    }

    /// Whether live control or an override exempts the identifier of which `raw` is the raw form.
    fn exempts(
        &mut self,
        rule: &Rule,
        written: Written,
        hash_key: Option<&SecretKey>,
        live: &WorkspaceControls<'_>,
    ) -> bool {
        let start = self.identifiers.len();
        self.write_identifier(rule, written, hash_key);
        let found = self.controls_of(rule, start, live);
        self.identifiers.truncate(start);
        if found.ban.is_some() || found.exempt {
            return found.ban.is_none();
        }
        let of_raw = rule.overrides.find(&self.raw, &mut self.globs);
        matches!(of_raw, Some(Override::Exempt)) && found.limit.is_none()
    }

    /// The live controls of the identifier that begins at `start`, and of the client's address.
    fn controls_of(&mut self, rule: &Rule, start: usize, live: &WorkspaceControls<'_>) -> Found {
        let Client { address, allowed } = self.client;
        let Some(controls) = live.controls else {
            return Found { exempt: allowed.is_some(), ..Found::default() };
        };
        let subject = Subject {
            workspace: live.workspace,
            namespace: &rule.namespace,
            raw: if self.hashed.is_empty() { &self.raw } else { &self.hashed },
            canonical: self.identifiers.get(start..).unwrap_or_default(),
            window_ms: rule.duration_ms,
            address,
            allowed,
        };
        controls.find(&subject, live.now, &mut self.live)
    }

    fn limit<R: Request + ?Sized>(
        &mut self,
        (rule_index, rule): (usize, &Rule),
        request: &R,
        found: &Found,
    ) -> Action {
        let configured = match rule.overrides.find(&self.raw, &mut self.globs) {
            Some(Override::Exempt) if found.limit.is_none() => return Action::Exempt,
            Some(Override::Limit(limit)) => limit,
            // Live control states the limit of an exempt identifier.
            Some(Override::Exempt) => rule.limit,
            None => match &rule.carried {
                Some(carried) => self.carried(carried, request).unwrap_or(rule.limit),
                None => rule.limit,
            },
        };
        let limit = found.limit_of(configured, rule.algorithm);
        let number = u16::try_from(rule_index).unwrap_or(u16::MAX);
        Action::Limit {
            limit,
            configured: found.sets_limit().then_some(configured),
            cost: rule.cost.of(request, limit, (number, &self.ratios), &mut self.sources.buffer),
            epoch: found.epoch,
        }
    }

    /// The limit that a request carries, if it does.
    fn carried<R: Request + ?Sized>(&mut self, carried: &CarriedLimit, request: &R) -> Option<u64> {
        match carried {
            CarriedLimit::Stated(stated) => stated.of(request, &mut self.sources.buffer),
            CarriedLimit::ByPlan(plans) => {
                plans.of(request, &mut self.sources, &mut self.plan, &mut self.globs)
            }
        }
    }
}

/// Whether the rule does not apply to a request with such an identifier.
fn is_skipped(rule: &Rule, found: identifier::Found) -> bool {
    match found {
        identifier::Found::Missing => rule.missing == Missing::Skip,
        found => found == identifier::Found::Skipped,
    }
}

impl Matches<'_> {
    /// Why the request is denied before any rule is applied, if it is. There are no matches then.
    pub fn denied(&self) -> Option<Denied> {
        self.denied
    }

    /// The numbers of the rules whose lists do not have the request's value, and that do not exempt or ban it; of an identifier with a
    /// missing or an ambiguous part this is not known.
    pub fn unlisted(&self) -> &[usize] {
        self.unlisted
    }

    /// Whether readings of the path meet more rules than may be, counting those in shadow mode, too. These deny nothing, and those beyond
    /// the bound are not applied.
    pub fn is_path_on_trial(&self) -> bool {
        self.is_path_on_trial
    }
}

impl<'a> Iterator for Matches<'a> {
    type Item = Match<'a>;

    fn next(&mut self) -> Option<Match<'a>> {
        let Applied { rule_index, identifier_end, is_of_client, action, enforced } = *self.found.next()?;
        let identifier = self.identifiers.get(self.identifier_start..identifier_end)?;
        self.identifier_start = identifier_end;
        let rule = self.rules.get(rule_index)?;
        Some(Match { rule_index, rule, identifier, is_of_client, action, enforced })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.found.size_hint()
    }
}

impl ExactSizeIterator for Matches<'_> {}
