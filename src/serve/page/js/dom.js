/* SPDX-License-Identifier: MIT */
/* Small helpers that all parts of the page use. */
function byId(id) {
	return document.getElementById(id);
}

/* An element: attributes by name, listeners as on..., children as nodes or texts. */
function el(tag, attributes, ...children) {
	const e = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes || {})) {
		if (name === "class")
			e.className = value;
		else if (name.startsWith("on"))
			e.addEventListener(name.slice(2), value);
		else if (value !== false && value != null)
			e.setAttribute(name, value === true ? "" : value);
	}
	e.append(...children.filter((c) => c != null && c !== false));
	return e;
}

/* An icon of 24 x 24 from path data. */
function icon(...paths) {
	const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
	svg.setAttribute("viewBox", "0 0 24 24");
	svg.setAttribute("aria-hidden", "true");
	for (const d of paths) {
		const p = document.createElementNS(ns, "path");
		p.setAttribute("d", d);
		svg.append(p);
	}
	return svg;
}

function quietButton(label, shape, onclick) {
	return el("button", { type: "button", class: "quiet", title: label, onclick },
		icon(...shape), label);
}

async function copyText(text) {
	try {
		await navigator.clipboard.writeText(text);
	} catch { /* pages without TLS on other hosts have no clipboard: the old way */
		const area = el("textarea", { class: "hidden" });
		area.value = text;
		document.body.append(area);
		area.select();
		document.execCommand("copy");
		area.remove();
	}
}

function copyButton(text, label = "Copy") {
	const name = document.createTextNode(label);
	const button = el("button", { type: "button", class: "quiet", title: "Copy" },
		icon("M9 9h10v11H9z", "M15 9V4H5v11h4"), name);
	button.addEventListener("click", async () => {
		await copyText(text());
		name.data = "Copied";
		setTimeout(() => { name.data = label; }, 1500);
	});
	return button;
}

/* Offers `text` as a file to save. */
function saveAsFile(name, type, text) {
	const url = URL.createObjectURL(new Blob([text], { type }));
	el("a", { href: url, download: name }).click();
	setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/* A sentence that a screen reader says. */
function announce(text) {
	byId("live-status").textContent = text;
}

/* A line at the bottom: a sentence, and a button to take back what it tells of. It goes when the
 * next one comes, when it is closed, and after half a minute. */
const notice = (() => {
	let timer = 0;
	function hide() {
		clearTimeout(timer);
		byId("notice").replaceChildren();
	}
	function show(text, action) {
		clearTimeout(timer);
		const box = el("div", { class: "notice" }, el("span", null, text));
		if (action)
			box.append(el("button", {
				type: "button",
				class: "second",
				onclick: () => { hide(); action.run(); }
			}, action.label));
		box.append(el("button", {
			type: "button",
			class: "quiet",
			"aria-label": "Close this message",
			onclick: hide
		}, icon("M6 6l12 12M18 6L6 18")));
		byId("notice").replaceChildren(box);
		if (action && document.activeElement === document.body) /* what was pressed is gone */
			box.querySelector("button").focus();
		timer = setTimeout(hide, 30000);
	}
	return { show, hide };
})();

function formatSize(bytes) {
	if (bytes < 1000)
		return bytes + " bytes";
	if (bytes < 999500)
		return Math.round(bytes / 1000) + " kB";
	return (bytes / 1e6).toFixed(1).replace(".0", "") + " MB";
}

function textSize(text) {
	return formatSize(new Blob([text]).size);
}

function formatSeconds(ms) {
	return ms < 9950 ? (ms / 1000).toFixed(1) + " s" : Math.round(ms / 1000) + " s";
}

function countOf(n, noun) {
	return n + " " + noun + (n === 1 ? "" : "s");
}
