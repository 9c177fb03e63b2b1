# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and write records of runs: each is one JSON file, alone in a directory below all results.

Their data comes from nodes: it is typed and sized before use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from . import codec, results_folder
from .plain_data import Plain, PlainView

Record = TypeVar("Record")


@dataclass(frozen=True)
class RecordFile(Generic[Record]):
    """kind: the folder below ``nccl_benchmark_results_path``.   name: of the file.   limit: bytes of it.

    build: makes the record of plain data, and raises ValueError for invalid data.
    """

    kind: str
    name: str
    limit: int
    build: Callable[[Any], Record]
    format: int = 1

    def folder(self, results: str | Path) -> Path:
        """Return the directory of the records below ``nccl_benchmark_results_path``."""
        return Path(results) / self.kind

    def to_dict(self, record: Record) -> Plain:
        """Return plain data. Texts are cut to what ``from_dict`` accepts, without terminal control characters."""
        return {"format": self.format, **plain(record)}

    def latest(self, results: Path) -> Path:
        """Return the file of the latest record."""
        return self.folder(results) / "latest" / self.name

    def from_dict(self, data: object) -> Record:
        """Return the record of plain data. Raises ParseError that names the place and what is wrong there."""
        try:
            if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > self.format:
                raise ParseError(
                    "it is of a newer release of Busbar than this one, which reads format %d" % self.format
                )
            return self.build(data)
        except ValueError as error:
            raise ParseError(printable(str(error)[:500])) from None

    def parse(self, content: bytes) -> Record:
        """Return the record in a file's content. Raises ParseError."""
        try:
            return self.from_dict(codec.read(content.decode(), self.limit))
        except ValueError as error:
            raise ParseError(str(error)) from None

    def load(self, file: Path) -> Record:
        """Return a file's record. Raises OSError; ParseError that names the file where it is not a record."""
        try:
            return self.parse(results_folder.content(file, self.limit))
        except ParseError as error:
            raise ParseError(f"{file} is not a valid record: {error}") from None

    def read(self, path: str | Path) -> Record:
        """Return the record of a file, of a run's directory, or the latest one below nccl_benchmark_results_path.

        Raises OSError, FileNotFoundError where there is none; ParseError that names the file where it is no record.
        """
        return self.load(results_folder.latest(Path(path), self.kind, self.name))

    def text(self, data: PlainView, advice: str) -> str:
        """Return the file's text. advice: what to do where it is too large. Raises ParseError then."""
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
        if len(text) >= self.limit:
            raise ParseError(f"the record has more than {self.limit >> 20} MiB{advice}")
        return text

    def write(self, results: str | Path, data: PlainView, moment: float, advice: str, made: Path | None = None) -> Path:
        """Write a record in a new directory, which is returned; ``latest`` beside it is moved there at the end.

        results: nccl_benchmark_results_path.   moment: seconds since 1970, which name the directory.   made: directory
        of an earlier record of the same run, which is replaced atomically. Raises OSError; ParseError where the record
        would not be read again.
        """
        self.from_dict(data)
        text = self.text(data, advice)
        if made is not None:
            results_folder.replace_file(made / self.name, [text, "\n"])
            return made
        with results_folder.new(self.folder(results), moment) as new:
            results_folder.put(new / self.name, text)
        return new


def builder(kind: type[Record], schema: codec.Record, optional: Collection[str] = ()) -> Callable[[Any], Record]:
    """Return ``RecordFile.build`` of a dataclass. schema: of its fields.   optional: those that older files lack."""
    file = codec.Record({"format": codec.whole(1, 1), **schema.keys}, optional)

    def build(data: Any) -> Record:
        file(data)
        return codec.build(kind, {name: value for name, value in data.items() if name != "format"})

    return build


def shortened(text: str) -> str:
    """Return the text no longer than a record takes it, and without commands to a terminal."""
    return printable(text[: codec.LINE])[: codec.LINE]


def plain(value: object) -> Any:
    """Return dataclasses, mappings and sequences as JSON has them, with texts as a record takes them."""
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, Finding):
        return value.to_dict()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value
