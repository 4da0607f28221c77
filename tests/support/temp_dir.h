/* SPDX-License-Identifier: MIT */
/* A folder for the files of one test program; the fixtures go to cmocka_run_group_tests. */
#ifndef GLM_TESTS_TEMP_DIR_H
#define GLM_TESTS_TEMP_DIR_H

int temp_dir_make(void **state); /* below TMPDIR, else /tmp */
int temp_dir_drop(void **state); /* with everything in it */

/* The folder's path, or that of a file in it; the latter stays valid for three more calls. */
const char *temp_dir(void);
char *temp_dir_path(const char *name);

#endif
