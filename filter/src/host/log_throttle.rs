//! What the log is told of the stream to the aggregator: what is wrong, once until it is right again, and then that.
//!
//! A stream is retried every second or faster, and an aggregator may welcome each and end it at once; so no more than a few
//! troubles are told a minute. What the aggregator says itself comes into the log short, and on one line.
//!
//! Leaves to others: writing the log (`host`), what is wrong (`stream`, `plugin`).

use weir_core::model::time::MonoMs;

/// Most troubles that are told a minute.
const MAX_A_MINUTE: u32 = 6;
const MINUTE_MS: u64 = 60_000;
/// Most characters of what somebody else says.
const MAX_CHARS: usize = 200;

/// What the log knows of one stream after the other.
#[derive(Debug)]
pub struct LogThrottle {
    cluster: String,
    /// Something is wrong and the log knows it: what follows until the next welcome is mostly its consequence.
    open: bool,
    minute: MonoMs,
    told: u32,
}

impl LogThrottle {
    /// Of streams to this cluster.
    pub fn new(cluster: &str) -> LogThrottle {
        LogThrottle { cluster: cluster.to_owned(), open: false, minute: MonoMs(0), told: 0 }
    }

    /// Something is wrong. Returns what the log is to be told, if anything.
    pub fn wrong(&mut self, what: &str, now: MonoMs) -> Option<String> {
        if now.since(self.minute) >= MINUTE_MS {
            (self.minute, self.told) = (now, 0);
        }
        if self.open || self.told >= MAX_A_MINUTE {
            return None;
        }
        self.open = true;
        self.told = self.told.saturating_add(1);
        Some(format!(
            "weir: no stream to the aggregator (cluster {:?}): {what}. Limits hold by what this Envoy knows; retrying",
            self.cluster
        ))
    }

    /// The aggregator accepts a stream. Returns what the log is to be told, if anything.
    pub fn right(&mut self) -> Option<String> {
        std::mem::take(&mut self.open)
            .then(|| format!("weir: the stream to the aggregator (cluster {:?}) is up", self.cluster))
    }
}

/// What somebody else says, as a part of a line.
pub fn quoted(text: &str) -> String {
    let printable = |char: char| if char.is_control() { ' ' } else { char };
    text.chars().take(MAX_CHARS).map(printable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_told_once_and_that_it_is_over() {
        let mut log_throttle = LogThrottle::new("weir");
        assert_eq!(log_throttle.right(), None, "nothing was wrong");
        let told = log_throttle.wrong("it is away", MonoMs(5)).unwrap();
        assert!(told.contains("(cluster \"weir\"): it is away. "), "{told}");
        assert_eq!(log_throttle.wrong("it is away still", MonoMs(MINUTE_MS * 3)), None);
        assert!(log_throttle.right().unwrap().ends_with("is up"));
        assert_eq!(log_throttle.right(), None);
    }

    #[test]
    fn streams_that_come_and_go_do_not_fill_the_log() {
        let mut log_throttle = LogThrottle::new("weir");
        let mut lines = |minute: u64| {
            let mut lines = 0;
            for at in (0..MINUTE_MS).step_by(25) {
                let now = MonoMs(5 + minute * MINUTE_MS + at);
                lines += u32::from(log_throttle.wrong("it ended", now).is_some());
                lines += u32::from(log_throttle.right().is_some());
            }
            lines
        };
        assert_eq!([lines(0), lines(1), lines(10)], [2 * MAX_A_MINUTE; 3]);
    }

    #[test]
    fn what_others_say_is_a_part_of_one_line() {
        assert_eq!(quoted("too many\nstreams\u{1b}[2J"), "too many streams [2J");
        assert_eq!(quoted(&"ö".repeat(MAX_CHARS * 9)).chars().count(), MAX_CHARS);
    }
}
