//! A pseudo-terminal for tests, with its screen and the program that it controls.

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weir_envoy::wait;

/// Longer than any wait.
const DEADLINE: Duration = Duration::from_secs(20);

/// The user's side of the terminal.
pub struct Terminal {
    keyboard: File,
    /// The program's side, kept so that its modes can be read after the program has ended.
    line: File,
    screen: Arc<Mutex<Screen>>,
}

/// The screen, as far as `top` uses it: whole lines from the top left.
#[derive(Clone, Debug, Default)]
pub struct Screen {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    pub is_alternate: bool,
    pub hides_cursor: bool,
    pub cuts_lines: bool,
    /// Bytes of an incomplete character or command.
    open: Vec<u8>,
}

impl Terminal {
    pub fn new(columns: u16, rows: u16) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = std::ffi::OsString::from_vec(ptsname(&controller, Vec::new()).unwrap().into_bytes());
        let keyboard = File::from(controller);
        // `setsid` makes this the program's controlling terminal; the test itself has none.
        let line = OpenOptions::new().read(true).write(true).open(name).unwrap();
        let terminal = Terminal { keyboard, line, screen: Arc::default() };
        terminal.resize(columns, rows);
        let (mut output, screen) = (terminal.keyboard.try_clone().unwrap(), terminal.screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                screen.lock().unwrap().take(&bytes[..length]);
            }
        });
        terminal
    }

    /// Resizes the screen; the program receives SIGWINCH.
    pub fn resize(&self, columns: u16, rows: u16) {
        // From here on the screen may contain only what is drawn for the new size.
        self.screen.lock().unwrap().rows = vec![vec![' '; columns.into()]; rows.into()];
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// Starts a program in its own session, with this as its controlling terminal.
    pub fn start(&self, program: &Command) -> Running {
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program.get_program()).args(program.get_args()).env_clear();
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let line = || self.line.try_clone().unwrap();
        Running(command.stdin(line()).stdout(line()).stderr(line()).spawn().unwrap())
    }

    pub fn press(&self, keys: &[u8]) {
        (&self.keyboard).write_all(keys).unwrap();
    }

    pub fn modes(&self) -> Termios {
        tcgetattr(&self.line).unwrap()
    }

    /// Whether keys are passed on at once and not echoed.
    pub fn is_raw(&self) -> bool {
        !self.modes().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    pub fn screen(&self) -> Screen {
        self.screen.lock().unwrap().clone()
    }

    /// Waits until the screen satisfies `is_so`.
    pub async fn shows(&self, what: &str, is_so: impl Fn(&Screen) -> bool) -> Screen {
        let shown = wait::until_some(what, DEADLINE, async || Ok(Some(self.screen()).filter(&is_so))).await;
        shown.unwrap_or_else(|error| panic!("{error}:\n{}", self.screen().text()))
    }

    /// Waits until the screen contains these parts.
    pub async fn shows_all(&self, parts: &[&str]) -> Screen {
        let has = |screen: &Screen| parts.iter().all(|part| screen.text().contains(part));
        self.shows(&format!("{parts:?}"), has).await
    }
}

impl Screen {
    pub fn line(&self, row: usize) -> String {
        self.rows[row].iter().collect()
    }

    pub fn text(&self) -> String {
        let lines = self.rows.iter().map(|row| row.iter().collect::<String>());
        lines.map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    fn take(&mut self, bytes: &[u8]) {
        self.open.extend_from_slice(bytes);
        let open = std::mem::take(&mut self.open);
        let mut rest = open.as_slice();
        while let Some(length) = length_of_first(rest) {
            let (first, after) = rest.split_at(length);
            self.one(std::str::from_utf8(first).unwrap());
            rest = after;
        }
        self.open = rest.to_vec();
    }

    /// Applies one character or one command.
    fn one(&mut self, first: &str) {
        match first {
            "\r" => self.column = 0,
            "\n" => self.row = (self.row + 1).min(self.rows.len() - 1),
            "\x1b[H" => (self.row, self.column) = (0, 0),
            "\x1b[J" => self.erase_below(),
            "\x1b[?1049h" | "\x1b[?1049l" => self.is_alternate = first.ends_with('h'),
            "\x1b[?25h" | "\x1b[?25l" => self.hides_cursor = first.ends_with('l'),
            "\x1b[?7h" | "\x1b[?7l" => self.cuts_lines = first.ends_with('l'),
            // Colours and styles.
            command if command.starts_with('\x1b') => assert!(command.ends_with('m'), "{command:?}"),
            character => self.put(character.chars().next().unwrap()),
        }
    }

    /// At the end of a line that is cut, the next character replaces the last one.
    fn put(&mut self, character: char) {
        let (row, column) = (self.row.min(self.rows.len() - 1), self.column.min(self.rows[0].len() - 1));
        self.rows[row][column] = character;
        (self.row, self.column) = (row, column + 1);
    }

    /// Erases from the cursor on; at the end of a line the cursor stands on the last character.
    fn erase_below(&mut self) {
        let column = self.column.min(self.rows[0].len() - 1);
        for (at, line) in self.rows.iter_mut().enumerate().skip(self.row) {
            line[if at == self.row { column } else { 0 }..].fill(' ');
        }
    }
}

/// Length of the first character or command in bytes; `None` if it is incomplete.
fn length_of_first(bytes: &[u8]) -> Option<usize> {
    let length = match bytes.first()? {
        b'\x1b' => bytes.iter().skip(2).position(|byte| matches!(byte, b'@'..=b'~'))? + 3,
        0..0x80 => 1,
        0x80..0xE0 => 2,
        0xE0..0xF0 => 3,
        _ => 4,
    };
    (bytes.len() >= length).then_some(length)
}

/// A program that ends with the test.
pub struct Running(pub Child);

impl Running {
    /// Waits until it has ended by itself.
    pub async fn code(&mut self) -> Option<i32> {
        let ended = async || Ok(self.0.try_wait()?);
        wait::until_some("the program ends", DEADLINE, ended).await.unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
