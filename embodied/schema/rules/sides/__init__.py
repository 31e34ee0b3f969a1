"""The two sides of an env: keys of ``env.train`` on the command line describe the task of ``env.eval``, too.

A policy that is trained on one task and judged on another gives a number that means nothing. So each key of the env's
own follows, unless it says how one side is run (:data:`~.following.OWN_OF_A_SIDE`).
"""

from .following import ALONGSIDE, OWN_OF_A_SIDE, followed, followed_still, followers, without_keys
from .given import keys_of

__all__ = ["ALONGSIDE", "OWN_OF_A_SIDE", "followed", "followed_still", "followers", "keys_of", "without_keys"]
