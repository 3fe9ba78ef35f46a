#!/usr/bin/env python3
"""Checks that no item is public in vain, and that every file of source code belongs to a program.

An item is public in vain if no other file names it. A type that its own file uses is left out, as it may stand in what a public
function takes or returns. A file belongs to a program if a `mod` names it, or if it is where cargo, or
a script that calls rustc, begins to compile.

usage: envoy/tools/lint/unused.py
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import rust  # noqa: E402

# Crates whose public items are for the other crates of this repository only.
CRATES = ["core/src", "filter/src", "aggregator/src"]
PUBLIC = re.compile(
    r"^(?: {4})?pub (?:const |async |unsafe )*"
    r"(?P<kind>fn|struct|enum|trait|type|union|const|static) (?:mut )?(?P<name>\w+)",
    re.M,
)
TYPES = ("struct", "enum", "trait", "type", "union")
MODULE = re.compile(r"^(?P<inside> *)(?:#\[path = \"(?P<path>[^\"]+)\"\]\s*)?(?:pub(?:\([^)]*\))? )?mod (?P<name>\w+);", re.M)
# Where cargo begins without being told.
BEGINNING = re.compile(r"(src/(lib|main)\.rs|build\.rs|src/bin/\w+(/main)?\.rs|(tests|benches|examples)/\w+(/main)?\.rs)$")


def public_in_vain(files):
    words = {file: set(re.findall(r"\w+", re.sub(r"//[^\n]*", "", rust.text_of(file)))) for file in files}
    users = {}
    for file, names in words.items():
        for name in names:
            users.setdefault(name, []).append(file)
    for file in files:
        if not file.startswith(tuple(f"{crate}/" for crate in CRATES)) or rust.TEST_FILE.search(file):
            continue
        code = rust.code_of(rust.text_of(file))
        for item in PUBLIC.finditer(code):
            name, uses = item["name"], len(re.findall(rf"\b{item['name']}\b", code))
            if users[name] != [file] or (item["kind"] in TYPES and uses > 1):
                continue
            line = code.count("\n", 0, item.start()) + 1
            what = "make it private" if uses > 1 else "delete it"
            yield f"{file}:{line}: no other file names {item['kind']} {name}; {what}"


def beginnings(files):
    """The files where cargo begins, or rustc that a script calls."""
    scripts = "".join(map(rust.text_of, rust.tracked("*.sh")))
    yield from (file for file in files if re.search(rf"/{re.escape(os.path.basename(file))}\b", scripts))
    for manifest in rust.tracked("*Cargo.toml"):
        folder = os.path.dirname(manifest)
        for path in re.findall(r'^path = "([^"]+\.rs)"', rust.text_of(manifest), re.M):
            yield os.path.normpath(os.path.join(folder, path))
        yield from (file for file in files if BEGINNING.match(os.path.relpath(file, folder or ".")))


def named_by(file, files, is_beginning):
    """The files that a file's `mod`s name."""
    folder, name = os.path.split(file)
    own = folder if is_beginning or name == "mod.rs" else file[: -len(".rs")]
    for module in MODULE.finditer(rust.text_of(file)):
        if module["path"]:
            yield os.path.normpath(os.path.join(folder, module["path"]))
        elif module["inside"]:
            # In a module within the file: of that folder, or of one below.
            suffixes = (f"/{module['name']}.rs", f"/{module['name']}/mod.rs")
            yield from (one for one in files if one.startswith(f"{own}/") and one.endswith(suffixes))
        else:
            yield f"{own}/{module['name']}.rs"
            yield f"{own}/{module['name']}/mod.rs"


def in_no_program(files):
    files = set(files)
    begin = set(beginnings(files)) & files
    seen, left = set(), sorted(begin)
    while left:
        file = left.pop()
        if file in files and file not in seen:
            seen.add(file)
            left += named_by(file, files, file in begin)
    for file in sorted(files - seen):
        yield f"{file}:1: no module names this file, and nothing begins to compile with it; name it with `mod`, or delete it"


def main():
    os.chdir(rust.root())
    files = rust.tracked("*.rs")
    failures = list(public_in_vain(files)) + list(in_no_program(files))
    print("\n".join(failures), file=sys.stderr, end="\n" if failures else "")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
