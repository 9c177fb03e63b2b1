"""The text of mlnx_qos in the layouts of its versions, written here line by line, and the calls."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import mlnx_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import Dcb
from hypothesis import given
from hypothesis import strategies as st

LLDPAD = "****** WARNING: lldpad service is running and may overwrite your settings ******"
HEAD = ["\tpriority    0   1   2   3   4   5   6   7"]


def text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


# -- generated outputs in every layout -------------------------------------------------------------------------------

eight = st.tuples(*[st.integers(0, 7)] * 8)
NOT_SUPPORTED = {
    "Buffers commands": "Buffers commands are not supported on your system",
    "Rate limit": "Rate limit is not supported on your system!",
}


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Dcb, tuple[str, ...], str]:
    """What a port may have, what its driver cannot do, and the text that some version prints of it."""
    priorities, numbered, buffers = draw(eight), draw(st.booleans()), draw(st.booleans())
    order = draw(st.permutations(sorted(set(priorities))))
    tsa = {number: draw(st.sampled_from(["strict", "vendor", "unknown", "ets"])) for number in order}
    bandwidth = {number: draw(st.integers(0, 100)) if tsa[number] == "ets" else 0 for number in order}
    trust = draw(st.sampled_from([None, "pcp", "dscp", "none", "both"]))
    mapping = draw(st.dictionaries(st.integers(0, 63), st.integers(0, 7))) if trust == "dscp" else {}
    known: dict[str, Any] = {
        "prio2tc": priorities,
        "tsa": tuple(map(tsa.get, range(8))),
        "bandwidth": tuple(map(bandwidth.get, range(8))),
    }
    found = Dcb(
        owner=draw(st.sampled_from([None, "os", "firmware"])),
        lldpad=draw(st.booleans()),
        trust=trust,
        dscp2prio=tuple(sorted(mapping.items(), key=lambda pair: pair[1])),
        pfc=tuple(priority for priority, on in enumerate(draw(st.tuples(*[st.booleans()] * 8))) if on),
        cable_length=draw(st.none() | st.integers(0, 65535)),
        prio2buffer=draw(eight) if buffers else None,
        buffer_size=draw(st.tuples(*[st.integers(0, 10**9)] * 8)) if buffers else None,
        **(known if numbered else {}),
    )
    classes = []
    for number in order:
        rate = draw(st.just("unlimited") | st.integers(1, 4000).map(lambda tenths: f"{tenths / 10:.1f} Gbps"))
        head = f"tc: {number} ratelimit: {rate}, tsa: " if numbered else ""
        classes.append(head + tsa[number] + (f", bw: {bandwidth[number]}%" if tsa[number] == "ets" else ""))
        classes += [f"\t priority:  {priority}" for priority in range(8) if priorities[priority] == number]
    cannot = draw(st.sampled_from([(), ("Buffers commands",), ("Rate limit",)]))
    default = draw(st.none() | st.lists(st.integers(0, 7), max_size=2))
    total = draw(st.sampled_from(["", "total_size=0", "total_size=9", "max_buffer_size=9"]))
    layout = draw(st.sampled_from(["tool", "page", "before 2018"]))
    if layout == "before 2018":
        # Wrapped without the priority, and an empty line after PFC.
        printed = as_tool(found, cannot, default, total, ["", *classes], "\t            ")
    else:
        printed = as_tool(found, cannot, default, total, classes)
    return found, cannot, as_page(printed) if layout == "page" else printed


def as_tool(
    found: Dcb,
    cannot: tuple[str, ...],
    default: list[int] | None,
    total: str,
    classes: list[str],
    wrap: str = "\tprio:%d dscp:",
) -> str:
    """default: priorities.   total: size of the buffers.   classes: their lines.   wrap: head of a further line."""
    lines = [LLDPAD, ""] if found.lldpad else []
    lines += [NOT_SUPPORTED[name] for name in cannot]
    if found.owner:
        lines.append(f"DCBX mode: {'OS' if found.owner == 'os' else 'Firmware'} controlled")
    if found.trust:
        lines.append(f"Priority trust state: {found.trust}")
    if found.trust == "dscp":
        lines.append("dscp2prio mapping:")
        for priority in range(8):
            dscps = [dscp for dscp, to in found.dscp2prio if to == priority]
            for start in range(0, len(dscps), 8):
                head = "\tprio:%d dscp:" % priority if start == 0 else wrap.replace("%d", str(priority))
                lines.append(head + "".join("%02d," % dscp for dscp in dscps[start : start + 8]))
    if default is not None:
        lines += ["default priority:", *(f"\tprio:{priority}" for priority in default)]
    if found.buffer_size is not None:
        lines.append("Receive buffer size (bytes): " + "".join(f"{size}," for size in found.buffer_size) + total)
    if found.cable_length is not None:
        lines.append(f"Cable len: {found.cable_length}")
    enabled = "".join(f"{int(priority in (found.pfc or ()))}   " for priority in range(8))
    lines += ["PFC configuration:", *HEAD, "\tenabled     " + enabled]
    if found.prio2buffer is not None:
        lines.append("\tbuffer      " + "".join(f"{buffer}   " for buffer in found.prio2buffer))
    return text(*lines, *classes)


def as_page(printed: str) -> str:
    return "\n".join(line.expandtabs(8).rstrip() for line in printed.splitlines())


@given(outputs())
def test_every_output_of_every_layout_is_read(output: tuple[Dcb, tuple[str, ...], str]) -> None:
    meaning, cannot, printed = output
    assert mlnx_qos.parse(printed) == (meaning, cannot)


@given(outputs(), st.data())
def test_an_output_that_was_cut_is_refused_or_says_what_the_whole_one_did(
    output: tuple[Dcb, tuple[str, ...], str], data: st.DataObject
) -> None:
    meaning, _cannot, printed = output
    at = data.draw(st.integers(0, len(printed)))
    more = data.draw(st.sampled_from(["", "x", "9", "\n", ",", " 1"]))
    try:
        again, _not_supported = mlnx_qos.parse(printed[:at] + more)
    except ParseError:
        return
    # The last line is a priority, and without one of the eight nothing is read.
    assert again == meaning


@given(st.text(max_size=400))
def test_any_other_text_is_refused(anything: str) -> None:
    with pytest.raises(ParseError):
        mlnx_qos.parse(anything)
