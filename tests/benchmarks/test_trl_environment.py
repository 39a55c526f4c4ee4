"""The problems that TRL's environment is trained on: what stands before each is what the environment answers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from benchmarks.trl_environment import WORKED, recipe, worked

import groupwise
from groupwise.core.samples import Sample
from groupwise.environments.adapt import begun, playable
from tests.environments.trl_examples import IncrementEnv


def test_the_recipe_has_no_faults_and_its_problems_differ_from_split_to_split(tmp_path: Path) -> None:
    checked = groupwise.check(recipe(tmp_path, 0), model=False)
    faults = [line for line in checked.faults if "there is no such folder" not in line]  # of the model
    assert faults == []
    numbers = {
        split: {json.loads(line)["number"] for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()}
        for split in ("train", "heldout")
    }
    assert (len(numbers["train"]), len(numbers["heldout"])) == (256, 32)
    assert not numbers["train"] & numbers["heldout"]


def test_the_worked_problems_are_answered_as_they_say() -> None:
    for amount in WORKED:
        episode = playable(IncrementEnv, {})()
        opening = begun(episode, Sample("k", "", "", seed=amount))
        assert opening.messages[0].text.startswith("Increment the counter by ")
        for before, after in pairwise(worked(amount)):
            if after["role"] == "tool":
                assert [message.text for message in episode.reply(before["content"]).messages] == [after["content"]]
