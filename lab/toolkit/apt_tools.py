#!/usr/bin/env -S python3 -IS
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dpkg-query, apt-mark and apt-get of a node that is a directory tree, each by the name that it is called by.

A tree has dpkg's list of packages, and the stand-ins of the lab's repository as one file for each release
(packages.json) in place of .deb files. Of their scripts only what DKMS builds is run: the others are for systemd, which
would be that of the machine that the tree is on. Containers have the real tools. Stands alone, Python 3.9.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0]))))
STATUS = os.path.join(ROOT, "var/lib/dpkg/status")
SOURCES = os.path.join(ROOT, "etc/apt/sources.list.d/*.sources")
_LETTERS = {"install": "i", "hold": "h", "deinstall": "r"}


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
    """What the suite asks for: --showformat=${db:Status-Abbrev}\\t${Package}\\t${Version}\\n."""
    for stanza in stanzas():
        known = fields(stanza)
        want, _ok, state = known["Status"].split()
        print(f"{_LETTERS[want]}{state[0]} ", known["Package"], known.get("Version", ""), sep="\t")
    return 0


def apt_mark(arguments: list[str]) -> int:
    """hold and unhold."""
    word = "hold" if arguments[0] == "hold" else "install"
    found = stanzas()
    for stanza in found:
        if fields(stanza)["Package"] in arguments[1:]:
            line = next(n for n, text in enumerate(stanza) if text.startswith("Status: "))
            stanza[line] = " ".join(["Status:", word, *stanza[line].split()[2:]])
    save(found)
    return 0


def save(found: list[list[str]]) -> None:
    with open(STATUS + ".new", "w", encoding="utf-8") as stream:
        stream.write("".join("\n".join(stanza) + "\n\n" for stanza in found))
    os.replace(STATUS + ".new", STATUS)


def offered() -> dict[str, dict[str, Any]]:
    """Name -> package, of the repositories that sources.list.d names: file:RELEASE/DISTRIBUTION/ARCHITECTURE."""
    pool: dict[str, dict[str, Any]] = {}
    for source in sorted(glob.glob(SOURCES)):
        with open(source, encoding="utf-8") as stream:
            places = [line.partition("file:")[2].strip() for line in stream if line.startswith("URIs: file:")]
        for place in places:
            release = os.path.dirname(os.path.dirname(os.path.normpath(place)))
            with open(ROOT + os.path.join(release, "packages.json"), encoding="utf-8") as stream:
                pool.update(json.load(stream))
    return pool


def chosen(names: list[str], pool: dict[str, dict[str, Any]], known: dict[str, str]) -> list[dict[str, Any]]:
    """The packages of these names after those that they depend on and that are not there. KeyError: there is none."""
    found: list[dict[str, Any]] = []
    for name in names:
        package = pool[name]
        for depend in filter(None, package["depends"].split(", ")):
            needed, _sign, version = depend.rstrip(")").partition(" (= ")
            if known.get(needed) != version:
                found += chosen([needed], pool, known)
        found.append(package)
    return found


def install(names: list[str]) -> int:
    status = {fields(stanza)["Package"]: stanza for stanza in stanzas()}
    known = {name: fields(stanza).get("Version", "") for name, stanza in status.items()}
    try:
        packages = chosen(names, offered(), known)
    except KeyError as error:
        print(f"E: Unable to locate package {error.args[0]}", file=sys.stderr)
        return 100
    for package in packages:
        for path, (mode, text) in package["files"].items():
            os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
            with open(ROOT + path, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.chmod(ROOT + path, mode)
        first, *rest = package["control"].splitlines()
        name = first.partition(": ")[2]
        # What is held stays held, also in another version.
        want = fields(status[name])["Status"].split()[0] if name in status else "install"
        status[name] = [first, f"Status: {want} ok installed", *rest]
        save(list(status.values()))
        if package["dkms"] and subprocess.run([f"{ROOT}/usr/lib/dkms/common.postinst", *package["dkms"]]).returncode:
            print("E: Sub-process /usr/bin/dpkg returned an error code (1)", file=sys.stderr)
            return 100
    return 0


def purge(names: list[str]) -> int:
    """Only packages that have put nothing on the node."""
    pool = offered()
    for name in names:
        if name in pool and pool[name]["files"]:
            print(f"E: {name} cannot be removed from a node that is a directory (simulated)", file=sys.stderr)
            return 100
    save([stanza for stanza in stanzas() if fields(stanza)["Package"] not in names])
    return 0


def apt_get(arguments: list[str]) -> int:
    actions = {"update": lambda names: 0, "install": install, "purge": purge}
    place = next(n for n, argument in enumerate(arguments) if argument in actions)
    return actions[arguments[place]](arguments[place + 1 :])


def main() -> int:
    tools = {"dpkg-query": dpkg_query, "apt-mark": apt_mark, "apt-get": apt_get}
    return tools[os.path.basename(sys.argv[0])](sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
