"""Controls: an operator's choices by keys in `fairlead top`: a view, an order, a filter, a row, a pause."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.top.columns import SORTED_FIRST, WINDOWS, Column, LiveRow, TopView, columns_of_view, is_of_group

FILTER_CHARS_MAX = 100
MOVE_MAX = 1 << 40  # rows: beyond any list
ENTER, ESCAPE, BACKSPACE, TAB = "enter", "escape", "backspace", "tab"
UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
HELP = (
    ("1 2 3 4 5, Tab", "tenants, tiers, backends, queue, groups"),
    ("up down, PgUp PgDn, Home End", "choose a row (also k j)"),
    ("Enter", "all fields of the row; of a tenant also its sessions and requests. Esc leads back"),
    ("s S", "sort by the next or the previous column that is shown"),
    ("r", "reverse the order"),
    ("/", "filter: rows that contain a text. Enter keeps it, Esc removes it"),
    ("w", "shares of the last 10 s, 1 min or 15 min"),
    ("o", "the next pool"),
    ("p, space", "pause: the screen stands still, the connection goes on"),
    ("q, Ctrl-C", "quit"),
)


@dataclass
class Ordering:
    """The order of a view's rows: the column by which it is sorted, and whether it is descending."""

    title: str
    descending: bool


@dataclass
class ShownRows:
    """The rows on the screen of `fairlead top`. `selected` is the id of the chosen row, which stays chosen when the
    order changes. `opened` is the id of the row whose fields are shown; None: the table is shown.
    """

    selected: str | None = None
    opened: str | None = None
    first: int = 0  # on the screen
    ids: Sequence[str] = ()  # of the picture before, in its order
    page: int = 1  # rows

    def settle(self, rows: Sequence[LiveRow], height: int) -> Sequence[LiveRow]:
        """Scroll to the chosen row, or choose another if it is gone; return the rows that are on the screen."""
        ids = [str(row.get("id", "")) for row in rows]
        at = ids.index(self.selected) if self.selected in ids else min(self._position(), max(0, len(ids) - 1))
        self.selected = ids[at] if ids else None
        self.ids, self.page = ids, max(1, height)
        self.first = max(min(self.first, at, len(ids) - height), at - height + 1, 0)
        return rows[self.first : self.first + height]

    def _position(self) -> int:
        return self.ids.index(self.selected) if self.selected in self.ids else 0

    def move(self, rows: int) -> None:
        """Choose the row that is `rows` rows below; if the fields of one row are shown, scroll instead."""
        if self.opened is not None:
            self.first = max(0, self.first + rows)
        elif self.ids:
            self.selected = self.ids[min(max(0, self._position() + rows), len(self.ids) - 1)]

    def open(self) -> None:
        """Show the fields of the chosen row."""
        if self.opened is None and self.selected is not None:
            self.opened, self.first = self.selected, 0

    def close(self) -> bool:
        """Go back from the fields of a row; returns whether they were shown."""
        was_open = self.opened is not None
        if was_open:
            self.opened, self.first = None, 0
        return was_open


@dataclass
class Controls:
    """The operator's choices in `fairlead top`: the view, its order and the shown rows."""

    view: TopView = TopView.TENANTS
    orderings: dict[TopView, Ordering] = field(
        default_factory=lambda: {view: Ordering(title, descending=True) for view, title in SORTED_FIRST.items()}
    )
    window: int = 0
    pool_index: int = 0
    needle: str = ""
    is_typing: bool = False
    is_paused: bool = False
    is_help: bool = False
    is_over: bool = False
    rows: ShownRows = field(default_factory=ShownRows)
    shown_titles: Sequence[str] = ()

    def pressed(self, key: str) -> None:
        """Handle a key: a character, or the name of a special key."""
        if self.is_typing:
            self._typed(key)
        elif self.is_help:
            self.is_help = False
            self.is_over = key == "q"
        elif action := _ACTIONS.get(key):
            action(self)

    def ordering(self) -> tuple[Column, bool]:
        """The column that the present view is sorted by, and whether it is descending."""
        chosen = self.orderings[self.view]
        columns = columns_of_view(self.view, self.window)
        return next(column for column in columns if column.title == chosen.title), chosen.descending

    def pool_of(self, document: Mapping[str, Any]) -> str:
        """The name of the chosen pool; "" where there is none."""
        pools = sorted(document.get("pools", {}))
        return pools[self.pool_index % len(pools)] if pools else ""

    def requests_wanted(self, document: Mapping[str, Any]) -> Mapping[str, str] | None:
        """The query for the requests that the present view shows; None where it shows none."""
        pool = self.pool_of(document)
        if is_of_group(document):
            return None
        if self.view is TopView.QUEUE:
            return {"pool": pool}
        opened = self.rows.opened
        return {"pool": pool, "tenant": opened} if self.view is TopView.TENANTS and opened else None

    def _typed(self, key: str) -> None:
        if key == ENTER:
            self.is_typing = False
        elif key == ESCAPE:
            self.is_typing, self.needle = False, ""
        elif key == BACKSPACE:
            self.needle = self.needle[:-1]
        elif len(key) == 1 and key.isprintable() and len(self.needle) < FILTER_CHARS_MAX:
            self.needle += key

    def show(self, view: TopView) -> None:
        if view is not self.view:
            self.view, self.rows.selected, self.rows.first = view, None, 0
        self.rows.opened = None

    def next_view(self) -> None:
        views = list(TopView)
        self.show(views[(views.index(self.view) + 1) % len(views)])

    def next_pool(self) -> None:
        self.pool_index += 1
        self.rows.opened = None

    def next_window(self) -> None:
        self.window = (self.window + 1) % len(WINDOWS)

    def sort_by(self, step: int) -> None:
        """Sort by the column on the screen that is `step` columns to the right."""
        titles = list(self.shown_titles)
        if not titles or self.rows.opened is not None:
            return
        present = self.orderings[self.view].title
        at = (titles.index(present) + step) % len(titles) if present in titles else 0
        columns = columns_of_view(self.view, self.window)
        chosen = next(column for column in columns if column.title == titles[at])
        self.orderings[self.view] = Ordering(chosen.title, descending=not chosen.is_ascending)

    def reverse(self) -> None:
        self.orderings[self.view].descending ^= True

    def leave(self) -> None:
        """Go back from the fields of a row; otherwise, remove the filter."""
        if not self.rows.close():
            self.needle = ""

    def toggle(self, name: str) -> None:
        setattr(self, name, not getattr(self, name))


_ACTIONS: Mapping[str, Callable[[Controls], None]] = {
    "1": lambda controls: controls.show(TopView.TENANTS),
    "2": lambda controls: controls.show(TopView.TIERS),
    "3": lambda controls: controls.show(TopView.BACKENDS),
    "4": lambda controls: controls.show(TopView.QUEUE),
    "5": lambda controls: controls.show(TopView.GROUPS),
    TAB: Controls.next_view,
    UP: lambda controls: controls.rows.move(-1),
    "k": lambda controls: controls.rows.move(-1),
    DOWN: lambda controls: controls.rows.move(1),
    "j": lambda controls: controls.rows.move(1),
    PAGE_UP: lambda controls: controls.rows.move(-controls.rows.page),
    PAGE_DOWN: lambda controls: controls.rows.move(controls.rows.page),
    HOME: lambda controls: controls.rows.move(-MOVE_MAX),
    END: lambda controls: controls.rows.move(MOVE_MAX),
    ENTER: lambda controls: controls.rows.open(),
    ESCAPE: Controls.leave,
    "s": lambda controls: controls.sort_by(1),
    "S": lambda controls: controls.sort_by(-1),
    "r": Controls.reverse,
    "/": lambda controls: controls.toggle("is_typing"),
    "w": Controls.next_window,
    "o": Controls.next_pool,
    "p": lambda controls: controls.toggle("is_paused"),
    " ": lambda controls: controls.toggle("is_paused"),
    "?": lambda controls: controls.toggle("is_help"),
    "q": lambda controls: controls.toggle("is_over"),
}
