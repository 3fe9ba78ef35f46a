//! The live screen of `top`, redrawn each second, with keys for navigation.
//!
//! While the aggregator does not answer, the last data stays on the screen with its age. The terminal is restored at
//! every exit.

use super::client::Client;
use super::error::TerminalError;
use super::format::{fit, time};
use super::snapshot::{Snapshot, snapshot};
use super::tables;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{Read, Write, stdin, stdout};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

/// Interval between two reads.
const INTERVAL: Duration = Duration::from_secs(1);
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &[u8] = b"\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Assumed size of a terminal that does not report its size.
const COLUMNS: usize = 80;
const ROWS: usize = 24;
const VIEWS: [&str; 3] = ["1 keys", "2 rules", "3 parts"];

/// The shown table, and its first visible line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    view: usize,
    from: usize,
}

/// A command of the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Show this table.
    View(usize),
    /// Show the next table.
    Next,
    /// Move by this number of lines.
    Move(isize),
    /// Quit.
    Quit,
}

/// Shows the live screen until the user quits.
pub async fn run(client: &Client) -> Result<(), TerminalError> {
    let mut shown = (snapshot(client).await?, Instant::now());
    let (mut place, mut problem) = (Place::default(), None);
    let (mut interrupted, mut ended) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut resized = signal(SignalKind::window_change())?;
    let _raw = Raw::enter()?;
    let (mut wishes, mut snapshots) = (wishes(), snapshots(client.clone()));
    let mut ages = interval(INTERVAL);
    ages.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        draw(&shown.0, shown.1.elapsed(), &mut place, problem.as_deref())?;
        tokio::select! {
            wish = wishes.recv() => match wish {
                Some(Wish::Quit) | None => return Ok(()),
                Some(wish) => place = place.after(wish),
            },
            _ = interrupted.recv() => return Ok(()),
            _ = ended.recv() => return Ok(()),
            _ = resized.recv() => {}
            _ = ages.tick() => {}
            Some(snapshot) = snapshots.recv() => match snapshot {
                Ok(snapshot) => (shown, problem) = ((snapshot, Instant::now()), None),
                Err(error) => problem = Some(error.to_string()),
            },
        }
    }
}

impl Place {
    /// The place after a command.
    pub fn after(self, wish: Wish) -> Place {
        match wish {
            Wish::View(view) => Place { view, from: 0 },
            Wish::Next => Place { view: (self.view + 1) % VIEWS.len(), from: 0 },
            Wish::Move(lines) => Place { from: self.from.saturating_add_signed(lines), ..self },
            Wish::Quit => self,
        }
    }
}

/// The commands in bytes from a terminal, in order. Held keys arrive together.
fn wishes_of(mut bytes: &[u8]) -> Vec<Wish> {
    let mut wishes = Vec::new();
    while !bytes.is_empty() {
        let (key, rest) = bytes.split_at(key_length(bytes));
        wishes.extend(wish(key));
        bytes = rest;
    }
    wishes
}

/// Length of the first key in bytes. A key with more than one byte begins with an escape and `[` or `O`, and ends with
/// a letter or `~`.
fn key_length(bytes: &[u8]) -> usize {
    let [b'\x1b', b'[' | b'O', rest @ ..] = bytes else { return 1 };
    let end = rest.iter().position(|byte| matches!(byte, b'@'..=b'~'));
    end.map_or(bytes.len(), |end| end + 3)
}

fn wish(key: &[u8]) -> Option<Wish> {
    Some(match key {
        b"q" | b"Q" | b"\x03" | b"\x1b" => Wish::Quit,
        b"1" => Wish::View(0),
        b"2" => Wish::View(1),
        b"3" => Wish::View(2),
        b"\t" | b"\x1b[C" => Wish::Next,
        b"j" | b"\x1b[B" => Wish::Move(1),
        b"k" | b"\x1b[A" => Wish::Move(-1),
        b" " | b"\x1b[6~" => Wish::Move(10),
        b"\x1b[5~" => Wish::Move(-10),
        b"g" | b"\x1b[H" => Wish::Move(isize::MIN),
        _ => return None,
    })
}

/// The lines of a whole screen.
pub fn lines(
    snapshot: &Snapshot,
    age: Duration,
    place: &mut Place,
    problem: Option<&str>,
    (columns, rows): (usize, usize),
) -> Vec<String> {
    let table = match place.view {
        0 => tables::keys(&snapshot.top, columns),
        1 => tables::rules(&snapshot.rules, columns),
        _ => tables::parts(&snapshot.parts),
    };
    let tabs = VIEWS.iter().enumerate().map(|(at, name)| match at == place.view {
        true => format!("[{name}]"),
        false => format!(" {name} "),
    });
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let seen = match age.saturating_add(snapshot.top.age_ms) / 1_000 {
        0 => "as of now".to_owned(),
        seconds => format!("as of {} ago", time(seconds.saturating_mul(1_000))),
    };
    // The health in old data is not shown as the present one.
    let (health, problem) = match problem {
        Some(problem) => ("! the aggregator does not answer".to_owned(), format!("! {problem}")),
        None => (tables::health(&snapshot.parts), String::new()),
    };
    let room = rows.saturating_sub(4);
    let (head, body) =
        table.split_first().map_or((String::new(), &[][..]), |(head, body)| (head.clone(), body));
    place.from = place.from.min(body.len().saturating_sub(room));
    let mut lines = vec![
        tables::summary(snapshot, &health),
        format!("{}   tab: next, j k: move, q: quit   {seen}", tabs.collect::<Vec<_>>().join(" ")),
        problem,
        head,
    ];
    lines.extend(body.iter().skip(place.from).take(room).cloned());
    lines.iter().take(rows).map(|line| fit(line, columns)).collect()
}

fn draw(
    snapshot: &Snapshot,
    age: Duration,
    place: &mut Place,
    problem: Option<&str>,
) -> Result<(), TerminalError> {
    let size = tcgetwinsize(stdout()).map_err(std::io::Error::from)?;
    // Some terminals do not report their size.
    let or = |given: u16, usual: usize| if given == 0 { usual } else { usize::from(given) };
    let size = (or(size.ws_col, COLUMNS).max(20), or(size.ws_row, ROWS).max(5));
    let lines = lines(snapshot, age, place, problem, size);
    let mut screen = String::from("\x1b[H");
    for (at, line) in lines.iter().enumerate() {
        let style = match at {
            0 | 2 => "\x1b[1m",
            3 => "\x1b[7m",
            _ => "",
        };
        let end = if at + 1 < size.1 { "\r\n" } else { "" };
        screen += &format!("{style}{line}\x1b[0m{end}");
    }
    // On a full screen nothing is below, and the cursor is still on the last character.
    if lines.len() < size.1 {
        screen += "\x1b[J";
    }
    let mut out = stdout().lock();
    out.write_all(screen.as_bytes())?;
    Ok(out.flush()?)
}

/// Reads the data each second, in a separate task, so that a hung aggregator does not block the keyboard.
fn snapshots(client: Client) -> mpsc::Receiver<Result<Snapshot, TerminalError>> {
    let (sender, snapshots) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if sender.send(snapshot(&client).await).await.is_err() {
                return;
            }
        }
    });
    snapshots
}

/// Reads keys in a thread that ends with the program, because a blocking read of a terminal cannot be cancelled.
fn wishes() -> mpsc::Receiver<Wish> {
    let (wished, wishes) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(length @ 1..) = stdin().lock().read(&mut bytes) {
            for wish in bytes.get(..length).map(wishes_of).unwrap_or_default() {
                if wished.blocking_send(wish).is_err() {
                    return;
                }
            }
        }
    });
    wishes
}

/// A terminal in raw mode; restored when dropped.
struct Raw {
    before: Termios,
}

impl Raw {
    fn enter() -> Result<Raw, TerminalError> {
        let before = tcgetattr(stdin()).map_err(std::io::Error::from)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(std::io::Error::from)?;
        let raw = Raw { before };
        stdout().write_all(ENTER)?;
        Ok(raw)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // If the terminal is gone, an error cannot be reported.
        let _ = stdout().write_all(LEAVE).and_then(|()| stdout().flush());
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::top::Top;
    use crate::admin::view::TopKey;

    #[test]
    fn a_screen_is_as_large_as_the_terminal_and_keeps_its_place() {
        let key =
            |at: u64| TopKey { identifier: format!("k{at}"), used: at, limit: 100, ..TopKey::default() };
        let top = Top { keys: (0..50).map(key).collect(), ..Top::default() };
        let snapshot = Snapshot { top, ..Snapshot::default() };
        let mut place = Place::default().after(Wish::Move(7));
        let screen = lines(&snapshot, Duration::ZERO, &mut place, None, (80, 10));
        assert_eq!((screen.len(), screen.iter().map(|line| line.chars().count()).max()), (10, Some(80)));
        assert!(screen[4].contains("k7 "), "{screen:#?}");
        place = place.after(Wish::Move(1_000));
        let screen = lines(&snapshot, Duration::ZERO, &mut place, Some("gone"), (80, 10));
        assert!(screen[9].contains("k49") && screen[2].starts_with("! gone"), "{screen:#?}");
        assert!(screen[0].contains("does not answer") && !screen[0].contains("all well"), "{screen:#?}");
        assert_eq!(place.after(Wish::Next).after(Wish::Move(-1)), Place { view: 1, from: 0 });
        for view in 0..VIEWS.len() {
            assert_eq!(
                lines(&snapshot, Duration::ZERO, &mut Place { view, from: 0 }, None, (20, 5)).len().min(5),
                5
            );
        }
    }

    #[test]
    fn keys_of_the_keyboard() {
        let cases: [(&[u8], &[Wish]); 8] = [
            (b"q", &[Wish::Quit]),
            (b"\x03", &[Wish::Quit]),
            (b"\x1b", &[Wish::Quit]),
            (b"\x1b[B\x1b[B", &[Wish::Move(1), Wish::Move(1)]),
            (b"2x\t", &[Wish::View(1), Wish::Next]),
            (b"\x1b[99~\x1bOPk\x1b[6~", &[Wish::Move(-1), Wish::Move(10)]),
            (b"\x1b[1;5", &[]),
            (b"", &[]),
        ];
        for (bytes, expected) in cases {
            assert_eq!(wishes_of(bytes), expected, "{bytes:?}");
        }
    }
}
