"""The command ``embodied``: its verbs, completion in a real shell, and what ``explain`` says."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from embodied import cli, errors
from embodied.observe.metrics import METRICS
from embodied.schema.others.key_table import keys
from embodied.tools import explain
from embodied.tools.completion import SCRIPTS, candidates
from embodied.tools.library import sources


@pytest.mark.parametrize("verb", cli.VERBS)
def test_each_verb_says_what_it_does(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out
    assert verb in cli.usage()


def test_no_verb_and_an_unknown_one(capsys):
    assert cli.main([]) == 2
    assert cli.main(["trian", "env=libero_10"]) == 2
    assert "there is no 'embodied trian'. Did you mean 'train'?" in capsys.readouterr().err
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("embodied 0.")


def test_the_package_is_the_command():
    said = subprocess.run(
        [sys.executable, "-m", "embodied", "trian"], capture_output=True, text=True, timeout=60, encoding="utf-8"
    )
    assert (said.returncode, "Did you mean 'train'?" in said.stderr) == (2, True)


def test_a_verb_gets_the_words_behind_it(capsys, monkeypatch):
    monkeypatch.setattr(import_module("embodied.train"), "main", lambda words: print(words) or 130)
    assert cli.main(["train", "env=libero_10", "runner.seed=3"]) == 130
    assert capsys.readouterr().out == "['env=libero_10', 'runner.seed=3']\n"


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom embodied import cli\ncli.main(['--help'])\ncli.main(['completion', '--line', 'embodied t'])\n"
        "assert not {'numpy', 'torch', 'hydra', 'pydantic', 'yaml'} & {*sys.modules}, [*sys.modules]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_help_of_no_verb_imports_torch():
    code = (
        "import sys\nfrom embodied import cli\n"
        "for verb in cli.VERBS:\n"
        "    try: cli.main([verb, '--help'])\n"
        "    except SystemExit: pass\n"
        "    assert 'torch' not in sys.modules, verb"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ") == len(cli.VERBS)
    entry = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "embodied.train", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        encoding="utf-8",
    )
    imported = {line.rpartition("|")[2].strip() for line in entry.stderr.splitlines()}
    assert "embodied.run.command" in imported
    assert not {"torch", "hydra", "embodied.learn"} & imported


# -- completion ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    """The environment of a shell that has the command ``embodied``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "embodied"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m embodied.cli "$@"\n', encoding="utf-8")
    file.chmod(0o755)
    paths = [part if part else os.getcwd() for part in sys.path]
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def runs(tmp_path):
    """A folder with one run of one whole checkpoint, and a folder that is no run."""
    for name in ("one/config.yaml", "one/checkpoints/000004/meta.json", "one/checkpoints/000005/part", "two/notes"):
        file = tmp_path / "runs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("embodied report ", ["runs/one"]),
        ("embodied compare runs/one runs/o", ["runs/one"]),
        ("embodied watch runs/t", []),
        ("embodied serve ", ["runs/one/checkpoints/000004"]),
        ("embodied export runs/", ["runs/one/checkpoints/000004"]),
        ("embodied play env=libero_10 runs/", ["runs/one/checkpoints/000004"]),
        ("embodied eval runner.ckpt_path=", ["runner.ckpt_path=runs/one/checkpoints/000004"]),
        ("embodied doctor runner.ckpt_path=runs/n", []),
    ],
)
def test_runs_and_checkpoints_may_follow(line, found, runs, monkeypatch):
    monkeypatch.chdir(runs)
    assert candidates(line) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("embodied ex", ["explain", "export"]),
        ("embodied train env=libero_g", ["env=libero_goal"]),
        ("embodied train env=libero_10 +perturb=robot_", ["+perturb=robot_random"]),
        ("embodied train env=libero_10 runner.max_e", ["runner.max_epochs="]),
        ("embodied explain train/approx", ["train/approx_kl"]),
        ("embodied completion f", ["fish"]),
        ("embodied bench env=libero_g", ["env=libero_goal"]),
        ("embodied migrate ", []),
        ("embodied", []),
        ("embodied train env=nothing_like_it", []),
    ],
)
def test_what_may_follow(line, found):
    assert candidates(line) == found


def test_groups_come_before_keys():
    assert "env=" in candidates("embodied train ")
    assert not [one for one in candidates("embodied train ") if "." in one]


@pytest.mark.parametrize(
    ("line", "replies", "breaks"),
    [
        ("embodied ser", ["serve"], "="),
        ("embodied train env=libero_sp", ["libero_spatial"], "="),  # bash takes what stands behind = as a word
        ("embodied train env=libero_sp", ["env=libero_spatial"], ""),  # some have it otherwise, as zsh has
        ("embodied train runner.max_e", ["runner.max_epochs="], "="),
        ("embodied nothing such", [], "="),
    ],
)
def test_bash_completes(line, replies, breaks, command):
    if (bash := shutil.which("bash")) is None:
        pytest.skip("there is no bash")
    script = (
        f'{SCRIPTS["bash"]}\nCOMP_WORDBREAKS=" {breaks}"\n'
        f'COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}}\n'
        "_embodied\n[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        [bash, "--norc", "-c", script], capture_output=True, text=True, timeout=60, env=command, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == replies


def test_fish_completes(command, runs):
    if (fish := shutil.which("fish")) is None:
        pytest.skip("there is no fish (apt-get install fish)")
    asked = "; ".join(
        f"complete -C '{line}'" for line in ("embodied ser", "embodied report runs/o", "embodied serve r")
    )
    done = subprocess.run(
        [fish, "--no-config", "-c", f"{SCRIPTS['fish']}{asked}"], capture_output=True, text=True, timeout=60,
        env=command | {"HOME": str(runs)}, cwd=runs,
    encoding="utf-8")  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert {"serve", "runs/one", "runs/one/checkpoints/000004"} <= set(found), found
    assert "runs/two" not in found


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("embodied ser", b"embodied serve "),
        ("embodied train env=libero_sp", b"env=libero_spatial "),
        ("embodied serve runs/o", b"runs/one/checkpoints/000004 "),
    ],
)
def test_zsh_completes_a_line_that_is_typed(line, completed, command, runs):
    if (zsh := shutil.which("zsh")) is None:
        pytest.skip("there is no zsh (apt-get install zsh)")
    (runs / "script").write_text(SCRIPTS["zsh"], encoding="utf-8")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(runs)
        os.execve(zsh, [zsh, "-f", "-i"], command | {"HOME": str(runs), "TERM": "dumb"})
    try:
        os.write(terminal, b"source script; print rea''dy\n")
        shown(terminal, b"ready\r\n")
        os.write(terminal, line.encode() + b"\t")
        assert b"_embodied:" not in shown(terminal, completed), "the script itself fails"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def shown(terminal: int, wanted: bytes) -> bytes:
    """Reads what a terminal shows until it shows this."""
    found, end = b"", time.monotonic() + 60
    while wanted not in found:
        assert time.monotonic() < end, found
        if select.select([terminal], [], [], 1.0)[0]:
            found += os.read(terminal, 4096)
    return found


# -- explain ---------------------------------------------------------------------------------------------------------


def test_everything_that_has_a_name_can_be_explained():
    names = {entry.name for entry in explain.entries()}
    assert {key.name for key in keys()} | {*METRICS} <= names
    assert {"WorkerHungError", "ConfigError", "EmbodiedError"} <= names
    assert all(entry.lines[0] for entry in explain.entries())


def test_keys_metrics_and_errors_are_explained(capsys):
    assert explain.main(["runner.seed=3", "rollout/success_rate", "WorkerDiedError"]) == 0
    said = capsys.readouterr().out
    assert "runner.seed (key)\n  Seed of the whole run" in said
    assert "default: 1234" in said
    assert (
        "source: embodied/schema/keys/sections/runner.py (RunnerConfig); docs/configuration.md, section runner\n"
        in said
    )
    assert f"rollout/success_rate (metric)\n  {METRICS['rollout/success_rate']}\n  written by training," in said
    assert "source: embodied/observe/metrics.py; docs/metrics.md, section rollout\n" in said
    assert "source: embodied/errors.py; docs/troubleshooting.md, section WorkerDiedError\n" in said
    assert errors.WorkerDiedError.__doc__.partition("\n")[0] in said


def test_an_explanation_names_the_files_that_set_the_default(capsys):
    assert explain.main(["runner.logger.report", "protocol.held_out_states"]) == 0
    said = capsys.readouterr().out
    assert "set to false by config/tracker/jsonl.yaml\n" in said
    assert "config/protocol/held_out.yaml" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("env.eval.wait_steps", "control steps that objects get to settle after a reset"),
        (
            "env.eval.wait_steps",
            "default: 10\n  source: envs/libero/env.py\n  set to 10 by config/env/libero_10.yaml, ",
        ),
        ("env.eval.wait_steps", "set to 15 by config/protocol/rlinf.yaml"),
        ("env.train.init_params.camera_names", "env.train.init_params (argument of embodied.envs.libero.LiberoEnv)"),
        ("env.train.init_params.camera_names", "envs.maniskill.ManiSkillEnv)\n  id (any registered task)"),
        ("actor.model.unnorm_key", "which dataset statistics; null = the only ones there are"),
        ("actor.model.unnorm_key", "source: models/openvla_oft/settings.py"),
    ],
)
def test_arguments_of_classes_are_explained_from_where_they_stand(name, said, capsys):
    assert explain.main([name]) == 0
    assert said in capsys.readouterr().out


def test_every_argument_of_our_classes_has_a_meaning():
    found = [one for section in sources.GROUPS for one in sources.arguments(section)]
    assert {one.target.rpartition(".")[2] for one in found} >= {"LiberoEnv", "GymEnv", "MathEnv", "MLPPolicy"}
    assert [(one.target, one.name) for one in found if not one.meaning] == []


def test_an_error_says_by_which_name_it_is_explained(capsys):
    assert cli.main(["train", "env=libero_10", "runner.sed=3"]) == 2
    assert cli.main(["report", "/no/such/run"]) == 2
    lines = [line.split() for line in capsys.readouterr().err.splitlines() if line.startswith("  kind: ")]
    assert [words[1] for words in lines] == ["UnknownKeyError", "EvaluationError"]
    assert explain.main([words[-1].rstrip(")") for words in lines]) == 0
    assert "A key that no part of the program reads." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("runner.sed", "Did you mean 'runner.seed'?"),
        ("a", "names have 'a' in them"),
        ("env.train.nothing_such", "the class that env.train._target_ names"),
        ("env.train.wait_step", "Did you mean 'env.train.wait_steps'?"),
        ("", "nothing is called ''"),
    ],
)
def test_names_that_are_not_known(name, said, capsys):
    assert explain.main([name]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("embodied.cli", "--help"), ("embodied.cli", "report", "--help"), ("embodied.cli", "explain", "runner.seed"),
        ("embodied.train", "--help"), ("embodied.eval", "--cfg"), ("embodied.tools.compare", "--help"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_reader_that_ends_early_is_no_error(words):
    """As ``embodied --help | head -1``, when the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    encoding="utf-8")  # fmt: skip
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 128 + signal.SIGPIPE), "argparse itself takes no notice"


def test_no_verb_forgets_that_its_reader_may_end():
    for verb in cli.VERBS.values():
        source = Path(import_module(verb.module).__file__ or "").read_text(encoding="utf-8")
        assert source.endswith('if __name__ == "__main__":\n    sys.exit(piped(main))\n'), verb.module


def test_another_pipe_that_breaks_is_an_error():
    def broken() -> int:
        raise BrokenPipeError("of a worker")

    with pytest.raises(BrokenPipeError, match="of a worker"):
        cli.piped(broken)
