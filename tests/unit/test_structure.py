"""What holds for every part of the suite, also for the one that is added tomorrow."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible.module_utils
import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.change import written
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    findings_file,
    intent,
    result_schema,
    site_values,
    suite,
)

ROOT = Path(__file__).resolve().parent.parent.parent
VIEW = ROOT / "collections" / "ansible_collections" / "busbar" / "fabric"
MODULES = sorted(path.stem for path in (ROOT / "library").glob("*.py"))
ACTIONS = sorted(path.stem for path in (ROOT / "action_plugins").glob("*.py"))
FILTERS = sorted(path.stem for path in (ROOT / "filter_plugins").glob("*.py"))
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
PLAYBOOKS = [ROOT / "site.yml", *sorted((ROOT / "playbooks").glob("*.yml"))]
NODE_CODE = sorted((ROOT / "module_utils").rglob("*.py")) + sorted((ROOT / "library").glob("*.py"))
# Whose answers come from nodes: through this gate, whatever their action plugin adds to it.
GATE = (ROOT / "plugin_utils" / "validated_action.py").read_text()
GATED = [
    name
    for name in ACTIONS
    if (text := (ROOT / "action_plugins" / f"{name}.py").read_text()) == GATE or "(PhasedAction)" in text
]
ON_NODES = [name for name in MODULES if name not in ACTIONS or name in GATED]
# Of a task's result, but what means the same there: changed, diff, failed, msg, rc, skipped, unreachable and warnings.
ANSIBLES_OWN = {
    *("async_result", "attempts", "deprecations", "exception", "false_condition", "finished", "include_args"),
    *("include_file", "invocation", "module_stderr", "module_stdout", "no_log", "results", "retries", "skip_reason"),
    *("skipped_reason", "started", "stats", "timedout"),
}


def documentation(name: str) -> dict[str, Any]:
    module = importlib.import_module(f"ansible_collections.busbar.fabric.plugins.modules.{name}")
    document = dict(yaml.safe_load(module.DOCUMENTATION))
    for name in document.get("extends_documentation_fragment", []):
        path, _dot, part = name.removeprefix("busbar.fabric.").partition(".")
        fragment = importlib.import_module(f"ansible_collections.busbar.fabric.plugins.doc_fragments.{path}")
        text = getattr(fragment.ModuleDocFragment, part.upper() or "DOCUMENTATION")
        for section, shared in yaml.safe_load(text).items():
            if section == "notes":
                document[section] = shared
                continue
            own = document.setdefault(section, {})
            own.update({key: {**said, **own.get(key, {})} for key, said in shared.items()})
    return {"options": {}, **document}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_documents_itself_and_its_modes(name: str) -> None:
    document = documentation(name)
    assert document["module"] == name
    support = {mode: document["attributes"][mode]["support"] for mode in ("check_mode", "diff_mode")}
    assert support["check_mode"] == "full"
    assert support["diff_mode"] == "full" or document["attributes"]["diff_mode"]["description"]


@pytest.mark.parametrize("name", MODULES)
def test_what_every_module_returns(name: str) -> None:
    """ansible-core 2.21 takes what is Ansible's own away or for something else: of `finished`, when, it made true."""
    module = importlib.import_module(f"ansible_collections.busbar.fabric.plugins.modules.{name}")
    returned = set(yaml.safe_load(module.RETURN) or ())
    assert not returned & ANSIBLES_OWN
    if name in ON_NODES:
        assert "notes" in documentation(name), "what every module returns"
        assert name in GATED, f"ln -s ../plugin_utils/validated_action.py action_plugins/{name}.py"
        # What a phase on the control node returns is no node's.
        returned = {key for key in returned if "phase" not in yaml.safe_load(module.RETURN)[key]["returned"]}
        assert returned <= set(result_schema.ANSWERS.get(name, {})) | set(result_schema._ALL), "a key without a type"


@pytest.mark.parametrize("name", ON_NODES)
def test_arguments_are_what_the_documentation_says(name: str) -> None:
    spec = importlib.import_module(f"ansible_collections.busbar.fabric.plugins.modules.{name}").SPEC
    options = documentation(name)["options"]
    assert set(spec) == set(options)
    for option, described in options.items():
        for key in ("type", "elements", "choices", "default", "required"):
            assert spec[option].get(key) == described.get(key), (option, key)


@pytest.mark.parametrize("name", ACTIONS)
def test_options_on_the_control_node_are_what_the_documentation_says(name: str) -> None:
    action = importlib.import_module(f"ansible_collections.busbar.fabric.plugins.action.{name}").ActionModule
    options, phases = documentation(name)["options"], getattr(action, "PHASES", {})
    assert set(phases) <= set(options.get("phase", {}).get("choices", ()))
    for spec in (getattr(action, "SPEC", {}), *phases.values()):
        for option, given in spec.items():
            for key in ("type", "elements", "choices", "default"):
                assert given.get(key) == options[option].get(key), (option, key)


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_has_its_sidecar(name: str) -> None:
    document = yaml.safe_load((ROOT / "filter_plugins" / f"{name}.yml").read_text())
    assert document["DOCUMENTATION"]["name"] == name


@pytest.mark.parametrize("name", ROLES)
def test_every_role_has_its_parts_and_registers_its_result(name: str) -> None:
    role = ROOT / "roles" / name
    for part in ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "tasks/main.yml"):
        assert (role / part).is_file(), part
    tasks = "".join(path.read_text() for path in (role / "tasks").glob("*.yml"))
    assert f"register: {name}_result" in tasks
    assert f"{name}_result" in intent.REGISTERED


def _imported_roles(path: Path) -> list[str]:
    """Names of the roles that a playbook and the task files that it imports play, in their order."""
    found: list[str] = []

    def look(tasks: list[dict[str, Any]], folder: Path, variables: dict[str, str]) -> None:
        for task in tasks:
            for way in ("ansible.builtin.import_role", "ansible.builtin.include_role"):
                if way in task:
                    found.append(task[way]["name"].removeprefix("busbar.fabric."))
            for part in ("pre_tasks", "tasks", "block", "rescue", "always"):
                look(task.get(part, []), folder, variables)
            imported = task.get("ansible.builtin.import_tasks")
            if imported:
                file = folder / (variables["locked_tasks"] if imported == "{{ locked_tasks }}" else imported)
                look(yaml.safe_load(file.read_text()), file.parent, {**variables, **task.get("vars", {})})

    look(yaml.safe_load(path.read_text()), path.parent, {})
    return list(dict.fromkeys(found))


def test_the_playbooks_play_the_roles_of_the_table_in_its_order() -> None:
    plays = list(dict.fromkeys(role.play for role in suite.SUITE))
    [*imported, verdict] = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    assert [play["ansible.builtin.import_playbook"] for play in imported] == [f"{play}.yml" for play in plays]
    assert verdict["ansible.builtin.import_playbook"] == "verdict.yml"
    for play in plays:
        of_play = [
            role.name for role in suite.SUITE if role.play == play and role.name != suite.VERIFY and not role.home
        ]
        assert _imported_roles(ROOT / "playbooks" / f"{play}.yml") == of_play
    assert set(ROLES) == {role.name for role in suite.SUITE if not role.home} - {suite.VERIFY} | {"drift_timer"}


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.name)
def test_every_play_targets_the_gpu_nodes_step_by_step(path: Path) -> None:
    """ANSIBLE_STRATEGY=free would work on nodes before the gate, and end without a verdict."""
    for play in yaml.safe_load(path.read_text()):
        if "ansible.builtin.import_playbook" in play:
            # Whoever reads the intent after that finds what passes for the site's in no declaration.
            assert all(name in site_values.VALUES or not intent.mine(name) for name in play.get("vars", {}))
        else:
            assert "gpu_nodes" in play["hosts"] or "target_nodes" in play["hosts"]
            assert play["strategy"] == "linear"


def test_no_errors_are_ignored_and_no_play_compares_every_host_with_every_other() -> None:
    """``select('in', ...)`` took a second for 1,000 hosts, and a hundred times that for ten times as many."""
    for path in [*(ROOT / "roles").rglob("*.yml"), *(ROOT / "playbooks").rglob("*.yml")]:
        assert "ignore_errors" not in path.read_text(), path
        assert "select('in'" not in path.read_text(), f"{path}: use intersect(); play_nodes puts hosts into order"


def test_what_is_run_by_hand_asks_first_whether_it_may() -> None:
    for name in ("provision", "drift", "sharp", "verify", "fabric", "benchmark", "localise"):
        [first, *_rest] = yaml.safe_load((ROOT / "playbooks" / f"{name}.yml").read_text())
        assert "busbar.fabric.target_nodes" in first["hosts"], name
    [first, *_rest] = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    assert first["ansible.builtin.import_playbook"] == "provision.yml"


def test_action_plugins_with_one_body_are_links_to_it() -> None:
    body = (ROOT / "plugin_utils/validated_action.py").read_bytes()
    assert {path.is_symlink() for path in (ROOT / "action_plugins").glob("*.py") if path.read_bytes() == body} == {True}


def test_the_collection_is_a_view_without_cycles() -> None:
    links = [path for path in VIEW.rglob("*") if path.is_symlink()]
    assert len(links) >= 10
    for link in links:
        target = link.resolve(strict=True)
        assert target.is_relative_to(ROOT)
        assert not VIEW.is_relative_to(target), f"{link} points at an ancestor"


def test_one_version() -> None:
    import busbar

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    galaxy = yaml.safe_load((VIEW / "galaxy.yml.in").read_text())["version"]
    assert project == galaxy == busbar.__version__ == findings_file.VERSION == written.RELEASE
    assert f"## {project}" in (ROOT / "CHANGELOG.md").read_text()


def test_types_of_all_code_of_the_collection_are_checked() -> None:
    # In a checkout that is installed mypy is silent on what it finds by an import alone.
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    assert {path.resolve() for path in (VIEW / "plugins").iterdir()} <= {(ROOT / name).resolve() for name in checked}


@pytest.mark.parametrize("path", NODE_CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_node_code_is_python_38_and_standard_library_without_broad_except_and_shell(path: Path) -> None:
    frame = path == ROOT / "module_utils/change/module.py"
    own = ("ansible.module_utils.", "ansible_collections.busbar") if path.parent.name == "library" or frame else ()
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.ExceptHandler):
            assert node.type is not None
            assert ast.unparse(node.type) not in ("Exception", "BaseException"), f"{path.name}:{node.lineno}"
        assert not (isinstance(node, ast.keyword) and node.arg == "shell"), f"{path.name} uses a shell"
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name.startswith(own), f"{path.name} imports {name}"


# The files beside the folders.
NOUNS = "nouns"
# Each wing of module_utils may import what stands before it.
WINGS = (
    *("core", "machine", "change", "driver", "kernel_args", "mtu", "multirail", "pcie_path", "health"),
    *("roce_qos", "ofed", "firmware", "lldp", "nccl_conf", "ras", "diagnose", "nccl_tests", "nccl_perf", "fabric"),
    *("sharp", "limits", "gpudirect", "watch", NOUNS, "gate"),
)
# Two folders of one noun: launchers, and the program that they start.
SAME = {"nccl": "nccl_perf"}


def _wing(path: Path) -> str:
    inner = path.relative_to(ROOT / "module_utils").parts
    return SAME.get(inner[0], inner[0]) if len(inner) > 1 else NOUNS


def _imported(path: Path) -> Iterator[Path]:
    """Files of module_utils that another of them imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            files = [folder / alias.name for alias in node.names] if folder.is_dir() else [folder]
            yield from (file.with_suffix(".py") for file in files)


def test_every_wing_imports_only_those_below_it_and_no_files_import_each_other() -> None:
    files = [path for path in NODE_CODE if path.is_relative_to(ROOT / "module_utils")]
    assert {_wing(path) for path in files} == set(WINGS)
    imports = {path: set(_imported(path)) for path in files}
    for path, others in imports.items():
        for other in others:
            assert WINGS.index(_wing(other)) <= WINGS.index(_wing(path)), f"{path} imports {other}"
    while leaves := [path for path, others in imports.items() if not others & set(imports)]:
        for path in leaves:
            del imports[path]
    assert not imports, "each of these imports another of them"


def test_no_module_has_the_name_of_one_of_ansibles() -> None:
    """Beside a playbook (site.yml) module_utils/ stands before Ansible's own: 2.22 found ours for its `secrets`."""
    names = {module.name for module in pkgutil.iter_modules(ansible.module_utils.__path__)} | {"secrets"}
    assert names.isdisjoint(path.stem for path in (ROOT / "module_utils").iterdir())


@pytest.mark.parametrize(
    "path", [*NODE_CODE, *(ROOT / "busbar").rglob("*.py")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_file_names_its_licence(path: Path) -> None:
    # The file that makes a folder a package is empty: ansible-test wants it so.
    assert path.read_text() == "" or "GNU General Public License v3.0+" in "\n".join(path.read_text().splitlines()[:4])


def test_the_lab_and_the_product_share_no_code() -> None:
    for path in (ROOT / "lab").glob("*.py"):
        assert "ansible_collections" not in path.read_text(), path


def test_node_code_compiles_on_the_oldest_python(oldest_python: str) -> None:
    main = "import sys; [compile(open(p, encoding='utf-8').read(), p, 'exec') for p in sys.argv[1:]]"
    done = subprocess.run([oldest_python, "-I", "-c", main, *map(str, NODE_CODE)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_a_limit_of_seconds_in_a_test_is_a_wait_for_the_slowest_machine() -> None:
    """Below a second it is meant to be reached; five minutes and more are for a machine that has other things to do."""
    tight = []
    for path in (ROOT / "tests").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            waits = isinstance(call.func, ast.Attribute) and call.func.attr in ("run", "communicate", "check_output")
            for word in call.keywords if waits and "host." not in ast.unparse(call.func) else []:
                limit = word.value.value if isinstance(word.value, ast.Constant) and word.arg == "timeout" else None
                if isinstance(limit, int | float) and 1 <= limit < 300:
                    tight.append(f"{path.relative_to(ROOT)}:{call.lineno}: {limit} s")
    assert tight == []


# The reader itself, and those that bound the length of ASCII text or bytes first.
DIGITS_GUARDED = {"module_utils/core/number.py"}


def test_digits_are_made_a_number_by_one_reader() -> None:
    """``str.isdigit`` accepts what ``int`` refuses: core/number.py reads digits. Names in /proc are the kernel's."""
    guard, makes = re.compile(r"\.is(digit|decimal|numeric)\(\)"), re.compile(r"\bint\b[(,)]")
    guarded = set()
    for folder in ("module_utils", "plugin_utils", "action_plugins", "library", "busbar"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.is_relative_to(ROOT / "lab"):
                continue
            lines = path.read_text().splitlines()
            for number, line in enumerate(lines):
                # The guard, and the two lines that it guards.
                if guard.search(line) and makes.search(" ".join(lines[number : number + 3])) and "/proc" not in line:
                    guarded.add(str(path.relative_to(ROOT)))
    assert guarded <= DIGITS_GUARDED
