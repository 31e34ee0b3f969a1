"""What must hold on a machine where policies act and learn: ``embodied selftest``.

| file | knows |
|---|---|
| ``parts/`` | the parts, a file each; ``parts/__init__.py`` has them in their order, with time limits |
| ``measured.py`` | what a part says: a number, what is allowed, whether it holds |
| ``policies.py``, ``large.py``, ``config/`` | the policies that parts build by configuration, and what they are asked |
| ``learning.py``, ``meters.py``, ``apart.py`` | what policies learn; seconds and memory; work in a second process |
| ``child.py``, ``running.py`` | a part in a process of its own; all of them one after another within a time |
| ``machine.py``, ``record.py``, ``page.py`` | versions and devices; ``selftest.json``; ``selftest.html`` |

Another self-test is ``python -m embodied.eval … selftest=true`` (:mod:`embodied.run.selftest`): it repeats an
evaluation of the user's own under what must not change its numbers. This one needs no configuration, and asks the
device.
"""
