#!/usr/bin/env -S python3 -IS
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dpkg-query, apt-mark and apt-get of a node that is a directory tree, each by the name that it is called by.

A tree has dpkg's list of packages and no packages: nothing can be installed there, and apt-get says so as it does
where a package is nowhere to be found. Containers have the real ones. Stands alone, Python 3.9.
"""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0]))))
STATUS = os.path.join(ROOT, "var/lib/dpkg/status")
_LETTERS = {"install": "i", "hold": "h", "deinstall": "r", "purge": "p", "unknown": "u"}
_STATES = {"installed": "i", "config-files": "c", "not-installed": "n", "half-configured": "F", "unpacked": "U"}


def stanzas() -> list[list[str]]:
    try:
        with open(STATUS, encoding="utf-8") as stream:
            return [part.splitlines() for part in stream.read().split("\n\n") if part.strip()]
    except FileNotFoundError:
        return []


def fields(stanza: list[str]) -> dict[str, str]:
    pairs = (line.partition(": ") for line in stanza if not line.startswith(" "))
    return {name: value for name, _colon, value in pairs}


def dpkg_query(arguments: list[str]) -> int:
    shown = next((a.partition("=")[2] for a in arguments if a.startswith("--showformat=")), "${Package}\t${Version}\n")
    for stanza in stanzas():
        known = fields(stanza)
        want, _ok, state = known["Status"].split()
        text = shown.replace("${db:Status-Abbrev}", _LETTERS[want] + _STATES[state] + " ")
        text = text.replace("${Package}", known["Package"]).replace("${Version}", known.get("Version", ""))
        sys.stdout.write(text.replace("\\n", "\n").replace("\\t", "\t"))
    return 0


def apt_mark(arguments: list[str]) -> int:
    """hold and unhold."""
    action, names = arguments[0], arguments[1:]
    found = stanzas()
    known = {fields(stanza)["Package"] for stanza in found}
    for name in names:
        if name not in known:
            print(f"E: Unable to locate package {name}", file=sys.stderr)
            return 100
    word = "hold" if action == "hold" else "install"
    for stanza in found:
        if fields(stanza)["Package"] in names:
            line = next(n for n, text in enumerate(stanza) if text.startswith("Status: "))
            stanza[line] = " ".join(["Status:", word, *stanza[line].split()[2:]])
    with open(STATUS + ".new", "w", encoding="utf-8") as stream:
        stream.write("\n\n".join("\n".join(stanza) for stanza in found) + "\n")
    os.replace(STATUS + ".new", STATUS)
    return 0


def apt_get(arguments: list[str]) -> int:
    action = next((n for n, a in enumerate(arguments) if a in ("update", "install", "purge")), len(arguments))
    if arguments[action:] == ["update"]:
        print("Reading package lists...")
        return 0
    for name in arguments[action + 1 :]:
        print(f"E: Unable to locate package {name}", file=sys.stderr)
    return 100


def main() -> int:
    tools = {"dpkg-query": dpkg_query, "apt-mark": apt_mark, "apt-get": apt_get}
    return tools[os.path.basename(sys.argv[0])](sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
