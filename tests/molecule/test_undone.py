# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A drift test that fails leaves the node as it found it: the next one's findings are its own. Without a node."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest


class Failing:
    """A node on which one command ends with an error."""

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.done: list[str] = []

    def check_output(self, command: str) -> str:
        self.done.append(command)
        if command == self.fails:
            raise AssertionError(command)
        return ""


@pytest.mark.parametrize(
    ("fails", "done"),
    [
        ("break a", ["break a", "run", "mend a"]),
        ("break b", ["break a", "break b", "run", "mend a"]),
        ("break c", ["break a", "break b", "break c", "run", "mend c", "mend a"]),
        ("mend c", ["break a", "break b", "break c", "check", "run", "mend c", "mend a"]),
        ("check", ["break a", "break b", "break c", "check", "run", "mend c", "mend a"]),
    ],
)
def test_what_a_test_has_changed_is_taken_back_however_it_fails(
    fails: str, done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab/node01").mkdir(parents=True)
    (tmp_path / "lab/node01/machine.json").write_text("{}")
    monkeypatch.setenv("MOLECULE_EPHEMERAL_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("BUSBAR_MOLECULE_ROLES", "a,b,c")
    for name in ("scenario", "test_drift"):
        # Each is of the node that it was loaded for.
        monkeypatch.delitem(sys.modules, f"tests.molecule.{name}", raising=False)
        module: Any = importlib.import_module(f"tests.molecule.{name}")
        monkeypatch.setitem(sys.modules, f"tests.molecule.{name}", module)
    host = Failing(fails)

    def played(what: str) -> dict[str, Any]:
        host.check_output(what)
        return {"findings": [{"check": f"{role}.x", "id": role} for role in "abc"], "repaired": []}

    monkeypatch.setattr(module, "check", lambda host, roles: played("check"))
    monkeypatch.setattr(module, "play", lambda roles, check: played("run"))
    made = [module.Change(role, ["break", role], [f"{role}.x"], ["mend", role]) for role in "abc"]
    made[1] = made[1]._replace(undo=None)
    with pytest.raises(AssertionError, match=fails):
        module.prove_changes(host, made)
    assert host.done == done
