"""Checks that code, configurations and pages use the terms of the glossary in core/README.md.

Each word on the left was once used for the term on the right. The check fails where one is left, be it in a name, a comment, a
message or a page, and names the term to use. Words that have another meaning in the field are left out of the list.

usage: envoy/tools/lint/words.py
"""
import re
import subprocess
import sys

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
    "sentinel": "marker",
    "consult_timeout": "timeout",
    "on_consult_failure": "on_failure",
    "shadow_deny": "shadow_denied",
    "missing: deny": "on_missing_identifier: deny",
}
# This list itself, and files of others.
SKIPPED = re.compile(r"^(envoy/tools/lint/words\.py|Cargo\.lock|LICENSE|.*\.(png|svg)|.*/corpus/.*)$")

# Files in which a word is the name of another program: Redis Sentinel.
NAMES = {"sentinel": re.compile(r"^aggregator/tests/.*redis.*\.rs$")}


def pattern(word):
    """The word by itself or as a part of a name: roster, ROSTER_MS, rosterFrame, RosterFrame."""
    first, rest = word[0], word[1:]
    plural = "" if word.endswith("s") else "s?"
    return rf"(?<![A-Za-z])(?:{first}{rest}{plural}(?![a-z])|{word.upper()}(?:{plural.upper()})(?![A-Z]))|{first.upper()}{rest}{plural}(?![a-z])"


def main():
    words = {re.compile(pattern(word)): (word, term) for word, term in TERMS.items()}
    found = 0
    for file in subprocess.check_output(["git", "ls-files"], text=True).split("\n"):
        if not file or SKIPPED.match(file):
            continue
        try:
            with open(file, encoding="utf-8") as opened:
                lines = opened.read().split("\n")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        for number, line in enumerate(lines, 1):
            for regex, (word, term) in words.items():
                is_name = word in NAMES and NAMES[word].match(file)
                if regex.search(line) and not is_name:
                    found += 1
                    print(f"{file}:{number}: {word!r}: the term is {term}: {line.strip()[:90]}", file=sys.stderr)
    return int(found > 0)


sys.exit(main())
