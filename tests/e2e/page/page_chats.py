# SPDX-License-Identifier: MIT
"""Conversations: kept, named, searched, deleted and taken back, saved and read; versions, files, continuing, tools, refusals."""
import json
import pathlib
import tempfile

from checks import check
from page_lib import CHAT, URL, Page


def said(p):
    """What the page sent last, as (role, content)."""
    return [(m["role"], m["content"]) for m in p.bodies[-1]["messages"]]


def tell(p, question, answer, **options):
    p.stream({"content": answer}, **options)
    return p.say(question)


def last(p, name):
    return p.page.locator("article.assistant").last.get_by_role("button", name=name)


def listing(browser):
    p = Page(browser)
    for topic in ("apples", "bears", "cats"):
        p.page.click("#new-chat")
        tell(p, f"About {topic}?\nSecond line.", f"All about {topic}.")
    check("the newest chat is first, named after its question", p.titles() == [f"About {t}?" for t in ("cats", "bears", "apples")], p.titles())
    p.page.fill("#search", "ALL apples")
    check("the search reads answers too", p.titles() == ["About apples?"], p.titles())
    p.page.fill("#search", "zebra")
    check("and says when nothing is found", p.titles() == [] and p.page.locator("#no-chats").is_visible())
    p.page.fill("#search", "")
    p.page.locator("#chat-list .name").nth(1).click()
    check("a chat is opened", "All about bears." in p.page.locator("#log").inner_text())
    row = p.page.locator("#chat-list li").nth(1)
    row.get_by_role("button", name="Rename").click()
    p.page.keyboard.type("Grizzlies")
    p.page.keyboard.press("Enter")
    check("a chat is renamed", p.titles()[1] == "Grizzlies", p.titles())
    focused = p.page.evaluate("document.activeElement.getAttribute('aria-label')")
    check("and the keyboard stays there", focused == "Rename Grizzlies", focused)
    p.page.locator("#chat-list li").nth(1).get_by_role("button", name="Rename").click()
    p.page.keyboard.type("Pandas")
    p.page.keyboard.press("Escape")
    check("Escape keeps the name", p.titles()[1] == "Grizzlies", p.titles())
    tell(p, "More?", "No.")
    check("and it keeps its name", p.titles()[0] == "Grizzlies", p.titles())
    p.reload()
    check("the chats are there after a reload", p.titles() == ["Grizzlies", "About cats?", "About apples?"], p.titles())
    check("and the same one is shown", "All about bears." in p.page.locator("#log").inner_text())
    p.page.locator("#chat-list li").first.get_by_role("button", name="Delete").click()
    focused = p.page.evaluate("document.activeElement.innerText")
    check("and the keyboard is at the way back", focused == "Undo", focused)
    check("a chat is deleted", p.titles() == ["About cats?", "About apples?"] and "Grizzlies" in p.notice(), (p.titles(), p.notice()))
    p.page.locator("#notice").get_by_role("button", name="Undo").click()
    check("and comes back", p.titles() == ["Grizzlies", "About cats?", "About apples?"] and
          "All about bears." in p.page.locator("#log").inner_text(), p.titles())
    p.page.locator("#chat-list li").nth(2).get_by_role("button", name="Delete").click()
    p.page.evaluate("store.idle()")
    p.reload()
    check("a deleted one stays away", p.titles() == ["Grizzlies", "About cats?"], p.titles())

    # deleted while its answer is written
    p.page.click("#new-chat")
    p.page.evaluate("""() => { byId("input").value = "Tell me a story about a fox named Ben."; byId("form").requestSubmit();
        document.querySelector("#chat-list .current [data-key^=delete]").click(); }""")
    p.page.wait_for_timeout(500)
    p.page.evaluate("store.idle()")
    p.reload()
    check("also when it was being answered", p.titles() == ["Grizzlies", "About cats?"], p.titles())

    # a second window on the same chats
    other = p.context.new_page()
    other.goto(URL)
    other.wait_for_selector("article.assistant")
    tell(p, "From the first window?", "Yes.")
    other.wait_for_timeout(400)
    check("another window sees what is new", "From the first window?" in other.locator("#log").inner_text(), other.locator("#log").inner_text())
    # both add to the same chat at the same time
    other.fill("#input", "Tell me a story about a fox named Ben.")
    other.keyboard.press("Enter")
    tell(p, "Meanwhile?", "Also this.")
    other.wait_for_function("""() => !byId("send").hasAttribute("data-stops") &&
        store.list()[0].messages.some(m => m.role === "assistant" && m.content.includes("fox"))""", timeout=60000)
    other.evaluate("store.idle()")
    p.page.evaluate("store.idle()")
    p.reload()
    kept = p.page.evaluate("store.list()[0].messages.map(m => m.content)")
    check("neither window loses what it wrote", {"Meanwhile?", "Also this.", "Tell me a story about a fox named Ben."} <= set(kept) and
          any("fox" in text and "Tell me" not in text for text in kept), kept)
    check("no complaints", not p.faults, p.faults)
    p.close()


def memory(browser):
    """What an older page left, damaged memory, no memory."""
    p = Page(browser)
    old = [{"role": "user", "content": "old question"}, {"role": "assistant", "content": "old answer", "figures": {"tokens": 3}},
           {"role": "user", "content": "second"}, {"role": "assistant", "content": "answer two"}]
    p.page.evaluate("m => { localStorage['glmstream.chat'] = m; }", json.dumps(old))
    p.reload()
    turns = p.page.locator("article").all_inner_texts()
    check("the conversation of an older page is taken over", len(turns) == 4 and "old answer" in turns[1] and p.titles() == ["old question"], turns)
    p.reload()
    check("once", p.titles() == ["old question"] and p.page.evaluate("localStorage['glmstream.chat']") is None, p.titles())
    for damage in ('{"a": 1}', "[", "7", json.dumps([{"role": "user", "content": 5}, None, {"role": "assistant"}, {"role": "system", "content": ""},
                   {"role": "assistant", "content": "x", "tool_calls": [None]}, {"role": "user", "content": "kept"}])):
        p.page.evaluate("m => { localStorage['glmstream.chat'] = m; localStorage['glmstream.settings'] = m; }", damage)
        p.reload()
        check("a damaged memory is no end", len(p.titles()) == (2 if "kept" in damage else 1), p.titles())
    p.page.evaluate("""() => new Promise(done => { const r = indexedDB.open("glmstream"); r.onsuccess = () => { const t =
        r.result.transaction("chats", "readwrite"); const s = t.objectStore("chats"); s.put({id: "bad1"}); s.put({id: "bad2", messages: 7});
        s.put({id: "bad3", messages: [{id: "a", parent: "b", role: "user", content: "loop"}, {id: "b", parent: "a", role: "user", content: "loop"}, 5],
        chosen: 3}); t.oncomplete = () => { r.result.close(); done(); }; }; })""")
    p.reload()
    check("nor are damaged records", len(p.titles()) == 3, p.titles())
    check("no complaints", not p.faults, p.faults)
    p.close()

    # a browser that keeps nothing: said, and the page works on
    p = Page(browser)
    p.context.add_init_script("Object.defineProperty(window, 'indexedDB', { get() { throw new DOMException('no', 'SecurityError'); } })")
    p.page.reload()
    p.page.wait_for_selector("#status[data-kind=ready]")
    check("a browser that keeps nothing is reported", p.until("byId('notice').innerText.includes('keeps no data')"), p.notice())
    check("and the page works", tell(p, "x", "still here") == "still here" and len(p.titles()) == 1)
    p.close()
    p = Page(browser)
    p.context.add_init_script("""IDBObjectStore.prototype.put = function () { throw new DOMException("full", "QuotaExceededError"); }""")
    p.page.reload()
    p.page.wait_for_selector("#status[data-kind=ready]")
    tell(p, "x", "not stored")
    check("a full storage is reported", p.until("byId('notice').innerText.includes('storage is full')"), p.notice())
    check("and nothing on the page is lost", "not stored" in p.page.locator("#log").inner_text() and len(p.titles()) == 1)
    p.close()


def files(browser):
    """Saving and reading chats."""
    p = Page(browser)
    p.page.evaluate("localStorage['glmstream.settings'] = '{}'")
    tell(p, "First?", "## You\n\nnot a heading\n\n```\n## Answer\n```")
    tell(p, "Second?", "two")
    p.stream({"content": "two again"})
    last(p, "Again").click()
    p.answer()
    name, text = p.saved_file("#save-markdown")
    check("Markdown has a name", name == "first.md", name)
    check("and what is shown", text.startswith("# First?\n\n## You\n\nFirst?\n\n## Answer\n\n\\## You\n") and "two again" in text and "two\n" not in text, text)
    json_name, json_text = p.saved_file("#save-json")
    value = json.loads(json_text)
    check("JSON has every version", json_name == "first.json" and value["format"] == "glmstream chats" and
          sorted(m["content"] for m in value["chats"][0]["messages"] if m["role"] == "assistant")[1:] == ["two", "two again"], value)
    p.context.grant_permissions(["clipboard-read", "clipboard-write"])
    p.choose("#copy-chat")
    p.until("byId('notice').innerText.includes('copied')")
    check("a chat is copied as Markdown", p.page.evaluate("navigator.clipboard.readText()") == text)
    p.page.click("#new-chat")
    tell(p, "Other?", "yes")
    all_name, all_text = p.saved_file("#save-all")
    check("all chats are saved", all_name == "glmstream-chats.json" and len(json.loads(all_text)["chats"]) == 2)
    check("no complaints", not p.faults, p.faults)
    p.close()

    with tempfile.TemporaryDirectory() as folder:
        def read(name, content):
            path = pathlib.Path(folder) / name
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            p.page.set_input_files("#import-files", str(path))
            p.page.wait_for_timeout(300)

        p = Page(browser)
        read("all.json", all_text)
        check("a browser with nothing reads them", sorted(p.titles()) == ["First?", "Other?"] and "2 chats read" in p.notice(), (p.titles(), p.notice()))
        p.page.get_by_role("button", name="First?", exact=True).click()
        check("with the version that was shown", "two again" in p.page.locator("#log").inner_text() and
              "2/2" in p.page.locator("article.assistant .versions").inner_text())
        _, once_more = p.saved_file("#save-json")
        old, new = value["chats"][0], json.loads(once_more)["chats"][0]
        check("what is saved again is the same", old == new, (old, new))
        read("all.json", all_text)
        check("what is there already is kept beside it", len(p.titles()) == 4, p.titles())
        read("chat.md", text)
        check("Markdown is read", p.titles()[0] == "First?" and len(p.titles()) == 5, p.titles())
        shown = p.page.locator("article.assistant .text").first.inner_text()
        check("with its headings as text", "You" in shown and "## Answer" in shown and p.page.locator("article").count() == 4, shown)
        _, back = p.saved_file("#save-markdown")
        check("and written as it was", back == text, (back, text))
        for name, content in [("bad.json", "{"), ("bad2.json", '{"chats": [1, null, {"messages": []}]}'), ("bad.md", "just text"), ("bad.bin", bytes(range(256))),
                              ("deep.json", "[" * 5000)]:
            read(name, content)
            check(f"{name} is refused in words", "holds no chat" in p.notice() and len(p.titles()) == 5, (p.notice(), p.titles()))
        hostile = {"messages": [{"id": "a", "parent": None, "role": "user", "content": "<img src=x onerror=window.hacked=1>", "evil": 1},
                                {"id": "b", "parent": "a", "role": "assistant", "content": "<script>window.hacked=1</script>",
                                 "figures": {"tokens": "<b>", "speed": {}}, "error": "<img src=x onerror=window.hacked=1>",
                                 "tool_calls": [{"id": 1, "name": "<b>", "arguments": "{}"}]},
                                {"id": "c", "parent": "zz", "role": "user", "content": "orphan", "files": [{"name": "<i>", "text": "<b>"}, 3]}],
                   "title": "<img src=x onerror=window.hacked=1>", "chosen": {"__proto__": "a", "a": "b"}, "updated": "x"}
        read("hostile.json", json.dumps(hostile))
        check("a hostile file is text", p.page.evaluate("window.hacked") is None and "orphan" in p.page.locator("#log").inner_text() and
              p.titles()[0].startswith("<img") and p.page.locator("#log img, #chat-list img").count() == 0)
        check("no complaints", not p.faults, p.faults)
        p.close()


def versions(browser):
    p = Page(browser)
    tell(p, "Q1", "A1")
    tell(p, "Q2", "A2")
    p.stream({"content": "A1 again"})
    p.page.locator("article.assistant").first.get_by_role("button", name="Again").click()
    p.answer()
    texts = lambda: p.page.locator("article .bubble, article .text").all_inner_texts()
    check("an earlier answer is written again", texts() == ["Q1", "A1 again"] and said(p) == [("user", "Q1")], texts())
    p.page.get_by_role("button", name="Earlier version").click()
    check("the first version has what followed it", texts() == ["Q1", "A1", "Q2", "A2"], texts())
    check("the arrows know where they are", p.page.locator(".versions").inner_text().strip() == "1/2" and
          p.page.get_by_role("button", name="Earlier version").is_disabled())
    p.stream({"content": "A3"})
    p.page.locator("article.user").last.hover()
    p.page.locator("article.user").last.get_by_role("button", name="Edit").click()
    p.page.locator(".edit textarea").fill("Q3")
    p.page.locator(".edit").get_by_role("button", name="Send").click()
    p.answer()
    check("an edited question is a version", texts() == ["Q1", "A1", "Q3", "A3"] and said(p)[-1] == ("user", "Q3"), texts())
    p.reload()
    p.page.wait_for_selector("article.assistant .text p")
    check("all of it is kept", texts() == ["Q1", "A1", "Q3", "A3"], texts())
    p.page.locator("article.user").last.hover()
    p.page.locator("article.user").last.get_by_role("button", name="Delete").click()
    check("a version is deleted with what followed", texts() == ["Q1", "A1", "Q2", "A2"] and "1 message that followed" in p.notice(), (texts(), p.notice()))
    p.page.locator("#notice").get_by_role("button", name="Undo").click()
    check("and comes back", texts() == ["Q1", "A1", "Q3", "A3"], texts())
    p.page.locator("article.assistant").last.get_by_role("button", name="Delete").click()
    check("a message is deleted", texts() == ["Q1", "A1", "Q3"], texts())
    p.page.locator("article.user").last.hover()
    p.page.locator("article.user").last.get_by_role("button", name="Delete").click()
    p.page.get_by_role("button", name="Later version").first.click()
    check("the others are untouched", texts() == ["Q1", "A1 again"], texts())
    p.page.locator("article.user").first.hover()
    p.page.locator("article.user").first.get_by_role("button", name="Delete").click()
    check("a message alone is deleted alone", texts()[0] == "A1 again", texts())
    p.page.locator("#notice").get_by_role("button", name="Undo").click()
    check("no complaints", not p.faults, p.faults)
    p.close()


def going_on(browser):
    """An answer that was cut goes on where it ended."""
    p = Page(browser)
    p.stream({"reasoning_content": "Hm."}, {"content": "The river is"}, finish="length")
    p.say("Define river.")
    figures = lambda: p.page.locator("article.assistant .figures").last.inner_text()
    check("a cut answer is marked", figures().startswith("stopped") and last(p, "Continue").count() == 1, figures())
    p.stream({"content": " a stream"}, {"content": " of water."})
    last(p, "Continue").click()
    text = p.answer()
    check("it goes on in the same answer", text == "The river is a stream of water." and p.page.locator("article.assistant").count() == 1, text)
    sent = p.bodies[-1]["messages"]
    check("the server was given the beginning", sent[-1] == {"role": "assistant", "content": "The river is", "reasoning_content": "Hm."} and
          sent[0]["content"] == "Define river.", sent)
    check("then it is whole", not figures().startswith("stopped") and last(p, "Continue").count() == 0 and "18 tokens" in figures(), figures())
    # the server itself: the answer is the one that it gives in one go
    for think in ("off", "high"):
        def ask(question, most):
            p.page.evaluate("s => { localStorage['glmstream.settings'] = JSON.stringify(s); }",
                            {"think": think, "temperature": "0", "max_tokens": str(most)})
            p.reload()
            p.page.click("#new-chat")
            return p.say(question)
        whole = ask("Define river.", 200)
        cut = ""
        for most in range(4, 100, 2):
            cut = ask("Define river.", most)
            if len(cut) > 3:
                break
        check(f"reasoning {think}: an answer is cut", whole.startswith(cut) and len(cut) < len(whole), (cut, whole))
        p.page.click("#open-settings")
        p.page.fill("#set-max_tokens", "200")
        p.page.click("#settings .primary")
        last(p, "Continue").click()
        text = p.answer()
        check(f"reasoning {think}: and goes on to the same end", text == whole and p.page.locator("article .fault").count() == 0,
              (cut, text, whole))
    p.stream({"content": "half"}, finish="length")
    p.say("x")
    p.page.route(CHAT, lambda r: r.abort(), times=1)
    last(p, "Continue").click()
    text = p.answer()
    check("a failed attempt loses nothing", text == "half" and "connection" in p.page.locator("article .fault").inner_text())
    p.stream({"content": " done"})
    last(p, "Continue").click()
    check("and is repeated", p.answer() == "half done" and p.page.locator("article .fault").count() == 0)
    check("no complaints", not [f for f in p.faults if "Failed to load" not in f], p.faults)
    p.close()


def attachments(browser):
    p = Page(browser)
    p.page.set_input_files("#attach-files", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"line one\n```\nline two\n"},
                                             {"name": "b.py", "mimeType": "text/x-python", "buffer": "x = '\u00e9'".encode()}])
    p.page.wait_for_selector("#files li")
    check("files wait with their sizes", "notes.txt, 22 bytes" in p.page.locator("#files").inner_text(), p.page.locator("#files").inner_text())
    p.page.get_by_role("button", name="Remove b.py").click()
    check("and can be taken away", p.page.locator("#files li").count() == 1)
    for name, content, words in [("big.txt", b"a" * 1100000, "big.txt has 1.1 MB; a file may have 1 MB"), ("picture.png", b"\x89PNG\0\xff", "no text file"), ("latin.txt", b"caf\xe9", "no text file")]:
        p.page.set_input_files("#attach-files", {"name": name, "mimeType": "text/plain", "buffer": content})
        p.page.wait_for_timeout(100)
        check(f"{name} is refused in words", words in p.notice() and p.page.locator("#files li").count() == 1, p.notice())
    tell(p, "What is this?", "Notes.")
    content = said(p)[-1][1]
    check("the model reads the file and then the question", content == "File notes.txt:\n````\nline one\n```\nline two\n````\n\nWhat is this?", content)
    check("and it is gone from the field", p.page.locator("#files li").count() == 0)
    check("the chat shows it", "notes.txt, 22 bytes" in p.page.locator("article.user").inner_text())
    p.page.evaluate("""() => { const d = new DataTransfer(); d.items.add(new File(["dropped"], "drop.md")); const main = document.querySelector("main");
        main.dispatchEvent(new DragEvent("dragover", { dataTransfer: d, bubbles: true, cancelable: true }));
        main.dispatchEvent(new DragEvent("drop", { dataTransfer: d, bubbles: true, cancelable: true })); }""")
    p.page.wait_for_selector("#files li")
    p.stream({"content": "ok"})
    p.page.click("#send")
    p.answer()
    check("a file is dropped, and sent without a word", said(p)[-1][1] == "File drop.md:\n```\ndropped\n```", said(p)[-1])
    p.stream({"content": "ok2"})
    p.page.locator("article.user").first.hover()
    p.page.locator("article.user").first.get_by_role("button", name="Edit").click()
    p.page.locator(".edit textarea").fill("And this?")
    p.page.keyboard.press("Enter")
    p.answer()
    check("an edited question keeps its file", said(p)[-1][1].startswith("File notes.txt:") and said(p)[-1][1].endswith("And this?"), said(p))
    check("no complaints", not p.faults, p.faults)
    p.close()


def settings(browser):
    p = Page(browser)
    p.page.click("#open-settings")
    for name, value in [("temperature", "0.5"), ("top_p", "0.9"), ("top_k", "40"), ("min_p", "0.05"), ("max_tokens", "9"), ("seed", "7")]:
        p.page.fill(f"#set-{name}", value)
    p.page.select_option("#set-preset", "Brief")
    p.page.click("#settings .primary")
    p.say("Define river.")
    sent = p.bodies[-1]
    check("every setting is sent, and the server takes them", p.page.locator("article .fault").count() == 0 and
          [sent.get(k) for k in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed")] == [0.5, 0.9, 40, 0.05, 9, 7], sent)
    check("the system message of a preset too", sent["messages"][0] == {"role": "system", "content": "Answer in at most three sentences."}, sent)
    p.page.click("#open-settings")
    p.page.click("#settings .more summary")
    p.page.fill("#set-tools", "{")
    p.page.click("#settings .primary")
    check("tools that are no JSON are refused", "no JSON" in p.page.locator("#tools-fault").inner_text())
    p.page.keyboard.press("Escape")
    p.page.click("#open-settings")
    check("and not kept", p.page.input_value("#set-tools") == "")
    p.page.keyboard.press("Escape")
    check("no complaints", not p.faults, p.faults)
    p.close()


def tools_and_refusals(browser):
    p = Page(browser)
    deltas = [{"tool_calls": [{"index": 0, "id": "c7", "type": "function", "function": {"name": "look_up", "arguments": "{\"wo"}}]},
              {"tool_calls": [{"index": 0, "function": {"arguments": "rd\": \"<b>\"}"}}]}]
    p.stream(*deltas, finish="tool_calls")
    p.say("x")
    check("a call that nobody offered asks for no result", p.page.locator(".call").count() == 1 and p.page.locator(".call textarea").count() == 0)
    p.page.click("#new-chat")
    p.page.evaluate("""localStorage['glmstream.settings'] = JSON.stringify({tools: JSON.stringify([{type: "function", function: {name: "look_up"}}])})""")
    p.reload()
    p.page.click("#new-chat")
    p.stream(*deltas, finish="tool_calls")
    p.say("x")
    call = p.page.locator(".call")
    check("a tool call is shown", "look_up" in call.inner_text() and '"word": "<b>"' in call.inner_text(), call.inner_text())
    p.stream({"content": "So it is."})
    call.locator("textarea").fill("a letter")
    call.get_by_role("button", name="Return").click()
    p.page.wait_for_selector("article.assistant:nth-of-type(3)")
    text = p.answer()
    sent = p.bodies[-1]["messages"]
    check("its result goes back", text == "So it is." and sent[-1] == {"role": "tool", "tool_call_id": "c7", "content": "a letter"} and
          sent[-2]["tool_calls"][0]["function"] == {"name": "look_up", "arguments": "{\"word\": \"<b>\"}"}, sent)

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

    # a new chat in the middle of an answer, and the next question at once: both are written
    p.page.evaluate("localStorage.removeItem('glmstream.settings')")
    p.reload()
    p.page.click("#new-chat")
    before = len(p.bodies)
    p.page.evaluate("document.getElementById('input').value = 'Define river.'; document.getElementById('form').requestSubmit()")
    while len(p.bodies) == before:
        p.page.wait_for_timeout(5)
    p.stream({"content": "second"})
    p.page.evaluate("""document.getElementById('new-chat').click(); document.getElementById('input').value = 'x';
        document.getElementById('form').requestSubmit()""")
    text = p.answer()
    check("a new chat is answered while the old one goes on", p.page.locator("article").count() == 2 and text == "second", text)
    p.until("!document.querySelector('#chat-list .busy')", 60)
    p.page.get_by_role("button", name="Define river.", exact=True).click()
    check("and the old one was finished", "river" in p.page.locator("article.assistant .text").inner_text() and p.titles()[:2].count("Define river.") == 1)
    faults = [f for f in p.faults if "Failed to load resource" not in f]
    check("no complaints", not faults, faults)
    p.close()


PARTS = (listing, memory, files, versions, going_on, attachments, settings, tools_and_refusals)
