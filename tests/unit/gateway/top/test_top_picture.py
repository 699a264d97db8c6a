"""Lines of `fairlead top`: of the terminal's size whatever the names are, and no more rows than are seen."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.top import columns
from gateway.top.cells import columns_of, count, fitted, printable, seconds, share
from gateway.top.columns import Column, TopView, columns_of_view, ordered
from gateway.top.controls import BACKSPACE, DOWN, END, ENTER, ESCAPE, PAGE_DOWN, TAB, UP, Controls
from gateway.top.picture import Known, picture
from tests.examples import examples

names = st.text(min_size=1, max_size=40)
numbers = st.none() | st.floats(0, 1e12) | st.integers(0, 10**15)
tenants = st.fixed_dictionaries(
    {},
    optional={
        "tier": names, "weight": numbers, "queued": numbers, "oldest_wait_s": numbers, "refused": numbers,
        "share": st.lists(numbers, max_size=3), "ttft_s": st.none() | st.lists(numbers, max_size=2), "waits": names,
    },
)  # fmt: skip
backends = st.fixed_dictionaries({"available": st.booleans()}, optional={"trouble": names, "tokens_limit": numbers})
pools = st.fixed_dictionaries(
    {"tenants": st.dictionaries(names, tenants, max_size=8), "backends": st.dictionaries(names, backends, max_size=3)},
    optional={"queued": numbers, "refused": st.dictionaries(names, numbers, max_size=2)},
)
documents = st.fixed_dictionaries({}, optional={"pools": st.dictionaries(names, pools, max_size=3)})
keys = st.sampled_from([*"12345srRSwo/pq? abc", TAB, ENTER, ESCAPE, BACKSPACE, UP, DOWN, END, PAGE_DOWN])


def test_the_part_of_a_group_has_views_of_tenants_and_of_the_group_and_asks_for_no_requests():
    rows = {"red/a": {"queued": 2, "share": [0.1, 0.2, 0.3]}}
    group = {"red": {"tier": "gold", "weight": 2, "queued": 2, "share": [0.25, 0.2, 0.3]}}
    document = {"group": "red", "pools": {"p": {"policy": "vtc", "queued": 2, "tenants": rows, "groups": group}}}
    controls, known = Controls(), Known(document)
    shown = texts(picture(known, controls, width=100, height=12))
    assert shown[2].startswith("1 tenants 1  5 groups 1  ")
    assert not any("refused" in line or "tokens/s" in line for line in shown[:3])
    controls.pressed("5")
    assert any(
        line.startswith("red ") and "25.0%" in line for line in texts(picture(known, controls, width=100, height=12))
    )
    for key in "234":
        controls.pressed(key)
        assert "not for the administrator" in "\n".join(texts(picture(known, controls, width=100, height=12)))
        assert controls.requests_wanted(document) is None
    controls.pressed("1")
    picture(known, controls, width=100, height=12)
    controls.pressed(ENTER)
    assert controls.rows.opened == "red/a"
    assert controls.requests_wanted(document) is None, "it would be refused"
    whole = {name: value for name, value in document.items() if name != "group"}
    assert controls.requests_wanted(whole) == {"pool": "p", "tenant": "red/a"}


def test_a_tenants_row_has_its_sessions_and_a_backends_its_working_set():
    session = {
        "id": "5eb1", "state": "held", "since_at": 1000.0, "until_at": 1060.0, "needs_tokens": 12000,
        "context_tokens": 9000, "turns": 3, "pauses": 1, "backend": "gpu",
    }  # fmt: skip
    working_set = {"tokens": 11000, "tokens_max": 14000, "busy_ratio": 0.95, "recomputed_ratio": 0.2}
    pool = {
        "tenants": {"a": {"queued": 1, "session_states": {"held": 1, "idle": 2}, "sessions": [session]}},
        "backends": {"gpu": {"available": True, "working_set": working_set}, "cpu": {"available": True}},
        "sessions": {"holding": True},
    }
    controls, known = Controls(), Known({"at": 1012.0, "pools": {"p": pool}})
    shown = texts(picture(known, controls, width=250, height=30))
    assert "sessions are held" in shown[1]
    assert dict(zip(controls.shown_titles, shown[4].split(), strict=False))["TENANT"] == "a"
    assert "HELD" in controls.shown_titles
    controls.pressed(ENTER)
    shown = texts(picture(known, controls, width=100, height=30))
    assert not any("needs_tokens" in line for line in shown), "they are no field"
    (line,) = [each for each in shown if each.startswith("5eb1")]
    assert line.split() == ["5eb1", "held", "12.0s", "48.0s", "12.0k", "9000", "3", "1", "gpu"]
    controls.pressed("3")
    shown = texts(picture(known, controls, width=250, height=30))
    assert "11.0k/14.0k  95.0%  20.0%" in next(each for each in shown if each.startswith("gpu"))
    assert "-/-" in next(each for each in shown if each.startswith("cpu"))


def of(rows):
    return {"pools": {"p": {"tenants": rows}}}


def test_a_backend_that_is_away_says_since_when_and_why():
    rows = {
        "gone": {"available": False, "unavailable_since": 1_000_003.0, "trouble": "refused to connect"},
        "here": {"available": True, "unavailable_since": None, "trouble": None},
    }
    controls = Controls()
    controls.pressed("3")
    known = Known({"pools": {"p": {"backends": rows}}})
    shown = {line.split(" ")[0]: line.split() for line in texts(picture(known, controls, width=160, height=12))}
    assert shown["gone"][1:3] == ["away", "13:46:43"]
    assert " ".join(shown["gone"]).endswith("refused to connect")
    assert shown["here"][1:3] == ["ready", "-"]


def texts(lines):
    return ["".join(text for text, _ in line) for line in lines]


@settings(max_examples=examples(200), deadline=None)
@given(documents, st.lists(keys, max_size=8), st.integers(0, 200), st.integers(0, 50))
def test_a_picture_has_the_size_of_the_terminal_and_only_printable_text(document, pressed, width, height):
    controls, known = Controls(), Known(document, requests=[{"id": "r", "pool": "p"}], notice="\x1b[2J")
    for key in ("", *pressed):
        controls.pressed(key)
        lines = texts(picture(known, controls, width=width, height=height))
        assert len(lines) <= height
        assert all(columns_of(line) <= max(width, 0) for line in lines)
        assert all(line.isprintable() for line in lines)


@given(st.text(max_size=50), st.integers(0, 30), st.booleans())
def test_a_cell_has_exactly_its_width(text, width, right):
    assert columns_of(fitted(printable(text), width, right=right)) == width


def test_of_a_thousand_rows_only_those_on_the_screen_become_text(monkeypatch):
    made = []

    def counted(window):
        def text(row):
            made.append(row["id"])
            return row["id"]

        return (Column("TENANT", 20, lambda row: row["id"], text, 0), *original(window)[1:])

    original = columns._tenants
    monkeypatch.setitem(columns._COLUMNS, TopView.TENANTS, counted)
    controls = Controls()
    known = Known(of({f"t{number:04}": {"share": [number / 1e6]} for number in range(1000)}))
    picture(known, controls, width=120, height=25)
    assert made == [f"t{number:04}" for number in range(999, 979, -1)], "20 rows below 4 lines, above the keys"
    made.clear()
    controls.pressed(END)
    picture(known, controls, width=120, height=25)
    assert made == [f"t{number:04}" for number in range(19, -1, -1)]


def test_the_chosen_row_is_followed_when_the_order_changes():
    controls = Controls()
    before = of({name: {"share": [value]} for name, value in (("a", 0.5), ("b", 0.3), ("c", 0.2))})
    picture(Known(before), controls, width=80, height=20)
    controls.pressed(DOWN)
    assert controls.rows.selected == "b"
    picture(Known(of({"a": {"share": [0.1]}, "b": {"share": [0.2]}})), controls, width=80, height=20)
    assert controls.rows.selected == "b"
    picture(Known(of({"a": {"share": [0.1]}})), controls, width=80, height=20)
    assert controls.rows.selected == "a", "it is gone, so another one is chosen"


def test_rows_without_a_value_come_last_in_both_directions():
    column = next(each for each in columns_of_view(TopView.TENANTS, 0) if each.title == "WAIT")
    rows = [{"id": "x", "oldest_wait_s": None}, {"id": "y", "oldest_wait_s": 1.0}, {"id": "z", "oldest_wait_s": 2.0}]
    for descending, expected in ((True, "zyx"), (False, "yzx")):
        assert "".join(row["id"] for row in ordered(rows, column, descending=descending)) == expected


def test_a_narrow_terminal_keeps_the_columns_that_say_most():
    known, controls = Known(of({"a": {}})), Controls()
    titles = {}
    for width in (20, 40, 80, 200):
        picture(known, controls, width=width, height=20)
        titles[width] = controls.shown_titles
    assert titles[20] == ["TENANT"]
    assert titles[40] == ["TENANT", "SHARE", "DUE"]
    assert set(titles[40]) < set(titles[80]) < set(titles[200])
    assert len(titles[200]) == len(columns_of_view(TopView.TENANTS, 0))


def test_pools_are_shown_one_at_a_time():
    controls = Controls()
    known = Known({"pools": {"a": {"tenants": {"of-a": {}}}, "b": {"tenants": {"of-b": {}}}}})
    assert "of-a" in "".join(texts(picture(known, controls, width=80, height=20)))
    controls.pressed("o")
    assert "pool b (2 of 2)" in (text := "".join(texts(picture(known, controls, width=80, height=20))))
    assert "of-b" in text
    assert "of-a" not in text


def test_the_queue_says_why_there_are_no_requests():
    controls = Controls(view=TopView.QUEUE)
    for known, said in (
        (Known({}), "asking the gateway"),
        (Known({}, requests=[], requests_error="the gateway answers 404"), "answers 404"),
        (Known({}, requests=[]), "no request waits or runs"),
    ):
        assert said in "".join(texts(picture(known, controls, width=80, height=20)))


def test_a_lost_connection_is_the_first_thing_that_is_read():
    known = dataclasses.replace(Known({}), notice="CONNECTION LOST", is_lost=True)
    assert texts(picture(known, Controls(), width=40, height=20))[0].startswith("CONNECTION LOST")


def test_numbers_are_short_and_have_their_unit():
    assert [count(each) for each in (None, 0, 2.5, 950, 9999, 12_345, 4_500_000, 7e9)] == [
        "-", "0", "2.5", "950", "9999", "12.3k", "4.5M", "7.0G",
    ]  # fmt: skip
    assert [seconds(each) for each in (None, 0.085, 3.21, 245, 7800)] == ["-", "85ms", "3.2s", "4m05s", "2h10m"]
    assert [share(each) for each in (None, 0.1234)] == ["-", "12.3%"]
