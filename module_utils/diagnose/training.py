# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge step times and GPU utilisation of a training log: do they point to the network, or away from it."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import List, Sequence

from ..core.check import Check
from ..core.finding import Finding

STEP_TIME = Check(
    "nccl_log.step_time",
    why="a slow network makes all steps slow; steps that vary point to input, checkpoints, or a rank that is late",
    fix="time the parts of a step on every rank (torch.profiler); if they are even with synthetic data, it is input",
)
"Do the steps of the training log vary by less than 10 % (`busbar diagnose --training`)"
UTILISATION = Check(
    "nccl_log.gpu_utilisation",
    why="GPUs that are busy 60 to 75 % of the time wait for data, or for communication that computation does not hide",
    fix="if it rises with synthetic data, it is the input (loader workers, local data); else overlap (DDP buckets)",
)
"Are the GPUs busy for more than 75 % of the time (`busbar diagnose --training`)"
BEYOND = Check(
    "nccl_log.beyond_network",
    severity="minor",
    why="NCCL's log shows no fault of the network: more bandwidth will not make the steps shorter",
    fix="prove it with playbooks/benchmark.yml between these nodes; then look at compute, input, overlap",
)
"Does the network limit the training, as far as NCCL's log and the training's show"

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
# The first that fits counts. Rates of tqdm are smoothed, and are not taken.
_SECONDS = (
    (re.compile(r"elapsed time per iteration \(ms\): " + _NUMBER), 1e-3),
    (re.compile(r"\b(?:step|iter(?:ation)?|batch)[_ ]?time[^\d\n]{0,12}?" + _NUMBER + r" ?ms"), 1e-3),
    (re.compile(r"\b(?:dt|time)[:= ]{1,3}" + _NUMBER + r" ?ms\b"), 1e-3),
    (re.compile(r"\b(?:step|iter(?:ation)?|batch)[_ ]?time_ms[^\d\n]{0,12}?" + _NUMBER), 1e-3),
    (re.compile(r"\b(?:step|iter(?:ation)?|batch)[_ ]?time[^\d\n]{0,12}?" + _NUMBER), 1.0),
    (re.compile(_NUMBER + r" ?(?:s|sec|seconds) ?(?:/|per) ?(?:step|iter(?:ation)?|batch)\b"), 1.0),
)
_PERCENT = (
    re.compile(r"\bgpu[_ ]?util(?:i[sz]ation)?(?:[._ ]gpu)?[^\d\n%]{0,12}?(\d{1,3}(?:\.\d{1,4})?) ?%?", re.IGNORECASE),
    re.compile(r"^\s*\d{1,3}(?:, [^,]{0,60}){0,6}, (\d{1,3}) %"),
)
# Steps before this one warm up; fewer than this many after it prove nothing.
_WARM, _ENOUGH = 5, 20
KEPT = 200_000


@dataclass
class Training:
    """seconds: of each step, in the order of the log.   percent: of GPU utilisation, each value that the log has."""

    seconds: array[float] = field(default_factory=lambda: array("d"))
    percent: array[float] = field(default_factory=lambda: array("d"))

    def line(self, text: str) -> None:
        if len(self.seconds) < KEPT:
            seconds = ((pattern.search(text), unit) for pattern, unit in _SECONDS)
            self.seconds.extend([float(match.group(1)) * unit for match, unit in seconds if match][:1])
        if len(self.percent) < KEPT:
            found = (pattern.search(text) for pattern in _PERCENT)
            percent = [float(match.group(1)) for match in found if match]
            self.percent.extend([value for value in percent if value <= 100][:1])


def judge(training: Training, network: Sequence[Finding]) -> List[Finding]:
    """network: findings on the job's NCCL log; those that are not ok come first, and this after them."""
    cause = next((finding for finding in network if not finding.ok and finding.severity != "minor"), None)
    steps = list(training.seconds)[_WARM:]
    if len(steps) < _ENOUGH:
        have = "%d steps after the first %d: too few, or in a form that is not known" % (len(steps), _WARM)
        fix = "log the seconds of every step, such as `step_time: 0.523`, for at least %d steps" % (_WARM + _ENOUGH)
        found = [STEP_TIME.judge("training", "unknown", "even steps", have, "--training", fix, severity="minor")]
    else:
        mean = sum(steps) / len(steps)
        deviation = (sum((step - mean) ** 2 for step in steps) / len(steps)) ** 0.5 / (mean or 1)
        slow = sum(step > 1.5 * mean for step in steps)
        have = "%d steps of %.3f s, standard deviation %.0f %%" % (len(steps), mean, 100 * deviation)
        have += "; %d of them took more than half as long again" % slow if slow else ""
        state = "drift" if deviation > 0.10 else "ok"
        found = [STEP_TIME.judge("training", state, "at most 10 %", have, "--training", because=cause)]
    if training.percent:
        busy = sum(training.percent) / len(training.percent)
        have, state = "%.0f %% on average of %d values" % (busy, len(training.percent)), "ok" if busy > 75 else "drift"
        found.append(UTILISATION.judge("training", state, "more than 75 %", have, "--training", because=cause))
    if cause is None:
        have = "nothing in NCCL's log points to the network: look at compute, input or overlap"
        state = "ok" if any(finding.state == "drift" for finding in found) else "unknown"
        found.append(BEYOND.judge("training", state, None, have, "--training"))
    return found
