"""An environment of OpenEnv, as its server runs it: twice it asks for a letter, and rewards a reply that is full of it.

python openenv_letters.py PORT
"""
# pyright: reportMissingImports=false

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

TURNS = 2


class Reply(Action):
    """What the policy said."""

    text: str


class Asked(Observation):
    """Letter that is wanted."""

    letter: str = ""


class Letters(Environment):
    """One session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.letter, self.turns = "", 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        """Begin, with a letter that the seed draws."""
        self.letter, self.turns = random.Random(seed).choice("aeiou"), 0
        return Asked(letter=self.letter)

    def step(self, action, timeout_s=None, **kwargs):
        """Reward the share of the letter in what was said."""
        self.turns += 1
        share = action.text.count(self.letter) / max(1, len(action.text)) / TURNS
        return Asked(letter=self.letter, reward=share, done=self.turns == TURNS)

    @property
    def state(self):
        """Count the turns."""
        return State(step_count=self.turns)


if __name__ == "__main__":
    app = create_fastapi_app(Letters, Reply, Asked, max_concurrent_envs=16)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
