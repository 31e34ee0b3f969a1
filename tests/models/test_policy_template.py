from __future__ import annotations

from pathlib import Path

import pytest
from embodied.models import _template
from embodied.models._template import TemplatePolicy

from embodied.errors import SpecMismatchError
from embodied.testing import check_policy


def test_the_template_satisfies_the_protocol(env) -> None:
    check_policy(TemplatePolicy(), env)


def test_the_template_refuses_another_action_dimension(env) -> None:
    with pytest.raises(SpecMismatchError):
        TemplatePolicy(action_dim=6).bind(env)


def test_the_template_is_short() -> None:
    assert len(Path(_template.__file__).read_text(encoding="utf-8").splitlines()) <= 64
