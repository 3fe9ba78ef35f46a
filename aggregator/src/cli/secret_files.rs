//! Secrets from files: each variable that holds one may be given as a file instead, as container platforms mount secrets:
//! `WEIR_FILTER_TOKEN_FILE` for `WEIR_FILTER_TOKEN`.
//!
//! Leaves to others: what the arguments are (`cli`).

use clap::{Arg, Command};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// Which one counts is not clear.
    #[error("{0} and {0}_FILE are both set; unset one of them")]
    Both(String),
    /// It is not there, or not readable.
    #[error("{0}_FILE names {path}, which cannot be read: {1}", path = .2.display())]
    Read(String, io::Error, PathBuf),
}

/// Gives each argument of `command` whose variable holds a secret the content of the file that `NAME_FILE` names, without the
/// line break at its end. Of subcommands, only those among the `arguments` are changed.
pub fn with_files(command: Command, arguments: &[OsString]) -> Result<Command, SecretFileError> {
    let mut failed = None;
    let command = filled(command, arguments, &mut failed);
    failed.map_or(Ok(command), Err)
}

/// The same; the last error is put into `failed`.
fn filled(command: Command, arguments: &[OsString], failed: &mut Option<SecretFileError>) -> Command {
    let mut command = command.mut_args(|arg| match of_file(&arg) {
        Ok(Some(secret)) => arg.default_value(secret),
        Ok(None) => arg,
        Err(error) => {
            *failed = Some(error);
            arg
        }
    });
    let named = |name: &str| arguments.iter().any(|argument| argument == name);
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names.iter().filter(|name| named(name)) {
        command = command.mut_subcommand(name, |sub| filled(sub, arguments, failed));
    }
    command
}

/// An empty variable is one that is not set.
fn of_file(arg: &Arg) -> Result<Option<String>, SecretFileError> {
    let Some(name) = arg.get_env().and_then(OsStr::to_str).filter(|_| arg.is_hide_env_values_set()) else {
        return Ok(None);
    };
    let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let Some(path) = given(&format!("{name}_FILE")).map(PathBuf::from) else { return Ok(None) };
    if given(name).is_some() {
        return Err(SecretFileError::Both(name.to_owned()));
    }
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) => Err(SecretFileError::Read(name.to_owned(), error, path)),
    }
}
