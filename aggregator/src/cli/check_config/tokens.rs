//! Tokens files: what each entry may do, and what of an entry has no effect.

use super::report::{Place, Report};
use crate::auth::{Entry, Listed, Tokens};
use std::fmt::Display;

/// Validates the content of a tokens file.
pub fn check(text: &[u8]) -> Report {
    let mut report = Report::default();
    match Tokens::entries(text) {
        Ok(entries) => {
            let head = format!("valid: tokens, entries: {}", entries.len());
            let lines = entries.iter().map(described).chain(entries.iter().enumerate().flat_map(warnings));
            report.accept(Place::default(), lines.fold(head, |text, line| format!("{text}\n  {line}")));
        }
        Err(wrong) => {
            for (at, problem) in wrong {
                let path = at.map(|at| format!("[{at}]")).unwrap_or_default();
                report.reject(Place::default(), path, format!("it is taken for a tokens file: {problem}"));
            }
        }
    }
    report
}

/// One line for an entry. A digest is not shown.
fn described(entry: &Entry) -> String {
    let credential = match &entry.san {
        Some(san) => format!("certificate {san:?}"),
        None => "token".to_owned(),
    };
    let zones = match &entry.zones {
        Listed::These(zones) if zones.is_empty() => String::new(),
        zones => format!(", zones {}", listed(zones)),
    };
    let holder = match &entry.workspaces {
        Some(workspaces) => format!("filter of workspaces {}", listed(workspaces)),
        None => format!("application of workspace {}", entry.workspace.as_deref().unwrap_or_default()),
    };
    let namespaces = entry.namespaces.as_ref().map(|names| format!(", namespaces {}", listed(names)));
    let control = if entry.control { ", live control" } else { "" };
    let most = entry.max_cost.map(|cost| format!(", at most {cost} a request")).unwrap_or_default();
    format!(
        "{}: {holder}, by {credential}{zones}{}{control}{most}",
        entry.name,
        namespaces.unwrap_or_default()
    )
}

fn listed<T: Ord + Display>(listed: &Listed<T>) -> String {
    match listed {
        Listed::All => "all".to_owned(),
        Listed::These(these) => these.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

/// Warns of values that allow or mean nothing.
fn warnings((at, entry): (usize, &Entry)) -> Vec<String> {
    let mut found = Vec::new();
    let mut warn = |field: &str, problem: String| found.push(format!("warning: [{at}].{field}: {problem}"));
    if entry.workspace.as_deref() == Some("all") {
        warn(
            "workspace",
            "it is the one that is named all; only a filter's workspaces can be all".to_owned(),
        );
    }
    if let Listed::These(zones) = &entry.zones
        && zones.contains(&0)
    {
        warn("zones", "there is no zone 0".to_owned());
    }
    if entry.max_cost == Some(0) {
        warn("max_cost", "with 0 every request that costs anything is refused".to_owned());
    }
    if let Some(Listed::These(names)) = &entry.namespaces {
        for name in names.iter().filter(|name| name.trim_end_matches('*').contains('*')) {
            warn("namespaces", format!("in {name:?} only a star at the end stands for any text"));
        }
    }
    match entry.san.as_deref() {
        Some(san) if san.contains('*') => {
            warn("san", format!("{san:?} is that name alone, of a certificate that has the star in it"));
        }
        Some(san) if san.contains('@') && !san.contains("://") => {
            warn("san", format!("{san:?} is neither a DNS name nor a URI, and other names are not compared"));
        }
        _ => {}
    }
    found
}
