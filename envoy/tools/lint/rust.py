"""What the checks read of Rust sources: the modules of a crate, their items, and what they import.

Sources are formatted by rustfmt, so an item of a module begins at the start of a line. Tests are left out.
"""
import functools
import os
import re
import subprocess

TEST_FILE = re.compile(r"/tests?(/|\.rs$)|/bin/")
TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\s*\n\s*(pub )?mod \w+ \{", re.M)
ITEM = re.compile(
    r"^(?P<seen>pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern \"[^\"]*\" )*"
    r"(?P<kind>fn|struct|enum|trait|type|union|const|static|macro_rules!) (?:mut )?(?P<name>\w+)",
    re.M,
)
USE = re.compile(r"^ *(?P<seen>pub(?:\([^)]*\))? )?use\s+(?P<tree>[^;]+);", re.M)
PATH = re.compile(r"(?<![\w:])(?:::)?\w+(?:::\w+)+")


def root():
    return subprocess.check_output(["git", "rev-parse", "--show-toplevel"], text=True).strip()


@functools.cache
def tracked(pattern):
    """The files of the repository, also those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern]
    files = subprocess.check_output(command, text=True).split("\n")[:-1]
    return [file for file in dict.fromkeys(files) if os.path.exists(file)]


def text_of(file):
    with open(file, encoding="utf-8") as opened:
        return opened.read()


def code_of(text):
    """A file's code without comments and without its module of tests. Lines keep their numbers."""
    text = re.sub(r"//[^\n]*", "", text)
    tests = TEST_MODULE.search(text)
    return text[: tests.start()] if tests else text


def expand(tree):
    """`a::{b, c::{d, e as f}}` as `a::b`, `a::c::d` and `a::c::e`, each with the name that it gets."""
    tree = tree.strip()
    start = tree.find("{")
    if start < 0:
        path, _, alias = tree.partition(" as ")
        parts = [part.strip() for part in path.split("::")]
        parts = parts[:-1] if parts[-1] == "self" and len(parts) > 1 else parts
        return [(parts, alias.strip() or parts[-1])]
    head = [part.strip() for part in tree[:start].split("::") if part.strip()]
    depth, part, parts = 0, "", []
    for character in tree[start + 1 : tree.rfind("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    found = []
    for path, name in [one for part in parts + [part] if part.strip() for one in expand(part)]:
        found.append((head, head[-1]) if path == ["self"] else (head + path, name))
    return found


class Module:
    """A file of a crate: its items, its imports by name, and the paths in its code."""

    def __init__(self, name, file):
        self.name, self.file = name, file
        self.code = code_of(text_of(file))
        self.items = {item["name"]: item for item in ITEM.finditer(self.code)}
        self.imports, self.globs, self.exported = {}, [], set()
        for use in USE.finditer(self.code):
            for path, name in expand(use["tree"]):
                if path[-1] == "*":
                    self.globs.append(path[:-1])
                else:
                    self.imports[name] = path
                    self.exported.update([name] if use["seen"] else [])
        self.body = USE.sub("", self.code)
        self.paths = [path.strip(":").split("::") for path in PATH.findall(self.body)]


class Crate:
    """The modules below a folder of sources, by their path in the crate."""

    def __init__(self, source):
        self.source, self.modules = source, {}
        for file in tracked(source):
            if file.endswith(".rs") and not TEST_FILE.search(file):
                path = file[len(source) + 1 : -3].split("/")
                name = tuple(path[:-1] if path[-1] in ("mod", "lib", "main") else path)
                if name not in self.modules or file.endswith("/lib.rs"):
                    self.modules[name] = Module(name, file)

    def absolute(self, module, path):
        """A path in the crate, or nothing if it leads to another crate."""
        if path[0] == "crate":
            return list(path[1:])
        if path[0] == "self":
            return list(module.name) + path[1:]
        if path[0] == "super":
            above = list(module.name)
            while path and path[0] == "super":
                above, path = above[:-1], path[1:]
            return above + path
        if module.name + (path[0],) in self.modules:
            return list(module.name) + path
        return None

    def resolve(self, module, path, seen=frozenset()):
        """The modules that a path names, the last of which defines its item, and the item's name."""
        target = self.absolute(module, path)
        if target is None or (module.name, tuple(path)) in seen:
            return [], None
        seen = seen | {(module.name, tuple(path))}
        rest = []
        while tuple(target) not in self.modules:
            if not target:
                return [], None
            rest.insert(0, target.pop())
        found = self.modules[tuple(target)]
        if not rest or rest[0] in found.items:
            return [found], rest[0] if rest else None
        if rest[0] in found.imports:
            further, item = self.resolve(found, found.imports[rest[0]] + rest[1:], seen)
            return [found] + further, item
        for glob in found.globs:
            further, item = self.resolve(found, glob + rest, seen)
            if item:
                return [found] + further, item
        return [found], rest[0]

    def imports_of(self, module):
        """Each import and path of a module: the name by which it is used, the modules, the item."""
        for name, path in module.imports.items():
            yield (name, *self.resolve(module, path))
        for path in module.globs:
            yield ("*", *self.resolve(module, path))
        for path in module.paths:
            yield (path[0], *self.resolve(module, path))


def sources():
    roots = tracked(":(glob)**/lib.rs") + tracked(":(glob)**/main.rs")
    return sorted({os.path.dirname(file) for file in roots if not TEST_FILE.search(file)})
