/* SPDX-License-Identifier: MIT */
/*
 * The folder is the index: a block is found by its file's name, and a chain goes on as long as the
 * next file exists. The time of last use is the file's mtime. Within a chain earlier blocks get
 * later times, so that eviction removes the end of a chain first.
 *
 *   KKKKKKKKKKKKKKKK-BBBBBB-HHHHHHHHHHHHHHHH.rows
 *   key of what makes rows interchangeable (hex), block number (decimal), hash of all tokens up to
 *   the block's end (hex)
 */
#include "src/engine/prefix_store.h"

#include "src/base/hash.h"
#include "src/base/host/clock.h"
#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/engine/session/session_file.h"
#include "src/engine/session/session_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME_BYTES   (16 + 1 + 6 + 1 + 16 + 5) /* without the 0 */
#define SUFFIX       ".rows"
#define STALE_PART_S 3600 /* temporary files older than this are of killed programs: removed */
#define MOST_BLOCKS  999999u

struct prefix_store {
	struct engine *g;
	char *folder;
	int fd; /* of the folder */
	uint64_t max_bytes;
	uint64_t paused_until_ns; /* by clock_ns: the end of the pause; 0: none */
	uint32_t pause_s;         /* its length; 0: the last write succeeded */
	struct prefix_store_stats stats;
};

/* ---- names ---- */

/* mtp: of blocks that hold the rows of the MTP layer too. */
static uint64_t store_key(const struct session *s, bool mtp)
{
	char maker[SESSION_MAKER_BYTES];
	session_rows_maker(s->g, maker);
	uint64_t h = hash_u64(session_fingerprint(s->g), SESSION_FILE_VERSION);
	const struct kv_cache_shape *shape = &s->g->stages->plan.kv_shape;
	h = hash_u64(h, (uint64_t)(shape->latents_f8 ? DTYPE_F8_E4M3 : shape->type) << 1 | mtp);
	h = hash_u64(h, PREFIX_BLOCK);
	h = hash_u64(h, SESSION_ARITHMETIC);
	return hash_bytes(h, maker, strlen(maker));
}

/* The names of a prompt's blocks, one after the other: without and with the rows of the MTP layer.
 */
struct block_chain {
	uint64_t key[2], hash[2];
	uint32_t block; /* of which the names are */
	char name[2][NAME_BYTES + 1];
};

static struct block_chain chain_begin(const struct session *s)
{
	struct block_chain c = {.block = UINT32_MAX};
	for (int mtp = 0; mtp < 2; mtp++)
		c.key[mtp] = c.hash[mtp] = store_key(s, mtp);
	return c;
}

/* tokens: those of the next block. */
static void chain_next(struct block_chain *c, const int32_t *tokens)
{
	c->block++;
	for (int mtp = 0; mtp < 2; mtp++) {
		c->hash[mtp] = hash_bytes(c->hash[mtp], tokens, PREFIX_BLOCK * sizeof *tokens);
		snprintf(c->name[mtp], sizeof c->name[mtp], "%016llx-%06u-%016llx" SUFFIX,
			(unsigned long long)c->key[mtp], c->block, (unsigned long long)c->hash[mtp]);
	}
}

/* NULL in a scope only (mem.h). */
static char *block_path(const struct prefix_store *p, const char *name)
{
	return mem_printf("%s/%s", p->folder, name);
}

/* Sets the last use of a block to `now`, of later blocks of the chain a little earlier. False when
 * the file does not exist. One whose time cannot be set, as another user's, may be readable. */
static bool set_last_use(
	const struct prefix_store *p, const struct block_chain *c, bool mtp, struct timespec now)
{
	uint32_t block = c->block;
	const char *name = c->name[mtp];
	int64_t ns = (int64_t)now.tv_nsec - (int64_t)block * 1000;
	now.tv_sec -= ns < 0;
	now.tv_nsec = (long)(ns < 0 ? ns + 1000000000 : ns);
	struct timespec times[2] = {now, now};
	return utimensat(p->fd, name, times, 0) == 0 || errno != ENOENT;
}

static struct timespec wall_clock(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t;
}

/* ---- the folder's size ---- */

struct block_entry {
	char name[NAME_BYTES + 1];
	uint64_t bytes;
	struct timespec used;
	uid_t owner;
};

struct block_listing {
	struct block_entry *entries;
	size_t n, cap;
	uint64_t bytes;
};

/* Does `name` begin as block files do? Foreign files in the folder are never counted or removed. */
static bool begins_with_block_name(const char *name)
{
	static const char hex[] = "0123456789abcdef";
	return strspn(name, hex) == 16 && name[16] == '-' && strspn(name + 17, hex) == 6 &&
		   strspn(name + 17, "0123456789") == 6 && name[23] == '-' &&
		   strspn(name + 24, hex) == 16 && !strncmp(name + 40, SUFFIX, strlen(SUFFIX));
}

static bool is_block_name(const char *name)
{
	return begins_with_block_name(name) && !name[NAME_BYTES];
}

/* An old "BLOCK.PID.part": what out_file.h calls the temporary file of a block. */
static bool is_stale_part(const char *name, const struct stat *st)
{
	if (!begins_with_block_name(name) || name[NAME_BYTES] != '.')
		return false;
	const char *pid = name + NAME_BYTES + 1;
	size_t digits = strspn(pid, "0123456789");
	return digits && !strcmp(pid + digits, ".part") && st->st_mtime + STALE_PART_S < time(NULL);
}

static int list_folder(const struct prefix_store *p, struct block_listing *l, struct err *e)
{
	*l = (struct block_listing){0};
	DIR *d = opendir(p->folder);
	if (!d)
		return err_errno(e, errno, "%.400s", p->folder);
	for (const struct dirent *x; (x = readdir(d));) {
		struct stat st;
		if (x->d_name[0] == '.' || fstatat(p->fd, x->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
			!S_ISREG(st.st_mode))
			continue;
		if (is_stale_part(x->d_name, &st))
			unlinkat(p->fd, x->d_name, 0);
		if (!is_block_name(x->d_name))
			continue;
		size_t cap = l->n < l->cap ? l->cap : l->cap ? 2 * l->cap : 64;
		if (cap > l->cap && !mem_grow_array(&l->entries, cap, sizeof *l->entries)) {
			closedir(d);
			free(l->entries);
			*l = (struct block_listing){0};
			return err_set(e, ERR_MEMORY, "%.400s: no memory for the list of blocks", p->folder);
		}
		l->cap = cap;
		struct block_entry *n = &l->entries[l->n++];
		memcpy(n->name, x->d_name, sizeof n->name);
		n->bytes = (uint64_t)st.st_size;
		n->used = st.st_mtim;
		n->owner = st.st_uid;
		l->bytes += n->bytes;
	}
	closedir(d);
	return 0;
}

/* Longest unused first; of equals the one later in its chain. */
static int compare_last_use(const void *a, const void *b)
{
	const struct block_entry *x = a, *y = b;
	if (x->used.tv_sec != y->used.tv_sec)
		return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
	if (x->used.tv_nsec != y->used.tv_nsec)
		return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
	return strcmp(y->name + 17, x->name + 17);
}

/* Bytes of the blocks that this user may not remove: in a sticky folder, those of others. */
static uint64_t foreign_bytes(const struct prefix_store *p, const struct block_listing *l)
{
	const uid_t me = geteuid();
	struct stat folder;
	uint64_t bytes = 0;
	if (!me || fstat(p->fd, &folder) || !(folder.st_mode & S_ISVTX) || folder.st_uid == me)
		return 0;
	for (size_t i = 0; i < l->n; i++)
		bytes += l->entries[i].owner != me ? l->entries[i].bytes : 0;
	return bytes;
}

static int refuse_full(const struct prefix_store *p, uint64_t bytes, struct err *e)
{
	return err_set(e, -ENOSPC, "%.400s: blocks that this user may not remove take %.3f of %.3f GB",
		p->folder, (double)bytes / 1e9, (double)p->max_bytes / 1e9);
}

/* Removes blocks until `extra` bytes more fit; 0: until the limit is met, as far as this user may.
 * If they cannot fit, nothing is removed for them. */
static int evict_blocks(struct prefix_store *p, uint64_t extra, struct err *e)
{
	struct block_listing l;
	int rc = list_folder(p, &l, e);
	if (rc)
		return rc;
	const uint64_t foreign = foreign_bytes(p, &l);
	if (extra && foreign + extra > p->max_bytes) {
		free(l.entries);
		return refuse_full(p, foreign, e);
	}
	if (l.bytes + extra > p->max_bytes)
		qsort(l.entries, l.n, sizeof *l.entries, compare_last_use);
	size_t gone = 0;
	for (size_t i = 0; i < l.n && l.bytes + extra > p->max_bytes; i++) {
		const bool removed = !unlinkat(p->fd, l.entries[i].name, 0);
		if (!removed && errno != ENOENT) /* another user's; ENOENT: another process removed it */
			continue;
		p->stats.blocks_evicted += removed;
		l.bytes -= l.entries[i].bytes;
		gone++;
	}
	p->stats.bytes = l.bytes;
	p->stats.files = l.n - gone;
	free(l.entries);
	return extra && l.bytes + extra > p->max_bytes ? refuse_full(p, l.bytes, e) : 0;
}

/* ---- public ---- */

/* Bytes of a block's file, at most: its rows, and all tokens up to its end. */
static uint64_t block_bytes(const struct session *s, uint32_t block)
{
	uint64_t end = ((uint64_t)block + 1) * PREFIX_BLOCK;
	return session_file_bytes(s, PREFIX_BLOCK + 1, 0) + end * (sizeof(int32_t) + 1);
}

int prefix_store_open(const char *folder, uint64_t max_bytes, struct engine *g,
	struct prefix_store **out, struct err *e)
{
	*out = NULL;
	if (mkdir(folder, 0700) && errno != EEXIST)
		return err_errno(e, errno, "%.400s: cannot be made", folder);
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_errno(e, errno, "%.400s", folder);
	if (faccessat(fd, ".", W_OK | X_OK, 0)) {
		int errnum = errno;
		close(fd);
		return err_errno(e, errnum, "%.400s: cannot be written to", folder);
	}
	struct stat st;
	if (!fstat(fd, &st) && ((st.st_mode & 022) || (st.st_uid && st.st_uid != geteuid())))
		log_warn("%.400s: other users may write to this folder, and what they put there counts as "
				 "computed; chmod 700 closes it",
			folder);
	struct prefix_store *p = NEW(struct prefix_store);
	*p = (struct prefix_store){.g = g,
		.folder = mem_strdup(folder),
		.fd = fd,
		.max_bytes = max_bytes ? max_bytes : PREFIX_STORE_DEFAULT_SIZE};
	struct session sizes = {.g = g, .mtp = engine_has_mtp(g)};
	uint64_t least = block_bytes(&sizes, 0);
	int rc = 0;
	if (p->max_bytes < least) {
		rc = err_set(e, ERR_USAGE,
			"%.300s: a limit of %.4f GB has no room for one block of %u tokens (%.4f GB)", folder,
			(double)p->max_bytes / 1e9, PREFIX_BLOCK, (double)least / 1e9);
		err_hint(e, "at least --session-dir-gb %.4f", (double)(least + 99999) / 1e9);
	}
	if (rc || (rc = evict_blocks(p, 0, e))) {
		prefix_store_close(p);
		return rc;
	}
	log_verbose("prefix store: %s, %llu blocks of %u tokens, %.3f of %.3f GB", folder,
		(unsigned long long)p->stats.files, PREFIX_BLOCK, (double)p->stats.bytes / 1e9,
		(double)p->max_bytes / 1e9);
	*out = p;
	return 0;
}

void prefix_store_close(struct prefix_store *p)
{
	if (!p)
		return;
	close(p->fd);
	free(p->folder);
	free(p);
}

struct prefix_store_stats prefix_store_stats(const struct prefix_store *p)
{
	return p->stats;
}

/* Appends a stored block to the session. False when it is missing or unusable. */
static bool restore_block(struct prefix_store *p, struct session *s, const struct block_chain *c,
	bool mtp, const int32_t *tokens, int *rc, struct err *e)
{
	struct err why = {0};
	uint32_t first = c->block * PREFIX_BLOCK;
	char *path = block_path(p, c->name[mtp]);
	if (!path)
		return false;
	int got = session_rows_load(s, first, tokens, first + PREFIX_BLOCK, path, &why);
	if (got == ERR_INPUT) {
		const bool removed = !unlinkat(p->fd, c->name[mtp], 0);
		log_warn("%s; %sits tokens are computed", why.text, removed ? "it is removed and " : "");
		p->stats.blocks_damaged++;
	} else if (got && got != -ENOENT && engine_has_failed(s->g)) {
		*rc = got;
		if (e)
			*e = why;
	} else if (got && got != -ENOENT) {
		log_warn("%s; its tokens are computed", why.text);
	}
	free(path);
	return got == 0;
}

int prefix_store_restore(struct prefix_store *p, struct session *s, const int32_t *tokens,
	uint32_t n, uint32_t *n_read, struct err *e)
{
	int rc = 0;
	if (n_read)
		*n_read = 0;
	if (s->g != p->g)
		bug("a session of another engine");
	if ((rc = session_check(s, tokens, n, n, e)))
		return rc;
	uint32_t same = session_common_prefix(s, tokens, n);
	session_rewind(s, same);

	struct block_chain c = chain_begin(s);
	struct timespec t = wall_clock();
	for (uint32_t end = PREFIX_BLOCK; end <= n && !rc; end += PREFIX_BLOCK) {
		chain_next(&c, tokens + end - PREFIX_BLOCK);
		bool wanted = s->mtp, got = false;
		if (end <= same) { /* in the caches already; if it is stored too, this is a use */
			if (!set_last_use(p, &c, wanted, t))
				set_last_use(p, &c, !wanted, t);
			continue;
		}
		/* of the two kinds the one that fits; the other one costs less than to compute the rows */
		for (int other = 0; other < 2 && !got && !rc; other++)
			got = set_last_use(p, &c, wanted ^ other, t) &&
				  restore_block(p, s, &c, wanted ^ other, tokens, &rc, e);
		if (!got)
			break;
		p->stats.blocks_read++;
	}
	if (s->length > same) {
		p->stats.tokens_read += s->length - same;
		if (n_read)
			*n_read = s->length - same;
	}
	return rc;
}

/* The kind of block that this session has rows for; *stored: it is in the store, or a block with
 * more rows is. That counts as a use. */
static bool block_kind(const struct prefix_store *p, const struct session *s,
	const struct block_chain *c, struct timespec t, bool *stored)
{
	uint32_t first = c->block * PREFIX_BLOCK;
	bool mtp = session_has_mtp_rows(s, first, first + PREFIX_BLOCK);
	*stored = set_last_use(p, c, mtp, t) || (!mtp && set_last_use(p, c, true, t));
	return mtp;
}

/* Writing has ended with rc. */
static int note_write(struct prefix_store *p, int rc, struct err *e)
{
	if (!rc) {
		p->pause_s = 0;
		p->paused_until_ns = 0;
	} else if (rc != ERR_MEMORY) {
		p->pause_s = p->pause_s ? MIN(2 * p->pause_s, PREFIX_STORE_PAUSE_MAX_S) : 1;
		p->paused_until_ns = clock_ns() + p->pause_s * 1000000000ull;
		struct err why = {0};
		err_set(&why, rc, "%s", e ? e->text : "");
		err_set(e, rc, "%s; nothing more is stored for %u s", why.text, p->pause_s);
	}
	return rc;
}

int prefix_store_keep(struct prefix_store *p, struct session *s, uint32_t n, struct err *e)
{
	if (s->g != p->g || n > s->length)
		bug("%u of %u tokens of a session to keep", n, s->length);
	/* blocks that exist are used now, so that they are not evicted for those that are missing */
	uint32_t blocks = MIN(n / PREFIX_BLOCK, MOST_BLOCKS);
	uint64_t in_all = 0, missing = 0;
	struct block_chain c = chain_begin(s);
	struct timespec t = wall_clock();
	for (uint32_t i = 0; i < blocks; i++) {
		const uint64_t bytes = block_bytes(s, i);
		bool stored;
		if (in_all + bytes > p->max_bytes) { /* no more fit within the limit */
			blocks = i;
			break;
		}
		in_all += bytes;
		chain_next(&c, s->tokens + (size_t)i * PREFIX_BLOCK);
		block_kind(p, s, &c, t, &stored);
		missing += stored ? 0 : bytes;
	}
	if (!missing || clock_ns() < p->paused_until_ns)
		return 0;
	int rc = evict_blocks(p, missing, e);
	c = chain_begin(s);
	for (uint32_t i = 0; i < blocks && !rc; i++) {
		chain_next(&c, s->tokens + (size_t)i * PREFIX_BLOCK);
		bool stored, mtp = block_kind(p, s, &c, t, &stored);
		if (stored)
			continue;
		struct session_file_info info;
		char *path = block_path(p, c.name[mtp]);
		rc = path ? session_rows_save(s, i * PREFIX_BLOCK, (i + 1) * PREFIX_BLOCK, path, &info, e)
				  : err_set(e, ERR_MEMORY, "no memory for the name of a block");
		free(path);
		if (rc)
			break;
		set_last_use(p, &c, mtp, t);
		p->stats.blocks_written++;
		p->stats.files++;
		p->stats.bytes += info.bytes;
	}
	return note_write(p, rc, e);
}
