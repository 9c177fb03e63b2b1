"""A record of a search for who is slow, with every field; test_record_file.py reads and writes it."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import HostFinding, MeasuredTest, Record
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_tests import Node, Way

PAIR = MeasuredTest(
    number=1,
    kind="pair",
    hosts=("n1", "n2"),
    outcome="fail",
    figure=231.0,
    bar=345.6,
    bar_source="derived: 0.90 of the prediction",
)
RAILS = MeasuredTest(
    number=3,
    kind="rails",
    hosts=("n2", "n1"),
    outcome="fail",
    rails=(0, 3),
    about=("n2",),
    bar=43.2,
    bar_source="perftest_share 0.9",
    ways=(Way(3, "n2", 20.0), Way(3, "n1", None, True)),
    said="n1 did not listen",
    lost={"n1": "not reached"},
)
GPUS = MeasuredTest(
    number=3, kind="gpus", hosts=("n1",), outcome="fail", bar=432.0, pairs={(0, 1): 288.0, (2, 7): None}
)
LEAF = MeasuredTest(number=4, kind="leaf", hosts=("n1",), outcome="silent", about=("",), said="no result came back")
FINDING = Finding("localise.rail", "rail 3", "drift", "major", "43.2", "20", "tests", "why", fix="swap the cable")
RECORD = Record(
    simulated=True,
    begun=1795000000.0,
    finished=1795000600.5,
    launcher="mpirun",
    nodes=(
        Node("n1", "leaf1", (0, 3), 480.0, 440.0, (0, 1, 2, 7)),
        Node("n2", "leaf1", (0, 3), 470.0, None),
        Node("n3", "", unfit=("busy: a job", "search again when it is idle")),
    ),
    tests=(PAIR, RAILS, GPUS, LEAF),
    findings=(HostFinding(hosts=("n2",), finding=FINDING),),
    complete=True,
)
