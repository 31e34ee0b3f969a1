"""The commands of ``docs/how_to/run_on_a_cluster.md``, as they stand there, on a machine without any other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import lab
import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "run_on_a_cluster.md"
ENDS_S = 600.0


def test_the_page_s_commands_train_on_a_cluster_of_one_machine(request, tmp_path):
    (block,) = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    start, train, stop = block.splitlines()
    with lab.Lab(lab.interpreter(request), tmp_path) as machines:
        machines.machine("a", 1)

        def run(command: str) -> str:
            done = machines.run("a", ["sh", "-c", command], ENDS_S)
            print(done.stdout, done.stderr)
            assert done.returncode == 0, command
            return done.stdout

        run(start)
        assert "2 iterations done" in run(train)
        assert (tmp_path / "runs" / "math-quickstart" / "logs" / "rank-01.log").exists()
        again = f"cd {tmp_path} && {train} runner.experiment_name=job"
        run(f"ray job submit --address=http://127.0.0.1:8265 -- sh -c {shlex.quote(again)}")
        assert (tmp_path / "runs" / "job" / "checkpoints").exists()
        run(stop)


def test_without_a_cluster_the_command_says_how_to_start_one(request, tmp_path):
    with lab.Lab(lab.interpreter(request), tmp_path) as machines:
        machines.machine("a", 1)
        done = machines.run("a", ["python", "-m", "embodied.train", "env=libero_10", "cluster.launcher=ray"], ENDS_S)
    assert done.returncode == 2
    assert "no Ray cluster was found at this machine" in done.stderr
    assert "ray start --head --port=6379" in done.stderr
