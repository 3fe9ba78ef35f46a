//! Formats live control as text.

use crate::telemetry::text::identifier;
use serde_json::Value;
use std::time::{Duration, UNIX_EPOCH};
use weir_core::fields::written;

/// Most characters of a reason in a table.
const MAX_REASON_CHARS: usize = 60;

/// A table whose columns are as wide as their content; the last column is not padded.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|name| name.len())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    let mut table = line(&mut head.iter().copied());
    for row in rows {
        table += &line(&mut row.iter().map(String::as_str));
    }
    if rows.is_empty() {
        table += "(none)\n";
    }
    table
}

/// A reason that does not break the lines of a terminal. JSON has all of it.
fn shortened(reason: &str) -> String {
    match reason.chars().count() > MAX_REASON_CHARS {
        true => reason.chars().take(MAX_REASON_CHARS - 1).chain(['…']).collect(),
        false => reason.to_owned(),
    }
}

/// A table of controls.
pub fn overrides(found: &[Value]) -> String {
    let row = |entry: &Value| {
        let when = entry["expires_at"].as_u64().map_or("never".to_owned(), moment);
        vec![
            text(entry, "workspace"),
            scope(entry),
            target(entry),
            what(entry),
            when,
            number(entry, "revision"),
            text(entry, "author"),
            shortened(&text(entry, "reason")),
        ]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    table(&["WORKSPACE", "NAMESPACE", "WHO", "WHAT", "EXPIRES", "REVISION", "BY", "REASON"], &rows)
}

/// A table of changes.
pub fn audit(found: &[Value]) -> String {
    let state = |entry: &Value| if entry.is_null() { "-".to_owned() } else { what(entry) + &until(entry) };
    let row = |entry: &Value| {
        vec![
            entry["at"].as_u64().map_or("-".to_owned(), moment),
            text(entry, "author"),
            text(entry, "region"),
            text(entry, "action"),
            scope(entry),
            target(entry),
            state(&entry["before"]),
            state(&entry["after"]),
            shortened(&text(entry, "reason")),
        ]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    table(&["TIME", "BY", "REGION", "ACTION", "NAMESPACE", "WHO", "BEFORE", "AFTER", "REASON"], &rows)
}

/// A sentence about the result of a change.
pub fn changed(answer: &Value) -> String {
    let revision = number(answer, "revision");
    let warning = answer["warning"].as_str().map(|text| format!("warning: {}\n", safe(text)));
    let warning = warning.unwrap_or_default();
    let now = &answer["override"];
    if answer["changed"] == false {
        let description = if now.is_null() { "already deleted".to_owned() } else { sentence(now) };
        return format!("nothing changed: {description} (revision {revision})\n{warning}");
    }
    let description = match (now.is_null(), &answer["before"]) {
        (true, before) => format!("deleted: {}", sentence(before)),
        (false, Value::Null) => sentence(now),
        (false, before) => format!("{}; before: {}{}", sentence(now), what(before), until(before)),
    };
    let reach = match answer["known"] == true {
        true => "sent to this region's filters; other regions receive it within two seconds",
        false => {
            "stored, but not read back in this region yet; all regions receive it with their next reading"
        }
    };
    format!("{description} (revision {revision}); {reach}\n{warning}")
}

/// What a target has that was not the control to delete, each with the options that name it.
pub fn instead(found: &[Value]) -> String {
    if found.is_empty() {
        return "there is no control for the target; see weir-aggregator overrides list".to_owned();
    }
    let each = found.iter().map(|entry| {
        let kind = Some(kind(entry)).filter(|kind| *kind != "override").map(|kind| format!("--kind {kind}"));
        let window = entry["window"].as_u64().map(|ms| format!("--window {}", written(ms)));
        let options: Vec<String> = kind.into_iter().chain(window).collect();
        let without = "without --kind and --window".to_owned();
        format!("{} ({})", what(entry), if options.is_empty() { without } else { options.join(" ") })
    });
    let each: Vec<String> = each.collect();
    format!(
        "there is no control of this kind for the target; there is: {}; --all-kinds deletes all of them",
        each.join(", ")
    )
}

/// The kind of an entry, as the API's parameter names it.
pub fn kind(entry: &Value) -> &'static str {
    let has = |name: &str| !entry[name].is_null();
    match () {
        () if has("credit") => "credit",
        () if has("reset") => "reset",
        () if has("shadow") => "shadow",
        () => "override",
    }
}

fn sentence(entry: &Value) -> String {
    let until = until(entry);
    let place = match entry["rule"].as_str() {
        Some(rule) => format!("rule {}", safe(rule)),
        None => format!("{} in {}", target(entry), scope(entry)),
    };
    format!("{} for {place} of {}{until}", what(entry), text(entry, "workspace"))
}

fn until(entry: &Value) -> String {
    entry["expires_at"].as_u64().map(|ms| format!(" until {}", moment(ms))).unwrap_or_default()
}

fn what(entry: &Value) -> String {
    let window = entry["window"].as_u64().map(|ms| format!(" in {}", written(ms)));
    let amount = |name: &str| entry[name].as_u64().map(|amount| format!("{name} {amount}"));
    let word = |name: &str| (entry[name] == true).then(|| name.to_owned());
    let shadow = entry["shadow"].as_bool().map(|on| format!("shadow {}", if on { "on" } else { "off" }));
    let description =
        amount("limit").or_else(|| amount("credit")).or_else(|| word("exempt")).or_else(|| word("ban"));
    let description = description.or_else(|| word("reset")).or(shadow).unwrap_or_else(|| "-".to_owned());
    format!("{description}{}", window.unwrap_or_default())
}

fn target(entry: &Value) -> String {
    let name = entry["identifier"].as_str().or_else(|| entry["network"].as_str());
    name.map_or_else(|| "(rule)".to_owned(), safe)
}

fn scope(entry: &Value) -> String {
    entry["namespace"].as_str().or_else(|| entry["rule"].as_str()).map(safe).unwrap_or_default()
}

fn text(entry: &Value, name: &str) -> String {
    entry[name].as_str().map(safe).unwrap_or_default()
}

fn number(entry: &Value, name: &str) -> String {
    entry[name].as_u64().unwrap_or_default().to_string()
}

/// Escapes invisible characters, so that each entry takes one line; everything else stays as the user would type it.
fn safe(text: &str) -> String {
    identifier(text.as_bytes())
}

fn moment(unix_ms: u64) -> String {
    // RFC 3339 has no dates beyond the year 9999.
    let at = UNIX_EPOCH + Duration::from_millis(unix_ms.min(253_402_300_799_000));
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_for_each() {
        let found = [
            json!({"workspace": "w", "namespace": "per-key", "identifier": "a\\|\n", "limit": 5, "window": 60_000,
                   "expires_at": 1_800_000_000_000_u64, "revision": 7, "author": "ann", "reason": "launch"}),
            json!({"workspace": "w", "rule": "per-key", "shadow": false, "revision": 12, "author": "bob", "reason": ""}),
        ];
        let expected = "\
WORKSPACE  NAMESPACE  WHO       WHAT           EXPIRES               REVISION  BY   REASON
w          per-key    a\\|\\u{a}  limit 5 in 1m  2027-01-15T08:00:00Z  7         ann  launch
w          per-key    (rule)    shadow off     never                 12        bob
";
        assert_eq!(overrides(&found), expected);
        let change = json!({"at": 1_800_000_000_000_u64, "author": "ann", "region": "r", "action": "deleted",
                            "namespace": "n", "identifier": "a", "before": {"ban": true}, "reason": "over"});
        assert!(
            audit(&[change]).contains("ann  r       deleted  n          a    ban     -      over"),
            "{}",
            audit(&[])
        );
        let [before, after] =
            [1_800_000_000_000_u64, 1_900_000_000_000].map(|at| json!({"limit": 5, "expires_at": at}));
        let change = json!({"namespace": "n", "identifier": "a", "before": before, "after": after});
        assert!(
            audit(&[change])
                .contains("limit 5 until 2027-01-15T08:00:00Z  limit 5 until 2030-03-17T17:46:40Z")
        );
        assert!(overrides(&[]).ends_with("REASON\n(none)\n"));
        let long = json!({"workspace": "w", "rule": "r", "shadow": true, "reason": "ä".repeat(61)});
        assert!(overrides(&[long]).ends_with(&format!(" {}…\n", "ä".repeat(59))));
    }

    #[test]
    fn what_there_is_in_place_of_a_control() {
        let found = [json!({"limit": 5000, "window": 300_000}), json!({"credit": 100}), json!({"ban": true})];
        let text = instead(&found);
        let each = "limit 5000 in 5m (--window 5m), credit 100 (--kind credit), ban (without --kind and --window); --all-kinds";
        assert!(text.contains(each), "{text}");
        assert!(instead(&[]).starts_with("there is no control for the target"));
    }

    #[test]
    fn what_a_change_came_to() {
        let entry = json!({"workspace": "w", "namespace": "n", "identifier": "a", "ban": true});
        for (answer, part) in [
            (
                json!({"revision": 3, "changed": true, "known": true, "override": entry}),
                "ban for a in n of w (revision 3); sent",
            ),
            (
                json!({"revision": 3, "changed": true, "known": false, "before": entry}),
                "deleted: ban for a in n of w",
            ),
            (
                json!({"revision": 3, "changed": false, "known": true, "override": entry}),
                "nothing changed: ban for a",
            ),
        ] {
            assert!(changed(&answer).contains(part), "{}", changed(&answer));
        }
    }
}
