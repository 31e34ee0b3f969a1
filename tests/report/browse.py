"""Opens a report in headless Chromium and says what it found there, as JSON. Runs in an environment with playwright.

python browse.py CHROMIUM REPORT.html FOLDER_OF_PICTURES
"""

import json
import sys

from playwright.sync_api import sync_playwright

CHARTS = "[...document.querySelectorAll('.chart')].map(chart => !!chart.querySelector('svg, canvas'))"
NAMES = "[...document.querySelectorAll('.chart :is(svg, canvas)')].map(one => one.getAttribute('aria-label'))"
SHOWN = "[...document.querySelectorAll('#cards > li:not([hidden])')].map(li => [li.dataset.task, li.dataset.outcome])"
PLAYS = """async () => {
  const video = document.querySelector('#cards > li:not([hidden]) video');
  video.scrollIntoView();
  await new Promise(resolve => setTimeout(resolve, 1000));
  await video.play();
  await new Promise(resolve => setTimeout(resolve, 500));
  return [video.videoWidth, video.currentTime > 0, video.error && video.error.message];
}"""
VIEWS = {
    "light": {"viewport": {"width": 1200, "height": 900}},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}


def main(chromium: str, file: str, pictures: str) -> None:
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, view in VIEWS.items():
            page = browser.new_context(**view).new_page()
            said, asked = [], []
            page.on("console", lambda one, said=said: said.append(one.text) if one.type != "log" else None)
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on("request", lambda one, asked=asked: asked.append(one.url.split(":")[0]))
            page.goto(f"file://{file}")
            for top in range(0, page.evaluate("document.documentElement.scrollHeight"), 400):
                page.evaluate(f"scrollTo(0, {top})")
                page.wait_for_timeout(80)
            page.wait_for_timeout(800)
            own = found[name] = {
                "charts": page.evaluate(CHARTS), "names": page.evaluate(NAMES), "plays": page.evaluate(PLAYS),
                "too_wide": page.evaluate("document.documentElement.scrollWidth > innerWidth"),
                "paper": page.evaluate("getComputedStyle(document.body).backgroundColor"),
                "all": page.evaluate(SHOWN),
            }  # fmt: skip
            page.select_option("#of-outcome", "failure")
            own["failures"] = page.evaluate(SHOWN)
            page.select_option("#of-task", index=1)
            own["of_a_task"] = page.evaluate(SHOWN)
            own["count"] = page.text_content("#count")
            page.select_option("#of-outcome", "")
            page.select_option("#of-task", "")
            page.select_option("#which", "")
            page.fill("#search", "val_check_interval")
            own["keys"] = page.text_content("#keys-count")
            page.select_option("#metric", "train/entropy")
            page.focus(".skip")
            page.keyboard.press("Enter")
            own["focus"] = page.evaluate("document.activeElement.id")
            page.click("#theme")
            page.click("#theme")
            own["chosen"] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.wait_for_timeout(300)
            own |= {"said": said, "asked": sorted(set(asked))}
            page.screenshot(path=f"{pictures}/{name}.png", full_page=True)
        browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
