//! Kinds of what is passed to Envoy, with the numbers that both of its interfaces have for them.

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
