# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keeps what Python compiles, where Python itself does not: Ansible's modules come as sources in a zip archive, each
file of which is compiled twice, and its plugins by a loader without compiled files. That is a quarter of a playbook.

Python loads this file at its start where the folder is in PYTHONPATH, and in containers of the lab. The name of a
compiled file is the digest of its source and of Python's version and options. Tracebacks name the file that was
compiled first.
"""

import builtins
import contextlib
import hashlib
import marshal
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__pycache__")
# What is shorter is compiled sooner than found.
LEAST = 2000

_compile = builtins.compile
# What this process had last: zipimport compiles each file twice in a row.
_last: "list[object]" = ["", None]


def compile(source, filename, mode, flags=0, dont_inherit=False, optimize=-1, **more):  # type: ignore[no-untyped-def] # noqa: A001
    """Do as the builtin does: where nothing is taken over from the caller, once for all processes."""
    if not dont_inherit or flags or more or mode != "exec" or not isinstance(source, bytes) or len(source) < LEAST:
        return _compile(source, filename, mode, flags, dont_inherit, optimize, **more)
    digest = hashlib.sha1(("%s %d %d\n" % (sys.version, optimize, sys.flags.optimize)).encode() + source).hexdigest()
    if _last[0] == digest:
        return _last[1]
    _last[:] = [digest, _cached(digest, source, filename, optimize)]
    return _last[1]


def _cached(digest: str, source: bytes, filename: str, optimize: int) -> object:
    file = os.path.join(FOLDER, digest)
    # Of what cannot be read nothing is used.
    with contextlib.suppress(OSError, EOFError, TypeError, ValueError), open(file, "rb") as opened:
        return marshal.load(opened)
    code = _compile(source, filename, "exec", 0, True, optimize)
    with contextlib.suppress(OSError):
        os.makedirs(FOLDER, exist_ok=True)
        part = "%s.%d" % (file, os.getpid())
        with open(part, "wb") as opened:
            marshal.dump(code, opened)
        os.rename(part, file)
    return code


builtins.compile = compile
