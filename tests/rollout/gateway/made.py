"""A tiny policy that chats, served as in a run, and agents of it that are threads of the test."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from groupwise.core.engine import OnFinish, Request, Sampling
from groupwise.core.environment import EpisodeLimits, Visit
from groupwise.core.processes.network import Address
from groupwise.core.records import Completion, Prompt
from groupwise.core.samples import Sample, ScoreResult
from groupwise.core.stream import Cohort
from groupwise.engines.local.engine import LocalEngine
from groupwise.models.chat.later_turns import Glue
from groupwise.models.chat.prompts import Chat
from groupwise.models.load import Policy
from groupwise.models.tiny import ByteSpec
from groupwise.rewards.functions.adapters import fault, score_result
from groupwise.rewards.pool.pool import Pool
from groupwise.rollout.gateway.play import Sessions
from groupwise.rollout.gateway.server import Server
from groupwise.rollout.gateway.writing import Writing
from groupwise.rollout.segments import Segment

#: Renders tools and calls too, each in JSON.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PROMPTS = ("6 times 7?", "Say a.", "hm")
SEEDS = (3, 8, 5, *range(20, 50))
LIMITS = EpisodeLimits(turns=8, turn_tokens=6)


@cache
def policy() -> Policy:
    tokenizer = ByteSpec(chat=True).tokenizer("")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(4)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=1024, initializer_range=0.3,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=0,
    )  # fmt: skip
    return Policy(Qwen3ForCausalLM(config).eval(), tokenizer, frozenset({tokenizer.eos_token_id}), 0)


@cache
def glue() -> Glue:
    return Glue(Chat(policy().tokenizer), policy().eos)


class Listening:
    """An engine that keeps what it was asked and what it answered."""

    version = 0

    def __init__(self) -> None:
        own = policy()
        self.engine = LocalEngine(own.model, own.eos, own.pad, decode=own.decode)
        self.calls: list[tuple[Request, Completion]] = []
        self.sizes: list[int] = []

    def generate(self, requests: Sequence[Request], sampling: Sampling, on_finish: OnFinish | None = None) -> Any:
        answers = self.engine.generate(requests, sampling, on_finish)
        self.calls += [(r, one) for r, answer in zip(requests, answers, strict=True) for one in answer]
        self.sizes.append(len(requests))
        return answers


class InThreads:
    """Agents that are threads of this process."""

    def __init__(self, agent: Callable[[Visit], Any]) -> None:
        self.agent = agent

    def play(self, name: str, begin: Callable[[], Visit], then: Callable[[Future[ScoreResult]], None]) -> None:
        def run() -> None:
            done: Future[ScoreResult] = Future()
            try:
                done.set_result(score_result(self.agent(begin())))
            except BaseException as error:
                done.set_result(fault(error))
            then(done)

        threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        pass


def prompts(texts: Sequence[str] = PROMPTS) -> tuple[Prompt, ...]:
    chat = glue().chat
    return tuple(Prompt(one, chat.encode(one)) for one in (Sample(f"k{i}", t, "", seed=i) for i, t in enumerate(texts)))


def writing() -> Writing:
    return Writing(glue(), policy())


def played(
    play: Callable[[Visit], Any] | Pool | InThreads,
    engine: Any = None,
    samples: int = 3,
    limits: EpisodeLimits = LIMITS,
    sampling: Sampling = Sampling(max_new_tokens=400),
    texts: Sequence[str] = PROMPTS,
    at_once: int = 64,
    patience: float = 30.0,
    note: Callable[[str], None] = print,
) -> list[tuple[Completion, ...]]:
    """The episodes of an agent's sessions, by prompt."""
    server = Server(Address.of("127.0.0.1:0"))
    agents: Any = play if isinstance(play, Pool | InThreads) else InThreads(play)
    sessions = Sessions(engine or Listening(), agents, at_once, server, writing(), limits, patience, note)
    try:
        (cohort,) = sessions([Cohort(prompts(texts), SEEDS[: len(texts)])], Segment(samples, sampling))
    finally:
        sessions.close()
    return list(cohort.completions)


def post(visit: Visit, path: str, body: Any, key: str | None = None, **headers: str) -> tuple[int, Any]:
    """The status and the body of an answer; `path` is behind the host."""
    host = visit.base_url.removesuffix("/v1")
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    bearer = {} if key == "" else {"Authorization": f"Bearer {key or visit.key}"}
    request = urllib.request.Request(f"{host}{path}", raw, {**bearer, **headers}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read().decode()
            return answer.status, content if "event-stream" in answer.headers["content-type"] else json.loads(content)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def chat(visit: Visit, messages: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The answer to a conversation. Raises OSError if there is none."""
    status, answer = post(visit, "/v1/chat/completions", {"model": "policy", "messages": [*messages], **more})
    if status != 200:
        raise OSError(f"{status}: {answer['error']['message']}")
    return answer


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
