# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an operator sees at a terminal: the callback in ansible-playbook, and the end that Ctrl-C makes of it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import yaml

from tests.site.conftest import ROOT

ANSIBLE_PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
COLUMNS = 40


def tried(folder: Path, tasks: list[dict[str, object]]) -> list[str]:
    """A playbook of one role with these tasks, on three hosts: the words for ansible-playbook."""
    role = folder / "roles" / "tried" / "tasks"
    role.mkdir(parents=True)
    (role / "main.yml").write_text(yaml.safe_dump(tasks))
    book = [{"name": "Try", "hosts": "all", "gather_facts": False, "roles": ["tried"]}]
    (folder / "book.yml").write_text(yaml.safe_dump(book))
    hosts = {name: {"ansible_connection": "local"} for name in ("n1", "n2", "n3")}
    values = {"ansible_python_interpreter": sys.executable}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": values}}))
    return ["-i", str(folder / "hosts.yml"), str(folder / "book.yml")]


class Watched:
    """ansible-playbook at a terminal of 40 columns."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.shown = ""
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        environment |= {
            "ANSIBLE_STDOUT_CALLBACK": "busbar.fabric.progress",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        }
        environment |= {"ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "TERM": "xterm", "NO_COLOR": "1"}
        environment |= {"ANSIBLE_HOME": str(folder / "home"), "LC_ALL": "C.UTF-8"}
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        argv = [ANSIBLE_PLAYBOOK, *arguments]
        self.process = subprocess.Popen(argv, cwd=folder, env=environment, stdin=inner, stdout=inner, stderr=inner)
        os.close(inner)

    def until(self, text: str | None, seconds: float = 900) -> None:
        """Reads until the text was shown; None: until the end."""
        end = time.monotonic() + seconds
        while text is None or text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self._terminal], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._terminal, 65536).decode()
                except OSError:  # nobody writes to it any more
                    break
        assert text is None or text in self.shown

    def end(self) -> list[str]:
        """What stands there in the end."""
        self.until(None)
        os.close(self._terminal)
        lines = self.shown.replace("\r\n", "\n").split("\n")
        return [" ".join(line.split()) for line in lines if line.strip()]

    def interrupted(self) -> list[str]:
        """The same, after Ctrl-C."""
        os.kill(self.process.pid, signal.SIGINT)
        lines = self.end()
        assert self.process.wait() == 99
        return lines


def task(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "ansible.builtin.command": "true", "changed_when": False, **more}


def test_a_terminal_shows_what_failed(tmp_path: Path) -> None:
    failing = task("Fail", failed_when="inventory_hostname != 'n1'")
    watched = Watched(tmp_path, *tried(tmp_path, [task("Look"), failing]))
    lines = watched.end()
    assert watched.process.wait() == 2
    [failed] = [line for line in lines if line.startswith("FAILED tried : Fail n")]
    assert "roles/tried/tasks/main.yml:" in lines[lines.index(failed) + 1]
    other = {"n2": "n3", "n3": "n2"}[failed.split()[-1]]
    assert f"FAILED tried : Fail the same on 1 host: {other}" in lines
    assert next(line for line in lines if line.startswith("tried 3 hosts")).endswith("2 failed (n[2-3])")
    assert lines[-2].startswith("3 hosts in ")
    assert lines[-2].endswith(": 2 failed")
    assert lines[-1] == "failed n[2-3]"


def test_who_interrupts_hears_what_was_done(tmp_path: Path) -> None:
    began = tmp_path / "began"
    command = {"cmd": f"sh -c 'touch {began}; exec sleep 300'"}
    waiting = task("Wait", **{"ansible.builtin.command": command, "when": "inventory_hostname == 'n3'"})
    watched = Watched(tmp_path, *tried(tmp_path, [task("Look", changed_when=True), waiting]), "--limit", "n1,n3")
    # Until a worker of Ansible has begun its work, it takes a signal for its parent's and ends with a traceback.
    while not began.exists():
        time.sleep(0.1)
    # The other host's result, too, has to be there.
    time.sleep(5)
    lines = watched.interrupted()
    assert "INTERRUPTED in tried : Wait (1 of 2 hosts had done it)" in lines
    assert "no response yet from: n3" in lines
    assert any(line.startswith("tried 2 hosts") and line.endswith("2 changed") for line in lines)
    assert lines[-1] == (f"ansible-playbook busbar.fabric.drift --check -i {tmp_path / 'hosts.yml'} --limit n1,n3")


@pytest.mark.long
def test_who_interrupts_a_role_hears_the_verdict_on_what_was_done(tmp_path: Path, lab: Path) -> None:
    """A host whose role was done is judged by it; where it was to be played and was not, the audit does not count."""
    tried(
        tmp_path, [task("Wait", **{"ansible.builtin.command": "sleep 300", "when": "inventory_hostname == 'node02'"})]
    )
    nodes = {"hosts": "gpu_nodes", "gather_facts": False}
    asks = [{"ansible.builtin.import_tasks": str(ROOT / "playbooks/tasks/ask.yml")}]
    book = [
        {**nodes, "tasks": asks},
        {**nodes, "strategy": "free", "roles": ["tried", "busbar.fabric.host_limits"]},
        {**nodes, "tasks": [{"busbar.fabric.verdict": {"roles": ["host_limits"]}}]},
    ]
    (tmp_path / "book.yml").write_text(yaml.safe_dump(book))
    watched = Watched(tmp_path, "-i", str(lab / "inventory"), str(tmp_path / "book.yml"))
    watched.until("1 changed")
    said = " ".join(watched.interrupted())
    assert "unknown run.host_limits on node02 host_limits" in said
    assert "actual no result: the run was ended before the role was done" in said
    assert re.search(r"repaired on node01: host_limits\.\w+", said)
    assert "VERDICT INCOMPLETE, the run was ended before: 1 of 2 hosts ok" in said


def test_who_interrupts_the_question_hears_the_verdict_on_who_has_answered(tmp_path: Path, lab: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 300\n")
    silent.chmod(0o755)
    values = {"gpu_nodes": {"hosts": {"node02": {"ansible_python_interpreter": str(silent)}}}}
    (tmp_path / "silent.yml").write_text(yaml.safe_dump(values))
    inventories = ["-i", str(lab / "inventory"), "-i", str(tmp_path / "silent.yml")]
    watched = Watched(tmp_path, *inventories, "--check", str(ROOT / "playbooks/drift.yml"))
    watched.until("1 of 2 hosts have responded")
    # A worker that is ended in the middle of telling this leaves the queue of Ansible locked.
    time.sleep(2)
    said = " ".join(watched.interrupted())
    assert "VERDICT INCOMPLETE, the run was ended before: 0 of 2 hosts ok" in said
    assert "unknown run.host on node02 host" in said
    assert re.search(r"0 of 2 hosts ok, \d+ checks passed, 2 critical, 7 major", said)
