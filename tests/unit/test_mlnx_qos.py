"""The text of mlnx_qos in the layouts of its versions, written here line by line, and the calls."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import mlnx_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.mlnx_qos import NotSupported
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import Dcb
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
@settings(max_examples=100)
def test_every_output_of_every_layout_is_read(output: tuple[Dcb, tuple[str, ...], str]) -> None:
    meaning, cannot, printed = output
    assert mlnx_qos.parse(printed) == (meaning, cannot)


@given(outputs(), st.data())
@settings(max_examples=100)
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
@settings(max_examples=100)
def test_any_other_text_is_refused(anything: str) -> None:
    with pytest.raises(ParseError):
        mlnx_qos.parse(anything)
