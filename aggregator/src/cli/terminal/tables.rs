//! Formats the answers of `/v1/top`, `/v1/rules` and `/v1/parts` as text.

use super::format::{bar, count, fit, percent, plain, plural, rate, right, time};
use super::snapshot::Snapshot;
use crate::admin::parts::Parts;
use crate::admin::rules::Rules;
use crate::admin::top::Top;
use crate::admin::view::TopKey;
use crate::region::status::peers::PeerStatus;
use weir_core::model::exact::AlgorithmKind;
use weir_core::model::outcome::Group;

/// Columns from which on the tables have their full width.
const WIDE_KEYS: usize = 118;
const WIDE_RULES: usize = 106;

/// All tables, one after the other.
pub fn all(snapshot: &Snapshot, columns: usize) -> Vec<String> {
    let mut lines = vec![summary(snapshot, &health(&snapshot.parts)), String::new()];
    for table in [keys(&snapshot.top, columns), rules(&snapshot.rules, columns), parts(&snapshot.parts)] {
        lines.extend(table);
        lines.push(String::new());
    }
    lines.pop();
    lines
}

/// A summary in one line. The health comes first, because narrow terminals cut the rest.
pub fn summary(snapshot: &Snapshot, health: &str) -> String {
    let Snapshot { top, rules, parts } = snapshot;
    let sum =
        |group| rate(rules.rules.iter().map(|shown| shown.rule.per_second.last_10s.sum(group)).sum::<f64>());
    format!(
        "region {}  ·  {health}  ·  {} allowed/s  {} denied/s  {} shadow/s  ·  {}, {} past half, {} over  ·  {}",
        plain(&parts.region),
        sum(Group::Allowed),
        sum(Group::Denied),
        sum(Group::Shadow),
        plural(top.keys_held, "key", "keys"),
        count(top.keys_past_half),
        count(top.keys_over),
        plural(parts.envoys_alive, "Envoy or API", "Envoys and APIs"),
    )
}

/// All problems, or that there is none.
pub fn health(parts: &Parts) -> String {
    let mut wrong = Vec::new();
    if parts.redis.as_ref().is_some_and(|redis| !redis.usable) {
        wrong.push("Redis is unavailable".to_owned());
    }
    let redis = parts.redis.as_ref().filter(|redis| redis.usable);
    if let Some(trouble) = redis.and_then(|redis| redis.trouble.as_deref()) {
        wrong.push(format!("Redis {}", plain(trouble)));
    }
    if parts.database.as_ref().is_some_and(|database| database.breaker != "closed") {
        wrong.push("the database is unavailable".to_owned());
    }
    if let Some(trouble) = in_trouble(parts) {
        wrong.push(format!("the database: {}", plain(trouble)));
    }
    let silent = parts.peers.iter().filter(|peer| peer.silent).count() as u64;
    if silent > 0 {
        wrong.push(plural(silent, "aggregator is silent", "aggregators are silent"));
    }
    if let Some(refused) = parts.refused.first() {
        let reasons: Vec<_> = parts.refused.iter().map(|refused| plain(&refused.reason)).collect();
        wrong.push(format!("streams refused: {} (last {} ago)", reasons.join(", "), time(refused.age_ms)));
    }
    if !parts.stale_files.is_empty() {
        let files: Vec<_> = parts.stale_files.iter().map(|files| plain(files).replace('_', " ")).collect();
        wrong.push(format!("changed files cannot be used: {} (the log has the reason)", files.join(", ")));
    }
    let own = &parts.aggregator.status;
    match &own.waits_for {
        _ if own.draining => wrong.push("shutting down".to_owned()),
        Some(what) => wrong.push(format!("waiting for {}", plain(what))),
        None => {}
    }
    if wrong.is_empty() { "all well".to_owned() } else { format!("! {}", wrong.join(", ")) }
}

/// The problem of a database to which calls are sent.
fn in_trouble(parts: &Parts) -> Option<&str> {
    let database = parts.database.as_ref().filter(|database| database.breaker == "closed")?;
    database.trouble.as_deref()
}

/// The keys nearest their limits. With 80 columns, all columns but the bars fit.
pub fn keys(top: &Top, columns: usize) -> Vec<String> {
    let is_wide = columns >= WIDE_KEYS;
    let [scopes, bars, numbers, speeds, waits] = if is_wide { [14, 6, 13, 9, 8] } else { [10, 0, 9, 7, 7] };
    // The width of all columns except the identifier's.
    let wide = if is_wide { 6 + 7 + 2 * 2 } else { 0 };
    let others = scopes + 6 + bars + 6 + 2 * numbers + speeds + waits + 7 * 2 + wide;
    let name = columns.saturating_sub(others).clamp(12, 64);
    let line = |texts: [String; 10]| {
        let [namespace, identifier, kind, window, share, used, limit, denied, speed, wait] = texts;
        let wide = |text: &str, width| if is_wide { right(text, width) + "  " } else { String::new() };
        format!(
            "{}  {}  {}{}  {share}  {}  {}  {}{}  {}",
            fit(&namespace, scopes),
            fit(&identifier, name),
            wide(&kind, 6),
            right(&window, 6),
            right(&used, numbers),
            right(&limit, numbers),
            wide(&denied, 7),
            right(&speed, speeds),
            right(&wait, waits),
        )
    };
    let mut head =
        ["NAMESPACE", "IDENTIFIER", "KIND", "WINDOW", "", "USED", "LIMIT", "DENIED", "PER SEC", "WAIT"]
            .map(str::to_owned);
    head[4] = fit("SHARE", bars + 6);
    let mut lines = vec![line(head).trim_end().to_owned()];
    let shown = |key: &TopKey| {
        let full = fit(&bar(key.used, key.limit, bars.saturating_sub(1)), bars);
        let share = full + &right(&percent(key.used, key.limit), 6);
        let wait = match key.wait_ms {
            _ if key.but_for_shadow.is_some() => "shadow".to_owned(),
            Some(0) => "passes".to_owned(),
            Some(ms) => time(ms),
            None => "never".to_owned(),
        };
        let place = match (key.namespace.as_str(), key.zone) {
            ("", Some(zone)) => format!("zone {zone}"),
            (namespace, _) => scope(&key.workspace, namespace),
        };
        line([
            place,
            plain(&key.identifier),
            kind(&key.algorithm).to_owned(),
            time(key.duration_ms),
            share,
            count(key.used),
            count(key.limit),
            key.denied.map_or_else(|| "-".to_owned(), count),
            key.per_second.map_or_else(|| "-".to_owned(), rate),
            wait,
        ])
    };
    lines.extend(top.keys.iter().map(shown));
    if top.keys.is_empty() {
        lines.push("no key has used any of its limit recently".to_owned());
    }
    lines
}

/// The decisions of each rule. With 80 columns, all columns but the sums fit.
pub fn rules(rules: &Rules, columns: usize) -> Vec<String> {
    let is_wide = columns >= WIDE_RULES;
    let [numbers, rates, sums] = if is_wide { [13, 9, 13 + 2] } else { [9, 8, 0] };
    let name = columns.saturating_sub(6 + numbers + 6 + 4 * rates + sums + 7 * 2).clamp(13, 48);
    let line = |texts: [&str; 9]| {
        let [rule, mode, limit, window, allowed, denied, shadow, other, all] = texts;
        let cells = [
            fit(rule, name),
            fit(mode, 6),
            right(limit, numbers),
            right(window, 6),
            right(allowed, rates),
            right(denied, rates),
            right(shadow, rates),
            right(other, rates),
            right(all, 13),
        ];
        cells[..if is_wide { 9 } else { 8 }].join("  ").trim_end().to_owned()
    };
    let head = ["RULE", "MODE", "LIMIT", "WINDOW", "ALLOW/S", "DENY/S", "SHADOW/S", "OTHER/S", "DECIDED"];
    let mut lines = vec![line(head)];
    for shown in &rules.rules {
        let (rule, now) = (&shown.rule, shown.rule.per_second.last_10s);
        lines.push(line([
            &scope(&rule.workspace, &rule.name),
            if rule.shadow { "shadow" } else { "on" },
            &if rule.is(AlgorithmKind::Ledger) { rule.algorithm.clone() } else { count(rule.limit) },
            &if rule.is(AlgorithmKind::Ledger) { String::new() } else { time(rule.window_ms) },
            &rate(now.sum(Group::Allowed)),
            &rate(now.sum(Group::Denied)),
            &rate(now.sum(Group::Shadow)),
            &rate(now.sum(Group::Other)),
            &count(rule.decided.values().copied().fold(0, u64::saturating_add)),
        ]));
        if let Some(would) = shown.would_deny.as_ref().filter(|would| would.keys > 0) {
            let names: Vec<_> = would.furthest.iter().take(3).map(|key| plain(&key.identifier)).collect();
            let more = if would.keys > names.len() as u64 { ", …" } else { "" };
            lines.push(format!("    would deny {} now: {}{more}", count(would.keys), names.join(", ")));
        }
    }
    if rules.left_out {
        lines.push(
            "further rules are left out: an aggregator sends others 256, the busiest of each workspace"
                .to_owned(),
        );
    }
    if rules.rules.is_empty() {
        lines.push("no filter has reported its rules yet".to_owned());
    }
    lines
}

/// The state of each part.
pub fn parts(parts: &Parts) -> Vec<String> {
    let line = |part: &str, how: &str, more: String| format!("{}  {}  {more}", fit(part, 28), fit(how, 10));
    let age = |ms: Option<u64>| ms.map_or_else(|| "never".to_owned(), |ms| time(ms) + " ago");
    let own = &parts.aggregator.status;
    let mut lines = vec![line("PART", "STATE", String::new()).trim_end().to_owned()];
    let status = |status: &PeerStatus| {
        let (envoys, streams, keys) = (
            plural(status.envoys, "Envoy", "Envoys"),
            plural(status.streams, "stream", "streams"),
            plural(status.keys, "key", "keys"),
        );
        let (version, uptime) = (plain(&status.version), time(status.uptime_ms));
        let what = status.waits_for.as_deref().filter(|_| !status.draining);
        let waits = what.map(|what| format!("for {}; ", plain(what))).unwrap_or_default();
        format!("{waits}version {version}, up {uptime}, {envoys}, {streams}, {keys}")
    };
    lines.push(line("this aggregator", state_of(own), status(own)));
    for peer in &parts.peers {
        let state = if peer.silent { "! silent" } else { state_of(&peer.status) };
        let name = format!("aggregator {}", peer.id.get(..8).unwrap_or_default());
        lines.push(line(&name, state, format!("{}; {} ago", status(&peer.status), time(peer.age_ms))));
    }
    match &parts.redis {
        Some(redis) => {
            let state = if redis.usable { "reachable" } else { "! down" };
            let (read, wipes) = (age(redis.read_age_ms), plural(redis.wipes, "time", "times"));
            lines.push(line("Redis", state, format!("read {read}, lost its data {wipes}")));
        }
        None => lines.push(line("Redis", "none", "this is the region's only aggregator".to_owned())),
    }
    match &parts.database {
        Some(database) => {
            let trouble = in_trouble(parts);
            let state = match (database.breaker.as_str(), trouble) {
                ("closed", None) => "reachable",
                ("closed", Some(_)) => "! trouble",
                _ => "! down",
            };
            let (out, into) = (age(database.published_age_ms), age(database.imported_age_ms));
            let trouble = trouble.map(|trouble| format!("; {}", plain(trouble))).unwrap_or_default();
            lines.push(line("database", state, format!("published {out}, read {into}{trouble}")));
        }
        None => lines.push(line("database", "none", "counts are not shared with other regions".to_owned())),
    }
    for region in &parts.regions {
        let name = format!("region {}", plain(&region.name));
        let state = if region.own { "this one" } else { "known" };
        lines.push(line(&name, state, format!("wrote {}", age(region.seen_age_ms))));
    }
    for envoy in &parts.envoys {
        let id = envoy.node.get(..8).unwrap_or_default();
        let (name, from) = match &envoy.address {
            Some(address) => (format!("Envoy {id}"), format!("{}, ", plain(address))),
            None => ("embedded limiter".to_owned(), String::new()),
        };
        let state = if envoy.silent_ms > 2_000 { "! silent" } else { "connected" };
        let streams = plural(envoy.streams, "stream", "streams");
        let more = format!("{from}{streams}, last frame {} ago", time(envoy.silent_ms));
        lines.push(line(&name, state, more));
    }
    for refused in &parts.refused {
        let more = format!("reason: {}; last {} ago", plain(&refused.reason), time(refused.age_ms));
        lines.push(line("streams", "! refused", more));
    }
    lines
}

/// The state of an aggregator that sends its status.
fn state_of(status: &PeerStatus) -> &'static str {
    match &status.waits_for {
        _ if status.draining => "draining",
        Some(_) => "! waiting",
        None => "serving",
    }
}

/// The algorithm in one word.
pub fn kind(algorithm: &str) -> &'static str {
    AlgorithmKind::of(algorithm).unwrap_or_default().word()
}

/// Omits the workspace `default`.
fn scope(workspace: &str, name: &str) -> String {
    match workspace {
        "default" => plain(name),
        other => format!("{}/{}", plain(other), plain(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::rules::ShownRule;

    #[test]
    fn what_is_wrong_is_said_first_and_once_it_is_one() {
        use crate::admin::parts::{Database, Peer};
        let database = Database { breaker: "closed".into(), ..Database::default() };
        let well = Parts { database: Some(database.clone()), ..Parts::default() };
        assert_eq!(health(&well), "all well");
        let trouble = Some("exchange failed: timeout".to_owned());
        let peers = vec![Peer { silent: true, ..Peer::default() }];
        let database = Some(Database { trouble, ..database });
        let ill = Parts { database, peers, ..well };
        assert_eq!(health(&ill), "! the database: exchange failed: timeout, 1 aggregator is silent");
        let stale =
            Parts { stale_files: vec!["tokens".to_owned(), "rate_limits".to_owned()], ..Parts::default() };
        assert_eq!(
            health(&stale),
            "! changed files cannot be used: tokens, rate limits (the log has the reason)"
        );
        let lines = parts(&ill).join("\n");
        for part in ["! trouble", "; exchange failed: timeout"] {
            assert!(lines.contains(part), "no {part:?} in {lines}");
        }
        assert!(lines.contains("0 Envoys, 0 streams, 0 keys"), "{lines}");
    }

    #[test]
    fn the_state_of_an_aggregator_is_shown() {
        use crate::admin::parts::{Aggregator, Peer};
        let waits = |what: &str, draining| PeerStatus {
            waits_for: Some(what.to_owned()).filter(|what| !what.is_empty()),
            draining,
            ..PeerStatus::default()
        };
        for (status, summary, line) in [
            (waits("", false), "all well", "serving"),
            (waits("", true), "! shutting down", "draining"),
            (
                waits("live control", false),
                "! waiting for live control",
                "! waiting   for live control; version",
            ),
            (waits("live control", true), "! shutting down", "draining"),
        ] {
            let own = Parts {
                aggregator: Aggregator { status: status.clone(), ..Aggregator::default() },
                ..Parts::default()
            };
            assert_eq!(health(&own), summary);
            let peers = vec![Peer { status, ..Peer::default() }];
            for shown in [own, Parts { peers, ..Parts::default() }] {
                assert!(parts(&shown).iter().any(|found| found.contains(line)), "{:#?}", parts(&shown));
            }
        }
    }

    #[test]
    fn a_usual_terminal_has_room_for_what_matters() {
        let key = TopKey { used: 9_999_999, limit: 9_999_999, wait_ms: Some(3_599_000), ..TopKey::default() };
        let top = Top { keys: vec![key], ..Top::default() };
        let (keys, wide) = (keys(&top, 80), keys(&top, WIDE_KEYS));
        for (head, columns) in [(&keys, 80), (&wide, WIDE_KEYS)] {
            assert!(head.iter().all(|line| line.chars().count() == columns), "{head:#?}");
            assert!(head[0].ends_with("WAIT") && head[1].contains("9,999,999"), "{head:#?}");
        }
        assert!(!keys[1].contains('█') && wide[1].contains('█') && keys[1].ends_with("59m 59s"), "{keys:#?}");
        let shown = Rules { rules: vec![ShownRule::default()], ..Rules::default() };
        for (columns, last) in [(80, "OTHER/S"), (WIDE_RULES, "DECIDED")] {
            let rules = rules(&shown, columns);
            assert!(rules[0].ends_with(last) && rules[0].chars().count() == columns, "{rules:#?}");
            assert!(!rules[0].contains('…'), "{rules:#?}");
        }
    }
}
