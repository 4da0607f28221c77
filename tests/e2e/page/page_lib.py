# SPDX-License-Identifier: MIT
"""The page at / as page.py's parts use it: a fresh browser profile, answers put in place of the server's, axe-core."""
import json
import pathlib
import re
import sys
import time

from checks import check

URL, CHROMIUM, SHOTS = sys.argv[1], sys.argv[2], sys.argv[3]
CHAT = re.compile(r"/v1/chat/completions$")
LIMIT_MS = 60000


def axe_source():
    """axe-core as the PyPI package axe-playwright-python brings it, or None."""
    try:
        import axe_playwright_python
    except ImportError:
        return None
    return (pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


AXE = axe_source()


class Page:
    """A fresh browser profile on the page; everything it complains about and asks for is kept."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(LIMIT_MS)
        self.faults, self.requests, self.bodies = [], [], []
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.faults.append(str(e)))
        self.page.on("request", self.on_request)
        self.response = self.page.goto(URL)
        self.page.wait_for_selector("#status[data-kind=ready], #status[data-kind=busy]")

    def on_request(self, request):
        self.requests.append(request.url)
        if CHAT.search(request.url):
            self.bodies.append(json.loads(request.post_data))

    def say(self, text, wait=True):
        self.page.fill("#input", text)
        self.page.keyboard.press("Enter")
        return self.answer() if wait else None

    def answer(self):
        """Waits for the end of the last answer; returns its text."""
        self.page.wait_for_selector("#send:not([data-stops])")
        return self.page.locator("article.assistant .text").last.inner_text()

    def until(self, condition, limit=60):
        """wait_for_function would need eval, which the policy forbids."""
        end = time.time() + limit
        while not (yes := self.page.evaluate(condition)) and time.time() < end:
            self.page.wait_for_timeout(50)
        return yes

    def is_within(self, ms, limit):
        """Whether something took less than `limit` ms, or would have without other programs beside it: then the loop takes 640 ms
        (2-core Xeon virtual machine, Chromium without load, five of six runs within 1 %)."""
        return ms < limit or ms < limit / 640 * self.page.evaluate("""() => { const t = performance.now(); let x = 0;
            for (let i = 0; i < 1e8; i++) x = x * 31 + i | 0; return performance.now() - t + (x === 0.5); }""")

    def choose(self, item):
        """Chooses an entry of the menu."""
        self.page.click("#menu summary")
        self.page.click(item)

    def saved_file(self, item):
        """(name, text) of what a menu entry saves."""
        with self.page.expect_download() as download:
            self.choose(item)
        return download.value.suggested_filename, pathlib.Path(download.value.path()).read_text()

    def titles(self):
        return self.page.locator("#chat-list .name").all_inner_texts()

    def notice(self):
        return self.page.locator("#notice").inner_text()

    def reload(self):
        self.page.reload()
        self.page.wait_for_selector("#status[data-kind=ready], #status[data-kind=busy]")
        self.until("byId('chat-list').childElementCount > 0 || !byId('no-chats').hidden")

    def axe(self, what):
        """No violation of axe-core's rules on the page as it is; nothing is checked without axe-core."""
        if not AXE:
            return
        self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        check(f"axe-core: {what}", not found, [(v["id"], [n["target"] for n in v["nodes"]][:4], v["nodes"][0]["failureSummary"][:300])
                                                for v in found])

    def stream(self, *deltas, finish="stop", once=True):
        """The next answer is this."""
        chunks = [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        chunks.append({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 9,
                                                "prompt_tokens_details": {"cached_tokens": 12}}})
        body = ": reading the prompt, 3 of 20 tokens\r\n\r\n" + "".join(f"data: {json.dumps(c)}\n\n" for c in chunks)
        self.instead(200, body + "data: [DONE]\n\n", "text/event-stream", once)

    def instead(self, status, body, kind="application/json", once=True):
        self.page.route(CHAT, lambda r: r.fulfill(status=status, body=body, content_type=kind), times=1 if once else None)

    def shot(self, name):
        if SHOTS:
            self.page.screenshot(path=f"{SHOTS}/{name}.png")

    def legend(self, name):
        text = self.page.locator("#legend").inner_text().replace("\u2009", "")
        found = re.search(name + r"\s*(\d+)", text)
        return int(found[1]) if found else -1

    def drawn(self, colour):
        """How many pixels of the map have the colour of that name in the style sheet."""
        return self.page.evaluate("""name => {
            const c = document.getElementById("map"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
            const v = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
            const [r, g, b] = [1, 3, 5].map(i => parseInt(v.slice(i, i + 2), 16));
            let n = 0;
            for (let i = 0; i < d.length; i += 4)
                n += d[i + 3] === 255 && Math.abs(d[i] - r) + Math.abs(d[i + 1] - g) + Math.abs(d[i + 2] - b) < 6;
            return n; }""", colour)

    def close(self):
        self.context.close()
