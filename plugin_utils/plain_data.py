# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Name the type of plain data: what JSON has, such as a result of a node, a record, or a report."""

from __future__ import annotations

from typing import Any

Plain = dict[str, Any]
