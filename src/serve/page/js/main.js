/* SPDX-License-Identifier: MIT */
/* Starts the parts when the document and the libraries are there. */
document.addEventListener("DOMContentLoaded", async () => {
	const STATES = {
		ready: "ready",
		busy: "working",
		lost: "no connection",
		key: "needs an API key",
		failing: "the last step failed"
	};

	function onServerState(event) {
		const kind = ["key", "failing"].includes(event.kind) ? "lost" : event.kind;
		byId("status").dataset.kind = kind;
		byId("status-text").textContent =
			(event.state ? event.state.model + " · " : "") + STATES[event.kind];
		if (event.state)
			document.title = event.state.model + " · glmstream";
	}

	/* A conversation has changed in the store, `id` when another window did it. */
	function onStoreChange(id) {
		const current = conversation.current();
		if (id === current.id && store.get(id))
			conversation.open(store.get(id));
		else
			chats.draw();
	}

	function lastShown() {
		try {
			return store.get(sessionStorage.getItem("glmstream.current"));
		} catch {
			return null;
		}
	}

	settings.start();
	conversation.start();
	chats.start();
	compose.start();
	expertPanel.start({
		listener: onServerState,
		headers: settings.headers,
		busy: answers.any
	});
	addEventListener("pagehide", answers.saveAll);
	await store.open(onStoreChange, (id) => answers.runOf({ id }));
	if (!conversation.current().messages.length)
		conversation.open(lastShown() || store.list()[0] || conversation.current());
});
