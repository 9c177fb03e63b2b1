# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar check``: a first verdict, without an inventory. Reads only: nothing is written on the machine."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils import audit
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import exit_code, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.capture import archive
from ansible_collections.busbar.fabric.plugins.plugin_utils.check import infer, judge, render
from ansible_collections.busbar.fabric.plugins.plugin_utils.check.question import Values

from . import ansible_process, command_line, draft, private_tempdir
from .drift import output

# Seconds for the whole machine, where reads hang, and for each call of a tool.
_TOTAL, _TOOL = 30.0, 3.0
# No script of an inventory directory is executed for a first look.
_ANSIBLE = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_INVENTORY_ENABLED": "host_list,auto,yaml,ini"}


def add(command: argparse.ArgumentParser) -> None:
    option = command.add_argument
    text = "hosts to check over ssh: 'host1,host2,' or an inventory; without it, this machine"
    option("-i", "--inventory", action="append", metavar="HOSTS", help=text)
    option("--limit", metavar="PATTERN", help="with -i: only these hosts")
    option("--platform", metavar="NAME", help="shipped profile to hold the machine to, instead of the recognised one")
    text = "archive of busbar capture, or directory: hw/ and sys/ below it, or /sys, /proc and /etc"
    option("--root", type=Path, metavar="PATH", help=text)
    text = "new directory for a draft inventory; with --platform custom, also for a draft profile of this machine"
    option("--write", type=Path, metavar="DIR", help=text)
    option("--json", metavar="FILE", help="also write the verdict as JSON (-: standard output)")
    option("-v", "--verbose", action="store_true", help="print every finding and every open decision")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Return the exit code."""
    sys.dont_write_bytecode = True
    # The caller may have closed it.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    started = time.monotonic()
    try:
        if arguments.inventory:
            data = _over_ssh(arguments)
        elif arguments.limit is not None:
            raise ParseError("--limit needs -i")
        elif arguments.root and arguments.root.is_file():
            with private_tempdir.directory() as folder:
                archive.unpack(arguments.root, folder / arguments.root.name)
                arguments.root = folder / arguments.root.name
                data = render.report([_local(arguments)], 0.0, arguments.verbose, terminal.WIDTH)
        else:
            data = render.report([_local(arguments)], time.monotonic() - started, arguments.verbose, terminal.WIDTH)
        screen = sys.stderr if arguments.json == "-" else sys.stdout
        print(data.pop("text"), file=screen)
        if arguments.write:
            text, doubts = draft.write(arguments.write, data["hosts"], arguments.inventory, arguments.platform)
            print(text, file=screen)
            data["code"] = exit_code.worst([data["code"], exit_code.FINDINGS]) if doubts else data["code"]
        if arguments.json:
            output.write(arguments.json, json.dumps(data, indent=2) + "\n", 0o644)
    except (ParseError, OSError) as error:
        return command_line.complain("check", error)
    return int(data["code"])


def _platform(arguments: argparse.Namespace) -> Values:
    """Return the variable of --platform; its value is empty where a profile of the machine's own is drafted."""
    is_drafted = arguments.write and arguments.platform == draft.CUSTOM
    return {"busbar_platform": "" if is_drafted else arguments.platform} if arguments.platform else {}


def _over_ssh(arguments: argparse.Namespace) -> Values:
    """Return what the playbook reports. Raises ParseError where it reports nothing."""
    if arguments.root:
        raise ParseError("--root is a directory of this machine: leave out -i")
    for word in arguments.inventory:
        if "," not in word and not Path(word).exists():
            raise ParseError(f"-i {word}: there is no such file; for a host of that name write -i '{word},'")
    with private_tempdir.directory() as folder:
        file = folder / "report.json"
        variables = {"check_report_path": str(file), "check_verbose": arguments.verbose}
        variables |= {"check_started": time.time(), "check_draft": bool(arguments.write)}
        done = ansible_process.run(
            private_data_dir=str(folder),
            inventory=[word if "," in word else os.path.realpath(word) for word in arguments.inventory],
            playbook="busbar.fabric.check",
            limit=arguments.limit,
            extravars=variables | _platform(arguments),
            envvars=_ANSIBLE | {"ANSIBLE_FORKS": os.environ.get("ANSIBLE_FORKS", "25"), "COLUMNS": f"{terminal.WIDTH}"},
        )
        if file.exists():
            return dict(json.loads(file.read_text(encoding="utf-8")))
        lines = [line for line in done.stdout.read().splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line or "WARNING" in line] or lines[-3:]
    raise ParseError("no host was checked: " + (" ".join(errors)[:600] or "ansible-playbook printed nothing"))


def _local(arguments: argparse.Namespace) -> judge.Verdict:
    """Return the verdict on this machine, or on the one below --root. Raises ParseError."""
    roots = roots_of(arguments.root)
    given: Values = {f"busbar_{key}": value for key, value in roots.items()}
    given |= _platform(arguments)

    def call_modules(steps: list[Values]) -> list[Values]:
        return audit.run(steps, _TOTAL, _TOTAL, _TOOL)

    data = infer.query(call_modules, given, Path("profiles"), bool(arguments.write))
    name = os.path.basename(os.path.realpath(arguments.root)) if arguments.root else socket.gethostname()
    return judge.judge(name, **data)


def roots_of(root: Path | None) -> dict[str, str]:
    """Return the roots of this machine, or of the one below a directory. Raises ParseError."""
    top = Path(os.path.realpath(root)) if root else Path("/")
    if not top.is_dir():
        raise ParseError(f"--root: {root} is not a directory")
    parts = ("hw", "sys") if root and (top / "hw").is_dir() else ("", "")
    return {"hardware_root": str(top / parts[0]), "system_root": str(top / parts[1])}
