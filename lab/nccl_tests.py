# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the lab's stand-ins for CUDA, NCCL and nccl-tests are, here and on a node.

``make -C TOOLKIT install [DESTDIR=...]`` puts them where the packages of the real ones would, and makes REPOSITORY,
whose one commit is COMMIT wherever it is made.
"""

from __future__ import annotations

from pathlib import Path

TOOLKIT = Path(__file__).resolve().parent / "toolkit"
DATA = TOOLKIT.parent / "data"
# What an inventory says for a node that has the toolkit.
REPOSITORY = "file:///usr/src/busbar-lab/nccl-tests.git"
COMMIT = "a1e5aecef3b78261ba9f96b5b6c51151fb4529d8"
