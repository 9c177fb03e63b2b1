# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where a report goes: a file that is whole or not there at all, or standard output."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def write(target: str, text: str, mode: int = 0o640) -> None:
    """target: a path, or - for standard output. By rename: a reader never sees half a file. Raises OSError."""
    if target == "-":
        sys.stdout.write(text)
        return
    path = Path(target)
    name = ""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}-", delete=False, encoding="utf-8"
        ) as stream:
            name = stream.name
            stream.write(text)
        os.chmod(name, mode)
        os.replace(name, path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write it: {error.strerror}", str(path)) from error
