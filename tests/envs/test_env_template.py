import inspect

import pytest
from embodied.envs import _template

from embodied.errors import ConfigError
from embodied.testing import check_env


def test_keeps_the_protocol():
    check_env(_template.TemplateEnv())


def test_stays_short():
    assert len(inspect.getsource(_template).splitlines()) <= 60


def test_refuses_a_picture_without_room():
    with pytest.raises(ConfigError, match=r"env\.train\.size"):
        _template.TemplateEnv(size=2)
