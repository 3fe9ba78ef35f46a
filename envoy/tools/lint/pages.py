#!/usr/bin/env python3
"""Checks that the text of pages wraps at 100 columns.

Tables, code, headings and single words may be longer. --write wraps the text.

usage: envoy/tools/lint/pages.py [--write]
"""
import re
import subprocess
import sys

COLUMNS = 100
LIST_ITEM = re.compile(r"^( *)([-*+]|\d+[.)])( +)")
# What stands on lines of its own: headings, tables, HTML, definitions of links, rules.
ALONE = re.compile(r"^ *(#{1,6} |\||<|\[[^\]]+\]: |(-{3,}|={3,}|\*{3,})$)")
FENCE = re.compile(r"^ *(```|~~~)")
# A line that begins like this would begin a block.
BEGINS_BLOCK = re.compile(r"^([-*+#>|]|#{1,6}|\d+[.)]|[-=]+)$|^([<|>]|```|~~~)")
# A word: spaces inside code do not end it.
WORD = re.compile(r"(?:`+[^`]*`+|[^\s`]|`)+")


def wrap(first, rest, text):
    """The lines of a text, of which the first begins with `first` and all others with `rest`."""
    lines, line = [], first
    for word in WORD.findall(text):
        is_empty = line in (first, rest)
        too_long = len(line) + (0 if is_empty else 1) + len(word) > COLUMNS
        if not is_empty and too_long and not BEGINS_BLOCK.match(word):
            lines.append(line)
            line, is_empty = rest, True
        line += ("" if is_empty else " ") + word
    return lines + [line]


def blocks(lines):
    """Each block of lines: those that stay, or the beginnings and the text of a paragraph."""
    at, in_code = 0, False
    while at < len(lines):
        line = lines[at]
        if FENCE.match(line):
            in_code = not in_code
        item = LIST_ITEM.match(line)
        quote = re.match(r"^> ?", line)
        indent = len(line) - len(line.lstrip(" "))
        is_text = line.strip() and not in_code and not FENCE.match(line) and not ALONE.match(line)
        if not is_text or (indent >= 4 and not item and (at == 0 or not lines[at - 1].strip())):
            yield [line], None
            at += 1
            continue
        first = item.group(0) if item else quote.group(0) if quote else " " * indent
        rest = " " * len(first) if item else first
        taken, text = [line], line[len(first) :]
        at += 1
        while at < len(lines) and not taken[-1].endswith(("  ", "\\")):
            line = lines[at]
            starts = LIST_ITEM.match(line) or FENCE.match(line) or ALONE.match(line)
            if not line.strip() or starts or bool(quote) != line.startswith(">"):
                break
            taken.append(line)
            text += " " + (re.sub(r"^> ?", "", line) if quote else line.strip())
            at += 1
        hard = "  " if taken[-1].endswith("  ") else ""
        yield taken, [line + end for line, end in ends(wrap(first, rest, text), hard)]


def ends(lines, hard):
    return [(line, hard if at + 1 == len(lines) else "") for at, line in enumerate(lines)]


def main():
    write, failures = "--write" in sys.argv[1:], []
    for page in subprocess.check_output(["git", "ls-files", "*.md"], text=True).split():
        with open(page, encoding="utf-8") as opened:
            lines = opened.read().split("\n")
        result = []
        for taken, wrapped in blocks(lines):
            too_long = any(len(line) > COLUMNS for line in taken)
            if wrapped is None or not too_long or wrapped == taken:
                result += taken
                continue
            failures.append(f"{page}:{len(result) + 1}: text of more than {COLUMNS} columns")
            result += wrapped
        if write and result != lines:
            with open(page, "w", encoding="utf-8") as opened:
                opened.write("\n".join(result))
    if failures and not write:
        print("\n".join(failures), file=sys.stderr)
        sys.exit(f"{len(failures)} paragraphs; envoy/tools/lint/pages.py --write wraps them")


if __name__ == "__main__":
    main()
