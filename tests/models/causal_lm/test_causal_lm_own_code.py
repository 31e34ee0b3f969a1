"""Code that comes with a checkpoint: run where it is needed and permitted, named where it is not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from causal_lm_texts import make
from embodied.models.causal_lm import build_policy, build_reward_model, prompt_counter
from transformers import LlamaConfig, LlamaForSequenceClassification, dynamic_module_utils

from embodied.errors import CheckpointError, ConfigError
from embodied.learn.checkpoint.exported import HERE, check_trusted
from embodied.schema import notes
from embodied.schema.compose.compose import compose

NETWORK = """
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, LlamaModel
class MineConfig(LlamaConfig):
    model_type = "mine"
class MineModel(LlamaModel):
    config_class = MineConfig
AutoModel.register(MineConfig, MineModel)
class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig
class MineForSequenceClassification(LlamaForSequenceClassification):
    config_class = MineConfig
"""
TOKENIZER = """
from transformers import PreTrainedTokenizerFast
class MineTokenizer(PreTrainedTokenizerFast):
    def decode(self, *given, **keys):
        return super().decode(*given, **keys).upper()
"""
BOTH = {"trust_remote_code": True, "tokenizer_trust_remote_code": True}
TARGET = "embodied.models.causal_lm.build_policy"
UNUSED = "none was needed, and none was run"


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A place of the tests' own for the code that transformers imports."""
    with pytest.MonkeyPatch.context() as patch:
        place = str(tmp_path_factory.mktemp("modules"))
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", place)
        patch.syspath_prepend(place)
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]


def edit(file: Path, **more: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **more}), encoding="utf-8")


def with_code(folder: Path, network: bool = True, tokenizer: bool = True) -> Path:
    if network:
        (folder / "modeling_mine.py").write_text(NETWORK, encoding="utf-8")
        names = {"AutoConfig": "Config", "AutoModelForCausalLM": "ForCausalLM",
                 "AutoModelForSequenceClassification": "ForSequenceClassification"}  # fmt: skip
        named = {key: f"modeling_mine.Mine{name}" for key, name in names.items()}
        edit(folder / "config.json", model_type="mine", auto_map=named)
    if tokenizer:
        (folder / "tokenization_mine.py").write_text(TOKENIZER, encoding="utf-8")
        named = {"AutoTokenizer": [None, "tokenization_mine.MineTokenizer"]}
        edit(folder / "tokenizer_config.json", tokenizer_class="MineTokenizer", auto_map=named)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "saved"
    make("llama").save(folder)
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "saved"
    make("llama").save(folder)
    return with_code(folder)


def test_with_the_permission_the_checkpoints_own_code_is_run(own, plain, tmp_path):
    policy, other = build_policy(model_path=str(own), **BOTH), make(model_path=str(plain))
    assert policy.describe()["code of the checkpoint"] == "that of the network and the tokenizer is run"
    assert type(policy.network).__name__ == "MineForCausalLM"
    tokens = other.tokenizer.prompt("a few words")
    assert policy.tokenizer.decode(tokens) == other.tokenizer.decode(tokens).upper() != other.tokenizer.decode(tokens)
    assert all(map(torch.equal, policy.network.state_dict().values(), other.network.state_dict().values()))
    policy.save(tmp_path / "again")
    again = build_policy(model_path=str(tmp_path / "again"), **BOTH)
    assert again.tokenizer.decode(tokens) == policy.tokenizer.decode(tokens)
    assert all(map(torch.equal, policy.parameters(), again.parameters()))
    with pytest.raises(ConfigError, match="which an inference engine does not have"):
        _ = policy.engine_facts


@pytest.mark.parametrize(
    ("given", "file", "key"),
    [
        ({"trust_remote_code": True}, "tokenization_mine.py", "actor.tokenizer.trust_remote_code"),
        ({"tokenizer_trust_remote_code": True}, "modeling_mine.py", "actor.model.trust_remote_code"),
    ],
)
def test_without_the_permission_the_error_names_the_code_and_the_key(own, given, file, key, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "get_class_in_module", lambda *args, **keys: pytest.fail("it was run"))
    if "tokenizer_trust_remote_code" in given:
        monkeypatch.undo()  # the tokenizer's is run, and may be
    with pytest.raises(CheckpointError) as failed:
        build_policy(model_path=str(own), **given)
    assert f"needs code of its own ({file}), and {key} is false" in failed.value.message
    assert failed.value.remedy == f"read that file; if you trust it, set {key}=true"


def test_the_counter_of_prompts_has_the_same_permission(own):
    assert prompt_counter(model_path=str(own), tokenizer_trust_remote_code=True)(["abc"]) == [3]
    with pytest.raises(CheckpointError, match=r"actor\.tokenizer\.trust_remote_code is false"):
        prompt_counter(model_path=str(own))


def test_a_permission_that_is_not_needed_runs_nothing_and_is_told(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "get_class_in_module", lambda *args, **keys: pytest.fail("it was run"))
    policy = make(model_path=str(plain), **BOTH)
    assert policy.describe()["code of the checkpoint"] == UNUSED
    assert "code of the checkpoint" not in make(model_path=str(plain)).describe()
    make("llama").save(tmp_path / "known")
    named = {"AutoConfig": "no.File", "AutoModelForCausalLM": "no.File"}
    edit(tmp_path / "known/config.json", auto_map=named)
    edit(tmp_path / "known/tokenizer_config.json", auto_map={"AutoTokenizer": ["no.File", None]})
    known = build_policy(model_path=str(tmp_path / "known"), **BOTH)
    assert known.describe()["code of the checkpoint"] == UNUSED, "transformers has these classes itself"


def test_code_that_lies_elsewhere_is_refused(tmp_path):
    make("llama").save(tmp_path / "m")
    with_code(tmp_path / "m", tokenizer=False)
    edit(tmp_path / "m/config.json", auto_map={"AutoModelForCausalLM": "someone/else--modeling_mine.MineForCausalLM"})
    with pytest.raises(CheckpointError, match="which does not lie in it"):
        build_policy(model_path=str(tmp_path / "m"), **BOTH)


def test_a_reward_model_has_a_permission_of_its_own(plain, tmp_path):
    folder = tmp_path / "judge"
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    words = json.loads((plain / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    torch.manual_seed(0)
    LlamaForSequenceClassification(
        LlamaConfig(vocab_size=words, num_labels=1, pad_token_id=0, **sizes)
    ).save_pretrained(folder)
    usual = build_reward_model(str(folder), str(plain))
    scores = usual(["1+1="], ["2"])
    assert "code of the checkpoint" not in usual.describe()
    assert build_reward_model(str(folder), str(plain), trust_remote_code=True).describe()["code of the checkpoint"] == (
        UNUSED
    )
    with_code(folder, tokenizer=False)
    with pytest.raises(CheckpointError, match=r"reward\.model\.trust_remote_code is false"):
        build_reward_model(str(folder), str(plain))
    judge = build_reward_model(str(folder), str(plain), trust_remote_code=True)
    assert judge.describe()["code of the checkpoint"] == "that of the network is run"
    assert judge(["1+1="], ["2"]) == scores


def test_a_folder_of_a_stranger_has_no_permission(own, plain):
    for keys in ({"model_path": str(own), **BOTH}, {"model_path": HERE, "tokenizer_trust_remote_code": True}):
        with pytest.raises(ConfigError, match="permits to run Python files"):
            check_trusted(TARGET, keys, own)
    check_trusted(TARGET, {"model_path": str(plain), **BOTH}, plain)
    check_trusted(TARGET, {"model_path": str(own)}, own)


def test_keys_of_padding_reach_the_model_or_are_told():
    given = ("actor.tokenizer.padding_side=left", "actor.sequence_packing=false")
    text = compose(["env=math", "model=causal_lm", "actor.model.model_path=x", *given, "rollout.padding=3"]).config
    own = {"padding_side": "left", "sequence_packing": False, "pad_token": 3}
    assert {key: text.actor.model.model_extra[key] for key in own} == own
    robot = compose(["env=libero_10", "model=openvla_oft_tiny", *given]).config
    assert [line.partition(":")[0] for line in notes(robot)] == [
        'actor.tokenizer.padding_side "left"', "actor.sequence_packing false",
    ]  # fmt: skip
    assert notes(text) == [
        "actor.sequence_packing false: texts are filled up; true is faster, and the same up to rounding"
    ]
    with pytest.raises(ConfigError, match="nothing here takes it"):
        compose(["env=libero_10", "model=openvla_oft_tiny", "rollout.padding=3"])


def test_the_keys_reach_the_model_or_are_told():
    text = compose(["env=math", "model=causal_lm", "actor.model.model_path=x", "actor.tokenizer.trust_remote_code=true",
                    "actor.model.trust_remote_code=true"]).config  # fmt: skip
    assert {key: text.actor.model.model_extra[key] for key in BOTH} == BOTH
    assert not [line for line in notes(text) if "trust" in line]
    robot = compose(["env=libero_10", "model=openvla_oft_tiny", "actor.tokenizer.trust_remote_code=true"]).config
    assert "actor.tokenizer.trust_remote_code true: this model needs no code of a tokenizer, and runs none" in notes(
        robot
    )
    with pytest.raises(ConfigError, match="tokenizer_trust_remote_code is False"):
        compose(["env=math", "model=causal_lm", "actor.model.model_path=x", "actor.tokenizer.trust_remote_code=true",
                 "actor.model.tokenizer_trust_remote_code=false"])  # fmt: skip
