#!/usr/bin/env python3
"""Checks that imports among the modules of each crate run one way.

A room is a file, or a folder with all in it; rooms stand side by side in a folder. An import is a `use`, or a path in the code;
tests are left out. The check fails if rooms of one folder import each other in a circle, unless the folder is among CIRCLES, or
if it is among CIRCLES and has none.

usage: envoy/tools/lint/rooms.py
"""
import os
import re
import subprocess
import sys

# Folders whose circles are still to be cut.
CIRCLES = set()

TEST_FILE = re.compile(r"/tests?(/|\.rs$)|/bin/")
TEST_MODULE = re.compile(r"^#\[cfg\(test\)\]\s*\n\s*(pub )?mod \w+ \{", re.M)


def tracked(pattern):
    return subprocess.check_output(["git", "ls-files", pattern], text=True).split()


def code_of(file):
    with open(file, encoding="utf-8") as opened:
        text = re.sub(r"//[^\n]*", "", opened.read())
    tests = TEST_MODULE.search(text)
    return text[: tests.start()] if tests else text


def expand(tree):
    """`a::{b, c::{d, e}}` as `a::b`, `a::c::d` and `a::c::e`."""
    tree = tree.strip()
    start = tree.find("{")
    if start < 0:
        return [re.sub(r"\s+as\s+\w+", "", tree)]
    head, depth, part, parts = tree[:start], 0, "", []
    for character in tree[start + 1 : tree.rfind("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    return [head + path for part in parts + [part] if part.strip() for path in expand(part)]


def modules_of(source):
    modules = {}
    for file in tracked(source):
        if file.endswith(".rs") and not TEST_FILE.search(file):
            path = file[len(source) + 1 : -3].split("/")
            modules.setdefault(tuple(path[:-1] if path[-1] in ("mod", "lib", "main") else path), file)
    return modules


def imports_of(modules, module):
    text = code_of(modules[module])
    paths = [path for tree in re.findall(r"\buse\s+([^;]+);", text) for path in expand(tree)]
    paths += re.findall(r"\b(?:crate|super|self)(?:::\w+)+", text)
    found = set()
    for path in paths:
        parts = [part.strip() for part in path.split("::")]
        if parts[0] == "crate":
            target = parts[1:]
        elif parts[0] == "self":
            target = list(module) + parts[1:]
        elif parts[0] == "super":
            above = list(module)
            while parts and parts[0] == "super":
                above, parts = above[:-1], parts[1:]
            target = above + parts
        elif module + (parts[0],) in modules:
            target = list(module) + parts
        else:
            continue
        while target and tuple(target) not in modules:
            target = target[:-1]
        if target and tuple(target) != module:
            found.add(tuple(target))
    return found


def reachable(start, edges):
    seen, left = set(), [start]
    while left:
        for room in edges.get(left.pop(), {}):
            if room not in seen:
                seen.add(room)
                left.append(room)
    return seen


def circles_in(source):
    """Each folder with a circle: its rooms that can be reached from themselves, and an import for each pair of them."""
    modules = modules_of(source)
    imports = {module: imports_of(modules, module) for module in modules}
    for folder in sorted({module[:depth] for module in modules for depth in range(len(module))}):
        depth, edges = len(folder), {}
        for one, others in imports.items():
            for other in others:
                inside = one[:depth] == other[:depth] == folder and len(one) > depth and len(other) > depth
                if inside and one[depth] != other[depth]:
                    edges.setdefault(one[depth], {})[other[depth]] = (modules[one], modules[other])
        after = {room: reachable(room, edges) for room in edges}
        tied = sorted(room for room in edges if room in after[room])
        ties = [
            edges[room][other]
            for room in tied
            for other in sorted(edges[room])
            if other in tied and room in after[other]
        ]
        if tied:
            yield "/".join((source,) + folder), tied, ties


def main():
    os.chdir(subprocess.check_output(["git", "rev-parse", "--show-toplevel"], text=True).strip())
    roots = tracked(":(glob)**/lib.rs") + tracked(":(glob)**/main.rs")
    sources = sorted({os.path.dirname(file) for file in roots if not TEST_FILE.search(file)})
    found, failed = set(), False
    for source in sources:
        for folder, rooms, ties in circles_in(source):
            found.add(folder)
            if folder not in CIRCLES:
                failed = True
                print(f"{folder}: imports run in a circle: {' '.join(rooms)}", file=sys.stderr)
                for one, other in ties:
                    print(f"    {one} imports {other}", file=sys.stderr)
    for folder in sorted(CIRCLES - found):
        failed = True
        print(f"{folder}: no circle is left; take it out of CIRCLES in envoy/tools/lint/rooms.py", file=sys.stderr)
    return int(failed)


sys.exit(main())
