# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Transcripts of the lab's stand-ins: what each command of a script prints, ends with, and changes on the node."""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import goldens

Tool = Callable[..., subprocess.CompletedProcess[str]]
State = Callable[[], dict[str, str]]


class Transcript:
    """A node whose answers are recorded.

    run: of a command's words.   state: what a command may change, name -> value; a script's command of this name shows
    it.   acts: the script's own commands.
    names: what stands for a name of the node in a script; in what is recorded as well.   usual: the first words of a
    command -> what it usually prints, of which only differences are recorded.
    """

    def __init__(
        self,
        run: Tool,
        state: State = dict,
        acts: Mapping[str, Callable[..., Any]] | None = None,
        names: Mapping[str, str] | None = None,
        usual: Mapping[str, str] | None = None,
    ) -> None:
        self._run, self._state, self._acts, self._names = run, state, acts or {}, names or {}
        self._shown = {words: self._named(text).splitlines() for words, text in (usual or {}).items()}

    def check(self, golden: str, case: str, script: str) -> None:
        """Compare with the golden, which has a row for each line of the script."""
        goldens.check(golden, case, [self.row(line.strip()) for line in script.splitlines() if line.strip()])

    def row(self, line: str) -> list[str]:
        """Return the line, its exit code, what is new on both streams, and what has changed in the node's state."""
        words = [self._named(word, back=False) for word in line.split()]
        before = self._state()
        if line == "state":
            before = {}
        elif act := self._acts.get(words[0]):
            act(*words[1:])
        else:
            return [line, *self._answer(line, words), *self._changes(before)]
        return [line, *self._changes(before)]

    def _answer(self, line: str, words: list[str]) -> list[str]:
        done = self._run(*words)
        code = [f"exit {done.returncode}"] if done.returncode else []
        errors = [f"! {text}" for text in self._named(done.stderr).splitlines()]
        return [*code, *self._new(line, self._named(done.stdout)), *errors]

    def _new(self, line: str, text: str) -> list[str]:
        """What the command prints; of its usual output only what differs from the last one."""
        command = next((words for words in self._shown if line.startswith(words)), line)
        lines, before = text.splitlines(), self._shown.get(command, [])
        compared = list(difflib.unified_diff(before, lines, n=0, lineterm=""))[2:]
        differs = [part for part in compared if not part.startswith("@@")]
        if before and len(differs) < len(lines):
            self._shown[command] = lines
            return differs or ["the same"]
        self._shown.setdefault(command, lines)
        return lines

    def _changes(self, before: dict[str, str]) -> list[str]:
        after = self._state()
        changed = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
        old = {name: f"{before[name]} -> " for name in changed if name in before}
        return [self._named(f"{name}: {old.get(name, '')}{after.get(name, 'gone')}") for name in changed]

    def _named(self, text: str, back: bool = True) -> str:
        for name, value in self._names.items():
            text = text.replace(*((value, name) if back else (name, value)))
        return text


def scripts(noun: str) -> dict[str, str]:
    """Return the cases of a file: name -> script."""
    text = Path(__file__).with_name(f"{noun}_scripts.txt").read_text()
    return dict(re.findall(r"== (.*)\n((?:(?!== ).*\n)+)", text))


def values(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a mapping as texts."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}


def texts(root: Path, *patterns: str) -> dict[str, str]:
    """Return the texts of the files below the root that match, and the targets of links."""
    found = {}
    for path in (path for pattern in patterns for path in root.glob(pattern)):
        if path.is_symlink():
            found[str(path.relative_to(root))] = str(path.readlink())
        elif path.is_file():
            found[str(path.relative_to(root))] = path.read_text().strip()
    return found


def snapshot(top: Path, without: str = "", times: bool = False) -> dict[str, tuple[int, int, bytes | str]]:
    """Return everything below a directory: its mode, its time, bytes of files, targets of links.

    without: name of directories that are left out.   times: 0 stands for each without it.
    """
    found: dict[str, tuple[int, int, bytes | str]] = {}
    for base, directories, files in os.walk(top):
        directories[:] = [name for name in directories if name != without]
        for name in directories + files:
            path = Path(base, name)
            status, content = path.lstat(), b""
            if stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            is_link = stat.S_ISLNK(status.st_mode)
            shown = os.readlink(path) if is_link else content
            found[str(path.relative_to(top))] = (status.st_mode, status.st_mtime_ns if times else 0, shown)
    return found
