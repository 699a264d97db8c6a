"""The terminal of `fairlead top`: draws pictures by curses, and reads keys.

One thread sleeps until a key, a new document or a change of size; while the connection is lost, it wakes once a second
for the notice. However the command ends (q, Ctrl-C, SIGTERM, an error), the terminal is restored.
"""

import contextlib
import curses
import dataclasses
import locale
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FrameType

from gateway.admin.command.client import AdminClient
from gateway.top import controls as keys
from gateway.top.controls import Controls
from gateway.top.feed import LiveFeed
from gateway.top.picture import Known, Line, Look, picture

NOTICE_MS = 1000  # between pictures while there is a notice that counts seconds
ESCAPE_MS = 25  # after which an escape byte is the Esc key; the bytes of a function key come together
ENDED_BY_SIGNAL = 128  # plus the signal's number, the shell's convention for exit codes
_CURSES_KEYS: Mapping[int, str] = {
    curses.KEY_UP: keys.UP,
    curses.KEY_DOWN: keys.DOWN,
    curses.KEY_PPAGE: keys.PAGE_UP,
    curses.KEY_NPAGE: keys.PAGE_DOWN,
    curses.KEY_HOME: keys.HOME,
    curses.KEY_END: keys.END,
    curses.KEY_ENTER: keys.ENTER,
    curses.KEY_BACKSPACE: keys.BACKSPACE,
}
_CHARACTERS: Mapping[str, str] = {
    "\n": keys.ENTER,
    "\r": keys.ENTER,
    "\x1b": keys.ESCAPE,
    "\t": keys.TAB,
    "\x7f": keys.BACKSPACE,
    "\b": keys.BACKSPACE,
}


class TerminalError(Exception):
    """An error: the program's input or output is not a terminal, or the terminal cannot be used."""


def watch(connect: Callable[[], AdminClient]) -> None:
    """Show the state of the gateway that `connect` reaches, until the operator quits. Raises UnreachableError,
    TerminalError and KeyboardInterrupt.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise TerminalError("there is no terminal here; for scripts: fairlead top --once --json")
    wake, waking = _pipe()
    feed = LiveFeed(connect, partial(_write, waking))
    feed.start()  # before the screen is taken: an error of the first connection is a line of text
    with _screen() as (screen, looks), _woken(waking):
        news = select.poll()
        news.register(wake, select.POLLIN)
        news.register(sys.stdin, select.POLLIN)
        choices, known = Controls(), feed.known()
        while not choices.is_over:
            known = _held(known, feed.known()) if choices.is_paused else feed.known()
            height, width = screen.getmaxyx()
            _draw(screen, picture(known, choices, width=width, height=height), looks)
            if feed.want_requests(choices.requests_wanted(known.document)):
                known = dataclasses.replace(known, requests=None)
            for _, happened in news.poll(NOTICE_MS if known.notice else None):
                choices.is_over |= bool(happened & ~select.POLLIN)  # the terminal is gone
            _empty(wake)
            for key in _pressed(screen):
                choices.pressed(key)
                picture(known, choices, width=width, height=height)  # the next key may be about what this one shows


def _held(before: Known, now: Known) -> Known:
    """The state to show in a pause: the data from its beginning, with the present connection."""
    requests = now.requests if before.requests is None else before.requests
    return dataclasses.replace(now, document=before.document, requests=requests)


def _empty(wake: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(wake, 4096):
            pass


@contextlib.contextmanager
def _screen() -> Iterator[tuple["curses.window", Mapping[Look, int]]]:
    """A screen of its own, with the attributes of each look; the terminal is restored afterwards."""
    locale.setlocale(locale.LC_ALL, "")  # curses writes in its encoding
    try:
        curses.setupterm()
    except curses.error as error:
        raise TerminalError(f"the terminal '{os.environ.get('TERM', '')}' is not known: {error}") from error
    if not curses.tigetstr("cup"):
        raise TerminalError(f"the terminal '{os.environ.get('TERM', '')}' has no cursor that can be placed")
    screen = curses.initscr()
    try:
        curses.noecho()
        curses.cbreak()
        curses.set_escdelay(ESCAPE_MS)
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        screen.keypad(True)
        screen.nodelay(True)
        yield screen, _looks()
    finally:
        curses.endwin()


def _looks() -> Mapping[Look, int]:
    looks = {
        Look.PLAIN: curses.A_NORMAL,
        Look.BOLD: curses.A_BOLD,
        Look.CHOSEN: curses.A_REVERSE,
        Look.WARNING: curses.A_BOLD,
        Look.BAD: curses.A_BOLD | curses.A_REVERSE,
    }
    if os.environ.get("NO_COLOR") or curses.tigetnum("colors") < 8:
        return looks
    curses.start_color()
    curses.use_default_colors()
    for number, look, colour in ((1, Look.WARNING, curses.COLOR_YELLOW), (2, Look.BAD, curses.COLOR_RED)):
        curses.init_pair(number, colour, -1)
        looks[look] = curses.color_pair(number) | curses.A_BOLD
    return looks


@contextlib.contextmanager
def _woken(waking: int) -> Iterator[None]:
    """A block in which signals write to this descriptor, too. SIGTERM and SIGHUP end the program."""
    before = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    handlers = {
        each: signal.signal(each, handler)
        for each, handler in ((signal.SIGWINCH, _resized), (signal.SIGTERM, _ended), (signal.SIGHUP, _ended))
    }
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for each, handler in handlers.items():
            signal.signal(each, handler)


def _pipe() -> tuple[int, int]:
    """A descriptor that becomes readable when something was written to the other one. Neither blocks."""
    wake, waking = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waking, False)
    return wake, waking


def _write(waking: int) -> None:
    with contextlib.suppress(BlockingIOError):  # it is full, so the reader wakes anyway
        os.write(waking, b"\0")


def _resized(_signal: int, _frame: FrameType | None) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    curses.resizeterm(max(1, size.lines), max(1, size.columns))


def _ended(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(ENDED_BY_SIGNAL + number)


def _pressed(screen: "curses.window") -> Iterator[str]:
    """Yield the keys that have been pressed since the last call, with the names of Controls."""
    while True:
        try:
            key = screen.get_wch()
        except curses.error:  # no more of them
            return
        name = _CURSES_KEYS.get(key) if isinstance(key, int) else _CHARACTERS.get(key, key)
        if name is not None:
            yield name


def _draw(screen: "curses.window", lines: list[Line], looks: Mapping[Look, int]) -> None:
    screen.erase()
    for y, line in enumerate(lines):
        with contextlib.suppress(curses.error):  # the last column of the last line, after which no cursor can stand
            screen.move(y, 0)
            for text, look in line:
                screen.addstr(text, looks[look])
    screen.refresh()
