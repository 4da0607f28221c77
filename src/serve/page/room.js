/* SPDX-License-Identifier: MIT */
/*
 * The machine room: asks the server how it stands, a few times a second while somebody looks, and draws it. The map is one
 * cell for each expert of each layer that has any; a cell that has just come into the first tier glows for a moment.
 */
const room = (() => {
	const $ = (id) => document.getElementById(id);
	const PLACE = { NONE: 0, DISK: 1, RAM: 2, READING: 3, VRAM: 4 };
	const GLOW_MS = 1400, FRAME_MS = 30, SPAN_MS = 60000, GUTTER = 26;
	const base = document.createElement("canvas");
	const still = matchMedia("(prefers-reduced-motion: reduce)");
	let colours = {}, look = null, rows = [], heat = null, before = null, animating = 0, lastFrame = 0, stale = true;
	let timer = 0, failures = 0, listener = () => {}, headers = () => ({}), busy = () => false;
	const series = { speed: [], hits: [], read: [] };

	/* ---- colours, read from the style sheet so that both themes are there ---- */
	function readColours() {
		const style = getComputedStyle(document.documentElement);
		for (const name of ["vram", "ram", "reading", "disk", "glow", "accent", "faint", "line", "soft"])
			colours[name] = style.getPropertyValue("--" + name).trim();
	}

	function mix(a, b, t) {
		const at = (c, i) => parseInt(c.slice(1 + 2 * i, 3 + 2 * i), 16);
		return "rgb(" + [0, 1, 2].map((i) => Math.round(at(a, i) + (at(b, i) - at(a, i)) * t)).join(" ") + ")";
	}

	function fit(canvas, height) {
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
	function shape() {
		const width = $("map").clientWidth - GUTTER, n = look.n_experts;
		const ratio = devicePixelRatio || 1, high = Math.max(3, Math.min(18, Math.round(300 / Math.max(rows.length, 1) * ratio) / ratio));
		return { x: GUTTER, w: width / n, h: high, big: Math.min(width / n, high) >= 5 };
	}

	/* Adds a cell to the path. Small ones end where pixels do. */
	function cell(g, s, r, x) {
		if (s.big) {
			g.roundRect(s.x + x * s.w, r * s.h, s.w - 1.5, s.h - 1.5, Math.min(2.5, s.w / 4));
			return;
		}
		const ratio = devicePixelRatio || 1, snap = (v) => Math.round(v * ratio) / ratio, left = snap(s.x + x * s.w), top = snap(r * s.h);
		g.rect(left, top, snap(s.x + (x + 1) * s.w) - left, snap((r + 1) * s.h) - top - (s.h >= 3 ? 1 / ratio : 0));
	}

	/* Everything that stands still, on a canvas of its own: a large model has twenty thousand cells. */
	function drawStill(s, width, height) {
		const ratio = devicePixelRatio || 1, g = base.getContext("2d"), n = look.n_experts;
		base.width = width;
		base.height = height;
		g.scale(ratio, ratio);
		g.font = "10px system-ui, sans-serif";
		g.textBaseline = "middle";
		g.textAlign = "right";
		g.fillStyle = colours.faint;
		const every = s.h >= 11 ? 1 : 5 * Math.ceil(11 / s.h / 5 + 0.5), tall = s.h * rows.length;
		rows.forEach((layer, r) => {
			const mtp = layer >= look.n_layers - look.n_mtp;
			if (every === 1 || mtp || (layer % every === 0 && r + 3 < rows.length))
				g.fillText(mtp ? "MTP" : layer, GUTTER - 5, Math.max(6, Math.min(s.h * (r + 0.5), tall - 6)));
		});
		for (const [place, colour] of [[PLACE.DISK, colours.disk], [PLACE.RAM, colours.ram], [PLACE.READING, colours.reading], [PLACE.VRAM, colours.vram]]) {
			g.beginPath();
			for (let r = 0; r < rows.length; r++)
				for (let x = 0, at = rows[r] * n; x < n; x++, at++)
					if (look.map[at] === place)
						cell(g, s, r, x);
			g.fillStyle = colour;
			g.fill();
		}
	}

	/* Returns whether anything glows. */
	function drawMap(elapsed) {
		const map = $("map"), n = look && look.n_experts;
		if (!look || !rows.length || !map.clientWidth)
			return false;
		const s = shape(), g = fit(map, Math.ceil(s.h * rows.length));
		if (stale || base.width !== map.width || base.height !== map.height)
			drawStill(s, map.width, map.height);
		stale = false;
		g.setTransform(1, 0, 0, 1, 0, 0);
		g.clearRect(0, 0, map.width, map.height);
		g.drawImage(base, 0, 0);
		g.scale(devicePixelRatio || 1, devicePixelRatio || 1);
		let glowing = false;
		for (let r = 0; r < rows.length; r++)
			for (let x = 0, at = rows[r] * n; x < n; x++, at++) {
				if (!(heat[at] > 0))
					continue;
				if (look.map[at] === PLACE.VRAM) {
					const t = heat[at] / GLOW_MS;
					g.beginPath();
					cell(g, s, r, x);
					g.fillStyle = t > 0.65 ? colours.reading : t > 0.58 ? mix(colours.glow, colours.reading, (t - 0.58) / 0.07) :
						mix(colours.vram, colours.glow, t / 0.58);
					g.fill();
				}
				heat[at] -= elapsed;
				glowing = true;
			}
		return glowing;
	}

	function animate(now) {
		animating = 0;
		const elapsed = lastFrame ? now - lastFrame : FRAME_MS;
		if (!stale && elapsed < FRAME_MS) {
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
		stale = true;
		if (!animating)
			animating = requestAnimationFrame(animate);
	}

	/* ---- small charts ---- */
	/* points: {t, v} by time; v null: nothing to say then. */
	function drawChart(id, points, colour, top) {
		const canvas = $(id);
		if (!canvas.clientWidth)
			return;
		const g = fit(canvas), w = canvas.clientWidth, h = canvas.clientHeight, now = performance.now();
		g.clearRect(0, 0, w, h);
		const most = top || Math.max(...points.map((p) => p.v || 0), 1e-9) * 1.1;
		g.fillStyle = colours.line;
		g.fillRect(0, h - 1, w, 1);
		const x = (p) => w - (now - p.t) / SPAN_MS * w, y = (p) => h - 1.5 - p.v / most * (h - 5);
		for (let i = 0; i < points.length; i++) { /* pieces without gaps */
			if (points[i].v == null)
				continue;
			let end = i;
			while (end + 1 < points.length && points[end + 1].v != null)
				end++;
			g.beginPath();
			g.moveTo(x(points[i]) - (end === i ? 3 : 0), y(points[i])); /* a point alone is a dash */
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
	const gb = (bytes) => bytes >= 99.5e9 ? (bytes / 1e9).toFixed(0) + " GB" : bytes >= 1e9 ? (bytes / 1e9).toFixed(1) + " GB" :
		(bytes / 1e6).toFixed(bytes >= 99.5e6 ? 0 : 1) + " MB";
	const count = (n) => Math.round(n).toLocaleString("en").replace(/,/g, "\u2009");
	const short = (v) => v >= 100 ? v.toFixed(0) : v.toFixed(v >= 10 ? 1 : v > 0 ? 2 : 0);

	function terms(list, items) {
		list.replaceChildren(...items.filter((i) => i).flatMap(([name, value, colour]) => {
			const mark = colour ? el("i") : null;
			if (mark)
				mark.style.background = colours[colour] || colour;
			return [el("dt", null, mark, name), el("dd", null, value)];
		}));
	}

	function showNumbers() {
		const first = look.backend === "cpu" ? "cache" : "VRAM", n = [0, 0, 0, 0, 0];
		for (const place of look.map)
			n[place]++;
		const legend = look.streaming ? [["vram", "in " + first, n[PLACE.VRAM] - look.fresh], look.tier_bytes[1] ? ["ram", "in RAM", n[PLACE.RAM]] : null,
			["reading", "arriving", n[PLACE.READING] + look.fresh], ["disk", "on disk", n[PLACE.DISK]]] : [["vram", "in memory", n[PLACE.VRAM]]];
		$("legend").replaceChildren(...legend.filter((l) => l).map(([colour, name, value]) => {
			const mark = el("i");
			mark.style.background = colours[colour];
			return el("li", null, mark, name, el("b", null, count(value)));
		}));
		$("map").setAttribute("aria-label", "Map of experts: " + legend.filter((l) => l).map((l) => l[2] + " " + l[1]).join(", "));
		$("map-note").hidden = look.streaming;
		$("map-note").textContent = "No expert cache: every expert stands where it is computed. Start the server with --cache-gb to stream them.";
		$("model").textContent = rows.length + " layers × " + look.n_experts + " experts · " + (look.backend === "cpu" ? "CPU" : look.backend);

		const s = look.stats, asked = s.hit_vram + s.hit_ram + s.miss;
		const speed = look.rates.decode, read = look.rates.read_bytes;
		$("now-speed").textContent = $("brief-speed").textContent = short(speed);
		const fast = read >= 1e8 || series.read.some((p) => p.v >= 1e8);
		$("now-read").textContent = short(read / (fast ? 1e9 : 1e6));
		$("unit-read").textContent = fast ? "GB/s" : "MB/s";
		const recent = series.hits.map((p) => p.v).filter((v) => v != null).at(-1);
		const hits = recent != null ? recent : asked ? 100 * s.hit_vram / asked : null;
		$("now-hits").textContent = hits == null ? "–" : hits.toFixed(hits > 99.95 ? 0 : 1);
		$("brief-hits").textContent = hits == null ? "–" : hits.toFixed(0) + " %";

		const m = look.memory, parts = [["Weights, resident", m.resident, "#64748b"], ["Context caches", m.kv, "#a78bfa"], ["Workspace", m.workspace, "#94a3b8"],
			look.streaming ? ["Experts in " + first, look.tier_bytes[0], "vram"] : null, look.tier_bytes[1] ? ["Experts in RAM", look.tier_bytes[1], "ram"] : null]
			.filter((p) => p && p[1]);
		$("plan-bar").replaceChildren(...parts.map(([, bytes, colour]) => {
			const part = el("i");
			part.style.flex = bytes + " 0 0";
			part.style.background = colours[colour] || colour;
			return part;
		}));
		terms($("plan"), [...parts.map(([name, bytes, colour]) => [name, gb(bytes), colour]),
			look.streaming ? ["All experts would need", gb(look.everything_bytes)] : null]);
		const w = look.work;
		terms($("work"), [
			["Answers under way", w.active + " of " + w.sessions],
			w.waiting ? ["Waiting for a place", count(w.waiting)] : null,
			...w.list.map((s, i) => s.state === "reading" ? ["Session " + (i + 1), "reading, " + count(s.done) + " of " + count(s.prompt)] :
				s.state === "writing" ? ["Session " + (i + 1), "writing, " + count(s.new) + " tokens"] : null),
			["Tokens written", count(w.new_tokens)],
			["Prompt tokens computed", count(w.prefill_tokens)],
			w.cached_tokens ? ["Prompt tokens reused", count(w.cached_tokens)] : null,
			w.stored_tokens ? ["… from stored prompts", count(w.stored_tokens)] : null,
			look.rates.prefill && w.list.some((s) => s.state === "reading") ? ["Reading at", short(look.rates.prefill) + " tok/s"] : null,
			asked && look.streaming ? ["Experts asked for", count(asked)] : null,
			asked && look.streaming ? ["… found at once", (100 * s.hit_vram / asked).toFixed(1) + " %"] : null,
			s.bytes_read ? ["Read from disk", gb(s.bytes_read)] : null,
			s.prefetch_useful ? ["Read ahead and used", count(s.prefetch_useful)] : null,
		]);
	}

	/* ---- what the server says ---- */
	function take(state) {
		const old = look, now = performance.now();
		look = state;
		look.at = now;
		look.fresh = 0; /* arrived since the last look: drawn and counted as arriving */
		$("room").removeAttribute("data-empty");
		$("room").toggleAttribute("data-all", !look.streaming);
		if (!old || old.n_experts !== look.n_experts || old.n_layers !== look.n_layers) {
			heat = new Float32Array(look.map.length);
			rows = [];
			for (let layer = 0; layer < look.n_layers; layer++)
				if (look.map[layer * look.n_experts] !== PLACE.NONE)
					rows.push(layer);
		} else if (!still.matches) {
			for (let i = 0; i < look.map.length; i++)
				if (look.map[i] === PLACE.VRAM && old.map[i] !== PLACE.VRAM) {
					heat[i] = GLOW_MS;
					look.fresh++;
				}
		}
		if (!before || now - before.at > 450) {
			const push = (list, v) => {
				list.push({ t: now, v });
				while (list[0].t < now - SPAN_MS - 2000)
					list.shift();
			};
			if (before) {
				const d = (k) => look.stats[k] - before.stats[k], asked = d("hit_vram") + d("hit_ram") + d("miss");
				push(series.hits, asked > 0 ? 100 * d("hit_vram") / asked : null);
			}
			push(series.speed, look.rates.decode);
			push(series.read, look.rates.read_bytes);
			before = look;
		}
		showNumbers();
		drawCharts();
		redraw();
	}

	async function ask() {
		clearTimeout(timer);
		timer = 0;
		if (document.hidden)
			return;
		let wait = 1500;
		try {
			const answer = await fetch("v1/glmstream/state", { headers: headers(), cache: "no-store" });
			if (answer.status === 401 || answer.status === 403) {
				listener({ kind: "key" });
				wait = 3000;
			} else if (!answer.ok) {
				throw new Error("status " + answer.status);
			} else {
				const state = normalise(await answer.json());
				failures = 0;
				take(state);
				listener({ kind: state.healthy === false ? "failing" : state.work.active ? "busy" : "ready", state });
				wait = state.work.active || busy() ? 250 : 1200;
			}
		} catch (e) {
			failures++;
			listener({ kind: "lost", error: e });
			wait = Math.min(1000 * 2 ** Math.min(failures, 4), 10000);
		}
		if (!timer)
			timer = setTimeout(ask, wait);
	}

	/* The server's object (src/serve/live.h) in the form used here. */
	function normalise(s) {
		const c = s.cache, m = s.memory || {}, mtp = c.mtp_layers || 0;
		return {
			healthy: s.healthy, model: s.model, backend: s.backend, streaming: c.streaming, n_layers: c.layers, n_experts: c.experts, n_mtp: mtp,
			map: Uint8Array.from(c.map, (letter) => Math.max("-.r~#".indexOf(letter), 0)),
			tier_bytes: [c.vram_bytes, c.ram_bytes], everything_bytes: c.everything_bytes, stats: s.totals,
			rates: { prefill: s.rate.prefill_tok_s, decode: s.rate.decode_tok_s, read_bytes: s.rate.read_bytes_s },
			memory: { resident: m.resident_bytes, kv: m.kv_bytes, workspace: m.workspace_bytes },
			work: { active: s.sessions.active, sessions: s.sessions.n, waiting: s.queue.waiting, new_tokens: s.totals.new_tokens,
				prefill_tokens: s.totals.prefill_tokens, cached_tokens: s.totals.cached_tokens,
				stored_tokens: s.store && s.store.tokens_read, list: s.sessions.list },
		};
	}

	/* ---- hovering ---- */
	function pointAt(event) {
		const box = $("map").getBoundingClientRect(), s = look && rows.length && shape();
		if (!s)
			return;
		const x = Math.floor((event.clientX - box.left - s.x) / s.w), r = Math.floor((event.clientY - box.top) / s.h);
		const tip = $("tip");
		if (x < 0 || x >= look.n_experts || r < 0 || r >= rows.length) {
			tip.hidden = true;
			return;
		}
		const layer = rows[r], place = look.map[layer * look.n_experts + x];
		const first = !look.streaming ? "in memory" : look.backend === "cpu" ? "in the cache" : "in VRAM";
		tip.textContent = (layer >= look.n_layers - look.n_mtp ? "MTP layer" : "layer " + layer) + ", expert " + x + ": " +
			["none", "on disk", "in RAM", "arriving", first][place];
		tip.hidden = false;
		const left = event.clientX - box.left;
		tip.style.left = Math.max(0, Math.min(left - tip.offsetWidth / 2, box.width - tip.offsetWidth)) + "px";
		tip.style.top = (r * s.h - tip.offsetHeight - 4 < -20 ? (r + 1) * s.h + 4 : r * s.h - tip.offsetHeight - 4) + "px";
	}

	function start(options) {
		({ listener, headers, busy } = options);
		readColours();
		matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
			readColours();
			if (look) {
				showNumbers();
				drawCharts();
				redraw();
			}
		});
		const narrow = matchMedia("(max-width: 900px)");
		const open = () => { $("room").open = !narrow.matches; };
		narrow.addEventListener("change", open);
		open();
		new ResizeObserver(() => { drawCharts(); redraw(); }).observe($("room"));
		$("room").addEventListener("toggle", () => { drawCharts(); redraw(); });
		$("map").addEventListener("pointermove", pointAt);
		$("map").addEventListener("pointerleave", () => { $("tip").hidden = true; });
		document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
		ask();
	}
	return { start, ask };
})();
