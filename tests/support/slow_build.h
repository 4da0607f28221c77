/* SPDX-License-Identifier: MIT */
/* Sanitizers slow arithmetic down by ten and more, and counts of coverage by three. What a plain
 * build shows with all rounds has fewer of them there. */
#ifndef GLM_TESTS_SLOW_BUILD_H
#define GLM_TESTS_SLOW_BUILD_H

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(COVERAGE_FOLDER)
#define IF_SLOW_BUILD(few, all) (few)
#else
#define IF_SLOW_BUILD(few, all) (all)
#endif

#endif
