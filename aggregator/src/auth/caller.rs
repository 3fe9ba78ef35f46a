//! Permissions of a credential: an application in its workspace, a filter in its workspaces.

use super::entry::{Entry, Listed};
use std::sync::Arc;
use tokio::sync::watch;
use weir_core::matching::canonical::DIGEST_PREFIX;
use weir_core::model::key::KeyParts;
use weir_core::region::shares::Grants;

/// An application, or another proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The credential's name, for logs; empty without a tokens file.
    pub name: String,
    /// The only workspace that the caller may use; any workspace without a tokens file.
    workspace: Option<Vec<u8>>,
    zones: Listed<u32>,
    control: bool,
    /// The namespaces in which it may use windows and logs; a name that ends with an asterisk is a prefix. `None`: only
    /// those of limits without a name.
    namespaces: Option<Listed<String>>,
    max_cost: u64,
}

/// What a filter may count while its credential is valid.
#[derive(Debug)]
pub struct Scope {
    /// The credential's name, for logs; empty for the aggregator's own token, or if no credential is required.
    pub name: String,
    workspaces: Listed<String>,
    zones: Listed<u32>,
    revoked: watch::Sender<bool>,
}

/// The holder of a credential.
#[derive(Clone, Debug)]
pub(super) enum Holder {
    Application(Arc<Caller>),
    Filter(Arc<Scope>),
}

impl Holder {
    /// The holder that a validated entry describes.
    pub(super) fn of(entry: Entry) -> Holder {
        match (entry.workspace, entry.workspaces) {
            (_, Some(workspaces)) => {
                Holder::Filter(Arc::new(Scope::new(entry.name, workspaces, entry.zones)))
            }
            (workspace, None) => Holder::Application(Arc::new(Caller {
                name: entry.name,
                workspace: Some(workspace.unwrap_or_default().into_bytes()),
                zones: entry.zones,
                control: entry.control,
                namespaces: entry.namespaces,
                max_cost: entry.max_cost.unwrap_or(u64::MAX),
            })),
        }
    }

    /// Adds the names and prefixes of namespaces that an application may use.
    pub(super) fn add_grants(&self, grants: &mut Grants) {
        let Holder::Application(caller) = self else { return };
        if let (Some(workspace), Some(Listed::These(patterns))) = (&caller.workspace, &caller.namespaces) {
            patterns.iter().for_each(|pattern| grants.add(workspace, pattern.as_bytes()));
        }
    }

    /// Called when the tokens file is read again: `new` is the holder with the same credential, if there is one.
    pub(super) fn pass_on(&self, new: Option<&mut Holder>) {
        let Holder::Filter(scope) = self else { return };
        match new {
            Some(Holder::Filter(new)) if new.is_same(scope) => *new = scope.clone(),
            _ => scope.revoke(),
        }
    }
}

impl Caller {
    /// The caller if no credentials are configured; it may use live control if `control` is set.
    pub const fn without_credential(control: bool) -> Caller {
        Caller {
            name: String::new(),
            workspace: None,
            zones: Listed::All,
            control,
            namespaces: Some(Listed::All),
            max_cost: u64::MAX,
        }
    }

    /// The workspace of a request that names `requested` or none; `None` if the caller may not use it.
    pub fn workspace<'a>(&'a self, requested: Option<&'a [u8]>) -> Option<&'a [u8]> {
        match (&self.workspace, requested) {
            (None, requested) => Some(requested.unwrap_or(b"default")),
            (Some(own), None) => Some(own),
            (Some(own), Some(requested)) => (own == requested).then_some(requested),
        }
    }

    /// Whether the caller may read and change live control of its workspace.
    pub fn may_control(&self) -> bool {
        self.control
    }

    /// Whether the caller has no credential.
    pub fn has_no_credential(&self) -> bool {
        self.name.is_empty()
    }

    /// Whether the caller may count in a namespace. `is_unnamed`: it is that of a limit of the rate-limit service without a
    /// name.
    pub fn may_count(&self, namespace: &[u8], is_unnamed: bool) -> bool {
        let names = |pattern: &String| match pattern.strip_suffix('*') {
            // The namespaces of all limits without a name, of which long ones are digests.
            Some("rls|") if is_unnamed => true,
            Some(prefix) => {
                let is_meant = prefix.is_empty() || is_of_path(prefix.as_bytes()) || !is_of_path(namespace);
                is_meant && namespace.starts_with(prefix.as_bytes())
            }
            None => namespace == pattern.as_bytes(),
        };
        match &self.namespaces {
            None => is_unnamed,
            Some(Listed::All) => true,
            Some(Listed::These(patterns)) => patterns.iter().any(names),
        }
    }

    /// The most that one request of this caller may use of one limit and identifier.
    pub fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// Whether the caller may use a zone of the ledger.
    pub fn may_use(&self, zone: u32) -> bool {
        self.zones.has(&zone)
    }
}

/// Whether a namespace, or the beginning of one, is that of limits without a name. No shorter prefix means them.
fn is_of_path(namespace: &[u8]) -> bool {
    namespace.starts_with(b"rls|") || namespace.starts_with(DIGEST_PREFIX)
}

impl Scope {
    fn new(name: String, workspaces: Listed<String>, zones: Listed<u32>) -> Scope {
        Scope { name, workspaces, zones, revoked: watch::Sender::new(false) }
    }

    /// The scope of a filter with the aggregator's own token, or if none is required.
    pub fn everything() -> Scope {
        Scope::new(String::new(), Listed::All, Listed::All)
    }

    /// Whether both scopes have the same name and the same permissions.
    pub(super) fn is_same(&self, other: &Scope) -> bool {
        (&self.name, &self.workspaces, &self.zones) == (&other.name, &other.workspaces, &other.zones)
    }

    /// Revokes the scope: its credential is no longer valid, or has other permissions now.
    pub(super) fn revoke(&self) {
        self.revoked.send_replace(true);
    }

    /// Completes when the credential is no longer valid.
    pub async fn revoked(&self) {
        // The sender lives as long as `self`.
        let _ = self.revoked.subscribe().wait_for(|revoked| *revoked).await;
    }

    /// Whether the scope is unbounded.
    pub fn is_everything(&self) -> bool {
        (&self.workspaces, &self.zones) == (&Listed::All, &Listed::All)
    }

    /// Whether the filter may count in a workspace.
    pub fn has_workspace(&self, workspace: &str) -> bool {
        self.workspaces.has(workspace)
    }

    /// Whether the filter may count a key, given as canonical bytes. Malformed keys are outside of every bounded scope.
    pub fn has_key(&self, key: &[u8]) -> bool {
        let workspace = |key| std::str::from_utf8(KeyParts::decode(key).ok()?.workspace).ok();
        self.workspaces == Listed::All
            || workspace(key).is_some_and(|workspace| self.has_workspace(workspace))
    }

    /// Whether the filter may use a zone of the ledger.
    pub fn has_zone(&self, zone: u32) -> bool {
        self.zones.has(&zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(namespaces: &[&str]) -> Caller {
        let these = Listed::These(namespaces.iter().map(|name| (*name).to_owned()).collect());
        Caller { namespaces: Some(these), ..Caller::without_credential(false) }
    }

    #[test]
    fn a_prefix_of_names_means_no_limit_without_a_name() {
        const UNNAMED: [&[u8]; 2] =
            [b"rls|edge|path|", b"sha256:Y1NhxIu56rFBmOduqKt_GkFoXWrWKqkUbTAdTxfrCuA"];
        for (namespaces, by_name, by_path) in [
            (&["r*", "s*"][..], false, false),
            (&["rls*"], false, false),
            (&["users"], false, false),
            (&["users", "rls|*"], false, true),
            (&["*"], true, true),
        ] {
            let caller = caller(namespaces);
            for namespace in UNNAMED {
                assert_eq!(caller.may_count(namespace, true), by_path, "{namespaces:?}");
            }
            assert_eq!(caller.may_count(UNNAMED[1], false), by_name, "{namespaces:?}");
        }
        assert!(caller(&["rls|*"]).may_count(UNNAMED[0], false), "the operator has written it");
        assert!(caller(&["r*"]).may_count(b"reports:eu", false));
        assert!(caller(&["sha256:*"]).may_count(UNNAMED[1], false));
    }
}
