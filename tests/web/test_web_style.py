"""The stylesheet has one scale of type, space, colour and corners: the variables at its head, and no other value."""

import re

import pytest
from web_rig import ROOT

STYLE = (ROOT / "gateway/web/static/app.css").read_text()
HEAD, _, RULES = re.sub(r"/\*.*?\*/", "", STYLE, flags=re.DOTALL).partition("}")
DECLARED = re.findall(r"([a-z-]+):\s*([^;{}]+);", RULES)
SPACE = r"(0|auto|1px|-1px|-999rem|12vh|24px|var\(--space-\d\))"  # pixels: hairlines, and the least size of a target
SCALES = {
    r"font-size": r"var\(--(fine|small|normal|large)\)",
    r"(margin|padding|gap)(-.+)?": rf"{SPACE}( {SPACE})*",
    r"border-radius": r"var\(--round(-bar|-pill)?\)",
}


@pytest.mark.parametrize("prop", SCALES)
def test_type_space_and_corners_are_of_the_scale(prop):
    found = [(name, value) for name, value in DECLARED if re.fullmatch(prop, name)]
    assert found
    assert [each for each in found if not re.fullmatch(SCALES[prop], each[1])] == []


def test_colours_are_those_of_the_head():
    assert re.findall(r"#[0-9a-f]{3,8}\b|rgb\(|hsl\(|light-dark\(", RULES) == []


def test_every_variable_is_used_and_every_used_one_is_there():
    named = set(re.findall(r"(--[a-z0-9-]+):", HEAD))
    assert named == set(re.findall(r"var\((--[a-z0-9-]+)\)", STYLE))


def test_columns_of_numbers_are_aligned_to_the_right():
    assert re.search(r"\.number \{ text-align: right; \}", RULES)
    assert re.findall(r"[^}]*\.number[^{]*\{[^}]*text-align: left", RULES) == []
