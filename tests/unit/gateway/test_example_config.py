"""The shipped example is valid, tells the truth about defaults, and leaves no setting out."""

import re
import typing
from importlib import resources
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from gateway.config import Config, load_config
from gateway.config.scheduling import NAMES, PARAMETERS, PolicySettings, PoolSettings, Scheduling

TEXT = resources.files("gateway").joinpath("fairlead.example.yaml").read_text(encoding="utf-8")
SETTINGS = Path(__file__).parents[3] / "docs/scheduling.md"
# "#" and a key, at once or indented, is a setting that is off; "#", one space and a text is prose.
SWITCHED_OFF = re.compile(r"^( *)#(?=\w+:| {2,}(?:- )?\w+:)", re.MULTILINE)


def paths_of_model(model: type[BaseModel], path: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        at = f"{path}{name}"
        inner = (
            _models(field.annotation) if model is not PoolSettings else None
        )  # what is in there stands above already
        found |= paths_of_model(inner, f"{at}.") if inner else {at}
    return found


def _models(annotation: typing.Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if issubclass(annotation, PolicySettings) else annotation
    return next((model for kind in typing.get_args(annotation) if (model := _models(kind)) is not None), None)


def paths_of_data(data: typing.Any, model: type[BaseModel], path: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in data.items():
        at = f"{path}{name}"
        inner = _models(model.model_fields[name].annotation) if model is not PoolSettings else None
        if inner is None:
            found.add(at)
        elif isinstance(value, list):
            found |= {deep for item in value for deep in paths_of_data(item, inner, f"{at}.")}
        elif name in ("tiers", "groups", "tenants", "prices", "aliases", "pools"):
            found |= {deep for item in value.values() for deep in paths_of_data(item, inner, f"{at}.")}
        else:
            found |= paths_of_data(value, inner, f"{at}.")
    return found


def all_switched_on() -> str:
    return SWITCHED_OFF.sub(r"\1", TEXT)


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_the_example_is_valid_and_says_what_holds_without_it(tmp_path):
    path = tmp_path / "example.yaml"
    path.write_text(TEXT)
    assert load_config(path) == Config().placed_in(tmp_path)


def test_the_example_with_everything_switched_on_is_valid(tmp_path, monkeypatch):
    path = tmp_path / "example.yaml"
    path.write_text(all_switched_on())
    monkeypatch.setenv("FAIRLEAD_AUTH__MODE", "keys")
    config = load_config(path, check_files=False)
    assert (len(config.backends), set(config.tenants), set(config.tiers)) == (
        3,
        {"alice", "bob", "carol"},
        {"interactive", "batch"},
    )


def test_the_example_shows_every_setting():
    assert paths_of_data(yaml.safe_load(all_switched_on()), Config) == paths_of_model(Config)


def test_the_example_writes_out_every_default_that_there_is():
    written = paths_of_data(yaml.safe_load(TEXT), Config)
    config = Config()
    for path in paths_of_model(Config) - written:
        value: typing.Any = config
        for name in path.split("."):
            value = getattr(value, name, None)
        assert value is None, f"{path} has a default, which the example should show"


def shown_policies() -> dict[str, dict[str, dict[str, float]]]:
    """What the example says there is: by kind and name, the parameters."""
    shown: dict[str, dict[str, dict[str, float]]] = {}
    for line in TEXT.splitlines():
        if kind := re.match(r"# (\w+) \(", line):
            shown[kind[1]] = {}
        elif shown and (entry := re.match(r"# - ([\w-]+)( {.*})?: \w", line)):
            next(reversed(shown.values()))[entry[1]] = yaml.safe_load(entry[2] or "{}")
    return shown


def test_the_example_shows_every_policy_and_its_parameters_with_their_defaults():
    assert shown_policies() == {
        kind: {name: PARAMETERS[kind].get(name, PolicySettings)(policy=name).parameters() for name in names}
        for kind, names in NAMES.items()
    }


def test_the_documentation_names_every_policy_with_its_parameters():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", SETTINGS.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {
        kind: {
            name: re.findall(r"`(\w+)`", parameters)
            for name, parameters in re.findall(r"`([\w-]+)`(?: \(([^)]+)\))?", cell)
        }
        for kind, cell in rows
    }
    assert {kind: documented[kind] for kind in NAMES} == {
        kind: {name: list(PARAMETERS[kind].get(name, PolicySettings)(policy=name).parameters()) for name in names}
        for kind, names in NAMES.items()
    }
    assert Scheduling.model_fields.keys() <= documented.keys()
