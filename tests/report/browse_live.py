"""Follows a run's page in headless Chromium and says what it found, as JSON. Runs in an environment with playwright.

python browse_live.py CHROMIUM ADDRESS METRICS.jsonl
"""

import json
import sys
import time
from contextlib import suppress

from playwright.sync_api import Error, Page, sync_playwright

PLACE = """() => ({
  open: [...document.querySelectorAll('details')].map(box => box.open), search: document.getElementById('search').value,
  metric: document.getElementById('metric').value, theme: document.documentElement.dataset.theme ?? '',
  top: document.getElementById('metric').getBoundingClientRect().top,
})"""
NUMBER = "Number(document.querySelector('script[data-page]').dataset.page)"


def until(page: Page, condition: str, limit_s: float) -> None:
    """Waits for a condition from outside of the page: its own policy lets no text be evaluated (wait_for_function)."""
    end = time.monotonic() + limit_s
    while True:
        with suppress(Error):  # the page is being loaded anew
            if page.evaluate(condition):
                return
        assert time.monotonic() < end, condition
        page.wait_for_timeout(100)


def newer(page: Page, than: int) -> int:
    until(page, f"{NUMBER} > {than}", 120)
    page.wait_for_selector(".chart svg, .chart canvas", timeout=60_000)
    page.wait_for_timeout(4000)  # the reader's place is found again while charts above are drawn
    return page.evaluate(NUMBER)


def main(chromium: str, address: str, metrics: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        said, asked = [], []
        page.on("console", lambda one: said.append(one.text) if one.type != "log" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda one: asked.append(one.url))
        page.goto(address)
        first = newer(page, 0)
        page.click("#theme")
        page.evaluate("for (const box of document.querySelectorAll('details')) box.open = !box.open")
        page.select_option("#metric", "train/entropy")
        page.fill("#search", "val_check_interval")
        page.evaluate("document.activeElement.blur()")
        page.evaluate("document.getElementById('metric').scrollIntoView({behavior: 'instant'})")
        page.wait_for_timeout(500)
        before = page.evaluate(PLACE)
        with open(metrics, encoding="utf-8") as file:
            *_, last = file
        row = json.loads(last)
        with open(metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "step": row["step"] + 1}) + "\n")
        second = newer(page, first)
        found = {"pages": [first, second], "before": before, "after": page.evaluate(PLACE), "said": list(said)}
        print(json.dumps({**found, "asked": sorted({url.split("?")[0] for url in asked})}), flush=True)
        sys.stdin.readline()  # meanwhile the server ends
        until(page, "document.querySelector('[role=status]').textContent.includes('has ended')", 60)
        print(json.dumps(page.text_content("[role=status]")), flush=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
