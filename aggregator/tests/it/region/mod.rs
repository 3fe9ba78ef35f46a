//! Streams of filters, peers of a region, and several regions.

mod lease;
mod merge_rate;
mod peers;
mod regions;
mod split;
mod streams;
