#!/usr/bin/env -S python3 -IS
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stand-in for grubby of EL 9 and 10 (simulated), of what the suite asks of it: --update-kernel and --default-kernel.

It treats boot entries, grubenv and the files for kernels to come as grubby does, its roughness included: --args takes
away all that there is of a name, spellings are letters, blanks become one. Debian has no grubby.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ENTRIES, ENV = "/boot/loader/entries", "/boot/grub2/grubenv"
CMDLINE, DEFAULT = "/etc/kernel/cmdline", "/etc/default/grub"


def without(line: str, name: str, everywhere: bool) -> str:
    """``name``: of an argument with any value, or one with its value."""
    if "=" in name:
        return re.sub(rf"(^|\s){re.escape(name)}(\s|$)", " ", line, count=1)
    return re.sub(rf"(^|\s){re.escape(name)}(\s|$|=\S*)", " ", line, count=0 if everywhere else 1)


def changed(line: str, removed: list[str], added: list[str]) -> str:
    for name in removed:
        line = without(line, name, True)
    for token in added:
        line = without(line, token.partition("=")[0], True)
    return " ".join([*line.split(), *added])


def value(path: Path, key: str) -> str:
    found = [line.split(None, 1)[1] for line in path.read_text().splitlines() if re.match(rf"{key}\s", line)]
    return found[0].strip() if found else ""


def kernelopts() -> str:
    listed = subprocess.run(["grub2-editenv", ENV, "list"], capture_output=True, text=True, check=False).stdout
    return next((line.partition("=")[2] for line in listed.splitlines() if line.startswith("kernelopts=")), "")


def main(argv: list[str]) -> None:
    options = dict(word.removeprefix("--").split("=", 1) for word in argv if "=" in word)
    entries = sorted(Path(ENTRIES).glob("*.conf"), key=lambda path: path.name, reverse=True)
    if "--default-kernel" in argv:
        print(value(entries[0], "linux"))
        return
    target = options["update-kernel"]
    removed, added = (options.get(name, "").split() for name in ("remove-args", "args"))
    before = kernelopts()
    if target == "ALL" and before:
        subprocess.run(["grub2-editenv", ENV, "set", f"kernelopts={changed(before, removed, added)}"], check=True)
    last = ""
    for path in entries:
        text, kernel = path.read_text(), value(path, "linux")
        if target not in ("ALL", kernel):
            continue
        line = value(path, "options")
        last = changed(line.replace("$kernelopts", before), removed, added)
        if target != "ALL" or "$kernelopts" not in line.split():
            lines = [f"options {last}" if re.match(r"options\s", each) else each for each in text.splitlines()]
            path.write_text("\n".join(lines) + "\n")
    if target == "ALL":
        default, kept = Path(DEFAULT), Path(CMDLINE)
        if default.exists():
            text = re.sub(
                r'^GRUB_CMDLINE_LINUX="(.+)"$',
                lambda match: f'GRUB_CMDLINE_LINUX="{changed(match[1], removed, added)}"',
                default.read_text(),
                flags=re.MULTILINE,
            )
            default.write_text(text)
        line = kept.read_text().strip() if kept.exists() else last
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(changed(line, removed, added) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
