//! Hostile peers, credentials, bounds, and the page that promises what they show.

mod bad_peers;
mod crowded;
mod evil_filter;
mod filter_credentials;
mod published_tokens;
mod security_page;
mod tls;
