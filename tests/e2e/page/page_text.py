# SPDX-License-Identifier: MIT
"""What answers look like: formulas, lists, tables, code, and what a hostile text tries."""
from checks import check
from page_lib import Page

SAMPLE = r"""# Head

Inline \(x_i\) and $c*d*e$, and prices: $5 and $6.

\[ \frac{a}{b} = \sqrt{\frac{x}{y}} \]

$$
\left(\int_0^1 x\,dx\right)
$$

1. one
2. two

- three
- four

- [x] done
- [ ] open

| a | b |
|---|--:|
| line<br>two | `x\|y` |
| $|x|$ | &lt;tag&gt; &copy; |

```python
def f(x):
    return "text"  # a comment: $no$ formula
```

> quote with **strong**, *em*, ~~del~~ and `code <i>`; H<sub>2</sub>O, vector<int>, [link](https://example.org/?q=<x>)
"""

# each would set window.hacked, load something, or leave a handler or a style behind
ATTACKS = [
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<img src=x onerror=\"window.hacked=1\"/>",
    "<svg onload=window.hacked=1>",
    "<svg><script>window.hacked=1</script></svg>",
    "<svg><animate onbegin=window.hacked=1 attributeName=x dur=1s>",
    "<iframe src=javascript:window.parent.hacked=1></iframe>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<object data=javascript:window.hacked=1></object>",
    "<embed src=javascript:window.hacked=1>",
    "<a href=javascript:window.hacked=1>click</a>",
    "[click](javascript:window.hacked=1)",
    "[click](JaVaScRiPt:window.hacked=1)",
    "[click](java&#x0A;script:window.hacked=1)",
    "[click](&#106;avascript:window.hacked=1)",
    "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[click](vbscript:window.hacked=1)",
    "<javascript:window.hacked=1>",
    "[click]: javascript:window.hacked=1\n\n[click]",
    "![x](x\" onerror=\"window.hacked=1)",
    "![x](https://example.org/p.png)",
    "[a](https://example.org/\"onmouseover=\"window.hacked=1)",
    "[a](https://example.org 'x\" onmouseover=\"window.hacked=1')",
    "<details open ontoggle=window.hacked=1>x</details>",
    "<details>\n<summary>x</summary><img src=x onerror=window.hacked=1></details>",
    "<body onload=window.hacked=1>",
    "<input autofocus onfocus=window.hacked=1>",
    "<form action=javascript:window.hacked=1><button>x</button></form>",
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=window.hacked=1&gt;\">",
    "<noscript><p title=\"</noscript><img src=x onerror=window.hacked=1>\">",
    "<template><script>window.hacked=1</script></template>",
    "<style>@import 'https://example.org/x.css'; * {color: red}</style>",
    "<link rel=stylesheet href=https://example.org/x.css>",
    "<meta http-equiv=refresh content='0;url=https://example.org/'>",
    "<base href=https://example.org/>",
    "<p style='background:url(https://example.org/x)'>x</p>",
    "<b onmouseover=window.hacked=1 style=color:red>x</b>",
    "```html\n</code></pre><img src=x onerror=window.hacked=1>\n```",
    "```\"><img src=x onerror=window.hacked=1>\nx\n```",
    "`</code><img src=x onerror=window.hacked=1>`",
    "| <img src=x onerror=window.hacked=1> |\n|---|\n| </td><script>window.hacked=1</script> |",
    "$\\href{javascript:window.hacked=1}{x}$",
    "$\\url{javascript:window.hacked=1}$",
    "$$\\includegraphics{https://example.org/p.png}$$",
    "$\\htmlStyle{background:url(https://example.org/x)}{x} \\htmlId{input}{y} \\htmlData{a=b}{z}$",
    "\\(</span><img src=x onerror=window.hacked=1>\\)",
    "[\\(javascript:window.hacked=1\\)](\\(javascript:window.hacked=1\\))",
    "`$<img src=x onerror=window.hacked=1>$`",
    "\ue0000\ue001 \ue000999\ue001 $x$ <img src=x onerror=window.hacked=1>",
    "<a id=input name=body>x</a><b id=log>y</b>",
]


def rendered(p, text):
    """The text of an answer as the page shows it, without a server."""
    p.stream({"content": text})
    return p.say("x")


def markdown(browser):
    p = Page(browser)
    pieces = [{"content": SAMPLE[i:i + 7]} for i in range(0, len(SAMPLE), 7)]
    p.stream({"role": "assistant", "content": ""}, {"reasoning_content": "Let me <b>think</b>."}, *pieces)
    text = p.say("x")
    box = p.page.locator("article.assistant .text").last
    count = lambda selector: box.locator(selector).count()
    check("four formulas and one in a table", count(".katex") == 5, count(".katex"))
    check("two of them on their own lines", count(".katex-display") == 2)
    sources = box.evaluate("e => [...e.querySelectorAll('annotation')].map(a => a.textContent)")
    check("formulas keep their source", sources == ["x_i", "c*d*e", r"\frac{a}{b} = \sqrt{\frac{x}{y}}", r"\left(\int_0^1 x\,dx\right)",
                                                    "|x|"], sources)
    check("no emphasis in formulas", box.evaluate("e => [...e.querySelectorAll('em')].map(x => x.textContent)") == ["em"])
    check("prices are no formula", "prices: $5 and $6." in text, text)
    # an element of KaTeX whose place comes from a style: the policy must not have taken it
    check("formulas have their styles", box.evaluate("e => [...e.querySelectorAll('.vlist > span')].some(s => s.style.top)"))
    check("stretched signs too", box.evaluate("e => [...e.querySelectorAll('.katex svg')].length > 0"))
    p.page.evaluate("document.fonts.ready.then(() => 0)")
    check("KaTeX's fonts came from the server", p.page.evaluate("[...document.fonts].some(f => f.family === 'KaTeX_Math' && f.status === 'loaded')") and
          any(u.endswith("KaTeX_Math-Italic.woff2") for u in p.requests))
    check("a numbered list of two", box.locator("ol > li").all_inner_texts() == ["one", "two"], box.locator("ol > li").all_inner_texts())
    check("then bullets of their own", box.locator("ul > li").all_inner_texts()[:2] == ["three", "four"])
    tasks = box.evaluate("e => [...e.querySelectorAll('input')].map(x => [x.type, x.checked, x.disabled])")
    check("tasks are boxes", tasks == [["checkbox", True, True], ["checkbox", False, True]], tasks)
    cells = box.locator("tbody td").all_inner_texts()
    check("a table with a line break and a bar in code", cells[:2] == ["line\ntwo", "x|y"], cells)
    check("entities are characters", cells[3] == "<tag> ©", cells)
    check("columns to the right", box.locator("tbody td").nth(1).evaluate("e => getComputedStyle(e).textAlign") == "right")
    check("code has colours", count(".hljs-keyword") > 0 and count(".hljs-string") > 0 and count(".hljs-comment") > 0)
    code = box.locator("pre code").inner_text()
    check("and is as it was written", code == 'def f(x):\n    return "text"  # a comment: $no$ formula', code)
    check("a type is no tag", "H2O, vector<int>" in text.replace("\n", "") and count("sub") == 1, text)
    links = box.evaluate("e => [...e.querySelectorAll('a')].map(x => [x.getAttribute('href'), x.rel, x.target])")
    check("links lead out safely", len(links) == 1 and links[0][0].startswith("https://example.org/?q=") and "noopener" in links[0][1] and
          links[0][2] == "_blank", links)
    thought = p.page.locator("details.think")
    check("the reasoning is there and closed", thought.count() == 1 and thought.get_attribute("open") is None)
    thought.locator("summary").click()
    check("and opens", thought.locator(".thought").inner_text() == "Let me <b>think</b>.")
    figures = p.page.locator("article.assistant .figures").last.inner_text()
    check("cached tokens are shown", "prompt 20, 12 of it cached" in figures, figures)
    whole = box.evaluate("e => e.innerHTML")
    p.reload()
    p.page.wait_for_selector("article.assistant .katex")
    again = p.page.locator("article.assistant .text").last.evaluate("e => e.innerHTML")
    check("what was streamed looks like what was read back", again == whole, (whole[:300], again[:300]))
    for source, tex in [(r"a $x$, b", ["x"]), (r"\\(x\\)", []), (r"it costs \$5 or $6", []), ("`$x$` and ``a ` $y$``", []), ("~~~\n$x$\n~~~\n$z$", ["z"]),
                        ("$a\n\nb$", []), (r"$a_1$ and $b_2$", ["a_1", "b_2"]), ("**bold $x*y$ bold**", ["x*y"]), ("- $$x$$\n- \\[y\\]", ["x", "y"]),
                        ("$ x$ and $x $", []), ("\\[ a\n= b \\]", ["a\n= b"]), ("$unclosed", []), ("    $code$", [])]:
        rendered(p, source)
        found = p.page.locator("article.assistant .text").last.evaluate("e => [...e.querySelectorAll('annotation')].map(a => a.textContent)")
        check(f"formulas of {source!r}", found == tex, found)
    rendered(p, r"$\frac{a}$ and $\nosuch{x}$ and $\unknown$")
    check("what KaTeX does not know is shown as it was written", r"$\frac{a}$" in p.page.locator("article.assistant .text").last.inner_text() and
          r"$\nosuch{x}$" in p.page.locator("article.assistant .text").last.inner_text())
    check("no complaints", not p.faults, p.faults)
    p.close()


def attacks(browser):
    p = Page(browser)
    p.page.evaluate("() => { window.box = el('div', { class: 'text' }); byId('log').append(box); }")
    allowed = set("""p strong em del code pre div header span button svg path a table thead tbody tr th td ol ul li blockquote h1 br details
        summary b i u s sub sup kbd mark ins small input math semantics mrow mi mn mo mtext annotation msub msup mstyle mspace hr line g rect""".split())
    for source in ATTACKS + ["\n\n".join(ATTACKS)]:
        seen = p.page.evaluate("""source => { markup.render(box, source, false); const all = [...box.querySelectorAll('*')]; return {
            tags: [...new Set(all.map(e => e.tagName.toLowerCase()))],
            bad: all.flatMap(e => [...e.attributes].map(a => [e.tagName, a.name, a.value])).filter(([tag, name, value]) =>
                /^on|^src|^srcdoc|^data|^action|^formaction|^name$|^id$/i.test(name) || /javascript:|vbscript:|data:/i.test(name === 'href' ? value : '') ||
                (name === 'href' && !/^(https?:\\/\\/|mailto:)/.test(value)))
                .concat(all.filter(e => !e.closest('.katex') && e.hasAttribute('style')).map(e => [e.tagName, 'style']))}; }""", source)
        check(f"nothing but text comes of {source[:70]!r}", not seen["bad"] and set(seen["tags"]) <= allowed, seen)
        p.page.evaluate("""() => box.querySelectorAll('a, details, summary, button, td').forEach(e => { if (!e.href) e.click();
            e.dispatchEvent(new Event('mouseover')); })""")
    p.page.wait_for_timeout(300)
    check("nothing ran", p.page.evaluate("window.hacked") is None)
    for source in ATTACKS:
        p.stream(*[{"content": source[i:i + 3]} for i in range(0, len(source), 3)])
        p.page.evaluate("s => { conversation.open(tree.create()); byId('input').value = s; byId('form').requestSubmit(); }", source)
        p.answer()
    check("nor while it is streamed, asked, and made a title", p.page.evaluate("window.hacked") is None and len(p.titles()) == len(ATTACKS), p.titles())
    p.reload()
    p.page.wait_for_timeout(300)
    check("nor when it is read back", p.page.evaluate("window.hacked") is None)
    own = [u for u in p.requests if not u.startswith((p.page.url, "data:", "blob:"))]
    check("and nothing was fetched from elsewhere", not own, own)
    check("and the policy was never needed", not [f for f in p.faults if "Content Security" in f], p.faults)
    p.page.evaluate("""() => { const s = document.createElement("script"); s.textContent = "window.hacked = 2"; document.body.append(s);
        document.body.insertAdjacentHTML("beforeend", "<p onclick='window.hacked=3' id=trap>x</p>"); document.getElementById("trap").click(); }""")
    own_script = p.context.request.get(p.page.evaluate("[...document.scripts].find(s => s.src.endsWith('app.js')).src")).text()
    check("the page's own script makes no markup or code of texts", len(own_script) > 50000 and not [word for word in (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", ".srcdoc") if word in own_script])
    check("the policy stops what would get in", p.page.evaluate("window.hacked") is None)
    p.close()


def speed(browser):
    p = Page(browser)
    for name, piece in [("stars", "*a "), ("stars", "**"), ("underscores", "_"), ("brackets", "["), ("links", "[a]("), ("ticks", "`a``"),
                        ("quotes", "> > > > a\n"), ("lists", "- - - a\n"), ("pipes", "|a\n|-\n"), ("spaces", "# " + " " * 50), ("fences", "```\n~~~\n"),
                        ("addresses", "http://a.b/" + "(" * 20), ("lines", "\n"), ("deep", "- a\n  "), ("tags", "<a"), ("dollars", "$a "), ("dollars", "$a$"),
                        ("openings", "\\("), ("openings", "\\[ a\n\n"), ("double dollars", "$$"), ("braces", "${$"), ("formulas", "$\\frac12$ ")]:
        took = p.page.evaluate("""piece => { const d = document.createElement("div"), t = performance.now();
            markup.render(d, piece.repeat(Math.ceil(60000 / piece.length)), false); return performance.now() - t; }""", piece)
        check(f"60 kB of {name} are drawn at once ({took:.0f} ms)", p.is_within(took, 4000), took)
    for name, piece in [("quotes", "> "), ("quotes", ">"), ("lists", "- "), ("numbers", "1. "), ("brackets", "["), ("links", "[a]("), ("emphasis", "*_"),
                        ("groups", "$" + "{" * 9000 + "}" * 9000 + "$"), ("roots", "$" + "\\sqrt{" * 2000 + "}" * 2000 + "$"),
                        ("inner lists", "".join("  " * i + "- a\n" for i in range(200)))]:
        text = piece.ljust(20000) if len(piece) > 10 else piece * (30000 // len(piece))
        seen = p.page.evaluate("""text => { const d = el("div"), t = performance.now(); byId("log").append(d); markup.render(d, text, true);
            markup.render(d, text, false); const shown = d.textContent.length; d.remove(); return [shown, performance.now() - t]; }""", text)
        check(f"one deep {name} are no end ({seen[1]:.0f} ms)", seen[0] > 0 and p.is_within(seen[1], 6000), seen)
    # a long answer that comes in small pieces: blocks that are complete are not drawn again
    text = "".join(f"## Part {i}\n\nText with $x_{{{i}}}$ and **bold** words. " + "word " * 60 + "\n\n```c\nint x = %d;\n```\n\n" % i for i in range(150))
    p.stream(*[{"content": text[i:i + 12]} for i in range(0, len(text), 12)])
    p.page.evaluate("""() => { window.built = 0; new MutationObserver(list => { for (const m of list)
        window.built += [...m.addedNodes].filter(n => n.tagName === 'H2').length; }).observe(byId('log'), { childList: true, subtree: true }); }""")
    p.say("x")
    built = p.page.evaluate("window.built")
    check("a heading of a long answer is made a few times at most", 150 <= built <= 450, built)
    took = p.page.evaluate("""text => { const d = el("div"); markup.render(d, text.slice(0, -400), true); const t = performance.now();
        for (let i = 0; i < 20; i++) markup.render(d, text.slice(0, -400 + i), true); return (performance.now() - t) / 20; }""", text)
    check(f"one more token of 70 kB takes {took:.1f} ms", p.is_within(took, 60), took)
    check("no complaints", not p.faults, p.faults)
    p.close()


PARTS = (markdown, attacks, speed)
