"""The text of mlnx_qos in the layouts of its versions, written here line by line, and the calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce import mlnx_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce.mlnx_qos import NotSupported
from ansible_collections.busbar.fabric.plugins.module_utils.roce.port import Dcb
from hypothesis import given, settings
from hypothesis import strategies as st

LLDPAD = "****** WARNING: lldpad service is running and may overwrite your settings ******"
HEAD = ["\tpriority    0   1   2   3   4   5   6   7"]
# The rows that every version prints, as little as a text may hold.
LEAST = ["PFC configuration:", *HEAD, "\tenabled     0   0   0   1   0   0   0   0   "]
CLASSES = [f"tc: {n} ratelimit: unlimited, tsa: vendor\n\t priority:  {n}" for n in range(8)]


def text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def full(**changed: str) -> str:
    """A ConnectX-7 that trusts the DSCP, as release 26.07 prints it."""
    lines = {
        "dcbx": "DCBX mode: OS controlled",
        "trust": "Priority trust state: dscp",
        "map": "dscp2prio mapping:",
        "prio3": "\tprio:3 dscp:31,30,29,28,27,26,25,24,",
        "prio6": "\tprio:6 dscp:48,",
        "sizes": "Receive buffer size (bytes): 20000,200000,0,0,0,0,0,0,max_buffer_size=262016",
        "cable": "Cable len: 30",
        "pfc": "PFC configuration:",
        "head": HEAD[0],
        "enabled": "\tenabled     0   0   0   1   0   0   0   0   ",
        "buffer": "\tbuffer      0   0   0   1   0   0   0   0   ",
        "tc0": "tc: 0 ratelimit: unlimited, tsa: ets, bw: 40%" + "".join(f"\n\t priority:  {p}" for p in (0, 1, 2)),
        "tc3": "tc: 3 ratelimit: unlimited, tsa: ets, bw: 60%\n\t priority:  3",
        "tc6": "tc: 6 ratelimit: 10.0 Gbps, tsa: strict" + "".join(f"\n\t priority:  {p}" for p in (4, 5, 6, 7)),
    }
    return text(*{**lines, **changed}.values())


def read(text: str) -> Dcb:
    return mlnx_qos.parse(text)[0]


def test_every_line_becomes_a_value() -> None:
    assert mlnx_qos.parse(full()) == (
        Dcb(
            owner="os",
            trust="dscp",
            dscp2prio=(*((dscp, 3) for dscp in range(31, 23, -1)), (48, 6)),
            pfc=(3,),
            prio2tc=(0, 0, 0, 3, 6, 6, 6, 6),
            tsa=("ets", None, None, "ets", None, None, "strict", None),
            bandwidth=(40, None, None, 60, None, None, 0, None),
            cable_length=30,
            prio2buffer=(0, 0, 0, 1, 0, 0, 0, 0),
            buffer_size=(20000, 200000, 0, 0, 0, 0, 0, 0),
        ),
        (),
    )


def test_pages_turn_tabs_into_blanks_and_drop_those_at_the_end() -> None:
    page = "\n".join(line.expandtabs(8).rstrip() for line in full().splitlines())
    assert mlnx_qos.parse(page) == mlnx_qos.parse(full())
    assert mlnx_qos.parse(page.replace("\n", "\r\n")) == mlnx_qos.parse(full())


@pytest.mark.parametrize("further", ["\tprio:6 dscp:48,", "\t            48,"])
def test_a_priority_goes_on_in_the_next_line_with_its_name_or_before_2018_without(further: str) -> None:
    found = read(full(prio6=f"\tprio:6 dscp:30,55,54,53,52,51,50,49,\n{further}"))
    assert found.dscp2prio[8:] == tuple((dscp, 6) for dscp in (30, 55, 54, 53, 52, 51, 50, 49, 48))


def test_the_oldest_version_prints_pfc_and_classes_only() -> None:
    vendor = ("vendor",) * 8
    assert read(text(*LEAST, "", *CLASSES[::-1])) == Dcb(
        pfc=(3,), prio2tc=tuple(range(8)), tsa=vendor, bandwidth=(0,) * 8
    )


def test_kernel_priorities_of_old_versions_stand_below_their_class() -> None:
    assert mlnx_qos.parse(text(*LEAST, *CLASSES).replace("priority:", "up:")) == mlnx_qos.parse(text(*LEAST, *CLASSES))
    lines = ["\t\tskprio: 0", "\t\tskprio: 2 (tos: 8)", "\t\tskprio: 6 (vlan 100 tos: 16)"]
    assert read(text(*LEAST, CLASSES[0], *lines, *CLASSES[1:])) == read(text(*LEAST, *CLASSES))
    with pytest.raises(ParseError, match="'skprio: 0' is not a line"):
        mlnx_qos.parse(text(*LEAST, *lines, *CLASSES))


def test_the_default_priority_of_ofed_23_may_be_empty_or_name_some() -> None:
    for said in ("default priority:", "default priority:\n\tprio:3"):
        assert read(full(cable=f"{said}\nCable len: 30")) == read(full())
    with pytest.raises(ParseError, match="'prio:3' is not a line"):
        mlnx_qos.parse(full(cable="\tprio:3\nCable len: 30"))


def test_the_total_has_two_names_and_may_be_missing() -> None:
    sizes = "Receive buffer size (bytes): 1,2,3,4,5,6,7,8,"
    for total in ("", "total_size=9", "max_buffer_size=9"):
        assert read(full(sizes=sizes + total)).buffer_size == (1, 2, 3, 4, 5, 6, 7, 8)


def test_lldpad_is_seen_and_what_the_driver_cannot_do() -> None:
    words = "Buffers commands are not supported on your system"
    found, cannot = mlnx_qos.parse(text(LLDPAD, "", words, "DCBX mode: Firmware controlled", *LEAST, *CLASSES))
    assert (found.lldpad, cannot, found.owner) == (True, ("Buffers commands",), "firmware")


def test_without_rate_limits_the_classes_have_no_numbers() -> None:
    bare = [f"{tsa}\n\t priority:  {n}" for n, tsa in enumerate(["vendor"] * 7 + ["ets, bw: 10%"])]
    found = read(text("Rate limit is not supported on your system!", *LEAST, *bare))
    assert (found.prio2tc, found.tsa, found.bandwidth) == (None, None, None)


def test_an_interface_without_dcb_is_told_from_a_text_that_is_not_known() -> None:
    words = (
        "Priority trust state is not supported on your system",
        "Buffers commands are not supported on your system",
        "Rate limit is not supported on your system!",
        "ETS features are not supported on your system",
    )
    with pytest.raises(NotSupported, match="Priority trust state, Buffers commands, Rate limit, ETS features not supp"):
        mlnx_qos.parse(text(*words))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"dcbx": "DCBX mode: Switch controlled"}, "'DCBX mode: Switch controlled' is not a line"),
        ({"trust": "Priority trust state: vlan"}, "'Priority trust state: vlan' is not a line"),
        ({"trust": "Priority trust state: dscp\nPriority trust state: pcp"}, "trust state: pcp' is not a line"),
        ({"prio3": "\tprio:3 dscp:64,"}, "'prio:3 dscp:64,' is not a line"),
        ({"prio3": "\tprio:8 dscp:26,"}, "'prio:8 dscp:26,' is not a line"),
        ({"map": "Priority mapping:"}, "'Priority mapping:' is not a line"),
        ({"map": "dscp2prio mapping:\n\t         26,"}, "'26,' is not a line"),
        ({"map": "dscp2prio mapping:\ndscp2prio mapping:"}, "'dscp2prio mapping:' is not a line"),
        ({"sizes": "Receive buffer size (bytes): 1,2,3,"}, "1,2,3,' is not a line"),
        ({"enabled": "\tenabled     0   0   0   2   0   0   0   0"}, "'enabled .*' is not a line"),
        ({"enabled": "\tenabled     0   0   0"}, "'enabled .*' is not a line"),
        ({"enabled": "\t"}, "no line 'enabled'"),
        ({"tc0": "tc: 0 ratelimit: unlimited, tsa: ets, bw: 101%"}, "bw: 101%' is not a line"),
        ({"tc0": "tc: 8 ratelimit: unlimited, tsa: strict"}, "'tc: 8 .*' is not a line"),
        ({"tc0": "tc: 0 ratelimit: unlimited, tsa: cbs"}, "tsa: cbs' is not a line"),
        ({"tc6": "tc: 6 ratelimit: unlimited, tsa: strict\n\t priority:  4"}, r"list priorities \[0, 1, 2, 3, 4\]"),
        ({"tc3": "tc: 0 ratelimit: unlimited, tsa: strict\n\t priority:  3"}, "a traffic class is there twice"),
        ({"tc0": "\t priority:  0"}, "'priority:  0' is not a line"),
        ({"cable": "Cable len: seven"}, "'Cable len: seven' is not a line"),
        ({"cable": "Traceback (most recent call last):"}, "'Traceback .*' is not a line"),
    ],
)
def test_what_is_not_known_is_refused_and_quoted(changed: dict[str, str], says: str) -> None:
    with pytest.raises(ParseError, match=says):
        mlnx_qos.parse(full(**changed))


@pytest.mark.parametrize("nothing", ["", "\n", "1\n"])
def test_an_answer_that_is_none_is_refused(nothing: str) -> None:
    with pytest.raises(ParseError):
        mlnx_qos.parse(nothing)


# -- generated outputs in every layout -------------------------------------------------------------------------------

eight = st.tuples(*[st.integers(0, 7)] * 8)


@dataclass(frozen=True)
class TrafficClass:
    number: int | None
    rate_gbps: float | None
    tsa: str
    bandwidth: int | None
    priorities: tuple[int, ...]


@dataclass(frozen=True)
class Qos:
    """All that the tool prints of a port, also what nobody reads."""

    lldpad: bool
    not_supported: tuple[str, ...]
    dcbx: str | None
    trust: str | None
    dscp2prio: tuple[tuple[int, int], ...] | None
    default_priorities: tuple[int, ...] | None
    buffer_size: tuple[int, ...] | None
    buffer_total: tuple[str, int] | None
    cable_length: int | None
    enabled: tuple[bool, ...]
    prio2buffer: tuple[int, ...] | None
    classes: tuple[TrafficClass, ...]

    def meaning(self) -> Dcb:
        numbered = {one.number: one for one in self.classes if one.number is not None}
        known: dict[str, Any] = {}
        if numbered:
            eight = [numbered.get(number) for number in range(8)]
            of = {priority: number for number, one in numbered.items() for priority in one.priorities}
            known = {
                "prio2tc": tuple(of[priority] for priority in range(8)),
                "tsa": tuple(None if one is None else one.tsa for one in eight),
                "bandwidth": tuple(None if one is None else one.bandwidth or 0 for one in eight),
            }
        return Dcb(
            owner=self.dcbx,
            lldpad=self.lldpad,
            trust=self.trust,
            dscp2prio=self.dscp2prio or (),
            pfc=tuple(priority for priority in range(8) if self.enabled[priority]),
            cable_length=self.cable_length,
            prio2buffer=self.prio2buffer,
            buffer_size=self.buffer_size,
            **known,
        )


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Qos, str]:
    """What a port may have, and the text that some version prints of it."""
    priorities = draw(eight)
    numbered = draw(st.booleans())
    classes = []
    for number in draw(st.permutations(sorted(set(priorities)))):
        tsa = draw(st.sampled_from(["strict", "vendor", "unknown", "ets"]))
        rate = draw(st.none() | st.integers(1, 4000)) if numbered else None
        classes.append(
            TrafficClass(
                number=number if numbered else None,
                rate_gbps=None if rate is None else rate / 10,
                tsa=tsa,
                bandwidth=draw(st.integers(0, 100)) if tsa == "ets" else None,
                priorities=tuple(p for p in range(8) if priorities[p] == number),
            )
        )
    trust = draw(st.sampled_from([None, "pcp", "dscp", "none", "both"]))
    mapping = draw(st.dictionaries(st.integers(0, 63), st.integers(0, 7))) if trust == "dscp" else {}
    listed = sorted(mapping, key=lambda dscp: mapping[dscp])
    buffers = draw(st.booleans())
    qos = Qos(
        lldpad=draw(st.booleans()),
        not_supported=draw(st.sampled_from([(), ("Buffers commands",), ("Rate limit",)])),
        dcbx=draw(st.sampled_from([None, "os", "firmware"])),
        trust=trust,
        dscp2prio=tuple((dscp, mapping[dscp]) for dscp in listed) if trust == "dscp" else None,
        default_priorities=draw(st.none() | st.lists(st.integers(0, 7), max_size=2).map(tuple)),
        buffer_size=draw(st.tuples(*[st.integers(0, 10**9)] * 8)) if buffers else None,
        buffer_total=draw(st.none() | st.tuples(st.sampled_from(["total_size", "max_buffer_size"]), st.integers(0, 9)))
        if buffers
        else None,
        cable_length=draw(st.none() | st.integers(0, 65535)),
        enabled=draw(st.tuples(*[st.booleans()] * 8)),
        prio2buffer=draw(eight) if buffers else None,
        classes=tuple(classes),
    )
    return qos, draw(st.sampled_from([as_tool, as_page, before_2018]))(qos)


def as_tool(qos: Qos, wrap: str = "\tprio:%d dscp:") -> str:
    lines = [LLDPAD, ""] if qos.lldpad else []
    lines += {"Buffers commands": ["Buffers commands are not supported on your system"]}.get(
        "".join(qos.not_supported), ["Rate limit is not supported on your system!"] if qos.not_supported else []
    )
    if qos.dcbx:
        lines.append(f"DCBX mode: {'OS' if qos.dcbx == 'os' else 'Firmware'} controlled")
    if qos.trust:
        lines.append(f"Priority trust state: {qos.trust}")
    if qos.dscp2prio is not None:
        lines.append("dscp2prio mapping:")
        for priority in range(8):
            dscps = [dscp for dscp, to in qos.dscp2prio if to == priority]
            for start in range(0, len(dscps), 8):
                head = "\tprio:%d dscp:" % priority if start == 0 else wrap.replace("%d", str(priority))
                lines.append(head + "".join("%02d," % dscp for dscp in dscps[start : start + 8]))
    if qos.default_priorities is not None:
        lines += ["default priority:", *(f"\tprio:{priority}" for priority in qos.default_priorities)]
    if qos.buffer_size is not None:
        total = "{}={}".format(*qos.buffer_total) if qos.buffer_total else ""
        lines.append("Receive buffer size (bytes): " + "".join(f"{size}," for size in qos.buffer_size) + total)
    if qos.cable_length is not None:
        lines.append(f"Cable len: {qos.cable_length}")
    lines += ["PFC configuration:", *HEAD, "\tenabled     " + "".join(f"{int(on)}   " for on in qos.enabled)]
    if qos.prio2buffer is not None:
        lines.append("\tbuffer      " + "".join(f"{buffer}   " for buffer in qos.prio2buffer))
    for one in qos.classes:
        rate = "unlimited" if one.rate_gbps is None else f"{one.rate_gbps:.1f} Gbps"
        head = "" if one.number is None else f"tc: {one.number} ratelimit: {rate}, tsa: "
        lines.append(head + one.tsa + (f", bw: {one.bandwidth}%" if one.tsa == "ets" else ""))
        lines += [f"\t priority:  {priority}" for priority in one.priorities]
    return text(*lines)


def as_page(qos: Qos) -> str:
    return "\n".join(line.expandtabs(8).rstrip() for line in as_tool(qos).splitlines())


def before_2018(qos: Qos) -> str:
    """Wrapped without the priority, and an empty line after PFC."""
    return as_tool(qos, "\t            ").replace("   \ntc:", "   \n\ntc:", 1)


@given(outputs())
@settings(max_examples=100)
def test_every_output_of_every_layout_is_read(output: tuple[Qos, str]) -> None:
    qos, printed = output
    assert mlnx_qos.parse(printed) == (qos.meaning(), qos.not_supported)


@given(outputs(), st.data())
@settings(max_examples=100)
def test_an_output_that_was_cut_is_refused_or_says_what_the_whole_one_did(
    output: tuple[Qos, str], data: st.DataObject
) -> None:
    qos, printed = output
    at = data.draw(st.integers(0, len(printed)))
    more = data.draw(st.sampled_from(["", "x", "9", "\n", ",", " 1"]))
    try:
        again, _cannot = mlnx_qos.parse(printed[:at] + more)
    except ParseError:
        return
    # The last line is a priority, and without one of the eight nothing is read.
    assert again == qos.meaning()


@given(st.text(max_size=400))
@settings(max_examples=100)
def test_any_other_text_is_refused(anything: str) -> None:
    with pytest.raises(ParseError):
        mlnx_qos.parse(anything)
