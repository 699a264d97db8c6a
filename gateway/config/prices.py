"""Price lists: the cost of a model's tokens in a currency, from a first day on. Price lists are about money only.

The price that orders requests is a different one: `scheduling.price`, in service units (docs/fairness.md).
"""

from datetime import date
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.config.amounts import Amount
from gateway.config.marks import FormField
from gateway.config.sections import Section
from gateway.config.value_types import outside_schema

PERIODS_MAX = 100

# ISO 4217, the currencies in use (list one), without funds, metals and codes for tests.
_CURRENCIES = """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CLP CNY COP
    CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR
    IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU
    MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG
    SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND VUV
    WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG
"""
CURRENCIES = frozenset(_CURRENCIES.split())


def _currency(value: str) -> str:
    if value not in CURRENCIES:
        raise outside_schema("must be a currency code of ISO 4217, like EUR or USD")
    return value


Currency = Annotated[str, AfterValidator(_currency), Field(json_schema_extra={"enum": sorted(CURRENCIES)})]


class PricePeriod(Section):
    """The prices of a model per million tokens, from `valid_from` until a later period begins."""

    valid_from: Annotated[
        date | None, Field(description="the day in UTC from which on they hold; default: always"), FormField("From")
    ] = None
    prompt: Annotated[Amount, Field(description="of prompt tokens"), FormField("Prompt", example="0.10")]
    cached_prompt: Annotated[
        Amount | None,
        Field(description="of prompt tokens that the backend had cached; default: as prompt"),
        FormField("Cached prompt"),
    ] = None
    output: Annotated[Amount, Field(description="of output tokens"), FormField("Output", example="0.40")]


class PriceSection(Section):
    """The price list of one model."""

    currency: Annotated[Currency, Field(description="of all price lists; ISO 4217"), FormField("Currency")]
    periods: Annotated[
        tuple[PricePeriod, ...],
        Field(
            min_length=1,
            max_length=PERIODS_MAX,
            description="prices per million tokens, at most 6 decimals; no two periods begin on one day",
        ),
    ]

    @model_validator(mode="after")
    def _has_an_order(self) -> Self:
        days = [each.valid_from for each in self.periods]
        if len(set(days)) < len(days):
            raise ValueError("two periods begin on one day (valid_from)")
        return self
