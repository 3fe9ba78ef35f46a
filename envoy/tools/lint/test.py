#!/usr/bin/env python3
"""Tests of the checks in this folder: each finds what is broken in a sample, and nothing in one that is not.

usage: envoy/tools/lint/test.py
"""
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pages  # noqa: E402
import rooms  # noqa: E402
import rust  # noqa: E402
import unused  # noqa: E402
import words  # noqa: E402

GLOSSARY = "## Glossary\n\n| term | meaning |\n|---|---|\n| lease, worker cache | Budget. In code: `worker_cache`. |\n"


class Sample(unittest.TestCase):
    """A repository with the files of a test."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.chdir(self.folder.name)
        subprocess.run(["git", "init", "--quiet"], check=True)

    def tearDown(self):
        os.chdir("/")
        self.folder.cleanup()

    def write(self, files):
        for path, text in files.items():
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        subprocess.run(["git", "add", "--all"], check=True)
        rust.tracked.cache_clear()


class Rooms(Sample):
    def found(self, files, back=(), skips=None, skipping=()):
        self.write(files)
        self.assertEqual(rust.sources(), ["a/src"])
        return rooms.failures_of(rust.Crate("a/src"), dict.fromkeys(back, ""), skips or {}, dict.fromkeys(skipping, ""))

    def test_imports_one_way(self):
        files = {
            "a/src/lib.rs": "mod b;\nmod c;\npub use c::C;\n",
            "a/src/b.rs": "use crate::c::C;\n\npub fn b(_: C) {}\n",
            "a/src/c.rs": "pub struct C;\n\n#[cfg(test)]\nmod tests {\n    use crate::b::b;\n}\n",
        }
        self.assertEqual(self.found(files), ([], set()))

    def test_circle_through_an_export(self):
        files = {
            "a/src/lib.rs": "mod b;\nmod c;\npub use c::C;\n",
            "a/src/b.rs": "use super::C;\n\npub fn b(_: C) {}\n",
            "a/src/c.rs": "pub struct C;\n\nfn c() {\n    crate::b::b(C);\n}\n",
        }
        failures, _ = self.found(files)
        self.assertRegex(failures[0], r"^a/src:1: imports run in a circle: b c; move")
        self.assertIn("    a/src/b.rs imports a/src/c.rs", failures)

    def test_import_of_the_folders_own_file(self):
        files = {
            "a/src/lib.rs": "mod b;\n",
            "a/src/b/mod.rs": "mod c;\n\npub fn b() {\n    c::c();\n}\n\npub fn helper() {}\n",
            "a/src/b/c.rs": "// A comment.\nuse super::helper;\n\npub fn c() {\n    helper();\n}\n",
        }
        failures, needed = self.found(files)
        self.assertEqual(
            failures, ["a/src/b/c.rs:2: imports helper of a/src/b/mod.rs, which uses c; move helper to a room of its own"]
        )
        self.assertEqual(needed, {"a/src/b/mod.rs <- c: helper"})
        self.assertEqual(self.found(files, back=needed)[0], [])
        # Another item than the listed one.
        self.assertEqual(len(self.found(files, back=["a/src/b/mod.rs <- c: other"])[0]), 1)

    def test_methods_in_a_room_and_constants_are_no_circle(self):
        files = {
            "a/src/lib.rs": "mod b;\n",
            "a/src/b/mod.rs": "mod c;\n\npub const MOST: u8 = 1;\n\npub struct B(c::C);\n",
            "a/src/b/c.rs": "use super::{B, MOST};\n\npub struct C;\n\nimpl B {\n    fn c(&self) -> u8 {\n        MOST\n    }\n}\n",
        }
        self.assertEqual(self.found(files)[0], [])

    def test_layer_that_is_skipped(self):
        files = {
            "a/src/lib.rs": "mod api;\nmod region;\nmod database;\n",
            "a/src/api.rs": "use crate::database::Rows;\nuse crate::region::r;\n",
            "a/src/region.rs": "use crate::database::Rows;\n\npub fn r(_: Rows) {}\n",
            "a/src/database.rs": "pub struct Rows;\n",
        }
        skips = {("api",): {"database": "region"}}
        failures, needed = self.found(files, skips=skips)
        self.assertEqual(failures, ["a/src/api.rs:1: imports Rows of database; reach it through region"])
        self.assertEqual(self.found(files, skips=skips, skipping=needed)[0], [])

    def test_entry_that_is_not_needed(self):
        self.assertEqual(rooms.not_needed({"a", "b"}, {"b"}, "list.py"), ["list.py:1: 'a' is not needed any more; take it out"])


class Unused(Sample):
    def test_public_in_vain(self):
        self.write(
            {
                "core/src/lib.rs": "pub mod b;\n",
                "core/src/b.rs": (
                    "pub const USED_HERE: u8 = 1;\npub const USED: u8 = USED_HERE;\n/// Nothing.\npub struct Error;\n\n"
                    "pub fn gone() {}\n\npub fn used() -> Result<(), Wrong> {}\n\npub struct Wrong;\n"
                ),
                "core/tests/it.rs": "use a::b::{USED, used};\n",
            }
        )
        found = list(unused.public_in_vain(rust.tracked("*.rs")))
        self.assertEqual(
            found,
            [
                "core/src/b.rs:1: no other file names const USED_HERE; make it private",
                "core/src/b.rs:4: no other file names struct Error; delete it",
                "core/src/b.rs:6: no other file names fn gone; delete it",
            ],
        )

    def test_file_in_no_program(self):
        self.write(
            {
                "a/Cargo.toml": '[[bin]]\npath = "tool/main.rs"\n',
                "a/src/lib.rs": "mod b;\n\nmod inner {\n    mod deep;\n}\n",
                "a/src/b/mod.rs": "mod c;\n",
                "a/src/b/c.rs": "",
                "a/src/b/dead.rs": "",
                "a/src/inner/deep.rs": "",
                "a/tool/main.rs": '#[path = "../shared.rs"]\nmod shared;\n',
                "a/shared.rs": "",
                "a/tests/it/main.rs": "mod case;\n",
                "a/tests/it/case.rs": "",
                "a/shim.rs": "",
                "build.sh": "rustc a/shim.rs\n",
            }
        )
        found = list(unused.in_no_program(rust.tracked("*.rs")))
        self.assertEqual([line.split(":")[0] for line in found], ["a/src/b/dead.rs"])


class Words(Sample):
    def texts(self, files):
        files = {"core/README.md": GLOSSARY, "core/src/a.rs": "struct Lease;\nfn worker_cache() {}\n", **files}
        self.write(files)
        return {file: words.text_of(file) for file in rust.tracked("*")}

    def test_former_word(self):
        found = list(words.former_words(self.texts({"b.rs": "\nfn theRoster() {}\n"})))
        self.assertEqual(found, ["b.rs:2: 'roster': the term is worker registry: fn theRoster() {}"])

    def test_terms_are_used(self):
        self.assertEqual(list(words.unused_terms(self.texts({}))), [])
        found = list(words.unused_terms(self.texts({"core/src/a.rs": "struct Lease;\n"})))
        self.assertEqual(
            found,
            [
                "core/README.md:5: nothing uses the term 'worker cache'; take it out, or use it",
                "core/README.md:5: the code has no 'worker_cache'; state the name that it has",
            ],
        )

    def test_types_are_explained(self):
        code = (
            "/// One lease.\npub struct A;\n/// See the module.\n#[derive(Debug)]\npub struct B;\npub struct C;\n"
            "/// What a limit may be.\npub enum D {}\n"
        )
        found = list(words.unexplained_types(self.texts({"core/src/b.rs": code})))
        self.assertEqual([line.split(";")[0] for line in found], ["core/src/b.rs:5: nothing explains B", "core/src/b.rs:6: nothing explains C"])


class Pages(unittest.TestCase):
    def test_long_lines_are_wrapped(self):
        text = "- " + "word " * 30
        ((taken, wrapped),) = pages.blocks([text.rstrip()])
        self.assertEqual(len(taken), 1)
        self.assertTrue(len(wrapped) == 2 and all(len(line) <= pages.COLUMNS for line in wrapped))


if __name__ == "__main__":
    unittest.main()
