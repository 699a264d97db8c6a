"""Price lists: what a model's tokens cost, in a currency, from which day on. They are about money alone.

The price that orders requests is another one: `scheduling.price`, in service units (docs/fairness.md).
"""

from datetime import date
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.config.amounts import Amount
from gateway.config.sections import Section

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
        raise ValueError("must be a currency code of ISO 4217, like EUR or USD")
    return value


Currency = Annotated[str, AfterValidator(_currency), Field(json_schema_extra={"enum": sorted(CURRENCIES)})]


class PricePeriod(Section):
    """Prices per million tokens, from the day `valid_from` on (UTC; None: always) until a later period begins.
    `cached_prompt` is for the prompt tokens that the backend had in its cache; None: the price of `prompt`.
    """

    valid_from: date | None = None
    prompt: Amount
    cached_prompt: Amount | None = None
    output: Amount


class PriceSection(Section):
    """The price list of one model. All price lists have one currency."""

    currency: Currency
    periods: Annotated[tuple[PricePeriod, ...], Field(min_length=1, max_length=PERIODS_MAX)]

    @model_validator(mode="after")
    def _has_an_order(self) -> Self:
        days = [each.valid_from for each in self.periods]
        if len(set(days)) < len(days):
            raise ValueError("two periods begin on one day (valid_from)")
        return self
