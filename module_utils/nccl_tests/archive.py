# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Unpack the archive of nccl-tests' sources that a site copies to a node."""

from __future__ import annotations

import io
import lzma
import os
import posixpath
import re
import shutil
import stat
import tarfile
import zlib
from contextlib import contextmanager
from typing import Iterator, List, Sequence, Set

from ..core.host import ParseError, ReadError
from . import programs

# Sources of nccl-tests are about 1 MB in some forty files; what unpacks to more than this is something else.
LIMIT = 256 * 1024 * 1024
_MEMBERS = 20000
_COMMIT = re.compile(r"[0-9a-f]{40}")


def unpack_sources(path: str, digest: str, commit: str, directory: str) -> None:
    """Bring the sources in an archive to ``directory``, which must not exist. Raises ReadError.

    digest: SHA-256 that the archive must have.   commit: the commit that an archive by ``git archive``, which names its
    commit, must be of.
    """
    with _errors(path):
        with open(path, "rb") as stream:
            # Verify and unpack the same bytes, even if the file is written meanwhile.
            content = io.BytesIO(stream.read(LIMIT + 1))
        found = programs.digest(content)
        if found != digest or len(content.getbuffer()) > LIMIT:
            raise ReadError(path, "has sha256 %s, expected %s" % (found, digest))
        content.seek(0)
        with tarfile.open(fileobj=content, mode="r:*") as archive:
            members = safe_members(archive)
            comment = archive.pax_headers.get("comment", "")
            if _COMMIT.fullmatch(comment) and comment != commit:
                raise ParseError("is of commit %s, expected %s" % (comment, commit))
            _extract(archive, members, directory + ".unpacked")
        top = os.listdir(directory + ".unpacked")
        os.rename(os.path.join(directory + ".unpacked", *(top if len(top) == 1 else ())), directory)


def safe_members(archive: tarfile.TarFile, most: int = _MEMBERS) -> List[tarfile.TarInfo]:
    """The members of an archive. Raises ParseError for a member that could end up outside its directory."""
    members: List[tarfile.TarInfo] = []
    links: Set[str] = set()
    total = 0
    for member in archive:
        name = posixpath.normpath(member.name)
        total += member.size
        if len(members) >= most or total > LIMIT:
            raise ParseError("holds more than %d MiB, or %d files" % (LIMIT >> 20, most))
        if _leaves(member.name) or "\0" in member.name:
            raise ParseError("holds %r, which would lie outside" % member.name[:80])
        if not (member.isfile() or member.isdir() or member.issym()):
            raise ParseError("holds %r, which is not a file, directory or symbolic link" % member.name[:80])
        parents = name.split("/")
        if any("/".join(parents[:depth]) in links for depth in range(1, len(parents) + 1)):
            raise ParseError("holds %r, which would be written through a link" % member.name[:80])
        if member.issym():
            # A target without ".." cannot lead up, whatever lies on its way.
            if _leaves(member.linkname) or "\0" in member.linkname:
                raise ParseError("holds %r, a link to %r outside" % (member.name[:80], member.linkname[:80]))
            links.add(name)
        members.append(member)
    return members


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/") or not path


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Raise ReadError for what a damaged or hostile archive raises."""
    try:
        yield
    except OSError as error:
        raise ReadError(path, "cannot be unpacked: %s" % (error.strerror or error)) from error
    except (tarfile.TarError, EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise ReadError(path, str(error) or "is cut off") from error


def _extract(archive: tarfile.TarFile, members: Sequence[tarfile.TarInfo], directory: str) -> None:
    os.mkdir(directory)
    for member in members:
        target = os.path.join(directory, posixpath.normpath(member.name))
        if member.isdir():
            os.makedirs(target, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if member.issym():
            os.symlink(member.linkname, target)
            continue
        source = archive.extractfile(member)
        if source is None:
            raise ParseError("holds %r without its content" % member.name[:80])
        mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
        with source, open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            shutil.copyfileobj(source, stream)
