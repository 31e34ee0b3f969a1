"""Keys of RLinf, verl, ROLL and Cosmos-RL for models, engines and rewards: taken, felt, or refused with the reason."""

from __future__ import annotations

import csv
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from embodied.models.causal_lm import build_reward_model
from embodied.models.causal_lm.settings import Settings as TextSettings
from embodied.models.openvla_oft.settings import Settings as RobotSettings

from embodied import schema
from embodied.errors import ConfigError, UnknownKeyError
from embodied.run.build import engine_process
from embodied.run.build.engine import options
from embodied.schema.compose.compose import compose
from embodied.schema.keys.paths import MISSING, at, with_changes
from embodied.schema.others import key_table
from embodied.schema.others.accepted_no_ops import no_ops, without_neutral
from embodied.schema.rules.no_effect import notes
from embodied.testing import FakePolicy

HERE = Path(__file__).parents[1]
CONFIG = str(HERE / "config")
FAKE = {"actor": {"model": {"_target_": f"{__name__}.takes_nothing"}}, "reward": {"model": {"max_length": 7}}}
ROBOT, TEXT = ("env=fake", "model=openvla_oft_tiny"), ("env=arithmetic", "model=causal_lm_tiny")
OTHER = "something else"


def config(*overrides: str, base: tuple[str, ...] = ("env=fake", "model=fake")) -> schema.Config:
    return compose([*base, *overrides], "train", [CONFIG]).config


def model_of(*overrides: str, base: tuple[str, ...]) -> dict[str, Any]:
    return schema.target_kwargs(config(*overrides, base=base).actor.model, "actor.model")


@pytest.mark.parametrize("key", no_ops())
def test_what_asks_for_nothing_is_dropped_and_the_rest_refused(key):
    for value in (None, *no_ops()[key].values):
        assert without_neutral(with_changes(FAKE, {key: value})) == (FAKE, [])
    left, (refused,) = without_neutral(with_changes(FAKE, {key: OTHER}))
    assert left == FAKE
    message = str(refused)
    assert key in message
    assert no_ops()[key].why in message
    assert f"leave {key} out" in message
    assert no_ops()[key].fix in message


def test_true_is_not_one():
    _, (refused,) = without_neutral(with_changes(FAKE, {"actor.model.tensor_model_parallel_size": True}))
    assert re.search(r"tensor_model_parallel_size of \S+takes_nothing is true", refused.message)
    assert without_neutral(with_changes(FAKE, {"actor.model.activation": "SwiGLU"})) == (FAKE, [])


@pytest.mark.parametrize(("acting", "learning"), [(True, False), (False, True), (True, True), (None, True)])
def test_acting_may_be_compiled_apart_from_learning(acting, learning):
    keys = (f"rollout.use_torch_compile={json.dumps(acting)}", f"actor.model.torch_compile={json.dumps(learning)}")
    settings = RobotSettings.from_kwargs(model_of(*keys, base=ROBOT))
    assert (settings.acts_compiled, settings.torch_compile) == (learning if acting is None else acting, learning)
    said = [line for line in notes(config(*keys, base=ROBOT)) if "round differently" in line]
    assert len(said) == (settings.acts_compiled != learning)


def test_a_model_whose_layers_cannot_be_compiled_says_so():
    with pytest.raises(ConfigError, match=r"rollout\.use_torch_compile is true.*its layers cannot be compiled"):
        config("rollout.use_torch_compile=true", base=TEXT)
    config("rollout.use_torch_compile=false", base=TEXT)


def test_without_an_engine_there_are_no_weights_to_compare():
    with pytest.raises(ConfigError, match=r"validate_save_dir is x.*no weights to compare"):
        config("rollout.validate_save_dir=x", base=TEXT)
    engine = ("rollout.backend=vllm", "rollout.validate_weight=true")
    given = {("rollout.validate_weight=true",): "no weights travel", engine: "validate_save_dir=FOLDER keeps",
             (*engine, "rollout.validate_save_dir=x"): None, ("rollout.validate_weight=null",): None}  # fmt: skip
    for keys, said in given.items():
        found = [line for line in notes(config(*keys, base=TEXT)) if "validate" in line]
        assert len(found) == (said is not None)
        assert said is None or said in found[0]


def test_the_policys_own_tokenizer_is_taken_for_the_reward_model():
    key, given = "reward.model.input_tokenizer", ("actor.model.model_path=a", "actor.tokenizer.tokenizer_model=b")
    base = ("env=math", "model=causal_lm")
    for same in ("a", "b"):
        assert config(*given, f"{key}={same}", base=base) == config(*given, base=base)
    with pytest.raises(ConfigError, match="before the policy's chat template and tokenizer"):
        config(*given, f"{key}=c", base=base)


def test_all_are_refused_at_once_and_unknown_keys_beside_them():
    """Those of the env's class too."""
    with pytest.raises(UnknownKeyError) as failed:
        config("actor.mcore_gpt=true", "rollout.load_format=x", "runner.sed=1", "env.eval.hroizon=2")
    for part in ("actor.mcore_gpt is true", 'rollout.load_format is "x"', "'runner.sed'", "'env.eval.hroizon'"):
        assert part in failed.value.message
    assert failed.value.remedy.startswith("set runner.seed=1 env.eval.horizon=2 instead of ")
    assert "leave actor.mcore_gpt out" in failed.value.remedy
    with pytest.raises(ConfigError) as two:
        config("actor.mcore_gpt=true", "rollout.load_format=x")
    assert len(two.value.message.splitlines()) == 2


def test_a_model_that_takes_the_key_is_given_it():
    for name, base in (("embodied.models.openvla_oft.build_policy", "is_lora"), ("builtins.object", "hidden_size")):
        mapping = {"actor": {"model": {"_target_": name, base: None}}}
        assert (at(without_neutral(mapping)[0], f"actor.model.{base}") is MISSING) == (name == "builtins.object")
    own = {"actor": {"model": {"_target_": f"{__name__}.takes_any", "lora_rank": 4}}}
    assert without_neutral(own) == (own, [])


def takes_any(**keys: Any) -> None:
    """Stands for a model of a user."""


def takes_nothing() -> None:
    """Stands for another one."""


def test_a_composed_run_is_the_same_with_neutral_keys():
    own = {f"actor.model.{name}" for name in inspect.signature(FakePolicy).parameters}
    own |= {f"reward.model.{name}" for name in inspect.signature(build_reward_model).parameters}
    keys = [f"{key}={'null' if not n.values else str(n.values[0]).lower()}" for key, n in no_ops().items()
            if not isinstance((n.values or (0,))[0], dict) and key not in own]  # fmt: skip
    assert config(*keys) == config()


def test_every_key_of_the_share_is_answered():
    known = {key.name for key in key_table.keys()} | set(no_ops())  # noqa: SIM118  a function
    known |= {f"actor.model.{name}" for kind in (TextSettings, RobotSettings) for name in kind.__dataclass_fields__}
    known |= {f"reward.model.{name}" for name in build_reward_model.__code__.co_varnames}
    libero = config("env=libero_10", base=("model=openvla_oft_tiny",)).model_dump(by_alias=True)
    sections = ("actor.model", "actor.tokenizer", "rollout", "algorithm", "data", "reward", "critic", "env")
    rows = csv.DictReader(
        (HERE.parent / "embodied/schema/others/foreign_keys.tsv").open(encoding="utf-8"), delimiter="\t"
    )
    ours = {key for row in rows for key in row["our_key"].split(" + ") if key.startswith(sections)}
    assert len(ours) > 200
    assert [key for key in sorted(ours) if key not in known and at(libero, key) is MISSING] == []


def test_a_robot_policy_and_a_language_model_take_what_makes_sense_for_them():
    both = ("actor.model.is_lora=true", "actor.model.lora_rank=4", "actor.model.lora_use_rslora=true",
            "actor.model.trainable_map={a: true}", "actor.model.low_cpu_mem_usage=true", "actor.model.hidden_size=48",
            "actor.model.override_config={num_hidden_layers: 3, num_attention_heads: 4}")  # fmt: skip
    robot = RobotSettings.from_kwargs(model_of(*both, base=ROBOT))
    assert (robot.hidden_size, robot.num_hidden_layers, robot.num_attention_heads) == (48, 3, 4)
    text = TextSettings.from_kwargs(model_of(*both, "actor.model.use_proprio=false", "rollout.eos=[3, 4]", base=TEXT))
    assert text.sizes == {"hidden_size": 48}
    assert text.ends == (3, 4)
    assert (text.lora_rank, robot.lora_rank, text.lora_use_rslora, robot.lora_use_rslora) == (4, 4, True, True)


@pytest.mark.parametrize(
    ("base", "key", "said"),
    [
        (TEXT, "actor.model.unnorm_key=bridge_orig", "no statistics of a data set"),
        (TEXT, "actor.model.num_images_in_input=2", "does not let its pictures be chosen"),
        (TEXT, "actor.model.attn_implementation=flash_attention_2", "remove the key, or set it to sdpa"),
        (TEXT, "actor.model.low_cpu_mem_usage=maybe", "true or false"),
        (TEXT, "rollout.eos=[]", "set rollout.eos to one or to several"),
        (ROBOT, "actor.model.context_parallel_size=2", "short sequences, so that one device computes each"),
        (ROBOT, "actor.model.model_revision=main", "nothing is downloaded"),
        (ROBOT, "actor.model.override_config={dropout: 0.1}", "unknown key 'actor.model.override_config.dropout'"),
        (ROBOT, "actor.model.override_config={hidden_size: 32} actor.model.hidden_size=48", "hidden_size is 48"),
        (("env=fake", "model=fake"), "actor.model.lora_rank=4", "this model has no adapters"),
        (TEXT, "rollout.precision=bf16", "rollout.precision is bf16 and actor.model.precision fp32"),
        (TEXT, "rollout.cuda_graph_max_bs=4", "enforce_eager true replays nothing"),
        (TEXT, "rollout.vllm.block_size=16", "rollout.vllm is for an engine"),
        (TEXT, "actor.model.external_lib=no_such_library", "cannot import 'no_such_library'"),
        (("env=math", "model=fake_text"), "reward.clip_min=1 reward.clip_max=0", "clip_min 1 is above"),
        (ROBOT, "reward.clip_min=1", "takes no verifier"),
        (("env=math", "model=fake_text"), "reward.remote.functions={a: 1}", "functions is set, and enable is false"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(base, key, said):
    settings = RobotSettings if base == ROBOT else TextSettings
    keys = re.split(r" (?=actor|reward)", key)
    with pytest.raises(ConfigError) as failed:
        settings.from_kwargs(model_of(*keys, base=base))
    assert said in str(failed.value)


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """The cache of huggingface_hub with two commits of a model."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    model = tmp_path / "hf/hub/models--ours--tiny"
    for commit, names in (("a" * 40, ["main"]), ("b" * 40, ["v2", "refs/pr/1"])):
        (model / "snapshots" / commit).mkdir(parents=True)
        for name in names:
            (model / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
            (model / "refs" / name).write_text(commit, encoding="utf-8")
    (model / "refs" / "lost").write_text("c" * 40, encoding="utf-8")
    return model / "snapshots"


@pytest.mark.parametrize("base", [ROBOT, TEXT, ("env=fake", "model=fake")])
@pytest.mark.parametrize(
    ("revision", "commit"), [(None, "a"), ("main", "a"), ("v2", "b"), ("refs/pr/1", "b"), ("b" * 40, "b")]
)
def test_a_revision_is_found_where_the_hub_has_put_it(downloaded, base, revision, commit):
    asked = [] if revision is None else [f"actor.model.model_revision={revision}"]
    mapping = compose([*base, "actor.model.model_path=ours/tiny", *asked], "train", [CONFIG]).resolved["actor"]["model"]
    assert mapping["model_path"] == str(downloaded / (commit * 40))
    assert mapping.get("model_revision") is None


@pytest.mark.parametrize("revision", ["v3", "lost", "../main", "c" * 40])
def test_a_revision_that_was_not_downloaded_is_refused(downloaded, revision):
    with pytest.raises(ConfigError, match=r"(?s)revision .* is not in .*lost, main, refs/pr/1, v2, a{40}, b{40}.*hf "):
        config("actor.model.model_path=ours/tiny", f"actor.model.model_revision={revision}", base=TEXT)
    with pytest.raises(ConfigError, match="which has none"):
        config("actor.model.model_path=ours/other", f"actor.model.model_revision={revision}", base=TEXT)


def test_a_folder_and_a_name_that_is_not_there_are_left_as_they_are(downloaded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ours/tiny").mkdir(parents=True)
    for path in ("ours/tiny", "ours/unknown"):
        assert model_of(f"actor.model.model_path={path}", base=TEXT)["model_path"] == path
    with pytest.raises(ConfigError, match="model_path is a folder, which has one revision"):
        TextSettings.from_kwargs(
            model_of("actor.model.model_path=ours/tiny", "actor.model.model_revision=v2", base=TEXT)
        )


def test_an_external_library_is_imported_first(tmp_path, monkeypatch):
    (tmp_path / "registers_something.py").write_text(
        "import pathlib; pathlib.Path(__file__).with_name('seen').touch()", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model_of("actor.model.external_lib=[registers_something]", base=("env=fake", "model=fake"))
    assert (tmp_path / "seen").exists()


def test_graphs_are_for_batches_that_are_not_too_large():
    rollout = config("rollout.enforce_eager=false", "rollout.cuda_graph_max_bs=4").rollout
    assert [rollout.eager(rows) for rows in (1, 4, 5)] == [False, False, True]
    assert schema.RolloutConfig(enforce_eager=False).eager(1000) is False
    assert schema.RolloutConfig().eager(1) is True


def test_an_engine_is_told_what_is_set_for_it():
    said = ("rollout.backend=vllm", "rollout.vllm.block_size=16", "rollout.vllm.enable_chunked_prefill=false",
            "rollout.vllm.use_flashinfer_sampler=true", "rollout.attention_backend=TRITON_ATTN")  # fmt: skip
    rollout = config(*said, base=TEXT).rollout
    wanted = {"block_size": 16, "enable_chunked_prefill": False, "attention_backend": "TRITON_ATTN"}
    assert options(rollout) == wanted
    assert engine_process.environment(rollout, None)["VLLM_USE_FLASHINFER_SAMPLER"] == "1"
    usual = config("rollout.backend=vllm", base=TEXT).rollout
    assert options(usual) == {}
    assert "VLLM_USE_FLASHINFER_SAMPLER" not in engine_process.environment(usual, None)


def test_rewards_are_clipped_and_functions_are_sent():
    keys = ("data=a.jsonl", "reward.remote.enable=true", "reward.remote.url=http://a", "reward.clip_min=-5",
            "reward.clip_max=5", "reward.remote.functions={dance: 0.5}")  # fmt: skip
    env = config(*keys, base=("env=math", "model=fake_text")).env
    wanted = {"name": "remote", "url": "http://a", "score_key": "score", "weight": 1.0, "functions": {"dance": 0.5},
              "clip_min": -5.0, "clip_max": 5.0}  # fmt: skip
    assert at(env.model_dump(by_alias=True), "train.verifier") == [wanted]
