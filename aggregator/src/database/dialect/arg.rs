//! A parameter of a statement.

/// A parameter of a statement.
#[derive(Clone, Copy, Debug)]
pub(in crate::database) enum Arg<'a> {
    Bytes(&'a [u8]),
    Int(u64),
}
