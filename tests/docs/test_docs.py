"""The pages of docs/ that hold code or numbers: all of it runs, and every number is the code's."""

from __future__ import annotations

import ast
import doctest
import re
import runpy
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import groupwise
from groupwise.algorithms import catalog as rows
from groupwise.algorithms.laws import LAWS, tried
from groupwise.algorithms.laws.draws import draw
from groupwise.algorithms.parts.gae import GAE
from groupwise.algorithms.settings import KINDS
from groupwise.cli import __main__ as cli
from groupwise.commands.algorithm import laws
from groupwise.config import answers, recipe, recipe_files
from groupwise.config.resolve import resolve

DOCS = Path(__file__).parents[2] / "docs"
OWN_LOOP = DOCS / "howto" / "own_loop.py"
GROUP_BASED = sorted(rows.CATALOG.keys() - {"ppo", "grpo-process", "opd", "score-centering"})


@pytest.fixture
def own() -> dict[str, Any]:
    """The names of own_loop.py."""
    return runpy.run_path(str(OWN_LOOP))


def told(text: str) -> tuple[float, float, float]:
    """Pass rate before and after, and the largest log-ratio, as own_loop.py prints them."""
    before, after, farthest = re.findall(r"(?:pass rate|log-ratio) ([\d.]+)", text)
    return float(before), float(after), float(farthest)


@pytest.mark.parametrize(
    ("name", "steps", "gain"), [("grpo", 15, 0.1), pytest.param("gspo", 22, 0.05, marks=pytest.mark.slow)]
)
def test_the_loop_learns_from_the_command_line(name: str, steps: int, gain: float) -> None:
    command = [sys.executable, str(OWN_LOOP), name, str(steps)]
    before, after, farthest = told(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert after > before + gain
    assert farthest > 0.1


@pytest.mark.parametrize("name", GROUP_BASED)
def test_every_group_based_row_runs_in_the_loop_and_its_ratios_move(
    own: dict[str, Any], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    own["main"](name, 2)
    assert told(capsys.readouterr().out)[2] > 0


def test_a_row_that_needs_a_critic_says_so(own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"ppo: its advantages need a critic's values"):
        own["main"]("ppo", 1)


def test_the_loop_is_short_and_uses_the_public_surface_only() -> None:
    text = OWN_LOOP.read_text()
    names = {ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    used = {name for name in names if name.startswith(("groupwise.", "algo.")) and not name.startswith("algo.kl")}
    assert used == {"groupwise.algorithm", "groupwise.Algorithm", "algo.advantages", "algo.loss"}
    assert len(text.splitlines()) <= 100


def test_the_loops_log_probabilities_are_those_it_sampled_from(own: dict[str, Any]) -> None:
    torch.manual_seed(1)
    policy = own["Policy"]()
    prompts, completions, mask = own["sample"](policy, torch.arange(19))
    found, words = own["logprobs"](policy, prompts, completions), torch.cat([prompts, completions], dim=1)
    for t in range(completions.shape[1]):
        expected = policy(words[:, : 3 + t])[:, -1].log_softmax(-1)[torch.arange(19), completions[:, t]]
        torch.testing.assert_close(found[:, t], expected)
    for row, inside in zip(completions.tolist(), mask.tolist(), strict=True):
        length = row.index(10) + 1 if 10 in row else len(row)
        assert inside == [t < length for t in range(len(row))]


def test_the_loops_scores_are_sums_of_digits_up_to_the_end(own: dict[str, Any]) -> None:
    said = [[9, 5, 10, 3, 3], [7, 0, 7, 10, 10], [9, 5, 0, 0, 0], [10, 9, 5, 10, 0], [9, 6, 10, 0, 0]]
    completions = torch.tensor(said)
    ends = (completions == 10).long()
    found = own["score"](torch.full((5,), 14), completions, ends.cumsum(1) - ends == 0)
    assert found.tolist() == [1, 1, 0, 0, 0]


def test_a_kl_in_the_reward_is_subtracted_in_the_loop(own: dict[str, Any]) -> None:
    """rloo with a strong one: what is left is R_i - mean of the others, R = score - beta sum_t (old - ref)."""
    torch.manual_seed(2)
    algo, policy, reference = groupwise.algorithm("rloo", {"kl.beta": 0.7}), own["Policy"](), own["Policy"]()
    batch: dict[str, Tensor] = own["collect"](algo, policy, reference)
    targets = 10 * batch["prompts"][:, 0] + batch["prompts"][:, 1]
    kl = ((batch["old"] - batch["ref"]) * batch["mask"]).sum(1)
    reward = (own["score"](targets, batch["completions"], batch["mask"]) - 0.7 * kl).view(-1, own["G"])
    expected = reward - (reward.sum(1, keepdim=True) - reward) / (own["G"] - 1)
    assert kl.abs().max() > 0.1
    first = batch["mask"][:, :1].float() * expected.view(-1, 1)
    torch.testing.assert_close(batch["advantages"][:, :1], first, rtol=1e-4, atol=1e-5)


def test_the_page_of_the_loop_tells_what_every_group_based_row_did() -> None:
    found = re.findall(
        r"^\| (\S+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", (DOCS / "howto" / "own_loop.md").read_text(), re.MULTILINE
    )
    assert sorted(name for name, *_ in found) == GROUP_BASED
    assert all(float(before) < 0.1 < 0.7 < float(after) for _, before, after, _ in found)


ADDING = (DOCS / "howto" / "adding-an-algorithm.md").read_text()
BLOCKS: dict[str, str] = dict(re.findall(r"```python\n# ([^\n]+)\n(.*?)```", ADDING, re.DOTALL))
TOML = re.findall(r"```toml\n(.*?)```", ADDING, re.DOTALL)
COMMANDS = re.findall(r"^    groupwise (.+)$", re.sub(r" \\\n +", " ", ADDING), re.MULTILINE)
PART_USE = "my_parts.py:StaleClip"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's with the page's file, where the commands are given."""
    (tmp_path / "my_parts.py").write_text(BLOCKS["my_parts.py"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> type:
    """The page's part, row and entries put where the page says; gives the part's class."""
    module = types.ModuleType("groupwise.algorithms.parts.stale")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(BLOCKS["my_parts.py"], vars(module))
    names = {**vars(rows), "StaleClip": module.StaleClip}
    exec(BLOCKS["src/groupwise/algorithms/catalog.py"], names)
    for where, table in (('settings.py: KINDS["trust"]', KINDS["trust"]), ("catalog.py: CATALOG", rows.CATALOG)):
        for key, value in eval(BLOCKS[f"src/groupwise/algorithms/{where}"], names).items():
            monkeypatch.setitem(table, key, value)  # type: ignore[arg-type]
    code = answers.algorithms_code() + BLOCKS["src/groupwise/algorithms/catalog.py"]
    monkeypatch.setattr(answers, "algorithms_code", lambda: code)
    return module.StaleClip


def test_an_algorithm_takes_under_forty_lines() -> None:
    parts = [code for name, code in BLOCKS.items() if name != "my_advantages.py"]
    lines = [line.strip() for code in parts for line in code.splitlines()]
    assert len(BLOCKS) == ADDING.count("```python") == 6
    assert len([line for line in lines if line and not line.startswith("#")]) < 40


def test_the_added_algorithms_law_holds(added: type) -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS["tests/laws/test_stale.py"], names)
    laws = [law for name, law in names.items() if name.startswith("test_")]
    assert len(laws) == 1
    laws[0]()


def test_the_added_part_obeys_the_laws_of_every_trust_region(added: type) -> None:
    assert [seen for _, seen in tried(added(delta=0.1)) if seen] == []


def test_the_pages_own_advantage_obeys_its_laws(tmp_path: Path) -> None:
    (tmp_path / "my_advantages.py").write_text(BLOCKS["my_advantages.py"])
    trial = laws(f"{tmp_path}/my_advantages.py:Signs", {})
    assert trial.slot == "advantage"
    assert trial.broken == 0


def test_every_name_that_a_remedy_gives_is_there_and_on_the_page() -> None:
    remedies = [law.remedy for slot in LAWS.values() for law in slot]
    homes = set(re.findall(r"(\w+)(?:\(.*?\))? of (groupwise\.[\w.]+\w)", "\n".join(remedies)))
    assert len(homes) >= 5
    for name, home in homes:
        assert hasattr(import_module(home), name), f"{home}.{name}"
        assert f"`{home}`" in ADDING, home
        assert f"`{name}" in ADDING, name


def test_the_pages_recipe_has_the_part_and_its_field(theirs: Path) -> None:
    (table,) = (tomllib.loads(text)["algorithm"] for text in TOML if PART_USE in text)
    row = groupwise.algorithm(table.pop("name"), table)
    assert repr(row.trust) == "StaleClip(epsilon_low=0.2, epsilon_high=0.2, dual_clip=0.0, delta=0.5)"


def test_the_page_shows_what_a_broken_law_looks_like(theirs: Path) -> None:
    naive = BLOCKS["my_parts.py"].replace(
        "super().__call__(log_ratio, advantage, logp_live, mask)",
        "log_ratio.exp() * advantage, mask.to(advantage.dtype)",
    )
    assert naive != BLOCKS["my_parts.py"]
    (theirs / "my_parts.py").write_text(naive)
    broken = [f"{words}: {seen}" for words, seen in laws(PART_USE, {}).laws if seen]
    shown = [" ".join(words.split()) for words in re.findall(r"^    broken  (.*(?:\n {8}.*)*)", ADDING, re.MULTILINE)]
    assert len(shown) == 2
    assert set(shown) <= set(broken)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_commands_are_understood(
    added: type, theirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    verb, name, *rest = command.split()
    if verb in ("explain", "laws"):
        monkeypatch.setattr(sys, "argv", ["groupwise", verb, name, *rest])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
        assert not leaving.value.code
        fields = "(epsilon_low=0.2, epsilon_high=0.2, dual_clip=0.0, delta=0.5)"
        assert f"{'StaleClip' if PART_USE in command else 'stale-clip'}{fields}" in capsys.readouterr().out
        return
    settings = dict(recipe_files.assignment(word) for word in rest if word != "--set")
    plan = resolve(recipe.load(name, settings))
    assert plan.algorithm.name == settings.get("algorithm.name", "grpo")
    if "stale" in command.lower():
        trust: Any = plan.algorithm.trust
        assert type(trust).__name__ == added.__name__
        assert trust.delta == settings.get("algorithm.trust.delta", 0.5)


def test_the_added_algorithm_trains(added: type, small: Callable[..., dict[str, Any]]) -> None:
    run = groupwise.train("quickstart", small(steps=1, algorithm__name="grpo-stale", evaluation__problems=4))
    assert run.summary["algorithm"] == "grpo-stale"
    assert 'kind = "stale-clip"' in (run.folder / "recipe.toml").read_text()


GAE_PAGE = (DOCS / "concepts" / "gae.md").read_text()
TABLES = re.findall(r"^gamma = ([\d.]+), lam = ([\d.]+)\n\n((?:\|.*\n)+)", GAE_PAGE, re.MULTILINE)


def columns(table: str) -> dict[str, list[str]]:
    """A page's table, column by column."""
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return dict(zip(head, map(list, zip(*body, strict=True)), strict=True))


def numbers(cells: list[str]) -> Tensor:
    """[1,T] float64, what is left empty as 0."""
    return torch.tensor([[float(cell or 0) for cell in cells]], dtype=torch.float64)


def computed(table: Mapping[str, list[str]], gamma: float, lam: float) -> dict[str, Tensor]:
    """Every column that the code can compute from mask, r and V."""
    rewards, values = numbers(table["r"]), numbers(table["V"])
    mask = torch.tensor([[m == "yes" for m in table["mask"]]])
    advantages, returns = groupwise.gae(rewards, values, mask, gamma, lam)
    one_step, _ = groupwise.gae(torch.zeros_like(rewards), values, mask, 1.0, 0.0)  # V_next - V
    whitened, _ = GAE(gamma, lam)(rewards, values, mask, torch.zeros(1, dtype=torch.long), None)
    return {
        "V_next": torch.where(mask, one_step + values, 0.0),
        "delta": groupwise.gae(rewards, values, mask, gamma, 0.0)[0],
        "A": advantages,
        "whitened A": whitened,
        "return": returns,
    }


@pytest.mark.parametrize("place", range(len(TABLES)))
def test_every_number_of_the_tables_is_gaes(place: int) -> None:
    gamma, lam, text = TABLES[place]
    table = columns(text)
    expected = computed(table, float(gamma), float(lam))
    made = table.keys() - {"t", "mask", "r", "V"}
    assert {"A", "return"} <= made <= expected.keys()
    for name in made:
        atol = 5e-5 if name == "whitened A" else 1e-12
        torch.testing.assert_close(numbers(table[name]), expected[name], rtol=0, atol=atol, msg=lambda m, n=name: n + m)


def test_the_tables_are_of_one_row_and_show_both_ends_of_lambda() -> None:
    shown = [("1", "0.5"), ("0.9", "0.5"), ("0.9", "0"), ("0.9", "1"), ("1", "0.5")]
    assert [(gamma, lam) for gamma, lam, _ in TABLES] == shown
    given = [{name: columns(text)[name] for name in ("t", "mask", "r", "V")} for *_, text in TABLES]
    assert all(row == given[0] for row in given)


def test_the_names_of_the_ends_are_the_catalogs() -> None:
    (text,) = re.findall(r"^(\| name .*\n(?:\|.*\n)+)", GAE_PAGE, re.MULTILINE)
    table, batch = columns(text), draw(0)
    group = torch.zeros(len(batch.mask), dtype=torch.long)
    for lam, kind in zip(table["lam"], table["`advantage.kind`"], strict=True):
        part = KINDS["advantage"][kind.strip("`")](gamma=0.9)
        found, _ = part(batch.ref, batch.old, batch.mask, group, None)
        torch.testing.assert_close(found, GAE(0.9, float(lam))(batch.ref, batch.old, batch.mask, group, None)[0])


def test_the_pages_examples_print_what_they_say() -> None:
    flags = doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(DOCS / "concepts" / "gae.md"), module_relative=False, optionflags=flags)
    assert (failed, tried > 4) == (0, True)


def test_no_command_of_groupwise_needs_the_makefile_of_a_clone() -> None:
    """Who has installed the wheel has none."""
    for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        commands = re.findall(r"^    .*\bgroupwise .*$", page.read_text(), re.MULTILINE)
        assert not [line for line in commands if re.search(r"\bmake [a-z]", line)], page.name


RECIPE = (DOCS / "howto" / "recipe.md").read_text()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of docs/howto/recipe.md, a part and rows for its recipe, where the commands are given."""
    for name, text in re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", RECIPE, re.DOTALL):
        (tmp_path / name).write_text(text)
    (tmp_path / "my_parts.py").write_text(BLOCKS["my_parts.py"])
    for name, numbers in (("prompts", range(30)), ("easy", range(30, 36)), ("hard", range(100, 106))):
        rows = "".join(f'{{"prompt": "Question: say {number}"}}\n' for number in numbers)
        (tmp_path / f"{name}.jsonl").write_text(rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_pages_recipe_and_its_commands_work(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, as they stand there; `check` alone leaves its model unloaded."""
    commands = [line.partition("#")[0].split() for line in re.findall(r"^    groupwise (.*)$", RECIPE, re.MULTILINE)]
    assert [words[0] for words in commands] == ["laws", "check", "train", "train", "train", "eval"]
    said = []
    for words in commands:
        more = {"check": ["--no-model"], "train": ["--set", "journal.report=false"]}.get(words[0], [])
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["groupwise", *words, *more])
            with pytest.raises(SystemExit) as leaving:
                cli.main()
        assert not leaving.value.code, capsys.readouterr().err
        said.append(capsys.readouterr().out)
    laws_, check, trained, resumed, _, evaluated = said
    assert "14 of 14 laws hold" in laws_
    assert "no faults found" in check
    assert "held-out reward" in trained
    plan = (mine / "runs" / "mine" / "log.txt").read_text()
    assert "StaleClip(" in plan
    assert r"stop '\n\n', 'Question:'" in plan
    assert "changed after step 4: steps 4 -> 6" in resumed
    assert "runs/second:4 - runs/mine:6: " in evaluated
    assert "pass rate" not in trained.replace("with evaluation.pass_at by a pass rate", "")
