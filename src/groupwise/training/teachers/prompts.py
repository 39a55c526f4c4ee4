"""The prompt that a teacher reads in front of a policy's completion, which may say more than the policy's own."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from groupwise.core.errors import UsageError, brief, nearest
from groupwise.core.records import Completion, Group
from groupwise.core.samples import Sample

#: Places of a template that a completion fills in, and all that a template may name beside columns of the problem.
OF_COMPLETION = ("completion", "feedback", "best")
PLACES = ("prompt", "answer", *OF_COMPLETION)
_PLACE = re.compile(r"\{(\w+)\}")

Encode = Callable[[Sample], tuple[int, ...]]


@dataclass(frozen=True)
class TeacherPrompt:
    """The teacher's prompt of a completion: a template in the place of the last user message.

    template  text with {prompt} (that message), {answer} (gold), {completion} (text), {feedback} (what the environment
              said and the rewards logged as text), {best} (the best-scored other completion of the group, if scores
              differ) and {NAME} of each column in `Sample.extra`
    encode    problem -> ids of its prompt
    decode    ids -> text
    """

    template: str
    encode: Encode
    decode: Callable[[tuple[int, ...]], str]

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the template's places."""
        return frozenset(_PLACE.findall(self.template))

    def require_places(self, samples: Sequence[Sample]) -> None:
        """Raise UsageError for a place that nothing fills in; `samples` are some of the task's problems."""
        what = f"reference.template = {brief(self.template)}"
        columns = {name for sample in samples for name in sample.extra}
        for name in sorted(self.names - columns - {*PLACES}):
            raise UsageError(f"{what}: there is no place {{{name}}}; {nearest(name, [*PLACES, *columns])}")
        if "answer" in self.names and not any(sample.answer for sample in samples):
            raise UsageError(f"{what}: {{answer}} is named, and the task has no answers; take it out")
        if not self.names:
            raise UsageError(f"{what}: it names no place, so that every problem would be the same; name {{prompt}}")

    def longest(self, samples: Iterable[Sample]) -> int:
        """Count the tokens of the longest prompt, as far as the problems alone say it."""
        return max(len(self.encode(self._sample(sample, dict.fromkeys(OF_COMPLETION, "")))) for sample in samples)

    def __call__(self, group: Group, completion: Completion) -> tuple[int, ...]:
        """Return the ids of a completion's prompt; the policy's own if a place of the completion holds nothing."""
        values = {
            "completion": completion.text,
            "feedback": self._feedback(completion) if "feedback" in self.names else "",
            "best": _best(group, completion) if "best" in self.names else "",
        }
        if any(not values[name] for name in self.names & {*OF_COMPLETION}):
            return group.prompt.tokens
        return self.encode(self._sample(group.prompt.sample, values))

    def _sample(self, sample: Sample, values: Mapping[str, str]) -> Sample:
        """Return a problem that asks by the template."""
        roles = [message.get("role") for message in sample.messages]
        last = max((i for i, role in enumerate(roles) if role == "user"), default=None)
        said = sample.prompt if last is None else sample.messages[last].get("content")
        prompt = said if isinstance(said, str) else sample.prompt
        columns = {name: x if isinstance(x, str) else json.dumps(x) for name, x in sample.extra.items()}
        every = {**columns, "prompt": prompt, "answer": sample.answer, **values}
        text = _PLACE.sub(lambda place: every.get(place[1], ""), self.template)
        if last is None:
            return dataclasses.replace(sample, prompt=text)
        before, message, after = sample.messages[:last], sample.messages[last], sample.messages[last + 1 :]
        return dataclasses.replace(sample, prompt=text, messages=(*before, {**message, "content": text}, *after))

    def _feedback(self, completion: Completion) -> str:
        others = [span for span in completion.spans if not span.own and not span.anew]
        said = [self.decode(completion.tokens[span.start : span.stop]).strip() for span in others]
        return "\n".join(filter(None, [*said, *(x for _, x in completion.logged if isinstance(x, str))]))


def _best(group: Group, completion: Completion) -> str:
    """Return the text of the first other completion with the group's best score; "" if there is none or all tie."""
    scores = [c.trains_on for c in group.completions if c.trains_on == c.trains_on]
    if not scores or max(scores) == min(scores):
        return ""
    best = (c.text for c in group.completions if c is not completion and c.trains_on == max(scores))
    return next(best, "")
