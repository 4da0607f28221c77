/* SPDX-License-Identifier: MIT */
/*
 * The chat: a list of messages kept in this browser, drawn once each, the last one drawn again
 * while it is written. One answer at a time; it is streamed from /v1/chat/completions and stopped
 * by closing the connection.
 */
(() => {
	const $ = (id) => document.getElementById(id);
	const MESSAGES_KEY = "glmstream.chat", SETTINGS_KEY = "glmstream.settings";
	const EXAMPLES = ["Define river.", "What is the capital of France?", "Tell me a story about a fox named Ben."];
	const log = $("log"), input = $("input"), send = $("send");
	let messages = loadStored(MESSAGES_KEY, []).filter(isMessage),
		settings = loadStored(SETTINGS_KEY, {}), model = null, state = null;
	let running = null; /* {controller, message, view} while an answer is written */
	let follow = true; /* the newest text stays in sight */

	function loadStored(key, fallback) {
		try {
			const value = JSON.parse(localStorage.getItem(key));
			return Array.isArray(value) === Array.isArray(fallback) && value && typeof value === "object" ? value : fallback;
		} catch {
			return fallback;
		}
	}

	function isMessage(m) {
		return m && ["user", "assistant", "tool"].includes(m.role) && typeof m.content === "string" &&
			(!m.reasoning || typeof m.reasoning === "string") && (!m.figures || typeof m.figures === "object") &&
			(!m.tool_calls || (Array.isArray(m.tool_calls) && m.tool_calls.every((c) => c && typeof c.name === "string")));
	}

	function saveConversation() {
		try {
			localStorage.setItem(MESSAGES_KEY, JSON.stringify(messages));
			localStorage.setItem(SETTINGS_KEY, JSON.stringify(settings));
		} catch { /* full, or forbidden: the conversation lives as long as the page */ }
	}

	function headers() {
		return settings.key ? { Authorization: "Bearer " + settings.key } : {};
	}

	function setStatusText(text) {
		$("live-status").textContent = text;
	}

	/* ---- drawing ---- */
	function seconds(ms) {
		return ms < 9950 ? (ms / 1000).toFixed(1) + " s" : Math.round(ms / 1000) + " s";
	}

	function button(label, shape, onclick) {
		return el("button", { type: "button", class: "quiet", title: label, onclick }, icon(...shape), label);
	}

	function figures(m) {
		const f = m.figures;
		if (!f)
			return "";
		const parts = [];
		if (f.tokens)
			parts.push(f.tokens + (f.tokens === 1 ? " token" : " tokens"));
		if (f.speed)
			parts.push(f.speed.toFixed(1) + " tok/s");
		if (f.first)
			parts.push("first after " + seconds(f.first));
		if (f.prompt)
			parts.push("prompt " + f.prompt + (f.cached ? ", " + f.cached + " of it cached" : ""));
		return parts.join(" · ");
	}

	/* One message as an element with refresh(): draws what has changed in it. */
	function messageView(m, index) {
		if (m.role === "user")
			return userView(m, index);
		return m.role === "assistant" ? answerView(m, index) : { node: el("span", { hidden: true }) };
	}

	function userView(m, index) {
		const long = m.content.length > 1500;
		const bubble = el("div", { class: long ? "bubble long" : "bubble", tabindex: long ? "0" : null }, m.content);
		const node = el("article", { class: "turn user", "aria-label": "You" }, bubble,
			el("div", { class: "tools-row" },
				button("Edit", ["M4 20h4L19 9l-4-4L4 16z"], () => edit(node, m, index)), copyButton(() => m.content)));
		return { node, refresh() {} };
	}

	function edit(node, m, index) {
		if (running)
			return;
		const area = el("textarea", { "aria-label": "Edit the message" });
		area.value = m.content;
		const done = () => {
			const text = area.value.trim();
			if (text) {
				messages.length = index;
				draw();
				sendMessage(text);
			}
		};
		node.replaceChildren(el("form", { class: "edit", onsubmit: (e) => { e.preventDefault(); done(); } }, area,
			el("div", { class: "actions" }, el("button", { type: "button", class: "second", onclick: draw }, "Cancel"),
				el("button", { type: "submit", class: "primary" }, "Send"))));
		area.addEventListener("keydown", (e) => {
			if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
				e.preventDefault();
				done();
			} else if (e.key === "Escape") {
				e.stopPropagation();
				draw();
			}
		});
		area.focus();
	}

	function thinkView(m) {
		const title = document.createTextNode(""), thought = el("div", { class: "thought", tabindex: "0" });
		const node = el("details", { class: "think" }, el("summary", null, title), thought);
		let touched = false;
		node.querySelector("summary").addEventListener("click", () => { touched = true; });
		return {
			node,
			refresh(live) {
				const thinking = live && !m.content && !(m.tool_calls || []).length;
				title.data = thinking ? "Thinking" : !m.figures || !m.figures.thought ? "Thoughts" :
					m.figures.thought < 100 ? "Thought briefly" : "Thought for " + seconds(m.figures.thought);
				if (thought.textContent.length !== m.reasoning.length) {
					const low = thought.scrollHeight - thought.scrollTop - thought.clientHeight < 30;
					thought.textContent = m.reasoning;
					if (low)
						thought.scrollTop = thought.scrollHeight;
				}
				if (!touched && node.open !== thinking)
					node.open = thinking;
			},
		};
	}

	function callView(call, m, index) {
		let args = call.arguments;
		try {
			args = JSON.stringify(JSON.parse(args), null, 2);
		} catch { /* not whole yet */ }
		const node = el("div", { class: "call" },
			el("header", null, "call", el("b", null, call.name)), el("pre", null, args));
		const result = messages.slice(index + 1).find((r) => r.role === "tool" && r.tool_call_id === call.id);
		if (result) {
			node.append(el("pre", { class: "done" }, result.content));
		} else if (!running && messages.slice(index + 1).every((r) => r.role === "tool")) {
			const area = el("textarea", {
				rows: "1",
				"aria-label": "Result of " + call.name,
				placeholder: "What did it return?"
			});
			const onsubmit = (e) => {
				e.preventDefault();
				answerCall(m, call, area.value);
			};
			node.append(el("form", { class: "result", onsubmit }, area,
				el("button", { type: "submit", class: "primary" }, "Return")));
		}
		return node;
	}

	function answerCall(m, call, text) {
		messages.push({ role: "tool", tool_call_id: call.id, content: text });
		saveConversation();
		draw();
		if (m.tool_calls.every((c) => messages.some((r) => r.role === "tool" && r.tool_call_id === c.id)))
			requestAnswer();
	}

	function answerView(m, index) {
		const text = el("div", { class: "text" }), calls = el("div"),
			  row = el("div", { class: "tools-row" }), wait = el("div", { class: "waiting" });
		const node = el("article", { class: "turn assistant", "aria-label": "Answer" }, wait, text, calls, row);
		let think = null, drawn = 0;
		return {
			node,
			refresh() {
				const live = running && running.message === m;
				if (m.reasoning && !think) {
					think = thinkView(m);
					node.insertBefore(think.node, text);
				}
				if (think)
					think.refresh(live);
				const empty = !m.content && !m.reasoning && !(m.tool_calls || []).length;
				wait.hidden = !(live && empty);
				if (!wait.hidden)
					drawWaiting(wait);
				markdown.render(text, m.content);
				const size = JSON.stringify(m.tool_calls || []).length + (live ? 0.5 : 0);
				if (size !== drawn) {
					calls.replaceChildren(...(m.tool_calls || []).map((c) => callView(c, m, index)));
					drawn = size;
				}
				node.setAttribute("aria-busy", live ? "true" : "false");
				if (live)
					return;
				const last = messages.slice(index + 1).every((r) => r.role === "tool");
				row.replaceChildren(...[m.content && copyButton(() => m.content),
					last && button("Again", ["M4 12a8 8 0 1 0 3-6.2", "M4 4v4h4"], () => regenerate(index)),
					el("span", { class: "figures" }, (m.stopped ? "stopped · " : "") + figures(m))].filter((x) => x));
				if (m.error && !node.querySelector(".fault"))
					node.insertBefore(el("p", { class: "fault", role: "alert" }, m.error,
						...(m.needsKey ? [" ", el("button", { type: "button", onclick: openSettings }, "Enter the key in the settings")] : [])), row);
			},
		};
	}

	/* Before the first token: how far the prompt has been read, if the server says so. */
	function drawWaiting(box) {
		const p = running && running.progress;
		const key = p ? "p" + p.done + "/" + p.total : running && running.note || "";
		if (box.dataset.key === key && box.firstChild)
			return;
		box.dataset.key = key;
		box.replaceChildren(el("span", { class: "pulse", "aria-hidden": "true" }, el("i"), el("i"), el("i")),
			p ? "Reading " + p.total + " tokens" : running && running.note || "");
		if (p) {
			const bar = el("progress", { max: p.total, "aria-label": "Prompt read" });
			bar.value = p.done;
			box.append(bar);
		}
	}

	let views = [];
	function draw() {
		views = messages.map(messageView);
		if (messages.length) {
			log.replaceChildren(...views.map((v) => v.node));
			views.forEach((v) => v.refresh && v.refresh());
		} else {
			log.replaceChildren(
				el("div", { class: "hello" }, el("h2", null, "What would you like to know?"),
					el("p", null, "The answer is written by the machine beside it."),
					el("div", { class: "chips" },
						...EXAMPLES.map(
							(t) => el("button",
								{ type: "button", class: "chip", onclick: () => sendMessage(t) },
								t)))));
		}
		toEnd();
		controls();
	}

	function controls() {
		send.toggleAttribute("data-stops", !!running);
		send.setAttribute("aria-label", running ? "Stop" : "Send");
		send.disabled = !running && !input.value.trim();
	}

	function toEnd() {
		if (follow)
			log.scrollTop = log.scrollHeight;
		$("to-end").hidden = follow;
	}

	/* ---- asking ---- */
	function sendMessage(text) {
		if (running || !text.trim())
			return;
		messages.push({ role: "user", content: text.trim() });
		follow = true;
		requestAnswer();
	}

	function regenerate(index) {
		if (running)
			return;
		messages.length = index;
		follow = true;
		requestAnswer();
	}

	function numericSetting(name) {
		const v = parseFloat(settings[name]);
		return Number.isFinite(v) ? v : undefined;
	}

	function requestBody() {
		const list = settings.system ? [{ role: "system", content: settings.system }] : [];
		for (const m of messages) {
			if (m.role !== "assistant") {
				list.push(m);
			} else if (m.content || (m.tool_calls || []).length) {
				const out = { role: "assistant", content: m.content };
				if (m.reasoning)
					out.reasoning_content = m.reasoning;
				if ((m.tool_calls || []).length)
					out.tool_calls = m.tool_calls.map((c) => ({
						id: c.id,
						type: "function",
						function: { name: c.name, arguments: c.arguments }
					}));
				list.push(out);
			}
		}
		const b = {
			model: model || "default",
			messages: list,
			stream: true,
			stream_options: { include_usage: true },
			temperature: numericSetting("temperature"),
			top_p: numericSetting("top_p"),
			max_tokens: numericSetting("max_tokens"),
			seed: numericSetting("seed")
		};
		if (settings.think)
			b.reasoning_effort = settings.think === "off" ? "none" : settings.think;
		if (settings.tools)
			b.tools = JSON.parse(settings.tools);
		return b;
	}

	/* Events of a text/event-stream body: {data} or {comment}. Lines end in LF or CRLF, and come in
	 * any pieces. */
	async function* readEvents(response) {
		const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
		let rest = "";
		for (;;) {
			const { value, done } = await reader.read();
			rest += value || "";
			const lines = rest.split("\n");
			rest = done ? "" : lines.pop();
			for (const line of lines) {
				const l = line.replace(/\r$/, "");
				if (l.startsWith("data:"))
					yield { data: l.slice(5).trim() };
				else if (l.startsWith(":"))
					yield { comment: l.slice(1).trim() };
			}
			if (done)
				return;
		}
	}

	/* One chunk of the stream into the message. */
	function applyChunk(m, chunk, times) {
		if (chunk.error)
			throw new Error(asSentence(chunk.error.message || "the server reports an error"));
		if (chunk.usage) {
			m.figures.tokens = chunk.usage.completion_tokens;
			m.figures.prompt = chunk.usage.prompt_tokens;
			m.figures.cached = chunk.usage.prompt_tokens_details && chunk.usage.prompt_tokens_details.cached_tokens || 0;
		}
		const choice = (chunk.choices || [])[0];
		if (!choice)
			return;
		const d = choice.delta || {}, now = performance.now();
		if (d.content || d.reasoning_content || d.tool_calls) {
			times.first = times.first || now;
			times.last = now;
			times.chunks++;
		}
		if (d.reasoning_content)
			m.reasoning = (m.reasoning || "") + d.reasoning_content;
		if ((d.content || d.tool_calls) && m.reasoning && !m.figures.thought)
			m.figures.thought = now - times.first;
		if (d.content)
			m.content += d.content;
		for (const c of d.tool_calls || []) {
			m.tool_calls = m.tool_calls || [];
			const call = m.tool_calls[c.index || 0] = m.tool_calls[c.index || 0] || { id: "", name: "", arguments: "" };
			call.id = c.id || call.id;
			call.name += c.function && c.function.name || "";
			call.arguments += c.function && c.function.arguments || "";
		}
		if (choice.finish_reason === "length")
			m.stopped = true;
	}

	/* The server's sentences begin small and end bare, as the lines of a log do. */
	function asSentence(text) {
		const t = String(text).trim();
		return t && t[0].toUpperCase() + t.slice(1) + (/[.!?]$/.test(t) ? "" : ".");
	}

	async function errorText(response) {
		let text = "";
		try {
			text = asSentence((await response.json()).error.message);
		} catch { /* not ours */ }
		return text || (response.status === 503 || response.status === 429 ? "The server is busy; try again in a moment." :
			"The server answered " + response.status + ".");
	}

	async function requestAnswer() {
		const m = { role: "assistant", content: "", figures: {} };
		const controller = new AbortController(), start = performance.now(), times = { first: 0, last: 0, chunks: 0 };
		let request;
		if (!model)
			await expertPanel.poll();
		try {
			request = JSON.stringify(requestBody());
		} catch {
			request = null;
		}
		messages.push(m);
		const thisRun = running = { controller, message: m, progress: null, note: "" };
		draw();
		expertPanel.poll();
		const v = views[views.length - 1];
		let frame = 0;
		const scheduleRefresh = () => {
			if (!frame)
				frame = requestAnimationFrame(() => { frame = 0; v.refresh(); toEnd(); });
		};
		try {
			if (!request)
				throw new Error("The tools in the settings are no JSON array.");
			const response = await fetch("v1/chat/completions", { method: "POST", signal: controller.signal,
				headers: { "Content-Type": "application/json", ...headers() }, body: request });
			m.needsKey = response.status === 401 || undefined;
			if (!response.ok)
				throw new Error(await errorText(response));
			for await (const event of readEvents(response)) {
				if (event.data === "[DONE]" || running !== thisRun)
					break;
				if (event.data)
					applyChunk(m, JSON.parse(event.data), times);
				else
					showProgress(event.comment);
				scheduleRefresh();
			}
		} catch (e) {
			if (e.name === "AbortError")
				m.stopped = true;
			else
				m.error = e instanceof TypeError ? "The connection to the server was lost." : e.message;
		}
		cancelAnimationFrame(frame);
		if (running !== thisRun) /* a new chat was begun meanwhile */
			return;
		if (times.first) {
			m.figures.first = times.first - start;
			const n = m.figures.tokens || times.chunks;
			if (n > 1 && times.last > times.first)
				m.figures.speed = (n - 1) / (times.last - times.first) * 1000;
		}
		if (m.reasoning && !m.figures.thought && times.first)
			m.figures.thought = times.last - times.first;
		running = null;
		saveConversation();
		v.refresh();
		toEnd();
		controls();
		setStatusText(m.error ? "The answer failed." : m.stopped ? "The answer was stopped." : "The answer is complete.");
		if (matchMedia("(hover: hover)").matches &&
			(document.activeElement === document.body || document.activeElement === send))
			input.focus();
	}

	/* Keep-alive comments of a long prefill may say how far it is. */
	function showProgress(comment) {
		const m = /(\d+)\s*(?:of|\/)\s*(\d+)/.exec(comment || "");
		if (running) {
			running.progress = m && { done: +m[1], total: +m[2] };
			running.note = /^waiting/.test(comment) ? "Waiting for a free session" : "";
		}
	}

	function stopAnswer() {
		if (running)
			running.controller.abort();
	}

	/* ---- the message field ---- */
	function resizeInput() {
		input.style.height = "auto";
		input.style.height = Math.min(input.scrollHeight, innerHeight * 0.4) + "px";
		controls();
	}

	input.addEventListener("input", resizeInput);
	input.addEventListener("keydown", (e) => {
		if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
			e.preventDefault();
			if (!running)
				$("form").requestSubmit();
		}
	});
	$("form").addEventListener("submit", (e) => {
		e.preventDefault();
		if (running) {
			stopAnswer();
			return;
		}
		const text = input.value;
		if (!text.trim())
			return;
		input.value = "";
		resizeInput();
		sendMessage(text);
	});
	document.addEventListener("keydown", (e) => {
		if (e.key === "Escape" && running && !$("settings").open)
			stopAnswer();
	});
	log.addEventListener("scroll", () => {
		follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
		$("to-end").hidden = follow;
	}, { passive: true });
	$("to-end").addEventListener("click", () => { follow = true; toEnd(); });
	$("new-chat").addEventListener("click", () => {
		stopAnswer();
		messages = [];
		running = null;
		saveConversation();
		draw();
		input.focus();
	});

	/* ---- settings ---- */
	const FIELDS = ["think", "temperature", "top_p", "max_tokens", "seed", "system", "tools", "key"];
	function openSettings() {
		for (const f of FIELDS)
			$("set-" + f).value = settings[f] || "";
		$("tools-fault").hidden = true;
		$("settings").showModal();
	}
	$("open-settings").addEventListener("click", openSettings);
	$("settings").querySelector("form").addEventListener("submit", (e) => {
		const tools = $("set-tools").value.trim();
		let fault = "";
		try {
			if (tools && !Array.isArray(JSON.parse(tools)))
				fault = "An array is expected: [ ... ]";
		} catch (error) {
			fault = "This is no JSON: " + error.message;
		}
		if (fault) {
			e.preventDefault();
			$("tools-fault").textContent = fault;
			$("tools-fault").hidden = false;
			$("set-tools").closest("details").open = true;
		}
	});
	$("settings").addEventListener("close", () => {
		for (const f of FIELDS)
			settings[f] = $("set-" + f).value.trim();
		saveConversation();
		expertPanel.poll();
	});

	/* ---- how the server stands ---- */
	function onServerState(event) {
		const texts = {
			ready: "ready",
			busy: "working",
			lost: "no connection",
			key: "needs an API key",
			failing: "the last step failed"
		};
		$("status").dataset.kind = ["key", "failing"].includes(event.kind) ? "lost" : event.kind;
		$("status-text").textContent = (event.state ? event.state.model + " · " : "") + texts[event.kind];
		if (event.state) {
			state = event.state;
			model = state.model;
			document.title = model + " · glmstream";
		}
	}

	addEventListener("pagehide", () => { if (running) saveConversation(); });
	expertPanel.start({ listener: onServerState, headers, busy: () => !!running });
	draw();
	resizeInput();
	if (matchMedia("(hover: hover)").matches)
		input.focus();
})();
