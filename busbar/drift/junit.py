# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the report as JUnit XML, for CI: a suite for each failed check, a case for each node."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .report import OPEN


def render(report: Plain) -> str:
    root = ET.Element("testsuites", name="busbar drift" + (" (simulated)" if report["simulated"] else ""))
    coverage = ET.SubElement(root, "testsuite", name="coverage")
    suites: dict[str, ET.Element] = {}
    for host, said in report["hosts"].items():
        case = ET.SubElement(coverage, "testcase", classname="coverage", name=host)
        if said["class"] in OPEN:
            # The findings below are counted.
            ET.SubElement(case, "skipped" if said["findings"] else "error", message=said["class"].replace("_", " "))
        waived = {group["fingerprint"] for group in report["waived"]}
        for finding in said["findings"]:
            check = finding["check"]
            if check not in suites:
                suites[check] = ET.SubElement(root, "testsuite", name=check)
            case = ET.SubElement(suites[check], "testcase", classname=check, name=f"{host} {finding['subject']}")
            message = f"{finding['severity']} {finding['state']}: want {finding['want']}, have {finding['have']}"
            if finding["group"] in waived:
                ET.SubElement(case, "skipped", message="accepted: " + message)
            elif finding["group"] is None:
                ET.SubElement(case, "skipped", message=f"caused by {finding['because']}: {message}")
            else:
                kind = "error" if finding["state"] == "unknown" else "failure"
                ET.SubElement(case, kind, message=message).text = f"{finding['why']}\n{finding['fix']}"
    for suite in (coverage, *suites.values()):
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(sum(1 for _ in suite.iter(tag))))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
