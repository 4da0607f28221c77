/* SPDX-License-Identifier: MIT */
/* One message as {node, refresh()}: refresh draws what has changed in it. The actions on it are
 * those of conversation.js. */
const messageViews = (() => {
	const SHAPE = {
		edit: ["M4 20h4L19 9l-4-4L4 16z"],
		again: ["M4 12a8 8 0 1 0 3-6.2", "M4 4v4h4"],
		remove: ["M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13"],
		go: ["M5 5l8 7-8 7zM17 5v14"],
		file: ["M7 3h7l4 4v14H7z", "M14 3v4h4"],
	};

	function figures(m) {
		const f = m.figures || {}, parts = [];
		if (m.stopped)
			parts.push("stopped");
		if (f.tokens)
			parts.push(countOf(f.tokens, "token"));
		if (f.speed)
			parts.push(f.speed.toFixed(1) + " tok/s");
		if (f.first)
			parts.push("first after " + formatSeconds(f.first));
		if (f.prompt)
			parts.push("prompt " + f.prompt + (f.cached ? ", " + f.cached + " of it cached" : ""));
		return parts.join(" · ");
	}

	/* Which version of the message is shown, and the ways to the others. */
	function versionPicker(chat, m) {
		const versions = tree.siblings(chat, m), at = versions.indexOf(m);
		if (versions.length < 2)
			return null;
		const step = (label, path, to) => el("button", {
			type: "button",
			class: "quiet",
			"aria-label": label,
			disabled: to < 0 || to >= versions.length,
			onclick: () => conversation.show(chat, versions[to])
		}, icon(path));
		return el("span", { class: "versions changes", role: "group", "aria-label": "Versions" },
			step("Earlier version", "M15 5l-7 7 7 7", at - 1),
			el("span", null, at + 1 + "/" + versions.length),
			step("Later version", "M9 5l7 7-7 7", at + 1));
	}

	/* A button that changes the conversation: hidden while an answer is written. */
	function changeButton(label, shape, onclick) {
		const button = quietButton(label, shape, onclick);
		button.classList.add("changes");
		return button;
	}

	function removeButton(chat, m) {
		return changeButton("Delete", SHAPE.remove, () => conversation.remove(chat, m));
	}

	function fileChip(f) {
		return el("details", { class: "file" },
			el("summary", null, icon(...SHAPE.file), f.name + ", " + textSize(f.text)),
			el("pre", { tabindex: "0" }, f.text));
	}

	function userView(chat, m) {
		const long = m.content.length > 1500;
		const bubble = m.content && el("div", {
			class: long ? "bubble long" : "bubble",
			tabindex: long ? "0" : null
		}, m.content);
		const node = el("article", { class: "turn user", "aria-label": "You" },
			...(m.files || []).map(fileChip), bubble || null,
			el("div", { class: "tools-row" }, versionPicker(chat, m),
				changeButton("Edit", SHAPE.edit, () => edit(node, chat, m)),
				copyButton(() => m.content), removeButton(chat, m)));
		return { node, refresh() {} };
	}

	function edit(node, chat, m) {
		if (answers.runOf(chat))
			return;
		const area = el("textarea", { "aria-label": "Edit the message" });
		area.value = m.content;
		const leave = () => conversation.draw(chat);
		const done = () => {
			const text = area.value.trim();
			if (text || (m.files || []).length)
				conversation.ask(chat, m.parent, text, m.files);
		};
		const onsubmit = (e) => {
			e.preventDefault();
			done();
		};
		node.replaceChildren(el("form", { class: "edit", onsubmit }, area,
			el("div", { class: "actions" },
				el("button", { type: "button", class: "second", onclick: leave }, "Cancel"),
				el("button", { type: "submit", class: "primary" }, "Send"))));
		area.addEventListener("keydown", (e) => {
			if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
				e.preventDefault();
				done();
			} else if (e.key === "Escape") {
				e.stopPropagation();
				leave();
			}
		});
		area.focus();
	}

	function thinkView(m) {
		const title = document.createTextNode("");
		const thought = el("div", { class: "thought", tabindex: "0" });
		const node = el("details", { class: "think" }, el("summary", null, title), thought);
		let touched = false;
		node.querySelector("summary").addEventListener("click", () => { touched = true; });
		return {
			node,
			refresh(live) {
				const thinking = live && !m.content && !(m.tool_calls || []).length;
				const took = m.figures && m.figures.thought;
				title.data = thinking ? "Thinking" : !took ? "Thoughts" :
					took < 100 ? "Thought briefly" : "Thought for " + formatSeconds(took);
				if (thought.textContent.length !== m.reasoning.length) {
					const hidden = thought.scrollHeight - thought.scrollTop - thought.clientHeight;
					thought.textContent = m.reasoning;
					if (hidden < 30)
						thought.scrollTop = thought.scrollHeight;
				}
				if (!touched && node.open !== thinking)
					node.open = thinking;
			},
		};
	}

	function callView(call, chat, m) {
		let args = call.arguments;
		try {
			args = JSON.stringify(JSON.parse(args), null, 2);
		} catch { /* not whole yet */ }
		const node = el("div", { class: "call" },
			el("header", null, "call", el("b", null, call.name)),
			el("pre", { tabindex: "0" }, args));
		const shown = tree.path(chat), after = shown.slice(shown.indexOf(m) + 1);
		const result = after.find((r) => r.role === "tool" && r.tool_call_id === call.id);
		if (result) {
			node.append(el("pre", { class: "done", tabindex: "0" }, result.content));
		} else if (!m.tools_offered) {
			node.append(el("p", { class: "note" }, "The settings name no tool of this kind."));
		} else if (!answers.runOf(chat) && after.every((r) => r.role === "tool")) {
			const area = el("textarea", {
				rows: "1",
				"aria-label": "Result of " + call.name,
				placeholder: "What did it return?"
			});
			const onsubmit = (e) => {
				e.preventDefault();
				conversation.answerCall(chat, m, call, area.value);
			};
			node.append(el("form", { class: "result", onsubmit }, area,
				el("button", { type: "submit", class: "primary" }, "Return")));
		}
		return node;
	}

	function timeLeft(seconds) {
		return seconds < 100 ? seconds + " s" : Math.round(seconds / 60) + " min";
	}

	/* Before the first token: how far the prompt has been read, if the server says so. */
	function drawWaiting(box, run) {
		const p = run.progress;
		const key = p ? "p" + p.done + "/" + p.total + "/" + p.left : run.note || "";
		if (box.dataset.key === key && box.firstChild)
			return;
		box.dataset.key = key;
		box.replaceChildren(
			el("span", { class: "pulse", "aria-hidden": "true" }, el("i"), el("i"), el("i")),
			p ? "Reading " + p.total + " tokens" + (p.left ? ", " + timeLeft(p.left) + " left" : "")
				: run.note || "");
		if (p) {
			const bar = el("progress", { max: p.total, "aria-label": "Prompt read" });
			bar.value = p.done;
			box.append(bar);
		}
	}

	function answerRow(chat, m, isLast) {
		const again = () => conversation.again(chat, m);
		const on = () => answers.start(chat, m.parent, m);
		const cut = m.stopped || m.error;
		return [
			versionPicker(chat, m),
			isLast && cut && m.content && changeButton("Continue", SHAPE.go, on),
			m.content && copyButton(() => m.content),
			changeButton("Again", SHAPE.again, again),
			removeButton(chat, m),
			el("span", { class: "figures" }, figures(m))
		].filter((x) => x);
	}

	function faultView(m) {
		const ask = conversation.needsKey.has(m.id);
		return el("p", { class: "fault", role: "alert" }, m.error,
			ask && el("button", { type: "button", onclick: settings.open },
				"Enter the key in the settings"));
	}

	function answerView(chat, m) {
		const text = el("div", { class: "text" }), calls = el("div"),
			  row = el("div", { class: "tools-row" }), wait = el("div", { class: "waiting" });
		const node = el("article", { class: "turn assistant", "aria-label": "Answer" },
			wait, text, calls, row);
		let think = null, drawn = "";
		const refresh = () => {
			const run = answers.runOf(chat), live = run && run.message === m;
			if (m.reasoning && !think) {
				think = thinkView(m);
				node.insertBefore(think.node, text);
			}
			if (think)
				think.refresh(live);
			wait.hidden = !live || !!(m.content || m.reasoning || (m.tool_calls || []).length);
			if (!wait.hidden)
				drawWaiting(wait, run);
			markup.render(text, m.content, live);
			const shown = tree.path(chat);
			const size = [JSON.stringify(m.tool_calls || []).length, live, shown.length].join(" ");
			if (size !== drawn) {
				calls.replaceChildren(...(m.tool_calls || []).map((c) => callView(c, chat, m)));
				drawn = size;
			}
			const fault = node.querySelector(".fault");
			if (fault)
				fault.remove();
			node.setAttribute("aria-busy", live ? "true" : "false");
			row.hidden = !!live;
			if (live)
				return;
			const isLast = shown.slice(shown.indexOf(m) + 1).every((r) => r.role === "tool");
			row.replaceChildren(...answerRow(chat, m, isLast));
			if (m.error)
				node.insertBefore(faultView(m), row);
		};
		return { node, refresh, message: m };
	}

	function make(chat, m) {
		if (m.role === "user")
			return userView(chat, m);
		return m.role === "assistant" ? answerView(chat, m) : null;
	}
	return { make };
})();
