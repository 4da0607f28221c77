/* SPDX-License-Identifier: MIT */
/*
 * Asks /v1/chat/completions and writes the stream into a message. A conversation has one answer at
 * a time, several conversations may each have one. Closing the connection ends the answer on the
 * server.
 */
const answers = (() => {
	const LONG_MS = 2000; /* a prompt that is read so long shows progress */
	const RATE_MS = 200; /* a rate of less time is not shown */
	const SAVE_MS = 3000; /* a page that is closed while it writes loses at most this much */
	const runs = new Map(); /* id of a conversation: {controller, message, progress, note} */

	function runOf(chat) {
		return runs.get(chat.id);
	}

	function toApi(m) {
		if (m.role === "tool")
			return { role: "tool", tool_call_id: m.tool_call_id, content: m.content };
		if (m.role === "user")
			return { role: "user", content: transfer.withFiles(m) };
		const out = { role: "assistant", content: m.content };
		if (m.reasoning)
			out.reasoning_content = m.reasoning;
		if ((m.tool_calls || []).length)
			out.tool_calls = m.tool_calls.map((c) => ({
				id: c.id,
				type: "function",
				function: { name: c.name, arguments: c.arguments }
			}));
		return out;
	}

	/* `list`: the messages to answer. When the last one is the assistant's, the answer goes on
	 * from it. Throws when the tools in the settings are no JSON. */
	function requestBody(list) {
		const isSaid = (m) => m.role !== "assistant" || m.content || (m.tool_calls || []).length;
		const said = list.filter(isSaid);
		const system = settings.text("system");
		const body = {
			model: expertPanel.model() || "default",
			messages: [...system ? [{ role: "system", content: system }] : [], ...said.map(toApi)],
			stream: true,
			return_progress: true,
			stream_options: { include_usage: true }
		};
		for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"])
			body[name] = settings.number(name);
		const think = settings.text("think");
		if (think)
			body.reasoning_effort = think === "off" ? "none" : think;
		if (settings.text("tools"))
			body.tools = JSON.parse(settings.text("tools"));
		return body;
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
			const details = chunk.usage.prompt_tokens_details;
			times.tokens = chunk.usage.completion_tokens;
			m.figures.prompt = chunk.usage.prompt_tokens;
			m.figures.cached = details && details.cached_tokens || 0;
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
			const at = c.index || 0;
			m.tool_calls = m.tool_calls || [];
			const call = m.tool_calls[at] = m.tool_calls[at] || { id: "", name: "", arguments: "" };
			call.id = c.id || call.id;
			call.name += c.function && c.function.name || "";
			call.arguments += c.function && c.function.arguments || "";
		}
		if (choice.finish_reason === "length")
			m.stopped = true;
	}

	/* The server's sentences begin with a small letter and have no full stop, as in a log. */
	function asSentence(text) {
		const t = String(text).trim();
		return t && t[0].toUpperCase() + t.slice(1) + (/[.!?]$/.test(t) ? "" : ".");
	}

	async function errorText(response) {
		let text = "";
		try {
			text = asSentence((await response.json()).error.message);
		} catch { /* not ours */ }
		if (text)
			return text;
		return response.status === 503 || response.status === 429
			? "The server is busy; try again in a moment."
			: "The server answered " + response.status + ".";
	}

	/* How far the prompt has been read: shown once it is clear that it takes longer than two
	 * seconds. Cached tokens cost nothing and do not count. */
	function showProgress(run, p) {
		const total = p.total - p.cache, done = p.processed - p.cache;
		const left = done > 0 && p.time_ms > RATE_MS ? p.time_ms * (total - done) / done : 0;
		run.note = "";
		run.progress = done < total && p.time_ms + left > LONG_MS
			? { done, total, left: Math.ceil(left / 1000) } : null;
	}

	/* Keep-alive comments say that the answer waits for a session. */
	function showComment(run, comment) {
		run.note = /^waiting/.test(comment) ? "Waiting for a free session" : "";
	}

	function finishFigures(m, times, start) {
		if (times.first) {
			const n = times.tokens || times.chunks;
			m.figures.first = times.first - start;
			if (n > 1 && times.last > times.first)
				m.figures.speed = (n - 1) / (times.last - times.first) * 1000;
			m.figures.tokens = (times.before || 0) + n;
		}
		if (m.reasoning && !m.figures.thought && times.first)
			m.figures.thought = times.last - times.first;
	}

	/* Streams into the message of `run`; throws what is to be shown as its error. */
	async function stream(run, request, times) {
		const m = run.message;
		const response = await fetch("v1/chat/completions", {
			method: "POST",
			signal: run.controller.signal,
			headers: { "Content-Type": "application/json", ...settings.headers() },
			body: request
		});
		run.needsKey = response.status === 401;
		if (!response.ok)
			throw new Error(await errorText(response));
		let saved = performance.now();
		for await (const event of readEvents(response)) {
			if (event.data === "[DONE]")
				break;
			const chunk = event.data && JSON.parse(event.data);
			if (chunk)
				applyChunk(m, chunk, times);
			if (chunk && chunk.prompt_progress)
				showProgress(run, chunk.prompt_progress);
			else if (!chunk)
				showComment(run, event.comment);
			conversation.refresh(m);
			if (performance.now() - saved > SAVE_MS) {
				saved = performance.now();
				store.save(run.chat, true);
			}
		}
	}

	/* Writes an answer below the message `parent` of the conversation, or goes on with `cut`. */
	async function start(chat, parent, cut) {
		if (runs.has(chat.id))
			return;
		const m = cut || tree.add(chat, parent, { role: "assistant", content: "", figures: {} });
		const controller = new AbortController();
		const run = { chat, controller, message: m, progress: null, note: "" };
		runs.set(chat.id, run); /* before anything is awaited: a second call does nothing */
		const begun = performance.now();
		const times = { first: 0, last: 0, chunks: 0, tokens: 0,
			before: cut && m.figures && m.figures.tokens || 0 };
		delete m.error;
		delete m.stopped;
		m.figures = m.figures || {};
		store.save(chat);
		conversation.draw(chat);
		chats.draw();
		try {
			if (!expertPanel.model())
				await expertPanel.poll();
			const list = tree.path(chat), end = list.indexOf(m) + (cut ? 1 : 0);
			let body;
			try {
				body = requestBody(list.slice(0, end));
			} catch {
				throw new Error("The tools in the settings are no JSON array.");
			}
			if (body.tools)
				m.tools_offered = true;
			expertPanel.poll();
			await stream(run, JSON.stringify(body), times);
		} catch (e) {
			if (e.name === "AbortError")
				m.stopped = true;
			else if (e instanceof TypeError)
				m.error = "The connection to the server was lost.";
			else
				m.error = e.message;
		}
		finishFigures(m, times, begun);
		runs.delete(chat.id);
		if (run.needsKey)
			conversation.needsKey.add(m.id);
		chat.updated = Date.now();
		store.save(chat);
		chats.draw();
		conversation.finished(chat, m);
	}

	function stop(chat) {
		if (runs.has(chat.id))
			runs.get(chat.id).controller.abort();
	}

	function saveAll() {
		runs.forEach((run) => store.save(run.chat));
	}
	return { start, stop, runOf, any: () => runs.size > 0, saveAll };
})();
