r"""Known units and currencies behind a figure, in one spelling each."""

from __future__ import annotations

import re

from mupo_ray.rewards.equality.notation import has_no_variable, read_number

_UNITS = {
    spelling: unit
    for unit, spellings in {
        "mm": "millimeter millimeters millimetre millimetres \u6beb\u7c73",
        "cm": "CM centimeter centimeters centimetre centimetres \u5398\u7c73",
        "dm": "decimeter decimeters decimetre decimetres \u5206\u7c73",
        "m": "meter meters metre metres \u7c73",
        "km": "Km KM kilometer kilometers kilometre kilometres \u5343\u7c73 \u516c\u91cc",
        "in": "inch inches \u82f1\u5bf8",
        "ft": "foot feet \u82f1\u5c3a",
        "yd": "yard yards",
        "mi": "mile miles \u82f1\u91cc",
        "mg": "milligram milligrams \u6beb\u514b",
        "g": "gram grams \u514b",
        "kg": "Kg KG kilogram kilograms \u5343\u514b \u516c\u65a4",
        "ton": "tons tonne tonnes \u5428",
        "lb": "lbs pound pounds",
        "oz": "ounce ounces",
        "ms": "millisecond milliseconds \u6beb\u79d2",
        "s": "sec secs second seconds \u79d2",
        "min": "mins minute minutes \u5206\u949f",
        "h": "hr hrs hour hours \u5c0f\u65f6",
        "day": "days \u5929",
        "week": "weeks \u5468",
        "month": "months \u6708 \u4e2a\u6708",
        "year": "years \u5e74",
        "year old": "years old \u5c81",
        "mL": "ml milliliter milliliters millilitre millilitres \u6beb\u5347",
        "L": "liter liters litre litres \u5347",
        "mph": "",
        "N": "newton newtons",
        "J": "joule joules",
        "W": "watt watts",
        "V": "volt volts",
        "A": "ampere amperes amp amps",
        "Hz": "hertz",
        "Pa": "pascal pascals",
        "kPa": "",
        "kelvin": "",
        "mol": "mole moles",
        "unit": "units \u4e2a \u540d \u4eba \u53ea \u6761 \u5f20 \u672c \u8f86 \u68f5 \u4ef6",
        "degree": "degrees deg ^\\circ \u5ea6",
        "rad": "radian radians",
        "C": "^\\circC \u6444\u6c0f\u5ea6",
        "F": "^\\circF",
        "$": "dollar dollars usd USD US$ \u7f8e\u5143",
        "cent": "cents \u00a2",
        "\u20ac": "euro euros EUR \u6b27\u5143",
        "\u00a3": "GBP",
        "\u00a5": "yuan CNY RMB \u5143",
        "yen": "JPY \u65e5\u5143",
        "\u20b9": "rupee rupees Rs Rs. INR",
    }.items()
    for spelling in (unit, *re.split(" (?!old)", spellings))
    if spelling
}
_ANY_UNIT = "|".join(re.escape(u) for u in sorted(_UNITS, key=len, reverse=True))
_POWER = r"(?: ?\^ ?\{{?(?P<{}>[23])\}}?)?"
_UNIT_TAIL = re.compile(
    r"(?P<body>.*[\d})]) ?(?P<prefix>square |sq\.? |cubic |cu\.? |\u5e73\u65b9|\u7acb\u65b9)?"
    rf"(?P<unit>{_ANY_UNIT}){_POWER.format('power')}"
    rf"(?:(?: ?/ ?| per )(?P<per>{_ANY_UNIT}){_POWER.format('per_power')})?\.?"
)
_CURRENCY_HEAD = re.compile(
    r"(?P<sign>[+-]? ?)(?P<unit>(?:US)?\$|[\u20ac\u00a3\u00a5\u20b9]|Rs\.?|USD|EUR|GBP|CNY|RMB) ?"
    r"(?P<body>.*\d.*)"
)

_PREFIX_POWERS = {"square": "2", "sq": "2", "\u5e73\u65b9": "2"} | dict.fromkeys(
    ("cubic", "cu", "\u7acb\u65b9"), "3"
)


def split_unit(text: str) -> tuple[str, str | None]:
    """The figure and its unit in one spelling; None where no known unit stands there.

    Args:
        text: normalised. Letters in the figure (`3x + 2s`) mean that the tail is algebra, no unit.
    """
    if match := _CURRENCY_HEAD.fullmatch(text):
        body = match["sign"].strip() + match["body"]
        if has_no_variable(body) or read_number(body):
            return body, _UNITS[match["unit"]]
    match = _UNIT_TAIL.fullmatch(text)
    if not match or not has_no_variable(match["body"]):
        return text, None
    power = match["power"] or _PREFIX_POWERS.get((match["prefix"] or "-").strip(" ."), "")
    unit = _UNITS[match["unit"]] + power
    if match["per"]:
        unit += "/" + _UNITS[match["per"]] + (match["per_power"] or "")
    return match["body"].strip(), unit
