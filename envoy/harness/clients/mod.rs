//! Clients of scenarios: `http` (single requests), `load` (many at once) and `browser` (a headless Chromium).

pub mod browser;
pub mod http;
pub mod load;
