//! Where the values of a text stand, for errors about what was read before.

use super::MARK;
use alloc::vec::Vec;
use granit_parser::{Event, Parser, StrInput};

/// The line of the value at a path such as `a.b[0].c` in a document, from 1; a field's is that of its name. Documents are numbered from 0.
/// JSON is read as YAML. `None` if the value is not written there, but repeated by an alias or merged, or if a name in the path has a dot.
pub fn line_of(text: &str, document: usize, path: &str) -> Option<usize> {
    let mut places = Places { events: Parser::new_from_str(text.strip_prefix(MARK).unwrap_or(text)) };
    let steps: Vec<&str> = path.split(['.', '[', ']']).filter(|step| !step.is_empty()).collect();
    for _ in 0..document {
        let (begin, _) = places.node()?;
        places.skip(&begin)?;
    }
    let (mut event, mut line) = places.node()?;
    for step in steps {
        (event, line) = match event {
            Event::MappingStart(..) => places.field(step)?,
            Event::SequenceStart(..) => places.item(step.parse().ok()?)?,
            _ => return None,
        };
    }
    Some(line)
}

struct Places<'a> {
    events: Parser<'a, StrInput<'a>>,
}

impl<'a> Places<'a> {
    fn next(&mut self) -> Option<(Event<'a>, usize)> {
        let (event, span) = self.events.next_event()?.ok()?;
        Some((event, span.start.line()))
    }

    /// The next value, and its line.
    fn node(&mut self) -> Option<(Event<'a>, usize)> {
        loop {
            let (event, line) = self.next()?;
            if event.is_node() {
                return Some((event, line));
            }
        }
    }

    /// The same in a list or an object; `None` at its end.
    fn child(&mut self) -> Option<(Event<'a>, usize)> {
        loop {
            let (event, line) = self.next()?;
            match event {
                Event::SequenceEnd | Event::MappingEnd | Event::StreamEnd => return None,
                event if event.is_node() => return Some((event, line)),
                _ => {}
            }
        }
    }

    /// Reads the rest of a value that has begun.
    fn skip(&mut self, begin: &Event<'a>) -> Option<()> {
        let mut depth = usize::from(begins(begin));
        while depth > 0 {
            match self.next()?.0 {
                Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
                Event::StreamEnd => return None,
                event => depth = depth.saturating_add(begins(&event).into()),
            }
        }
        Some(())
    }

    /// The value of a field, with the line of its name.
    fn field(&mut self, wanted: &str) -> Option<(Event<'a>, usize)> {
        loop {
            let (name, line) = self.child()?;
            let is_wanted = matches!(&name, Event::Scalar(text, ..) if *text == wanted);
            self.skip(&name)?;
            let (value, _) = self.child()?;
            if is_wanted {
                return Some((value, line));
            }
            self.skip(&value)?;
        }
    }

    fn item(&mut self, wanted: usize) -> Option<(Event<'a>, usize)> {
        for _ in 0..wanted {
            let (item, _) = self.child()?;
            self.skip(&item)?;
        }
        self.child()
    }
}

fn begins(event: &Event<'_>) -> bool {
    matches!(event, Event::SequenceStart(..) | Event::MappingStart(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_where_it_is_written() {
        let yaml = "\u{feff}# first\n---\na: &x { b: [1,\n  { c: 2 }] }\nd:\n  - name: one\n  - name: two\n    e: |\n      f: 1\n\
            g: *x\n---\n- a: 1\n  b: 2\n";
        let json = "{\"a\": {\n\t\"b\": [\n 1,\n {\"c\": 2}]},\n \"d\": []}";
        for (text, document, path, line) in [
            (yaml, 0, "", Some(3)),
            (yaml, 0, "a.b[0]", Some(3)),
            (yaml, 0, "a.b[1].c", Some(4)),
            (yaml, 0, "d[1]", Some(7)),
            (yaml, 0, "d[1].e", Some(8)),
            (yaml, 0, "d[1].e.f", None),
            (yaml, 0, "d[2]", None),
            (yaml, 0, "g", Some(10)),
            (yaml, 0, "g.b", None),
            (yaml, 0, "h", None),
            (yaml, 1, "[0].b", Some(13)),
            (yaml, 2, "", None),
            (json, 0, "a.b[1].c", Some(4)),
            (json, 0, "d", Some(5)),
            ("a: [", 0, "b", None),
            ("", 0, "a", None),
        ] {
            assert_eq!(line_of(text, document, path), line, "{document} {path}");
        }
    }
}
