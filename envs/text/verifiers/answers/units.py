"""Units behind numbers: of length, time, money …, their powers and quotients, and what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from .tokens import Token, TokenReader
from .values import NotUnderstood, Unit

_TABLE = """
length: m 1 meter meters metre metres 米; km 1000 kilometer kilometers kilometre kilometres 千米 公里;
 cm 1/100 centimeter centimeters centimetre centimetres 厘米;
 mm 1/1000 millimeter millimeters millimetre millimetres 毫米; nm 1/1000000000; microm 1/1000000; Mm 1000000;
 in 127/5000 inch inches; ft 381/1250 foot feet; yd 1143/1250 yard yards; mi 201168/125 mile miles
time: s 1 sec secs second seconds 秒; min 60 mins minute minutes 分钟; h 3600 hr hrs hour hours 小时; day 86400 days 天;
 week 604800 weeks; ms 1/1000 millisecond milliseconds;
 micros 1/1000000 microsecond microseconds; ns 1/1000000000
months: month 1 months; yr 12 year years 年; decade 120 decades; century 1200 centuries
mass: g 1 gram grams 克; kg 1000 kilogram kilograms 千克 公斤; mg 1/1000 milligram milligrams;
 microg 1/1000000; Mg 1000000;
 lb 45359237/100000 lbs pound pounds;
 oz 45359237/1600000 ounce ounces; ton 1000000 tons tonne tonnes
volume: L 1 l liter liters litre litres 升; mL 1/1000 ml milliliter milliliters millilitre millilitres
spoons: tablespoon 1 tablespoons tbsp; cup 16 cups; pint 32 pints; quart 64 quarts; gallon 256 gallons gal
money: dollar 1 dollars usd; cent 1/100 cents ¢
euro: euro 1 euros eur €
yen: yen 1 ¥ jpy
sterling: £ 1 gbp
yuan: yuan 1 rmb 元
rupee: ₹ 1 rupee rupees rs
angle: degrees 1 degree deg 度
radians: radians 1 radian rad
share: percent 1
celsius: °C 1 celsius
fahrenheit: °F 1 fahrenheit
kelvin: K 1 kelvin kelvins
force: N 1 newton newtons
energy: J 1 joule joules; kJ 1000 kilojoule kilojoules
power: W 1 watt watts; kW 1000 kilowatt kilowatts; MW 1000000 megawatts; mW 1/1000 milliwatts
voltage: V 1 volt volts
current: A 1 amp amps ampere amperes
electronvolt: eV 1; keV 1000; MeV 1000000; GeV 1000000000
resistance: ohm 1 ohms 欧; kohm 1000; Mohm 1000000
induction: T 1 tesla
sound: dB 1 decibel decibels
share of a million: ppm 1
area: acre 1 acres
hectares: hectare 1 hectares ha
frequency: Hz 1 hertz; kHz 1000 kilohertz
charge: C 1 coulomb coulombs
amount: mol 1 mole moles
pressure: Pa 1 pascal pascals; kPa 1000; atm 101325
digital: byte 1 bytes; KB 1000 kilobytes kilobyte; MB 1000000 megabytes megabyte; GB 1000000000 gigabytes gigabyte
unit: unit 1 units
个: 个 1
ordinal: th 1 st nd rd
people: people 1 person persons 人
children: children 1 child
men: men 1 man
women: women 1 woman
mice: mice 1 mouse
fish: fish 1
sheep: sheep 1
geese: geese 1 goose
dice: dice 1 die
"""
_NOT_COUNTED = frozenset((
    "halves", "thirds", "quarters", "tens",
    "plus", "minus", "less", "versus", "is", "was", "this", "has", "his", "its", "always", "perhaps",
    "afterwards", "besides", "thus", "does", "yes", "across", "towards", "downwards", "upwards", "backwards",
    "forwards", "sideways", "as", "us", "others", "sometimes",
))  # fmt: skip
"""Words that end like a plural and count nothing."""
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_SHORT = {"mph": ("mi", "h"), "kmh": ("km", "h"), "kph": ("km", "h"), "rpm": ("revolutions", "min")}
_TEMPERATURE = {"C": "celsius", "F": "fahrenheit", "Celsius": "celsius", "Fahrenheit": "fahrenheit"}


def _table() -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    for line in _TABLE.replace("\n ", " ").strip().splitlines():
        dimension, _, units = line.partition(":")
        for given in units.split(";"):
            name, factor, *others = given.split()
            unit = Unit(name, dimension, Fraction(factor))
            found |= dict.fromkeys((name, *others), unit)
    return found


KNOWN = _table()
_SIGNS = {sign: KNOWN[sign.strip("\\$") or "dollar"] for sign in (r"\$", "€", "£", "¥", "₹", "usd", "eur", "gbp")}
Powers = Counter[str]


def is_unit(token: Token) -> bool:
    r"""Returns whether a token can begin a unit. A single letter is one in ``\text{…}`` alone: elsewhere it is a
    variable."""
    if token.text in _POWERS or token.text in _SHORT:
        return token.kind == "word"
    if token.kind == "letter" and not token.worded and token.text.isascii():
        return False
    return token.kind in ("word", "letter", "sign") and _unit(token.text) is not None


def money(token: Token) -> Unit | None:
    r"""Looks up the currency of a sign before a number: ``\$``, ``€``."""
    return _SIGNS.get(token.text.casefold())


def _unit(word: str) -> Unit | None:
    if word in KNOWN:
        return KNOWN[word]
    lower = word.casefold()
    mega = len(word) == 2 and word[0] == "M" and word[1].islower()  # Mm is not mm
    if len(word) > 1 and lower in KNOWN and not mega:
        return KNOWN[lower]
    counted = len(lower) > 2 and lower.endswith("s") and not lower.endswith(("ss", "ths")) and lower.isascii()
    if counted and lower.isalpha() and lower not in _NOT_COUNTED and not word.isupper():
        return Unit(lower, lower)
    return None


def unit_of(tokens: Sequence[Token]) -> Unit:
    """Parses tokens that are a unit: ``cm``, ``square miles``, ``m/s^2``, ``miles per hour``.

    Raises:
        NotUnderstood: they are none.
    """
    reader = _Reader(tokens)
    powers = reader.run()
    ((name, power),) = powers.items() if len(powers) == 1 else [("", 0)]
    if power == 1:
        return reader.units[name]
    spelled = "*".join(f"{name}^{power}" for name, power in sorted(powers.items()))
    dimensions: Powers = Counter()
    factor = Fraction(1)
    for name, power in powers.items():
        dimensions[reader.units[name].dimension] += power
        factor *= reader.units[name].factor ** power
    return Unit(spelled, "*".join(f"{name}^{power}" for name, power in sorted(dimensions.items())), factor)


class _Reader(TokenReader):
    def __init__(self, given: Sequence[Token]) -> None:
        super().__init__(token for token in given if token.text != "." or token.kind != "sign")
        self.units: dict[str, Unit] = {}

    def run(self) -> Powers:
        found: Powers = Counter()
        sign = 1
        while self._at < len(self._given):
            text = self._given[self._at].text
            if text in ("/", "per") and found and sign == 1:
                sign = -1
                self._at += 1
            elif text == "*" and found:
                self._at += 1
            for name, power in self._one().items():
                found[name] += sign * power
        if not found or max(map(abs, found.values())) > 9:
            raise NotUnderstood
        return Counter({name: power for name, power in found.items() if power})

    def _one(self) -> Powers:
        """A unit with its power."""
        token = self._take()
        before = _POWERS.get(token.text, 1) if token.text in ("square", "sq", "cubic", "cu") else 1
        if before > 1:
            token = self._take()
        if token.text in _SHORT and before == 1:
            above, below = (self._kept(name) for name in _SHORT[token.text])
            return Counter({above: 1, below: -1})
        if token.text in ("degrees", "degree") and (scale := self._peek()) in _TEMPERATURE:
            self._at += 1
            return Counter({self._kept(_TEMPERATURE[scale]): 1})
        return Counter({self._kept(token.text): before * self._power()})

    def _power(self) -> int:
        text = self._peek()
        if text in ("squared", "cubed"):
            self._at += 1
            return _POWERS[text]
        if text != "^":
            return 1
        self._at += 1
        braced = self._peek() == "{"
        self._at += braced
        negative = self._peek() == "-"
        self._at += negative
        power = self._take().text
        if (braced and self._take().text != "}") or power not in "123456789":
            raise NotUnderstood
        return -int(power) if negative else int(power)

    def _kept(self, word: str) -> str:
        unit = _unit(word)
        if unit is None:
            raise NotUnderstood
        self.units[unit.name] = unit
        return unit.name
