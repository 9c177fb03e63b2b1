# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read NCCL's variables from job files: shell and batch scripts, files of NAME=VALUE, Kubernetes manifests.

Nothing is run: a value that only that would give is None. An argument list (`mpirun -x NCCL_X=1`, `--export=`) counts
wherever it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.grammar import (
    MENTION,
    NAME,
    Assignment,
    assignments,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.shell_assignments import parse

KINDS = ("conf", "env", "script", "yaml")
_ENDINGS = (
    ("env", ("mca-params.conf", ".deepspeed_env", ".env")),
    ("script", (".sh", ".bash", ".csh", ".sbatch", ".slurm", ".pbs", ".job")),
    ("yaml", (".yml", ".yaml", ".json")),
    ("conf", (".conf",)),
)
# Other languages, and templates.
_OTHER_NAME = re.compile(
    r"(?:docker|container)file[^/]*|(?:gnu)?makefile|.*\.(?:dockerfile|containerfile|py|lua|tcl|service|container"
    r"|mk|fish|toml|ini|ipynb|tf|hcl|jsonnet|md|rst"
    r"|j2|jinja2?|tmpl|tpl|gotmpl|tftpl|template|in|erb)"
)
_OTHER_TEXT = re.compile(r"\A\s*(?:#!.*python|(?i:FROM|ARG)\s+\S|\{\{|\{%)|^services:\s", re.MULTILINE)
_OTHER = "busbar lint reads shell scripts, files of NAME=VALUE and Kubernetes manifests; render a template first"
# A variable that another language sets: `"NCCL_X": 1`, `environ["NCCL_X"] = "1"`, `setenv("NCCL_X", "1")`.
_OTHER_SET = re.compile(rf"(?m)^(?![ \t]*(?:#|//|--)).*(?<![\w${{]){NAME}[\"']?\]?[ \t]*[=:,][ \t]*\S")
_PLACEHOLDER = re.compile(r"\{\{|<%|\$[\w({]|<[^<>]+>|@\w+@|%\(\w+\)|__[A-Za-z]\w*__")
_EXPANSION = re.compile(rf"\$(?:[{{(][#!]?)?({NAME})\b")
_MESSAGE = re.compile(r"\s*(?:echo|printf|print|logger|if|elif|while|test|\[)\b|\s*\[")
_SETS = re.compile(r"\s*(?:#.*|(?:export\s+)?[A-Za-z_]\w*\s*=.*)?")
_DIRECTIVE = re.compile(r"#(?:SBATCH|PBS|BSUB|\$)[ \t]+(.*)")


@dataclass(frozen=True)
class Job:
    """The content of a text. documents: of YAML."""

    assignments: list[Assignment]
    documents: list[yaml.Node]


def kind_of(name: str, text: str) -> str:
    """Return the kind by the file's name, else by its content; nccl.conf where all lines could be of one.

    Raises ParseError for a kind that is not read.
    """
    base = name.lower().replace("\\", "/").rpartition("/")[2]
    if _OTHER_NAME.fullmatch(base) or _OTHER_TEXT.search(text):
        raise ParseError(_OTHER)
    for kind, endings in _ENDINGS:
        if base.endswith(endings):
            return kind
    if text.startswith("#!") or re.search(r"(?m)^#(SBATCH|PBS|BSUB) ", text):
        return "script"
    if re.search(r"(?m)^(apiVersion|kind):|\A\s*\{\s*\"", text):
        return "yaml"
    others = re.search(rf"(?m)^(?!{NAME}|#)[A-Za-z_]\w*\s*=", text) and "nccl" not in base
    if base == "<stdin>" or (sets_only(text) and not re.search(r"(?m)^export ", text) and not others):
        return "conf"
    if _OTHER_SET.search(text) and not _script(text):
        raise ParseError(_OTHER)
    return "env" if sets_only(text) else "script"


def sets_only(text: str) -> bool:
    """Return whether a text consists of NAME=VALUE and comments."""
    return all(_SETS.fullmatch(line) for line in text.splitlines())


def read(text: str, kind: str) -> Job:
    """Return the variables that the text sets and its documents. Raises ParseError with the line."""
    job = Job([], [])
    if kind == "env":
        found = parse(text, exported=True)
    else:
        found = _yaml(text, job) if kind == "yaml" else _script(text)
    for item in sorted(found, key=lambda assignment: assignment.line):
        filled = item.value is not None and _PLACEHOLDER.search(item.value)
        job.assignments.append(item._replace(value=None) if filled else item)
    return job


def expansions(text: str) -> tuple[set[str], set[str]]:
    """Return the variables whose values a text uses: in its commands, and anywhere, as in a message or test."""
    used: set[str] = set()
    anywhere: set[str] = set()
    for part in re.split(r"\n|;|&&|\|\||\b(?:then|do|else)\b", text):
        message = _MESSAGE.match(part) and not re.search(r"[>|]", part)
        for match in _EXPANSION.finditer(part):
            name = match.group(1)
            # NAME=${NAME:-default} is no use of it.
            if not re.search(rf"{name}=[\"']?$", part[: match.start()]):
                anywhere.add(name)
                used |= set() if message else {name}
    return used, anywhere


def _script(text: str) -> list[Assignment]:
    found = parse(text)
    for number, line in enumerate(text.splitlines(), 1):
        match = _DIRECTIVE.match(line)
        if match:
            found += parse("sbatch " + match.group(1), number)
    return found


def _yaml(text: str, job: Job) -> list[Assignment]:
    job.documents.extend(_documents(text))
    found: list[Assignment] = []
    done: set[int] = set()
    waiting = list(job.documents)
    while waiting:
        node = waiting.pop()
        if id(node) in done:
            continue  # an alias
        done.add(id(node))
        if isinstance(node, yaml.MappingNode):
            pairs = [(str(key.value), item) for key, item in node.value]
            found += _pairs(pairs)
            waiting += [item for key, item in pairs if not key.endswith("nccl.conf")]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.ScalarNode) and MENTION.search(node.value):
            # YAML, such as a patch; else a script (`args: |`), or a file of NAME=VALUE (`nccl.conf: |`).
            first = _line(node) + (node.style in ("|", ">"))
            within = _document_within(node.value, first)
            waiting += within
            found += [] if within else parse(node.value, first, exported=sets_only(node.value))
    return found


def _document_within(text: str, first: int) -> list[yaml.Node]:
    """Return the mapping or list that a text is, if it is YAML, with the file's lines."""
    try:
        inner = yaml.compose("\n" * (first - 1) + text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return []
    return [inner] if isinstance(inner, yaml.CollectionNode) else []


def _documents(text: str) -> list[yaml.Node]:
    """Return the documents. Raises ParseError."""
    try:
        return [found for found in yaml.compose_all(text, Loader=yaml.SafeLoader) if found is not None]
    except (yaml.YAMLError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = mark.line + 1 if mark else 1
        message = f"line {line}: no YAML: {problem or 'it cannot be read'}; render a template first"
        raise ParseError(message) from error


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _pairs(pairs: list[tuple[str, yaml.Node]]) -> Iterator[Assignment]:
    """Read `name: NCCL_X, value: "1"` of a container, and `NCCL_X: 1` of a ConfigMap."""
    scalars = {key: item for key, item in pairs if isinstance(item, yaml.ScalarNode)}
    if {"name", "value"} <= {*scalars}:
        scalars[str(scalars["name"].value)] = scalars["value"]
    for key, item in scalars.items():
        if MENTION.fullmatch(key):
            # null is "not set".
            yield Assignment(key, None if item.tag.endswith(":null") else item.value, _line(item))
        elif key.endswith("nccl.conf"):
            for pair in assignments(item.value):
                yield pair._replace(line=_line(item) + pair.line)
