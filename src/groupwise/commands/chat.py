"""Talk with a policy: turns on a terminal, the answers to one prompt, or to each line of a pipe."""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from groupwise.commands.evaluate import named_policy
from groupwise.config import recipe as recipes
from groupwise.config.recipe import Recipe
from groupwise.config.recipe_files import read_table
from groupwise.config.resolve import resolve
from groupwise.core.engine import Engine, Request, Sampling
from groupwise.core.errors import GroupwiseError, UsageError, shortened
from groupwise.core.files.paths import location
from groupwise.core.machine.gpu import device_of
from groupwise.core.numbers.seeds import derive
from groupwise.core.settings import validated
from groupwise.engines.make import make_engine, require_sampling
from groupwise.engines.settings import EngineSettings
from groupwise.journal.kept import whole_recipe
from groupwise.journal.run_policy import RunPolicy, run_policy
from groupwise.models.chat.prompts import Chat, ChatSettings
from groupwise.models.chat.template_checks import check_template
from groupwise.models.load import Policy

#: Tokens between two moments at which a streamed answer is shown.
PIECE = 4
#: New tokens of an answer where no run says how many.
LONGEST = 256
#: Part of a character, until the next token completes it.
PARTIAL = "\ufffd"
#: Characters of a task's prompt that are shown as an example.
_EXAMPLE = 60

#: Function that shows a part of an answer, or says a line.
Show = Callable[[str], None]


@dataclass(frozen=True)
class ChatOptions:
    """Options of the command; None takes what the run samples with, or else 1.0 and LONGEST."""

    temperature: float | None = None
    max_tokens: int | None = None
    seed: int = 0

    def sampling(self, recipe: Recipe | None) -> Sampling:
        """Lay the options over a run's own sampling. Raises UsageError for a value out of bounds."""
        own = Sampling(max_new_tokens=LONGEST) if recipe is None else recipe.sampling
        asked = {"temperature": self.temperature, "max_new_tokens": self.max_tokens}
        given = {key: value for key, value in asked.items() if value is not None}
        return validated(Sampling, "sampling", {**{key: getattr(own, key) for key in own.model_fields_set}, **given})


@dataclass
class Conversation:
    """Turns with a policy under its chat template; without one each prompt is continued by itself.

    messages  of the conversation so far, whose oldest turns go where it grows beyond the model's positions
    turns     prompts that were answered, from which the random numbers of the next answer are drawn
    """

    policy: Policy
    chat: Chat
    engine: Engine
    sampling: Sampling
    seed: int = 0
    note: Show = print
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: int = 0

    def say(self, prompt: str, show: Show | None = None) -> str:
        """Answer the next turn of the conversation; `show` hears of the answer piece by piece.

        Raises UsageError if the tokenizer cannot read the prompt, or the model has no room for it.
        """
        asked = [*self.messages, {"role": "user", "content": prompt}]
        tokens, left_out = self._fitting(asked)
        if left_out:
            self.note(f"the oldest {left_out} turns are left out: the model takes {self.policy.positions} tokens")
        answer = self._sampled(tokens, 1)[0] if show is None else self._streamed(tokens, show)
        if self.chat.template is not None:
            said = self.chat.settings.open + answer
            self.messages = [*asked[2 * left_out :], {"role": "assistant", "content": said}]
        return answer

    def answers(self, prompt: str, count: int = 1) -> list[str]:
        """Answer a prompt by itself, so many times. Raises UsageError as `say` does."""
        return self._sampled(self._fitting([{"role": "user", "content": prompt}])[0], count)

    def _sampled(self, tokens: tuple[int, ...], count: int) -> list[str]:
        request = Request(tokens, count, self._next_seed(), self._room(tokens))
        return [self.policy.decode(each.tokens) for each in self.engine.generate([request], self.sampling)[0]]

    def _streamed(self, prompt: tuple[int, ...], show: Show) -> str:
        """Sample an answer in pieces: the very tokens of one that is sampled at once."""
        seed, room, held = self._next_seed(), self._room(prompt), 0
        drawn: tuple[int, ...] = ()
        text = ""
        while len(drawn) < room:
            most = min(PIECE, room - len(drawn))
            request = Request((*prompt, *drawn), 1, seed, most, drawn=len(drawn), hold=True, held=held)
            piece = self.engine.generate([request], self.sampling)[0][0]
            held, drawn = len(prompt) + len(drawn) + len(piece.tokens), drawn + piece.tokens
            whole = self.policy.decode(drawn)
            ended = piece.finish != "length" or len(drawn) == room
            stable = whole if ended else whole.rstrip(PARTIAL)
            if stable.startswith(text) and stable != text:
                show(stable[len(text) :])
                text = stable
            if ended:
                break
        return self.policy.decode(drawn)

    def _next_seed(self) -> int:
        self.turns += 1
        return derive(self.seed, "chat", self.turns)

    def _fitting(self, messages: Sequence[dict[str, str]]) -> tuple[tuple[int, ...], int]:
        """Return the ids of a conversation that leaves room for an answer, and how many of its oldest turns went.

        Turns go until an answer of any length has room, or half of the model's positions; a last prompt needs less.
        """
        most, tokens = self.policy.positions, ()
        room = min(self.sampling.max_new_tokens, most // 2)
        for left_out in range(0, len(messages), 2):
            tokens = self._ids(messages[left_out:])
            if not tokens:
                raise UsageError("the prompt is empty; write at least one character")
            if len(tokens) + (room if left_out + 1 < len(messages) else 1) <= most:
                return tokens, left_out // 2
        raise UsageError(
            f"the prompt has {len(tokens)} tokens, and the model takes {most} with the answer; shorten the prompt"
        )

    def _ids(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        if self.chat.template is None:
            return self.chat.ids(messages[-1]["content"] + self.chat.settings.open, "the prompt: ")
        return self.chat.ids(self.chat.render(messages) + self.chat.settings.open, "the prompt: ")

    def _room(self, tokens: Sequence[int]) -> int:
        return min(self.sampling.max_new_tokens, self.policy.positions - len(tokens))


@contextmanager
def opened(name: str, options: ChatOptions, note: Show) -> Iterator[Conversation]:
    """Load a policy as `eval` names it, and begin a conversation; `note` hears what is unusual about it.

    Raises UsageError if there is no such policy, it cannot be sampled, or an option is out of bounds.
    """
    name = str(location(name, "policy"))
    source = run_policy(name)
    recipe = None if source is None else _recipe_of(source.run)
    sampling = options.sampling(recipe)
    device = device_of("auto" if recipe is None else recipe.device, "device")
    named, policy = named_policy(name, device, note)
    chat = Chat(policy.tokenizer, ChatSettings() if recipe is None else recipe.chat)
    if chat.template is None:
        note(f"{named} has no chat template: each prompt is continued as plain text{_example(source)}")
    for finding in check_template(chat, policy.eos, {"user"}):
        if finding.fatal:
            note(str(finding))
    engine = make_engine(policy=policy, settings=EngineSettings(), note=note)
    with closing(engine):
        require_sampling(engine, policy, sampling, "sampling")
        yield Conversation(policy, chat, engine, sampling, options.seed, note)


def answer(name: str, prompts: Iterable[str], count: int, options: ChatOptions, show: Show, note: Show) -> None:
    """Show the answers to each prompt by itself: of several, each under a line with its number."""
    with opened(name, options, note) as conversation:
        for prompt in prompts:
            for number, text in enumerate(conversation.answers(prompt, count), start=1):
                show(f"--- {number} of {count}\n" * (count > 1) + f"{text}\n")


def talk(name: str, options: ChatOptions, ask: Callable[[str], str], show: Show, note: Show) -> None:
    """Answer what a person says, turn by turn, until the end of the input or Ctrl-C; a refused turn is asked again."""
    with opened(name, options, note) as conversation:
        note("write a prompt; Ctrl-D or Ctrl-C ends")
        try:
            while True:
                if not (prompt := ask("> ")).strip():
                    continue
                try:
                    conversation.say(prompt, show)
                except UsageError as error:
                    note(str(error))
                else:
                    show("\n")
        except EOFError:
            show("\n")
        except KeyboardInterrupt as interrupted:
            if getattr(interrupted, "number", signal.SIGINT) != signal.SIGINT:
                raise
            show("\n")


def prompts_of(lines: Iterable[bytes]) -> Iterator[str]:
    """Read a prompt a line, empty lines left out. Raises UsageError, with the line's number, if it is not UTF-8."""
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin, line {number}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
        if text.strip():
            yield text


def _recipe_of(run: Path) -> Recipe:
    path = whole_recipe(run)
    return recipes.parse(read_table(path), str(path))


def _example(source: RunPolicy | None) -> str:
    """Show what a prompt of the run's own task looks like; "" if its data is not there any more."""
    if source is None:
        return ""
    with suppress(GroupwiseError):
        task = resolve(_recipe_of(source.run), place=source.run.resolve()).task
        for sample in islice(task.samples("heldout"), 1):
            return f"; those of its task look like {shortened(repr(sample.prompt), _EXAMPLE)}"
    return ""
