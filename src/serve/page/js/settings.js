/* SPDX-License-Identifier: MIT */
/* The settings dialog. Settings are texts in localStorage; an empty one is not sent. */
const settings = (() => {
	const KEY = "glmstream.settings";
	const FIELDS = ["think", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed",
		"system", "tools", "key"];
	const PRESETS = {
		"Brief": "Answer in at most three sentences.",
		"Teacher": "Explain step by step, with an example, for somebody who is new to the subject.",
		"Programmer": "You are a careful programmer. Give complete code in one block, then " +
			"explain in a few sentences why it is right and where its limits are.",
		"Translator": "Translate what the user writes into English. " +
			"Answer with the translation only."
	};
	let values = load();

	function load() {
		try {
			const stored = JSON.parse(localStorage.getItem(KEY));
			return stored && typeof stored === "object" && !Array.isArray(stored) ? stored : {};
		} catch {
			return {};
		}
	}

	function save() {
		try {
			localStorage.setItem(KEY, JSON.stringify(values));
		} catch { /* they live as long as the page */ }
	}

	function text(name) {
		return typeof values[name] === "string" ? values[name] : "";
	}

	/* The number, or undefined: then it is not sent. */
	function number(name) {
		const v = parseFloat(text(name));
		return Number.isFinite(v) ? v : undefined;
	}

	function headers() {
		return text("key") ? { Authorization: "Bearer " + text("key") } : {};
	}

	function open() {
		for (const f of FIELDS)
			byId("set-" + f).value = text(f);
		byId("set-theme").value = theme.choice();
		byId("set-preset").value = "";
		byId("tools-fault").hidden = true;
		byId("settings").showModal();
	}

	function findFault() {
		const tools = byId("set-tools").value.trim();
		try {
			const isFit = !tools || Array.isArray(JSON.parse(tools));
			return isFit ? "" : "An array is expected: [ ... ]";
		} catch (error) {
			return "This is no JSON: " + error.message;
		}
	}

	function start() {
		const dialog = byId("settings"), preset = byId("set-preset");
		preset.append(...Object.keys(PRESETS).map((name) => el("option", { value: name }, name)));
		preset.addEventListener("change", () => {
			if (preset.value)
				byId("set-system").value = PRESETS[preset.value];
		});
		byId("set-theme").addEventListener("change", (e) => theme.choose(e.target.value));
		byId("open-settings").addEventListener("click", open);
		dialog.querySelector("form").addEventListener("submit", (e) => {
			const fault = findFault();
			if (!fault)
				return;
			e.preventDefault();
			byId("tools-fault").textContent = fault;
			byId("tools-fault").hidden = false;
			byId("set-tools").closest("details").open = true;
		});
		dialog.addEventListener("close", () => {
			if (findFault()) /* left by Escape: what is no JSON is not kept */
				byId("set-tools").value = text("tools");
			for (const f of FIELDS)
				values[f] = byId("set-" + f).value.trim();
			save();
			expertPanel.poll();
		});
	}
	return { start, open, text, number, headers };
})();
