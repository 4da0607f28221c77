/* SPDX-License-Identifier: MIT */
/* The message field: growing text, files of text that go with it, send and stop. */
const compose = (() => {
	const MOST_FILE = 1e6, MOST_FILES = 10;
	let files = []; /* {name, text} */

	function update() {
		const running = !!answers.runOf(conversation.current()), send = byId("send");
		byId("log").toggleAttribute("data-busy", running);
		send.toggleAttribute("data-stops", running);
		send.setAttribute("aria-label", running ? "Stop" : "Send");
		send.disabled = !running && !byId("input").value.trim() && !files.length;
	}

	function resize() {
		const input = byId("input");
		input.style.height = "auto";
		input.style.height = Math.min(input.scrollHeight, innerHeight * 0.4) + "px";
		update();
	}

	function drawFiles() {
		byId("files").replaceChildren(...files.map((f) => el("li", null,
			f.name + ", " + textSize(f.text),
			el("button", {
				type: "button",
				class: "quiet",
				"aria-label": "Remove " + f.name,
				onclick: () => {
					files = files.filter((o) => o !== f);
					drawFiles();
					byId("input").focus();
				}
			}, icon("M6 6l12 12M18 6L6 18")))));
		byId("files").hidden = !files.length;
		update();
	}

	/* The text of a file; throws an Error with a sentence when it is none. */
	async function readText(file) {
		if (file.size > MOST_FILE)
			throw new Error(file.name + " has " + formatSize(file.size) + "; a file may have " +
				formatSize(MOST_FILE) + ".");
		let text;
		try {
			text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
		} catch {
			text = "\0";
		}
		if (text.includes("\0"))
			throw new Error(file.name + " is no text file in UTF-8; the model reads text only.");
		return { name: file.name, text };
	}

	async function attach(list) {
		for (const file of list)
			try {
				if (files.length >= MOST_FILES)
					throw new Error("A message may have " + MOST_FILES + " files.");
				files.push(await readText(file));
			} catch (e) {
				notice.show(e.message);
			}
		drawFiles();
		byId("input").focus();
	}

	function submit(e) {
		e.preventDefault();
		const chat = conversation.current(), input = byId("input");
		if (answers.runOf(chat)) {
			answers.stop(chat);
			return;
		}
		const text = input.value, last = tree.path(chat).at(-1);
		if (!text.trim() && !files.length)
			return;
		input.value = "";
		const sent = files;
		files = [];
		drawFiles();
		resize();
		conversation.ask(chat, last ? last.id : null, text, sent);
	}

	/* The field gets the focus where a keyboard is likely and nothing else has it. */
	function focusIfIdle() {
		const has = document.activeElement;
		if (matchMedia("(hover: hover)").matches &&
			(has === document.body || has === byId("send") || !has.isConnected))
			byId("input").focus();
	}

	function start() {
		const input = byId("input"), main = document.querySelector("main");
		input.addEventListener("input", resize);
		input.addEventListener("keydown", (e) => {
			if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
				e.preventDefault();
				if (!answers.runOf(conversation.current()))
					byId("form").requestSubmit();
			}
		});
		byId("form").addEventListener("submit", submit);
		document.addEventListener("keydown", (e) => {
			if (e.key === "Escape" && !document.querySelector("dialog[open]"))
				answers.stop(conversation.current());
		});
		byId("attach").addEventListener("click", () => byId("attach-files").click());
		byId("attach-files").addEventListener("change", async (e) => {
			await attach([...e.target.files]);
			e.target.value = "";
		});
		input.addEventListener("paste", (e) => {
			if (e.clipboardData.files.length) {
				e.preventDefault();
				attach([...e.clipboardData.files]);
			}
		});
		main.addEventListener("dragover", (e) => {
			if (e.dataTransfer.types.includes("Files")) {
				e.preventDefault();
				main.dataset.drop = "";
			}
		});
		main.addEventListener("dragleave", () => { delete main.dataset.drop; });
		main.addEventListener("drop", (e) => {
			e.preventDefault();
			delete main.dataset.drop;
			attach([...e.dataTransfer.files]);
		});
		resize();
		if (matchMedia("(hover: hover)").matches)
			input.focus();
	}
	return { start, update, focusIfIdle };
})();
