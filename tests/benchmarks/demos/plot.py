"""Two panels as SVG, without a plotting library: service difference over time, and waiting by tenant.

Left: what tenants are owed in each window (lower is fairer). Right: mean time to first token of every
tenant, from the one with the most requests to the one with the fewest, on a logarithmic scale.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10

WIDTH, HEIGHT = 960, 400
PANEL_WIDTH, PANEL_HEIGHT, TOP = 390, 270, 70
LEFTS = (70, 550)
COLOURS = {"fifo": "#c8553d", "vtc": "#2a6f97"}
STYLE = "font-family='Helvetica, Arial, sans-serif' font-size='12' fill='#222'"


def svg(
    *,
    title: str,
    gap_times_s: Sequence[float],
    gaps: Mapping[str, Sequence[float]],
    ttft_s: Mapping[str, Sequence[float]],
) -> str:
    """Draw the figure. `gaps` and `ttft_s` map a policy to a value per window, and per tenant by rank."""
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {STYLE}>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#fff'/>",
        _text(WIDTH / 2, 24, title, anchor="middle", size=15),
        *_gap_panel(gap_times_s, gaps),
        *_ttft_panel(ttft_s),
        *_legend(list(gaps)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _gap_panel(times_s, gaps):
    left, top_value = LEFTS[0], _round_up(max(max(values) for values in gaps.values()))
    last_s = max(times_s)

    def place(time_s, value):
        return left + PANEL_WIDTH * time_s / last_s, TOP + PANEL_HEIGHT * (1 - value / top_value)

    yield from _frame(left, "Service difference (weighted tokens/s)", "time in the replay (s)")
    for number in range(5):
        value = top_value * number / 4
        yield from _y_tick(left, place(0, value)[1], f"{value:,.0f}")
        yield _text(place(last_s * number / 4, 0)[0], TOP + PANEL_HEIGHT + 18, f"{last_s * number / 4:.0f}", "middle")
    for policy, values in gaps.items():
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(t, v) for t, v in zip(times_s, values, strict=True)))
        yield f"<polyline points='{points}' fill='none' stroke='{COLOURS[policy]}' stroke-width='2.5'/>"


def _ttft_panel(ttft_s):
    left = LEFTS[1]
    every = [value for values in ttft_s.values() for value in values]
    low, high = floor(log10(min(every))), ceil(log10(max(every)))
    tenants = len(next(iter(ttft_s.values())))

    def place(rank, value):
        share = (log10(value) - low) / (high - low)
        return left + PANEL_WIDTH * (rank - 0.5) / tenants, TOP + PANEL_HEIGHT * (1 - share)

    yield from _frame(left, "Mean time to first token (s, log scale)", "tenant, by number of requests")
    for power in range(low, high + 1):
        yield from _y_tick(left, place(1, 10.0**power)[1], f"{10.0**power:g}")
    for rank in (1, 2, *range(5, tenants + 1, 4)):
        yield _text(place(rank, 10.0**low)[0], TOP + PANEL_HEIGHT + 18, str(rank), "middle")
    for policy, values in ttft_s.items():
        for rank, value in enumerate(values, start=1):
            x, y = place(rank, value)
            yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{COLOURS[policy]}' fill-opacity='0.85'/>"


def _frame(left, title, below):
    yield _text(left, TOP - 12, title)
    yield (
        f"<rect x='{left}' y='{TOP}' width='{PANEL_WIDTH}' height='{PANEL_HEIGHT}' fill='none' stroke='#999'"
        " stroke-width='1'/>"
    )
    yield _text(left + PANEL_WIDTH / 2, TOP + PANEL_HEIGHT + 38, below, "middle")


def _y_tick(left, y, label):
    yield f"<line x1='{left}' x2='{left + PANEL_WIDTH}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>"
    yield _text(left - 8, y + 4, label, "end")


def _legend(policies):
    for number, policy in enumerate(policies):
        x = LEFTS[0] + PANEL_WIDTH - 130 + 75 * number
        yield f"<circle cx='{x}' cy='{TOP - 16}' r='5' fill='{COLOURS[policy]}'/>"
        yield _text(x + 10, TOP - 12, policy.upper())


def _text(x, y, content, anchor="start", size=12):
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}'>{content}</text>"


def _round_up(value):
    unit = 10 ** floor(log10(value))
    return unit * ceil(value / unit * 2) / 2
