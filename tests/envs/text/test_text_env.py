"""The text env: prompts in, responses verified; in a real worker process too."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embodied.envs.text import picture
from embodied.envs.text.env import MathEnv
from embodied.envs.text.verdict import Problem, Verdict

from embodied import instructions
from embodied.errors import ConfigError, DatasetError
from embodied.lib import spec_json
from embodied.lib.targets import load_target
from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.schema import target_kwargs
from embodied.schema.compose.compose import compose
from embodied.testing import check_env
from embodied.types import Start


class NumberIn:
    """Right if the last number of a response is the answer; half right if it is in there."""

    def __call__(self, problem: Problem, response: str) -> Verdict:
        found = re.findall(r"-?\d+", response)
        right = bool(found) and found[-1] == str(problem.answer)
        return Verdict(1.0 if right else 0.5 * (str(problem.answer) in found), right)


class WorkerMathEnv(MathEnv):
    """With that verifier, in a worker."""

    def __init__(self, data: str) -> None:
        super().__init__(data, verifier=NumberIn(), max_prompt_bytes=64, max_response_bytes=32)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "lost"}]), encoding="utf-8")
    return str(path)


def make(data: Any, **options: Any) -> MathEnv:
    return MathEnv(data, verifier=NumberIn(), **{"max_prompt_bytes": 300, "max_response_bytes": 32, **options})


def respond(env: MathEnv, text: str) -> Any:
    action = env.spec.action.neutral()
    instructions.write(text, action)
    return env.step(action)


def asked(env: MathEnv) -> str:
    out = {name: np.ones(spec.shape, spec.dtype) for name, spec in env.spec.obs.items()}
    env.observe(out)
    return instructions.read(out["instruction"])


def test_keeps_the_protocol(data):
    check_env(make(data))
    check_env(make(data, chat=True, system_prompt="Be brief."))


def test_the_spec(data, tmp_path):
    other = tmp_path / "more.jsonl"
    other.write_text('{"prompt": "1=", "answer": 1}\n', encoding="utf-8")
    spec = make([data, str(other)]).spec
    assert spec.tasks == ("sums.jsonl", "more.jsonl")
    assert spec.num_init_states == (5, 1)
    assert (spec.max_episode_steps, spec.cameras) == (1, ())
    assert spec.obs["instruction"].shape == (300,)
    assert spec.action.max_bytes == 32
    assert spec_json.from_json(spec_json.to_json(spec)) == spec


def test_a_response_ends_the_episode_with_its_verdict(data):
    env = make(data)
    for number in (3, 0):
        env.reset(Start(0, number, 0))
        assert asked(env) == f"{number}+1="
        assert respond(env, f"It is {number + 1}")[:3] == (1.0, True, True)
        env.reset(Start(0, number, 1))
        assert respond(env, f"{number + 1} or 9")[:3] == (0.5, True, False)
        env.reset(Start(0, number, 2))
        assert respond(env, "")[:3] == (0.0, True, False)


def test_a_conversation_is_an_instruction(data):
    env = make(data, system_prompt="Be brief.")
    env.reset(Start(0, 1, 0))
    assert instructions.messages(asked(env)) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1="},
    ]


def test_skipped_rows_are_facts(data):
    facts = make(data).prepare()
    assert facts.pid == os.getpid()
    assert facts.extra == {
        "problems of sums.jsonl": "5; 1 of 6 rows skipped, without an answer ('answer'); the first is row 5: "
        "{'prompt': 'lost'}"
    }


def test_starts_that_are_none(data):
    env = make(data)
    with pytest.raises(ConfigError, match="init_state_id of a start is 5"):
        env.reset(Start(0, 5, 0))
    with pytest.raises(ConfigError, match="task_id of a start is 1"):
        env.reset(Start(1, 0, 0))


def test_options_that_are_none(data):
    with pytest.raises(ConfigError, match=r"env\.train\.data is not set"):
        make(None)
    with pytest.raises(ConfigError, match="max_response_bytes"):
        make(data, max_response_bytes=0)


def test_the_state_goes_back_to_an_answered_problem(data):
    env = make(data)
    env.reset(Start(0, 2, 0))
    respond(env, "3")
    state, frame = env.get_state(), env.frame()
    env.reset(Start(0, 4, 0))
    env.set_state(state)
    assert asked(env) == "2+1="
    assert np.array_equal(env.frame(), frame)
    assert respond(env, "3").success


def test_closing_ends_what_the_verifier_has_started(data):
    class WithProcess(NumberIn):
        ended = 0

        def close(self) -> None:
            self.ended += 1

    verifier = WithProcess()
    MathEnv(data, verifier=verifier).close()
    assert verifier.ended == 1
    make(data).close()


def colours(frame: np.ndarray) -> set[tuple[int, ...]]:
    packed = np.unique(frame.reshape(-1, 3) @ np.array([1 << 16, 1 << 8, 1])).tolist()
    return {(colour >> 16, colour >> 8 & 255, colour & 255) for colour in packed}


def test_the_picture_shows_prompt_response_and_verdict(data):
    env = make(data)
    env.reset(Start(0, 0, 0))
    before = env.frame()
    assert before.shape == (540, 960, 3)
    assert (235, 235, 235) in colours(before)
    assert not {(130, 190, 255), (80, 220, 100), (240, 100, 90)} & colours(before)
    respond(env, "it is 1")
    assert {(130, 190, 255), (80, 220, 100)} <= colours(env.frame())
    respond(env, "it is 2")
    assert (240, 100, 90) in colours(env.frame())
    env.reset(Start(0, 0, 0))
    assert np.array_equal(env.frame(), before)


@pytest.mark.parametrize(
    ("prompt", "response"),
    [("p " * 3000, "r " * 3000), ("short", "r\n" * 300), ("p\n" * 300, "short"), ("\x00\t∑", ""), ("", None)],
)
def test_long_texts_leave_room_for_the_verdict(prompt, response):
    lines = list(picture._lines(prompt, response, "right", True, 100))
    assert len(lines) <= (540 - 24) // 20
    assert lines[-1] == ("right", (80, 220, 100))
    assert max(len(line) for line, _ in lines) <= 100
    assert picture.draw(prompt, response, "right", True).dtype == np.uint8


def test_the_end_of_a_long_response_is_shown():
    lines = [line for line, _ in picture._lines("p\n" * 100 + "last", "r\n" * 100 + "answer", None, False, 100)]
    assert "answer" in lines
    assert "last" not in lines
    assert lines.count("…") == 2


def open_pool(data: str, folder: Path, said: list[str]) -> tuple[Pool, Slab]:
    spec = make(data, max_prompt_bytes=64).spec
    fields = {**spec.obs, "actions": spec.action.field(1), **runtime_fields(1)}
    config = PoolConfig(
        num_slots=2, num_workers=1, env_target="test_text_env.WorkerMathEnv", env_kwargs={"data": data},
        reward=ShapedReward("sparse"), deadlines=Deadlines(30.0, 10.0, 10.0), log_dir=folder,
        env_channel=("test", "done", 0), rollout_channel=("test", "todo", 0), max_restarts=2,
    )  # fmt: skip
    slab = Slab.create(fields, 4)
    return Pool(config, slab, said.append), slab


def test_in_a_worker_process(data, tmp_path):
    pool, slab = open_pool(data, tmp_path / "logs", [])
    try:
        assert pool.facts[0].extra["problems of sums.jsonl"].startswith("5; 1 of 6")
        for slot, number in enumerate((4, 2)):
            start = {"task_id": 0, "init_state_id": number, "seed": 0, "max_steps": 1}
            pool.send(Command(Kind.RESET, slot, next_row=slot, **start))
        pool.recv(2, 20.0)
        assert [instructions.read(slab.arrays["instruction"][row]) for row in (0, 1)] == ["4+1=", "2+1="]
        for slot, text in enumerate(("5", "7")):
            instructions.write(text, slab.arrays["actions"][slot, 0])
            pool.send(Command(Kind.STEP, slot, row=slot, next_row=slot + 2))
        done = pool.recv(2, 20.0)
        assert all(event.ended and not event.observed for event in done)
        assert slab.arrays["rewards"][:2, 0].tolist() == [1.0, 0.0]
        assert slab.arrays["success"][:2].tolist() == [True, False]
        assert slab.arrays["terminated"][:2].tolist() == [True, True]
    finally:
        pool.close()
        slab.close()


def test_a_file_that_changes_ends_the_run_with_its_name(data, tmp_path):
    pool, slab = open_pool(data, tmp_path / "logs", [])
    try:
        with Path(data).open("a", encoding="utf-8") as file:
            file.write('{"prompt": "9=", "answer": 9}\n')
        pool.send(Command(Kind.RESET, 0, next_row=0, task_id=0, init_state_id=0, seed=0, max_steps=1))
        with pytest.raises(DatasetError, match=r"sums\.jsonl has changed since its rows were counted"):
            pool.recv(1, 20.0)
    finally:
        pool.close()
        slab.close()


def test_the_shipped_configuration_takes_a_file(data):
    both = [f"env.{side}.data={data}" for side in ("train", "eval")]
    config = compose(["env=math", *both, "env.train.max_samples=3"]).config
    options = target_kwargs(config.env.train, "env.train")
    env = MathEnv(**{**options, "verifier": NumberIn()})
    assert env.spec.num_init_states == (3,)
    check_env(env)


@pytest.mark.parametrize(
    ("name", "seed", "response", "expected"),
    [
        ("math", 0, "\\boxed{3}", (1.0, True, True)),
        ("math", 0, "\\boxed{4}", (0.0, True, False)),
        ("arithmetic", 0, None, (1.0, True, True)),
        ("arithmetic", 2**30, None, (1.0, True, True)),
        ("calculator", 0, None, (1.0, True, True)),
    ],
)
def test_the_shipped_verifiers_judge(data, name, seed, response, expected):
    pytest.importorskip("embodied.envs.text.verifiers")
    config = compose([f"env={name}", *([f"env.train.data={data}"] if name == "math" else [])]).config
    env = load_target(config.env.train.target, "env")(**target_kwargs(config.env.train, "env.train"))
    env.reset(Start(0, 2, seed))
    answer = f";{eval(asked(env).removesuffix('='))}" if response is None else response
    assert respond(env, answer)[:3] == expected
    env.close()
