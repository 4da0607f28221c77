# SPDX-License-Identifier: MIT
"""Uses the page at / as a person does, in headless Chromium; called by page.sh with the address of a server on the pocket
model with a small expert cache, the path of Chromium, and a folder for screenshots (or "").

Answers whose text matters (markup, tool calls, errors) are put in by the test in place of the server's; the rest is real.
"""
import json
import re
import sys
import time

from playwright.sync_api import sync_playwright

from checks import check, finish

URL, CHROMIUM, SHOTS = sys.argv[1], sys.argv[2], sys.argv[3]
CHAT = re.compile(r"/v1/chat/completions$")
LIMIT_MS = 20000


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

    def until(self, condition, limit=10):
        """wait_for_function would need eval, which the policy forbids."""
        end = time.time() + limit
        while not (yes := self.page.evaluate(condition)) and time.time() < end:
            self.page.wait_for_timeout(50)
        return yes

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


def first_visit(browser):
    p = Page(browser)
    policy = p.response.headers.get("content-security-policy", "")
    check("a strict policy", "default-src 'none'" in policy and "nonce-" in policy and "unsafe" not in policy, policy)
    check("a page that is not stored", "no-store" in p.response.headers.get("cache-control", ""), p.response.headers)
    check("and not guessed about", p.response.headers.get("x-content-type-options") == "nosniff", p.response.headers)
    p.until("document.querySelector('#legend').childElementCount > 1")
    check("the machine is named", p.page.locator("#model").inner_text() == "6 layers × 32 experts · CPU", p.page.locator("#model").inner_text())
    check("a layer that is not used is not drawn", sum(map(p.legend, ("in cache", "in RAM", "arriving", "on disk"))) == 6 * 32)
    check("the memory plan is whole", all(word in p.page.locator("#plan").inner_text()
                                          for word in ("Weights", "Context", "Workspace", "Experts in cache", "Experts in RAM")))
    p.page.wait_for_timeout(200)
    before = p.legend("in cache")
    p.shot("empty")
    p.page.click("#open-settings")
    p.page.select_option("#set-think", "off")
    p.page.fill("#set-temperature", "0")
    p.page.fill("#set-max_tokens", "60")
    p.page.click("#settings .primary")
    text = p.say("Define river.")
    check("the answer is shown", "river" in text, text)
    check("the settings were sent", p.bodies[-1].get("temperature") == 0 and p.bodies[-1].get("max_tokens") == 60 and
          p.bodies[-1].get("reasoning_effort") == "none", p.bodies[-1])
    figures = p.page.locator("article.assistant .figures").last.inner_text()
    check("with its figures", re.search(r"\d+ tokens · [0-9.]+ tok/s · first after [0-9.]+ s · prompt \d+", figures), figures)
    p.page.wait_for_timeout(2000)
    after = p.legend("in cache")
    check("the map fills", before < after, (before, after))
    drawn = {c: p.drawn(c) for c in ("vram", "ram", "reading", "disk")}
    shown = drawn["vram"] / max(sum(drawn.values()), 1)
    check("as the canvas shows", abs(shown - after / sum(p.legend(n) for n in ("in cache", "in RAM", "arriving", "on disk"))) < 0.05,
          (drawn, after))
    check("the hit rate is a number", re.match(r"[0-9.]+$", p.page.locator("#now-hits").inner_text()))
    p.shot("answered")

    # a second turn, again, edited, and all of it there after a reload
    p.say("Define island.")
    check("the conversation is sent", [m["role"] for m in p.bodies[-1]["messages"]] == ["user", "assistant", "user"], p.bodies[-1])
    p.page.locator("article.assistant").last.get_by_role("button", name="Again").click()
    text = p.answer()
    check("again answers anew", "island" in text and len(p.bodies) == 3, text)
    p.page.locator("article.user").last.get_by_role("button", name="Edit").click()
    p.page.locator(".edit textarea").fill("Define tree.")
    p.page.keyboard.press("Enter")
    text = p.answer()
    check("an edited message is answered", "tree" in text and p.bodies[-1]["messages"][-1]["content"] == "Define tree.", text)
    p.page.reload()
    p.page.wait_for_selector("article.assistant .text p")
    turns = p.page.locator("article").all_inner_texts()
    check("a reload keeps the conversation", len(turns) == 4 and "Define tree." in turns[2] and "tree" in turns[3], turns)
    check("and the settings", p.page.evaluate("JSON.parse(localStorage['glmstream.settings']).temperature") == "0")
    p.page.click("#new-chat")
    check("a new chat is empty", p.page.locator("article").count() == 0 and p.page.locator(".hello").count() == 1)
    check("nothing from elsewhere", all(u.startswith((URL, "data:")) for u in p.requests), p.requests)
    check("no complaints", not p.faults, p.faults)
    p.close()


def keys(browser):
    p = Page(browser)
    focus = lambda: p.page.evaluate("document.activeElement.id || document.activeElement.className")
    check("the message field has the focus", focus() == "input", focus())
    p.page.keyboard.type("one")
    p.page.keyboard.press("Shift+Enter")
    p.page.keyboard.type("two")
    check("Shift+Enter begins a line", p.page.input_value("#input") == "one\ntwo")
    p.page.keyboard.press("Tab")
    check("Tab goes on to the button", focus() == "send", focus())
    p.page.focus(".skip")
    order = []
    for _ in range(2):
        p.page.keyboard.press("Tab")
        order.append(focus())
    check("from the top: skip link, new chat, settings", order == ["new-chat", "open-settings"], order)
    p.page.focus("#input")
    p.page.evaluate("localStorage['glmstream.settings'] = JSON.stringify({think: 'off', temperature: '1', seed: '3'})")
    p.page.reload()
    p.page.wait_for_selector("#status[data-kind=ready]")
    p.say("Tell me a story about a fox named Ben.", wait=False)
    p.page.wait_for_selector("article.assistant .text p")
    p.page.keyboard.press("Escape")
    text = p.answer()
    figures = p.page.locator("article.assistant .figures").last.inner_text()
    check("Esc stops", figures.startswith("stopped") or "end" in text, (figures, text))
    check("and the server stops too", p.until("!document.querySelector('#work').innerText.includes('1 of 2')"))
    check("no complaints", not p.faults, p.faults)
    p.close()


def texts(browser):
    """What a model may write, the worst included."""
    p = Page(browser)
    nasty = ("<img src=x onerror='window.hacked=1'> <script>window.hacked=1</script> <b>bold</b> [a](javascript:window.hacked=1) "
             "[b](data:text/html,x) [c](https://example.org/?q=<x>) ![pic](https://example.org/p.png) **strong** *em* ~~del~~ `code <i>`\n\n"
             "```html\n<script>window.hacked=1</script>\n```\n\n| a | b |\n|---|--:|\n| 1 | <u>2</u> |\n\n1. one\n   - inner\n2. two\n\n> quote\n\n# Head\n")
    pieces = [{"content": nasty[i:i + 7]} for i in range(0, len(nasty), 7)]
    p.stream({"role": "assistant", "content": ""}, {"reasoning_content": "Let me <b>think</b>."}, *pieces)
    text = p.say("x")
    box = p.page.locator("article.assistant .text").last
    tags = box.evaluate("e => [...new Set([...e.querySelectorAll('*')].map(x => x.tagName.toLowerCase()))].sort()")
    check("only the tags of Markdown", set(tags) <= set("p strong em del code pre div header span button svg path a table thead tbody tr th td "
                                                       "ol ul li blockquote h1 br".split()), tags)
    check("and those", set("strong em del code pre a table td ol ul li blockquote h1".split()) <= set(tags), tags)
    links = box.evaluate("e => [...e.querySelectorAll('a')].map(x => x.href)")
    check("links lead to the web only", links == ["https://example.org/?q=%3Cx%3E", "https://example.org/p.png"], links)
    check("markup stays text", "<img src=x onerror='window.hacked=1'>" in text and "[a](javascript:window.hacked=1)" in text, text)
    check("nothing ran", p.page.evaluate("window.hacked") is None)
    check("the code is whole", box.locator("pre code").inner_text() == "<script>window.hacked=1</script>")
    thought = p.page.locator("details.think")
    check("the reasoning is there and closed", thought.count() == 1 and thought.get_attribute("open") is None)
    thought.locator("summary").click()
    check("and opens", thought.locator(".thought").inner_text() == "Let me <b>think</b>.")
    figures = p.page.locator("article.assistant .figures").last.inner_text()
    check("cached tokens are shown", "prompt 20, 12 of it cached" in figures, figures)
    p.page.evaluate("""() => { const s = document.createElement("script"); s.textContent = "window.hacked = 2"; document.body.append(s);
        document.body.insertAdjacentHTML("beforeend", "<p onclick='window.hacked=3' id=trap>x</p>"); document.getElementById("trap").click(); }""")
    check("the policy stops what would get in", p.page.evaluate("window.hacked") is None)
    p.faults.clear()  # the browser tells of both

    # no text takes long
    for name, piece in [("stars", "*a "), ("stars", "**"), ("underscores", "_"), ("brackets", "[" ), ("links", "[a]("), ("ticks", "`a``"),
                        ("quotes", "> > > > a\n"), ("lists", "- - - a\n"), ("pipes", "|a\n|-\n"), ("spaces", "# " + " " * 50), ("fences", "```\n~~~\n"),
                        ("addresses", "http://a.b/" + "(" * 20), ("lines", "\n"), ("deep", "- a\n  ")]:
        took = p.page.evaluate("""piece => { const d = document.createElement("div"), t = performance.now();
            markdown.render(d, piece.repeat(Math.ceil(60000 / piece.length))); return performance.now() - t; }""", piece)
        check(f"60 kB of {name} are drawn at once ({took:.0f} ms)", took < 4000)

    # tool calls: shown, answered, sent back
    p.page.click("#new-chat")
    p.stream({"tool_calls": [{"index": 0, "id": "c7", "type": "function", "function": {"name": "look_up", "arguments": "{\"wo"}}]},
             {"tool_calls": [{"index": 0, "function": {"arguments": "rd\": \"<b>\"}"}}]}, finish="tool_calls")
    p.say("x")
    call = p.page.locator(".call")
    check("a tool call is shown", "look_up" in call.inner_text() and '"word": "<b>"' in call.inner_text(), call.inner_text())
    p.stream({"content": "So it is."})
    call.locator("textarea").fill("a letter")
    call.get_by_role("button", name="Return").click()
    text = p.answer()
    sent = p.bodies[-1]["messages"]
    check("its result goes back", text == "So it is." and sent[-1] == {"role": "tool", "tool_call_id": "c7", "content": "a letter"} and
          sent[-2]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": "{\"word\": \"<b>\"}"}, sent)

    # refusals
    p.instead(401, '{"error": {"message": "no key, no answer"}}')
    p.say("x")
    fault = p.page.locator("article .fault").last.inner_text()
    check("a refusal is shown, and what to do", "No key, no answer." in fault and "settings" in fault, fault)
    p.page.locator("article .fault button").click()
    check("and the way there", p.page.locator("#set-key").is_visible())
    p.page.keyboard.press("Escape")
    p.instead(502, "<h1>gateway</h1>", "text/html")
    p.say("x")
    check("a refusal of somebody else", "502" in p.page.locator("article .fault").last.inner_text())
    p.page.route(CHAT, lambda r: r.abort(), times=1)
    p.say("x")
    check("a lost connection", "connection" in p.page.locator("article .fault").last.inner_text())
    for memory in ('{"a": 1}', "[", "7", json.dumps([{"role": "user", "content": 5}, None, {"role": "assistant"}, {"role": "system", "content": ""},
                   {"role": "assistant", "content": "x", "tool_calls": [None]}, {"role": "user", "content": "kept"}])):
        p.page.evaluate("m => { localStorage['glmstream.chat'] = m; localStorage['glmstream.settings'] = m; }", memory)
        p.page.reload()
        p.page.wait_for_selector("#status[data-kind=ready]")
        shown = p.page.locator("article, .hello").all_inner_texts()
        check("a damaged memory is no end", len(shown) == 1 and ("kept" in shown[0]) == ("kept" in memory), shown)

    # a new chat in the middle of an answer, and the next question at once
    p.page.click("#new-chat")
    p.page.evaluate("document.getElementById('input').value = 'Tell me a story about a fox named Ben.'; document.getElementById('form').requestSubmit()")
    p.page.wait_for_selector("#send[data-stops]")
    p.stream({"content": "second"})
    p.page.evaluate("""document.getElementById('new-chat').click(); document.getElementById('input').value = 'x';
        document.getElementById('form').requestSubmit()""")
    text = p.answer()
    check("a new chat ends what was written", p.page.locator("article").count() == 2 and text == "second", text)
    faults = [f for f in p.faults if "Failed to load resource" not in f]
    check("no complaints", not faults, faults)
    p.close()


def small_screen(browser):
    p = Page(browser, viewport={"width": 375, "height": 700}, is_mobile=True, has_touch=True, device_scale_factor=2,
             color_scheme="dark", reduced_motion="reduce")
    wide = "document.documentElement.scrollWidth > innerWidth"
    check("the expert panel is folded", not p.page.evaluate("document.getElementById('expert-panel').open"))
    p.stream({"content": "```\n" + "long " * 60 + "\n```\n\n" + "W" * 300 + "\n\n| " + "cell | " * 30 + "\n|" + "---|" * 30 + "\n| " + "cell | " * 30})
    p.say("x" * 200)
    check("nothing is wider than the screen", not p.page.evaluate(wide))
    p.shot("phone")
    p.page.tap("#expert-panel summary")
    p.page.wait_for_timeout(300)
    check("it opens and draws", p.page.evaluate("document.getElementById('expert-panel').open") and p.drawn("disk") + p.drawn("vram") > 100)
    check("and fits", not p.page.evaluate(wide))
    p.shot("phone-expert-panel")
    p.page.tap("#open-settings")
    box = p.page.locator("#settings").bounding_box()
    check("the settings fit", box["x"] >= 0 and box["x"] + box["width"] <= 375 and box["height"] <= 700, box)
    check("no complaints", not p.faults, p.faults)
    p.close()


with sync_playwright() as playwright:
    chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
    start = time.time()
    for part in (first_visit, keys, texts, small_screen):
        try:
            part(chromium)
        except Exception as e:  # a time-out of one part is one fault, and the others are still looked at
            check(part.__name__, False, e)
    chromium.close()
finish(f", {time.time() - start:.1f} s")
