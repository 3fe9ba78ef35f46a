//! Secrets from files: each environment variable with a secret may be given as a file instead, as container platforms
//! mount secrets. For example, `WEIR_FILTER_TOKEN_FILE` replaces `WEIR_FILTER_TOKEN`.

use clap::{Arg, Command};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// Both the variable and the file are set.
    #[error("{0} and {0}_FILE are both set; unset one of them")]
    Both(String),
    /// The file is missing or unreadable.
    #[error("{0}_FILE names {path}, which cannot be read: {1}", path = .2.display())]
    Read(String, io::Error, PathBuf),
}

/// For each argument of `command` whose variable holds a secret, sets the default to the content of the file in
/// `NAME_FILE`, without a line break at its end. Changes only those subcommands that are among the `arguments`.
pub fn with_files(command: Command, arguments: &[OsString]) -> Result<Command, SecretFileError> {
    let mut failed = None;
    let command = filled(command, arguments, &mut failed);
    failed.map_or(Ok(command), Err)
}

/// Does the work of [`with_files`]; stores the last error in `failed`.
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

/// The secret from the file, if a file is configured. An empty variable counts as unset.
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
