"""A reward for random text: it costs nothing, and differs within each group."""


def even(sample: object, completion: str) -> float:
    """The share of even digits among a completion's digits; 0 where there are none."""
    digits = [int(letter) for letter in completion if "0" <= letter <= "9"]
    return sum(digit % 2 == 0 for digit in digits) / max(1, len(digits))
