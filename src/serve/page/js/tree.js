/* SPDX-License-Identifier: MIT */
/*
 * A conversation: {id, title, named, created, updated, messages, chosen}. The messages are a tree,
 * because an answer may be written again and a question edited; each has the id of its parent (null
 * for the first). `chosen` has the id of the child that is shown for each parent ("" for null).
 * A message is {id, parent, role, content} and may have reasoning, tool_calls, tool_call_id,
 * files, figures, stopped, error.
 */
const tree = (() => {
	const ROLES = ["user", "assistant", "tool"];
	const MOST_TITLE = 60;

	function newId() {
		const bytes = crypto.getRandomValues(new Uint8Array(12));
		return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
	}

	function create() {
		const now = Date.now();
		return { id: newId(), title: "New chat", named: false, created: now, updated: now,
			messages: [], chosen: {} };
	}

	function children(chat, parent) {
		return chat.messages.filter((m) => m.parent === parent);
	}

	/* The messages that are shown, first to last. */
	function path(chat) {
		const kids = new Map(), list = [];
		for (const m of chat.messages)
			kids.set(m.parent, [...kids.get(m.parent) || [], m]);
		for (let at = null; kids.has(at);) {
			const choice = chat.chosen[at || ""], of = kids.get(at);
			const next = of.find((m) => m.id === choice) || of.at(-1);
			list.push(next);
			at = next.id;
		}
		return list;
	}

	function choose(chat, m) {
		chat.chosen[m.parent || ""] = m.id;
	}

	/* Adds a message below `parent` (an id or null) and shows it. */
	function add(chat, parent, fields) {
		const m = { id: newId(), parent, ...fields };
		chat.messages.push(m);
		choose(chat, m);
		chat.updated = Date.now();
		if (!chat.named && m.role === "user" && parent === null)
			chat.title = titleOf(m.content || m.files && m.files[0] && m.files[0].name || "");
		return m;
	}

	function titleOf(text) {
		const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
		if (line.length > MOST_TITLE)
			return line.slice(0, MOST_TITLE - 1) + "…";
		return line || "New chat";
	}

	function siblings(chat, m) {
		return children(chat, m.parent);
	}

	function below(chat, m) {
		const ids = new Set([m.id]);
		for (let before = 0; before !== ids.size;) {
			before = ids.size;
			chat.messages.filter((o) => ids.has(o.parent)).forEach((o) => ids.add(o.id));
		}
		return ids;
	}

	/* Removes a message. Its children move up to its parent; if it has other versions, all below it
	 * is removed with it, since the others have children of their own. Returns how many messages
	 * were removed. */
	function remove(chat, m) {
		const versions = siblings(chat, m), at = versions.indexOf(m);
		let gone = new Set([m.id]);
		if (versions.length > 1) {
			gone = below(chat, m);
			choose(chat, versions[at ? at - 1 : 1]);
		} else {
			children(chat, m.id).forEach((child) => { child.parent = m.parent; });
			if (chat.chosen[m.id])
				chat.chosen[m.parent || ""] = chat.chosen[m.id];
		}
		chat.messages = chat.messages.filter((o) => !gone.has(o.id));
		gone.forEach((id) => { delete chat.chosen[id]; });
		chat.removed = [...chat.removed || [], ...gone];
		chat.updated = Date.now();
		return gone.size;
	}

	const isText = (v) => typeof v === "string";
	const isObject = (v) => v && typeof v === "object" && !Array.isArray(v);

	/* A copy of one message with the known fields, or null. */
	function readMessage(m) {
		if (!isObject(m) || !ROLES.includes(m.role) || !isText(m.content))
			return null;
		const out = { id: isText(m.id) ? m.id : newId(), parent: isText(m.parent) ? m.parent : null,
			role: m.role, content: m.content };
		for (const name of ["reasoning", "tool_call_id", "error"])
			if (isText(m[name]))
				out[name] = m[name];
		for (const name of ["stopped", "tools_offered"])
			if (m[name] === true)
				out[name] = true;
		if (isObject(m.figures))
			out.figures = Object.fromEntries(Object.entries(m.figures)
				.filter(([, v]) => typeof v === "number"));
		if (Array.isArray(m.tool_calls))
			out.tool_calls = m.tool_calls.filter((c) => isObject(c) && isText(c.name)).map((c) => ({
				id: String(c.id || ""),
				name: c.name,
				arguments: String(c.arguments || "")
			}));
		if (Array.isArray(m.files))
			out.files = m.files.filter((f) => isObject(f) && isText(f.name) && isText(f.text))
				.map((f) => ({ name: f.name, text: f.text }));
		return out;
	}

	/* From a list in which each message follows the one before: an older page's, or Markdown's. */
	function fromList(list) {
		const chat = create();
		let last = null;
		for (const m of list.map(readMessage))
			if (m)
				last = add(chat, last, { ...m, id: newId(), parent: last }).id;
		return chat;
	}

	/* A conversation from stored or imported JSON with what is wrong in it left out, or null. */
	function read(value) {
		if (!isObject(value) || !Array.isArray(value.messages))
			return null;
		const chat = create(), ids = new Set();
		for (const m of value.messages.map(readMessage)) {
			if (!m || ids.has(m.id))
				continue;
			/* parents come first, so there are no cycles */
			if (m.parent !== null && !ids.has(m.parent))
				m.parent = chat.messages.length ? chat.messages.at(-1).id : null;
			ids.add(m.id);
			chat.messages.push(m);
		}
		if (isText(value.id) && value.id)
			chat.id = value.id;
		if (isText(value.title) && value.title.trim())
			chat.title = value.title.trim().slice(0, 200);
		chat.named = value.named === true;
		for (const name of ["created", "updated"])
			if (Number.isFinite(value[name]))
				chat[name] = value[name];
		if (isObject(value.chosen))
			for (const [parent, child] of Object.entries(value.chosen))
				if (ids.has(child))
					chat.chosen[parent] = child;
		return chat;
	}
	return { create, newId, path, add, choose, siblings, remove, read, fromList, titleOf };
})();
