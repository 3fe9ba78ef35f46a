#!/usr/bin/env python3
"""Checks that imports among the modules of each crate run one way.

A room is a file, or a folder with all in it; rooms stand side by side in a folder, whose own file is mod.rs, lib.rs or main.rs.
An import is a `use`, or a path in the code, and leads to the file that defines what it names, also through others' `pub use`.
Tests are left out. The check fails if

- rooms of one folder import each other in a circle;
- a room imports a function or a type of its folder's own file, and that file uses the room. A type's methods may stand in rooms
  of their own, which import it; a file that only declares its rooms and exports their items uses none;
- a room imports a layer that is reached through another one (SKIPS);
- an entry of BACK or SKIPPING is not needed any more.

usage: envoy/tools/lint/rooms.py
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import rust  # noqa: E402

# Imports of a folder's own file that are still to be cut, with the reason. It only shrinks.
BACK = {
    "aggregator/src/api/http/mod.rs <- routes: HttpApi": "axum's state has the parts of all handlers, and handlers take it whole",
    "aggregator/src/api/rls/xds/mod.rs <- options: causes": "errors of a file of certificates and of the stream are written alike",
    "aggregator/src/net/listen.rs <- places: Turn": "a connection has its place, and a place the turn of its connection",
    "aggregator/src/region/control/mod.rs <- bans: Live": "the task that stores bans writes them through live control, which holds them",
    "aggregator/src/region/status/mod.rs <- peers: Status": "what is sent to peers is a summary of the whole status",
    "aggregator/src/region/status/mod.rs <- top: Status": "a scan reads which rules are in shadow mode from the whole status",
    "core/src/control/mod.rs <- scope: Effect Selector Slot Target": "the types of a control stand beside its checks, which use the scope",
}

# Layers of a crate that rooms above reach through the one named.
SKIPS = {"aggregator/src": {("api", "admin"): {"database": "region", "redis": "region"}}}
# Files that import such a layer, with the reason. It only shrinks.
SKIPPING = {
}


def reachable(start, edges):
    seen, left = set(), [start]
    while left:
        for room in edges.get(left.pop(), {}):
            if room not in seen:
                seen.add(room)
                left.append(room)
    return seen


def circles(crate):
    """Rooms of a folder that can be reached from themselves, with an import for each pair of them."""
    imports = {
        module.name: {found.name for _, modules, _ in crate.imports_of(module) for found in modules}
        for module in crate.modules.values()
    }
    for folder in sorted({name[:depth] for name in crate.modules for depth in range(len(name))}):
        depth, edges = len(folder), {}
        for one, others in imports.items():
            for other in others:
                inside = one[:depth] == other[:depth] == folder and len(one) > depth and len(other) > depth
                if inside and one[depth] != other[depth]:
                    files = (crate.modules[one].file, crate.modules[other].file)
                    edges.setdefault(one[depth], {})[other[depth]] = files
        after = {room: reachable(room, edges) for room in edges}
        tied = sorted(room for room in edges if room in after[room])
        if tied:
            place = "/".join((crate.source,) + folder)
            yield f"{place}:1: imports run in a circle: {' '.join(tied)}; move what they share to a room below them"
            for room in tied:
                for other in sorted(edges[room]):
                    if other in tied and room in after[other]:
                        yield "    {} imports {}".format(*edges[room][other])


def implements(module, item):
    return re.search(rf"^impl\b[^{{;]*\b{item}\b[^{{;]*\{{", module.code, re.M)


def back_imports(crate):
    """For each folder's own file and room of it that use each other: the importing file and the items."""
    for parent in crate.modules.values():
        depth, imported = len(parent.name), {}
        for child in crate.modules.values():
            if len(child.name) <= depth or child.name[:depth] != parent.name:
                continue
            for _, modules, item in crate.imports_of(child):
                defines = modules and modules[-1] is parent and item in parent.items
                if defines and parent.items[item]["kind"] not in ("const", "static") and not implements(child, item):
                    imported.setdefault(child.name[depth], []).append((item, child))
        used = set()
        for name, modules, _ in crate.imports_of(parent):
            last = modules[-1].name if modules else ()
            only_exported = name in parent.exported and not re.search(rf"\b{name}\b", parent.body)
            if len(last) > depth and last[:depth] == parent.name and not only_exported:
                used.add(last[depth])
        for room in sorted(imported.keys() & used):
            yield parent, room, imported[room]


def line_of(module, word):
    found = re.search(rf"\b{word}\b", module.code)
    return module.code.count("\n", 0, found.start()) + 1 if found else 1


def skipping(crate, skips):
    """Files that import a layer which rooms of their kind reach through another one."""
    for module in crate.modules.values():
        for rooms, layers in skips.items():
            if not module.name or module.name[0] not in rooms:
                continue
            for _, modules, item in crate.imports_of(module):
                for layer in {found.name[0] for found in modules if found.name and found.name[0] in layers}:
                    yield module, item or layer, layer, layers[layer]


def failures_of(crate, back, skips, skipping_files):
    """The failures of a crate, and the entries of the lists that it needs."""
    failures, needed = list(circles(crate)), set()
    for parent, room, imported in back_imports(crate):
        entry = f"{parent.file} <- {room}: {' '.join(sorted({item for item, _ in imported}))}"
        needed.add(entry)
        for item, child in sorted(imported, key=lambda one: (one[0], one[1].file)) if entry not in back else []:
            failures.append(
                f"{child.file}:{line_of(child, item)}: imports {item} of {parent.file}, which uses {room}; "
                f"move {item} to a room of its own"
            )
    for module, item, layer, through in skipping(crate, skips):
        entry = f"{module.file} -> {layer}"
        needed.add(entry)
        if entry not in skipping_files:
            failures.append(f"{module.file}:{line_of(module, item)}: imports {item} of {layer}; reach it through {through}")
    return list(dict.fromkeys(failures)), needed


def not_needed(lists, needed, file):
    return [f"{file}:1: {entry!r} is not needed any more; take it out" for entry in sorted(lists - needed)]


def main():
    os.chdir(rust.root())
    failures, needed = [], set()
    for source in rust.sources():
        found, entries = failures_of(rust.Crate(source), BACK, SKIPS.get(source, {}), SKIPPING)
        failures += found
        needed |= entries
    failures += not_needed(BACK.keys() | SKIPPING.keys(), needed, "envoy/tools/lint/rooms.py")
    print("\n".join(failures), file=sys.stderr, end="\n" if failures else "")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
