"""Blocks of pages that are run as they stand: those that need seconds, neither a simulator nor a package of others nor
the network, on folders that are made for them.

Others are composed or parsed alone (``test_docs_code.py``): trainings, evaluations, demonstrations and ``play``, which
need simulators and minutes; ``doctor`` and ``bench``, which time a machine; ``serve`` and ``watch``, which do not end;
``upload``; ``export`` with ``--verify`` or as a program. The pages of ``docs/how_to`` and ``docs/deploy.md`` have tests
of their own.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from reported_runs import write_run
from saved_policies import ENV, LORA, save
from test_docs_code import COMMANDS, ROOT, blocks

from embodied import cli
from embodied.testing import FakeEnv
from embodied.tools import export

QUICK = ("compare", "explain", "migrate", "report")
EXPORTS = {("runs/NAME/checkpoints/000100", "--out", "DIR", *more) for more in ((), ("--format", "adapter"))}
RUN = [
    (verb, words) for verb, words in COMMANDS
    if verb in QUICK or "--cfg" in words or (verb == "export" and words in EXPORTS)
]  # fmt: skip


LIKE_LLAMA = {"use_proprio": False, "vocab_size": 32000, "hidden_size": 32}
"""A network that the original's prompts fit, without the robot's state."""


def exported(checkpoint: Path, out: Path) -> str:
    assert export.main([str(checkpoint), "--out", str(out), "--observations", "0"]) == 0
    return str(out)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints and exports that the pages name."""
    folder = tmp_path_factory.mktemp("project")
    whole = save(folder / "runs" / "whole", is_lora=False, **LIKE_LLAMA)
    lora = save(folder / "runs" / "NAME", **LIKE_LLAMA, **LORA, model_path=exported(whole, folder / "FOLDER"))
    exported(lora, folder / "DIR")
    for number in ("000004", "000100"):
        shutil.copytree(lora, lora.with_name(number))
    return folder


def run(page: str, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> dict[str, Any]:
    """The names that a block of Python of a page leaves; ``given`` are those that it takes from its reader."""
    monkeypatch.chdir(folder)
    code = [text for text in blocks(ROOT / "docs" / page, "python", "") if "import" in text][number]
    exec(compile(code, page, "exec"), given)
    return given


def test_a_checkpoint_answers_as_the_page_says(made, monkeypatch):
    obs = {"images": torch.zeros(1, 1, 16, 16, 3, dtype=torch.uint8), "state": torch.zeros(1, 8)}
    found = run("checkpoints.md", 0, made, monkeypatch, obs=obs, noise=torch.rand(1, 28))
    assert found["decision"].fields["actions"].shape == (1, 4, 7)
    assert found["env"] == FakeEnv(**ENV).spec


def test_the_network_alone_answers_as_the_page_says(made, monkeypatch):
    ids = torch.tensor([[1, 5, 9, 12]])
    found = run(
        "checkpoints.md", 1, made, monkeypatch,
        pixel_values=torch.zeros(1, 6, 32, 32), input_ids=ids, attention_mask=torch.ones_like(ids),
    )  # fmt: skip
    assert found["action_logits"].shape[:2] == (1, 28)
    assert found["hidden"].shape[:2] == (1, 28)


def test_an_exported_folder_opens_as_the_page_says(made, monkeypatch):
    found = run("export.md", 0, made, monkeypatch)
    assert found["env"] == FakeEnv(**ENV).spec
    assert found["policy"].spec.num_action_chunks == 4


def test_there_are_commands_of_each_kind():
    assert {verb for verb, _ in RUN} == {*QUICK, "train", "export"}
    assert len([verb for verb, _ in RUN if verb == "export"]) == 2


@pytest.mark.parametrize(("verb", "words"), RUN, ids=lambda one: one if isinstance(one, str) else shlex.join(one))
def test_the_commands_of_the_pages_run(verb, words, made, tmp_path, monkeypatch, capsys):
    if verb == "report":
        pytest.importorskip("vl_convert")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "runs", "runs")
    for seed, word in enumerate(words, start=1):
        folder = Path(word.partition("@")[0])
        if folder.parent == Path("runs") and not folder.exists():
            write_run(folder, iterations=12, evaluations=(0, 10), seed=seed)
    shutil.copy(ROOT / "tests" / "migrate" / "rlinf_math.yaml", "their_grpo.yaml")
    shutil.copy(ROOT / "tests" / "migrate" / "recipes" / "trl" / "dr_grpo.py", "train_grpo.py")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    assert cli.main([verb, *words]) == 0
    assert capsys.readouterr().out.strip()
    if verb == "report" and "--time-to-success" not in words:
        assert list(Path().rglob("report.html"))
    if verb == "export":
        assert Path("DIR", "embodied.json").is_file()
    if verb == "migrate":
        (theirs,) = (word for word in words if "_grpo." in word)
        assert Path("mine/experiment", theirs).with_suffix(".yaml").is_file()
