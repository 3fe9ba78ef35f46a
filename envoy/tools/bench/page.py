#!/usr/bin/env python3
"""Writes the results of the benchmarks into the tables of envoy/BENCHMARKS.md.

A table below `<!-- results: TITLE -->` has the columns and rows that it names of the table of that
title in results.json, or its rows as columns. The test of the documentation compares them.

usage: envoy/tools/bench/page.py
"""
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent.parent / "BENCHMARKS.md"
MARKER = re.compile(r"^<!-- results: (.*) -->$")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def plain(name):
    return name.replace("*", "")


def figure(table, row, column):
    """The cell of a row and a column, of which either may be the row of the results."""
    for one, other in ((row, column), (column, row)):
        if one in table["rows"] and other in table["columns"]:
            return table["rows"][one][table["columns"].index(other)]
    return None


def main():
    results = json.loads((HERE / "results.json").read_text())
    lines, table, header, missing = PAGE.read_text().split("\n"), None, None, []
    for at, line in enumerate(lines):
        marker = MARKER.match(line)
        if marker:
            table, header = results.get(marker.group(1)), None
            if table is None:
                missing.append(marker.group(1))
        elif not line.startswith("|"):
            if header:
                table = header = None
        elif table and not header:
            header = cells(line)
        elif table and not line.startswith("|--"):
            row = cells(line)
            for place, column in enumerate(header[1:], 1):
                found = figure(table, plain(row[0]), plain(column))
                if found is None:
                    missing.append(f"{row[0]}, {column}")
                else:
                    row[place] = found
            lines[at] = "| " + " | ".join(row) + " |"
    PAGE.write_text("\n".join(lines))
    for what in missing:
        print(f"results.json has no {what}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
