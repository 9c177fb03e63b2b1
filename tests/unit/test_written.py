"""Files that Busbar has written: what an upgrade, an edit without effect and a changed setting come to."""

from __future__ import annotations

import json

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import written
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import FileChange

HEAD = "# Written by Busbar (role x): why.\n"
SYSCTL = "/etc/sysctl.d/98-busbar-multirail.conf"
SERVICE = "/etc/systemd/system/busbar-x.service"
LIMITS = "/etc/systemd/system/containerd.service.d/99-busbar.conf"
NETPLAN = "/etc/netplan/90-busbar-mtu.yaml"
NETWORK = "/etc/systemd/network/10-a.network.d/90-busbar-multirail.conf"
RULE = "/etc/udev/rules.d/90-busbar-roce-qos.rules"
PROGRAM = "/usr/local/lib/busbar/x.py"
INTENT = "/etc/busbar/roce_qos.json"
PINS = "/etc/apt/preferences.d/busbar-ofed"
GRUB = "/etc/default/grub.d/99-busbar.cfg"
# Path -> text, edits without effect, edits with one.
TEXTS = {
    SYSCTL: (
        "a = 1\nb = 2\n",
        [("a = 1\n", "# mine\n\na=1\n"), ("a = 1\nb = 2\n", "b = 2\na = 1\n")],
        [("a = 1", "a = 3")],
    ),
    SERVICE: (
        "[Unit]\nDescription=x\nAfter=y\n[Service]\nExecStart=/bin/a\n",
        [("Description=x", "Description=mine"), ("[Service]", "; mine\n[Service]")],
        [("/bin/a", "/bin/b"), ("After=y\n", "")],
    ),
    LIMITS: ("[Service]\nLimitNOFILE=8\n", [("[Service]", "[Service]\n# x")], [("8", "4"), ("[Service]", "[Unit]")]),
    NETPLAN: ("network:\n  version: 2\n", [("network", "# x\nnetwork")], [("version: 2", "version: 1"), ("  v", "v")]),
    NETWORK: ("[Route]\nTable=1\n\n[Route]\nTable=2\n", [("[Route]", "#\n[Route]")], [("Table=1", "Table=2")]),
    RULE: ("A, B\nC, D\n", [("A", "# x\nA")], [("A, B\nC, D\n", "C, D\nA, B\n")]),
    PROGRAM: ("print(1)\n", [], [("print(1)", "print(2)"), ("print(1)", "# mine\nprint(1)")]),
    PINS: ("Package: a\n\nPackage: b\n", [("Package: a", "# x\nPackage: a")], [("\n\n", "\n")]),
    GRUB: ("a() { :; }\na x\n", [("a x", "# x\na x")], [("a x", "a y")]),
}
EDITS = [(path, edit) for path, (_text, harmless, harmful) in TEXTS.items() for edit in (*harmless, *harmful)]


def sealed(path: str, text: str | None = None, release: str = written.RELEASE, intent: object = None) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(written, "RELEASE", release)
        return written.seal(path, HEAD + (TEXTS[path][0] if text is None else text), intent)


def compare(path: str, before: str | None, after: str | None) -> tuple[str, str | None, int, int]:
    files = written.compare([FileChange(path, before, after)])
    return files.state, files.severity, len(files.changes), len(files.notes)


@pytest.mark.parametrize("path", TEXTS)
def test_what_is_as_written_is_ok_and_of_another_release_a_note(path: str) -> None:
    now = sealed(path)
    assert compare(path, now, now) == ("ok", None, 0, 0)
    assert compare(path, None, None) == ("ok", None, 0, 0)
    assert compare(path, None, now) == compare(path, now, None) == ("drift", None, 1, 0)
    for older in (sealed(path, release="0.0.9"), now.replace("why", "because")):
        state = compare(path, older, now)
        # A text that was reworded by hand has no seal that fits.
        assert state == (("ok", None, 1, 1) if "0.0.9" in older else ("drift", "minor", 1, 0))
    # Before there were seals.
    assert compare(path, HEAD + TEXTS[path][0], now) == ("ok", None, 1, 1)


@pytest.mark.parametrize(("path", "edit"), EDITS)
def test_an_edit_without_effect_is_minor_and_another_setting_is_drift(path: str, edit: tuple[str, str]) -> None:
    now, (text, harmless, _harmful) = sealed(path), TEXTS[path]
    assert now.replace(*edit) != now
    minor = edit in harmless
    assert compare(path, now.replace(*edit), now) == ("drift", "minor" if minor else None, 1, 0)
    # Whoever seals his edit passes for another release with a program alone, and the note names it.
    forged = compare(path, sealed(path, text.replace(*edit), "0.0.9"), now)
    assert forged == (("ok", None, 1, 1) if minor else ("drift", None, 1, 0))


@pytest.mark.parametrize("path", [SERVICE, RULE, PROGRAM])
def test_a_program_of_another_release_counts_by_its_intent(path: str) -> None:
    now = sealed(path, intent=["a"])
    older = sealed(path, "print(3)\n", "0.0.9", ["a"])
    assert compare(path, older, now) == ("ok", None, 1, 1)
    assert compare(path, older.replace("print(3)", "print(4)"), now) == ("drift", None, 1, 0)
    assert compare(path, sealed(path, "print(3)\n", "0.0.9", ["b"]), now) == ("drift", None, 1, 0)


def test_json_has_its_seal_in_a_key_and_a_mode_is_no_text() -> None:
    def text(release: str, **more: int) -> str:
        data = {written.KEY: written.HEAD, "a": written.HEAD, **more}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(written, "RELEASE", release)
            return written.seal(INTENT, json.dumps(data, sort_keys=True))

    now = text(written.RELEASE)
    assert json.loads(now)["a"] == written.HEAD
    assert compare(INTENT, text("0.0.9"), now) == ("ok", None, 1, 1)
    assert compare(INTENT, json.dumps(json.loads(now), indent=4), now) == ("drift", "minor", 1, 0)
    assert compare(INTENT, text(written.RELEASE, b=1), now) == ("drift", None, 1, 0)
    assert compare(INTENT, "[" * 9999, now) == ("drift", None, 1, 0)
    files = written.compare([FileChange(INTENT, now, now, 0o644, 0o600)])
    assert (files.state, files.severity, files.wrong) == ("drift", None, f"{INTENT} has mode 0600")
