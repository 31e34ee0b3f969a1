"""Keys that users of RLinf, verl and Cosmos-RL bring for texts: each is taken, and none is without effect.

``text_keys.tsv`` has a value for each key that must be there.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from embodied.models.causal_lm import Settings

from embodied import schema
from embodied.errors import ConfigError
from embodied.schema.compose.compose import SHORT, compose
from embodied.schema.keys.paths import at, with_changes
from embodied.schema.others.keep_default import silent_values
from embodied.schema.others.tables import column

HERE = Path(__file__).parents[1]
CONFIG = str(HERE / "config")
MATH = ("experiment=math", "env=math", "model=causal_lm")
WITH_MODEL = (*MATH, "actor.model.model_path=folder")
FILES = ("data.train_data_paths=[train.jsonl]", "data.val_data_paths=[test.jsonl]")
TABLE = {
    row["key"]: row["value"]
    for row in csv.DictReader(Path(__file__).with_name("text_keys.tsv").open(encoding="utf-8"), delimiter="\t")
}
APART = {  # what says the same as others: keys that stand together in a command of their own
    "custom_cls": ("data.custom_cls.path", "data.custom_cls.name"),
    "function": ("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
    "share": ("data.test_size",),
    "demonstrations": ("data.response_key",),
    "remote": tuple(key for key in TABLE if key.startswith("reward.remote.")),
}
REMAINING = [key for key in TABLE if not any(key in keys for keys in APART.values())]


def made(*overrides: str, base: tuple[str, ...] = WITH_MODEL, name: str = "train") -> dict[str, Any]:
    return compose([*base, *overrides], name, [CONFIG]).resolved


def refused(*overrides: str, base: tuple[str, ...] = WITH_MODEL) -> str:
    with pytest.raises(ConfigError) as failed:
        compose([*base, *overrides], "train", [CONFIG])
    return str(failed.value)


def given(key: str) -> str:
    value = TABLE[key]
    return f"{key}={value!r}" if " " in value and value[0] not in "[{" else f"{key}={value}"


@pytest.mark.parametrize("keys", [REMAINING, *APART.values()], ids=["most", *APART])
def test_each_key_is_taken_with_its_value(keys):
    if keys is REMAINING:
        composed = made(*map(given, keys), base=MATH)
    else:
        files = FILES[:1] if "data.test_size" in keys else FILES
        name = "sft" if "data.response_key" in keys else "train"
        composed = made(*map(given, keys), *files, name=name, base=WITH_MODEL if name == "train" else WITH_MODEL[1:])
    for key in keys:
        expected = 2 if key == "runner.max_epochs" else yaml.safe_load(TABLE[key])  # runner.max_steps is 2
        assert at(composed, key) == expected, key


SIDES = ("train", "eval")


def test_what_the_data_says_reaches_envs_and_model():
    composed = made(*map(given, REMAINING), base=MATH)
    train, evaluation, model = composed["env"]["train"], composed["env"]["eval"], composed["actor"]["model"]
    both = {
        "prompt_key": "question", "answer_key": "reward_model.ground_truth", "messages_key": "chat",
        "data_source_key": "origin", "system_prompt": "Be brief.", "truncation": "left",
        "filter_overlong_prompts": True, "shuffle_seed": 7, "part": "all", "reward_mode": "dense",
    }  # fmt: skip
    for side in (train, evaluation):
        assert {key: side[key] for key in both} == both
        assert side["token_limit"]["most"] == 500
        assert side["token_limit"]["workers"] == 4
    part = ("data", "subset", "split", "revision")
    assert [train[key] for key in part] == [["train.jsonl", "more.parquet"], "main", ["train", "extra"], "v1"]
    assert [evaluation[key] for key in part] == [["test.csv"], "main", "test", "v1"]
    assert (train["shuffle"], evaluation["shuffle"]) == (False, True)
    assert [{**one} for one in train["verifier"]] == [
        {"name": "math", "weight": 1.0, "scale": 5.0}, {"name": "format", "weight": 0.1, "scale": 5.0},
    ]  # fmt: skip
    assert evaluation["verifier"] == [{"name": "choice", "scale": 5.0}]
    expected = {
        "tokenizer_path": "folder/of/tokenizer", "max_prompt_tokens": 500, "max_new_tokens": 200, "truncation": "left",
        "chat_template": "chat.jinja", "enable_thinking": False, "add_generation_prompt": False,
    }  # fmt: skip
    assert {key: model[key] for key in expected} == expected
    assert composed["env"]["num_workers"] == 2
    assert composed["rollout"]["policy_batch"] == 24
    assert evaluation["total_num_envs"] == 32 * 2
    assert train["total_num_envs"] == 256


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], 2048), (["data.max_prompt_length=200"], 2048), (["data.max_prompt_length=4096"], 32768),
     (["data.max_prompt_length=1000000"], 1 << 20), (["data.max_prompt_length=4096", *(
         f"env.{side}.max_prompt_bytes=99" for side in SIDES)], 99)],
)  # fmt: skip
def test_an_observation_holds_the_longest_prompt(options, expected):
    composed = made(*FILES, *options)
    assert [composed["env"][side]["max_prompt_bytes"] for side in SIDES] == [expected] * 2


def test_the_number_of_problems_is_that_of_the_episodes():
    config = compose([*WITH_MODEL, *FILES, "data.rollout_batch_size=12", "algorithm.group_size=4"]).config
    assert schema.episodes_per_iteration(config) == 48
    message = refused(*FILES, "data.rollout_batch_size=12", "algorithm.rollout_epoch=2")
    assert "rollout_batch_size 12 and algorithm.rollout_epoch 2" in message


def test_the_envs_of_files_are_told_to_keep_nothing():
    found = made("data.enable_dataset_cache=false")["env"]
    assert [found[side]["enable_dataset_cache"] for side in ("train", "eval")] == [False, False]
    assert "enable_dataset_cache" not in made()["env"]["train"]
    other = compose(["env=fake", "model=fake", "data.enable_dataset_cache=false"], "train", [str(HERE / "config")])
    assert "enable_dataset_cache" not in other.resolved["env"]["train"]


def test_nothing_changes_where_no_key_is_given():
    direct = made("env.train.data=a.jsonl", "env.eval.data=b.jsonl")
    assert direct["env"]["train"]["data"] == "a.jsonl"
    assert direct["env"]["eval"]["data"] == "b.jsonl"
    for side in SIDES:
        own = direct["env"][side]
        assert own["verifier"] == [{"name": "boxed"}]
        assert (own["reward_mode"], own["part"], own["shuffle"], own["shuffle_seed"]) == ("sparse", "all", False, 0)
        assert (own["prompt_key"], own["answer_key"], own["messages_key"]) == ("prompt", "answer", None)
    model = direct["actor"]["model"]
    assert (model["max_prompt_tokens"], model["max_new_tokens"], model["tokenizer_path"]) == (1024, 256, None)
    tiny = made(base=("env=arithmetic", "model=causal_lm_tiny"))["actor"]["model"]
    assert (tiny["max_prompt_tokens"], tiny["max_new_tokens"]) == (64, 64)


@pytest.mark.parametrize("name", ["causal_lm", "causal_lm_tiny", "smollm2"])
def test_each_model_of_texts_takes_what_is_said_for_it(name):
    said = {
        "data.max_prompt_length": ("max_prompt_tokens", 500),
        "runner.seq_length": ("max_new_tokens", 200),
        "data.truncation": ("truncation", "left"),
        "data.chat_template": ("chat_template", "chat.jinja"),
        "data.enable_thinking": ("enable_thinking", False),
        "data.add_generation_prompt": ("add_generation_prompt", False),
        "actor.tokenizer.tokenizer_model": ("tokenizer_path", "folder"),
        "algorithm.reward_type": ("value_type", "token_level"),
    }
    keys = [f"{key}={700 if key == 'runner.seq_length' else value}" for key, (_, value) in said.items()]
    base = ("env=arithmetic", f"model={name}", "actor.model.model_path=folder")
    model = made(*keys, base=base)["actor"]["model"]
    assert {own: model[own] for own, _ in said.values()} == dict(said.values())


def test_smollm_has_its_own_sizes():
    model = made(base=("env=arithmetic", "model=smollm2"))["actor"]["model"]
    assert (model["max_prompt_tokens"], model["max_new_tokens"], model["truncation"]) == (128, 32, "error")
    assert (model["tokenizer_path"], model["chat_template"], model["value_type"]) == (None, None, "chunk_level")


def test_what_is_given_directly_wins():
    composed = made(*FILES, "env.train.data=mine.jsonl", "env.train.prompt_key=q", "data.prompt_key=question")
    train, evaluation = composed["env"]["train"], composed["env"]["eval"]
    assert (train["data"], evaluation["data"]) == ("mine.jsonl", ["test.jsonl"])
    assert (train["prompt_key"], evaluation["prompt_key"]) == ("q", "question")


@pytest.mark.parametrize(
    ("options", "train", "evaluation"),
    [
        (["data=some.jsonl"], ("train", None), ("held_out", None)),
        (["data=some", "data.train_split=train", "data.val_split=test"], ("all", "train"), ("all", "test")),
        (["data=some", "data.train_split=train", "data.val_data_paths=[other]"], ("all", "train"), ("all", None)),
    ],
)
def test_where_problems_of_evaluations_come_from(options, train, evaluation):
    composed = made(*options)["env"]
    assert (composed["train"]["part"], composed["train"]["split"]) == train
    assert (composed["eval"]["part"], composed["eval"]["split"]) == evaluation
    assert composed["train"]["data"] == [options[0].partition("=")[2]]


def test_an_evaluation_alone_needs_no_problems_of_training():
    composed = made("data.val_data_paths=[test.jsonl]", "data.val_split=test", name="eval", base=WITH_MODEL[1:])["env"]
    for side in SIDES:
        assert (composed[side]["data"], composed[side]["part"]) == (["test.jsonl"], "all")


@pytest.mark.parametrize("env", ["arithmetic", "fake"])
@pytest.mark.parametrize("key", ["data.val_data_paths", "data"])
def test_an_evaluation_alone_has_no_files_that_it_does_not_read(env, key):
    with pytest.raises(ConfigError, match=f"{SHORT.get(key, key)} is set, and the envs"):
        made(f"env={env}", f"{key}=[test.jsonl]", name="eval", base=("model=fake",))
    assert made("experiment=quickstart_sft", name="eval", base=())["data"]["train_data_paths"]


def test_a_data_set_of_the_user_is_given_the_files():
    own = ("data.custom_cls.path=mine.py", "data.custom_cls.name=Mine", "data.options={level: 3}")
    composed = made(*own, *FILES)["env"]
    assert composed["train"]["data"] == composed["eval"]["data"] == ["mine.py:Mine"]
    assert composed["train"]["data_args"] == {"level": 3, "data_files": ["train.jsonl"]}
    assert composed["eval"]["data_args"] == {"level": 3, "data_files": ["test.jsonl"]}
    assert "data_files" not in made(*own)["env"]["train"]["data_args"]


def test_a_reward_function_is_the_verifier():
    composed = made(*FILES, *map(given, APART["function"]), "reward.val_reward_type=boxed")["env"]
    assert composed["train"]["verifier"] == [{"name": "custom", "path": "rewards.py", "function": "score"}]
    assert composed["eval"]["verifier"] == [{"name": "boxed"}]
    assert composed["train"]["reward_mode"] == "dense"
    composed = made(*FILES, *map(given, APART["remote"]))["env"]
    expected = {"name": "remote", "url": "http://127.0.0.1:9", "score_key": "overall_reward", "weight": 2.0}
    assert composed["train"]["verifier"] == [expected]


def test_supervised_training_reads_demonstrations():
    sft = ("env=math", "model=causal_lm", "actor.model.model_path=folder", "env.train.data=a", "env.eval.data=b")
    told = ("data=answers.jsonl", "data.response_key=solution", "data.messages_key=talk")
    with pytest.raises(ConfigError, match="enable_dp_load_balance exchanges what processes have collected"):
        made(*told, "actor.enable_dp_load_balance=true", base=sft, name="sft")
    composed = made(*told, base=sft, name="sft")
    assert composed["env"]["train"]["data"] == "a"
    assert composed["env"]["train"]["part"] == "all"
    assert composed["data"]["train_data_paths"] == ["answers.jsonl"]


@pytest.fixture(scope="module")
def usual() -> dict[str, Any]:
    """A configuration, composed once."""
    return made(*FILES)


@pytest.mark.parametrize("key", column("no_effect"))
def test_another_value_of_what_is_always_so_is_taken_and_said_to_change_nothing(usual, key):
    (line,) = schema.notes(schema.bind(with_changes(usual, {key: not at(usual, key)})))
    assert line.startswith(f"{key} ")
    assert column("no_effect")[key] in line
    assert schema.notes(schema.bind(usual)) == []


def test_a_column_of_pictures_is_read_by_both_sides_or_refused():
    composed = made(*FILES, "data.image_key=pictures")
    assert [composed["env"][side]["image_key"] for side in ("train", "eval")] == ["pictures"] * 2
    robot = ["env=fake", "model=fake"]
    verl = compose([*robot, "data.image_key=images"], "train", [CONFIG]).config  # verl's default
    assert schema.notes(verl) == ['data.image_key "images": no env here reads a column of pictures']
    assert "nothing here takes it" in refused("data.image_key=pictures", base=tuple(robot))


def test_pictures_have_the_size_that_the_model_reads(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "llava", "vision_config": {"image_size": 336}}', encoding="utf-8"
    )
    model = (*FILES, f"actor.model.model_path={tmp_path}", "env.eval.image_size=28")
    composed = made(*model, "data.image_key=images", base=MATH)
    assert [composed["env"][side]["image_size"] for side in ("train", "eval")] == [336, 28]
    assert made(*model, base=MATH)["env"]["train"]["image_size"] is None


def test_a_key_that_says_nothing_keeps_its_default():
    silent = [f"{key}={str(value).lower() if value is not None else 'null'}"
              for key, values in silent_values().items() for value in values]  # fmt: skip
    assert len(silent) > 10
    tokens = schema.RunnerConfig.model_fields["max_tokens_per_mbs"].default  # which a file of the math group changes
    assert made(*FILES, *silent) == made(*FILES, f"runner.max_tokens_per_mbs={tokens}")
    assert made(*FILES, "runner.seed=null", "data.num_workers=0")["actor"]["model"]["seed"] == 1234
    assert "data.num_workers" in refused("data.num_workers=false")


def test_a_name_for_an_engine_and_a_cache_that_nothing_has_are_said():
    robot = ["env=fake", "model=fake", "rollout.group_name=RolloutGroup", "data.enable_dataset_cache=false"]
    tiny = compose(["env=libero_10", "model=openvla_oft_tiny", "actor.model.low_cpu_mem_usage=false"]).config
    assert schema.notes(tiny) == [
        "actor.model.low_cpu_mem_usage false: it permits a second copy of the weights, and none is made"
    ]
    assert schema.notes(compose(robot, "train", [CONFIG]).config) == [
        "rollout.group_name RolloutGroup: it is the name of an engine's log, and no engine runs",
        "data.enable_dataset_cache false: no env here reads files of problems",
    ]
    own = compose([*WITH_MODEL, *FILES, "data.enable_dataset_cache=false"], "train", [CONFIG]).config
    assert schema.notes(own) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["data=a.jsonl", "env.train.data=./a.jsonl"], "env.train.data has all problems of a.jsonl"),
        (["data=a.jsonl", "env.eval.data=./a.jsonl"], "env.eval.data has all problems of a.jsonl"),
        (["data.val_rollout_batch_size=4", "env.eval.total_num_envs=64"], "val_group_size 1 asks for 4 env slots"),
        ([*FILES, "data.test_size=0.2"], "data.test_size is 0.2, and evaluations have problems of their own"),
        (["env=arithmetic", "data.test_size=0.2"], "no env here takes a share"),
        (["data.custom_cls.name=Mine"], "data.custom_cls.name is Mine, and data.custom_cls.path is not set"),
        (["data=a.jsonl", "data.response_key=x"], "training by rewards reads no demonstrated answers"),
        (["env=fake", "model=fake", "data.filter_overlong_prompts_workers=2"], "and no prompts are counted"),
        (["runner.task_type=sft", "data=a.jsonl", "data.filter_overlong_prompts=true"], "demonstrations are not"),
        (["data.max_prompt_length=5", "actor.model.max_prompt_tokens=6"], "max_prompt_length is 5, and actor.model"),
        (["env=arithmetic", "data.answer_key=x"], "nothing here takes it (env.train.answer_key, env.eval.answer_key)"),
        (["env=arithmetic", "data=some.jsonl"], "take their problems from elsewhere"),
        (["env=arithmetic", "data.custom_cls.path=a.py"], "data.custom_cls.path is set, and the envs"),
        (["data=some.jsonl", "data.options={a: 1}"], "data.options are {'a': 1}, and no data set"),
        (["reward.reward_type=boxed", "env.train.verifier=[{name: gsm8k}]"], "each say what an answer is worth"),
        (["reward.reward_type=boxed", "reward.remote.enable=true", "reward.remote.url=http://a"], "each say what"),
        (["reward.remote.url=http://a"], "remote.url is set, and enable is false"),
        (["reward.remote.enable=true"], "reward.remote.url is not set"),
        (["env=reasoning_gym", "reward.reward_scale=2"], "the env has a verifier of its own"),
        (["critic.use_critic_model=true"], "use_critic_model is true, and algorithm.adv_type grpo"),
        (["algorithm.adv_type=gae", "critic.use_critic_model=false"], "adv_type gae learns a value function"),
        (["runner.seq_length=1000"], "actor.model has max_prompt_tokens 1024 and max_new_tokens -24"),
        (["runner.seq_length=1200", "actor.model.max_new_tokens=177"], "max_prompt_tokens 1024 and max_new_tokens 177"),
        (["algorithm.logprob_forward_max_tokens=9", "runner.enable_dynamic_batch_size=false"], "is false, which fills"),
        (["algorithm.logprob_forward_max_tokens=9", "algorithm.use_kl_in_reward=true", "algorithm.kl_beta=1"],
         "the KL in the rewards is computed by records"),
        (["algorithm.sampling_params.min_new_tokens=300"], "300 is more than the 256 tokens of the longest"),
        (["data.prefetch_factor=2"], "a problem is read by its number when its episode begins"),
        (["data.shuffle=false", "algorithm.dynamic_sampling=true"], "draws the problems of a refill at random"),
        (["reward.num_workers=3", "env.num_workers=2"], "reward.num_workers is 3, and env.num_workers is 2"),
        (["reward.num_workers=3", "data.num_workers=2"], "data.num_workers is 2, and env.num_workers is 3"),
        (["algorithm.rollout_batch_size_per_gpu=3", "rollout.policy_batch=2"], "and rollout.policy_batch is 2"),
        (["env=fake", "model=fake", "reward.reward_type=boxed"], "FakeEnv takes no verifier"),
        (["env=fake", "model=fake", "data.max_prompt_length=9"], "takes it (actor.model.max_prompt_tokens)"),
        (["env=fake", "model=fake", "runner.seq_length=9"], "max_prompt_tokens None"),
        (["actor.model.model_revision=main"], "nothing is downloaded"),
    ],
)  # fmt: skip
def test_keys_that_contradict_or_have_no_effect_are_refused(options, said):
    def make() -> None:
        model = compose([*WITH_MODEL, *options], "train", [CONFIG]).config.actor.model
        Settings.from_kwargs(schema.target_kwargs(model, "actor.model"))

    with pytest.raises(ConfigError) as failed:
        make()
    assert said in str(failed.value)


def test_robots_have_none_of_it():
    from embodied.parallel.group import Group
    from embodied.run.build.preflight import check

    for key in ("data.type=math", "data.rollout_batch_size=4", "data.val_rollout_batch_size=4"):
        composed = compose(["env=fake", "model=fake", "experiment=null", key], "train", [CONFIG])
        with pytest.raises(ConfigError, match=f"{key.partition('=')[0]}: for texts alone"):
            check(composed, Group())


def test_the_shared_workers_have_one_batch():
    from embodied.parallel.group import Group
    from embodied.run.build.preflight import check

    options = ["env=fake_text", "model=fake_text", "runner.task_type=math", "env.train.max_episode_steps=null"]
    keys = ("algorithm.val_rollout_batch_size_per_gpu=4", "algorithm.rollout_batch_size_per_gpu=8")
    with pytest.raises(ConfigError, match="val_rollout_batch_size_per_gpu is 4, and evaluations run on the workers"):
        check(compose([*options, *keys], "train", [CONFIG]), Group())
