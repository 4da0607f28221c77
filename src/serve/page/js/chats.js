/* SPDX-License-Identifier: MIT */
/* The list of conversations: new, search, open, rename, delete with undo, export and import. On a
 * narrow screen it is a drawer. */
const chats = (() => {
	const SHAPE = {
		rename: "M4 20h4L19 9l-4-4L4 16z",
		remove: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
	};
	const narrow = matchMedia("(max-width: 900px)");
	let renaming = null; /* the id of the conversation whose name is being edited */

	function matches(chat, words) {
		const texts = [chat.title, ...chat.messages.map((m) => m.content)].join("\n").toLowerCase();
		return words.every((word) => texts.includes(word));
	}

	/* `key` finds the button again when the list has been drawn anew. */
	function small(label, key, shape, onclick) {
		const names = { "aria-label": label, title: label, "data-key": key };
		return el("button", { type: "button", class: "quiet", ...names, onclick }, icon(shape));
	}

	function renameForm(chat) {
		const field = el("input", { "aria-label": "Name of the chat", maxlength: "200" });
		field.value = chat.title;
		const finish = (keep, isDone) => {
			if (renaming !== chat.id)
				return;
			renaming = null;
			const name = field.value.trim();
			if (keep && name && name !== chat.title) {
				chat.title = name;
				chat.named = true;
				store.save(chat);
			}
			draw();
			if (isDone)
				focusKey("rename " + chat.id);
		};
		field.addEventListener("keydown", (e) => {
			if (e.key === "Escape") {
				e.stopPropagation();
				finish(false, true);
			}
		});
		field.addEventListener("blur", () => finish(true));
		const onsubmit = (e) => {
			e.preventDefault();
			finish(true, true);
		};
		return el("form", { onsubmit }, field);
	}

	function busy() {
		return el("i", { class: "busy", role: "img", "aria-label": "being answered" });
	}

	function item(chat) {
		const isCurrent = chat.id === conversation.current().id;
		if (renaming === chat.id)
			return el("li", { class: "current" }, renameForm(chat));
		const onclick = () => {
			close();
			conversation.open(chat);
			compose.focusIfIdle();
		};
		return el("li", { class: isCurrent ? "current" : null },
			el("button", {
				type: "button",
				class: "name",
				"aria-current": isCurrent ? "true" : null,
				title: chat.title,
				"data-key": "open " + chat.id,
				onclick
			}, answers.runOf(chat) ? busy() : null, chat.title),
			small("Rename " + chat.title, "rename " + chat.id, SHAPE.rename, () => rename(chat)),
			small("Delete " + chat.title, "delete " + chat.id, SHAPE.remove, () => remove(chat)));
	}

	function focusKey(key) {
		const button = byId("chat-list").querySelector('[data-key="' + CSS.escape(key) + '"]');
		if (button)
			button.focus();
	}

	function draw() {
		const key = document.activeElement.dataset.key;
		if (renaming && byId("chat-list").querySelector("form"))
			return; /* the name that is being typed stays */
		const words = byId("search").value.toLowerCase().split(/\s+/).filter((w) => w);
		const list = store.list(), found = list.filter((chat) => matches(chat, words));
		byId("chat-list").replaceChildren(...found.map(item));
		if (key)
			focusKey(key);
		byId("no-chats").hidden = found.length > 0;
		byId("no-chats").textContent = list.length ? "No chat has these words." : "No chats yet.";
		const empty = !conversation.current().messages.length;
		for (const id of ["copy-chat", "save-markdown", "save-json"])
			byId(id).disabled = empty;
		byId("save-all").disabled = !list.length;
	}

	function rename(chat) {
		renaming = chat.id;
		draw();
		const field = byId("chat-list").querySelector("form input");
		if (field) {
			field.focus();
			field.select();
		}
	}

	function remove(chat) {
		const isCurrent = chat.id === conversation.current().id;
		answers.stop(chat);
		store.remove(chat.id);
		if (isCurrent)
			conversation.open(store.list()[0] || tree.create());
		draw();
		notice.show("“" + chat.title + "” was deleted.", {
			label: "Undo",
			run: () => {
				store.putBack(chat);
				conversation.open(chat);
			}
		});
	}

	function begin() {
		close();
		const old = conversation.current();
		if (old.messages.length || answers.runOf(old))
			conversation.open(tree.create());
		byId("input").focus();
	}

	async function importFiles(files) {
		const found = [];
		for (const file of files)
			try {
				found.push(...await transfer.importFile(file));
			} catch (e) {
				notice.show(e.message);
			}
		if (!found.length)
			return;
		conversation.open(found[0]);
		notice.show(countOf(found.length, "chat") + " read.");
	}

	/* ---- the drawer ---- */
	function setOpen(open) {
		byId("chats").toggleAttribute("data-open", open);
		byId("chats").inert = narrow.matches && !open;
		byId("open-chats").setAttribute("aria-expanded", String(open));
	}

	function close() {
		if (narrow.matches)
			setOpen(false);
	}

	function closeMenu() {
		byId("menu").open = false;
	}

	function startMenu() {
		const act = (id, work) => byId(id).addEventListener("click", () => {
			closeMenu();
			byId("menu").querySelector("summary").focus();
			work(conversation.current());
		});
		act("copy-chat", async (chat) => {
			await copyText(transfer.toMarkdown(chat));
			notice.show("The chat was copied as Markdown.");
		});
		act("save-markdown", transfer.saveMarkdown);
		act("save-json", (chat) => transfer.saveJson([chat]));
		act("save-all", () => transfer.saveJson(store.list()));
		act("import", () => byId("import-files").click());
		byId("import-files").addEventListener("change", async (e) => {
			await importFiles([...e.target.files]);
			e.target.value = "";
		});
		document.addEventListener("click", (e) => {
			if (!byId("menu").contains(e.target))
				closeMenu();
			const isDrawer = byId("chats").hasAttribute("data-open") && e.target.isConnected;
			if (isDrawer && !e.target.closest("#chats, #open-chats"))
				close();
		});
		byId("menu").addEventListener("keydown", (e) => {
			if (e.key === "Escape" && byId("menu").open) {
				e.stopPropagation();
				closeMenu();
				byId("menu").querySelector("summary").focus();
			}
		});
	}

	function start() {
		startMenu();
		byId("search").addEventListener("input", draw);
		byId("new-chat").addEventListener("click", begin);
		byId("open-chats").addEventListener("click", () => {
			setOpen(!byId("chats").hasAttribute("data-open"));
			if (byId("chats").hasAttribute("data-open"))
				byId("search").focus();
		});
		byId("close-chats").addEventListener("click", () => {
			setOpen(false);
			byId("open-chats").focus();
		});
		byId("chats").addEventListener("keydown", (e) => {
			if (e.key === "Escape" && narrow.matches) {
				e.stopPropagation();
				setOpen(false);
				byId("open-chats").focus();
			}
		});
		narrow.addEventListener("change", () => setOpen(false));
		setOpen(false);
	}
	return { start, draw, begin };
})();
