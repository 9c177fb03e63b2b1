# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Schemas of what a node reports of an InfiniBand fabric: its own ports, and a sweep of a plane."""

from __future__ import annotations

import re

from ansible_collections.busbar.fabric.plugins.module_utils.fabric import sweep

from .codec import Invalid, each, flag, many, maybe, number, one_of, quoted, record, row_of, table, text, whole
from .result_fields import known

# GUIDs by which a fabric sweep knows a host (machine.rails.guids); duplicates are judged later.
_guid = maybe(text(16, re.compile("[0-9a-f]{16}")))
on_fabric = record(
    boot_id=maybe(text(36, re.compile("[0-9a-f-]{36}"))),
    rails=many(
        record(**known("rail pci device rate_gbps"), **each(("node_guid", "port_guid"), _guid), port=whole(1, 254)), 100
    ),
)

# Of an InfiniBand plane: rows with the fields of module_utils/fabric/sweep.py in their order.
_sweep_line, _sweep_text = text(sweep.LINE, line=True), text(sweep.SAID, line=True)
_node_guid, _end_port, _speed = text(16, re.compile("[0-9a-f]{16}")), whole(0, 254), maybe(one_of(*sweep.SPEEDS))
_lid, _count = maybe(whole(0, sweep.MOST_LID)), whole(0, (1 << 64) - 1)
_guid_or_none, _line_or_none = maybe(_node_guid), maybe(_sweep_line)


def _lanes(value: object) -> None:
    if type(value) not in (int, type(None)) or value not in (None, *sweep.WIDTHS):
        raise Invalid(f"is {quoted(value)}, expected a number of lanes")


def _place(value: object) -> None:
    (_node_guid if isinstance(value, str) else whole(0, sweep.MOST_NODES))(value)


_PORT = (
    *(_end_port, whole(0, len(sweep.STATES) - 1), maybe(text(64, line=True)), _lanes, _speed, _lanes, _speed),
    *(maybe(row_of(_place, _end_port)), _lid, _guid_or_none),
    *(maybe(many(_count, 1 + 2 * sweep.MOST_COUNTERS, 1)), maybe(_sweep_text)),
)


def a_port(value: object) -> None:
    """Check the row of a port, which may lack its last fields."""
    if not isinstance(value, list) or not 2 <= len(value) <= len(_PORT):
        raise Invalid(f"is {quoted(value)}, expected a row of 2 to {len(_PORT)}")
    row_of(*_PORT[: len(value)])(value)


_a_node = row_of(
    *(_node_guid, one_of(*sweep.KINDS), _sweep_line, _guid_or_none, maybe(whole(0, (1 << 32) - 1)), _line_or_none),
    *(_line_or_none, many(a_port, 255)),
)
_a_manager = row_of(_node_guid, one_of(*sweep.MANAGER_STATES), maybe(whole(0, 15)), _lid, _sweep_line)
_counter_names = many(text(64, re.compile(r"[A-Za-z][A-Za-z0-9_]*")), sweep.MOST_COUNTERS)
a_sweep = record(
    plane=text(16, re.compile("|[0-9a-f]{16}")),
    **each(("host", "device"), _sweep_line),
    port=_end_port,
    **each(("at", "seconds"), number(0, 1 << 40)),
    source=one_of(*sweep.SOURCES),
    routing=_line_or_none,
    adaptive_routing=maybe(flag),
    complete=flag,
    managers=many(_a_manager, sweep.MOST_NODES),
    nodes=many(_a_node, sweep.MOST_NODES),
    counter_sets=many(_counter_names, sweep.MOST_SETS),
    pkeys=table(many(whole(0, 0xFFFF), sweep.MOST_KEYS), _node_guid, sweep.MOST_NODES),
    events=many(row_of(_sweep_line, whole(0, 1 << 32), _sweep_line, _sweep_line), sweep.MOST_EVENTS),
    unhealthy=many(row_of(_node_guid, _end_port, _sweep_line), sweep.MOST_NODES),
    problems=many(row_of(_sweep_text, _sweep_text), sweep.MOST_PROBLEMS),
)
