"""Opens a report in headless Chromium and says what it found there, as JSON. Runs in an environment with playwright.

python browse.py CHROMIUM REPORT.html FOLDER_OF_PICTURES
"""

import json
import sys

from playwright.sync_api import Browser, Page, sync_playwright

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
GRID = """async () => {
  const video = document.querySelector('figure.grid video');
  video.scrollIntoView();
  await new Promise(resolve => setTimeout(resolve, 1000));
  return [video.videoWidth, video.error && video.error.message];
}"""
ANY = """() => ({
  numbers: document.getElementById('any-numbers').tBodies[0].innerText,
  caption: document.getElementById('any-numbers').caption.textContent,
})"""
INTERACTIVE = """() => {
  for (const box of document.querySelectorAll('details')) box.open = true;
  const all = 'a[href], button, select, input, summary, video[controls], [tabindex="0"]';
  window.stops = [...document.querySelectorAll(all)].filter(one => one.checkVisibility());
  window.stops.forEach((one, number) => { one.dataset.stop = number; });
  return window.stops.length;
}"""
STOP = """() => {
  const one = document.activeElement;
  if (one === document.body || one.dataset.stop === undefined) return null;
  const [box, style] = [one.getBoundingClientRect(), getComputedStyle(one)];
  const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 && parseFloat(style.opacity) > 0;
  const inSight = box.width * box.height > 0 && box.bottom > 0 && box.top < innerHeight && box.left < innerWidth;
  return {number: Number(one.dataset.stop), ring, inSight, what: one.outerHTML.slice(0, 90)};
}"""
VIEWS = {
    "light": {"viewport": {"width": 1200, "height": 900}},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}


def scroll(page: Page) -> None:
    """Goes over the page, so that all charts are drawn."""
    for top in range(0, page.evaluate("document.documentElement.scrollHeight"), 400):
        page.evaluate(f"scrollTo(0, {top})")
        page.wait_for_timeout(80)
    page.wait_for_timeout(800)


def unscrolled(browser: Browser, file: str) -> dict[str, list]:
    """Whether all charts are drawn in a tall window that is never painted, and on paper, where nobody scrolls."""
    found = {}
    for name, height in (("tall", 20_000), ("print", 500)):
        page = browser.new_page(viewport={"width": 1200, "height": height})
        page.add_init_script("IntersectionObserver = class { observe() {} unobserve() {} };")
        page.goto(f"file://{file}")
        if name == "print":
            page.pdf()
        page.wait_for_timeout(3000)
        found[name] = page.evaluate(CHARTS)
        page.close()
    return found


def walk(page: Page) -> dict[str, list]:
    """Goes over the page with the Tab key alone: what cannot be reached, has no ring, or is out of sight when it has
    the focus. Controls within a video are stops of their own, at the same element."""
    page.emulate_media(reduced_motion="reduce")  # else what has the focus is still on its way into sight
    page.reload()
    count = page.evaluate(INTERACTIVE)
    scroll(page)
    reached, found = [], {"no ring": [], "out of sight": []}
    for _ in range(20 * count):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None:
            if reached:
                break
            continue
        if not reached or reached[-1] != stop["number"]:
            reached.append(stop["number"])
            found["no ring"] += [] if stop["ring"] else [stop["what"]]
            found["out of sight"] += [] if stop["inSight"] else [stop["what"]]
    missed = page.evaluate("numbers => numbers.map(number => window.stops[number].outerHTML.slice(0, 90))",
                           sorted({*range(count)} - {*reached}))  # fmt: skip
    return {"stops": count, "missed": missed, "in order": reached == sorted(reached), **found}


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
            scroll(page)
            own = found[name] = {
                "charts": page.evaluate(CHARTS), "names": page.evaluate(NAMES), "plays": page.evaluate(PLAYS),
                "too_wide": page.evaluate("document.documentElement.scrollWidth > innerWidth"),
                "paper": page.evaluate("getComputedStyle(document.body).backgroundColor"),
                "all": page.evaluate(SHOWN), "grid": page.evaluate(GRID),
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
            page.evaluate("document.getElementById('any-numbers').closest('details').open = true")
            own["any"] = page.evaluate(ANY)
            page.focus(".skip")
            page.keyboard.press("Enter")
            own["focus"] = page.evaluate("document.activeElement.id")
            page.click("#theme")
            page.click("#theme")
            own["chosen"] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.wait_for_timeout(300)
            page.screenshot(path=f"{pictures}/{name}.png", full_page=True)
            if name == "light":
                own["tab"] = walk(page)
                own["unscrolled"] = unscrolled(browser, file)
            own |= {"said": said, "asked": sorted(set(asked))}
        browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
