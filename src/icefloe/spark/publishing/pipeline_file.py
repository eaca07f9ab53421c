"""What `pipeline.yaml` may say: sources, steps, target, expectations, publication, maintenance.

The types describe the file, `pipeline.schema.json` is made of them (`make api`), and errors name
the line. The file names functions; the program that runs it passes these functions.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from icefloe.config.safe_yaml import ExponentLoader, line_of, yaml_tree
from icefloe.errors import InvalidInputError
from icefloe.ingest.parsers.detection import FileFormat
from icefloe.ingest.policies import DuplicatePolicy, FlippedPolicy
from icefloe.model import MAIN
from icefloe.model.moments import parse_age
from icefloe.model.record import Record
from icefloe.spark.publishing.expectations import AnyExpectation

SCHEMA_FILE = Path(__file__).with_name("pipeline.schema.json")
_AT = re.compile(r"(?P<reason>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
_PART = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"

Names: TypeAlias = str | Sequence[str]
Name: TypeAlias = Annotated[str, Meta(pattern=_NAME, max_length=100)]


class _FilePart(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of the file: unknown keys are errors."""


class FileSource(_FilePart, frozen=True, kw_only=True):
    """Files of other formats."""

    files: Names
    """Paths, URLs, globs or folders; paths are relative to the pipeline's own file."""


class PipelineTarget(_FilePart, frozen=True, kw_only=True):
    """The repository that is published to."""

    repository: str
    """Its URL or path."""
    branch: str = MAIN
    create: bool = False
    """Whether to create the repository if there is none."""
    containers: Sequence[str] = ()
    """Folders of local files that the repository may read; added to its configuration."""
    authorize: Sequence[str] = ()
    """URL prefixes of its virtual chunk containers that may be read, with the credentials of the
    environment."""


# --- steps


class _Step(_FilePart, frozen=True, kw_only=True, tag_field="do"):
    """What all steps have."""

    name: str = ""
    """How reports call it; by default what it does, and its output."""

    @property
    def kind(self) -> str:
        """What it does."""
        return str(self.__struct_config__.tag)


class IngestStep(_Step, frozen=True, kw_only=True, tag="ingest"):
    """Bring files into a group; those that are there already are not taken again."""

    source: str
    """A name among `sources`."""
    mode: Literal["virtual", "copy"] = "virtual"
    group: str = "/"
    concat_dims: Names | None = None
    loadable_variables: Sequence[str] | None = None
    drop_variables: Sequence[str] = ()
    rename: dict[str, str] | None = None
    file_format: FileFormat | None = None
    file_group: str | None = None
    compat: Literal["equals", "override"] = "equals"
    duplicates: DuplicatePolicy = "fail"
    tolerance: float = 0.0
    flipped: FlippedPolicy = "fail"
    decode: bool = False
    chunks: dict[str, int] | None = None
    on_broken: Literal["fail", "skip", "quarantine"] = "fail"
    statistics: bool | Sequence[str] = False
    checkpoint_files: Annotated[int, Meta(ge=1)] | None = None

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name or f"ingest {self.source} into {self.group}"


class CopyStep(_Step, frozen=True, kw_only=True, tag="copy"):
    """Copy arrays of another repository, again whenever that has changed."""

    source: str
    """URL or path of a repository."""
    version: str = MAIN
    """Which version of it: a branch, a tag or a snapshot id."""
    group: str = "/"
    variables: Names | None = None
    chunks: dict[str, int] | None = None
    statistics: bool | Sequence[str] = False

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name or f"copy {self.source} into {self.group}"


class MapStep(_Step, frozen=True, kw_only=True, tag="map_blocks"):
    """Compute an array from others by a function of blocks, again whenever they have changed."""

    function: str
    """A name among `functions` of the call that runs the pipeline."""
    inputs: Names
    output: str
    blocks: Literal["numpy", "xarray"] = "numpy"
    dims: Sequence[str] | None = None
    dtype: str | None = None
    chunks: dict[str, int] | None = None
    attributes: dict[str, Any] | None = None
    overlap: dict[str, int] | None = None
    statistics: bool = False
    function_version: int = 1
    """Another number makes the result be computed again, after the function has changed."""

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name or f"map_blocks {self.function} to {self.output}"


class ReduceStep(_Step, frozen=True, kw_only=True, tag="reduce"):
    """Reduce an array over dimensions or within groups, again whenever it has changed."""

    array: str
    how: Literal["sum", "mean", "min", "max", "count", "std", "var", "first", "last", "quantile"]
    output: str
    dims: Names | None = None
    by: str | None = None
    skipna: bool | None = None
    q: float | Sequence[float] | None = None
    ddof: int = 0
    keep_attrs: bool = True
    chunks: dict[str, int] | None = None

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name or f"reduce {self.array} to {self.output}"


AnyStep: TypeAlias = IngestStep | CopyStep | MapStep | ReduceStep


# --- publication and maintenance


class PublishRules(_FilePart, frozen=True, kw_only=True):
    """How the target branch moves."""

    rebase: bool = True
    """Whether to put the run on top of other commits of the target, and to validate it again."""
    squash: bool = True
    """Whether a run is one commit of the target; otherwise each step is."""
    message: str | None = None
    """Message of that commit; the name of the pipeline by default."""


class Expiry(_FilePart, frozen=True, kw_only=True):
    """Which snapshots leave the history."""

    older_than: str | None = None
    """An age such as `30d`, or a moment."""
    keep_last: Annotated[int, Meta(ge=1)] | None = None


class GarbageCollection(_FilePart, frozen=True, kw_only=True):
    """Which objects that nothing refers to are deleted."""

    older_than: str = "7d"
    """An age such as `7d`, or a moment."""


class Maintenance(_FilePart, frozen=True, kw_only=True):
    """What is done after something was published."""

    expire_snapshots: Expiry | None = None
    garbage_collect: GarbageCollection | None = None


class Pipeline(_FilePart, frozen=True, kw_only=True):
    """A pipeline: what comes from where, what is expected of it, and where it is published."""

    name: Name
    target: PipelineTarget
    sources: dict[Name, FileSource] = msgspec.field(default_factory=dict)
    steps: Annotated[Sequence[AnyStep], Meta(min_length=1)]
    expectations: Sequence[AnyExpectation] = ()
    publish: PublishRules = PublishRules()
    maintenance: Maintenance = Maintenance()
    reports: str | None = None
    """A folder that gets the report of each validation as JSON, text and HTML."""


class LoadedPipeline(Record, frozen=True):
    """A pipeline, and where paths in it begin."""

    pipeline: Pipeline
    folder: Path

    def path(self, text: str) -> str:
        """A path relative to the pipeline's file, or a URL as it is."""
        return text if "://" in text else os.path.normpath(self.folder / text)


def load_pipeline(place: str | os.PathLike[str]) -> LoadedPipeline:
    """Read a pipeline file.

    Raises:
        InvalidInputError: It is not valid; says where, what was expected and what was found.
    """
    path = Path(place)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidInputError(f"there is no pipeline file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read as text: {error}") from None
    return LoadedPipeline(parse_pipeline(text, str(path)), path.parent.absolute())


def parse_pipeline(text: str, name: str = "pipeline.yaml") -> Pipeline:
    """Read the text of a pipeline file; `name` is what errors call it.

    >>> parse_pipeline("{name: 3}")
    Traceback (most recent call last):
        ...
    icefloe.errors.InvalidInputError: pipeline.yaml, line 1, name: Expected `str`, got `int`
    """
    try:
        tree = yaml_tree(text, ExponentLoader)
    except InvalidInputError as error:
        reason = error.message.removeprefix("the configuration is ")
        raise InvalidInputError(f"{name} is {reason}") from None
    try:
        pipeline = msgspec.convert(tree, Pipeline)
    except msgspec.ValidationError as error:
        raise _invalid(name, text, _with_key(str(error), tree)) from None
    _check(pipeline, name, text)
    return pipeline


def _with_key(message: str, tree: Any) -> str:
    """A message of msgspec with the name of the source that it is about."""
    if "`$.sources[...]" in message:
        for key, source in tree["sources"].items():
            try:
                msgspec.convert(source, FileSource)
            except msgspec.ValidationError:
                return message.replace("$.sources[...]", f"$.sources.{key}")
    return message


def _invalid(name: str, text: str, reason: str, path: str = "") -> InvalidInputError:
    """An error that names the place in the file."""
    match = _AT.fullmatch(reason)
    if match is not None and match["path"]:
        reason, path = match["reason"], match["path"]
    parts = [key or int(index) for key, index in _PART.findall(path.removeprefix("$"))]
    unknown = re.search(r"unknown field `([^`]*)`", reason)
    if unknown is not None:
        parts.append(unknown[1])
        reason = "there is no such key"
    if parts and parts[-1] in _CHOICES:
        reason += f"; expected one of {', '.join(_kinds(_CHOICES[parts[-1]]))}"
    line = line_of(text, parts)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    at = f", {where.removeprefix('.')}" if where else ""
    return InvalidInputError(f"{name}, line {line}{at}: {reason}")


def _kinds(choices: Any) -> list[str]:
    return [str(each.__struct_config__.tag) for each in get_args(choices)]


_CHOICES: dict[str | int, Any] = {"do": AnyStep, "expect": AnyExpectation}


def _check(pipeline: Pipeline, name: str, text: str) -> None:
    """Check what types do not say."""
    outputs: dict[str, int] = {}
    labels: dict[str, int] = {}
    for number, step in enumerate(pipeline.steps):
        at = f"$.steps[{number}]"
        if isinstance(step, IngestStep) and step.source not in pipeline.sources:
            known = ", ".join(pipeline.sources) or "none"
            reason = f"there is no source {step.source!r}; sources: {known}"
            raise _invalid(name, text, reason, f"{at}.source")
        if not isinstance(step, IngestStep):
            # Commits say by this name which steps they have the results of.
            first = labels.setdefault(step.label, number)
            if first != number:
                reason = (
                    f"steps[{first}] is called {step.label!r}, too; give one of them another `name`"
                )
                raise _invalid(name, text, reason, at)
        output = _output(step)
        if output is None:
            continue
        if output in {_canonical(each) for each in inputs_of(step)}:
            reason = (
                f"the output {output!r} is one of the inputs, so that each run would change "
                "it again; give it another name"
            )
            raise _invalid(name, text, reason, f"{at}.output")
        if output in outputs:
            reason = f"steps[{outputs[output]}] has the same output"
            raise _invalid(name, text, reason, f"{at}.output")
        outputs[output] = number
    ages = {
        "$.maintenance.expire_snapshots.older_than": _age_of(pipeline.maintenance.expire_snapshots),
        "$.maintenance.garbage_collect.older_than": _age_of(pipeline.maintenance.garbage_collect),
    }
    for path, age in ages.items():
        try:
            _ = None if age is None else parse_age(age)
        except InvalidInputError as error:
            raise _invalid(name, text, error.message, path) from None


def _age_of(section: Expiry | GarbageCollection | None) -> str | None:
    return None if section is None else section.older_than


def _canonical(path: str) -> str:
    return "/" + path.strip("/")


def _output(step: AnyStep) -> str | None:
    """The array that a step makes, if it makes one."""
    return _canonical(step.output) if isinstance(step, MapStep | ReduceStep) else None


def inputs_of(step: AnyStep) -> Sequence[str]:
    """The arrays of the target that a step computes from."""
    if isinstance(step, MapStep):
        return [step.inputs] if isinstance(step.inputs, str) else step.inputs
    return [step.array] if isinstance(step, ReduceStep) else []


def pipeline_schema() -> dict[str, Any]:
    """The JSON Schema of pipeline files, made of the types."""
    schema = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Pipeline)))
    for definition in schema["$defs"].values():
        if "description" in definition:  # docstrings are indented before Python 3.13
            definition["description"] = inspect.cleandoc(definition["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "icefloe pipeline",
        **schema,
    }
