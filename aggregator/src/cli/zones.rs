//! The `zones` commands and their output.

use crate::cli::args::{SetZone, Zones};
use crate::cli::database::with_database;
use crate::cli::outcome::{UNUSABLE, fail, plain_json, print};
use crate::database::{Database, Remains, Zone, ZoneChange};
use std::process::ExitCode;
use std::time::Duration;
use weir_core::fields::written;

/// Deadline of a command.
const WITHIN: Duration = Duration::from_secs(30);

/// Runs a command and reports the result.
pub fn run(command: Zones) -> ExitCode {
    match command {
        Zones::List { database, json } => {
            with_database(database, async move |database| list(&database, json).await)
        }
        Zones::Set(arguments) => set(arguments),
        Zones::Delete { database, zone } => {
            with_database(database, async move |database| delete(&database, zone).await)
        }
    }
}

fn set(arguments: SetZone) -> ExitCode {
    let database = arguments.database.clone();
    match arguments.change() {
        Ok(change) => with_database(database, async move |database| apply(&database, &change).await),
        Err(error) => fail(&error, UNUSABLE),
    }
}

async fn list(database: &Database, json: bool) -> anyhow::Result<()> {
    let zones = database.zones(WITHIN).await?;
    if json {
        print(&plain_json(&as_json(&zones).to_string()));
    } else {
        print(&as_table(&zones).trim_end());
    }
    Ok(())
}

async fn apply(database: &Database, change: &ZoneChange) -> anyhow::Result<()> {
    let before = database.zone(change.id(), WITHIN).await?;
    database.set_zone(change, WITHIN).await?;
    let zone = change.id();
    let limit = limit(change.rate(), change.window_seconds());
    match before {
        Some(before) => {
            let was = self::limit(before.rate, before.window_seconds);
            print(&format_args!("changed zone {zone} to {limit}; before: {was}"));
        }
        None => print(&format_args!("created zone {zone} with {limit}")),
    }
    Ok(())
}

async fn delete(database: &Database, zone: u32) -> anyhow::Result<()> {
    let Some(Remains { transactions, and_more }) = database.delete_zone(zone, WITHIN).await? else {
        anyhow::bail!("there is no zone {zone}");
    };
    let more = if and_more { "more than " } else { "" };
    print(&format_args!(
        "deleted zone {zone}; {more}{transactions} of its transactions stay until the cleanup"
    ));
    Ok(())
}

fn as_json(zones: &[Zone]) -> serde_json::Value {
    let zone = |zone: &Zone| {
        serde_json::json!({
            "id": zone.id,
            "description": zone.description,
            "rate": zone.rate,
            "window_seconds": zone.window_seconds,
        })
    };
    zones.iter().map(zone).collect()
}

fn as_table(zones: &[Zone]) -> String {
    let mut table = format!("{:>10}  {:>16}  {:<16}  DESCRIPTION\n", "ZONE", "RATE", "WINDOW");
    for Zone { id, description, rate, window_seconds } in zones {
        // Escapes line breaks, so that each zone takes one line.
        let description = description.escape_debug();
        table += &format!("{id:>10}  {rate:>16}  {:<16}  {description}\n", window(*window_seconds));
    }
    table
}

fn limit(rate: u64, window_seconds: u64) -> String {
    format!("{rate} per {}", window(window_seconds))
}

fn window(seconds: u64) -> String {
    written(seconds.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_as_people_write_them() {
        let cases = [(1, "1s"), (60, "1m"), (86_400, "1d"), (90_000, "25h"), (366 * 86_400, "366d")];
        for (seconds, expected) in cases {
            assert_eq!(window(seconds), expected);
        }
    }

    #[test]
    fn zones_as_text_and_json() {
        let zone = |id, description: &str, rate, window_seconds| Zone {
            id,
            description: description.to_owned(),
            rate,
            window_seconds,
        };
        let zones = [zone(1, "logins", 5, 60), zone(4_294_967_295, "a\n\u{1b}é", 9_007_199_254_740_992, 1)];
        let expected = "\x20     ZONE              RATE  WINDOW            DESCRIPTION
         1                 5  1m                logins
4294967295  9007199254740992  1s                a\\n\\u{1b}é
";
        assert_eq!(as_table(&zones), expected);
        assert_eq!(
            as_json(&zones).to_string(),
            "[{\"description\":\"logins\",\"id\":1,\"rate\":5,\"window_seconds\":60},\
             {\"description\":\"a\\n\\u001b\u{e9}\",\"id\":4294967295,\"rate\":9007199254740992,\"window_seconds\":1}]"
        );
        assert_eq!(as_json(&[]).to_string(), "[]");
    }
}
