# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read with mlxlink a rail's module temperature and the errors that its error correction could not correct.

InfiniBand has no other source: IPoIB has no ``ethtool -m``. The tool is part of NVIDIA's MFT; without it nothing is
read. Ports are read one by one, within one time limit. Virtual functions are not read: their module is the host's.

Source: mstflint's mlxlink (mlxlink_commander.cpp, mlxlink_cables_commander.cpp), MFT's manual. Every value is a text;
N/A if the port does not have it, or not while its link is down.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.finding import printable
from ..core.host import Host, ParseError, Problem, ReadError, ToolHung, problem_of
from ..machine.topology import Nic
from .port_counters import Port

TOOL = "mlxlink"
# The record's name of ``Reading.errors``.
ERRORS = "post_fec_errors"
# Seconds of one call, and of all before the last one. own
SECONDS, BOUND = 5.0, 15.0
_MODULE, _COUNTERS = "Module Info", "Physical Counters and BER Info"
# Bytes; an output has about 5 KB.
_LARGEST = 1 << 20
# "52 [-5..80]", "52", "52C".
_TEMPERATURE = re.compile(r"(-?[0-9]{1,3})C?(?: \[-?[0-9]{1,3}\.\.(-?[0-9]{1,3})\])?")
_COUNT = re.compile(r"[0-9]{1,20}")
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?(?:[eE]-?[0-9]{1,3})?")
# The firmware's zero is 15E-255; no port has counted for long enough for a smaller rate.
_LEAST = 1e-60


class Reading(NamedTuple):
    """degrees, alarm: Celsius; None of a cable that has no sensor.

    errors, rate: since the port was last cleared, ``seconds`` ago: symbols that error correction could not mend, where
    the firmware counts those (InfiniBand from HDR on), else its effective errors. None while the link is down.
    """

    degrees: Optional[float] = None
    alarm: Optional[float] = None
    errors: Optional[int] = None
    rate: Optional[float] = None
    seconds: Optional[float] = None


class Module(NamedTuple):
    """Module of one rail.   label: subject of its findings.   problem: why there is no reading."""

    rail: int
    pci: str
    label: str
    reading: Optional[Reading] = None
    problem: Optional[Problem] = None


def command(pci: str) -> Tuple[str, ...]:
    return (TOOL, "-d", pci, "-m", "-c", "--json")


def read(
    host: Host, nics: Mapping[int, Nic], clock: Callable[[], float] = time.monotonic
) -> Optional[Tuple[Module, ...]]:
    """Return the modules of the rails in their order; None if the tool is not installed.   nics: rail -> NIC.

    clock: monotonic time in seconds.
    """
    ports = [(rail, nic) for rail, nic in sorted(nics.items()) if nic.role != "vf" and nic.rdma and nic.port]
    if ports and not host.has(TOOL):
        return None
    found: List[Module] = []
    skipped: Optional[Problem] = None
    until = clock() + BOUND
    for rail, nic in ports:
        module = Module(rail, nic.pci, nic.label)
        if skipped is None and clock() > until:
            skipped = Problem(TOOL, "was not queried: the ports before it took more than %g s" % BOUND)
        try:
            reading = None if skipped else parse(_run(host, command(nic.pci)))
            found.append(module._replace(reading=reading, problem=skipped))
        except ToolHung as error:
            skipped = error.problem
            found.append(module._replace(problem=skipped))
        except (ReadError, ParseError) as error:
            problem = problem_of(error, " ".join(command(nic.pci)))
            # The same cause gives the same message on all ports.
            message = problem.message.replace(nic.pci, "DEVICE")
            found.append(module._replace(problem=Problem(problem.source, message)))
    return tuple(found)


def _run(host: Host, argv: Sequence[str]) -> str:
    """Return the output. If it could read only a part, it ends with 1 and prints that part. Raises ReadError."""
    done = host.run(argv, SECONDS)
    return done.stdout if done.stdout.lstrip().startswith("{") else done.answer()


def with_errors(ports: Sequence[Port], modules: Optional[Sequence[Module]]) -> Tuple[Port, ...]:
    """Return the ports with mlxlink's counts added, so that the record has them."""
    readings = {one.pci: one.reading for one in modules or () if one.reading is not None}
    errors = {pci: {ERRORS: reading.errors} for pci, reading in readings.items() if reading.errors is not None}
    return tuple(replace(port, values={**port.values, **errors.get(port.pci, {})}) for port in ports)


# -- its output ----------------------------------------------------------------------------------------------------


def parse(text: str) -> Reading:
    """Parse ``-m -c --json``. Raises ParseError."""
    output, refused = _output(text)
    module, counted = output.get(_MODULE), output.get(_COUNTERS)
    if not isinstance(module, dict) or not isinstance(counted, dict):
        missing = "the output has not both %r and %r" % (_MODULE, _COUNTERS)
        raise ParseError("mlxlink reports: %.160s" % refused if refused else missing)
    match = _value(module, "Temperature [C]", _TEMPERATURE)
    # A copper cable has no sensor: N/A, or zeros.
    has_sensor = match is not None and match.group(2) is not None and int(match.group(2)) > 0
    kind = "Symbol" if _value(counted, "Symbol Errors", _COUNT) else "Effective Physical"
    errors, rate = _value(counted, kind + " Errors", _COUNT), _value(counted, kind + " BER", _NUMBER)
    minutes = _value(counted, "Time Since Last Clear [Min]", _NUMBER)
    share = None if rate is None else float(rate.group())
    if (errors is not None and int(errors.group()) >= 1 << 64) or (share is not None and share > 1):
        raise ParseError("%s errors, a share of %s: not plausible" % (errors and errors.group(), share))
    return Reading(
        degrees=float(match.group(1)) if match is not None and has_sensor else None,
        alarm=float(match.group(2)) if match is not None and has_sensor else None,
        errors=None if errors is None else int(errors.group()),
        rate=0.0 if share is not None and share < _LEAST else share,
        seconds=None if minutes is None else float(minutes.group()) * 60,
    )


def _output(text: str) -> Tuple[Mapping[str, Any], str]:
    """Return sections by name, and the tool's message if it could not do all. Raises ParseError."""
    if len(text) > _LARGEST:
        raise ParseError("the output has more than %d KiB" % (_LARGEST >> 10))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("%.80r is not JSON" % text) from error
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, dict):
        raise ParseError("%.80r is not output of mlxlink" % text)
    status, output = data.get("status"), result.get("output")
    refused = ""
    if isinstance(status, dict) and status.get("code") not in (0, "0", None):
        refused = printable(" ".join(str(status.get("message"))[:400].split())) or "nothing"
    return (output if isinstance(output, dict) else {}), refused


def _value(section: Mapping[str, object], name: str, form: re.Pattern[str]) -> Optional[re.Match[str]]:
    """Return a value of this form; None if absent or N/A. Raises ParseError."""
    value = section.get(name)
    text = str(value).strip() if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
    if value is None or text in ("", "N/A"):
        return None
    match = None if text is None else form.fullmatch(text)
    if match is None:
        raise ParseError("%s: %.40r makes no sense" % (name, value))
    return match
