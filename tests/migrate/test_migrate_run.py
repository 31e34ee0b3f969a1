"""What becomes of whole files of other systems: exactly these keys are refused, and a run would begin with the result.

``refused.tsv`` has the keys. Write it anew: python tests/migrate/test_migrate_run.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from embodied.models.causal_lm import build_policy

from embodied import train
from embodied.migrate import Migration, migrate
from embodied.observe.trackers import services
from embodied.tools import migrate as tool

HERE = Path(__file__).parents[1] / "migrate"
REFUSED = HERE / "refused.tsv"
MODEL = ("actor.model.model_path=model",)
DATA = (*MODEL, "data.train_data_paths=[train.jsonl]")
BOTH = (*DATA, "data.val_data_paths=[test.jsonl]")
ROBOT = ("model=openvla_oft_tiny", "actor.model.unnorm_key=null")  # statistics come with a checkpoint
NO_FILES = ("actor.model.model_path=null", "actor.model.lora_path=null")
ITS_TOKENIZER = "actor.tokenizer.tokenizer_model=null"  # that of the model's folder
ITS_SIZES = ("actor.model.vocab_size=null", "actor.model.hidden_size=null")  # of 7.6 B parameters
SMALL = {
    "rlinf_libero_10.yaml": ("rlinf", ROBOT),
    "rlinf_math.yaml": ("rlinf", MODEL),
    "verl_math.sh": ("verl", MODEL),
    "simplevla_libero.sh": ("verl", ROBOT),
    "roll_math.yaml": ("roll", MODEL),
    "cosmos_math.toml": ("cosmos-rl", MODEL),
    "cosmos_vla.toml": ("cosmos-rl", ("env=libero_10", *ROBOT, *NO_FILES, "actor.global_batch_size=4096")),
}
"""File → whose it is, and what a user gives beside it."""
PAGES = {
    "rlinf_reference_math.yaml": ("rlinf", (*BOTH, ITS_TOKENIZER)),
    "rlinf_reference_older.yaml": ("rlinf", (*BOTH, ITS_TOKENIZER)),
    "rlinf_reference_embodied.yaml": ("rlinf", (*ROBOT, *NO_FILES, *ITS_SIZES)),
    "verl_reference.yaml": ("verl", (*BOTH, "rollout.backend=native")),
    "roll_reference.yaml": ("roll", (*DATA, "rollout.backend=native")),
    "cosmos_reference.toml": (
        "cosmos-rl",
        ("env=math", "model=causal_lm", "rollout.backend=native", *MODEL, "data.train_data_paths=[choices.jsonl]"),
    ),
}
"""The same for the keys and values on their pages of documentation."""
NOT_RUN = {"verl_reference_sft.yaml": "the page says nothing of its data"}
FAST = ("roll_math.yaml", "cosmos_math.toml")


def write_files() -> None:
    """Writes what the files of the others name, small: a model, problems."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    build_policy(override_config=sizes).save(Path("model"))
    rows = [{"prompt": f"{n}+{n}=", "instruction": f"{n}+{n}=", "answer": str(2 * n)} for n in range(40)]
    choices = [{**row, "answer": "ABCD"[int(row["answer"]) // 2 % 4]} for row in rows]
    for name, given in (("train", rows), ("test", rows), ("choices", choices)):
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in given), encoding="utf-8")
    parquet, table = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow").Table
    for name in ("train", "test"):
        parquet.write_table(table.from_pylist(rows), f"{name}.parquet")


def absent(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Migration]]:
    """Migrates a file, once, in a folder with all that it names. No package of a tracker is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("theirs"))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setattr(services, "version", absent)
        write_files()
        yield cache(migrated)


def migrated(name: str) -> Migration:
    system, given = (SMALL | PAGES)[name]
    return migrate(tool.read(HERE / name), system, given)


def refused(found: Migration) -> list[str]:
    return sorted(note.key for note in found.notes if note.how == "refused")


@pytest.mark.parametrize("name", [*SMALL, *PAGES])
def test_exactly_these_keys_are_refused(name, theirs):
    if name in ("rlinf_libero_10.yaml", "rlinf_reference_embodied.yaml"):
        pytest.importorskip("libero")  # whose suites say how many tasks there are
    known = [line.split("\t") for line in REFUSED.read_text(encoding="utf-8").splitlines()]
    found = theirs(name)
    assert refused(found) == [key for file, key in known if file == name]
    assert all(note.why for note in found.notes if note.how == "refused")
    assert (found.remaining, found.elsewhere) == ("", ""), "nothing is left to do"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in SMALL | PAGES]
)
def test_the_result_passes_a_dry_run(name, theirs, capsys):
    file = Path("mine/experiment") / f"{Path(name).stem}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(theirs(name).as_yaml(), encoding="utf-8")
    given = (SMALL | PAGES)[name][1]
    assert train.main(["--config-dir", "mine", f"experiment={file.stem}", *given, "runner.dry_run=true"]) == 0
    assert "memory of the process" in capsys.readouterr().out


def test_every_file_is_tried_and_says_where_it_is_from():
    theirs = [file for file in HERE.iterdir() if file.suffix in tool.SUFFIXES and file.suffix != ".py"]  # of tests here
    files = {file.name: file.read_text(encoding="utf-8") for file in theirs}
    assert set(files) == {*SMALL, *PAGES, *NOT_RUN}
    assert [name for name, text in files.items() if not text.startswith("# ")] == []


def test_a_page_without_data_has_no_unknown_key():
    found = migrate(tool.read(HERE / "verl_reference_sft.yaml"), "verl", ROBOT)
    assert [note.key for note in found.notes if note.how == "unknown"] == []


def test_a_tracker_that_is_not_installed_hides_no_other_one(theirs):
    found = theirs("verl_math.sh")
    (note,) = [note for note in found.notes if note.key == "trainer.logger"]
    assert (note.how, note.value) == ("extra", ["console", "wandb"])
    assert note.settings == {"runner.logger.logger_backends": ["jsonl"]}
    assert "pip install 'embodied-rl[wandb]'" in note.why
    mapping = {"runner": {"logger": {"logger_backends": ["wandb", "tensorboard", "swanlab"]}}}
    kept = migrate(mapping, "rlinf", ROBOT).settings
    assert kept == {"runner.logger.logger_backends": ["jsonl", "tensorboard"]}


def test_a_pass_is_no_larger_than_the_batch(theirs):
    found = theirs("simplevla_libero.sh")
    chunks = 512 // 8  # control steps of an episode there / actions of a chunk
    assert found.settings["actor.global_batch_size"] == 8 * chunks, "SimpleVLA-RL counts episodes"
    assert "actor.micro_batch_size" not in found.settings, "a pass of the default size is smaller"
    assert migrate({"actor": {"global_batch_size": 64}}, "rlinf", ()).settings == {"actor.global_batch_size": 64}


def test_what_the_answer_leaves_is_the_prompts(theirs):
    found = theirs("cosmos_math.toml")
    assert (found.settings["runner.seq_length"], found.settings["data.max_prompt_length"]) == (1024, 1024 - 256)


def test_a_critic_of_theirs_is_a_value_head(theirs):
    found = theirs("verl_reference.yaml")
    assert (found.settings["algorithm.adv_type"], found.settings["actor.model.value_head"]) == ("gae", True)


def test_stages_take_turns_in_a_lockstep(theirs):
    found = theirs("rlinf_libero_10.yaml")
    assert (found.settings["rollout.pipeline_stage_num"], found.settings["rollout.schedule"]) == (2, "lockstep")
    one = migrate({"rollout": {"pipeline_stage_num": 1}}, "rlinf", ROBOT)
    assert (one.settings, one.remaining) == ({"rollout.pipeline_stage_num": 1}, "")


def test_episodes_of_a_replica_are_rounds_over_the_slots(theirs):
    found = theirs("cosmos_vla.toml")
    assert found.settings["algorithm.rollout_epoch"] * found.settings["env.train.total_num_envs"] == 64
    assert found.settings["actor.micro_batch_size"] == 16


if __name__ == "__main__":
    import os
    import tempfile

    services.version = absent
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_files()
        lines = [f"{name}\t{key}\n" for name in SMALL | PAGES for key in refused(migrated(name))]
    REFUSED.write_text("".join(lines), encoding="utf-8")
    print(f"{REFUSED}: {len(lines)} keys")
