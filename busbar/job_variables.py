# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read NCCL's variables from job files: shell and batch scripts, Dockerfiles, Kubernetes and compose files, Python.

Nothing is run and no template is filled in: a value that only that would give is None. An argument list (`mpirun -x
NCCL_X=1`, `--export=`, `docker run -e`) counts wherever it stands.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.environment import parse_unit
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.grammar import (
    MENTION,
    NAME,
    Assignment,
    assignments,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.shell_assignments import parse

KINDS = ("conf", "env", "unit", "script", "dockerfile", "yaml", "python")
_ENDINGS = {
    ending: kind
    for kind, endings in (
        ("env", "mca-params.conf .deepspeed_env .env"),
        ("script", ".sh .bash .csh .tcl .sbatch .slurm .pbs .job"),
        ("yaml", ".yml .yaml .json"),
        ("dockerfile", ".dockerfile .containerfile"),
        ("python", ".py .lua"),
        ("conf", ".conf"),
        ("unit", ".service .container"),
    )
    for ending in endings.split()
}
_TEMPLATE = re.compile(r"[.-](?:j2|jinja2?|tmpl|tpl|gotmpl|tftpl|template|in|erb|example|sample|dist)$")
# Actions of template engines: of Helm or Jinja, and what is alone on its line.
_ACTION = re.compile(r"\{\{.*?\}\}|\{[%#].*?[%#]\}|<%.*?%>|^[ \t]*%\{[^\n]*\}[ \t]*$", re.DOTALL | re.MULTILINE)
_FILLED = "\ue000"  # in its place: a character without meaning in shell and YAML
# More actions, which YAML cannot hold without quotes.
_UNQUOTED = re.compile(r"\$\{[^{}\n]*\}|@[A-Za-z_]\w*@|%\(\w+\)[sd]|<[A-Za-z][^<>\n]*>")
_IN_SHELL = re.compile(r"(?<==)([\"']?)(?:<[A-Za-z][^<>\n]*>|%\(\w+\)[sd])")
_PLACEHOLDER = re.compile(rf"{_FILLED}|\$[\w({{]|<[^<>]+>|@\w+@|%\(\w+\)|__[A-Za-z]\w*__")
_EXPANSION = re.compile(rf"\$(?:[{{(][#!]?)?({NAME})\b|(?:environ\.get|getenv)\(\s*[\"']({NAME})[\"']")
_MESSAGE = re.compile(r"\s*(?:echo|printf|print|logger|if|elif|while|test|\[)\b|\s*\[")
_SETS = re.compile(r"\s*(?:#.*|(?:export\s+)?[A-Za-z_]\w*\s*=.*)?")
_DIRECTIVE = re.compile(r"#(?:SBATCH|PBS|BSUB|\$)[ \t]+(.*)")
# A quoted name that is set, and a literal value; not os.environ.get("NCCL_X", "0").
_QUOTED = re.compile(rf"""(?<!get\()(?<!getenv\()["']({NAME})["']\s*\]?\s*(?:=(?!=)|[:,])\s*(?:(["'])([^"'\n]*)\2)?""")
_INSTRUCTION = re.compile(r"(?im)^[ \t]*(ENV|CMD|ENTRYPOINT|RUN)[ \t]+((?:.*\\\n)*.*)$")


@dataclass(frozen=True)
class Job:
    """The content of a text. scripts: shell text and its first line."""

    assignments: list[Assignment]
    scripts: list[tuple[str, int]]
    documents: list[yaml.Node]


def kind_of(name: str, text: str) -> str:
    """Return the kind by the file's name, else by its content; nccl.conf where all lines could be of one."""
    base = _TEMPLATE.sub("", name.lower().replace("\\", "/").rpartition("/")[2])
    if base.startswith(("dockerfile", "containerfile")):
        return "dockerfile"
    for ending, kind in _ENDINGS.items():
        if base.endswith(ending):
            return kind
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("# ")), "")
    if first.startswith("#!"):
        return "python" if "python" in first else "script"
    if re.search(r"(?m)^#(SBATCH|PBS|BSUB) ", text):
        return "script"
    if re.match(r"(?i)(FROM|ARG)\s+\S", first):
        return "dockerfile"
    if re.search(r"(?m)^(apiVersion|services|kind):", text):
        return "yaml"
    others = re.search(rf"(?m)^(?!{NAME}|#)[A-Za-z_]\w*\s*=", text) and "nccl" not in base
    if base == "<stdin>" or (sets_only(text) and not re.search(r"(?m)^export ", text) and not others):
        return "conf"
    return "env" if sets_only(text) else "script"


def sets_only(text: str) -> bool:
    """Return whether a text consists of NAME=VALUE and comments."""
    return all(_SETS.fullmatch(line) for line in text.splitlines())


def neutral(text: str) -> str:
    """Return a template with each action replaced by a placeholder, or by nothing where it has the line to itself."""

    def fill(match: re.Match[str]) -> str:
        return _FILLED * match.group().startswith(("{{", "<%")) + "\n" * match.group().count("\n")

    return re.sub(rf"(?m)^[ \t{_FILLED}]+$", "", _ACTION.sub(fill, text))


def read(text: str, kind: str) -> Job:
    """Return the variables that the text sets and the programs it starts. Raises ParseError with the line."""
    job = Job([], [], [])
    if kind != "python":
        text = neutral(text)
    if kind != "yaml" and kind != "python":
        text = _IN_SHELL.sub(rf"\1{_FILLED}", text)
    readers = {"script": _script, "dockerfile": _dockerfile, "yaml": _yaml, "python": _quoted, "unit": _unit}
    found = readers[kind](text, job) if kind != "env" else parse(text, exported=True)
    for item in sorted(found, key=lambda assignment: assignment.line):
        filled = item.value is not None and _PLACEHOLDER.search(item.value)
        job.assignments.append(item._replace(value=None) if filled else item)
    return job


def conf_text(name: str, text: str) -> str:
    """Return the text of an nccl.conf; of a template without the lines that are filled in."""
    if not _ACTION.search(text) and not _TEMPLATE.search(name.lower()):
        return text
    return "\n".join("#" if _PLACEHOLDER.search(line) else line for line in neutral(text).split("\n"))


def expansions(text: str) -> tuple[set[str], set[str]]:
    """Return the variables whose values a text uses: in its commands, and anywhere, as in a message or test."""
    used: set[str] = set()
    anywhere: set[str] = set()
    for part in re.split(r"\n|;|&&|\|\||\b(?:then|do|else)\b", text):
        message = _MESSAGE.match(part) and not re.search(r"[>|]", part)
        for match in _EXPANSION.finditer(part):
            name = match.group(1) or match.group(2)
            # NAME=${NAME:-default} is no use of it.
            if not re.search(rf"{name}=[\"']?$", part[: match.start()]):
                anywhere.add(name)
                used |= set() if message else {name}
    return used, anywhere


def _script(text: str, job: Job) -> list[Assignment]:
    job.scripts.append((text, 1))
    found = parse(text)
    for number, line in enumerate(text.splitlines(), 1):
        match = _DIRECTIVE.match(line)
        if match:
            found += parse("sbatch " + match.group(1), number)
    return found


def _unit(text: str, _job: Job) -> list[Assignment]:
    sections = ("Service", "Container")
    return [item for section in sections for item in parse_unit(text, section, ("Environment",))[0]]


def _dockerfile(text: str, job: Job) -> list[Assignment]:
    found = []
    # The lines of an instruction keep their numbers, also where comments stand between them.
    text = re.sub(r"(?<=\\\n)(?:[ \t]*#.*\n)+", lambda match: "\\\n" * match.group().count("\n"), text)
    for match in _INSTRUCTION.finditer(text):
        word, rest, first = match[1].upper(), match[2], text.count("\n", 0, match.start()) + 1
        if word == "ENV":
            found += parse(("export " if "=" in rest.split()[0] else "setenv ") + rest, first) if rest.split() else []
            continue
        job.scripts.append((rest, first))
        try:
            words = json.loads(rest)
        except ValueError:
            words = None
        rest = shlex.join(map(str, words)) if isinstance(words, list) else rest
        # Exports of RUN end with it.
        found += [one for one in parse(rest, first) if word != "RUN" or one.scope == "argument"]
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
            found += _sequence(node, job)
            waiting += [item for item in node.value if not isinstance(item, yaml.ScalarNode)]
        elif isinstance(node, yaml.ScalarNode):
            found += _text(node, job)
    return found


def _documents(text: str) -> list[yaml.Node]:
    """Return the documents; as a template's where they are not YAML without its actions. Raises ParseError."""
    filled = re.sub(rf"(?m)^[ \t]*{_FILLED}[ \t]*$", "", _UNQUOTED.sub(_FILLED, text))
    for attempt in (text, filled):
        try:
            documents = list(yaml.compose_all(attempt, Loader=yaml.SafeLoader))
        except yaml.YAMLError as error:
            mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
            message = f"line {mark.line + 1 if mark else 1}: no YAML: {problem or 'it cannot be read'}"
        else:
            return [document for document in documents if document is not None]
    raise ParseError(message)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _pairs(pairs: list[tuple[str, yaml.Node]]) -> Iterator[Assignment]:
    """Read `name: NCCL_X, value: "1"` of a container, and `NCCL_X: 1` of a ConfigMap or a compose file."""
    scalars = {key: item for key, item in pairs if isinstance(item, yaml.ScalarNode)}
    if {"name", "value"} <= {*scalars}:
        scalars[str(scalars["name"].value)] = scalars["value"]
    for key, item in scalars.items():
        if MENTION.fullmatch(key):
            # null is "not set", and in a compose file "as outside".
            yield Assignment(key, None if item.tag.endswith(":null") else item.value, _line(item))
        elif key.endswith("nccl.conf"):
            for pair in assignments(item.value):
                yield pair._replace(line=_line(item) + pair.line)


def _sequence(node: yaml.SequenceNode, job: Job) -> list[Assignment]:
    """Read `- NCCL_X=1` of a compose file, or the words of a command: `["mpirun", "-x", "NCCL_X=1"]`."""
    found: list[Assignment] = []
    words: list[yaml.ScalarNode] = [item for item in node.value if isinstance(item, yaml.ScalarNode)]
    if words:
        job.scripts.append((shlex.join(item.value for item in words), _line(node)))
    for number, item in enumerate(words):
        if "\n" in item.value or " " in item.value.strip():
            found += _text(item, job)
        elif MENTION.search(item.value):
            before = words[number - 1].value if number else ""
            found += parse(shlex.join(["start", before, item.value]), _line(item))
    return found


def _text(node: yaml.ScalarNode, job: Job) -> list[Assignment]:
    """Return what a script within the file sets (`args: |`), or a file of NAME=VALUE (`nccl.conf: |`)."""
    value, first = str(node.value), _line(node) + (node.style in ("|", ">"))
    job.scripts.append((value, first))
    return parse(value, first, exported=sets_only(value)) if MENTION.search(value) else []


def _quoted(text: str, _job: Job) -> list[Assignment]:
    """Read `os.environ["NCCL_X"] = "1"`, `setdefault("NCCL_X", "1")`, `{"NCCL_X": "1"}`, and Lua's setenv."""
    return [
        Assignment(match[1], match[3], number)
        for number, line in enumerate(text.splitlines(), 1)
        for match in _QUOTED.finditer("" if re.match(r"[ \t]*(?:#|--)", line) else line)
    ]
