"""Tokens per second of sessions over HTTP against the same game inside the run: python benchmarks/gateway.py

64 sessions at once, each of four requests with as many sampled tokens as the table says. On one side agents in
processes of their own ask the gateway, on the other an environment inside the run answers, and the engine samples the
same rows in lockstep. The two sides take turns; a ratio is the median over pairs of neighbouring runs. An agent asks
for a stream and returns the mean seconds until its first token, which comes when the round is sampled. A second table
has agents with tools, which take seconds that are drawn from TOOLS between two requests: in rounds that wait for all,
in rounds that wait 0.1 s, and as requests come.

Agents' processes import this file: what needs torch is imported inside functions.
"""

import json
import platform
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SESSIONS, TURNS, RUNS = 64, 4, 7
#: Seconds that a tool takes, each as often; seconds of patience that are compared.
TOOLS, PATIENCE = (0.0, 0.05, 0.1, 1.0), (60.0, 0.1, 0.0)
#: Layers, width, heads, width of the MLP; and tokens of an answer.
MODELS = ((2, 64, 4, 192), (4, 256, 8, 768), (8, 512, 8, 1536))
LINES = ((MODELS[0], 32), (MODELS[0], 128), (MODELS[1], 32), (MODELS[2], 32))
MORE = "more"


def agent(sample: Any, base_url: str, key: str) -> float:
    """Play a session -> the mean seconds until the first token of an answer."""
    messages, waited = [{"role": "user", "content": sample.prompt}], list[float]()
    for _ in range(TURNS):
        body = json.dumps({"model": "policy", "messages": messages, "stream": True}).encode()
        request = urllib.request.Request(f"{base_url}/chat/completions", body, {"Authorization": f"Bearer {key}"})
        begin = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            first = answer.readline()
            waited.append(time.perf_counter() - begin)
            events = [line for line in (first, *answer) if line.startswith(b"data: {")]
        said = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in events)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": MORE}]
        if sample.extra["tools"]:
            time.sleep(random.choice(TOOLS))
    return statistics.mean(waited)


class Game:
    """The same session as an environment."""

    def reset(self, sample: Any) -> None:
        """Begin."""
        self.turns = 0

    def step(self, text: str) -> tuple[str, float, bool]:
        """Answer what the policy said."""
        self.turns += 1
        return MORE, 0.0, self.turns == TURNS


def main() -> None:
    """Print the table."""
    import torch
    import transformers

    print(f"{platform.machine()}, {torch.get_num_threads()} threads; Python {platform.python_version()}, ", end="")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"command: python {' '.join(sys.argv)}; {SESSIONS} sessions of {TURNS} requests, {RUNS} pairs")
    print("| model | tokens | inside, tok/s | gateway, tok/s | ratio (lowest to highest) | first token, s |")
    print("|---|---|---|---|---|---|")
    for model, tokens in LINES:
        print(line_of(model, tokens), flush=True)
    print(f"\nwith tools of {', '.join(map(str, TOOLS))} s, tok/s by patience")
    print(f"| model | {' | '.join(f'{patience:g} s' for patience in PATIENCE)} |")
    print(f"|---|{'---|' * len(PATIENCE)}")
    for model in MODELS[:2]:
        print(line_with_tools(model, 32), flush=True)


def line_of(model: Sequence[int], tokens: int) -> str:
    """Measure one line of the table."""
    policy = build(*model)
    inside, through = players(policy, tokens)
    try:
        pairs = [(timed(inside, policy, tokens), timed(through, policy, tokens)) for _ in range(RUNS + 1)]
    finally:
        through.close()
    own, agents = zip(*pairs[1:], strict=True)  # the first pair warms up
    ratios = [one.seconds / other.seconds for one, other in pairs[1:]]
    first = statistics.median(wait for run in agents for wait in run.rewards)
    told = f"{tokens} | {speed(own, tokens):,.0f} | {speed(agents, tokens):,.0f} | {statistics.median(ratios):.2f}"
    return f"| {model[0]} layers, width {model[1]} | {told} ({min(ratios):.2f} to {max(ratios):.2f}) | {first:.2f} |"


def line_with_tools(model: Sequence[int], tokens: int) -> str:
    """Measure one line of the table of agents with tools; the kinds of patience take turns."""
    policy = build(*model)
    _, through = players(policy, tokens)
    runs: dict[float, list[Played]] = {patience: [] for patience in PATIENCE}
    try:
        for _ in range(RUNS + 1):
            for patience, own in runs.items():
                through.patience = patience
                own.append(timed(through, policy, tokens, tools=True))
    finally:
        through.close()
    speeds = [f"{speed(own[1:], tokens):,.0f}" for own in runs.values()]
    return f"| {model[0]} layers, width {model[1]} | {' | '.join(speeds)} |"


def speed(runs: Sequence["Played"], tokens: int) -> float:
    """Return sampled tokens per second, the median over runs."""
    return SESSIONS * TURNS * tokens / statistics.median(run.seconds for run in runs)


@dataclass(frozen=True)
class Played:
    """One run of a side.

    rewards  of its sessions
    """

    seconds: float
    rewards: Sequence[float]


def timed(side: Any, policy: Any, tokens: int, tools: bool = False) -> Played:
    """Play all sessions."""
    from groupwise.core.engine import Sampling
    from groupwise.core.records import Prompt
    from groupwise.core.samples import Sample
    from groupwise.core.stream import Cohort
    from groupwise.models.chat.prompts import Chat
    from groupwise.rollout.segments import Segment

    sample = Sample("a", "Say something.", "", extra={"tools": tools})
    cohort = Cohort((Prompt(sample, Chat(policy.tokenizer).encode(sample)),), (0,))
    limit = Sampling(max_new_tokens=TURNS * (tokens + 96))
    begin = time.perf_counter()
    (played,) = side([cohort], Segment(SESSIONS, limit))
    seconds = time.perf_counter() - begin
    episodes = played.completions[0]
    sampled = {sum(span.stop - span.start for span in episode.spans if span.own) for episode in episodes}
    assert (len(episodes), sampled) == (SESSIONS, {TURNS * tokens}), episodes[0].turns[-1].detail
    return Played(seconds, [episode.turns[-1].reward for episode in episodes])


def players(policy: Any, tokens: int) -> tuple[Any, Any]:
    """Make what plays inside the run, and what plays through the gateway, with answers of so many tokens."""
    from groupwise.core.environment import ENVIRONMENT, EpisodeLimits
    from groupwise.core.processes.network import Address
    from groupwise.engines.local.engine import LocalEngine
    from groupwise.environments.adapt import playable
    from groupwise.environments.agent import Agent
    from groupwise.environments.live import InlineEnvironments
    from groupwise.models.chat.later_turns import Glue
    from groupwise.models.chat.prompts import Chat
    from groupwise.rewards.pool.pool import Pool
    from groupwise.rewards.pool.work import Limits
    from groupwise.rollout.episodes import Episodes
    from groupwise.rollout.gateway.play import Sessions
    from groupwise.rollout.gateway.server import Server
    from groupwise.rollout.gateway.writing import Writing

    engine = LocalEngine(policy.model, frozenset(), policy.pad, decode=policy.decode)  # without an end: equal lengths
    glue, limits = Glue(Chat(policy.tokenizer), policy.eos), EpisodeLimits(turns=TURNS, turn_tokens=tokens)
    environments = InlineEnvironments(playable(Game, {}))
    inside = Episodes(engine, environments, glue.onward, glue.chat.encode, policy.decode, limits)
    agents = Pool({ENVIRONMENT: Agent.of(f"{__file__}:agent", (), 600.0)}, Limits(workers=SESSIONS))
    through = Sessions(
        engine, agents, SESSIONS, Server(Address.of("127.0.0.1:0")), Writing(glue, policy), limits, patience=60.0
    )
    return inside, through


def build(layers: int, width: int, heads: int, mlp: int) -> Any:
    """Make a policy with random weights that reads and writes bytes."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from groupwise.models.load import Policy
    from groupwise.models.tiny import ByteSpec

    tokenizer = ByteSpec(chat=True).tokenizer("")
    end: Any = tokenizer.eos_token_id
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=mlp, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=width // heads,
        max_position_embeddings=2048, bos_token_id=None, eos_token_id=end, pad_token_id=0,
    )  # fmt: skip
    return Policy(Qwen3ForCausalLM(config).eval(), tokenizer, frozenset({end}), 0)


if __name__ == "__main__":
    main()
