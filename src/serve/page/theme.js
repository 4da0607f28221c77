/* SPDX-License-Identifier: MIT */
/* Runs before the first paint, so that a page in the other theme is not seen for a moment. */
const theme = (() => {
	"use strict";
	const KEY = "glmstream.theme", dark = matchMedia("(prefers-color-scheme: dark)");
	const listeners = [];

	/* "auto", "light" or "dark" */
	function choice() {
		try {
			const stored = localStorage.getItem(KEY);
			return ["light", "dark"].includes(stored) ? stored : "auto";
		} catch {
			return "auto";
		}
	}

	function apply() {
		const name = choice();
		const shown = name === "auto" ? dark.matches ? "dark" : "light" : name;
		document.documentElement.dataset.theme = shown;
		listeners.forEach((listener) => listener());
	}

	function choose(name) {
		try {
			localStorage.setItem(KEY, name);
		} catch { /* the choice lives as long as the page */ }
		apply();
		if (choice() !== name) {
			document.documentElement.dataset.theme = name === "auto" ? "light" : name;
			listeners.forEach((listener) => listener());
		}
	}

	dark.addEventListener("change", apply);
	apply();
	return { choice, choose, onChange: (listener) => listeners.push(listener) };
})();
