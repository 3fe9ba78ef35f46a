#!/usr/bin/env python3
"""Checks that code, configurations and pages use the terms of the glossary in core/README.md, and that it explains what they use.

Each word of TERMS was once used for the term on its right. The check fails

- where such a word is left, be it in a name, a comment, a message or a page. Words that have another meaning in the field are
  left out of the list;
- where no code, field, metric or page uses a term of the glossary, or the code has no name that the glossary gives as such;
- where a public type of core is explained neither by its comment nor by a term of the glossary in it. A reference to another
  place is no explanation.

usage: envoy/tools/lint/words.py
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import rust  # noqa: E402

GLOSSARY = "core/README.md"

TERMS = {
    "sister": "peer",
    "desk": "state of the region",
    "decider": "embedded limiter",
    "doors": "APIs",
    "entrance": "authentication",
    "cadence": "schedule, interval",
    "retell": "resync",
    "roster": "worker registry",
    "buried": "reaped",
    "foregone": "cached denial",
    "foretold": "certain denial",
    "strikes": "violations",
    "tally": "counters",
    "ruling": "exact response, result",
    "teller": "broadcaster",
    "announcer": "heartbeat",
    "ceiling": "hard limit",
    "regret": "refund",
    "consult_timeout": "timeout",
    "on_consult_failure": "on_failure",
    "shadow_deny": "shadow_denied",
    "missing: deny": "on_missing_identifier: deny",
}
# This list itself, and files of others.
SKIPPED = re.compile(r"^(envoy/tools/lint/(words|test)\.py|Cargo\.lock|LICENSE|.*\.(png|svg)|.*/corpus/.*)$")


def pattern(word):
    """The word by itself or as a part of a name: roster, ROSTER_MS, rosterFrame, RosterFrame."""
    first, rest = word[0], word[1:]
    plural = "" if word.endswith("s") else "s?"
    return rf"(?<![A-Za-z])(?:{first}{rest}{plural}(?![a-z])|{word.upper()}(?:{plural.upper()})(?![A-Z]))|{first.upper()}{rest}{plural}(?![a-z])"


def text_of(file):
    """A file's text; nothing if it has none."""
    try:
        return rust.text_of(file)
    except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
        return ""


def former_words(texts):
    words = {re.compile(pattern(word)): (word, term) for word, term in TERMS.items()}
    any_word = re.compile("|".join(TERMS), re.I)
    for file, text in texts.items():
        if SKIPPED.match(file) or not any_word.search(text):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            for regex, (word, term) in words.items():
                if regex.search(line):
                    yield f"{file}:{number}: {word!r}: the term is {term}: {line.strip()[:90]}"


def glossary(page):
    """The rows of the glossary: the number of the line, the terms, and their meaning."""
    is_glossary = False
    for number, line in enumerate(page.split("\n"), 1):
        if line.startswith("#"):
            is_glossary = line == "## Glossary"
        row = re.match(r"\| ([^|]+) \| ([^|]+) \|$", line)
        if is_glossary and row and row[1] != "term":
            yield number, [term.strip() for term in row[1].split(",")], row[2]
        elif is_glossary and not line and row is None and number > 1 and page.split("\n")[number - 2].startswith("|"):
            return


def words_of(text):
    """The words of a text in small letters, also those in the names of code, each between blanks."""
    return " " + " ".join(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower())) + " "


def unused_terms(texts):
    page = texts[GLOSSARY]
    lines = page.split("\n")
    rows = list(glossary(page))
    rest = "\n".join(line for number, line in enumerate(lines, 1) if number not in {row[0] for row in rows})
    others = [text for file, text in texts.items() if file not in (GLOSSARY, "Cargo.lock") and not SKIPPED.match(file)]
    used = words_of("\n".join(others + [rest]))
    code = "\n".join(text for file, text in texts.items() if file.endswith(".rs"))
    for number, terms, meaning in rows:
        for term in terms:
            word = words_of(term).strip()
            if not any(f" {word}{end} " in used for end in ("", "s", "es")):
                yield f"{GLOSSARY}:{number}: nothing uses the term {term!r}; take it out, or use it"
        for where in re.findall(r"In (?:code|code and JSON|code, frames and metrics|metrics): ([^.]*)\.", meaning):
            for name in re.findall(r"`(\w+)`", where):
                if not re.search(rf"\b{name}", code, re.I):
                    yield f"{GLOSSARY}:{number}: the code has no {name!r}; state the name that it has"


def unexplained_types(texts):
    terms = [words_of(term) for _, row, _ in glossary(texts[GLOSSARY]) for term in row]
    for file, text in texts.items():
        if not file.startswith("core/src/") or not file.endswith(".rs") or rust.TEST_FILE.search(file):
            continue
        tests = rust.TEST_MODULE.search(text)
        lines = (text[: tests.start()] if tests else text).split("\n")
        for number, line in enumerate(lines, 1):
            item = re.match(r"pub (?:struct|enum|trait|type|union) (\w+)", line)
            if not item:
                continue
            above = [line[3:] for line in comment_above(lines, number - 1)]
            said = [one for one in re.split(r"(?<=[.;:])\s", " ".join(above).strip()) if not one.startswith("See ")]
            words = words_of(" ".join(said))
            if len(words.split()) < 4 and not any(term in words for term in terms):
                yield f"{file}:{number}: nothing explains {item[1]}; state what it is in its comment"


def comment_above(lines, at):
    """The comment of the item in a line, above its attributes."""
    at -= 1
    while at >= 0 and re.match(r"#\[|\)\]| {4}", lines[at]):
        at -= 1
    end = at
    while at >= 0 and lines[at].startswith("///"):
        at -= 1
    return lines[at + 1 : end + 1]


def main():
    os.chdir(rust.root())
    texts = {file: text_of(file) for file in rust.tracked("*")}
    failures = [*former_words(texts), *unused_terms(texts), *unexplained_types(texts)]
    print("\n".join(failures), file=sys.stderr, end="\n" if failures else "")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
