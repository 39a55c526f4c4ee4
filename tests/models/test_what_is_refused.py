"""Models of transformers' own classes that cannot be trained or sampled as others are, refused by their reasons."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from benchmarks.architectures.build import save_small, small_config
from benchmarks.architectures.trial import RUN
from safetensors.torch import save_file
from torch import Tensor, nn

import groupwise
from groupwise.core.collate import collate
from groupwise.core.engine import Request, Sampling
from groupwise.core.errors import UsageError
from groupwise.core.records import Group, Prompt
from groupwise.core.samples import Sample
from groupwise.engines.local.engine import LocalEngine
from groupwise.engines.local.trial import require_sampled
from groupwise.models.context import positions
from groupwise.models.files.folder import read_config, require_floating
from groupwise.models.forward import heads
from groupwise.models.forward.fused_layers import FusedLayers
from groupwise.models.forward.heads import check_halves, check_runs, require_known_head
from groupwise.models.load import load_policy
from groupwise.models.moe.record import require_routers
from groupwise.planning.activations import cached_widths, without_memory
from groupwise.training.learner import Learner, LearnerSettings

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ALIBI = {"vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 4.0, 8.0, 16.0],
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 24,
    "factor": 4.0,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def config_of(kind: str, **keys: Any) -> Any:
    return getattr(transformers, f"{kind}Config")(**keys)


def model_of(config: Any) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def gemma3(**text: Any) -> Any:
    """A Gemma 3 with a vision tower, as the checkpoints from 4B on are."""
    inner = {**SIZES, "head_dim": 8, "sliding_window": 64, "initializer_range": 0.2, **text}
    image = {"image_token_index": 30, "boi_token_index": 31, "eoi_token_index": 32, "mm_tokens_per_image": 4}
    return config_of("Gemma3", text_config=inner, vision_config=VISION, **image)


CHANGED = {
    "cap": config_of("Gemma2", **SIZES, head_dim=8),
    "cap of 30,000": config_of("Gemma2", **SIZES, head_dim=8, final_logit_softcapping=3e4),
    "divided": config_of("Granite", **SIZES, logits_scaling=8.0),
    "multiplied": config_of("Cohere", **SIZES),
    "nanochat": config_of("NanoChat", **SIZES),
    "divided before the head": small_config("minicpm3"),
}


@pytest.mark.parametrize("spread", [1e-4, 0.02, 1.0], ids=["tiny logits", "usual", "large"])
@pytest.mark.parametrize("name", [*CHANGED, "another name for a cap"])
def test_a_cap_or_a_scale_that_the_configuration_names_is_the_models_own(name: str, spread: float) -> None:
    config = copy.deepcopy(CHANGED[name]) if name in CHANGED else small_config("recurrent_gemma")
    config.initializer_range = spread
    check_halves(model_of(config))
    require_known_head(without_memory(config))


@pytest.mark.parametrize("name", CHANGED)
def test_engine_and_learner_have_one_cap_or_scale(name: str) -> None:
    require_agreement(model_of(type(CHANGED[name])(**{**CHANGED[name].to_dict(), "initializer_range": 0.5})), tokens=40)


#: Changes by a model that no configuration names; of logits that a cap of 30 has made, one of 30,000 is none.
UNNAMED: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "scale": ("Llama", lambda logits: 8 * logits),
    "cap": ("Llama", lambda logits: 30 * (logits / 30).tanh()),
    "cap of 30,000": ("Llama", lambda logits: 3e4 * (logits / 3e4).tanh()),
    "square": ("Llama", lambda logits: logits + 1e-2 * logits.square()),
    "scale of a cap": ("Gemma2", lambda logits: 8 * logits),
    "cap of a cap": ("Gemma2", lambda logits: 30 * (logits / 30).tanh()),
}


@pytest.mark.parametrize("spread", [1e-4, 0.02, 1.0], ids=["tiny logits", "usual", "large"])
@pytest.mark.parametrize(("name", "change"), UNNAMED.values(), ids=UNNAMED)
def test_a_change_that_the_configuration_does_not_name_is_seen_however_small_logits_are(
    name: str, spread: float, change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(name, **SIZES, initializer_range=spread, **({"head_dim": 8} if name == "Gemma2" else {}))
    for trial, model in ((check_halves, model_of(config)), (require_known_head, without_memory(config))):
        own = model.forward

        def forward(*args: Any, own: Any = own, **kwargs: Any) -> Any:
            out = own(*args, **kwargs)
            out.logits = change(out.logits)
            return out

        monkeypatch.setattr(model, "forward", forward)
        with pytest.raises(UsageError, match="changes its logits"):
            trial(model)


def test_a_scale_before_the_head_is_seen_on_small_logits_too() -> None:
    model = model_of(config_of("Llama", **SIZES, initializer_range=1e-5))
    check_halves(model)
    model.lm_head.register_forward_pre_hook(lambda module, args: (args[0] * (8.0 if module.training else 1.0),))
    before = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        model.lm_head.train()
        try:
            return before(*args, **kwargs)
        finally:
            model.lm_head.eval()

    model.forward = forward
    with pytest.raises(UsageError, match="changes its logits"):
        check_halves(model)


def test_a_configuration_without_a_size_is_refused_by_the_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "blt"}))
    with pytest.raises(UsageError, match=r"it: config\.json is a BltConfig, which has no hidden_size"):
        read_config(tmp_path, "it")


def test_what_a_module_or_a_trial_raises_is_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    keys = {"vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4, "dim_head": 8, "dim_ff": 48}
    FusedLayers(model_of(config_of("CpmAnt", **keys, num_hidden_layers=1)))  # its norms assert their own size
    widths = cached_widths(without_memory(config_of("xLSTM", vocab_size=40, hidden_size=32, num_heads=3, num_blocks=2)))
    assert set(widths) == {32}
    assert not caplog.records


def test_tables_of_integers_are_no_weights_under_the_names_of_files_either(tmp_path: Path) -> None:
    model = model_of(config_of("Llama", **SIZES))
    model.model.layers[0].register_buffer("table", torch.arange(3))
    for name, fits in (("layers.0.ffn.table", True), ("layers.0.ffn.up", False)):
        save_file({name: torch.arange(3)}, tmp_path / "model.safetensors")
        with nullcontext() if fits else pytest.raises(UsageError, match=r"1 of its weights .*ffn\.up: I64"):
            require_floating(model, [tmp_path / "model.safetensors"], "it")


def test_a_model_that_reads_from_both_sides_is_no_policy() -> None:
    for spread in (1e-2, 0.3):
        keys = {**SIZES, "initializer_range": spread}
        backwards = model_of(config_of("BertGeneration", **keys, is_decoder=False))
        for trial in (check_halves, check_runs):
            trial(model_of(config_of("BertGeneration", **keys, is_decoder=True)))
            with pytest.raises(UsageError, match=r"depend on the tokens behind it.*set is_decoder to true"):
                trial(backwards)


@pytest.mark.parametrize(
    "config",
    [config_of("Falcon", **ALIBI, alibi=False), config_of("Llama", **SIZES), config_of("Phi3", **SIZES), gemma3()],
    ids=["falcon", "llama", "phi3", "gemma3"],
)
def test_what_can_be_run_is_not_refused_without_weights(config: Any) -> None:
    require_sampled(without_memory(config))
    require_known_head(without_memory(config))


@pytest.mark.parametrize(
    ("config", "gate"),
    [
        (config_of("HunYuanMoEV1", **SIZES, head_dim=8, num_experts=4, moe_topk=2), "HunYuanMoEV1Gate"),
        (config_of("JetMoe", **SIZES, kv_channels=8, num_local_experts=4), "JetMoeTopKGating"),
        (config_of("Llama4Text", **SIZES, head_dim=8, num_local_experts=4, intermediate_size_mlp=48), "Llama4Router"),
    ],
    ids=["hunyuan", "jetmoe", "llama4"],
)
def test_routers_of_another_name_are_not_called_dense(config: Any, gate: str) -> None:
    with pytest.raises(UsageError, match=rf"routers \({gate}\) are not known: their routes cannot be recorded"):
        require_routers(model_of(config))


def test_routers_are_known_or_the_model_is_dense() -> None:
    mixture = config_of("GptOss", **SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2)
    assert len(require_routers(without_memory(mixture))) == 2
    with pytest.raises(UsageError, match="it is dense"):
        require_routers(without_memory(config_of("Llama", **SIZES)))


@pytest.mark.parametrize(
    "quantised",
    [{"quant_method": "fp8"}, {"quant_method": "mxfp4"}, {"quant_method": "bitsandbytes", "load_in_4bit": True}],
    ids=lambda value: value["quant_method"],
)
@pytest.mark.parametrize("nested", [False, True], ids=["outside", "in the text part"])
def test_quantised_weights_are_refused_before_they_are_read(
    policy_folder: Path, tmp_path: Path, quantised: Any, nested: bool
) -> None:
    folder = Path(shutil.copytree(policy_folder, tmp_path / "model"))
    fields = json.loads((folder / "config.json").read_text())
    (fields.setdefault("text_config", {}) if nested else fields)["quantization_config"] = quantised
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UsageError, match=rf"quantised .*{quantised['quant_method']}.* save them dequantised"):
        load_policy(folder)


def test_an_evaluation_takes_a_model_that_changes_its_logits_in_a_way_unknown(
    policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "DIVISORS", ())
    folder = Path(shutil.copytree(policy_folder, tmp_path / "model"))
    vocabulary = read_config(folder, "it").vocab_size
    model = model_of(config_of("Granite", **{**SIZES, "vocab_size": vocabulary}, logits_scaling=8.0))
    model.save_pretrained(folder)
    with pytest.raises(UsageError, match="can be evaluated"):
        load_policy(folder)
    policy = load_policy(folder, sampled_only=True)
    (group,) = LocalEngine(policy.model, frozenset(), 0).generate([Request((5, 9), 2, 0)], Sampling(max_new_tokens=6))
    for completion in group:
        ids = torch.tensor([(5, 9, *completion.tokens)])
        with torch.no_grad():
            own = policy.model(input_ids=ids).logits.log_softmax(-1)[0, 1:-1]
        logp = own.gather(-1, ids[0, 2:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logp_engine), logp, atol=1e-5, rtol=0, check_dtype=False)


def require_agreement(model: nn.Module, tokens: int) -> None:
    """Engine and learner give one log-probability for each sampled token."""
    prompts = [Prompt(Sample(str(i), str(i), ""), tuple(range(4, 4 + n))) for i, n in enumerate((3, 7, 1))]
    engine = LocalEngine(model, frozenset(), pad=0)
    groups = engine.generate([Request(p.tokens, 3, i) for i, p in enumerate(prompts)], Sampling(max_new_tokens=tokens))
    scored = [tuple(type(c)(**{**vars(c), "score": 0.0}) for c in group) for group in groups]
    batch = collate([Group(p, group) for p, group in zip(prompts, scored, strict=True)], 0)
    learner = Learner(model, None, LearnerSettings(tokens_per_microbatch=200), 1.0, 1)
    old = learner.annotate(batch, old=True, ref=False).need("logp_old")
    assert float((old - batch.logp_engine)[batch.mask].abs().max()) < 1e-4


def test_the_text_part_of_a_multimodal_model_is_sampled_as_it_is_trained() -> None:
    config = gemma3()
    assert positions(config) == 96
    require_agreement(model_of(config), tokens=89)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({}, "its backward does not run in evaluation mode"), ({"adapter.rank": 2}, "no gradient leads")],
)
def test_a_model_that_has_no_backward_in_evaluation_mode_is_refused_in_a_line(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = save_small("reformer", tmp_path / "reformer")
    with pytest.raises(UsageError, match=rf"^ReformerModelWithLMHead cannot be trained: {words}"):
        groupwise.train({**RUN, "model": str(folder), "runs": str(tmp_path), **changes}, quiet=True)


def test_a_configuration_without_sizes_is_refused_in_a_line(tmp_path: Path) -> None:
    recipe = {**RUN, "model": str(save_small("blt", tmp_path / "blt")), "runs": str(tmp_path)}
    words = "config.json is a BltConfig, which has no hidden_size and no num_hidden_layers"
    with pytest.raises(UsageError, match=words):
        groupwise.train(recipe, quiet=True)
    assert [words in fault for fault in groupwise.check(recipe).faults] == [True]
