//! What both edges name alike: kinds of what is passed to Envoy, with the numbers that both of its interfaces have for them, and where it
//! has called.

use weir_core::model::wire;

/// Largest message that is received: four times the largest frame of an aggregator.
pub const MAX_MESSAGE_BYTES: usize = 4 * wire::MAX_FRAME_BYTES;

/// How important a line of Envoy's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Of the ordinary course.
    Info = 2,
    /// Something is to be looked at.
    Warn = 3,
    /// Something does not work.
    Error = 4,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// It only grows.
    Counter = 0,
    /// It has a present value.
    Gauge = 1,
}

/// The context in which Envoy has called the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here {
    /// Its root.
    pub root: u32,
    /// The context itself: the root, or one of its requests.
    pub context: u32,
}

impl Here {
    /// A root's own context.
    pub fn root(root: u32) -> Here {
        Here { root, context: root }
    }
}
