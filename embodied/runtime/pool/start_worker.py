"""Starts an env worker: ``PYTHON …/start_worker.py FD``. With ``--serve FD FD`` it starts the server that forks workers
(:mod:`embodied.runtime.pool.forking`), with ``--safe-stop FD`` the process that stops a worker's robot
(:mod:`embodied.runtime.pool.safe_stop`).

It imports the launcher's own ``embodied``, from where this file lies, and nothing else of its environment: not
its site-packages (another interpreter may have other versions), not what happens to lie in the current folder. The
interpreter needs Python 3.10, numpy, and the simulator; pillow where demonstrations or videos are recorded, and
imageio-ffmpeg where videos are.
"""

import importlib.util
import os
import sys
from pathlib import Path


def main() -> None:
    here = Path(__file__).resolve()
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != here.parent]  # python puts it there
    if "embodied" not in sys.modules:
        package = here.parents[2]
        spec = importlib.util.spec_from_file_location(
            "embodied", package / "__init__.py", submodule_search_locations=[str(package)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules["embodied"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["embodied"])
    from embodied.observe.terminal import streams

    streams.for_log()
    if sys.argv[1] == "--serve":
        from embodied.runtime.pool import forking

        forking.main()  # it returns in each worker
    if sys.argv[1] == "--safe-stop":
        from embodied.runtime.pool import safe_stop

        sys.exit(safe_stop.main())
    from embodied.runtime.worker import worker

    code = worker.main()
    sys.stderr.flush()
    os._exit(code)  # GL libraries crash now and then in their exit handlers; there is nothing left to do here


if __name__ == "__main__":
    main()
