# SPDX-License-Identifier: MIT
"""Uses the page at / as a person does, in headless Chromium; called by page.sh with the address of a server on the pocket
model with a small expert cache, the path of Chromium, and a folder for screenshots (or "").

Answers whose text matters (markup, tool calls, errors) are put in by the test in place of the server's; the rest is real.
"""
import faulthandler
import json
import re
import time

from playwright.sync_api import sync_playwright

import page_chats
import page_text
from checks import check, finish
from page_lib import AXE, CHAT, CHROMIUM, URL, Page


def first_visit(browser):
    p = Page(browser)
    policy = p.response.headers.get("content-security-policy", "")
    check("a strict policy", policy.startswith("default-src 'none'; script-src 'self'") and "unsafe" not in policy and "http" not in policy, policy)
    check("a page that is not stored", "no-store" in p.response.headers.get("cache-control", ""), p.response.headers)
    check("and not guessed about", p.response.headers.get("x-content-type-options") == "nosniff", p.response.headers)
    p.until("document.querySelector('#legend').childElementCount > 1")
    check("the machine is named", p.page.locator("#model").inner_text() == "7 layers × 32 experts · CPU", p.page.locator("#model").inner_text())
    drawn = sum(map(p.legend, ("in cache", "in RAM", "arriving", "on disk")))
    check("every expert is drawn, of six layers and the draft layer", drawn == 7 * 32, drawn)
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
    for _ in range(200):  # legend and canvas follow the counts a second later
        p.page.wait_for_timeout(100)
        after = p.legend("in cache")
        drawn = {c: p.drawn(c) for c in ("vram", "ram", "reading", "disk")}
        off = drawn["vram"] / max(sum(drawn.values()), 1) - after / sum(p.legend(n) for n in ("in cache", "in RAM", "arriving", "on disk"))
        if before < after and abs(off) < 0.05:
            break
    check("the map fills", before < after, (before, after))
    check("as the canvas shows", abs(off) < 0.05, (drawn, after))
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
    check("the question is one of two versions", p.page.locator("article.user .versions").inner_text().strip() == "2/2")
    p.reload()
    p.page.wait_for_selector("article.assistant .text p")
    turns = p.page.locator("article").all_inner_texts()
    check("a reload keeps the conversation", len(turns) == 4 and "Define tree." in turns[2] and "tree" in turns[3], turns)
    check("and the settings", p.page.evaluate("JSON.parse(localStorage['glmstream.settings']).temperature") == "0")
    kept = p.titles()
    p.page.click("#new-chat")
    check("a new chat keeps the old one", p.titles() == kept == ["Define river."], p.titles())
    check("a new chat is empty", p.page.locator("article").count() == 0 and p.page.locator(".hello").count() == 1)
    icon = p.context.request.get(URL + "favicon.ico")
    check("an icon", icon.status == 200 and icon.body()[:4] == b"\0\0\1\0", icon.status)
    check("nothing from elsewhere", all(u.startswith((URL, "data:")) for u in p.requests), p.requests)
    check("no complaints", not p.faults, p.faults)
    p.close()


def reading(browser):
    """A prompt that takes longer than two seconds shows how much of its new part is read, and how long the rest takes."""
    p = Page(browser)
    p.page.evaluate("""() => {
        const real = window.fetch, bytes = new TextEncoder();
        window.fetch = (url, options) => {
            if (!String(url).includes("chat/completions"))
                return real(url, options);
            window.fetch = real;
            window.asked = JSON.parse(options.body);
            const body = new ReadableStream({ start(c) { window.feed = (o) => o
                ? c.enqueue(bytes.encode("data: " + JSON.stringify(o) + "\\n\\n")) : c.close(); } });
            return Promise.resolve(new Response(body, { headers: { "Content-Type": "text/event-stream" } }));
        };
    }""")
    p.say("A long story", wait=False)
    p.until("!!window.feed")

    def feed(processed, ms):
        p.page.evaluate("o => feed(o)", {"choices": [{"index": 0, "delta": {}, "finish_reason": None}], "prompt_progress": {
            "total": 3000, "cache": 1000, "processed": processed, "time_ms": ms}})

    check("progress is asked for", p.page.evaluate("asked.return_progress === true"))
    feed(2000, 500)
    p.page.wait_for_timeout(200)
    check("a prompt of one second shows none", not p.page.locator("progress").count())
    feed(1500, 1500)
    p.until("!!document.querySelector('progress')")
    check("a longer one does", "Reading 2000 tokens, 5 s left" in p.page.locator("#log").inner_text(),
          p.page.locator("#log").inner_text())
    check("only what is new counts", p.page.evaluate("document.querySelector('progress').value") == 500)
    p.axe("while a prompt is read")
    p.page.evaluate("o => feed(o)", {"choices": [{"index": 0, "delta": {"content": "Once."}, "finish_reason": "stop"}]})
    p.page.evaluate("feed(null)")
    p.until("!document.querySelector('progress')")
    check("the answer takes its place", "Once." in p.page.locator("#log").inner_text())
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
    for _ in range(4):
        p.page.keyboard.press("Tab")
        order.append(focus())
    check("from the top: skip link, new chat, more, settings, search", order == ["new-chat", "quiet", "open-settings", "search"], order)
    p.page.focus("#menu summary")
    p.page.keyboard.press("Enter")
    p.page.keyboard.press("Tab")
    check("the menu opens by keyboard", p.page.evaluate("byId('menu').open") and focus() == "import", focus())
    p.page.keyboard.press("Escape")
    check("and closes", not p.page.evaluate("byId('menu').open"))
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


def themes(browser):
    """Both themes, chosen or the system's, and what axe-core says of them."""
    for scheme, other in (("light", "dark"), ("dark", "light")):
        p = Page(browser, color_scheme=scheme)
        shown = lambda: p.page.evaluate("document.documentElement.dataset.theme")
        check("the system's theme", shown() == scheme, shown())
        p.axe(f"{scheme}, empty")
        p.stream({"reasoning_content": "Let me think."}, {"content": page_text.SAMPLE})
        p.say("Show *all*.")
        p.page.locator("details.think summary").last.click()
        p.stream({"content": "half an ans"}, finish="length")
        p.say("Again, and " + "long " * 400)
        p.page.locator("article.assistant").last.get_by_role("button", name="Delete").click()
        p.page.wait_for_timeout(200)
        p.axe(f"{scheme}, a conversation with a notice")
        p.shot(f"conversation-{scheme}")
        p.page.locator("#chat-list li").first.get_by_role("button", name="Rename").click()
        p.axe(f"{scheme}, a chat being renamed")
        p.page.keyboard.press("Escape")
        p.page.click("#menu summary")
        p.axe(f"{scheme}, the menu open")
        p.page.click("#menu summary")
        p.page.locator("article.user").first.hover()
        p.page.locator("article.user").first.get_by_role("button", name="Edit").click()
        p.axe(f"{scheme}, a message being edited")
        p.page.keyboard.press("Escape")
        p.page.click("#open-settings")
        p.page.click("#settings .more summary")
        p.axe(f"{scheme}, the settings open")
        p.page.select_option("#set-theme", other)
        check("a chosen theme is shown at once", shown() == other)
        p.page.keyboard.press("Escape")
        p.reload()
        check("and after a reload", shown() == other)
        p.page.emulate_media(color_scheme=other)
        p.page.emulate_media(color_scheme=scheme)
        check("whatever the system has", shown() == other)
        check("no complaints", not p.faults, p.faults)
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
    p.axe("a phone, the expert panel open")
    p.page.tap("#expert-panel summary")
    p.page.tap("#open-chats")
    check("the list of chats is a drawer", p.page.locator("#search").is_visible() and not p.page.evaluate(wide))
    p.axe("a phone, the drawer open")
    p.shot("phone-chats")
    p.page.locator("#chat-list .name").first.tap()
    check("and closes when a chat is chosen", not p.page.locator("#search").is_visible())
    p.page.tap("#open-chats")
    p.page.touchscreen.tap(365, 400)
    check("or beside it", not p.page.locator("#search").is_visible())
    cell = p.page.locator(".text td").first.bounding_box()
    check("a wide table scrolls, its words stay whole", cell["width"] > 40 and not p.page.evaluate(wide), cell)
    p.page.tap("#open-settings")
    p.axe("a phone, the settings open")
    box = p.page.locator("#settings").bounding_box()
    check("the settings fit", box["x"] >= 0 and box["x"] + box["width"] <= 375 and box["height"] <= 700, box)
    check("no complaints", not p.faults, p.faults)
    p.close()


def stages(browser):
    """Layers on two cards, which the test puts into the server's state: a line divides them, the tooltip says where a cell is."""
    p = Page(browser)
    p.until("document.querySelector('#legend').childElementCount > 1")
    p.page.wait_for_timeout(300)
    lines = p.drawn("accent")
    box = p.page.locator("#map").bounding_box()

    def pointed_at(row):
        p.page.mouse.move(box["x"] + 40, box["y"] + (row + 0.5) * box["height"] / 7)
        p.until("!document.getElementById('tip').hidden")
        return p.page.locator("#tip").inner_text()

    check("one stage has no name", pointed_at(0).startswith("layer 1, expert"), pointed_at(0))

    def two_cards(route):
        state = route.fetch().json()
        state["stages"] = [{"first": 0, "end": 4, "mtp": False, "rank": 1, "card": 0},
                           {"first": 4, "end": 7, "mtp": True, "rank": 0, "card": 1}]
        route.fulfill(json=state)

    p.page.route(re.compile(r"/v1/glmstream/state"), two_cards)
    p.page.wait_for_timeout(3000)
    check("a line divides the stages", p.drawn("accent") > lines + 100, (lines, p.drawn("accent")))
    for row, words in ((2, "layer 3 (stage 0, rank 1, card 0), expert"), (3, "layer 4 (stage 1, rank 0, card 1), expert"),
                       (6, "MTP layer (stage 1, rank 0, card 1), expert")):
        check(words, pointed_at(row).startswith(words), pointed_at(row))
    p.page.unroute_all(behavior="ignoreErrors")
    p.close()


def plain(browser):
    """A program that was built without marked and the others shows answers as they were written."""
    p = Page(browser)
    p.stream({"content": page_text.SAMPLE})
    text = p.say("x")
    check("an answer is text", text.strip() == page_text.SAMPLE.strip(), text)
    check("no complaints", not p.faults, p.faults)
    p.close()


def has_libraries(browser):
    p = Page(browser)
    found = p.page.evaluate("!!window.marked")
    p.close()
    return found


faulthandler.dump_traceback_later(570)  # page.sh ends it at 580: where it waits

with sync_playwright() as playwright:
    chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
    start = time.time()
    rich = has_libraries(chromium)
    for part in (first_visit, reading, keys, themes, small_screen, stages, *page_text.PARTS, *page_chats.PARTS) if rich else (plain,):
        try:
            part(chromium)
        except Exception as e:  # a time-out of one part is one fault, and the others are still looked at
            check(part.__name__, False, e)
    chromium.close()
notes = ["" if AXE else "; axe-core was not there: pip install axe-playwright-python",
         "" if rich else "; only plain text was looked at: the packages of build_page.sh --list were not there"]
finish(f", {time.time() - start:.1f} s" + "".join(notes))
