/* SPDX-License-Identifier: MIT */
/* Between the header parser (safetensors.c) and the opener (safetensors_open.c). Everybody else
 * includes safetensors.h. */
#ifndef GLM_FORMAT_SAFETENSORS_PARSE_H
#define GLM_FORMAT_SAFETENSORS_PARSE_H

#include "src/format/safetensors.h"

#include <jansson.h>

/* Appends a file without descriptor; returns its index. */
uint32_t safetensors_add_file(struct safetensors *st, const char *path, uint64_t size);

/* The header's size from the first 8 bytes of a file of at least 8 bytes. */
int safetensors_header_bytes(
	const uint8_t first[8], uint64_t file_bytes, const char *path, uint64_t *n, struct err *e);

/* Appends the tensors of one file from its n bytes of JSON. */
int safetensors_parse_header(
	struct safetensors *st, uint32_t file, const char *json, size_t n, struct err *e);

/* After the last file: sorts by name, refuses duplicates over files. */
int safetensors_finish(struct safetensors *st, struct err *e);

#endif
