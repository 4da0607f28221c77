/* SPDX-License-Identifier: MIT */
/*
 * Formulas: \( \), \[ \], $$ $$ and $ $. They are taken out before Markdown reads the text, because
 * Markdown would see emphasis, escapes and table cells in them, and are put back as elements that
 * KaTeX makes. A formula is replaced by OPEN, its number and CLOSE, which are code points of the
 * private use area; where the text itself has these they become U+FFFD.
 */
const maths = (() => {
	const OPEN = "\uE000", CLOSE = "\uE001", MARK = /\uE000(\d+)\uE001/g;
	const MOST_SOURCE = 20000; /* KaTeX's time grows with the formula's length */

	/* Finds closing marks; each mark that is not in the rest of the text is searched for once, so
	 * that many openings without an end take no quadratic time. */
	function makeFinder(text) {
		const absent = new Map();
		return (mark, from) => {
			if (absent.has(mark) && from >= absent.get(mark))
				return -1;
			const at = text.indexOf(mark, from);
			if (at < 0)
				absent.set(mark, from);
			return at;
		};
	}

	/* The end of the fenced block whose opening fence ends at `from`. */
	function fenceEnd(text, from, fence) {
		const close = new RegExp("^[ \\t>]*" + fence[0] + "{" + fence.length + ",}[ \\t]*$", "gm");
		close.lastIndex = from;
		const found = close.exec(text);
		return found ? found.index + found[0].length : text.length;
	}

	/* A dollar opens a formula when no space follows it, and the next dollar of the same paragraph
	 * closes it when no space precedes and no digit follows: "$5 and $6" are prices. Returns the
	 * position of the closing dollar or -1. */
	function dollarEnd(text, from, paragraphEnd, find) {
		if (from >= text.length || /[\s$]/.test(text[from]))
			return -1;
		let at = find("$", from);
		while (at > 0 && text[at - 1] === "\\")
			at = find("$", at + 1);
		if (at < 0 || at >= paragraphEnd || /\s/.test(text[at - 1]) ||
			/[0-9]/.test(text[at + 1] || ""))
			return -1;
		return at;
	}

	/* {text, formulas}: the text with marks in place of the formulas, which are {source, tex,
	 * display}. Code keeps its text. */
	function takeOut(input) {
		const formulas = [], out = [];
		const text = input.replace(/[\uE000\uE001]/g, "\uFFFD");
		if (!/[$]|\\[([]/.test(text))
			return { text, formulas };
		const find = makeFinder(text);
		/* a fence, maybe in a quote or behind a bullet; an escape; dollars; a code span */
		const special =
			/^[ \t>]*(?:[-*+] |\d{1,9}[.)] )?[ \t]*(`{3,}|~{3,})[^\n]*$|\\[\s\S]|\$\$?|`+/gm;
		const unclosed = new Set(); /* lengths of backtick runs that end no code span any more */
		let done = 0, paragraphEnd = -1;
		const replace = (begin, end, width, display) => {
			out.push(text.slice(done, begin), OPEN + formulas.length + CLOSE);
			formulas.push({
				source: text.slice(begin, end),
				tex: text.slice(begin + width, end - width).trim(),
				display
			});
			done = special.lastIndex = end;
		};
		for (let m; (m = special.exec(text));) {
			const at = m.index, mark = m[0], after = at + mark.length;
			let end;
			if (m[1]) {
				special.lastIndex = fenceEnd(text, after, m[1]);
			} else if (mark[0] === "`" && !unclosed.has(mark.length)) {
				/* a code span ends at as many backticks */
				for (end = find(mark, after); end >= 0; end = find(mark, end)) {
					let run = end;
					while (text[run] === "`")
						run++;
					if (run - end === mark.length)
						break;
					end = run;
				}
				if (end >= 0)
					special.lastIndex = end + mark.length;
				else
					unclosed.add(mark.length);
			} else if (mark === "\\(" || mark === "\\[" || mark === "$$") {
				const close = mark === "\\(" ? "\\)" : mark === "\\[" ? "\\]" : "$$";
				end = find(close, after);
				const inside = end > after ? text.slice(after, end) : "";
				if (inside.trim() && (mark !== "\\(" || !/\n\s*\n/.test(inside)))
					replace(at, end + close.length, 2, mark !== "\\(");
			} else if (mark === "$") {
				if (paragraphEnd < at) {
					const next = text.slice(at).search(/\n[ \t]*\n/);
					paragraphEnd = next < 0 ? text.length : at + next;
				}
				end = dollarEnd(text, after, paragraphEnd, find);
				if (end >= 0)
					replace(at, end + 1, 1, false);
			}
		}
		out.push(text.slice(done));
		return { text: out.join(""), formulas };
	}

	/* Text as it was written, for places where a formula is none: code, addresses. */
	function restore(text, formulas, write = (source) => source) {
		return text.replace(MARK, (mark, n) => formulas[n] ? write(formulas[n].source) : mark);
	}

	/* KaTeX writes some styles as attributes, which the page's policy forbids; set through the
	 * element they are allowed. */
	function moveStyles(node) {
		if (node.attributes && node.attributes.style) {
			node.attributes["data-style"] = node.attributes.style;
			delete node.attributes.style;
		}
		(node.children || []).forEach(moveStyles);
	}

	function typeset(formula) {
		if (formula.tex.length > MOST_SOURCE)
			return document.createTextNode(formula.source);
		const options = {
			displayMode: formula.display,
			throwOnError: true,
			strict: "ignore",
			trust: false,
			maxSize: 30,
			maxExpand: 300
		};
		try {
			const tree = katex.__renderToDomTree(formula.tex, options);
			moveStyles(tree);
			const node = tree.toNode();
			for (const e of node.querySelectorAll("[data-style]")) {
				e.style.cssText = e.dataset.style;
				e.removeAttribute("data-style");
			}
			return node;
		} catch (e) { /* what KaTeX does not know is shown as it was written */
			return el("code", { class: "no-formula", title: e.message }, formula.source);
		}
	}

	/* Replaces the marks in the texts below `root` by formulas. */
	function putBack(root, formulas) {
		if (!formulas.length)
			return;
		const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), texts = [];
		while (walker.nextNode())
			if (walker.currentNode.data.includes(OPEN))
				texts.push(walker.currentNode);
		for (const node of texts)
			node.replaceWith(...node.data.split(/(\uE000\d+\uE001)/).filter((s) => s).map((s) => {
				const f = s[0] === OPEN && formulas[s.slice(1, -1)];
				return f ? typeset(f) : document.createTextNode(s);
			}));
	}
	return { takeOut, restore, putBack };
})();
