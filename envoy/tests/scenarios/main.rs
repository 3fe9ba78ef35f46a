//! What Weir promises, on real Envoys and the real aggregator. Every scenario starts its own processes on free ports
//! and waits for conditions; the figures that it prints are seen with `--nocapture`.

mod common;
mod exactness;
mod faults;
mod region;
