//! Live control: changes of limits by operators while everything runs, without a new configuration.
//!
//! A [`Control`] is an override, an exemption, a ban, a credit or a reset for the identifiers or networks of its [`Target`], or a rule's
//! shadow switch. The shared database numbers all changes (*revisions*). A control replaces the one with the same target and [`Slot`] and a
//! lower revision.
//!
//! [`Controls`] is the set of a process; [`Controls::find`] looks up a request's [`Subject`].

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod bans;
pub mod book;
pub mod change;
mod index;
mod keeper;
mod log;
pub mod news;
mod scope;
mod set;
mod stored;

pub use bans::{Local, MAX_BANS, Named};
pub use index::{Banned, Found, Scratch, Subject, effective_limit};
pub use keeper::Keeper;
pub use set::Controls;

use crate::matching::glob::Pattern;
use crate::matching::networks::{NotANetwork, parse_network};
use crate::model::key::{MAX_DURATION_MS, MAX_TEXT_BYTES, MIN_DURATION_MS, RESERVED_PREFIX, is_reserved};
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use crate::model::wire;
use alloc::string::{String, ToString};
use core::net::IpAddr;
use ipnet::IpNet;

/// Most controls in force at a time, in all workspaces.
pub const MAX_CONTROLS: usize = 10_000;
/// Longest identifier or pattern in bytes.
pub const MAX_PATTERN_BYTES: usize = 256;
/// The scope of all namespaces of a workspace.
pub const ALL_NAMESPACES: &str = "*";

/// One live control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// What it applies to.
    pub target: Target,
    /// Its effect.
    pub effect: Effect,
    /// Its end; `None`: none.
    pub expires: Option<UnixMs>,
    /// Grows with each change in the database.
    pub revision: u64,
}

/// The target of a control.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The workspace, 1 to 64 bytes.
    pub workspace: String,
    /// The namespace, 1 to 64 bytes, or [`ALL_NAMESPACES`]; for [`Selector::Rule`] the rule's name.
    pub scope: String,
    /// An identifier, a network or a rule.
    pub selector: Selector,
    /// Only windows of this length; `None` for all. Only for limits and credits.
    pub window_ms: Option<u64>,
}

/// What a target names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// An identifier or a pattern, written as in a rule's overrides, 1 to [`MAX_PATTERN_BYTES`] bytes.
    Identifier(String),
    /// Clients of this network.
    Network(IpNet),
    /// A rule, for all clients.
    Rule,
}

/// The effect of a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// This limit instead of the rule's.
    Limit(u64),
    /// No limit: neither decided nor counted.
    Exempt,
    /// Denied.
    Ban,
    /// Credit beyond the limit.
    Credit(u64),
    /// Counting starts again at 0, in the epoch of the control's revision.
    Reset,
    /// The rule never denies (true), or denies although it is configured as a shadow (false).
    Shadow(bool),
}

/// Effects that replace each other on one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// A limit, an exemption or a ban.
    Override,
    /// A credit.
    Credit,
    /// A reset.
    Reset,
    /// A shadow switch.
    Shadow,
}

impl Slot {
    /// Each slot with its name.
    pub const WORDS: [(&str, Slot); 4] = [
        ("override", Slot::Override),
        ("credit", Slot::Credit),
        ("reset", Slot::Reset),
        ("shadow", Slot::Shadow),
    ];
}

/// Why a control is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Workspace, namespace or rule.
    #[error("{0} has to be 1 to {MAX_TEXT_BYTES} printable ASCII characters without spaces")]
    Name(&'static str),
    /// A namespace that only Weir counts in.
    #[error("{0} that begins with {RESERVED_PREFIX} is reserved")]
    Reserved(&'static str),
    /// Pattern.
    #[error("an identifier has to be 1 to {MAX_PATTERN_BYTES} bytes")]
    Identifier,
    /// A pattern that no identifier can meet.
    #[error(r"an identifier is parts joined by |, where \\ is a backslash, \| a bar, \- a missing part, \* a star, and * matches anything")]
    Pattern,
    /// Network.
    #[error(transparent)]
    Network(#[from] NotANetwork),
    /// Window.
    #[error("a window has to be between 1s and 366d")]
    Window,
    /// Amount.
    #[error("limits and credits end at {MAX_COUNT}")]
    Amount,
    /// The effect is not possible for the target.
    #[error("{0}")]
    Mismatch(&'static str),
    /// A kind of a newer version.
    #[error("unknown kind {0}")]
    Kind(u32),
}

impl Effect {
    /// The slot: the effects that it replaces.
    pub fn slot(&self) -> Slot {
        match self {
            Effect::Limit(_) | Effect::Exempt | Effect::Ban => Slot::Override,
            Effect::Credit(_) => Slot::Credit,
            Effect::Reset => Slot::Reset,
            Effect::Shadow(_) => Slot::Shadow,
        }
    }
}

impl Target {
    /// The one that sorts before all others.
    fn least() -> Target {
        let selector = Selector::Identifier(String::new());
        Target { workspace: String::new(), scope: String::new(), selector, window_ms: None }
    }

    fn check(&self, effect: Effect) -> Result<(), ControlError> {
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let name = |text: &str| (1..=MAX_TEXT_BYTES).contains(&text.len()) && printable(text);
        if !name(&self.workspace) {
            return Err(ControlError::Name("a workspace"));
        }
        if !name(&self.scope) {
            return Err(ControlError::Name(if self.selector == Selector::Rule {
                "a rule"
            } else {
                "a namespace"
            }));
        }
        if self.selector != Selector::Rule && is_reserved(self.scope.as_bytes()) {
            return Err(ControlError::Reserved("a namespace"));
        }
        if self.window_ms.is_some_and(|ms| !(MIN_DURATION_MS..=MAX_DURATION_MS).contains(&ms)) {
            return Err(ControlError::Window);
        }
        match (&self.selector, effect) {
            (Selector::Rule, Effect::Shadow(_)) => {}
            (Selector::Rule, _) => return Err(ControlError::Mismatch("only a shadow switch is for a rule")),
            (_, Effect::Shadow(_)) => return Err(ControlError::Mismatch("a shadow switch is for a rule")),
            (Selector::Identifier(text), _) if !(1..=MAX_PATTERN_BYTES).contains(&text.len()) => {
                return Err(ControlError::Identifier);
            }
            (Selector::Identifier(text), _) if Pattern::parse(text.as_bytes()).is_none() => {
                return Err(ControlError::Pattern);
            }
            (Selector::Identifier(_), _) | (Selector::Network(_), Effect::Ban | Effect::Exempt) => {}
            (Selector::Network(_), _) => {
                return Err(ControlError::Mismatch("a network is exempt or banned, and nothing else"));
            }
        }
        match (self.window_ms, effect) {
            (None, _) | (Some(_), Effect::Limit(_) | Effect::Credit(_)) => Ok(()),
            (Some(_), _) => Err(ControlError::Mismatch("only limits and credits are for one window")),
        }
    }
}

impl Control {
    /// Checks that the control is valid.
    pub fn check(&self) -> Result<(), ControlError> {
        match self.effect {
            Effect::Limit(amount) | Effect::Credit(amount) if amount > MAX_COUNT => Err(ControlError::Amount),
            effect => self.target.check(effect),
        }
    }

    /// Whether it is in force at `now`.
    pub fn is_in_force(&self, now: UnixMs) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// The wire format.
    pub fn to_wire(&self) -> wire::Control {
        let (kind, amount) = match self.effect {
            Effect::Limit(amount) => (1, amount),
            Effect::Exempt => (2, 0),
            Effect::Ban => (3, 0),
            Effect::Credit(amount) => (4, amount),
            Effect::Reset => (5, 0),
            Effect::Shadow(on) => (6, u64::from(on)),
        };
        let (identifier, network) = match &self.target.selector {
            Selector::Identifier(text) => (text.clone(), String::new()),
            Selector::Network(network) => (String::new(), network.to_string()),
            Selector::Rule => (String::new(), String::new()),
        };
        wire::Control {
            revision: self.revision,
            workspace: self.target.workspace.clone(),
            scope: self.target.scope.clone(),
            identifier,
            network,
            window_ms: self.target.window_ms.unwrap_or(0),
            kind,
            amount,
            expires_ms: self.expires.map_or(0, |at| at.0),
            deleted: false,
        }
    }

    /// Reads the wire format. The caller handles deletions.
    pub fn from_wire(from: &wire::Control) -> Result<Control, ControlError> {
        let effect = match from.kind {
            1 => Effect::Limit(from.amount),
            2 => Effect::Exempt,
            3 => Effect::Ban,
            4 => Effect::Credit(from.amount),
            5 => Effect::Reset,
            6 => Effect::Shadow(from.amount != 0),
            kind => return Err(ControlError::Kind(kind)),
        };
        let selector = match (from.identifier.as_str(), from.network.as_str()) {
            ("", "") => Selector::Rule,
            ("", network) => Selector::Network(parse_network(network)?),
            (_, "") => Selector::Identifier(from.identifier.clone()),
            _ => return Err(ControlError::Mismatch("either an identifier or a network")),
        };
        let control = Control {
            target: Target {
                workspace: from.workspace.clone(),
                scope: from.scope.clone(),
                selector,
                window_ms: (from.window_ms != 0).then_some(from.window_ms),
            },
            effect,
            expires: (from.expires_ms != 0).then_some(UnixMs(from.expires_ms)),
            revision: from.revision,
        };
        control.check().map(|()| control)
    }
}

impl Target {
    /// Whether it names a raw identifier: exactly, by a pattern, or as an address in a network. Scope and window are not compared.
    pub fn meets(&self, raw: &[u8]) -> bool {
        match &self.selector {
            Selector::Rule => false,
            Selector::Network(network) => {
                let address = core::str::from_utf8(raw).ok().and_then(|text| text.parse::<IpAddr>().ok());
                address.is_some_and(|address| network.contains(&address.to_canonical()))
            }
            Selector::Identifier(text) => scope::names(text, raw),
        }
    }
}

/// The text that names exactly this canonical identifier in a target, and no other. `None` if there is none: the
/// identifier is empty or not UTF-8, or has control characters, which no target may have.
pub fn name_of(canonical: &[u8]) -> Option<String> {
    let text = core::str::from_utf8(canonical).ok()?;
    let name = text.replace('*', r"\*");
    let is_plain = !name.is_empty() && !name.chars().any(char::is_control);
    (is_plain && name.len() <= MAX_PATTERN_BYTES && scope::names(&name, canonical)).then_some(name)
}

#[cfg(test)]
mod tests;
