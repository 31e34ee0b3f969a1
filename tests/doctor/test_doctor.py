"""``python -m embodied.tools.doctor``: simulators, configurations, what is printed, the exit status."""

from __future__ import annotations

import io
import json
import math
import os
import struct
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_run import RUN

from embodied import train
from embodied.doctor import report
from embodied.doctor.checks import configuration, simulators, sizes
from embodied.doctor.findings import STATUSES, Finding
from embodied.errors import RendererUnavailableError
from embodied.parallel.group import Group
from embodied.run.build.preflight import check
from embodied.run.memory.footprint import footprint
from embodied.schema.compose.compose import compose, compose_unchecked
from embodied.tools import doctor
from embodied.types import SimulatorNeeds

GB = 2**30
FAKE = [word for word in RUN if "=" in word]
FOLDER = RUN[-1]
GONE = RendererUnavailableError("EGL cannot draw: no device", "apt-get install -y libegl1")


def needs(**changes):
    known = {"name": "Sim", "modules": ("json",), "install": "pip install sim", "renderers": {}}
    return SimulatorNeeds(**{**known, **changes})


def test_one_renderer_that_works_is_enough():
    def statuses(drawn):
        return [(f.name, f.status) for f in simulators.drawings(needs(), drawn, True)]

    assert statuses({"EGL": GONE, "OSMesa": "llvmpipe"}) == [("renderer EGL", "warn"), ("renderer OSMesa", "ok")]
    assert statuses({"EGL": GONE, "OSMesa": GONE}) == [("renderer EGL", "fail"), ("renderer OSMesa", "fail")]
    (only,) = simulators.drawings(needs(), {"EGL": GONE}, True)
    assert only.fix == GONE.remedy


@pytest.mark.sim
def test_the_doctor_compiles_no_control_of_libero(tmp_path):
    if find_spec("libero") is None:
        pytest.skip("libero is not installed")
    code = "from embodied.envs.libero import LiberoEnv; print(LiberoEnv.needs().try_imports(LiberoEnv('libero_10')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "XDG_CACHE_HOME": str(tmp_path)},
    encoding="utf-8")  # fmt: skip
    assert "is compiled by the first worker" in done.stdout
    assert not [*tmp_path.rglob("osc.*.nbc")], "what it has compiled would be here"


@pytest.mark.sim
def test_a_library_that_is_hidden(monkeypatch):
    """Without Mesa's file for libEGL, EGL finds no device; OSMesa draws all the same."""
    if find_spec("mujoco") is None:  # imported here, it would take a backend that LIBERO's tests cannot use
        pytest.skip("mujoco is not installed")
    from embodied.envs.libero.rendering import draw_frame

    monkeypatch.setenv("__EGL_VENDOR_LIBRARY_FILENAMES", "/none")
    with pytest.raises(RendererUnavailableError, match="EGL cannot draw"):
        draw_frame("egl")
    try:
        assert draw_frame("osmesa")
    except RendererUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("modules", "required", "status", "fix"),
    [
        (("no_such_package", "json"), False, "skipped", ""),
        (("no_such_package", "json"), True, "fail", "pip install sim"),
        (("json", "no_such_package"), False, "fail", "pip install sim"),
    ],
)
def test_simulators_that_are_not_installed(monkeypatch, modules, required, status, fix):
    monkeypatch.setattr(
        simulators, "load_target", lambda target, key: SimpleNamespace(needs=lambda: needs(modules=modules))
    )
    (finding,) = simulators.simulator("a.B", [], [], required)
    assert (finding.status, finding.fix) == (status, fix)
    assert "not installed" in finding.found


def test_simulators_are_found_by_the_groups_of_the_configuration(tmp_path):
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / "mine.yaml").write_text("_target_: no.such.Env\n", encoding="utf-8")
    (folder / "odd.yaml").write_text("_target_: [unclosed\n", encoding="utf-8")
    (folder / "rows.yaml").write_text("- _target_\n", encoding="utf-8")
    (folder / "bytes.yaml").write_bytes(b"\xff")
    found, broken = simulators.simulators([str(tmp_path)])
    assert [finding.status for finding in broken] == ["warn"] * 3
    assert [one.found.split()[0] for one in broken] == [
        str(folder / f"{name}.yaml") for name in ("bytes", "odd", "rows")
    ]
    assert found.pop("no.such.Env") == "mine"
    assert {target.rpartition(".")[2] for target in found} == {"LiberoEnv", "ManiSkillEnv"}


def test_an_env_whose_module_raises_is_looked_at_apart(tmp_path, monkeypatch):
    (tmp_path / "with_a_slip.py").write_text("class Env(:\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert simulators.has_needs("with_a_slip.Env")


def test_the_files_of_each_side_are_looked_for_with_its_own_keys(monkeypatch):
    """And the env is named, not the first override."""
    sides = {name: SimpleNamespace(target=f"a.{name}") for name in ("train", "eval")}
    composed = SimpleNamespace(config=SimpleNamespace(env=SimpleNamespace(**sides)))
    monkeypatch.setattr(simulators, "compose_unchecked", lambda *given: composed)
    monkeypatch.setattr(simulators, "target_kwargs", lambda side, key: {"key": key, "target": side.target})
    built = []
    facts = SimpleNamespace(extra={}, renderer="none", reason="none")

    def load(target, key):
        return type(
            "Env", (), {
                "needs": staticmethod(needs), "__init__": lambda self, **kw: built.append(kw),
                "prepare": lambda self: facts,
            },
        )  # fmt: skip

    monkeypatch.setattr(simulators, "load_target", load)
    for name in sides:
        found = [*simulators.simulator(f"a.{name}", ["runner.max_epochs=2", "env=b"], [], True)]
        assert found[0].found == f"those of env.{name} (env=b) are there"
        assert built.pop() == {"key": f"env.{name}", "target": f"a.{name}"}


def test_what_only_a_run_needs_is_not_prepared(monkeypatch):
    facts = SimpleNamespace(extra={"control": "not compiled"}, renderer="none", reason="none")
    side = SimpleNamespace(target="a.B")
    composed = SimpleNamespace(config=SimpleNamespace(env=SimpleNamespace(train=side, eval=side)))
    monkeypatch.setattr(simulators, "compose_unchecked", lambda *given: composed)
    monkeypatch.setattr(simulators, "target_kwargs", lambda side, key: {})
    env = type("Env", (), {"needs": staticmethod(lambda: needs(try_imports=lambda env: facts))})
    monkeypatch.setattr(simulators, "load_target", lambda target, key: env)
    found = [*simulators.simulator("a.B", [], [], True)]
    assert found[-1].found.endswith("none (none); control not compiled")


def test_memory_is_counted_whether_the_machine_can_draw_or_not(tmp_path, monkeypatch):
    def hidden(self):
        raise GONE

    monkeypatch.setattr("embodied.testing.FakeEnv.preflight", hidden, raising=False)
    given = [*FAKE, f"runner.output_dir={tmp_path}"]
    (refused,) = configuration.configuration(given, [FOLDER])
    assert refused.found == GONE.message
    assert [finding.name for finding in sizes.sizes(given, [FOLDER])] == [sizes.NAME, "disk of checkpoints"]
    (skipped,) = sizes.sizes([*given, "env.num_workers=50"], [FOLDER])
    assert skipped.status == "skipped"


@pytest.mark.parametrize("model", ["openvla_oft_tiny", "causal_lm_tiny"])
def test_a_file_of_weights_that_was_not_downloaded_is_a_finding(tmp_path, model):
    """It is said before a policy is built, and no memory is taken for what is no header."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
    (tmp_path / "model.safetensors").write_bytes(pointer)
    env = "fake" if model == "openvla_oft_tiny" else "fake_text"
    given = [f"env={env}", f"model={model}", "runner.device=cpu", f"actor.model.model_path={tmp_path}"]
    (finding,) = sizes.sizes(given, [FOLDER])
    assert finding.status == "fail"
    assert "is a pointer of Git LFS" in finding.found
    assert "git lfs pull" in finding.fix


def test_all_errors_of_a_configuration_are_found(tmp_path):
    """``embodied.train`` says the first of them."""
    given = [
        *FAKE, f"runner.output_dir={tmp_path}", "env.num_workers=50", "env.channel.queue_size=1",
        "rollout.schedule=lockstep", "rollout.max_wait_ms=1", "env.train.total_num_envs=8", "algorithm.group_size=7",
        "runner.ckpt_path=/none", "data.response_key=answer", "data.train_split=first",
        "env.eval.video_cfg.save_video=true", f"env.eval.video_cfg.video_base_dir={__file__}/videos",
    ]  # fmt: skip
    found = [*configuration.configuration(given, [FOLDER])]
    texts = "\n".join(finding.found for finding in found)
    assert {finding.status for finding in found} == {"fail"}
    assert len(found) >= 3, texts
    assert "env.num_workers 50" in texts
    assert "max_wait_ms" in texts
    assert "group_size" in texts
    assert "no checkpoint at /none" in texts
    assert "data.train_split: for texts alone" in texts
    assert f"{__file__} is a file" in texts
    assert texts.count("some would be idle") == 1, "a cause is told once"
    assert texts.count("data.response_key") == 1
    assert all(finding.fix for finding in found)


def test_workers_that_an_evaluation_would_leave_idle(tmp_path):
    """The slots of the training host nothing then."""
    slots = ["env.train.total_num_envs=8", "env.eval.total_num_envs=4", "env.num_workers=6", "runner.only_eval=true"]
    found = [*configuration.configuration([*FAKE, f"runner.output_dir={tmp_path}", *slots], [FOLDER])]
    assert ["more than the 4 env slots" in finding.found for finding in found] == [True]


def test_a_configuration_that_runs_has_nothing_against_it(tmp_path):
    (found,) = configuration.configuration([*FAKE, f"runner.output_dir={tmp_path}"], [FOLDER])
    assert found.status == "ok", found
    (typo,) = configuration.configuration(["env=libero_11"], [])
    assert (typo.status, "Did you mean" in typo.found) == ("fail", True)


@pytest.mark.parametrize("launch", ["cluster.launcher=local", "cluster.launcher=ray", "runner.dry_run=true"])
def test_processes_that_a_command_starts_are_those_that_are_checked(launch, tmp_path, capsys):
    place = "cluster.component_placement={actor: 0-1, rollout: 0-1, env: 2-3}"
    keys = [*FAKE, f"runner.output_dir={tmp_path}", launch, place, "env.train.total_num_envs=4"]
    even = [*keys, "env.eval.total_num_envs=4", "algorithm.group_size=2"]
    (found,) = configuration.configuration(even, [FOLDER])
    assert found.status == "ok", found
    odd = [*configuration.configuration([*even, "env.eval.total_num_envs=3"], [FOLDER])]
    assert "env.eval.total_num_envs is 3, and the 2 processes" in odd[0].found
    assert train.main([*even, "algorithm.critic_warmup_steps=5", "--config-dir", FOLDER]) == 2
    told = capsys.readouterr().err
    assert "critic_warmup_steps" in told
    assert "alone is one" not in told


@pytest.mark.parametrize(
    ("ranks", "said"),
    [(0, "a place for 2 processes, and this command alone is one"), (2, None),
     (4, "a place for 2 processes, and 4 are started")],
)  # fmt: skip
def test_processes_that_torchrun_has_started_are_those_that_are_checked(ranks, said, tmp_path, monkeypatch):
    if ranks:
        for name, value in {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "RANK": 1, "LOCAL_RANK": 1}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "1")
    place = "cluster.component_placement={actor: 0-1, rollout: 0-1}"
    slots = ("env.train.total_num_envs=4", "env.eval.total_num_envs=4", "algorithm.group_size=2")
    keys = [*FAKE, f"runner.output_dir={tmp_path}", place, *slots]
    found = [*configuration.configuration(keys, [FOLDER])]
    if said is not None:
        assert [said in one.found for one in found] == [True]
        return
    assert [one.status for one in found] == ["ok"]
    memory = next(one for one in sizes.sizes(keys, [FOLDER]) if one.name == sizes.NAME)
    assert "for each of its 2 processes" in memory.found


def test_memory_of_processes_that_a_command_starts_is_shared(tmp_path):
    place = "cluster.component_placement={actor: 0-1, rollout: 0-1}"
    slots = ("env.train.total_num_envs=4", "env.eval.total_num_envs=4", "algorithm.group_size=2")
    keys = [*FAKE, f"runner.output_dir={tmp_path}", "cluster.launcher=local", place, *slots]
    found = next(finding for finding in sizes.sizes(keys, [FOLDER]) if finding.name == sizes.NAME)
    assert "that are free on the machine for each of its 2 processes" in found.found


def checked_of(tmp_path, *more):
    return check(compose([*FAKE, f"runner.output_dir={tmp_path}", *more], "train", [FOLDER]), Group())


@pytest.mark.parametrize(("free", "status"), [(64 * GB, "ok"), (10 * GB, "warn"), (4 * GB, "fail")])
def test_memory_of_the_run(tmp_path, free, status):
    """9 GiB in all: half of 2 GiB of weights is trained; gradients, Adam, the copy that is saved, slab."""
    checked, weights = checked_of(tmp_path), sizes.Weights(2 * GB, GB)
    taken = footprint(checked.config, checked.sides, Group(), weights, GB)
    found = {f.name: f for f in sizes.held(checked.config, taken, None, weights, free)}
    assert found[sizes.NAME].status == status
    assert "weights 1.0 GiB, trained weights 1.0 GiB, optimizer 2.0 GiB, gradients 1.0 GiB" in found[sizes.NAME].found
    assert "slab 1.0 GiB, copy of what is saved 3.0 GiB" in found[sizes.NAME].found


def test_workers_that_cannot_fit_are_told_with_sizes_that_do(tmp_path, monkeypatch):
    many = ("env.train.task_mb=100", "env.train.total_num_envs=8", "env.eval.total_num_envs=8", "env.num_workers=8")
    weights, found = sizes.Weights(2**20, 2**20), {}
    for free in (64 * GB, GB // 2, None):
        monkeypatch.setattr(sizes, "free_memory", lambda free=free: free)
        checked = checked_of(tmp_path, *many)
        taken = footprint(checked.config, checked.sides, Group(), weights, 2**20)
        found[free] = next(f for f in sizes.held(checked.config, taken, None, weights) if f.name == sizes.NAME)
    assert [finding.status for finding in found.values()] == ["ok", "fail", "skipped"]
    assert "8 workers with 2 of 2 tasks · 218.0 MiB" in found[64 * GB].found
    assert "proposal: env.num_workers=" in found[64 * GB].found
    assert found[GB // 2].fix.startswith("set env.train.total_num_envs=1 "), "tasks of a fake slot are its own"


def test_memory_of_a_gpu(tmp_path):
    checked, weights = checked_of(tmp_path), sizes.Weights(40 * GB, 40 * GB)
    taken = footprint(checked.config, checked.sides, Group(), weights, GB, on_gpu=True)
    found = {f.name: f for f in sizes.held(checked.config, taken, 79 * GB, weights, 999 * GB)}
    assert found["memory of the GPU"].status == "fail"
    assert found[sizes.NAME].status == "ok"
    assert found["disk of checkpoints"].status in ("warn", "fail", "ok")


def write_header(file: Path, **shapes: list[int]) -> None:
    """A file whose tensors take no room on the disk."""
    header, end = {"__metadata__": {}}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(file, 8 + len(text) + end)


def test_weights_of_a_large_checkpoint_are_counted_without_reading_them(tmp_path):
    write_header(tmp_path / "model.safetensors", a=[2**20, 2**10], b=[8])
    kwargs = {"model_path": str(tmp_path), "precision": "bf16"}
    assert sizes.of_files(kwargs) == sizes.Weights(2 * (2**30 + 8), 2 * (2**30 + 8))
    assert sizes.of_files({**kwargs, "is_lora": True}).trained is None
    assert sizes.of_files({"model_path": None}) is None


FOUND = [
    Finding("disk", "ok", "9 GiB [are] free"), Finding("CUDA", "skipped", "no GPU"),
    Finding("shm", "warn", "small", "make it larger"), Finding("EGL", "fail", "no device", "apt-get install x"),
]  # fmt: skip


def test_lines_and_table():
    out = io.StringIO()
    report.show(FOUND, 1.0, out)
    assert out.getvalue().splitlines() == [
        "ok       disk: 9 GiB [are] free", "skipped  CUDA: no GPU", "warn     shm: small",
        "         fix: make it larger", "fail     EGL: no device", "         fix: apt-get install x",
        "1 ok, 1 skipped, 1 warn, 1 fail; 1.0 s",
    ]  # fmt: skip
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    report.show(FOUND, 1.0, terminal)
    assert "9 GiB [are] free" in terminal.getvalue()
    assert "apt-get install x" in terminal.getvalue()


def holds_to_format(told):
    """Whether an object is what ``--json`` promises."""
    kinds = {"format": int, "embodied": str, "status": str, "seconds": float, "findings": list}
    assert {name: type(value) for name, value in told.items()} == kinds
    assert told["format"] == 1
    assert told["status"] in STATUSES
    for finding in told["findings"]:
        assert {name: type(value) for name, value in finding.items()} == dict.fromkeys(
            ("name", "status", "found", "fix"), str
        )
        assert finding["status"] in STATUSES
        assert bool(finding["fix"]) or finding["status"] in ("ok", "skipped")


def test_json():
    told = json.loads(report.as_json(FOUND, 2.0))
    holds_to_format(told)
    assert told["status"] == "fail"
    assert told["findings"][3] == {"name": "EGL", "status": "fail", "found": "no device", "fix": "apt-get install x"}


def test_only_simulators_of_the_configuration_can_fail():
    overrides = ["env=libero_10"]
    checks = {c.name: c for c in doctor.plan(compose_unchecked(overrides, "train"), overrides, [])}
    by_name = {name.rpartition(".")[2]: one for name, one in checks.items()}
    assert not by_name["LiberoEnv"].advisory
    assert by_name["ManiSkillEnv"].advisory
    assert by_name["LiberoEnv"].arguments[3] is True
    assert not any(c.advisory for c in doctor.plan(None, [], []))
    overrides.append(f"env.python={sys.executable}")
    checks = {c.name: c for c in doctor.plan(compose_unchecked(overrides, "train"), overrides, [])}
    (there,) = next(c for name, c in checks.items() if name.endswith("LiberoEnv")).function("LiberoEnv", "/bin/python")
    assert (there.status, "env.python is set" in there.found) == ("skipped", True)


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("skipped", 0), ("fail", 1)])
def test_the_exit_status_says_it(monkeypatch, capsys, status, code):
    fix = "do it" if status in ("warn", "fail") else ""
    monkeypatch.setattr(doctor, "run_all", lambda checks, done: [Finding("x", status, "y", fix)])
    assert doctor.main(["--json"]) == code
    told = json.loads(capsys.readouterr().out)
    holds_to_format(told)
    assert told["status"] == status
    assert doctor.main(["--no-such-option"]) == 2
    assert doctor.main(["env=libero_11"]) == 1
    assert "Did you mean" in capsys.readouterr().out


def test_the_command_on_this_machine(monkeypatch, capsys):
    """All but the imports of simulators, which the slow test below does."""
    monkeypatch.setattr(simulators, "simulators", lambda folders: ({}, []))
    code = doctor.main(["--json"])
    told = json.loads(capsys.readouterr().out)
    holds_to_format(told)
    names = [finding["name"] for finding in told["findings"]]
    assert {"system", "memory", "shared memory", "open files", "disk of runs", "stale workers"} <= set(names)
    assert {"flash-attn", "NCCL"} <= set(names)
    assert code == (told["status"] == "fail")


@pytest.mark.slow
def test_the_whole_command_with_a_configuration(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "embodied.tools.doctor", *RUN, f"runner.output_dir={tmp_path}", "--json"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    encoding="utf-8")  # fmt: skip
    told = json.loads(done.stdout)
    holds_to_format(told)
    status = {finding["name"]: finding["status"] for finding in told["findings"]}
    assert status["configuration"] == "ok"
    assert status[sizes.NAME] == "ok"
    assert done.returncode == (told["status"] == "fail")
    assert [*tmp_path.iterdir()] == [], "it leaves nothing"


@pytest.mark.parametrize("wrong", ["runner.ckpt_path=/none", "runner.max_epoch=3", "actor.micro_batch_size=0"])
@pytest.mark.parametrize("command", doctor.COMMANDS)
def test_a_refused_run_says_where_all_is_told(tmp_path, capsys, command, wrong):
    """And there it stands in the same words, whichever command was refused, and whether by a rule or for a key."""
    entry = import_module("embodied.tools.demos" if command == "demos" else f"embodied.{command}")
    more = [f"runner.output_dir={tmp_path}", wrong, *(["data=/none"] if command == "sft" else [])]
    assert entry.main([*RUN, *more]) == 2
    refused = capsys.readouterr().err
    assert f"tools.doctor{'' if command == 'train' else f' {command}'}, with the same arguments" in refused
    said = [*configuration.configuration([*FAKE, *more], [FOLDER], command)]
    assert f"error: {said[0].found}\n  fix: {said[0].fix}" in refused


def test_all_that_is_wrong_is_said_at_once_by_rules_and_by_checks(tmp_path, capsys):
    wrong = ["runner.ckpt_path=/none", "algorithm.critic_warmup_steps=5", "protocol.held_out_states=99"]
    assert import_module("embodied.train").main([*RUN, f"runner.output_dir={tmp_path}", *wrong]) == 2
    refused = capsys.readouterr().err
    assert refused.count("error: ") == refused.count("  fix: ") == 3
    assert "critic_warmup_steps" in refused.split("error: ")[1], "rules come first"
    assert "no checkpoint at /none" in refused
    assert "protocol.held_out_states is 99" in refused
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_large_checkpoint_that_cannot_fit_is_refused_as_the_doctor_fails_it(tmp_path, capsys, command):
    """By the headers of its files: nothing is built, and nothing is left."""
    write_header(tmp_path / "model.safetensors", a=[2**18, 2**20])
    more = ["model=openvla_oft", f"actor.model.model_path={tmp_path}", f"runner.output_dir={tmp_path}/runs"]
    (finding,) = [f for f in sizes.sizes([*FAKE, *more], [FOLDER], command) if f.name == sizes.NAME]
    assert finding.status == "fail"
    entry = import_module(f"embodied.{command}")
    assert entry.main([*RUN, *more]) == 2
    refused = capsys.readouterr().err
    assert "error: the run needs at least" in refused
    assert "and the machine has" in refused
    assert "with the same arguments, says all that is wrong" in refused
    assert not (tmp_path / "runs").exists()


def test_the_doctor_takes_the_command_that_was_refused(monkeypatch, capsys):
    planned = []
    monkeypatch.setattr(doctor, "run_all", lambda checks, done: planned.extend(checks) or [])
    assert doctor.main(["sft", "env=libero_10", "data=/none"]) == 1, "there are no demonstrations"
    composed = [one.arguments for one in planned if one.name in (configuration.NAME, sizes.NAME)]
    assert composed == [(["env=libero_10", "data=/none"], [], "sft")] * 2
    assert doctor.main(["evil", "env=libero_10"]) == 1
    assert "'evil' is not of the form KEY=VALUE" in capsys.readouterr().out


def test_what_builds_no_policy_has_no_memory_of_it(tmp_path):
    (finding,) = sizes.sizes([*FAKE, f"runner.output_dir={tmp_path}"], [FOLDER], "demos")
    assert (finding.name, finding.status) == (sizes.NAME, "skipped")
