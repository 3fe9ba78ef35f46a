//! The admin listener, the status page's data, the terminal and the commands.

mod admin;
mod admin_control;
mod overrides_tls;
mod program;
mod top_terminal;
