//! Who asks for what, when and where: arrivals in order of time, decided by the plan's seed.
//!
//! In reading order: [`arrivals`] of a whole plan; what each shape gives (`shapes`), one of them
//! by Zipf's law ([`Zipf`]); arrivals as text ([`trace`]).
//!
//! Leaves to others: which Envoys are alive, and deciding (`world`).

mod merge;
mod shapes;
pub mod trace;
mod zipf;

pub use merge::{Arrivals, arrivals};
pub use zipf::Zipf;
