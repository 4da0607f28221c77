/* SPDX-License-Identifier: MIT */
/* Headers into memory, then the usual way through gguf_open. */
#include "tools/plan/model_headers.h"

#include "src/base/mem.h"
#include "src/checkpoint/checkpoint.h"
#include "src/format/gguf_write.h"
#include "src/checkpoint/convert_keys.h"
#include "src/checkpoint/convert_map.h"
#include "tools/synth/synth_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int bind_model(struct model_headers *m, const char *path, struct err *e)
{
	int rc;
	if ((rc = model_file_open(path, &m->file, e)) || (rc = config_read(m->file, &m->config, e)) ||
		(rc = weights_bind(m->file, &m->config, m->config.n_mtp > 0, &m->weights, &m->resident, e)))
		return rc;
	for (size_t i = 0; i < m->file->n_tensors; i++) {
		const uint64_t *ne = m->file->tensors[i].ne;
		m->values += ne[0] * ne[1] * ne[2] * ne[3];
	}
	return 0;
}

/* The planned file (its first part) in memory: its header, and a hole for the data. */
static int write_headers(struct model_headers *m, const struct gguf_writer *w, struct err *e)
{
	size_t bytes;
	const char *header = gguf_writer_header(w, 0, &bytes);
	m->fd = memfd_create("glmstream-plan", MFD_CLOEXEC);
	if (m->fd < 0 || TEMP_FAILURE_RETRY(ftruncate(m->fd, (off_t)gguf_writer_part(w, 0).file_bytes)))
		return err_errno(e, errno, "a file in memory");
	for (size_t at = 0; at < bytes;) {
		ssize_t n = pwrite(m->fd, header + at, bytes - at, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return err_errno(e, n ? errno : ENOSPC, "a file in memory");
		at += (size_t)n;
	}
	return 0;
}

int model_headers_make(struct model_headers *m, const char *recipe, struct err *e)
{
	struct convert_config shape;
	struct convert_recipe r;
	struct convert_plan plan = {0};
	struct gguf_writer *w = NULL;
	*m = (struct model_headers){.fd = -1};
	synth_model_glm52(&shape);
	int rc = convert_recipe_parse(&r, recipe, e);
	if (rc || (rc = convert_plan_make(&plan, &shape, &r, NULL, NULL, NULL, e)))
		goto out;
	w = gguf_writer_new(NULL);
	convert_keys_shape(w, &shape);
	gguf_writer_set_str(w, "general.name", "GLM-5.2");
	for (size_t i = 0; i < plan.n_tensors && !rc; i++) {
		const struct convert_tensor *t = &plan.tensors[i];
		rc = gguf_writer_add_tensor(w, t->name, t->type, t->n_dims, t->ne, NULL, e);
	}
	if (rc || (rc = gguf_writer_plan(w, e)) || (rc = write_headers(m, w, e)))
		goto out;
	char path[40];
	snprintf(path, sizeof path, "/proc/self/fd/%d", m->fd);
	rc = bind_model(m, path, e);
out:
	gguf_writer_free(w);
	convert_plan_fini(&plan);
	return rc;
}

int model_headers_check(const struct gguf_writer *w, struct err *e)
{
	struct model_headers m = {.fd = -1};
	size_t bytes = gguf_writer_part(w, 0).file_bytes;
	int rc = write_headers(&m, w, e);
	if (!rc) {
		void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, m.fd, 0);
		if (map == MAP_FAILED)
			rc = err_errno(e, errno, "a file in memory");
		else if (!(rc = gguf_parse(map, bytes, "this checkpoint as a GGUF", &m.file, e)) &&
				 !(rc = config_read(m.file, &m.config, e)) && gguf_writer_n_parts(w) == 1)
			rc = weights_bind(m.file, &m.config, m.config.n_mtp > 0, &m.weights, &m.resident, e);
		weights_free(&m.weights, NULL);
		gguf_close(m.file);
		m.file = NULL;
		if (map != MAP_FAILED)
			munmap(map, bytes);
	}
	model_headers_close(&m);
	return rc;
}

int model_headers_open(struct model_headers *m, const char *path, struct err *e)
{
	*m = (struct model_headers){.fd = -1};
	return bind_model(m, path, e);
}

int model_headers_leave_mtp(struct model_headers *m, struct err *e)
{
	weights_free(&m->weights, NULL);
	m->no_mtp = true;
	return weights_bind(m->file, &m->config, false, &m->weights, &m->resident, e);
}

void model_headers_close(struct model_headers *m)
{
	weights_free(&m->weights, NULL);
	gguf_close(m->file);
	if (m->fd > 0)
		close(m->fd);
	*m = (struct model_headers){.fd = -1};
}
