r"""Comparison of two answers: kind by kind, and two kinds together only if that is decided here.

Left out is not another: a name, a unit, a base or a modulus that only the gold answer has may be left out where the
rest is said; one that is said must be the gold's. A part is never the whole, and an element never its set.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from groupwise.rewards.verifiers.kinds import Answer, Kind
from groupwise.rewards.verifiers.numerals import close
from groupwise.rewards.verifiers.several import as_interval

#: (question of `symbolic`, texts) -> its answer.
Ask = Callable[..., bool | int]


@dataclass(frozen=True)
class Judge:
    """Compares answers, and asks about expressions.

    ask        "value" or "multiple" with spelled texts -> the answer of `symbolic`
    tolerance  for two plain numbers, as in `close`
    """

    ask: Ask
    tolerance: float = 0.0

    def same(self, gold: Answer, claim: Answer) -> bool:
        """Tell whether a claim is the gold answer."""
        gold = replace(gold, parts=()) if gold.one_value else gold
        if gold.one_value and gold.mark and claim.mark and gold.mark != claim.mark:
            return False
        if claim.one_value and claim.parts:  # an exact value, and its decimals behind it, which must fit
            exact, decimals = replace(claim, parts=()), claim.parts[0]
            counts = decimals if gold.number is not None and _decimal(gold.number) else exact
            return bool(self.ask("near", _text(exact), _text(decimals))) and self.same(gold, counts)
        if Kind.LETTER in (gold.kind, claim.kind):
            return self._options(gold, claim)
        if gold.name and claim.name and gold.name != claim.name and claim.kind is not Kind.EQUATION:
            return self._equations(gold, claim) if gold.one_value or gold.kind is Kind.EQUATION else False
        if gold.letters and gold.letters == claim.letters and (gold.kind is not claim.kind or gold.unit == claim.unit):
            return True
        if gold.one_value and claim.one_value:
            return self._values(gold, claim)
        return self._by_kind(gold, claim)

    def _by_kind(self, gold: Answer, claim: Answer) -> bool:
        """Compare two kinds of more than one value, or two of which one says more than the other."""
        match gold.kind, claim.kind:
            case Kind.EQUATION, Kind.EQUATION | Kind.EXPRESSION | Kind.NUMBER:
                return self._equations(gold, claim)
            case (
                Kind.EXPRESSION,
                Kind.EQUATION,
            ):  # `y = 2x` is the formula 2x that is asked for, not the reverse
                named = claim.name and not gold.name and self.same(gold, replace(claim.parts[1], name=""))
                return bool(named) or self._equations(gold, claim)
            case Kind.INEQUALITY, Kind.INEQUALITY:
                sides = map(_text, (*gold.parts, *claim.parts))
                return gold.mark == claim.mark and self.ask("multiple", *sides) == 1
            case Kind.INTERVAL, Kind.INTERVAL | Kind.TUPLE:
                return self._intervals(gold, claim)
            case Kind.UNION, Kind.UNION:
                return self._in_any_order(gold.parts, claim.parts)
            case Kind.SET | Kind.LIST, Kind.SET | Kind.LIST:
                return self._listed(gold, claim)
            case (Kind.TUPLE, Kind.TUPLE) | (Kind.MATRIX, Kind.MATRIX):
                return gold.mark == claim.mark and self.in_order(gold.parts, claim.parts)
            case (Kind.TUPLE, Kind.LIST) | (Kind.LIST, Kind.TUPLE):
                return self._named_entries(gold, claim)
            case (Kind.MATRIX, Kind.TUPLE) | (Kind.TUPLE, Kind.MATRIX):
                return self._column(gold, claim)
            case Kind.NUMBER | Kind.EXPRESSION, Kind.SET:  # `x = 5` is the set of solutions {5}
                unknown = re.fullmatch("[a-z]", gold.name) is not None
                return unknown and len(claim.parts) == 1 and self.same(gold, claim.parts[0])
        return self._numbers(gold, claim)

    def _numbers(self, gold: Answer, claim: Answer) -> bool:
        """Compare numbers with a modulus, a base, several units, and ratios and times."""
        match gold.kind, claim.kind:
            case Kind.CONGRUENCE, Kind.CONGRUENCE:
                return self._congruences(gold, claim)
            case Kind.CONGRUENCE, Kind.NUMBER:  # the residue alone, where no unknown is named
                return not gold.name and self.same(gold.parts[0], claim)
            case Kind.NUMBER, Kind.CONGRUENCE:
                return not claim.name and self.same(gold, claim.parts[0])
            case Kind.BASE, Kind.NUMBER | Kind.FORMULA | Kind.EXPRESSION:  # the digits without their base
                return gold.parts[0].letters == claim.letters and not claim.name
            case Kind.NUMBER, Kind.BASE:
                return claim.mark == "10" and self.same(gold, claim.parts[0])
            case Kind.RATIO, Kind.RATIO | Kind.TIME:
                return self._ratios(gold, claim)
            case Kind.RATIO, Kind.NUMBER:  # the quotient of two
                numbers = [part.number for part in gold.parts]
                return len(numbers) == 2 and bool(numbers[1]) and numbers[0] == (claim.number or 0) * numbers[1]
            case Kind.MEASURES | Kind.NUMBER, Kind.MEASURES | Kind.NUMBER:
                if gold.number is None or claim.number is None or gold.unit is None or claim.unit is None:
                    return False
                same = gold.number * gold.unit.size == claim.number * claim.unit.size
                return same and gold.unit.measures == claim.unit.measures
            case Kind.TIME, Kind.TIME if claim.mark and not gold.mark:  # which half of the day is not asked
                hours = [int(one.letters[:2]) % 12 for one in (gold, claim)]
                return hours[0] == hours[1] and gold.letters[2:] == claim.letters[2:]
        return False

    def _values(self, gold: Answer, claim: Answer) -> bool:
        if gold.words and claim.words and not (gold.words <= claim.words or claim.words <= gold.words):
            return False
        if (gold.words and claim.unit and not gold.unit) or (gold.unit and claim.words and not claim.unit):
            return False
        if gold.infinite or claim.infinite:
            return gold.infinite == claim.infinite
        one, other = Fraction(1), Fraction(1)
        if gold.unit and claim.unit:
            if gold.unit.measures != claim.unit.measures:
                return False
            one, other = gold.unit.size, claim.unit.size
        if gold.number is not None and claim.number is not None:
            return close(claim.number * other, gold.number * one, self.tolerance)
        return one == other and bool(self.ask("value", _text(gold), _text(claim)))

    def _equations(self, gold: Answer, claim: Answer) -> bool:
        """Compare equations: both sides of one are those of the other, times a number, or moved over."""
        one, other = _sides(gold), _sides(claim)
        return bool(one and other and self.ask("multiple", *one, *other))

    def _intervals(self, gold: Answer, claim: Answer) -> bool:
        """Compare ends and brackets; a pair in round brackets may be one where the gold answer surely is."""
        interval = as_interval(claim)
        if interval is None or interval.kind is not Kind.INTERVAL:
            return False
        closed = [
            bracket in "[]" and not end.infinite
            for one in (gold, interval)
            for end, bracket in zip(one.parts, one.mark, strict=True)
        ]
        return closed[:2] == closed[2:] and self.in_order(gold.parts, interval.parts)

    def _listed(self, gold: Answer, claim: Answer) -> bool:
        if "?" in (gold.mark, claim.mark) or (gold.mark != claim.mark and claim.kind is gold.kind):
            return False
        if any(part.letters == "\\ldots" for part in (*gold.parts, *claim.parts)):
            return gold.kind is claim.kind and self.in_order(gold.parts, claim.parts)
        if Kind.SET in (gold.kind, claim.kind) and not gold.mark and not claim.mark:
            return self._each_in(gold.parts, claim.parts) and self._each_in(claim.parts, gold.parts)
        return self._in_any_order(gold.parts, claim.parts)

    def _named_entries(self, gold: Answer, claim: Answer) -> bool:
        """Compare `(3, -2)` and `x = 3, y = -2`: entries in the order of the names, or of letters where it has none."""
        entries, pair = (gold, claim) if gold.kind is Kind.LIST else (claim, gold)
        names = pair.name.strip("() ").split(" , ") if "," in pair.name else sorted(part.name for part in entries.parts)
        by_name = {part.name: replace(part, name="") for part in entries.parts}
        if entries.mark != "named" or set(by_name) != set(names) or len(names) != len(entries.parts):
            return False
        ordered = [by_name[name] for name in names]
        return self.in_order(pair.parts, ordered) if pair is gold else self.in_order(ordered, pair.parts)

    def _column(self, gold: Answer, claim: Answer) -> bool:
        """Compare a column and a tuple in any brackets: a vector by its components."""
        matrix, entries = (gold, claim) if gold.kind is Kind.MATRIX else (claim, gold)
        column = [row.parts[0] for row in matrix.parts if len(row.parts) == 1]
        if matrix.mark or entries.mark != "()" or len(column) != len(matrix.parts):
            return False
        return self.in_order(column, entries.parts) if gold is matrix else self.in_order(entries.parts, column)

    def _congruences(self, gold: Answer, claim: Answer) -> bool:
        """Compare the modulus, and the residues, one or several, less multiples of it."""
        if gold.mark != claim.mark:
            return False
        one, other = ([part.number for part in a.parts[0].parts or a.parts[:1]] for a in (gold, claim))
        if not (gold.mark.isdigit() and int(gold.mark)) or None in one + other:
            return self.same(gold.parts[0], claim.parts[0])
        residues = [{number % int(gold.mark) for number in some if number is not None} for some in (one, other)]
        return residues[0] == residues[1]

    def _ratios(self, gold: Answer, claim: Answer) -> bool:
        numbers = [[part.number for part in one.parts] for one in (gold, claim)]
        one, other = ([number for number in row if number] for row in numbers)
        if len(one) != len(gold.parts) or len(other) != len(claim.parts) or len(one) != len(other):
            return self.in_order(gold.parts, claim.parts)
        return all(a * other[0] == b * one[0] for a, b in zip(one, other, strict=True))

    def _options(self, gold: Answer, claim: Answer) -> bool:
        """Compare a letter with a letter; what stands behind it, with an answer that has none."""
        if gold.kind is claim.kind:
            both = gold.parts and claim.parts
            return gold.mark == claim.mark and (not both or self.same(gold.parts[0], claim.parts[0]))
        option, other = (gold, claim) if gold.kind is Kind.LETTER else (claim, gold)
        if not option.parts:
            return other.letters == option.letters and not other.name
        return self.same(option.parts[0], other) if option is gold else self.same(other, option.parts[0])

    def in_order(self, gold: Sequence[Answer], claim: Sequence[Answer]) -> bool:
        """Tell whether each entry is the gold one at its place."""
        return len(gold) == len(claim) and all(map(self.same, gold, claim))

    def _each_in(self, some: Sequence[Answer], others: Sequence[Answer]) -> bool:
        return all(any(self._alike(one, other) for other in others) for one in some)

    def _in_any_order(self, gold: Sequence[Answer], claim: Sequence[Answer]) -> bool:
        left = list(claim)
        for one in gold:
            found = next((place for place, other in enumerate(left) if self._alike(one, other)), None)
            if found is None:
                return False
            del left[found]
        return not left

    def _alike(self, one: Answer, other: Answer) -> bool:
        """Tell whether entries have one value and one name: in a list an entry without a name is not any of them."""
        return one.name == other.name and self.same(one, other)


def _text(answer: Answer) -> str:
    """Return the spelled text of a value; a plain number as a fraction, its unit and its separators apart."""
    if answer.number is None:
        return answer.letters
    return f"({answer.number.numerator})/{answer.number.denominator}"


def _decimal(number: Fraction) -> bool:
    """Tell whether a number is no integer and has finitely many decimals: what a rounded value is."""
    rest = number.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1 and number.denominator > 1


def _sides(answer: Answer) -> tuple[str, str] | None:
    if answer.kind is Kind.EQUATION:
        return _text(answer.parts[0]), _text(answer.parts[1])
    return (answer.name, _text(answer)) if answer.name and answer.one_value else None
