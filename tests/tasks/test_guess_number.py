"""Laws of guess-number: halving finds every number, ranges are in one split, and demonstrations know nothing."""

from __future__ import annotations

from collections import Counter

from groupwise.core.samples import Sample
from recipes.guess_number import GuessNumber

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


def test_every_number_of_every_game_comes_as_often_as_every_other() -> None:
    train, heldout = (GuessNumber().samples(split) for split in ("train", "heldout"))
    assert (len(train), len(heldout)) == (420, 126)
    assert len({sample.key for sample in (*train, *heldout)}) == 546
    games = Counter((f"{end}\n", str(number)) for end in (5, 7, 9) for number in range(1, end + 1))
    for samples in (train, heldout):
        assert Counter((s.prompt, s.answer) for s in samples) == {game: len(samples) // 21 for game in games}


def test_a_guess_is_answered_with_where_the_number_lies_and_narrows_what_is_left() -> None:
    game = GuessNumber()
    game.reset(Sample("5 of 9", "9\n", "5"))
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
