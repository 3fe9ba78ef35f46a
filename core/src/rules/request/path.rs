//! The readings of a request's path: the texts that upstreams may take it for.
//!
//! Most paths have one reading, in which the query is removed and escapes are decoded, except those of `/ \ ; % ? #` and of
//! control characters, whose hex digits become upper case. Upstreams differ in the rest: whether they remove path parameters
//! (`;` and the rest of its segment) and dot segments, merge slashes, take `\`, `%5C` or `%2F` for a slash, or take a path that
//! begins with two slashes, as it was sent or after these changes, for a host and a path, or overlook a line feed at the end (`%0A`), before
//! which `$` matches in regular expressions of Python and PCRE. Each combination of what occurs in a path is a reading. A `\` or `;` that a
//! reader takes for itself is written `%5C` or `%3B`, so that it equals its escaped form.
//!
//! Where the order of these steps would matter as well, or there would be too many readings, the path has all of them: it meets
//! every condition, and none of its segments identifies a client. The time is linear in the length of the path.

use super::query::hex_byte;
use super::{has_foreign_blank, trim};
use alloc::vec::Vec;
use smallvec::{SmallVec, smallvec};

/// A path with more readings has all.
const READINGS_MAX: usize = 16;
/// So has a longer path with more than one.
const BYTES_MAX: usize = 8 * 1_024;

/// The part of a request target before its query and fragment.
pub(in crate::rules) fn without_query(target: &[u8]) -> &[u8] {
    target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default()
}

/// The readings of one path. The memory is reused.
#[derive(Debug, Default)]
pub(in crate::rules) struct Readings {
    /// The readings, one behind the other. If there is none, the path has all.
    bytes: Vec<u8>,
    ends: SmallVec<[usize; READINGS_MAX]>,
    is_plain: bool,
}

/// Upstreams read a segment of a path differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rules) struct Differs;

impl Readings {
    /// Reads the path of a request target. `*` and an empty path are not changed.
    pub fn read(&mut self, target: &[u8]) {
        self.bytes.clear();
        self.ends.clear();
        let plain = plain_path(target);
        self.is_plain = plain.is_some();
        if let Some(path) = plain {
            if !matches!(path, [] | [b'*'] | [b'/', ..]) {
                self.bytes.push(b'/');
            }
            self.bytes.extend_from_slice(path);
            self.ends.push(self.bytes.len());
            return;
        }
        let path = without_query(target);
        for reader in readers(path) {
            let start = self.bytes.len();
            reader.write(path, &mut self.bytes);
            let (earlier, last) = self.bytes.split_at_checked(start).unwrap_or_default();
            if each(earlier, &self.ends).any(|reading| reading == last) {
                self.bytes.truncate(start);
            } else {
                self.ends.push(self.bytes.len());
            }
        }
    }

    /// All readings; none if the path has too many.
    pub fn each(&self) -> impl Iterator<Item = &[u8]> {
        each(&self.bytes, &self.ends)
    }

    /// Whether the path has too many readings to list them.
    pub fn are_all(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether upstreams read the path differently.
    pub fn differ(&self) -> bool {
        self.ends.len() != 1
    }

    /// Whether all upstreams read the path as it is written.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Whether a test holds for one of the readings.
    pub fn any(&self, test: impl FnMut(&[u8]) -> bool) -> bool {
        self.are_all() || self.each().any(test)
    }

    /// Whether a test holds for all readings.
    pub fn all(&self, test: impl FnMut(&[u8]) -> bool) -> bool {
        !self.are_all() && self.each().all(test)
    }

    /// The segment with this `number`, from 1, without blanks around it and dots at its end; empty if there is none.
    pub fn segment(&self, number: usize) -> Result<&[u8], Differs> {
        let mut found = self.each().map(|reading| segment(reading, number));
        let first = found.next().flatten().ok_or(Differs)?;
        if is_one(first) && found.all(|other| other == Some(first)) { Ok(first) } else { Err(Differs) }
    }

    /// Passes on the bytes of the whole path as conditions on segments compare it: without a slash at its end, repeated slashes, and
    /// blanks and dots at the end of a segment. Returns false if upstreams read it differently; what was passed on is then invalid.
    pub fn write_whole(&self, mut write: impl FnMut(u8)) -> bool {
        let mut found = self.each();
        let Some(first) = found.next() else { return false };
        let mut is_empty = true;
        for segment in segments(first).map(trim) {
            is_empty = false;
            write(b'/');
            segment.iter().for_each(|byte| write(*byte));
        }
        if is_empty {
            write(b'/');
        }
        segments(first).map(trim).all(is_one)
            && found.all(|other| segments(other).map(trim).eq(segments(first).map(trim)))
    }
}

/// Whether all servers read a segment alike: some decode the escape of a control character, and may remove a blank.
fn is_one(segment: &[u8]) -> bool {
    let last = segment.len().checked_sub(3).and_then(|at| segment.get(at..));
    let ends_with_control = [segment.get(..3), last].into_iter().flatten().any(is_escaped_control);
    !has_foreign_blank(segment) && !ends_with_control
}

/// Whether this is an escape of a control character.
fn is_escaped_control(escape: &[u8]) -> bool {
    matches!(escape, [b'%', high, low] if hex_byte(*high, *low).is_some_and(|byte| byte.is_ascii_control()))
}

fn each<'a>(bytes: &'a [u8], ends: &[usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut start = 0;
    ends.iter().filter_map(move |end| {
        let reading = bytes.get(start..*end);
        start = *end;
        reading
    })
}

/// The segment with this number; `None` if some upstreams overlook it or one before it as a whole.
fn segment(path: &[u8], number: usize) -> Option<&[u8]> {
    let mut last: &[u8] = &[];
    // Before the first slash is nothing, or a whole path without one.
    let mut segments = path.split(|byte| *byte == b'/').skip(1);
    for _ in 0..number {
        let Some(segment) = segments.next() else { return Some(&[]) };
        last = without_tail(segment);
        if last.is_empty() && !segment.is_empty() {
            return None;
        }
    }
    Some(trim(last))
}

/// The path of a target, if nothing in it can be read in several ways.
fn plain_path(target: &[u8]) -> Option<&[u8]> {
    let mut is_behind_slash = false;
    for (at, byte) in target.iter().enumerate() {
        match byte {
            b'?' | b'#' => return target.get(..at),
            b'%' | b';' | b'\\' => return None,
            b'/' | b'.' if is_behind_slash => return None,
            _ => is_behind_slash = *byte == b'/',
        }
    }
    Some(target)
}

/// Writes the reading of most upstreams that change a path: without path parameters, dot segments and repeated slashes. `*` and
/// an empty path are not changed.
pub(in crate::rules) fn normalise(target: &[u8], out: &mut Vec<u8>) {
    out.clear();
    match without_query(target) {
        path @ ([] | b"*") => out.extend_from_slice(path),
        path => Reader::default().write(path, out),
    }
}

/// How an upstream reads a path.
#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    params: Params,
    dots: Dots,
    host: Host,
    /// Whether it keeps repeated slashes.
    slashes: bool,
    /// Whether it keeps a `\`.
    backslash: bool,
    /// Whether it takes `%5C` for a slash, and `%2F`.
    escaped_backslash: bool,
    escaped_slash: bool,
    /// Whether it overlooks a line feed at the end.
    line_feed: bool,
}

/// Where path parameters begin, which are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Params {
    /// At a `;`.
    #[default]
    Raw,
    /// Also at `%3B`.
    Decoded,
    /// Nowhere.
    Kept,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Dots {
    #[default]
    Resolved,
    /// A dot segment at the end leaves no slash behind.
    ResolvedWithoutSlash,
    Kept,
}

/// Where it takes what follows two slashes at the beginning for a host, which is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Host {
    #[default]
    Nowhere,
    /// In the path as it was sent.
    Sent,
    /// In what it has decoded and removed parameters from.
    Changed,
}

type Readers = SmallVec<[Reader; READINGS_MAX]>;

/// Those who read the path in different ways; none if there are too many ways.
fn readers(path: &[u8]) -> Readers {
    let marks = Marks::of(path);
    let mut readers: Readers = smallvec![Reader::default()];
    vary(&mut readers, marks.params, |reader| reader.params = Params::Kept);
    // Before the next change, as a reader has one of both.
    let decoded = readers.first().copied().filter(|_| marks.escaped_params);
    readers.extend(decoded.map(|reader| Reader { params: Params::Decoded, ..reader }));
    let resolving = readers.len();
    vary(&mut readers, marks.dots != 0, |reader| reader.dots = Dots::Kept);
    for at in (0..resolving).filter(|_| marks.ends_with_dots) {
        let reader = readers.get(at).copied();
        readers.extend(reader.map(|reader| Reader { dots: Dots::ResolvedWithoutSlash, ..reader }));
    }
    vary(&mut readers, marks.empty != 0, |reader| reader.slashes = true);
    let with_host = readers.len();
    vary(&mut readers, marks.host, |reader| reader.host = Host::Sent);
    for at in (0..with_host).filter(|_| marks.changed_host) {
        let reader = readers.get(at).copied();
        readers.extend(reader.map(|reader| Reader { host: Host::Changed, ..reader }));
    }
    vary(&mut readers, marks.backslash, |reader| reader.backslash = true);
    vary(&mut readers, marks.escaped_backslash, |reader| reader.escaped_backslash = true);
    vary(&mut readers, marks.escaped_slash, |reader| reader.escaped_slash = true);
    vary(&mut readers, without_line_feed(path).is_some(), |reader| reader.line_feed = true);
    let several_and_long = readers.len() > 1 && path.len() > BYTES_MAX;
    if marks.order_matters() || readers.len() > READINGS_MAX || several_and_long {
        readers.clear();
    }
    readers
}

/// Adds a changed copy of each reader.
fn vary(readers: &mut Readers, applies: bool, change: impl Fn(&mut Reader)) {
    let unchanged = if applies { readers.len() } else { 0 };
    for at in 0..unchanged {
        let Some(mut reader) = readers.get(at).copied() else { return };
        change(&mut reader);
        readers.push(reader);
    }
}

/// What upstreams read differently, as it occurs in a path.
#[derive(Debug, Default)]
struct Marks {
    params: bool,
    escaped_params: bool,
    /// A parameter has another separator than `/` in it.
    odd_params: bool,
    backslash: bool,
    escaped_backslash: bool,
    escaped_slash: bool,
    /// Bits of the kinds of separators with nothing between them: two `/`, with a `\`, with an escaped one.
    empty: u8,
    /// Two slashes at the beginning.
    host: bool,
    /// The same after escapes are decoded or parameters removed, or the host ends elsewhere then.
    changed_host: bool,
    /// Bits of the kinds of dot segments: written plainly or escaped, without parameters, with `;`, with `%3B`.
    dots: u8,
    ends_with_dots: bool,
}

/// A segment between any two separators, as far as it was read.
#[derive(Debug, Default)]
struct Segment {
    length: usize,
    dots: usize,
    has_escaped_dots: bool,
    /// 0: it has no parameters, 1: from a `;` on, 2: from a `%3B` on.
    params: u8,
}

impl Marks {
    fn of(path: &[u8]) -> Marks {
        let is_slash = |at: usize| matches!(path.get(at), Some(b'/' | b'\\'));
        let mut marks = Marks { host: is_slash(0) && is_slash(1), ..Marks::default() };
        let (mut segment, mut opened) = (Segment::default(), Separator::Slash);
        let (mut is_first, mut begins_empty) = (true, false);
        let mut rest = path.strip_prefix(b"/").unwrap_or(path);
        while let Some((unit, tail)) = next_unit(rest) {
            rest = tail;
            match unit {
                Unit::Separator(closed) => {
                    marks.odd_params |= segment.params != 0 && closed != Separator::Slash;
                    marks.end(&segment, Some((opened, closed)));
                    begins_empty |= is_first && segment.length == 0;
                    is_first = false;
                    match closed {
                        Separator::Slash => {}
                        Separator::Backslash => marks.backslash = true,
                        Separator::EscapedBackslash => marks.escaped_backslash = true,
                        Separator::EscapedSlash => marks.escaped_slash = true,
                    }
                    (segment, opened) = (Segment::default(), closed);
                }
                Unit::Params { escaped } => {
                    marks.params |= !escaped;
                    marks.escaped_params |= escaped;
                    if segment.params == 0 {
                        segment.params = if escaped { 2 } else { 1 };
                    }
                }
                Unit::Byte { .. } | Unit::Escape(..) if segment.params != 0 => {}
                Unit::Byte { byte, escaped } => {
                    segment.length = segment.length.saturating_add(1);
                    if byte == b'.' {
                        segment.dots = segment.dots.saturating_add(1);
                        segment.has_escaped_dots |= escaped;
                    }
                }
                Unit::Escape(..) => segment.length = segment.length.saturating_add(1),
            }
        }
        marks.end(&segment, None);
        let changes = marks.params || marks.escaped_params || marks.escaped_slash || marks.escaped_backslash;
        marks.changed_host = begins_empty && changes;
        marks
    }

    fn end(&mut self, segment: &Segment, between: Option<(Separator, Separator)>) {
        if (1..=2).contains(&segment.length) && segment.dots == segment.length {
            let kind = u32::from(segment.params) << 1 | u32::from(segment.has_escaped_dots);
            self.dots |= 1_u8.checked_shl(kind).unwrap_or(0);
            self.ends_with_dots |= between.is_none();
        }
        if let Some((opened, closed)) = between.filter(|_| segment.length == 0) {
            self.empty |= opened.kind().max(closed.kind());
        }
    }

    /// Whether a path has readings that depend on the order in which upstreams change it.
    fn order_matters(&self) -> bool {
        let others = self.backslash || self.escaped_backslash || self.escaped_slash;
        self.odd_params
            || self.empty.count_ones() > 1
            || self.dots.count_ones() > 1
            || self.dots != 0 && (others || self.empty != 0)
    }
}

impl Reader {
    /// Appends the reading.
    fn write(&self, path: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.push(b'/');
        let path = without_line_feed(path).filter(|_| self.line_feed).unwrap_or(path);
        let mut rest = if self.host == Host::Sent { behind_host(path) } else { path };
        // The host is found by the slashes before it.
        let merges_at_once = !self.slashes && self.host != Host::Changed;
        let mut is_first = true;
        while let Some((unit, tail)) = next_unit(rest) {
            rest = tail;
            match unit {
                Unit::Separator(separator) if self.separates(separator) => {
                    let is_removed = self.close_segment(start, out);
                    let merges = merges_at_once && out.last() == Some(&b'/');
                    if !is_first && !is_removed && !merges {
                        out.push(b'/');
                    }
                }
                Unit::Separator(Separator::EscapedSlash) => out.extend_from_slice(b"%2F"),
                Unit::Separator(_) => out.extend_from_slice(b"%5C"),
                Unit::Params { escaped }
                    if self.params == Params::Decoded || (!escaped && self.params == Params::Raw) =>
                {
                    let end =
                        rest.iter().position(|byte| *byte == b'/' || (*byte == b'\\' && !self.backslash));
                    rest = rest.get(end.unwrap_or(rest.len())..).unwrap_or_default();
                }
                Unit::Params { .. } => out.extend_from_slice(b"%3B"),
                Unit::Byte { byte, .. } => out.push(byte),
                Unit::Escape(high, low) => out.extend_from_slice(&[b'%', high, low]),
            }
            is_first = false;
        }
        let is_removed = self.close_segment(start, out);
        if is_removed && self.dots == Dots::ResolvedWithoutSlash && out.len() > start.saturating_add(1) {
            out.pop();
        }
        if self.host == Host::Changed {
            self.remove_host(start, out);
        }
    }

    /// Removes the host from what is written from `start` on, and then repeated slashes.
    fn remove_host(&self, start: usize, out: &mut Vec<u8>) {
        let written = out.get(start..).unwrap_or_default();
        if written.starts_with(b"//") {
            let host = written.len().saturating_sub(behind_host(written).len());
            // A path that is the host alone is empty.
            let end = if host == written.len() { host.saturating_sub(1) } else { host };
            out.drain(start..start.saturating_add(end));
            if let Some(first) = out.get_mut(start) {
                *first = b'/';
            }
        }
        if !self.slashes {
            let mut is_behind_slash = false;
            let mut at = 0;
            out.retain(|byte| {
                let is_repeated = at > start && is_behind_slash && *byte == b'/';
                is_behind_slash = at >= start && *byte == b'/';
                at = at.saturating_add(1);
                !is_repeated
            });
        }
    }

    fn separates(&self, separator: Separator) -> bool {
        match separator {
            Separator::Slash => true,
            Separator::Backslash => !self.backslash,
            Separator::EscapedBackslash => self.escaped_backslash,
            Separator::EscapedSlash => self.escaped_slash,
        }
    }

    /// Removes the last segment if it is `.`, and also the one before if it is `..`. What was removed is never visited
    /// again, so that the total time stays linear. Returns whether it removed one: then a slash is the last byte.
    fn close_segment(&self, start: usize, out: &mut Vec<u8>) -> bool {
        if self.dots == Dots::Kept {
            return false;
        }
        let from = segment_start(start, out);
        let climbs = match out.get(from..) {
            Some(b".") => false,
            Some(b"..") => true,
            _ => return false,
        };
        out.truncate(from);
        if climbs && from > start.saturating_add(1) {
            out.pop();
            let parent = segment_start(start, out);
            out.truncate(parent);
        }
        true
    }
}

/// The position after the last slash of what begins at `start`.
fn segment_start(start: usize, out: &[u8]) -> usize {
    let written = out.get(start..).unwrap_or_default();
    let slash = memchr::memrchr(b'/', written).map_or(0, |slash| slash.saturating_add(1));
    start.saturating_add(slash)
}

/// A path that ends with a line feed, without it.
fn without_line_feed(path: &[u8]) -> Option<&[u8]> {
    path.strip_suffix(b"%0A").or_else(|| path.strip_suffix(b"%0a"))
}

/// What follows the host in a path that begins with two slashes.
fn behind_host(path: &[u8]) -> &[u8] {
    let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
    let host = path.iter().position(|byte| !is_slash(byte)).unwrap_or(path.len());
    let rest = path.get(host..).unwrap_or_default();
    let end = rest.iter().position(is_slash).unwrap_or(rest.len());
    rest.get(end..).unwrap_or_default()
}

/// What may separate segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Separator {
    Slash,
    Backslash,
    EscapedSlash,
    EscapedBackslash,
}

impl Separator {
    fn kind(self) -> u8 {
        match self {
            Separator::Slash => 1,
            Separator::Backslash => 2,
            Separator::EscapedSlash | Separator::EscapedBackslash => 4,
        }
    }
}

enum Unit {
    Separator(Separator),
    /// The beginning of path parameters.
    Params {
        escaped: bool,
    },
    Byte {
        byte: u8,
        escaped: bool,
    },
    /// An escape that stays.
    Escape(u8, u8),
}

/// The next byte of the path, decoded if that does not change the path's meaning, and the rest.
fn next_unit(rest: &[u8]) -> Option<(Unit, &[u8])> {
    if let [b'%', high, low, tail @ ..] = rest
        && let Some(byte) = hex_byte(*high, *low)
    {
        let unit = match byte {
            b'/' => Unit::Separator(Separator::EscapedSlash),
            b'\\' => Unit::Separator(Separator::EscapedBackslash),
            b';' => Unit::Params { escaped: true },
            b'%' | b'?' | b'#' | 0..=8 | 10..=31 | 127 => {
                Unit::Escape(high.to_ascii_uppercase(), low.to_ascii_uppercase())
            }
            byte => Unit::Byte { byte, escaped: true },
        };
        return Some((unit, tail));
    }
    let (byte, tail) = rest.split_first()?;
    let unit = match *byte {
        b'/' => Unit::Separator(Separator::Slash),
        b'\\' => Unit::Separator(Separator::Backslash),
        b';' => Unit::Params { escaped: false },
        byte => Unit::Byte { byte, escaped: false },
    };
    Some((unit, tail))
}

/// The segments of a path, without what some upstreams overlook. None of them is empty.
pub(in crate::rules) fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').map(without_tail).filter(|segment| !segment.is_empty())
}

/// The segments of a path as they are.
pub(in crate::rules) fn whole_segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.strip_suffix(b"/").unwrap_or(path).split(|byte| *byte == b'/')
}

/// A segment without blanks and dots at its end, which some upstreams overlook.
fn without_tail(mut segment: &[u8]) -> &[u8] {
    while let [rest @ .., b' ' | b'\t' | b'.'] = segment {
        segment = rest;
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec;

    fn check(target: &[u8], expected: &[u8]) {
        let mut out = vec![1, 2, 3];
        normalise(target, &mut out);
        assert_eq!(out, expected, "{}", String::from_utf8_lossy(target));
    }

    #[test]
    fn paths_are_normalised() {
        for (target, expected) in [
            ("/", "/"),
            ("", ""),
            ("*", "*"),
            ("?a=b", ""),
            ("/admin", "/admin"),
            ("/admin/", "/admin/"),
            ("/admin?x=/../y", "/admin"),
            ("/admin#x?y", "/admin"),
            ("/api/../admin", "/admin"),
            ("/api/%2e%2E/admin", "/admin"),
            ("/api/.%2e/admin", "/admin"),
            ("//admin", "/admin"),
            ("///a////b//", "/a/b/"),
            ("/%61dmin", "/admin"),
            ("/a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
            ("/../../..", "/"),
            ("/../x/../../y", "/y"),
            ("/a//../b", "/b"),
            ("/a/...", "/a/..."),
            ("/.a/..b/c..", "/.a/..b/c.."),
            ("/a\\..\\admin", "/admin"),
            ("/a%2fb%2F", "/a%2Fb%2F"),
            ("/%25%36%31", "/%2561"),
            ("/%7Eme%2d%5f", "/~me-_"),
            ("/%", "/%"),
            ("/%4", "/%4"),
            ("/%zz%4", "/%zz%4"),
            ("/%%61", "/%a"),
            ("admin", "/admin"),
            ("../admin", "/admin"),
            ("/caf\u{e9}", "/caf\u{e9}"),
            ("/caf%c3%A9", "/caf\u{e9}"),
            ("/a%20b%09%3a%40%2B", "/a b\t:@+"),
            ("/%00%7f%3b%5c%3F%23", "/%00%7F%3B%5C%3F%23"),
            ("/admin;a=b", "/admin"),
            ("/admin;a=b;c/x;/y", "/admin/x/y"),
            ("/x/..;a=b/admin", "/admin"),
            ("/x/..;\\admin", "/admin"),
            ("/a//../b", "/b"),
            ("/x/.;/admin;", "/x/admin"),
            ("/;x", "/"),
            (";x", "/"),
        ] {
            check(target.as_bytes(), expected.as_bytes());
        }
        check(b"/\xff\x00/../\xfe", b"/\xfe");
    }

    fn read(target: &str) -> Readings {
        let mut readings = Readings::default();
        readings.read(b"/earlier/..;/path");
        readings.read(target.as_bytes());
        readings
    }

    #[test]
    fn the_whole_path_is_one_in_all_spellings() {
        for (path, expected) in [
            ("/a/b", Some("/a/b")),
            ("/a/b/", Some("/a/b")),
            ("/a//b", Some("/a/b")),
            ("/a/b?c=/d", Some("/a/b")),
            ("/%61/b.", Some("/a/b")),
            ("/a%20/b/.", Some("/a/b")),
            ("/A/b", Some("/A/b")),
            ("/a%2fb", None),
            ("/a/../b", None),
            ("/a;x/b", None),
            ("/a\\b", None),
            ("/a%0a/b", None),
            ("/a%3F", Some("/a%3F")),
            ("/", Some("/")),
            ("", Some("/")),
        ] {
            let mut readings = Readings::default();
            readings.read(path.as_bytes());
            let mut bytes = Vec::new();
            let is_one = readings.write_whole(|byte| bytes.push(byte));
            let found = is_one.then(|| core::str::from_utf8(&bytes).unwrap());
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn segments_count_from_one() {
        for (path, number, expected) in [
            ("/a/b/", 1, Ok("a")),
            ("/a/b/", 2, Ok("b")),
            ("/a/b/", 3, Ok("")),
            ("/a/b", 4, Ok("")),
            ("/a/%20b%20?c", 2, Ok("b")),
            ("/a/b./%2Ec%20..%09.", 2, Ok("b")),
            ("/a/b./%2Ec%20..%09.", 3, Ok(".c")),
            ("/a/b.%0A.", 2, Err(Differs)),
            ("/a/.../b", 1, Ok("a")),
            ("/a/.../b", 2, Err(Differs)),
            ("/a/.../b", 3, Err(Differs)),
            ("/a/%20/b", 3, Err(Differs)),
            ("/a%0A/b%7f/%0cc", 1, Err(Differs)),
            ("/a%0A/b%7f/%0cc", 2, Err(Differs)),
            ("/a%0A/b%7f/%0cc", 3, Err(Differs)),
            ("/a%C2%A0/b%0Ac", 1, Err(Differs)),
            ("/a%C2%A0/b%0ac", 2, Ok("b%0Ac")),
            ("/", 1, Ok("")),
            ("", 1, Ok("")),
            ("*", 1, Ok("")),
            ("/a//b", 1, Ok("a")),
            ("/a//b", 2, Err(Differs)),
            (r"/a;b/..\c", 1, Err(Differs)),
        ] {
            let readings = read(path);
            assert_eq!(readings.segment(number), expected.map(str::as_bytes), "{path} {number}");
        }
    }

    #[test]
    fn readings_are_what_upstreams_take_a_path_for() {
        for (target, expected) in [
            ("/a/b?c;d", &["/a/b"][..]),
            ("a", &["/a"]),
            ("", &[""]),
            ("*?x", &["*"]),
            ("/.a/%41", &["/.a/A"]),
            ("/a;b/c", &["/a/c", "/a%3Bb/c"]),
            ("/a%3bb/c", &["/a%3Bb/c", "/a/c"]),
            ("/a;b%3Bc", &["/a", "/a%3Bb%3Bc"]),
            ("/a/../b", &["/b", "/a/../b"]),
            ("/a/b/..", &["/a/", "/a/b/..", "/a"]),
            ("/..", &["/", "/.."]),
            ("/a/%2e%2E/b", &["/b", "/a/../b"]),
            ("/a/..;c/b", &["/b", "/a/..%3Bc/b", "/a/../b"]),
            ("/a//b", &["/a/b", "/a//b"]),
            ("//a/b", &["/a/b", "//a/b", "/b"]),
            ("//a/b//c", &["/a/b/c", "//a/b//c", "/b/c", "/b//c"]),
            ("/;a/b", &["/b", "/%3Ba/b", "//b", "/"]),
            ("/;a/b//c", &["/b/c", "/%3Ba/b/c", "//b//c", "/%3Ba/b//c", "/c", "//c"]),
            ("/%2fa/b", &["/%2Fa/b", "/a/b", "//a/b", "/b"]),
            ("/%2F", &["/%2F", "/", "//"]),
            (r"/a\b", &["/a/b", "/a%5Cb"]),
            ("/a%5cb", &["/a%5Cb", "/a/b"]),
            ("/a%2fb", &["/a%2Fb", "/a/b"]),
            ("/a%2f%2fb", &["/a%2F%2Fb", "/a/b", "/a//b"]),
            ("/a%0a", &["/a%0A", "/a"]),
            ("/a/%0A?b", &["/a/%0A", "/a/"]),
            ("/a%0A%0A", &["/a%0A%0A", "/a%0A"]),
            ("/a%0Ab", &["/a%0Ab"]),
            ("/a;b%0A", &["/a", "/a%3Bb%0A", "/a%3Bb"]),
            ("/a%2fb%5Cc", &["/a%2Fb%5Cc", "/a%2Fb/c", "/a/b%5Cc", "/a/b/c"]),
            // The order in which an upstream changes them matters.
            ("/a/../b//c", &[]),
            ("/a/../b%2fc", &[]),
            ("/a/../b/%2e%2e", &[]),
            ("/a/..;/b/..", &[]),
            ("/a;b%2fc", &[]),
            (r"//a/\b", &[]),
        ] {
            let readings = read(target);
            let found: Vec<_> =
                readings.each().map(|one| String::from_utf8_lossy(one).into_owned()).collect();
            assert_eq!(found, expected, "{target}");
        }
    }

    #[test]
    fn long_climbing_paths_stay_linear() {
        let mut target = b"/x".repeat(100_000);
        target.extend(b"/..".repeat(100_001));
        check(&target, b"/");
    }
}
