//! Values in a raw identifier: `\` becomes `\\`, and `|` becomes `\|`.

use alloc::vec::Vec;

/// Appends a value.
pub(super) fn push_escaped(value: &[u8], out: &mut Vec<u8>) {
    match memchr::memchr2(b'\\', b'|', value) {
        None => out.extend_from_slice(value),
        Some(_) => value.iter().for_each(|byte| push_escaped_byte(*byte, out)),
    }
}

/// Appends one byte of a value.
pub(super) fn push_escaped_byte(byte: u8, out: &mut Vec<u8>) {
    if matches!(byte, b'\\' | b'|') {
        out.push(b'\\');
    }
    out.push(byte);
}
