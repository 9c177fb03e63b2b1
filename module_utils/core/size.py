# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sizes in bytes, as an inventory and nccl-tests write them: K, M and G are powers of 1024."""

from __future__ import annotations

import re

from .host import ParseError


def parse_size(text: str) -> int:
    """Return ``8G`` in bytes. Raises ParseError."""
    match = re.match(r"^(\d{1,15})([KMG]?)$", text.strip().upper())
    size = int(match.group(1)) * 1024 ** " KMG".index(match.group(2) or " ") if match else 0
    if not 0 < size < 2**63:
        raise ParseError("size %.60r, expected bytes such as 8, 64K, 1M or 8G" % text)
    return size


def size_text(size: int) -> str:
    """Return a short, exact text: ``8G`` and ``512K`` (powers of 1024), ``14GB`` (powers of 1000), else bytes."""
    texts = [str(size)]
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size % factor == 0:
            texts.append("%d%s" % (size // factor, unit))
    for unit, factor in (("GB", 10**9), ("MB", 10**6)):
        if size >= factor and size % (factor // 100) == 0:
            texts.append(("%.2f" % (size / factor)).rstrip("0").rstrip(".") + unit)
    return min(texts, key=len)
