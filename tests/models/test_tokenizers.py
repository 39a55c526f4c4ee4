"""Laws of tokenizers of a stranger: rules that grow a text or never end are refused before a text is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.core.errors import UsageError
from groupwise.models.files import folder as folders
from groupwise.models.files import tokenizer_trial
from groupwise.models.load import load_policy, prompt_ids, text_ids

Fields = dict[str, Any]


def replace(pattern: str, content: str, kind: str = "String") -> Fields:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(*rules: Fields) -> Fields:
    return {"type": "Sequence", "normalizers": list(rules)}


def split(pattern: str) -> Fields:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def template(copies: int) -> Fields:
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {"type": "TemplateProcessing", "single": pair[:1] * copies, "pair": pair, "special_tokens": {}}


@pytest.fixture
def folder(policy_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(policy_folder, tmp_path / "model"))


def change(folder: Path, change: Callable[[Fields], object]) -> None:
    fields = json.loads((folder / "tokenizer.json").read_text())
    change(fields)
    (folder / "tokenizer.json").write_text(json.dumps(fields))


#: The place of a second text.
OTHER = {"Sequence": {"id": "B", "type_id": 0}}


def eaten() -> Fields:
    """Templates of which one leaves the text out, and the next has nothing to put anywhere."""
    own = {"id": "s", "ids": [], "tokens": ["<eos>"]}
    drops = [{"SpecialToken": {"id": "s", "type_id": 0}}]
    none = {"type": "TemplateProcessing", "single": drops, "pair": drops, "special_tokens": {"s": own}}
    return {"type": "Sequence", "processors": [template(1), none] * 2}


#: Rules as families of models have them.
PLAIN: dict[str, Fields] = {
    "none": {},
    "llama": {
        "normalizer": sequence({"type": "Prepend", "prepend": "_"}, replace(" ", "_")),
        "decoder": {"type": "Sequence", "decoders": [replace("_", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "post_processor": template(1),
    },
    "qwen": {"normalizer": {"type": "NFC"}, "pre_tokenizer": split(min(tokenizer_trial.KNOWN))},
    "smollm2": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}],
        }
    },
}


@pytest.mark.parametrize("name", PLAIN)
def test_rules_of_known_families_need_no_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_trial, "_tried", lambda parts: pytest.fail(f"tried: {parts}"))
    assert tokenizer_trial.excess(PLAIN[name]) == ""


HOSTILE: dict[str, tuple[Fields, str]] = {
    "a letter becomes a hundred": ({"normalizer": sequence(*[replace("a", "a" * 10)] * 2)}, "makes 79 characters"),
    "a letter of few texts": ({"normalizer": sequence(*[replace("\u0f40", "\u0f40" * 10)] * 3)}, "makes 500 char"),
    "a class of letters": ({"normalizer": sequence(*[replace("[\u0f00-\u0f7f]", "\u0f40" * 300, "Regex")])}, "makes"),
    "on the way back": ({"decoder": {"type": "Sequence", "decoders": [replace("a", "a" * 10)] * 3}}, "makes"),
    "copies": ({"post_processor": template(1000)}, "makes"),
    "a second text where there is one": ({"post_processor": {**template(1), "single": [OTHER]}}, r"fails \(index out"),
    "a text without special tokens": ({"post_processor": eaten()}, r"fails \(not yet implemented"),
    "a search without end": ({"pre_tokenizer": split("(a|aa)+$")}, r"fails \(Onig: .*retry-limit"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_rules_that_grow_a_text_or_never_end_are_refused(name: str, folder: Path) -> None:
    fields, words = HOSTILE[name]
    change(folder, lambda own: own.update(fields))
    with pytest.raises(UsageError, match=rf"does not load: its tokenizer\.json {words}.*; take another"):
        load_policy(folder)


def test_pages_of_rules_are_not_even_tried() -> None:
    assert tokenizer_trial.excess({"post_processor": template(120_000)}).endswith("characters long, above 4,194,304")


@pytest.mark.slow
def test_rules_that_take_all_memory_end_their_own_process() -> None:
    fields = {"normalizer": sequence(*[{"type": "ByteLevel"}] * 25)}
    assert tokenizer_trial.excess(fields).startswith(("ends its process", "takes more than"))


def test_rules_that_are_only_unknown_are_tried_and_taken(folder: Path) -> None:
    before = text_ids(load_policy(folder).tokenizer, ["1+2=3"])
    change(folder, lambda own: own.update(pre_tokenizer=split("[\\s\\S]{1}"), normalizer={"type": "NFKC"}))
    assert text_ids(load_policy(folder).tokenizer, ["1+2=3"]) == before


def test_a_search_without_end_in_a_text_that_was_not_tried_is_one_line(folder: Path) -> None:
    change(folder, lambda own: own.update(pre_tokenizer=split("(Q|QQ)+$")))
    tokenizer = load_policy(folder).tokenizer
    with pytest.raises(UsageError, match=r"here: the model's tokenizer cannot read it: .*retry-limit"):
        text_ids(tokenizer, ["Q" * 64 + "!"], "here: ")


def test_a_token_of_pages_is_refused(folder: Path) -> None:
    change(folder, lambda own: own["model"]["vocab"].update({"z" * 5000: 3}))
    with pytest.raises(UsageError, match="its tokenizer has a token of 5,000 characters"):
        load_policy(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "chat_template.jinja", "vocab.txt"])
def test_a_file_that_would_fill_memory_is_not_read(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / name).open("ab") as file:
        file.truncate(2**22 + 1)
    monkeypatch.setattr(folders, "LARGEST_TEXT", 2**22)
    with pytest.raises(UsageError, match=rf"{name} has 4,194,305 bytes, .* take it out"):
        load_policy(folder)


def test_the_ids_of_a_text_do_not_depend_on_the_texts_beside_it(folder: Path) -> None:
    tokenizer = load_policy(folder).tokenizer
    texts = ["1+2=3", "", "4+4=", "1+2=3", "4+4="]
    for encode in (text_ids, prompt_ids):
        together = encode(tokenizer, texts)
        assert together == [encode(tokenizer, [text])[0] for text in texts]
        together[0].append(0)  # a list of its own each, though equal texts are encoded once
        assert together[3] == encode(tokenizer, [texts[3]])[0]
