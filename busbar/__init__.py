# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The control node's part of Busbar: the ``busbar`` command and the lab.

The pure core is in the collection and is imported by its name. In a checkout the collection is a view of
the repository; an installed package has it in site-packages.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

__version__ = "0.2.0"

ROOT = Path(__file__).resolve().parent.parent


def _make_collection_importable() -> None:
    """Put the checkout's view on sys.path when the collection is not importable already."""
    try:
        found = importlib.util.find_spec("ansible_collections.busbar.fabric") is not None
    except ModuleNotFoundError:
        found = False
    if not found and (ROOT / "collections").is_dir():
        sys.path.insert(0, str(ROOT / "collections"))
        # A namespace package that was imported before keeps its old path list.
        sys.modules.pop("ansible_collections", None)


_make_collection_importable()
