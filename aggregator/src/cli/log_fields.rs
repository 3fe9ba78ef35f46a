//! The fields of a log line as text. What a peer or a store has sent may be in any of them, so characters that a terminal would
//! interpret are escaped, and an event is one line.

use crate::telemetry::text::identifier;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;

/// Writes a message as it is, and every other field as `name=value`.
pub fn escaped() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    debug_fn(|writer, field, value| {
        let value = format!("{value:?}").replace('\n', "; ");
        let value = identifier(value.as_bytes());
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    })
    .delimited(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io;
    use std::sync::Arc;
    use tracing::{error, info};
    use tracing_subscriber::fmt;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_field_moves_the_cursor_or_begins_a_line() {
        let (written, text) = (Written::default(), "x\x1b[2J\u{9b}1m\n2026-01-01 INFO forged\u{202e}");
        let made = written.clone();
        let log = fmt().without_time().with_ansi(false).with_writer(move || made.clone());
        tracing::subscriber::with_default(log.fmt_fields(escaped()).finish(), || {
            error!(error = %text, held_back = 3, name = "shop", "could not read: {text}");
            info!("two");
        });
        let written = String::from_utf8(written.0.lock().clone()).unwrap();
        assert_eq!(written.lines().count(), 2, "{written}");
        assert!(
            written.chars().all(|one| one == '\n' || !one.is_control() && one != '\u{202e}'),
            "{written:?}"
        );
        assert!(written.contains("held_back=3 name=\"shop\""), "{written}");
        assert!(written.contains("error=x\\u{1b}[2J"), "{written}");
    }
}
