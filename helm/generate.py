"""Write what of the chart follows from something else: `make chart`.

- values.schema.json: `config`, and the `$defs` that it refers to, are the gateway's own schema (`fairlead
  config-schema`); what is about the chart itself is written there by hand.
- README.md: its table is values.yaml, each value with its default and the comment that stands above or beside it.
- The gateway's fairlead.example.yaml: what stands beside a setting of tenants, backends and the like is its
  description, and one that is missing there is added.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel

from gateway.config.aliases import AliasSection
from gateway.config.marks import FormField, inner_section, marked
from gateway.config.prices import PriceSection
from gateway.config.schema import config_schema
from gateway.config.sections import BackendSection, GroupSection, TenantSection, TierSection

CHART = Path(__file__).parent
EXAMPLE = CHART.parent / "gateway" / "fairlead.example.yaml"
SHOWN: Mapping[str, type[BaseModel]] = {
    "backends": BackendSection,
    "tiers": TierSection,
    "groups": GroupSection,
    "tenants": TenantSection,
    "prices": PriceSection,
    "aliases": AliasSection,
}
BLOCK = re.compile(rf"^#({'|'.join(SHOWN)}):\n((?:#  .*\n)+)", re.MULTILINE)
ROW = re.compile(r"#((?:  )+(?:- )?)(\w+):(.*?)(?: +# .*)?$")
SETTING, INNER = 4, 8  # columns at which a setting of an entry begins, and one in a list of it
BESIDE = 30  # the column behind which a description stands
DEFAULT_CHARS_MAX = 100  # a longer one is to be looked up


def schema(values_schema: str) -> str:
    """The text of values.schema.json with the gateway's part anew."""
    chart, config = json.loads(values_schema), config_schema()
    chart["$defs"] = config.pop("$defs")
    for name in ("$schema", "title"):
        del config[name]
    chart["properties"]["config"] = config
    return json.dumps(chart, indent=2) + "\n"


def readme(values: str, about: str) -> str:
    """The text of README.md for these texts of values.yaml and Chart.yaml."""
    rows = "\n".join(f"| {name} | {default} | {text} |" for name, default, text in _rows(values))
    return f"""# The Helm chart of fairlead

{yaml.safe_load(about)["description"]}. The [tutorial](../docs/tutorials/kubernetes.md) installs it step by step.
[Operations](../docs/operations.md) explains how to use it. [fairlead.example.yaml](../gateway/fairlead.example.yaml)
has every setting of the gateway (`config`).

<!-- not run: needs a cluster -->
```console
$ helm install fairlead helm/ --values my-values.yaml
```

If values contradict each other or are misspelt, `helm install` fails and names them. `make chart` makes this file of
values.yaml.

| value | default | what it is |
|---|---|---|
{rows}
"""


def example(text: str) -> str:
    """The text of the example with the descriptions of the settings beside them, where each is written first."""
    return BLOCK.sub(lambda block: f"#{block[1]}:\n{''.join(_entries(SHOWN[block[1]], block[2]))}", text)


def _entries(section: type[BaseModel], block: str) -> Iterator[str]:
    lines = block.splitlines()
    there = {row[2] for row in map(ROW.match, lines) if row}
    missing = [
        _beside(f"#    {name}: {mark.example}", section.model_fields[name].description)
        for name, mark in marked(section, FormField).items()
        if mark.example and name not in there
    ]
    starts = [number for number, line in enumerate(lines) if re.match(r"#  \S", line)]
    first_ends = starts[1] if len(starts) > 1 else len(lines)
    inner, said = section, set[str]()
    for number, line in enumerate(lines):
        if number == first_ends:
            yield from missing
        row = ROW.match(line)
        if row is None or len(row[1]) not in (SETTING, INNER):
            yield f"{line}\n"
            continue
        field = (section if len(row[1]) == SETTING else inner).model_fields[row[2]]
        inner = inner_section(field.annotation) or inner
        description = None if row[2] in said else field.description
        said.add(row[2])
        yield _beside(f"#{row[1]}{row[2]}:{row[3]}", description)
    if first_ends == len(lines):
        yield from missing


def _beside(setting: str, description: str | None) -> str:
    return f"{setting}\n" if description is None else f"{setting:<{BESIDE}}  # {description}\n"


def _rows(values: str) -> Iterator[tuple[str, str, str]]:
    root = yaml.compose(values)
    assert isinstance(root, yaml.MappingNode), "values are a mapping"
    yield from _rows_of(root, (), values.splitlines())


def _rows_of(node: yaml.MappingNode, path: tuple[str, ...], lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        name = (*path, key.value)
        above, beside = _comments(lines, key.start_mark.line)
        text = " ".join(filter(None, (above, beside))).replace("|", "\\|")
        shown = f"`{'.'.join(name)}`"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            if text:
                yield shown, "", text
            yield from _rows_of(value, name, lines)
        else:
            default = yaml.safe_load(yaml.serialize(value))
            written = json.dumps(default)
            yield shown, f"`{written}`" if len(written) <= DEFAULT_CHARS_MAX else "see values.yaml", text


def _comments(lines: list[str], number: int) -> tuple[str, str]:
    """What is said above this line and beside it. Settings that are commented out are no comments."""
    above: list[str] = []
    for line in reversed(lines[:number]):
        text = line.strip()
        if not text.startswith("# ") or text.startswith("#  "):
            break
        above.insert(0, text.removeprefix("# "))
    return " ".join(above), lines[number].partition(" # ")[2].strip()


if __name__ == "__main__":
    for file, text in (
        (CHART / "values.schema.json", schema((CHART / "values.schema.json").read_text())),
        (EXAMPLE, example(EXAMPLE.read_text())),
        (CHART / "README.md", readme((CHART / "values.yaml").read_text(), (CHART / "Chart.yaml").read_text())),
    ):
        file.write_text(text)
