"""What a ``_target_`` names, and the arguments that it takes."""

from __future__ import annotations

import pytest

from embodied.errors import ConfigError
from embodied.lib.targets import arguments_of
from embodied.schema.compose.binding import target_kwargs
from embodied.schema.compose.compose import compose_unchecked


def takes_two(first: int, *rest: int, second: int = 2) -> None:
    """Takes two arguments by name."""


def takes_any(first: int, **others: int) -> None:
    """Takes any argument by name."""


class Both:
    """Takes one argument and any other."""

    def __init__(self, first: int = 1, *rest: int, **own: int) -> None:
        self.own = first, rest, own


@pytest.mark.parametrize(
    ("name", "named", "others"),
    [("takes_two", ["first", "second"], False), ("takes_any", ["first"], True), ("Both", ["first"], True)],
)
def test_arguments_are_those_that_can_be_given_by_name(name, named, others):
    found = arguments_of(f"{__name__}.{name}", "env.train._target_")
    assert ([*found.named], found.others) == (named, others)
    assert all(argument in found for argument in named)
    assert ("rest" in found, "another" in found) == (others, others)


def test_defaults_are_those_of_the_signature():
    named = arguments_of(f"{__name__}.takes_two", "env.train._target_").named
    assert (named["first"].default, named["second"].default) == (named["first"].empty, 2)


@pytest.mark.parametrize(
    ("path", "said"),
    [("math.pi", "the arguments of 'math.pi' are not known"), ("builtins.dict", "the arguments of 'builtins.dict'"),
     ("math.nothing", "cannot import 'math.nothing'"), ("no_module.at_all", "cannot import 'no_module.at_all'")],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_with_its_key(path, said):
    with pytest.raises(ConfigError, match=f"env.train._target_: {said}"):
        arguments_of(path, "env.train._target_")


def test_a_target_that_cannot_be_called_is_an_error_of_the_configuration():
    env = compose_unchecked(["env=arithmetic", "env.train._target_=math.pi"]).config.env
    with pytest.raises(ConfigError, match=r"env\.train\._target_: the arguments of 'math\.pi' are not known"):
        target_kwargs(env.train, "env.train")
