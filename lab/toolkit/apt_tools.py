#!/usr/bin/env -S python3 -IS
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dpkg-query, apt-mark and apt-get of a node that is a directory tree, each by the name that it is called by.

A tree has dpkg's list of packages, and the lab's repository as one file for each release (packages.json: name ->
control) in place of .deb files. What is installed is in that list, and nothing else changes: files, scripts and what
DKMS builds are for containers, which have the real tools. Stands alone, Python 3.9.
"""

from __future__ import annotations

import glob
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0]))))
STATUS = os.path.join(ROOT, "var/lib/dpkg/status")
SOURCES = os.path.join(ROOT, "etc/apt/sources.list.d/*.sources")
_LETTERS = {"install": "i", "hold": "h", "deinstall": "r"}
Stanza = dict[str, str]


def parse(text: str) -> Stanza:
    """Fields, with the lines that go on."""
    found: Stanza = {}
    name = ""
    for line in text.splitlines():
        if line.startswith(" "):
            found[name] += f"\n{line}"
        else:
            name, _colon, found[name] = line.partition(": ")
    return found


def read() -> dict[str, Stanza]:
    """Package -> what dpkg knows of it."""
    if not os.path.exists(STATUS):
        return {}
    with open(STATUS, encoding="utf-8") as stream:
        stanzas = [parse(part) for part in stream.read().split("\n\n") if part.strip()]
    return {stanza["Package"]: stanza for stanza in stanzas}


def save(packages: dict[str, Stanza]) -> int:
    with open(STATUS + ".new", "w", encoding="utf-8") as stream:
        for stanza in packages.values():
            stream.write("".join(f"{name}: {value}\n" for name, value in stanza.items()) + "\n")
    os.replace(STATUS + ".new", STATUS)
    return 0


def dpkg_query(arguments: list[str]) -> int:
    """What the suite asks for: --showformat=${db:Status-Abbrev}\\t${Package}\\t${Version}\\n."""
    for name, stanza in read().items():
        want, _ok, state = stanza["Status"].split()
        print(f"{_LETTERS[want]}{state[0]} ", name, stanza.get("Version", ""), sep="\t")
    return 0


def apt_mark(arguments: list[str]) -> int:
    """hold and unhold."""
    packages = read()
    for name in arguments[1:]:
        packages[name]["Status"] = f"{'hold' if arguments[0] == 'hold' else 'install'} ok installed"
    return save(packages)


def offered() -> dict[str, Stanza]:
    """Packages of the repositories that sources.list.d names: file:RELEASE/DISTRIBUTION/ARCHITECTURE."""
    pool: dict[str, Stanza] = {}
    for source in sorted(glob.glob(SOURCES)):
        with open(source, encoding="utf-8") as stream:
            places = [line.partition("file:")[2].strip() for line in stream if line.startswith("URIs: file:")]
        for place in places:
            release = os.path.dirname(os.path.dirname(os.path.normpath(place)))
            with open(ROOT + os.path.join(release, "packages.json"), encoding="utf-8") as stream:
                pool.update((name, parse(control)) for name, control in json.load(stream).items())
    return pool


def install(names: list[str], packages: dict[str, Stanza], pool: dict[str, Stanza]) -> None:
    """Each after those that it depends on and that are not there. KeyError: there is none."""
    for name in names:
        for depend in filter(None, pool[name].get("Depends", "").split(", ")):
            needed, _sign, version = depend.rstrip(")").partition(" (= ")
            if packages.get(needed, {}).get("Version") != version:
                install([needed], packages, pool)
        # What is held stays held, also in another version.
        want = packages[name]["Status"].split()[0] if name in packages else "install"
        packages[name] = {"Package": name, "Status": f"{want} ok installed", **pool[name]}


def apt_get(arguments: list[str]) -> int:
    """update, install and purge."""
    place = next(n for n, argument in enumerate(arguments) if argument in ("update", "install", "purge"))
    action, names, packages = arguments[place], arguments[place + 1 :], read()
    if action == "purge":
        packages = {name: stanza for name, stanza in packages.items() if name not in names}
    try:
        if action == "install":
            install(names, packages, offered())
    except KeyError as error:
        print(f"E: Unable to locate package {error.args[0]}", file=sys.stderr)
        return 100
    return save(packages)


if __name__ == "__main__":
    tools = {"dpkg-query": dpkg_query, "apt-mark": apt_mark, "apt-get": apt_get}
    sys.exit(tools[os.path.basename(sys.argv[0])](sys.argv[1:]))
