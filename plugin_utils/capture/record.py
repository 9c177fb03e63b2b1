# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Record what readers read of a machine: files that they name, directories that they list, the output of tools.

The recording is a directory as ``busbar check --root`` takes it: hw/ and sys/, and the output of tools beside them.
Files that are read past ``Host`` are recorded, too, since their paths come from there. One that cannot be read becomes
a directory, which cannot be read either. Environments and arguments of processes, and keys, are never recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import (
    FILE_LIMIT,
    TOOL_PATH,
    Host,
    Output,
    ReadError,
    Session,
    ToolHung,
    read_bytes,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import library

HARDWARE, SYSTEM, TOOLS = "hw", "sys", "tools"
# Content of the file that stands for a tool.
PROGRAM = b"#!busbar capture\n"
# In an argument, a time of now.
TIME = "@[0-9]+"
_SECRET = re.compile(
    r"/proc/[^/]+/(?:environ|cmdline|maps|fd|mem|root|cwd|exe)(?:/|$)|/\.ssh(?:/|$)|shadow-?$|\.(?:key|pem)$"
)
_LINKS = 40
_CONSTANTS = re.compile(rb"NCCL version [0-9.]+\+cuda|NCCL_[A-Z0-9_]+(?=\0)")


class Recording(Session):
    """Session of an audit whose machine is recorded below a folder."""

    def __init__(self, folder: Path, patience: float, end: float) -> None:
        super().__init__(patience, end)
        self.folder = folder
        self.paths: set[str] = set()
        self.make_host = lambda hardware_root, system_root: RecordedHost(self, hardware_root, system_root)
        for name in (HARDWARE, SYSTEM, TOOLS):
            (folder / name).mkdir(exist_ok=True)


class RecordedHost(Host):
    def __init__(self, recording: Recording, hardware_root: str, system_root: str) -> None:
        super().__init__(hardware_root, system_root)
        self._recording = recording

    def hardware(self, path: str) -> str:
        self._store(HARDWARE, self.hardware_root, path)
        return super().hardware(path)

    def system(self, path: str) -> str:
        if posixpath.dirname(path) not in TOOL_PATH:
            self._store(SYSTEM, self.system_root, path)
        return super().system(path)

    def listdir(self, path: str) -> list[str]:
        names = super().listdir(path)
        for name in names:
            self._store(HARDWARE, self.hardware_root, f"{path}/{name}", is_listed=True)
        return names

    def listdir_system(self, path: str) -> list[str]:
        names = super().listdir_system(path)
        for name in names:
            self._store(SYSTEM, self.system_root, f"{path}/{name}", is_listed=True)
        return names

    def tool(self, name: str) -> str:
        found = super().tool(name)
        stand_in = self._recording.folder / SYSTEM / os.path.relpath(found, self.system_root)
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_bytes(PROGRAM)
        return found

    def run(
        self, argv: Sequence[str], timeout: float | None = None, leaves: bool = False, limit: int | None = None
    ) -> Output:
        try:
            done = super().run(argv, timeout, leaves, limit)
        except ToolHung:
            self._answer(argv, {"rc": None, "stdout": "", "stderr": ""})
            raise
        self._answer(argv, {"rc": done.rc, "stdout": done.stdout, "stderr": done.stderr})
        return done

    def _answer(self, argv: Sequence[str], answer: dict[str, object]) -> None:
        words = [posixpath.basename(argv[0]), *argv[1:]]
        for root in {self.system_root, self.hardware_root} - {"/"}:
            words = [word.replace(root, "") for word in words]
        file = self._recording.folder / TOOLS / file_name(words)
        if not file.exists():
            file.write_text(json.dumps({"argv": words, **answer}), encoding="utf-8")

    def _store(self, part: str, root: str, path: str, is_listed: bool = False) -> None:
        """Store what a path leads to, and each link on its way. is_listed: only that it is there, and what it is."""
        key = f"{part}{path}{is_listed}"
        if key in self._recording.paths:
            return
        self._recording.paths.add(key)
        current, waiting, links = "/", _parts(path), 0
        while waiting and links < _LINKS:
            current = posixpath.normpath(posixpath.join(current, waiting.pop()))
            source, target = root.rstrip("/") + current, Path(f"{self._recording.folder / part}{current}")
            if _SECRET.search(current) or not os.path.lexists(source):
                return
            # Each child of a capture has another number.
            if os.path.islink(source) and current != "/proc/self":
                to = posixpath.normpath(posixpath.join(posixpath.dirname(current), os.readlink(source)))
                if not os.path.lexists(target):
                    target.symlink_to(posixpath.relpath(to, posixpath.dirname(current)))
                links += 1
                waiting += _parts(to) if waiting or not is_listed else []
                current = "/"
            elif os.path.isdir(source):
                target.mkdir(exist_ok=True)
            elif not is_listed or not target.exists():
                _copy(source, target, b"" if is_listed else None)


def file_name(words: Sequence[str]) -> str:
    """Return the name of the file with the output of a tool's call."""
    return hashlib.sha256(re.sub(TIME, "@", "\0".join(words)).encode()).hexdigest() + ".json"


def _parts(path: str) -> list[str]:
    """Return the names in a path, the last first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _copy(source: str, target: Path, data: bytes | None = None) -> None:
    """Copy so much of a file as ``Host`` reads, and more than that of one that it refuses. data: in its place."""
    try:
        is_library = "libnccl.so" in posixpath.basename(source)
        data = _excerpt(source) if data is None and is_library and os.path.isfile(source) else data
        if data is None and os.path.isfile(source):
            data = read_bytes(source, source, FILE_LIMIT)
        target.write_bytes(data or b"")
        target.chmod(os.stat(source).st_mode & 0o777 | 0o600)
    except (OSError, ReadError):
        target.unlink(missing_ok=True)
        target.mkdir(exist_ok=True)


def _excerpt(source: str) -> bytes:
    """Return an ELF file with what library.py reads of a libnccl: its release and the names of its variables."""
    constants = b"\0".join([*_CONSTANTS.findall(library.section(source, ".rodata")), b""])
    names = b"\0.rodata\0.shstrtab\0"
    with open(source, "rb") as stream:
        head = bytearray(stream.read(64))
    struct.pack_into("<Q", head, 40, 64 + len(constants) + len(names))
    struct.pack_into("<HHH", head, 58, 64, 3, 2)
    places = ((0, 0, 0), (1, 64, len(constants)), (9, 64 + len(constants), len(names)))
    sections = [struct.pack("<IIQQQQIIQQ", name, 3, 0, 0, start, size, 0, 0, 1, 0) for name, start, size in places]
    return b"".join([head, constants, names, *sections])
