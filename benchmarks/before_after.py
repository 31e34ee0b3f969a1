"""The video of the site's first page and README's picture, from a run of ``make train``.

    python benchmarks/before_after.py runs/quickstart-libero --out docs/images

An episode of the last evaluation that succeeds, and whose twin of the first evaluation (same start, same noise)
fails, is played again with both policies and drawn in 320 x 320 pixels; the policy sees its 64 x 64. Both end as in the
evaluations, or nothing is written. ``before_after.mp4`` and ``.jpg`` have both side by side; ``robot.png`` and
``robot_dark.png`` have their last pictures beside the returns of this run and of the ten seeds in
``benchmarks/results/quickstart_libero.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import imageio.v3 as imageio
import numpy as np
import yaml
from PIL import Image, ImageDraw, ImageFont

from embodied.evaluation.results import evaluation_files
from embodied.observe.video.video import VideoWriter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
EVERY = 2  # control steps between two pictures
HOLD = 12  # pictures that the last one stays
STRIP = 36  # pixels
BAD, GOOD = (184, 66, 10), (11, 122, 92)
THEMES = {
    "robot.png": ("#ffffff", "#1d2421", "#5a655f", "#0b7a5c"),
    "robot_dark.png": ("#0d1117", "#e9ece8", "#a3ada6", "#4fd1a8"),
}


def twins(run: Path, task: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same episode of a task before and after: of those that the training has mended the one that was farthest from
    its goal before."""
    first, *_, last = (json.loads(file.read_text(encoding="utf-8"))["episodes"] for file in evaluation_files(run))
    mended = [
        (one, other) for one, other in zip(first, last, strict=True)
        if one["start"] == other["start"] and one["start"]["task_id"] == task and other["success"] > one["success"]
    ]  # fmt: skip
    if not mended:
        raise SystemExit(f"no episode of task {task} fails before and succeeds after")
    return min(mended, key=lambda pair: pair[0]["progress"])


def played(episode: dict[str, Any], checkpoint: Path | None, seed: int, folder: Path) -> list[np.ndarray]:
    """The pictures of an episode that is played again; ``checkpoint``: None = the policy that the run began with."""
    start, file = episode["start"], folder / f"{checkpoint is None}.mp4"
    command = [
        sys.executable, "-m", "embodied.tools.play", "experiment=quickstart_libero", "env.start_method=spawn",
        "env.eval._target_=_filmed_libero.FilmedLibero", "env.eval.video_cfg.info_on_video=false",
        f"env.eval.video_cfg.frame_interval={EVERY}", "--out", str(file), "--task", str(start["task_id"]),
        "--state", str(start["init_state_id"]), "--seed", str(start["seed"]), f"runner.seed={seed}",
    ]  # fmt: skip
    if checkpoint is not None:
        command.append(f"runner.ckpt_path={checkpoint.absolute()}")
    paths = os.pathsep.join(filter(None, [str(HERE.absolute()), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True,
        encoding="utf-8",
    )  # fmt: skip
    outcome = f"success: {'yes' if episode['success'] else 'no'}", f"steps:   {episode['steps']}"
    if not all(line in done.stdout.splitlines() for line in outcome):
        raise SystemExit(f"it went otherwise than in the evaluation, which has {outcome}:\n{done.stdout}")
    return list(imageio.imread(file))


def labelled(picture: np.ndarray, text: str, colour: tuple[int, int, int]) -> np.ndarray:
    """A picture below a strip with a text."""
    strip = Image.new("RGB", (picture.shape[1], STRIP), colour)
    font = ImageFont.load_default(15)
    ImageDraw.Draw(strip).text((12, STRIP // 2), text, "white", font, anchor="lm")
    return np.concatenate([np.asarray(strip), picture])


def film(before: list[np.ndarray], after: list[np.ndarray], out: Path) -> None:
    """Writes both episodes side by side; who ends first waits."""
    count = max(len(before), len(after)) + HOLD
    sides = []
    for pictures, texts, colour in (
        (before, ("before", "before: failure"), BAD),
        (after, ("after", "after: success"), GOOD),
    ):
        ends = [texts[place >= len(pictures) - 1] for place in range(count)]
        shown = [pictures[min(place, len(pictures) - 1)] for place in range(count)]
        sides.append([labelled(one, text, colour) for one, text in zip(shown, ends, strict=True)])
    frames = [np.concatenate(pair, axis=1) for pair in zip(*sides, strict=True)]
    with VideoWriter(out / "before_after.mp4", 20 / EVERY, "", info=False) as file:
        for step, frame in enumerate(frames):
            file.add(frame, step, 0.0, False)
    Image.fromarray(frames[-1]).save(out / "before_after.jpg", quality=82)


def draw(before: np.ndarray, after: np.ndarray, run: Path, out: Path) -> None:
    """Draws README's picture in both schemes."""
    from matplotlib import pyplot

    titles = "before: failure", "after: success"
    for name, (paper, ink, dim, line) in THEMES.items():
        figure, panels = pyplot.subplots(1, 3, figsize=(10, 3.3), width_ratios=(1, 1, 1.6), facecolor=paper)
        for panel, picture, title in zip(panels, (before, after), titles, strict=False):
            panel.imshow(picture)
            panel.set_title(title, color=ink, fontsize=10, loc="left")
            panel.axis("off")
        returns(panels[2], run, ink, dim, line)
        panels[2].set_facecolor(paper)
        figure.tight_layout()
        figure.savefig(out / name, dpi=110, facecolor=paper)
        pyplot.close(figure)


def returns(panel: Axes, run: Path, ink: str, dim: str, line: str) -> None:
    """Draws the returns of the run's iterations over those of the ten seeds."""
    rows = [json.loads(text) for text in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    own = [row["rollout/return_mean"] for row in rows if "rollout/return_mean" in row]
    seeds = json.loads((HERE / "results" / "quickstart_libero.json").read_text(encoding="utf-8"))["runs"].values()
    for one in seeds:
        panel.plot(range(1, len(one["returns"]) + 1), one["returns"], color=dim, alpha=0.45, linewidth=0.9)
    panel.plot(range(1, len(own) + 1), own, color=line, linewidth=2.4)
    before, after = (
        sum(one[side]["successes"] for one in seeds) / sum(one[side]["episodes"] for one in seeds)
        for side in ("before", "after")
    )
    title = f"success, ten seeds: {100 * before:.0f} → {100 * after:.0f} %"
    panel.set_title(title, color=ink, fontsize=10, loc="left")
    panel.set_xlabel("iteration (return of its episodes; 5 minutes in all)", color=dim, fontsize=8)
    panel.tick_params(colors=dim, labelsize=8)
    for edge, spine in panel.spines.items():
        spine.set_visible(edge in ("left", "bottom"))
        spine.set_color(dim)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the video and the pictures from a run of make train.")
    parser.add_argument("run", type=Path, help="its folder, e.g. runs/quickstart-libero")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    parser.add_argument("--task", type=int, default=1, help="of the three (1: the salad dressing)")
    given = parser.parse_args()
    one, other = twins(given.run, given.task)
    checkpoint = sorted((given.run / "checkpoints").iterdir())[-1]
    seed = yaml.safe_load((given.run / "config.yaml").read_text(encoding="utf-8"))["runner"]["seed"]
    with tempfile.TemporaryDirectory() as folder:
        before = played(one, None, seed, Path(folder))
        after = played(other, checkpoint, seed, Path(folder))
    given.out.mkdir(parents=True, exist_ok=True)
    film(before, after, given.out)
    draw(before[-1], after[-1], given.run, given.out)
    print(f"{one['start']}: {one['steps']} control steps without success, {other['steps']} with")


if __name__ == "__main__":
    main()
