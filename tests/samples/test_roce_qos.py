"""Real outputs of mlnx_qos and dcb: read, rendered back, and those of failed calls refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce import dcb, mlnx_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce import qos as roce_qos

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


def test_every_state_of_a_port_comes_back_letter_by_letter(samples: Path) -> None:
    files = states(samples)
    assert len(files) >= 20
    for file in files:
        text = output(file)
        qos = mlnx_qos.parse(text)
        # Pages have blanks for TABs.
        assert mlnx_qos.render(qos).expandtabs(8) == text.expandtabs(8), file.name
        assert mlnx_qos.parse(mlnx_qos.render(qos)) == qos
        assert roce_qos.of_mlnx_qos(qos).prio2tc is not None, file.name


def test_captured_ports_mean_what_their_names_say(samples: Path) -> None:
    found = {
        file.name[:2]: roce_qos.of_mlnx_qos(mlnx_qos.parse(output(file))) for file in (samples / "mlnx_qos").iterdir()
    }
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


PARSERS: dict[str, Callable[[str], dcb.Object]] = {
    "pfc": dcb.parse_pfc,
    "app": dcb.parse_app,
    "ets": dcb.parse_ets,
    "buffer": dcb.parse_buffer,
    "maxrate": dcb.parse_maxrate,
    "dcbx": dcb.parse_dcbx,
}


def test_every_json_of_dcb_comes_back_letter_by_letter(samples: Path) -> None:
    files = {file.stem.partition("-")[2]: file.read_text() for file in (samples / SYNTHETIC).glob("dcb-*.json")}
    assert set(files) == set(PARSERS)
    for kind, text in files.items():
        assert dcb.render(PARSERS[kind](text)).strip() == text.strip()
        for other in set(PARSERS) - {kind, "app", "dcbx"}:
            with pytest.raises(ParseError):
                PARSERS[other](text)


def test_the_text_of_dcb_and_its_errors_are_refused(samples: Path) -> None:
    files = sorted((samples / SYNTHETIC).glob("dcb-*.txt"))
    assert len(files) >= 8
    for file in files:
        for parse in PARSERS.values():
            with pytest.raises(ParseError):
                parse(file.read_text())
