/* SPDX-License-Identifier: MIT */
/* The only state is a bounded list of the names that were logged. */
#include "src/serve/http/request_log.h"

#include "src/base/log.h"
#include "src/base/mem.h"
#include "src/base/num.h"
#include "src/serve/page.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NAMES_MAX  64  /* further names are not logged: a client could send any number */
#define NAME_BYTES 100 /* of a name that are compared and logged */

struct request_log {
	pthread_mutex_t lock; /* guards the names */
	char *names[NAMES_MAX];
	size_t n_names;
};

struct request_log *request_log_new(void)
{
	struct request_log *l = NEW(struct request_log);
	pthread_mutex_init(&l->lock, NULL);
	return l;
}

void request_log_free(struct request_log *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < l->n_names; i++)
		free(l->names[i]);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

void request_log_model(struct request_log *l, const char *asked, const char *served)
{
	size_t len = strnlen(asked, NAME_BYTES);
	bool fresh = true;
	pthread_mutex_lock(&l->lock);
	for (size_t i = 0; i < l->n_names && fresh; i++)
		fresh = strlen(l->names[i]) != len || memcmp(l->names[i], asked, len) != 0;
	fresh = fresh && l->n_names < NAMES_MAX;
	if (fresh) {
		struct mem_scope scope; /* else it is logged again */
		mem_scope_begin(&scope);
		l->names[l->n_names] = mem_strndup(asked, len);
		l->n_names += l->names[l->n_names] != NULL;
		mem_scope_end(&scope);
	}
	pthread_mutex_unlock(&l->lock);
	if (fresh)
		log_info("a client asks for the model \"%.*s\": \"%s\" answers (--strict-model refuses)",
			(int)len, asked, served);
}

static bool is_routine(const struct exchange *x)
{
	static const char *const paths[] = {
		"/health", "/metrics", "/v1/glmstream/state", "/v1/glmstream/events"};
	for (size_t i = 0; i < ARRAY_LEN(paths); i++)
		if (!strcmp(exchange_path(x), paths[i]))
			return true;
	return !strncmp(exchange_path(x), PAGE_FOLDER, strlen(PAGE_FOLDER));
}

void request_log_done(struct request_log *l, const struct exchange *x, const struct http_done *d)
{
	(void)l;
	char when[16], tokens[64] = "", note[128] = "";
	struct timespec now;
	struct tm tm;
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &tm);
	strftime(when, sizeof when, "%H:%M:%S", &tm);
	if (d->prompt_tokens || d->new_tokens)
		snprintf(tokens, sizeof tokens, ", %llu + %llu tokens",
			(unsigned long long)d->prompt_tokens, (unsigned long long)d->new_tokens);
	if (d->note[0])
		snprintf(note, sizeof note, " (%s)", d->note);
	(is_routine(x) && d->status < 400 ? log_verbose : log_info)("%s %.10s %.100s %u%s%s, %llu ms%s",
		when, exchange_method(x), exchange_path(x), d->status, note, tokens,
		(unsigned long long)(d->ns / 1000000), d->gone ? ", the client left" : "");
}
