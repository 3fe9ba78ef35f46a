//! Pages in a real browser: what their readers do, and what they see.

mod harness;
mod hostile;
mod playground;
mod screenshots;
mod verdict;
mod window;
