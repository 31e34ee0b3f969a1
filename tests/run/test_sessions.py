"""What is opened for a recipe, and who is given everything that was checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from embodied.errors import RunFolderError
from embodied.observe.terminal.console import NullConsole
from embodied.parallel.group import Group
from embodied.run.build import policy as build
from embodied.run.build.given import Checked
from embodied.run.build.preflight import check
from embodied.run.folder.folder import RunFolder
from embodied.run.session import open_session
from embodied.schema.compose.compose import compose
from embodied.testing import FakePolicy

ROOT = Path(__file__).parents[2]
CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = ("env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.start_method=spawn")
TOPS = ("embodied", "envs", "models")
KNOW_CHECKED = {
    "given.py", "preflight.py", "session.py", "rl.py", "sft.py", "evaluate.py", "selftest.py", "play.py",
}  # fmt: skip


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Checked]:
    monkeypatch.chdir(tmp_path)

    def make(*keys: str) -> Checked:
        return check(compose([*FAKE, "runner.experiment_name=run", *keys], "eval", [CONFIG]), Group())

    return make


def test_only_recipes_are_given_everything_that_was_checked():
    """A part gets the values that it needs."""
    files = [path for top in TOPS for path in (ROOT / top).rglob("*.py")]
    assert {path.name for path in files if "Checked" in path.read_text(encoding="utf-8")} == KNOW_CHECKED


def test_the_run_s_folder_is_held_while_the_session_is_open(checked):
    one = checked()
    with open_session(one, NullConsole()) as session:
        assert session.path == Path("runs/run")
        assert (session.memory, session.server) == (None, None)
        assert isinstance(session.model.policy, FakePolicy)
        with pytest.raises(RunFolderError, match="another process"):
            RunFolder.open(session.path, one.composed.resolved)
    RunFolder.open(session.path, one.composed.resolved).close()


@pytest.mark.parametrize("counts", [True, False])
def test_a_dry_run_counts_memory_where_it_is_asked_to_and_writes_nothing(checked, counts):
    with open_session(checked("runner.dry_run=true"), NullConsole(), counts=counts) as session:
        assert (session.memory is not None) is counts
    assert not Path("runs").exists()


def test_what_answers_in_the_place_of_a_policy_has_none_built(checked, monkeypatch, tmp_path):
    """It is made when the folder is open: a run that goes on elsewhere is said first."""
    monkeypatch.setattr(build, "build_policy", lambda *given: pytest.fail("a policy was built"))
    stand_in = FakePolicy()
    with open_session(checked(), NullConsole(), folder=tmp_path / "play", stand_in=lambda: stand_in) as session:
        assert session.model.policy is stand_in
        assert session.path == tmp_path / "play"
        with session.engine() as engine:
            assert engine is None
    assert not (tmp_path / "play").exists()
    assert not Path("runs").exists(), "an episode that is played has no run"


def test_simulators_of_a_session_drive_its_policy(checked):
    one = checked()
    with open_session(one, NullConsole()) as session:
        simulators = session.simulators(one.config, one.sides)
        assert simulators.model is session.model
        workers = simulators.open(one.eval, 4)
        assert workers.identity == one.eval.identity
        workers.close()
