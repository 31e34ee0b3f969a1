"""The report of runs and evaluations: one HTML file with curves, success by task, videos, times, and configuration.

    RUN, EVAL … ─▶ reading: plain data, and what is missing ─▶ series, videos, times, settings ─▶ charts ─▶ page: HTML

It reads files alone: no simulator, no policy, no torch. What cannot be read is said on the page, and the rest is shown.
"""

from __future__ import annotations

from embodied.report.page import write as write
from embodied.report.reading import read as read
