//! Tests of `weir-aggregator top` on a terminal: its tables, keys, resizing, an aggregator that stops, and the restored
//! terminal.

use crate::support::http::Client;
use crate::support::terminal::{Running, Screen, Terminal};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use weir_envoy::ports;

/// Number of keys in the table, more than a small screen has lines.
const KEYS: usize = 12;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
    let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
    command.args(arguments).env_clear().envs(variables);
    command
}

/// An aggregator in a separate process, so that it can be frozen and killed.
struct Aggregator {
    process: Running,
    admin: String,
    http: String,
}

impl Aggregator {
    fn start(admin: &str) -> Aggregator {
        let mut command = program(&["serve", "--region", "here", "--log-format", "json"]);
        command.args([
            "--grpc-listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
            "--admin-listen",
            admin,
        ]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut process = Running(child);
        let mut log = BufReader::new(process.0.stderr.take().unwrap()).lines();
        let line = log.find_map(|line| line.ok().filter(|line| line.contains("weir-aggregator serves")));
        let logged: Value = serde_json::from_str(&line.expect("the program must serve")).unwrap();
        // A log that is not read could block the program.
        std::thread::spawn(move || log.for_each(drop));
        let address = |name: &str| logged["fields"][name].as_str().unwrap().to_owned();
        Aggregator { process, admin: address("admin"), http: address("http") }
    }

    /// Uses as many keys as the table should have.
    async fn with_keys(self) -> Aggregator {
        let mut client = Client::over(TcpStream::connect(&self.http).await.unwrap()).await;
        for number in 0..KEYS {
            let identifier = format!("user-{number}");
            let check = json!({"namespace": "n", "identifier": identifier, "limit": 50, "duration": "1h",
                               "cost": 40 - number, "timeout": "5s"});
            assert_eq!(client.post("/v1/check", &check).await.body["allowed"], true);
        }
        self
    }

    fn signal(&self, number: Signal) {
        signal(&self.process.0, number);
    }
}

fn signal(child: &Child, number: Signal) {
    kill_process(Pid::from_child(child), number).unwrap();
}

fn top(terminal: &Terminal, aggregator: &Aggregator) -> Running {
    terminal.start(program(&["top"]).env("WEIR_ADMIN_URL", format!("http://{}", aggregator.admin)))
}

/// The tabs, with the shown one in brackets.
fn tabs(screen: &Screen) -> String {
    screen.line(1).split("tab:").next().unwrap().trim().to_owned()
}

/// The shown age of the data.
fn age_s(screen: &Screen) -> u64 {
    let age = screen.line(1).split("as of ").nth(1).unwrap_or_default().to_owned();
    age.split('s').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
}

/// How the user quits.
#[derive(Clone, Copy, Debug)]
enum End {
    Key(&'static [u8]),
    Signal(Signal),
}

/// The program has ended, and the terminal is restored.
async fn is_as_before(terminal: &Terminal, before: &rustix::termios::Termios) {
    assert_eq!(format!("{:?}", terminal.modes()), format!("{before:?}"));
    let screen = terminal.shows("the previous screen", |screen| !screen.is_alternate).await;
    assert!(!screen.hides_cursor && !screen.cuts_lines, "{screen:?}");
}

#[tokio::test]
async fn it_follows_keys_and_sizes() {
    let aggregator = Aggregator::start("127.0.0.1:0").with_keys().await;
    let terminal = Terminal::new(120, 30);
    let before = terminal.modes();
    let mut running = top(&terminal, &aggregator);
    let screen =
        terminal.shows_all(&["region here", "all well", "[1 keys]", "user-0", "user-11", "80%"]).await;
    println!("{}", screen.text());
    assert!(terminal.is_raw() && screen.is_alternate && screen.hides_cursor && screen.cuts_lines);

    terminal.press(b"2");
    let screen = terminal.shows_all(&["[2 rules]", "no filter has reported its rules yet"]).await;
    assert_eq!(tabs(&screen), "1 keys  [2 rules]  3 parts");
    terminal.press(b"\t");
    terminal.shows_all(&["[3 parts]", "this aggregator", "embedded limiter"]).await;
    terminal.press(b"?\x1b[5;3~");
    // In one read, as held keys arrive.
    terminal.press(b"1\x1b[B\x1b[Bj");
    terminal.shows_all(&["[1 keys]", "user-0"]).await;

    terminal.resize(70, 8);
    let is_cut = |screen: &Screen| (3..8).all(|row| screen.line(row).ends_with('…'));
    let screen = terminal.shows("a smaller table", is_cut).await;
    println!("{}", screen.text());
    assert!(screen.line(0).contains("all well"), "{}", screen.text());
    assert!(screen.line(4).contains("user-0"), "{}", screen.text());
    terminal.press(b"jj\x1b[B");
    terminal.shows("the fourth key at the top", |screen| screen.line(4).contains("user-3 ")).await;
    terminal.press(b"     ");
    terminal.shows("the end of the table", |screen| screen.line(7).contains("user-11")).await;
    terminal.resize(110, 20);
    terminal
        .shows("all of it again", |screen| {
            screen.line(4).contains("user-0 ")
                && screen.line(15).contains("user-11")
                && screen.line(16).trim().is_empty()
        })
        .await;
    terminal.press(b"q");
    assert_eq!(running.code().await, Some(0));
    is_as_before(&terminal, &before).await;
}

#[tokio::test]
async fn however_it_is_ended_the_terminal_is_as_before() {
    let aggregator = Aggregator::start("127.0.0.1:0");
    for end in [End::Key(b"\x03"), End::Key(b"\x1b"), End::Signal(Signal::INT), End::Signal(Signal::TERM)] {
        let terminal = Terminal::new(80, 24);
        let before = terminal.modes();
        let mut running = top(&terminal, &aggregator);
        terminal.shows_all(&["all well", "no key has used any of its limit recently"]).await;
        assert!(terminal.is_raw());
        match end {
            End::Key(key) => terminal.press(key),
            End::Signal(number) => signal(&running.0, number),
        }
        assert_eq!(running.code().await, Some(0), "{end:?}");
        is_as_before(&terminal, &before).await;
    }
}

#[tokio::test]
async fn a_lost_aggregator_is_shown_and_blocks_no_input() {
    // The port stays reserved until the second aggregator has it.
    let admin = ports::local(ports::free().unwrap()).to_string();
    let aggregator = Aggregator::start(&admin).with_keys().await;
    let terminal = Terminal::new(80, 24);
    let before = terminal.modes();
    let mut running = top(&terminal, &aggregator);
    let screen = terminal.shows_all(&["all well", "user-0"]).await;
    assert!(screen.line(3).ends_with("WAIT"), "{}", screen.text());
    // The aggregator hangs.
    aggregator.signal(Signal::STOP);
    terminal.shows("its age", |screen| age_s(screen) >= 2).await;
    terminal.press(b"3");
    // Before the pending request times out.
    let screen = terminal.shows_all(&["[3 parts]"]).await;
    assert!(
        !screen.text().contains("does not answer"),
        "keys must not wait for the aggregator:\n{}",
        screen.text()
    );
    let screen = terminal
        .shows_all(&["! the aggregator does not answer", "no answer within 5 s", "this aggregator"])
        .await;
    println!("{}", screen.text());
    assert!(!screen.text().contains("all well"), "{}", screen.text());
    aggregator.signal(Signal::CONT);
    terminal
        .shows("the recovery", |screen| {
            screen.line(0).contains("all well") && screen.line(2).trim().is_empty()
        })
        .await;
    // The aggregator ends, and another starts in its place.
    drop(aggregator);
    let screen = terminal
        .shows_all(&["! the aggregator does not answer", "! cannot reach an aggregator at http://127."])
        .await;
    println!("{}", screen.text());
    let other = Aggregator::start(&admin);
    terminal.shows("the other aggregator", |screen| screen.line(0).contains("all well")).await;
    terminal.press(b"1");
    terminal.shows_all(&["no key has used any of its limit recently"]).await;

    // Quitting takes effect at once, even if the aggregator does not answer.
    other.signal(Signal::STOP);
    terminal.shows("its age", |screen| age_s(screen) >= 2).await;
    terminal.press(b"q");
    let began = Instant::now();
    assert_eq!(running.code().await, Some(0));
    // A request may take 5 s.
    assert!(began.elapsed() < Duration::from_millis(4_500), "{:?}", began.elapsed());
    is_as_before(&terminal, &before).await;
}
