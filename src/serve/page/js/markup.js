/* SPDX-License-Identifier: MIT */
/*
 * Answers as formatted text: marked reads the Markdown, highlight.js colours code, DOMPurify lets
 * through only the tags and addresses named here, KaTeX sets the formulas. A model's own HTML stays
 * text except for a few tags without attributes. The page's policy forbids scripts besides.
 *
 * An answer that is being written is drawn again by blocks: only blocks whose source has changed
 * become new elements.
 */
const markup = (() => {
	const OWN_TAGS =
		"br sub sup kbd mark u ins small b i s strong em del details summary".split(" ");
	const SAFE = {
		ALLOWED_TAGS: ("a p h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code hr div span header " +
			"table thead tbody tr th td input").split(" ").concat(OWN_TAGS),
		ALLOWED_ATTR: ["href", "title", "class", "start", "align", "type", "checked", "disabled",
			"aria-label", "tabindex"],
		ADD_URI_SAFE_ATTR: ["start", "align", "type", "checked", "disabled", "tabindex"],
		ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
		ALLOW_DATA_ATTR: false,
		RETURN_DOM_FRAGMENT: true
	};
	/* Marked's search for emphasis takes quadratic time within one paragraph. */
	const MOST_PARAGRAPH = 8000;
	const MOST_HIGHLIGHT = 60000, MOST_LIVE_HIGHLIGHT = 4000;
	const ALIASES = { c: "cpp", cuda: "cpp", "c#": "cs", csharp: "cs", console: "shell",
		latex: "tex", jsonc: "json", html: "xml", svg: "xml" };
	let formulas = [], live = false, reader = null;
	const drawn = new WeakMap(); /* box: [{key, nodes}] */

	function escapeHtml(text) {
		return text.replace(/[&<>"']/g, (c) => "&#" + c.charCodeAt(0) + ";");
	}

	function codeBlock(code, info) {
		const name = (info || "").trim().split(/[\s{,]/)[0];
		const source = maths.restore(code, formulas).replace(/\n$/, "");
		const language = ALIASES[name.toLowerCase()] || name.toLowerCase();
		const most = live ? MOST_LIVE_HIGHLIGHT : MOST_HIGHLIGHT;
		let html = escapeHtml(source);
		if (language && source.length <= most && hljs.getLanguage(language))
			html = hljs.highlight(language, source, true).value;
		return '<div class="code"><header>' + escapeHtml(name || "code") +
			'</header><pre tabindex="0"><code>' + html + "</code></pre></div>\n";
	}

	/* Tags of OWN_TAGS without attributes stay tags, everything else is text. */
	function ownHtml(html) {
		return html.split(/(<\/?[a-z]+\s*\/?>)/i).map((part) => {
			const tag = /^<(\/?)([a-z]+)\s*\/?>$/i.exec(part), name = tag && tag[2].toLowerCase();
			return tag && OWN_TAGS.includes(name) ? "<" + tag[1] + name + ">" : escapeHtml(part);
		}).join("");
	}

	function link(href, title, text) {
		const url = maths.restore(href || "", formulas);
		const hint = title ? ' title="' + escapeHtml(title) + '"' : "";
		return SAFE.ALLOWED_URI_REGEXP.test(url)
			? '<a href="' + escapeHtml(url) + '"' + hint + ">" + text + "</a>"
			: null;
	}

	function makeReader() {
		marked.use({
			gfm: true,
			breaks: false,
			mangle: false,
			headerIds: false,
			smartypants: false,
			renderer: {
				code: codeBlock,
				codespan: (text) => "<code>" + maths.restore(text, formulas, escapeHtml) +
					"</code>",
				html: ownHtml,
				link(href, title, text) {
					const address = escapeHtml(maths.restore(href || "", formulas));
					return link(href, title, text) ||
						(text === address ? text : "[" + text + "](" + address + ")");
				},
				image: (href, title, text) => link(href, title, escapeHtml(text) || "image") ||
					escapeHtml(text),
				table: (head, body) => '<div class="table" tabindex="0"><table><thead>' + head +
					"</thead><tbody>" + body + "</tbody></table></div>\n",
				checkbox: (checked) => '<input type="checkbox" disabled aria-label="' +
					(checked ? "done" : "not done") + '"' + (checked ? " checked> " : "> ")
			},
			tokenizer: {
				html: () => undefined /* HTML in a paragraph of its own is read like HTML in any */
			}
		});
		class Lexer extends marked.Lexer {
			inlineTokens(source, tokens = []) {
				if (source.length <= MOST_PARAGRAPH)
					return super.inlineTokens(source, tokens);
				tokens.push({ type: "text", raw: source, text: escapeHtml(source) });
				return tokens;
			}
		}
		DOMPurify.addHook("afterSanitizeAttributes", (node) => {
			if (node.tagName === "A") {
				node.setAttribute("target", "_blank");
				node.setAttribute("rel", "noopener noreferrer nofollow");
			}
		});
		return (text) => new Lexer(marked.defaults).lex(text);
	}

	/* Marked calls itself for each level of nesting: a text may have more than the stack holds, and
	 * is then shown as it was written. */
	function readBlocks(text) {
		try {
			return reader(text);
		} catch {
			return Object.assign([{ type: "unread", raw: text }], { links: {} });
		}
	}

	function build(token, links) {
		try {
			if (token.type !== "unread")
				return buildMarkup(token, links);
		} catch { /* nested too deeply */ }
		return [el("p", { class: "plain" }, maths.restore(token.raw, formulas))];
	}

	function buildMarkup(token, links) {
		const list = [token];
		list.links = links;
		const fragment = DOMPurify.sanitize(marked.Parser.parse(list, marked.defaults), SAFE);
		maths.putBack(fragment, formulas);
		for (const code of fragment.querySelectorAll(".code"))
			code.querySelector("header").append(
				copyButton(() => code.querySelector("code").textContent));
		return [...fragment.childNodes];
	}

	/* Makes `box` show `text`. With `isLive` more of the text is still to come. */
	function render(box, text, isLive) {
		if (!window.marked || !window.DOMPurify || !window.katex || !window.hljs) {
			box.classList.add("plain");
			if (box.textContent !== text)
				box.textContent = text;
			return;
		}
		reader = reader || makeReader();
		const taken = maths.takeOut(text);
		formulas = taken.formulas;
		const tokens = readBlocks(taken.text), old = drawn.get(box) || [];
		const blocks = tokens.filter((t) => t.type !== "space" && t.type !== "def");
		const links = JSON.stringify(tokens.links);
		let last = null; /* what stands before the next block */
		const now = blocks.map((token, i) => {
			live = isLive && i === blocks.length - 1;
			const key = [token.type, live && token.type === "code", links,
				maths.restore(token.raw, formulas)].join("\n");
			let block = old[i];
			if (!block || block.key !== key) {
				block = { key, nodes: build(token, tokens.links) };
				if (last)
					last.after(...block.nodes);
				else
					box.prepend(...block.nodes);
				if (old[i])
					old[i].nodes.forEach((n) => n.remove());
			}
			last = block.nodes.at(-1) || last;
			return block;
		});
		old.slice(now.length).forEach((b) => b.nodes.forEach((n) => n.remove()));
		drawn.set(box, now);
	}
	return { render };
})();
