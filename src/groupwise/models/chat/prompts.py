"""Samples to prompt ids by way of the tokenizer's chat template, or as plain text where there is none.

Token in, token out: what is rendered here is only ever a prompt. A completion's ids are the sampled ones and are never
decoded and encoded again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from groupwise.core.errors import UsageError, nearest
from groupwise.core.files.paths import decoded, require_regular
from groupwise.core.samples import Sample
from groupwise.core.settings import Location, Settings
from groupwise.models.chat.trial_rendering import excess
from groupwise.models.files.folder import error_line, loading
from groupwise.models.load import prompt_ids, text_ids

AUTO, NONE, TOKENIZER = "auto", "none", "tokenizer"

Message = Mapping[str, Any]

#: A word that no template has and no prompt.
MARK = "Zq0"
#: The shortest conversation that a template must be able to render.
QUESTION: Sequence[Message] = ({"role": "user", "content": "?"},)


class ChatSettings(Settings):
    """Chat template: how a problem becomes a prompt.

    template  "auto": the tokenizer's template, or plain text if it has none; "tokenizer": require one; "none": plain
              text; or a Jinja file
    system    system prompt for problems without one; "": none
    thinking  value of the template's enable_thinking; "": the template's default
    open      text that every answer begins with, such as `"<think>\\n"`; part of the prompt, not trained
    """

    template: Location = AUTO
    system: str = ""
    thinking: Literal["", "on", "off"] = ""
    open: str = ""


class Chat:
    """A tokenizer and the way samples are put to it. `template` is the Jinja text, None if prompts are plain."""

    def __init__(
        self, tokenizer: Any, settings: ChatSettings | None = None, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """`tools` are JSON schemas of functions that the policy may call, as the template gets them.

        Raises UsageError if the template is missing, does not render or takes too much for a few words, or a
        setting or the tools have nothing that reads them.
        """
        self.tokenizer, self.settings = tokenizer, settings or ChatSettings()
        self.tools = [dict(tool) for tool in tools]
        self.template = _template(tokenizer, self.settings.template, self.tools)
        self._require_moderate(self.template)
        self._for_tools: str | None = self.template if self.tools else None
        #: Whether the tokenizer itself puts its BOS in front of a text.
        self.adds_bos = _begins(tokenizer, tokenizer("")["input_ids"])
        self._variables: dict[str, bool] = {}
        self._reads_calls = self._reads_tools = False
        self._written: set[tuple[object, ...]] = set()
        #: Whether prompts begin with the tokenizer's BOS, whoever writes it.
        self.has_bos = _begins(tokenizer, self.ids(self.render(QUESTION) if self.template is not None else ""))
        self._take_settings()
        if self.tools and (self.template is None or not self._reads(self.tools)):
            raise UsageError(self._silence(self.tools))

    def encode(self, sample: Sample) -> tuple[int, ...]:
        """Return the ids the engine is given: the rendered prompt with exactly one BOS where the tokenizer puts one."""
        where = f"sample {sample.key}: "
        ids = self.ids(self.text(sample), where)
        if lost := self.dropped(self.messages(sample), where, sample.tools):
            raise UsageError(
                f"{where}the chat template ({self.source}) drops the {lost.get('role')}'s text: "
                f"{str(lost.get('content'))[:40]!r}; set chat.template to a Jinja file that renders it, or take it out"
            )
        return ids

    def prompts(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Return the ids of many prompts."""
        if self.template is None:
            return prompt_ids(self.tokenizer, [self.text(sample) for sample in samples], "a prompt: ")
        return [list(self.encode(sample)) for sample in samples]

    def text(self, sample: Sample) -> str:
        """Render what the policy is to continue; a BOS that the tokenizer will add is not in it.

        The sample's prefill comes last, behind the start of an answer. Raises UsageError if the template would drop
        a call of a tool, or the functions that the sample has.
        """
        where, begun, messages = f"sample {sample.key}: ", self.settings.open + sample.prefill, self.messages(sample)
        if sample.tools:
            self._require_own_tools_read(sample.tools, where)
        if self.template is not None:
            self._require_calls_read(messages, where, sample.tools)
            return self.render(messages, where, tools=sample.tools) + begun
        if len(messages) > 1:
            raise UsageError(
                f"{where}a conversation of {len(messages)} messages, but there is no chat template to put it into; set "
                "chat.template to a Jinja file, or map one text as the prompt"
            )
        return sample.prompt + begun

    def messages(self, sample: Sample) -> list[Message]:
        """Return the conversation that is rendered, a system prompt first: the sample's own, less its prefill."""
        own = [dict(m) for m in sample.messages] or [{"role": "user", "content": sample.prompt}]
        own = own[:-1] if own[-1].get("role") == "assistant" else own
        if not own:
            raise UsageError(f"sample {sample.key}: it has no message before the assistant's")
        if self.settings.system and own[0].get("role") not in ("system", "developer"):
            return [{"role": "system", "content": self.settings.system}, *own]
        return list(own)

    def dropped(
        self, messages: Sequence[Message], where: str = "", tools: Sequence[Mapping[str, Any]] = ()
    ) -> Message | None:
        """Return the first message whose text the template does not write, wherever else the same words stand.

        What it writes of one it writes of all of the same role, at the same end of a conversation.
        """
        for place, message in enumerate(messages if self.template is not None else ()):
            role, content = message.get("role"), message.get("content")
            kind = (role, place == 0, place == len(messages) - 1, bool(message.get("tool_calls")))
            if kind in self._written or not (isinstance(content, str) and content.strip()):
                continue
            marked = [*messages[:place], {**message, "content": f"{content.rstrip()} {MARK}"}, *messages[place + 1 :]]
            try:
                written = MARK.casefold() in self.render(marked, where, tools=tools).casefold()
            except UsageError:  # of a content that is more than text to the template
                written = True
            if not written:
                return message
            self._written.add(kind)
        return None

    def render(
        self,
        messages: Sequence[Message],
        where: str = "",
        prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        **variables: Any,
    ) -> str:
        """Return the template's text of `messages`, with the generation prompt where it is a `prompt`.

        `tools` are offered beside those of the chat. `variables` go to the template as they are. Raises UsageError,
        `where` and the template's own words, if it refuses.
        """
        return self._rendered(messages, [*self.tools, *tools], where, prompt, **variables)

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        where: str = "",
        prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the text of `messages` where these tools alone are offered."""
        try:
            return self.tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                chat_template=self._for_tools if tools else self.template,
                tokenize=False,
                add_generation_prompt=prompt,
                **{"tools": [dict(tool) for tool in tools] or None, **self._variables, **variables},
            )
        except Exception as error:  # a template is a program: it can raise anything
            raise UsageError(
                f"{where}the chat template ({self.source}) does not render it: {type(error).__name__}: "
                f"{error_line(error)}"
            ) from None

    def ids(self, text: str, where: str = "") -> tuple[int, ...]:
        """Map a prompt's text -> its ids. Plain text is encoded as everywhere else; rendered text without what the
        tokenizer would add, because the template has written it, but with its BOS where the template wrote none.
        """
        if self.template is None:
            return tuple(prompt_ids(self.tokenizer, [text], where)[0])
        ids = text_ids(self.tokenizer, [text], where)[0]
        lacking = self.adds_bos and not _begins(self.tokenizer, ids)
        return (self.tokenizer.bos_token_id, *ids) if lacking else tuple(ids)

    def describe(self) -> str:
        """Return one line for the plan: what every prompt is made of."""
        bos = f"BOS {self.tokenizer.bos_token}" if self.has_bos else "no BOS"
        parts = [f"template: {self.source}", bos]
        if self.settings.system:
            system = self.settings.system
            parts.append(f"system prompt {(system if len(system) <= 60 else system[:57] + '...')!r}")
        if self.settings.thinking:
            parts.append(f"thinking {self.settings.thinking}")
        if self.settings.open:
            parts.append(f"answers begin with {self.settings.open!r}, not trained")
        if self.tools:
            parts.append(f"tools {_names(self.tools)}")
        return "; ".join(parts)

    @property
    def source(self) -> str:
        """Origin of the template, and the beginning of its hash."""
        if self.template is None:
            return "none, prompts are plain text"
        origin = "the tokenizer's own" if self.settings.template in (AUTO, TOKENIZER) else self.settings.template
        return f"{origin}, {hashlib.sha256(self.template.encode(errors='surrogatepass')).hexdigest()[:8]}"

    def _take_settings(self) -> None:
        """Refuse settings that nothing would read; keep the variables that the template does read."""
        for key in ("system", "thinking"):
            if getattr(self.settings, key) and self.template is None:
                raise UsageError(
                    f"chat.{key} is set, but there is no chat template to read it: chat.template = "
                    f"{self.settings.template!r}; take it out, or set chat.template to a Jinja file"
                )
        if not self.settings.thinking:
            return
        if self.render(QUESTION, enable_thinking=True) == self.render(QUESTION, enable_thinking=False):
            raise UsageError(
                f"chat.thinking = {self.settings.thinking!r}: the chat template does not read enable_thinking, so it "
                "would change nothing; take it out, and use chat.open to begin the thinking"
            )
        self._variables["enable_thinking"] = self.settings.thinking == "on"

    def _reads(self, tools: Sequence[Mapping[str, Any]], where: str = "") -> bool:
        """Tell whether a prompt is another one where there are these tools."""
        return self._rendered(QUESTION, tools, where) != self._rendered(QUESTION, (), where)

    def _require_own_tools_read(self, tools: Sequence[Mapping[str, Any]], where: str) -> None:
        """Refuse functions of a sample that its prompt would not mention. A tokenizer may have a template for them."""
        if self._reads_tools:
            return
        if self.template is not None and self._for_tools is None:
            self._for_tools = _template(self.tokenizer, self.settings.template, tools)
            self._require_moderate(self._for_tools)
        if self.template is not None:
            self._reads_tools = self._reads(tools, where)
        if not self._reads_tools:
            raise UsageError(f'{where}{self._silence(tools)}; or task.functions = "" leaves them out')

    def _silence(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Tell why no prompt says that there are these tools, and what to do."""
        none = self.template is None
        reads = "there is no chat template to read" if none else f"the chat template ({self.source}) reads no"
        return (
            f"{reads} tools, so no prompt would say that there is {_names(tools)}; set chat.template to a Jinja file "
            "that writes each of `tools`, say by {% for tool in tools %}{{ tool | tojson }}{% endfor %}"
        )

    def _require_moderate(self, template: str | None) -> None:
        tokens = json.dumps(self.tokenizer.special_tokens_map, default=str)
        if template is not None and (wrong := excess(template, tokens)):
            raise UsageError(f"the chat template ({self.source}) {wrong} for a few words; set chat.template anew")

    def _require_calls_read(self, messages: Sequence[Message], where: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Refuse calls of tools in a conversation that no prompt would show."""
        if self._reads_calls or not any(message.get("tool_calls") for message in messages):
            return
        without = [{key: value for key, value in message.items() if key != "tool_calls"} for message in messages]
        text = self.render(messages, where, tools=tools)
        try:
            self._reads_calls = self.render(without, tools=tools) != text
        except UsageError:  # of a turn that says nothing without its calls
            self._reads_calls = True
        if not self._reads_calls:
            raise UsageError(
                f"{where}an assistant's turn holds tool_calls, which the chat template ({self.source}) does not "
                "read; set chat.template to a Jinja file that writes them, or put them into the turn's content"
            )


def _names(tools: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(tool.get("function", tool).get("name", "?")) for tool in tools)


def _template(tokenizer: Any, wanted: str, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the Jinja text that `wanted` means; None for plain text. A tokenizer may have one of its own for tools."""
    if wanted == NONE or (wanted == AUTO and not tokenizer.chat_template):
        return None
    if wanted in (AUTO, TOKENIZER):
        if not tokenizer.chat_template:
            raise UsageError("chat.template = 'tokenizer': the model's tokenizer has no chat template")
        with loading(f"chat.template = {wanted!r}"):  # several by name, none of them the default
            template = tokenizer.get_chat_template(tools=list(tools) or None)
            if not isinstance(template, str):
                raise ValueError("the tokenizer's chat_template is not text")
            return template
    try:
        if Path(wanted).exists():
            require_regular(Path(wanted), f"chat.template = {wanted!r}")
        content = Path(wanted).read_bytes()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"chat.template = {wanted!r}: no file that can be read ({getattr(error, 'strerror', error)}), and no "
            f"choice; {nearest(wanted, (AUTO, NONE, TOKENIZER))}, or the path of a Jinja file"
        ) from None
    try:
        return decoded(content)
    except ValueError as error:
        raise UsageError(f"chat.template = {wanted!r}: {error}") from None


def _begins(tokenizer: Any, ids: Sequence[int]) -> bool:
    return tokenizer.bos_token_id is not None and tuple(ids[:1]) == (tokenizer.bos_token_id,)
