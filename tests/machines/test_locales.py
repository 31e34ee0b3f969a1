"""Commands on a machine whose locale is not UTF-8, or whose outputs are closed, full or read by nobody."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import warm

ROOT = Path(__file__).resolve().parents[2]
LOCALES = {"en_US.ISO-8859-1": ("en_US", "ISO-8859-1"), "zh_CN.GBK": ("zh_CN", "GBK")}
ENCODINGS = {"en_US.ISO-8859-1": "iso-8859-1", "zh_CN.GBK": "gbk", "ascii": "ascii"}
RUN = (
    "embodied.train", "--config-dir", "my", "env=said", "model=mlp", "tracker=jsonl", "runner.max_epochs=1",
    "runner.device=cpu", "runner.val_check_interval=0", "runner.save_interval=1", "runner.experiment_name=run",
)  # fmt: skip
YAML = "defaults:\n  - gym\n  - _self_\nid: CartPole-v1\ninstruction: '去 × é'\n"


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Path:
    """A folder with the locales, made as a user makes them."""
    if shutil.which("localedef") is None:
        pytest.skip("localedef of glibc is not installed")
    folder = tmp_path_factory.mktemp("locales")
    for name, (language, charset) in LOCALES.items():
        made = subprocess.run(
            ["localedef", "-i", language, "-f", charset, folder / name], capture_output=True, check=False
        )
        if not (folder / name).exists():
            pytest.skip(f"localedef cannot make {name}: {made.stderr.decode(errors='replace')[-300:]}")
    return folder


def variables(locale: str, places: Path | None) -> dict[str, str]:
    told = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"} if locale == "ascii" else {"LC_ALL": locale}
    return {**told, **({"LOCPATH": str(places)} if places else {})}


def command_of(
    *words: str, more: Mapping[str, str], shell: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess:
    """Runs Python, in a shell that redirects its streams if it is told how."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "MUJOCO_GL": "egl", "CUDA_VISIBLE_DEVICES": "", **more}
    line = f"{shlex.join([sys.executable, *words])} {shell}"
    return subprocess.run(["bash", "-c", line], capture_output=True, check=False, env=environment, cwd=cwd)


def command(*words: str, **how: Any) -> subprocess.CompletedProcess:
    """Runs ``python -m …``."""
    return command_of("-m", *words, **how)


def shown(done: subprocess.CompletedProcess, encoding: str) -> str:
    """All that was printed; it is text of the machine's encoding, and no traceback."""
    printed = done.stdout + done.stderr  # the bytes of an argument, which no locale need have, are given back
    text = printed.decode(encoding, "strict" if "nöpe" not in str(done.args) else "replace")
    assert "Traceback" not in text
    assert "Error\n" not in text
    return text


EXPLAINED = (("embodied.tools.explain", "algorithm.gamma"), "Discount from one reward")
SAID = [
    (("embodied.cli", "--help"), "usage: embodied VERB"),
    (("embodied.train", "--help"), "GROUP=NAME"),
    (("embodied.tools.compare", "--help"), "usage"),
    (("embodied.tools.report", "--help"), "usage"),
    (("embodied.train", "env=nöpe去"), "error: "),
    (("embodied.train", "experiment=quickstart_grpo", "--cfg"), "runner:"),
]


@pytest.mark.parametrize("locale", [*LOCALES, "ascii"])
def test_an_explanation_is_given_in_every_locale(places, locale):
    words, said = EXPLAINED
    assert said in shown(command(*words, more=variables(locale, places)), ENCODINGS[locale])


@pytest.mark.slow  # two dozen commands
@pytest.mark.parametrize("locale", [*LOCALES, "ascii"])
@pytest.mark.parametrize(("words", "said"), SAID)
def test_a_command_says_what_it_says(places, locale, words, said):
    assert said in shown(command(*words, more=variables(locale, places)), ENCODINGS[locale])


@pytest.mark.parametrize("locale", ["zh_CN.GBK", pytest.param("en_US.ISO-8859-1", marks=pytest.mark.slow), "ascii"])
def test_a_run_is_that_of_every_other_machine(places, locale, tmp_path):
    """Its YAML begins with a mark, its instruction is not of the machine's encoding, and another machine goes on."""
    (tmp_path / "my/env").mkdir(parents=True)
    (tmp_path / "my/env/said.yaml").write_text("\ufeff" + YAML, encoding="utf-8")
    here = {**variables(locale, places), "XDG_CACHE_HOME": str(tmp_path)}
    done = command(*RUN, more=here, cwd=tmp_path)
    text = shown(done, ENCODINGS[locale])
    assert done.returncode == 0, text
    assert f"{'x' if locale == 'ascii' else '×'} 4" in text
    assert "去 × é" in (tmp_path / "runs/run/config.yaml").read_text(encoding="utf-8")
    for file in (tmp_path / "runs/run").rglob("*"):
        if file.suffix in (".log", ".yaml", ".json", ".jsonl", ".html"):
            file.read_text(encoding="utf-8")
    there = {"LC_ALL": "C.UTF-8", "XDG_CACHE_HOME": str(tmp_path)}
    again = warm.python(["-m", *RUN, "runner.max_epochs=2"], tmp_path, there)
    assert again.returncode == 0, again.stdout + again.stderr


SLOW = pytest.mark.slow


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&-", "0<&- 1>&- 2>&-", "> /dev/full"])
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("embodied.cli", "--help"), 0),
        (("embodied.cli", "nope"), 2),
        pytest.param(("embodied.train", "env=nope"), 2, marks=SLOW),
        pytest.param(("embodied.tools.explain", "nothing.such"), 2, marks=SLOW),
        pytest.param(("embodied.tools.explain", "runner.seed"), 0, marks=SLOW),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_closed_or_full_output_hides_nothing(words, status, closed):
    done = command(*words, more={}, shell=closed)
    text = shown(done, "utf-8")
    full = "full" in closed and status == 0
    assert done.returncode == (1 if full else status), text
    if status and "2>" not in closed:
        assert "error: " in done.stderr.decode()
        assert "fix: " in done.stderr.decode()
    if full:
        assert "error: standard output cannot be written: No space left on device" in done.stderr.decode()


def test_a_run_whose_reader_ends_early_ends_with_it(tmp_path):
    (tmp_path / "my/env").mkdir(parents=True)
    (tmp_path / "my/env/said.yaml").write_text(YAML, encoding="utf-8")
    here = {"XDG_CACHE_HOME": str(tmp_path)}
    done = command(*RUN, more=here, cwd=tmp_path, shell="| head -1; echo ${PIPESTATUS[0]}")
    text = shown(done, "utf-8")
    assert done.stderr == b"", text
    assert text.splitlines()[-1] in (str(128 + signal.SIGPIPE), "0")


def test_every_program_readies_its_streams():
    """Those of ``[project.scripts]`` too: pip makes programs that call them."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert set(scripts) == {"embodied", "embodied-train", "embodied-eval"}
    for place in scripts.values():
        module, _, name = place.partition(":")
        assert module == "embodied.cli", place
        code = f"import sys; sys.argv[1:] = ['--help']; from {module} import {name}; sys.exit({name}())"
        done = command_of("-c", code, more={"PYTHONIOENCODING": "ascii"}, shell="0<&-")
        assert "usage" in shown(done, "ascii")
    for file in [*(ROOT / "embodied").rglob("*.py")]:
        source = file.read_text(encoding="utf-8")
        if "\nif __name__ ==" in source:
            readies = (
                "piped(main)",
                "def piped(",
                "for_log()",
                'reconfigure(encoding="utf-8"',
                "from embodied.cli import main",
            )
            assert any(one in source for one in readies) or file.name in SILENT, file


SILENT = ("peers.py", "window.py")  # print nothing of others, or in ASCII
