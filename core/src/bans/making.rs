//! The bans that the rules of one configuration make on one worker.
//!
//! The last ban stores how many bans of an identifier followed each other, as each lasts twice as long as the one
//! before. A ban that was made elsewhere takes part in this when it denies a request, with the time that it has left.

use crate::control::{Banned, Keeper, Local};
use crate::limiter::{Limiter, Violation, Violator, violations_namespace};
use crate::model::key::{KeyParts, MAX_KEY_BYTES, Namespace};
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::rules::identifier::has_value;
use crate::rules::{Ban, Config, Rule, Violations};
use alloc::string::String;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// Epochs of violations are in seconds, as they have to fit 32 bits.
const EPOCH_MS: u64 = 1_000;

/// The bans of one configuration on one worker.
#[derive(Debug)]
pub struct Bans {
    /// The root of the configuration, which owns its violations in the limiter.
    root: u32,
    workspace: String,
    rules: Vec<Option<Banning>>,
    /// Identifiers of the current request: rule, length and identifier for each rule that bans.
    accused: Vec<u8>,
    key: Vec<u8>,
}

/// A rule that bans.
#[derive(Debug)]
struct Banning {
    ban: Ban,
    name: String,
    namespace: String,
    /// The namespace in which its violations are counted.
    violations: String,
}

impl Bans {
    /// For the rules of `config`, the configuration of `root`.
    pub fn new(root: u32, config: &Config) -> Bans {
        let banning = |rule: &Rule| {
            let (name, namespace) = (rule.name.clone(), rule.namespace.clone());
            let violations = violations_namespace(&namespace);
            rule.ban.map(|ban| Banning { ban, name, namespace, violations })
        };
        Bans {
            root,
            workspace: config.workspace.clone(),
            rules: config.rules.iter().map(banning).collect(),
            accused: Vec::new(),
            key: Vec::with_capacity(MAX_KEY_BYTES),
        }
    }

    /// Begins a request.
    pub fn begin(&mut self) {
        self.accused.clear();
    }

    /// Notes the current request's `identifier`, in canonical form, for a rule. One without a value is not noted: all clients whose
    /// requests lack it share it, and one of them could have them all banned.
    pub fn accuse(&mut self, rule: usize, identifier: &[u8]) {
        if !has_value(identifier) {
            return;
        }
        if let (Some(Some(_)), Ok(rule), Ok(length)) =
            (self.rules.get(rule), u16::try_from(rule), u8::try_from(identifier.len()))
        {
            let [low, high] = rule.to_le_bytes();
            self.accused.extend_from_slice(&[low, high, length]);
            self.accused.extend_from_slice(identifier);
        }
    }

    /// The identifiers of the current request, to keep while it waits.
    pub fn accused(&self) -> Vec<u8> {
        self.accused.clone()
    }

    /// Restores the identifiers of a request that waited.
    pub fn accuse_again(&mut self, accused: Vec<u8>) {
        self.accused = accused;
    }

    /// Counts a violation: the rule denied the current request.
    pub fn denied(
        &mut self,
        shared: &mut impl Shared,
        limiter: &mut Limiter,
        keeper: &mut Keeper,
        rule: usize,
        now: Now,
    ) {
        if self.counts(rule) != Some(Violations::Denials) {
            return;
        }
        let accused = core::mem::take(&mut self.accused);
        if let Some(identifier) = find(&accused, rule) {
            self.violate(shared, (limiter, keeper), (rule, identifier), 1, now);
        }
        self.accused = accused;
    }

    /// Counts violations: a charge on `key`, whose identifier is of a client, with the cost under each rule that counts it. Rules with
    /// violations of one window have one count of them, to which it adds the highest of their costs, and of which the lowest threshold applies.
    pub fn charged(
        &mut self,
        shared: &mut impl Shared,
        (limiter, keeper): (&mut Limiter, &mut Keeper),
        key: &[u8],
        costs: &[(u16, u64)],
        now: Now,
    ) {
        let Ok(KeyParts { identifier, .. }) = KeyParts::decode(key) else { return };
        let ban = |rule: u16| self.rules.get(usize::from(rule))?.as_ref().map(|banning| banning.ban);
        let counted = costs.iter().filter_map(|(rule, cost)| {
            let own = ban(*rule).filter(|own| own.count == Violations::Charged)?;
            let others = costs.iter().filter_map(|(other, cost)| Some((ban(*other)?, *other, *cost)));
            let sharing = others.filter(|(ban, ..)| ban.count == own.count && ban.window_ms == own.window_ms);
            let most = sharing.clone().map(|(.., cost)| cost).max().unwrap_or(*cost);
            let first = sharing.map(|(ban, other, _)| (ban.threshold, other)).min();
            (most > 0 && first == Some((own.threshold, *rule))).then_some((usize::from(*rule), most))
        });
        let counted: SmallVec<[(usize, u64); 2]> = counted.collect();
        for (rule, cost) in counted {
            self.violate(shared, (limiter, keeper), (rule, identifier), cost, now);
        }
    }

    /// What a rule that bans counts as violations.
    pub fn counts(&self, rule: usize) -> Option<Violations> {
        self.rules.get(rule)?.as_ref().map(|banning| banning.ban.count)
    }

    fn violate(
        &mut self,
        shared: &mut impl Shared,
        (limiter, keeper): (&mut Limiter, &mut Keeper),
        (rule, identifier): (usize, &[u8]),
        count: u64,
        now: Now,
    ) {
        let Some(banning) = self.rules.get(rule).and_then(Option::as_ref) else { return };
        let last = keeper.controls().banned_here(banning.of(&self.workspace), identifier, now);
        let parts = KeyParts {
            workspace: self.workspace.as_bytes(),
            namespace: banning.violations.as_bytes(),
            identifier,
            duration_ms: banning.ban.window_ms,
            epoch: last.map_or(0, |last| epoch(last.mark)),
            resolution: 1,
        };
        self.key.clear();
        if parts.encode(&mut self.key).is_ok() {
            let most = banning.ban.threshold;
            let rule = u16::try_from(rule).unwrap_or(u16::MAX);
            let violation = Violation { rule: (self.root, rule), key: &self.key, count, most };
            if let Some(violator) = limiter.violation(shared, &violation, now.mono) {
                self.ban(&violator, keeper, now);
            }
        }
    }

    /// Notes that a ban denied the current request. If it is a ban of this very identifier, wherever it was made, the rule's next
    /// ban lasts twice as long.
    pub fn on_banned(&mut self, keeper: &mut Keeper, rule: usize, now: Now) {
        let Some(banning) = self.rules.get(rule).and_then(Option::as_ref) else { return };
        let ban = &banning.ban;
        let Some(identifier) = find(&self.accused, rule) else { return };
        let namespace = banning.of(&self.workspace);
        let Some(Banned::Until(until)) = keeper.controls().named(namespace, identifier) else { return };
        let last = keeper.controls().banned_here(namespace, identifier, now);
        // Bounded by the rule's longest ban, as a longer one may be lifted early. Renewed when half of that time has passed.
        let within = |ms: u64| until.min(now.unix.after(ms));
        if until <= now.unix || last.is_some_and(|last| last.mark >= within(ban.max_duration_ms / 2)) {
            return;
        }
        let mark = within(ban.max_duration_ms);
        let level =
            ban.level_lasting(mark.0.saturating_sub(now.unix.0)).max(last.map_or(1, |last| last.level));
        let kept_until = kept_until(mark, ban, now);
        keeper.ban(namespace, identifier, Local { mark, level, kept_until, ..Local::default() }, now);
    }

    /// Bans an identifier whose violations reached the threshold of a rule.
    pub fn ban(&self, violator: &Violator, keeper: &mut Keeper, now: Now) {
        let Ok(KeyParts { identifier, epoch: counted, .. }) = KeyParts::decode(&violator.key) else { return };
        let banning = self.rules.get(usize::from(violator.rule.1)).and_then(Option::as_ref);
        let Some(banning) = banning else { return };
        let namespace = banning.of(&self.workspace);
        let last = keeper.controls().banned_here(namespace, identifier, now);
        // Another worker has made a ban of the same violations already.
        if last.is_some_and(|last| epoch(last.mark) != counted) {
            return;
        }
        let ban = next_ban(&banning.ban, last, now);
        keeper.ban(namespace, identifier, ban, now);
    }

    /// The name of the first rule that bans in a namespace.
    pub fn rule_in(&self, workspace: &str, namespace: &str) -> Option<&str> {
        let mut rules = self.rules.iter().flatten().filter(|_| workspace == self.workspace);
        rules.find(|rule| rule.namespace == namespace).map(|rule| rule.name.as_str())
    }
}

impl Banning {
    fn of<'a>(&'a self, workspace: &'a str) -> Namespace<&'a str> {
        Namespace { workspace, name: &self.namespace }
    }
}

/// The ban that follows `last`.
fn next_ban(rule: &Ban, last: Option<Local>, now: Now) -> Local {
    // After `max_duration` without a ban, durations start again.
    let row = last.filter(|last| now.unix < last.mark.after(rule.max_duration_ms));
    let level = row.map_or(0, |last| last.level).saturating_add(1);
    let until = now.unix.after(rule.length_ms(level));
    // Denials from now on do not count towards the ban that was just made.
    let mark = last.map_or(until, |last| until.max(last.mark.after(EPOCH_MS)));
    let kept_until = kept_until(mark, rule, now);
    Local { mark, level, until, since: now.unix, kept_until, taken_over: false }
}

/// Until when a ban with this mark is stored.
fn kept_until(mark: UnixMs, rule: &Ban, now: Now) -> MonoMs {
    now.mono.after(mark.0.saturating_sub(now.unix.0)).after(rule.kept_ms())
}

fn epoch(until: UnixMs) -> u32 {
    let seconds = until.0.checked_div(EPOCH_MS).unwrap_or(0);
    // The lower 32 bits suffice to distinguish consecutive bans.
    u32::try_from(seconds & u64::from(u32::MAX)).unwrap_or(0)
}

fn find(mut accused: &[u8], rule: usize) -> Option<&[u8]> {
    while let Some(([low, high, length], rest)) = accused.split_first_chunk::<3>() {
        let (identifier, rest) = rest.split_at_checked(usize::from(*length))?;
        if usize::from(u16::from_le_bytes([*low, *high])) == rule {
            return Some(identifier);
        }
        accused = rest;
    }
    None
}
