//! Converts keys to columns and back.
//!
//! A key's epoch and resolution have no columns. If they differ from the defaults (0 and 1), they precede the
//! identifier as `\@<epoch>.<resolution>:`. No identifier that a rule makes begins so, because the filter escapes a
//! backslash as `\\`, or follows it with `|`, `-` or `~`. An identifier from elsewhere that begins so gets the prefix
//! too. Different keys therefore always have different columns.

use crate::database::connection::Row;
use crate::database::dialect::push_hex;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::window::MAX_COUNT;
use weir_core::region::exchange::{Publication, Stored, StoredRegion};
use weir_core::replication::global::packet::Writer;

const PREFIX: &[u8] = br"\@";
/// Largest number that every column can store.
pub(in crate::database) const MAX_NUMBER: u64 = i64::MAX as u64;

// The columns of the statements that read rows. After `LIMIT`, packets and pages read two columns of their own.
const WORKSPACE: usize = 0;
const NAMESPACE: usize = 1;
const IDENTIFIER: usize = 2;
pub(in crate::database) const DURATION: usize = 3;
pub(in crate::database) const SEQUENCE: usize = 4;
pub(in crate::database) const COUNT: usize = 5;
pub(in crate::database) const REGION: usize = 6;
const LIMIT: usize = 7;
pub(in crate::database) const WRITER: usize = 8;
pub(in crate::database) const VERSION: usize = 9;
pub(in crate::database) const EXPIRES: usize = 8;
pub(in crate::database) const PLACE: usize = 9;

/// The column `lowest_limit` of a limit that is unknown or as high.
const UNKNOWN_LIMIT: u64 = MAX_COUNT;

/// What a packet writes to each of its rows.
pub(in crate::database) struct Stamp {
    pub writer: Writer,
    pub version: u64,
}

/// The column `identifier` of a key.
pub fn encode_identifier<'a>(key: &KeyParts<'a>) -> Cow<'a, [u8]> {
    if key.epoch == 0 && key.resolution == 1 && !key.identifier.starts_with(PREFIX) {
        return Cow::Borrowed(key.identifier);
    }
    let mut stored = format!("\\@{}.{}:", key.epoch, key.resolution).into_bytes();
    stored.extend_from_slice(key.identifier);
    Cow::Owned(stored)
}

/// Epoch, resolution and identifier of a stored identifier; `None` if [`encode_identifier`] cannot have made it.
pub fn decode_identifier(stored: &[u8]) -> Option<(u32, u16, &[u8])> {
    let Some(prefixed) = stored.strip_prefix(PREFIX) else { return Some((0, 1, stored)) };
    let (epoch, rest) = number(prefixed, b'.')?;
    let (resolution, identifier) = number(rest, b':')?;
    if epoch == 0 && resolution == 1 && !identifier.starts_with(PREFIX) {
        return None;
    }
    Some((epoch, resolution.try_into().ok()?, identifier))
}

/// Parses a number in canonical form, up to `end`.
fn number(bytes: &[u8], end: u8) -> Option<(u32, &[u8])> {
    let length = bytes.iter().position(|byte| *byte == end)?;
    let (digits, rest) = bytes.split_at(length);
    let plain = digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || !digits.starts_with(b"0"));
    let value = std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()?;
    Some((value, rest.get(1..)?))
}

/// The reason why no database can store the row, if there is one.
fn unstorable(row: &Publication) -> Option<&'static str> {
    if row.sequence > MAX_NUMBER {
        return Some("sequence is too large");
    }
    if row.count > MAX_COUNT {
        return Some("count is above 2^53");
    }
    // The cleanup never deletes a row that expires at 0.
    if row.expires.0 == 0 || row.expires.0 > MAX_NUMBER {
        return Some("expires at no moment");
    }
    None
}

/// The rows that can be stored, in the order of the unique key.
pub(in crate::database) struct Storable {
    pub rows: Vec<Publication>,
    /// Number of the other rows.
    pub skipped: u64,
    /// A description of one of them.
    pub example: Option<String>,
}

pub(in crate::database) fn storable(publications: &[Publication]) -> Storable {
    let mut storable = Storable { rows: Vec::with_capacity(publications.len()), skipped: 0, example: None };
    for row in publications {
        match unstorable(row) {
            None => storable.rows.push(row.clone()),
            Some(reason) => {
                storable.skipped += 1;
                storable.example.get_or_insert_with(|| describe(row, reason));
            }
        }
    }
    storable.rows.sort_by_cached_key(index_order);
    storable
}

fn describe(row: &Publication, reason: &str) -> String {
    let Publication { sequence, count, expires, .. } = row;
    let namespace = row.key.parts().namespace.escape_ascii();
    format!("namespace \"{namespace}\", sequence {sequence}, count {count}, expires {}: {reason}", expires.0)
}

/// The columns of the unique key in their order. All writers store rows in this order, so that two writers do not
/// deadlock.
fn index_order(row: &Publication) -> (Vec<u8>, Vec<u8>, Vec<u8>, u64, u64) {
    let key = row.key.parts();
    let identifier = encode_identifier(&key).into_owned();
    (key.workspace.to_vec(), key.namespace.to_vec(), identifier, key.duration_ms, row.sequence)
}

/// Appends a row of a packet as SQL text. Bytes are written as hexadecimal literals, which cannot contain SQL.
pub(in crate::database) fn push_row(
    row: &Publication,
    region: &[u8],
    updated_at: u64,
    stamp: &Stamp,
    sql: &mut String,
) {
    let key = row.key.parts();
    sql.push('(');
    for text in [key.workspace, key.namespace, &encode_identifier(&key)] {
        push_hex(text, sql);
        sql.push(',');
    }
    // Writing to a `String` cannot fail.
    let _ = write!(sql, "{},{},", key.duration_ms, row.sequence);
    push_hex(region, sql);
    let _ = write!(sql, ",{},{},{updated_at}", row.count, row.expires.0);
    push_stamp(row.limit.min(UNKNOWN_LIMIT), stamp, sql);
    sql.push(')');
}

/// Appends the marker of a writer: a row under a key that no cell has, with the version as its count.
pub(in crate::database) fn push_marker(
    stamp: &Stamp,
    region: &[u8],
    expires_at: u64,
    updated_at: u64,
    sql: &mut String,
) {
    let _ = write!(sql, "(x'',x'',x'',0,{},", stamp.writer.number());
    push_hex(region, sql);
    let _ = write!(sql, ",{},{expires_at},{updated_at}", stamp.version);
    push_stamp(UNKNOWN_LIMIT, stamp, sql);
    sql.push(')');
}

fn push_stamp(limit: u64, stamp: &Stamp, sql: &mut String) {
    let _ = write!(sql, ",{limit},{},{}", stamp.writer.number(), stamp.version);
}

/// The cells read so far. The table may contain anything: a row that is not a cell is counted and skipped.
#[derive(Default)]
pub(in crate::database) struct Cells {
    pub regions: BTreeMap<Vec<u8>, Vec<Stored>>,
    /// Number of skipped rows.
    pub bad: u64,
    /// A description of one of them.
    pub bad_example: Option<String>,
}

impl Cells {
    pub fn take(&mut self, row: &Row<'_>) {
        match read_row(row) {
            Ok((region, cell)) => match self.regions.get_mut(region) {
                Some(cells) => cells.push(cell),
                None => drop(self.regions.insert(region.to_vec(), vec![cell])),
            },
            Err(reason) => self.skip(row, &reason),
        }
    }

    pub fn skip(&mut self, row: &Row<'_>, reason: &str) {
        self.bad += 1;
        self.bad_example.get_or_insert_with(|| format!("{}: {reason}", place(row)));
    }
}

pub(in crate::database) fn by_region(regions: BTreeMap<Vec<u8>, Vec<Stored>>) -> Vec<StoredRegion> {
    regions.into_iter().map(|(region, cells)| StoredRegion { region, cells }).collect()
}

/// Identifies a row for operators without exposing the limited identifier.
fn place(row: &Row<'_>) -> String {
    const SHOWN_BYTES: usize = 64;
    let text = |column| {
        let bytes = row.bytes(column).unwrap_or_default();
        bytes.get(..SHOWN_BYTES).unwrap_or(bytes).escape_ascii().to_string()
    };
    format!("a row of workspace \"{}\", namespace \"{}\"", text(WORKSPACE), text(NAMESPACE))
}

/// Reads a row as a cell of a region, or returns what is wrong with it.
fn read_row<'a>(row: &'a Row<'_>) -> Result<(&'a [u8], Stored), String> {
    let text = |column| row.bytes(column).ok_or_else(|| "a text is none".to_owned());
    let number = |column, name| row.number(column).ok_or_else(|| format!("its {name} is out of range"));
    let (workspace, namespace, stored) = (text(WORKSPACE)?, text(NAMESPACE)?, text(IDENTIFIER)?);
    let (epoch, resolution, identifier) =
        decode_identifier(stored).ok_or_else(|| "its identifier has a broken prefix".to_owned())?;
    let duration_ms = number(DURATION, "duration_ms")?;
    let sequence = number(SEQUENCE, "sequence")?;
    let parts = KeyParts { workspace, namespace, identifier, duration_ms, epoch, resolution };
    let key = Key::new(&parts).map_err(|error| error.to_string())?;
    let count = number(COUNT, "count")?;
    if count > MAX_COUNT {
        return Err("its count is above 2^53".to_owned());
    }
    // A limit denies nothing, so a count with an unreadable limit is used.
    let limit = row.number(LIMIT).filter(|limit| *limit < UNKNOWN_LIMIT).unwrap_or(u64::MAX);
    Ok((text(REGION)?, Stored { key, sequence, count, limit }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(identifier: &[u8], epoch: u32, resolution: u16) -> KeyParts<'_> {
        KeyParts { workspace: b"w", namespace: b"n", identifier, duration_ms: 60_000, epoch, resolution }
    }

    #[test]
    fn stored_identifiers() {
        let cases: [(&[u8], u32, u16, &[u8]); 7] = [
            (b"alice", 0, 1, b"alice"),
            (b"", 0, 1, b""),
            (br"\~", 0, 1, br"\~"),
            (b"alice", 3, 1, br"\@3.1:alice"),
            (b"alice", 0, 60, br"\@0.60:alice"),
            (br"\@0.60:alice", 0, 1, br"\@0.1:\@0.60:alice"),
            (br"\@", u32::MAX, 1_000, br"\@4294967295.1000:\@"),
        ];
        for (identifier, epoch, resolution, stored) in cases {
            assert_eq!(&*encode_identifier(&parts(identifier, epoch, resolution)), stored);
            assert_eq!(decode_identifier(stored), Some((epoch, resolution, identifier)));
        }
    }

    #[test]
    fn what_is_never_stored_is_not_read() {
        for stored in [
            br"\@".as_slice(),
            br"\@1.1",
            br"\@1:a",
            br"\@.1:a",
            br"\@1.:a",
            br"\@01.1:a",
            br"\@+1.1:a",
            br"\@1.65536:a",
            br"\@4294967296.1:a",
            br"\@0.1:a",
        ] {
            assert_eq!(decode_identifier(stored), None, "{}", stored.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn storing_can_be_undone_and_so_is_unambiguous(
            prefix in r"(\\@([0-9]{1,2}\.[0-9]{1,2}:)?)?",
            rest in prop::collection::vec(any::<u8>(), 0..30),
            epoch in prop_oneof![Just(0), Just(1), any::<u32>()],
            resolution in prop_oneof![Just(1_u16), any::<u16>()],
        ) {
            let identifier = [prefix.as_bytes(), &rest].concat();
            let stored = encode_identifier(&parts(&identifier, epoch, resolution)).into_owned();
            prop_assert!(stored.len() <= identifier.len() + 19);
            prop_assert_eq!(decode_identifier(&stored), Some((epoch, resolution, &*identifier)));
        }

        #[test]
        fn whatever_is_read_is_how_it_would_be_stored(
            prefix in r"(\\@([0-9]{1,2}\.[0-9]{1,2}:)?){0,2}",
            rest in prop::collection::vec(any::<u8>(), 0..10),
        ) {
            let stored = [prefix.as_bytes(), &rest].concat();
            if let Some((epoch, resolution, identifier)) = decode_identifier(&stored) {
                let again = encode_identifier(&parts(identifier, epoch, resolution)).into_owned();
                prop_assert_eq!(again, stored);
            }
        }
    }
}
