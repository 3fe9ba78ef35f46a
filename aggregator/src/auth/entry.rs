//! An entry of the tokens file, as parsed and as printed by `weir-aggregator token`.

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt::Formatter;
use std::marker::PhantomData;
use std::str::FromStr;
use weir_core::fields::{Bounds, Value, yaml};
use weir_core::model::key::{MAX_TEXT_BYTES, is_reserved};

/// Most zones listed in one entry.
pub const MAX_ZONES: usize = 1_000;
/// Most namespaces, or workspaces, listed in one entry.
pub const MAX_NAMESPACES: usize = 100;
/// Longest name of an entry, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Longest certificate name of an entry, in bytes: the maximum of a SPIFFE ID.
pub const MAX_SAN_BYTES: usize = 2_048;

const ALL: &str = "all";

/// One credential and its permissions. [`super`] describes the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name in logs: 1 to 64 bytes, unique in the file.
    pub name: String,
    /// SHA-256 of the token, as 64 hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Instead of a token: a DNS name or URI among the subject alternative names of the client's certificate (RFC 5280,
    /// section 4.2.1.6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub san: Option<String>,
    /// The workspace of an application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The workspaces of a filter. An entry has either `workspaces` or `workspace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspaces: Option<Listed<String>>,
    /// The zones of the ledger that may be used.
    #[serde(default)]
    pub zones: Listed<u32>,
    /// Whether an application may read and change live control.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control: bool,
    /// The namespaces in which an application may count. Without it: none, and limits of the rate-limit service that have
    /// no name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Listed<String>>,
    /// The most that one request of an application may use of one limit and identifier; unlimited without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<u64>,
}

/// A list of names or numbers, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed<T: Ord> {
    /// All.
    All,
    /// Only these.
    These(BTreeSet<T>),
}

impl<T: Ord + Serialize> Serialize for Listed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Listed::All => ALL.serialize(serializer),
            Listed::These(these) => these.serialize(serializer),
        }
    }
}

impl<'de, T: Ord + Deserialize<'de>> Deserialize<'de> for Listed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListedVisitor(PhantomData))
    }
}

struct ListedVisitor<T>(PhantomData<T>);

impl<'de, T: Ord + Deserialize<'de>> Visitor<'de> for ListedVisitor<T> {
    type Value = Listed<T>;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list, or \"all\"")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Listed<T>, E> {
        if word == ALL { Ok(Listed::All) } else { Err(E::invalid_value(Unexpected::Str(word), &self)) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Listed<T>, A::Error> {
        BTreeSet::deserialize(SeqAccessDeserializer::new(list)).map(Listed::These)
    }
}

impl<T: Ord> Default for Listed<T> {
    fn default() -> Self {
        Listed::These(BTreeSet::new())
    }
}

/// `all`, or elements separated by commas.
impl<T: Ord + FromStr> FromStr for Listed<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text {
            ALL => Ok(Listed::All),
            "" => Ok(Listed::default()),
            text => text.split(',').map(str::parse).collect::<Result<_, _>>().map(Listed::These),
        }
    }
}

impl<T: Ord> Listed<T> {
    /// Whether `one` is included.
    pub fn has<Q: Ord + ?Sized>(&self, one: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        match self {
            Listed::All => true,
            Listed::These(these) => these.contains(one),
        }
    }

    fn is_longer_than(&self, most: usize) -> bool {
        matches!(self, Listed::These(these) if these.len() > most)
    }
}

impl Entry {
    /// An application's entry, without a credential yet.
    pub fn application(name: &str, workspace: &str) -> Entry {
        Entry { name: name.to_owned(), workspace: Some(workspace.to_owned()), ..Entry::default() }
    }

    /// The entry as YAML for the tokens file; an error if it is invalid.
    pub fn to_yaml(&self) -> Result<String, &'static str> {
        self.check()?;
        let json = serde_json::to_vec(&[self]).ok();
        let value = json.as_deref().and_then(|json| Value::parse(json, Bounds::OF_A_FILE).ok());
        value.as_ref().map(yaml::write).ok_or("the entry cannot be written as YAML")
    }

    /// Validates the entry, except for its digest.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES {
            return Err("the name is empty or longer than 64 bytes");
        }
        if self.sha256.is_some() == self.san.is_some() {
            return Err(
                "expected either sha256, the digest of a token, or san, a name in a client certificate",
            );
        }
        if self.san.as_ref().is_some_and(|san| san.is_empty() || san.len() > MAX_SAN_BYTES) {
            return Err("san is empty or longer than 2048 bytes");
        }
        let is_workspace = |name: &String| (1..=MAX_TEXT_BYTES).contains(&name.len());
        match (&self.workspace, &self.workspaces) {
            (Some(workspace), None) if is_workspace(workspace) => {}
            (None, Some(workspaces)) => self.check_filter(workspaces, is_workspace)?,
            (Some(_), None) => return Err("the workspace is empty or longer than 64 bytes"),
            _ => return Err("expected either workspace (for an application) or workspaces (for a filter)"),
        }
        if self.zones.is_longer_than(MAX_ZONES) {
            return Err("zones lists more than 1000; use \"all\" to allow all");
        }
        if self.namespaces.as_ref().is_some_and(|names| names.is_longer_than(MAX_NAMESPACES)) {
            return Err("namespaces lists more than 100; use \"all\" to allow all");
        }
        if let Some(Listed::These(names)) = &self.namespaces
            && names.iter().any(|name| is_reserved(name.as_bytes()))
        {
            return Err("namespaces lists a name that begins with ~, which is reserved");
        }
        Ok(())
    }

    fn check_filter(
        &self,
        workspaces: &Listed<String>,
        is_workspace: impl FnMut(&String) -> bool,
    ) -> Result<(), &'static str> {
        if self.control || self.namespaces.is_some() || self.max_cost.is_some() {
            return Err(
                "control, namespaces and max_cost are only for applications; use workspace instead of workspaces",
            );
        }
        match workspaces {
            Listed::These(names) if names.is_empty() || !names.iter().all(is_workspace) => {
                Err("workspaces is empty, or has a name that is empty or longer than 64 bytes")
            }
            _ if workspaces.is_longer_than(MAX_NAMESPACES) => {
                Err("workspaces lists more than 100; use \"all\" to allow all")
            }
            _ => Ok(()),
        }
    }
}
