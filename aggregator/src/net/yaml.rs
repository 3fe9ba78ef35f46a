//! A YAML document as a type, within bounds of memory and of time. [`weir_core::fields::yaml`] reads documents as values.

use serde::de::Deserialize;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Options, budget, options};
use std::thread;
use weir_core::fields::Bounds;
use weir_core::fields::yaml::MAX_BYTES;

const BOUNDS: Bounds = Bounds::OF_A_FILE;
/// Most scalars, lists and objects of a typed text, repeated ones included: more than a text of that length has without repeating.
const MAX_NODES: usize = MAX_BYTES;
/// Most `<<` of a typed text, repeated ones included.
const MAX_MERGES: usize = 512;
/// Most scalars, lists and objects below anchors of a typed text: each is stored with a hundred bytes or so.
const MAX_RECORDED: usize = 1_000_000;
/// Stack of the thread that parses a typed text. It calls itself at each level of nesting, with 26 kB a level where nothing is optimised.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// The only document, as a type that refuses repeated fields itself.
pub fn document<'a, T: Deserialize<'a> + Send>(text: &'a [u8]) -> Result<T, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let parser = || serde_saphyr::from_slice_with_options(text, within()).map_err(|error| error.to_string());
    thread::scope(|scope| {
        let parsing = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, parser);
        let parsed = parsing.map_err(|error| format!("there is no thread to parse it: {error}"))?.join();
        parsed.unwrap_or_else(|_| Err("its parser failed".to_owned()))
    })
}

fn within() -> Options {
    let Bounds { depth, bytes, .. } = BOUNDS;
    let budget = budget! {
        max_events: 2 * MAX_NODES,
        max_nodes: MAX_NODES,
        max_depth: depth,
        max_documents: MAX_NODES,
        max_aliases: MAX_NODES,
        max_anchors: MAX_NODES,
        max_merge_keys: MAX_MERGES,
        max_total_scalar_bytes: bytes,
        max_recorded_anchor_events: MAX_RECORDED,
        max_recorded_anchor_bytes: bytes,
        // What is repeated is bounded itself.
        enforce_alias_anchor_ratio: false,
    };
    options! {
        budget: budget,
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::Merge,
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_document_has_no_repeated_field() {
        #[derive(Debug, Default, PartialEq, serde::Deserialize)]
        struct Named {
            name: String,
        }
        let read = |text: &'static str| document::<Option<Vec<Named>>>(text.as_bytes());
        assert_eq!(read("- {name: 007}\n").unwrap(), Some(vec![Named { name: "007".into() }]));
        assert_eq!(read("# nothing\n").unwrap(), None);
        assert!(read("- {name: a, name: b}\n").is_err());
        assert!(read("- {name: a}\n---\n- {name: b}\n").is_err());
        assert!(document::<Option<Vec<Named>>>(&vec![b' '; MAX_BYTES + 1]).is_err());
    }
}
