//! Formats the answer of `/v1/keys` as text.

use super::format::{bar, count, fit, percent, plain, right, time};
use crate::admin::view::{Cell, Control, Exact, Explanation, Window};

/// The lines of an explanation.
pub fn lines(explanation: &Explanation) -> Vec<String> {
    let (namespace, workspace) = (plain(&explanation.namespace), plain(&explanation.workspace));
    let place = match explanation.exact.iter().find_map(|exact| exact.zone) {
        Some(zone) if namespace.is_empty() => format!("zone {zone} of the ledger"),
        _ => format!("namespace {namespace}, workspace {workspace}"),
    };
    let (identifier, region) = (plain(&explanation.identifier), plain(&explanation.region));
    let mut lines = vec![format!("{identifier} in {place}, as known in region {region}")];
    lines.extend(part_lines(&explanation.identifier));
    lines.extend(control_lines(&explanation.control, explanation.now_unix_ms));
    for exact in &explanation.exact {
        lines.push(String::new());
        lines.extend(of_exact(exact));
        if exact.control != explanation.control {
            lines.extend(control_lines(&exact.control, explanation.now_unix_ms));
        }
    }
    for window in &explanation.windows {
        lines.push(String::new());
        lines.extend(of_window(window));
        if window.control != explanation.control {
            lines.extend(control_lines(&window.control, explanation.now_unix_ms));
        }
    }
    lines
}

/// What parts of an identifier stand for that are no values.
fn part_lines(identifier: &str) -> Vec<String> {
    let meaning = |part: &str| match part {
        r"\-" => Some("all requests without this part"),
        r"\+" => Some("all requests with several values of this part"),
        r"\~" => Some("all values of this part that one_of does not list"),
        _ => None,
    };
    let line = |(number, part): (usize, &str)| Some(format!("  part {number}: {}", meaning(part)?));
    (1..).zip(parts(identifier)).filter_map(line).collect()
}

/// The parts of a raw identifier: what is between bars that are not escaped.
fn parts(identifier: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, byte) in identifier.bytes().enumerate() {
        if byte == b'|' && !escaped {
            parts.extend(identifier.get(start..at));
            start = at + 1;
        }
        escaped = byte == b'\\' && !escaped;
    }
    parts.extend(identifier.get(start..));
    parts
}

/// The use of a log or a ledger.
fn of_exact(exact: &Exact) -> Vec<String> {
    let what = match exact.zone {
        Some(zone) => format!("ledger, zone {zone}"),
        None => format!("exact log of {}", time(exact.window_ms)),
    };
    let rule = if exact.name.is_empty() { String::new() } else { format!(", rule {}", plain(&exact.name)) };
    let mut lines = vec![format!("{what}{rule}")];
    lines.push(format!("  {}", exact_verdict(exact)));
    if let (Some(used), Some(limit)) = (exact.used, exact.limit) {
        let window =
            if exact.zone.is_some() { format!(" in {}", time(exact.window_ms)) } else { String::new() };
        let share = percent(used, limit);
        lines.push(format!(
            "  {} {} of {}{window} ({share})",
            bar(used, limit, 24),
            count(used),
            count(limit)
        ));
    }
    if exact.denied > 0 {
        lines.push(format!("  {} denied by this aggregator lately", count(exact.denied)));
    }
    lines
}

fn exact_verdict(exact: &Exact) -> String {
    let wait_ms = exact.but_for_shadow.map_or(exact.wait_ms, |judged| judged.wait_ms);
    let denied = denied(wait_ms, &exact.control);
    match (&exact.trouble, exact.passes) {
        _ if exact.but_for_shadow.is_some() => {
            format!("every request passes because of shadow mode; without it, {denied}")
        }
        (_, Some(true)) if exact.control.exempt => "every request passes: the key is exempt".to_owned(),
        (_, Some(false)) => denied,
        (Some(trouble), _) => format!("its use could not be read: {}", plain(trouble)),
        (None, Some(true)) => {
            format!("a request of cost 1 would pass; {} left", count(exact.remaining.unwrap_or(0)))
        }
        (None, None) => "its use is not known".to_owned(),
    }
}

fn control_lines(control: &Control, now_unix_ms: u64) -> Vec<String> {
    let sentences = control.sentences(now_unix_ms, time);
    sentences.into_iter().map(|sentence| format!("  live control: {sentence}")).collect()
}

fn of_window(window: &Window) -> Vec<String> {
    let mut lines = vec![format!("window of {}{}", time(window.duration_ms), kind(window))];
    lines.push(format!("  {}", verdict(window)));
    if let Some(limit) = window.limit {
        let share = percent(window.used, limit);
        lines.push(format!(
            "  {} {} of {} ({share})",
            bar(window.used, limit, 24),
            count(window.used),
            count(limit)
        ));
    }
    if window.global_others > 0 {
        lines.push(format!("  {} of that by other regions", count(window.global_others)));
    }
    if window.reserved > 0 {
        let nodes = match window.reservations.len() {
            1 => "1 node".to_owned(),
            several => format!("{} nodes", count(several as u64)),
        };
        lines.push(format!(
            "  {} reserved beside that by {nodes}, until the cost of the work is known",
            count(window.reserved)
        ));
    }
    for rule in &window.rules {
        let shadow = if rule.shadow { ", in shadow mode: never denies" } else { "" };
        lines.push(format!("  rule {}, {} before overrides{shadow}", plain(&rule.name), count(rule.limit)));
    }
    lines.extend(window.cells.iter().rev().flat_map(of_cell));
    lines
}

fn kind(window: &Window) -> String {
    let epoch = if window.epoch > 0 { format!(", epoch {}", window.epoch) } else { String::new() };
    let hard_limit = if window.resolution > 1 {
        format!(", a hard limit of {} cells", window.resolution)
    } else {
        String::new()
    };
    hard_limit + &epoch
}

fn verdict(window: &Window) -> String {
    if window.outdated {
        return format!("{} used before a reset; no longer counted", count(window.used));
    }
    if let Some(judged) = &window.but_for_shadow {
        return format!(
            "every request passes because of shadow mode; without it, {}",
            denied(judged.wait_ms, &window.control)
        );
    }
    match (window.passes, window.wait_ms, window.remaining) {
        (Some(true), ..) if window.control.exempt => "every request passes: the key is exempt".to_owned(),
        (Some(false), None, _) if window.control.banned => {
            "every request is denied: the key is banned".to_owned()
        }
        (Some(true), _, left) => format!("a request of cost 1 would pass; {} left", count(left.unwrap_or(0))),
        (Some(false), wait_ms, _) => denied(wait_ms, &window.control),
        (None, ..) => format!("{} used; no limit is known for this window", count(window.used)),
    }
}

fn denied(wait_ms: Option<u64>, control: &Control) -> String {
    match wait_ms {
        Some(ms) => format!("a request of cost 1 would be denied, and would pass again in {}", time(ms)),
        None if control.banned => "every request would be denied: the key is banned".to_owned(),
        None => "every request would be denied: the limit is 0".to_owned(),
    }
}

fn of_cell(cell: &Cell) -> Vec<String> {
    let when = if cell.current { "current cell" } else { "cell" };
    let global = match cell.global_others {
        0 => String::new(),
        others => format!(", other regions {}", count(others)),
    };
    let mut lines =
        vec![format!("  {when} {}: this region {}{global}", cell.sequence, count(cell.regional_total))];
    for part in &cell.components {
        let here = if part.here { "  connected here" } else { "" };
        let (own, age) = (right(&count(part.own), 13), fit(&format!("{} ago", time(part.age_ms)), 14));
        lines.push(
            format!("    {}  {own}  last grew {age}{here}", fit(&plain(&part.node), 32))
                .trim_end()
                .to_owned(),
        );
    }
    let more = cell.components_all.saturating_sub(cell.components.len() as u64);
    if more > 0 {
        lines.push(format!("    and {} more", count(more)));
    }
    for part in &cell.regions {
        let (used, age) = (right(&count(part.count), 13), time(part.age_ms));
        let name = fit(&format!("region {}", plain(&part.region)), 32);
        lines.push(format!("    {name}  {used}  received {age} ago"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_no_values_are_named() {
        for (identifier, expected) in [
            ("alice", &[][..]),
            (r"alice|\~", &["  part 2: all values of this part that one_of does not list"][..]),
            (
                r"\-|a\|b|\+",
                &[
                    "  part 1: all requests without this part",
                    "  part 3: all requests with several values of this part",
                ],
            ),
            (r"a\\|\~", &["  part 2: all values of this part that one_of does not list"]),
            (r"a\|\\~|~", &[]),
            ("", &[]),
        ] {
            assert_eq!(part_lines(identifier), expected, "{identifier}");
        }
    }
}
