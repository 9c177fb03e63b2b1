# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A directory for what one run has measured, and the link ``latest`` that leads to the last of them."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def new(parent: Path, now: float) -> Iterator[Path]:
    """A new directory below parent, for its owner alone; ``latest`` is moved to it when the body has ended well.

    now: seconds since 1970, from which it is named. Raises OSError.
    """
    parent.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    folder = Path(tempfile.mkdtemp(prefix=f"{stamp}-", dir=parent))
    yield folder
    link = folder / ".latest"
    link.symlink_to(folder.name)
    os.replace(link, parent / "latest")
