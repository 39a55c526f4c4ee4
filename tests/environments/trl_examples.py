"""Environments written for TRL, unchanged. `EchoToolEnv` with its `reward_func`, `IncrementEnv`, `multiply` and
`async_add` are from TRL's documentation (docs/source: openenv.md and grpo_trainer.md; Copyright The HuggingFace Team,
Apache License 2.0); of `echo_env`, the package that the first one talks to a server with, there is a stand-in here.
"""

import random
from dataclasses import dataclass

ENV_URL = "https://openenv-echo-env.hf.space"


@dataclass
class EchoAction:
    message: str


@dataclass
class Echoed:
    echoed_message: str
    reward: float


@dataclass
class Observed:
    observation: Echoed


class EchoEnv:
    """What the server does: it rewards each character of a message with a tenth."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def step(self, action: EchoAction) -> Observed:
        return Observed(Echoed(action.message, len(action.message) / 10))


# fmt: off
class EchoToolEnv:
    def __init__(self):
        self.env = EchoEnv(base_url=ENV_URL)
        self.reward = 0.0

    def reset(self, **kwargs) -> str | None:
        self.reward = 0.0
        return None

    def echo(self, message: str) -> str:
        """
        Echo the message back from the environment.

        Args:
            message: The message to echo

        Returns:
            The echoed message.
        """
        observation = self.env.step(EchoAction(message=message))
        self.reward = observation.observation.reward
        return observation.observation.echoed_message


def reward_func(environments, **kwargs):
    return [env.reward for env in environments]


class IncrementEnv:
    # Reserved methods
    def reset(self, **kwargs) -> str | None:  # required; called at the start of each rollout
        self.counter = 0
        self.target = random.randint(1, 6)  # self-sample the task
        return f"Increment the counter by {self.target}."  # returned string becomes the prompt

    def get_reward(self) -> float:  # optional: the environment scores itself from its own state
        return float(self.counter == self.target)

    # Public methods (exposed as tools)
    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def async_add(a: int, b: int) -> int:
    """
    Asynchronously adds two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The sum of the two integers.
    """
    return a + b
# fmt: on
