# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pack a recording into an archive, and unpack one: what is in it is data, also where somebody else has made it."""

from __future__ import annotations

import io
import json
import os
import posixpath
import sys
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.archive import safe_members
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .record import HARDWARE, PROGRAM, SYSTEM, TIME, TOOLS
from .redact import Redactor, without_secrets

# Format of the archive, and the file in it that describes it.
FORMAT, ABOUT = 1, "capture.json"
# Bytes of all that is packed, and files of all that is unpacked.
_BYTES, _FILES = 128 << 20, 200_000
_DEVICE_SERIAL = 3
# What a tool of an unpacked recording is: it prints what was recorded.
_TOOL = """\
#!{python} -IS
import hashlib, json, os, re, sys, time
top = {top!r}
words = [word.replace(top + "/sys", "").replace(top + "/hw", "") for word in sys.argv[1:]]
words.insert(0, os.path.basename(sys.argv[0]))
name = hashlib.sha256(re.sub({time!r}, "@", chr(0).join(words)).encode()).hexdigest()
try:
    with open(top + "/tools/" + name + ".json", encoding="utf-8") as stream:
        answer = json.load(stream)
except OSError:
    sys.exit("this call was not recorded: " + " ".join(words))
if answer["rc"] is None:
    time.sleep(1 << 20)
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
sys.exit(answer["rc"])
"""


def redactor(folder: Path, passwd: str) -> Redactor:
    """Return a redactor that knows all names of a recording."""
    texts = ((name, text) for name, path in _walk(folder) if (text := _text(path)) is not None)
    return Redactor(
        ((name, json.loads(text)["stdout"] if name.startswith(TOOLS) else text) for name, text in texts), passwd
    )


def pack(folder: Path, file: Path, about: Plain, names: Redactor | None) -> list[str]:
    """Write a recording into a new archive. Return what was left out. Raises OSError.

    about: stored as ABOUT.   names: None: they stay.
    """
    (folder / ABOUT).write_text(json.dumps({**about, "format": FORMAT}))
    left_out, room = [], _BYTES
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, path in _walk(folder):
            member, data = tarfile.TarInfo(names.text(name) if names else name), b""
            member.mode = path.lstat().st_mode & 0o777
            if path.is_symlink():
                # From the top: no name leads up.
                target = posixpath.normpath(posixpath.join(posixpath.dirname(name), os.readlink(path)))
                member.type, member.linkname = tarfile.SYMTYPE, names.text(target) if names else target
            elif path.is_dir():
                member.type = tarfile.DIRTYPE
            else:
                data = _content(name, path, names)
                member.size = len(data)
            room -= member.size
            if room < 0 or (path.is_file() and member.isfile() and path.stat().st_size and not data):
                left_out.append(member.name)
                continue
            archive.addfile(member, io.BytesIO(data))
    return left_out


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and path of all that is below a folder; no link is followed."""
    for top, folders, files in os.walk(folder):
        for path in (Path(top, name) for name in sorted([*folders, *files])):
            yield str(path.relative_to(folder)), path


def _text(path: Path) -> str | None:
    """Return the text of a regular file; None where it has none."""
    try:
        return None if path.is_symlink() or path.is_dir() else path.read_bytes().decode()
    except UnicodeDecodeError:
        return None


def _content(name: str, path: Path, names: Redactor | None) -> bytes:
    """Return what is packed of a file; nothing of one that is not text, and may have a name in it."""

    def hidden(text: str) -> str:
        return names.text(without_secrets(text)) if names else without_secrets(text)

    text = _text(path)
    if text is None:
        is_known = names is None or posixpath.basename(name).startswith("libnccl.so")
        return path.read_bytes() if is_known else _without_serial(path) if name.endswith("/config") else b""
    if name.startswith(TOOLS):
        answer = json.loads(text)
        if any(hidden(word) != word for word in answer["argv"]):
            return b""
        return json.dumps({**answer, **{key: hidden(answer[key]) for key in ("stdout", "stderr")}}).encode()
    return hidden(text).encode()


def _without_serial(path: Path) -> bytes:
    """Return PCI config space with zeros for the Device Serial Number, which is a GUID (PCIe 5.0, 7.9.3)."""
    data, at = bytearray(path.read_bytes()), 0x100
    while 0x100 <= at <= len(data) - 12:
        head = int.from_bytes(data[at : at + 4], "little")
        if head & 0xFFFF == _DEVICE_SERIAL:
            data[at + 4 : at + 12] = bytes(8)
        at = head >> 20 if head >> 20 > at else 0
    return bytes(data)


def unpack(file: Path, folder: Path) -> Plain:
    """Make a recording of an archive, without its programs. Return ABOUT. Raises ParseError, OSError."""
    folder = Path(os.path.realpath(folder.parent)) / folder.name
    tool = _TOOL.format(python=sys.executable, top=str(folder), time=TIME).encode()
    try:
        with tarfile.open(file, "r:gz") as archive:
            members = sorted(safe_members(archive, _FILES), key=tarfile.TarInfo.issym)
            folder.mkdir(mode=0o755)
            for member in members:
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                if member.issym():
                    path.symlink_to(os.path.relpath(folder / member.linkname, path.parent))
                elif member.isdir():
                    path.mkdir(exist_ok=True)
                elif (stream := archive.extractfile(member)) is not None:
                    data = stream.read()
                    is_tool = data == PROGRAM and member.name.startswith(f"{SYSTEM}/")
                    path.write_bytes(tool if is_tool else data)
                    path.chmod(0o755 if is_tool else member.mode & 0o666 | 0o600)
        about: Plain = json.loads((folder / ABOUT).read_text())
        for part in (HARDWARE, SYSTEM, TOOLS):
            (folder / part).mkdir(exist_ok=True)
    except (tarfile.TarError, EOFError, zlib.error, ValueError, FileNotFoundError) as error:
        raise ParseError(f"{file} is no capture of busbar: {str(error)[:200]}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ParseError(f"{file} is no capture of format {FORMAT}")
    return about
