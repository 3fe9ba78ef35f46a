//! The command line: parses arguments, runs the command, sets the exit code. 0 is success, 1 a failure, 2 unusable arguments.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use clap::{CommandFactory, FromArgMatches};
use clap_complete::Shell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval_at};
use tracing::info;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use weir_aggregator::auth::{Entry, NewToken};
use weir_aggregator::cli::args::{
    AdminListen, Cleanup, Cli, Command, ControlRetention, Explain, LogFormat, Top,
};
use weir_aggregator::cli::check_config;
use weir_aggregator::cli::database::with_database;
use weir_aggregator::cli::outcome::{UNUSABLE, fail, plain_json, plain_lines, print, print_error};
use weir_aggregator::cli::terminal::{self, KeyName, Manner, TerminalError};
use weir_aggregator::cli::{healthcheck, log_fields, overrides, secret_files, variables, zones};
use weir_aggregator::database::{Database, DeletedRows, MigrationReport, Reason, Tidied};
use weir_aggregator::server::descriptors;
use weir_aggregator::server::{Server, Settings};
use weir_aggregator::telemetry::clock::{Clock, SystemClock};
use weir_core::fields::written;
use weir_core::model::schedule::Schedule;

/// How often a migration prints that it waits.
const MIGRATE_PROGRESS: Duration = Duration::from_secs(5);
/// Deadline of the check after a migration.
const SCHEMA_CHECK: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let command = match secret_files::with_files(Cli::command(), &arguments) {
        Ok(command) => variables::prepared(command),
        Err(error) => return fail(&error, UNUSABLE),
    };
    let cli =
        Cli::from_arg_matches(&command.get_matches_from(arguments)).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::CheckConfig { file: Some(file), json, .. } => check(&file, json),
        Command::CheckConfig { file: None, .. } => {
            print(&format_args!("{:#}", weir_core::rules::schema()));
            ExitCode::SUCCESS
        }
        Command::Healthcheck(AdminListen { admin_listen }) => match healthcheck::run(&admin_listen) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format_args!("{error:#}"), 1),
        },
        Command::Migrate { database } => with_database(database, migrate),
        Command::Cleanup(Cleanup { database, older_than, batch, ledger_retention, control }) => {
            with_database(database, async move |database| {
                // A failure of one does not keep the others from running.
                let counts = cleanup(&database, older_than, batch).await;
                let ledger = cleanup_ledger(&database, ledger_retention, batch).await;
                cleanup_controls(&database, control, batch).await.and(ledger).and(counts)
            })
        }
        Command::Token(arguments) => match token(arguments.into()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, UNUSABLE),
        },
        Command::Zones { command } => zones::run(command),
        Command::Overrides { command } => overrides::run(*command),
        Command::Completions { shell } => match completions(shell) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, 1),
        },
        Command::Top(arguments) => top(&arguments),
        Command::Explain(arguments) => explain(arguments),
        Command::Serve(arguments) => {
            let settings = match arguments.settings() {
                Ok(settings) => settings,
                Err(error) => return fail(&error, UNUSABLE),
            };
            if let Err(error) = start_log(&cli.log, cli.log_format) {
                return fail(&error, UNUSABLE);
            }
            descriptors::raise_limit();
            match serve(settings) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error, 1),
            }
        }
    }
}

#[tokio::main]
async fn serve(settings: Settings) -> anyhow::Result<()> {
    let mut signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        hangup: signal(SignalKind::hangup())?,
    };
    let mut server = tokio::select! {
        server = Server::start(settings, Arc::new(SystemClock)) => server?,
        name = signals.end() => {
            info!("{name}: ends before it has served");
            return Ok(());
        }
    };
    tokio::select! {
        error = server.failed() => return Err(error.into()),
        name = signals.end() => info!("{name}: shutting down"),
    }
    server.stop().await;
    Ok(())
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Completes when the program is to end. Returns the signal's name.
    async fn end(&mut self) -> &'static str {
        let is_in_terminal = std::io::stderr().is_terminal();
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => {
                    // The terminal that the program was started in has gone.
                    if is_in_terminal {
                        return "SIGHUP";
                    }
                    info!("SIGHUP: nothing to do; files of limits, tokens and certificates are read again when they change");
                }
            }
        }
    }
}

async fn migrate(database: Database) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut progress = interval_at(began + MIGRATE_PROGRESS, MIGRATE_PROGRESS);
    let mut migrating = pin!(database.migrate());
    let migrated = loop {
        tokio::select! {
            migrated = &mut migrating => break migrated,
            _ = progress.tick() => {
                let seconds = began.elapsed().as_secs();
                print_error(&format_args!("waiting for the database since {seconds} s"));
            }
        }
    };
    let MigrationReport { applied, present, newer } = migrated?;
    for migration in &applied {
        print(&format_args!("applied {migration}"));
    }
    if applied.is_empty() {
        print(&format_args!("nothing to do: all {present} migrations had been applied"));
    }
    if let Some(newer) = newer {
        print(&format_args!(
            "a newer version has applied migration {newer:04}; this version can use its tables"
        ));
    }
    match database.check_schema(SCHEMA_CHECK).await {
        Err(error) if error.kind() == Reason::Schema => anyhow::bail!(
            "all migrations were applied, but a table or a column is missing: restore it from a backup, or drop all tables whose names \
             begin with weir_ and run migrate again ({error})"
        ),
        checked => Ok(checked?),
    }
}

async fn cleanup(database: &Database, older_than: Duration, batch: u32) -> anyhow::Result<()> {
    let mut deleted = 0;
    // A region that is alive writes within this time.
    let Schedule { publish_ms, jitter_percent, packet_timeout_ms, .. } = Schedule::default();
    let alive_within =
        Duration::from_millis(publish_ms + publish_ms * jitter_percent / 100 + packet_timeout_ms);
    let result =
        database.cleanup(older_than, batch, SystemClock.now(), alive_within, |rows| deleted += rows).await;
    let age = duration(older_than);
    print(&format_args!("deleted {deleted} rows that expired more than {age} ago"));
    Ok(result.map(drop)?)
}

fn token(entry: Entry) -> anyhow::Result<()> {
    let wrong = |what| anyhow::anyhow!("{what}");
    let note = match entry.workspaces.is_none() && entry.namespaces.is_none() {
        true => "# As --namespaces is not given, it may count in no namespace by name.\n",
        false => "",
    };
    if entry.san.is_some() {
        let entry = entry.to_yaml().map_err(wrong)?;
        print(&format_args!("# Add this entry to the file of --tokens-file:\n{note}{}", entry.trim_end()));
        return Ok(());
    }
    let NewToken { token, entry } = NewToken::new(entry).map_err(wrong)?;
    print(&format_args!(
        "{token}\n\n# The token above is shown only once. Add this entry to the file of --tokens-file:\n{note}{}",
        entry.trim_end()
    ));
    Ok(())
}

async fn cleanup_ledger(database: &Database, retention: Duration, batch: u32) -> anyhow::Result<()> {
    let (mut transactions, mut locks) = (0, 0);
    let on_batch = |deleted| match deleted {
        DeletedRows::Transactions(rows) => transactions += rows,
        DeletedRows::Locks(rows) => locks += rows,
    };
    let result = database.cleanup_ledger(retention, batch, on_batch).await;
    let age = duration(retention);
    print(&format_args!(
        "deleted {transactions} transactions of the ledger and {locks} bucket locks older than {age}"
    ));
    Ok(result?)
}

async fn cleanup_controls(
    database: &Database,
    ControlRetention { control_retention, audit_retention }: ControlRetention,
    batch: u32,
) -> anyhow::Result<()> {
    let now = SystemClock.now();
    let Tidied { controls, audited } =
        database.cleanup_controls(control_retention, audit_retention, batch, now).await?;
    let (old, older) = (duration(control_retention), duration(audit_retention));
    print(&format_args!(
        "deleted {controls} live controls that ended more than {old} ago and {audited} changes older than {older}"
    ));
    Ok(())
}

fn duration(age: Duration) -> String {
    written(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

fn completions(shell: Shell) -> std::io::Result<()> {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    // Into memory first, because the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    // clap_complete spells the hyphen of a program's name in two ways, and in bash offers nothing after a subcommand:
    // https://github.com/clap-rs/clap/issues/6421
    let script = String::from_utf8_lossy(&script).replace("weir__subcmd__aggregator", "weir__aggregator");
    std::io::stdout().write_all(script.as_bytes())
}

#[tokio::main(flavor = "current_thread")]
async fn top(Top { admin, once, text }: &Top) -> ExitCode {
    let manner = match (admin.json, once) {
        (true, _) => Manner::Json,
        (false, true) => Manner::Once,
        (false, false) => Manner::Live,
    };
    shown(match text {
        Some(text) => terminal::search(&admin.admin_url, text, admin.json).await,
        None => terminal::top(&admin.admin_url, manner).await,
    })
}

#[tokio::main(flavor = "current_thread")]
async fn explain(arguments: Explain) -> ExitCode {
    let Explain { admin, workspace, namespace, zone, identifier, window } = arguments;
    let window_ms = window.map(|window| u64::try_from(window.as_millis()).unwrap_or(u64::MAX));
    let arguments = KeyName { workspace, namespace, zone, identifier, window_ms };
    shown(terminal::explain(&admin.admin_url, &arguments, admin.json).await)
}

fn shown(result: Result<(), TerminalError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ TerminalError::Server(_)) => fail(&error, UNUSABLE),
        Err(error) => fail(&error, 1),
    }
}

fn check(file: &Path, json: bool) -> ExitCode {
    let report = match check_config::check(file) {
        Ok(report) => report,
        Err(reason) => return fail(&reason, UNUSABLE),
    };
    match (json, report.is_valid()) {
        (true, _) => print(&plain_json(&format!("{:#}", report.to_json()))),
        (false, true) => print(&plain_lines(&report.to_text())),
        (false, false) => print_error(&plain_lines(&report.to_text())),
    }
    if report.is_valid() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn start_log(directives: &str, format: LogFormat) -> anyhow::Result<()> {
    // A word that is no level would be read as a module, and silence all others.
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let is_known = |word: &str| word.is_empty() || word.contains(['=', '[', ':']) || is_level(word);
    if let Some(word) = directives.split(',').map(str::trim).find(|word| !is_known(word)) {
        anyhow::bail!(
            "--log or WEIR_LOG cannot be used: {word:?} is no level; try \"info\", or \"{word}=info\" for a module"
        );
    }
    let filter = EnvFilter::try_new(directives)
        .map_err(|error| anyhow::anyhow!("--log or WEIR_LOG cannot be used: {error}; try \"info\""))?;
    let colours = std::io::stderr().is_terminal();
    // What cannot be written is lost: a full disk or a reader that has gone does not end the program.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.fmt_fields(log_fields::escaped()).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}
