//! Tests of the pages in a real browser, by mouse and keyboard.

mod control;
mod harness;
mod hostile;
mod playground;
mod screenshots;
mod verdict;
mod window;
