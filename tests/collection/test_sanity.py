# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``ansible-test sanity``, one of its tests at a time, on a copy that it can see.

A test that has nothing to look at is skipped with that reason, and with BUSBAR_OFFLINE=1 so is one whose requirements
cannot be installed.
"""

from __future__ import annotations

import ast
import configparser
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
NODE_PYTHON = "3.8"
TESTS = [
    *("action-plugin-docs", "ansible-doc", "changelog", "compile", "empty-init", "ignores", "import", "line-endings"),
    *("no-assert", "no-get-exception", "no-illegal-filenames", "no-smart-quotes", "pep8", "pslint", "pylint"),
    *("replace-urlopen", "runtime-metadata", "shebang", "shellcheck", "symlinks", "use-argspec-type-path"),
    *("use-compat-six", "validate-modules", "yamllint"),
]
# No fragments, no __init__.py with code, no PowerShell, no shell scripts: these say so, and any other must not.
NOTHING_TO_LOOK_AT = {"changelog", "empty-init", "pslint", "shellcheck"}
# ansible-test says these with return code 0.
LOOKED_AT_NOTHING = ("No tests applicable", "All targets skipped")
FAILED = "sanity test(s) listed below"
NOT_INSTALLED = ("does not have pip available", "A command failed with status", "No matching distribution found")
# ansible-test downloads get-pip from a host of its own, unless a script of this name is in its cache. Python brings
# a pip, and that one can install the version which ansible-test wants.
GET_PIP = "get_pip_24_2.py"
BOOTSTRAP = """\
import subprocess, sys
subprocess.check_call([sys.executable, "-m", "ensurepip"])
packages = [word for word in sys.argv[1:] if not word.startswith("-")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *packages]))
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home of its own for ansible-test, kept between runs: it holds an environment for each test."""
    directory = ROOT / ".cache" / "ansible-test"
    (directory / ".ansible" / "test" / "cache").mkdir(parents=True, exist_ok=True)
    (directory / ".config" / "pip").mkdir(parents=True, exist_ok=True)
    settings = directory / ".config" / "pip" / "pip.conf"
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs would build the same environments
        (directory / ".ansible" / "test" / "cache" / GET_PIP).write_text(BOOTSTRAP)
        with open(os.open(settings, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            pip_settings().write(stream)
        yield directory
        settings.unlink()  # an index may be named with its password


def pip_settings() -> configparser.RawConfigParser:
    """What pip is told here by files and variables: ansible-test passes on no PIP_ variable, and has another home."""
    settings = configparser.RawConfigParser()
    command = [sys.executable, "-m", "pip", "config", "list"]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        key, _equals, value = line.partition("=")
        section, _dot, option = key.rpartition(".")
        section = "global" if section == ":env:" else section
        if not settings.has_section(section):
            settings.add_section(section)
        settings.set(section, option, ast.literal_eval(value))
    return settings


def ansible_test(directory: Path, home: Path, *arguments: str) -> tuple[int, str]:
    command = [str(Path(sys.executable).parent / "ansible-test"), "sanity", *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    return done.returncode, done.stdout + done.stderr


def sanity(directory: Path, home: Path, name: str, python: str = PYTHON) -> tuple[int, str]:
    """Return code and output of one test that has run. Skips where its requirements cannot be
    installed."""
    rc, out = ansible_test(directory, home, "-v", "--python", python, "--test", name)
    if rc != 0 and FAILED not in out:
        reasons = [line.strip() for line in out.splitlines() if any(text in line for text in NOT_INSTALLED)]
        if not reasons:
            pytest.fail(f"ansible-test could not run {name}:\n{out}")
        message = f"{name} did not run, its requirements cannot be installed here: {reasons[0]}"
        # A machine without the network says so; anywhere else a check that does not run is a failure.
        (pytest.skip if os.environ.get("BUSBAR_OFFLINE") == "1" else pytest.fail)(message)
    return rc, out


def test_every_sanity_test_is_listed_here(staged: Path, home: Path) -> None:
    rc, out = ansible_test(staged, home, "--list-tests")
    assert rc == 0, out
    assert [line for line in out.splitlines() if line and not line.startswith("WARNING")] == TESTS


# Importing each file by itself takes longer than all the rest; of the others ruff and ansible-lint find most.
LONG = {"import", "pep8", "pylint", "runtime-metadata", "yamllint"}
SOME = [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in TESTS]


@pytest.mark.parametrize("name", SOME)
def test_sanity(staged: Path, home: Path, name: str) -> None:
    rc, out = sanity(staged, home, name)
    assert rc == 0, out
    if any(text in out for text in LOOKED_AT_NOTHING):
        assert name in NOTHING_TO_LOOK_AT, f"{name} looked at nothing:\n{out}"
        pytest.skip(f"{name} has nothing to look at in this collection")


@pytest.mark.long
@pytest.mark.parametrize("name", ["compile", "import"])
def test_sanity_of_node_code_on_the_oldest_python(
    staged: Path, home: Path, name: str, oldest_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(oldest_python).parent}{os.pathsep}{os.environ['PATH']}")
    rc, out = sanity(staged, home, name, python=NODE_PYTHON)
    assert rc == 0, out
    assert not any(text in out for text in LOOKED_AT_NOTHING), out
