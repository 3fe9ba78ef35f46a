#!/usr/bin/env python3
"""Prints the software bill of materials of one crate as CycloneDX 1.5: each crate that is compiled into it, by Cargo.lock.

usage: envoy/tools/release/sbom.py CRATE TARGET
"""
import json
import os
import subprocess
import sys
import uuid

ROOT = os.path.abspath(f"{os.path.dirname(os.path.abspath(__file__))}/../../..")


def checksums():
    """The SHA-256 of each package of Cargo.lock, as crates.io states it."""
    found, package = {}, {}
    with open(f"{ROOT}/Cargo.lock", encoding="utf-8") as lock:
        for line in lock:
            if line.startswith("[[package]]"):
                package = {}
            name, _, value = line.partition(" = ")
            package[name] = value.strip().strip('"')
            if name == "checksum":
                found[(package["name"], package["version"])] = package["checksum"]
    return found


def main():
    crate, target = sys.argv[1:]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(subprocess.check_output(command, cwd=ROOT))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    (root,) = (package["id"] for package in packages.values() if package["name"] == crate)

    # What is compiled into the program: neither build scripts' nor tests' dependencies.
    needs, left = {}, [root]
    while left:
        one = left.pop()
        if one not in needs:
            dependencies = (entry["pkg"] for entry in nodes[one]["deps"] if any(kind["kind"] is None for kind in entry["dep_kinds"]))
            needs[one] = sorted(dependencies)
            left += needs[one]

    hashes = checksums()

    def reference(one):
        return f"pkg:cargo/{packages[one]['name']}@{packages[one]['version']}"

    def component(one, kind):
        package = packages[one]
        entry = {"type": kind, "bom-ref": reference(one), "name": package["name"], "version": package["version"], "purl": reference(one)}
        if package["license"]:
            # Some crates write the former notation, in which "/" is "OR".
            entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if checksum := hashes.get((package["name"], package["version"])):
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return entry

    others = sorted(one for one in needs if one != root)
    print(
        json.dumps(
            {
                "bomFormat": "CycloneDX",
                "specVersion": "1.5",
                "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, reference(root) + target)}",
                "version": 1,
                "metadata": {"component": component(root, "library" if "wasm" in target else "application")},
                "components": [component(one, "library") for one in others],
                "dependencies": [{"ref": reference(one), "dependsOn": [reference(need) for need in needs[one]]} for one in sorted(needs)],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
