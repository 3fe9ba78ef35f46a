//! Limits the log lines about the stream to the aggregator: one when it fails, one for each other reason, one when it works again.
//!
//! A stream is retried every second or faster, and an aggregator may accept each and end it at once, so the number of failures logged
//! a minute is bounded. Of one attempt the first failure is logged, as the others are its consequences. Texts of the aggregator are logged shortened and on one line.

use weir_core::model::time::MonoMs;

/// Most failures that are logged in a minute.
const MAX_A_MINUTE: u32 = 6;
const MINUTE_MS: u64 = 60_000;
/// Most characters of a text from outside.
const MAX_CHARS: usize = 200;

/// What was logged of a worker's streams.
#[derive(Debug)]
pub struct LogThrottle {
    cluster: String,
    /// The reason that was logged since the last accepted stream.
    reason: Option<String>,
    /// The attempt has failed.
    failed: bool,
    minute: MonoMs,
    logged: u32,
}

impl LogThrottle {
    /// For streams to this cluster.
    pub fn new(cluster: &str) -> LogThrottle {
        LogThrottle { cluster: cluster.to_owned(), reason: None, failed: false, minute: MonoMs(0), logged: 0 }
    }

    /// Notes that a stream is opened.
    pub fn attempt(&mut self) {
        self.failed = false;
    }

    /// Notes a failure. Returns the line to log, if any.
    pub fn wrong(&mut self, what: &str, now: MonoMs) -> Option<String> {
        if now.since(self.minute) >= MINUTE_MS {
            (self.minute, self.logged) = (now, 0);
        }
        let is_consequence = core::mem::replace(&mut self.failed, true);
        if is_consequence || self.reason.as_deref() == Some(what) || self.logged >= MAX_A_MINUTE {
            return None;
        }
        self.reason = Some(what.to_owned());
        self.logged = self.logged.saturating_add(1);
        Some(format!(
            "weir: no stream to the aggregator (cluster {:?}): {what}. This Envoy decides by its own counts; retrying",
            self.cluster
        ))
    }

    /// Notes that the aggregator accepted a stream. Returns the line to log, if any.
    pub fn right(&mut self) -> Option<String> {
        self.reason
            .take()
            .map(|_| format!("weir: the stream to the aggregator (cluster {:?}) is up", self.cluster))
    }
}

/// A text from outside, as a part of a line.
pub fn quoted(text: &str) -> String {
    let printable = |char: char| if char.is_control() { ' ' } else { char };
    text.chars().take(MAX_CHARS).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_logged_once_and_so_is_its_end() {
        let mut log_throttle = LogThrottle::new("weir");
        assert_eq!(log_throttle.right(), None, "nothing was wrong");
        let logged = log_throttle.wrong("it is unavailable", MonoMs(5)).unwrap();
        assert!(logged.contains("(cluster \"weir\"): it is unavailable. "), "{logged}");
        log_throttle.attempt();
        assert_eq!(log_throttle.wrong("it is unavailable", MonoMs(MINUTE_MS * 3)), None);
        assert!(log_throttle.right().unwrap().ends_with("is up"));
        assert_eq!(log_throttle.right(), None);
    }

    /// The aggregator returns, and refuses the token.
    #[test]
    fn another_reason_is_logged_and_its_consequences_are_not() {
        let mut log_throttle = LogThrottle::new("weir");
        let mut lines = Vec::new();
        for attempt in 0..50_u64 {
            let now = MonoMs(5 + attempt * 1_000);
            log_throttle.attempt();
            if attempt < 10 {
                lines.extend(log_throttle.wrong("it ended with gRPC status 14", now));
            } else {
                lines.extend(log_throttle.wrong("the aggregator refuses it: its token is unknown", now));
                lines.extend(log_throttle.wrong("it ended with gRPC status 16", now));
            }
        }
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].contains("its token is unknown"), "{lines:?}");
    }

    #[test]
    fn streams_that_come_and_go_do_not_fill_the_log() {
        let mut log_throttle = LogThrottle::new("weir");
        let mut lines = |minute: u64| {
            let mut lines = 0;
            for at in (0..MINUTE_MS).step_by(25) {
                let now = MonoMs(5 + minute * MINUTE_MS + at);
                log_throttle.attempt();
                lines += u32::from(log_throttle.wrong("it ended", now).is_some());
                lines += u32::from(log_throttle.right().is_some());
            }
            lines
        };
        assert_eq!([lines(0), lines(1), lines(10)], [2 * MAX_A_MINUTE; 3]);
    }

    #[test]
    fn a_text_from_outside_is_a_part_of_one_line() {
        assert_eq!(quoted("too many\nstreams\u{1b}[2J"), "too many streams [2J");
        assert_eq!(quoted(&"ö".repeat(MAX_CHARS * 9)).chars().count(), MAX_CHARS);
    }
}
