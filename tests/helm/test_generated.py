"""What of the chart is made from something else is what `make chart` makes of it now."""

import json
import re
import runpy

import yaml
from renderings import CHART, render

from gateway.config.schema import config_schema

generate = runpy.run_path(str(CHART / "generate.py"))
VALUES = (CHART / "values.yaml").read_text()


def test_the_schema_of_config_is_that_of_the_gateway():
    text = (CHART / "values.schema.json").read_text()
    assert generate["schema"](text) == text, "make chart"
    schema, own = json.loads(text), config_schema()
    assert schema["properties"]["config"]["properties"] == own["properties"]
    assert schema["$defs"] == own["$defs"]


def test_the_example_says_of_every_setting_what_its_section_says():
    text = (CHART.parent / "gateway" / "fairlead.example.yaml").read_text()
    assert generate["example"](text) == text, "make chart"
    poorer = re.sub(r"^#    tokens_per_day_max: .*\n", "", text, flags=re.MULTILINE)
    assert generate["example"](poorer).count("tokens_per_day_max: 5000000") == 2, "of groups and of tenants"


def test_the_readme_is_made_of_the_values():
    about = (CHART / "Chart.yaml").read_text()
    assert (CHART / "README.md").read_text() == generate["readme"](VALUES, about), "make chart"


def test_the_readme_has_every_value_once_with_its_default_and_what_is_said_of_it():
    values = """
# Said
# above.
one:
  #two: 3
  #  - no comment
  four: "5"      # beside | it
  six: {seven: 8}
# A title of several settings

nine: []
"""
    table = generate["readme"](values, "description: d").partition("|---|---|---|\n")[2]
    assert table.splitlines() == [
        "| `one` |  | Said above. |",
        '| `one.four` | `"5"` | beside \\| it |',
        '| `one.six` | `{"seven": 8}` |  |',
        "| `nine` | `[]` |  |",
    ]


def test_every_value_is_in_the_schema_and_the_other_way_round():
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    values = yaml.safe_load(VALUES)
    assert schema.keys() == values.keys()
    for name, section in values.items():
        if name != "config" and schema[name].get("additionalProperties") is False and section:
            assert schema[name]["properties"].keys() == section.keys(), name


def test_the_chart_takes_the_values_of_the_tutorial():
    page = (CHART.parent / "docs/tutorials/kubernetes.md").read_text()
    values = yaml.safe_load(page.partition("# my-values.yaml\n")[2].partition("```")[0])
    config = yaml.safe_load(render(values)["ConfigMap", "release-fairlead"]["data"]["fairlead.yaml"])
    assert config["tenants"].keys() == {"chat", "nightly"}
