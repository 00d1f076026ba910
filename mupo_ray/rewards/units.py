"""Known units and currencies behind a figure, in one spelling each."""

from __future__ import annotations

import re

from mupo_ray.rewards.notation import has_no_variable

_UNITS = {
    spelling: unit
    for unit, spellings in {
        "mm": "millimeter millimeters millimetre millimetres",
        "cm": "centimeter centimeters centimetre centimetres",
        "dm": "decimeter decimeters",
        "m": "meter meters metre metres",
        "km": "kilometer kilometers kilometre kilometres",
        "in": "inch inches",
        "ft": "foot feet",
        "yd": "yard yards",
        "mi": "mile miles",
        "mg": "milligram milligrams",
        "g": "gram grams",
        "kg": "kilogram kilograms",
        "lb": "lbs pound pounds",
        "oz": "ounce ounces",
        "ms": "millisecond milliseconds",
        "s": "sec second seconds",
        "min": "mins minute minutes",
        "h": "hr hrs hour hours",
        "day": "days",
        "week": "weeks",
        "month": "months",
        "year": "years",
        "mL": "ml milliliter milliliters",
        "L": "liter liters litre litres",
        "mph": "",
        "m/s": "",
        "km/h": "",
        "N": "newton newtons",
        "J": "joule joules",
        "W": "watt watts",
        "V": "volt volts",
        "A": "ampere amperes",
        "Hz": "hertz",
        "Pa": "pascal pascals",
        "kPa": "",
        "unit": "units",
        "square unit": "units^2 unit^2",
        "degree": r"degrees ^\circ",
        "C": r"^\circC",
        "F": r"^\circF",
        "$": "dollar dollars usd",
        "cent": "cents",
        "\u20ac": "euro euros",
        "\u00a3": "",
        "\u00a5": "yuan yen",
    }.items()
    for spelling in (unit, *spellings.split())
}
_UNIT_TAIL = re.compile(
    r"(?P<body>.*[\d})]) ?(?P<square>square |sq\.? |cubic )?"
    r"(?P<unit>"
    + "|".join(re.escape(u) for u in sorted(_UNITS, key=len, reverse=True))
    + r")(?: ?\^ ?\{?(?P<power>[23])\}?)?\.?"
)
_CURRENCY_HEAD = re.compile(r"(?P<unit>[$\u20ac\u00a3\u00a5]) ?(?P<body>.+)")


def split_unit(text: str) -> tuple[str, str | None]:
    """The figure and its unit in one spelling; None where no known unit stands there.

    Args:
        text: normalised. Letters in the figure (`3x + 2s`) mean that the tail is algebra, no unit.
    """
    if match := _CURRENCY_HEAD.fullmatch(text):
        return match["body"], match["unit"]
    match = _UNIT_TAIL.fullmatch(text)
    if not match or not has_no_variable(match["body"]):
        return text, None
    unit = _UNITS[match["unit"]]
    power = match["power"] or {"s": "2", "c": "3"}.get((match["square"] or "-")[0], "")
    return match["body"].strip(), unit + power
