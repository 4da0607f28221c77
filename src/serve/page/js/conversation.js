/* SPDX-License-Identifier: MIT */
/* The conversation that is shown, and what can be done with it and its messages. */
const conversation = (() => {
	const EXAMPLES = ["Define river.", "What is the capital of France?",
		"Tell me a story about a fox named Ben."];
	const needsKey = new Set(); /* messages that the server refused for want of a key */
	let current = null, views = new Map();
	let follow = true; /* the newest text stays in sight */
	let frame = 0, drawMs = 0, drawnAt = 0;
	const stale = new Set(); /* messages to draw in the next frame */

	function emptyView() {
		return el("div", { class: "hello" }, el("h2", null, "What would you like to know?"),
			el("p", null, "The model runs on the machine that serves this page. " +
				"Your chats stay in this browser."),
			el("div", { class: "chips" }, ...EXAMPLES.map((text) => el("button", {
				type: "button",
				class: "chip",
				onclick: () => ask(current, null, text)
			}, text))));
	}

	/* Draws the whole conversation, if it is the one shown. */
	function draw(chat = current) {
		if (chat !== current)
			return;
		const list = tree.path(chat), old = views;
		views = new Map();
		for (const m of list) {
			const had = old.get(m.id); /* formulas and code are not set again */
			const view = had && had.message === m ? had : messageViews.make(chat, m);
			if (view)
				views.set(m.id, view);
		}
		const nodes = [...views.values()].map((v) => v.node);
		byId("log").replaceChildren(...nodes.length ? nodes : [emptyView()]);
		views.forEach((v) => v.refresh());
		toEnd();
		compose.update();
	}

	function drawStale() {
		frame = 0;
		const now = performance.now();
		if (now - drawnAt < 3 * drawMs) { /* drawing takes at most a quarter of the time */
			frame = requestAnimationFrame(drawStale);
			return;
		}
		stale.forEach((id) => views.has(id) && views.get(id).refresh());
		stale.clear();
		toEnd();
		drawnAt = performance.now();
		drawMs = drawnAt - now;
	}

	function refresh(m) {
		stale.add(m.id);
		if (!frame)
			frame = requestAnimationFrame(drawStale);
	}

	function toEnd() {
		const log = byId("log");
		if (follow)
			log.scrollTop = log.scrollHeight;
		byId("to-end").hidden = follow;
	}

	function finished(chat, m) {
		if (chat !== current)
			return;
		if (views.has(m.id))
			views.get(m.id).refresh();
		toEnd();
		compose.update();
		announce(m.error ? "The answer failed." : m.stopped ? "The answer was stopped."
			: "The answer is complete.");
		compose.focusIfIdle();
	}

	/* Adds a question below `parent` and has it answered. */
	function ask(chat, parent, text, files) {
		if (answers.runOf(chat))
			return;
		const fields = { role: "user", content: text.trim() };
		if (files && files.length)
			fields.files = files;
		const m = tree.add(chat, parent, fields);
		follow = true;
		answers.start(chat, m.id);
	}

	/* Another version of an answer; what was said stays. */
	function again(chat, m) {
		follow = true;
		answers.start(chat, m.parent);
	}

	function answerCall(chat, m, call, text) {
		const last = tree.path(chat).at(-1);
		tree.add(chat, last.id, { role: "tool", tool_call_id: call.id, content: text });
		store.save(chat);
		const list = tree.path(chat);
		const isDone = (c) => list.some((r) => r.role === "tool" && r.tool_call_id === c.id);
		draw(chat);
		if (m.tool_calls.every(isDone))
			answers.start(chat, list.at(-1).id);
	}

	/* Shows another version of a message. */
	function show(chat, m) {
		if (answers.runOf(chat))
			return;
		tree.choose(chat, m);
		follow = false;
		store.save(chat);
		draw(chat);
		const node = views.has(m.id) && views.get(m.id).node;
		const button = node && node.querySelector(".versions button:not(:disabled)");
		if (button)
			button.focus();
	}

	/* Puts `chat` back to `copy`, its JSON before. */
	function putBack(chat, copy) {
		const before = tree.read(JSON.parse(copy));
		chat.messages = before.messages;
		chat.chosen = before.chosen;
		chat.removed = (chat.removed || []).filter((id) => !chat.messages.some((m) => m.id === id));
		store.save(chat);
		draw(chat);
	}

	function remove(chat, m) {
		if (answers.runOf(chat))
			return;
		const copy = JSON.stringify(chat), n = tree.remove(chat, m);
		store.save(chat);
		follow = false;
		draw(chat);
		notice.show(n === 1 ? "The message was deleted." :
			"This version was deleted with " + countOf(n - 1, "message") + " that followed it.",
			{ label: "Undo", run: () => putBack(chat, copy) });
	}

	/* Shows a conversation. */
	function open(chat) {
		current = chat;
		follow = true;
		stale.clear();
		draw();
		chats.draw();
		try {
			sessionStorage.setItem("glmstream.current", chat.id);
		} catch { /* the newest is shown after a reload */ }
	}

	function start() {
		const log = byId("log");
		current = tree.create();
		log.addEventListener("scroll", () => {
			follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
			byId("to-end").hidden = follow;
		}, { passive: true });
		byId("to-end").addEventListener("click", () => { follow = true; toEnd(); });
	}
	return { start, draw, refresh, finished, ask, again, answerCall, show, remove, open, needsKey,
		current: () => current };
})();
