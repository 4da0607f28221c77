/* SPDX-License-Identifier: MIT */
/*
 * The panel beside the chat: where the experts are, rates of the last minute, memory and work. It
 * polls /v1/glmstream/state a few times a second while the page is visible. The map has one row for
 * each MoE layer and one cell for each expert; a cell that has just come into the first tier glows
 * for GLOW_MS. A line divides the layers of two stages.
 */
const expertPanel = (() => {
	const RESIDENCY = { NONE: 0, DISK: 1, RAM: 2, READING: 3, VRAM: 4 };
	const GLOW_MS = 1400, FRAME_MS = 30, SPAN_MS = 60000, GUTTER = 26;
	const background = document.createElement("canvas");
	const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
	let colours = {};
	let snapshot = null; /* the server's last state, as normalise() gives it */
	let lastSample = null; /* the snapshot that the charts' last point was made of */
	let rows = []; /* the layers that have experts, top to bottom */
	let glowMs = null; /* for each cell, how long it still glows */
	let animating = 0, lastFrame = 0, backgroundStale = true;
	let timer = 0, failures = 0, listener = () => {}, headers = () => ({}), busy = () => false;
	const series = { speed: [], hits: [], read: [] };

	/* ---- colours, read from the style sheet so that both themes are there ---- */
	function readColours() {
		const style = getComputedStyle(document.documentElement);
		const names = ["vram", "ram", "reading", "disk", "glow", "accent", "faint", "line", "soft"];
		for (const name of names)
			colours[name] = style.getPropertyValue("--" + name).trim();
	}

	function mixColours(a, b, t) {
		const at = (c, i) => parseInt(c.slice(1 + 2 * i, 3 + 2 * i), 16);
		const mixed = [0, 1, 2].map((i) => Math.round(at(a, i) + (at(b, i) - at(a, i)) * t));
		return "rgb(" + mixed.join(" ") + ")";
	}

	function fitCanvas(canvas, height) {
		const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
		if (height)
			canvas.style.height = height + "px";
		const w = Math.round(width * ratio), h = Math.round(canvas.clientHeight * ratio);
		if (canvas.width !== w || canvas.height !== h) {
			canvas.width = w;
			canvas.height = h;
		}
		const g = canvas.getContext("2d");
		g.setTransform(ratio, 0, 0, ratio, 0, 0);
		return g;
	}

	/* ---- the map ---- */
	function mapGeometry() {
		const width = byId("map").clientWidth - GUTTER, n = snapshot.n_experts;
		const ratio = devicePixelRatio || 1;
		const ideal = Math.round(300 / Math.max(rows.length, 1) * ratio) / ratio;
		const high = Math.max(3, Math.min(18, ideal));
		return { x: GUTTER, w: width / n, h: high, rounded: Math.min(width / n, high) >= 5 };
	}

	/* The number of the stage that has a layer; the MTP layer lies on the last one. */
	function stageOf(layer) {
		const i = snapshot.stages.findIndex((s) => layer < s.end);
		return i < 0 ? snapshot.stages.length - 1 : i;
	}

	/* Where a layer lies, if there are several places: " (stage 1, card 0)". */
	function placeOf(layer) {
		const stages = snapshot.stages;
		if (stages.length < 2)
			return "";
		const i = stageOf(layer), s = stages[i];
		const rank = stages.some((other) => other.rank) ? ", rank " + s.rank : "";
		return " (stage " + i + rank + ", card " + s.card + ")";
	}

	/* Adds a cell to the path. Small ones end where pixels do. */
	function addCell(g, s, r, x) {
		if (s.rounded) {
			g.roundRect(s.x + x * s.w, r * s.h, s.w - 1.5, s.h - 1.5, Math.min(2.5, s.w / 4));
			return;
		}
		const ratio = devicePixelRatio || 1, snap = (v) => Math.round(v * ratio) / ratio,
			  left = snap(s.x + x * s.w), top = snap(r * s.h);
		const gap = s.h >= 3 ? 1 / ratio : 0;
		g.rect(left, top, snap(s.x + (x + 1) * s.w) - left, snap((r + 1) * s.h) - top - gap);
	}

	/* Draws the cells that do not glow on a canvas of their own, because a large model has twenty
	 * thousand: a frame of the animation then copies one image. */
	function drawBackground(s, width, height) {
		const ratio = devicePixelRatio || 1, n = snapshot.n_experts;
		const g = background.getContext("2d");
		background.width = width;
		background.height = height;
		g.scale(ratio, ratio);
		g.font = "10px system-ui, sans-serif";
		g.textBaseline = "middle";
		g.textAlign = "right";
		g.fillStyle = colours.faint;
		const every = s.h >= 11 ? 1 : 5 * Math.ceil(11 / s.h / 5 + 0.5), tall = s.h * rows.length;
		rows.forEach((layer, r) => {
			const mtp = layer >= snapshot.n_layers - snapshot.n_mtp;
			if (every === 1 || mtp || (layer % every === 0 && r + 3 < rows.length))
				g.fillText(mtp ? "MTP" : layer, GUTTER - 5,
					Math.max(6, Math.min(s.h * (r + 0.5), tall - 6)));
		});
		const fills = [
			[RESIDENCY.DISK, colours.disk], [RESIDENCY.RAM, colours.ram],
			[RESIDENCY.READING, colours.reading], [RESIDENCY.VRAM, colours.vram],
		];
		for (const [residency, colour] of fills) {
			g.beginPath();
			for (let r = 0; r < rows.length; r++)
				for (let x = 0, at = rows[r] * n; x < n; x++, at++)
					if (snapshot.map[at] === residency)
						addCell(g, s, r, x);
			g.fillStyle = colour;
			g.fill();
		}
		g.fillStyle = colours.accent;
		for (let r = 1; r < rows.length; r++)
			if (stageOf(rows[r]) !== stageOf(rows[r - 1]))
				g.fillRect(0, Math.round(s.h * r * ratio) / ratio - 1, width / ratio, 1);
	}

	/* Returns whether anything glows. */
	function drawMap(elapsed) {
		const map = byId("map"), n = snapshot && snapshot.n_experts;
		if (!snapshot || !rows.length || !map.clientWidth)
			return false;
		const s = mapGeometry(), g = fitCanvas(map, Math.ceil(s.h * rows.length));
		if (backgroundStale || background.width !== map.width || background.height !== map.height)
			drawBackground(s, map.width, map.height);
		backgroundStale = false;
		g.setTransform(1, 0, 0, 1, 0, 0);
		g.clearRect(0, 0, map.width, map.height);
		g.drawImage(background, 0, 0);
		g.scale(devicePixelRatio || 1, devicePixelRatio || 1);
		let glowing = false;
		for (let r = 0; r < rows.length; r++)
			for (let x = 0, at = rows[r] * n; x < n; x++, at++) {
				if (!(glowMs[at] > 0))
					continue;
				if (snapshot.map[at] === RESIDENCY.VRAM) {
					const t = glowMs[at] / GLOW_MS;
					g.beginPath();
					addCell(g, s, r, x);
					if (t > 0.65)
						g.fillStyle = colours.reading;
					else if (t > 0.58)
						g.fillStyle = mixColours(colours.glow, colours.reading, (t - 0.58) / 0.07);
					else
						g.fillStyle = mixColours(colours.vram, colours.glow, t / 0.58);
					g.fill();
				}
				glowMs[at] -= elapsed;
				glowing = true;
			}
		return glowing;
	}

	function animate(now) {
		animating = 0;
		const elapsed = lastFrame ? now - lastFrame : FRAME_MS;
		if (!backgroundStale && elapsed < FRAME_MS) {
			animating = requestAnimationFrame(animate);
			return;
		}
		lastFrame = now;
		if (drawMap(elapsed) && !document.hidden)
			animating = requestAnimationFrame(animate);
		else
			lastFrame = 0;
	}

	function redraw() {
		backgroundStale = true;
		if (!animating)
			animating = requestAnimationFrame(animate);
	}

	/* ---- small charts ---- */
	/* points: {t, v} by time; v null: nothing to say then. */
	function drawChart(id, points, colour, top) {
		const canvas = byId(id);
		if (!canvas.clientWidth)
			return;
		const g = fitCanvas(canvas), w = canvas.clientWidth, h = canvas.clientHeight;
		const now = performance.now();
		g.clearRect(0, 0, w, h);
		const most = top || Math.max(...points.map((p) => p.v || 0), 1e-9) * 1.1;
		g.fillStyle = colours.line;
		g.fillRect(0, h - 1, w, 1);
		const x = (p) => w - (now - p.t) / SPAN_MS * w, y = (p) => h - 1.5 - p.v / most * (h - 5);
		/* one line for each run of points without a gap */
		for (let i = 0; i < points.length; i++) {
			if (points[i].v == null)
				continue;
			let end = i;
			while (end + 1 < points.length && points[end + 1].v != null)
				end++;
			g.beginPath();
			/* a point alone is a dash */
			g.moveTo(x(points[i]) - (end === i ? 3 : 0), y(points[i]));
			for (let k = i + 1; k <= end; k++)
				g.lineTo(x(points[k]), y(points[k]));
			if (end === i)
				g.lineTo(x(points[i]), y(points[i]));
			g.strokeStyle = colour;
			g.lineWidth = 1.6;
			g.lineJoin = g.lineCap = "round";
			g.stroke();
			g.lineTo(x(points[end]), h - 1);
			g.lineTo(x(points[i]) - (end === i ? 3 : 0), h - 1);
			g.closePath();
			g.globalAlpha = 0.12;
			g.fillStyle = colour;
			g.fill();
			g.globalAlpha = 1;
			i = end;
		}
	}

	function drawCharts() {
		drawChart("chart-speed", series.speed, colours.accent);
		drawChart("chart-hits", series.hits, colours.vram, 105);
		drawChart("chart-read", series.read, colours.reading);
	}

	/* ---- numbers ---- */
	function formatBytes(bytes) {
		if (bytes >= 1e9)
			return (bytes / 1e9).toFixed(bytes >= 99.5e9 ? 0 : 1) + " GB";
		return (bytes / 1e6).toFixed(bytes >= 99.5e6 ? 0 : 1) + " MB";
	}
	const formatCount = (n) => Math.round(n).toLocaleString("en").replace(/,/g, "\u2009");
	const formatRate = (v) => v >= 100 ? v.toFixed(0) : v.toFixed(v >= 10 ? 1 : v > 0 ? 2 : 0);

	function fillTerms(list, items) {
		list.replaceChildren(...items.filter((i) => i).flatMap(([name, value, colour]) => {
			const swatch = colour ? el("i") : null;
			if (swatch)
				swatch.style.background = colours[colour] || colour;
			return [el("dt", null, swatch, name), el("dd", null, value)];
		}));
	}

	function sessionTerm(s, i) {
		if (s.state === "reading")
			return ["Session " + (i + 1),
				"reading, " + formatCount(s.done) + " of " + formatCount(s.prompt)];
		if (s.state === "writing")
			return ["Session " + (i + 1), "writing, " + formatCount(s.new) + " tokens"];
		return null;
	}

	function showNumbers() {
		const first = snapshot.backend === "cpu" ? "cache" : "VRAM", n = [0, 0, 0, 0, 0];
		for (const residency of snapshot.map)
			n[residency]++;
		let legend = [["vram", "in memory", n[RESIDENCY.VRAM]]];
		if (snapshot.streaming)
			legend = [
				["vram", "in " + first, n[RESIDENCY.VRAM] - snapshot.justArrived],
				snapshot.tier_bytes[1] ? ["ram", "in RAM", n[RESIDENCY.RAM]] : null,
				["reading", "arriving", n[RESIDENCY.READING] + snapshot.justArrived],
				["disk", "on disk", n[RESIDENCY.DISK]],
			].filter((l) => l);
		byId("legend").replaceChildren(...legend.map(([colour, name, value]) => {
			const swatch = el("i");
			swatch.style.background = colours[colour];
			return el("li", null, swatch, name, el("b", null, formatCount(value)));
		}));
		byId("map").setAttribute("aria-label",
			"Map of experts: " + legend.map((l) => l[2] + " " + l[1]).join(", "));
		byId("map-note").hidden = snapshot.streaming;
		byId("map-note").textContent =
			"No expert cache: every expert stands where it is computed. " +
			"Start the server with --cache-gb to stream them.";
		byId("model").textContent = rows.length + " layers × " + snapshot.n_experts +
			" experts · " + (snapshot.backend === "cpu" ? "CPU" : snapshot.backend);

		const s = snapshot.stats, requested = s.hit_cache + s.hit_ram + s.miss;
		const speed = snapshot.rates.decode, read = snapshot.rates.read_bytes;
		byId("now-speed").textContent = byId("brief-speed").textContent = formatRate(speed);
		const fast = read >= 1e8 || series.read.some((p) => p.v >= 1e8);
		byId("now-read").textContent = formatRate(read / (fast ? 1e9 : 1e6));
		byId("unit-read").textContent = fast ? "GB/s" : "MB/s";
		const recent = series.hits.map((p) => p.v).filter((v) => v != null).at(-1);
		const hits = recent != null ? recent : requested ? 100 * s.hit_cache / requested : null;
		byId("now-hits").textContent = hits == null ? "–" : hits.toFixed(hits > 99.95 ? 0 : 1);
		byId("brief-hits").textContent = hits == null ? "–" : hits.toFixed(0) + " %";

		const m = snapshot.memory;
		const parts = [
			["Weights, resident", m.resident, "#64748b"],
			["Context caches", m.kv, "#a78bfa"],
			["Workspace", m.workspace, "#94a3b8"],
			snapshot.streaming ? ["Experts in " + first, snapshot.tier_bytes[0], "vram"] : null,
			snapshot.tier_bytes[1] ? ["Experts in RAM", snapshot.tier_bytes[1], "ram"] : null,
		].filter((p) => p && p[1]);
		byId("plan-bar").replaceChildren(...parts.map(([, bytes, colour]) => {
			const part = el("i");
			part.style.flex = bytes + " 0 0";
			part.style.background = colours[colour] || colour;
			return part;
		}));
		const all = ["All experts would need", formatBytes(snapshot.everything_bytes)];
		const terms = parts.map(([name, bytes, colour]) => [name, formatBytes(bytes), colour]);
		fillTerms(byId("plan"), [...terms, snapshot.streaming ? all : null]);
		const w = snapshot.work;
		fillTerms(byId("work"), [
			["Answers under way", w.active + " of " + w.sessions],
			w.waiting ? ["Waiting for a session", formatCount(w.waiting)] : null,
			...w.list.map(sessionTerm),
			["Tokens written", formatCount(w.new_tokens)],
			["Prompt tokens computed", formatCount(w.prefill_tokens)],
			w.cached_tokens ? ["Prompt tokens reused", formatCount(w.cached_tokens)] : null,
			w.stored_tokens ? ["… from stored prompts", formatCount(w.stored_tokens)] : null,
			snapshot.rates.prefill && w.list.some((s) => s.state === "reading")
				? ["Reading at", formatRate(snapshot.rates.prefill) + " tok/s"]
				: null,
			requested && snapshot.streaming ? ["Expert requests", formatCount(requested)] : null,
			requested && snapshot.streaming
				? ["… found at once", (100 * s.hit_cache / requested).toFixed(1) + " %"]
				: null,
			s.bytes_read ? ["Read from disk", formatBytes(s.bytes_read)] : null,
			s.prefetch_useful ? ["Prefetched and used", formatCount(s.prefetch_useful)] : null,
		]);
	}

	/* ---- what the server says ---- */
	function applySnapshot(state) {
		const old = snapshot, now = performance.now();
		snapshot = state;
		snapshot.at = now;
		snapshot.justArrived = 0; /* arrived since the last poll: drawn and counted as arriving */
		byId("expert-panel").removeAttribute("data-empty");
		byId("expert-panel").toggleAttribute("data-all", !snapshot.streaming);
		if (!old || old.n_experts !== snapshot.n_experts || old.n_layers !== snapshot.n_layers) {
			glowMs = new Float32Array(snapshot.map.length);
			rows = [];
			for (let layer = 0; layer < snapshot.n_layers; layer++)
				if (snapshot.map[layer * snapshot.n_experts] !== RESIDENCY.NONE)
					rows.push(layer);
		} else if (!reducedMotion.matches) {
			for (let i = 0; i < snapshot.map.length; i++)
				if (snapshot.map[i] === RESIDENCY.VRAM && old.map[i] !== RESIDENCY.VRAM) {
					glowMs[i] = GLOW_MS;
					snapshot.justArrived++;
				}
		}
		if (!lastSample || now - lastSample.at > 450) {
			const push = (list, v) => {
				list.push({ t: now, v });
				while (list[0].t < now - SPAN_MS - 2000)
					list.shift();
			};
			if (lastSample) {
				const d = (k) => snapshot.stats[k] - lastSample.stats[k],
					  requested = d("hit_cache") + d("hit_ram") + d("miss");
				push(series.hits, requested > 0 ? 100 * d("hit_cache") / requested : null);
			}
			push(series.speed, snapshot.rates.decode);
			push(series.read, snapshot.rates.read_bytes);
			lastSample = snapshot;
		}
		showNumbers();
		drawCharts();
		redraw();
	}

	async function poll() {
		clearTimeout(timer);
		timer = 0;
		if (document.hidden)
			return;
		let wait = 1500;
		try {
			const answer = await fetch("v1/glmstream/state",
				{ headers: headers(), cache: "no-store" });
			if (answer.status === 401 || answer.status === 403) {
				listener({ kind: "key" });
				wait = 3000;
			} else if (!answer.ok) {
				throw new Error("status " + answer.status);
			} else {
				const state = normalise(await answer.json());
				failures = 0;
				applySnapshot(state);
				const kind = state.work.active ? "busy" : "ready";
				listener({ kind: state.healthy === false ? "failing" : kind, state });
				wait = state.work.active || busy() ? 250 : 1200;
			}
		} catch (e) {
			failures++;
			listener({ kind: "lost", error: e });
			wait = Math.min(1000 * 2 ** Math.min(failures, 4), 10000);
		}
		if (!timer)
			timer = setTimeout(poll, wait);
	}

	/* The server's state (src/serve/live.h) as the functions above use it. */
	function normalise(s) {
		const c = s.cache, m = s.memory || {}, mtp = c.mtp_layers || 0;
		return {
			healthy: s.healthy,
			model: s.model,
			backend: s.backend,
			streaming: c.streaming,
			n_layers: c.layers,
			n_experts: c.experts,
			n_mtp: mtp,
			stages: s.stages || [],
			map: Uint8Array.from(c.map, (letter) => Math.max("-.r~#".indexOf(letter), 0)),
			tier_bytes: [c.cache_bytes, c.ram_bytes],
			everything_bytes: c.everything_bytes,
			stats: s.totals,
			rates: {
				prefill: s.rate.prefill_tok_s,
				decode: s.rate.decode_tok_s,
				read_bytes: s.rate.read_bytes_s
			},
			memory: { resident: m.resident_bytes, kv: m.kv_bytes, workspace: m.workspace_bytes },
			work: {
				active: s.sessions.active,
				sessions: s.sessions.n,
				waiting: s.queue.waiting,
				new_tokens: s.totals.new_tokens,
				prefill_tokens: s.totals.prefill_tokens,
				cached_tokens: s.totals.cached_tokens,
				stored_tokens: s.store && s.store.tokens_read,
				list: s.sessions.list
			},
		};
	}

	/* ---- hovering ---- */
	function showTooltip(event) {
		const box = byId("map").getBoundingClientRect();
		const s = snapshot && rows.length && mapGeometry();
		if (!s)
			return;
		const x = Math.floor((event.clientX - box.left - s.x) / s.w);
		const r = Math.floor((event.clientY - box.top) / s.h);
		const tip = byId("tip");
		if (x < 0 || x >= snapshot.n_experts || r < 0 || r >= rows.length) {
			tip.hidden = true;
			return;
		}
		const layer = rows[r], residency = snapshot.map[layer * snapshot.n_experts + x];
		const cached = snapshot.backend === "cpu" ? "in the cache" : "in VRAM";
		const first = snapshot.streaming ? cached : "in memory";
		tip.textContent =
			(layer >= snapshot.n_layers - snapshot.n_mtp ? "MTP layer" : "layer " + layer) +
			placeOf(layer) + ", expert " + x + ": " + ["none", "on disk", "in RAM", "arriving", first][residency];
		tip.hidden = false;
		const left = event.clientX - box.left;
		const most = box.width - tip.offsetWidth, above = r * s.h - tip.offsetHeight - 4;
		tip.style.left = Math.max(0, Math.min(left - tip.offsetWidth / 2, most)) + "px";
		tip.style.top = (above < -20 ? (r + 1) * s.h + 4 : above) + "px";
	}

	function start(options) {
		({ listener, headers, busy } = options);
		readColours();
		theme.onChange(() => {
			readColours();
			if (snapshot) {
				showNumbers();
				drawCharts();
				redraw();
			}
		});
		const narrow = matchMedia("(max-width: 900px)");
		const open = () => { byId("expert-panel").open = !narrow.matches; };
		narrow.addEventListener("change", open);
		open();
		new ResizeObserver(() => { drawCharts(); redraw(); }).observe(byId("expert-panel"));
		byId("expert-panel").addEventListener("toggle", () => { drawCharts(); redraw(); });
		byId("map").addEventListener("pointermove", showTooltip);
		byId("map").addEventListener("pointerleave", () => { byId("tip").hidden = true; });
		document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
		poll();
	}
	return { start, poll, model: () => snapshot && snapshot.model };
})();
