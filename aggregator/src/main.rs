//! The program's edge: arguments in, exit code out. 0 is success, 1 a failure, 2 arguments that cannot be used.
//!
//! Leaves to others: everything else.

mod cli;

use clap::Parser;
use cli::{Cli, Command, LogFormat};
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;
use weir_aggregator::check_config::{self, Verdict};
use weir_aggregator::clock::SystemClock;
use weir_aggregator::serve::{Server, Settings};

const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::CheckConfig { file } => check(&file),
        Command::Serve(arguments) => {
            let settings = match arguments.settings() {
                Ok(settings) => settings,
                Err(error) => return fail(&error, UNUSABLE),
            };
            if let Err(error) = start_log(&cli.log, cli.log_format) {
                return fail(&error, UNUSABLE);
            }
            match serve(settings) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error, 1),
            }
        }
    }
}

#[tokio::main]
async fn serve(settings: Settings) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut server = Server::start(settings, Arc::new(SystemClock)).await?;
    tokio::select! {
        error = server.failed() => return Err(error.into()),
        _ = terminate.recv() => info!("SIGTERM: shutting down"),
        _ = interrupt.recv() => info!("SIGINT: shutting down"),
    }
    server.stop().await;
    Ok(())
}

fn check(file: &Path) -> ExitCode {
    match check_config::check(file) {
        Verdict::Sound(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Verdict::Wrong(errors) => {
            eprintln!("{errors}");
            ExitCode::FAILURE
        }
        Verdict::Unreadable(reason) => fail(&reason, UNUSABLE),
    }
}

fn start_log(directives: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(directives)
        .map_err(|error| anyhow::anyhow!("--log or WEIR_LOG cannot be used: {error}; try \"info\""))?;
    let colours = std::io::stderr().is_terminal();
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

fn fail(error: &impl std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(code)
}
