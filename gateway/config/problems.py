"""Configuration problems: error messages with the path, and the line or variable, of each mistake.

A problem has a path (queue.wait_s_max), a line where it came from the file or the variable where it came from the
environment, and one sentence. pydantic knows paths, YAML nodes know lines; this file joins them. A sentence never
repeats a value, because values may be secrets.
"""

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.reasons import NAME_STEP, merged_reasons, reason_of

Loc = tuple[str | int, ...]

MERGE_KEY = "<<"
REMOVED: Mapping[tuple[str, str], str] = {
    ("auth", "open_tenants_max"): "10000",
    ("continuation", "token_bytes_max"): "8MiB",
    ("discovery", "every_s"): "5",
    ("dlpm", "forgives_debt"): "false",
    ("engine", "speed"): "1.0",
    ("equinox", "alpha"): "0.7",
    ("equinox", "beta"): "0.3",
    ("equinox", "delta"): "0.1",
    ("equinox", "output_weight"): "4",
    ("equinox", "ttft_target_s"): "1",
    ("justitia", "idle_s"): "10",
    ("limits", "body_values_max"): "100000",
    ("limits", "choices_max"): "16",
    ("limits", "header_bytes_max"): "32KiB",
    ("limits", "header_tpot_ratio_min"): "0.5",
    ("limits", "inputs_max"): "2048",
    ("limits", "prompts_max"): "128",
    ("limits", "resumable_bytes_max"): "256MiB",
    ("limits", "unread_bytes_max"): "256MiB",
    ("mixture", "window_outputs"): "50",
    ("preempt", "times_max"): "8",
    ("preempt", "tokens_between_min"): "64",
    ("quantile", "first_tokens"): "256",
    ("quantile", "window_outputs"): "50",
    ("queue", "bytes_max"): "1GiB",
    ("queue", "tenant_bytes_max"): "256MiB",
    ("scheduling", "kv_headroom_ratio"): "0.95",
}
"""What were settings, by section (or policy) and key, and what always holds instead."""
VARIABLES: Mapping[tuple[str, str], str] = {
    ("tracing", "protocol"): "OTEL_EXPORTER_OTLP_PROTOCOL",
    ("tracing", "sample_ratio"): "OTEL_TRACES_SAMPLER_ARG",
    ("tracing", "sampler"): "OTEL_TRACES_SAMPLER",
}
"""What were settings, and the environment variable that sets each."""
_BRANCH = re.compile(r"(constrained-|function-|json-or-python|is-instance|lax-or-strict).*|\w+\[.*\]")
STRING_TAG, MERGE_TAG = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """A mistake in the configuration: the setting's path, a sentence, and the line or variable it comes from."""

    path: Loc
    text: str
    line: int | None = None
    variable: str | None = None

    def describe(self, source: Path | None) -> str:
        """Return "file:line: path: text", or the variable in the place of the file."""
        where = self.variable and f"environment variable {self.variable}"
        if where is None and source is not None:
            where = str(source) if self.line is None else f"{source}:{self.line}"
        return ": ".join(part for part in (where, dotted_path(self.path), self.text) if part)


class ConfigError(Exception):
    """An error: the configuration is invalid; `problems` lists every reason."""

    def __init__(self, problems: list[ConfigProblem], source: Path | None) -> None:
        super().__init__("\n".join(problem.describe(source) for problem in problems))
        self.problems = problems


# The line of every path, with its parts as strings, because YAML nodes and pydantic differ about numbers.
Lines = dict[tuple[str, ...], int]
Variables = dict[tuple[str, ...], str]


def dotted_path(path: Loc) -> str:
    """The path as text, like backends[0].url."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def read_yaml(text: str) -> tuple[dict[str, Any], Lines, list[ConfigProblem]]:
    """Parse one YAML mapping. Returns it, the line of every path in it, and the problems of its form."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        data = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        return {}, {}, [ConfigProblem((), f"this is not YAML: {what}", line=mark.line + 1 if mark else None)]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, {}, [ConfigProblem((), f"this is not YAML: {str(error).splitlines()[0]}")]
    if node is None:
        return {}, {}, []
    if not isinstance(data, dict):
        return (
            {},
            {},
            [ConfigProblem((), "the file must hold sections (key: value), see 'fairlead example-config'", line=1)],
        )
    lines: Lines = {}
    problems = list(_walk(node, (), lines, set()))
    return _with_names(data), lines, problems


def _with_names(data: Any, above: frozenset[int] = frozenset()) -> Any:
    """The data with every name converted to a string; other names have been reported. `above` has the objects that
    contain it (aliases loop).
    """
    if id(data) in above or not isinstance(data, dict | list):
        return data
    above = above | {id(data)}
    if isinstance(data, list):
        return [_with_names(item, above) for item in data]
    return {
        name if isinstance(name, str) else _yaml_name(name): _with_names(value, above) for name, value in data.items()
    }


def _yaml_name(name: object) -> str:
    return str(name).lower() if name is None or isinstance(name, bool) else str(name)


def _walk(node: yaml.Node, path: tuple[str, ...], lines: Lines, above: set[int]) -> Iterator[ConfigProblem]:
    """Record the line of every path below the node, and yield duplicate keys. `above` has the nodes that contain this
    one (aliases loop).
    """
    if id(node) in above:
        return
    above = above | {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[*path, str(index)] = item.start_mark.line + 1
            yield from _walk(item, (*path, str(index)), lines, above)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if key.tag not in (STRING_TAG, MERGE_TAG):
                yield ConfigProblem((*path, name), "a name must be a string: put it in quotes", line=line)
            if name in seen and name != MERGE_KEY:
                yield ConfigProblem((*path, name), "this key is there twice", line=line)
            seen.add(name)
            lines[*path, name] = line
            yield from _walk(value, (*path, name), lines, above)


def validation_problems(
    error: ValidationError, model: type[BaseModel], lines: Lines, variables: Variables
) -> list[ConfigProblem]:
    """Return one problem per error of pydantic, with its line or variable."""
    found: list[tuple[Loc, str]] = []
    for entry in error.errors(include_url=False):
        if entry["type"] == "disagreement":
            found.extend(entry["ctx"]["problems"])
        else:
            found.append(_sentence(entry, model))
    return [locate(path, text, lines, variables) for path, text in merged_reasons(found)]


def locate(path: Loc, text: str, lines: Lines, variables: Variables) -> ConfigProblem:
    """The problem with its origin: the variable or line that set the path, or the nearest one."""
    parts = tuple(map(str, path))
    exact = variables.get(parts)
    if exact is None and parts not in lines:
        exact = next((name for set_path, name in variables.items() if set_path[: len(parts)] == parts), None)
    if exact is not None:
        return ConfigProblem(path, text, variable=exact)
    for length in range(len(parts), 0, -1):
        if (line := lines.get(parts[:length])) is not None:
            return ConfigProblem(path, text, line=line)
        if (variable := variables.get(parts[:length])) is not None:
            return ConfigProblem(path, text, variable=variable)
    return ConfigProblem(path, text)


def _sentence(entry: ErrorDetails, model: type[BaseModel]) -> tuple[Loc, str]:
    kind, loc = entry["type"], tuple(part for part in entry["loc"] if not _is_branch(part))
    if kind == "extra_forbidden":
        *above, key = loc
        removed = said_of_removed(above, str(key))
        return loc, removed or f"there is no such key{did_you_mean(str(key), keys_of(model, loc[:-1]))}"
    if loc and loc[-1] == NAME_STEP:
        return loc[:-1], f"a name {reason_of(entry)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return loc, "must hold keys (key: value)"
    return loc, reason_of(entry)


def said_of_removed(above: Sequence[str | int], key: str) -> str | None:
    """The message for a setting that was removed from one of the sections (or policies) above: its fixed value or its
    replacement. None: there was no such setting.
    """
    for section in above:
        at = (str(section), key)
        if at in REMOVED:
            return f"is no setting any more, it is always {REMOVED[at]}: remove it"
        if at in VARIABLES:
            return f"is no setting any more: set the environment variable {VARIABLES[at]} instead"
    return None


def _is_branch(part: str | int) -> bool:
    """Whether a step of pydantic's path is a branch of a choice of types: constrained-int, literal['auto']."""
    return isinstance(part, str) and _BRANCH.fullmatch(part) is not None


def did_you_mean(name: str, names: list[str]) -> str:
    """A hint that gives the most similar name, or all names."""
    import difflib  # noqa: PLC0415 - only where something is wrong

    near = difflib.get_close_matches(name.lower(), names, n=1)
    if near:
        return f" (did you mean '{near[0]}'?)"
    return f" (there are: {', '.join(names)})" if names else ""


def keys_of(model: type[BaseModel], loc: Loc) -> list[str]:
    """Return the keys that the section at `loc` has."""
    at: Any = model
    for part in loc:
        if isinstance(at, type) and issubclass(at, BaseModel):
            field = at.model_fields.get(str(part))
            at = None if field is None else field.annotation
        else:
            # A dict or a tuple: what follows the name or the index is one of its values.
            at = next((kind for kind in reversed(typing.get_args(at)) if kind is not Ellipsis), None)
    return list(at.model_fields) if isinstance(at, type) and issubclass(at, BaseModel) else []
