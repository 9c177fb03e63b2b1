# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar capture``: archive what the checks read on this machine, to check it elsewhere: ``busbar check --root``.

Reads only. The archive also has the findings of this run, with which those of a replay are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils import audit
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.plugin_utils.capture import archive, record
from ansible_collections.busbar.fabric.plugins.plugin_utils.check import infer
from ansible_collections.busbar.fabric.plugins.plugin_utils.check.question import Values
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import GOOD, UNKNOWN

from . import __version__, check, command_line, private_tempdir

# Seconds for the whole machine, and for each call of a tool.
_TOTAL, _TOOL = 120.0, 20.0


def add(command: argparse.ArgumentParser) -> None:
    option = command.add_argument
    option("--redact", action="store_true", help="replace addresses, GUIDs, serial numbers, host and user names")
    text = "archive to write (busbar-capture-TIME.tar.gz); with --unpack, new directory"
    option("-o", "--output", type=Path, metavar="PATH", help=text)
    option("--root", type=Path, metavar="DIR", help="directory of a simulated machine, as for busbar check")
    option("--unpack", type=Path, metavar="FILE", help="unpack an archive, for inventories (docs/check.md#capture)")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Return the exit code."""
    name = time.strftime("busbar-capture-%Y%m%dT%H%M%SZ", time.gmtime())
    try:
        if arguments.unpack:
            folder = arguments.output or Path(name)
            archive.unpack(arguments.unpack, folder)
            print(f"unpacked: busbar check --root {folder}")
            return GOOD
        file = arguments.output or Path(f"{name}.tar.gz")
        with private_tempdir.directory() as folder:
            left_out = capture(check.roots_of(arguments.root), folder, file, arguments.redact)
    except (ParseError, ReadError, OSError) as error:
        return command_line.complain("capture", error)
    named = "addresses, serial numbers and names are replaced" if arguments.redact else "it names hosts and addresses"
    print(f"{file}: {file.stat().st_size >> 10} KiB; {named}: read it before you send it")
    lines = [f"left out: {one}" for one in left_out]
    lines += ["left out: what only root can read; run it as root"] * bool(os.geteuid())
    command_line.print_list(lines, "", "file")
    return UNKNOWN if left_out or os.geteuid() else GOOD


def capture(roots: Values, folder: Path, file: Path, redact: bool) -> list[str]:
    """Write an archive. Return what was left out. Raises ParseError, ReadError, OSError.

    folder: new, for the recording.
    """
    given = {f"busbar_{key}": value for key, value in roots.items()}
    data = infer.query(lambda steps: _recorded(steps, folder), given, Path("profiles"), True)
    names = archive.redactor(folder, Host(**roots).read_system("/etc/passwd", "replace") or "") if redact else None
    about = {"version": __version__, "redacted": redact, "findings": findings(data["results"])}
    return archive.pack(folder, file, about, names)


def findings(results: Iterable[Values]) -> list[list[str]]:
    """Return check, subject and state of each finding of an audit; a module that failed is one."""
    found = [[one["check"], one["subject"], one["state"]] for of in results for one in of.get("findings", ())]
    return sorted(found + [["failed", str(of["msg"]), "unknown"] for of in results if of.get("failed")])


def _recorded(steps: list[Values], folder: Path) -> list[Values]:
    """Make module calls, and record what they read. A read that hangs ends them."""
    end = time.monotonic() + _TOTAL
    session = record.Recording(folder, _TOOL, end)
    lines, _hung = audit.Child(lambda stream: audit.work(steps, stream, session), len(steps), _TOTAL, end).lines()
    missing = [{"failed": True, "msg": "a read before it hung"}] * (len(steps) - len(lines))
    return [*map(json.loads, lines), *missing]
