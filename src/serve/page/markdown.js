/* SPDX-License-Identifier: MIT */
/*
 * Markdown to DOM. Text of the model only ever becomes text nodes, and addresses only http, https
 * and mailto: whatever a model writes, it cannot put markup or script into the page. Every scan is
 * bounded, so that no text takes long. What is not understood stays as it was written.
 */
function el(tag, attributes, ...children) {
	const e = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes || {})) {
		if (name === "class")
			e.className = value;
		else if (name.startsWith("on"))
			e.addEventListener(name.slice(2), value);
		else if (value !== false && value != null)
			e.setAttribute(name, value === true ? "" : value);
	}
	e.append(...children.filter((c) => c != null && c !== false));
	return e;
}

/* An icon of 24 x 24 from path data. */
function icon(...paths) {
	const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
	svg.setAttribute("viewBox", "0 0 24 24");
	svg.setAttribute("aria-hidden", "true");
	for (const d of paths) {
		const p = document.createElementNS(ns, "path");
		p.setAttribute("d", d);
		svg.append(p);
	}
	return svg;
}

function copyButton(text, label = "Copy") {
	const name = document.createTextNode(label);
	const button = el("button", { type: "button", class: "quiet", title: "Copy" },
		icon("M9 9h10v11H9z", "M15 9V4H5v11h4"), name);
	button.addEventListener("click", async () => {
		const value = text();
		try {
			await navigator.clipboard.writeText(value);
		} catch { /* pages without TLS on other hosts have no clipboard: the old way */
			const area = el("textarea", { class: "hidden" });
			area.value = value;
			document.body.append(area);
			area.select();
			document.execCommand("copy");
			area.remove();
		}
		name.data = "Copied";
		setTimeout(() => { name.data = label; }, 1500);
	});
	return button;
}

const markdown = (() => {
	const MOST_LABEL = 500, MOST_URL = 2000, MOST_LINE = 20000, MOST_DEPTH = 10;

	function safeUrl(text) {
		try {
			const url = new URL(text);
			return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
		} catch {
			return null;
		}
	}

	function link(url, ...children) {
		return el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
	}

	/* The end of [label](url) that begins at s[at] = "[", or null. */
	function findLink(s, at) {
		let depth = 0, end = -1;
		for (let i = at; i < s.length && i < at + MOST_LABEL; i++) {
			if (s[i] === "\\")
				i++;
			else if (s[i] === "[")
				depth++;
			else if (s[i] === "]" && --depth === 0) {
				end = i;
				break;
			}
		}
		if (end < 0 || s[end + 1] !== "(")
			return null;
		depth = 0;
		for (let i = end + 1; i < s.length && i < end + MOST_URL; i++) {
			if (s[i] === "(")
				depth++;
			else if (s[i] === ")" && --depth === 0) {
				const inside = s.slice(end + 2, i).trim().replace(/\s+"[^"]*"$/, "");
				return { label: s.slice(at + 1, end), url: inside.replace(/^<(.*)>$/, "$1"), end: i + 1 };
			} else if (s[i] === "\n")
				return null;
		}
		return null;
	}

	/* Where the emphasis that opens at `from` - mark.length ends, -1: nowhere. */
	function findClose(s, mark, from) {
		for (let i = s.indexOf(mark, from); i >= 0; i = s.indexOf(mark, i + 1)) {
			if (/\s/.test(s[i - 1]) || i === from)
				continue;
			if (mark[0] === "_" && /\w/.test(s[i + mark.length] || ""))
				continue;
			if (mark.length === 1 && (s[i + 1] === mark || s[i - 1] === mark)) {
				while (s[i + 1] === mark)
					i++;
				continue;
			}
			return i;
		}
		return -1;
	}

	function inline(parent, s, depth = 0) {
		const none = {}; /* marks that close nowhere behind this point */
		let plain = 0;
		const flush = (to) => { if (to > plain) parent.append(s.slice(plain, to)); };
		for (let i = 0; i < s.length;) {
			const c = s[i];
			let node = null, end = i + 1;
			if (c === "\\" && /[\\`*_{}[\]()#+\-.!~|<>]/.test(s[i + 1] || "")) {
				node = document.createTextNode(s[i + 1]);
				end = i + 2;
			} else if (c === "\n") {
				node = el("br");
			} else if (c === "`") {
				let n = 1;
				while (s[i + n] === "`")
					n++;
				const mark = "`".repeat(n);
				let close = none[mark] ? -1 : s.indexOf(mark, i + n);
				while (close >= 0 && (s[close + n] === "`" || s[close - 1] === "`"))
					close = s.indexOf(mark, close + n + 1);
				if (close >= 0) {
					const code = s.slice(i + n, close);
					node = el("code", null, /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code);
					end = close + n;
				} else {
					none[mark] = true;
					end = i + n;
				}
			} else if (c === "[" || (c === "!" && s[i + 1] === "[")) {
				const at = c === "!" ? i + 1 : i, found = findLink(s, at), url = found && safeUrl(found.url);
				if (url) { /* an image is shown as a link to it: the page loads nothing from elsewhere */
					node = link(url);
					if (depth < MOST_DEPTH)
						inline(node, found.label || url, MOST_DEPTH);
					end = found.end;
				}
			} else if ((c === "*" || c === "_" || c === "~") && depth < MOST_DEPTH) {
				const double = s[i + 1] === c, mark = double ? c + c : c;
				const starts = s[i + mark.length] && !/\s/.test(s[i + mark.length]);
				const word = c === "_" && /\w/.test(s[i - 1] || "");
				if (starts && !word && !none[mark] && (double || c !== "~")) {
					const close = findClose(s, mark, i + mark.length);
					if (close < 0) {
						none[mark] = true;
					} else {
						node = el(c === "~" ? "del" : double ? "strong" : "em");
						inline(node, s.slice(i + mark.length, close), depth + 1);
						end = close + mark.length;
					}
				}
				if (!node)
					end = i + mark.length;
			} else if (c === "h" && !/\w/.test(s[i - 1] || "") && /^https?:\/\/[^\s<>"]/.test(s.slice(i, i + 9))) {
				const bare = s.slice(i, i + MOST_URL).match(/^[^\s<>"`]+/)[0].replace(/[.,;:!?'*_)\]]+$/, "");
				const url = safeUrl(bare);
				if (url) {
					node = link(url, bare);
					end = i + bare.length;
				}
			}
			if (node) {
				flush(i);
				parent.append(node);
				plain = end;
			}
			i = end;
		}
		flush(s.length);
		return parent;
	}

	/* ---- blocks: {kind, lines}; lists and quotes hold blocks of their own ---- */
	const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/, HEAD = /^(#{1,6})\s+(\S.*)$/, RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
	const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/, TABLE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
	const indent = (line) => line.match(/^\s*/)[0].replace(/\t/g, "    ").length;
	const blank = (line) => !line.trim();

	function split(text) {
		const lines = text.split("\n"), blocks = [];
		for (let i = 0; i < lines.length;) {
			const line = lines[i], start = i;
			let kind = "p", m;
			if (blank(line)) {
				i++;
				continue;
			} else if (line.length > MOST_LINE) { /* no shape is looked for in it */
				i++;
			} else if ((m = line.match(FENCE))) {
				kind = "code";
				const close = new RegExp("^ {0,3}" + (m[1][0] === "~" ? "~" : "`") + "{" + m[1].length + ",}\\s*$");
				for (i++; i < lines.length && !close.test(lines[i]); i++);
				i++;
			} else if (HEAD.test(line)) {
				kind = "h";
				i++;
			} else if (RULE.test(line)) {
				kind = "hr";
				i++;
			} else if (/^\s{0,3}>/.test(line)) {
				kind = "quote";
				for (; i < lines.length && /^\s{0,3}>/.test(lines[i]); i++);
			} else if (ITEM.test(line)) {
				kind = "list";
				for (i++; i < lines.length; i++) {
					const next = lines.slice(i, i + 3).find((l) => !blank(l));
					const ends = blank(lines[i])
						? !(next && (ITEM.test(next) || indent(next) > 1))
						: !ITEM.test(lines[i]) && indent(lines[i]) < 2 &&
							(blank(lines[i - 1]) || HEAD.test(lines[i]) || FENCE.test(lines[i]));
					if (ends)
						break;
				}
			} else if (line.includes("|") && TABLE.test(lines[i + 1] || "") && lines[i + 1].includes("|")) {
				kind = "table";
				for (; i < lines.length && !blank(lines[i]) && lines[i].includes("|"); i++);
			} else {
				for (i++; i < lines.length && !blank(lines[i]) && !FENCE.test(lines[i]) && !HEAD.test(lines[i]) &&
					!RULE.test(lines[i]) && !/^\s{0,3}>/.test(lines[i]) && !ITEM.test(lines[i]); i++);
			}
			blocks.push({ kind, lines: lines.slice(start, i) });
		}
		return blocks;
	}

	function codeBlock(lines) {
		const open = lines[0].match(FENCE),
			  closed = lines.length > 1 && /^ {0,3}(`{3,}|~{3,})\s*$/.test(lines[lines.length - 1]);
		const code = lines.slice(1, closed ? -1 : undefined).join("\n");
		return el("div", { class: "code" },
			el("header", null,
				el("span", null, open[2].trim().split(/\s+/)[0].slice(0, 40) || "text"),
				copyButton(() => code)),
			el("pre", { tabindex: "0" }, el("code", null, code)));
	}

	function listBlock(lines, depth) {
		const first = lines[0].match(ITEM), base = indent(lines[0]), ordered = /\d/.test(first[2]);
		const list = el(ordered ? "ol" : "ul",
			ordered && parseInt(first[2], 10) !== 1 ? { start: parseInt(first[2], 10) } : null);
		let item = null;
		const close = () => {
			if (!item)
				return;
			const li = el("li"), blocks = split(item.join("\n"));
			/* a single paragraph, and the one before an inner list, stand in the item itself */
			blocks.forEach((b, k) => b.kind === "p" && k === 0
					? inline(li, b.lines.join("\n").trim())
					: li.append(build(b, depth + 1)));
			list.append(li);
		};
		for (const line of lines) {
			const m = line.match(ITEM);
			if (m && indent(line) <= base + 1) {
				close();
				item = [line.slice(m[0].length)];
			} else {
				const cut = Math.min(indent(line), base + first[0].length - first[1].length);
				item.push(line.replace(/\t/g, "    ").slice(cut));
			}
		}
		close();
		return list;
	}

	function tableBlock(lines) {
		const cells = (line) => line.trim()
									.replace(/^\||\|$/g, "")
									.split(/(?<!\\)\|/)
									.map((c) => c.trim().replace(/\\\|/g, "|"));
		const sides = cells(lines[1]).map((c) => c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "");
		const row = (line, tag) => el("tr", null, ...cells(line).slice(0, sides.length).map((c, i) =>
			inline(el(tag, sides[i] ? { class: sides[i] } : null), c)));
		return el("div", { class: "table" }, el("table", null, el("thead", null, row(lines[0], "th")),
			el("tbody", null, ...lines.slice(2).map((l) => row(l, "td")))));
	}

	function build(block, depth = 0) {
		const lines = block.lines;
		if (depth > MOST_DEPTH)
			return el("p", null, lines.join("\n"));
		switch (block.kind) {
		case "code":
			return codeBlock(lines);
		case "h": {
			const m = lines[0].match(HEAD);
			return inline(el("h" + m[1].length), m[2].replace(/\s#+\s*$/, ""));
		}
		case "hr":
			return el("hr");
		case "quote":
			return el("blockquote", null,
				...split(lines.map((l) => l.replace(/^\s{0,3}> ?/, "")).join("\n"))
					.map((b) => build(b, depth + 1)));
		case "list":
			return listBlock(lines, depth);
		case "table":
			return tableBlock(lines);
		default:
			return inline(el("p"), lines.join("\n").trim());
		}
	}

	const shown = new WeakMap(); /* container -> sources of its blocks, so that only what changed is built again */
	function render(container, text) {
		const blocks = split(text), old = shown.get(container) || [], now = blocks.map((b) => b.kind + b.lines.join("\n"));
		let same = 0;
		while (same < now.length && now[same] === old[same])
			same++;
		while (container.childNodes.length > same)
			container.lastChild.remove();
		for (const b of blocks.slice(same))
			container.append(build(b));
		shown.set(container, now);
	}
	return { render };
})();
