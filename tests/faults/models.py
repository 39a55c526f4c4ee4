"""Mutants of model folders: weights, their headers and names, configurations, tokenizers, what lies beside them."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import strategies as st

from tests.faults.ground import Ground
from tests.faults.mutant import NO_FILES, Content, Mutant, as_json, damaged, odd_json, odd_table, one

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
COMMANDS = (
    ("eval", "model", "--recipe", "recipe.toml"),
    ("eval", "model", "--recipe", "recipe.toml"),
    ("check", "recipe.toml"),
    ("train", "recipe.toml"),
)
#: Sizes that the weights' shapes follow from: any other value than the one that is there is wrong.
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size",
)  # fmt: skip
NO_SIZE = [0, -1, 1.5, "no", "@nan", "@inf", "@digits400", "@digits5000", [], {}, 3, 2**31, 10**6, True]
#: Templates that never end, take all memory, or are none.
TEMPLATES = [
    "{{ 'a' * 10**10 }}", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "{{ [0] * 10**10 }}", "{{ 9 ** 9 ** 9 }}", "{{ '%1000000000d' % 1 }}", "{{ raise_exception('\x1b[31mno') }}",
    "{{ messages[0]['content'].__class__.__mro__ }}", "{% for", "{{ nothing.x.y }}",
]  # fmt: skip
#: A pickle that would write a file beside the box's own.
PICKLE = b"cos\nsystem\n(S'touch pwned'\ntR."


@st.composite
def model(draw: st.DrawFn, ground: Ground) -> Mutant:
    return draw(
        st.one_of(
            _tensors(ground),
            _tensors(ground),
            _header(ground),
            _sizes(ground),
            _fields(ground),
            _fields(ground),
            _bytes(ground),
            _beside(ground),
            _templates(ground),
        )
    )


@st.composite
def _mutant(
    draw: st.DrawFn, what: str, files: tuple[tuple[str, Content], ...], expects: str, kind: str = "model"
) -> Mutant:
    return Mutant(
        kind, what, draw(st.sampled_from(COMMANDS)), tuple((f"model/{name}", c) for name, c in files), expects
    )


def parts(weights: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<Q", weights[:8])
    return json.loads(weights[8 : 8 + size]), weights[8 + size :]


def joined(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else as_json(header)
    return struct.pack("<Q", len(text)) + text + body


def tensors(weights: bytes) -> dict[str, tuple[dict[str, Any], bytes]]:
    """Name -> its entry in the header and its bytes."""
    header, body = parts(weights)
    return {
        name: (entry, body[slice(*entry["data_offsets"])]) for name, entry in header.items() if name != "__metadata__"
    }


def packed(named: dict[str, tuple[dict[str, Any], bytes]]) -> bytes:
    header, body = {}, b""
    for name, (entry, data) in named.items():
        header[name] = {**entry, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    return joined({"__metadata__": {"format": "pt"}, **header}, body)


@st.composite
def _tensors(draw: st.DrawFn, ground: Ground) -> Mutant:
    named = tensors(ground.files("model")[WEIGHTS])
    name = draw(st.sampled_from(sorted(named)))
    entry, data = named[name]
    how = draw(
        one("a missing tensor", "a missing layer", "no tensor", "a further tensor", "another name", "another shape",
                         "NaN", "infinity", "twice as large", "another type")
    )  # fmt: skip
    expects = "refuse"
    if how == "a missing tensor":
        del named[name]
    elif how == "a missing layer":
        named = {n: t for n, t in named.items() if ".layers.0." not in n}
    elif how == "no tensor":
        named = {}
    elif how == "a further tensor":
        named[draw(one("zz", "model.layers.1.mlp.up_proj.weight", f"{name}.x", "score.weight"))] = (entry, data)
    elif how == "another name":
        named[f"x.{name}"] = named.pop(name)
    elif how == "another shape":
        shape = draw(one([], [1, *entry["shape"]], [*reversed(entry["shape"]), 1], [len(data) // 4]))
        shape = shape if shape else [1]
        wrong = shape != entry["shape"]
        named[name] = ({**entry, "shape": shape}, data if shape != [1] else data[:4])
        expects = "refuse" if wrong else "same"
    elif how in ("NaN", "infinity"):
        at = 4 * draw(st.integers(0, len(data) // 4 - 1))
        named[name] = (entry, data[:at] + struct.pack("<f", float("nan" if how == "NaN" else "-inf")) + data[at + 4 :])
    elif how == "another type":
        named[name] = ({**entry, "dtype": draw(one("I32", "U32"))}, data)
        expects = "either"
    else:
        named[name] = ({**entry, "shape": [2, *entry["shape"]]}, data * 2)
    return draw(_mutant(how, ((WEIGHTS, packed(named)),), expects))


@st.composite
def _header(draw: st.DrawFn, ground: Ground) -> Mutant:
    weights = ground.files("model")[WEIGHTS]
    header, body = parts(weights)
    how = draw(one("its length", "its JSON", "a value", "offsets", "the end"))
    if how == "its length":
        content = struct.pack("<Q", draw(one(0, 1, 7, 2**31, 2**40, 2**63, 2**64 - 1))) + weights[8:]
    elif how == "its JSON":
        content = joined(draw(one(b"", b"[]", b"null", b"{", b'{"a":1}', b"[" * 3000, b"\xff" * 8)), body)
    elif how == "offsets":
        name = draw(st.sampled_from(sorted(n for n in header if n != "__metadata__")))
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = draw(
            one([end, begin], [begin, end + 4], [begin - 4, end], [0, 2**63], [2**40, 2**40 + 4], [begin, begin])
        )
        content = joined(header, body)
    elif how == "the end":
        content = joined(header, draw(one(body[:-4], body + b"\0" * 4, b"")))
    else:
        _, changed = draw(odd_table({n: e for n, e in header.items() if n != "__metadata__"}))
        return draw(_mutant("header: a value", ((WEIGHTS, joined(changed, body)),), "either"))
    return draw(_mutant(f"header: {how}", ((WEIGHTS, content),), "refuse"))


@st.composite
def _sizes(draw: st.DrawFn, ground: Ground) -> Mutant:
    config = json.loads(ground.files("model")["config.json"])
    key = draw(st.sampled_from(SIZES))
    value = draw(st.sampled_from(NO_SIZE))
    expects = "same" if config[key] == value and value is not True else "refuse"
    expects = "either" if config[key] == 1 and value is True else expects
    config[key] = value
    return draw(_mutant(f"config.json: {key}", (("config.json", as_json(config)),), expects))


@st.composite
def _fields(draw: st.DrawFn, ground: Ground) -> Mutant:
    name = draw(one("config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"))
    place, changed = draw(odd_table(json.loads(ground.files("model")[name])))
    if draw(st.integers(0, 9)) == 0:
        further = [
            "auto_map", "quantization_config", "model_type", "tie_word_embeddings", "torch_dtype", "chat_template",
            "architectures", "sliding_window", "layer_types",
        ]  # fmt: skip
        place = f"added {draw(st.sampled_from(further))}"
        changed = {**json.loads(ground.files("model")[name]), place.split()[1]: draw(odd_json())}
    key = ".".join(part for part in place.split(maxsplit=1)[1].split(".") if not part.isdigit())
    key = key if name != "tokenizer.json" else key.split(".")[0]
    return draw(_mutant(f"{name}: {key}", ((name, as_json(changed)),), "either"))


@st.composite
def _bytes(draw: st.DrawFn, ground: Ground) -> Mutant:
    files = ground.files("model")
    name = draw(st.sampled_from(sorted(files)))
    how, content = draw(damaged(files[name]))
    wrong = name in ("config.json", "tokenizer.json") and not _is_json(content)
    wrong = wrong or (name == WEIGHTS and len(content) < len(files[name]))
    return draw(_mutant(f"{how} {name}", ((name, content),), "refuse" if wrong else "either"))


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content.decode())
    except (ValueError, RecursionError):
        return False
    return True


@st.composite
def _beside(draw: st.DrawFn, ground: Ground) -> Mutant:
    """Files of other kinds, an index, nothing, or no file at all; code that must not run."""
    weights = ground.files("model")[WEIGHTS]
    how = draw(
        one("a .bin alone", "an index to a .bin", "an index", "no file", "code", "a .bin beside", "another model")
    )
    bins: tuple[str, bytes] = ("pytorch_model.bin", draw(one(PICKLE, b"", weights, b"PK\x03\x04" + b"\0" * 64)))
    names = sorted(tensors(weights))
    if how == "a .bin alone":
        return draw(_mutant(how, ((WEIGHTS, None), bins), "refuse"))
    if how == "a .bin beside":
        return draw(_mutant(how, (bins,), "same"))
    if how == "an index to a .bin":
        index = as_json({"metadata": {}, "weight_map": dict.fromkeys(names, bins[0])})
        return draw(_mutant(how, ((WEIGHTS, None), bins, (INDEX, index)), "refuse"))
    if how == "an index":
        target = draw(one("../keep/weights.bin", "nowhere.safetensors", "/dev/zero", "", "a\x00b") | odd_json())
        table = draw(
            one({"weight_map": dict.fromkeys(names, target)}, {"weight_map": target}, {}, [], {"weight_map": {}})
        )
        return draw(_mutant(how, ((WEIGHTS, None), (INDEX, as_json(table))), "refuse"))
    if how == "code":
        config = json.loads(ground.files("model")["config.json"])
        config["auto_map"] = {"AutoModelForCausalLM": "code.M", "AutoConfig": "code.C"}
        config["model_type"] = draw(one("qwen3", "mine"))
        code = b"import pathlib\npathlib.Path('pwned').touch()\nclass M: pass\nclass C: pass\n"
        return draw(_mutant(how, (("config.json", as_json(config)), ("code.py", code)), "either"))
    if how == "another model":
        config = json.loads(ground.files("model")["config.json"])
        config["model_type"] = draw(one("llama", "gpt2", "bert", "qwen3_moe", "mamba", "t5", "zz"))
        return draw(_mutant(how, (("config.json", as_json(config)),), "refuse"))
    name = draw(one(WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"))
    place = draw(one(*NO_FILES, None))
    needed = name in (WEIGHTS, "config.json", "tokenizer.json")
    return draw(_mutant(f"{place or 'nothing'} as {name}", ((name, place),), "refuse" if needed else "either"))


@st.composite
def _templates(draw: st.DrawFn, ground: Ground) -> Mutant:
    template = draw(st.sampled_from(TEMPLATES))
    config = {**json.loads(ground.files("model")["tokenizer_config.json"]), "chat_template": template}
    files = draw(one((("tokenizer_config.json", as_json(config)),), (("chat_template.jinja", template.encode()),)))
    fine = "nothing" in template or "__mro__" in template
    return draw(_mutant("a chat template", files, "either" if fine else "refuse"))


#: What a tokenizer's rules look for, and what they put in its place.
PATTERNS: list[dict[str, str]] = [
    {"String": "1"}, {"String": ""}, {"String": "\u0f40"}, {"Regex": "(1|11)+$"}, {"Regex": "(.*)*x"}, {"Regex": "."},
    {"Regex": ""}, {"Regex": "["}, {"Regex": r"\d{1,3}"}, {"Regex": r"(?=1)"}, {"Regex": "(?<!" + "a" * 3000 + ")"},
]  # fmt: skip
CONTENTS = ["", "1", "1" * 10, "1" * 1000, "\x00", "\u0f40" * 50]


@st.composite
def _rule(draw: st.DrawFn, place: str) -> Any:
    pattern, content, kind = draw(st.sampled_from(PATTERNS)), draw(st.sampled_from(CONTENTS)), draw(one("A", "B", "X"))
    piece = draw(one({"Sequence": {"id": kind, "type_id": 0}}, {"SpecialToken": {"id": "s", "type_id": 0}}))
    special = {"s": {"id": "s", "ids": [1] * draw(one(0, 1, 10**5)), "tokens": ["<eos>"] * draw(one(1, 10**5))}}
    replace = {"type": "Replace", "pattern": pattern, "content": content}
    rules: dict[str, list[Any]] = {
        "normalizer": [replace, replace, {"type": "Prepend", "prepend": content}, {"type": "ByteLevel"},
                       {"type": "NFKD"}, {"type": "Precompiled", "precompiled_charsmap": "AAAA"}],
        "pre_tokenizer": [{"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
                          {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
                          {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True, "trim_offsets": True}],
        "post_processor": [{"type": "TemplateProcessing", "single": [piece] * draw(one(1, 2, 10**4)),
                            "pair": [piece], "special_tokens": special}],
        "decoder": [replace, replace, {"type": "Fuse"}, {"type": "Strip", "content": "1", "start": 2**31, "stop": 0}],
    }  # fmt: skip
    return draw(st.sampled_from(rules[place]) | odd_json())


@st.composite
def tokenizer(draw: st.DrawFn, ground: Ground) -> Mutant:
    """Rules that grow a text, search without end or are none; ids and tokens that no model has."""
    fields = json.loads(ground.files("model")["tokenizer.json"])
    how = draw(one("rules", "rules", "rules", "tokens", "a further token", "a field"))
    expects = "either"
    if how == "rules":
        place = draw(one("normalizer", "pre_tokenizer", "post_processor", "decoder"))
        rules = [draw(_rule(place)) for _ in range(draw(st.integers(1, 3)))] * draw(one(1, 1, 5, 20))
        inside = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
        fields[place] = {"type": "Sequence", inside.get(place, "decoders"): rules} if len(rules) > 1 else rules[0]
        how = f"rules of the {place}"
    elif how == "tokens":
        text = draw(one("", "z", "z" * 5000, "\x1b[31m", "\x00", "1"))
        fields["model"]["vocab"][text] = draw(one(0, 3, 14, 15, 2**31, 2**32 - 1))
    elif how == "a further token":
        flags = {name: draw(st.booleans()) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        text = draw(one("", "1", "1+", "z" * 5000, "\x1b[31m", "\n"))
        fields["added_tokens"].append({"id": draw(one(0, 3, 14, 15, 2**31)), "content": text, **flags})
    else:
        place = draw(one("truncation", "padding", "model", "version"))
        values: dict[str, list[Any]] = {
            "truncation": [{"direction": "Right", "max_length": n, "strategy": "LongestFirst", "stride": m}
                           for n in (0, 1, 2**40) for m in (0, 5)],
            "padding": [{"strategy": {"Fixed": n}, "direction": "Left", "pad_to_multiple_of": m, "pad_id": 0,
                         "pad_type_id": 0, "pad_token": "<pad>"} for n in (0, 10**9) for m in (None, 0, 2**40)],
            "model": [{"type": "BPE", "vocab": {"1": 3}, "merges": [["1", "x"]]}, {"type": "Unigram", "vocab": []},
                      {"type": "WordPiece", "vocab": {}, "unk_token": "z", "continuing_subword_prefix": "#" * 10**6,
                       "max_input_chars_per_word": 2**40}],
            "version": ["2.0", 1],
        }  # fmt: skip
        fields[place], how = draw(st.sampled_from(values[place]) | odd_json()), f"its {place}"
    return draw(_mutant(how, (("tokenizer.json", as_json(fields)),), expects, "tokenizer"))


#: Names in an index that are none of a file in the folder.
AWAY: list[Any] = [
    "../keep/weights.bin", "/etc/passwd", "../model/a.safetensors", "./a.safetensors", "b" * 300, "", ".", "..",
    "a.bin", "a\x00.safetensors", "gone.safetensors", "\x1b[31m.safetensors", 5, None, [], "\ud800",
]  # fmt: skip


@st.composite
def index(draw: st.DrawFn, ground: Ground) -> Mutant:
    """Weights in two files and an index, of which one thing is wrong; or nothing, and then the model is the same."""
    named = tensors(ground.files("model")[WEIGHTS])
    first = draw(st.sets(st.sampled_from(sorted(named)), min_size=1, max_size=len(named) - 1))
    shards = {file: {n: t for n, t in named.items() if (n in first) == own} for file, own in
              (("a.safetensors", True), ("b.safetensors", False))}  # fmt: skip
    places: dict[str, Any] = {name: file for file, some in shards.items() for name in some}
    how = draw(
        one("nothing", "a file's name", "every file's name", "a missing file", "a weight in both", "a weight in none",
            "a name of no weight", "another place", "no regular file", "a value", "bytes", "integers", "a further file")
    )  # fmt: skip
    name, expects, laid = draw(st.sampled_from(sorted(named))), "refuse", list[tuple[str, Content]]()
    away = st.sampled_from(AWAY)
    if how == "a file's name":
        places[name] = draw(away)
    elif how == "every file's name":
        places = dict.fromkeys(places, draw(away))
    elif how == "a weight in both":
        shards["a.safetensors"][name] = shards["b.safetensors"][name] = named[name]
    elif how == "a weight in none":
        shards[places[name]].pop(name)
    elif how == "integers":
        entry, data = named[name]
        shards[places[name]][name] = ({**entry, "dtype": draw(one("I32", "U32"))}, data)
    elif how in ("a name of no weight", "another place", "a further file"):
        expects = "either"
        if how == "a further file":
            laid.append(("c.safetensors", b"no weights"))
        else:
            key = "zz" if how == "a name of no weight" else name
            places[key] = draw(one("a.safetensors", "b.safetensors"))
    files: dict[str, Content] = {file: packed(some) for file, some in shards.items()}
    text = as_json({"metadata": {"total_size": draw(one(0, 1, -1, 2**70))}, "weight_map": places})
    if how == "a missing file":
        del files["b.safetensors"]
    elif how == "no regular file":
        files["b.safetensors"] = draw(one(*NO_FILES))
    elif how == "a value":
        text, expects = as_json(draw(odd_table(json.loads(text)))[1]), "either"
    elif how == "bytes":
        text, expects = draw(damaged(text))[1], "either"
    expects = "same" if how == "nothing" else expects
    every = ((WEIGHTS, None), *laid, *files.items(), (INDEX, text))
    return draw(_mutant(f"an index: {how}", every, expects, "index"))
