/* SPDX-License-Identifier: MIT */
/*
 * Conversations as files. JSON has all of them with every version of every message; Markdown has
 * what is shown of one. Both can be read back. In Markdown a message begins with one of HEADINGS on
 * a line of its own; a line of a text that looks like one gets a backslash.
 */
const transfer = (() => {
	const FORMAT = "glmstream chats", VERSION = 1;
	const HEADINGS = { user: "## You", assistant: "## Answer", tool: "## Tool result" };
	const HEADING = /^## (?:You|Answer|Tool result)[ \t]*$/;
	const ESCAPED = /^\\+## (?:You|Answer|Tool result)[ \t]*$/;
	const MOST_BYTES = 50e6;

	/* A fence that no run of backticks in the text ends. */
	function fenceFor(text) {
		const runs = text.match(/`+/g) || [];
		return "`".repeat(Math.max(3, ...runs.map((r) => r.length + 1)));
	}

	/* What the model reads of a question with files. */
	function withFiles(m) {
		const parts = (m.files || []).map((f) => {
			const fence = fenceFor(f.text);
			const text = f.text.replace(/\n$/, "");
			return "File " + f.name + ":\n" + fence + "\n" + text + "\n" + fence;
		});
		return [...parts, m.content].filter((p) => p).join("\n\n");
	}

	function escapeHeadings(text) {
		const isHeading = (line) => HEADING.test(line) || ESCAPED.test(line);
		return text.split("\n").map((l) => isHeading(l) ? "\\" + l : l).join("\n");
	}

	function messageText(m) {
		const parts = [];
		if (m.role === "user")
			parts.push(withFiles(m));
		else
			parts.push(m.content);
		for (const c of m.tool_calls || [])
			parts.push("```\n" + c.name + "(" + c.arguments + ")\n```");
		return parts.filter((p) => p).join("\n\n");
	}

	function toMarkdown(chat) {
		const turns = tree.path(chat).filter((m) => messageText(m))
			.map((m) => HEADINGS[m.role] + "\n\n" + escapeHeadings(messageText(m)) + "\n");
		return "# " + chat.title.replace(/\s+/g, " ") + "\n\n" + turns.join("\n");
	}

	function fromMarkdown(text) {
		const roles = Object.fromEntries(Object.entries(HEADINGS).map(([role, h]) => [h, role]));
		const list = [];
		let title = "";
		for (const line of text.replace(/\r\n?/g, "\n").split("\n")) {
			if (HEADING.test(line))
				list.push({ role: roles[line.trim()], lines: [] });
			else if (list.length)
				list.at(-1).lines.push(ESCAPED.test(line) ? line.slice(1) : line);
			else if (/^# /.test(line) && !title)
				title = line.slice(2).trim();
		}
		const toMessage = (m) => ({ role: m.role, content: m.lines.join("\n").trim() });
		const chat = tree.fromList(list.map(toMessage));
		if (title) {
			chat.title = title.slice(0, 200);
			chat.named = true;
		}
		return chat.messages.length ? [chat] : [];
	}

	function toJson(chats) {
		const plain = chats.map(({ removed, ...chat }) => chat);
		return JSON.stringify({ format: FORMAT, version: VERSION, chats: plain }, null, 1) + "\n";
	}

	function fromJson(text) {
		const value = JSON.parse(text);
		const list = Array.isArray(value.chats) ? value.chats : [value];
		return list.map(tree.read).filter((chat) => chat && chat.messages.length);
	}

	/* Reads a file that a person picked; stores its conversations as new ones. Returns them; throws
	 * an Error with a sentence. */
	async function importFile(file) {
		if (file.size > MOST_BYTES)
			throw new Error(file.name + " has " + formatSize(file.size) + "; at most " +
				formatSize(MOST_BYTES) + " are read.");
		const text = await file.text();
		let found = [];
		try {
			found = /^\s*[{[]/.test(text) ? fromJson(text) : fromMarkdown(text);
		} catch { /* said below */ }
		if (!found.length)
			throw new Error(file.name + " holds no chat: it is neither JSON nor Markdown that " +
				"was saved here.");
		for (const chat of found) {
			if (store.get(chat.id)) /* both are kept */
				chat.id = tree.newId();
			await store.save(chat);
		}
		return found;
	}

	function fileName(chat, suffix) {
		const name = chat.title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-");
		return (name.replace(/^-+|-+$/g, "").slice(0, 50) || "chat") + suffix;
	}

	function saveMarkdown(chat) {
		saveAsFile(fileName(chat, ".md"), "text/markdown", toMarkdown(chat));
	}

	function saveJson(chats) {
		const name = chats.length === 1 ? fileName(chats[0], ".json") : "glmstream-chats.json";
		saveAsFile(name, "application/json", toJson(chats));
	}
	return { withFiles, toMarkdown, importFile, saveMarkdown, saveJson };
})();
