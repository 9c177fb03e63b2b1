# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose and judge the benchmark of one node: runs of the intent, joint findings.

Bars come from busbw_bars.py, predictions from prediction.py, the judgement of one run from nccl_perf/judge.py. Pure.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import parse_size, size_text
from ansible_collections.busbar.fabric.plugins.module_utils.machine import platform_checks
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import checks as perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import fingerprint as perf_depends
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import record as perf_run

from . import busbw_bars, model_sizes, prediction, slowdown_causes
from .plain_data import Plain, PlainView

SCOPE = "node"
# The roles whose findings may explain a slow run.
EARLIER = ("platform", "node_health", "iommu", "nccl_conf", "nccl_tests")
STEP_FACTOR = 2
# Reasons why a host's runs are due, and their characters together.
REASONS, LONGEST = 3, 900
# Possible causes of a slow or failed run on a node, the likeliest first: prefixes of checks of other roles.
_CAUSES = (
    *("nccl_tests.", platform_checks.GPU_COUNT.id, platform_checks.GPU_DRIVER.id, platform_checks.NVLINK_FABRIC.id),
    *(platform_checks.NVLINKS.id, platform_checks.GPU_MODEL.id, platform_checks.GPU_TOOL.id),
)
# Possible causes of each finding of a run. Wrong values have none here: no setting makes a sum wrong.
_EXPLAINED = {
    perf.RAN.id: (*_CAUSES, *slowdown_causes.STOPPED, "nccl_conf."),
    perf.RANKS.id: (*_CAUSES, *slowdown_causes.STOPPED, "nccl_conf."),
    perf.BUSBW.id: (*_CAUSES, *slowdown_causes.SLOWED, "nccl_conf."),
}

# Possible causes of a change since the stored result, where an earlier role has found it.
_CHANGED_BY: dict[str, tuple[str, ...]] = {
    perf_depends.DRIVER: (platform_checks.GPU_DRIVER.id,),
    perf_depends.GPUS: (platform_checks.GPU_COUNT.id, platform_checks.GPU_DRIVER.id, platform_checks.GPU_MODEL.id),
    perf_depends.FIRMWARE: (platform_checks.RAIL_FIRMWARE.id, platform_checks.RAIL_DEVICE.id),
    perf_depends.ARGUMENTS: ("iommu.",),
    perf_depends.CONF: ("nccl_conf.",),
    perf_depends.NCCL: ("nccl_tests.",),
    perf_depends.PROGRAM: ("nccl_tests.",),
}

BAR = Check("nccl_benchmark.bar", why="a bandwidth without a bar proves nothing about the node")
"Is there a bar for this platform, collective and size"


def runs(values: PlainView, profile: Profile, platform: str, bars: Sequence[Sequence[busbw_bars.Bar]]) -> list[Plain]:
    """Return the runs of the intent: each is one program over one range of sizes, on all GPUs in one process.

    bars: those of the site's file, then the suite's. Raises ParseError.
    """
    gpus = profile.gpus.count
    collectives = values["nccl_benchmark_collectives"]
    if not collectives:
        return []
    if gpus < 2:
        raise ParseError(
            "profile %s has %d GPU: nothing is exchanged within such a node; set nccl_benchmark_collectives: []"
            % (platform, gpus)
        )
    low, high = (parse_size(values[f"nccl_benchmark_{name}_bytes"]) for name in ("min", "max"))
    if low > high or perf_run.sizes(low, high, STEP_FACTOR)[-1] != high:
        raise ParseError(
            "nccl_benchmark_max_bytes is not nccl_benchmark_min_bytes doubled some times: it would never be measured"
        )
    settings = {**(values["nccl_conf_extra"] or {}), **values["nccl_benchmark_environment"]}
    nvls = prediction.nvls_expected(profile, {name: str(value) for name, value in settings.items()})
    ranges = [(collective, low, high) for collective in collectives]
    if values["busbar_model_parameters"]:
        size = model_sizes.gradient_bytes(values["busbar_model_parameters"], gpus)
        ranges += [(collective, size, size) for collective in collectives if collective in model_sizes.WHOLE]
    found = []
    for collective, least, most in dict.fromkeys(ranges):
        bar = busbw_bars.find_bar(bars, platform, nvls, SCOPE, collective, most)
        predicted = prediction.predict(profile, collective, nvls, gpus)
        run: Plain = {"collective": collective, "program": f"{collective}_perf", "gpus": gpus}
        run |= {"min_bytes": least, "max_bytes": most, "step_factor": STEP_FACTOR}
        # A directory name on the node, unique among its runs; and the subject of nccl_perf's findings.
        run |= {"name": f"{collective}-{size_text(most)}", "subject": perf_run.subject(collective, gpus, most)}
        # nvls: NCCL is expected to reduce in the NVSwitch.   bar, prediction: GB/s at the largest size.
        run |= {"nvls": nvls, "prediction": predicted.busbw, "rule": predicted.rule}
        run |= {"bar": bar.busbw if bar else None, "bar_source": bar.source if bar else ""}
        found.append(run)
    return found


def judge(
    platform: str, wanted: Sequence[PlainView], results: Sequence[PlainView], others: Sequence[PlainView]
) -> Plan:
    """Return the findings of all runs of a node.

    wanted: of ``runs``.   results: of nccl_perf for each.   others: findings of earlier roles.
    """
    findings: list[Finding] = []
    earlier = [from_dict(dict(item)) for item in others]
    causes = {check: _root(earlier, prefixes) for check, prefixes in _EXPLAINED.items()}
    alike: dict[tuple[str, str, str], str] = {}
    for run, result in zip(wanted, results, strict=True):
        if result.get("finished_at"):
            findings.append(_bar(platform, run, result))
        for finding in (from_dict(dict(item)) for item in result["findings"]):
            outdated = finding.check == perf.FRESH.id and result.get("changed_since")
            cause = causes.get(finding.check) or (_changed_by(earlier, result["changed_since"]) if outdated else None)
            because = finding.because or (cause.id if cause else None)
            if because is None and (outdated or not result.get("finished_at")):
                # Seven programs that did not run, or are outdated, for one reason are one finding.
                key = (finding.check, finding.state, str(finding.have) if outdated else "")
                first = alike.setdefault(key, finding.id)
                because = first if first != finding.id else None
            findings.append(replace(finding, because=because))
    return Plan(tuple(findings))


def _root(earlier: Sequence[Finding], prefixes: Sequence[str]) -> Finding | None:
    """Return the first root finding whose check begins with the first matching prefix."""
    return next((f for prefix in prefixes for f in earlier if f.check.startswith(prefix) and f.because is None), None)


def _changed_by(earlier: Sequence[Finding], parts: Sequence[str]) -> Finding | None:
    """Return the cause of all changes; None where an earlier role has found nothing of a part."""
    causes = [_root(earlier, _CHANGED_BY.get(part, ())) for part in parts]
    return causes[0] if all(causes) else None


def due(runs: Sequence[PlainView], results: Sequence[PlainView]) -> str:
    """Return why a host's runs are, or were, to be measured: each reason once, with its number of runs. "" for none."""
    reasons = Counter(result["due"] for result in results if result["due"])
    said = ["%d of %d runs: %s" % (count, len(runs), reason) for reason, count in reasons.most_common()]
    text = "; ".join(said[:REASONS]) + ("; and more" if len(said) > REASONS else "")
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _bar(platform: str, run: PlainView, result: PlainView) -> Finding:
    """Judge whether there is a bar: a figure without one is not a result."""
    source = ("simulated: " if result.get("simulated") else "") + "bars.yml"
    nvls = "on" if run["nvls"] else "off"
    wanted = f"a bar for {platform}, NVLS {nvls}"
    if run["bar"] is not None:
        return BAR.judge(run["subject"], "ok", wanted, "{:g} GB/s ({})".format(run["bar"], run["bar_source"]), source)
    measured, predicted = result.get("busbw"), run["prediction"]
    said = f"{measured:.4g} GB/s measured here" if measured else "nothing was measured here"
    expected = f"{predicted:.4g} GB/s" if predicted else f"none: {run['rule']}"
    entry = (
        f"platform: {platform}, nvls: {str(run['nvls']).lower()}, scope: node, collective: {run['collective']},"
        f" size: {size_text(run['max_bytes'])}, busbw: <0.95 of it>, healthy: <it>, source: <who and when>"
    )
    healthy = f"judge whether this node is healthy ({said}, prediction {expected})"
    fix = f"{healthy}, then put a bar for it into bars.yml beside the inventory: {{{entry}}}"
    return BAR.judge(run["subject"], "unknown", wanted, None, source, fix)
