# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Name the type of plain data: what JSON has, such as a result of a node, a record, or a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

Plain = dict[str, Any]
# The same, only to be read, such as the variables of a host.
PlainView = Mapping[str, Any]


class HostVars(Protocol):
    """The variables of all hosts, as Ansible passes them to filters and actions."""

    def __iter__(self) -> Iterator[str]: ...

    def raw_get(self, host_name: str) -> PlainView: ...
