"""Tables of usage say what the counters say, to the token and the last decimal, and run nothing in a spreadsheet."""

import asyncio
import csv
import io
from collections import Counter
from decimal import Decimal, localcontext
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import decimal128, parquet

from gateway.budgets.money.focus import COLUMNS, focus_rows
from gateway.budgets.money.pricing import PriceBook
from gateway.budgets.money.sums import UsageDivision, sum_usage, summed_usage
from gateway.budgets.money.tables import WRITERS
from gateway.config.amounts import to_decimal
from gateway.config.prices import PriceSection
from gateway.store.base import Totals, UsageKey, UsageRow
from tests.examples import examples

COSTS = ("ListCost", "ContractedCost", "EffectiveCost", "BilledCost")
DAYS = ("2026-11-19", "2026-11-20", "2026-12-31")
names = st.sampled_from(["alice", "bob", "org/carol"])
models = st.sampled_from(["m", "n", "free"])
counts = st.integers(0, 10**15)
usage_rows = st.lists(
    st.builds(
        UsageRow,
        st.sampled_from(["w1", "w2"]),
        st.builds(UsageKey, st.sampled_from(DAYS), names, st.sampled_from(["", "key-1"]), models),
        st.tuples(counts, counts, counts, counts).map(lambda n: Totals(n[0], n[1] + n[2], n[2], n[3])),
    ),
    max_size=12,
    unique_by=lambda row: (row.writer, row.of),
)  # fmt: skip


def book():
    periods = [
        {"prompt": "0.6", "cached_prompt": "0.000001", "output": "999999999.999999"},
        {"valid_from": "2026-11-20", "prompt": "0.7", "output": 1},
    ]
    made = PriceBook()
    free = [{"prompt": 0, "output": 0}]
    lists = {"m": periods, "free": free}
    made.replace({name: PriceSection(currency="EUR", periods=each) for name, each in lists.items()})
    return made


class Rows:
    """A store of these rows, that gives a few at once."""

    def __init__(self, rows):
        self.rows = sorted(rows, key=place)

    async def usage(self, query):
        return [row for row in self.rows if query.after is None or place(row) > query.after][: query.limit]


def place(row):
    return (*row.of, row.writer)


def parts(rows):
    """The usage of all writers together, part by part."""

    async def read():
        return [part async for part in summed_usage(Rows(rows), first_day="", last_day="")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.store.base.ROWS_AT_ONCE", 3)
        return asyncio.run(read())


def table(rows, kind="csv"):
    """The table of these rows of usage, read again: dictionaries by column."""
    writer = WRITERS[kind](COLUMNS)
    pieces = [writer.write(list(focus_rows(part, book(), lambda tenant: f"of {tenant}"))) for part in parts(rows)]
    data = b"".join([*pieces, writer.close()])
    if kind == "csv":
        return list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    return parquet.read_table(io.BytesIO(data)).to_pylist()


def counters(rows):
    """Tokens and requests by day, tenant, key, model and meter, and the cost of all, of the counters themselves."""
    quantities, cost, prices = Counter(), 0, book()
    for row in rows:
        day, tenant, key, model = row.of
        of, totals = (day, tenant, key, model), row.totals
        quantities[*of, "Prompt tokens"] += totals.prompt_tokens - totals.cached_tokens
        quantities[*of, "Cached prompt tokens"] += totals.cached_tokens
        quantities[*of, "Output tokens"] += totals.output_tokens
        quantities[*of, "Requests"] += totals.requests
        price = prices.prices(model, day)
        if price is not None:
            cost += price.cost(totals.prompt_tokens, totals.cached_tokens, totals.output_tokens)
    return {of: count for of, count in quantities.items() if count}, to_decimal(cost)


@pytest.mark.parametrize("kind", WRITERS)
@given(rows=usage_rows)
@settings(max_examples=examples(20))
@example(
    rows=[
        UsageRow(writer, UsageKey(DAYS[0], name, "", "m"), Totals(1, number, 0, 0))
        for number, (name, writer) in enumerate(product(("alice", "bob", "org/carol"), ("w1", "w2")), start=1)
    ]
)  # those of bob are parted
def test_totals_of_a_table_are_those_of_the_counters(kind, rows):
    read, (quantities, cost) = table(rows, kind), counters(rows)
    found = Counter()
    for row in read:
        day = str(row["ChargePeriodStart"])[:10]
        found[day, row["SubAccountId"], row["ResourceId"] or "", row["SkuId"], row["SkuMeter"]] += int(
            row["ConsumedQuantity"]
        )
        assert row["x_Group"] == f"of {row['SubAccountId']}"
        assert str(row["x_HasPrice"]).lower() == str(row["SkuId"] != "n").lower()
    assert found == quantities
    assert len(read) == len(quantities), "one row a meter"
    with localcontext(prec=100):  # more digits than a sum has: nothing is rounded
        for name in COSTS:
            assert sum(Decimal(row[name]) for row in read) == cost


def test_sums_of_equal_cost_have_the_one_with_more_tokens_first():
    async def one_part():
        yield [(UsageKey("2026-12-31", name, "", "n"), Totals(1, *tokens)) for name, tokens in used.items()]

    used = {"few": (7, 0, 0), "most": (5, 0, 5), "more": (8, 0, 0)}
    sums = asyncio.run(sum_usage(one_part(), UsageDivision("tenant", None), book(), lambda _tenant: ""))
    assert [key.tenant for key, _ in sums] == ["most", "more", "few"]


def one(**fields):
    of = UsageKey(**{"day": "2026-12-31", "tenant": "alice", "key": "key-1", "model": "m", **fields})
    return [UsageRow("w", of, Totals(1, 10, 4, 2))]


def test_a_row_of_csv_has_the_columns_of_focus():
    first, cached, _, requests = table(one())
    assert list(first) == list(COLUMNS)
    assert first == {
        "BillingPeriodStart": "2026-12-01T00:00:00Z", "BillingPeriodEnd": "2027-01-01T00:00:00Z",
        "ChargePeriodStart": "2026-12-31T00:00:00Z", "ChargePeriodEnd": "2027-01-01T00:00:00Z",
        "ChargeCategory": "Usage", "ServiceCategory": "AI and Machine Learning", "ServiceName": "fairlead",
        "x_Group": "of alice", "SubAccountId": "alice", "SubAccountType": "Tenant", "ResourceId": "key-1",
        "ResourceType": "API key", "SkuId": "m", "SkuMeter": "Prompt tokens", "ConsumedQuantity": "6",
        "ConsumedUnit": "Tokens", "PricingUnit": "1000000 Tokens", "ListUnitPrice": "0.70",
        **dict.fromkeys(COSTS, "0.0000042"), "BillingCurrency": "EUR", "x_HasPrice": "true",
    }  # fmt: skip
    assert (cached["SkuMeter"], cached["ConsumedQuantity"]) == ("Cached prompt tokens", "4")
    assert (requests["ConsumedUnit"], requests["BilledCost"], requests["PricingUnit"]) == ("Requests", "0.00", "")


def test_a_model_without_a_price_has_its_tokens_and_no_cost():
    row = table(one(model="n"))[0]
    assert (row["x_HasPrice"], row["BilledCost"], row["ListUnitPrice"]) == ("false", "0.00", "")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_table_without_usage_has_its_columns(kind):
    writer = WRITERS[kind](COLUMNS)
    data = writer.close()
    if kind == "csv":
        assert data.decode().strip() == ",".join(COLUMNS)
    else:
        schema = parquet.read_schema(io.BytesIO(data))
        assert schema.names == list(COLUMNS)
        assert schema.field("BilledCost").type == decimal128(38, 12), "files of other days are read together with it"


@pytest.mark.parametrize("model", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\ttab", "\rreturn"])
def test_a_name_that_a_spreadsheet_would_run_is_text_in_csv_and_itself_in_parquet(model):
    assert table(one(model=model))[0]["SkuId"] == f"'{model}"
    assert table(one(model=model), "parquet")[0]["SkuId"] == model


def test_quotes_commas_and_line_ends_stay_in_their_cell():
    model = 'a,"b"\r\nc;=d'
    assert table(one(model=model))[0]["SkuId"] == model
