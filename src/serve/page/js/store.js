/* SPDX-License-Identifier: MIT */
/*
 * Conversations in this browser's IndexedDB, one record each. All are read at the start and kept in
 * `chats` (id to conversation). Where the browser keeps nothing (a private window, storage full),
 * they live as long as the page and the person is told.
 *
 * Two windows may change the same conversation: a save adds the messages that the other window has
 * stored meanwhile, so neither loses its own.
 */
const store = (() => {
	const NAME = "glmstream", TABLE = "chats", OLD_KEY = "glmstream.chat";
	const chats = new Map(), deleted = new Set();
	let database = null, channel = null, told = false, onChange = () => {};
	let queue = Promise.resolve(); /* writes one after the other */

	function result(request) {
		return new Promise((resolve, reject) => {
			request.onsuccess = () => resolve(request.result);
			request.onerror = () => reject(request.error);
		});
	}

	function openDatabase() {
		const request = indexedDB.open(NAME, 1);
		request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
		return result(request);
	}

	function complain(error) {
		if (told)
			return;
		told = true;
		const full = error && error.name === "QuotaExceededError";
		notice.show(full
			? "This browser's storage is full: save what you need to a file and delete old chats."
			: "This browser keeps no data for this page: chats last until it is closed. " +
				"Save what you need to a file.");
	}

	/* One transaction; `work` gets the table and may await only its requests. */
	function write(work) {
		queue = queue.then(async () => {
			if (!database)
				return complain(null);
			const transaction = database.transaction(TABLE, "readwrite");
			const done = new Promise((resolve, reject) => {
				transaction.oncomplete = resolve;
				transaction.onabort = transaction.onerror = () => reject(transaction.error);
			});
			await Promise.all([work(transaction.objectStore(TABLE)), done]);
			told = false;
		}).catch(complain);
		return queue;
	}

	/* Adds to `chat` what `stored` has and this window has neither seen nor removed. */
	function merge(chat, stored) {
		const have = new Set([...chat.messages.map((m) => m.id), ...chat.removed || []]);
		for (const m of stored.messages || [])
			if (!have.has(m.id) && (m.parent === null || have.has(m.parent))) {
				chat.messages.push(m);
				have.add(m.id);
			}
	}

	function tell(id) {
		if (channel)
			channel.postMessage(id);
	}

	/* Stores a conversation. Without effect if it was deleted: an answer may still be written into
	 * it. isMore: only more of an answer has come, so that the list stays as it is drawn. */
	function save(chat, isMore) {
		if (deleted.has(chat.id) || (!chat.messages.length && !chats.has(chat.id)))
			return queue;
		chats.set(chat.id, chat);
		if (!isMore)
			onChange();
		return write(async (table) => {
			const stored = await result(table.get(chat.id));
			if (stored)
				merge(chat, stored);
			await result(table.put(JSON.parse(JSON.stringify(chat))));
			tell(chat.id);
		});
	}

	function putBack(chat) {
		deleted.delete(chat.id);
		return save(chat);
	}

	function remove(id) {
		deleted.add(id);
		chats.delete(id);
		onChange();
		return write(async (table) => {
			await result(table.delete(id));
			tell(id);
		});
	}

	/* What an older page kept: one conversation in localStorage. It goes once it is stored. */
	async function takeOverOld() {
		let list = null;
		try {
			list = JSON.parse(localStorage.getItem(OLD_KEY));
		} catch { /* damaged, or no storage */ }
		if (!Array.isArray(list))
			return;
		const chat = tree.fromList(list);
		if (chat.messages.length)
			await save(chat);
		if (database && !told)
			localStorage.removeItem(OLD_KEY);
	}

	async function readAll() {
		const rows = await result(database.transaction(TABLE).objectStore(TABLE).getAll());
		for (const chat of rows.map(tree.read))
			if (chat && chat.messages.length)
				chats.set(chat.id, chat);
	}

	/* Another window has changed a conversation: `isBusy` ones are merged at their next save. */
	async function reread(id, isBusy) {
		if (isBusy(id))
			return;
		const row = await result(database.transaction(TABLE).objectStore(TABLE).get(id));
		const chat = row && tree.read(row);
		if (chat)
			chats.set(id, chat);
		else
			chats.delete(id);
		onChange(id);
	}

	async function open(listener, isBusy) {
		onChange = listener;
		try {
			database = await openDatabase();
			await readAll();
			channel = new BroadcastChannel(NAME);
			channel.onmessage = (e) => reread(e.data, isBusy).catch(() => {});
		} catch (e) {
			complain(e);
		}
		await takeOverOld();
	}

	/* Newest first. */
	function list() {
		return [...chats.values()].sort((a, b) => b.updated - a.updated);
	}
	return { open, save, putBack, remove, list, get: (id) => chats.get(id), idle: () => queue };
})();
