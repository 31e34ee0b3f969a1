"""A file that is said to be of another system than it is."""

from __future__ import annotations

import pytest
from test_recipes import theirs

from embodied.errors import ConfigError
from embodied.migrate import SYSTEMS
from embodied.migrate.origin import check_origin
from embodied.tools import migrate as tool


@pytest.mark.parametrize(("file", "system"), theirs(), ids=lambda one: getattr(one, "stem", one))
def test_a_recipe_is_of_its_system_and_of_no_other(file, system):
    mapping = tool.read(file)
    check_origin(mapping, system)
    for other in set(SYSTEMS) - {system}:
        with pytest.raises(ConfigError, match=f"keys are of {system}, and") as raised:
            check_origin(mapping, other)
        assert raised.value.remedy == f"if it is a file of {system}, give --from {system}"


@pytest.mark.parametrize("mapping", [{}, {"seed": 1}, {"a": {"b": 1}}, {"seed": 1, "max_steps": 2, "a": 3}])
def test_a_few_keys_are_of_any_system(mapping):
    for system in SYSTEMS:
        check_origin(mapping, system)


def test_the_command_says_it(tmp_path, capsys):
    file = tmp_path / "run.sh"
    words = "data.train_batch_size=4 actor_rollout_ref.rollout.n=2 actor_rollout_ref.model.path=m"
    file.write_text(f"python3 -m verl.trainer.main_ppo {words} trainer.total_epochs=1\n", encoding="utf-8")
    assert tool.main([str(file), "--from", "rlinf"]) == 2
    assert "give --from verl" in capsys.readouterr().err
