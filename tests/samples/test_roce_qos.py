"""Real outputs of mlnx_qos and dcb: read line by line, and those of failed calls refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce import dcb, mlnx_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce.port import Dcb

SYNTHETIC = "dcb-and-mlnx_qos-synthetic"
# Errors, and calls that print something else than the state of the port.
OTHER = {"14", "15", "e3", "e4", "e5", "e7", "e8", "e9"}
WITHOUT_DCB = {"e1", "e2"}


def output(file: Path) -> str:
    """Without the frame: the call above it, the exit code below."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("$ mlnx_qos", "[exit "))]
    return "\n".join(lines) + "\n"


def states(samples: Path) -> list[Path]:
    made = [
        file for file in (samples / SYNTHETIC).glob("mlnx_qos-*") if file.name.split("-")[1] not in OTHER | WITHOUT_DCB
    ]
    return sorted((samples / "mlnx_qos").glob("*.txt")) + sorted(made)


def lines(found: Dcb) -> list[str]:
    """As the tool prints what was read, but the traffic classes."""
    said = [f"DCBX mode: {'OS' if found.owner == 'os' else 'Firmware'} controlled"] if found.owner else []
    said += [f"Priority trust state: {found.trust}"] if found.trust else []
    for priority in range(8):
        dscps = [dscp for dscp, to in found.dscp2prio if to == priority]
        said += [
            f"prio:{priority} dscp:" + "".join(f"{dscp:02d}," for dscp in dscps[start : start + 8])
            for start in range(0, len(dscps), 8)
        ]
    said += [f"Cable len: {found.cable_length}"] if found.cable_length is not None else []
    said.append("enabled" + "".join(f" {int(priority in (found.pfc or ()))}" for priority in range(8)))
    return said + (["buffer" + "".join(f" {one}" for one in found.prio2buffer)] if found.prio2buffer else [])


def test_every_state_of_a_port_is_what_its_lines_say(samples: Path) -> None:
    files = states(samples)
    assert len(files) >= 20
    for file in files:
        found, _cannot = mlnx_qos.parse(output(file))
        # Pages have blanks for TABs.
        printed = [" ".join(line.split()) for line in output(file).splitlines()]
        heads = ("DCBX", "Priority trust", "prio:", "Cable", "enabled", "buffer")
        read = [line for line in printed if line.startswith(heads) and not re.fullmatch("prio:[0-7]", line)]
        assert lines(found) == read, file.name
        sizes = [line for line in printed if line.startswith("Receive buffer size")]
        if found.buffer_size:
            assert f": {','.join(map(str, found.buffer_size))}," in sizes.pop(), file.name
        assert sizes == []
        assert [line for line in printed if line.startswith("tc:")] == [
            line
            for line in printed
            for number, tsa, bandwidth in classes(found)
            if line.startswith(f"tc: {number} ") and line.endswith(f"tsa: {tsa}{bandwidth}")
        ], file.name
        assert found.prio2tc is not None, file.name


def classes(found: Dcb) -> list[tuple[int, str, str]]:
    tsa, bandwidth = found.tsa or (), found.bandwidth or ()
    return [(n, one, f", bw: {bandwidth[n]}%" if one == "ets" else "") for n, one in enumerate(tsa) if one]


def test_captured_ports_mean_what_their_names_say(samples: Path) -> None:
    found = {file.name[:2]: mlnx_qos.parse(output(file))[0] for file in (samples / "mlnx_qos").iterdir()}
    assert (found["01"].trust, found["01"].pfc, found["01"].prio2tc) == ("pcp", (), (1, 0, 2, 3, 4, 5, 6, 7))
    assert (found["02"].trust, dict(found["02"].dscp2prio)) == ("dscp", {dscp: dscp >> 3 for dscp in range(64)})
    assert (found["03"].pfc, dict(found["03"].dscp2prio)[30], len(found["03"].dscp2prio)) == ((3,), 6, 64)
    assert (found["05"].pfc, found["05"].cable_length, found["05"].bandwidth) == ((5,), 30, (9, 1, 80, 10, 0, 0, 0, 0))


def test_a_port_without_dcb_and_a_name_of_none_say_the_same(samples: Path) -> None:
    files = [file for file in (samples / SYNTHETIC).glob("mlnx_qos-e*.txt") if file.name.split("-")[1] in WITHOUT_DCB]
    assert len(files) == 2
    for file in files:
        with pytest.raises(mlnx_qos.NotSupported):
            mlnx_qos.parse(output(file))


def test_what_is_not_the_state_of_a_port_is_refused(samples: Path) -> None:
    files = [file for file in (samples / SYNTHETIC).glob("mlnx_qos-*.txt") if file.name.split("-")[1] in OTHER]
    assert len(files) == len(OTHER)
    for file in files:
        with pytest.raises(ParseError):
            mlnx_qos.parse(output(file))


def test_every_json_of_dcb_is_read_by_the_parser_of_its_kind_and_no_other(samples: Path) -> None:
    files = {file.stem.partition("-")[2]: file.read_text() for file in (samples / SYNTHETIC).glob("dcb-*.json")}
    # Rates are asked of nobody.
    del files["maxrate"]
    assert set(files) == set(dcb.PARSERS)
    for kind, text in files.items():
        assert dcb.PARSERS[kind](text, Dcb()) != Dcb()
        for other in set(dcb.PARSERS) - {kind, "app", "dcbx"}:
            with pytest.raises(ParseError):
                dcb.PARSERS[other](text, Dcb())


def test_the_text_of_dcb_and_its_errors_are_refused(samples: Path) -> None:
    files = sorted((samples / SYNTHETIC).glob("dcb-*.txt"))
    assert len(files) >= 8
    for file in files:
        for parse in dcb.PARSERS.values():
            with pytest.raises(ParseError):
                parse(file.read_text(), Dcb())
