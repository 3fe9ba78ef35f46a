//! The environment variables of options, which all are read alike: an empty one counts as not given, as Compose writes `${NAME:-}`, and a
//! switch is on by `1`, `true`, `yes` or `on`.

use clap::builder::{BoolishValueParser, Resettable};
use clap::{Arg, ArgAction, Command};

/// Lets the options of `command` and its subcommands read their variables so.
pub fn prepared(command: Command) -> Command {
    let command = command.mut_args(prepared_arg);
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.iter().fold(command, |command, name| command.mut_subcommand(name, prepared))
}

fn prepared_arg(arg: Arg) -> Arg {
    let Some(value) = arg.get_env().map(std::env::var_os) else { return arg };
    let arg = match arg.get_action() {
        ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
        _ => arg,
    };
    if value.is_some_and(|value| value.is_empty()) { arg.env(Resettable::Reset) } else { arg }
}
