# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Start Ansible for the ``busbar`` command: with the user's configuration, and without processes that outlive it."""

from __future__ import annotations

import argparse
import locale
import os
import re
import shlex
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.busbar.fabric.plugins.module_utils.core import process_group
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain, PlainView

from . import ROOT, child_reaper

if TYPE_CHECKING:
    from ansible_runner import Runner

# Options that the command line passes on to every program of Ansible.
_passed: list[str] = []
# Text before the path of a file in their values; a value without it names no file.
_BEFORE_PATH = {"extra_vars": "@", "vault_password_file": "", "vault_id": "[^@]*@", "become_password_file": ""}
HOST_KEYS = "ANSIBLE_HOST_KEY_CHECKING"


def use_utf8() -> None:
    """Set a UTF-8 locale if there is none, for this process and its children: Ansible starts in no other."""
    # The first variable that is set decides (locale(7)).
    name = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
    if "UTF8" not in name.upper().replace("-", ""):
        os.environ["LC_ALL"] = locale.setlocale(locale.LC_ALL, "C.UTF-8")


def pass_on(given: argparse.Namespace) -> None:
    """Pass options of the command on to Ansible. Paths become absolute: ansible-runner starts it in another folder.

    Raises OSError for a file that is missing.
    """
    _passed.clear()
    for name, before in _BEFORE_PATH.items():
        for value in getattr(given, name, None) or ():
            match = re.fullmatch(f"({before})(.+)", value)
            path = Path(match[2]).expanduser().absolute() if match else Path("/")
            # Also for a file that is missing: Ansible does not name it.
            path.stat()
            _passed.extend(["--" + name.replace("_", "-"), f"{match[1]}{path}" if match else value])


def passed() -> list[str]:
    return [*_passed]


def environment() -> dict[str, str]:
    """Return the environment of Ansible's programs: our own, with the configuration of the current folder.

    ansible-runner starts Ansible in another folder, so a path in ANSIBLE_CONFIG is made absolute, and an ansible.cfg in
    the current folder is named. Before what Ansible would look for next, the home folder's, comes the checkout's.
    """
    given = dict(os.environ)
    # `.venv/bin/busbar` works without the environment being activated: ansible lies beside it.
    given["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    config = _config()
    if config:
        given["ANSIBLE_CONFIG"] = config
    # The user's own configuration need not know the checkout.
    if (ROOT / "collections" / "ansible_collections").is_dir():
        given["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "collections"), os.environ.get("PYTHONPATH")]))
    return given


def _config() -> str | None:
    named = os.environ.get("ANSIBLE_CONFIG")
    if named:
        return str(Path(named).expanduser().absolute())
    # As in Ansible: in a folder that all may write, any user could have put it there.
    if os.path.exists("ansible.cfg") and not os.stat(".").st_mode & stat.S_IWOTH:
        return str(Path("ansible.cfg").absolute())
    config = ROOT / "ansible.cfg"
    return str(config) if config.exists() else None


def reaped(argv: list[str], apart: bool = False) -> list[str]:
    """Return argv run below busbar/child_reaper.py, which ends everything it starts, even if this process is killed.

    apart: the reaper runs in its own session.
    """
    if sys.platform != "linux":
        return argv
    collections = Path(process_group.__file__).parents[6]
    words = [str(os.getpid()), "1" if apart else "0", str(collections)]
    return [sys.executable, "-I", "-S", str(Path(child_reaper.__file__)), *words, *argv]


def run(
    private_data_dir: str, envvars: Mapping[str, str] | None = None, cmdline: str | None = None, **arguments: object
) -> Runner:
    """Call ansible_runner.run without its defaults: it disables host key checks and leaves workers behind."""
    from ansible_runner.interface import init_runner  # here, so that the other commands do without it

    # Its temporary files go with the directory, also after a kill.
    own = {"ANSIBLE_LOCAL_TEMP": str(Path(private_data_dir) / "tmp")}
    arguments |= {"private_data_dir": private_data_dir, "envvars": {**own, **environment(), **(envvars or {})}}
    arguments["cmdline"] = " ".join(filter(None, [cmdline, shlex.join(_passed)])) or None
    runner = init_runner(**arguments, quiet=True)
    if HOST_KEYS not in os.environ:
        del runner.config.env[HOST_KEYS]
    runner.config.command = reaped(runner.config.command, apart=True)
    runner.run()
    return runner


def run_module(**arguments: Any) -> tuple[dict[str, Plain], Runner]:
    """Run a module on hosts of gpu_nodes, and return host -> its result, and the runner. arguments: as of run."""
    found: dict[str, Plain] = {}

    def collect(event: PlainView) -> bool:
        data = event.get("event_data") or {}
        if str(event.get("event", "")).startswith("runner_on_") and isinstance(data.get("res"), dict):
            found[str(data.get("host"))] = data["res"]
        return False

    return found, run(host_pattern="gpu_nodes", event_handler=collect, **arguments)
