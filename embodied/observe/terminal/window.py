"""A window that shows pictures as they come (``embodied play --live``): tkinter with Pillow.

It lives in a process of its own, so that a display that goes away ends no simulator.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np

from embodied.errors import ConfigError
from embodied.lib.child import Child

HEAD = struct.Struct("<II")  # height and width of a picture, pixels
READY = "ready"


class Window:
    """Shows one picture after another. When it is closed, or its display goes away, the showing ends and nothing else.

    Raises:
        ConfigError: there is no tkinter, or no display.
    """

    def __init__(self, title: str) -> None:
        command = [sys.executable, "-m", "embodied.observe.terminal.window", title]
        self._viewer = Child(
            command, session=False, death=None,  # it ends when its input does
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None,
        )  # fmt: skip
        self._open = True
        assert self._viewer.stdout is not None
        with self._viewer.stdout as says:
            said = says.readline().decode().strip()
        if said != READY:
            self.close()
            raise ConfigError(
                f"no window can be opened: {said or 'its process has ended'}",
                "set DISPLAY to a display (over ssh: ssh -X), install tkinter if it is missing (Debian, Ubuntu: "
                "apt-get install python3-tk), or leave out --live and open the video",
            )

    def show(self, frame: np.ndarray) -> None:
        """Shows a picture, uint8 [H, W, 3]."""
        if not self._open:
            return
        assert self._viewer.stdin is not None
        try:
            self._viewer.stdin.write(HEAD.pack(*frame.shape[:2]) + frame.tobytes())
            self._viewer.stdin.flush()
        except OSError:
            self.close()
            print("the window was closed; the episode goes on", file=sys.stderr)

    def close(self) -> None:
        """Closes the window; a second call does nothing."""
        if self._open:
            self._open = False
            assert self._viewer.stdin is not None
            with suppress(OSError):
                self._viewer.stdin.close()
            self._viewer.wait()


def main(title: str) -> int:
    """Shows the pictures that come over stdin, until it ends or the window is closed."""
    try:
        import tkinter

        from PIL import Image, ImageTk

        root = tkinter.Tk()
    except Exception as error:  # noqa: BLE001 (whatever hinders the window is said by who asked for it)
        print(f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace").decode(), flush=True)
        return 1
    root.title(title)
    label = tkinter.Label(root)
    label.pack()
    print(READY, flush=True)
    with suppress(tkinter.TclError):
        while len(head := sys.stdin.buffer.read(HEAD.size)) == HEAD.size:
            height, width = HEAD.unpack(head)
            pixels = sys.stdin.buffer.read(3 * height * width)
            picture = ImageTk.PhotoImage(Image.frombytes("RGB", (width, height), pixels), master=root)
            label.configure(image=picture)
            root.update()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
