"""Laws of guess-number: halving finds every number, ranges are in one split, and demonstrations know nothing."""

from __future__ import annotations

import pytest

from groupwise.core.errors import UsageError
from groupwise.core.samples import Sample
from groupwise.tasks.environment.guess_number import GuessNumber

TURNS = 4


def halving(game: GuessNumber, sample: Sample) -> list[float]:
    """The rewards of a player that halves what is left."""
    game.reset(sample)
    rewards, over = [], False
    while not over and len(rewards) < TURNS:
        low, high = map(int, game.state().split("-"))
        _, reward, over = game.step(f"{(low + high) // 2}\n")
        rewards.append(reward)
    return rewards


def test_halving_finds_every_number_within_the_turns_and_counting_up_does_not() -> None:
    game = GuessNumber()
    counted = 0.0
    problems = [*game.samples("train"), *game.samples("heldout")]
    for sample in problems:
        assert sum(halving(game, sample)) == 1.0
        game.reset(sample)
        counted += sum(game.step(f"{guess}\n")[1] for guess in range(1, TURNS + 1))
    assert counted / len(problems) < 0.6


def test_the_games_up_to_a_number_are_in_one_split_with_every_number() -> None:
    for split, ends in (("train", (5, 7, 9)), ("heldout", (6, 8))):
        games = sorted((sample.prompt, int(sample.answer)) for sample in GuessNumber().samples(split))
        prompts = {end: "123456789"[:end] + "." * (9 - end) for end in ends}
        assert games == sorted((f"{prompts[end]}\n", number) for end in ends for number in range(1, end + 1))


def test_a_held_out_prompt_has_nothing_in_a_place_that_no_training_prompt_has_there() -> None:
    prompts = {split: {s.prompt for s in GuessNumber().samples(split)} for split in ("train", "heldout")}
    for place in range(len("123456789\n")):
        assert {prompt[place] for prompt in prompts["heldout"]} <= {prompt[place] for prompt in prompts["train"]}


def test_a_guess_is_answered_with_where_the_number_lies_and_narrows_what_is_left() -> None:
    game = GuessNumber()
    game.reset(Sample("5 of 9", "123456789\n", "5"))
    talk = [
        ("3", "higher\n", "4-9"),
        ("8\n", "lower\n", "4-7"),
        ("9", "lower\n", "4-7"),
        ("x", "what?\n", "4-7"),
        (" 5\n", "what?\n", "4-7"),
    ]
    for said, answer, left in talk:
        assert (game.step(said), game.state()) == ((answer, 0.0, False), left)
    assert game.step("5\n") == ("", 1.0, True)


def test_demonstrations_are_the_turns_of_games_that_could_be_played_and_guess_anything() -> None:
    game, guesses = GuessNumber(), set()
    for demonstration in game.demonstrations(300, seed=0):
        numbers, *talk = demonstration.prompt.splitlines()
        assert f"{numbers}\n" in {sample.prompt for sample in game.samples("train")}
        assert len(talk) % 2 == 0
        assert set(talk[1::2]) <= {"higher", "lower"}
        guesses.add(int(demonstration.completion))
    assert guesses == set(range(1, game.wildest + 1))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"largest": (9, 5)}, r"largest = \[9, 5\]"),
        ({"largest": (5, 12)}, "2 <= a <= b <= 9"),
        ({"wildest": 8}, "wildest = 8: must be from 9 to 999"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        GuessNumber(**settings)  # type: ignore[arg-type]
