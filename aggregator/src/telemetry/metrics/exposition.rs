//! Prometheus' text format 0.0.4, for readers that do not accept OpenMetrics.
//!
//! In OpenMetrics a family of counters is named without `_total`, and one of `info` without `_info`, there are units, and the text has an
//! end. In the older format the family has the name of its samples, and there is neither.

use std::fmt::Write as _;

/// Whether a reader with these `accept` headers reads OpenMetrics.
pub fn accepts_open<'a>(accepted: impl IntoIterator<Item = &'a str>) -> bool {
    let mut ranges = accepted.into_iter().flat_map(|header| header.split(','));
    ranges.any(|range| {
        let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
        let is_open = parts.next().is_some_and(|kind| kind == "application/openmetrics-text");
        let is_refused =
            |part: String| part.strip_prefix("q=").is_some_and(|q| q.parse::<f64>().is_ok_and(|q| q <= 0.0));
        is_open && !parts.any(is_refused)
    })
}

/// Converts the OpenMetrics text that the encoder writes.
pub fn of_prometheus(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut help: Option<&str> = None;
    for line in open.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            // Writing into a string cannot fail. No sample has an exemplar.
            let _ = writeln!(text, "{line}");
            continue;
        };
        match comment.split_once(' ') {
            Some(("HELP", described)) => help = Some(described),
            Some(("TYPE", typed)) => {
                let (name, kind) = typed.split_once(' ').unwrap_or((typed, ""));
                let (suffix, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    _ => ("", kind),
                };
                if let Some((_, words)) = help.take().and_then(|help| help.split_once(' ')) {
                    let _ = writeln!(text, "# HELP {name}{suffix} {words}");
                }
                let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
            }
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_names_openmetrics_reads_it() {
        const PROMETHEUS: &str =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        for (accepted, expected) in [
            (&[PROMETHEUS][..], true),
            (&["text/plain", "Application/OpenMetrics-Text; version=0.0.1"], true),
            (&["application/openmetrics-text;q=0, */*"], false),
            (&["*/*"], false),
            (&["text/plain;version=0.0.4"], false),
            (&["application/json, text/html"], false),
            (&[], false),
        ] {
            assert_eq!(accepts_open(accepted.iter().copied()), expected, "{accepted:?}");
        }
    }

    #[test]
    fn families_have_the_names_of_their_samples() {
        let open = "\
# HELP weir_build Version.
# TYPE weir_build info
weir_build_info{version=\"1\"} 1
# HELP weir_reports Reports # of filters.
# TYPE weir_reports counter
weir_reports_total{a=\"x # {y\"} 3
# HELP weir_wait_seconds Waits.
# TYPE weir_wait_seconds histogram
# UNIT weir_wait_seconds seconds
weir_wait_seconds_bucket{le=\"+Inf\"} 1
# TYPE weir_any unknown
weir_any 1
# EOF
";
        let expected = "\
# HELP weir_build_info Version.
# TYPE weir_build_info gauge
weir_build_info{version=\"1\"} 1
# HELP weir_reports_total Reports # of filters.
# TYPE weir_reports_total counter
weir_reports_total{a=\"x # {y\"} 3
# HELP weir_wait_seconds Waits.
# TYPE weir_wait_seconds histogram
weir_wait_seconds_bucket{le=\"+Inf\"} 1
# TYPE weir_any untyped
weir_any 1
";
        assert_eq!(of_prometheus(open), expected);
    }
}
